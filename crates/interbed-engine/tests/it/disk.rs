//! KV on disk: what a sequence computed is found again, by others, after evictions and by the next process; and
//! whatever fails, no token is computed from wrong KV.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use interbed_engine::{
    Attachments, Engine, EngineStatus, LaterTiers, Miss, MissReason, PreemptionMode, Recompute, Request, StoreMode,
    TierBelow, TierPolicy, TierStatus,
};
use interbed_kv::{Gate, SwapTrial, TailParts};
use interbed_kv_disk::testing::{FaultRates, FaultySegments};
use interbed_kv_disk::{DiskOptions, DiskTier, RecordShape, SlotRoom};

use crate::sim::{
    Controls, SLOT_BYTES, Shape, SimRunner, assert_idle_and_whole, collect, engine_config, eventually, expected_greedy,
    greedy, prompt, teach_short_answers,
};

const BYTES: u64 = 1 << 20;

/// A disk that is faster than any computation.
const QUICK: SwapTrial = SwapTrial { bytes: 1 << 20, write_seconds: 1e-9, read_seconds: 1e-9 };

/// Longer than any test.
const IDLE_AFTER: Duration = Duration::from_secs(600);

pub fn start(shape: Shape, space: &Arc<FaultySegments>, mode: StoreMode) -> (Engine, Arc<Controls>) {
    start_with(shape, space, mode, IDLE_AFTER, Recompute::Share(0.0))
}

pub fn start_with(
    shape: Shape,
    space: &Arc<FaultySegments>,
    mode: StoreMode,
    idle_after: Duration,
    recompute: Recompute,
) -> (Engine, Arc<Controls>) {
    let (runner, controls) = SimRunner::new(shape.block_size);
    let below = vec![kv_disk(shape, space, mode, idle_after, recompute)];
    let attachments = Attachments { below, ..Attachments::default() };
    (Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments).unwrap(), controls)
}

pub fn kv_disk(
    shape: Shape,
    space: &Arc<FaultySegments>,
    mode: StoreMode,
    idle_after: Duration,
    recompute: Recompute,
) -> TierBelow {
    let layers = vec![shape.block_size * SLOT_BYTES / 2; 2];
    let options = DiskOptions {
        bytes: BYTES,
        buffer_bytes: 0,
        writes_per_day: None,
        ttl: None,
        gate: Gate::new(0.0),
        frames: (1024 / shape.block_size, 3),
        names: None,
        turns: Arc::default(),
        slots: SlotRoom { num_slots: shape.swap_blocks, bytes: Some(BYTES / 2), trial: QUICK },
    };
    let space = Arc::clone(space);
    let records =
        RecordShape::new(shape.block_size, layers).with_stored_together(TailParts::most(shape.tails, shape.block_size));
    let tier = DiskTier::open(space, [1; 32], [2; 32], records, options).unwrap();
    let policy = TierPolicy { mode, recompute, idle_after: Some(idle_after), drops_fresh: false };
    TierBelow { tier: Box::new(tier), policy }
}

pub fn on_disk(status: &EngineStatus) -> TierStatus {
    *status.tier("disk").expect("there is a disk")
}

/// Kills the engine, or stops it, and returns what is left of its disk.
pub fn end(engine: Engine, space: &FaultySegments, is_killed: bool) -> Arc<FaultySegments> {
    let killed = is_killed.then(|| space.after_power_failure());
    drop(engine);
    Arc::new(killed.unwrap_or_else(|| space.after_power_failure()))
}

#[test]
fn a_prompt_that_was_seen_is_not_computed_again_after_a_restart() {
    let cases = [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror].map(|mode| [(mode, true), (mode, false)]);
    for (mode, is_killed) in cases.into_iter().flatten() {
        // Of a prompt of 17 full blocks and an answer of 5, those that are there for sure when it is killed.
        let durable = match (is_killed, mode) {
            (true, StoreMode::Evict) => 0,
            (true, StoreMode::Eager) => 17,
            _ => 22,
        };
        let all_is_stored = |status: &EngineStatus| !is_killed || on_disk(status).store.durable_blocks >= durable;
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape::default();
        let first = greedy(prompt(3, 70), 20);
        let expected = expected_greedy(&first.prompt, &first.params);
        let (engine, _) = start(shape, &space, mode);
        assert_eq!(collect(engine.handle().submit(first.clone()).unwrap()).tokens, expected);
        eventually(&engine, "all is stored", all_is_stored);
        let space = end(engine, &space, is_killed);
        let (engine, controls) = start(shape, &space, mode);
        let ended = collect(engine.handle().submit(first.clone()).unwrap());
        let cached = if durable == 0 { 0 } else { 68 };
        assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), cached));
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), (70 - cached + 19) as u64);
        // The next turn of the conversation.
        let mut turn = first.clone();
        turn.prompt.extend(&expected);
        assert_eq!(collect(engine.handle().submit(turn.clone()).unwrap()).cached_tokens, 88);
        let space = end(engine, &space, is_killed);
        let (engine, _) = start(shape, &space, mode);
        let ended = collect(engine.handle().submit(turn.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&turn.prompt, &turn.params));
        assert_eq!(ended.cached_tokens as u64, 4 * durable, "{mode:?}, killed: {is_killed}");
        let status = on_disk(&engine.handle().status());
        assert_eq!((status.fetches, status.fetches_cut), (u64::from(durable > 0), 0));
        assert_eq!(status.fetched_tokens, ended.cached_tokens as u64);
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn a_tier_that_comes_later_gets_what_was_computed_before_and_gives_what_it_has() {
    for mode in [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror] {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape::default();
        let (known, first) = (greedy(prompt(7, 70), 20), greedy(prompt(3, 70), 20));
        let (engine, _) = start(shape, &space, mode);
        collect(engine.handle().submit(known.clone()).unwrap());
        let space = end(engine, &space, false);
        let (runner, controls) = SimRunner::new(shape.block_size);
        let (sender, tiers) = std::sync::mpsc::channel();
        let attachments = Attachments { later: Some(LaterTiers { tiers, long_tokens: 0 }), ..Attachments::default() };
        let engine = Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments).unwrap();
        let expected = expected_greedy(&first.prompt, &first.params);
        assert_eq!(collect(engine.handle().submit(first.clone()).unwrap()).tokens, expected);
        // Nothing goes anywhere, and nothing comes.
        assert!(engine.handle().status().tiers.is_empty());
        let kv_disk = kv_disk(shape, &space, mode, IDLE_AFTER, Recompute::Share(0.0));
        assert!(sender.send(vec![kv_disk]).is_ok());
        eventually(&engine, "it is attached", |status| !status.tiers.is_empty());
        // Memory has it, as before; the other comes from disk.
        let computed = controls.tokens_computed.load(Ordering::Relaxed);
        for request in [&first, &known] {
            let ended = collect(engine.handle().submit(request.clone()).unwrap());
            assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params));
            assert_eq!(ended.cached_tokens, 68);
        }
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed) - computed, 2 * (2 + 19));
        assert_idle_and_whole(&engine);
        let space = end(engine, &space, false);
        let (engine, _) = start(shape, &space, mode);
        for request in [&first, &known] {
            assert_eq!(collect(engine.handle().submit(request.clone()).unwrap()).cached_tokens, 68, "{mode:?}");
        }
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn the_beginning_of_a_prefix_is_computed_while_the_rest_is_read() {
    let space = Arc::new(FaultySegments::new(1));
    let first = greedy(prompt(3, 70), 20);
    let (engine, _) = start(Shape::default(), &space, StoreMode::Eager);
    collect(engine.handle().submit(first.clone()).unwrap());
    let space = end(engine, &space, false);
    // Of 17 blocks, 8 are computed; then all of them. In passes of 5 tokens, what is read has long been there.
    for (share, cached, max_num_batched_tokens) in [(0.5, 36, 64), (0.5, 36, 5), (1.0, 0, 64)] {
        let shape = Shape { max_num_batched_tokens, max_num_seqs: 4, ..Shape::default() };
        let space = Arc::new(space.after_power_failure());
        let (engine, controls) = start_with(shape, &space, StoreMode::Evict, IDLE_AFTER, Recompute::Share(share));
        let ended = collect(engine.handle().submit(first.clone()).unwrap());
        assert_eq!(ended.tokens, expected_greedy(&first.prompt, &first.params));
        assert_eq!(ended.cached_tokens, cached);
        assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), (70 - cached + 19) as u64);
        let status = on_disk(&engine.handle().status());
        assert_eq!((status.shared, status.recomputed), (u64::from(share < 1.0), u64::from(share == 1.0)));
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn what_came_from_disk_has_matched() {
    let space = Arc::new(FaultySegments::new(1));
    let asked = |prompt: Vec<u32>| Request { explain_miss: true, ..greedy(prompt, 4) };
    let first = prompt(3, 70);
    let (engine, _) = start(Shape::default(), &space, StoreMode::Eager);
    collect(engine.handle().submit(asked(first.clone())).unwrap());
    let space = end(engine, &space, false);
    let cases = [
        // All full blocks; a prompt that goes on, and one that differs early; one with another beginning.
        (first.clone(), 68, MissReason::PartialBlock),
        ([&first[..], &prompt(4, 30)].concat(), 68, MissReason::NeverSeen),
        ([&first[..9], &prompt(5, 30)].concat(), 8, MissReason::NeverSeen),
        (prompt(6, 30), 0, MissReason::NeverSeen),
    ];
    for (prompt, matched_tokens, reason) in cases {
        let space = Arc::new(space.after_power_failure());
        let (engine, _) = start(Shape::default(), &space, StoreMode::Evict);
        let ended = collect(engine.handle().submit(asked(prompt.clone())).unwrap());
        assert_eq!((ended.cached_tokens, ended.miss), (matched_tokens, Some(Miss { matched_tokens, reason })));
        // In memory it is found as well.
        let again = collect(engine.handle().submit(asked(prompt)).unwrap());
        assert!(again.cached_tokens >= matched_tokens);
    }
    // Of 17 blocks, 8 are computed while the rest is read.
    let space = Arc::new(space.after_power_failure());
    let (engine, _) = start_with(Shape::default(), &space, StoreMode::Evict, IDLE_AFTER, Recompute::Share(0.5));
    let ended = collect(engine.handle().submit(asked(first)).unwrap());
    assert_eq!(ended.miss, Some(Miss { matched_tokens: 36, reason: MissReason::PartialBlock }));
}

#[test]
fn what_is_idle_for_a_while_is_on_disk_when_the_process_is_killed() {
    for mode in [StoreMode::Evict, StoreMode::Eager] {
        let space = Arc::new(FaultySegments::new(1));
        let (engine, _) = start_with(Shape::default(), &space, mode, Duration::from_millis(20), Recompute::Share(0.0));
        let mut turn = greedy(prompt(3, 70), 20);
        turn.prompt.extend(collect(engine.handle().submit(turn.clone()).unwrap()).tokens);
        eventually(&engine, "all is stored", |status| on_disk(status).store.durable_blocks == 22);
        let space = end(engine, &space, true);
        let (engine, _) = start(Shape::default(), &space, mode);
        let ended = collect(engine.handle().submit(turn.clone()).unwrap());
        assert_eq!((ended.tokens, ended.cached_tokens), (expected_greedy(&turn.prompt, &turn.params), 88));
    }
}

#[test]
fn what_memory_has_no_room_for_comes_back_from_disk() {
    for mode in [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror] {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape { blocks: 40, ..Shape::default() };
        let (engine, _) = start(shape, &space, mode);
        let cached = cached_when_asked_again(&engine);
        assert!(cached > 1000, "{mode:?}: {cached} tokens were cached");
        assert!(on_disk(&engine.handle().status()).fetched_tokens > 800);
        assert_idle_and_whole(&engine);
    }
}

/// Asks for the same eight answers three times, which must be right. Returns how many tokens were cached after the
/// first time.
pub fn cached_when_asked_again(engine: &Engine) -> usize {
    let mut cached = 0;
    for round in 0..3 {
        for seed in 0..8 {
            let request = greedy(prompt(seed, 90), 6);
            let expected = expected_greedy(&request.prompt, &request.params);
            let ended = collect(engine.handle().submit(request).unwrap());
            assert_eq!(ended.tokens, expected);
            cached += if round > 0 { ended.cached_tokens } else { 0 };
        }
        eventually(engine, "all is stored", |status| on_disk(status).store.queued_blocks == 0);
    }
    cached
}

#[test]
fn tenants_and_salts_share_nothing_on_disk() {
    let space = Arc::new(FaultySegments::new(1));
    let whose = |tenant: Option<u128>, salt: Option<&str>| {
        let mut request = greedy(prompt(3, 70), 2);
        request.tenant = tenant.map(interbed_engine::TenantId);
        request.cache_salt = salt.map(str::to_owned);
        request
    };
    let all = [(None, None), (Some(1), None), (Some(2), None), (Some(1), Some("a")), (None, Some("a"))];
    let (engine, _) = start(Shape::default(), &space, StoreMode::Mirror);
    for (tenant, salt) in all {
        assert_eq!(collect(engine.handle().submit(whose(tenant, salt)).unwrap()).cached_tokens, 0);
    }
    drop(engine);
    for ((tenant, salt), other) in all.into_iter().zip(3..) {
        let (engine, _) = start(Shape::default(), &space, StoreMode::Mirror);
        assert_eq!(collect(engine.handle().submit(whose(tenant, salt)).unwrap()).cached_tokens, 68);
        assert_eq!(collect(engine.handle().submit(whose(Some(other), salt)).unwrap()).cached_tokens, 0);
    }
}

#[test]
fn no_token_comes_from_wrong_kv_whatever_the_disk_does() {
    let (mut injected, mut fetched, mut cut, mut shared) = (0, 0, 0, 0);
    for seed in 0..200u32 {
        let mut random = dice(seed);
        let mut space = Arc::new(FaultySegments::new(seed.into()));
        let mode = [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror][seed as usize % 3];
        let shape = Shape::of_load(seed);
        for _ in 0..4 {
            let recompute = Recompute::Share([0.0, 0.3, 0.8][random(3) as usize]);
            let (engine, controls) = start_with(shape, &space, mode, IDLE_AFTER, recompute);
            controls.drafts.store(random(3) as usize, Ordering::Relaxed);
            for _ in 0..3 {
                let mut rate = |most: u32| if random(2) == 0 { 0 } else { random(most) };
                space.set_rates(FaultRates {
                    read_error: rate(300),
                    read_flip: rate(300),
                    write_error: rate(100),
                    write_torn: rate(300),
                    write_flip: rate(300),
                    create_error: rate(300),
                    sync_error: rate(100),
                });
                converse(&engine, &mut random);
            }
            space.set_rates(FaultRates::default());
            assert_idle_and_whole(&engine);
            let status = on_disk(&engine.handle().status());
            shared += status.shared;
            (fetched, cut) = (fetched + status.fetched_tokens, cut + status.fetches_cut);
            injected += space.injected();
            // Killed, or stopped.
            if random(2) == 0 {
                let left = space.after_power_failure();
                drop(engine);
                space = Arc::new(left);
            } else {
                drop(engine);
                space = Arc::new(space.after_power_failure());
            }
            if random(3) == 0 {
                space.tamper(|_, bytes| {
                    let at = random(bytes.len() as u32) as usize;
                    bytes[at] ^= 1 << random(8);
                });
            }
        }
    }
    println!("{injected} faults, {fetched} tokens fetched, {cut} fetches cut short, {shared} shared");
    assert!(injected > 1000 && fetched > 100_000 && cut > 500 && shared > 500, "{injected} {fetched} {cut} {shared}");
}

#[test]
fn what_is_on_disk_is_not_swapped_out_again_and_no_answer_changes() {
    let mut spared = 0;
    for seed in 0..200u32 {
        // Whether anything is swapped depends on how many requests there are at a time.
        if seed >= 12 && spared > 0 {
            break;
        }
        let space = Arc::new(FaultySegments::new(seed.into()));
        let preemption = PreemptionMode::Swap;
        let shape = Shape { blocks: 60, swap_blocks: 200, max_num_seqs: 8, preemption, ..Shape::default() };
        let (engine, _) = start(shape, &space, StoreMode::Mirror);
        teach_short_answers(&engine);
        if seed % 2 == 1 {
            space.set_rates(FaultRates { read_error: 30, read_flip: 30, write_torn: 30, ..FaultRates::default() });
        }
        for _ in 0..2 {
            let streams: Vec<_> = (0..12)
                .map(|number| {
                    let request = greedy(prompt(number + 100 * seed, 30), 40);
                    (expected_greedy(&request.prompt, &request.params), engine.handle().submit(request).unwrap())
                })
                .collect();
            for (expected, stream) in streams {
                assert_eq!(collect(stream).tokens, expected);
            }
            eventually(&engine, "all is stored", |status| on_disk(status).store.queued_blocks == 0);
        }
        space.set_rates(FaultRates::default());
        assert_idle_and_whole(&engine);
        spared += on_disk(&engine.handle().status()).store.swap_spared_bytes;
    }
    assert!(spared > 0, "nothing that was swapped was on disk");
}

/// One of a few conversations, which have their beginnings in common.
pub fn conversation(random: &mut impl FnMut(u32) -> u32) -> Request {
    let mut request = greedy(prompt(random(6), 20 + random(60) as usize), 1 + random(25) as usize);
    request.prompt.splice(..0, prompt(100, 8 + 4 * random(4) as usize));
    request
}

/// Holds twelve conversations at the same time, and compares their answers.
pub fn converse(engine: &Engine, random: &mut impl FnMut(u32) -> u32) {
    let mut streams = Vec::new();
    for _ in 0..12 {
        let request = conversation(random);
        let expected = expected_greedy(&request.prompt, &request.params);
        let stream = engine.handle().submit(request).unwrap();
        // Some clients go before they are answered.
        if random(6) > 0 {
            streams.push((stream, expected));
        }
    }
    for (stream, expected) in streams {
        assert_eq!(collect(stream).tokens, expected);
    }
}

/// Numbers below a limit, that follow from a seed.
pub fn dice(seed: u32) -> impl FnMut(u32) -> u32 {
    let mut state = u64::from(seed);
    move |end| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as u32 % end
    }
}
