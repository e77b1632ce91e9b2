//! Tests the figures of `interbed-lab replay` against some that are known by hand, and against simulators that are as
//! simple as can be.

mod explain;
mod fleet;
mod load;
mod routings;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use interbed_lab::eviction::POLICIES;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{ended, refused, succeeded, text};

/// A request of a trace: its time in milliseconds, the tokens of prompt and answer, and the blocks of the prompt.
type Line = (u64, usize, usize, Vec<u64>);

fn mooncake(folder: &TempDir, lines: &[Line]) -> String {
    let mut content = String::new();
    for (timestamp, input, output, ids) in lines {
        let _ = writeln!(
            content,
            r#"{{"timestamp": {timestamp}, "input_length": {input}, "output_length": {output}, "hash_ids": {ids:?}}}"#
        );
    }
    written(folder, "trace.jsonl", &content)
}

fn azure(folder: &TempDir, rows: &[&str]) -> String {
    written(folder, "trace.csv", &format!("TIMESTAMP,ContextTokens,GeneratedTokens\r\n{}", rows.join("\r\n")))
}

fn written(folder: &TempDir, name: &str, content: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("the trace can be written");
    text(&path)
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn with<'a>(trace: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["replay", trace, "--repeat", "1"].iter().chain(more).copied().collect()
}

struct Figures(Vec<Value>);

impl Figures {
    fn of(trace: &str, more: &[&str]) -> Self {
        Self::of_command(&with(trace, more))
    }

    fn of_command(args: &[&str]) -> Self {
        let output = succeeded(&[args, &["--json"]].concat());
        Self(output.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect())
    }

    /// Returns the only figure of this name with these parameters.
    fn get(&self, name: &str, params: &[(&str, Value)]) -> f64 {
        let fits =
            |line: &&Value| line["name"] == name && params.iter().all(|(param, value)| line["params"][param] == *value);
        let found: Vec<&Value> = self.0.iter().filter(fits).collect();
        let [line] = found[..] else { panic!("{name} with {params:?}: {found:?}") };
        line["value"].as_f64().unwrap_or_else(|| panic!("a number in {line}"))
    }

    fn of_policy(&self, name: &str, policy: &str, blocks: usize) -> f64 {
        self.get(name, &[("policy", policy.into()), ("blocks", blocks.into())])
    }

    fn of_room(&self, name: &str, room: &str) -> f64 {
        self.get(&format!("replay.load.{name}"), &[("room", room.into())])
    }
}

fn check(value: f64, expected: f64, what: &str) {
    assert!((value - expected).abs() < 1e-9, "{what}: {value}, not {expected}");
}

/// Returns three prompts of two blocks. In a cache of two blocks, the second pushes out what the third would have
/// found.
fn three_prompts() -> Vec<Line> {
    vec![(0, 1024, 1, vec![0, 1]), (0, 600, 1, vec![0, 2]), (1000, 1024, 1, vec![0, 1])]
}

#[test]
fn hit_rates_are_those_worked_out_by_hand() {
    let folder = folder();
    let trace = mooncake(&folder, &three_prompts());
    let figures = Figures::of(&trace, &["--blocks", "2,3,2", "--policy", "lru"]);
    check(figures.of_policy("replay.hit_rate", "lru", 2), 2.0 / 6.0, "0 and 0");
    check(figures.of_policy("replay.hit_rate_tokens", "lru", 2), 1024.0 / 2648.0, "512 tokens each");
    check(figures.of_policy("replay.evictions", "lru", 2), 2.0, "1, then 2");
    check(figures.of_policy("replay.hit_rate", "lru", 3), 3.0 / 6.0, "0, then 0 and 1");
    check(figures.of_policy("replay.hit_rate_tokens", "lru", 3), 1536.0 / 2648.0, "three whole blocks");
    check(figures.of_policy("replay.evictions", "lru", 3), 0.0, "everything fits");
    check(figures.of_policy("replay.used_mean", "lru", 3), (2.0 + 3.0 + 3.0) / 3.0, "blocks with content");
    check(figures.of_policy("replay.used_peak", "lru", 2), 2.0, "a full cache");
    check(figures.of_policy("replay.fragmentation", "lru", 2), 1.0 - 2648.0 / (6.0 * 512.0), "the second's last block");
    for blocks in [2, 3] {
        check(figures.of_policy("replay.hit_rate", "infinite", blocks), 3.0 / 6.0, "as with three");
    }
    let speed = [("policy", "lru".into()), ("blocks", 2.into()), ("block_size", 1.into())];
    assert!(figures.get("replay.blocks_per_s", &speed) > 0.0);
}

#[test]
fn a_prompt_that_exceeds_the_cache_is_a_miss_and_harms_nothing() {
    let folder = folder();
    let mut lines = three_prompts();
    lines.insert(1, (0, 1500, 1, vec![7, 8, 9]));
    let figures = Figures::of(&mooncake(&folder, &lines), &["--blocks", "2", "--policy", "lru"]);
    check(figures.of_policy("replay.hit_rate", "lru", 2), 2.0 / 9.0, "as without it, of more blocks");
    check(figures.of_policy("replay.refused", "lru", 2), 1.0, "the one of three blocks");
}

/// Returns prompts that grow and branch, as conversations do. The same seed gives the same prompts.
fn conversations(seed: u64, requests: usize) -> Vec<Line> {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut chains: Vec<Vec<u64>> = Vec::new();
    let mut next = 1 << 40;
    (0..requests as u64)
        .map(|number| {
            let mut chain = match random(3) {
                0 => Vec::new(),
                _ if chains.is_empty() => Vec::new(),
                _ => {
                    let chain = &chains[random(chains.len() as u64) as usize];
                    chain[..=random(chain.len() as u64) as usize].to_vec()
                }
            };
            for _ in 0..=random(4) {
                chain.push(next);
                next += 1 + random(1 << 20);
            }
            chains.push(chain.clone());
            let tokens = chain.len() * 512 - random(512) as usize;
            (number * 200, tokens, random(40) as usize, chain)
        })
        .collect()
}

/// Returns the hits and evictions of LRU with a list. Hits are the leading run of a prompt; among blocks that are not
/// in the prompt, the longest unused is evicted first.
fn lru(lines: &[Line], blocks: usize) -> (usize, usize) {
    let mut list: Vec<u64> = Vec::new();
    let (mut hits, mut evictions) = (0, 0);
    for (.., prompt) in lines.iter().filter(|(.., prompt)| prompt.len() <= blocks) {
        hits += prompt.iter().take_while(|id| list.contains(id)).count();
        list.retain(|id| !prompt.contains(id));
        while list.len() + prompt.len() > blocks {
            list.remove(0);
            evictions += 1;
        }
        list.extend(prompt.iter().rev());
    }
    (hits, evictions)
}

/// Returns the hits of the policy that evicts the block whose next use is farthest away, found by a search of all that
/// comes. With `tail_first`, a prompt's blocks are used from its end.
fn offline(lines: &[Line], blocks: usize, tail_first: bool) -> usize {
    let used = |prompt: &[u64]| -> Vec<u64> {
        if tail_first { prompt.iter().rev().copied().collect() } else { prompt.to_vec() }
    };
    let references: Vec<u64> = lines.iter().flat_map(|(.., prompt)| used(prompt)).collect();
    let mut cache: HashSet<u64> = HashSet::new();
    let (mut hits, mut place) = (0, 0);
    for (.., prompt) in lines {
        hits += prompt.iter().take_while(|id| cache.contains(id)).count();
        for id in used(prompt) {
            place += 1;
            if !cache.contains(&id) && cache.len() == blocks {
                let next = |id: &u64| references[place - 1..].iter().position(|other| other == id);
                // Among blocks that are never used again, any will do.
                let victim = cache.iter().max_by_key(|id| next(id).unwrap_or(usize::MAX)).copied();
                cache.remove(&victim.expect("the cache is full"));
            }
            cache.insert(id);
        }
    }
    hits
}

#[test]
fn random_conversations_hit_as_in_simulators() {
    let folder = folder();
    for seed in 1..=6 {
        let lines = conversations(seed, 300);
        let references = lines.iter().map(|(.., prompt)| prompt.len()).sum::<usize>() as f64;
        let trace = mooncake(&folder, &lines);
        let figures = Figures::of(&trace, &["--blocks", "20,60,200", "--policy", "lru"]);
        for blocks in [20, 60, 200] {
            let what = format!("seed {seed}, {blocks} blocks");
            let (hits, evictions) = lru(&lines, blocks);
            check(figures.of_policy("replay.hit_rate", "lru", blocks), hits as f64 / references, &what);
            check(figures.of_policy("replay.evictions", "lru", blocks), evictions as f64, &what);
            for (name, tail_first) in [("offline", true), ("offline_leaves", false)] {
                let hits = offline(&lines, blocks, tail_first) as f64 / references;
                check(figures.of_policy("replay.hit_rate", name, blocks), hits, &what);
            }
        }
        let mut seen = HashSet::new();
        let again = lines.iter().flat_map(|(.., prompt)| prompt).filter(|id| !seen.insert(**id)).count();
        check(figures.of_policy("replay.hit_rate", "infinite", 60), again as f64 / references, "infinite");
    }
}

#[test]
fn every_policy_is_replayed_and_one_is_the_default() {
    let folder = folder();
    let lines = conversations(9, 200);
    let trace = mooncake(&folder, &lines);
    let figures = Figures::of(&trace, &["--blocks", "30,100"]);
    let infinite = figures.of_policy("replay.hit_rate", "infinite", 100);
    let mut policies: BTreeMap<String, bool> = BTreeMap::new();
    for line in figures.0.iter().filter(|line| line["name"] == "replay.blocks_per_s") {
        let (policy, default) = (&line["params"]["policy"], &line["params"]["default"]);
        policies.insert(policy.as_str().unwrap().into(), default.as_bool().unwrap());
        let blocks = line["params"]["blocks"].as_u64().unwrap() as usize;
        let rate = figures.of_policy("replay.hit_rate", policy.as_str().unwrap(), blocks);
        assert!((0.0..=infinite).contains(&rate), "{line}");
    }
    assert_eq!(policies, POLICIES.map(|kind| (kind.to_string(), kind.name() == "adaptive")).into());
    let known = ["2q", "adaptive", "lfu", "lru", "s3-fifo", "slru"];
    assert!(known.iter().all(|policy| policies.contains_key(*policy)), "{policies:?}");
    for operation in ["allocate", "publish", "append", "append_token", "free", "hit", "evict"] {
        for policy in policies.keys() {
            let params = [("operation", operation.into()), ("policy", policy.as_str().into())];
            assert!(figures.get("replay.ns", &params) > 0.0);
        }
    }
}

#[test]
fn a_policy_that_is_named_twice_is_replayed_once() {
    let folder = folder();
    let figures = Figures::of(&mooncake(&folder, &three_prompts()), &["--blocks", "3", "--policy", "lru,2q,lru"]);
    // Each figure must occur exactly once.
    check(figures.of_policy("replay.hit_rate", "lru", 3), 3.0 / 6.0, "once");
    check(figures.of_policy("replay.hit_rate", "2q", 3), 3.0 / 6.0, "once");
}

#[test]
fn the_size_of_a_block_is_told_and_whether_all_prompts_agree() {
    let folder = folder();
    let block_tokens = |lines: &[Line], agree: bool| {
        let figures = Figures::of(&mooncake(&folder, lines), &["--blocks", "4", "--policy", "lru"]);
        let size = figures.get("replay.block_tokens", &[("lengths_agree", agree.into())]);
        (size, figures.of_policy("replay.fragmentation", "lru", 4))
    };
    let (size, fragmentation) = block_tokens(&[(0, 600, 1, vec![0]), (0, 900, 1, vec![1])], true);
    check(size, 1024.0, "the least power of two");
    check(fragmentation, 1.0 - 1500.0 / 2048.0, "two blocks");
    let lines = [(0, 33, 1, vec![0, 1, 2]), (0, 20, 1, vec![0, 3]), (0, 512, 1, vec![4])];
    check(block_tokens(&lines, false).0, 16.0, "two of three");
    let table = succeeded(&with(&mooncake(&folder, &lines), &["--blocks", "4", "--policy", "lru"]));
    assert!(table.contains("that size explains how many blocks most prompts have, but not of all"), "{table}");
}

#[test]
fn people_get_tables() {
    let folder = folder();
    let trace = mooncake(&folder, &three_prompts());
    let table = succeeded(&with(&trace, &["--blocks", "2,3", "--policy", "lru"]));
    for part in [
        "trace.jsonl: 3 requests in 1 s; tokens a request: 883 in, 1 out, 1,025 both at the most\n  6 blocks of 512 \
         tokens in \
         prompts, 3 different ones\n",
        "  policy                           2               3\n",
        "   33.33 (38.67)   50.00 (58.01)\n",
        "  infinite             50.00 (58.01)   50.00 (58.01)\n",
        "Operations, ns a block of 16 tokens",
    ] {
        assert!(table.contains(part), "{part}\nin\n{table}");
    }
}

/// Checks the tags of a picture: they must be closed in turn, their quotes must be paired, and every value must be
/// finite.
fn check_well_formed(picture: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in picture.split('<').skip(1) {
        let (tag, content) = piece.split_once('>').expect("a tag ends");
        assert!(!content.contains('&') || content.contains(';'), "{content}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in turn");
            continue;
        }
        let (inner, closed) = tag.strip_suffix('/').map_or((tag, false), |inner| (inner, true));
        let name = inner.split_whitespace().next().expect("a tag has a name");
        assert_eq!(inner.matches('"').count() % 2, 0, "{tag}");
        let quoted = inner.split('"').skip(1).step_by(2);
        quoted.for_each(|value| assert!(!value.contains("NaN") && !value.contains("inf"), "{tag}"));
        if !closed {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_plot_is_a_picture_of_the_figures() {
    let folder = folder();
    let lines = conversations(4, 200);
    let content = fs::read(mooncake(&folder, &lines)).unwrap();
    let trace = text(&folder.path().join("a<b>&c.jsonl"));
    fs::write(&trace, content).unwrap();
    let picture = text(&folder.path().join("hits.svg"));
    let table = succeeded(&with(&trace, &["--blocks", "10,20,40", "--svg", &picture]));
    let svg = fs::read_to_string(&picture).unwrap();
    check_well_formed(&svg);
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("a&lt;b&gt;&amp;c.jsonl"));
    // Every line's label gives the line's last figure, as the table does. Of the two policies that know the future, one
    // is drawn.
    let rates = table.lines().skip_while(|line| !line.starts_with("  policy")).skip(1);
    let rows: Vec<&str> = rates.take_while(|line| !line.starts_with("  offline knows")).collect();
    let drawn = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let [policy, .., rate, _by_token] = fields[..] else { panic!("{row}") };
        let label = if fields[1] == "leaves" { "offline, leaves" } else { policy };
        svg.contains(&format!(">{label} {:.1} %</text>", rate.parse::<f64>().expect("a number")))
    };
    let missing: Vec<&str> = rows.iter().copied().filter(|row| !drawn(row)).collect();
    assert!(
        rows.len() == POLICIES.len() + 3 && missing.len() == 1 && missing[0].starts_with("  offline  "),
        "{missing:?}"
    );
    for label in [">40<", ">10<"] {
        assert!(svg.contains(label), "{label}");
    }
    let one = text(&folder.path().join("one.svg"));
    succeeded(&with(&trace, &["--blocks", "10", "--policy", "lru", "--svg", &one]));
    check_well_formed(&fs::read_to_string(&one).unwrap());
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_the_replay() {
    let folder = folder();
    let trace = mooncake(&folder, &three_prompts());
    // Explanations would be printed during the replay.
    let ended = ended(&with(&trace, &["--svg", "/no/such/folder/x.svg", "--policy", "lru", "--explain", "--json"]));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("/no/such/folder/x.svg"), "{}", ended.stderr);
}

#[test]
fn traces_that_cannot_be_believed_are_refused() {
    let folder = folder();
    let check = |content: &str, parts: &[&str]| {
        let trace = written(&folder, "bad", content);
        let stderr = refused(&with(&trace, &[]), parts);
        assert!(stderr.contains("hint: "), "{stderr}");
    };
    check("", &["holds no request"]);
    check("hello\n", &["line 1 of", "JSON object", "TIMESTAMP", "hello"]);
    let good = r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}"#;
    check(&format!("{good}\n{good}\n{{\"timestamp\": 0}}\n"), &["line 3 of", "input_length"]);
    check(&good.replace(r#""input_length": 1"#, r#""input_length": 99999999"#), &["line 1", "16777216"]);
    check(&good.replace(r#""input_length": 1"#, r#""input_length": -1"#), &["line 1", "-1"]);
    check(&good.replace("[1]", "[18446744073709551616]"), &["line 1", "u64"]);
    check("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", &["line 2", "TIMESTAMP", "yesterday"]);
    refused(&["replay", "/no/such/trace"], &["/no/such/trace", "hint: "]);
    refused(&["replay", &text(Path::new(folder.path()))], &["hint: "]);
    let trace = azure(&folder, &["2023-11-16 18:15:46,32,2"]);
    refused(&with(&trace, &["--svg", "x.svg"]), &["--svg", "hash_ids"]);
    refused(&with(&trace, &["--policy", "best"]), &["--policy", "best", "lru"]);
    refused(&with(&trace, &["--blocks", "0"]), &["--blocks"]);
    refused(&with(&trace, &["--blocks", "99999999999"]), &["--blocks"]);
    refused(&with(&trace, &["--block-size", "24"]), &["power of two"]);
    refused(&with(&trace, &["--decode-rate", "0"]), &["--decode-rate", "0.1"]);
    refused(&with(&trace, &["--prefill-rate", "nan"]), &["--prefill-rate"]);
}

#[test]
fn empty_prompts_and_long_silences_do_no_harm() {
    let folder = folder();
    let lines = vec![(0, 0, 0, vec![]), (5, 512, 0, vec![3]), (1_000_000_000_000_000, 512, 9, vec![3])];
    let figures = Figures::of(&mooncake(&folder, &lines), &["--blocks", "4", "--policy", "lru"]);
    check(figures.of_policy("replay.hit_rate", "lru", 4), 0.5, "one of two");
    check(figures.of_room("taken_peak", "ample"), 528.0, "9 tokens more than 512, in blocks of 16");
    check(figures.of_room("waited", "preallocated"), 0.0, "nobody");
}

#[test]
fn ids_may_have_64_bits() {
    let folder = folder();
    let lines = vec![(0, 600, 1, vec![u64::MAX, 1 << 32]), (0, 600, 1, vec![u64::MAX, 1 << 32])];
    let figures = Figures::of(&mooncake(&folder, &lines), &["--blocks", "9", "--policy", "lru"]);
    check(figures.of_policy("replay.hit_rate", "lru", 9), 0.5, "the second prompt");
}
