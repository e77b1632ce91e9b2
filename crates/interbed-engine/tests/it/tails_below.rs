//! What layers keep of the tails of sequences, in tiers below memory: a prefix comes back with all that a sequence
//! needs to go on, or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use interbed_engine::{MissReason, Recompute, Request, StoreMode};
use interbed_kv::Keeps;
use interbed_kv_disk::testing::FaultySegments;
use interbed_kv_remote::Patience;
use interbed_kv_remote::testing::FaultyStore;

use crate::disk::{self, end, on_disk};
use crate::remote;
use crate::sim::{KINDS, Shape, assert_idle_and_whole, collect, eventually, expected_greedy, greedy, prompt};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_prompt_and_an_answer_come_back_after_a_restart() {
    for (tails, mode) in KINDS.into_iter().flat_map(|tails| [(tails, StoreMode::Evict), (tails, StoreMode::Eager)]) {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape { tails, ..Shape::default() };
        let first = greedy(prompt(3, 70), 20);
        let expected = expected_greedy(&first.prompt, &first.params);
        let (engine, _) = disk::start(shape, &space, mode);
        assert_eq!(collect(engine.handle().submit(first.clone()).unwrap()).tokens, expected);
        let space = end(engine, &space, false);
        let (engine, controls) = disk::start(shape, &space, mode);
        let ended = collect(engine.handle().submit(first.clone()).unwrap());
        assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), 68), "{mode:?} {tails:?}");
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 2 + 19);
        assert_idle_and_whole(&engine);
        drop(engine);
        // The next turn goes on behind the answer.
        let mut turn = first.clone();
        turn.prompt.extend(&expected);
        turn.prompt.extend(prompt(4, 9));
        let space = Arc::new(space.after_power_failure());
        let (engine, controls) = disk::start(shape, &space, mode);
        let ended = collect(engine.handle().submit(turn.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&turn.prompt, &turn.params));
        assert_eq!(
            (ended.cached_tokens, on_disk(&engine.handle().status()).fetches_cut),
            (88, 0),
            "{mode:?} {tails:?}"
        );
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 11 + 19);
        // One that branches goes on where all that it needs was kept.
        let mut branch = Request { explain_miss: true, ..first.clone() };
        branch.prompt.truncate(50);
        branch.prompt.extend(prompt(5, 30));
        let ended = collect(engine.handle().submit(branch.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&branch.prompt, &branch.params));
        let keeps_states = tails.iter().any(|tail| tail.keeps == Keeps::State);
        let reason = if keeps_states { MissReason::NoState } else { MissReason::NoWindow };
        // Windows are kept behind every block, if they come from computing.
        assert!(ended.cached_tokens <= 48);
        assert!(ended.miss.is_some_and(|miss| miss.reason == reason || miss.matched_tokens == 48), "{:?}", ended.miss);
        let again = collect(engine.handle().submit(branch.clone()).unwrap());
        assert_eq!(again.cached_tokens, 76, "{mode:?} {tails:?}");
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn what_is_idle_comes_back_after_a_kill() {
    for tails in KINDS {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape { tails, ..Shape::default() };
        let soon = Duration::from_millis(20);
        let (engine, _) = disk::start_with(shape, &space, StoreMode::Evict, soon, Recompute::Share(0.0));
        let mut turn = greedy(prompt(3, 70), 20);
        turn.prompt.extend(collect(engine.handle().submit(turn.clone()).unwrap()).tokens);
        let stored = || on_disk(&engine.handle().status()).store.durable_blocks;
        // All 22 blocks, and tails behind the prompt and the answer.
        eventually(&engine, "all is stored", |status| on_disk(status).store.durable_blocks > 22);
        let mut before = 0;
        while stored() > before {
            before = stored();
            std::thread::sleep(Duration::from_millis(300));
        }
        let space = end(engine, &space, true);
        let (engine, _) = disk::start(shape, &space, StoreMode::Evict);
        let ended = collect(engine.handle().submit(turn.clone()).unwrap());
        assert_eq!((ended.tokens, ended.cached_tokens), (expected_greedy(&turn.prompt, &turn.params), 88), "{tails:?}");
    }
}

#[test]
fn what_memory_has_no_room_for_comes_back() {
    for tails in KINDS {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape { tails, blocks: 100, ..Shape::default() };
        let (engine, _) = disk::start(shape, &space, StoreMode::Evict);
        let cached = disk::cached_when_asked_again(&engine);
        let fetched = on_disk(&engine.handle().status()).fetched_tokens;
        assert!(cached > 800 && fetched > 600, "{tails:?}: {cached} tokens were cached, {fetched} fetched");
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn what_one_server_has_computed_another_finds() {
    for tails in KINDS {
        let store = FaultyStore::new(1);
        let shape = Shape { tails, ..Shape::default() };
        let request = greedy(prompt(3, 70), 20);
        let expected = expected_greedy(&request.prompt, &request.params);
        let (first, _) = remote::start(shape, &store, Patience::Fixed(LONG));
        assert_eq!(collect(first.handle().submit(request.clone()).unwrap()).tokens, expected);
        // The prompt's 17 blocks, and tails behind them.
        eventually(&first, "the prompt is stored", |status| remote::remote(status).store.counts.stored > 17);
        assert_idle_and_whole(&first);
        drop(first);
        let (second, controls) = remote::start(shape, &store, Patience::Fixed(LONG));
        let mut longer = request.clone();
        longer.prompt.extend(prompt(4, 30));
        let ended = collect(second.handle().submit(longer.clone()).unwrap());
        let expected = expected_greedy(&longer.prompt, &longer.params);
        assert_eq!((ended.tokens, ended.cached_tokens), (expected, 68), "{tails:?}");
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 32 + 19);
        // Nothing is found of one that differs before the first place where it could go on.
        let mut other = request.clone();
        other.prompt[3] ^= 1;
        let ended = collect(second.handle().submit(other.clone()).unwrap());
        assert_eq!((ended.tokens, ended.cached_tokens), (expected_greedy(&other.prompt, &other.params), 0));
        assert_idle_and_whole(&second);
    }
}
