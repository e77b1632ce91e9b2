//! Products of a few tokens with coded rows, which are decoded in registers. For so few tokens, decoded rows would be
//! used once, and storing and loading them takes as long as decoding them does.

use std::ops::Range;

use super::x86::pairs;
use crate::coded::{BLOCK, CodedRow, Decoder, PREFETCHED_BY_PATCH, SPREAD_COLUMNS, Spread};
use crate::matmul::Output;
use crate::matmul::vector::CHAIN;
use crate::simd::{Bf16Dots, Simd, prefetch_second};
use crate::{DType, Matrix};

/// The number of rows that are multiplied side by side.
const ROWS: usize = 4;

/// The number of bytes of a cache line.
const LINE: usize = 64;

// Patches are spread for whole chains of sums.
const _: () = assert!(SPREAD_COLUMNS.is_multiple_of(2 * CHAIN));

/// Computes rows `rows` of coded weights for `T` tokens, whose activations are `[T, cols]`. The sums have the order of
/// [`super::super::vector`].
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
///
/// # Panics
/// Panics if the weights are not coded, or have no such rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn rows<const T: usize>(s: Bf16Dots, x: &[u16], w: Matrix<'_>, rows: Range<usize>, out: Output) {
    let (decoder, mut spreads) = (Decoder::new(*s), [Spread::NEW; ROWS]);
    let tiles = rows.len() / ROWS;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for row in (rows.start..).step_by(ROWS).take(tiles) {
            tile::<ROWS, T>(s, decoder, x, w, row, out, &mut spreads);
        }
        for row in rows.start + tiles * ROWS..rows.end {
            let [first, ..] = &mut spreads;
            tile::<1, T>(s, decoder, x, w, row, out, std::array::from_mut(first));
        }
    }
}

/// Computes `R` rows from `row` on, and prefetches as many rows after them.
///
/// # Safety
/// The conditions of [`rows`] hold.
#[inline(always)]
unsafe fn tile<const R: usize, const T: usize>(
    s: Bf16Dots,
    decoder: Decoder,
    x: &[u16],
    w: Matrix<'_>,
    row: usize,
    out: Output,
    spreads: &mut [Spread; R],
) {
    let DType::CodedBf16 { patches } = w.dtype() else { panic!("{} is not coded", w.dtype()) };
    let cols = w.cols();
    let coded: [CodedRow<'_>; R] = std::array::from_fn(|r| CodedRow::new(w.row(row + r), patches, cols));
    // What is next is prefetched evenly as patches are spread and blocks are multiplied: memory is idle if too little
    // is prefetched, and a processor drops requests that come too fast.
    let mut next = w.bytes().as_ptr().wrapping_add((row + R) * w.row_bytes());
    let while_spread = PREFETCHED_BY_PATCH * usize::from(patches);
    let step = w.row_bytes().saturating_sub(while_spread).div_ceil(cols / BLOCK);
    let tables = coded.map(|row| Decoder::table(*s, row.table));
    let x: [&[u16]; T] = std::array::from_fn(|t| &x[t * cols..][..cols]);
    for first in (0..cols).step_by(2 * CHAIN) {
        if first.is_multiple_of(SPREAD_COLUMNS) {
            for r in 0..R {
                next = spreads[r].next(&coded[r], first, next);
            }
        }
        let end = (first + 2 * CHAIN).min(cols);
        let blocks = coded.map(|row| &row.blocks[first / BLOCK..end / BLOCK]);
        let x = x.map(|x| x[first..end].as_chunks::<BLOCK>().0);
        let mut sums = [[s._mm512_setzero_ps(); R]; T];
        for block in 0..blocks[0].len() {
            let x = x.map(|x| {
                let [first, last]: &[[u16; BLOCK / 2]; 2] = bytemuck::cast_ref(&x[block]);
                [pairs(s.load512(first)), pairs(s.load512(last))]
            });
            for r in 0..R {
                let bytes = &blocks[r][block];
                prefetch_second(next);
                if step > LINE {
                    prefetch_second(next.wrapping_add(step / 2));
                }
                next = next.wrapping_add(step);
                let exponents = decoder.exponents(*s, tables[r], bytes);
                let exponents = spreads[r].take(*s, first / BLOCK + block, exponents);
                let [first, last] = Decoder::numbers(*s, bytes, exponents);
                for t in 0..T {
                    sums[t][r] = s._mm512_dpbf16_ps(sums[t][r], pairs(first), x[t][0]);
                    sums[t][r] = s._mm512_dpbf16_ps(sums[t][r], pairs(last), x[t][1]);
                }
            }
        }
        for t in 0..T {
            // SAFETY: guaranteed by the caller; the chain before has written the sums that are added to.
            unsafe {
                let places: [*mut f32; R] = std::array::from_fn(|r| out.at(t, row + r));
                let mut all = if first > 0 { places.map(|place| *place) } else { [0.0; R] };
                (*s).put_sums(sums[t], &mut all, first > 0);
                for r in 0..R {
                    *places[r] = all[r];
                }
            }
        }
    }
}
