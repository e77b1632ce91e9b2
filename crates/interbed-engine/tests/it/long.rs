//! Sequences that are longer than memory: their tokens are those of ample memory, alone and among others, in whatever
//! order blocks come and go, and whatever the disk does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use interbed_engine::{
    Attachments, Engine, Event, EventStream, LaterTiers, PreemptionMode, Recompute, Request, StoreMode, TierBelow,
    TierPolicy,
};
use interbed_kernels::STRETCH;
use interbed_kv::{Gate, TailConfig, TailParts};
use interbed_kv_disk::testing::{FaultRates, FaultySegments};
use interbed_kv_disk::{DiskOptions, DiskTier, RecordShape, SlotRoom};

use crate::disk::on_disk;
use crate::sim::{
    Controls, KINDS, SLOT_BYTES, Shape, SimRunner, assert_idle_and_whole, blocks_beside, collect, engine_config,
    expected_greedy, greedy, prompt, teach_short_answers, with_swap,
};

const BLOCK: usize = 8;
const IDLE_AFTER: Duration = Duration::from_secs(600);

/// Memory for one stretch and a half.
const SHAPE: Shape = Shape {
    blocks: 3 * STRETCH / 2 / BLOCK,
    block_size: BLOCK,
    prefix_caching: true,
    max_num_seqs: 8,
    max_num_batched_tokens: 256,
    max_model_len: 8 * STRETCH,
    longer_than_memory: true,
    swap_blocks: 0,
    preemption: PreemptionMode::Auto,
    max_token_gap: None,
    tails: &[],
};

fn kv_disk(tails: &[TailConfig], space: &Arc<FaultySegments>, bytes: u64, mode: StoreMode) -> TierBelow {
    let layers = vec![BLOCK * SLOT_BYTES / 2; 2];
    let frames = (STRETCH / BLOCK, 3);
    let options = DiskOptions {
        bytes,
        buffer_bytes: 0,
        // Only what a sequence cannot go on without is written beyond that.
        writes_per_day: Some(1000),
        ttl: None,
        gate: Gate::new(0.0),
        frames,
        names: None,
        turns: Arc::default(),
        slots: SlotRoom::default(),
    };
    let records = RecordShape::new(BLOCK, layers).with_stored_together(TailParts::most(tails, BLOCK));
    let tier = DiskTier::open(Arc::clone(space) as _, [1; 32], [2; 32], records, options).unwrap();
    let (recompute, idle_after) = (Recompute::Share(0.0), Some(IDLE_AFTER));
    TierBelow { tier: Box::new(tier), policy: TierPolicy { mode, recompute, idle_after, drops_fresh: false } }
}

fn start(shape: Shape, space: &Arc<FaultySegments>, bytes: u64, mode: StoreMode) -> (Engine, Arc<Controls>) {
    let (runner, controls) = SimRunner::new(BLOCK);
    let below = vec![kv_disk(shape.tails, space, bytes, mode)];
    let attachments = with_swap(shape, &controls, below);
    (Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments).unwrap(), controls)
}

fn submit(engine: &Engine, request: &Request) -> EventStream {
    engine.handle().submit(request.clone()).unwrap()
}

#[test]
fn a_prompt_beyond_memory_is_answered_as_with_ample_memory_and_found_again() {
    for mode in [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror] {
        let space = Arc::new(FaultySegments::new(1));
        let request = greedy(prompt(3, 5 * STRETCH + 300), 40);
        let expected = expected_greedy(&request.prompt, &request.params);
        let (engine, controls) = start(SHAPE, &space, 8 << 20, mode);
        let ended = collect(submit(&engine, &request));
        assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), 0), "{mode:?}");
        assert!(controls.frames_read.load(Ordering::Relaxed) > 0);
        // The next turn, and after a restart: only what is not on disk is computed.
        let mut turn = request.clone();
        turn.prompt.extend(&expected);
        let want = expected_greedy(&turn.prompt, &turn.params);
        let ended = collect(submit(&engine, &turn));
        assert_eq!(ended.tokens, want);
        // What was not yet being written when the first answer ended is gone.
        assert!(ended.cached_tokens >= 4 * STRETCH, "{mode:?}: {}", ended.cached_tokens);
        assert_idle_and_whole(&engine);
        drop(engine);
        let (engine, controls) = start(SHAPE, &space, 8 << 20, mode);
        let ended = collect(submit(&engine, &turn));
        assert_eq!(ended.tokens, want);
        assert!(ended.cached_tokens >= 4 * STRETCH);
        let computed = controls.tokens_computed.load(Ordering::Relaxed) as usize;
        assert!(computed <= turn.prompt.len() + 40 - ended.cached_tokens, "{computed} tokens were computed");
        assert_idle_and_whole(&engine);
    }
}

/// The same with layers that keep `tails` besides, and memory for these.
fn beside(tails: &'static [TailConfig]) -> Shape {
    let shape = Shape { tails, ..SHAPE };
    Shape { blocks: shape.blocks + blocks_beside(shape), ..shape }
}

#[test]
fn tails_stay_in_memory_while_all_else_is_below() {
    for tails in KINDS {
        let space = Arc::new(FaultySegments::new(1));
        let (engine, controls) = start(beside(tails), &space, 8 << 20, StoreMode::Eager);
        let requests = [greedy(prompt(3, 4 * STRETCH + 300), 40), greedy(prompt(5, 700), STRETCH + 500)];
        for _ in 0..2 {
            let streams: Vec<_> = requests.iter().map(|request| submit(&engine, request)).collect();
            for (stream, request) in streams.into_iter().zip(&requests) {
                let ended = collect(stream);
                assert_eq!(ended.tokens, expected_greedy(&request.prompt, &request.params), "{tails:?}");
            }
            assert_idle_and_whole(&engine);
        }
        assert!(controls.frames_read.load(Ordering::Relaxed) > 100, "{tails:?}");
    }
}

/// Waits until all that was to be stored is on disk.
fn await_writes(engine: &Engine) {
    let stored = || on_disk(&engine.handle().status()).store.durable_blocks;
    let mut before = usize::MAX as u64;
    while std::mem::replace(&mut before, stored()) != before {
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_conversation_beyond_memory_goes_on_where_it_ended() {
    for tails in KINDS {
        let space = Arc::new(FaultySegments::new(1));
        let (mut engine, mut controls) = start(beside(tails), &space, 8 << 20, StoreMode::Eager);
        let mut request = greedy(prompt(3, 2 * STRETCH + 300), 40);
        let mut known = 0;
        for turn in 0..5 {
            controls.tokens_computed.store(0, Ordering::Relaxed);
            let expected = expected_greedy(&request.prompt, &request.params);
            let ended = collect(submit(&engine, &request));
            assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), known), "turn {turn} {tails:?}");
            let computed = controls.tokens_computed.load(Ordering::Relaxed) as usize;
            assert_eq!(computed, request.prompt.len() - known + expected.len() - 1);
            assert_idle_and_whole(&engine);
            await_writes(&engine);
            request.prompt.extend(&expected);
            // All but the last token, which was never computed, as far as blocks are full.
            known = (request.prompt.len() - 1) / BLOCK * BLOCK;
            request.prompt.extend(prompt(turn + 7, 50));
            if turn == 2 {
                drop(engine);
                (engine, controls) = start(beside(tails), &space, 8 << 20, StoreMode::Eager);
            }
        }
    }
}

#[test]
fn the_same_prompt_beyond_memory_is_found_but_for_its_last_block() {
    for tails in KINDS {
        // The prompt fills its blocks, or has a few tokens more.
        for more in [0, 1, BLOCK - 1] {
            let space = Arc::new(FaultySegments::new(1));
            let (engine, _) = start(beside(tails), &space, 8 << 20, StoreMode::Eager);
            let request = greedy(prompt(3, 2 * STRETCH + 40 * BLOCK + more), 1);
            let expected = expected_greedy(&request.prompt, &request.params);
            for known in [0, (request.prompt.len() - 1) / BLOCK * BLOCK] {
                let ended = collect(submit(&engine, &request));
                assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), known), "{more} {tails:?}");
                await_writes(&engine);
            }
        }
    }
}

#[test]
fn who_made_room_goes_on_behind_what_is_on_disk() {
    for tails in KINDS {
        let space = Arc::new(FaultySegments::new(1));
        // Each of the two finds room alone.
        let shape = Shape { blocks: beside(tails).blocks - 30, ..beside(tails) };
        let (engine, controls) = start(shape, &space, 8 << 20, StoreMode::Eager);
        teach_short_answers(&engine);
        controls.tokens_computed.store(0, Ordering::Relaxed);
        let long = Request { priority: 1, ..greedy(prompt(3, 2 * STRETCH + 300), 1000) };
        let other = greedy(prompt(4, 100), 1150);
        // What is staged is written before the other has ended, because a pass takes a while.
        controls.close_gate();
        let (ticks, is_over) = (Arc::clone(&controls), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        let ticker = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                ticks.allow(1);
                std::thread::sleep(Duration::from_millis(1));
            }
            ticks.open_gate();
        });
        let streams = [&long, &other].map(|request| submit(&engine, request));
        let [ended, other_ended] = streams.map(collect);
        is_over.store(true, Ordering::Relaxed);
        ticker.join().unwrap();
        assert_eq!(ended.tokens, expected_greedy(&long.prompt, &long.params), "{tails:?}");
        assert_eq!(other_ended.tokens, expected_greedy(&other.prompt, &other.params), "{tails:?}");
        let once = [&long, &other].map(|request| request.prompt.len() + request.params.max_tokens - 1);
        let again = controls.tokens_computed.load(Ordering::Relaxed) as usize - once.iter().sum::<usize>();
        let preempted = (ended.preemptions, other_ended.preemptions);
        assert!(preempted.0 > 0 && preempted.1 == 0, "{preempted:?} {tails:?}");
        assert!(again <= 64 * ended.preemptions as usize, "{again} tokens were computed again: {tails:?}");
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn who_is_longer_than_memory_waits_until_there_is_a_tier_and_nobody_else_does() {
    for comes in [true, false] {
        let space = Arc::new(FaultySegments::new(1));
        let mut disk = kv_disk(&[], &space, 8 << 20, StoreMode::Eager);
        let long_tokens = disk.tier.frames().expect("a disk keeps frames").capacity_tokens();
        let (sender, tiers) = std::sync::mpsc::channel();
        let (runner, controls) = SimRunner::new(BLOCK);
        let later = Some(LaterTiers { tiers, long_tokens });
        let attachments = Attachments { later, ..with_swap(SHAPE, &controls, Vec::new()) };
        let engine = Engine::start_with(engine_config(SHAPE), Box::new(runner), attachments).unwrap();
        let (long, outgrows, short) =
            (greedy(prompt(3, 3 * STRETCH), 20), greedy(prompt(5, 700), 2 * STRETCH), greedy(prompt(4, 300), 50));
        let mut waits = [submit(&engine, &long), submit(&engine, &outgrows)];
        for _ in 0..3 {
            assert_eq!(collect(submit(&engine, &short)).tokens, expected_greedy(&short.prompt, &short.params));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(controls.frames_read.load(Ordering::Relaxed), 0);
        if comes {
            assert!(sender.send(vec![disk]).is_ok());
            for (stream, request) in waits.into_iter().zip([long, outgrows]) {
                assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
            }
            assert!(controls.frames_read.load(Ordering::Relaxed) > 0);
        } else {
            drop(sender);
            for stream in &mut waits {
                let failed =
                    std::iter::from_fn(|| stream.blocking_next()).any(|event| matches!(event, Event::Failed(_)));
                assert!(failed, "nothing will come of it");
            }
        }
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn who_generates_and_who_is_longer_than_memory_go_on_together() {
    for gap in [Duration::from_nanos(1), Duration::from_millis(1)] {
        let space = Arc::new(FaultySegments::new(1));
        let shape = Shape { max_token_gap: Some(gap), ..SHAPE };
        let (engine, controls) = start(shape, &space, 8 << 20, StoreMode::Eager);
        let requests = [greedy(prompt(4, 100), 150), greedy(prompt(3, 2 * STRETCH + 300), 20)];
        let streams = requests.each_ref().map(|request| submit(&engine, request));
        for (stream, request) in streams.into_iter().zip(&requests) {
            assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
        }
        assert!(controls.frames_read.load(Ordering::Relaxed) > 0);
        assert_idle_and_whole(&engine);
    }
}

#[test]
fn an_answer_may_outgrow_memory() {
    let space = Arc::new(FaultySegments::new(1));
    let (engine, controls) = start(SHAPE, &space, 8 << 20, StoreMode::Evict);
    let requests = [greedy(prompt(3, 700), 2 * STRETCH), greedy(prompt(4, 300), 700), greedy(prompt(5, 90), 60)];
    let streams: Vec<_> = requests.iter().map(|request| submit(&engine, request)).collect();
    for (stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(collect(stream).tokens, expected_greedy(&request.prompt, &request.params));
    }
    assert!(controls.frames_read.load(Ordering::Relaxed) > 0);
    assert_idle_and_whole(&engine);
}

#[test]
fn a_full_disk_fails_who_cannot_go_on_and_nobody_else() {
    let space = Arc::new(FaultySegments::new(1));
    space.set_rates(FaultRates { create_error: 1000, ..FaultRates::default() });
    let (engine, _) = start(SHAPE, &space, 8 << 20, StoreMode::Eager);
    let (long, short) = (greedy(prompt(3, 3 * STRETCH), 20), greedy(prompt(4, 300), 50));
    let (mut long, short_stream) = (submit(&engine, &long), submit(&engine, &short));
    assert_eq!(collect(short_stream).tokens, expected_greedy(&short.prompt, &short.params));
    let failed = loop {
        match long.blocking_next() {
            Some(Event::Failed(error)) => break error.to_string(),
            Some(Event::PromptDone(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(failed.contains("--kv-disk"), "{failed}");
    assert_idle_and_whole(&engine);
}

#[test]
fn no_token_comes_from_wrong_kv_whatever_happens_to_long_sequences() {
    let (mut frames, mut injected, mut right, mut failed, mut fetched) = (0, 0, 0, 0, 0);
    for seed in 0..24u32 {
        let mut random = dice(seed);
        let space = Arc::new(FaultySegments::new(seed.into()));
        let mode = [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror][seed as usize % 3];
        // In half of the cases, layers keep tails besides.
        let kind = KINDS[seed as usize / 6 % KINDS.len()];
        let shape = if seed / 3 % 2 == 1 { beside(kind) } else { SHAPE };
        let shape =
            Shape { swap_blocks: 60 * (seed as usize % 2), blocks: shape.blocks + random(200) as usize, ..shape };
        let (engine, controls) = start(shape, &space, 6 << 20, mode);
        controls.drafts.store(random(3) as usize, Ordering::Relaxed);
        for _ in 0..2 {
            let mut rate = |most: u32| if random(2) == 0 { 0 } else { random(most) };
            space.set_rates(FaultRates {
                read_error: rate(20),
                read_flip: rate(20),
                write_torn: rate(30),
                write_flip: rate(30),
                ..FaultRates::default()
            });
            let mut streams = Vec::new();
            for number in 0..8 {
                let length = if number < 3 { 1000 + random(3 * STRETCH as u32) } else { 20 + random(200) };
                let mut request = greedy(prompt(random(4), length as usize), 1 + random(300) as usize);
                request.prompt.splice(..0, prompt(100, 900));
                let expected = expected_greedy(&request.prompt, &request.params);
                let stream = submit(&engine, &request);
                if random(8) > 0 {
                    streams.push((stream, expected));
                }
            }
            for (mut stream, expected) in streams {
                let mut tokens = Vec::new();
                let well = loop {
                    match stream.blocking_next() {
                        Some(Event::Token { id, .. }) => tokens.push(id),
                        Some(Event::Failed(_)) => break false,
                        Some(_) => {}
                        None => break true,
                    }
                };
                assert_eq!(tokens[..], expected[..tokens.len()], "seed {seed}");
                assert!(!well || tokens.len() == expected.len());
                (right, failed) = (right + u32::from(well), failed + u32::from(!well));
            }
        }
        space.set_rates(FaultRates::default());
        assert_idle_and_whole(&engine);
        injected += space.injected();
        // Where layers keep tails, everything that is fetched comes with them.
        let of_tails = engine.handle().status().tier("disk").filter(|_| !shape.tails.is_empty()).copied();
        fetched += of_tails.map_or(0, |disk| disk.fetched_tokens);
        frames += controls.frames_read.load(Ordering::Relaxed);
    }
    println!("{frames} frames, {injected} faults, {right} right, {failed} failed, {fetched} fetched with tails");
    assert!(frames > 10_000 && injected > 200 && right > 290 && failed < 12, "{frames} {injected} {right} {failed}");
    assert!(fetched > 20_000, "{fetched}");
}

/// Numbers below a limit, that follow from a seed.
fn dice(seed: u32) -> impl FnMut(u32) -> u32 {
    let mut state = u64::from(seed);
    move |end| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as u32 % end
    }
}
