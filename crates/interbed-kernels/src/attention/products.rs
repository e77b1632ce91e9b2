//! Computes the two products of attention, blocked in registers: queries with keys, and softmax weights with values.
//!
//! A score is one chain of multiply-adds over the elements of a head. A weighted value is one chain over the keys.
//! Blocking only decides which chains run side by side.

use std::ops::Range;

use super::element::{KvElement, Q8};
use super::lanes::Lanes;
use super::{CHUNK, RUN};
use crate::simd::{Bf16, F16, F32, LANES, Simd, dispatch, load_part, store_few};
use crate::{KvDType, Level};

/// Adds the products over the elements `chunk` of a head to the scores of `queries.len()` rows. The first chunk
/// initializes the scores.
///
/// - `queries`: `[head_dim]` each
/// - `columns`: `[chunk, RUN]`, the chunk's elements of the run's keys
/// - `keys`: the keys of the run that the rows see
/// - `scores`: `[rows, RUN]`
///
/// # Safety
/// The pointers are readable and writable in these shapes.
pub(super) unsafe fn add_scores(
    level: Level,
    queries: &[*const f32],
    columns: *const f32,
    chunk: Range<usize>,
    keys: &Range<usize>,
    scores: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    dispatch!(level, unsafe score_kernel::<_>(
        queries: &[*const f32], columns: *const f32, chunk: Range<usize>, keys: &Range<usize>, scores: *mut f32
    ));
}

/// Implements [`add_scores`] for one level.
///
/// # Safety
/// The conditions of [`add_scores`] hold.
#[inline(always)]
unsafe fn score_kernel<S: Simd>(
    s: S,
    queries: &[*const f32],
    columns: *const f32,
    chunk: Range<usize>,
    keys: &Range<usize>,
    scores: *mut f32,
) {
    let (first, end) = (keys.start / LANES, keys.end.div_ceil(LANES));
    let rows = queries.len();
    let mut row = 0;
    // SAFETY: rows and vectors are within the memory that the caller guarantees.
    unsafe {
        while row < rows {
            let (queries, scores) = (queries.as_ptr().add(row), scores.add(row * RUN));
            row += match (rows - row, S::MANY_REGISTERS) {
                (6.., true) => score_rows::<S, 6, 4>(s, queries, columns, chunk.clone(), first..end, scores),
                (4.., true) => score_rows::<S, 4, 4>(s, queries, columns, chunk.clone(), first..end, scores),
                (4.., false) => score_rows::<S, 4, 1>(s, queries, columns, chunk.clone(), first..end, scores),
                (2.., true) => score_rows::<S, 2, 4>(s, queries, columns, chunk.clone(), first..end, scores),
                (2.., false) => score_rows::<S, 2, 2>(s, queries, columns, chunk.clone(), first..end, scores),
                (..2, _) => score_rows::<S, 1, 4>(s, queries, columns, chunk.clone(), first..end, scores),
            };
        }
    }
}

/// Computes [`add_scores`] for `ROWS` rows, `VECTORS` vectors of keys at a time. Returns `ROWS`.
///
/// # Safety
/// The conditions of [`add_scores`] hold.
#[inline(always)]
unsafe fn score_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    queries: *const *const f32,
    columns: *const f32,
    chunk: Range<usize>,
    vectors: Range<usize>,
    scores: *mut f32,
) -> usize {
    let mut vector = vectors.start;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while vector + VECTORS <= vectors.end {
            let at = vector * LANES;
            score_block::<S, ROWS, VECTORS>(s, queries, columns.add(at), chunk.clone(), scores.add(at));
            vector += VECTORS;
        }
        while vector < vectors.end {
            let at = vector * LANES;
            score_block::<S, ROWS, 1>(s, queries, columns.add(at), chunk.clone(), scores.add(at));
            vector += 1;
        }
    }
    ROWS
}

/// Adds the products of `ROWS` queries with `VECTORS` vectors of keys to the scores.
///
/// # Safety
/// The conditions of [`add_scores`] hold, for these rows and vectors.
#[inline(always)]
unsafe fn score_block<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    queries: *const *const f32,
    columns: *const f32,
    chunk: Range<usize>,
    scores: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut query = [std::ptr::null::<f32>(); ROWS];
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            query[row] = (*queries.add(row)).add(chunk.start);
            if chunk.start > 0 {
                for vector in 0..VECTORS {
                    sums[row][vector] = s.load_at(scores.add(row * RUN + vector * LANES));
                }
            }
        }
        for d in 0..chunk.len() {
            let mut keys = [s.splat(0.0); VECTORS];
            for vector in 0..VECTORS {
                keys[vector] = s.load_at(columns.add(d * RUN + vector * LANES));
            }
            for row in 0..ROWS {
                let element = s.splat(*query[row].add(d));
                for vector in 0..VECTORS {
                    sums[row][vector] = s.fma(keys[vector], element, sums[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                s.store_at(sums[row][vector], scores.add(row * RUN + vector * LANES));
            }
        }
    }
}

/// The keys of one KV head in a run.
#[derive(Clone, Copy)]
pub(super) struct HeadSlots<'a> {
    /// The addresses of the run's keys of the first KV head of a tile.
    pub slots: &'a [*const u8; RUN],
    /// The number of bytes from those to this head's.
    pub offset: usize,
}

impl HeadSlots<'_> {
    /// Returns the address of a key.
    #[inline(always)]
    pub fn at(&self, key: usize) -> *const u8 {
        self.slots[key].wrapping_add(self.offset)
    }
}

/// The addresses of a run's keys or values, and the elements of them that are wanted.
#[derive(Clone, Copy)]
pub(super) struct RowSlots<'a> {
    /// The address of the slot of each key of the run. Only the slots of visible keys are read.
    pub slots: &'a [*const u8; RUN],
    /// The number of elements of a slot.
    pub head_dim: usize,
    /// The index of the first element to read from each slot, a multiple of [`LANES`].
    pub first: usize,
    /// The number of elements to read from each slot, up to [`CHUNK`].
    pub count: usize,
    /// Slots that are needed later. The same elements of them are prefetched meanwhile.
    pub later: Option<HeadSlots<'a>>,
}

impl RowSlots<'_> {
    /// Prefetches the wanted elements of `keys` later slots into the L2 cache. Processors drop prefetches that come in
    /// bursts, so a loop asks for a few in each of its steps.
    #[inline(always)]
    fn prefetch_some<S: Simd, E: KvElement>(&self, s: S, keys: Range<usize>) {
        const LINE: usize = 64;
        let Some(later) = self.later else { return };
        let start = if self.first == 0 { 0 } else { E::offset(self.head_dim, self.first) };
        for key in keys {
            for at in (start..E::offset(self.head_dim, self.first + self.count)).step_by(LINE) {
                s.prefetch_second(later.at(key).wrapping_add(at));
            }
        }
    }
}

/// Adds to each row's sums the weighted values of the keys that the row sees.
///
/// - `weights`: `[rows, RUN]`
/// - `keys`: the keys of the run that each row sees
/// - `sums`: `[head_dim]` each, updated from element `at` on
///
/// # Safety
/// The slots of visible keys are readable, and hold elements of `dtype`; the sums are writable.
pub(super) unsafe fn add_values(
    level: Level,
    dtype: KvDType,
    weights: *const f32,
    keys: &[Range<usize>],
    values: RowSlots<'_>,
    sums: &[*mut f32],
    at: usize,
) {
    macro_rules! add {
        ($element:ident) => {
            // SAFETY: guaranteed by the caller.
            dispatch!(level, unsafe value_kernel::<_, $element>(
                weights: *const f32, keys: &[Range<usize>], values: RowSlots<'_>, sums: &[*mut f32], at: usize
            ))
        };
    }
    match dtype {
        KvDType::F32 => add!(F32),
        KvDType::F16 => add!(F16),
        KvDType::BF16 => add!(Bf16),
        KvDType::Q8 => add!(Q8),
    }
}

/// Implements [`add_values`] for one level. Rows are processed in blocks: first the keys that only some rows of a block
/// see before the others, row by row; then the keys that all rows of the block see, together; then the keys that only
/// some rows see afterwards. So each row's chain goes through its keys in ascending order.
///
/// # Safety
/// The conditions of [`add_values`] hold.
#[inline(always)]
unsafe fn value_kernel<S: Lanes, E: KvElement>(
    s: S,
    weights: *const f32,
    keys: &[Range<usize>],
    values: RowSlots<'_>,
    sums: &[*mut f32],
    at: usize,
) {
    let rows = keys.len();
    let mut first = 0;
    while first < rows {
        let count = match rows - first {
            6.. if S::MANY_REGISTERS => 6,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let block = &keys[first..first + count];
        let mut common = 0..RUN;
        for keys in block {
            common = common.start.max(keys.start)..common.end.min(keys.end);
        }
        // If the rows have no key in common, all of their keys count as early ones.
        common = if common.is_empty() { RUN..RUN } else { common };
        // The first `count` steps are the early keys of single rows, then comes the block, then the late keys of single
        // rows.
        let steps = if count == 1 { 0..1 } else { 0..2 * count + 1 };
        for step in steps {
            let (row, size, keys) = match step {
                _ if count == 1 => (0, 1, block[0].clone()),
                _ if step < count => (step, 1, block[step].start..block[step].end.min(common.start)),
                _ if step == count => (0, count, common.clone()),
                _ => (step - count - 1, 1, block[step - count - 1].start.max(common.end)..block[step - count - 1].end),
            };
            if keys.is_empty() {
                continue;
            }
            let row = first + row;
            // Each key is prefetched once, with the first row.
            let values = RowSlots { later: values.later.filter(|_| row == 0), ..values };
            // SAFETY: rows are within the memory that the caller guarantees.
            unsafe {
                let (weights, sums) = (weights.add(row * RUN), sums.as_ptr().add(row));
                match (size, S::MANY_REGISTERS) {
                    (6, true) => value_span::<S, E, 6, 4>(s, weights, keys, values, sums, at),
                    (4, true) => value_span::<S, E, 4, 4>(s, weights, keys, values, sums, at),
                    (4, false) => value_span::<S, E, 4, 1>(s, weights, keys, values, sums, at),
                    (2, true) => value_span::<S, E, 2, 4>(s, weights, keys, values, sums, at),
                    (2, false) => value_span::<S, E, 2, 2>(s, weights, keys, values, sums, at),
                    _ => value_span::<S, E, 1, 4>(s, weights, keys, values, sums, at),
                }
            }
        }
        first += count;
    }
}

/// Adds the weighted values of `keys` to `ROWS` rows.
///
/// # Safety
/// The conditions of [`add_values`] hold.
#[inline(always)]
unsafe fn value_span<S: Lanes, E: KvElement, const ROWS: usize, const VECTORS: usize>(
    s: S,
    weights: *const f32,
    keys: Range<usize>,
    values: RowSlots<'_>,
    sums: *const *mut f32,
    at: usize,
) {
    let mut d = 0;
    // SAFETY: guaranteed by the caller; elements from `d` on end at `values.count`.
    unsafe {
        while d + VECTORS * LANES <= values.count {
            value_block::<S, E, ROWS, VECTORS>(s, weights, keys.clone(), values, d, LANES, sums, at);
            d += VECTORS * LANES;
        }
        while d < values.count {
            let count = LANES.min(values.count - d);
            value_block::<S, E, ROWS, 1>(s, weights, keys.clone(), values, d, count, sums, at);
            d += count;
        }
    }
}

/// Adds `VECTORS` vectors of elements from `d` on, of which `count` elements are in the last one.
///
/// # Safety
/// The conditions of [`add_values`] hold; `d + count` and whole vectors end within `values.count`.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
unsafe fn value_block<S: Lanes, E: KvElement, const ROWS: usize, const VECTORS: usize>(
    s: S,
    weights: *const f32,
    keys: Range<usize>,
    values: RowSlots<'_>,
    d: usize,
    count: usize,
    sums: *const *mut f32,
    at: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut block = [[s.splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                let from = (*sums.add(row)).add(at + d + vector * LANES);
                block[row][vector] =
                    if count == LANES { s.load_at(from) } else { load_part::<S, F32>(s, from.cast(), count) };
            }
        }
        for key in keys {
            if d == 0 {
                values.prefetch_some::<S, E>(s, key..key + 1);
            }
            let slot = *values.slots.as_ptr().add(key);
            let mut elements = [s.splat(0.0); VECTORS];
            for vector in 0..VECTORS {
                let first = values.first + d + vector * LANES;
                elements[vector] = E::load(s, slot, values.head_dim, first, count);
            }
            for row in 0..ROWS {
                let weight = s.splat(*weights.add(row * RUN + key));
                for vector in 0..VECTORS {
                    block[row][vector] = s.fma(elements[vector], weight, block[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                let to = (*sums.add(row)).add(at + d + vector * LANES);
                if count == LANES {
                    s.store_at(block[row][vector], to);
                } else {
                    store_few(s, block[row][vector], std::slice::from_raw_parts_mut(to, count));
                }
            }
        }
    }
}

/// Transposes the wanted elements of the run's keys into `columns`, `[CHUNK, RUN]`, for the vectors of keys that `run`
/// touches.
///
/// # Safety
/// All slots that those vectors cover are readable, and hold elements of `dtype`; `columns` is writable.
pub(super) unsafe fn turn_keys(
    level: Level,
    dtype: KvDType,
    keys: RowSlots<'_>,
    run: &Range<usize>,
    columns: *mut f32,
) {
    macro_rules! turn {
        ($element:ident) => {
            // SAFETY: guaranteed by the caller.
            dispatch!(level, unsafe turn_kernel::<_, $element>(
                keys: RowSlots<'_>, run: &Range<usize>, columns: *mut f32
            ))
        };
    }
    match dtype {
        KvDType::F32 => turn!(F32),
        KvDType::F16 => turn!(F16),
        KvDType::BF16 => turn!(Bf16),
        KvDType::Q8 => turn!(Q8),
    }
}

/// Implements [`turn_keys`] for one level.
///
/// # Safety
/// The conditions of [`turn_keys`] hold.
#[inline(always)]
unsafe fn turn_kernel<S: Lanes, E: KvElement>(s: S, keys: RowSlots<'_>, run: &Range<usize>, columns: *mut f32) {
    const { assert!(CHUNK.is_multiple_of(LANES)) };
    let RowSlots { slots, head_dim, first, count, .. } = keys;
    // The number of later keys of each vector that a step asks for.
    let asked = LANES.div_ceil(count.div_ceil(E::COLUMNS));
    let end = E::offset(head_dim, head_dim);
    let (groups, _) = slots.as_chunks::<LANES>();
    for vector in run.start / LANES..run.end.div_ceil(LANES) {
        let slots = &groups[vector];
        for (step, d) in (0..count).step_by(E::COLUMNS).enumerate() {
            let key = |step: usize| vector * LANES + LANES.min(step * asked);
            keys.prefetch_some::<S, E>(s, key(step)..key(step + 1));
            let offset = E::offset(head_dim, first + d);
            // SAFETY: 16 bytes at `offset` are in the slot, or only those in the slot are copied; columns past `count`
            // end within the chunk.
            unsafe {
                let words = if offset + 16 <= end {
                    s.words_of_rows(std::array::from_fn(|row| &*slots[row].add(offset).cast()))
                } else {
                    last_words::<S>(s, slots, offset, end)
                };
                E::spread(s, slots, words, first + d, columns.add(d * RUN + vector * LANES), RUN);
            }
        }
    }
}

/// Loads the words between `offset` and `end`, which are less than 16 bytes, padded with zeros.
///
/// # Safety
/// Slots are readable up to `end`.
#[inline(always)]
pub(super) unsafe fn last_words<S: Lanes>(s: S, slots: &[*const u8; LANES], offset: usize, end: usize) -> [S::V; 4] {
    let mut rest = [[0u8; 16]; LANES];
    // SAFETY: guaranteed by the caller.
    unsafe {
        for slot in 0..LANES {
            std::ptr::copy_nonoverlapping(slots[slot].add(offset), rest[slot].as_mut_ptr(), end - offset);
        }
    }
    s.words_of_rows(rest.each_ref())
}

/// Widens the wanted elements of the run's values into `rows`, `[RUN, CHUNK]`, for the keys in `run`.
///
/// # Safety
/// The slots of `run` are readable, and hold elements of `dtype`; `rows` is writable.
pub(super) unsafe fn widen_values(
    level: Level,
    dtype: KvDType,
    values: RowSlots<'_>,
    run: &Range<usize>,
    rows: *mut f32,
) {
    macro_rules! widen {
        ($element:ident) => {
            // SAFETY: guaranteed by the caller.
            dispatch!(level, unsafe widen_kernel::<_, $element>(
                values: RowSlots<'_>, run: &Range<usize>, rows: *mut f32
            ))
        };
    }
    match dtype {
        KvDType::F32 => widen!(F32),
        KvDType::F16 => widen!(F16),
        KvDType::BF16 => widen!(Bf16),
        KvDType::Q8 => widen!(Q8),
    }
}

/// Implements [`widen_values`] for one level.
///
/// # Safety
/// The conditions of [`widen_values`] hold.
#[inline(always)]
unsafe fn widen_kernel<S: Lanes, E: KvElement>(s: S, values: RowSlots<'_>, run: &Range<usize>, rows: *mut f32) {
    for key in run.clone() {
        values.prefetch_some::<S, E>(s, key..key + 1);
        for d in (0..values.count).step_by(LANES) {
            let count = LANES.min(values.count - d);
            // SAFETY: guaranteed by the caller; a whole vector ends within the chunk.
            unsafe {
                let vector = E::load(s, values.slots[key], values.head_dim, values.first + d, count);
                s.store_at(vector, rows.add(key * CHUNK + d));
            }
        }
    }
}
