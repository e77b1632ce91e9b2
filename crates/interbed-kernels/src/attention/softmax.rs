//! Computes the online softmax: weights relative to the greatest score so far, and their total.

use std::ops::Range;

use super::RUN;
use crate::Level;
use crate::simd::{LANES, Simd, dispatch, exp, load_few, store_few};

/// The softmax state of a row. The row's sum of weighted values is stored elsewhere, relative to the same greatest
/// score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The greatest score so far.
    pub greatest: f32,
    /// The sum of `e^(score - greatest)` over all scores so far. A score that is not finite makes the sum NaN, so that
    /// an overflow shows in the result.
    pub total: f32,
}

impl Seen {
    pub const NOTHING: Self = Self { greatest: f32::NEG_INFINITY, total: 0.0 };
}

/// Calls [`weigh_row`] for all rows, and scales down a row's sums when its greatest score grows.
///
/// - `scores`: `[rows, RUN]`
/// - `keys`: the keys of the run that each row sees
/// - `sums`: `[count]` each
///
/// # Safety
/// The pointers are writable in these shapes; the scores of keys that a row sees hold products.
pub(super) unsafe fn weigh_rows(
    level: Level,
    scores: *mut f32,
    keys: &[Range<usize>],
    scale: f32,
    seen: &mut [Seen],
    sums: &[*mut f32],
    count: usize,
) {
    // SAFETY: guaranteed by the caller.
    dispatch!(level, unsafe weigh_kernel::<_>(
        scores: *mut f32, keys: &[Range<usize>], scale: f32, seen: &mut [Seen], sums: &[*mut f32], count: usize
    ));
}

/// Merges the state `from` and its sums `others` into the state `into` and its sums `sums`.
///
/// # Panics
/// Panics if the lengths differ.
pub(super) fn merge(level: Level, into: &mut Seen, sums: &mut [f32], from: Seen, others: &[f32]) {
    assert_eq!(sums.len(), others.len());
    dispatch!(level, merge_kernel::<_>(into: &mut Seen, sums: &mut [f32], from: Seen, others: &[f32]));
}

/// Divides `sums` by the total. A `sink` is a score without a value: it adds its weight to the total.
pub(super) fn finish(level: Level, seen: &Seen, sink: Option<f32>, sums: &mut [f32]) {
    let mut factor = 1.0 / seen.total;
    if let Some(sink) = sink.filter(|&sink| sink != f32::NEG_INFINITY) {
        let factor = &mut factor;
        dispatch!(level, sunk::<_>(seen: &Seen, sink: f32, factor: &mut f32));
    }
    // NaN has many bit patterns; the result always has the same one.
    let factor = if factor.is_nan() { f32::NAN } else { factor };
    dispatch!(level, multiply::<_>(sums: &mut [f32], factor: f32));
}

/// Computes the factor of sums whose total includes a sink. Neither exponential exceeds 1, whichever score is greater.
#[inline(always)]
fn sunk<S: Simd>(s: S, seen: &Seen, sink: f32, factor: &mut f32) {
    let greatest = seen.greatest.max(sink);
    let own = shrinking(s, seen.greatest, greatest);
    // The product adds nothing to the weight of a finite sink, and NaN to any other.
    *factor = own / (seen.total * own + (sink * 0.0 + shrinking(s, sink, greatest)));
}

/// Implements [`weigh_rows`] for one level.
///
/// # Safety
/// The conditions of [`weigh_rows`] hold.
#[inline(always)]
unsafe fn weigh_kernel<S: Simd>(
    s: S,
    scores: *mut f32,
    keys: &[Range<usize>],
    scale: f32,
    seen: &mut [Seen],
    sums: &[*mut f32],
    count: usize,
) {
    for row in 0..keys.len() {
        if keys[row].is_empty() {
            continue;
        }
        // SAFETY: guaranteed by the caller.
        let (scores, sums) = unsafe { (scores.add(row * RUN), std::slice::from_raw_parts_mut(sums[row], count)) };
        // SAFETY: as above.
        let correction = unsafe { weigh_row(s, scores, &keys[row], scale, &mut seen[row]) };
        if correction != 1.0 {
            multiply(s, sums, correction);
        }
    }
}

/// Turns the products of one row with a run's keys into weights relative to the greatest score so far, and returns the
/// factor by which earlier sums have to be multiplied. Keys outside `keys` get weight zero.
///
/// [`RUN`] elements are writable at `scores`, and the elements that `keys` names hold products. `keys` is not empty and
/// ends within the run.
#[inline(always)]
unsafe fn weigh_row<S: Simd>(s: S, scores: *mut f32, keys: &Range<usize>, scale: f32, seen: &mut Seen) -> f32 {
    let vectors = keys.start / LANES * LANES..keys.end.next_multiple_of(LANES);
    let before = *seen;
    // SAFETY: whole vectors end within the run, which is a multiple of LANES.
    unsafe {
        for i in vectors.clone().step_by(LANES) {
            s.store_at(s.mul(s.load_at(scores.add(i)), s.splat(scale)), scores.add(i));
        }
        fill(scores, vectors.start..keys.start, f32::NEG_INFINITY);
        fill(scores, keys.end..vectors.end, f32::NEG_INFINITY);
        let mut high = s.splat(f32::NEG_INFINITY);
        for i in vectors.clone().step_by(LANES) {
            high = s.max(high, s.load_at(scores.add(i)));
        }
        seen.greatest = before.greatest.max(s.max_lane(high));
        let (shift, zero) = (s.splat(-seen.greatest), s.splat(0.0));
        for i in vectors.clone().step_by(LANES) {
            let score = s.load_at(scores.add(i));
            // The product adds nothing to the weight of a finite score, and NaN to any other.
            let weight = s.fma(score, zero, exp(s, s.add(score, shift)));
            s.store_at(weight, scores.add(i));
        }
        fill(scores, vectors.start..keys.start, 0.0);
        fill(scores, keys.end..vectors.end, 0.0);
        let mut sum = zero;
        for i in vectors.step_by(LANES) {
            sum = s.add(sum, s.load_at(scores.add(i)));
        }
        let correction = shrinking(s, before.greatest, seen.greatest);
        seen.total = before.total * correction + s.sum(sum);
        correction
    }
}

#[inline(always)]
fn merge_kernel<S: Simd>(s: S, into: &mut Seen, sums: &mut [f32], from: Seen, others: &[f32]) {
    let greatest = into.greatest.max(from.greatest);
    let (own, other) = (shrinking(s, into.greatest, greatest), shrinking(s, from.greatest, greatest));
    *into = Seen { greatest, total: into.total * own + from.total * other };
    let (own, other) = (s.splat(own), s.splat(other));
    let ((sums, sums_rest), (others, others_rest)) = (sums.as_chunks_mut::<LANES>(), others.as_chunks::<LANES>());
    for (sums, others) in sums.iter_mut().zip(others) {
        s.store(s.fma(s.load(others), other, s.mul(s.load(sums), own)), sums);
    }
    if !sums_rest.is_empty() {
        let own = s.mul(load_few(s, sums_rest), own);
        store_few(s, s.fma(load_few(s, others_rest), other, own), sums_rest);
    }
}

/// Multiplies all `sums` by `factor`.
#[inline(always)]
pub(super) fn multiply<S: Simd>(s: S, sums: &mut [f32], factor: f32) {
    let (vectors, rest) = sums.as_chunks_mut::<LANES>();
    for vector in vectors {
        s.store(s.mul(s.load(vector), s.splat(factor)), vector);
    }
    for sum in rest {
        *sum *= factor;
    }
}

/// Computes `e^(before - now)`, which is exactly 1 if nothing has changed or there was nothing before.
#[inline(always)]
pub(super) fn shrinking<S: Simd>(s: S, before: f32, now: f32) -> f32 {
    if before == now || before == f32::NEG_INFINITY {
        return 1.0;
    }
    let mut lanes = [0.0f32; LANES];
    s.store(exp(s, s.splat(before - now)), &mut lanes);
    lanes[0]
}

/// Fills a range of scores with a value.
///
/// # Safety
/// The range is writable.
#[inline(always)]
unsafe fn fill(scores: *mut f32, range: Range<usize>, value: f32) {
    debug_assert!(range.end <= RUN);
    for i in range {
        // SAFETY: guaranteed by the caller.
        unsafe { *scores.add(i) = value };
    }
}
