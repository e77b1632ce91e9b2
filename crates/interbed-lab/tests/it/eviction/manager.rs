//! Tests a block manager that each of the policies serves, with the random operations of the manager's own tests, swaps
//! included. What a sequence reads through its block table must be its own, whatever was evicted, shared, copied, moved
//! or swapped.

use interbed_kv::KvStats;
use interbed_kv::testing::{Case, Eviction, run};
use interbed_lab::eviction::POLICIES;

#[test]
fn sequences_read_what_they_computed_whichever_policy_evicts() {
    for kind in POLICIES {
        let mut stats = Vec::new();
        for (block_size, blocks_max, hash_bits) in [(1, 24, 64), (2, 8, 64), (4, 32, 8)] {
            println!("{kind}, blocks of {block_size} tokens");
            let case = Case {
                block_size,
                blocks_max,
                prefix_caching: true,
                hash_bits,
                eviction: Eviction::Kind(kind),
                exact: false,
                steps: 60_000,
            };
            stats.extend(run(&case));
        }
        let sum = |figure: fn(&KvStats) -> u64| stats.iter().map(figure).sum::<u64>();
        let (found, evictions) = (sum(|stats| stats.prefix_hit_tokens), sum(|stats| stats.evictions));
        let swapped = sum(|stats| stats.swapped_in_blocks);
        println!("{kind}: {found} tokens found, {evictions} blocks evicted, {swapped} swapped in");
        assert!(found > 5000 && evictions > 5000 && swapped > 500, "{kind}: {found}, {evictions}, {swapped}");
    }
}
