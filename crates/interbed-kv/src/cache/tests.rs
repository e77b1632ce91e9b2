use super::*;
use crate::Adaptive;

#[test]
fn bookkeeping_takes_less_than_100_bytes_a_block() {
    // Just above a power of two, where tables that round their size up are largest.
    for num_blocks in [100_000, (1 << 17) + 4] {
        let policy = Adaptive::new(num_blocks);
        let of_policy = policy.bytes();
        let cache = Cache::new(num_blocks, 0, 16, ChainHasher::new(0), Box::new(policy));
        let of_cache = cache.contents.bytes() + cache.blocks.bytes() + cache.losses.bytes();
        // Each block is in one table. A sequence that has its blocks keeps no hashes besides those in the contents; one
        // that waits keeps 8 bytes a block besides its tokens.
        let of_tables = num_blocks * size_of::<BlockId>();
        let bytes = (of_cache + of_policy + of_tables) as f64 / num_blocks as f64;
        println!("{bytes:.1} bytes a block of {num_blocks}");
        assert!((80.0..100.0).contains(&bytes), "{bytes}");
    }
}

impl Cache {
    pub(crate) fn content(&self, block: BlockId) -> ContentId {
        self.blocks.content(block)
    }

    pub(crate) fn content_below(&self, slot: SwapSlot) -> ContentId {
        self.slots.content(slot)
    }

    /// Returns the contents that can be found, with their hashes, in the order of blocks.
    pub(crate) fn findable(&self) -> Vec<(ContentId, Option<BlockHash>)> {
        let contents = self.blocks.contents().map(|(_, content)| content);
        let findable = contents.filter(|&content| self.contents.is_findable(content));
        findable.map(|content| (content, self.contents.hash(content))).collect()
    }

    /// Returns the number of cached blocks of each of `tenants`.
    pub(crate) fn cached_of(&self, tenants: &[Option<u128>]) -> Vec<usize> {
        let counted: Vec<_> = self.owners.counted().collect();
        let of = |tenant| {
            let cached = counted.iter().find(|&&(owner, ..)| self.owners.tenant(owner) == tenant);
            cached.map_or(0, |&(_, _, cached)| cached)
        };
        tenants.iter().map(|&tenant| of(tenant)).collect()
    }
}
