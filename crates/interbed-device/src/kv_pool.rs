//! The memory of KV blocks. Which sequence holds which block is for the block manager, not for this module.

use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::{AttentionSpan, KvBytes, KvBytesMut, KvLayout, KvPlace};

use crate::buffer::{HUGE_PAGE, page_size};
use crate::{AllocError, Bytes, HostBuffer, KvSequences, KvStrips, SharedMemory, StripShape};

/// KV blocks of `[layer, k|v, kv_head, slot, head_dim]` in host memory, side by side. The layers are the layers that
/// keep KV.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    num_blocks: usize,
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
    pub fn new(layout: KvLayout, num_blocks: usize) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_zeroed(layout.block_bytes().saturating_mul(num_blocks))?;
        Ok(Self { layout, num_blocks, memory: Memory::Own(buffer) })
    }

    /// Reserves addresses for up to `num_blocks` blocks, most of which may have no memory at any one time: a block is
    /// resident from its first write until it is [given back](Self::give_back).
    ///
    /// # Errors
    /// Fails if the system has no address range of that size.
    pub fn new_sparse(layout: KvLayout, num_blocks: usize) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_sparse(layout.block_bytes().saturating_mul(num_blocks))?;
        Ok(Self { layout, num_blocks, memory: Memory::Own(buffer) })
    }

    /// Reserves blocks that can be mapped into strips, in which the blocks of a sequence lie side by side. Not all
    /// blocks need have memory at any one time, like those of [`new_sparse`](Self::new_sparse). The blocks are in huge
    /// pages if a block consists of whole huge pages.
    ///
    /// # Errors
    /// Fails if the system has no such memory, no such range of addresses, or no thread.
    ///
    /// # Panics
    /// Panics if a block is not made of whole pages: see [`KvLayout::in_pages`].
    pub fn new_in_strips(layout: KvLayout, num_blocks: usize, shape: StripShape) -> Result<Self, AllocError> {
        let bytes = |blocks: usize| layout.block_bytes().saturating_mul(blocks);
        let huge = layout.block_bytes().is_multiple_of(HUGE_PAGE);
        let in_strips = shape.count.saturating_mul(shape.blocks);
        let memory = SharedMemory::new(bytes(num_blocks), bytes(num_blocks.saturating_add(in_strips)), huge)?;
        let memory = Arc::new(memory);
        let strips = KvStrips::new(Arc::clone(&memory) as _, layout.block_bytes(), num_blocks, shape);
        let strips = strips.map_err(|error| AllocError::of(bytes(in_strips), &error))?;
        Ok(Self { layout, num_blocks, memory: Memory::Shared { memory, strips } })
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

    /// Makes the first `blocks` blocks resident now instead of when they are first written, which on some machines
    /// takes longer than the data to be written takes to arrive. The blocks become zero. The work is shared by
    /// `threads` threads.
    pub fn touch(&mut self, blocks: usize, threads: usize) {
        const PAGE: usize = 4096;
        let bytes = blocks.min(self.num_blocks) * self.layout.block_bytes();
        let share = bytes.div_ceil(threads.max(1)).next_multiple_of(PAGE).max(PAGE);
        std::thread::scope(|scope| {
            for part in self.blocks_mut()[..bytes].chunks_mut(share) {
                scope.spawn(|| part.chunks_mut(PAGE).for_each(|page| page[0] = std::hint::black_box(0)));
            }
        });
    }

    /// Returns the layout of a block in memory.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the number of blocks in the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
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
        let block_bytes = self.layout.block_bytes();
        // One call for each run of consecutive blocks.
        for run in sorted.chunk_by(|&block, &next| next == block + 1) {
            let first = run[0] as usize;
            let range = first * block_bytes..(first + run.len()) * block_bytes;
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

    /// Returns the number of bytes of memory that giving back one block of this layout is sure to free, even if the
    /// neighbouring blocks stay: the whole block if the block is made of whole pages.
    pub fn returnable_bytes(layout: &KvLayout) -> usize {
        let (page, bytes) = (page_size(), layout.block_bytes());
        if bytes.is_multiple_of(page) { bytes } else { (bytes / page).saturating_sub(1) * page }
    }

    /// Copies whole blocks within the pool, as pairs `(source, destination)`, one after the other. Copy-on-write needs
    /// such copies, and so do moves that compact the pool.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    pub fn copy_blocks(&mut self, copies: impl IntoIterator<Item = (u32, u32)>) {
        for (source, destination) in copies {
            let (source, destination) = (self.range(source), self.range(destination));
            self.blocks_mut().copy_within(source, destination.start);
        }
    }

    /// Returns the bytes of one block.
    ///
    /// # Panics
    /// Panics if the block does not exist.
    pub fn block(&self, block: u32) -> &[u8] {
        &self.blocks()[self.range(block)]
    }

    /// Returns the bytes of one block, to write.
    ///
    /// # Panics
    /// Panics if the block does not exist.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let range = self.range(block);
        &mut self.blocks_mut()[range]
    }

    /// Returns the bytes of all blocks.
    pub fn blocks(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(buffer) => buffer.as_slice(),
            // SAFETY: all blocks are mapped there for good, and nothing writes to them without `&mut self`.
            Memory::Shared { memory, .. } => unsafe {
                std::slice::from_raw_parts(memory.memory().as_ptr(), self.layout.block_bytes() * self.num_blocks)
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
                std::slice::from_raw_parts_mut(memory.memory().as_ptr(), self.layout.block_bytes() * self.num_blocks)
            },
        }
    }

    /// Returns the KV that an operation over `sequences` reads.
    ///
    /// # Panics
    /// Panics if a sequence has blocks of strips that are not [pinned](KvStrips::pin).
    pub(crate) fn readable(&self, sequences: KvSequences<'_>) -> KvBytes<'_> {
        match &self.memory {
            Memory::Own(buffer) => buffer.as_slice().into(),
            Memory::Shared { memory, strips } => {
                self.check(strips, sequences, |span| span.held.end - span.held.start);
                // SAFETY: it was checked that listed blocks are of the pool, which is mapped for good, and others of
                // strips that are pinned: they stay mapped until `&mut self` unpins them. Writing takes `&mut self`.
                unsafe { KvBytes::new(memory.memory().as_ptr(), memory.len()) }
            }
        }
    }

    /// Returns the KV that an operation over `sequences` writes: the slots of the tokens in the sequences' spans.
    ///
    /// # Panics
    /// Panics if a sequence has blocks of strips that are not [pinned](KvStrips::pin), or that may only be read.
    pub(crate) fn writable(&mut self, sequences: KvSequences<'_>) -> KvBytesMut<'_> {
        match &self.memory {
            Memory::Own(_) => self.blocks_mut().into(),
            Memory::Shared { memory, strips } => {
                self.check(strips, sequences, |span| span.first_position.saturating_sub(span.held.start));
                // SAFETY: as above, and blocks with tokens of the spans are pinned to be written; `&mut self` makes
                // this the only borrow.
                unsafe { KvBytesMut::new(memory.memory().as_ptr(), memory.len()) }
            }
        }
    }

    /// Checks that all blocks of `sequences` are mapped. `written` returns how many positions of a span, from the first
    /// position in memory on, come before the first that is written.
    fn check(&self, strips: &KvStrips, sequences: KvSequences<'_>, written: impl Fn(&AttentionSpan) -> usize) {
        let block_size = self.layout.block_size();
        for span in sequences.spans {
            match &span.place {
                KvPlace::Listed(table) => {
                    let table = &sequences.tables[table.start as usize..table.end as usize];
                    let is_there = table.iter().all(|&block| (block as usize) < self.num_blocks);
                    assert!(is_there, "a sequence has a block beyond the pool");
                }
                &KvPlace::From(first) => {
                    let end = span.first_position.saturating_add(span.tokens).min(span.held.end);
                    let blocks = end.saturating_sub(span.held.start).div_ceil(block_size);
                    let first = first as usize;
                    strips.check(first..first + blocks, first + written(span) / block_size);
                }
            }
        }
    }

    fn range(&self, block: u32) -> Range<usize> {
        assert!((block as usize) < self.num_blocks, "block {block} of {}", self.num_blocks);
        let bytes = self.layout.block_bytes();
        block as usize * bytes..(block as usize + 1) * bytes
    }
}

#[cfg(test)]
mod tests {
    use interbed_kernels::{KvDType, KvShape};

    use super::*;

    /// Returns a pool of blocks of `kib` KiB each, all written.
    fn written(kib: usize, num_blocks: usize) -> KvPool {
        let layout = KvLayout::new(4, KvDType::F32, [KvShape { num_kv_heads: kib, head_dim: 32 }]);
        assert_eq!(layout.block_bytes(), kib << 10);
        let mut pool = KvPool::new_sparse(layout, num_blocks).unwrap();
        pool.blocks_mut().fill(7);
        pool
    }

    fn zeros(pool: &KvPool, block: usize) -> usize {
        let bytes = pool.layout().block_bytes();
        pool.blocks()[block * bytes..][..bytes].iter().filter(|&&byte| byte == 0).count()
    }

    #[test]
    fn touched_blocks_are_resident_and_zero() {
        let layout = KvLayout::new(16, KvDType::F32, [KvShape { num_kv_heads: 2, head_dim: 64 }; 3]);
        let mut pool = KvPool::new(layout, 5).expect("there is memory");
        for (blocks, threads) in [(0, 1), (3, 2), (100, 3)] {
            pool.touch(blocks, threads);
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
        assert_eq!(KvPool::returnable_bytes(pool.layout()), 8 << 10);
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
            let least = KvPool::returnable_bytes(pool.layout());
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
        let mut pool = KvPool::new_sparse(layout, 1 << 14).unwrap();
        assert_eq!(pool.bytes(), Bytes(32 << 30));
        *pool.blocks_mut().last_mut().unwrap() = 1;
        pool.give_back(&[(1 << 14) - 1]).unwrap();
        assert_eq!(pool.blocks().last(), Some(&0));
    }

    #[test]
    fn the_blocks_of_a_model_that_keeps_no_kv_take_no_memory() {
        let layout = KvLayout::new(16, KvDType::F16, []);
        assert_eq!(KvPool::returnable_bytes(&layout), 0);
        for mut pool in [KvPool::new(layout.clone(), 9).unwrap(), KvPool::new_sparse(layout, 9).unwrap()] {
            pool.copy_blocks([(0, 8)]);
            pool.give_back(&[3, 4, 7]).unwrap();
            assert_eq!((pool.num_blocks(), pool.bytes(), pool.block(8)), (9, Bytes(0), &[][..]));
        }
    }

    #[test]
    fn blocks_that_no_memory_can_hold_are_an_error() {
        for dtype in KvDType::ALL {
            let shapes = [1, usize::MAX / 3].map(|head_dim| KvShape { num_kv_heads: 4, head_dim });
            assert!(KvPool::new_sparse(KvLayout::new(16, dtype, shapes), 2).is_err());
        }
    }
}
