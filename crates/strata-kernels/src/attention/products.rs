//! The two products of attention, blocked in registers: queries with keys, weights with values.
//!
//! A score is one chain over the elements of a head; a weighted value is one chain over the keys. Blocks only decide
//! which chains run side by side.

use std::ops::Range;

use super::element::KvElement;
use super::lanes::Lanes;
use super::{CHUNK, RUN};
use crate::simd::{F32, LANES, Simd, load_part, store_part};

/// Adds to the scores of `queries.len()` rows the products over `count` elements of a head.
///
/// - `queries`: each row's first element of the chunk
/// - `columns`: `[count, RUN]`, the chunk's elements of the run's keys
/// - `keys`: the keys that the rows see, of the run
/// - `scores`: `[rows, RUN]`; `fresh` starts their chains
///
/// # Safety
/// The pointers are readable and writable as said; the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn add_scores<S: Simd>(
    queries: &[*const f32],
    columns: *const f32,
    count: usize,
    keys: Range<usize>,
    fresh: bool,
    scores: *mut f32,
) {
    let (first, end) = (keys.start / LANES, keys.end.div_ceil(LANES));
    let rows = queries.len();
    let mut row = 0;
    // SAFETY: rows and vectors are within what the caller promises.
    unsafe {
        while row < rows {
            let (queries, scores) = (queries.as_ptr().add(row), scores.add(row * RUN));
            row += match (rows - row, S::MANY_REGISTERS) {
                (6.., true) => score_rows::<S, 6, 4>(queries, columns, count, first..end, fresh, scores),
                (4.., true) => score_rows::<S, 4, 4>(queries, columns, count, first..end, fresh, scores),
                (4.., false) => score_rows::<S, 4, 1>(queries, columns, count, first..end, fresh, scores),
                (2.., true) => score_rows::<S, 2, 4>(queries, columns, count, first..end, fresh, scores),
                (2.., false) => score_rows::<S, 2, 2>(queries, columns, count, first..end, fresh, scores),
                (..2, _) => score_rows::<S, 1, 4>(queries, columns, count, first..end, fresh, scores),
            };
        }
    }
}

/// [`add_scores`] of `ROWS` rows, `VECTORS` vectors of keys at a time. Returns `ROWS`.
///
/// # Safety
/// As for [`add_scores`].
#[inline(always)]
unsafe fn score_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    queries: *const *const f32,
    columns: *const f32,
    count: usize,
    vectors: Range<usize>,
    fresh: bool,
    scores: *mut f32,
) -> usize {
    let mut vector = vectors.start;
    // SAFETY: the caller's promise.
    unsafe {
        while vector + VECTORS <= vectors.end {
            let at = vector * LANES;
            score_block::<S, ROWS, VECTORS>(queries, columns.add(at), count, fresh, scores.add(at));
            vector += VECTORS;
        }
        while vector < vectors.end {
            let at = vector * LANES;
            score_block::<S, ROWS, 1>(queries, columns.add(at), count, fresh, scores.add(at));
            vector += 1;
        }
    }
    ROWS
}

/// # Safety
/// As for [`add_scores`], for `ROWS` rows and `VECTORS` vectors of keys.
#[inline(always)]
unsafe fn score_block<S: Simd, const ROWS: usize, const VECTORS: usize>(
    queries: *const *const f32,
    columns: *const f32,
    count: usize,
    fresh: bool,
    scores: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut query = [std::ptr::null::<f32>(); ROWS];
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            query[row] = *queries.add(row);
            if !fresh {
                for vector in 0..VECTORS {
                    sums[row][vector] = S::load(scores.add(row * RUN + vector * LANES));
                }
            }
        }
        for d in 0..count {
            let mut keys = [S::splat(0.0); VECTORS];
            for vector in 0..VECTORS {
                keys[vector] = S::load(columns.add(d * RUN + vector * LANES));
            }
            for row in 0..ROWS {
                let element = S::splat(*query[row].add(d));
                for vector in 0..VECTORS {
                    sums[row][vector] = S::fma(keys[vector], element, sums[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                S::store(sums[row][vector], scores.add(row * RUN + vector * LANES));
            }
        }
    }
}

/// The values of a run: where they are, and which of their elements are wanted.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    /// A slot for each key of the run; only those of keys that are seen are read.
    pub slots: &'a [*const u8; RUN],
    /// Elements of a slot.
    pub head_dim: usize,
    /// The first of them that is wanted, a multiple of [`LANES`].
    pub first: usize,
    /// How many are wanted, up to [`CHUNK`].
    pub count: usize,
}

/// Adds to each row's sums the values of the keys that it sees, weighted.
///
/// - `weights`: `[rows, RUN]`
/// - `keys`: the keys that each row sees, of the run
/// - `sums`: each row's element `values.first`
///
/// # Safety
/// The slots of keys that are seen are readable, the sums writable; the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn add_values<S: Lanes, E: KvElement>(
    weights: *const f32,
    keys: &[Range<usize>],
    values: Values<'_>,
    sums: &[*mut f32],
) {
    let rows = keys.len();
    let mut row = 0;
    // SAFETY: rows are within what the caller promises.
    unsafe {
        while row < rows {
            let (weights, keys, sums) = (weights.add(row * RUN), &keys[row..], &sums[row..]);
            row += match (rows - row, S::MANY_REGISTERS) {
                (6.., true) => value_rows::<S, E, 6, 4>(weights, keys, values, sums),
                (4.., true) => value_rows::<S, E, 4, 4>(weights, keys, values, sums),
                (4.., false) => value_rows::<S, E, 4, 1>(weights, keys, values, sums),
                (2.., true) => value_rows::<S, E, 2, 4>(weights, keys, values, sums),
                (2.., false) => value_rows::<S, E, 2, 2>(weights, keys, values, sums),
                (..2, _) => value_rows::<S, E, 1, 4>(weights, keys, values, sums),
            };
        }
    }
}

/// [`add_values`] of `ROWS` rows: what they all see together, and before and after it what only some see, row by row.
/// Each row's chain goes through its keys in ascending order. Returns `ROWS`.
///
/// # Safety
/// As for [`add_values`].
#[inline(always)]
unsafe fn value_rows<S: Lanes, E: KvElement, const ROWS: usize, const VECTORS: usize>(
    weights: *const f32,
    keys: &[Range<usize>],
    values: Values<'_>,
    sums: &[*mut f32],
) -> usize {
    let (mut start, mut end) = (0, RUN);
    for keys in &keys[..ROWS] {
        start = start.max(keys.start);
        end = end.min(keys.end);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if start >= end {
            for row in 0..ROWS {
                value_span::<S, E, 1, VECTORS>(weights.add(row * RUN), keys[row].clone(), values, sums[row..].as_ptr());
            }
            return ROWS;
        }
        for row in 0..ROWS {
            if keys[row].start < start {
                let early = keys[row].start..start;
                value_span::<S, E, 1, VECTORS>(weights.add(row * RUN), early, values, sums[row..].as_ptr());
            }
        }
        value_span::<S, E, ROWS, VECTORS>(weights, start..end, values, sums.as_ptr());
        for row in 0..ROWS {
            if end < keys[row].end {
                let late = end..keys[row].end;
                value_span::<S, E, 1, VECTORS>(weights.add(row * RUN), late, values, sums[row..].as_ptr());
            }
        }
    }
    ROWS
}

/// The values of `keys`, weighted, to `ROWS` rows.
///
/// # Safety
/// As for [`add_values`].
#[inline(always)]
unsafe fn value_span<S: Lanes, E: KvElement, const ROWS: usize, const VECTORS: usize>(
    weights: *const f32,
    keys: Range<usize>,
    values: Values<'_>,
    sums: *const *mut f32,
) {
    let mut d = 0;
    // SAFETY: elements `d ..` end at `values.count`.
    unsafe {
        while d + VECTORS * LANES <= values.count {
            value_block::<S, E, ROWS, VECTORS>(weights, keys.clone(), values, d, LANES, sums);
            d += VECTORS * LANES;
        }
        while d < values.count {
            let count = LANES.min(values.count - d);
            value_block::<S, E, ROWS, 1>(weights, keys.clone(), values, d, count, sums);
            d += count;
        }
    }
}

/// # Safety
/// As for [`add_values`]; `d + count` and whole vectors end within `values.count`.
#[inline(always)]
unsafe fn value_block<S: Lanes, E: KvElement, const ROWS: usize, const VECTORS: usize>(
    weights: *const f32,
    keys: Range<usize>,
    values: Values<'_>,
    d: usize,
    count: usize,
    sums: *const *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut block = [[S::splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                let from = (*sums.add(row)).add(d + vector * LANES);
                block[row][vector] = if count == LANES { S::load(from) } else { load_part::<S, F32>(from, count) };
            }
        }
        for key in keys {
            let slot = *values.slots.as_ptr().add(key);
            let mut elements = [S::splat(0.0); VECTORS];
            for vector in 0..VECTORS {
                let first = values.first + d + vector * LANES;
                elements[vector] = E::load::<S>(slot, values.head_dim, first, count);
            }
            for row in 0..ROWS {
                let weight = S::splat(*weights.add(row * RUN + key));
                for vector in 0..VECTORS {
                    block[row][vector] = S::fma(elements[vector], weight, block[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                let to = (*sums.add(row)).add(d + vector * LANES);
                if count == LANES {
                    S::store(block[row][vector], to);
                } else {
                    store_part::<S>(block[row][vector], to, count);
                }
            }
        }
    }
}

/// Writes elements `first .. first + count` of the run's keys as `columns`, `[CHUNK, RUN]`, for the vectors of keys that
/// `keys` touches.
///
/// # Safety
/// All of `slots` that those vectors cover are readable; `columns` is writable; the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn turn_keys<S: Lanes, E: KvElement>(
    slots: &[*const u8; RUN],
    slot_bytes: usize,
    head_dim: usize,
    first: usize,
    count: usize,
    keys: &Range<usize>,
    columns: *mut f32,
) {
    const { assert!(CHUNK.is_multiple_of(LANES)) };
    let (groups, _) = slots.as_chunks::<LANES>();
    for vector in keys.start / LANES..keys.end.div_ceil(LANES) {
        let slots = &groups[vector];
        for d in (0..count).step_by(E::COLUMNS) {
            let offset = E::offset(head_dim, first + d);
            // SAFETY: 16 bytes at `offset` are in the slot, or what there is of them is copied; columns past `count` end
            // within the chunk.
            unsafe {
                let words = if offset + 16 <= slot_bytes {
                    S::words_of_rows(slots, offset)
                } else {
                    let mut ends = [[0u8; 16]; LANES];
                    let mut rows = [std::ptr::null::<u8>(); LANES];
                    for slot in 0..LANES {
                        let end = ends[slot].as_mut_ptr();
                        std::ptr::copy_nonoverlapping(slots[slot].add(offset), end, slot_bytes - offset);
                        rows[slot] = end;
                    }
                    S::words_of_rows(&rows, 0)
                };
                E::spread::<S>(slots, words, first + d, columns.add(d * RUN + vector * LANES), RUN);
            }
        }
    }
}

/// Writes elements `first .. first + count` of the run's values as `rows`, `[RUN, CHUNK]`, for the keys in `keys`.
///
/// # Safety
/// The slots of `keys` are readable; `rows` is writable; the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn widen_values<S: Lanes, E: KvElement>(values: Values<'_>, keys: &Range<usize>, rows: *mut f32) {
    for key in keys.clone() {
        for d in (0..values.count).step_by(LANES) {
            let count = LANES.min(values.count - d);
            // SAFETY: the caller's promise; a whole vector ends within the chunk.
            unsafe {
                let vector = E::load::<S>(values.slots[key], values.head_dim, values.first + d, count);
                S::store(vector, rows.add(key * CHUNK + d));
            }
        }
    }
}
