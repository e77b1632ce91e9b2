//! Tests the share of its blocks that a load finds.

use interbed_kv::{BlockManager, ChainRoot, EvictionKind, KvConfig, SequenceId, TokenId};
use interbed_lab::eviction::{POLICIES, policy};

use interbed_kv::testing::Rng;
/// Runs prompts of single-token blocks through a block manager, and returns the share of blocks found in the last half
/// of the prompts, among those that `counts` accepts.
fn hit_share(
    kind: EvictionKind,
    num_blocks: usize,
    prompts: &[Vec<TokenId>],
    counts: impl Fn(&[TokenId]) -> bool,
) -> f64 {
    // The manager has one block more, because the last token of a prompt is never found.
    hit_share_in(&mut manager(kind, num_blocks + 1), prompts, counts)
}

fn adaptive_and_lru() -> [EvictionKind; 2] {
    [EvictionKind::ADAPTIVE, policy("lru").expect("a textbook's")]
}

fn manager(kind: EvictionKind, num_blocks: usize) -> BlockManager {
    let config = KvConfig { num_blocks, block_size: 1, eviction: kind, ..KvConfig::default() };
    BlockManager::new(config).expect("a good configuration")
}

fn hit_share_in(manager: &mut BlockManager, prompts: &[Vec<TokenId>], counts: impl Fn(&[TokenId]) -> bool) -> f64 {
    let (mut hits, mut all) = (0, 0);
    for (number, prompt) in prompts.iter().enumerate() {
        let tokens = [prompt, &[TokenId::MAX][..]].concat();
        let hashes = manager.hash_prefix(&ChainRoot::default(), &tokens);
        let allocation = manager.allocate(SequenceId(0), &tokens, &hashes).expect("room");
        manager.commit(SequenceId(0), prompt.len());
        manager.free(SequenceId(0));
        if number >= prompts.len() / 2 && counts(prompt) {
            hits += allocation.num_cached_tokens;
            all += prompt.len();
        }
    }
    hits as f64 / all as f64
}

/// Returns chain number `number` with `length` blocks, which has no block in common with other chains.
fn chain(number: usize, length: usize) -> Vec<TokenId> {
    (0..length).map(|at| (number * 1000 + at) as TokenId).collect()
}

/// Returns prompts of which one in three is a random one of `hot`, and two are new.
fn hot_and_scans(hot: std::ops::Range<usize>, count: usize, rng: &mut Rng) -> Vec<Vec<TokenId>> {
    let new = 1_000_000;
    let prompt = |at: usize| match at % 3 {
        0 => chain(hot.start + rng.below(hot.len()), 10),
        _ => chain(new + rng.below(3_000_000), 15),
    };
    (0..count).map(prompt).collect()
}

#[test]
fn the_default_keeps_a_hot_set_while_scans_pass() {
    let prompts = hot_and_scans(0..15, 6000, &mut Rng(1));
    let hot = |prompt: &[TokenId]| prompt[0] < 1_000_000;
    let [adaptive, lru] = adaptive_and_lru().map(|kind| hit_share(kind, 200, &prompts, hot));
    assert!(adaptive > 0.9 && lru < 0.5, "{adaptive} {lru}");
}

#[test]
fn the_default_keeps_part_of_a_loop_that_exceeds_the_pool() {
    let prompts: Vec<_> = (0..4000).map(|at| chain(at % 25, 10)).collect();
    let [adaptive, lru] = adaptive_and_lru().map(|kind| hit_share(kind, 200, &prompts, |_| true));
    assert!(adaptive > 0.6 && lru == 0.0, "{adaptive} {lru}");
}

#[test]
fn the_default_follows_when_other_prompts_become_hot() {
    let mut rng = Rng(2);
    let mut prompts = hot_and_scans(0..15, 6000, &mut rng);
    prompts.extend(hot_and_scans(20..35, 6000, &mut rng));
    let share = hit_share(EvictionKind::ADAPTIVE, 200, &prompts, |prompt| prompt[0] < 1_000_000);
    assert!(share > 0.85, "{share}");
}

#[test]
fn the_default_keeps_what_comes_back_late_but_surely() {
    // Each prompt is requested once more, after ten times the pool has passed.
    let prompts: Vec<_> =
        (0..30_000).map(|at| chain(if at % 2 == 1 && at > 400 { at - 401 } else { at }, 10)).collect();
    let [adaptive, lru] = adaptive_and_lru().map(|kind| hit_share(kind, 400, &prompts, |_| true));
    assert!(adaptive > 0.04 && lru == 0.0, "{adaptive} {lru}");
}

// An engine builds its manager for the most blocks that it can have, and then sets how many there are.
#[test]
fn every_policy_finds_as_much_in_a_part_of_a_pool_as_in_a_pool_of_that_size() {
    let prompts = hot_and_scans(0..25, 6000, &mut Rng(3));
    for kind in POLICIES {
        let whole = hit_share_in(&mut manager(kind, 201), &prompts, |_| true);
        let mut part = manager(kind, 2010);
        part.set_usable(201);
        // An emptied manager must find as much.
        for mut manager in [part.emptied(), part] {
            let share = hit_share_in(&mut manager, &prompts, |_| true);
            assert!((share - whole).abs() < 0.005 && whole > 0.01, "{kind}: {share}, {whole}");
        }
    }
}

#[test]
fn the_default_learns_anew_when_the_pool_has_become_much_smaller_or_larger() {
    let prompts = hot_and_scans(0..15, 6000, &mut Rng(4));
    let hot = |prompt: &[TokenId]| prompt[0] < 1_000_000;
    let mut manager = manager(EvictionKind::ADAPTIVE, 2010);
    for usable in [2010, 201, 2010, 201] {
        manager.set_usable(usable);
        let share = hit_share_in(&mut manager, &prompts, hot);
        manager.check().expect("invariants");
        assert!(share > 0.9, "{usable}: {share}");
    }
}
