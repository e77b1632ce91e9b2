//! Collects the small fields of the IQ types with blocks of 256 columns from sixteen rows at a time.

use std::arch::x86_64::*;

use super::{Collect, low_and_high, store_words, words};
use crate::quantized::formats::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, Scaled};
use crate::quantized::header::Fields;
use crate::quantized::spans::Spans;
use crate::simd::Avx512;

// The portable code reads few bytes of each block of this type.
impl Collect for Iq4Xs {}

impl Collect for Iq3S {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let [.., factors] = words(s, spans, 94);
        let [low, high] = odd_nibbles(s, factors);
        store_bytes(s, [low, high], fields);
    }
}

impl Collect for Iq3Xxs {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let (low, high) = (odd_upper(s, words(s, spans, 66)), odd_upper(s, words(s, spans, 82)));
        store_bytes(s, [low, high], fields);
    }
}

impl Collect for Iq2S {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let [_, _, first, last] = words(s, spans, 66);
        let ([a, b], [c, d]) = (odd_nibbles(s, first), odd_nibbles(s, last));
        store_words(s, [a, b, c, d], fields);
    }
}

impl Collect for Iq2Xs {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let [_, _, first, last] = words(s, spans, 58);
        let ([a, b], [c, d]) = (odd_nibbles(s, first), odd_nibbles(s, last));
        store_words(s, [a, b, c, d], fields);
    }
}

impl Collect for Iq2Xxs {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let [_, a, _, b] = words(s, spans, 2);
        let [_, c, _, d] = words(s, spans, 18);
        let low = odd_upper(s, [a, b, c, d]);
        let [_, a, _, b] = words(s, spans, 34);
        let [_, c, _, d] = words(s, spans, 50);
        let high = odd_upper(s, [a, b, c, d]);
        store_bytes(s, [low, high], fields);
    }
}

impl Collect for Iq1M {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        let [_, _, first, last] = words(s, spans, 40);
        // The upper four bits of four half words, first in the low bits.
        let nibble = s._mm512_set1_epi32(15);
        let low = s._mm512_and_si512(s._mm512_srli_epi32::<12>(first), nibble);
        let second = s._mm512_slli_epi32::<4>(s._mm512_srli_epi32::<28>(first));
        let third = s._mm512_slli_epi32::<8>(s._mm512_and_si512(s._mm512_srli_epi32::<12>(last), nibble));
        let fourth = s._mm512_slli_epi32::<12>(s._mm512_srli_epi32::<28>(last));
        let scale = s._mm512_or_si512(s._mm512_or_si512(low, second), s._mm512_or_si512(third, fourth));
        let (scale, _) = low_and_high(s, scale);
        s.store256(scale, &mut fields.scales[0]);
        let (a, b) = (first, s._mm512_srli_epi32::<16>(first));
        let (c, d) = (last, s._mm512_srli_epi32::<16>(last));
        store_words(s, [odd_threes(s, a), odd_threes(s, b), odd_threes(s, c), odd_threes(s, d)], fields);
    }
}

impl Collect for Iq1S {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        collect_scales(s, spans, fields);
        let [a, b, c, d] = words(s, spans, 34);
        let (low, high) = (odd_of_halves(s, a, b), odd_of_halves(s, c, d));
        store_bytes(s, [low, high], fields);
    }
}

/// Collects half floats at the beginning of blocks.
#[inline(always)]
fn collect_scales<F: Scaled>(s: Avx512, spans: Spans<'_, F>, fields: &mut Fields) {
    let [first, ..] = words(s, spans, 0);
    let (scale, _) = low_and_high(s, first);
    s.store256(scale, &mut fields.scales[0]);
}

/// Stores the factors of eight parts: four in the bytes of each word.
#[inline(always)]
fn store_bytes(s: Avx512, [low, high]: [__m512i; 2], fields: &mut Fields) {
    s.store512(low, &mut fields.words[0]);
    s.store512(high, &mut fields.words[1]);
}

/// Returns twice each nibble of words, plus 1, in bytes: of the first four nibbles, and of the last four.
#[inline(always)]
fn odd_nibbles(s: Avx512, words: __m512i) -> [__m512i; 2] {
    let low = s._mm512_and_si512(words, s._mm512_set1_epi32(0xffff));
    [odd_nibbles_of_half(s, low), odd_nibbles_of_half(s, s._mm512_srli_epi32::<16>(words))]
}

/// Returns twice each nibble of the lower halves of words, whose upper halves are 0, plus 1, in bytes.
#[inline(always)]
fn odd_nibbles_of_half(s: Avx512, half: __m512i) -> __m512i {
    let bytes = s._mm512_or_si512(half, s._mm512_slli_epi32::<8>(half));
    let bytes = s._mm512_and_si512(bytes, s._mm512_set1_epi32(0x00ff_00ff));
    let nibbles = s._mm512_or_si512(bytes, s._mm512_slli_epi32::<4>(bytes));
    odd(s, s._mm512_and_si512(nibbles, s._mm512_set1_epi8(15)))
}

/// Returns twice the upper four bits of each of four words, plus 1, in bytes.
#[inline(always)]
fn odd_upper(s: Avx512, [a, b, c, d]: [__m512i; 4]) -> __m512i {
    let (a, b) = (s._mm512_srli_epi32::<28>(a), s._mm512_slli_epi32::<8>(s._mm512_srli_epi32::<28>(b)));
    let c = s._mm512_slli_epi32::<16>(s._mm512_srli_epi32::<28>(c));
    let d = s._mm512_slli_epi32::<24>(s._mm512_srli_epi32::<28>(d));
    odd(s, s._mm512_or_si512(s._mm512_or_si512(a, b), s._mm512_or_si512(c, d)))
}

/// Returns twice each of four times three bits from the lowest on, plus 1, in bytes.
#[inline(always)]
fn odd_threes(s: Avx512, words: __m512i) -> __m512i {
    let (a, b) = (under(s, words, 7), under(s, s._mm512_slli_epi32::<5>(words), 7 << 8));
    let c = under(s, s._mm512_slli_epi32::<10>(words), 7 << 16);
    let d = under(s, s._mm512_slli_epi32::<15>(words), 7 << 24);
    odd(s, s._mm512_or_si512(s._mm512_or_si512(a, b), s._mm512_or_si512(c, d)))
}

/// Returns twice bits 12 to 14 of each of four half words, plus 1, in bytes.
#[inline(always)]
fn odd_of_halves(s: Avx512, first: __m512i, last: __m512i) -> __m512i {
    let (a, b) = (under(s, s._mm512_srli_epi32::<12>(first), 7), under(s, s._mm512_srli_epi32::<20>(first), 7 << 8));
    let (c, d) = (under(s, s._mm512_slli_epi32::<4>(last), 7 << 16), under(s, s._mm512_srli_epi32::<4>(last), 7 << 24));
    odd(s, s._mm512_or_si512(s._mm512_or_si512(a, b), s._mm512_or_si512(c, d)))
}

/// Returns the bits under `mask`.
#[inline(always)]
fn under(s: Avx512, bits: __m512i, mask: i32) -> __m512i {
    s._mm512_and_si512(bits, s._mm512_set1_epi32(mask))
}

/// Returns twice each byte, plus 1. The bytes are below 128.
#[inline(always)]
fn odd(s: Avx512, bytes: __m512i) -> __m512i {
    s._mm512_or_si512(s._mm512_slli_epi32::<1>(bytes), s._mm512_set1_epi8(1))
}
