//! Groups of blocks: each group has blocks of its own layout, and all blocks are numbered in one row.

use std::ops::Range;

use crate::block_range::BlockRange;
use crate::{KvLayout, StateLayout};

/// The blocks of every group but the first begin at multiples of this many bytes, so that no two groups share a page.
const ALIGN: usize = 64 << 10;

/// The layout of the blocks of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLayout {
    /// Keys and values of `block_size` consecutive tokens, of some of the layers.
    Kv(KvLayout),
    /// States of one sequence at one position.
    States(StateLayout),
}

impl GroupLayout {
    /// Returns the number of bytes of one block.
    pub fn block_bytes(&self) -> usize {
        match self {
            Self::Kv(layout) => layout.block_bytes(),
            Self::States(layout) => layout.block_bytes(),
        }
    }

    /// Returns the number of bytes at the start of a block that hold anything, without padding.
    pub fn content_bytes(&self) -> usize {
        match self {
            Self::Kv(layout) => layout.content_bytes(),
            Self::States(layout) => layout.block_bytes(),
        }
    }

    fn set_blocks(&mut self, blocks: BlockRange) {
        match self {
            Self::Kv(layout) => layout.set_blocks(blocks),
            Self::States(layout) => layout.set_blocks(blocks),
        }
    }
}

impl From<KvLayout> for GroupLayout {
    fn from(layout: KvLayout) -> Self {
        Self::Kv(layout)
    }
}

impl From<StateLayout> for GroupLayout {
    fn from(layout: StateLayout) -> Self {
        Self::States(layout)
    }
}

/// Blocks of one layout: what some of a model's layers keep for a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockGroup {
    layout: GroupLayout,
    blocks: BlockRange,
}

impl BlockGroup {
    /// Returns the layout of the group's blocks. Layers of this layout know the numbers of the blocks.
    pub fn layout(&self) -> &GroupLayout {
        &self.layout
    }

    /// Returns the numbers of the group's blocks.
    pub fn numbers(&self) -> Range<usize> {
        self.blocks.first..self.blocks.first + self.blocks.count
    }

    /// Returns the number of blocks of the group.
    pub fn num_blocks(&self) -> usize {
        self.blocks.count
    }

    /// Returns the number of bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.layout.block_bytes()
    }

    /// Returns the place of the group's blocks in the memory of all blocks, in bytes.
    pub fn bytes(&self) -> Range<usize> {
        let len = self.block_bytes().saturating_mul(self.blocks.count);
        self.blocks.start..self.blocks.start.saturating_add(len)
    }
}

/// All blocks of a device, in groups. The first group is the trunk: the KV of all tokens, of those layers that keep it.
/// The blocks of all groups are numbered in one row, the trunk's from 0 on, so that a number says what a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockGroups {
    /// The trunk, then the others in the order of their numbers.
    groups: Vec<BlockGroup>,
    /// The numbers of blocks in strips.
    strips: Range<usize>,
}

impl BlockGroups {
    /// Creates groups of which there is only the trunk, with `num_blocks` blocks.
    pub fn new(trunk: KvLayout, num_blocks: usize) -> Self {
        let mut groups = Self { groups: Vec::new(), strips: 0..0 };
        groups.push(trunk.into(), num_blocks);
        groups
    }

    /// Adds a group of `num_blocks` blocks, whose numbers follow those of all groups so far.
    ///
    /// # Panics
    /// Panics if blocks of KV have another number of tokens than those of the trunk, or if there are
    /// [strips](Self::with_strips) already.
    pub fn with(mut self, layout: impl Into<GroupLayout>, num_blocks: usize) -> Self {
        let layout = layout.into();
        if let GroupLayout::Kv(layout) = &layout {
            assert_eq!(layout.block_size(), self.trunk().block_size(), "blocks of all groups have as many tokens");
        }
        assert!(self.strips.is_empty(), "strips come last");
        self.push(layout, num_blocks);
        // Only a trunk that is alone need not know how many blocks there are.
        let trunk = &mut self.groups[0];
        trunk.layout.set_blocks(trunk.blocks);
        self
    }

    /// Lets blocks of the trunk appear at `count` further places, in strips. The places have numbers behind those of
    /// all blocks, and addresses behind all blocks: place `n` is where block `n` of the trunk would be if the trunk had
    /// so many. Only layers of the trunk know these numbers.
    ///
    /// # Panics
    /// Panics if there are strips already.
    pub fn with_strips(mut self, count: usize) -> Self {
        assert!(self.strips.is_empty(), "strips come last");
        let block_bytes = self.groups[0].block_bytes().max(1);
        let first = self.bytes().div_ceil(block_bytes).max(self.num_blocks());
        self.strips = first..first.saturating_add(count);
        let trunk = &mut self.groups[0];
        trunk.layout.set_blocks(BlockRange { reach: self.strips.end, ..trunk.blocks });
        self
    }

    fn push(&mut self, mut layout: GroupLayout, count: usize) {
        let (first, start) = match self.groups.last() {
            None => (0, 0),
            Some(last) => (last.numbers().end, last.bytes().end.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)),
        };
        let blocks = BlockRange { first, count, reach: count, start };
        layout.set_blocks(if self.groups.is_empty() { BlockRange::ALONE } else { blocks });
        self.groups.push(BlockGroup { layout, blocks });
    }

    /// Returns all groups, in the order of their numbers.
    pub fn groups(&self) -> &[BlockGroup] {
        &self.groups
    }

    /// Returns the layout of the trunk.
    pub fn trunk(&self) -> &KvLayout {
        self.kv(0)
    }

    /// Returns the layout of a group of KV.
    ///
    /// # Panics
    /// Panics if there is no such group, or it has states.
    pub fn kv(&self, group: usize) -> &KvLayout {
        match self.groups[group].layout() {
            GroupLayout::Kv(layout) => layout,
            GroupLayout::States(_) => panic!("group {group} has states"),
        }
    }

    /// Returns the layout of a group of states.
    ///
    /// # Panics
    /// Panics if there is no such group, or it has KV.
    pub fn states(&self, group: usize) -> &StateLayout {
        match self.groups[group].layout() {
            GroupLayout::States(layout) => layout,
            GroupLayout::Kv(_) => panic!("group {group} has KV"),
        }
    }

    /// Returns the number of blocks of all groups.
    pub fn num_blocks(&self) -> usize {
        self.groups.last().map_or(0, |last| last.numbers().end)
    }

    /// Returns the group of a block.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn group_of(&self, block: u32) -> usize {
        let at = self.groups.partition_point(|group| group.numbers().end <= block as usize);
        assert!(at < self.groups.len(), "block {block} of {}", self.num_blocks());
        at
    }

    /// Returns the group of two blocks, one of which is copied to the other.
    ///
    /// # Panics
    /// Panics if they are of two groups, or one of them does not exist.
    pub fn group_of_copy(&self, (source, destination): (u32, u32)) -> usize {
        let group = self.group_of(source);
        assert_eq!(group, self.group_of(destination), "blocks {source} and {destination} are of two groups");
        group
    }

    /// Returns the layout of a block.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn layout_of(&self, block: u32) -> &GroupLayout {
        self.groups[self.group_of(block)].layout()
    }

    /// Returns the place of a block in the memory of all blocks, in bytes.
    ///
    /// # Panics
    /// Panics if there is no such block.
    pub fn bytes_of(&self, block: u32) -> Range<usize> {
        let group = &self.groups[self.group_of(block)];
        let start = group.blocks.offset(block as usize, group.block_bytes());
        start..start + group.block_bytes()
    }

    /// Returns the numbers of the places in strips; empty if there are none.
    pub fn strips(&self) -> Range<usize> {
        self.strips.clone()
    }

    /// Returns the number of bytes of the memory of all blocks.
    pub fn bytes(&self) -> usize {
        self.groups.last().map_or(0, |last| last.bytes().end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDType, KvShape, StateShape};

    fn kv(layers: usize, head_dim: usize) -> KvLayout {
        KvLayout::new(4, KvDType::F32, vec![KvShape { num_kv_heads: 1, head_dim }; layers])
    }

    #[test]
    fn blocks_are_numbered_in_one_row_and_lie_apart() {
        let states = StateLayout::new([StateShape { rows: 3, channels: 5, heads: 2, key_width: 4, value_width: 4 }; 2]);
        assert_eq!(states.block_bytes(), 2 * (15 + 32) * 4);
        assert_eq!(states.layer(1).matrices_offset(), (15 + 32 + 15) * 4);
        let groups = BlockGroups::new(kv(2, 8), 10).with(kv(1, 8), 3).with(states, 4);
        let numbers: Vec<_> = groups.groups().iter().map(BlockGroup::numbers).collect();
        assert_eq!((numbers, groups.num_blocks()), (vec![0..10, 10..13, 13..17], 17));
        let of: Vec<_> = [0, 9, 10, 12, 13, 16].map(|block| groups.group_of(block)).to_vec();
        assert_eq!(of, [0, 0, 1, 1, 2, 2]);
        assert_eq!(groups.bytes_of(9), 9 * 512..10 * 512);
        assert_eq!(groups.bytes_of(12), ALIGN + 2 * 256..ALIGN + 3 * 256);
        assert_eq!(groups.bytes_of(13), 2 * ALIGN..2 * ALIGN + 376);
        assert_eq!(groups.bytes(), 2 * ALIGN + 4 * 376);
    }

    #[test]
    fn a_trunk_may_keep_nothing() {
        let groups = BlockGroups::new(kv(0, 8), 5).with(kv(1, 8), 2);
        assert_eq!((groups.bytes_of(4), groups.bytes_of(6)), (0..0, 256..512));
        assert_eq!(groups.group_of(5), 1);
    }

    #[test]
    fn places_in_strips_lie_behind_all_groups_where_blocks_of_the_trunk_would_be() {
        let all = |groups: BlockGroups| {
            let layer = groups.trunk().layer(0);
            let strips = groups.strips();
            let end = strips.end * groups.trunk().block_bytes();
            assert!(
                strips.start * groups.trunk().block_bytes() >= groups.bytes() && strips.start >= groups.num_blocks()
            );
            assert_eq!(layer.listed_within(end), 0..10, "tables list blocks of the pool");
            assert_eq!(layer.blocks().reach_within(end, layer.block_bytes()), 0..strips.end);
            assert_eq!(layer.blocks().offset(strips.start, layer.block_bytes()), strips.start * layer.block_bytes());
            strips
        };
        assert_eq!(all(BlockGroups::new(kv(2, 8), 10).with_strips(12)), 10..22);
        // 64 KiB of blocks of 512 bytes, and as many bytes for the group beside, or more blocks than that.
        assert_eq!(all(BlockGroups::new(kv(2, 8), 10).with(kv(1, 8), 3).with_strips(12)), 130..142);
        assert_eq!(all(BlockGroups::new(kv(2, 8), 10).with(kv(1, 8), 300).with_strips(12)), 310..322);
        let groups = BlockGroups::new(kv(2, 8), 10).with(kv(1, 8), 3).with_strips(12);
        assert_eq!((groups.num_blocks(), groups.group_of(12), groups.bytes_of(9)), (13, 1, 9 * 512..10 * 512));
        assert_eq!(groups.kv(1).layer(0).listed_within(1 << 20), 10..13);
    }

    #[test]
    #[should_panic(expected = "strips come last")]
    fn no_group_is_added_behind_strips() {
        let _ = BlockGroups::new(kv(1, 8), 5).with_strips(3).with(kv(1, 8), 2);
    }

    #[test]
    #[should_panic(expected = "block 7 of 7")]
    fn a_block_beyond_the_last_is_refused() {
        BlockGroups::new(kv(1, 8), 5).with(kv(1, 8), 2).group_of(7);
    }
}
