use super::*;
use crate::{Adaptive, Keeps, KvConfig, TailConfig};

#[test]
fn bookkeeping_takes_less_than_100_bytes_a_block() {
    // Just above a power of two, where tables that round their size up are largest.
    for num_blocks in [100_000, (1 << 17) + 4] {
        let policy = Adaptive::new(num_blocks);
        let of_policy = policy.bytes();
        let cache = Cache::new(num_blocks, 0, 16, ChainHasher::new(0), Box::new(policy), None);
        let of_cache = cache.contents.bytes() + cache.blocks.bytes() + cache.losses.bytes();
        // Each block is in one table. A sequence that has its blocks keeps no hashes besides those in the contents; one
        // that waits keeps 8 bytes a block besides its tokens.
        let of_tables = num_blocks * size_of::<BlockId>();
        let bytes = (of_cache + of_policy + of_tables) as f64 / num_blocks as f64;
        println!("{bytes:.1} bytes a block of {num_blocks}");
        assert!((80.0..100.0).contains(&bytes), "{bytes}");
    }
}

#[test]
fn bookkeeping_takes_no_more_than_110_bytes_a_block_of_any_group() {
    let window = TailConfig { keeps: Keeps::Window { tokens: 128 }, block_bytes: 12, parts: 1 };
    let config = KvConfig { num_blocks: 100_000, tails: vec![window], block_bytes: 12, ..KvConfig::default() };
    let mut tails = Tails::new(&config).expect("there is a window");
    let (num_blocks, of_window) = (config.num_blocks, tails.pools[0].bytes());
    // The queue of passing points has each content once, as long as none is given up.
    (0..num_blocks as u32).for_each(|content| tails.points.add(ContentId(content), |_| None));
    let of_points = tails.points.bytes();
    let policy = Adaptive::new(num_blocks);
    let of_policy = policy.bytes();
    let cache = Cache::new(num_blocks, 0, 16, ChainHasher::new(0), Box::new(policy), Some(tails));
    let of_cache = cache.contents.bytes() + cache.blocks.bytes() + cache.losses.bytes();
    let of_tables = num_blocks * size_of::<BlockId>();
    let of_trunk = (of_cache + of_policy + of_tables + of_points) as f64 / num_blocks as f64;
    let of_window = (of_window + of_tables) as f64 / num_blocks as f64;
    println!("{of_trunk:.1} bytes a block of all tokens, {of_window:.1} a block of a window");
    assert!((90.0..=110.0).contains(&of_trunk) && of_window <= 40.0, "{of_trunk} {of_window}");
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
