use super::*;

const BLOCK: usize = 2;

fn contents(capacity: usize, bits: u32) -> Contents {
    Contents::new(capacity, 2, BLOCK, ChainHasher::truncated(1, bits))
}

/// Creates a full content with these tokens, and publishes it under `parent` if the index has room. Returns the
/// content, and whether it was published.
fn published(contents: &mut Contents, block: u32, tokens: [TokenId; BLOCK], parent: Parent) -> (ContentId, bool) {
    let (content, rest) = contents.create(BlockId(block), &tokens, None);
    assert!(rest.is_empty());
    let published = matches!(contents.publish(content, parent), Publication::New(_));
    (content, published)
}

#[test]
fn equal_hashes_stand_side_by_side() {
    let mut contents = contents(4, 0);
    let root = contents.hold_root(&ChainRoot::default());
    let tokens = [[1, 2], [3, 4], [5, 6]];
    let all: Vec<_> = (0..3).map(|at| published(&mut contents, at, tokens[at as usize], root).0).collect();
    let find = |contents: &Contents| tokens.map(|tokens| contents.find(BlockHash(0), root, &tokens));
    assert_eq!(find(&contents), [Some(all[0]), Some(all[1]), Some(all[2])]);
    assert_eq!(contents.find(BlockHash(0), Parent::content(all[0]), &tokens[1]), None);
    assert_eq!(contents.unpublish(all[1]), None);
    assert_eq!(find(&contents), [Some(all[0]), None, Some(all[2])]);
    contents.unpublish(all[2]);
    contents.unpublish(all[0]);
    assert_eq!(find(&contents), [None; 3]);
    assert_eq!(contents.num_findable, 0);
}

#[test]
fn a_full_bucket_takes_no_more() {
    let mut contents = contents(BUCKET_MAX + 1, 0);
    let root = contents.hold_root(&ChainRoot::default());
    let all: Vec<_> = (0..=BUCKET_MAX as u32).map(|at| published(&mut contents, at, [at, at], root)).collect();
    assert!(all[..BUCKET_MAX].iter().all(|(_, published)| *published));
    assert!(!all[BUCKET_MAX].1);
    contents.unpublish(all[7].0);
    assert!(matches!(contents.publish(all[BUCKET_MAX].0, root), Publication::New(_)));
}

#[test]
fn a_content_lives_as_long_as_it_lies_anywhere() {
    let mut contents = contents(2, 64);
    let (content, _) = contents.create(BlockId(1), &[7], None);
    contents.add_slot(content);
    contents.add_slot(content);
    contents.release(content);
    contents.clear_block(content);
    assert_eq!((contents.block(content), contents.is_below(content), contents.num_contents), (None, true, 1));
    contents.remove_slot(content);
    // It comes back to another block unchanged.
    contents.set_block(content, BlockId(0));
    contents.remove_slot(content);
    assert_eq!((contents.block(content), contents.is_below(content)), (Some(BlockId(0)), false));
    assert_eq!((contents.filled(content), contents.tokens(content)[0]), (1, 7));
    contents.clear_block(content);
    assert_eq!(contents.num_contents, 0);
    assert_eq!(contents.create(BlockId(0), &[], None).0, content, "the room is used again");
}
