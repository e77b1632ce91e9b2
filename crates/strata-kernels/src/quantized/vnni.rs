//! Products with AVX-512 VNNI, rows in the lanes: of sixteen rows for a few tokens (`rows.rs`), of panels that are unpacked
//! once for many (`panels.rs`).

use std::arch::x86_64::*;

use super::header::{Fields, Header, Lanes, ROWS};
use super::product::Job;
use super::unpack::{GROUP, Unpack};
use crate::simd::Avx512;

mod panels;
mod rows;

pub(super) use panels::panels;
pub(super) use rows::rows;

/// Most tokens for which codes are unpacked into registers; for more, to store them for all pays.
pub(super) const ROW_TOKENS: usize = 3;

/// Bytes of four blocks of the largest type with blocks of 32, which is Q8_0.
const MAX_GROUP_BYTES: usize = GROUP * 34;

/// The small fields of a span of sixteen rows. Made once for all rows of a kernel, for to clear it takes longer than a few
/// blocks.
pub(super) struct Small {
    fields: Fields,
    pub header: Header,
}

impl Small {
    pub const NEW: Self = Self { fields: Fields::ZERO, header: Header::ZERO };

    /// Those of span `span` of `count` rows from `first` on, the last one again and again where they are fewer than
    /// sixteen; returns the spans' addresses.
    ///
    /// # Safety
    /// The rows exist, and so does AVX-512.
    #[inline(always)]
    pub unsafe fn collect<F: Unpack>(
        &mut self,
        job: &Job<'_>,
        first: usize,
        count: usize,
        span: usize,
    ) -> [*const u8; ROWS] {
        let mut spans = [std::ptr::null(); ROWS];
        for (row, address) in spans.iter_mut().enumerate() {
            let row = first + row.min(count - 1);
            *address = job.w.as_ptr().wrapping_add(row * job.row_bytes + span * F::SPAN_BYTES);
        }
        if (span + 1) * F::SPAN_BYTES <= job.row_bytes {
            // SAFETY: whole spans of rows that exist.
            unsafe { F::collect_rows(&spans, &mut self.fields) };
        } else {
            for row in 0..ROWS {
                F::collect(job.span::<F>(first + row.min(count - 1), span), row, &mut self.fields);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { F::finish::<Avx512>(&self.fields, &mut self.header) };
        spans
    }
}

/// The last blocks of sixteen rows, where they are too few for [`Unpack::unpack4`]. What lies behind them is of no
/// consequence.
pub(super) struct Padded([[u8; MAX_GROUP_BYTES]; ROWS]);

impl Padded {
    pub const NEW: Self = Self([[0; MAX_GROUP_BYTES]; ROWS]);

    /// Copies the last `blocks` blocks, group `group` of the spans, to where four can be read; they are group 0 there.
    ///
    /// # Safety
    /// The spans have these blocks, fewer than four; types with blocks of 256 always have all.
    pub unsafe fn take<F: Unpack>(&mut self, spans: &mut [*const u8; ROWS], group: usize, blocks: usize) {
        for (span, padded) in spans.iter_mut().zip(&mut self.0) {
            let part = &mut padded[..blocks * F::BYTES];
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(span.add(group * GROUP * F::BYTES), part.as_mut_ptr(), part.len()) };
            *span = padded.as_ptr();
        }
    }
}

/// What is taken from a block's sums, but for the factor of each row: a token's scale times its sums of the halves, which
/// may have factors of their own.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn scaled_minimum<F: Unpack>(header: &Header, block: usize, scale: f32, sums: [f32; 2]) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if !F::HALVES {
            return _mm512_set1_ps(scale * (sums[0] + sums[1]));
        }
        let [first, last] = &header.half_minima[block];
        let sum = _mm512_mul_ps(load(first), _mm512_set1_ps(sums[0]));
        _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_fmadd_ps(load(last), _mm512_set1_ps(sums[1]), sum))
    }
}

/// # Safety
/// AVX-512 F exists; the lanes begin at a whole vector.
#[inline(always)]
unsafe fn load(lanes: &Lanes) -> __m512 {
    // SAFETY: the caller's promise; `Lanes` are one vector.
    unsafe { _mm512_load_ps(lanes.as_ptr()) }
}
