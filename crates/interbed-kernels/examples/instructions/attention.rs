//! Attention of one token that decodes and of a prompt's chunk, over keys and values of each type, and the step before.

use interbed_kernels::{
    AttentionLayer, AttentionSpan, KvDType, KvLayout, KvShape, RopeStyle, Rotation, attention, attention_scratch,
    rotate_and_store,
};

use crate::{Entry, Kernel, bytes, entry, numbers};

const HEADS: usize = 8;
const CONTEXT: usize = 512;
const CHUNK: usize = 64;

const SHAPE: KvShape = KvShape { num_kv_heads: 2, head_dim: 64 };

fn layout(dtype: KvDType) -> KvLayout {
    KvLayout::new(16, dtype, [SHAPE])
}

pub fn kernels() -> impl Iterator<Item = Entry> {
    let attentions = KvDType::ALL.into_iter().flat_map(|dtype| {
        [("decode", CONTEXT - 1, 1), ("prefill", CONTEXT - CHUNK, CHUNK)].map(|(what, first, tokens)| {
            entry(format!("attention {}, {what}", dtype.name()), move || attend(dtype, first, tokens))
        })
    });
    attentions.chain([entry("rotate_and_store", store)])
}

fn block_table(layout: &KvLayout) -> Vec<u32> {
    (0..CONTEXT.div_ceil(layout.block_size()) as u32).collect()
}

fn attend(dtype: KvDType, first_position: usize, tokens: usize) -> Kernel {
    let layout = layout(dtype);
    let table = block_table(&layout);
    let blocks = bytes(table.len() * layout.block_bytes());
    let q = numbers(tokens * HEADS * SHAPE.head_dim);
    let mut scratch = vec![0.0; attention_scratch(HEADS, SHAPE.head_dim, CONTEXT)];
    let mut out = vec![0.0; q.len()];
    Box::new(move |pool, level| {
        let layer = AttentionLayer { kv: layout.layer(0), heads: HEADS, scale: 0.125, window: None };
        let span = AttentionSpan::new(first_position, tokens, 0..table.len() as u32);
        attention(pool, level, &layer, blocks[..].into(), &[span], &table, None, &q, &mut scratch, &mut [], &mut out);
    })
}

fn store() -> Kernel {
    let layout = layout(KvDType::BF16);
    let table = block_table(&layout);
    let mut blocks = bytes(table.len() * layout.block_bytes());
    let (mut q, mut k) =
        (numbers(CHUNK * HEADS * SHAPE.head_dim), numbers(CHUNK * SHAPE.num_kv_heads * SHAPE.head_dim));
    let (v, angles) = (k.clone(), numbers(CHUNK * SHAPE.head_dim / 2));
    Box::new(move |pool, level| {
        let rotation = Rotation { style: RopeStyle::Halves, cos: &angles, sin: &angles };
        let span = AttentionSpan::new(0, CHUNK, 0..table.len() as u32);
        rotate_and_store(
            pool,
            level,
            &layout.layer(0),
            (&mut blocks[..]).into(),
            &[span],
            &table,
            rotation,
            &mut q,
            &mut k,
            &v,
        );
    })
}
