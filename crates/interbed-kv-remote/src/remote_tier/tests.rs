use interbed_kv::testing::{PlainBlocks, Rng};
use interbed_kv::{BlockId, ChainRoot, TokenId};

use super::*;
use crate::testing::{FaultyStore, StoreFaults};

const TOKENS: usize = 4;
const BYTES: usize = 5000;

/// A time that is longer than any test.
const LONG: Duration = Duration::from_secs(60);

fn tier_with(store: &FaultyStore, secret: u8, options: RemoteOptions) -> RemoteTier {
    RemoteTier::open(Arc::new(store.clone()), [secret; 32], [2; 32], (TOKENS, BYTES), options).expect("threads")
}

fn options(patience: Patience) -> RemoteOptions {
    RemoteOptions { buffer_bytes: 8 * BYTES, writes_per_day: None, ttl: None, patience, gate: Gate::new(0.0) }
}

fn tier(store: &FaultyStore) -> RemoteTier {
    tier_with(store, 1, options(Patience::Fixed(LONG)))
}

/// Returns a chain of blocks with the content of each.
fn chain(tier: &RemoteTier, seed: u32, blocks: usize) -> Vec<(BlockLabel, Vec<u8>)> {
    let mut parent = tier.key_chain().root(&ChainRoot::new(None, 0));
    let labels = (0..blocks as u32).map(|index| {
        let tokens: Box<[TokenId]> = (0..TOKENS as u32).map(|token| 1000 * seed + 10 * index + token).collect();
        let key = tier.key_chain().block(parent, &tokens);
        let label = BlockLabel { key, parent, owner: tier.key_chain().owner(None), tokens };
        parent = key;
        (label, (0..BYTES as u32).map(|at| (seed ^ at.wrapping_mul(7 + index)) as u8).collect())
    });
    labels.collect()
}

fn store(tier: &mut RemoteTier, chain: &[(BlockLabel, Vec<u8>)]) {
    for (label, bytes) in chain {
        let mut pool = PlainBlocks(vec![bytes.clone()]);
        while tier.room() == 0 {
            assert_eq!(tier.poll(&mut pool, Duration::ZERO), None);
        }
        if tier.wants(label.key, 0) {
            tier.stage(label.clone(), 0, BlockPart::whole(BlockId(0)), &mut pool);
        }
    }
    settle(tier);
}

fn settle(tier: &mut RemoteTier) {
    let begin = Instant::now();
    while tier.figures().queued_blocks > 0 && begin.elapsed() < LONG {
        assert_eq!(tier.poll(&mut PlainBlocks(Vec::new()), Duration::ZERO), None);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wanted(chain: &[(BlockLabel, Vec<u8>)]) -> Vec<Wanted> {
    let all = chain.iter().zip(0..).map(|((label, _), block)| {
        let BlockLabel { key, parent, tokens, .. } = label.clone();
        Wanted { key, parent, tokens, part: BlockPart::whole(BlockId(block)) }
    });
    all.collect()
}

/// Fetches a chain, and checks that what came is right.
fn fetch(tier: &mut RemoteTier, chain: &[(BlockLabel, Vec<u8>)]) -> FetchEnded {
    let mut pool = PlainBlocks(vec![vec![0; BYTES]; chain.len()]);
    let id = FetchId(tier.figures().asked_blocks + 1_000_000 * tier.figures().slow_fetches);
    tier.fetch(id, wanted(chain), None, None);
    let ended = tier.poll(&mut pool, LONG).expect("it ends");
    assert_eq!((ended.id, ended.wanted), (id, chain.len()));
    for (memory, (_, bytes)) in pool.0.iter().zip(chain).take(ended.filled) {
        assert!(memory == bytes, "wrong bytes");
    }
    assert!(pool.0.iter().skip(ended.filled).all(|memory| memory.iter().all(|&byte| byte == 0)), "a late block");
    ended
}

#[test]
fn what_one_server_has_stored_another_finds_up_to_the_first_block_that_is_missing() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 40);
    assert_eq!(fetch(&mut first, &blocks).filled, 0);
    store(&mut first, &blocks[..30]);
    assert_eq!((shared.num_objects(), first.figures().counts.stored), (30, 30));
    // It knows what it has written.
    assert!(!first.wants(blocks[3].0.key, 0) && first.wants(blocks[33].0.key, 0));
    let mut second = tier(&shared);
    assert_eq!(fetch(&mut second, &blocks).filled, 30);
    assert_eq!(fetch(&mut second, &blocks[7..]).filled, 23);
    let others = chain(&second, 2, 40);
    assert_eq!(fetch(&mut second, &others).filled, 0);
    let figures = second.figures();
    assert_eq!((figures.counts.hits, figures.asked_blocks), (53, 56));
    assert!(!second.wants(blocks[29].0.key, 0), "what was read is there");
    // However long somebody has made them, they are not read whole.
    shared.tamper(|_, object| object.resize(100 * BYTES, 0));
    assert_eq!(fetch(&mut second, &blocks).filled, 0);
    assert_eq!(second.figures().wrong_objects, 1);
    // What the store has forgotten is written again once that is noticed.
    shared.clear();
    assert_eq!(fetch(&mut second, &blocks).filled, 0);
    assert!(second.wants(blocks[29].0.key, 0));
    assert!(second.is_settled());
}

#[test]
fn objects_of_others_and_of_older_versions_are_a_miss_and_stay() {
    for begin in [&b"OTHERSKO"[..], b"<html>\n\n", b"\0\0\0\0\0\0\0\0"] {
        let shared = FaultyStore::new(1);
        let mut first = tier(&shared);
        let blocks = chain(&first, 1, 10);
        store(&mut first, &blocks);
        shared.tamper(|_, object| object[..8].copy_from_slice(begin));
        let mut second = tier(&shared);
        assert_eq!(fetch(&mut second, &blocks).filled, 0);
        assert_eq!(second.figures().wrong_objects, 1);
        assert!(!second.wants(blocks[0].0.key, 0), "it would be overwritten");
        store(&mut second, &blocks[..1]);
        shared.tamper(|_, object| assert_eq!(&object[..8], begin));
    }
}

#[test]
fn who_does_not_know_the_secret_finds_nothing_and_is_believed_nothing() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 10);
    store(&mut first, &blocks);
    let mut stranger = tier_with(&shared, 9, options(Patience::Fixed(LONG)));
    // Even where it knows the names.
    assert_eq!(fetch(&mut stranger, &blocks).filled, 0);
    assert_eq!(stranger.figures().wrong_objects, 1);
    store(&mut stranger, &blocks);
    assert_eq!(fetch(&mut tier(&shared), &blocks).filled, 0);
}

#[test]
fn a_budget_of_writes_is_kept_and_what_never_returns_gets_little_of_it() {
    let shared = FaultyStore::new(1);
    let mut limited = options(Patience::Fixed(LONG));
    // For ten objects an hour, and no more at once.
    limited.writes_per_day = Some(24 * 10 * 6000);
    let mut first = tier_with(&shared, 1, limited);
    let blocks = chain(&first, 1, 40);
    store(&mut first, &blocks);
    let (stored, refused) = (first.figures().counts.stored, first.figures().refused_blocks);
    assert!((10..=12).contains(&stored) && stored + refused == 40, "{stored} {refused}");
    let mut gated = options(Patience::Fixed(LONG));
    gated.gate = Gate::new(Gate::LEAST_WORTH);
    let mut second = tier_with(&FaultyStore::new(1), 1, gated);
    let blocks = chain(&second, 2, 400);
    store(&mut second, &blocks);
    let figures = second.figures();
    assert!(figures.counts.stored > 40 && figures.counts.stored < 100, "{figures:?}");
    assert_eq!(figures.counts.stored + figures.counts.skipped - figures.counts.skipped / SAMPLED, 400);
}

#[test]
fn what_is_too_old_is_not_read() {
    let shared = FaultyStore::new(1);
    let blocks = chain(&tier(&shared), 1, 3);
    let mut of_a_minute = options(Patience::Fixed(LONG));
    of_a_minute.ttl = Some(Duration::from_secs(60));
    let mut first = tier_with(&shared, 1, of_a_minute.clone());
    store(&mut first, &blocks);
    assert_eq!(fetch(&mut first, &blocks).filled, 3);
    of_a_minute.ttl = Some(Duration::ZERO);
    assert_eq!(fetch(&mut tier_with(&shared, 1, of_a_minute), &blocks).filled, 0);
}

#[test]
fn nobody_waits_for_a_store_that_is_silent_and_it_is_left_alone_for_a_while() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 10);
    store(&mut first, &blocks);
    shared.set_faults(StoreFaults { read_silent: 1000, ..StoreFaults::default() });
    let mut hurried = tier_with(&shared, 1, options(Patience::Measured));
    // For a tenth of a second, since it is not known how fast prompts are computed; and then not again by those who
    // would wait as long.
    assert!(hurried.is_worth_asking(10, Some(1.0)));
    let ended = fetch(&mut hurried, &blocks);
    assert!(ended.filled == 0 && (0.1..10.0).contains(&ended.seconds), "{ended:?}");
    assert!(hurried.figures().slow_fetches == 1 && !hurried.is_worth_asking(10, Some(2.0)));
    // Whoever waits longer asks; a store that is silent for as long is left alone.
    assert!(hurried.is_worth_asking(10, Some(1000.0)));
    hurried.reading = Health::default();
    hurried.fetch(FetchId(77), wanted(&blocks), None, Some(1000.0));
    let ended = hurried.poll(&mut PlainBlocks(vec![vec![0; BYTES]; blocks.len()]), LONG).expect("it ends");
    assert!((1.0..10.0).contains(&ended.seconds), "{ended:?}");
    assert!(hurried.figures().is_paused() && !hurried.is_worth_asking(10, Some(1000.0)));
    assert!(hurried.is_settled());
}

#[test]
fn a_store_that_is_slower_than_computing_is_not_asked_again() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 10);
    store(&mut first, &blocks);
    shared.set_faults(StoreFaults { delay: Duration::from_millis(30), ..StoreFaults::default() });
    let mut measured = tier_with(&shared, 1, options(Patience::Measured));
    assert!(measured.is_worth_asking(10, Some(2.0)));
    assert_eq!(fetch(&mut measured, &blocks).filled, 10);
    // All blocks came after 30 ms or so: not worth it where computing takes 20, or where so much would not be waited
    // for.
    let answer = measured.figures().answer_seconds;
    assert!((0.03..2.0).contains(&answer), "{answer}");
    assert!(!measured.is_worth_asking(10, Some(0.02)) && !measured.is_worth_asking(10, Some(20.0 * answer - 0.1)));
    assert!(measured.is_worth_asking(10, Some(60.0 * answer)));
}

#[test]
fn a_store_that_takes_nothing_more_is_read_all_the_same() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 10);
    store(&mut first, &blocks);
    let faults =
        [StoreFaults { write_error: 1000, ..<_>::default() }, StoreFaults { write_panic: 1000, ..<_>::default() }];
    for faults in faults {
        shared.set_faults(faults);
        let mut second = tier(&shared);
        let others = chain(&second, 2, 10);
        store(&mut second, &others);
        assert_eq!(second.figures().queued_blocks, 0, "{faults:?}");
        assert!(second.figures().write_errors > 0 && !second.wants(others[9].0.key, 0), "it is left alone");
        assert!(!second.figures().is_paused() && second.is_worth_asking(10, None));
        assert_eq!(fetch(&mut second, &blocks).filled, 10);
    }
}

#[test]
fn waiting_for_own_memory_is_not_the_stores_fault() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 20);
    store(&mut first, &blocks);
    // The first fetch has all the memory, and nobody takes what has come.
    let mut second = tier_with(&shared, 1, options(Patience::Fixed(Duration::from_secs(1))));
    second.fetch(FetchId(1), wanted(&blocks), None, None);
    while second.workers.room() > 0 {
        std::thread::yield_now();
    }
    second.fetch(FetchId(2), wanted(&blocks), None, None);
    std::thread::sleep(Duration::from_millis(1100));
    let mut pool = PlainBlocks(vec![vec![0; BYTES]; blocks.len()]);
    let ended = [(); 2].map(|()| second.poll(&mut pool, LONG).expect("it ends"));
    assert!(ended.iter().any(|ended| ended.id == FetchId(1) && ended.filled == 20), "{ended:?}");
    assert!(!second.figures().is_paused());
}

#[test]
fn a_fetch_that_is_cut_keeps_what_has_come() {
    let shared = FaultyStore::new(1);
    let mut first = tier(&shared);
    let blocks = chain(&first, 1, 60);
    store(&mut first, &blocks);
    shared.set_faults(StoreFaults { reads_answered: Some(shared.asked().0 + 30), ..StoreFaults::default() });
    let mut hurried = tier_with(&shared, 1, options(Patience::Fixed(Duration::from_secs(5))));
    let mut pool = PlainBlocks(vec![vec![0; BYTES]; 60]);
    hurried.fetch(FetchId(1), wanted(&blocks), None, None);
    while hurried.figures().counts.hits < 8 {
        assert_eq!(hurried.poll(&mut pool, Duration::ZERO), None);
    }
    hurried
        .fetches
        .values_mut()
        .for_each(|fetch| fetch.wait = Patience::Fixed(Duration::from_millis(1)).wait(60, None));
    let ended = hurried.poll(&mut pool, LONG).expect("it ends");
    assert!((8..=30).contains(&ended.filled) && !hurried.figures().is_paused(), "{ended:?}");
    for (memory, (_, bytes)) in pool.0.iter().zip(&blocks).take(ended.filled) {
        assert!(memory == bytes);
    }
}

#[test]
fn whatever_the_store_does_only_right_blocks_come_and_nothing_is_lost() {
    let mut came = 0;
    for seed in 0..60u64 {
        let shared = FaultyStore::new(seed);
        let mut rng = Rng(seed);
        let mut dice = |end: u32| rng.below(end as usize) as u32;
        let mut servers: Vec<_> =
            (0..2).map(|_| tier_with(&shared, 1, options(Patience::Fixed(Duration::from_millis(50))))).collect();
        let chains: Vec<_> = (0..4).map(|number| chain(&servers[0], number, 12)).collect();
        for _ in 0..20 {
            let mut rate = |most: u32| if dice(2) == 0 { 0 } else { dice(most) };
            shared.set_faults(StoreFaults {
                read_error: rate(100),
                read_flip: rate(300),
                read_other: rate(300),
                // Each costs 50 ms.
                read_silent: rate(10),
                reads_answered: None,
                write_silent: 0,
                write_error: rate(100),
                write_panic: rate(100),
                write_torn: rate(300),
                forgotten: rate(300),
                delay: Duration::ZERO,
            });
            let server = &mut servers[dice(2) as usize];
            let chain = &chains[dice(4) as usize];
            // Whether it would be asked or not.
            (server.reading, server.writing) = (Health::default(), Pause::new(PAUSE_MAX));
            let missing = fetch(server, chain).filled;
            came += missing;
            for (label, bytes) in &chain[missing..] {
                let mut pool = PlainBlocks(vec![bytes.clone()]);
                if server.wants(label.key, 0) {
                    server.stage(label.clone(), 0, BlockPart::whole(BlockId(0)), &mut pool);
                }
            }
        }
        shared.set_faults(StoreFaults::default());
        for server in &mut servers {
            settle(server);
            assert!(server.is_settled() && server.room() == server.buffers(), "a buffer is lost");
            // What was given up ends a moment later.
            let began = Instant::now();
            while server.workers.room() < server.buffers() {
                assert!(began.elapsed() < LONG, "memory for reads is lost");
                assert_eq!(server.poll(&mut PlainBlocks(Vec::new()), Duration::ZERO), None);
                std::thread::yield_now();
            }
        }
    }
    assert!(came > 1000, "{came} blocks came");
}
