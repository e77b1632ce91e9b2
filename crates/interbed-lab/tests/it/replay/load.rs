//! Tests the memory that a trace holds at a time against figures that are worked out by hand.

use super::{Figures, Line, azure, check, folder, mooncake, with};
use crate::support::{refused, succeeded};

const SLOW: [&str; 6] = ["--prefill-rate", "16", "--decode-rate", "1", "--policy", "lru"];

#[test]
fn a_load_is_the_one_worked_out_by_hand() {
    let folder = folder();
    let trace = azure(&folder, &["2023-11-16 18:15:46.0,32,2", "2023-11-16 18:15:56.0,1,0"]);
    let figures = Figures::of(&trace, &SLOW);
    // In 12 s the requests hold 2 blocks for two seconds of prefill, 3 for two of decoding, and 1 for two of the second
    // request.
    check(figures.of_room("taken_mean", "ample"), (32.0 + 32.0 + 48.0 + 48.0 + 16.0 + 16.0) / 12.0, "mean");
    check(figures.of_room("taken_peak", "ample"), 48.0, "peak");
    check(figures.of_room("fragmentation", "ample"), (15.0 + 14.0 + 15.0 + 15.0) / 192.0, "fragmentation");
    check(figures.of_room("sequences_mean", "ample"), 6.0 / 12.0, "sequences");
    check(figures.of_room("waited", "ample"), 0.0, "nobody waits");
    // The memory of 3 blocks has one place of 34 tokens.
    check(figures.of_room("taken_peak", "preallocated"), 34.0, "one place");
    check(figures.get("replay.load.preallocated_tokens", &[]), 34.0, "one at a time");
    check(figures.get("replay.load.preallocated_sequences", &[]), 1.0, "one place");
    let table = succeeded(&with(&trace, &[&SLOW[..], &["--block-bytes", "1M"]].concat()));
    for part in ["no hit rates", "3.00 MiB", "assumed"] {
        assert!(table.contains(part), "{part} in {table}");
    }
}

#[test]
fn out_of_blocks_the_next_one_waits_and_the_last_one_is_preempted() {
    let folder = folder();
    let trace = azure(&folder, &["2023-11-16 18:15:46,32,2", "2023-11-16 18:15:46,20,0"]);
    let waiting = Figures::of(&trace, &[&SLOW[..], &["--load-blocks", "3"]].concat());
    check(waiting.of_room("wait_max", "blocks"), 4.0, "until the first has left");
    check(waiting.of_room("wait_mean", "blocks"), 2.0, "one does not wait");
    check(waiting.of_room("waited", "blocks"), 1.0, "the second");
    check(waiting.of_room("sequences_peak", "blocks"), 1.0, "one at a time");
    check(waiting.of_room("sequences_peak", "ample"), 2.0, "together");
    check(waiting.of_room("wait_max", "preallocated"), 4.0, "one place");
    let trace = azure(&folder, &["2023-11-16 18:15:46,32,2", "2023-11-16 18:15:46,32,2"]);
    let preempted = Figures::of(&trace, &[&SLOW[..], &["--load-blocks", "4"]].concat());
    check(preempted.of_room("preemptions", "blocks"), 1.0, "the second, when the first grows");
    check(preempted.of_room("preemptions_of_one", "blocks"), 1.0, "once");
    check(preempted.of_room("waited", "blocks"), 0.0, "both began at once");
    check(preempted.of_room("refused", "blocks"), 0.0, "both end");
    let small = Figures::of(&trace, &[&SLOW[..], &["--load-blocks", "2"]].concat());
    check(small.of_room("refused", "blocks"), 2.0, "34 tokens do not fit 32");
}

#[test]
fn equal_prompts_share_their_blocks_in_the_load() {
    let folder = folder();
    let lines: Vec<Line> = (0..4).map(|number| (number * 60_000, 1024, 5, vec![0, 1])).collect();
    let figures = Figures::of(&mooncake(&folder, &lines), &["--blocks", "8", "--policy", "lru"]);
    // The last token of a prompt is always computed, so its block is not found.
    check(figures.of_room("cached_tokens", "ample"), 3.0 * (1024.0 - 16.0), "all but the first, all but a block");
}

#[test]
fn the_load_is_in_order_of_time() {
    let folder = folder();
    let rows = ["2023-11-16 18:15:56.0,1,0", "2023-11-16 18:15:46.0,32,2"];
    let trace = azure(&folder, &rows);
    check(Figures::of(&trace, &SLOW).of_room("taken_peak", "ample"), 48.0, "as in order");
    check(Figures::of(&trace, &SLOW).of_room("sequences_peak", "ample"), 1.0, "as in order");
    assert!(succeeded(&with(&trace, &SLOW)).contains("1 came before the one above"));
}

#[test]
fn a_load_that_takes_too_many_blocks_is_refused() {
    let folder = folder();
    let trace = azure(&folder, &["2023-11-16 18:15:46,4194304,1"]);
    refused(
        &with(&trace, &["--block-size", "1"]),
        &["4,194,305 blocks of 1 token", "4,194,304", "hint: ", "--block-size"],
    );
}
