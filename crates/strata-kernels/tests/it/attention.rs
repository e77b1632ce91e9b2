//! Attention against a plain f64 reference over the very bytes of the cache, and a token's result in any company.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;
use strata_kernels::{
    AttentionLayer, AttentionSequence, KvDType, KvLayout, Level, RUN, SEGMENT, attention, attention_scratch,
};

use crate::support::{Numbers, assert_close, bits, fused_levels, kernel_levels, pool, store};

/// One sequence's keys and values in a scattered block table, and queries for its last tokens.
struct Case {
    layout: KvLayout,
    heads: usize,
    window: Option<usize>,
    blocks: Vec<u8>,
    block_table: Vec<u32>,
    /// Positions that have queries.
    asked: Range<usize>,
    /// `[asked, heads, head_dim]`
    q: Vec<f32>,
}

const LAYER: usize = 1;

impl Case {
    fn new(
        layout: KvLayout,
        heads: usize,
        asked: Range<usize>,
        window: Option<usize>,
        loudness: f32,
        seed: u64,
    ) -> Self {
        let mut numbers = Numbers(seed);
        let length = asked.end;
        let num_blocks = length.div_ceil(layout.block_size) + 3;
        // A permutation, so that neighbours in the sequence are not neighbours in memory.
        let mut block_table: Vec<u32> = (0..num_blocks as u32).collect();
        block_table.reverse();
        block_table.rotate_left(1);
        let row = layout.num_kv_heads * layout.head_dim;
        let (k, v) = (numbers.take(length * row), numbers.take(length * row));
        let q = numbers.take(asked.len() * heads * layout.head_dim).iter().map(|q| q * loudness).collect();
        let mut blocks = vec![0xff; num_blocks * layout.block_bytes()];
        store(&layout, &mut blocks, LAYER, &block_table, 0, &k, &v);
        Self { layout, heads, window, blocks, block_table, asked, q }
    }

    fn sequence(&self, positions: &Range<usize>) -> AttentionSequence<'_> {
        AttentionSequence { first_position: positions.start, tokens: positions.len(), block_table: &self.block_table }
    }

    /// All asked positions, cut as `chunks`, as sequences of one batch.
    fn attend_chunks(&self, level: Level, threads: usize, scratch: usize, chunks: &[Range<usize>]) -> Vec<f32> {
        let row = self.heads * self.layout.head_dim;
        let rows = chunks.iter().flat_map(|chunk| chunk.clone().map(|position| position - self.asked.start));
        let q: Vec<f32> = rows.flat_map(|at| &self.q[at * row..(at + 1) * row]).copied().collect();
        let mut out = vec![7.0; q.len()];
        let layer = AttentionLayer {
            layout: &self.layout,
            layer: LAYER,
            heads: self.heads,
            scale: 1.0 / (self.layout.head_dim as f32).sqrt(),
            window: self.window,
        };
        let mut scratch = vec![f32::NAN; scratch];
        let sequence_at = |index: usize| self.sequence(&chunks[index]);
        let pool = pool(threads);
        attention(&pool, level, layer, &self.blocks, chunks.len(), sequence_at, &q, &mut scratch, &mut out);
        out
    }

    fn attend(&self, level: Level, threads: usize) -> Vec<f32> {
        let scratch = attention_scratch(self.heads, self.layout.head_dim, self.asked.end);
        self.attend_chunks(level, threads, scratch, std::slice::from_ref(&self.asked))
    }

    /// What the cache holds, by the documented layout of a block and of a slot.
    fn cached(&self, values: bool, kv_head: usize, position: usize) -> Vec<f64> {
        let KvLayout { num_kv_heads, head_dim, block_size, dtype, .. } = self.layout;
        let slot_bytes = self.layout.slot_bytes();
        let block = self.block_table[position / block_size] as usize;
        let head = (LAYER * 2 + usize::from(values)) * num_kv_heads + kv_head;
        let start = block * self.layout.block_bytes() + (head * block_size + position % block_size) * slot_bytes;
        let slot = &self.blocks[start..start + slot_bytes];
        let (pairs, _) = slot.as_chunks::<2>();
        match dtype {
            KvDType::F32 => slot.as_chunks::<4>().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
            KvDType::F16 => pairs.iter().map(|&b| f16::from_le_bytes(b).to_f64()).collect(),
            KvDType::BF16 => pairs.iter().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
            KvDType::Q8 => slot[2 * head_dim.div_ceil(32)..]
                .iter()
                .enumerate()
                .map(|(d, &integer)| f64::from(integer.cast_signed()) * bf16::from_le_bytes(pairs[d / 32]).to_f64())
                .collect(),
        }
    }

    fn reference(&self) -> Vec<f64> {
        let KvLayout { head_dim, num_kv_heads, .. } = self.layout;
        let mut out = Vec::new();
        for position in self.asked.clone() {
            let seen = self.window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1;
            for head in 0..self.heads {
                let kv_head = head / (self.heads / num_kv_heads);
                let at = ((position - self.asked.start) * self.heads + head) * head_dim;
                let q = &self.q[at..at + head_dim];
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|seen| {
                        let k = self.cached(false, kv_head, seen);
                        q.iter().zip(&k).map(|(&q, k)| f64::from(q) * k).sum::<f64>() / (head_dim as f64).sqrt()
                    })
                    .collect();
                let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; head_dim];
                for (seen, weight) in seen.clone().zip(&weights) {
                    let v = self.cached(true, kv_head, seen);
                    sums.iter_mut().zip(&v).for_each(|(sum, v)| *sum += weight * v);
                }
                out.extend(sums.iter().map(|sum| sum / total));
            }
        }
        out
    }
}

fn chunks_of(asked: &Range<usize>, size: usize) -> Vec<Range<usize>> {
    asked.clone().step_by(size).map(|start| start..(start + size).min(asked.end)).collect()
}

fn dtypes() -> impl Strategy<Value = KvDType> {
    proptest::sample::select(&KvDType::ALL[..])
}

/// Where a sequence's computed tokens begin, and how many there are: short ones, and some on either side of the borders
/// of segments.
fn positions() -> impl Strategy<Value = Range<usize>> {
    let short = (0usize..120, 1usize..60).prop_map(|(first, count)| first..first + count);
    let long = (1usize..3, 0usize..80, 1usize..6).prop_map(|(segments, after, count)| {
        let first = segments * SEGMENT + after - 40;
        first..first + count
    });
    prop_oneof![3 => short, 1 => long]
}

/// Windows short and long, and just about as long as a run or a segment.
fn windows() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![
        2 => Just(None),
        1 => (1usize..200).prop_map(Some),
        1 => (RUN - 2..RUN + 3).prop_map(Some),
        1 => (SEGMENT - 70..SEGMENT + 70).prop_map(Some),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn agrees_with_the_reference(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..129, block_size in 1usize..65,
        dtype in dtypes(), asked in positions(), window in windows(), loudness in 1u32..60, seed in any::<u64>(),
    ) {
        let layout = KvLayout { num_layers: 2, num_kv_heads: kv_heads, head_dim: 2 * head_dim, block_size, dtype };
        // The reference is slow; wide heads come with short sequences.
        let count = asked.len().min(1 + 6000 / (head_dim * per_kv_head * kv_heads));
        let asked = asked.end - count..asked.end;
        let case = Case::new(layout, kv_heads * per_kv_head, asked, window, loudness as f32, seed);
        let want = case.reference();
        for level in kernel_levels() {
            let got = case.attend(level, 2);
            assert_close(&got, &want, 2e-4, level.name());
        }
    }

    #[test]
    fn a_token_is_the_same_in_any_company(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..70, block_size in 1usize..65,
        dtype in dtypes(), asked in positions(), window in windows(), size in 1usize..30, threads in 1usize..5,
        seed in any::<u64>(),
    ) {
        let layout = KvLayout { num_layers: 2, num_kv_heads: kv_heads, head_dim: 2 * head_dim, block_size, dtype };
        let case = Case::new(layout, kv_heads * per_kv_head, asked.clone(), window, 4.0, seed);
        let level = Level::detect();
        let whole = bits(&case.attend_chunks(level, 1, 0, std::slice::from_ref(&asked)));
        // Together in one batch, in chunks of which some may be cut into segments.
        let enough = 64 * asked.len() * case.heads * (layout.head_dim + 2);
        prop_assert_eq!(&bits(&case.attend_chunks(level, threads, enough, &chunks_of(&asked, size))), &whole);
        prop_assert_eq!(&bits(&case.attend(level, threads)), &whole);
        // Each chunk by itself.
        for size in [1, size] {
            let each = chunks_of(&asked, size);
            let each: Vec<f32> = each
                .iter()
                .flat_map(|chunk| case.attend_chunks(level, threads, enough, std::slice::from_ref(chunk)))
                .collect();
            prop_assert_eq!(&bits(&each), &whole, "chunks of {}", size);
        }
    }

    #[test]
    fn levels_with_fused_multiply_add_agree_to_the_bit(
        per_kv_head in 1usize..13, head_dim in 1usize..129, dtype in dtypes(), asked in positions(),
        window in windows(), seed in any::<u64>(),
    ) {
        let layout = KvLayout { num_layers: 2, num_kv_heads: 2, head_dim: 2 * head_dim, block_size: 16, dtype };
        let case = Case::new(layout, 2 * per_kv_head, asked, window, 4.0, seed);
        let results: Vec<_> = fused_levels().map(|level| bits(&case.attend(level, 2))).collect();
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn block_tables_of_any_kind_give_the_same_bits(
        block_size in 1usize..65, dtype in dtypes(), length in 1usize..300, seed in any::<u64>(),
    ) {
        // The same tokens in one block, and in blocks of any size that other sequences' blocks lie between.
        let layout = KvLayout { num_layers: 2, num_kv_heads: 2, head_dim: 26, block_size: 512, dtype };
        let first = length.saturating_sub(9);
        let case = Case::new(layout, 6, first..length, Some(150), 4.0, seed);
        let mut numbers = Numbers(seed);
        let row = 2 * layout.head_dim;
        let (k, v) = (numbers.take(length * row), numbers.take(length * row));
        let layout = KvLayout { block_size, ..layout };
        let mut pool_of_blocks: Vec<u32> = (0..3 * length.div_ceil(block_size) as u32).collect();
        for i in (1..pool_of_blocks.len()).rev() {
            let other = (numbers.next().abs() * i as f32) as usize;
            pool_of_blocks.swap(i, other);
        }
        let mut blocks = vec![0xff; pool_of_blocks.len() * layout.block_bytes()];
        let block_table = pool_of_blocks[..length.div_ceil(block_size)].to_vec();
        store(&layout, &mut blocks, LAYER, &block_table, 0, &k, &v);
        let other = Case { layout, blocks, block_table, q: case.q.clone(), asked: case.asked.clone(), ..case };
        prop_assert_eq!(bits(&other.attend(Level::detect(), 2)), bits(&case.attend(Level::detect(), 2)));
    }
}

#[test]
fn many_query_heads_and_long_heads_are_cut_into_tiles() {
    for (heads, head_dim) in [(150, 16), (9, 4096)] {
        let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim, block_size: 16, dtype: KvDType::F32 };
        let case = Case::new(layout, heads, 70..75, None, 4.0, 3);
        let want = case.reference();
        let whole = case.attend(Level::detect(), 2);
        assert_close(&whole, &want, 2e-4, "tiles");
        let alone = case.attend_chunks(Level::detect(), 1, 0, &chunks_of(&case.asked, 1));
        assert_eq!(bits(&alone), bits(&whole));
    }
}

#[test]
fn an_overflow_shows_from_its_token_on_and_never_before() {
    // A key that is not finite, or is too large for its type; a softmax over it must not look like an answer. Tokens
    // before it are computed in one tile with those after it, and must not notice.
    for (dtype, key) in [
        (KvDType::F16, 1e6),
        (KvDType::F32, f32::NEG_INFINITY),
        (KvDType::BF16, f32::NAN),
        (KvDType::Q8, f32::INFINITY),
        (KvDType::F32, 3e38),
    ] {
        let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 16, block_size: 16, dtype };
        for (in_key, bad) in [(true, 3), (false, 3), (true, 70)] {
            let mut case = Case::new(layout, 1, 0..100, None, 100.0, 1);
            let table = case.block_table.clone();
            let clean = case.attend(Level::detect(), 1);
            let (loud, quiet) = ([key; 16], [0.0; 16]);
            let (k, v) = if in_key { (&loud, &quiet) } else { (&quiet, &loud) };
            store(&layout, &mut case.blocks, LAYER, &table, bad, k, v);
            for level in kernel_levels() {
                let out = case.attend(level, 1);
                let (before, after) = out.split_at(bad * 16);
                assert!(before.iter().all(|value| value.is_finite()), "{dtype} {}", level.name());
                if level == Level::detect() {
                    assert_eq!(bits(before), bits(&clean[..bad * 16]));
                }
                let large_but_finite = !in_key && key == 3e38;
                if !large_but_finite {
                    assert!(after.iter().all(|value| !value.is_finite()), "{dtype} {key} {}", level.name());
                }
            }
        }
    }
}

#[test]
fn an_overflow_in_one_segment_shows_in_the_whole() {
    let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 16, block_size: 16, dtype: KvDType::F16 };
    let mut case = Case::new(layout, 1, 2 * SEGMENT + 50..2 * SEGMENT + 51, None, 1.0, 1);
    let table = case.block_table.clone();
    store(&layout, &mut case.blocks, LAYER, &table, 3, &[1e6; 16], &[0.0; 16]);
    for level in kernel_levels() {
        for threads in [1, 2] {
            assert!(case.attend(level, threads).iter().all(|value| value.is_nan()), "{}", level.name());
        }
    }
}

#[test]
fn extreme_but_finite_scores_are_exact() {
    // Greatest and least scores hundreds apart, and rising, so that every run shrinks what was there.
    for dtype in KvDType::ALL {
        let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 64, block_size: 16, dtype };
        let mut case = Case::new(layout, 2, 250..260, None, 1.0, 1);
        let table = case.block_table.clone();
        let mut numbers = Numbers(5);
        for position in 0..260 {
            let k: Vec<f32> = (0..64).map(|d| if d == 0 { position as f32 } else { 0.0 }).collect();
            store(&layout, &mut case.blocks, LAYER, &table, position, &k, &numbers.take(64));
        }
        for (i, q) in case.q.iter_mut().enumerate() {
            *q = if i % 64 == 0 { 40.0 } else { 0.0 };
        }
        let want = case.reference();
        for level in kernel_levels() {
            assert_close(&case.attend(level, 2), &want, 1e-4, level.name());
        }
    }
}

#[test]
fn what_lies_beyond_the_sequence_is_never_read() {
    // Unwritten slots hold 0xff bytes, which are NaN in every type: one of them would spoil the sums.
    for dtype in KvDType::ALL {
        let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 16, block_size: 16, dtype };
        let case = Case::new(layout, 1, 0..65, None, 1.0, 1);
        for level in kernel_levels() {
            assert!(case.attend(level, 1).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn a_batch_without_tokens_and_sequences_without_tokens_are_nothing() {
    let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 16, block_size: 16, dtype: KvDType::F32 };
    let case = Case::new(layout, 2, 0..5, None, 1.0, 1);
    let level = Level::detect();
    assert!(case.attend_chunks(level, 2, 0, &[]).is_empty());
    let with_empty = case.attend_chunks(level, 2, 0, &[0..0, 0..3, 3..3, 3..5, 5..5]);
    assert_eq!(bits(&with_empty), bits(&case.attend(level, 1)));
}

#[test]
fn too_short_a_table_and_blocks_outside_the_pool_are_refused() {
    let layout = KvLayout { num_layers: 2, num_kv_heads: 1, head_dim: 16, block_size: 16, dtype: KvDType::F32 };
    for break_it in [|table: &mut Vec<u32>| table.truncate(1), |table: &mut Vec<u32>| table[1] = 1000] {
        let mut case = Case::new(layout, 1, 0..20, None, 1.0, 1);
        break_it(&mut case.block_table);
        let outcome = std::panic::catch_unwind(|| case.attend(Level::detect(), 1));
        assert!(outcome.is_err());
    }
}

#[test]
fn a_block_is_one_contiguous_piece() {
    let layout = KvLayout { num_layers: 16, num_kv_heads: 8, head_dim: 64, block_size: 16, dtype: KvDType::BF16 };
    assert_eq!(layout.token_bytes(), 16 * 2 * 8 * 64 * 2);
    assert_eq!(layout.block_bytes(), 16 * layout.token_bytes());
    let layout = KvLayout { head_dim: 70, dtype: KvDType::Q8, ..layout };
    assert_eq!(layout.token_bytes(), 16 * 2 * 8 * (70 + 3 * 2));
}
