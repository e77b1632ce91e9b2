//! The memory of KV blocks. Which sequence holds which block is for the block manager, not for this module.

use strata_kernels::KvLayout;

use crate::buffer::page_size;
use crate::{AllocError, Bytes, HostBuffer};

/// `num_blocks` blocks of `[layer, k|v, kv_head, slot, head_dim]`, side by side; the layers are those that keep KV.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    num_blocks: usize,
    buffer: HostBuffer,
}

impl KvPool {
    /// Reserves the blocks. Pages become resident when they are first written.
    ///
    /// # Errors
    /// When the system does not have that much memory.
    pub fn new(layout: KvLayout, num_blocks: usize) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_zeroed(layout.block_bytes().saturating_mul(num_blocks))?;
        Ok(Self { layout, num_blocks, buffer })
    }

    /// Reserves addresses for up to `num_blocks` blocks, most of which may have no memory at any one time: a block is
    /// resident from its first write until it is [given back](Self::give_back).
    ///
    /// # Errors
    /// When the system has no address range of that size.
    pub fn new_sparse(layout: KvLayout, num_blocks: usize) -> Result<Self, AllocError> {
        let buffer = HostBuffer::new_sparse(layout.block_bytes().saturating_mul(num_blocks))?;
        Ok(Self { layout, num_blocks, buffer })
    }

    /// Makes the first `blocks` blocks resident now rather than when they are first written, which on some machines
    /// takes longer than what is written takes to come. They are zero then. Shared by `threads` threads.
    pub fn touch(&mut self, blocks: usize, threads: usize) {
        const PAGE: usize = 4096;
        let bytes = blocks.min(self.num_blocks) * self.layout.block_bytes();
        let share = bytes.div_ceil(threads.max(1)).next_multiple_of(PAGE).max(PAGE);
        std::thread::scope(|scope| {
            for part in self.buffer.as_mut_slice()[..bytes].chunks_mut(share) {
                scope.spawn(|| part.chunks_mut(PAGE).for_each(|page| page[0] = std::hint::black_box(0)));
            }
        });
    }

    /// How a block is laid out in memory.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Size of all blocks.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.buffer.len() as u64)
    }

    /// Gives the memory of `blocks` back to the system. Their content is lost, except at the ends of blocks that are
    /// not made of whole pages: see [`returnable_bytes`](Self::returnable_bytes).
    ///
    /// # Errors
    /// When the system refused; the blocks may then still have their memory.
    ///
    /// # Panics
    /// If a block does not exist.
    pub fn give_back(&mut self, blocks: &[u32]) -> std::io::Result<()> {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        let block_bytes = self.layout.block_bytes();
        // One call for each run of consecutive blocks.
        for run in sorted.chunk_by(|&block, &next| next == block + 1) {
            let first = run[0] as usize;
            self.buffer.give_back(first * block_bytes..(first + run.len()) * block_bytes)?;
        }
        Ok(())
    }

    /// Bytes of memory that giving back a block of this layout is sure to free, whatever happens to its neighbours: the
    /// whole block if it is made of whole pages.
    pub fn returnable_bytes(layout: &KvLayout) -> usize {
        let (page, bytes) = (page_size(), layout.block_bytes());
        if bytes.is_multiple_of(page) { bytes } else { (bytes / page).saturating_sub(1) * page }
    }

    /// Copies whole blocks within the pool, as pairs `(source, destination)`, one after the other: for copy-on-write,
    /// and for moves that compact the pool.
    ///
    /// # Panics
    /// If a block does not exist.
    pub fn copy_blocks(&mut self, copies: impl IntoIterator<Item = (u32, u32)>) {
        for (source, destination) in copies {
            let (source, destination) = (self.range(source), self.range(destination));
            self.buffer.as_mut_slice().copy_within(source, destination.start);
        }
    }

    /// The bytes of one block.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn block(&self, block: u32) -> &[u8] {
        &self.buffer.as_slice()[self.range(block)]
    }

    /// The bytes of one block, to write.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let range = self.range(block);
        &mut self.buffer.as_mut_slice()[range]
    }

    /// All blocks.
    pub fn blocks(&self) -> &[u8] {
        self.buffer.as_slice()
    }

    /// All blocks, to write.
    pub fn blocks_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }

    fn range(&self, block: u32) -> std::ops::Range<usize> {
        assert!((block as usize) < self.num_blocks, "block {block} of {}", self.num_blocks);
        let bytes = self.layout.block_bytes();
        block as usize * bytes..(block as usize + 1) * bytes
    }
}

#[cfg(test)]
mod tests {
    use strata_kernels::{KvDType, KvShape};

    use super::*;

    /// A pool of blocks of `kib` KiB each, all written.
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
