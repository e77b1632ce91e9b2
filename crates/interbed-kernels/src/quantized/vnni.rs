//! Products with AVX-512 VNNI, with rows in the lanes: of sixteen rows for a few tokens (`rows.rs`), of panels that are
//! unpacked once for many tokens (`panels.rs`).

use std::arch::x86_64::*;

use super::activations::Activations;
use super::header::{Fields, Header};
use super::job::ProductRows;
use super::spans::{Ragged, Spans};
use super::unpack::Unpack;
use crate::simd::{Avx512, Simd};

mod panels;
mod rows;

pub(super) use panels::panels;
pub(super) use rows::rows;

/// The small fields of a span of sixteen rows, and buffers for computing them. The value is created once for all rows
/// of a kernel, since initializing it takes longer than a few blocks.
pub(super) struct Small {
    fields: Fields,
    /// The copies of spans that cannot be read in place.
    pub ragged: Ragged,
    pub header: Header,
}

impl Small {
    pub const NEW: Self = Self { fields: Fields::ZERO, ragged: Ragged::NEW, header: Header::ZERO };

    /// Decodes the small fields of span `span` of sixteen rows, from row `first` on. Returns the spans, and the header
    /// with the decoded fields.
    #[inline(always)]
    pub fn collect<'a, F: Unpack>(
        &'a mut self,
        s: Avx512,
        job: &ProductRows<'a>,
        first: usize,
        span: usize,
    ) -> (Spans<'a, F>, &'a mut Header) {
        let spans = Spans::of(job, first, span, &mut self.ragged);
        F::collect_rows(s, spans, &mut self.fields);
        F::finish(s, &self.fields, &mut self.header);
        (spans, &mut self.header)
    }
}

/// Returns the number that is subtracted from a block's sums, without the factor of each row: a token's scale times its
/// sums of the halves, which may have their own factors. The number `at` is the block's index among all blocks of the
/// activations.
///
/// # Safety
/// The activations have this block.
#[inline(always)]
unsafe fn scaled_minimum<F: Unpack>(
    s: Avx512,
    header: &Header,
    block: usize,
    x: &Activations<'_>,
    at: usize,
) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !F::HALVES {
            return s._mm512_set1_ps(*x.minima.get_unchecked(at));
        }
        let [first, last] = &header.half_minima[block];
        let sums = [*x.sums.get_unchecked(at * 2), *x.sums.get_unchecked(at * 2 + 1)];
        let sums = sums.map(|sum| s._mm512_cvtepi32_ps(s._mm512_set1_epi32(sum)));
        let sum = s._mm512_fmadd_ps(s.load(last), sums[1], s._mm512_mul_ps(s.load(first), sums[0]));
        s._mm512_mul_ps(s._mm512_set1_ps(*x.scales.get_unchecked(at)), sum)
    }
}
