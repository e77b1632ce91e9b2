//! Attention over a paged KV cache: exact, with online softmax, for prefill chunks and decodes alike.
//!
//! A token attends to the positions from its window's start up to its own, in runs that end at multiples of [`RUN`]
//! counted from position 0. So the order of every sum depends on the token's position alone: not on the chunk that it
//! came in, on the batch, on the threads, or on where a prefix hit ended.

use crate::pool::Pool;
use crate::share::Share;
use crate::simd::{Bf16, Element, F16, F32, LANES, Simd, dispatch, exp, load_part, store_part};
use crate::{DType, Level};

/// Positions whose scores are held at a time.
pub const RUN: usize = 64;

/// Query heads that share one pass over a run of keys and values.
const MAX_GROUP: usize = 8;

/// How one KV block lies in memory: `[layer, k|v, kv_head, slot, head_dim]`, contiguous, so that a swap, a spill or a
/// copy moves a block in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub num_layers: usize,
    /// Key-value heads of a layer.
    pub num_kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Tokens of one block.
    pub block_size: usize,
    /// How elements are stored.
    pub dtype: DType,
}

impl KvLayout {
    /// Bytes of one block: all layers, keys and values.
    pub const fn block_bytes(&self) -> usize {
        self.num_layers * 2 * self.num_kv_heads * self.head_bytes()
    }

    /// Bytes of the KV of one token.
    pub const fn token_bytes(&self) -> usize {
        self.block_bytes() / self.block_size
    }

    /// Bytes of one head's slots, of one layer, keys or values.
    const fn head_bytes(&self) -> usize {
        self.block_size * self.head_dim * self.dtype.block_bytes()
    }

    /// Where the keys of `kv_head` begin in a block; the values follow [`KvLayout::value_offset`] later.
    const fn key_offset(&self, layer: usize, kv_head: usize) -> usize {
        (layer * 2 * self.num_kv_heads + kv_head) * self.head_bytes()
    }

    const fn value_offset(&self) -> usize {
        self.num_kv_heads * self.head_bytes()
    }
}

/// One token of the batch, and the KV that it sees.
#[derive(Debug, Clone, Copy)]
pub struct AttentionToken<'a> {
    /// Position in its sequence; keys at `0 ..= position` must have been written.
    pub position: usize,
    /// Physical block of each logical block of its sequence.
    pub block_table: &'a [u32],
}

/// Writes one token's keys and values into its block.
///
/// - `blocks`: the pool, `[block, layer, k|v, kv_head, slot, head_dim]`
/// - `k`, `v`: `[num_kv_heads, head_dim]`
///
/// # Panics
/// If the block is not in the pool, or the lengths disagree.
pub fn write_kv(layout: &KvLayout, blocks: &mut [u8], layer: usize, token: AttentionToken<'_>, k: &[f32], v: &[f32]) {
    assert!(k.len() == layout.num_kv_heads * layout.head_dim && v.len() == k.len() && layer < layout.num_layers);
    let block = token.block_table[token.position / layout.block_size] as usize;
    let slot_bytes = layout.head_dim * layout.dtype.block_bytes();
    let slot = token.position % layout.block_size * slot_bytes;
    for kv_head in 0..layout.num_kv_heads {
        let start = block * layout.block_bytes() + layout.key_offset(layer, kv_head) + slot;
        let row = kv_head * layout.head_dim..(kv_head + 1) * layout.head_dim;
        narrow(layout.dtype, &k[row.clone()], &mut blocks[start..start + slot_bytes]);
        let start = start + layout.value_offset();
        narrow(layout.dtype, &v[row], &mut blocks[start..start + slot_bytes]);
    }
}

fn narrow(dtype: DType, from: &[f32], to: &mut [u8]) {
    match dtype {
        DType::F32 => to.copy_from_slice(bytemuck::cast_slice(from)),
        DType::F16 => narrow_to::<F16>(from, to),
        DType::BF16 => narrow_to::<Bf16>(from, to),
        other => panic!("KV is kept in plain types, not {other}"),
    }
}

fn narrow_to<E: Element<Bits = u16>>(from: &[f32], to: &mut [u8]) {
    let (elements, _) = to.as_chunks_mut::<2>();
    for (value, element) in from.iter().zip(elements) {
        *element = E::from_f32(*value).to_ne_bytes();
    }
}

/// Attention of every token of the batch to its own sequence.
///
/// - `tokens`, `token_at`: how many, and which; the number of tokens here is the number of rows of `q`
/// - `q`: `[tokens, heads, head_dim]`, already rotated
/// - `blocks`: the pool, with the keys and values of these tokens written
/// - `window`: positions that a token sees, itself included; `None` sees all
/// - `out`: as `q`
///
/// # Panics
/// If the lengths disagree, or a block table is too short or names a block that is not in the pool.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn attention<'a>(
    pool: &Pool,
    level: Level,
    layout: &KvLayout,
    blocks: &[u8],
    layer: usize,
    tokens: usize,
    token_at: impl Fn(usize) -> AttentionToken<'a> + Sync,
    q: &[f32],
    scale: f32,
    window: Option<usize>,
    out: &mut [f32],
) {
    let (head_dim, kv_heads) = (layout.head_dim, layout.num_kv_heads);
    assert!(q.len() == out.len() && layer < layout.num_layers);
    if tokens == 0 {
        return;
    }
    let heads = q.len() / tokens / head_dim;
    assert!(heads.is_multiple_of(kv_heads) && q.len() == tokens * heads * head_dim);
    let num_blocks = blocks.len() / layout.block_bytes();
    let mut positions = 0usize;
    for token in (0..tokens).map(&token_at) {
        positions += window.unwrap_or(usize::MAX).min(token.position + 1);
        let needed = token.position / layout.block_size + 1;
        assert!(token.block_table[..needed].iter().all(|&block| (block as usize) < num_blocks));
    }
    let out = Share::new(out);
    let per_kv_head = heads / kv_heads;
    let item_cost = 2 * per_kv_head * head_dim * positions.div_ceil(tokens);
    pool.split(tokens * kv_heads, 1, item_cost, |items| {
        for item in items {
            let (token, kv_head) = (item / kv_heads, item % kv_heads);
            let AttentionToken { position, block_table } = token_at(token);
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            for head in (0..per_kv_head).step_by(MAX_GROUP) {
                let group = MAX_GROUP.min(per_kv_head - head);
                let start = (token * heads + kv_head * per_kv_head + head) * head_dim;
                // SAFETY: each (token, kv head) is in one thread's share only.
                let out = unsafe { out.slice(start, group * head_dim) };
                let query = Query {
                    q: &q[start..start + group * head_dim],
                    keys: blocks[layout.key_offset(layer, kv_head)..].as_ptr(),
                    layout: *layout,
                    block_table,
                    first,
                    end: position + 1,
                    scale,
                    group,
                };
                match layout.dtype {
                    DType::F32 => dispatch!(level, attend::<_, F32>(query: Query<'_>, out: &mut [f32])),
                    DType::F16 => dispatch!(level, attend::<_, F16>(query: Query<'_>, out: &mut [f32])),
                    DType::BF16 => dispatch!(level, attend::<_, Bf16>(query: Query<'_>, out: &mut [f32])),
                    other => panic!("KV is kept in plain types, not {other}"),
                }
            }
        }
    });
}

/// The query heads of one token that share a KV head.
#[derive(Clone, Copy)]
struct Query<'a> {
    /// `[group, head_dim]`
    q: &'a [f32],
    /// Keys of this layer and head in block 0.
    keys: *const u8,
    layout: KvLayout,
    block_table: &'a [u32],
    /// Positions `first .. end` are seen.
    first: usize,
    end: usize,
    scale: f32,
    group: usize,
}

/// # Safety
/// All blocks that the positions lie in are readable through `query.keys`; the level's instructions exist.
#[inline(always)]
unsafe fn attend<S: Simd, E: Element>(query: Query<'_>, out: &mut [f32]) {
    let head_dim = query.layout.head_dim;
    let mut greatest = [f32::NEG_INFINITY; MAX_GROUP];
    let mut total = [0.0f32; MAX_GROUP];
    // Becomes NaN with the first score that is not finite: an overflow must show, and the softmax would hide it.
    let mut poison = [0.0f32; MAX_GROUP];
    let mut weights = [[0.0f32; RUN]; MAX_GROUP];
    let mut keys = [std::ptr::null::<u8>(); RUN];
    out.fill(0.0);
    let mut position = query.first;
    while position < query.end {
        let run_end = ((position / RUN + 1) * RUN).min(query.end);
        let count = run_end - position;
        for (i, key) in keys[..count].iter_mut().enumerate() {
            *key = key_of(&query, position + i);
        }
        for head in 0..query.group {
            let q = &query.q[head * head_dim..(head + 1) * head_dim];
            // SAFETY: `keys` point at readable slots, by the caller's promise.
            unsafe {
                let weights = &mut weights[head];
                for i in 0..count {
                    weights[i] = dot::<S, E>(q, keys[i].cast()) * query.scale;
                    poison[head] += weights[i] * 0.0;
                }
                // Lanes beyond the run weigh nothing.
                weights[count..count.next_multiple_of(LANES)].fill(f32::NEG_INFINITY);
                let correction = softmax_run::<S>(weights, count, &mut greatest[head], &mut total[head]);
                if correction != 1.0 {
                    for out in &mut out[head * head_dim..(head + 1) * head_dim] {
                        *out *= correction;
                    }
                }
            }
        }
        // SAFETY: values lie `value_offset` behind their keys in the same block.
        unsafe { add_values::<S, E>(&query, &keys[..count], &weights, out) };
        position = run_end;
    }
    for head in 0..query.group {
        let inverse = 1.0 / total[head] + poison[head];
        for out in &mut out[head * head_dim..(head + 1) * head_dim] {
            *out *= inverse;
        }
    }
}

#[inline(always)]
fn key_of(query: &Query<'_>, position: usize) -> *const u8 {
    let layout = &query.layout;
    let block = query.block_table[position / layout.block_size] as usize;
    let slot = position % layout.block_size * layout.head_dim * layout.dtype.block_bytes();
    query.keys.wrapping_add(block * layout.block_bytes() + slot)
}

/// # Safety
/// `q.len()` elements are readable at `key`; the level's instructions exist.
#[inline(always)]
unsafe fn dot<S: Simd, E: Element>(q: &[f32], key: *const E::Bits) -> f32 {
    let whole = q.len() / LANES * LANES;
    // SAFETY: whole vectors end at `whole <= q.len()`; the tail is loaded element by element.
    unsafe {
        let mut sum = S::splat(0.0);
        for d in (0..whole).step_by(LANES) {
            sum = S::fma(E::load::<S>(key.add(d)), S::load(q.as_ptr().add(d)), sum);
        }
        let rest = q.len() - whole;
        if rest > 0 {
            let q = load_part::<S, F32>(q.as_ptr().add(whole), rest);
            sum = S::fma(load_part::<S, E>(key.add(whole), rest), q, sum);
        }
        S::sum(sum)
    }
}

/// Turns the run's scores into weights relative to the greatest score so far, and returns the factor by which what was
/// summed before must shrink.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn softmax_run<S: Simd>(scores: &mut [f32; RUN], count: usize, greatest: &mut f32, total: &mut f32) -> f32 {
    let padded = count.next_multiple_of(LANES);
    // SAFETY: `padded <= RUN`, which is a multiple of LANES.
    unsafe {
        let mut high = S::splat(f32::NEG_INFINITY);
        for i in (0..padded).step_by(LANES) {
            high = S::max(high, S::load(scores.as_ptr().add(i)));
        }
        let before = *greatest;
        *greatest = before.max(S::max_lane(high));
        let shift = S::splat(-*greatest);
        let mut sum = S::splat(0.0);
        for i in (0..padded).step_by(LANES) {
            let at = scores.as_mut_ptr().add(i);
            let weight = exp::<S>(S::add(S::load(at), shift));
            // Lanes beyond the run are e^-87, not 0; drop them.
            let weight = if i + LANES > count { keep::<S>(weight, count - i) } else { weight };
            S::store(weight, at);
            sum = S::add(sum, weight);
        }
        let correction = if before == *greatest { 1.0 } else { one_exp::<S>(before - *greatest) };
        *total = *total * correction + S::sum(sum);
        if before == f32::NEG_INFINITY { 1.0 } else { correction }
    }
}

/// # Safety
/// The level's instructions exist; `count <= LANES`.
#[inline(always)]
unsafe fn keep<S: Simd>(v: S::V, count: usize) -> S::V {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: `lanes` has room for a vector.
    unsafe {
        store_part::<S>(v, lanes.as_mut_ptr(), count);
        S::load(lanes.as_ptr())
    }
}

/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn one_exp<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: `lanes` has room for a vector.
    unsafe { S::store(exp::<S>(S::splat(x)), lanes.as_mut_ptr()) };
    lanes[0]
}

/// `out[head] += sum over the run of weights[head][i] * value[i]`, each value read once for all heads of the group.
///
/// # Safety
/// The values behind `keys` are readable; the level's instructions exist.
#[inline(always)]
unsafe fn add_values<S: Simd, E: Element>(
    query: &Query<'_>,
    keys: &[*const u8],
    weights: &[[f32; RUN]; MAX_GROUP],
    out: &mut [f32],
) {
    let head_dim = query.layout.head_dim;
    let offset = query.layout.value_offset();
    for d in (0..head_dim).step_by(LANES) {
        let count = LANES.min(head_dim - d);
        // SAFETY: lanes `d .. d + count` of each value and of each output row are within `head_dim`.
        unsafe {
            let mut sums = [S::splat(0.0); MAX_GROUP];
            for head in 0..query.group {
                sums[head] = load_part_or_all::<S, F32>(out.as_ptr().add(head * head_dim + d), count);
            }
            for (i, key) in keys.iter().enumerate() {
                let value = key.add(offset).cast::<E::Bits>().add(d);
                let value = load_part_or_all::<S, E>(value, count);
                for head in 0..query.group {
                    sums[head] = S::fma(S::splat(weights[head][i]), value, sums[head]);
                }
            }
            for head in 0..query.group {
                let to = out.as_mut_ptr().add(head * head_dim + d);
                if count == LANES { S::store(sums[head], to) } else { store_part::<S>(sums[head], to, count) }
            }
        }
    }
}

/// # Safety
/// `count <= LANES` elements are readable at `from`; the level's instructions exist.
#[inline(always)]
unsafe fn load_part_or_all<S: Simd, E: Element>(from: *const E::Bits, count: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { if count == LANES { E::load::<S>(from) } else { load_part::<S, E>(from, count) } }
}
