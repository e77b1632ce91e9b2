//! Tests the reasons why prompts missed against reasons that are worked out by hand.

use serde_json::{Value, json};

use super::{Figures, Line, check, folder, mooncake, three_prompts, with};
use crate::support::succeeded;

const LRU: [&str; 5] = ["--blocks", "2", "--policy", "lru", "--explain"];

#[test]
fn misses_are_explained() {
    let folder = folder();
    let trace = mooncake(&folder, &three_prompts());
    let figures = Figures::of(&trace, &LRU);
    let of = |name: &str, reason: &str| figures.get(name, &[("reason", reason.into())]);
    check(of("replay.missed_requests", "never seen"), 2.0, "the first two");
    check(of("replay.missed_blocks", "never seen"), 3.0, "0 and 1, then 2");
    check(of("replay.missed_requests", "evicted"), 1.0, "the third");
    check(of("replay.lost_blocks", "evicted"), 1.0, "1");
    let table = succeeded(&with(&trace, &LRU));
    let worst = "request 2 found 1 of 2 blocks, and 1 more had been there: evicted 0 look-ups ago for sequence 1";
    for part in ["Why prompts missed: lru", "evicted 0 look-ups before (median)", worst] {
        assert!(table.contains(part), "{part} in {table}");
    }
    assert!(!succeeded(&with(&trace, &LRU[..4])).contains("Why"));
}

#[test]
fn each_request_is_told_in_json() {
    let folder = folder();
    let mut lines = three_prompts();
    lines.push((1000, 1536, 1, vec![0, 1, 3]));
    let told = |figures: Figures| -> Vec<(f64, Value)> {
        let lines = figures.0.into_iter().filter(|line| line["name"] == "replay.matched_blocks");
        lines.map(|line| (line["value"].as_f64().unwrap(), line["params"].clone())).collect()
    };
    let params = |request: u64, prompt_blocks: u64, lost_blocks: u64, reason: &str, by: Value, lookups_ago: Value| {
        json!({
            "policy": "lru", "blocks": 2, "default": false, "request": request, "prompt_blocks": prompt_blocks,
            "lost_blocks": lost_blocks, "reason": reason, "by": by, "lookups_ago": lookups_ago,
        })
    };
    let expected = vec![
        (0.0, params(0, 2, 0, "never seen", Value::Null, Value::Null)),
        (1.0, params(1, 2, 0, "never seen", Value::Null, Value::Null)),
        (1.0, params(2, 2, 1, "evicted", 1.into(), 0.into())),
        (0.0, params(3, 3, 2, "too long", Value::Null, Value::Null)),
    ];
    let trace = mooncake(&folder, &lines);
    assert_eq!(told(Figures::of(&trace, &LRU)), expected);
    let sizes_and_policies = Figures::of(&trace, &["--blocks", "2,3", "--policy", "lru,2q", "--explain"]);
    assert_eq!(told(sizes_and_policies).len(), 4 * 4);
    assert_eq!(told(Figures::of(&trace, &LRU[..4])), []);
}

#[test]
fn what_a_refused_prompt_had_was_never_there() {
    let folder = folder();
    let lines = vec![(0, 1536, 1, vec![0, 1, 2]), (0, 1024, 1, vec![0, 1])];
    let figures = Figures::of(&mooncake(&folder, &lines), &LRU);
    let of = |name: &str, reason: &str| figures.get(name, &[("reason", reason.into()), ("policy", "lru".into())]);
    check(of("replay.missed_requests", "too long"), 1.0, "the first");
    check(of("replay.missed_requests", "never seen"), 1.0, "the second");
    check(of("replay.lost_blocks", "never seen"), 0.0, "nothing was ever there");
}

#[test]
fn evictions_of_long_ago_are_told_from_what_was_never_seen() {
    let folder = folder();
    // There are far more evictions than the manager remembers.
    let mut lines: Vec<Line> = (0..600).map(|at| (at, 100, 1, (100 * at..100 * (at + 1)).collect())).collect();
    lines.push((600, 100, 1, lines[0].3.clone()));
    let trace = mooncake(&folder, &lines);
    let figures = Figures::of(&trace, &["--blocks", "100", "--policy", "lru", "--explain"]);
    let of = |name: &str, reason: &str| figures.get(name, &[("reason", reason.into()), ("blocks", 100.into())]);
    check(of("replay.missed_requests", "evicted long ago"), 1.0, "the last");
    check(of("replay.lost_blocks", "evicted long ago"), 100.0, "all of its blocks");
    check(of("replay.missed_requests", "never seen"), 600.0, "the others");
}
