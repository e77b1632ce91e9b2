//! Tests routings of experts: they are recognised by content, replayed, and refused where options contradict them.

use std::fs;

use interbed_plan::routing::{LayerBytes, RoutingHead, RoutingRow, RoutingWriter};
use serde_json::json;
use tempfile::TempDir;

use super::{Figures, check, check_well_formed, folder, mooncake, three_prompts};
use crate::support::{refused, succeeded, text};

fn with<'a>(trace: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["replay", trace].iter().chain(more).copied().collect()
}

/// Writes a trace with one layer of four experts of 10 MB each, which are used token by token as `used` says. The first
/// token is a prompt.
fn routings(folder: &TempDir, used: &[u32]) -> String {
    let layer_bytes = vec![LayerBytes { layer: 0, expert_bytes: 10_000_000, dense_bytes: 0 }];
    let head = RoutingHead { model: "m".into(), arch: "small".into(), layers: 1, experts: 4, top_k: 1, layer_bytes };
    let path = folder.path().join("no-ending");
    let mut writer = RoutingWriter::new(fs::File::create(&path).expect("a trace"), &head).expect("a head");
    for (step, &expert) in (0..).zip(used) {
        // Every tenth token is a prompt of one token.
        let (turn, prompt) = (step / 10, step % 10 == 0);
        let row = RoutingRow { turn, prompt, step, layer: 0, slot: 0, expert, weight: 1.0, held: true, read_bytes: 0 };
        writer.write(&row).expect("a row");
    }
    writer.finish().expect("the trace is written");
    text(&path)
}

#[test]
fn routings_are_recognised_and_replayed() {
    let folder = folder();
    let trace = routings(&folder, &[3, 0, 1, 0, 2, 0, 1]);
    let options = ["--memory", "50,75", "--from", "0"];
    let figures = Figures::of_command(&with(&trace, &options));
    let share = |policy: &str, percent: u64| {
        let params = [("policy", json!(policy)), ("memory_percent", json!(percent))];
        figures.get("replay.routing.read_share", &params)
    };
    // Six tokens are generated. With two slots, 2 takes the place of 1; a policy that knows the future does not keep 2.
    for policy in ["arena", "lru", "lfu_layer"] {
        check(share(policy, 50), 4.0 / 6.0, policy);
        check(share(policy, 75), 3.0 / 6.0, policy);
    }
    check(share("belady", 50), 3.0 / 6.0, "belady");
    check(share("bound", 50), 3.0 / 6.0, "bound");
    let picture = text(&folder.path().join("experts.svg"));
    let table = succeeded(&with(&trace, &[&options[..], &["--svg", &picture]].concat()));
    for part in ["4 experts", "1 prompt tokens", "6 generated", "arena", "7 (66.7)", "after the prompt"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    check_well_formed(&fs::read_to_string(&picture).expect("the picture"));
    let together = succeeded(&with(&trace, &[&options[..], &["--batch", "2"]].concat()));
    assert!(together.contains("cut into 2 side by side"), "{together}");
}

#[test]
fn a_conversation_is_measured_from_the_token_that_was_asked_for() {
    let folder = folder();
    let used: Vec<u32> = (0..22).map(|step| [3, 0, 1, 0, 2][step % 5]).collect();
    let trace = routings(&folder, &used);
    for (from, read) in [("0", 4.0 / 19.0), ("1", 3.0 / 18.0), ("15", 0.0)] {
        let figures = Figures::of_command(&with(&trace, &["--memory", "100", "--from", from]));
        for policy in ["arena", "warm"] {
            let found = figures.get("replay.routing.read_share", &[("policy", json!(policy))]);
            check(found, read, &format!("{policy} from {from}"));
        }
    }
}

#[test]
fn requests_may_come_through_a_pipe() {
    let folder = folder();
    let requests = mooncake(&folder, &three_prompts());
    let piped = text(&folder.path().join("pipe"));
    assert!(std::process::Command::new("mkfifo").arg(&piped).status().unwrap().success());
    let writer = {
        let piped = piped.clone();
        std::thread::spawn(move || fs::write(piped, fs::read(requests).unwrap()).unwrap())
    };
    let table = succeeded(&with(&piped, &["--blocks", "10"]));
    writer.join().unwrap();
    assert!(table.contains("3 requests"), "{table}");
}

#[test]
fn what_contradicts_routings_is_refused() {
    let folder = folder();
    let trace = routings(&folder, &[0, 1, 2, 3]);
    refused(&with(&trace, &["--blocks", "10"]), &["--blocks", "routings", "leave it out"]);
    refused(&with(&trace, &["--repeat", "5"]), &["--repeat", "routings", "leave it out"]);
    refused(&with(&trace, &[]), &["no generated token from 16 on", "--from"]);
    refused(&with(&trace, &["--from", "0", "--memory", "10"]), &["10 % of the experts", "--memory 50"]);
    let requests = mooncake(&folder, &three_prompts());
    refused(&with(&requests, &["--memory", "10"]), &["--memory", "requests", "leave it out"]);
    let broken = fs::read_to_string(&trace).expect("the trace").replace("0,1,2,0,0,2,", "0,1,2,0,0,9,");
    let path = text(&folder.path().join("broken.csv"));
    fs::write(&path, broken).expect("a trace");
    refused(&with(&path, &[]), &["line 7 of", "broken.csv", "expert", "0 to 3"]);
}
