//! Attention of one token that decodes and of a prompt's chunk, and the writing of keys and values.

use strata_kernels::{AttentionToken, DType, KvLayout, attention, write_kv};

use crate::{Entry, Kernel, bytes, entry, numbers};

const HEADS: usize = 8;
const CONTEXT: usize = 512;
const CHUNK: usize = 64;

const LAYOUT: KvLayout = KvLayout { num_layers: 1, num_kv_heads: 2, head_dim: 64, block_size: 16, dtype: DType::BF16 };

pub fn kernels() -> impl Iterator<Item = Entry> {
    [
        entry("attention, decode", || attend(CONTEXT - 1, 1)),
        entry("attention, prefill", || attend(CONTEXT - CHUNK, CHUNK)),
        entry("write_kv", write),
    ]
    .into_iter()
}

fn block_table() -> Vec<u32> {
    (0..CONTEXT.div_ceil(LAYOUT.block_size) as u32).collect()
}

fn attend(first: usize, tokens: usize) -> Kernel {
    let table = block_table();
    let blocks = bytes(table.len() * LAYOUT.block_bytes());
    let q = numbers(tokens * HEADS * LAYOUT.head_dim);
    let mut out = vec![0.0; q.len()];
    Box::new(move |pool, level| {
        let token_at = |i| AttentionToken { position: first + i, block_table: &table };
        attention(pool, level, &LAYOUT, &blocks, 0, tokens, token_at, &q, 0.125, None, &mut out);
    })
}

fn write() -> Kernel {
    let table = block_table();
    let mut blocks = bytes(table.len() * LAYOUT.block_bytes());
    let row = numbers(LAYOUT.num_kv_heads * LAYOUT.head_dim);
    Box::new(move |_, _| {
        for position in 0..CHUNK {
            write_kv(&LAYOUT, &mut blocks, 0, AttentionToken { position, block_table: &table }, &row, &row);
        }
    })
}
