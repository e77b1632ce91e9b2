//! `--kv-layout virtual`: the same answers, from memory that is shared as the system counts it.

use serde_json::{Value, json};

use crate::kv_disk::metric;
use crate::serve::Server;
use crate::support::{succeeded, tiny};

/// The answer to a prompt of `shared` tokens that are the same for all, and some of its own.
fn answer(server: &Server, number: u64, shared: u64, tokens: u64) -> String {
    let own = (0..20).map(|at| (number * 13 + at * at + at * number) % 200 + 5);
    let prompt: Vec<u64> = (0..shared).map(|at| (at * at * 3 + at) % 200 + 5).chain(own).collect();
    let body = json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true}).to_string();
    let answer = server.ask("POST /v1/completions HTTP/1.1", &body);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no answer: {answer}"));
    body["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no answer: {body}")).to_owned()
}

/// KiB of shared memory: mapped in all places together, and of these in pages of their own.
fn shared_memory(server: &Server) -> (u64, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", server.id())).unwrap();
    let (mut of_kv, mut mapped, mut own) = (false, 0, 0);
    for line in smaps.lines() {
        let kib = || line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap();
        match line.split(':').next().unwrap() {
            "Rss" if of_kv => mapped += kib(),
            "Pss" if of_kv => own += kib(),
            _ if line.contains("-") && line.split(' ').next().is_some_and(|range| range.contains('-')) => {
                of_kv = line.contains("memfd:interbed-kv");
            }
            _ => {}
        }
    }
    (mapped, own)
}

#[test]
fn answers_are_the_same_and_a_prefix_is_in_memory_once() {
    const SHARED: u64 = 400;
    let (paged, mapped) = (Server::start(&[]), Server::start(&["--kv-layout", "virtual"]));
    let expected: Vec<_> = (0..6).map(|number| answer(&paged, number, SHARED, 12)).collect();
    assert_eq!(shared_memory(&paged), (0, 0));
    assert_eq!(answer(&mapped, 0, SHARED, 12), expected[0]);
    let (mapped_before, own_before) = shared_memory(&mapped);
    // Together, so that each has a strip of its own.
    std::thread::scope(|scope| {
        let asked: Vec<_> = (1..6)
            .map(|number| {
                (
                    number,
                    scope.spawn({
                        let mapped = &mapped;
                        move || answer(mapped, number, SHARED, 12)
                    }),
                )
            })
            .collect();
        for (number, text) in asked {
            assert_eq!(text.join().unwrap(), expected[number as usize], "prompt {number}");
        }
    });
    let (mapped_after, own_after) = shared_memory(&mapped);
    // Of 432 tokens, 400 are shared.
    assert!(own_after > own_before && mapped_after > mapped_before);
    let (places, memory) = (mapped_after - mapped_before, own_after - own_before);
    assert!(memory * 4 < places, "{memory} KiB more are in {places} KiB more of addresses");
    assert!(metric(&mapped, "interbed:kv_maps_beside_total") + metric(&mapped, "interbed:kv_maps_waited_total") > 0);
    assert_eq!(metric(&mapped, "interbed:kv_unmapped_sequences_total"), 0);
    assert!(!paged.ask("GET /metrics HTTP/1.1", "").contains("interbed:kv_mappings"));
}

#[test]
fn a_server_with_mapped_kv_on_disk_is_killed_and_goes_on() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("kv");
    let options = |layout: &'static str| {
        let directory = directory.to_str().unwrap();
        let disk = ["--kv-disk", directory, "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"];
        [&["--kv-layout", layout][..], &disk[..]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut expected = None;
    // What one layout has stored the other finds.
    for layout in ["paged", "virtual", "virtual", "paged"] {
        let options = options(layout);
        let server = Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
        let text = answer(&server, 3, 200, 40);
        assert_eq!(*expected.get_or_insert(text.clone()), text, "{layout}");
        server.kill();
    }
}

#[test]
fn blocks_of_virtual_kv_fill_pages() {
    let run = |more: &[&str]| {
        let options = ["run", tiny(), "--prompt", "7 8 9", "--max-tokens", "9", "--seed", "1"];
        succeeded(&[&options[..], more].concat())
    };
    let paged = run(&[]);
    for more in [&["--kv-layout", "virtual"][..], &["--kv-layout", "virtual", "--block-size", "1"]] {
        assert_eq!(run(more), paged, "{more:?}");
    }
}
