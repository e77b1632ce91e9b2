use std::collections::HashMap;

use interbed_kernels::{KvDType, KvLayout, KvShape, StateLayout, StateShape};

use super::*;

fn kv(layers: usize) -> KvLayout {
    KvLayout::new(4, KvDType::F32, vec![KvShape { num_kv_heads: 1, head_dim: 8 }; layers])
}

fn states(matrices: usize) -> StateLayout {
    StateLayout::new([StateShape { rows: 3, channels: 5, heads: matrices, key_width: 4, value_width: 4 }])
}

/// A trunk, states, and states or windows beside both.
fn shapes() -> Vec<BlockGroups> {
    let trunk = |layers: usize| BlockGroups::new(kv(layers), 400);
    vec![
        trunk(1).with(states(30), 60),
        trunk(5).with(states(1), 300),
        trunk(2).with(kv(3), 300),
        trunk(1).with(kv(2), 200).with(states(70), 60),
        trunk(3),
    ]
}

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// What tests know of chunks: the places of the blocks that have one.
struct Checked {
    chunks: BlockChunks,
    groups: BlockGroups,
    places: HashMap<u32, ChunkPlace>,
    moves: usize,
}

impl Checked {
    fn new(groups: &BlockGroups, bytes: usize) -> Self {
        let chunks = BlockChunks::new(groups, bytes);
        Self { chunks, groups: groups.clone(), places: HashMap::new(), moves: 0 }
    }

    fn bytes(&self) -> usize {
        self.places.keys().map(|&block| self.groups.layout_of(block).block_bytes()).sum()
    }

    fn leave(&mut self, left: &[u32]) {
        left.iter().for_each(|block| _ = self.places.remove(block));
        let moves = self.chunks.leave(left);
        self.moves += moves.len();
        for one in &moves {
            assert_eq!(self.places.insert(one.block, one.to), Some(one.from));
            assert!(moves.iter().all(|other| other.to != one.from), "{moves:?} are not made at a time");
        }
        self.chunks.end();
        self.check();
    }

    fn come(&mut self, came: &[u32]) {
        for group in 0..self.groups.groups().len() {
            let count = came.iter().filter(|&&block| self.groups.group_of(block) == group).count();
            assert_eq!(self.chunks.reserve(group, count), count, "group {group}: no room for blocks in the budget");
        }
        for &block in came {
            let place = self.chunks.come(block).expect("there was room");
            assert_eq!(self.places.insert(block, place), None);
        }
        self.chunks.end();
        self.check();
    }

    /// Checks that no block lies over another one or over the end of its chunk.
    fn check(&self) {
        let of = |(&block, place): (&u32, &ChunkPlace)| {
            let len = self.groups.layout_of(block).block_bytes();
            assert!(place.start + len <= self.chunks.shape.bytes());
            (place.chunk, place.start, place.start + len)
        };
        let mut all: Vec<_> = self.places.iter().map(of).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1), "{all:?}");
    }
}

#[test]
fn blocks_within_the_bytes_always_have_room() {
    let mut moved = 0;
    for (number, groups) in shapes().into_iter().enumerate() {
        let trunk = groups.trunk().block_bytes();
        for seed in 0..6 {
            let (mut random, bytes) = (Random(seed), trunk * (80 + 13 * seed as usize));
            let mut checked = Checked::new(&groups, bytes);
            for _ in 0..300 {
                let present: Vec<u32> = checked.places.keys().copied().collect();
                let share = random.below(4);
                let left: Vec<u32> = present.into_iter().filter(|_| random.below(4) < share).collect();
                checked.leave(&left);
                // Mostly as many as fit: of one group, or of any.
                let only = random.below(2 * groups.groups().len());
                let (mut came, mut free) = (Vec::new(), bytes - checked.bytes());
                for _ in 0..random.below(500) {
                    let block = random.below(groups.num_blocks()) as u32;
                    let len = groups.layout_of(block).block_bytes();
                    let is_wanted = only >= groups.groups().len() || groups.group_of(block) == only;
                    if is_wanted && len <= free && !checked.places.contains_key(&block) && !came.contains(&block) {
                        free -= len;
                        came.push(block);
                    }
                }
                checked.come(&came);
            }
            moved += checked.moves;
            checked.leave(&checked.places.keys().copied().collect::<Vec<_>>());
            assert_eq!(checked.chunks.free.len(), checked.chunks.shape.chunks_for(bytes), "shape {number}");
        }
    }
    assert!(moved > 1000, "{moved} blocks moved");
}

#[test]
fn what_is_told_of_the_cost_is_enough_and_little() {
    for groups in shapes() {
        let (shape, trunk) =
            (ChunkShape::new(groups.groups().iter().map(BlockGroup::block_bytes)), groups.trunk().block_bytes());
        let [block, beside] = shape.cost();
        for count in [0, 1, 2, 31, 500, 12_345] {
            let bytes = (shape.chunks_for(count * trunk) * shape.bytes()) as u64;
            assert!(bytes <= block.0 * count as u64 + beside.0);
        }
        assert!(block.0 as usize <= trunk + trunk / BLOCKS_LEAST * 2 + 1, "{block:?} for {trunk}");
    }
    // A group alone costs what its blocks have.
    assert_eq!(ChunkShape::new([12_345]).cost(), [Bytes(12_345), Bytes(0)]);
    // The 4B's states beside its trunk: one state more.
    let (trunk, state) = (512 << 10, 24 * (32 * 128 * 128 + 3 * 8192) * 4);
    let shape = ChunkShape::new([trunk, state]);
    assert_eq!((shape.bytes(), shape.cost()[1]), (state, Bytes(state as u64)));
    assert!(shape.cost()[0].0 < trunk as u64 * 101 / 100);
}

#[test]
fn a_block_without_reserved_room_gets_none() {
    let groups = BlockGroups::new(kv(1), 100).with(states(30), 20);
    let mut chunks = BlockChunks::new(&groups, 100 * groups.trunk().block_bytes());
    assert_eq!(chunks.come(3), None);
    assert_eq!(chunks.reserve(0, 1), 1);
    let place = chunks.come(3);
    assert!(place.is_some());
    assert_eq!(chunks.come(3), place, "it keeps its place");
    assert_eq!(chunks.come(100), None);
    let rest = (chunks.shape.chunks_for(100 * 256) - 1) * chunks.shape.per_chunk(1);
    assert_eq!(chunks.reserve(1, 1000), rest);
    chunks.end();
    assert_eq!(chunks.come(100), None, "what was reserved and not used is free again");
}
