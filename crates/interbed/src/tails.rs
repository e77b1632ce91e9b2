//! What layers keep of a sequence besides the KV of all its tokens: blocks of their own, which share the memory of KV.

use interbed_kernels::{BlockGroups, KvLayout};
use interbed_kv::{Keeps, TailConfig};
use interbed_model::blueprint::Blueprint;
use interbed_model::{GroupBlocks, KeptGroup, KeptGroups, Model};

/// The number of states for which a sequence needs room: it goes on from one that another sequence has left, which
/// stays, and writes one of its own.
const STATES_OF_ONE: usize = 2;

/// Returns what the layers of a model keep. Layers with windows keep the KV of all tokens.
fn kept(blueprint: &Blueprint) -> KeptGroups {
    Model::groups_of(blueprint, false)
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

/// Returns how many blocks of `layout` take the memory of what one sequence keeps in `tails`, if a pass computes up to
/// `pass_tokens` of its tokens.
pub fn blocks_beside(tails: &[TailConfig], layout: &KvLayout, pass_tokens: usize) -> usize {
    let bytes = tails.iter().map(|tail| match tail.keeps {
        Keeps::Window { tokens } => (tokens + pass_tokens).div_ceil(layout.block_size()) * tail.block_bytes,
        Keeps::State => STATES_OF_ONE * tail.block_bytes,
    });
    bytes.sum::<usize>().div_ceil(layout.block_bytes().max(1))
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

/// Returns the bytes of all states of one sequence.
pub fn state_bytes(tails: &[TailConfig]) -> usize {
    tails.iter().filter(|tail| tail.keeps == Keeps::State).map(|tail| tail.block_bytes).sum()
}

/// Returns block number `sequence` of each further group of `model`, for a program that computes a few sequences
/// without an engine. `is_first` says whether nothing of the sequence is computed yet.
pub fn of_sequence(model: &Model, sequence: usize, is_first: bool) -> Vec<GroupBlocks<'static>> {
    let groups = model.groups().groups().iter().zip(model.blocks().groups()).skip(1);
    let state = |(group, blocks): (&KeptGroup, &interbed_kernels::BlockGroup)| {
        let to = (blocks.numbers().start + sequence) as u32;
        match group {
            KeptGroup::States(_) => GroupBlocks::State { from: (!is_first).then_some(to), to },
            KeptGroup::Kv { .. } => unreachable!("layers with windows keep all tokens"),
        }
    };
    groups.map(state).collect()
}
