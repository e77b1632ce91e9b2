//! Tests of swaps over a real file and a faulty one: blocks come back as they were, or not at all.

use interbed_io::testing::{Effect, Fault, FaultySpace, Which, WriteEffect};
use interbed_io::{DirectRead, SwapFile};
use interbed_kv::testing::PlainBlocks;
use interbed_kv::{BlockId, BlockSwap, SwapSlot};

use super::*;

const BLOCKS: u32 = 40;
const SLOTS: usize = 60;

struct Bench {
    space: SwapSpace,
    file: Arc<FaultySpace>,
    pool: PlainBlocks,
    next: u64,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Creates swap space for blocks of a multiple of 1,536 bytes, which mostly do not fill their last page in the
    /// file.
    fn new(times: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let block_bytes = 1536 * times;
        let slot = SwapSpace::slot_bytes(block_bytes);
        let file = SwapFile::create(dir.path(), (SLOTS * slot) as u64).unwrap();
        let file = Arc::new(FaultySpace::new(Arc::new(file)));
        let space = SwapSpace::new(file.clone(), block_bytes, 0).unwrap();
        assert_eq!((space.num_slots(), space.buffers.len()), (SLOTS, BUFFERS_MIN));
        assert!((1..=file.len()).contains(&space.trial().bytes));
        let pool = PlainBlocks(vec![vec![0; block_bytes]; BLOCKS as usize]);
        let mut bench = Self { space, file, pool, next: 0, _dir: dir };
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
        let transfer = |&(block, slot)| BlockSwap { block: BlockId(block), slot: SwapSlot(slot) };
        let transfers = copies.iter().map(transfer).collect();
        self.space.start(&Swap { id, direction, transfers, num_spared: 0, num_freed: 0 });
        id
    }

    /// Returns the next swap that ends.
    fn wait(&mut self) -> SwapEnded {
        loop {
            if let Some(ended) = self.space.poll(&mut self.pool, Duration::from_secs(1)) {
                assert!(!self.space.swaps.is_empty() || self.space.buffers.len() == BUFFERS_MIN, "buffers come back");
                return ended;
            }
            assert!(!self.space.swaps.is_empty(), "nothing is in flight any more");
        }
    }

    fn swap(&mut self, direction: SwapDirection, copies: &[(u32, u32)]) -> Result<SwapTook, String> {
        let id = self.start(direction, copies);
        let ended = self.wait();
        assert_eq!(ended.id, id);
        ended.outcome
    }
}

fn content(seed: u64, index: usize) -> u64 {
    (seed * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn blocks_come_back_as_they_were_wherever_they_go() {
    // 1.5 KiB, 18 KiB, and so much that a part holds a few.
    for times in [1, 12, 200] {
        let mut bench = Bench::new(times);
        // Slots in runs and scattered, in no order.
        let out: Vec<_> = (0..30).map(|block| (block, (block * 37 + 11) % SLOTS as u32)).collect();
        let took = bench.swap(SwapDirection::Out, &out).unwrap();
        assert_eq!(took.bytes, 30 * 1536 * times as u64);
        (0..BLOCKS).for_each(|block| bench.fill(block, 1000));
        let back: Vec<_> = out.iter().map(|&(block, slot)| ((block + 7) % BLOCKS, slot)).collect();
        bench.swap(SwapDirection::In, &back).unwrap();
        for block in 0..30 {
            assert!(bench.holds((block + 7) % BLOCKS, block.into()), "{times} times, block {block}");
        }
        assert!((0..7).chain(37..40).all(|block| bench.holds(block, 1000)), "no other block was touched");
    }
}

#[test]
fn swaps_in_flight_together_end_in_order() {
    let mut bench = Bench::new(12);
    let first = bench.start(SwapDirection::Out, &(0..20).map(|block| (block, block)).collect::<Vec<_>>());
    let second = bench.start(SwapDirection::Out, &(20..40).map(|block| (block, block + 20)).collect::<Vec<_>>());
    let last_ends = bench.space.last_ends;
    let third = bench.start(SwapDirection::Out, &[]);
    assert_eq!(bench.space.last_ends, last_ends, "the first is still measured from its own start");
    // Swaps that move nothing do not wait.
    let ended: Vec<_> = (0..3).map(|_| bench.wait()).collect();
    assert!(ended.iter().all(|ended| ended.outcome.is_ok()), "{ended:?}");
    assert_eq!(ended.iter().map(|ended| ended.id).collect::<Vec<_>>(), [third, first, second]);
    assert_eq!(bench.space.poll(&mut bench.pool, Duration::from_secs(9)), None, "nothing is waited for");
}

#[test]
fn parts_may_come_back_in_any_order() {
    let mut bench = Bench::new(12);
    let [first, second] = [[(0, 4), (1, 3)], [(2, 9), (3, 8)]];
    let out = first.into_iter().chain(second).collect::<Vec<_>>();
    bench.swap(SwapDirection::Out, &out).unwrap();
    (0..BLOCKS).for_each(|block| bench.fill(block, 1000));
    bench.start(SwapDirection::In, &first);
    bench.start(SwapDirection::In, &second);
    bench.space.feed(&mut bench.pool);
    let done = [(); 2].map(|()| bench.space.done.recv_timeout(Duration::from_secs(10)).expect("each is a part"));
    done.into_iter().rev().for_each(|done| bench.space.take(done, &mut bench.pool));
    assert!([bench.wait(), bench.wait()].iter().all(|ended| ended.outcome.is_ok()));
    assert!((0..4).all(|block| bench.holds(block, block.into())), "each block has what was its own");
}

#[test]
fn a_failed_write_is_a_failed_swap_and_the_next_one_succeeds() {
    let mut bench = Bench::new(200);
    let copies: Vec<_> = (0..30).map(|block| (block, block)).collect();
    // Full disk, after a part went well; a panic in the middle.
    for effect in [WriteEffect::Errno(28), WriteEffect::Panic] {
        bench.file.fail_writes(1, 1, effect);
        let writes = bench.file.num_writes();
        assert!(bench.swap(SwapDirection::Out, &copies).is_err());
        assert!(bench.file.num_writes() - writes < 10, "the rest is not written");
        bench.swap(SwapDirection::Out, &copies).unwrap();
    }
    assert!((0..BLOCKS).all(|block| bench.holds(block, block.into())), "what is swapped out stays until it is reused");
}

#[test]
fn what_fails_or_differs_on_the_way_in_is_never_data() {
    let mut bench = Bench::new(12);
    let copies: Vec<_> = (0..30).map(|block| (block, block)).collect();
    bench.swap(SwapDirection::Out, &copies).unwrap();
    for effect in [Effect::Errno(5), Effect::EndAfter(5000), Effect::Panic] {
        bench.file.reads.inject(Fault { reads: Which::All, effect, times: Some(1) });
        let error = bench.swap(SwapDirection::In, &copies).unwrap_err();
        assert!(!error.is_empty());
        bench.swap(SwapDirection::In, &copies).unwrap();
    }
    // A write that was lost: the slot holds what it held before, which is whole, and wrong.
    (0..BLOCKS).for_each(|block| bench.fill(block, u64::from(block) + 100));
    bench.file.fail_writes(0, 1, WriteEffect::Lost);
    bench.swap(SwapDirection::Out, &[(3, 3)]).unwrap();
    bench.fill(3, 7);
    let error = bench.swap(SwapDirection::In, &[(3, 3)]).unwrap_err();
    assert!(error.contains("slot 3"), "{error}");
    assert!(bench.holds(3, 7), "what was read was not taken");
    bench.swap(SwapDirection::In, &[(5, 5)]).unwrap();
    assert!(bench.holds(5, 5));
}

#[test]
fn one_swap_that_fails_leaves_the_others_alone() {
    let mut bench = Bench::new(200);
    bench.file.fail_writes(0, 1, WriteEffect::Errno(5));
    let first = bench.start(SwapDirection::Out, &(0..20).map(|block| (block, block)).collect::<Vec<_>>());
    bench.start(SwapDirection::Out, &(20..40).map(|block| (block, block)).collect::<Vec<_>>());
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
fn stopping_waits_for_one_part_alone() {
    let mut bench = Bench::new(200);
    bench.start(SwapDirection::Out, &(0..30).map(|block| (block, block)).collect::<Vec<_>>());
    let (file, writes) = (bench.file.clone(), bench.file.num_writes());
    let held = file.hold_writes();
    assert_eq!(bench.space.poll(&mut bench.pool, Duration::ZERO), None);
    assert!(bench.space.buffers.is_empty(), "as many parts were handed over as there are buffers");
    bench.space.slots.close();
    drop(held);
    drop(bench);
    assert!(file.num_writes() - writes <= 1, "the thread may not have come to the first");
}

#[test]
fn a_space_that_holds_no_block_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(SwapFile::create(dir.path(), 4096).unwrap());
    let refused = SwapSpace::new(file, 4097, 0).err();
    assert!(matches!(refused, Some(SwapSpaceError::TooSmall { got: 4096, slot: 8192 })), "{refused:?}");
}

/// Prints the speed of swaps, as a figure to be looked at. No test checks the speed, since disks differ.
#[test]
#[ignore = "a measurement: run it in release, with --nocapture, when the machine is quiet"]
fn share_of_the_engine_thread_in_a_swap() {
    let bytes = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let blocks = 512;
    let file = SwapFile::create(dir.path(), (blocks * SwapSpace::slot_bytes(bytes)) as u64).unwrap();
    let mut space = SwapSpace::new(Arc::new(file), bytes, 16 << 20).unwrap();
    let mut pool = PlainBlocks(vec![vec![7; bytes]; blocks]);
    for (number, direction) in
        [SwapDirection::Out, SwapDirection::In, SwapDirection::Out, SwapDirection::In].into_iter().enumerate()
    {
        let transfer = |block| BlockSwap { block: BlockId(block), slot: SwapSlot(block) };
        let transfers = (0..blocks as u32).map(transfer).collect();
        let begin = Instant::now();
        space.start(&Swap { id: SwapId(number as u64), direction, transfers, num_spared: 0, num_freed: 0 });
        let mut busy = Duration::ZERO;
        let ended = loop {
            let poll = Instant::now();
            let ended = space.poll(&mut pool, Duration::ZERO);
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

#[test]
fn a_stores_threads_do_the_work_once_they_are_shared() {
    let mut bench = Bench::new(12);
    let threads = Workers::for_slots().unwrap();
    bench.space.share_threads(Arc::new(threads.threads()));
    assert!(bench.space.own.is_none());
    let copies: Vec<_> = (0..30).map(|block| (block, block)).collect();
    bench.swap(SwapDirection::Out, &copies).unwrap();
    (0..BLOCKS).for_each(|block| bench.fill(block, 1000));
    bench.swap(SwapDirection::In, &copies).unwrap();
    assert!((0..30).all(|block| bench.holds(block, block.into())));
    // Either may end first.
    drop(threads);
    bench.start(SwapDirection::Out, &copies);
    assert_eq!(bench.space.poll(&mut bench.pool, Duration::from_millis(1)), None);
}
