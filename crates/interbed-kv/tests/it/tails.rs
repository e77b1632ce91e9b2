//! Runs random operations over toy layers that keep tails: windows, exact integers as states, and both together.
//!
//! A failure prints its seed; `INTERBED_TEST_SEED=<seed> cargo test -p interbed-kv <test>` replays that run alone.

use interbed_kv::testing::{TailCase, TailCounts, run_tails};
use interbed_kv::{Keeps, TailConfig};

const WINDOW: TailConfig = TailConfig { keeps: Keeps::Window { tokens: 8 }, block_bytes: 100, parts: 1 };
const SHORT: TailConfig = TailConfig { keeps: Keeps::Window { tokens: 1 }, block_bytes: 30, parts: 1 };
const STATE: TailConfig = TailConfig { keeps: Keeps::State, block_bytes: 250, parts: 3 };

const CASE: TailCase =
    TailCase { block_size: 2, units_max: 40, block_bytes: 100, tails: &[WINDOW], hash_bits: 64, steps: 300_000 };

/// Runs as many episodes of a thousand steps as `INTERBED_EPISODES` says, or those of `case`.
fn run(case: &TailCase) -> TailCounts {
    let episodes = std::env::var("INTERBED_EPISODES").ok().map(|episodes| episodes.parse::<usize>().expect("a number"));
    run_tails(&TailCase { steps: episodes.map_or(case.steps, |episodes| episodes * 1000), ..*case })
}

#[test]
fn a_window_beside_all_tokens() {
    let counts = run(&CASE);
    assert!(counts.full_hits > 100 && counts.given_up > 1000 && counts.refused > 1000, "{counts:?}");
    assert!(counts.forks > 1000 && counts.copies > 1000 && counts.swaps > 1000, "{counts:?}");
    assert!(counts.fetches > 100 && counts.evicted > 100 && counts.drafts > 1000, "{counts:?}");
}

#[test]
fn a_state_beside_all_tokens() {
    let counts = run(&TailCase { tails: &[STATE], ..CASE });
    assert!(counts.full_hits > 30 && counts.given_up > 1000 && counts.refused > 1000, "{counts:?}");
}

#[test]
fn windows_and_states_of_several_sizes() {
    let tails = &[WINDOW, SHORT, STATE, STATE];
    let counts = run(&TailCase { tails, units_max: 80, ..CASE });
    assert!(counts.full_hits > 20 && counts.given_up > 1000 && counts.refused > 1000, "{counts:?}");
}

#[test]
fn windows_alone() {
    let counts = run(&TailCase { block_bytes: 0, ..CASE });
    assert!(counts.full_hits > 300 && counts.given_up > 1000 && counts.refused > 1000, "{counts:?}");
}

#[test]
fn states_alone() {
    run(&TailCase { block_bytes: 0, tails: &[STATE], ..CASE });
}

#[test]
fn blocks_of_one_token_and_of_many() {
    run(&TailCase { block_size: 1, tails: &[WINDOW, STATE], steps: 100_000, ..CASE });
    run(&TailCase { block_size: 16, tails: &[WINDOW, STATE], steps: 100_000, ..CASE });
}

#[test]
fn hashes_that_collide() {
    run(&TailCase { hash_bits: 4, tails: &[WINDOW, STATE], steps: 100_000, ..CASE });
}
