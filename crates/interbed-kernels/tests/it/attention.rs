//! Tests attention against a simple f64 reference over the bytes of the cache, and that a token's result does not
//! depend on the batch.

use std::ops::Range;

use half::{bf16, f16};
use interbed_kernels::{
    ATTENTION_STATE, AttentionLayer, AttentionSpan, BlockGroups, DType, KvDType, KvLayer, KvLayout, KvPlace, KvShape,
    KvView, Level, Matrix, RUN, RopeStyle, Rotation, STRETCH, attention, attention_scratch, rotate_and_store,
};
use proptest::prelude::*;

use crate::support::{Numbers, alike, assert_close, bits, fused_levels, kernel_levels, pool, store};

/// One sequence's keys and values in a scattered block table, and queries for its last tokens.
struct Case {
    layer: KvLayer,
    heads: usize,
    window: Option<usize>,
    blocks: Vec<u8>,
    block_table: Vec<u32>,
    /// Positions that have queries.
    asked: Range<usize>,
    /// Shape: `[asked, heads, head_dim]`.
    q: Vec<f32>,
    /// Shape: `[heads]`; empty without sinks.
    sinks: Vec<f32>,
}

const LAYER: usize = 1;

const OTHERS: u32 = 3;

impl Case {
    fn new(
        layout: &KvLayout,
        heads: usize,
        asked: Range<usize>,
        window: Option<usize>,
        loudness: f32,
        seed: u64,
    ) -> Self {
        let mut numbers = Numbers(seed);
        let length = asked.end;
        let layer = layout.layer(LAYER);
        let num_blocks = length.div_ceil(layout.block_size()) + 3;
        // A permutation, so that neighbours in the sequence are not adjacent in memory.
        let mut block_table: Vec<u32> = (0..num_blocks as u32).collect();
        block_table.reverse();
        block_table.rotate_left(1);
        let row = layer.num_kv_heads() * layer.head_dim();
        let (k, v) = (numbers.take(length * row), numbers.take(length * row));
        let q = numbers.take(asked.len() * heads * layer.head_dim()).iter().map(|q| q * loudness).collect();
        let mut blocks = vec![0xff; num_blocks * layout.block_bytes()];
        store(&layer, &mut blocks, &block_table, 0, &k, &v);
        // Some sinks are below all scores, and some above.
        let sinks = match seed.is_multiple_of(2) {
            true => numbers.take(heads).iter().map(|sink| sink * 2.0 * loudness).collect(),
            false => Vec::new(),
        };
        Self { layer, heads, window, blocks, block_table, asked, q, sinks }
    }

    /// The span of `positions`, whose block table comes after another sequence's table of [`OTHERS`] blocks.
    fn span(&self, positions: &Range<usize>) -> AttentionSpan {
        let table = OTHERS..OTHERS + self.block_table.len() as u32;
        AttentionSpan::new(positions.start, positions.len(), table)
    }

    fn sinks(&self) -> Option<Matrix<'_>> {
        let bytes = bytemuck::cast_slice(&self.sinks);
        (!self.sinks.is_empty()).then(|| Matrix::new(DType::F32, 1, self.heads, bytes))
    }

    /// Attends from all asked positions, split into `chunks`, as sequences of one batch.
    fn attend_chunks(&self, level: Level, threads: usize, scratch: usize, chunks: &[Range<usize>]) -> Vec<f32> {
        let row = self.heads * self.layer.head_dim();
        let rows = chunks.iter().flat_map(|chunk| chunk.clone().map(|position| position - self.asked.start));
        let q: Vec<f32> = rows.flat_map(|at| &self.q[at * row..(at + 1) * row]).copied().collect();
        let mut out = vec![7.0; q.len()];
        let layer = AttentionLayer {
            kv: self.layer,
            heads: self.heads,
            scale: 1.0 / (self.layer.head_dim() as f32).sqrt(),
            window: self.window,
        };
        let mut scratch = vec![f32::NAN; scratch];
        let spans: Vec<_> = chunks.iter().map(|chunk| self.span(chunk)).collect();
        let tables = [&[u32::MAX; OTHERS as usize], &self.block_table[..], &[u32::MAX]].concat();
        let (pool, blocks, sinks) = (pool(threads), self.blocks[..].into(), self.sinks());
        attention(&pool, level, &layer, blocks, &spans, &tables, sinks, &q, &mut scratch, &mut [], &mut out);
        out
    }

    /// Attends from all asked positions as one sequence. Keys and values up to each of `borders` (multiples of a
    /// stretch) are held by themselves, in a copy with only this layer's; then the rest, in place.
    fn attend_in_pieces(&self, level: Level, threads: usize, scratch: usize, borders: &[usize]) -> Vec<f32> {
        let layer = AttentionLayer {
            kv: self.layer,
            heads: self.heads,
            scale: 1.0 / (self.layer.head_dim() as f32).sqrt(),
            window: self.window,
        };
        let rows = self.asked.len() * self.heads;
        let (mut out, mut carried) = (vec![7.0; self.q.len()], vec![7.0; rows * ATTENTION_STATE]);
        let (mut scratch, pool) = (vec![f32::NAN; scratch], pool(threads));
        let whole = AttentionSpan::new(self.asked.start, self.asked.len(), 0..0);
        let (block_size, part, alone) = (self.layer.block_size(), self.layer.part_bytes(), self.layer.alone());
        let mut held = 0;
        for &border in borders {
            let table = &self.block_table[held / block_size..border / block_size];
            let parts = table.iter().map(|&block| {
                let at = block as usize * self.layer.block_bytes() + self.layer.key_offset(0);
                &self.blocks[at..at + part]
            });
            let frame = parts.collect::<Vec<_>>().concat();
            let span = AttentionSpan { held: held..border, place: KvPlace::From(0), ..whole.clone() };
            let layer = AttentionLayer { kv: alone, ..layer };
            let (spans, q, sinks, frame) = ([span], &self.q, self.sinks(), frame[..].into());
            attention(&pool, level, &layer, frame, &spans, &[], sinks, q, &mut scratch, &mut carried, &mut out);
            held = border;
        }
        let table = &self.block_table[held / block_size..];
        let span = AttentionSpan { held: held..self.asked.end, place: KvPlace::Listed(0..table.len() as u32), ..whole };
        let (spans, q, sinks, blocks) = ([span], &self.q, self.sinks(), self.blocks[..].into());
        attention(&pool, level, &layer, blocks, &spans, table, sinks, q, &mut scratch, &mut carried, &mut out);
        out
    }

    /// Attends from `asked` over a table whose first block is number `cut` of the sequence's.
    fn attend_cut(&self, level: Level, threads: usize, scratch: usize, asked: &Range<usize>, cut: usize) -> Vec<f32> {
        let layer = AttentionLayer {
            kv: self.layer,
            heads: self.heads,
            scale: 1.0 / (self.layer.head_dim() as f32).sqrt(),
            window: self.window,
        };
        let row = self.heads * self.layer.head_dim();
        let q = &self.q[(asked.start - self.asked.start) * row..(asked.end - self.asked.start) * row];
        let (mut out, mut scratch) = (vec![7.0; q.len()], vec![f32::NAN; scratch]);
        let table = &self.block_table[cut..];
        let held = cut * self.layer.block_size()..asked.end;
        let spans = [AttentionSpan { held, ..AttentionSpan::new(asked.start, asked.len(), 0..table.len() as u32) }];
        let (pool, blocks, sinks) = (pool(threads), self.blocks[..].into(), self.sinks());
        attention(&pool, level, &layer, blocks, &spans, table, sinks, q, &mut scratch, &mut [], &mut out);
        out
    }

    /// The number of blocks that none of the tokens from `position` on sees, all of whose positions lie before what
    /// they see.
    fn unseen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window.unwrap_or(usize::MAX)) / self.layer.block_size()
    }

    fn attend(&self, level: Level, threads: usize) -> Vec<f32> {
        let scratch = attention_scratch(self.heads, self.layer.head_dim(), self.asked.end);
        self.attend_chunks(level, threads, scratch, std::slice::from_ref(&self.asked))
    }

    /// Reads a head from the cache by the documented layout of blocks and slots.
    fn cached(&self, values: bool, kv_head: usize, position: usize) -> Vec<f64> {
        let (num_kv_heads, head_dim) = (self.layer.num_kv_heads(), self.layer.head_dim());
        let (block_size, slot_bytes) = (self.layer.block_size(), self.layer.slot_bytes());
        let block = self.block_table[position / block_size] as usize;
        let head = (LAYER * 2 + usize::from(values)) * num_kv_heads + kv_head;
        let start = block * self.layer.block_bytes() + (head * block_size + position % block_size) * slot_bytes;
        let slot = &self.blocks[start..start + slot_bytes];
        let (pairs, _) = slot.as_chunks::<2>();
        match self.layer.dtype() {
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

    /// Computes attention as `level` defines it, in f64: from rounded queries where the level multiplies pairs.
    fn reference(&self, level: Level) -> Vec<f64> {
        let rounds = multiplies_pairs(level, self.layer.dtype());
        let q: Vec<f64> = self.q.iter().map(|&q| if rounds { bf16::from_f32(q).to_f64() } else { q.into() }).collect();
        let (num_kv_heads, head_dim) = (self.layer.num_kv_heads(), self.layer.head_dim());
        let mut out = Vec::new();
        for position in self.asked.clone() {
            let seen = self.window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1;
            for head in 0..self.heads {
                let kv_head = head / (self.heads / num_kv_heads);
                let at = ((position - self.asked.start) * self.heads + head) * head_dim;
                let q = &q[at..at + head_dim];
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|seen| {
                        let k = self.cached(false, kv_head, seen);
                        q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
                    })
                    .collect();
                let sink = self.sinks.get(head).map_or(f64::NEG_INFINITY, |&sink| f64::from(sink));
                let greatest = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + (sink - greatest).exp();
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

/// Whether attention over such keys and values rounds queries and softmax weights to bf16.
fn multiplies_pairs(level: Level, dtype: KvDType) -> bool {
    dtype == KvDType::BF16 && level.rounds_activations(DType::BF16)
}

/// How far results may be from [`Case::reference`], relative to the largest.
fn tolerance(level: Level, dtype: KvDType) -> f64 {
    // Weights are rounded to one part in 512, and so is their total.
    if multiplies_pairs(level, dtype) { 4e-3 } else { 2e-4 }
}

fn chunks_of(asked: &Range<usize>, size: usize) -> Vec<Range<usize>> {
    asked.clone().step_by(size).map(|start| start..(start + size).min(asked.end)).collect()
}

fn dtypes() -> impl Strategy<Value = KvDType> {
    prop_oneof![2 => Just(KvDType::BF16), 3 => proptest::sample::select(&KvDType::ALL[..])]
}

/// Ranges of positions with computed tokens: short ones, and some on either side of the borders of stretches.
fn positions() -> impl Strategy<Value = Range<usize>> {
    let short = (0usize..120, 1usize..60).prop_map(|(first, count)| first..first + count);
    let long = (1usize..3, 0usize..80, 1usize..6).prop_map(|(stretches, after, count)| {
        let first = stretches * STRETCH + after - 40;
        first..first + count
    });
    prop_oneof![3 => short, 1 => long]
}

/// Short and long sliding windows, and some about as long as a run or a stretch.
fn windows() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![
        2 => Just(None),
        1 => (1usize..200).prop_map(Some),
        1 => (RUN - 2..RUN + 3).prop_map(Some),
        1 => (STRETCH - 70..STRETCH + 70).prop_map(Some),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn agrees_with_the_reference(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..129, block_size in 1usize..65,
        dtype in dtypes(), asked in positions(), window in windows(), loudness in 1u32..60, seed in any::<u64>(),
    ) {
        let layout = alike(2, kv_heads, 2 * head_dim, block_size, dtype);
        // The reference is slow; wide heads come with short sequences.
        let count = asked.len().min(1 + 6000 / (head_dim * per_kv_head * kv_heads));
        let asked = asked.end - count..asked.end;
        let case = Case::new(&layout, kv_heads * per_kv_head, asked, window, loudness as f32, seed);
        for level in kernel_levels() {
            let (got, want) = (case.attend(level, 2), case.reference(level));
            assert_close(&got, &want, tolerance(level, dtype), level.name());
        }
    }

    #[test]
    fn keys_and_values_may_come_piece_by_piece(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..70, block_size in 0u32..7,
        dtype in dtypes(), window in windows(), stretches in 1usize..5, after in 0usize..90, count in 1usize..70,
        pieces in any::<u64>(), threads in 1usize..5, split in any::<bool>(), seed in any::<u64>(),
    ) {
        let layout = alike(2, kv_heads, 2 * head_dim, 1 << block_size, dtype);
        let end = stretches * STRETCH + after + count;
        let case = Case::new(&layout, kv_heads * per_kv_head, end - count..end, window, 4.0, seed);
        let scratch = if split { 64 * count * case.heads * (2 * head_dim + 2) } else { 0 };
        // The part that contains the tokens themselves comes last.
        let below = (end - count) / STRETCH;
        let borders: Vec<_> = (1..=below).filter(|at| pieces >> at & 1 > 0).map(|at| at * STRETCH).collect();
        for level in fused_levels() {
            let whole = bits(&case.attend_chunks(level, 1, 0, std::slice::from_ref(&case.asked)));
            let pieces = bits(&case.attend_in_pieces(level, threads, scratch, &borders));
            prop_assert_eq!(&pieces, &whole, "{}", level.name());
        }
    }

    #[test]
    fn blocks_behind_the_window_may_be_gone(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..70, block_size in 1usize..65,
        dtype in dtypes(), asked in positions(), window in 1usize..1100, size in 1usize..30, threads in 1usize..5,
        split in any::<bool>(), cuts in any::<u64>(), seed in any::<u64>(),
    ) {
        let layout = alike(2, kv_heads, 2 * head_dim, block_size, dtype);
        let case = Case::new(&layout, kv_heads * per_kv_head, asked.clone(), Some(window), 4.0, seed);
        let scratch = if split { 64 * asked.len() * case.heads * (2 * head_dim + 2) } else { 0 };
        for level in kernel_levels() {
            let whole = bits(&case.attend_chunks(level, 1, 0, std::slice::from_ref(&asked)));
            let mut cut = Vec::new();
            for (index, chunk) in chunks_of(&asked, size).iter().enumerate() {
                let most = case.unseen(chunk.start);
                // Often the last that is possible.
                let blocks = if index % 2 == 0 { most } else { cuts as usize % (most + 1) };
                cut.extend(case.attend_cut(level, threads, scratch, chunk, blocks));
            }
            prop_assert_eq!(&bits(&cut), &whole, "{}", level.name());
        }
    }

    #[test]
    fn a_token_is_the_same_in_any_company(
        kv_heads in 1usize..4, per_kv_head in 1usize..13, head_dim in 1usize..70, block_size in 1usize..65,
        dtype in dtypes(), asked in positions(), window in windows(), size in 1usize..30, threads in 1usize..5,
        seed in any::<u64>(),
    ) {
        let layout = alike(2, kv_heads, 2 * head_dim, block_size, dtype);
        let case = Case::new(&layout, kv_heads * per_kv_head, asked.clone(), window, 4.0, seed);
        let level = Level::detect();
        let whole = bits(&case.attend_chunks(level, 1, 0, std::slice::from_ref(&asked)));
        // Together in one batch, in chunks of which some may be split into stretches.
        let enough = 64 * asked.len() * case.heads * (2 * head_dim + 2);
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
        let layout = alike(2, 2, 2 * head_dim, 16, dtype);
        let case = Case::new(&layout, 2 * per_kv_head, asked, window, 4.0, seed);
        // Those that multiply pairs agree with each other, and so do the others. Without AMX, one level at most
        // multiplies pairs.
        for pairs in [false, true] {
            let levels = fused_levels().filter(|&level| multiplies_pairs(level, dtype) == pairs);
            let results: Vec<_> = levels.map(|level| bits(&case.attend(level, 2))).collect();
            prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn block_tables_of_any_kind_give_the_same_bits(
        block_size in 1usize..65, dtype in dtypes(), length in 1usize..300, seed in any::<u64>(),
    ) {
        // Compares the same tokens in one block, and in blocks of any size with other sequences' blocks between them.
        let layout = alike(2, 2, 26, 512, dtype);
        let first = length.saturating_sub(9);
        let case = Case::new(&layout, 6, first..length, Some(150), 4.0, seed);
        let mut numbers = Numbers(seed);
        let row = 2 * 26;
        let (k, v) = (numbers.take(length * row), numbers.take(length * row));
        let layout = alike(2, 2, 26, block_size, dtype);
        let mut pool_of_blocks: Vec<u32> = (0..3 * length.div_ceil(block_size) as u32).collect();
        for i in (1..pool_of_blocks.len()).rev() {
            let other = (numbers.next().abs() * i as f32) as usize;
            pool_of_blocks.swap(i, other);
        }
        let mut blocks = vec![0xff; pool_of_blocks.len() * layout.block_bytes()];
        let block_table = pool_of_blocks[..length.div_ceil(block_size)].to_vec();
        let layer = layout.layer(LAYER);
        store(&layer, &mut blocks, &block_table, 0, &k, &v);
        let (q, asked, sinks) = (case.q.clone(), case.asked.clone(), case.sinks.clone());
        let other = Case { layer, blocks, block_table, q, asked, sinks, ..case };
        prop_assert_eq!(bits(&other.attend(Level::detect(), 2)), bits(&case.attend(Level::detect(), 2)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn keys_and_values_side_by_side_are_one_block_as_large_as_the_context(
        block_size in 1usize..65, dtype in dtypes(), asked in positions(), room in 0usize..40, window in windows(),
        threads in 1usize..4, seed in any::<u64>(),
    ) {
        let context = asked.end + room;
        let contiguous = Case::new(&alike(2, 2, 26, context, dtype), 6, asked.clone(), window, 4.0, seed);
        let paged = Case::new(&alike(2, 2, 26, block_size, dtype), 6, asked, window, 4.0, seed);
        let level = Level::detect();
        prop_assert_eq!(bits(&contiguous.attend(level, threads)), bits(&paged.attend(level, threads)));
    }

    #[test]
    fn other_layers_of_any_shape_make_no_difference(
        before in (1usize..4, 1usize..40), behind in (1usize..4, 1usize..40), per_kv_head in 1usize..5,
        half in 1usize..40, block_size in 1usize..65, dtype in dtypes(), asked in positions(), seed in any::<u64>(),
    ) {
        let among = [before, (2, half), behind]
            .map(|(num_kv_heads, half)| KvShape { num_kv_heads, head_dim: 2 * half });
        // Bytes of the other layers are NaN in every type.
        let layout = KvLayout::new(block_size, dtype, among);
        let among = Case::new(&layout, 2 * per_kv_head, asked.clone(), None, 4.0, seed);
        let alone = Case::new(&alike(2, 2, 2 * half, block_size, dtype), 2 * per_kv_head, asked, None, 4.0, seed);
        let level = Level::detect();
        prop_assert_eq!(bits(&among.attend(level, 2)), bits(&alone.attend(level, 2)));
    }

    #[test]
    fn runs_are_the_positions_in_order_and_as_long_as_blocks_allow(
        table in proptest::collection::vec(0u32..1000, 1..20), block_size in 1usize..9,
        ends in (0usize..200, 0usize..200),
    ) {
        let layer = alike(3, 2, 10, block_size, KvDType::Q8).layer(1);
        let limit = table.len() * block_size;
        let (start, end) = (ends.0.min(ends.1) % limit, ends.0.max(ends.1) % (limit + 1));
        let runs: Vec<_> = KvView::paged(&table).runs(&layer, start..end).collect();
        let slot = |position: usize| {
            table[position / block_size] as usize * layer.block_bytes() + position % block_size * layer.slot_bytes()
        };
        let slots: Vec<_> = runs
            .iter()
            .flat_map(|run| (0..run.tokens).map(|token| run.offset + token * layer.slot_bytes()))
            .collect();
        prop_assert_eq!(slots, (start..end).map(slot).collect::<Vec<_>>());
        let blocks = if start < end { start / block_size..end.div_ceil(block_size) } else { 0..0 };
        prop_assert_eq!(runs.len(), blocks.len());
    }
}

/// A table may begin at any block that no token of the span needs, wherever the borders of runs and stretches are.
#[test]
fn a_table_may_begin_at_every_legal_block() {
    for dtype in KvDType::ALL {
        let layout = alike(2, 2, 24, 16, dtype);
        let case = Case::new(&layout, 6, 2 * STRETCH + 20..2 * STRETCH + 31, Some(120), 3.0, 2);
        for level in kernel_levels() {
            let whole = bits(&case.attend_chunks(level, 1, 0, std::slice::from_ref(&case.asked)));
            let most = case.unseen(case.asked.start);
            assert!(most * 16 + 16 > 2 * STRETCH + 20 + 1 - 120 && !(most * 16).is_multiple_of(RUN));
            for cut in 0..=most {
                let cut = bits(&case.attend_cut(level, 1, 0, &case.asked, cut));
                assert!(cut == whole, "{dtype}, {}", level.name());
            }
        }
        let cut = std::panic::catch_unwind(|| {
            case.attend_cut(Level::detect(), 1, 0, &case.asked, case.unseen(case.asked.start) + 1)
        });
        assert!(cut.is_err(), "the first token sees what is gone");
    }
}

/// Layers of further groups find their blocks by numbers that do not begin at 0.
#[test]
fn blocks_of_a_further_group_have_their_own_numbers() {
    let layout = alike(2, 2, 24, 16, KvDType::F16);
    let groups = BlockGroups::new(alike(1, 1, 8, 16, KvDType::F16), 5).with(layout.clone(), 40);
    let mut case = Case::new(&layout, 4, 500..520, Some(90), 3.0, 4);
    let level = Level::detect();
    let whole = bits(&case.attend(level, 1));
    let start = groups.groups()[1].bytes().start;
    case.blocks.splice(0..0, vec![0xff; start]);
    case.layer = groups.kv(1).layer(LAYER);
    assert!(std::panic::catch_unwind(|| case.attend(level, 1)).is_err(), "blocks of the trunk");
    case.block_table.iter_mut().for_each(|block| *block += 5);
    assert_eq!(bits(&case.attend(level, 1)), whole);
    let (layer, mut blocks) = (case.layer, vec![0; case.blocks.len()]);
    let row = layer.num_kv_heads() * layer.head_dim();
    // Stored from the middle on, in a table that begins there, the same bytes come to the same places.
    let (k, v) = (Numbers(1).take(32 * row), Numbers(2).take(32 * row));
    store(&layer, &mut blocks, &case.block_table, 160, &k, &v);
    let mut cut = vec![0; blocks.len()];
    store_cut(&layer, &mut cut, &case.block_table[10..], 160, &k, &v);
    assert!(cut == blocks && blocks[..start].iter().all(|&byte| byte == 0));
}

/// Stores keys and values of the positions from `first` on, in a table whose first block begins there.
fn store_cut(layer: &KvLayer, blocks: &mut [u8], table: &[u32], first: usize, k: &[f32], v: &[f32]) {
    let tokens = k.len() / layer.num_kv_heads() / layer.head_dim();
    let held = first..first + tokens;
    let spans = [AttentionSpan { held, ..AttentionSpan::new(first, tokens, 0..table.len() as u32) }];
    let (mut q, mut keys) = (vec![0.0; tokens * layer.head_dim()], k.to_vec());
    let rotation = Rotation { style: RopeStyle::Halves, cos: &[], sin: &[] };
    let (level, blocks) = (Level::detect(), blocks.into());
    rotate_and_store(&pool(1), level, layer, blocks, &spans, table, rotation, &mut q, &mut keys, v);
}

/// Elements meet the elements of the same number, and weights the values of the same position: queries that are the
/// keys of one position, by far the closest, give that position's value and nothing else.
#[test]
fn each_element_and_each_position_meets_its_own() {
    const HEADS: usize = 3;
    for (dtype, head_dim) in KvDType::ALL.into_iter().flat_map(|dtype| [10, 26, 64, 70, 130].map(|dim| (dtype, dim))) {
        for (end, window) in [(150, None), (150, Some(37)), (90, Some(12)), (33, Some(2)), (STRETCH + 9, Some(71))] {
            let asked = end.max(60) - 60..end;
            let mut case = Case::new(&alike(2, 1, head_dim, 16, dtype), HEADS, asked.clone(), window, 1.0, 1);
            let table = case.block_table.clone();
            // The bits of the position's number.
            let key = |position: usize, d: usize| if position >> (d % 10) & 1 == 0 { -1.0f32 } else { 1.0 };
            let k: Vec<f32> = (0..end).flat_map(|at| (0..head_dim).map(move |d| key(at, d))).collect();
            // Odd numbers that every type but q8 holds exactly, none like another's nearby.
            let value = |position: usize, d: usize| ((position * 7 + d * 29) % 127 * 2) as f32 - 125.0;
            let v: Vec<f32> = (0..end).flat_map(|at| (0..head_dim).map(move |d| value(at, d))).collect();
            store(&case.layer, &mut case.blocks, &table, 0, &k, &v);
            let mut wanted = Vec::new();
            for position in asked.clone() {
                let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                for (head, chosen) in [first, position, first.midpoint(position)].into_iter().enumerate() {
                    let at = ((position - asked.start) * HEADS + head) * head_dim;
                    (0..head_dim).for_each(|d| case.q[at + d] = 1024.0 * key(chosen, d));
                    wanted.extend(case.cached(true, 0, chosen).iter().map(|&value| value as f32));
                }
            }
            for level in kernel_levels() {
                let got = case.attend(level, 1);
                assert!(got == wanted, "{dtype}, heads of {head_dim}, {end} positions, {window:?}, {}", level.name());
            }
        }
    }
}

/// A position that no longer counts has no part in the result, whatever lies there, even as half of a pair.
#[test]
fn what_a_window_has_left_behind_is_without_effect() {
    for (dtype, window) in
        KvDType::ALL.into_iter().flat_map(|dtype| [1, 2, 3, 16, 33, 64].map(|window| (dtype, window)))
    {
        let clean = Case::new(&alike(2, 2, 24, 16, dtype), 6, 0..150, Some(window), 4.0, 1);
        for bad in [0, 7, 32, 63, 64, 81] {
            let mut case = Case::new(&alike(2, 2, 24, 16, dtype), 6, 0..150, Some(window), 4.0, 1);
            let table = case.block_table.clone();
            store(&case.layer, &mut case.blocks, &table, bad, &[f32::NAN; 48], &[f32::NAN; 48]);
            for level in kernel_levels() {
                let (got, want) = (case.attend(level, 1), clean.attend(level, 1));
                let row = case.heads * case.layer.head_dim();
                for position in 0..150 {
                    let (got, want) = (&got[position * row..][..row], &want[position * row..][..row]);
                    if (bad..bad + window).contains(&position) {
                        assert!(got.iter().all(|number| number.is_nan()), "{dtype}, {position} sees {bad}");
                    } else {
                        assert_eq!(bits(got), bits(want), "{dtype}, {position} does not see {bad}, {}", level.name());
                    }
                }
            }
        }
    }
}

/// Few tokens have several KV heads in a tile, as many as leave work for all threads, and the last tile has the rest.
#[test]
fn kv_heads_are_the_same_in_one_tile_and_apart() {
    let end = 3 * STRETCH + 77;
    for (dtype, kv_heads) in KvDType::ALL.into_iter().flat_map(|dtype| [2, 5, 8].map(|kv_heads| (dtype, kv_heads))) {
        for (tokens, window) in [(1, None), (2, Some(STRETCH + 50)), (5, None)] {
            let layout = alike(2, kv_heads, 40, 16, dtype);
            let case = Case::new(&layout, 3 * kv_heads, end - tokens..end, window, 4.0, 6);
            let (enough, asked) = (4 * case.q.len() * 42, std::slice::from_ref(&case.asked));
            let level = Level::detect();
            let together = case.attend_chunks(level, 1, 0, asked);
            assert_close(&together, &case.reference(level), tolerance(level, dtype), dtype.name());
            for (threads, scratch) in [(1, enough), (2, 0), (2, enough), (3, enough), (9, enough)] {
                let apart = case.attend_chunks(level, threads, scratch, asked);
                assert!(bits(&apart) == bits(&together), "{dtype}, {kv_heads} KV heads, {threads} threads, {scratch}");
            }
        }
    }
}

/// The total is that of the weights that values are multiplied with, so equal values give themselves.
#[test]
fn weights_sum_to_one() {
    for (dtype, loudness) in KvDType::ALL.into_iter().flat_map(|dtype| [0.0, 1.0, 20.0].map(|loud| (dtype, loud))) {
        let mut case = Case::new(&alike(2, 1, 32, 16, dtype), 2, 5000..5001, None, loudness, 1);
        let table = case.block_table.clone();
        let keys = Numbers(8).take(5001 * 32);
        store(&case.layer, &mut case.blocks, &table, 0, &keys, &vec![1.0; 5001 * 32]);
        for level in kernel_levels() {
            // Q8 holds not 1, but a number close to it.
            let want = vec![case.cached(true, 0, 0)[0]; 2 * 32];
            assert_close(&case.attend(level, 2), &want, 1e-5, level.name());
        }
    }
}

/// Rounded weights cost no more over a long context than over a short one, relative to the result.
#[test]
fn errors_do_not_grow_with_the_context() {
    let level = Level::detect();
    for (length, loudness) in [60, 1000, 9000].into_iter().flat_map(|length| [1.0, 8.0].map(|loud| (length, loud))) {
        let case = Case::new(&alike(2, 2, 64, 16, KvDType::BF16), 16, length - 1..length, None, loudness, 1);
        let (got, want) = (case.attend(level, 2), case.reference(level));
        let squares = |numbers: &[f64]| numbers.iter().map(|number| number * number).sum::<f64>();
        let errors: Vec<f64> = got.iter().zip(&want).map(|(&got, want)| f64::from(got) - want).collect();
        let relative = (squares(&errors) / squares(&want)).sqrt();
        let bound = if multiplies_pairs(level, KvDType::BF16) { 2e-3 } else { 2e-6 };
        assert!(relative < bound, "{length} positions, loudness {loudness}: {relative}");
    }
}

#[test]
fn many_query_heads_and_long_heads_are_cut_into_tiles() {
    for (heads, head_dim) in [(150, 16), (9, 4096)] {
        let layout = alike(2, 1, head_dim, 16, KvDType::F32);
        let case = Case::new(&layout, heads, 70..75, None, 4.0, 3);
        let want = case.reference(Level::detect());
        let whole = case.attend(Level::detect(), 2);
        assert_close(&whole, &want, 2e-4, "tiles");
        let alone = case.attend_chunks(Level::detect(), 1, 0, &chunks_of(&case.asked, 1));
        assert_eq!(bits(&alone), bits(&whole));
    }
}

#[test]
fn an_overflow_shows_from_its_token_on_and_never_before() {
    // Keys that are not finite, or too large for their type, must not give plausible results. Tokens before them are
    // computed in one tile with those after them, and must not be affected.
    for (dtype, key) in [
        (KvDType::F16, 1e6),
        (KvDType::F32, f32::NEG_INFINITY),
        (KvDType::BF16, f32::NAN),
        (KvDType::Q8, f32::INFINITY),
        (KvDType::F32, 3e38),
    ] {
        let layout = alike(2, 1, 16, 16, dtype);
        for (in_key, bad) in [(true, 3), (false, 3), (true, 70)] {
            let mut case = Case::new(&layout, 1, 0..100, None, 100.0, 1);
            let table = case.block_table.clone();
            let clean = case.attend(Level::detect(), 1);
            let (loud, quiet) = ([key; 16], [0.0; 16]);
            let (k, v) = if in_key { (&loud, &quiet) } else { (&quiet, &loud) };
            store(&layout.layer(LAYER), &mut case.blocks, &table, bad, k, v);
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
fn an_overflow_in_one_stretch_shows_in_the_whole() {
    let layout = alike(2, 1, 16, 16, KvDType::F16);
    let mut case = Case::new(&layout, 1, 2 * STRETCH + 50..2 * STRETCH + 51, None, 1.0, 1);
    let table = case.block_table.clone();
    store(&layout.layer(LAYER), &mut case.blocks, &table, 3, &[1e6; 16], &[0.0; 16]);
    for level in kernel_levels() {
        for threads in [1, 2] {
            assert!(case.attend(level, threads).iter().all(|value| value.is_nan()), "{}", level.name());
        }
    }
}

#[test]
fn extreme_but_finite_scores_are_exact() {
    // Greatest and smallest scores are hundreds apart, and rise, so that every run scales down earlier sums.
    for dtype in KvDType::ALL {
        let layout = alike(2, 1, 64, 16, dtype);
        let mut case = Case::new(&layout, 2, 250..260, None, 1.0, 1);
        let table = case.block_table.clone();
        let mut numbers = Numbers(5);
        for position in 0..260 {
            let k: Vec<f32> = (0..64).map(|d| if d == 0 { position as f32 } else { 0.0 }).collect();
            store(&layout.layer(LAYER), &mut case.blocks, &table, position, &k, &numbers.take(64));
        }
        for (i, q) in case.q.iter_mut().enumerate() {
            *q = if i % 64 == 0 { 40.0 } else { 0.0 };
        }
        for level in kernel_levels() {
            assert_close(&case.attend(level, 2), &case.reference(level), 1e-4, level.name());
        }
    }
}

#[test]
fn what_lies_beyond_the_sequence_is_never_read() {
    // Unwritten slots hold 0xff bytes, which are NaN in every type: reading one of them would spoil the sums.
    for dtype in KvDType::ALL {
        let layout = alike(2, 1, 16, 16, dtype);
        let case = Case::new(&layout, 1, 0..65, None, 1.0, 1);
        for level in kernel_levels() {
            assert!(case.attend(level, 1).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn a_batch_without_tokens_and_sequences_without_tokens_are_nothing() {
    let layout = alike(2, 1, 16, 16, KvDType::F32);
    let case = Case::new(&layout, 2, 0..5, None, 1.0, 1);
    let level = Level::detect();
    assert!(case.attend_chunks(level, 2, 0, &[]).is_empty());
    let with_empty = case.attend_chunks(level, 2, 0, &[0..0, 0..3, 3..3, 3..5, 5..5]);
    assert_eq!(bits(&with_empty), bits(&case.attend(level, 1)));
}

#[test]
fn too_short_a_table_and_blocks_outside_the_pool_are_refused() {
    let layout = alike(2, 1, 16, 16, KvDType::F32);
    for break_it in [|table: &mut Vec<u32>| table.truncate(1), |table: &mut Vec<u32>| table[1] = 1000] {
        let mut case = Case::new(&layout, 1, 0..20, None, 1.0, 1);
        assert_eq!(case.attend(Level::detect(), 1).len(), 20 * 16);
        break_it(&mut case.block_table);
        let outcome = std::panic::catch_unwind(|| case.attend(Level::detect(), 1));
        assert!(outcome.is_err());
    }
}

#[test]
fn layers_of_different_shapes_share_a_block() {
    let shapes = [(8, 64), (1, 256), (2, 70)].map(|(num_kv_heads, head_dim)| KvShape { num_kv_heads, head_dim });
    let layout = KvLayout::new(16, KvDType::Q8, shapes);
    assert_eq!(layout.token_bytes(), 2 * (8 * (64 + 4) + (256 + 16) + 2 * (70 + 6)));
    assert_eq!((layout.num_layers(), layout.block_size(), layout.dtype()), (3, 16, KvDType::Q8));
    let mut end = 0;
    for (index, shape) in shapes.into_iter().enumerate() {
        let layer = layout.layer(index);
        assert_eq!(KvShape { num_kv_heads: layer.num_kv_heads(), head_dim: layer.head_dim() }, shape);
        assert_eq!((layer.key_offset(0), layer.block_bytes()), (end, layout.block_bytes()));
        end += 2 * layer.value_offset();
    }
    assert_eq!(end, layout.block_bytes());
    assert!(std::panic::catch_unwind(|| layout.layer(3)).is_err());
    assert_eq!(KvLayout::new(16, KvDType::Q8, []).token_bytes(), 0);
}

#[test]
fn a_block_is_one_contiguous_piece() {
    let layout = alike(16, 8, 64, 16, KvDType::BF16);
    assert_eq!(layout.token_bytes(), 16 * 2 * 8 * 64 * 2);
    assert_eq!(layout.block_bytes(), 16 * layout.token_bytes());
    let layout = alike(16, 8, 70, 16, KvDType::Q8);
    assert_eq!(layout.token_bytes(), 16 * 2 * 8 * (70 + 3 * 2));
}
