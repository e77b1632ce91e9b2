//! Products with AVX-512 VNNI, with rows in the lanes: of sixteen rows for a few tokens (`rows.rs`), of panels that are
//! unpacked once for many tokens (`panels.rs`).

use std::arch::x86_64::*;

use super::activations::Activations;
use super::formats::pairs;
use super::header::{Fields, Header};
use super::job::ProductRows;
use super::spans::{Ragged, Spans};
use super::unpack::Unpack;
use crate::simd::{Avx512, Simd, Vnni};

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

/// Adds the integer sum of a span of sixteen rows and one token to a sum, for a type whose blocks are whole spans. The
/// number `at` is the index of the span's first block among all blocks of the activations.
///
/// # Safety
/// The activations have all blocks of the span.
#[inline(always)]
unsafe fn add_whole<F: Unpack>(
    s: Vnni,
    header: &Header,
    x: &Activations<'_>,
    at: usize,
    sum: __m512i,
    acc: __m512,
) -> __m512 {
    let mut part = s._mm512_mul_ps(s.load(&header.scales[0]), s._mm512_cvtepi32_ps(sum));
    if F::MINIMA {
        let mut minimum = s._mm512_setzero_si512();
        for pair in 0..pairs::<F>() {
            let factors = s.load512(&header.minimum_factors[pair]);
            // SAFETY: guaranteed by the caller.
            let sums = unsafe { s._mm512_set1_epi32(x.pair_unchecked::<F>(at, pair)) };
            minimum = s._mm512_dpwssd_epi32(minimum, factors, sums);
        }
        part = s._mm512_fnmadd_ps(s.load(&header.minima[0]), s._mm512_cvtepi32_ps(minimum), part);
    }
    // SAFETY: guaranteed by the caller.
    let scale = unsafe { *x.scales.get_unchecked(at) };
    s._mm512_fmadd_ps(part, s._mm512_set1_ps(scale), acc)
}
