//! Tests `interbed-lab replay --servers`: what its options mean, and its figures where they can be worked out by hand.

use std::fs;

use serde_json::Value;

use super::{Figures, Line, azure, check, check_well_formed, conversations, folder, mooncake, written};
use crate::support::{refused, succeeded, text};

fn figures(trace: &str, more: &[&str]) -> Figures {
    let output = succeeded(&[&["replay", trace][..], more, &["--json"]].concat());
    Figures(output.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect())
}

fn of_fleet(figures: &Figures, name: &str, servers: usize, route: &str, remote: Option<u64>) -> f64 {
    let remote = remote.map_or(Value::Null, Value::from);
    let params = [("servers", servers.into()), ("route", route.into()), ("remote_bytes", remote)];
    figures.get(&format!("replay.fleet.{name}"), &params)
}

/// Returns two conversations, whose second turns come when their first ones are answered.
fn two_conversations() -> Vec<Line> {
    let line = |second: u64, ids: &[u64]| (second * 1000, 512 * ids.len(), 10, ids.to_vec());
    vec![line(0, &[1, 2]), line(0, &[5, 6]), line(60, &[5, 6, 7]), line(61, &[1, 2, 3]), line(62, &[1, 2])]
}

/// The pace: 512 prompt tokens a second, and 10 answer tokens a second.
const SLOW: [&str; 4] = ["--prefill-rate", "512", "--decode-rate", "10"];

#[test]
fn figures_are_those_worked_out_by_hand() {
    let folder = folder();
    let trace = mooncake(&folder, &two_conversations());
    let more = ["--servers", "2", "--blocks", "8", "--block-bytes", "16", "--remote-tier", "1M"];
    let figures = figures(&trace, &[&more[..], &SLOW].concat());
    let of = |name: &str, route: &str, remote: Option<u64>| of_fleet(&figures, name, 2, route, remote);
    // Each conversation stays on its server: 2, 2 and 2 blocks of 12 are found.
    check(of("hit_rate", "prefix", None), 6.0 / 12.0, "what was computed once");
    check(of("hit_rate_tokens", "prefix", None), 6.0 / 12.0, "whole blocks");
    check(of("computed_tokens", "prefix", None), 6.0 * 512.0, "the others");
    check(of("memory_tokens", "prefix", None), 6.0 * 512.0, "those found");
    check(of("skew_computed", "prefix", None), 1.0, "two and one blocks each");
    // The first tokens come after 2, 2, 1, 1 and 0 seconds. All answers take one second, and the first server has
    // three.
    check(of("first_token_mean", "prefix", None), 6.0 / 5.0, "seconds");
    check(of("first_token_p99", "prefix", None), 2.0, "the longest of five");
    check(of("skew_in_flight", "prefix", None), 6.0 / 5.5, "3 + 2 + 1 seconds, and 3 + 2");
    // By load alone the third request goes to the first server, the fourth to the second, and the last to the first,
    // which has [1, 2] from the beginning.
    check(of("hit_rate", "load", None), 2.0 / 12.0, "the last");
    check(of("computed_tokens", "load", None), 10.0 * 512.0, "the others");
    // What one server lacks, the other has written: 2 blocks of each second turn come from the remote tier.
    let remote = Some(1 << 20);
    check(of("hit_rate", "load", remote), 6.0 / 12.0, "as in endless memory");
    check(of("hit_rate_memory", "load", remote), 2.0 / 12.0, "the last");
    check(of("fetched_tokens", "load", remote), 4.0 * 512.0, "two second turns");
    check(of("fetched_bytes", "load", remote), 4.0 * 512.0, "one byte a token");
    check(of("written_bytes", "load", remote), 6.0 * 512.0, "each block once");
    check(of("saved", "load", remote), 0.4, "6 blocks instead of 10");
    check(of("saved", "prefix", remote), 0.0, "nothing was missing");
    check(of("fetched_bytes", "prefix", remote), 0.0, "nothing was missing");
    for route in ["random", "load", "prefix"] {
        check(of("refused", route, None), 0.0, "all fit");
        check(of("evictions", route, remote), 0.0, "all fit");
    }
    check(of_fleet(&figures, "hit_rate", 2, "pooled", None), 6.0 / 12.0, "the memory of both");
    check(figures.get("replay.fleet.infinite", &[]), 6.0 / 12.0, "the same");
}

#[test]
fn one_server_finds_what_a_replay_without_servers_finds() {
    let folder = folder();
    let trace = mooncake(&folder, &conversations(5, 300));
    let alone = Figures::of(&trace, &["--blocks", "40", "--policy", "adaptive,2q"]);
    for policy in ["adaptive", "2q"] {
        let fleet = figures(&trace, &["--servers", "1", "--blocks", "40", "--policy", policy]);
        for route in ["random", "load", "prefix"] {
            for name in ["hit_rate", "hit_rate_tokens", "evictions", "refused"] {
                let expected = alone.of_policy(&format!("replay.{name}"), policy, 40);
                check(of_fleet(&fleet, name, 1, route, None), expected, name);
            }
        }
    }
}

#[test]
fn a_remote_tier_alone_is_that_of_one_server() {
    let folder = folder();
    let trace = mooncake(&folder, &conversations(6, 300));
    let more = ["--remote-tier", "1T", "--block-bytes", "2M", "--route", "load"];
    let figures = figures(&trace, &[&["--blocks", "20"][..], &more].concat());
    let infinite = figures.get("replay.fleet.infinite", &[]);
    let found = of_fleet(&figures, "hit_rate", 1, "load", Some(1 << 40));
    let refused = of_fleet(&figures, "refused", 1, "load", None);
    check(refused, 0.0, "the longest prompt fits");
    check(found, infinite, "nothing is ever lost");
    assert!(of_fleet(&figures, "hit_rate", 1, "load", None) < 0.8 * infinite);
}

#[test]
fn people_get_a_table_and_plots() {
    let folder = folder();
    let trace = mooncake(&folder, &conversations(7, 300));
    let picture = text(&folder.path().join("fleet.svg"));
    let table = succeeded(&[
        "replay",
        &trace,
        "--servers",
        "4,1,2,4",
        "--blocks",
        "30",
        "--block-bytes",
        "2M",
        "--remote-tier",
        "10G",
        "--event-lag",
        "0.5",
        "--svg",
        &picture,
    ]);
    for part in [
        "trace.jsonl: 300 requests",
        "Fleets of servers with 30 blocks of 512 tokens each (1.88 GiB), evicted by adaptive; a remote tier of 10.0 \
         GiB (160 blocks)",
        "KV events reach the router 0.500 s late",
        "  servers  route   remote       hit rate, %",
        "        4  prefix  yes",
        "           pooled",
        "more than 1.22 GiB/s",
    ] {
        assert!(table.contains(part), "{part}\nin\n{table}");
    }
    // The table has each fleet once, and each route without and with the tier.
    let rows = |route: &str| table.lines().filter(|line| line.contains(&format!("  {route}  "))).count();
    assert_eq!((rows("random"), rows("pooled")), (6, 2), "{table}");
    let svg = fs::read_to_string(&picture).expect("the picture");
    check_well_formed(&svg);
    for part in ["Hit rate over servers", "Computed tokens", ">prefix ", ">random, remote ", ">pooled ", ">endless "] {
        assert!(svg.contains(part), "{part} in {svg}");
    }
}

#[test]
fn a_trace_without_hashes_shows_load() {
    let folder = folder();
    let rows: Vec<String> = (10..50).map(|second| format!("2023-11-16 18:15:{second},{},5", 100 * second)).collect();
    let trace = azure(&folder, &rows.iter().map(String::as_str).collect::<Vec<_>>());
    let picture = text(&folder.path().join("load.svg"));
    let table = succeeded(&["replay", &trace, "--servers", "3", "--svg", &picture]);
    assert!(table.contains("no hit rates") && !table.contains("pooled"), "{table}");
    let svg = fs::read_to_string(&picture).expect("the picture");
    check_well_formed(&svg);
    assert!(!svg.contains("Hit rate") && svg.contains("Requests in flight"));
    let figures = figures(&trace, &["--servers", "3"]);
    let skew = |route| of_fleet(&figures, "skew_computed", 3, route, None);
    assert!(skew("prefix") <= skew("random"), "{} {}", skew("prefix"), skew("random"));
    let more = ["--servers", "3", "--remote-tier", "1G", "--block-bytes", "2M"];
    refused(&[&["replay", trace.as_str()][..], &more].concat(), &["--remote-tier", "hash_ids", "hint: "]);
}

#[test]
fn fleets_that_cannot_be_are_refused() {
    let folder = folder();
    let trace = mooncake(&folder, &two_conversations());
    let check = |more: &[&str], parts: &[&str]| {
        refused(&[&["replay", trace.as_str()][..], more].concat(), parts);
    };
    check(&["--servers", "0"], &["--servers", "from 1 to 4096"]);
    check(&["--servers", "1,4097"], &["--servers", "from 1 to 4096"]);
    check(&["--servers", "two"], &["--servers", "from 1 to 4096"]);
    check(&["--servers", "2", "--route", "best"], &["--route", "best", "random, load, prefix"]);
    check(&["--route", "prefix"], &["--servers"]);
    check(&["--event-lag", "1"], &["--servers"]);
    check(&["--servers", "2", "--event-lag=-1"], &["--event-lag", "from 0 to"]);
    check(&["--servers", "2", "--blocks", "5,6"], &["--blocks names 2 sizes", "hint: "]);
    check(&["--servers", "2", "--policy", "lru,2q"], &["--policy names 2", "hint: "]);
    check(&["--servers", "2", "--tiers", "5,6"], &["--tiers", "cannot be used with"]);
    check(&["--servers", "2", "--explain"], &["--explain", "cannot be used with"]);
    check(&["--remote-tier", "1G", "--repeat", "2"], &["--repeat", "cannot be used with"]);
    check(&["--servers", "2", "--remote-tier", "1G"], &["--remote-tier", "--block-bytes 2M", "hint: "]);
    check(&["--servers", "2", "--remote-tier", "much"], &["--remote-tier", "is no size"]);
    let small = ["--servers", "2", "--remote-tier", "1M", "--block-bytes", "2M"];
    check(&small, &["--remote-tier is 1.00 MiB", "64.0 MiB", "512 tokens at 128.0 KiB", "hint: "]);
}

#[test]
fn a_fleet_whose_records_are_too_many_is_refused_before_it_runs() {
    let folder = folder();
    let ids: Vec<String> = (0..4000).map(|id| id.to_string()).collect();
    let line = format!(
        r#"{{"timestamp": 0, "input_length": {}, "output_length": 1, "hash_ids": [{}]}}"#,
        4000 * 512,
        ids.join(", ")
    );
    let trace = written(&folder, "long.jsonl", &line);
    let more = ["--servers", "8,4096", "--blocks", "1000000"];
    // No server can use more blocks than the trace names.
    refused(
        &[&["replay", trace.as_str()][..], &more].concat(),
        &["16,384,000 blocks in all", "at most 8,388,608", "hint: ", "--servers"],
    );
}
