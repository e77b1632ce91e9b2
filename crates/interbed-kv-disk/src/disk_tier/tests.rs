use interbed_io::DIRECT_ALIGN;
use interbed_kv::testing::{PlainBlocks, Rng};
use interbed_kv::{BlockId, ChainRoot, FrameOf, Gate, SwapTrial, TokenId};

use super::*;
use crate::ages::SWEEP;
use crate::jobs::now;
use crate::record::Seal;
use crate::testing::{FaultRates, FaultySegments};
use crate::{Directory, RecordShape};

/// Returns `keys` as those of contents that memory lacks.
pub(super) fn trunk(keys: &[BlockKey]) -> MissingKeys {
    MissingKeys::of_trunk(keys.to_vec(), 0)
}

const TOKENS: usize = 4;

pub(super) fn shape() -> RecordShape {
    // Records of 256 blocks would be too long for a test: a block takes a sixth of one.
    RecordShape::new(TOKENS, vec![300_000, 5_000, 400_000])
}

pub(super) fn options(bytes: u64) -> DiskOptions {
    DiskOptions {
        bytes,
        buffer_bytes: 0,
        writes_per_day: None,
        ttl: None,
        gate: Gate::new(0.0),
        frames: (4, 3),
        names: None,
        turns: Arc::default(),
        slots: SlotRoom { num_slots: 64, bytes: None, trial: SwapTrial::default() },
    }
}

/// Returns the KV of the block of this name.
pub(super) fn kv(shape: &RecordShape, key: BlockKey) -> Vec<u8> {
    let seed = u64::from_le_bytes(std::array::from_fn(|at| key.0[at]));
    (0..shape.block_bytes() as u64)
        .map(|at| (seed.wrapping_add(at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// Returns a chain of blocks: for each block the key of the block before it, its tokens, and its key.
pub(super) fn chain(keys: &KeyChain, number: usize, length: usize) -> Vec<(BlockKey, Vec<TokenId>, BlockKey)> {
    let mut parent = keys.root(&ChainRoot::new(None, 0));
    let block = |index: usize| {
        // Chains have their first two blocks in common with some others.
        let tokens: Vec<_> =
            (0..TOKENS).map(|at| (at + 10 * index + if index < 2 { 0 } else { 1000 * number }) as TokenId).collect();
        let key = keys.block(parent, &tokens);
        (std::mem::replace(&mut parent, key), tokens, key)
    };
    (0..length).map(block).collect()
}

pub(super) fn label(keys: &KeyChain, (parent, tokens, key): &(BlockKey, Vec<TokenId>, BlockKey)) -> BlockLabel {
    BlockLabel { key: *key, parent: *parent, owner: keys.owner(None), tokens: tokens.as_slice().into() }
}

pub(super) fn open(space: Arc<FaultySegments>, bytes: u64) -> DiskTier {
    DiskTier::open(space, [1; 32], [2; 32], shape(), options(bytes)).expect("it can be opened")
}

pub(super) fn settle(tier: &mut DiskTier, pool: &mut PlainBlocks) {
    for _ in 0..2000 {
        tier.flush();
        tier.poll(pool, Duration::from_millis(1));
        if tier.is_settled() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never settles");
}

pub(super) fn store(tier: &mut DiskTier, pool: &mut PlainBlocks, blocks: &[(BlockKey, Vec<TokenId>, BlockKey)]) {
    let keys = tier.key_chain().clone();
    for block in blocks {
        while tier.room() == 0 {
            tier.poll(pool, Duration::ZERO);
            std::thread::sleep(Duration::from_millis(1));
        }
        if tier.wants(block.2, 0) {
            pool.0[0] = kv(&shape(), block.2);
            tier.stage(label(&keys, block), 0, BlockPart::whole(BlockId(0)), pool);
        }
    }
}

/// Brings back the blocks of a chain that the store has, and checks them. Returns how many blocks came.
fn fetch(tier: &mut DiskTier, pool: &mut PlainBlocks, id: u64, blocks: &[(BlockKey, Vec<TokenId>, BlockKey)]) -> usize {
    let names: Vec<_> = blocks.iter().map(|(.., key)| *key).collect();
    let found = tier.look_up(&trunk(&names), None);
    let wanted = blocks[..found].iter().zip(0..).map(|((parent, tokens, key), block)| Wanted {
        key: *key,
        parent: *parent,
        tokens: tokens.as_slice().into(),
        part: BlockPart::whole(BlockId(block)),
    });
    tier.fetch(FetchId(id), wanted.collect(), None, None);
    let ended = loop {
        if let Some(ended) = tier.poll(pool, Duration::from_millis(50)) {
            break ended;
        }
    };
    assert!(ended.id == FetchId(id) && ended.filled <= found);
    for (index, name) in names[..ended.filled].iter().enumerate() {
        assert!(pool.0[index] == kv(&shape(), *name), "block {index} holds something else");
    }
    ended.filled
}

#[test]
fn what_was_stored_is_found_again_by_the_next_process() {
    let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let open = |fingerprint: u8| {
        let directory = Directory::open(parent.path().join("kv")).unwrap();
        let secret = directory.secret();
        DiskTier::open(Arc::new(directory), secret, [fingerprint; 32], shape(), options(200 << 20)).unwrap()
    };
    let mut pool = PlainBlocks::zeroed(20, shape().block_bytes());
    let blocks = {
        let mut tier = open(1);
        assert_eq!(tier.recovered(), Recovered::default());
        let blocks = chain(tier.key_chain(), 1, 20);
        store(&mut tier, &mut pool, &blocks);
        settle(&mut tier, &mut pool);
        assert_eq!(tier.figures().durable_blocks, 20);
        assert_eq!(fetch(&mut tier, &mut pool, 1, &blocks), 20);
        tier.assert_sound();
        blocks
    };
    let mut tier = open(1);
    let Recovered { blocks: found, set_aside, headers_read, .. } = tier.recovered();
    assert_eq!((found, set_aside, headers_read), (20, 0, 4));
    pool = PlainBlocks::zeroed(20, shape().block_bytes());
    assert_eq!(fetch(&mut tier, &mut pool, 1, &blocks), 20);
    assert!(tier.figures().read_rate > 0.0);
    // After an orderly end, only what came later is looked for.
    tier.leave_index();
    drop(tier);
    let mut tier = open(1);
    assert_eq!((tier.recovered().blocks, tier.recovered().headers_read), (20, 0));
    assert_eq!(fetch(&mut tier, &mut pool, 1, &blocks), 20);
    drop(tier);
    assert_eq!(open(1).recovered().headers_read, 4, "an index is believed once");
    // Another model finds nothing, and lets be what is there until it needs the room.
    let tier = open(2);
    assert_eq!((tier.recovered().blocks, tier.recovered().set_aside), (0, 1));
    drop(tier);
    assert_eq!(fetch(&mut open(1), &mut pool, 1, &blocks), 20);
}

#[test]
fn nothing_wrong_comes_back_whatever_fails() {
    let (mut injected, mut came, mut recovered) = (0, 0, 0);
    for seed in 0..12u64 {
        let mut space = Arc::new(FaultySegments::new(seed));
        let mut random = dice(seed);
        let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
        // Room for some 60 of the 220 blocks.
        let bytes = 64 << 20;
        let mut tier = open(Arc::clone(&space), bytes);
        for step in 0..60u64 {
            let keys = tier.key_chain().clone();
            let blocks = chain(&keys, random(10) as usize, 4 + random(20) as usize);
            match random(6) {
                0..=2 => store(&mut tier, &mut pool, &blocks),
                3 => came += fetch(&mut tier, &mut pool, step, &blocks),
                4 => {
                    let rate = |random: &mut dyn FnMut(u64) -> u64| if random(2) == 0 { 0 } else { random(250) as u32 };
                    space.set_rates(FaultRates {
                        read_error: rate(&mut random),
                        read_flip: rate(&mut random),
                        write_error: rate(&mut random) / 4,
                        write_torn: rate(&mut random),
                        write_flip: rate(&mut random),
                        create_error: rate(&mut random),
                        sync_error: rate(&mut random) / 4,
                    });
                }
                _ => {
                    // The process is killed, or the power fails; sometimes somebody has been at the files as well.
                    space.set_rates(FaultRates::default());
                    injected += space.injected();
                    if random(2) == 0 {
                        tier.leave_index();
                    }
                    drop(tier);
                    space = Arc::new(space.after_power_failure());
                    if random(3) == 0 {
                        space.tamper(|_, bytes| {
                            let at = random(bytes.len() as u64) as usize;
                            let end = (at + random(100_000) as usize).min(bytes.len());
                            bytes[at..end].fill(random(256) as u8);
                        });
                    }
                    tier = open(Arc::clone(&space), bytes);
                    recovered += tier.recovered().blocks;
                }
            }
            // Pauses after failures are for disks, not for tests.
            tier.writes.pause.until = None;
            tier.assert_sound();
            assert!(space.bytes() <= bytes);
        }
        space.set_rates(FaultRates::default());
        injected += space.injected();
        settle(&mut tier, &mut pool);
        tier.assert_sound();
        // A disk that works again keeps all that it is given: each fetch finds at least one block that an earlier
        // failure damaged, which is stored anew, or the whole chain.
        let blocks = chain(&tier.key_chain().clone(), 3, 24);
        let mut rounds = 0;
        while fetch(&mut tier, &mut pool, 1000 + rounds, &blocks) < blocks.len() {
            rounds += 1;
            assert!(rounds <= blocks.len() as u64, "seed {seed}: what is stored on a sound disk does not come back");
            store(&mut tier, &mut pool, &blocks);
            settle(&mut tier, &mut pool);
        }
    }
    assert!(injected > 30 && came > 100 && recovered > 500, "{injected} {came} {recovered}");
}

#[test]
fn what_is_found_again_and_again_survives_a_full_store() {
    let space = Arc::new(FaultySegments::new(1));
    let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
    let mut tier = open(Arc::clone(&space), 64 << 20);
    let keys = tier.key_chain().clone();
    let kept = chain(&keys, 1, 4);
    store(&mut tier, &mut pool, &kept);
    settle(&mut tier, &mut pool);
    for number in 2..40 {
        store(&mut tier, &mut pool, &chain(&keys, number, 12));
        settle(&mut tier, &mut pool);
        assert_eq!(fetch(&mut tier, &mut pool, number as u64, &kept), 4, "chain {number}");
    }
    let TierFigures { counts, bytes_used, bytes_total, .. } = tier.figures();
    assert!(counts.evicted > 100 && counts.carried > 10, "{counts:?}");
    assert!(bytes_used <= bytes_total && space.bytes() <= bytes_total);
}

#[test]
fn a_full_disk_stops_writes_for_a_while_and_nothing_else() {
    let space = Arc::new(FaultySegments::new(1));
    let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
    let mut tier = open(Arc::clone(&space), 200 << 20);
    let keys = tier.key_chain().clone();
    let before = chain(&keys, 1, 6);
    store(&mut tier, &mut pool, &before);
    settle(&mut tier, &mut pool);
    space.set_rates(FaultRates { write_error: 1000, ..FaultRates::default() });
    let more = chain(&keys, 2, 6);
    store(&mut tier, &mut pool, &more);
    settle(&mut tier, &mut pool);
    assert!(tier.figures().is_paused() && tier.figures().write_errors > 0);
    assert!(!tier.wants(chain(&keys, 3, 6)[5].2, 0), "nothing is stored during the pause");
    assert_eq!(fetch(&mut tier, &mut pool, 1, &before), 6);
    space.set_rates(FaultRates::default());
    tier.writes.pause.until = None;
    store(&mut tier, &mut pool, &more);
    settle(&mut tier, &mut pool);
    assert_eq!(fetch(&mut tier, &mut pool, 2, &more), 6);
    tier.assert_sound();
}

#[test]
fn a_disk_without_room_for_another_segment_keeps_the_latest() {
    let space = Arc::new(FaultySegments::new(1));
    let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
    let mut tier = open(Arc::clone(&space), 64 << 20);
    let keys = tier.key_chain().clone();
    for number in 1..4 {
        store(&mut tier, &mut pool, &chain(&keys, number, 12));
        settle(&mut tier, &mut pool);
    }
    let bytes = space.bytes();
    space.set_rates(FaultRates { create_error: 1000, ..FaultRates::default() });
    for number in 4..30 {
        store(&mut tier, &mut pool, &chain(&keys, number, 12));
        settle(&mut tier, &mut pool);
        tier.assert_sound();
    }
    let TierFigures { write_errors, bytes_used, .. } = tier.figures();
    assert!(!tier.figures().is_paused() && (1..8).contains(&write_errors), "{write_errors}");
    assert!(space.bytes() == bytes && bytes_used <= bytes);
    let mut is_there = |number: usize| tier.look_up(&trunk(&[chain(&keys, number, 12)[11].2]), None) == 1;
    assert_eq!([1, 29].map(&mut is_there), [false, true], "the latest is there, and the oldest is not");
    // Once there is room again, the store grows.
    space.set_rates(FaultRates::default());
    tier.writes.growth.until = Some(Instant::now());
    for number in 30..60 {
        store(&mut tier, &mut pool, &chain(&keys, number, 12));
        settle(&mut tier, &mut pool);
    }
    assert!(space.bytes() > bytes);
    tier.assert_sound();
}

#[test]
fn what_is_too_old_is_not_read() {
    let space = Arc::new(FaultySegments::new(1));
    let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
    let options = DiskOptions { ttl: Some(Duration::from_secs(5)), ..options(200 << 20) };
    let open = || DiskTier::open(Arc::clone(&space) as _, [1; 32], [2; 32], shape(), options.clone()).unwrap();
    let mut tier = open();
    let blocks = chain(&tier.key_chain().clone(), 1, 6);
    store(&mut tier, &mut pool, &blocks);
    settle(&mut tier, &mut pool);
    assert_eq!(fetch(&mut tier, &mut pool, 1, &blocks), 6);
    drop(tier);
    let mut tier = open();
    assert_eq!(tier.recovered().blocks, 6);
    // As if time had passed.
    let written = std::mem::replace(&mut tier.ages, Ages::new(Some(5))).all();
    written.keys().for_each(|&record| tier.ages.add(record, now() - 60, &tier.tier));
    tier.ages.swept_at = Instant::now().checked_sub(SWEEP).expect("the machine runs for a second");
    assert_eq!(fetch(&mut tier, &mut pool, 2, &blocks[..1]), 1);
    assert_eq!((tier.figures().expired_blocks, tier.look_up(&trunk(&[blocks[0].2]), None)), (6, 0));
    drop(tier);
    // As if they had been written long ago.
    let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
    space.tamper(|_, bytes| {
        let record = &mut bytes[DIRECT_ALIGN..];
        let header = seal.read_header(&shape(), record).expect("it is whole");
        let labels: Vec<_> = header.labels.iter().collect();
        seal.write_header(&shape(), &labels, header.generation, now() - 60, record);
    });
    assert_eq!(open().recovered().blocks, 1, "all but the second record's");
}

#[test]
fn a_restart_is_no_new_day_of_writes() {
    let space = Arc::new(FaultySegments::new(1));
    let mut pool = PlainBlocks::zeroed(30, shape().block_bytes());
    // Seven blocks an hour.
    let a_day = Some(24 * 7 * shape().block_bytes() as u64);
    let options = DiskOptions { writes_per_day: a_day, ..options(200 << 20) };
    let open = || DiskTier::open(Arc::clone(&space) as _, [1; 32], [2; 32], shape(), options.clone()).unwrap();
    for (chains, stored) in [(0..2, 7), (2..4, 0)] {
        let mut tier = open();
        for number in chains {
            let blocks = chain(&tier.key_chain().clone(), 1 + number, 6);
            store(&mut tier, &mut pool, &blocks);
        }
        settle(&mut tier, &mut pool);
        assert_eq!(tier.figures().counts.stored, stored);
    }
}

#[test]
fn a_store_that_is_too_small_is_refused() {
    let space = Arc::new(FaultySegments::new(1));
    let error = DiskTier::open(space, [1; 32], [2; 32], shape(), options(1 << 20)).err().expect("too small");
    assert!(error.to_string().contains("are needed"), "{error}");
}

/// Returns a source of numbers below a limit, which follow from a seed.
pub(super) fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut rng = Rng(seed);
    move |end| rng.below(end as usize) as u64
}

#[test]
fn frames_are_the_layers_of_what_was_stored_or_lost() {
    let (mut right, mut lost, mut unkept) = (0, 0, 0);
    for seed in 0..8 {
        let space = Arc::new(FaultySegments::new(seed));
        let (shape, mut pool) = (shape(), PlainBlocks::zeroed(1, shape().block_bytes()));
        // Records of six blocks and frames of four: some frames lie in two records, and none has one of its own.
        let mut tier = open(Arc::clone(&space), 64 << 20);
        let keys = tier.key_chain().clone();
        let chains: Vec<_> = (0..3).map(|number| chain(&keys, number, 12 + 4 * number)).collect();
        for blocks in &chains {
            store(&mut tier, &mut pool, blocks);
            settle(&mut tier, &mut pool);
        }
        if seed > 3 {
            space.set_rates(FaultRates { read_error: 120, read_flip: 120, ..FaultRates::default() });
        }
        for round in 0..10 {
            for (owner, blocks) in (0..).zip(&chains) {
                let frames = blocks.chunks_exact(4).skip(tier.kept_frames(owner));
                for frame in frames {
                    let contents: Vec<_> =
                        frame.iter().map(|(parent, tokens, key)| (*parent, *key, tokens.as_slice().into())).collect();
                    if !tier.keep_frame(owner, &contents) {
                        unkept += 1;
                        break;
                    }
                }
            }
            // Others push out what nobody keeps.
            let other = chain(&keys, 100 + round, 20);
            store(&mut tier, &mut pool, &other);
            let owners = 0..chains.len() as u64;
            let all = (0..shape.layers().len()).flat_map(|layer| {
                let tier = &tier;
                let frames =
                    move |owner| (0..tier.kept_frames(owner)).map(move |frame| FrameOf { owner, frame, layer });
                owners.clone().flat_map(frames)
            });
            let asked: Vec<_> = all.collect();
            tier.begin_frames(&mut asked.iter().copied());
            // Some passes end early.
            let end = if round % 3 == 2 { asked.len() / 2 } else { asked.len() };
            for of in &asked[..end] {
                let (buffer, len) = match tier.next_frame() {
                    Ok(frame) => frame,
                    Err(error) => {
                        assert_eq!(error.of, *of);
                        lost += 1;
                        // Whoever needs it computes it again.
                        tier.release_frames(of.owner);
                        break;
                    }
                };
                let before: usize = shape.layers()[..of.layer].iter().sum();
                let part = shape.layers()[of.layer];
                assert_eq!(len, 4 * part);
                let blocks = chains[of.owner as usize].chunks_exact(4).nth(of.frame).unwrap();
                for ((_, _, key), bytes) in blocks.iter().zip((*buffer).as_ref()[..len].chunks_exact(part)) {
                    assert!(*bytes == kv(&shape, *key)[before..before + part], "{of:?}, seed {seed}");
                    right += 1;
                }
            }
            tier.assert_sound();
        }
        (0..3).for_each(|owner| tier.release_frames(owner));
        tier.begin_frames(&mut std::iter::empty());
        space.set_rates(FaultRates::default());
        settle(&mut tier, &mut pool);
        tier.assert_sound();
    }
    assert!(right > 2000 && lost > 10 && unkept > 5, "{right} {lost} {unkept}");
}
