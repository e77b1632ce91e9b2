//! The memory of blocks. Which sequence holds which block is for the block manager, not for this module.

use std::sync::Arc;

use interbed_kernels::{AttentionSpan, BlockGroups, KvBytes, KvBytesMut, KvLayer, KvPlace};

use crate::buffer::{HUGE_PAGE, page_size};
use crate::{AllocError, Bytes, HostBuffer, KvSequences, KvStrips, SharedMemory, StripShape};

/// Blocks in host memory: those of a group lie side by side, and the groups in the order of their numbers. Blocks of KV
/// are `[layer, k|v, kv_head, slot, head_dim]`, with the layers of their group.
#[derive(Debug)]
pub struct KvPool {
    groups: BlockGroups,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Own(HostBuffer),
    /// Blocks that appear in strips too.
    Shared {
        memory: Arc<SharedMemory>,
        strips: KvStrips,
    },
}

impl KvPool {
    /// Reserves the blocks. Pages become resident when they are first written.
    ///
    /// # Errors
    /// Fails if the system does not have that much memory.
    pub fn new(groups: BlockGroups) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_zeroed(groups.bytes())?;
        Ok(Self { groups, memory: Memory::Own(buffer) })
    }

    /// Reserves addresses for all blocks, most of which may have no memory at any one time: a block is resident from
    /// its first write until it is [given back](Self::give_back).
    ///
    /// # Errors
    /// Fails if the system has no address range of that size.
    pub fn new_sparse(groups: BlockGroups) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_sparse(groups.bytes())?;
        Ok(Self { groups, memory: Memory::Own(buffer) })
    }

    /// Reserves blocks. Those of the trunk can be mapped into strips, in which the blocks of a sequence lie side by
    /// side; if a block of the trunk has no bytes, there are no strips. Not all blocks need have memory at any one
    /// time, like those of [`new_sparse`](Self::new_sparse). The blocks of the trunk are in huge pages if such a block
    /// consists of whole huge pages.
    ///
    /// # Errors
    /// Fails if the system has no such memory, no such range of addresses, or no thread.
    ///
    /// # Panics
    /// Panics if a block of the trunk is not made of whole pages: see
    /// [`KvLayout::in_pages`](interbed_kernels::KvLayout::in_pages). Panics if `groups` have strips already.
    pub fn new_in_strips(groups: BlockGroups, shape: StripShape) -> Result<Self, AllocError> {
        let (block_bytes, num_blocks) = (groups.trunk().block_bytes(), groups.groups()[0].num_blocks());
        if block_bytes == 0 {
            return Self::new_sparse(groups);
        }
        let groups = groups.with_strips(shape.count.saturating_mul(shape.blocks));
        let (places, huge) = (groups.strips(), block_bytes.is_multiple_of(HUGE_PAGE));
        let memory = SharedMemory::new(groups.bytes(), places.end.saturating_mul(block_bytes), huge)?;
        let memory = Arc::new(memory);
        let strips = KvStrips::new(Arc::clone(&memory) as _, block_bytes, num_blocks, places.start, shape);
        let strips = strips.map_err(|error| AllocError::of(places.len().saturating_mul(block_bytes), &error))?;
        Ok(Self { groups, memory: Memory::Shared { memory, strips } })
    }

    /// Returns the strips, if blocks can be mapped into any.
    pub fn strips(&mut self) -> Option<&mut KvStrips> {
        match &mut self.memory {
            Memory::Own(_) => None,
            Memory::Shared { strips, .. } => Some(strips),
        }
    }

    /// Returns the number of a strip's first block.
    ///
    /// # Panics
    /// Panics if there are no strips.
    pub fn first_of_strip(&self, strip: u32) -> u32 {
        match &self.memory {
            Memory::Own(_) => panic!("blocks appear in one place only"),
            Memory::Shared { strips, .. } => strips.first_block(strip),
        }
    }

    /// Returns the number of bytes of shared blocks that are resident, as the system counts them, wherever they are
    /// mapped; `None` for blocks that appear in one place only.
    pub fn resident(&self) -> Option<Bytes> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Shared { memory, .. } => memory.resident().ok(),
        }
    }

    /// Makes the first `blocks` blocks of a group resident now instead of when they are first written, which on some
    /// machines takes longer than the data to be written takes to arrive. The blocks become zero. The work is shared by
    /// `threads` threads.
    ///
    /// # Panics
    /// Panics if there is no such group.
    pub fn touch(&mut self, group: usize, blocks: usize, threads: usize) {
        const PAGE: usize = 4096;
        let group = &self.groups.groups()[group];
        let (start, bytes) = (group.bytes().start, blocks.min(group.num_blocks()) * group.block_bytes());
        let share = bytes.div_ceil(threads.max(1)).next_multiple_of(PAGE).max(PAGE);
        std::thread::scope(|scope| {
            for part in self.blocks_mut()[start..start + bytes].chunks_mut(share) {
                scope.spawn(|| part.chunks_mut(PAGE).for_each(|page| page[0] = std::hint::black_box(0)));
            }
        });
    }

    /// Returns the groups of blocks.
    pub fn groups(&self) -> &BlockGroups {
        &self.groups
    }

    /// Returns the size of all blocks.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.blocks().len() as u64)
    }

    /// Gives the memory of `blocks` back to the system. The content of the blocks is lost, except at the ends of blocks
    /// that are not made of whole pages: see [`returnable_bytes`](Self::returnable_bytes).
    ///
    /// # Errors
    /// Fails if the system refused; the blocks may then still have their memory.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    pub fn give_back(&mut self, blocks: &[u32]) -> std::io::Result<()> {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        let groups = &self.groups;
        let are_neighbours =
            |&block: &u32, &next: &u32| next == block + 1 && groups.bytes_of(block).end == groups.bytes_of(next).start;
        // One call for each run of consecutive blocks.
        for run in sorted.chunk_by(are_neighbours) {
            let range = groups.bytes_of(run[0]).start..groups.bytes_of(run[run.len() - 1]).end;
            match &mut self.memory {
                Memory::Own(buffer) => buffer.give_back(range)?,
                Memory::Shared { memory, strips } => {
                    // A block that is being mapped would become resident again.
                    strips.settle();
                    memory.give_back(range)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the number of bytes of memory that giving back one block of `block_bytes` bytes is sure to free, even if
    /// the neighbouring blocks stay: the whole block if the block is made of whole pages.
    pub fn returnable_bytes(block_bytes: usize) -> usize {
        let page = page_size();
        if block_bytes.is_multiple_of(page) { block_bytes } else { (block_bytes / page).saturating_sub(1) * page }
    }

    /// Copies whole blocks within the pool, as pairs `(source, destination)`, one after the other. Copy-on-write needs
    /// such copies, and so do moves that compact the pool.
    ///
    /// # Panics
    /// Panics if a block does not exist, or the two blocks of a pair are of two groups.
    pub fn copy_blocks(&mut self, copies: impl IntoIterator<Item = (u32, u32)>) {
        for (source, destination) in copies {
            self.groups.group_of_copy((source, destination));
            let (source, destination) = (self.groups.bytes_of(source), self.groups.bytes_of(destination));
            self.blocks_mut().copy_within(source, destination.start);
        }
    }

    /// Returns the bytes of one block.
    ///
    /// # Panics
    /// Panics if the block does not exist.
    pub fn block(&self, block: u32) -> &[u8] {
        &self.blocks()[self.groups.bytes_of(block)]
    }

    /// Returns the bytes of one block, to write.
    ///
    /// # Panics
    /// Panics if the block does not exist.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let range = self.groups.bytes_of(block);
        &mut self.blocks_mut()[range]
    }

    /// Returns the bytes of all blocks, and of what lies between groups.
    pub fn blocks(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(buffer) => buffer.as_slice(),
            // SAFETY: all blocks are mapped there for good, and nothing writes to them without `&mut self`.
            Memory::Shared { memory, .. } => unsafe {
                std::slice::from_raw_parts(memory.memory().as_ptr(), self.groups.bytes())
            },
        }
    }

    /// Returns the bytes of all blocks, to be written.
    pub fn blocks_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(buffer) => buffer.as_mut_slice(),
            // SAFETY: as in `blocks`, and `&mut self` makes this the only reference; other addresses of the same memory
            // are used under a borrow of `self` only.
            Memory::Shared { memory, .. } => unsafe {
                std::slice::from_raw_parts_mut(memory.memory().as_ptr(), self.groups.bytes())
            },
        }
    }

    /// Returns the KV that an operation over `sequences` reads: the blocks of `layer`.
    ///
    /// # Panics
    /// Panics if a sequence has blocks of strips that are not [pinned](KvStrips::pin).
    pub(crate) fn readable(&self, layer: &KvLayer, sequences: KvSequences<'_>) -> KvBytes<'_> {
        match &self.memory {
            Memory::Own(buffer) => buffer.as_slice().into(),
            Memory::Shared { memory, strips } => {
                self.check(strips, layer, sequences, |span| span.held.end - span.held.start);
                // SAFETY: it was checked that listed blocks are of the pool, which is mapped for good, and others of
                // strips that are pinned: they stay mapped until `&mut self` unpins them. Writing takes `&mut self`.
                unsafe { KvBytes::new(memory.memory().as_ptr(), memory.len()) }
            }
        }
    }

    /// Returns the KV that an operation over `sequences` writes: the slots in blocks of `layer` of the tokens in the
    /// sequences' spans.
    ///
    /// # Panics
    /// Panics if a sequence has blocks of strips that are not [pinned](KvStrips::pin), or that may only be read.
    pub(crate) fn writable(&mut self, layer: &KvLayer, sequences: KvSequences<'_>) -> KvBytesMut<'_> {
        match &self.memory {
            Memory::Own(_) => self.blocks_mut().into(),
            Memory::Shared { memory, strips } => {
                self.check(strips, layer, sequences, |span| span.first_position.saturating_sub(span.held.start));
                // SAFETY: as above, and blocks with tokens of the spans are pinned to be written; `&mut self` makes
                // this the only borrow.
                unsafe { KvBytesMut::new(memory.memory().as_ptr(), memory.len()) }
            }
        }
    }

    /// Returns the memory of all blocks, for an operation that changes states.
    pub(crate) fn states(&mut self) -> KvBytesMut<'_> {
        self.blocks_mut().into()
    }

    /// Checks that all blocks of `sequences`, which have a part of `layer`, are mapped. `written` returns how many
    /// positions of a span, from the first position in memory on, come before the first that is written.
    fn check(
        &self,
        strips: &KvStrips,
        layer: &KvLayer,
        sequences: KvSequences<'_>,
        written: impl Fn(&AttentionSpan) -> usize,
    ) {
        let (block_size, numbers) = (layer.block_size(), layer.listed_within(self.groups.bytes()));
        for span in sequences.spans {
            match &span.place {
                KvPlace::Listed(table) => {
                    let table = &sequences.tables[table.start as usize..table.end as usize];
                    let is_there = table.iter().all(|&block| numbers.contains(&(block as usize)));
                    assert!(is_there, "a sequence has a block beyond the pool");
                }
                &KvPlace::From(first) => {
                    let is_trunk = layer.block_bytes() == self.groups.trunk().block_bytes();
                    assert!(is_trunk, "only blocks of the trunk lie side by side");
                    let end = span.first_position.saturating_add(span.tokens).min(span.held.end);
                    let blocks = end.saturating_sub(span.held.start).div_ceil(block_size);
                    let first = first as usize;
                    strips.check(first..first + blocks, first + written(span) / block_size);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use interbed_kernels::{
        KvDType, KvLayout, KvShape, Level, Pool, RopeStyle, Rotation, StateLayout, StateShape, rotate_and_store,
    };

    use super::*;
    use crate::{PageAccess, StripChange, StripContent};

    /// Returns a pool of blocks of `kib` KiB each, all written.
    fn written(kib: usize, num_blocks: usize) -> KvPool {
        let layout = KvLayout::new(4, KvDType::F32, [KvShape { num_kv_heads: kib, head_dim: 32 }]);
        assert_eq!(layout.block_bytes(), kib << 10);
        let mut pool = KvPool::new_sparse(BlockGroups::new(layout, num_blocks)).unwrap();
        pool.blocks_mut().fill(7);
        pool
    }

    fn zeros(pool: &KvPool, block: usize) -> usize {
        pool.block(block as u32).iter().filter(|&&byte| byte == 0).count()
    }

    #[test]
    fn touched_blocks_are_resident_and_zero() {
        let layout = KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 2, head_dim: 64 }; 3]);
        let mut pool = KvPool::new(BlockGroups::new(layout, 5)).expect("there is memory");
        for (blocks, threads) in [(0, 1), (3, 2), (100, 3)] {
            pool.touch(0, blocks, threads);
            assert!(pool.blocks().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn copies_are_made_in_order() {
        let mut pool = written(4, 6);
        for block in 0..6 {
            pool.block_mut(block).fill(block as u8 + 1);
        }
        // The second copy reads what the first has written; the fourth reads what the third has left in place.
        pool.copy_blocks([(0, 1), (1, 2), (5, 5), (5, 3)]);
        let first: Vec<_> = (0..6).map(|block| pool.block(block)[0]).collect();
        assert_eq!(first, [1, 1, 1, 6, 5, 6]);
        assert!((0..6).all(|block| pool.block(block).iter().all(|&byte| byte == pool.block(block)[0])));
    }

    #[test]
    #[should_panic(expected = "block 6 of 6")]
    fn a_block_that_is_not_there_is_not_copied() {
        written(4, 6).copy_blocks([(0, 6)]);
    }

    #[test]
    fn blocks_of_whole_pages_go_whole_and_no_others() {
        let mut pool = written(8, 64);
        let gone = [3, 40, 4, 63, 5];
        pool.give_back(&gone).unwrap();
        for block in 0..64 {
            // Pages of a private mapping are zeros only if they were dropped.
            let expected = if gone.contains(&(block as u32)) { 8 << 10 } else { 0 };
            assert_eq!(zeros(&pool, block), expected, "block {block}");
        }
        assert_eq!(KvPool::returnable_bytes(pool.groups().trunk().block_bytes()), 8 << 10);
        pool.blocks_mut()[3 * (8 << 10)..][..8 << 10].fill(9);
        assert_eq!(zeros(&pool, 3), 0);
        pool.give_back(&[]).unwrap();
    }

    #[test]
    fn neighbours_of_blocks_that_are_not_whole_pages_keep_all() {
        for kib in [1, 3, 5, 9, 14] {
            let mut pool = written(kib, 31);
            for block in [1, 7, 8, 30] {
                pool.give_back(&[block]).unwrap();
            }
            let least = KvPool::returnable_bytes(pool.groups().trunk().block_bytes());
            assert!(least < kib << 10);
            for block in 0..31 {
                if [1, 7, 8, 30].contains(&block) {
                    assert!(zeros(&pool, block) >= least, "{kib} KiB, block {block}");
                } else {
                    assert_eq!(zeros(&pool, block), 0, "{kib} KiB, block {block}");
                }
            }
        }
    }

    #[test]
    fn addresses_may_be_far_more_than_memory() {
        let layout = KvLayout::new(16, KvDType::BF16, [KvShape { num_kv_heads: 8, head_dim: 128 }; 32]);
        let mut pool = KvPool::new_sparse(BlockGroups::new(layout, 1 << 14)).unwrap();
        assert_eq!(pool.bytes(), Bytes(32 << 30));
        *pool.blocks_mut().last_mut().unwrap() = 1;
        pool.give_back(&[(1 << 14) - 1]).unwrap();
        assert_eq!(pool.blocks().last(), Some(&0));
    }

    #[test]
    fn the_blocks_of_a_model_that_keeps_no_kv_take_no_memory() {
        let layout = KvLayout::new(16, KvDType::F16, []);
        assert_eq!(KvPool::returnable_bytes(layout.block_bytes()), 0);
        let groups = BlockGroups::new(layout, 9);
        for mut pool in [KvPool::new(groups.clone()).unwrap(), KvPool::new_sparse(groups).unwrap()] {
            pool.copy_blocks([(0, 8)]);
            pool.give_back(&[3, 4, 7]).unwrap();
            assert_eq!((pool.groups().num_blocks(), pool.bytes(), pool.block(8)), (9, Bytes(0), &[][..]));
        }
    }

    #[test]
    fn blocks_of_all_groups_go_and_are_copied_by_their_numbers() {
        let kv =
            |layers: usize| KvLayout::new(4, KvDType::F32, vec![KvShape { num_kv_heads: 4, head_dim: 32 }; layers]);
        let state = StateShape { rows: 3, channels: 512, heads: 2, key_width: 16, value_width: 80 };
        let states = StateLayout::new([state; 2]);
        assert_eq!((kv(1).block_bytes(), states.block_bytes()), (4 << 10, 32 << 10));
        for trunk in [0, 1] {
            let groups = BlockGroups::new(kv(trunk), 5).with(kv(2), 4).with(states.clone(), 3);
            let mut pool = KvPool::new_sparse(groups).unwrap();
            for block in 0..12 {
                pool.block_mut(block).fill(block as u8 + 1);
            }
            // The last of one group and the first of the next are neighbours by number alone.
            pool.give_back(&[9, 4, 8, 5]).unwrap();
            for block in 0..12 {
                let all = pool.block(block as u32).len();
                let expected = if [4, 5, 8, 9].contains(&block) { all } else { 0 };
                assert_eq!(zeros(&pool, block), expected, "block {block}");
            }
            pool.copy_blocks([(0, 4), (6, 5), (11, 9)]);
            let first: Vec<_> = (5..12).map(|block| pool.block(block)[0]).collect();
            assert_eq!(first, [7, 7, 8, 0, 12, 11, 12]);
            assert!(pool.block(9).iter().all(|&byte| byte == 12) && pool.block(9).len() == 32 << 10);
            pool.touch(2, 1, 2);
            // One byte of each page is written.
            assert_eq!((zeros(&pool, 9), zeros(&pool, 10)), (8, 0));
        }
    }

    /// A pool of 5 blocks of the trunk, 4 of a window and 3 of states, and two strips of 6 places.
    fn in_strips() -> KvPool {
        let kv =
            |layers: usize| KvLayout::new(4, KvDType::F32, vec![KvShape { num_kv_heads: 4, head_dim: 32 }; layers]);
        let state = StateShape { rows: 3, channels: 512, heads: 2, key_width: 16, value_width: 80 };
        let trunk = kv(1).in_pages(page_size());
        let groups = BlockGroups::new(trunk, 5).with(kv(2), 4).with(StateLayout::new([state; 2]), 3);
        KvPool::new_in_strips(groups, StripShape { count: 2, blocks: 6 }).unwrap()
    }

    #[test]
    fn blocks_of_the_trunk_appear_in_strips_behind_all_groups() {
        let mut pool = in_strips();
        for block in 0..12 {
            pool.block_mut(block).fill(block as u8 + 1);
        }
        let first = pool.first_of_strip(1);
        assert!(first as usize >= 12 + 6);
        let strips = pool.strips().unwrap();
        for (index, (block, access)) in (0..).zip([(3, PageAccess::Read), (0, PageAccess::Write)]) {
            let to = StripContent::Blocks(block, access);
            strips.change(&StripChange { strip: 1, first: index, count: 1, to }).unwrap();
        }
        strips.pin(1, 0..2, 1);
        let layer = pool.groups().trunk().layer(0);
        let place = KvPlace::From(first);
        let spans = [AttentionSpan { first_position: 4, tokens: 4, held: 0..8, place }];
        let _ = pool.readable(&layer, KvSequences { spans: &spans, tables: &[] });
        let (new, threads) = ([7.0; 4 * 4 * 32], Pool::new(NonZeroUsize::MIN));
        let (mut q, mut k) = (new, new);
        let rotation = Rotation { style: RopeStyle::Halves, cos: &[1.0; 4 * 16], sin: &[0.0; 4 * 16] };
        let blocks = pool.writable(&layer, KvSequences { spans: &spans, tables: &[] });
        let level = Level::detect();
        rotate_and_store(&threads, level, &layer, blocks, &spans, &[], rotation, &mut q, &mut k, &new);
        // Block 0 is the second of the strip.
        let stored: &[f32] = bytemuck::cast_slice(&pool.block(0)[..layer.part_bytes()]);
        assert!(stored.iter().all(|&number| number == 7.0), "{:?}", &stored[..8]);
        for block in 1..12 {
            assert!(pool.block(block).iter().all(|&byte| byte == block as u8 + 1), "block {block}");
        }
        pool.copy_blocks([(0, 2), (6, 8), (9, 11)]);
        assert_eq!((pool.block(2), pool.block(8)[0], pool.block(11)[0]), (&pool.block(0).to_vec()[..], 7, 10));
        pool.give_back(&[2, 8, 11]).unwrap();
        assert_eq!([2, 8, 11].map(|block| zeros(&pool, block) == pool.block(block as u32).len()), [true; 3]);
    }

    #[test]
    fn tables_list_the_blocks_of_their_group_alone() {
        let pool = in_strips();
        let refused = |group: usize, place: KvPlace| {
            let layer = pool.groups().kv(group).layer(0);
            let spans = [AttentionSpan { first_position: 0, tokens: 4, held: 0..4, place }];
            let sequences = KvSequences { spans: &spans, tables: &[4, 5, 8, 9, pool.first_of_strip(0)] };
            catch_unwind(AssertUnwindSafe(|| pool.readable(&layer, sequences))).is_err()
        };
        let listed = |at: u32| KvPlace::Listed(at..at + 1);
        assert_eq!([0, 1, 3, 4].map(|at| refused(0, listed(at))), [false, true, true, true]);
        assert_eq!([0, 1, 2, 3, 4].map(|at| refused(1, listed(at))), [true, false, false, true, true]);
        assert!(refused(1, KvPlace::From(pool.first_of_strip(0))), "windows are in no strip");
        assert!(refused(0, KvPlace::From(pool.first_of_strip(0))), "nothing is mapped there");
    }

    #[test]
    #[should_panic(expected = "of two groups")]
    fn a_block_is_not_copied_to_another_group() {
        let layout = KvLayout::new(4, KvDType::F32, [KvShape { num_kv_heads: 4, head_dim: 32 }]);
        let groups = BlockGroups::new(layout.clone(), 2).with(layout, 2);
        KvPool::new_sparse(groups).unwrap().copy_blocks([(1, 2)]);
    }

    #[test]
    fn blocks_that_no_memory_can_hold_are_an_error() {
        for dtype in KvDType::ALL {
            let shapes = [1, usize::MAX / 3].map(|head_dim| KvShape { num_kv_heads: 4, head_dim });
            assert!(KvPool::new_sparse(BlockGroups::new(KvLayout::new(16, dtype, shapes), 2)).is_err());
        }
    }
}
