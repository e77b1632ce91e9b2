//! Attention, and the KV that it reads.

use std::ops::Range;

use interbed_kernels::{AttentionLayer, AttentionSpan, KvDType, KvLayer, KvPlace, RopeStyle, rope};

use super::{Operation, Slot, dot, widened};
use crate::{KvFrame, KvSequences, Tensor, Weights};

/// Rotates queries and keys, and keeps keys and values.
pub fn store_kv(
    layer: KvLayer,
    sequences: KvSequences<'_>,
    style: RopeStyle,
    [cos, sin]: [Tensor; 2],
    [q, k, v]: [Tensor; 3],
) -> Operation {
    let (tokens, heads, head_dim, at) =
        (tokens_of(sequences), layer.num_kv_heads(), layer.head_dim(), layer.key_offset(0));
    Box::new(move |memory| {
        let (cos, sin) = (memory.get(cos), memory.get(sin));
        for tensor in [q, k] {
            let mut values = memory.get(tensor);
            let width = values.len() / tokens.len().max(1);
            for (token, row) in values.chunks_exact_mut(width.max(1)).enumerate() {
                turn(row, head_dim, style, &cos, &sin, [token, tokens.len()]);
            }
            memory.set(tensor, &values);
        }
        for (is_value, tensor) in [(false, k), (true, v)] {
            let values = memory.get(tensor);
            for (row, token) in values.chunks_exact(heads * head_dim).zip(&tokens) {
                let (block, slot) = token.place(token.position, memory.block_size);
                for (head, values) in row.chunks_exact(head_dim).enumerate() {
                    memory.kv.insert((block, slot, at, head, is_value), values.to_vec());
                }
            }
        }
    })
}

/// Rotates queries.
pub fn rotate(q: Tensor, [heads, head_dim]: [usize; 2], style: RopeStyle, [cos, sin]: [Tensor; 2]) -> Operation {
    Box::new(move |memory| {
        let (mut values, cos, sin) = (memory.get(q), memory.get(cos), memory.get(sin));
        let tokens = values.len() / (heads * head_dim);
        for (token, row) in values.chunks_exact_mut(heads * head_dim).enumerate() {
            turn(row, head_dim, style, &cos, &sin, [token, tokens]);
        }
        memory.set(q, &values);
    })
}

/// Computes the attention of every token to what the token sees of its sequence.
pub fn attend(
    layer: AttentionLayer,
    frame: Option<&KvFrame>,
    sequences: KvSequences<'_>,
    sinks: Option<&Weights>,
    [q, state, out]: [Tensor; 3],
) -> Operation {
    let (tokens, kv, frame, sinks) = (tokens_of(sequences), layer.kv, frame.cloned(), sinks.cloned());
    Box::new(move |memory| {
        let sinks = sinks.map(|sinks| widened(&sinks, 0));
        let (queries, mut states, mut attended) = (memory.get(q), memory.get(state), memory.get(out));
        for (index, query) in queries.chunks_exact(kv.head_dim()).enumerate() {
            let (token, head) = (&tokens[index / layer.heads], index % layer.heads);
            let first = layer.window.map_or(0, |window| (token.position + 1).saturating_sub(window));
            let seen = first.max(token.held.start)..(token.position + 1).min(token.held.end);
            let kv_head = head / (layer.heads / kv.num_kv_heads());
            let at = |position, is_value| {
                let (block, slot) = token.place(position, memory.block_size);
                match &frame {
                    Some(frame) => in_frame(frame, &kv, (block, slot, kv_head, is_value)),
                    None => {
                        let slot: Slot = (block, slot, kv.key_offset(0), kv_head, is_value);
                        memory.kv.get(&slot).cloned().unwrap_or_else(|| vec![f32::NAN; kv.head_dim()])
                    }
                }
            };
            let score = |position| dot(query, &at(position, false)) * layer.scale;
            let scores: Vec<_> = seen.clone().map(score).collect();
            let values: Vec<_> = seen.map(|position| at(position, true)).collect();
            let sums = &mut attended[index * kv.head_dim()..][..kv.head_dim()];
            let before = (first < token.held.start).then(|| (states[2 * index], states[2 * index + 1]));
            let (greatest, total) = weigh(before, &scores, &values, sums);
            match token.held.end > token.position {
                true => {
                    let sink = sinks.as_ref().map_or(0.0, |sinks| (sinks[head] - greatest).exp());
                    sums.iter_mut().for_each(|sum| *sum /= total + sink);
                }
                false => states[2 * index..2 * index + 2].copy_from_slice(&[greatest, total]),
            }
        }
        memory.set(state, &states);
        memory.set(out, &attended);
    })
}

/// A token of the batch, and the block table of its sequence.
struct BatchToken {
    position: usize,
    /// Positions of the sequence whose KV is in memory.
    held: Range<usize>,
    blocks: TokenBlocks,
}

/// The blocks of a [`BatchToken`]'s sequence.
#[derive(Clone)]
enum TokenBlocks {
    Listed(Vec<u32>),
    From(u32),
}

impl BatchToken {
    /// Returns the block and the slot of a position in the token's sequence.
    fn place(&self, position: usize, block_size: usize) -> (u32, usize) {
        let logical = (position - self.held.start) / block_size;
        let block = match &self.blocks {
            TokenBlocks::Listed(table) => table[logical],
            TokenBlocks::From(first) => first + logical as u32,
        };
        (block, position % block_size)
    }
}

fn tokens_of(sequences: KvSequences<'_>) -> Vec<BatchToken> {
    let of_span = |span: &AttentionSpan| {
        let (first, held) = (span.first_position, span.held.clone());
        let blocks = match &span.place {
            KvPlace::Listed(table) => {
                TokenBlocks::Listed(sequences.tables[table.start as usize..table.end as usize].to_vec())
            }
            &KvPlace::From(first) => TokenBlocks::From(first),
        };
        (first..first + span.tokens).map(move |position| BatchToken {
            position,
            held: held.clone(),
            blocks: blocks.clone(),
        })
    };
    sequences.spans.iter().flat_map(of_span).collect()
}

fn turn(row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32], [token, tokens]: [usize; 2]) {
    let half = cos.len() / tokens;
    let own = token * half..(token + 1) * half;
    rope(row, head_dim, style, &cos[own.clone()], &sin[own]);
}

/// Returns the greatest score, and the sum of the weights relative to that score, of `scores` and of the tokens seen
/// `before`. Changes `sums` to the weighted sums of the values.
fn weigh(before: Option<(f32, f32)>, scores: &[f32], values: &[Vec<f32>], sums: &mut [f32]) -> (f32, f32) {
    let (greatest_before, total_before) = before.unwrap_or((f32::NEG_INFINITY, 0.0));
    let greatest = scores.iter().copied().fold(greatest_before, f32::max);
    let weights: Vec<_> = scores.iter().map(|score| (score - greatest).exp()).collect();
    let shrinking = (greatest_before - greatest).exp();
    for (d, sum) in sums.iter_mut().enumerate() {
        let old = before.map_or(0.0, |_| *sum * shrinking);
        *sum = old + weights.iter().zip(values).map(|(weight, value)| weight * value[d]).sum::<f32>();
    }
    let old = before.map_or(0.0, |_| total_before * shrinking);
    (greatest, old + weights.iter().sum::<f32>())
}

/// Returns the key or the value of one head of one token in a frame. This device knows only [`KvDType::F32`].
fn in_frame(frame: &KvFrame, kv: &KvLayer, (block, slot, head, is_value): (u32, usize, usize, bool)) -> Vec<f32> {
    assert_eq!(kv.dtype(), KvDType::F32, "the reference device keeps KV as f32");
    let kv = kv.alone();
    let at = block as usize * kv.block_bytes() + kv.key_offset(head) + slot * kv.slot_bytes();
    let at = if is_value { at + kv.value_offset() } else { at };
    let (numbers, _) = frame.bytes()[at..at + kv.slot_bytes()].as_chunks::<4>();
    numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}
