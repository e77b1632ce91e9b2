//! Attention of one token that decodes and of a prompt's chunk, and the writing of keys and values.

use strata_kernels::{
    AttentionLayer, AttentionSequence, KvDType, KvLayout, RopeStyle, Rotation, attention, attention_scratch,
    rotate_and_store,
};

use crate::{Entry, Kernel, bytes, entry, numbers};

const HEADS: usize = 8;
const CONTEXT: usize = 512;
const CHUNK: usize = 64;

const LAYOUT: KvLayout =
    KvLayout { num_layers: 1, num_kv_heads: 2, head_dim: 64, block_size: 16, dtype: KvDType::BF16 };

pub fn kernels() -> impl Iterator<Item = Entry> {
    [
        entry("attention, decode", || attend(CONTEXT - 1, 1)),
        entry("attention, prefill", || attend(CONTEXT - CHUNK, CHUNK)),
        entry("rotate_and_store", store),
    ]
    .into_iter()
}

fn block_table() -> Vec<u32> {
    (0..CONTEXT.div_ceil(LAYOUT.block_size) as u32).collect()
}

fn attend(first_position: usize, tokens: usize) -> Kernel {
    let table = block_table();
    let blocks = bytes(table.len() * LAYOUT.block_bytes());
    let q = numbers(tokens * HEADS * LAYOUT.head_dim);
    let mut out = vec![0.0; q.len()];
    let mut scratch = vec![0.0; attention_scratch(HEADS, LAYOUT.head_dim, CONTEXT)];
    Box::new(move |pool, level| {
        let sequence_at = |_| AttentionSequence { first_position, tokens, block_table: &table };
        let layer = AttentionLayer { layout: &LAYOUT, layer: 0, heads: HEADS, scale: 0.125, window: None };
        attention(pool, level, layer, &blocks, 1, sequence_at, &q, &mut scratch, &mut out);
    })
}

fn store() -> Kernel {
    let table = block_table();
    let mut blocks = bytes(table.len() * LAYOUT.block_bytes());
    let (mut q, mut k) =
        (numbers(CHUNK * HEADS * LAYOUT.head_dim), numbers(CHUNK * LAYOUT.num_kv_heads * LAYOUT.head_dim));
    let v = k.clone();
    let (cos, sin) = (numbers(CHUNK * LAYOUT.head_dim / 2), numbers(CHUNK * LAYOUT.head_dim / 2));
    Box::new(move |pool, level| {
        let sequence_at = |_| AttentionSequence { first_position: 0, tokens: CHUNK, block_table: &table };
        let rotation = Rotation { style: RopeStyle::Halves, cos: &cos, sin: &sin };
        rotate_and_store(pool, level, &LAYOUT, &mut blocks, 0, 1, sequence_at, rotation, &mut q, &mut k, &v);
    })
}
