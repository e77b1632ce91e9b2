//! Attention of one token that decodes and of a prompt's chunk, over keys and values of each type, and the step before.

use strata_kernels::{
    AttentionLayer, AttentionSequence, KvDType, KvLayout, RopeStyle, Rotation, attention, attention_scratch,
    rotate_and_store,
};

use crate::{Entry, Kernel, bytes, entry, numbers};

const HEADS: usize = 8;
const CONTEXT: usize = 512;
const CHUNK: usize = 64;

const fn layout(dtype: KvDType) -> KvLayout {
    KvLayout { num_layers: 1, num_kv_heads: 2, head_dim: 64, block_size: 16, dtype }
}

pub fn kernels() -> impl Iterator<Item = Entry> {
    let attentions = KvDType::ALL.into_iter().flat_map(|dtype| {
        [("decode", CONTEXT - 1, 1), ("prefill", CONTEXT - CHUNK, CHUNK)].map(|(what, first, tokens)| {
            entry(format!("attention {}, {what}", dtype.name()), move || attend(dtype, first, tokens))
        })
    });
    attentions.chain([entry("rotate_and_store", store)])
}

fn block_table(layout: KvLayout) -> Vec<u32> {
    (0..CONTEXT.div_ceil(layout.block_size) as u32).collect()
}

fn attend(dtype: KvDType, first_position: usize, tokens: usize) -> Kernel {
    let layout = layout(dtype);
    let table = block_table(layout);
    let blocks = bytes(table.len() * layout.block_bytes());
    let q = numbers(tokens * HEADS * layout.head_dim);
    let mut scratch = vec![0.0; attention_scratch(HEADS, layout.head_dim, CONTEXT)];
    let mut out = vec![0.0; q.len()];
    Box::new(move |pool, level| {
        let layer = AttentionLayer { layout: &layout, layer: 0, heads: HEADS, scale: 0.125, window: None };
        let sequence_at = |_| AttentionSequence { first_position, tokens, block_table: &table };
        attention(pool, level, layer, &blocks, 1, sequence_at, &q, &mut scratch, &mut out);
    })
}

fn store() -> Kernel {
    let layout = layout(KvDType::BF16);
    let table = block_table(layout);
    let mut blocks = bytes(table.len() * layout.block_bytes());
    let (mut q, mut k) =
        (numbers(CHUNK * HEADS * layout.head_dim), numbers(CHUNK * layout.num_kv_heads * layout.head_dim));
    let (v, angles) = (k.clone(), numbers(CHUNK * layout.head_dim / 2));
    Box::new(move |pool, level| {
        let rotation = Rotation { style: RopeStyle::Halves, cos: &angles, sin: &angles };
        let sequence_at = |_| AttentionSequence { first_position: 0, tokens: CHUNK, block_table: &table };
        rotate_and_store(pool, level, &layout, &mut blocks, 0, 1, sequence_at, rotation, &mut q, &mut k, &v);
    })
}
