//! Columns of one head's matrix, which go through all tokens of a pass: what every recurrence has in common.
//!
//! Columns of a matrix never mix, so work is divided into slices of columns, each of which stays in the L1 cache while
//! the tokens of the sequences go by.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::StateSpan;
use crate::simd::{LANES, Simd};
use crate::state::States;

/// The number of columns of a slice. 128 rows of it take half of a usual L1 cache.
pub(crate) const COLUMNS: usize = 32;

/// The number of rows up to which a slice's own copy lies on the stack.
const HEIGHT: usize = 256;

/// Some columns of one head's matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    pub head: usize,
    /// The first column.
    pub first: usize,
    /// The number of columns.
    pub count: usize,
}

impl Slice {
    /// Returns slice number `item` of all slices of heads whose matrices have `width` columns.
    pub fn of(item: usize, width: usize) -> Self {
        let slices = Self::of_each_head(width);
        let first = item % slices * COLUMNS;
        Self { head: item / slices, first, count: COLUMNS.min(width - first) }
    }

    /// Returns the number of slices of a head whose matrix has `width` columns.
    pub fn of_each_head(width: usize) -> usize {
        width.div_ceil(COLUMNS)
    }
}

/// A rule by which each token changes the matrices of its sequence and reads a result from them.
pub(crate) trait Recurrence {
    fn states(&self) -> &States<'_>;

    fn spans(&self) -> &[StateSpan];

    /// Takes a slice through `tokens`, which are rows of tensors of the batch. The matrix is read from the first of
    /// `rows`, kept in the second, and in the end written to the third. The first is the second where there are several
    /// tokens.
    ///
    /// # Safety
    /// All three have as many rows as a key has elements, of `W` whole vectors, which nothing else touches meanwhile.
    unsafe fn go<S: Simd, const W: usize>(&self, s: S, slice: Slice, tokens: Range<usize>, rows: [Rows; 3]);
}

/// Takes a slice through the tokens of all sequences.
#[inline(always)]
pub(crate) fn advance<S: Simd, R: Recurrence>(s: S, rule: &R, slice: Slice) {
    // Two vectors keep the latency of chains hidden; where registers are few, one vector is taken after the other.
    if S::MANY_REGISTERS {
        advance_columns::<S, R, 2>(s, rule, slice);
    } else {
        for start in (0..slice.count).step_by(LANES) {
            let count = LANES.min(slice.count - start);
            advance_columns::<S, R, 1>(s, rule, Slice { first: slice.first + start, count, ..slice });
        }
    }
}

/// The elements of a row of a slice, padded to `W` vectors.
pub(crate) type Row<const W: usize> = [[f32; LANES]; W];

/// A row of the slice's own copy.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct OwnRow<const W: usize>(Row<W>);

/// Rows of a slice in memory: the address of the first row, and the number of elements from one row to the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub start: *mut f32,
    pub stride: usize,
}

impl Rows {
    fn of<const W: usize>(own: &mut [MaybeUninit<OwnRow<W>>]) -> Self {
        Self { start: own.as_mut_ptr().cast(), stride: W * LANES }
    }
}

/// Takes the columns of a slice, at most `W` vectors, through the tokens of all sequences.
#[inline(always)]
fn advance_columns<S: Simd, R: Recurrence, const W: usize>(s: S, rule: &R, slice: Slice) {
    let Slice { head, first, count } = slice;
    let shape = rule.states().shape();
    let (height, stride) = (shape.key_width, shape.value_width);
    let is_whole = count == W * LANES;
    let mut few = [const { MaybeUninit::<OwnRow<W>>::uninit() }; HEIGHT];
    let mut many = Vec::new();
    let own = if height <= HEIGHT {
        &mut few[..height]
    } else {
        many.resize_with(height, MaybeUninit::uninit);
        &mut many[..]
    };
    let mut row = 0;
    for span in rule.spans() {
        let place = |block| {
            let start = rule.states().matrices(block).wrapping_add(head * height * stride + first);
            Rows { start, stride }
        };
        let (from, to) = (span.from.map(place), place(span.to));
        // A single token goes through whole vectors in place. Otherwise the slice has a copy of its own.
        let is_in_place = is_whole && span.tokens == 1 && from.is_some();
        // SAFETY: the states have these rows and columns, which no other thread touches, and `own` is this slice's, and
        // is read once `read_columns` has written it.
        unsafe {
            match from {
                Some(from) if is_in_place => rule.go::<S, W>(s, slice, row..row + 1, [from, from, to]),
                from => {
                    read_columns(from, own, count);
                    // The last token's matrix goes straight to its place, unless drafts go on from it.
                    let is_straight = is_whole && span.stored_after == span.tokens;
                    for part in [0..span.stored_after, span.stored_after..span.tokens] {
                        if part.is_empty() {
                            break;
                        }
                        let own_rows = Rows::of(own);
                        let last = if is_straight { to } else { own_rows };
                        let tokens = row + part.start..row + part.end;
                        rule.go::<S, W>(s, slice, tokens, [own_rows, own_rows, last]);
                        if part.start == 0 && !is_straight {
                            write_columns(own, to, count);
                        }
                    }
                }
            }
        }
        row += span.tokens;
    }
}

/// Copies `count` columns to `own`, or zeros if there is nothing yet. Columns beyond them become zero.
///
/// # Safety
/// The columns are readable, with as many rows as `own` has.
unsafe fn read_columns<const W: usize>(from: Option<Rows>, own: &mut [MaybeUninit<OwnRow<W>>], count: usize) {
    for (index, own) in own.iter_mut().enumerate() {
        let own = own.write(OwnRow([[0.0; LANES]; W])).0.as_flattened_mut();
        if let Some(Rows { start, stride }) = from {
            // SAFETY: guaranteed by the caller.
            own[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(start.add(index * stride), count) });
        }
    }
}

/// Copies `count` columns of `own` to memory.
///
/// # Safety
/// `own` has been [read](read_columns). The columns are writable, with as many rows as `own` has, and nothing else
/// touches them meanwhile.
unsafe fn write_columns<const W: usize>(own: &[MaybeUninit<OwnRow<W>>], to: Rows, count: usize) {
    for (index, own) in own.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        let (own, to) =
            unsafe { (own.assume_init_ref(), std::slice::from_raw_parts_mut(to.start.add(index * to.stride), count)) };
        to.copy_from_slice(&own.0.as_flattened()[..count]);
    }
}
