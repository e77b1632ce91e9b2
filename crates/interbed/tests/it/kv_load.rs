//! A server with KV on disk under load for long: what it takes of disk, descriptors and memory stays what it was.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::Server;

/// How long the load lasts; longer by `INTERBED_LOAD_SECONDS`, an hour being 3600.
const SECONDS: u64 = 12;

/// What a server takes.
#[derive(Debug, Clone, Copy)]
struct Taken {
    disk_bytes: u64,
    descriptors: usize,
    memory_bytes: u64,
}

fn taken(server: &Server, directory: &Path) -> Taken {
    let process = Path::new("/proc").join(server.id().to_string());
    let status = fs::read_to_string(process.join("status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512);
    Taken {
        disk_bytes: files.sum(),
        descriptors: fs::read_dir(process.join("fd")).unwrap().count(),
        memory_bytes: resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10,
    }
}

#[test]
fn a_server_takes_no_more_after_long_than_after_a_while() {
    const LIMIT: u64 = 64 << 20;
    let seconds = std::env::var("INTERBED_LOAD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("kv");
    let store = directory.to_str().unwrap();
    let server = Server::start(&["--kv-disk", store, "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"]);
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let (early, late) = std::thread::scope(|scope| {
        for client in 0..4u64 {
            let (server, over, answered) = (&server, &over, &answered);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(client);
                while !over.load(Ordering::SeqCst) {
                    // A conversation of a few turns; some are ones that were had before.
                    let topic = if random.bool() { random.u64(..50) } else { random.u64(..1 << 30) };
                    let mut said = fastrand::Rng::with_seed(100 + topic);
                    let mut prompt: Vec<u64> = (0..300).map(|_| said.u64(..200) + 5).collect();
                    for _ in 0..1 + random.u64(..4) {
                        let tokens = 8 + random.u64(..24);
                        let body =
                            json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
                        let answer = server.ask("POST /v1/completions HTTP/1.1", &body.to_string());
                        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
                        let body: Value = serde_json::from_str(body).unwrap();
                        assert_eq!(body["usage"]["completion_tokens"].as_u64(), Some(tokens), "{body}");
                        answered.fetch_add(1, Ordering::SeqCst);
                        prompt.extend((0..20).map(|_| said.u64(..200) + 5));
                    }
                }
            });
        }
        let until = |at: Duration| std::thread::sleep(at.saturating_sub(began.elapsed()));
        until(Duration::from_secs(seconds) / 6);
        let early = taken(&server, &directory);
        until(Duration::from_secs(seconds));
        over.store(true, Ordering::SeqCst);
        (early, taken(&server, &directory))
    });
    let answered = answered.into_inner();
    let [written, evicted] = ["written_bytes", "evictions"]
        .map(|name| crate::kv_disk::metric(&server, &format!("interbed:kv_disk_{name}_total")));
    println!("{answered} answers in {seconds} s, {written} bytes were written and {evicted} blocks evicted");
    println!("after a sixth of that {early:?}, at the end {late:?}");
    assert!(answered > 20, "{answered} answers");
    assert!(late.disk_bytes <= LIMIT + (1 << 20), "{late:?}");
    // In a short run, the store is just about to be full.
    assert!(seconds < 120 || evicted > 0, "the store was never full");
    // In a short run, some segments and some buffers are first used after the first look.
    let (descriptors, memory_bytes) = if seconds < 600 { (16, 32 << 20) } else { (2, 4 << 20) };
    assert!(late.descriptors <= early.descriptors + descriptors, "{early:?} {late:?}");
    assert!(late.memory_bytes <= early.memory_bytes + memory_bytes, "{early:?} {late:?}");
}
