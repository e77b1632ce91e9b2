//! Extracts the small fields of sixteen rows with AVX-512. The fields come either from whole spans, as four times four
//! bytes of each row, transposed so that equal fields are adjacent, or from a group of blocks, together with the codes
//! of the blocks.

mod scaled;

use std::arch::x86_64::*;

use super::formats::{ADDED, Format, Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::header::{Fields, GROUP, Header, Lanes, ROWS, SPAN_BLOCKS};
use super::spans::{Quad, Span, Spans, load4};
use crate::simd::{Avx512, Simd};

/// The offset of the scale in a block of 32 columns, in bytes.
const SCALE_AT: usize = 0;
/// The offset, in bytes, of the number that is added to each number of a block of 32 columns.
const ADDED_AT: usize = 2;

/// A type whose small fields vector instructions can extract.
pub(super) trait Collect: Format {
    /// Whether the fields are half floats in each block of 32: the scale and, with minima, the number that is added. A
    /// kernel that uses codes only once extracts the fields along with the codes ([`GroupFields`]), because it would
    /// otherwise have to wait for the fields of a whole span.
    const IN_BLOCKS: bool = false;

    /// Does the work of [`Format::collect`] for one span of sixteen rows.
    #[inline(always)]
    fn collect_rows(_: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        for row in 0..ROWS {
            Self::collect(spans.row(row).all(), row, fields);
        }
    }
}

/// Implements [`Collect`] for types with a half float in each block of 32, which the added number may follow.
macro_rules! with_halves {
    ($($name:ident)*) => {
        $(
            impl Collect for $name {
                const IN_BLOCKS: bool = true;
                #[inline(always)]
                fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
                    store_halves(s, halves::<Self, SCALE_AT>(s, spans), 0, &mut fields.scales);
                    if Self::MINIMA {
                        store_halves(s, halves::<Self, ADDED_AT>(s, spans), ADDED, &mut fields.minima);
                    }
                }
            }
        )*
    };
}
with_halves!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl);

// The blocks have an odd number of bytes.
impl Collect for Mxfp4 {}

// These types are rare, and so left to the portable code.
impl Collect for Q2K {}
impl Collect for Q3K {}

impl Collect for Q4K {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        q4_fields(s, spans, fields);
    }
}

/// Collects the fields of Q4_K, with which blocks of Q5_K begin too.
#[inline(always)]
fn q4_fields<F: Format>(s: Avx512, spans: Spans<'_, F>, fields: &mut Fields) {
    let [both, scales, minima, low] = words(s, spans, 0);
    let (scale, minimum) = low_and_high(s, both);
    s.store256(scale, &mut fields.scales[0]);
    s.store256(minimum, &mut fields.minima[0]);
    // The bit layout is that of `fields::scales_and_minima`.
    let (six, four, two) = (s._mm512_set1_epi8(0x3f), s._mm512_set1_epi8(0x0f), s._mm512_set1_epi8(0x30));
    let (low, next) = (s._mm512_and_si512(low, four), s._mm512_and_si512(s._mm512_srli_epi32::<4>(low), four));
    let last_scales = s._mm512_and_si512(s._mm512_srli_epi32::<2>(scales), two);
    let last_minima = s._mm512_and_si512(s._mm512_srli_epi32::<2>(minima), two);
    let packed = [
        s._mm512_and_si512(scales, six),
        s._mm512_or_si512(low, last_scales),
        s._mm512_and_si512(minima, six),
        s._mm512_or_si512(next, last_minima),
    ];
    store_words(s, packed, fields);
}

impl Collect for Q5K {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        q4_fields(s, spans, fields);
    }
}

impl Collect for Q6K {
    #[inline(always)]
    fn collect_rows(s: Avx512, spans: Spans<'_, Self>, fields: &mut Fields) {
        store_words(s, words(s, spans, 192), fields);
        let [_, _, _, last] = words(s, spans, 194);
        let (_, scale) = low_and_high(s, last);
        s.store256(scale, &mut fields.scales[0]);
    }
}

/// Loads the half floats at byte `AT` of the eight blocks of sixteen rows. Each vector has the half floats of two
/// blocks, the first block's in the lower half of each lane.
#[inline(always)]
fn halves<F: Format, const AT: usize>(s: Avx512, spans: Spans<'_, F>) -> [__m512i; 4] {
    let mut rows = [s._mm512_setzero_si512(); 4];
    for i in 0..4 {
        let four = spans.fourth(i);
        let all = s._mm512_castsi128_si512(halves_of_row::<F, AT>(s, four[0]));
        let all = s._mm512_inserti32x4::<1>(all, halves_of_row::<F, AT>(s, four[1]));
        let all = s._mm512_inserti32x4::<2>(all, halves_of_row::<F, AT>(s, four[2]));
        rows[i] = s._mm512_inserti32x4::<3>(all, halves_of_row::<F, AT>(s, four[3]));
    }
    turned(s, rows)
}

/// Loads the half floats at byte `AT` of eight blocks.
#[inline(always)]
fn halves_of_row<F: Format, const AT: usize>(s: Avx512, span: Span<'_, F>) -> __m128i {
    s._mm_unpacklo_epi64(four_halves::<F, AT, 0>(s, span), four_halves::<F, AT, 4>(s, span))
}

/// Loads the half floats at byte `AT` of four blocks from `FIRST` on, in the lower half.
#[inline(always)]
fn four_halves<F: Format, const AT: usize, const FIRST: usize>(s: Avx512, span: Span<'_, F>) -> __m128i {
    const LINE: usize = 64;
    // Two vectors hold the bytes: one begins with the four blocks, the other follows it, or ends with the span.
    let from = FIRST * F::BYTES;
    let next = (from + LINE).min(F::SPAN_BYTES - LINE);
    let word = |i: usize| {
        let at = (FIRST + i) * F::BYTES + AT;
        (if at < from + LINE { (at - from) / 2 } else { (LINE + at - next) / 2 }) as i64
    };
    let index = s._mm_cvtsi64_si128(word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48);
    let (low, high) = (s.load512(span.bytes::<LINE>(from)), s.load512(span.bytes::<LINE>(next)));
    s._mm512_castsi512_si128(s._mm512_permutex2var_epi16(low, s._mm512_zextsi128_si512(index), high))
}

/// The half floats of a group of four blocks of sixteen rows, extracted along with the codes of four rows at a time:
/// `[four rows][row][block]`. Unused for types without such fields.
pub(super) struct GroupFields {
    scales: [__m256i; 4],
    minima: [__m256i; 4],
}

impl GroupFields {
    #[inline(always)]
    pub fn none(s: Avx512) -> Self {
        let zero = s._mm256_setzero_si256();
        Self { scales: [zero; 4], minima: [zero; 4] }
    }

    /// Extracts the half floats of block group `group` from the spans of four rows. Among the sixteen rows, these are
    /// the rows `4 * quad .. 4 * quad + 4`.
    #[inline(always)]
    pub fn take<F: Collect>(&mut self, s: Avx512, spans: Quad<'_, F>, group: usize, quad: usize) {
        if F::IN_BLOCKS {
            self.scales[quad] = halves_of_group::<F, SCALE_AT>(s, spans, group);
            if F::MINIMA {
                self.minima[quad] = halves_of_group::<F, ADDED_AT>(s, spans, group);
            }
        }
    }

    /// Decodes the half floats of all sixteen rows, and writes the results to the header.
    #[inline(always)]
    pub fn put<F: Collect>(&self, s: Avx512, group: usize, header: &mut Header) {
        if F::IN_BLOCKS {
            put_halves(s, self.scales, 0, group, &mut header.scales);
            if F::MINIMA {
                put_halves(s, self.minima, ADDED, group, &mut header.minima);
            }
        }
    }
}

/// Loads the half floats at byte `AT` of group `group` of four blocks, of four rows: `[row][block]`.
#[inline(always)]
fn halves_of_group<F: Format, const AT: usize>(s: Avx512, spans: Quad<'_, F>, group: usize) -> __m256i {
    let mut rows = [s._mm_setzero_si128(); 4];
    for row in 0..4 {
        rows[row] = match group {
            0 => four_halves::<F, AT, 0>(s, spans.row(row)),
            _ => four_halves::<F, AT, 4>(s, spans.row(row)),
        };
    }
    s._mm256_set_m128i(s._mm_unpacklo_epi64(rows[2], rows[3]), s._mm_unpacklo_epi64(rows[0], rows[1]))
}

/// Decodes the results of [`halves_of_group`] for four times four rows, after flipping the bits of `change`, as the
/// fields of these blocks.
#[inline(always)]
fn put_halves(s: Avx512, rows: [__m256i; 4], change: u16, group: usize, to: &mut [Lanes; SPAN_BLOCKS]) {
    let first = s._mm512_inserti64x4::<1>(s._mm512_castsi256_si512(rows[0]), rows[1]);
    let last = s._mm512_inserti64x4::<1>(s._mm512_castsi256_si512(rows[2]), rows[3]);
    // Selects word 0 of each row of either vector, for the lower half.
    let word = s._mm512_setr_epi64(
        0x000c_0008_0004_0000,
        0x001c_0018_0014_0010,
        0x002c_0028_0024_0020,
        0x003c_0038_0034_0030,
        0,
        0,
        0,
        0,
    );
    for block in 0..GROUP {
        let word = s._mm512_or_si512(word, s._mm512_set1_epi16(block as i16));
        let halves = s._mm512_castsi512_si256(s._mm512_permutex2var_epi16(first, word, last));
        let halves = s._mm256_xor_si256(halves, s._mm256_set1_epi16(change as i16));
        s.store(s._mm512_cvtph_ps(halves), &mut to[group * GROUP + block]);
    }
}

/// Loads 16 bytes at `at` of sixteen rows, as four words.
#[inline(always)]
pub(super) fn words<F: Format>(s: Avx512, spans: Spans<'_, F>, at: usize) -> [__m512i; 4] {
    turned(
        s,
        [
            load4(s, spans.fourth(0).map(|span| span.bytes(at))),
            load4(s, spans.fourth(1).map(|span| span.bytes(at))),
            load4(s, spans.fourth(2).map(|span| span.bytes(at))),
            load4(s, spans.fourth(3).map(|span| span.bytes(at))),
        ],
    )
}

/// Transposes words. The first of four vectors has four words of row 0, then of rows 4, 8 and 12; each next vector has
/// the words of the rows that follow. Returns each word of all sixteen rows, in the order of the rows.
#[inline(always)]
pub(super) fn turned(s: Avx512, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (s._mm512_unpacklo_epi32(a, b), s._mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (s._mm512_unpackhi_epi32(a, b), s._mm512_unpackhi_epi32(c, d));
    [
        s._mm512_unpacklo_epi64(ab, cd),
        s._mm512_unpackhi_epi64(ab, cd),
        s._mm512_unpacklo_epi64(ab_high, cd_high),
        s._mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Returns the lower and the upper halves of sixteen words.
#[inline(always)]
fn low_and_high(s: Avx512, words: __m512i) -> (__m256i, __m256i) {
    (s._mm512_cvtepi32_epi16(words), s._mm512_cvtepi32_epi16(s._mm512_srli_epi32::<16>(words)))
}

/// Stores the results of [`halves`] after flipping the bits of `change`.
#[inline(always)]
fn store_halves(s: Avx512, pairs: [__m512i; 4], change: u16, to: &mut [[u16; ROWS]; SPAN_BLOCKS]) {
    for i in 0..4 {
        let (even, odd) = low_and_high(s, s._mm512_xor_si512(pairs[i], s._mm512_set1_epi16(change as i16)));
        s.store256(even, &mut to[2 * i]);
        s.store256(odd, &mut to[2 * i + 1]);
    }
}

/// Stores sixteen packed bytes of each row.
#[inline(always)]
fn store_words(s: Avx512, words: [__m512i; 4], fields: &mut Fields) {
    for i in 0..4 {
        s.store512(words[i], &mut fields.words[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantized::formats::with_format;
    use crate::quantized::header::GROUPS;
    use crate::quantized::unpack::Unpack;
    use crate::{DType, Level};

    /// Compares vector and portable code on sixteen spans of random bytes.
    fn check<F: Unpack>(s: Avx512, bytes: &[u8]) {
        let spans: Vec<&[u8]> = bytes.chunks_exact(F::SPAN_BYTES).collect();
        let (mut want, mut got) = (Fields::ZERO, Fields::ZERO);
        spans.iter().enumerate().for_each(|(row, span)| F::collect(span, row, &mut want));
        let all = Spans::<F>::every(F::SPAN_BYTES, bytes);
        F::collect_rows(s, all, &mut got);
        assert_eq!((got.scales, got.minima, got.words), (want.scales, want.minima, want.words), "{}", F::DTYPE);
        if F::IN_BLOCKS {
            check_groups::<F>(s, all, &want);
        }
        check_sets::<F>(s, all, &spans);
        for four in 0..4 {
            for block in 0..SPAN_BLOCKS {
                let of_four = [0, 1, 2, 3].map(|i| all.row(4 * four + i));
                let mut halves = [[[0; 16]; 4]; 2];
                for (vector, to) in F::unpack_rows(s, of_four, block).into_iter().zip(&mut halves) {
                    s.store512(vector, to);
                }
                for i in 0..4 {
                    let mut want = [0; 32];
                    F::unpack(spans[4 * four + i], block, &mut want);
                    assert_eq!([halves[0][i], halves[1][i]].concat(), want, "{} block {block}", F::DTYPE);
                }
            }
        }
    }

    /// Checks that the codes of sixteen rows are those of each row.
    fn check_sets<F: Unpack>(s: Avx512, all: Spans<'_, F>, spans: &[&[u8]]) {
        let mut seen = 0;
        for set in 0..SPAN_BLOCKS / F::SET {
            F::unpack_set(s, all, set, |of_set, quad, codes| {
                let mut got = [[0u8; 4]; ROWS];
                s.store512(codes, &mut got);
                let block = set * F::SET + of_set;
                for (row, got) in got.iter().enumerate() {
                    let mut want = [0; 32];
                    F::unpack(spans[row], block, &mut want);
                    assert_eq!(*got, want[4 * quad..][..4], "{} row {row}, block {block}, quad {quad}", F::DTYPE);
                }
                seen |= 1u64 << (8 * block + quad);
            });
        }
        assert_eq!(seen, u64::MAX, "{}", F::DTYPE);
    }

    /// Checks that fields extracted group by group decode to the same header.
    fn check_groups<F: Unpack>(s: Avx512, spans: Spans<'_, F>, fields: &Fields) {
        let (mut want, mut got) = (Header::ZERO, Header::ZERO);
        F::finish(s, fields, &mut want);
        for group in 0..GROUPS {
            let mut taken = GroupFields::none(s);
            (0..4).for_each(|quad| taken.take(s, spans.quad(quad), group, quad));
            taken.put::<F>(s, group, &mut got);
        }
        let bits = |header: &Header| {
            [header.scales, header.minima].as_flattened().as_flattened().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&got), bits(&want), "{}", F::DTYPE);
    }

    #[test]
    fn vectors_take_out_what_the_plain_way_does() {
        let Some(s) = Avx512::of(Level::detect()) else { return };
        let mut state = 1u64;
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_plain() && !dtype.is_decoded()) {
            let len = ROWS * dtype.row_bytes(SPAN_BLOCKS * 32).unwrap();
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .take(len)
            .collect();
            with_format!(dtype, F => check::<F>(s, &bytes));
        }
    }
}
