//! Products with AVX-512 VNNI, rows in the lanes: of sixteen rows for a few tokens (`rows.rs`), of panels that are
//! unpacked once for many (`panels.rs`).

use std::arch::x86_64::*;

use super::header::{Fields, Header, Lanes};
use super::job::Job;
use super::spans::{Ragged, Spans};
use super::unpack::Unpack;
use crate::simd::Avx512;

mod panels;
mod rows;

pub(super) use panels::panels;
pub(super) use rows::rows;

/// Most tokens for which codes are unpacked into registers; for more, to store them for all pays.
pub(super) const ROW_TOKENS: usize = 3;

/// The small fields of a span of sixteen rows, and room for what leads to them. Made once for all rows of a kernel, for
/// to clear it takes longer than a few blocks.
pub(super) struct Small {
    fields: Fields,
    /// Where spans are, if they cannot be read in place.
    ragged: Ragged,
    pub header: Header,
}

impl Small {
    pub const NEW: Self = Self { fields: Fields::ZERO, ragged: Ragged::NEW, header: Header::ZERO };

    /// Span `span` of the rows from `first` on, see [`Spans::of`].
    #[inline(always)]
    pub fn spans<F: Unpack>(&mut self, job: &Job<'_>, first: usize, span: usize) -> Spans {
        Spans::of::<F>(job, first, span, &mut self.ragged)
    }

    /// Collects the small fields of span `span` of the rows from `first` on into `header`; returns the spans.
    ///
    /// # Safety
    /// AVX-512 exists.
    #[inline(always)]
    pub unsafe fn collect<F: Unpack>(&mut self, job: &Job<'_>, first: usize, span: usize) -> Spans {
        let spans = self.spans::<F>(job, first, span);
        // SAFETY: the spans are whole; AVX-512 exists by the caller's promise.
        unsafe {
            F::collect_rows(spans, &mut self.fields);
            F::finish::<Avx512>(&self.fields, &mut self.header);
        }
        spans
    }
}

/// What is taken from a block's sums, but for the factor of each row: a token's scale times its sums of the halves,
/// which may have factors of their own.
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
