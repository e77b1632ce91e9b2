//! Softmax that is never held as a whole: weights relative to the greatest score so far, and their total.

use std::ops::Range;

use super::RUN;
use crate::Level;
use crate::simd::{F32, LANES, Simd, dispatch, exp, load_part, store_part};

/// What a row has seen so far. Its sum of weighted values lies elsewhere, relative to the same greatest score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The greatest score.
    pub greatest: f32,
    /// The sum of `e^(score - greatest)`. NaN once a score was not finite: an overflow must show, and the weights alone
    /// would hide it.
    pub total: f32,
}

impl Seen {
    pub const NOTHING: Self = Self { greatest: f32::NEG_INFINITY, total: 0.0 };
}

/// [`weigh_row`] of all rows, whose sums shrink as their greatest scores grow.
///
/// - `scores`: `[rows, RUN]`
/// - `keys`: the keys that each row sees, of the run
/// - `sums`: `[count]` each
///
/// # Safety
/// The pointers are writable as said; the scores of keys that a row sees hold products.
pub(super) unsafe fn weigh_rows(
    level: Level,
    scores: *mut f32,
    keys: &[Range<usize>],
    scale: f32,
    seen: &mut [Seen],
    sums: &[*mut f32],
    count: usize,
) {
    dispatch!(level, weigh_kernel::<_>(
        scores: *mut f32, keys: &[Range<usize>], scale: f32, seen: &mut [Seen], sums: &[*mut f32], count: usize
    ));
}

/// `from` and `into` seen together: `into` becomes what both have seen, `sums` likewise.
///
/// # Safety
/// `count` elements are readable at `others` and writable at `sums`.
pub(super) unsafe fn merge(
    level: Level,
    into: &mut Seen,
    sums: *mut f32,
    from: Seen,
    others: *const f32,
    count: usize,
) {
    dispatch!(level, merge_kernel::<_>(into: &mut Seen, sums: *mut f32, from: Seen, others: *const f32, count: usize));
}

/// Divides `sums` by the total.
///
/// # Safety
/// `count` elements are writable at `sums`.
pub(super) unsafe fn finish(level: Level, seen: &Seen, sums: *mut f32, count: usize) {
    // A NaN has many bit patterns; the answer has one.
    let inverse = if seen.total.is_nan() { f32::NAN } else { 1.0 / seen.total };
    dispatch!(level, multiply::<_>(sums: *mut f32, inverse: f32, count: usize));
}

/// # Safety
/// As for [`weigh_rows`]; the level's instructions exist.
#[inline(always)]
unsafe fn weigh_kernel<S: Simd>(
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
        // SAFETY: the caller's promise.
        unsafe {
            let correction = weigh_row::<S>(scores.add(row * RUN), &keys[row], scale, &mut seen[row]);
            if correction != 1.0 {
                multiply::<S>(sums[row], correction, count);
            }
        }
    }
}

/// Turns the products of one row with a run's keys into weights relative to the greatest score so far, and returns the
/// factor by which what was summed before must shrink. Keys outside `keys` get no weight, and cannot be told from keys
/// that do not exist.
///
/// # Safety
/// [`RUN`] elements are writable at `scores`; those that `keys` names hold products; `keys` is not empty and ends
/// within the run; the level's instructions exist.
#[inline(always)]
unsafe fn weigh_row<S: Simd>(scores: *mut f32, keys: &Range<usize>, scale: f32, seen: &mut Seen) -> f32 {
    let vectors = keys.start / LANES * LANES..keys.end.next_multiple_of(LANES);
    let before = *seen;
    // SAFETY: whole vectors end within the run, which is a multiple of LANES.
    unsafe {
        for i in vectors.clone().step_by(LANES) {
            S::store(S::mul(S::load(scores.add(i)), S::splat(scale)), scores.add(i));
        }
        fill(scores, vectors.start..keys.start, f32::NEG_INFINITY);
        fill(scores, keys.end..vectors.end, f32::NEG_INFINITY);
        let mut high = S::splat(f32::NEG_INFINITY);
        for i in vectors.clone().step_by(LANES) {
            high = S::max(high, S::load(scores.add(i)));
        }
        seen.greatest = before.greatest.max(S::max_lane(high));
        let (shift, zero) = (S::splat(-seen.greatest), S::splat(0.0));
        for i in vectors.clone().step_by(LANES) {
            let score = S::load(scores.add(i));
            // Adds nothing to the weight of a finite score, and NaN to any other.
            let weight = S::fma(score, zero, exp::<S>(S::add(score, shift)));
            S::store(weight, scores.add(i));
        }
        fill(scores, vectors.start..keys.start, 0.0);
        fill(scores, keys.end..vectors.end, 0.0);
        let mut sum = zero;
        for i in vectors.step_by(LANES) {
            sum = S::add(sum, S::load(scores.add(i)));
        }
        let correction = shrinking::<S>(before.greatest, seen.greatest);
        seen.total = before.total * correction + S::sum(sum);
        correction
    }
}

/// # Safety
/// As for [`merge`]; the level's instructions exist.
#[inline(always)]
unsafe fn merge_kernel<S: Simd>(into: &mut Seen, sums: *mut f32, from: Seen, others: *const f32, count: usize) {
    let greatest = into.greatest.max(from.greatest);
    // SAFETY: the caller's promise; whole vectors end at `whole <= count`, and the tail is moved element by element.
    unsafe {
        let (own, other) = (shrinking::<S>(into.greatest, greatest), shrinking::<S>(from.greatest, greatest));
        *into = Seen { greatest, total: into.total * own + from.total * other };
        let (own, other) = (S::splat(own), S::splat(other));
        let whole = count / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            let own = S::mul(S::load(sums.add(i)), own);
            S::store(S::fma(S::load(others.add(i)), other, own), sums.add(i));
        }
        if whole < count {
            let (at, rest) = (sums.add(whole), count - whole);
            let own = S::mul(load_part::<S, F32>(at, rest), own);
            store_part::<S>(S::fma(load_part::<S, F32>(others.add(whole), rest), other, own), at, rest);
        }
    }
}

/// # Safety
/// `count` elements are writable at `sums`; the level's instructions exist.
#[inline(always)]
unsafe fn multiply<S: Simd>(sums: *mut f32, factor: f32, count: usize) {
    let whole = count / LANES * LANES;
    // SAFETY: whole vectors end at `whole <= count`.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            S::store(S::mul(S::load(sums.add(i)), S::splat(factor)), sums.add(i));
        }
        for i in whole..count {
            *sums.add(i) *= factor;
        }
    }
}

/// `e^(before - now)`, and exactly 1 where nothing changed or nothing was there.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn shrinking<S: Simd>(before: f32, now: f32) -> f32 {
    if before == now || before == f32::NEG_INFINITY {
        return 1.0;
    }
    let mut lanes = [0.0f32; LANES];
    // SAFETY: `lanes` has room for a vector.
    unsafe { S::store(exp::<S>(S::splat(before - now)), lanes.as_mut_ptr()) };
    lanes[0]
}

/// # Safety
/// The range is writable.
#[inline(always)]
unsafe fn fill(scores: *mut f32, range: Range<usize>, value: f32) {
    debug_assert!(range.end <= RUN);
    for i in range {
        // SAFETY: the caller's promise.
        unsafe { *scores.add(i) = value };
    }
}
