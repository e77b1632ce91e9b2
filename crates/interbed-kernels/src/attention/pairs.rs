//! Attention over bf16 keys and values in dot products of pairs, at the levels that round the activations of bf16
//! models to bf16.
//!
//! Queries and softmax weights are rounded to bf16. Each step of a chain adds the products of a pair: two neighbouring
//! elements of a head for a score, two neighbouring positions (an even one and the next) for a weighted value. All sums
//! and the softmax state are f32. The total of a row adds up the rounded weights, so that they sum to 1.
//!
//! If a row sees only one position of a pair, the other position counts as a weight of zero and a value of zero,
//! whatever lies there.

use std::ops::Range;

use super::products::HeadSlots;
use super::softmax::Seen;
use super::{CHUNK, RUN};
use crate::{DType, KvDType, Level};

/// The number of elements to which a row of rounded queries is padded with zeros.
const STEP: usize = 32;

/// Returns whether attention over keys and values of type `dtype` multiplies pairs at this level.
pub(super) fn runs_at(level: Level, dtype: KvDType) -> bool {
    dtype == KvDType::BF16 && level.rounds_activations(DType::BF16)
}

/// Returns the number of words, of two elements each, of a rounded query.
pub(super) const fn query_words(head_dim: usize) -> usize {
    head_dim.next_multiple_of(STEP) / 2
}

/// The operands of one run of [`RUN`] positions.
pub(super) struct PairRun<'a> {
    /// The keys. Those that no row sees have the address of any readable slot.
    pub slots: HeadSlots<'a>,
    /// Keys that are needed later. They and their values are prefetched meanwhile.
    pub later: HeadSlots<'a>,
    /// The number of bytes between a key and its value.
    pub value_offset: usize,
    pub head_dim: usize,
    /// The keys of the run that some row sees. The run's other values are not read.
    pub run: Range<usize>,
    /// The keys of the run that each row sees.
    pub keys: &'a [Range<usize>],
    /// The rounded queries, `[row, query_words]`.
    pub queries: *const u32,
    /// The factor of the scores.
    pub scale: f32,
    /// Room for a chunk of keys, `[CHUNK / 2, RUN]`, or of values, `[RUN / 2, CHUNK]`.
    pub words: *mut u32,
    /// Room for the scores, `[row, RUN]`, and later for the weights, two to a word and as far apart.
    pub scores: *mut f32,
}

/// Rounds `queries`, `[head_dim]` each, to bf16 in `to`, `[queries, query_words]`.
///
/// # Safety
/// The pointers are readable and writable in these shapes.
///
/// # Panics
/// Panics if the level does not multiply pairs.
pub(super) unsafe fn round_queries(level: Level, queries: &[*const f32], head_dim: usize, to: *mut u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller; the token proves the instructions.
    unsafe {
        x86::round_kernel(x86::token(level), queries, head_dim, to)
    };
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{level:?} multiplies no pairs of {} queries of {head_dim} to {to:?}", queries.len());
}

/// Computes attention over one run: updates each row's softmax state in `seen`, and the row's sums, `[head_dim]` each.
///
/// # Safety
/// Keys and values are readable, and the memory that the operands and `sums` name is writable, in the stated shapes.
///
/// # Panics
/// Panics if the level does not multiply pairs.
pub(super) unsafe fn attend_pairs(level: Level, run: &PairRun<'_>, seen: &mut [Seen], sums: &[*mut f32]) {
    assert!(seen.len() == run.keys.len() && sums.len() == run.keys.len());
    debug_assert!(!run.run.is_empty());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller; the token proves the instructions.
    unsafe {
        x86::run_kernel(x86::token(level), run, seen, sums)
    };
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{level:?} multiplies no pairs");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::lanes::Lanes;
    use super::super::products::last_words;
    use super::super::softmax::{multiply, shrinking};
    use super::*;
    use crate::matmul::bf16::round;
    use crate::simd::{Bf16Dots, LANES, Simd, exp, prefetch_second};

    /// The number of vectors of a run's scores.
    const VECTORS: usize = RUN / LANES;

    /// The number of rows up to which values are interleaved again for each block of rows.
    const ROWS: usize = 6;

    /// The number of bf16 elements in 16 bytes.
    const COLUMNS: usize = 8;

    pub(super) fn token(level: Level) -> Bf16Dots {
        Bf16Dots::of(level).expect("a level that multiplies pairs")
    }

    /// Implements [`super::round_queries`].
    ///
    /// # Safety
    /// The conditions of [`super::round_queries`] hold.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn round_kernel(s: Bf16Dots, queries: &[*const f32], head_dim: usize, to: *mut u32) {
        for (row, &query) in queries.iter().enumerate() {
            // SAFETY: guaranteed by the caller; rows are padded to whole steps.
            unsafe {
                let query = std::slice::from_raw_parts(query, head_dim);
                let to = to.add(row * query_words(head_dim)).cast::<[u16; STEP]>();
                for (step, from) in query.chunks(STEP).enumerate() {
                    s.store512(round(s, from), &mut *to.add(step));
                }
            }
        }
    }

    /// Implements [`super::attend_pairs`].
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn run_kernel(s: Bf16Dots, o: &PairRun<'_>, seen: &mut [Seen], sums: &[*mut f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for first in (0..o.head_dim).step_by(CHUNK) {
                let chunk = first..o.head_dim.min(first + CHUNK);
                turn_keys(s, o, chunk.clone());
                score_rows(s, o, chunk);
            }
            for row in 0..o.keys.len() {
                if !o.keys[row].is_empty() {
                    let sums = std::slice::from_raw_parts_mut(sums[row], o.head_dim);
                    weigh_row(s, o.scores.add(row * RUN), &o.keys[row], o.scale, &mut seen[row], sums);
                }
            }
            let is_whole = |keys: &Range<usize>| *keys == (0..RUN);
            let (few, all) = (o.keys.len() <= ROWS, o.keys.iter().all(is_whole));
            for first in (0..o.head_dim).step_by(CHUNK) {
                let chunk = first..o.head_dim.min(first + CHUNK);
                if few && all && chunk.len() == CHUNK {
                    add_whole_values(s, o, first, sums);
                } else {
                    pair_values(s, o, chunk.clone());
                    add_values(s, o, chunk, sums);
                }
            }
        }
    }

    #[inline(always)]
    fn pairs(bits: __m512i) -> __m512bh {
        // SAFETY: both types are 64 bytes without invalid values.
        unsafe { std::mem::transmute(bits) }
    }

    /// Loads sixteen words.
    ///
    /// # Safety
    /// The words are readable.
    #[inline(always)]
    unsafe fn load_words(s: Bf16Dots, from: *const u32) -> __m512i {
        // SAFETY: guaranteed by the caller.
        s.load512(unsafe { &*from.cast::<[u32; LANES]>() })
    }

    /// Loads a word into all lanes.
    ///
    /// # Safety
    /// The word is readable.
    #[inline(always)]
    unsafe fn splat_word(s: Bf16Dots, from: *const u32) -> __m512bh {
        // SAFETY: guaranteed by the caller.
        pairs(s._mm512_set1_epi32(unsafe { from.read() }.cast_signed()))
    }

    /// Returns a mask of the lanes of a vector from number `first` on that `range` contains.
    #[inline(always)]
    fn lanes_in(range: &Range<usize>, first: usize) -> u16 {
        let below = |end: usize| (1u32 << end.saturating_sub(first).min(LANES)) - 1;
        (below(range.end) & !below(range.start)) as u16
    }

    /// Prefetches the elements `chunk` of later keys, or of what lies `offset` bytes behind them, into the L2 cache.
    /// The processor drops prefetches that come in bursts, so a loop asks for a few `keys` in each of its steps.
    #[inline(always)]
    fn prefetch_some(o: &PairRun<'_>, chunk: &Range<usize>, keys: Range<usize>, offset: usize) {
        const LINE: usize = 64;
        for key in keys {
            for line in (2 * chunk.start..2 * chunk.end).step_by(LINE) {
                prefetch_second(o.later.at(key).wrapping_add(offset + line));
            }
        }
    }

    /// Transposes the elements `chunk` of the run's keys: writes the pairs of all keys side by side,
    /// `[chunk / 2, RUN]`.
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold.
    #[inline(always)]
    unsafe fn turn_keys(s: Bf16Dots, o: &PairRun<'_>, chunk: Range<usize>) {
        let end = 2 * o.head_dim;
        // The number of later keys of the vector that each step asks for.
        let asked = LANES.div_ceil(chunk.len().div_ceil(COLUMNS));
        for vector in o.run.start / LANES..o.run.end.div_ceil(LANES) {
            let first = vector * LANES;
            for (step, d) in chunk.clone().step_by(COLUMNS).enumerate() {
                let key = |step: usize| first + LANES.min(step * asked);
                prefetch_some(o, &chunk, key(step)..key(step + 1), 0);
                // SAFETY: 16 bytes from element `d` on are in the slot, or only those in the slot are copied; the chunk
                // has whole sets of columns.
                unsafe {
                    let words = if 2 * d + 16 <= end {
                        s.words_of_rows(std::array::from_fn(|row| &*o.slots.at(first + row).add(2 * d).cast()))
                    } else {
                        last_words(*s, &std::array::from_fn(|row| o.slots.at(first + row)), 2 * d, end)
                    };
                    let to = o.words.add((d - chunk.start) / 2 * RUN + first);
                    for word in 0..4 {
                        s.store_at(words[word], to.add(word * RUN).cast());
                    }
                }
            }
        }
    }

    /// Adds the products over the elements `chunk` to the scores of all rows. The first chunk initializes the scores.
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold, and the words are keys.
    #[inline(always)]
    unsafe fn score_rows(s: Bf16Dots, o: &PairRun<'_>, chunk: Range<usize>) {
        let (first, end) = (o.run.start / LANES, o.run.end.div_ceil(LANES));
        let (rows, mut row) = (o.keys.len(), 0);
        while row < rows {
            // SAFETY: guaranteed by the caller.
            row += unsafe {
                match (rows - row, end - first) {
                    (6.., VECTORS) => score_block::<6, VECTORS>(s, o, &chunk, row, 0),
                    (4.., VECTORS) => score_block::<4, VECTORS>(s, o, &chunk, row, 0),
                    (2.., VECTORS) => score_block::<2, VECTORS>(s, o, &chunk, row, 0),
                    (_, VECTORS) => score_block::<1, VECTORS>(s, o, &chunk, row, 0),
                    (4.., _) => (first..end).fold(0, |_, vector| score_block::<4, 1>(s, o, &chunk, row, vector)),
                    (_, _) => (first..end).fold(0, |_, vector| score_block::<1, 1>(s, o, &chunk, row, vector)),
                }
            };
        }
    }

    /// Adds the products of `ROWS` queries with `VECTORS` vectors of keys to the scores. Returns `ROWS`.
    ///
    /// # Safety
    /// The conditions of [`score_rows`] hold.
    #[inline(always)]
    unsafe fn score_block<const ROWS: usize, const VECTORS: usize>(
        s: Bf16Dots,
        o: &PairRun<'_>,
        chunk: &Range<usize>,
        row: usize,
        vector: usize,
    ) -> usize {
        let stride = query_words(o.head_dim);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (keys, scores) = (o.words.add(vector * LANES), o.scores.add(row * RUN + vector * LANES));
            let queries = o.queries.add(row * stride + chunk.start / 2);
            let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
            if chunk.start > 0 {
                for row in 0..ROWS {
                    for vector in 0..VECTORS {
                        sums[row][vector] = s.load_at(scores.add(row * RUN + vector * LANES));
                    }
                }
            }
            for pair in 0..chunk.len().div_ceil(2) {
                let mut columns = [s._mm512_setzero_si512(); VECTORS];
                for vector in 0..VECTORS {
                    columns[vector] = load_words(s, keys.add(pair * RUN + vector * LANES));
                }
                for row in 0..ROWS {
                    let query = splat_word(s, queries.add(row * stride + pair));
                    for vector in 0..VECTORS {
                        sums[row][vector] = s._mm512_dpbf16_ps(sums[row][vector], query, pairs(columns[vector]));
                    }
                }
            }
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    s.store_at(sums[row][vector], scores.add(row * RUN + vector * LANES));
                }
            }
        }
        ROWS
    }

    /// Turns one row's products with the run's keys into rounded weights relative to the greatest score so far, two to
    /// a word, and scales down the row's sums when its greatest score grows. Keys outside `keys` get weight zero.
    ///
    /// # Safety
    /// [`RUN`] elements are writable at `scores`, and those in `keys`, which is not empty, hold products.
    #[inline(always)]
    unsafe fn weigh_row(
        s: Bf16Dots,
        scores: *mut f32,
        keys: &Range<usize>,
        scale: f32,
        seen: &mut Seen,
        sums: &mut [f32],
    ) {
        let (before, zero) = (*seen, s.splat(0.0));
        let nothing = s.splat(f32::NEG_INFINITY);
        let mut weights = [zero; VECTORS];
        let mut masks = [0; VECTORS];
        for vector in 0..VECTORS {
            masks[vector] = lanes_in(keys, vector * LANES);
            // SAFETY: lanes that are masked out are not read; the token proves the instructions.
            let products = unsafe { _mm512_maskz_loadu_ps(masks[vector], scores.add(vector * LANES)) };
            weights[vector] = s._mm512_mask_mul_ps(nothing, masks[vector], products, s.splat(scale));
        }
        let high = s.max(s.max(weights[0], weights[1]), s.max(weights[2], weights[3]));
        seen.greatest = before.greatest.max(s.max_lane(high));
        let shift = s.splat(-seen.greatest);
        for vector in 0..VECTORS {
            let score = weights[vector];
            // The product adds nothing to the weight of a finite score, and NaN to any other.
            let weight = s.fma(score, zero, exp(*s, s.add(score, shift)));
            weights[vector] = s._mm512_maskz_mov_ps(masks[vector], weight);
        }
        let ones = pairs(s._mm512_set1_epi32(0x3f80_3f80));
        let mut total = zero;
        for half in 0..VECTORS / 2 {
            let rounded = s._mm512_cvtne2ps_pbh(weights[2 * half + 1], weights[2 * half]);
            total = s._mm512_dpbf16_ps(total, rounded, ones);
            // SAFETY: the weights take half as much memory as the scores; the types have the same size.
            unsafe {
                s.store512(
                    std::mem::transmute::<__m512bh, __m512i>(rounded),
                    &mut *scores.cast::<[u16; 32]>().add(half),
                )
            };
        }
        let correction = shrinking(*s, before.greatest, seen.greatest);
        seen.total = before.total * correction + s.sum(total);
        if correction != 1.0 {
            multiply(*s, sums, correction);
        }
    }

    /// Returns where the elements of two vectors go so that those from number `first` on alternate.
    const fn interleaved(first: u16) -> [u16; 32] {
        let (mut index, mut at) = ([0; 32], 0);
        while at < 32 {
            index[at] = first + at as u16 / 2 + (at as u16 % 2) * 32;
            at += 1;
        }
        index
    }

    /// Interleaves the elements `chunk` of the run's values: writes words of an even position's element and the next
    /// position's, `[RUN / 2, CHUNK]`, for the pairs that `o.run` touches. Values outside `o.run` count as zeros.
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold.
    #[inline(always)]
    unsafe fn pair_values(s: Bf16Dots, o: &PairRun<'_>, chunk: Range<usize>) {
        let [low, high] = [s.load512(&const { interleaved(0) }), s.load512(&const { interleaved(16) })];
        for pair in o.run.start / 2..o.run.end.div_ceil(2) {
            prefetch_some(o, &chunk, 2 * pair..2 * pair + 2, o.value_offset);
            for d in (0..chunk.len()).step_by(STEP) {
                let elements = u32::MAX >> (STEP - STEP.min(chunk.len() - d));
                let load = |key: usize| {
                    let mask = if o.run.contains(&key) { elements } else { 0 };
                    let from = o.slots.at(key).wrapping_add(o.value_offset + 2 * (chunk.start + d));
                    // SAFETY: masked lanes are not read, and the others are elements of a readable value; the token
                    // proves the instructions.
                    unsafe { _mm512_maskz_loadu_epi16(mask, from.cast()) }
                };
                let (even, odd) = (load(2 * pair), load(2 * pair + 1));
                // SAFETY: a step ends within the chunk.
                unsafe {
                    let to = o.words.add(pair * CHUNK + d).cast::<[u32; LANES]>();
                    s.store512(s._mm512_permutex2var_epi16(even, low, odd), &mut *to);
                    s.store512(s._mm512_permutex2var_epi16(even, high, odd), &mut *to.add(1));
                }
            }
        }
    }

    /// Adds to the [`CHUNK`] elements from `first` on of up to [`ROWS`] rows' sums the weighted values of a run that
    /// all rows see whole. Interleaves values as it goes.
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold, and the scores are weights.
    #[inline(always)]
    unsafe fn add_whole_values(s: Bf16Dots, o: &PairRun<'_>, first: usize, sums: &[*mut f32]) {
        let (rows, mut row) = (o.keys.len(), 0);
        while row < rows {
            // SAFETY: guaranteed by the caller.
            row += unsafe {
                match rows - row {
                    6.. => whole_values::<6>(s, o, first, row, sums),
                    4.. => whole_values::<4>(s, o, first, row, sums),
                    2.. => whole_values::<2>(s, o, first, row, sums),
                    _ => whole_values::<1>(s, o, first, row, sums),
                }
            };
        }
    }

    /// Implements [`add_whole_values`] for `ROWS` rows. Returns `ROWS`.
    ///
    /// # Safety
    /// The conditions of [`add_whole_values`] hold.
    #[inline(always)]
    unsafe fn whole_values<const ROWS: usize>(
        s: Bf16Dots,
        o: &PairRun<'_>,
        first: usize,
        row: usize,
        sums: &[*mut f32],
    ) -> usize {
        const VECTORS: usize = CHUNK / LANES;
        let [low, high] = [s.load512(&const { interleaved(0) }), s.load512(&const { interleaved(16) })];
        // SAFETY: guaranteed by the caller.
        unsafe {
            let weights = o.scores.cast::<u32>().add(row * RUN);
            let mut lanes = [[s.splat(0.0); VECTORS]; ROWS];
            for row_of_block in 0..ROWS {
                for vector in 0..VECTORS {
                    lanes[row_of_block][vector] = s.load_at(sums[row + row_of_block].add(first + vector * LANES));
                }
            }
            for pair in 0..RUN / 2 {
                if row == 0 {
                    prefetch_some(o, &(first..first + CHUNK), 2 * pair..2 * pair + 2, o.value_offset);
                }
                let mut words = [s._mm512_setzero_si512(); VECTORS];
                for half in 0..VECTORS / 2 {
                    let at = o.value_offset + 2 * (first + half * STEP);
                    let [even, odd] =
                        [0, 1].map(|odd| s.load512(&*o.slots.at(2 * pair + odd).add(at).cast::<[u8; 64]>()));
                    words[2 * half] = s._mm512_permutex2var_epi16(even, low, odd);
                    words[2 * half + 1] = s._mm512_permutex2var_epi16(even, high, odd);
                }
                for row in 0..ROWS {
                    let weight = splat_word(s, weights.add(row * RUN + pair));
                    for vector in 0..VECTORS {
                        lanes[row][vector] = s._mm512_dpbf16_ps(lanes[row][vector], weight, pairs(words[vector]));
                    }
                }
            }
            for row_of_block in 0..ROWS {
                for vector in 0..VECTORS {
                    s.store_at(lanes[row_of_block][vector], sums[row + row_of_block].add(first + vector * LANES));
                }
            }
        }
        ROWS
    }

    /// Adds to the elements `chunk` of all rows' sums the weighted values of the keys that each row sees. Rows are
    /// processed in blocks: first the keys that only some rows of a block see before the others, row by row; then the
    /// pairs that all rows of the block see whole, together; then the keys that only some rows see afterwards. So each
    /// row's chain goes through its pairs in ascending order.
    ///
    /// # Safety
    /// The conditions of [`super::attend_pairs`] hold; the words are values, and the scores are weights.
    #[inline(always)]
    unsafe fn add_values(s: Bf16Dots, o: &PairRun<'_>, chunk: Range<usize>, sums: &[*mut f32]) {
        let (rows, mut first) = (o.keys.len(), 0);
        while first < rows {
            let count = match rows - first {
                6.. => 6,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            let block = &o.keys[first..first + count];
            let mut common = 0..RUN / 2;
            for keys in block {
                common = common.start.max(keys.start.div_ceil(2))..common.end.min(keys.end / 2);
            }
            // If the rows have no pair in common, all of their keys count as early ones.
            common = if common.is_empty() { RUN / 2..RUN / 2 } else { common };
            // SAFETY: guaranteed by the caller.
            unsafe {
                for (row, keys) in block.iter().enumerate() {
                    value_row(s, o, &chunk, first + row, sums, keys.start..keys.end.min(2 * common.start));
                }
                if !common.is_empty() {
                    let common = common.clone();
                    match count {
                        6 => value_rows::<6>(s, o, &chunk, first, sums, common),
                        4 => value_rows::<4>(s, o, &chunk, first, sums, common),
                        2 => value_rows::<2>(s, o, &chunk, first, sums, common),
                        _ => value_rows::<1>(s, o, &chunk, first, sums, common),
                    }
                }
                for (row, keys) in block.iter().enumerate() {
                    value_row(s, o, &chunk, first + row, sums, keys.start.max(2 * common.end)..keys.end);
                }
            }
            first += count;
        }
    }

    /// Adds the weighted values of whole pairs to `ROWS` rows.
    ///
    /// # Safety
    /// The conditions of [`add_values`] hold.
    #[inline(always)]
    unsafe fn value_rows<const ROWS: usize>(
        s: Bf16Dots,
        o: &PairRun<'_>,
        chunk: &Range<usize>,
        row: usize,
        sums: &[*mut f32],
        range: Range<usize>,
    ) {
        let block = ValueBlock { row, at: 0, first: chunk.start, count: chunk.len(), pairs: range };
        let mut at = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            while at < chunk.len() {
                let block = ValueBlock { at, pairs: block.pairs.clone(), ..block };
                at += if at + 4 * LANES <= chunk.len() {
                    value_block::<ROWS, 4>(s, o, &block, sums)
                } else {
                    value_block::<ROWS, 1>(s, o, &block, sums)
                };
            }
        }
    }

    /// Some elements of the sums of some rows, and the pairs whose values are added.
    struct ValueBlock {
        /// The first of the rows.
        row: usize,
        /// The first element, counted from the chunk's first.
        at: usize,
        /// The number of the chunk's first element.
        first: usize,
        /// The number of elements of the chunk.
        count: usize,
        pairs: Range<usize>,
    }

    /// Adds the weighted values of whole pairs to `VECTORS` vectors of `ROWS` rows. Returns the number of elements.
    ///
    /// # Safety
    /// The conditions of [`add_values`] hold.
    #[inline(always)]
    unsafe fn value_block<const ROWS: usize, const VECTORS: usize>(
        s: Bf16Dots,
        o: &PairRun<'_>,
        block: &ValueBlock,
        sums: &[*mut f32],
    ) -> usize {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (weights, values) = (o.scores.cast::<u32>().add(block.row * RUN), o.words.add(block.at));
            let mut lanes = [[s.splat(0.0); VECTORS]; ROWS];
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    lanes[row][vector] = load_sums(block, vector, sums[block.row + row]);
                }
            }
            for pair in block.pairs.clone() {
                let mut words = [s._mm512_setzero_si512(); VECTORS];
                for vector in 0..VECTORS {
                    words[vector] = load_words(s, values.add(pair * CHUNK + vector * LANES));
                }
                for row in 0..ROWS {
                    let weight = splat_word(s, weights.add(row * RUN + pair));
                    for vector in 0..VECTORS {
                        lanes[row][vector] = s._mm512_dpbf16_ps(lanes[row][vector], weight, pairs(words[vector]));
                    }
                }
            }
            for row in 0..ROWS {
                for vector in 0..VECTORS {
                    store_sums(block, vector, lanes[row][vector], sums[block.row + row]);
                }
            }
        }
        VECTORS * LANES
    }

    /// Adds the weighted values of `keys` to one row. A position of a pair that `keys` does not contain counts as a
    /// value of zero.
    ///
    /// # Safety
    /// The conditions of [`add_values`] hold; the weight of such a position is zero.
    #[inline(always)]
    unsafe fn value_row(
        s: Bf16Dots,
        o: &PairRun<'_>,
        chunk: &Range<usize>,
        row: usize,
        sums: &[*mut f32],
        keys: Range<usize>,
    ) {
        if keys.is_empty() {
            return;
        }
        let range = keys.start / 2..keys.end.div_ceil(2);
        for at in (0..chunk.len()).step_by(LANES) {
            let block = ValueBlock { row, at, first: chunk.start, count: chunk.len(), pairs: range.clone() };
            // SAFETY: guaranteed by the caller.
            unsafe {
                let weights = o.scores.cast::<u32>().add(row * RUN);
                let mut lanes = load_sums(&block, 0, sums[row]);
                for pair in range.clone() {
                    let even = if keys.contains(&(2 * pair)) { 0xffff } else { 0 };
                    let odd = if keys.contains(&(2 * pair + 1)) { 0xffff_0000 } else { 0u32 };
                    let mask = s._mm512_set1_epi32((even | odd).cast_signed());
                    let words = s._mm512_and_si512(load_words(s, o.words.add(pair * CHUNK + at)), mask);
                    lanes = s._mm512_dpbf16_ps(lanes, splat_word(s, weights.add(pair)), pairs(words));
                }
                store_sums(&block, 0, lanes, sums[row]);
            }
        }
    }

    /// Loads a vector of a row's sums, padded with zeros.
    ///
    /// # Safety
    /// The sums are readable.
    #[inline(always)]
    unsafe fn load_sums(block: &ValueBlock, vector: usize, sums: *const f32) -> __m512 {
        let at = block.at + vector * LANES;
        // SAFETY: masked lanes are not read, and the others are guaranteed by the caller.
        unsafe { _mm512_maskz_loadu_ps(lanes_in(&(0..block.count), at), sums.wrapping_add(block.first + at)) }
    }

    /// Stores a vector of a row's sums.
    ///
    /// # Safety
    /// The sums are writable.
    #[inline(always)]
    unsafe fn store_sums(block: &ValueBlock, vector: usize, lanes: __m512, sums: *mut f32) {
        let at = block.at + vector * LANES;
        // SAFETY: masked lanes are not written, and the others are guaranteed by the caller.
        unsafe { _mm512_mask_storeu_ps(sums.wrapping_add(block.first + at), lanes_in(&(0..block.count), at), lanes) }
    }
}
