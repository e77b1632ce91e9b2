//! What layers keep of a sequence besides the KV of all its tokens: blocks of their own, which share the memory of KV.

use std::ops::Range;

use interbed_kernels::{BlockGroups, KvLayout};
use interbed_kv::{Keeps, TailConfig};
use interbed_model::blueprint::Blueprint;
use interbed_model::{GroupBlocks, KeptGroup, KeptGroups, Model, SequenceBlocks};

/// The number of states for which a sequence needs room: it goes on from one that another sequence has left, which
/// stays, and writes one of its own.
const STATES_OF_ONE: usize = 2;

/// Returns what the layers of a model keep.
fn kept(blueprint: &Blueprint) -> KeptGroups {
    Model::groups_of(blueprint)
}

/// Returns what layers keep besides the KV of all tokens, in blocks of `layout`.
pub fn of(blueprint: &Blueprint, layout: &KvLayout) -> Vec<TailConfig> {
    let tail = |group: &KeptGroup| {
        let keeps = match group {
            KeptGroup::Kv { window, .. } => Keeps::Window { tokens: window.unwrap_or(blueprint.context) },
            KeptGroup::States(_) => Keeps::State,
        };
        let group = group.layout(layout.block_size(), layout.dtype());
        let parts = group.content_bytes().div_ceil(layout.content_bytes().max(1)) as u32;
        TailConfig { keeps, block_bytes: group.block_bytes(), parts }
    };
    kept(blueprint).groups().iter().skip(1).map(tail).collect()
}

/// Returns how many blocks of `layout` take the memory of what one sequence of up to `context` tokens keeps in `tails`,
/// if a pass computes up to `pass_tokens` of its tokens.
pub fn blocks_beside(tails: &[TailConfig], layout: &KvLayout, pass_tokens: usize, context: usize) -> usize {
    let bytes = tails.iter().map(|tail| match tail.keeps {
        Keeps::Window { tokens } => {
            let most = context.div_ceil(layout.block_size());
            blocks_of_window(tokens, layout.block_size(), pass_tokens).min(most) * tail.block_bytes
        }
        Keeps::State => STATES_OF_ONE * tail.block_bytes,
    });
    bytes.sum::<usize>().div_ceil(layout.block_bytes().max(1))
}

/// Returns the most blocks of a window of `tokens` tokens that a sequence holds, if a pass computes up to `pass_tokens`
/// of its tokens.
fn blocks_of_window(tokens: usize, block_size: usize, pass_tokens: usize) -> usize {
    (tokens - 1).div_ceil(block_size) + pass_tokens.div_ceil(block_size) + 1
}

/// Returns the blocks of a device whose memory `num_blocks` blocks of `layout` fill: these, and as many blocks of each
/// other group as fit into the same memory.
pub fn block_groups(blueprint: &Blueprint, layout: KvLayout, num_blocks: usize) -> BlockGroups {
    let (bytes, block_size, dtype) = (num_blocks * layout.block_bytes(), layout.block_size(), layout.dtype());
    let kept = kept(blueprint);
    let others = kept.groups().iter().skip(1).map(|group| group.layout(block_size, dtype));
    others.fold(BlockGroups::new(layout, num_blocks), |groups, layout| {
        let count = bytes / layout.block_bytes();
        groups.with(layout, count)
    })
}

/// Returns the bytes that layers keep in `tails` of a sequence of `context` tokens and that a pass reads, besides the
/// KV of all tokens: first those of windows, then those of states.
pub fn bytes_read(tails: &[TailConfig], block_size: usize, context: usize) -> [u64; 2] {
    let mut bytes = [0; 2];
    for tail in tails {
        match tail.keeps {
            Keeps::Window { tokens } => bytes[0] += (context.min(tokens) * tail.block_bytes / block_size) as u64,
            Keeps::State => bytes[1] += tail.block_bytes as u64,
        }
    }
    bytes
}

/// The sizes of passes in a program that computes a few sequences without an engine.
#[derive(Debug, Clone, Copy)]
pub struct PassSizes {
    /// The most tokens of a sequence that a pass computes.
    pub pass_tokens: usize,
    /// The most tokens of a sequence.
    pub context: usize,
}

/// The blocks of further groups for one pass over one sequence, in a program that computes a few sequences without an
/// engine.
pub struct PassBlocks(Vec<Held>);

/// What a sequence holds of one group.
enum Held {
    /// The number of the first token in a window's blocks, and the blocks.
    Window(usize, Vec<u32>),
    /// The block of a state, or of no state yet, and whether there is one.
    State(u32, bool),
}

impl PassBlocks {
    /// Returns the blocks of sequence number `sequence` of `model` for a pass over these `tokens`, by their positions.
    /// All passes are of these `sizes`. The blocks of a window are used in turn.
    pub fn of(model: &Model, sequence: usize, tokens: Range<usize>, sizes: PassSizes) -> Self {
        let block_size = model.blocks().trunk().block_size();
        let groups = model.groups().groups().iter().zip(model.blocks().groups()).skip(1);
        let held = groups.map(|(group, blocks)| {
            let of_one = blocks_of_one(group, block_size, sizes);
            let begin = blocks.numbers().start + sequence * of_one;
            match group {
                KeptGroup::States(_) => Held::State(begin as u32, tokens.start > 0),
                KeptGroup::Kv { window, .. } => {
                    let first = (tokens.start + 1).saturating_sub(window.unwrap_or(usize::MAX)) / block_size;
                    let turns = (first..tokens.end.div_ceil(block_size)).map(|block| (begin + block % of_one) as u32);
                    Held::Window(first * block_size, turns.collect())
                }
            }
        });
        Self(held.collect())
    }

    /// Returns the blocks, group by group.
    pub fn groups(&self) -> Vec<GroupBlocks<'_>> {
        let groups = self.0.iter().map(|held| match held {
            &Held::State(block, is_there) => {
                GroupBlocks::State { from: is_there.then_some(block), to: block, tokens_behind: 0 }
            }
            Held::Window(first, blocks) => {
                GroupBlocks::Window { first: *first, blocks: SequenceBlocks::Listed(blocks) }
            }
        });
        groups.collect()
    }
}

/// Returns how many blocks of each further group of `model` the [blocks of passes](PassBlocks) over `sequences`
/// sequences need.
pub fn counts_of_passes(model: &Model, sequences: usize, sizes: PassSizes) -> Vec<usize> {
    let block_size = model.blocks().trunk().block_size();
    let groups = model.groups().groups().iter().skip(1);
    groups.map(|group| sequences * blocks_of_one(group, block_size, sizes)).collect()
}

/// Returns how many blocks of a group one sequence holds in passes of these sizes.
fn blocks_of_one(group: &KeptGroup, block_size: usize, PassSizes { pass_tokens, context }: PassSizes) -> usize {
    match group {
        KeptGroup::States(_) => 1,
        KeptGroup::Kv { window, .. } => {
            blocks_of_window(window.unwrap_or(1), block_size, pass_tokens).min(context.div_ceil(block_size))
        }
    }
}
