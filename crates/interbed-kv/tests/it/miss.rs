//! Tests of the reasons why prompts miss.

use interbed_kv::{BlockManager, ChainRoot, KvConfig, Miss, MissReason};

use crate::{UnderRoot, config, id, pool, release, root, run_prompt, tokens};

fn miss(manager: &BlockManager, prompt: &[u32]) -> (usize, MissReason) {
    let Miss { matched_tokens, reason } = manager.explain_under(prompt, &root());
    assert_eq!(matched_tokens, manager.cached_prefix_under(prompt, &root()));
    (matched_tokens, reason)
}

#[test]
fn never_seen_and_partial() {
    let mut manager = pool(8, 4);
    assert_eq!(miss(&manager, &tokens(0, 9)), (0, MissReason::NeverSeen));
    assert_eq!(miss(&manager, &tokens(0, 4)), (0, MissReason::PartialBlock));
    assert_eq!(miss(&manager, &[]), (0, MissReason::PartialBlock));
    run_prompt(&mut manager, 1, &tokens(0, 10));
    assert_eq!(miss(&manager, &tokens(0, 9)), (8, MissReason::PartialBlock));
    // All of it is cached, but its last token is always computed.
    assert_eq!(miss(&manager, &tokens(0, 8)), (4, MissReason::PartialBlock));
    assert_eq!(miss(&manager, &tokens(0, 13)), (8, MissReason::NeverSeen));
    assert_eq!(miss(&manager, &[0, 1, 2, 3, 9, 9, 9, 9, 9]), (4, MissReason::NeverSeen));
}

#[test]
fn evicted_when_and_for_whom() {
    let mut manager = pool(5, 4);
    run_prompt(&mut manager, 1, &tokens(0, 13));
    release(&mut manager, 1);
    run_prompt(&mut manager, 7, &tokens(1000, 11));
    let evicted = |lookups_ago| MissReason::Evicted { by: Some(id(7)), lookups_ago };
    assert_eq!(miss(&manager, &tokens(0, 13)), (8, evicted(0)));
    release(&mut manager, 7);
    for number in 10..13 {
        assert_eq!(run_prompt(&mut manager, number, &tokens(1000, 5)), 4);
        release(&mut manager, number);
    }
    assert_eq!(miss(&manager, &tokens(0, 13)), (8, evicted(3)));
    assert_eq!(evicted(3).to_string(), "evicted 3 look-ups ago for sequence 7");
    manager.set_usable(1);
    assert_eq!(miss(&manager, &tokens(1000, 9)), (4, MissReason::Evicted { by: None, lookups_ago: 0 }));
}

#[test]
fn reset_and_not_cacheable() {
    let mut manager = pool(8, 4);
    run_prompt(&mut manager, 1, &tokens(0, 9));
    manager.reset_cache();
    assert_eq!(miss(&manager, &tokens(0, 9)), (0, MissReason::CacheReset { lookups_ago: 0 }));
    let unshared = manager.explain_under(&tokens(0, 9), &ChainRoot::unshared());
    assert_eq!(unshared, Miss { matched_tokens: 0, reason: MissReason::NotCacheable });
    let plain = BlockManager::new(KvConfig { prefix_caching: false, ..config(8, 4) }).unwrap();
    assert_eq!(miss(&plain, &tokens(0, 2)), (0, MissReason::NotCacheable));
}

// What another tenant has asked is reported to operators, never to clients.
#[test]
fn other_salt() {
    let mut manager = pool(8, 4);
    let (alice, bob) = (ChainRoot::new(Some("alice"), 0), ChainRoot::new(Some("bob"), 0));
    manager.allocate_under(id(1), &tokens(0, 9), &alice).unwrap();
    assert_eq!(manager.explain_under(&tokens(0, 9), &bob).reason, MissReason::NeverSeen);
    manager.commit(id(1), 9);
    assert_eq!(manager.explain_under(&tokens(0, 9), &bob).reason, MissReason::OtherSalt);
    assert_eq!(manager.explain_under(&tokens(1, 9), &bob).reason, MissReason::NeverSeen);
    assert_eq!(
        manager.explain_under(&tokens(0, 13), &alice),
        Miss { matched_tokens: 8, reason: MissReason::NeverSeen }
    );
    assert_eq!(MissReason::OtherSalt.for_client(), MissReason::NeverSeen);
    let evicted = |by| MissReason::Evicted { by, lookups_ago: 2 };
    assert_eq!(evicted(Some(id(4))).for_client(), evicted(None));
}
