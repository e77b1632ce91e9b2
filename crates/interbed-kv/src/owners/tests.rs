use super::*;
use crate::testing::Rng;

const A: Tenant = Some(1);
const B: Tenant = Some(2);

impl Owners {
    pub(crate) fn tenant(&self, id: OwnerId) -> Tenant {
        self.owner(id).tenant
    }
}

/// A pool in which each block is free, in use or cached, as in a cache.
struct Pool {
    owners: Owners,
    /// Tenant of each block, and whether the block is cached. [block]
    blocks: Vec<Option<(Tenant, bool)>>,
    usable: usize,
}

impl Pool {
    fn new(num_blocks: usize) -> Self {
        Self { owners: Owners::new(num_blocks), blocks: vec![None; num_blocks], usable: num_blocks }
    }

    /// Takes a block, by eviction if none is free. Returns the tenant that lost a block, or `None` if all blocks are in
    /// use.
    fn take(&mut self, tenant: Tenant) -> Option<Option<Tenant>> {
        let mut lost = None;
        let block = match self.blocks.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.blocks.iter().all(|block| block.is_none_or(|(_, cached)| !cached)) => return None,
            None => {
                let loser = self.owners.loser(Some(tenant), self.usable);
                let is_losers = |at: usize| self.owners.of(BlockId(at as u32)) == loser;
                let cached = |block: &Option<(Tenant, bool)>| block.is_some_and(|(_, cached)| cached);
                let found = (0..self.blocks.len()).find(|&at| cached(&self.blocks[at]) && is_losers(at));
                let victim = found.expect("the loser has cached blocks");
                lost = self.blocks[victim].map(|(tenant, _)| tenant);
                self.owners.revive(BlockId(victim as u32));
                self.owners.give_back(BlockId(victim as u32));
                victim
            }
        };
        self.owners.take(BlockId(block as u32), tenant);
        self.blocks[block] = Some((tenant, false));
        Some(lost)
    }

    /// Caches all blocks that `tenant` has in use.
    fn release(&mut self, tenant: Tenant) {
        for (block, place) in self.blocks.iter_mut().enumerate() {
            if *place == Some((tenant, false)) {
                *place = Some((tenant, true));
                self.owners.cache(BlockId(block as u32));
            }
        }
    }

    /// Takes `blocks` blocks for a request of `tenant`, and ends the request.
    fn request(&mut self, tenant: Tenant, blocks: usize) {
        (0..blocks).for_each(|_| _ = self.take(tenant));
        self.release(tenant);
    }

    fn cached(&self, tenant: Tenant) -> usize {
        self.blocks.iter().filter(|&&place| place == Some((tenant, true))).count()
    }
}

#[test]
fn one_tenant_has_all_and_two_have_half_each() {
    let mut pool = Pool::new(100);
    (0..30).for_each(|_| pool.request(A, 10));
    assert_eq!(pool.cached(A), 100);
    // What the first had is the other's as long as it is less than half.
    pool.request(B, 30);
    assert_eq!((pool.cached(A), pool.cached(B)), (70, 30));
    (0..70).for_each(|_| pool.request(B, 10));
    assert_eq!((pool.cached(A), pool.cached(B)), (50, 50));
    // A third has a third, taken from both.
    (0..70).for_each(|_| pool.request(Some(3), 5));
    assert_eq!([A, B, Some(3)].map(|tenant| pool.cached(tenant).abs_diff(33) <= 1), [true; 3]);
}

#[test]
fn what_one_does_not_use_others_have() {
    let mut pool = Pool::new(100);
    pool.request(A, 5);
    (0..70).for_each(|_| pool.request(B, 10));
    assert_eq!((pool.cached(A), pool.cached(B)), (5, 95));
    // What is in use counts as what is cached does: the one that has most loses, though it is all in use.
    pool.request(A, 45);
    (0..50).for_each(|_| _ = pool.take(B));
    assert_eq!(pool.cached(A), 50);
    // Beyond its share it takes the other's only when it has nothing cached itself; who has to do without may ask.
    assert_eq!((pool.owners.kept_from(B, 100), pool.owners.kept_from(A, 100)), (50, 0));
    assert_eq!(pool.take(B), Some(Some(A)));
}

#[test]
fn who_takes_nothing_for_long_has_no_share() {
    let mut pool = Pool::new(100);
    pool.request(A, 50);
    let patience = (POOLS_IDLE * 100).max(BLOCKS_IDLE) as usize;
    (0..patience / 10).for_each(|_| pool.request(B, 10));
    assert_eq!(pool.cached(A), 50);
    (0..100).for_each(|_| pool.request(B, 10));
    assert_eq!((pool.cached(A), pool.cached(B)), (0, 100));
    // With its next block it has one again.
    (0..70).for_each(|_| pool.request(A, 10));
    assert_eq!((pool.cached(A), pool.cached(B)), (50, 50));
}

#[test]
fn tenants_that_come_one_after_the_other_are_one_at_a_time() {
    let mut pool = Pool::new(10);
    for tenant in (0..100).map(Some) {
        pool.request(tenant, 1);
        assert!(!pool.owners.is_shared() && pool.owners.is_consistent());
        pool.owners.revive(BlockId(0));
        pool.owners.give_back(BlockId(0));
        pool.blocks[0] = None;
    }
}

/// Checks after random operations that counts are right, and that a tenant within an equal share loses nothing to a
/// tenant that is above its share and has something to lose.
#[test]
fn nobody_within_its_share_loses_to_one_above_it() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let (num_blocks, num_tenants) = (1 + rng.below(40), 1 + rng.below(5));
        let mut pool = Pool::new(num_blocks);
        for _ in 0..3000 {
            let number = rng.below(num_tenants);
            let tenant = Some(number as u128);
            let of = |pool: &Pool, tenant| pool.blocks.iter().flatten().filter(|(of, _)| *of == tenant).count();
            match rng.below(10) {
                0..6 => {
                    let before: Vec<_> = (0..num_tenants as u128).map(|of_one| of(&pool, Some(of_one))).collect();
                    let own_cached = pool.cached(tenant);
                    let sharing = before.iter().filter(|&&blocks| blocks > 0).count();
                    let own = before[number];
                    let share = num_blocks / (sharing + usize::from(own == 0));
                    match pool.take(tenant) {
                        None => assert_eq!((0..num_tenants).map(|at| pool.cached(Some(at as u128))).sum::<usize>(), 0),
                        Some(None) => {}
                        Some(Some(lost)) if lost == tenant => {}
                        Some(Some(lost)) => {
                            let lost = before[lost.expect("a number") as usize];
                            assert!(lost > share || own_cached == 0, "{lost} of {num_blocks} by {own}, share {share}");
                            assert!(lost >= own || own_cached == 0);
                        }
                    }
                }
                6..8 => pool.release(tenant),
                8 => {
                    // Found again.
                    let cached = pool.blocks.iter().position(|&place| place == Some((tenant, true)));
                    if let Some(block) = cached {
                        pool.owners.revive(BlockId(block as u32));
                        pool.blocks[block] = Some((tenant, false));
                    }
                }
                _ => {
                    let (from, to) = (rng.below(num_blocks), rng.below(num_blocks));
                    if pool.blocks[from].is_some() && pool.blocks[to].is_none() {
                        pool.owners.moved(BlockId(from as u32), BlockId(to as u32));
                        pool.blocks.swap(from, to);
                    }
                }
            }
            assert!(pool.owners.is_consistent(), "{:?}", pool.owners);
            let mut counted: Vec<_> = pool.owners.counted().map(|(_, blocks, cached)| (blocks, cached)).collect();
            let mut found: Vec<_> = (0..num_tenants as u128)
                .map(|at| (of(&pool, Some(at)), pool.cached(Some(at))))
                .filter(|&(blocks, _)| blocks > 0)
                .collect();
            counted.sort_unstable();
            found.sort_unstable();
            assert_eq!(counted, found);
        }
    }
}
