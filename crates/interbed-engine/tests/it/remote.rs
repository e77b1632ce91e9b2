//! KV in a store that servers share: what one engine computed another finds, and whatever the store does, no token is
//! computed from wrong KV and nobody waits long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use interbed_engine::{
    Engine, EngineStatus, Miss, MissReason, Recompute, Request, StoreMode, TierBelow, TierPolicy, TierStatus,
};
use interbed_kv::{Gate, TailParts};
use interbed_kv_disk::testing::FaultySegments;
use interbed_kv_disk::{DiskOptions, DiskTier, RecordShape, SlotRoom};
use interbed_kv_remote::testing::{FaultyStore, StoreFaults};
use interbed_kv_remote::{Patience, RemoteOptions, RemoteTier};

use crate::disk::{conversation, dice, on_disk};
use crate::sim::{
    Controls, SLOT_BYTES, Shape, SimRunner, assert_idle_and_whole, collect, engine_config, eventually, expected_greedy,
    greedy, prompt, with_swap,
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

pub fn start(shape: Shape, store: &FaultyStore, patience: Patience) -> (Engine, Arc<Controls>) {
    start_with(shape, store, patience, None)
}

/// With KV on disk as well, if there is a `space` for it.
fn start_with(
    shape: Shape,
    store: &FaultyStore,
    patience: Patience,
    space: Option<&Arc<FaultySegments>>,
) -> (Engine, Arc<Controls>) {
    let (runner, controls) = SimRunner::new(shape.block_size);
    let shared = shared(shape, store, patience);
    let kv_disk = space.map(|space| {
        let options = DiskOptions {
            bytes: 1 << 20,
            buffer_bytes: 0,
            writes_per_day: None,
            ttl: None,
            gate: Gate::new(0.0),
            frames: (1024 / shape.block_size, 3),
            names: Some(shared.tier.key_chain().clone()),
            turns: Arc::default(),
            slots: SlotRoom::default(),
        };
        let records = RecordShape::new(shape.block_size, vec![shape.block_size * SLOT_BYTES / 2; 2])
            .with_stored_together(TailParts::most(shape.tails, shape.block_size));
        let tier = DiskTier::open(Arc::clone(space) as _, [8; 32], [9; 32], records, options).unwrap();
        let (mode, recompute, idle_after) = (StoreMode::Eager, Recompute::Share(0.0), Some(LONG));
        TierBelow { tier: Box::new(tier), policy: TierPolicy { mode, recompute, idle_after, drops_fresh: false } }
    });
    let below = kv_disk.into_iter().chain([shared]).collect();
    let attachments = with_swap(shape, &controls, below);
    (Engine::start_with(engine_config(shape), Box::new(runner.with_tails(shape)), attachments).unwrap(), controls)
}

/// The shared store as a tier.
pub fn shared(shape: Shape, store: &FaultyStore, patience: Patience) -> TierBelow {
    let of_block = (shape.block_size, shape.block_size * SLOT_BYTES);
    let options =
        RemoteOptions { buffer_bytes: 1 << 16, writes_per_day: None, ttl: None, patience, gate: Gate::new(0.0) };
    let tier = RemoteTier::open(Arc::new(store.clone()), [1; 32], [2; 32], of_block, options).unwrap();
    TierBelow { tier: Box::new(tier), policy: TierPolicy::SHARED }
}

pub fn remote(status: &EngineStatus) -> TierStatus {
    *status.tier("remote").expect("there is a store")
}

fn wait_until_stored(engine: &Engine, blocks: u64) {
    eventually(engine, "all is stored", |status| remote(status).store.counts.stored == blocks);
}

#[test]
fn what_one_server_has_computed_another_finds() {
    let store = FaultyStore::new(1);
    let request = greedy(prompt(3, 70), 20);
    let expected = expected_greedy(&request.prompt, &request.params);
    let (first, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
    assert_eq!(collect(first.handle().submit(request.clone()).unwrap()).tokens, expected);
    wait_until_stored(&first, 17);
    let (second, controls) = start(Shape::default(), &store, Patience::Fixed(LONG));
    let ended = collect(second.handle().submit(request.clone()).unwrap());
    assert_eq!((ended.tokens, ended.cached_tokens), (expected.clone(), 68));
    assert_eq!(controls.tokens_computed.load(Ordering::Relaxed), 2 + 19);
    // One that is longer, and one that differs early.
    let mut longer = request.clone();
    longer.prompt.extend(prompt(4, 30));
    assert_eq!(collect(second.handle().submit(longer).unwrap()).cached_tokens, 68);
    let mut other = request.clone();
    other.prompt[9] ^= 1;
    let (third, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
    other.explain_miss = true;
    let ended = collect(third.handle().submit(other.clone()).unwrap());
    assert_eq!((ended.tokens, ended.cached_tokens), (expected_greedy(&other.prompt, &other.params), 8));
    assert_eq!(ended.miss, Some(Miss { matched_tokens: 8, reason: MissReason::NeverSeen }));
    let status = remote(&second.handle().status());
    assert_eq!((status.fetches, status.fetched_tokens), (2, 68));
    [first, second, third].iter().for_each(assert_idle_and_whole);
}

#[test]
fn what_the_disk_does_not_have_comes_from_the_store_at_the_same_time() {
    let (store, space) = (FaultyStore::new(1), Arc::new(FaultySegments::new(1)));
    let long = greedy(prompt(3, 70), 20);
    let mut short = long.clone();
    short.prompt.truncate(38);
    // The store has nothing yet, and forgets what it is given.
    store.set_faults(StoreFaults { forgotten: 1000, ..StoreFaults::default() });
    let (first, _) = start_with(Shape::default(), &store, Patience::Fixed(LONG), Some(&space));
    collect(first.handle().submit(short).unwrap());
    drop(first);
    store.set_faults(StoreFaults::default());
    let (second, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
    collect(second.handle().submit(long.clone()).unwrap());
    wait_until_stored(&second, 17);
    let space = Arc::new(space.after_power_failure());
    let (third, _) = start_with(Shape::default(), &store, Patience::Fixed(LONG), Some(&space));
    let ended = collect(third.handle().submit(Request { explain_miss: true, ..long.clone() }).unwrap());
    assert_eq!((ended.tokens, ended.cached_tokens), (expected_greedy(&long.prompt, &long.params), 68));
    assert_eq!(ended.miss, Some(Miss { matched_tokens: 68, reason: MissReason::PartialBlock }));
    let status = third.handle().status();
    let of_disk = on_disk(&status).fetched_tokens;
    assert_eq!((of_disk, remote(&status).fetched_tokens), (36, 32));
    assert_idle_and_whole(&third);
}

#[test]
fn tenants_and_salts_share_nothing_in_the_store() {
    let store = FaultyStore::new(1);
    let whose = |tenant: Option<u128>, salt: Option<&str>| {
        let mut request = greedy(prompt(3, 70), 2);
        request.tenant = tenant.map(interbed_engine::TenantId);
        request.cache_salt = salt.map(str::to_owned);
        request
    };
    let all = [(None, None), (Some(1), None), (Some(2), None), (Some(1), Some("a")), (None, Some("a"))];
    let (first, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
    for (tenant, salt) in all {
        assert_eq!(collect(first.handle().submit(whose(tenant, salt)).unwrap()).cached_tokens, 0);
    }
    wait_until_stored(&first, 5 * 17);
    for ((tenant, salt), other) in all.into_iter().zip(3..) {
        let (second, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
        assert_eq!(collect(second.handle().submit(whose(tenant, salt)).unwrap()).cached_tokens, 68);
        assert_eq!(collect(second.handle().submit(whose(Some(other), salt)).unwrap()).cached_tokens, 0);
    }
}

#[test]
fn a_store_that_does_not_answer_costs_one_short_wait() {
    let store = FaultyStore::new(1);
    store.set_faults(StoreFaults { read_silent: 1000, write_silent: 1000, ..StoreFaults::default() });
    let (engine, _) = start(Shape::default(), &store, Patience::Measured);
    let began = Instant::now();
    for seed in 0..8 {
        let request = greedy(prompt(seed, 70), 5);
        let expected = expected_greedy(&request.prompt, &request.params);
        assert_eq!(collect(engine.handle().submit(request).unwrap()).tokens, expected);
    }
    let status = remote(&engine.handle().status());
    // The pause after the first is a second long.
    assert!(status.fetches <= 1 + began.elapsed().as_secs(), "{status:?} after {:?}", began.elapsed());
    assert_eq!((status.fetched_tokens, status.store.slow_fetches), (0, status.fetches));
    assert!(status.fetch_seconds < 5.0, "{status:?}");
    assert_idle_and_whole(&engine);
    // Nor does it keep the engine from ending for long.
    let began = Instant::now();
    drop(engine);
    assert!(began.elapsed() < LONG / 6);
}

#[test]
fn clients_that_go_leave_nothing_behind() {
    let store = FaultyStore::new(1);
    let (engine, _) = start(Shape::default(), &store, Patience::Fixed(LONG));
    store.set_faults(StoreFaults { read_silent: 1000, write_silent: 1000, ..StoreFaults::default() });
    let streams: Vec<_> = (0..3).map(|seed| engine.handle().submit(greedy(prompt(seed, 70), 5)).unwrap()).collect();
    eventually(&engine, "they wait", |status| status.kv.blocks_used >= 3 * 17);
    drop(streams);
    let began = Instant::now();
    assert_idle_and_whole(&engine);
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn no_token_comes_from_wrong_kv_whatever_the_store_does() {
    let (mut fetched, mut wrong) = (0, 0);
    for seed in 0..60u32 {
        let mut random = dice(seed);
        let store = FaultyStore::new(seed.into());
        let shape = Shape::of_load(seed);
        let patience = Patience::Fixed(Duration::from_millis(20));
        let space = Arc::new(FaultySegments::new(seed.into()));
        let engines = [start(shape, &store, patience), start_with(shape, &store, patience, Some(&space))];
        for _ in 0..6 {
            let mut rate = |most: u32| if random(2) == 0 { 0 } else { random(most) };
            store.set_faults(StoreFaults {
                // After an error the store is left alone, and nothing is tried.
                read_error: rate(10),
                read_flip: rate(100),
                read_other: rate(100),
                read_silent: rate(5),
                reads_answered: None,
                write_silent: 0,
                write_error: rate(10),
                write_panic: rate(30),
                write_torn: rate(100),
                forgotten: rate(100),
                delay: Duration::from_micros(rate(500).into()),
            });
            let mut streams = Vec::new();
            for _ in 0..10 {
                let (engine, controls) = &engines[random(2) as usize];
                controls.drafts.store(random(3) as usize, Ordering::Relaxed);
                let request = conversation(&mut random);
                let expected = expected_greedy(&request.prompt, &request.params);
                // Several answers to a prompt share its blocks until they write to them.
                let answers = [1, 1, 3][random(3) as usize];
                for stream in engine.handle().submit_many(request, answers).unwrap() {
                    // Some clients go before they are answered.
                    if random(6) > 0 {
                        streams.push((stream, expected.clone()));
                    }
                }
            }
            for (stream, expected) in streams {
                assert_eq!(collect(stream).tokens, expected);
            }
        }
        for (engine, _) in &engines {
            assert_idle_and_whole(engine);
            let status = remote(&engine.handle().status());
            (fetched, wrong) = (fetched + status.fetched_tokens, wrong + status.store.wrong_objects);
        }
    }
    println!("{fetched} tokens came from the store, {wrong} objects were wrong");
    assert!(fetched > 10_000 && wrong > 50, "{fetched} {wrong}");
}
