//! Tests of swaps to a file without a name and to a store with a name: blocks come back as they were, or not at all.

use std::sync::Arc;

use interbed_io::DIRECT_ALIGN;
use interbed_io::testing::{Effect, Fault, FaultySpace, Which, WriteEffect};
use interbed_io::{DirectRead, SwapFile};
use interbed_kv::testing::{PlainBlocks, Rng};
use interbed_kv::{BlockId, FetchId, LowerTier, SwapSlot, Wanted};

use super::super::tests::{chain, dice, kv, label, open, settle, shape, store, trunk};
use super::*;
use crate::record::{Header, Seal};
use crate::testing::{FaultRates, FaultySegments};
use crate::{Directory, DiskOptions, DiskTierError, SwapShape};

const BLOCKS: u32 = 40;
const BLOCK_SIZE: usize = 4;

struct Bench {
    tier: DiskTier,
    file: Arc<FaultySpace>,
    pool: PlainBlocks,
    next: u64,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Creates a store without a name, in a file of 32 MiB, for blocks of a multiple of 1,536 bytes, which mostly do
    /// not fill their last page in the file.
    fn new(times: usize) -> Self {
        Self::within(times, 32 << 20)
    }

    fn within(times: usize, bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shape = SwapShape { block_size: BLOCK_SIZE, block_bytes: 1536 * times };
        let file = Arc::new(FaultySpace::new(Arc::new(SwapFile::create(dir.path(), bytes).unwrap())));
        let tier = DiskTier::unnamed(file.clone(), shape, 0, [1; 32]).unwrap();
        assert_eq!((tier.num_slots(), tier.reads.num_buffers), (shape.slots_within(bytes), 2));
        assert!((1..=file.len()).contains(&tier.trial().bytes));
        let pool = PlainBlocks::zeroed(BLOCKS as usize, shape.block_bytes);
        let mut bench = Self { tier, file, pool, next: 0, _dir: dir };
        (0..BLOCKS).for_each(|block| bench.fill(block, block.into()));
        bench
    }

    fn fill(&mut self, block: u32, seed: u64) {
        for (index, word) in self.pool.0[block as usize].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&content(seed, index).to_le_bytes());
        }
    }

    fn holds(&self, block: u32, seed: u64) -> bool {
        let words = self.pool.0[block as usize].chunks_exact(8).enumerate();
        words.into_iter().all(|(index, word)| word == content(seed, index).to_le_bytes())
    }

    fn start(&mut self, direction: SwapDirection, copies: &[(u32, u32)]) -> SwapId {
        let id = SwapId(self.next);
        self.next += 1;
        self.tier.start_swap(&swap(id, direction, copies), &|_| None);
        id
    }

    /// Returns the next swap that ends.
    fn wait(&mut self) -> SwapEnded {
        loop {
            if let Some(ended) = self.tier.poll_swaps(&mut self.pool, Duration::from_secs(1)) {
                self.tier.assert_sound();
                return ended;
            }
            assert!(!self.tier.swaps.is_settled(), "nothing is in flight any more");
        }
    }

    fn swap(&mut self, direction: SwapDirection, copies: &[(u32, u32)]) -> Result<SwapTook, SwapFailure> {
        let id = self.start(direction, copies);
        let ended = self.wait();
        assert_eq!(ended.id, id);
        ended.outcome
    }
}

fn swap(id: SwapId, direction: SwapDirection, copies: &[(u32, u32)]) -> Swap {
    let transfer = |&(block, slot)| BlockSwap { part: BlockPart::whole(BlockId(block)), slot: SwapSlot(slot) };
    Swap { id, direction, transfers: copies.iter().map(transfer).collect(), num_spared: 0, num_freed: 0 }
}

fn content(seed: u64, index: usize) -> u64 {
    (seed * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns copies between blocks and slots of the same numbers.
fn same(numbers: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    numbers.map(|number| (number, number)).collect()
}

fn is_broken(outcome: &Result<SwapTook, SwapFailure>) -> bool {
    matches!(outcome, Err(SwapFailure::Broken(_)))
}

#[test]
fn blocks_come_back_as_they_were_wherever_they_go() {
    // 1.5 KiB, 18 KiB, and so much that a record holds a few.
    for times in [1, 12, 200] {
        let mut bench = Bench::new(times);
        let out: Vec<_> = (0..30).map(|block| (block, (block * 37 + 11) % 60)).collect();
        let took = bench.swap(SwapDirection::Out, &out).unwrap();
        assert_eq!(took.bytes, 30 * 1536 * times as u64);
        (0..BLOCKS).for_each(|block| bench.fill(block, 1000));
        let back: Vec<_> = out.iter().map(|&(block, slot)| ((block + 7) % BLOCKS, slot)).collect();
        let took = bench.swap(SwapDirection::In, &back).unwrap();
        assert_eq!(took.bytes, 30 * 1536 * times as u64);
        for block in 0..30 {
            assert!(bench.holds((block + 7) % BLOCKS, block.into()), "{times} times, block {block}");
        }
        assert!((0..7).chain(37..40).all(|block| bench.holds(block, 1000)), "no other block was touched");
        // A few of them, without the others of their record.
        let few: Vec<_> = out[4..6].iter().map(|&(block, slot)| (block + 30, slot)).collect();
        bench.swap(SwapDirection::In, &few).unwrap();
        assert!(bench.holds(34, 4) && bench.holds(35, 5) && bench.holds(36, 29));
    }
}

#[test]
fn swaps_that_move_nothing_wait_for_none_and_all_end() {
    let mut bench = Bench::new(12);
    let first = bench.start(SwapDirection::Out, &same(0..20));
    let second = bench.start(SwapDirection::Out, &same(20..40));
    let last_ends = bench.tier.swaps.last_ends;
    let third = bench.start(SwapDirection::Out, &[]);
    assert_eq!(bench.tier.swaps.last_ends, last_ends, "the first is still measured from its own start");
    let ended: Vec<_> = (0..3).map(|_| bench.wait()).collect();
    assert!(ended.iter().all(|ended| ended.outcome.is_ok()), "{ended:?}");
    assert_eq!(ended.iter().map(|ended| ended.id).collect::<Vec<_>>(), [third, first, second]);
    assert_eq!(bench.tier.poll_swaps(&mut bench.pool, Duration::from_secs(9)), None, "nothing is waited for");
    // On the way in, either may come first.
    (0..BLOCKS).for_each(|block| bench.fill(block, 1000));
    let mut begun = vec![bench.start(SwapDirection::In, &same(0..20)), bench.start(SwapDirection::In, &same(20..40))];
    let ended: Vec<_> = (0..2).map(|_| bench.wait()).collect();
    assert!(ended.iter().all(|ended| ended.outcome.is_ok()), "{ended:?}");
    begun.retain(|id| ended.iter().all(|ended| ended.id != *id));
    assert!(begun.is_empty() && (0..BLOCKS).all(|block| bench.holds(block, block.into())));
}

#[test]
fn a_failed_write_is_a_failed_swap_and_the_next_one_succeeds() {
    let mut bench = Bench::new(200);
    // Full disk, after a part went well; a panic in the middle.
    for effect in [WriteEffect::Errno(28), WriteEffect::Panic] {
        bench.file.fail_writes(1, 1, effect);
        let writes = bench.file.num_writes();
        let outcome = bench.swap(SwapDirection::Out, &same(0..30));
        assert!(is_broken(&outcome), "{outcome:?}");
        assert!(bench.file.num_writes() - writes < 10, "the rest is not written");
        assert_eq!(bench.tier.num_kept_slots(), 0);
        bench.swap(SwapDirection::Out, &same(0..30)).unwrap();
        bench.tier.retain_slots(&|_| false);
    }
    assert!((0..BLOCKS).all(|block| bench.holds(block, block.into())), "what is swapped out stays until it is reused");
}

#[test]
fn what_fails_or_differs_on_the_way_in_is_never_data() {
    let mut bench = Bench::new(12);
    bench.swap(SwapDirection::Out, &same(0..30)).unwrap();
    for effect in [Effect::Errno(5), Effect::EndAfter(5000), Effect::Panic] {
        bench.file.reads.inject(Fault { reads: Which::All, effect, times: Some(1) });
        let outcome = bench.swap(SwapDirection::In, &same(0..30));
        assert!(is_broken(&outcome), "{outcome:?}");
        bench.swap(SwapDirection::In, &same(0..30)).unwrap();
    }
    // A write that was lost: the file holds there what it held before.
    (0..BLOCKS).for_each(|block| bench.fill(block, u64::from(block) + 100));
    bench.file.fail_writes(0, 1, WriteEffect::Lost);
    bench.swap(SwapDirection::Out, &[(3, 3)]).unwrap();
    bench.fill(3, 7);
    let outcome = bench.swap(SwapDirection::In, &[(3, 3)]);
    assert!(is_broken(&outcome), "{outcome:?}");
    assert!(bench.holds(3, 7), "what was read was not taken");
    bench.swap(SwapDirection::In, &[(5, 5)]).unwrap();
    assert!(bench.holds(5, 5));
    let nothing = bench.swap(SwapDirection::In, &[(6, 59)]);
    assert!(is_broken(&nothing), "{nothing:?}");
}

#[test]
fn one_swap_that_fails_leaves_the_others_alone() {
    let mut bench = Bench::new(200);
    bench.file.fail_writes(0, 1, WriteEffect::Errno(5));
    let first = bench.start(SwapDirection::Out, &same(0..20));
    bench.start(SwapDirection::Out, &same(20..40));
    let ended = [bench.wait(), bench.wait()];
    assert_eq!(
        ended.each_ref().map(|ended| (ended.id == first, ended.outcome.is_ok())),
        [(true, false), (false, true)]
    );
    let back: Vec<_> = (20..40).map(|slot| (slot - 20, slot)).collect();
    bench.swap(SwapDirection::In, &back).unwrap();
    assert!((0..20).all(|block| bench.holds(block, u64::from(block) + 20)));
}

#[test]
fn a_failed_write_spares_what_lies_behind_it_in_a_file_without_a_name() {
    let mut bench = Bench::new(1);
    bench.file.fail_writes(0, 1, WriteEffect::Errno(5));
    bench.start(SwapDirection::Out, &[(0, 0)]);
    bench.start(SwapDirection::Out, &[(1, 1)]);
    let kept = &bench.tier.swaps.kept;
    let segment = |slot: u32| kept.get(SwapSlot(slot)).expect("it is kept").0.segment;
    assert_eq!(segment(0), segment(1));
    let outcomes = [bench.wait().outcome, bench.wait().outcome];
    assert!(is_broken(&outcomes[0]) && outcomes[1].is_ok(), "{outcomes:?}");
    bench.swap(SwapDirection::In, &[(2, 1)]).unwrap();
    assert!(bench.holds(2, 1));
}

#[test]
fn a_full_disk_is_no_room_for_what_lies_behind_it_too() {
    let space = Arc::new(FaultySegments::new(1));
    let (mut tier, mut pool) = (open(Arc::clone(&space), 64 << 20), PlainBlocks::zeroed(2, shape().block_bytes()));
    space.set_rates(FaultRates { create_error: 1000, ..FaultRates::default() });
    for slot in 0..2 {
        tier.start_swap(&swap(SwapId(slot.into()), SwapDirection::Out, &[(slot, slot)]), &|_| None);
    }
    for id in 0..2 {
        assert_eq!(ended(&mut tier, &mut pool, SwapId(id)), Err(SwapFailure::NoRoom));
    }
}

#[test]
fn the_first_record_of_a_segment_may_be_written_last() {
    let space = Arc::new(FaultySegments::new(1));
    let (mut tier, mut pool) = (open(Arc::clone(&space), 64 << 20), PlainBlocks::zeroed(2, shape().block_bytes()));
    let blocks = chain(&tier.key_chain().clone(), 1, 3);
    // No room is left for it in memory before the others are on the disk.
    tier.start_swap(&swap(SwapId(0), SwapDirection::Out, &same(0..2)), &|_| None);
    store(&mut tier, &mut pool, &blocks);
    settle(&mut tier, &mut pool);
    assert_eq!(tier.figures().durable_blocks, 3);
    let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
    let mut headers = Vec::new();
    space.tamper(|_, bytes| headers.push(seal.read_segment_header(&bytes[..DIRECT_ALIGN]).ok()));
    assert_eq!(headers, [Some(1)]);
    ended(&mut tier, &mut pool, SwapId(0)).unwrap();
    settle(&mut tier, &mut pool);
    assert_eq!(tier.figures().durable_blocks, 3, "nobody finds blocks without names");
    tier.assert_sound();
    drop(tier);
    assert_eq!(open(space, 64 << 20).recovered().blocks, 3);
}

#[test]
fn stopping_waits_for_one_write_alone() {
    let mut bench = Bench::new(200);
    bench.start(SwapDirection::Out, &same(0..30));
    let (file, writes) = (bench.file.clone(), bench.file.num_writes());
    let held = file.hold_writes();
    assert_eq!(bench.tier.poll_swaps(&mut bench.pool, Duration::ZERO), None);
    let stopping = std::thread::spawn(move || drop(bench));
    // By the time that this thread goes on, the queue is closed.
    std::thread::sleep(Duration::from_millis(20));
    drop(held);
    stopping.join().unwrap();
    assert!(file.num_writes() - writes <= 1, "the thread may not have come to the first");
}

#[test]
fn a_file_without_room_for_a_block_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shape = SwapShape { block_size: BLOCK_SIZE, block_bytes: 4097 };
    let open = |bytes: usize| {
        let file = Arc::new(SwapFile::create(dir.path(), bytes as u64).unwrap());
        DiskTier::unnamed(file, shape, 0, [1; 32])
    };
    let refused = open(4096).err();
    assert!(matches!(refused, Some(DiskTierError::NoBlock { got: 4096, slot: 12288 })), "{refused:?}");
    assert_eq!((shape.slot_bytes(), shape.slots_within(4096)), (12288, 0));
    assert_eq!(open(shape.slot_bytes()).unwrap().num_slots(), 1);
}

#[test]
fn where_there_is_no_room_nothing_is_written_and_room_is_used_again() {
    let (mut refused, mut swapped) = (0, 0);
    for seed in 0..3 {
        let mut rng = Rng(seed);
        // Room for some 25 blocks of the 40, in segments of a few blocks.
        let mut bench = Bench::within(200, 8 << 20);
        let slots = bench.tier.num_slots() as u32;
        // What each slot in use holds, in groups that leave together.
        let mut groups: Vec<Vec<(u32, u64)>> = Vec::new();
        for step in 0..90u64 {
            let free: Vec<_> =
                (0..slots).filter(|slot| groups.iter().flatten().all(|(used, _)| used != slot)).collect();
            let count = (1 + rng.below(12)).min(free.len());
            if rng.below(3) > 0 && count > 0 {
                let copies: Vec<_> = (0..).zip(free).take(count).collect();
                for &(block, _) in &copies {
                    bench.fill(block, 1000 * step + u64::from(block));
                }
                let writes = bench.file.num_writes();
                match bench.swap(SwapDirection::Out, &copies) {
                    Ok(_) => {
                        let group = copies.iter().map(|&(block, slot)| (slot, 1000 * step + u64::from(block)));
                        groups.push(group.collect());
                    }
                    Err(failure) => {
                        assert_eq!((failure, bench.file.num_writes()), (SwapFailure::NoRoom, writes));
                        refused += 1;
                    }
                }
            } else if !groups.is_empty() {
                let group = groups.swap_remove(rng.below(groups.len()));
                let copies: Vec<_> = (0..).zip(&group).map(|(block, &(slot, _))| (block, slot)).collect();
                bench.swap(SwapDirection::In, &copies).unwrap();
                assert!((0..).zip(&group).all(|(block, &(_, seed))| bench.holds(block, seed)), "seed {seed}");
                swapped += copies.len();
                bench.tier.retain_slots(&|slot| groups.iter().flatten().any(|(used, _)| *used == slot.0));
            }
            assert_eq!(bench.tier.num_kept_slots(), groups.iter().flatten().count());
        }
        bench.tier.retain_slots(&|_| false);
        let all: Vec<_> = same(0..slots.min(BLOCKS));
        bench.swap(SwapDirection::Out, &all).unwrap();
    }
    assert!(refused > 5 && swapped > 150, "{refused} {swapped}");
}

/// Prints the speed of swaps, as a figure to be looked at. No test checks the speed, since disks differ.
#[test]
#[ignore = "a measurement: run it in release, with --nocapture, when the machine is quiet"]
fn share_of_the_engine_thread_in_a_swap() {
    let (bytes, blocks) = (1 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let shape = SwapShape { block_size: 16, block_bytes: bytes };
    let file = SwapFile::create(dir.path(), shape.bytes_of(2 * blocks)).unwrap();
    let mut tier = DiskTier::unnamed(Arc::new(file), shape, 16 << 20, [1; 32]).unwrap();
    let mut pool = PlainBlocks(vec![vec![7; bytes]; blocks]);
    for (number, direction) in
        [SwapDirection::Out, SwapDirection::In, SwapDirection::Out, SwapDirection::In].into_iter().enumerate()
    {
        let begin = Instant::now();
        tier.start_swap(&swap(SwapId(number as u64), direction, &same(0..blocks as u32)), &|_| None);
        let mut busy = Duration::ZERO;
        let ended = loop {
            let poll = Instant::now();
            let ended = tier.poll_swaps(&mut pool, Duration::ZERO);
            busy += poll.elapsed();
            match ended {
                Some(ended) => break ended,
                None => std::thread::sleep(Duration::from_micros(500)),
            }
        };
        let (wall, mib) = (begin.elapsed().as_secs_f64(), (blocks * bytes) as f64 / f64::from(1 << 20));
        println!(
            "{direction:?}: {:.0} MiB/s, the engine thread busy for {:.1} % of the time; {:?}",
            mib / wall,
            100.0 * busy.as_secs_f64() / wall,
            ended.outcome
        );
    }
}

/// Changes the header of a record of `count` blocks at `offset` of the first segment.
fn rewrite(space: &FaultySegments, offset: usize, count: usize, change: impl Fn(&mut Header)) {
    let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
    space.tamper(|segment, bytes| {
        if segment == 0 {
            let record = &mut bytes[offset..];
            let mut header = seal.read_header(&shape(), record).expect("it is whole");
            assert_eq!(header.labels.len(), count);
            change(&mut header);
            let labels: Vec<_> = header.labels.iter().collect();
            seal.write_header(&shape(), &labels, header.generation, header.written_at, record);
        }
    });
}

fn ended(tier: &mut DiskTier, pool: &mut PlainBlocks, id: SwapId) -> Result<SwapTook, SwapFailure> {
    let ended = (0..100).find_map(|_| tier.poll_swaps(pool, Duration::from_secs(1))).expect("it ends");
    assert_eq!(ended.id, id);
    ended.outcome
}

#[test]
fn what_the_store_has_is_not_written_and_what_it_lacks_is_found_from_then_on() {
    let space = Arc::new(FaultySegments::new(1));
    let (mut tier, mut pool) = (open(Arc::clone(&space), 200 << 20), PlainBlocks::zeroed(8, shape().block_bytes()));
    let keys = tier.key_chain().clone();
    let blocks = chain(&keys, 1, 7);
    store(&mut tier, &mut pool, &blocks[..3]);
    settle(&mut tier, &mut pool);
    let block_bytes = shape().block_bytes() as u64;
    // The last of eight blocks is not full, and has no name.
    let name = |part: BlockPart| blocks.get(part.block.index()).map(|block| label(&keys, block));
    (0..7).for_each(|at| pool.0[at] = kv(&shape(), blocks[at].2));
    pool.0[7].fill(99);
    // What was written for a swap need not be written for the next one.
    for (id, written) in [(0, 5), (2, 1)] {
        tier.start_swap(&swap(SwapId(id), SwapDirection::Out, &same(0..8)), &name);
        assert_eq!(ended(&mut tier, &mut pool, SwapId(id)).unwrap().bytes, written * block_bytes);
        pool = PlainBlocks::zeroed(8, shape().block_bytes());
        tier.start_swap(&swap(SwapId(id + 1), SwapDirection::In, &same(0..8)), &|_| None);
        assert_eq!(ended(&mut tier, &mut pool, SwapId(id + 1)).unwrap().bytes, 8 * block_bytes);
        assert!(blocks.iter().zip(&pool.0).all(|(block, bytes)| *bytes == kv(&shape(), block.2)));
        assert!(pool.0[7].iter().all(|&byte| byte == 99));
    }
    assert_eq!(tier.figures().swap_spared_bytes, 10 * block_bytes);
    let names: Vec<_> = blocks.iter().map(|(.., key)| *key).collect();
    assert_eq!(tier.look_up(&trunk(&names), None), 7, "others find them too");
    // What cannot be read is a swap that failed.
    space.set_rates(FaultRates { read_error: 1000, ..FaultRates::default() });
    tier.start_swap(&swap(SwapId(10), SwapDirection::In, &same(0..5)), &|_| None);
    assert!(is_broken(&ended(&mut tier, &mut pool, SwapId(10))));
    space.set_rates(FaultRates::default());
    tier.retain_slots(&|slot| slot.0 < 2);
    assert_eq!(tier.num_kept_slots(), 2);
    settle(&mut tier, &mut pool);
    tier.assert_sound();
    // The next process finds what has a name and was not lost.
    drop(tier);
    let mut tier = open(space, 200 << 20);
    assert_eq!(
        (tier.look_up(&trunk(&names), None), tier.look_up(&trunk(&[BlockKey::NAMELESS]), None), tier.num_kept_slots()),
        (7, 0, 0)
    );
}

#[test]
fn what_is_swapped_out_is_erased_for_its_tenant_or_for_anyone() {
    let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = parent.path().join("kv");
    let directory = Directory::open(&path).unwrap();
    let secret = directory.secret();
    let options = super::super::tests::options(64 << 20);
    let mut tier = DiskTier::open(Arc::new(directory), secret, [2; 32], shape(), options).unwrap();
    let keys = tier.key_chain().clone();
    let (blocks, mut pool) = (chain(&keys, 1, 1), PlainBlocks::zeroed(3, shape().block_bytes()));
    (0..3).for_each(|block| pool.0[block].fill(0xA1 + block as u8));
    // A full block of the tenant with one that is not full, and a block of which nobody knows whose it is.
    let name = |part: BlockPart| blocks.get(part.block.index()).map(|block| label(&keys, block));
    for (id, copies) in [(1, vec![(0, 0), (1, 1)]), (2, vec![(2, 2)])] {
        tier.start_swap(&swap(SwapId(id), SwapDirection::Out, &copies), &name);
        ended(&mut tier, &mut pool, SwapId(id)).unwrap();
    }
    settle(&mut tier, &mut pool);
    drop(tier);
    let holds = |byte: u8| {
        let files = std::fs::read_dir(&path).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        files.into_iter().any(|bytes| bytes.windows(64).any(|run| run.iter().all(|&other| other == byte)))
    };
    assert!(holds(0xA1) && holds(0xA2) && holds(0xA3));
    crate::erase(&Directory::open(&path).unwrap(), Some(7), &mut |_, _| ()).unwrap();
    assert!(holds(0xA1) && holds(0xA2) && !holds(0xA3), "it may be anyone's");
    crate::erase(&Directory::open(&path).unwrap(), None, &mut |_, _| ()).unwrap();
    assert!(!holds(0xA1) && !holds(0xA2));
}

#[test]
fn slots_hold_a_part_of_the_segments_until_they_are_used_for_something_else() {
    let space = Arc::new(FaultySegments::new(1));
    let (mut tier, mut pool) = (open(Arc::clone(&space), 64 << 20), PlainBlocks::zeroed(8, shape().block_bytes()));
    let keys = tier.key_chain().clone();
    let is_there =
        |tier: &mut DiskTier, number: usize| tier.look_up(&trunk(&[chain(&keys, number, 3)[2].2]), None) == 1;
    let fill = |tier: &mut DiskTier, pool: &mut PlainBlocks, numbers: std::ops::Range<usize>| {
        for number in numbers {
            store(tier, pool, &chain(&keys, number, 12));
            settle(tier, pool);
        }
    };
    let most = tier.swaps.kept.segments_max();
    assert!(most > 0 && tier.frames().is_some_and(|tier| tier.capacity_tokens() > 0));
    // Each chain fills more than half a segment, so that of any three two lie in different ones.
    let mut kept = Vec::new();
    for number in 0..3 * (most + 1) {
        fill(&mut tier, &mut pool, number..number + 1);
        let block = chain(&keys, number, 3)[2].clone();
        let (id, slot) = (SwapId(number as u64), number as u32);
        let before = tier.figures();
        tier.start_swap(&swap(id, SwapDirection::Out, &[(0, slot)]), &|_| Some(label(&keys, &block)));
        match ended(&mut tier, &mut pool, id) {
            Ok(took) => {
                assert_eq!(took.bytes, 0, "chain {number} is there");
                kept.push(number);
            }
            Err(failure) => {
                assert_eq!(failure, SwapFailure::NoRoom);
                assert_eq!(tier.figures().blocks, before.blocks, "emptied segments would not help");
            }
        }
    }
    assert!(tier.swaps.kept.segments_left() == 0 && kept.len() < 3 * (most + 1), "{kept:?}");
    fill(&mut tier, &mut pool, 100..140);
    assert!(tier.figures().counts.evicted > 100);
    for &number in &kept {
        let id = SwapId(1000 + number as u64);
        tier.start_swap(&swap(id, SwapDirection::In, &[(0, number as u32)]), &|_| None);
        ended(&mut tier, &mut pool, id).unwrap();
        assert!(pool.0[0] == kv(&shape(), chain(&keys, number, 3)[2].2), "chain {number}");
    }
    tier.assert_sound();
    tier.retain_slots(&|_| false);
    assert_eq!(tier.swaps.kept.segments_left(), most);
    fill(&mut tier, &mut pool, 140..180);
    assert!(kept.iter().all(|&number| !is_there(&mut tier, number)), "nobody holds them any more");
    tier.assert_sound();
}

/// Returns a store of eight segments with a few chains, and a block of each of its segments.
fn filled(space: Arc<FaultySegments>, pool: &mut PlainBlocks) -> (DiskTier, Vec<BlockLabel>) {
    let mut tier = open(space, 64 << 20);
    let keys = tier.key_chain().clone();
    let mut found = std::collections::BTreeMap::new();
    for number in 0..4 {
        let blocks = chain(&keys, number, 12);
        store(&mut tier, pool, &blocks);
        settle(&mut tier, pool);
        for block in &blocks[2..] {
            let segment = tier.tier.find(block.2).expect("it is there").record.segment;
            found.entry(segment).or_insert_with(|| label(&keys, block));
        }
    }
    assert!(found.len() > 3 && tier.swaps.kept.segments_max() == 2);
    (tier, found.into_values().collect())
}

#[test]
fn a_prefix_in_many_segments_leaves_room_for_what_must_be_written() {
    let mut pool = PlainBlocks::zeroed(3, shape().block_bytes());
    let (mut tier, labels) = filled(Arc::new(FaultySegments::new(1)), &mut pool);
    (0..2).for_each(|block| pool.0[block] = kv(&shape(), labels[block].key));
    pool.0[2].fill(99);
    let before = tier.figures();
    tier.start_swap(&swap(SwapId(0), SwapDirection::Out, &same(0..3)), &|part| {
        (part.block.index() < 2).then(|| labels[part.block.index()].clone())
    });
    let took = ended(&mut tier, &mut pool, SwapId(0)).unwrap();
    assert_eq!(took.bytes, 2 * shape().block_bytes() as u64, "one of the two is written again");
    assert_eq!((tier.figures().blocks, tier.swaps.kept.segments_left()), (before.blocks, 0));
    pool = PlainBlocks::zeroed(3, shape().block_bytes());
    tier.start_swap(&swap(SwapId(1), SwapDirection::In, &same(0..3)), &|_| None);
    ended(&mut tier, &mut pool, SwapId(1)).unwrap();
    assert!((0..2).all(|block| pool.0[block] == kv(&shape(), labels[block].key)));
    assert!(pool.0[2].iter().all(|&byte| byte == 99));
    settle(&mut tier, &mut pool);
    tier.assert_sound();
}

#[test]
fn no_slot_keeps_a_segment_that_is_being_emptied() {
    let mut pool = PlainBlocks::zeroed(1, shape().block_bytes());
    let (mut tier, labels) = filled(Arc::new(FaultySegments::new(1)), &mut pool);
    let (oldest, segment) = (&labels[0], tier.tier.find(labels[0].key).expect("it is there").record.segment);
    assert_eq!(tier.look_up(&trunk(&[oldest.key]), None), 1);
    tier.reclaim_for(usize::MAX);
    assert!(tier.tier.is_leaving(segment));
    pool.0[0] = kv(&shape(), oldest.key);
    tier.start_swap(&swap(SwapId(0), SwapDirection::Out, &same(0..1)), &|_| Some(oldest.clone()));
    assert!(ended(&mut tier, &mut pool, SwapId(0)).unwrap().bytes > 0);
    settle(&mut tier, &mut pool);
    assert!(!tier.swaps.kept.holds(segment) && !tier.tier.is_leaving(segment));
    tier.assert_sound();
}

#[test]
fn blocks_of_slots_do_not_become_too_old() {
    let space = Arc::new(FaultySegments::new(1));
    let options = DiskOptions { ttl: Some(Duration::from_secs(5)), ..super::super::tests::options(64 << 20) };
    let mut tier = DiskTier::open(Arc::clone(&space) as _, [1; 32], [2; 32], shape(), options).unwrap();
    let (keys, mut pool) = (tier.key_chain().clone(), PlainBlocks::zeroed(2, shape().block_bytes()));
    let blocks = chain(&keys, 1, 1);
    pool.0[0] = kv(&shape(), blocks[0].2);
    pool.0[1].fill(99);
    let name = |part: BlockPart| blocks.get(part.block.index()).map(|block| label(&keys, block));
    tier.start_swap(&swap(SwapId(0), SwapDirection::Out, &same(0..2)), &name);
    ended(&mut tier, &mut pool, SwapId(0)).unwrap();
    settle(&mut tier, &mut pool);
    // As if it had been written long ago.
    rewrite(&space, DIRECT_ALIGN, 2, |header| header.written_at -= 60);
    pool = PlainBlocks::zeroed(2, shape().block_bytes());
    tier.start_swap(&swap(SwapId(1), SwapDirection::In, &same(0..2)), &|_| None);
    ended(&mut tier, &mut pool, SwapId(1)).unwrap();
    assert!(pool.0[0] == kv(&shape(), blocks[0].2) && pool.0[1].iter().all(|&byte| byte == 99));
    // Others do not read it.
    let (parent, tokens, key) = blocks[0].clone();
    let wanted = Wanted { key, parent, tokens: tokens.into(), part: BlockPart::whole(BlockId(0)) };
    tier.fetch(FetchId(0), vec![wanted], None, None);
    let ended = (0..100).find_map(|_| tier.poll(&mut pool, Duration::from_millis(100))).expect("it ends");
    assert_eq!((ended.filled, ended.wanted), (0, 1));
}

#[test]
fn a_block_without_a_name_is_not_taken_for_one_of_another_record() {
    let space = Arc::new(FaultySegments::new(1));
    let (mut tier, mut pool) = (open(Arc::clone(&space), 64 << 20), PlainBlocks::zeroed(2, shape().block_bytes()));
    for slot in 0..2 {
        tier.start_swap(&swap(SwapId(slot.into()), SwapDirection::Out, &[(slot, slot)]), &|_| None);
        ended(&mut tier, &mut pool, SwapId(slot.into())).unwrap();
    }
    // As if the disk had read at the wrong place.
    let bytes = shape().record_bytes(1);
    space.tamper(|_, segment| segment.copy_within(DIRECT_ALIGN..DIRECT_ALIGN + bytes, DIRECT_ALIGN + bytes));
    tier.start_swap(&swap(SwapId(2), SwapDirection::In, &[(0, 1)]), &|_| None);
    let outcome = ended(&mut tier, &mut pool, SwapId(2));
    assert!(is_broken(&outcome), "{outcome:?}");
    tier.start_swap(&swap(SwapId(3), SwapDirection::In, &[(0, 0)]), &|_| None);
    ended(&mut tier, &mut pool, SwapId(3)).unwrap();
}

#[test]
fn a_swap_out_does_not_wait_for_all_reads() {
    let space = Arc::new(FaultySegments::new(1));
    let buffer_bytes = 4 * shape().record_bytes(shape().blocks_per_record());
    let options = DiskOptions { buffer_bytes, ..super::super::tests::options(200 << 20) };
    let mut tier = DiskTier::open(space, [1; 32], [2; 32], shape(), options).unwrap();
    assert_eq!(tier.reads.num_buffers, 2);
    let (keys, mut pool) = (tier.key_chain().clone(), PlainBlocks::zeroed(41, shape().block_bytes()));
    let blocks = chain(&keys, 1, 40);
    store(&mut tier, &mut pool, &blocks);
    settle(&mut tier, &mut pool);
    let wanted = (0..).zip(&blocks).map(|(block, (parent, tokens, key))| Wanted {
        key: *key,
        parent: *parent,
        tokens: tokens.as_slice().into(),
        part: BlockPart::whole(BlockId(block)),
    });
    tier.fetch(FetchId(0), wanted.collect(), None, None);
    tier.start_swap(&swap(SwapId(0), SwapDirection::Out, &[(40, 0)]), &|_| None);
    while !tier.swaps.leaving.is_empty() {
        assert_eq!(tier.poll_swaps(&mut pool, Duration::ZERO), None);
    }
    assert!(!tier.reads.waiting.is_empty(), "it has waited for all reads");
    ended(&mut tier, &mut pool, SwapId(0)).unwrap();
    let ended = (0..100).find_map(|_| tier.poll(&mut pool, Duration::from_millis(100))).expect("it ends");
    assert_eq!(ended.filled, 40);
    assert!((0..40).all(|at| pool.0[at] == kv(&shape(), blocks[at].2)));
    settle(&mut tier, &mut pool);
    tier.assert_sound();
}

#[test]
fn whatever_fails_no_swap_brings_anything_wrong() {
    let (mut came, mut failed, mut refused) = (0, 0, 0);
    for seed in 0..6u64 {
        let space = Arc::new(FaultySegments::new(seed));
        let (mut tier, mut pool) = (open(Arc::clone(&space), 64 << 20), PlainBlocks::zeroed(32, shape().block_bytes()));
        let keys = tier.key_chain().clone();
        let mut random = dice(seed);
        for step in 0..40u64 {
            let blocks = chain(&keys, random(10) as usize, 4 + random(12) as usize);
            match random(3) {
                0 => store(&mut tier, &mut pool, &blocks),
                1 => {
                    let mut rate = |most| if random(2) == 0 { 0 } else { random(most) as u32 };
                    space.set_rates(FaultRates {
                        read_error: rate(150),
                        read_flip: rate(150),
                        write_error: rate(60),
                        write_torn: rate(150),
                        write_flip: rate(150),
                        create_error: rate(150),
                        sync_error: 0,
                    });
                }
                _ => {
                    let all = same(0..blocks.len() as u32);
                    let (out, back) = (SwapId(2 * step), SwapId(2 * step + 1));
                    (0..blocks.len()).for_each(|at| pool.0[at] = kv(&shape(), blocks[at].2));
                    // The last block is not full.
                    let name = |part: BlockPart| {
                        let block = part.block.index();
                        (block + 1 < blocks.len()).then(|| label(&keys, &blocks[block]))
                    };
                    tier.start_swap(&swap(out, SwapDirection::Out, &all), &name);
                    match ended(&mut tier, &mut pool, out) {
                        Ok(_) => {}
                        Err(SwapFailure::NoRoom) => refused += 1,
                        Err(SwapFailure::Broken(_)) => failed += 1,
                    }
                    if tier.num_kept_slots() > 0 {
                        pool = PlainBlocks::zeroed(32, shape().block_bytes());
                        tier.start_swap(&swap(back, SwapDirection::In, &all), &|_| None);
                        match ended(&mut tier, &mut pool, back) {
                            Ok(_) => {
                                let is_right = |at: usize| pool.0[at] == kv(&shape(), blocks[at].2);
                                assert!((0..blocks.len()).all(is_right), "seed {seed}, step {step}");
                                came += 1;
                            }
                            Err(failure) => {
                                assert!(matches!(failure, SwapFailure::Broken(_)));
                                failed += 1;
                            }
                        }
                        tier.retain_slots(&|_| false);
                    }
                }
            }
            // Pauses after failures are for disks, not for tests.
            tier.writes.pause.until = None;
            tier.writes.growth.until = tier.writes.growth.until.map(|_| Instant::now());
            tier.assert_sound();
        }
        space.set_rates(FaultRates::default());
        settle(&mut tier, &mut pool);
        tier.assert_sound();
    }
    println!("{came} came back, {failed} failed, {refused} were refused");
    assert!(came > 8 && failed > 3, "{came} {failed} {refused}");
}
