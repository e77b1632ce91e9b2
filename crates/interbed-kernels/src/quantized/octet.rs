//! Eight rows in the form in which AVX2 multiplies them: a row in each lane, four of the row's columns at a time.

use std::arch::x86_64::*;

use super::activations::BLOCK;
use super::formats::{Format, Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::formats::{Grid, IQ4_NL_CODES, Iq4Xs, MXFP4_CODES};
use super::header::{Fields, ROWS};
use super::spans::{Span, Spans};
use crate::simd::{Avx2, load128};

/// The number of rows in the lanes of a vector.
pub(super) const OCTET: usize = 8;

/// The number of columns of a lane.
const WORD: usize = 4;

/// The number of vectors of a block.
pub(super) const WORDS: usize = BLOCK / WORD;

/// A type whose codes AVX2 can unpack.
pub(super) trait Octet: Format {
    /// The largest code. Unused for signed codes, with an [`OFFSET`](Format::OFFSET) of 128.
    const LARGEST: usize;
    /// The number of 32-column blocks whose codes share the same 32 bytes, column by column.
    const SHARED: usize = 1;
    /// The number of sums of two products, of a block or half, that can be added in 16 bits without overflow if
    /// activations are at most 127.
    const ADDED: usize = match 32_767 / (2 * 127 * Self::LARGEST) {
        8.. if !Self::HALVES => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    };

    /// Loads the bytes with the codes of set `set` of [`SHARED`](Self::SHARED) blocks of the span. Implemented with
    /// intrinsics only where the compiler makes slow code of the portable way.
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        let mut codes = [0; BLOCK];
        Self::unpack(span.all(), set, &mut codes);
        s.load256(&codes)
    }

    /// Extracts the codes of block `block` of the set from the bytes of [`Octet::bytes1`].
    #[inline(always)]
    fn codes(_: Avx2, bytes: __m256i, _block: usize) -> __m256i {
        bytes
    }

    /// Does the work of [`Format::collect`] for one span of sixteen rows.
    #[inline(always)]
    fn collect_octets(_: Avx2, spans: Spans<'_, Self>, fields: &mut Fields) {
        for row in 0..ROWS {
            Self::collect(spans.row(row).all(), row, fields);
        }
    }
}

/// Loads the bytes of a set of blocks of eight rows from row `first` of `spans` on, transposed so that vector `i` has
/// columns `4 i .. 4 i + 4` of each row.
#[inline(always)]
pub(super) fn turned<F: Octet>(s: Avx2, spans: Spans<'_, F>, first: usize, set: usize) -> [__m256i; WORDS] {
    let row = |row: usize| F::bytes1(s, spans.row(first + row), set);
    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
    let (e, f, g, h) = (row(4), row(5), row(6), row(7));
    let low = turned4(s, [a, b, c, d]);
    let high = turned4(s, [e, f, g, h]);
    let mut words = [s._mm256_setzero_si256(); WORDS];
    for i in 0..WORDS / 2 {
        words[i] = s._mm256_permute2x128_si256::<0x20>(low[i], high[i]);
        words[WORDS / 2 + i] = s._mm256_permute2x128_si256::<0x31>(low[i], high[i]);
    }
    words
}

/// Transposes words within 128 bits: word `i` of the four vectors becomes adjacent.
#[inline(always)]
fn turned4(s: Avx2, [a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (s._mm256_unpacklo_epi32(a, b), s._mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (s._mm256_unpackhi_epi32(a, b), s._mm256_unpackhi_epi32(c, d));
    [
        s._mm256_unpacklo_epi64(ab, cd),
        s._mm256_unpackhi_epi64(ab, cd),
        s._mm256_unpacklo_epi64(ab_high, cd_high),
        s._mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Loads the four words from byte `at` on of eight rows, transposed: each word of all rows in their order.
#[inline(always)]
fn words<F: Format>(s: Avx2, spans: Spans<'_, F>, first: usize, at: usize) -> [__m256i; 4] {
    let pair = |row: usize| {
        let of = |row: usize| load128(spans.row(first + row).bytes::<16>(at));
        s._mm256_set_m128i(of(row + 4), of(row))
    };
    turned4(s, [pair(0), pair(1), pair(2), pair(3)])
}

/// Returns the lower and the upper halves of eight words.
#[inline(always)]
fn low_and_high(s: Avx2, words: __m256i) -> (__m128i, __m128i) {
    let low = s._mm256_and_si256(words, s._mm256_set1_epi32(0xffff));
    // Packing works within 128 bits: low and high halves of four words in each.
    let both = s._mm256_packus_epi32(low, s._mm256_srli_epi32::<16>(words));
    let both = s._mm256_permute4x64_epi64::<0b11_01_10_00>(both);
    (s._mm256_castsi256_si128(both), s._mm256_extracti128_si256::<1>(both))
}

/// Collects the fields with which blocks of Q4_K and Q5_K begin.
#[inline(always)]
fn q4_fields<F: Format>(s: Avx2, spans: Spans<'_, F>, fields: &mut Fields) {
    let (six, four, two) = (s._mm256_set1_epi8(0x3f), s._mm256_set1_epi8(0x0f), s._mm256_set1_epi8(0x30));
    for octet in 0..ROWS / OCTET {
        let [both, scales, minima, low] = words(s, spans, octet * OCTET, 0);
        let (scale, minimum) = low_and_high(s, both);
        s.store128(scale, &mut fields.scales[0].as_chunks_mut::<OCTET>().0[octet]);
        s.store128(minimum, &mut fields.minima[0].as_chunks_mut::<OCTET>().0[octet]);
        // The bit layout is that of `fields::scales_and_minima`.
        let (low, next) = (s._mm256_and_si256(low, four), s._mm256_and_si256(s._mm256_srli_epi32::<4>(low), four));
        let last_scales = s._mm256_and_si256(s._mm256_srli_epi32::<2>(scales), two);
        let last_minima = s._mm256_and_si256(s._mm256_srli_epi32::<2>(minima), two);
        let packed = [
            s._mm256_and_si256(scales, six),
            s._mm256_or_si256(low, last_scales),
            s._mm256_and_si256(minima, six),
            s._mm256_or_si256(next, last_minima),
        ];
        store_words(s, packed, octet, fields);
    }
}

/// Stores sixteen packed bytes of each of eight rows.
#[inline(always)]
fn store_words(s: Avx2, words: [__m256i; 4], octet: usize, fields: &mut Fields) {
    for i in 0..4 {
        s.store256(words[i], &mut fields.words[i].as_chunks_mut::<OCTET>().0[octet]);
    }
}

/// Returns the lower or upper halves of all bytes.
#[inline(always)]
fn nibbles(s: Avx2, bytes: __m256i, upper: bool) -> __m256i {
    let bytes = if upper { s._mm256_srli_epi16::<4>(bytes) } else { bytes };
    s._mm256_and_si256(bytes, s._mm256_set1_epi8(15))
}

/// Unpacks numbers `i` and `16 + i` from the halves of byte `i` of 16.
#[inline(always)]
fn nibbles1(s: Avx2, bytes: &[u8; 16]) -> __m256i {
    let low = load128(bytes);
    s._mm256_and_si256(s._mm256_set_m128i(s._mm_srli_epi16::<4>(low), low), s._mm256_set1_epi8(15))
}

/// Turns 32 bits into 32 bytes: 16 for a set bit, else 0.
#[inline(always)]
fn fifths1(s: Avx2, bits: &[u8; 4]) -> __m256i {
    s._mm256_and_si256(bytes_of_bits(s, u32::from_le_bytes(*bits)), s._mm256_set1_epi8(16))
}

/// Turns 32 bits into 32 bytes: all bits of a byte are set or none is.
#[inline(always)]
fn bytes_of_bits(s: Avx2, bits: u32) -> __m256i {
    // Copies byte `i / 8` of the bits to byte `i`, then selects bit `i % 8` of it.
    let bytes = s._mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let spread = s._mm256_shuffle_epi8(s._mm256_set1_epi32(bits.cast_signed()), bytes);
    let bit = s._mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    s._mm256_cmpeq_epi8(s._mm256_and_si256(spread, bit), bit)
}

/// Looks codes up in a table.
#[inline(always)]
fn look_up(s: Avx2, table: &[u8; 16], codes: __m256i) -> __m256i {
    s._mm256_shuffle_epi8(s._mm256_broadcastsi128_si256(load128(table)), codes)
}

impl Octet for Q8_0 {
    const LARGEST: usize = 255;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        s._mm256_xor_si256(s.load256(span.block(set).bytes::<32>(2)), s._mm256_set1_epi8(-128))
    }
}

impl Octet for Q4_0 {
    const LARGEST: usize = 15;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        nibbles1(s, span.block(set).bytes(2))
    }
}

impl Octet for Q4_1 {
    const LARGEST: usize = 15;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        nibbles1(s, span.block(set).bytes(4))
    }
}

impl Octet for Q5_0 {
    const LARGEST: usize = 31;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        let block = span.block(set);
        s._mm256_or_si256(nibbles1(s, block.bytes(6)), fifths1(s, block.bytes(2)))
    }
}

impl Octet for Q5_1 {
    const LARGEST: usize = 31;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        let block = span.block(set);
        s._mm256_or_si256(nibbles1(s, block.bytes(8)), fifths1(s, block.bytes(4)))
    }
}

impl Octet for Iq4Nl {
    const LARGEST: usize = 255;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        look_up(s, &IQ4_NL_CODES, nibbles1(s, span.block(set).bytes(2)))
    }
}

impl Octet for Iq4Xs {
    const LARGEST: usize = 255;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        look_up(s, &IQ4_NL_CODES, nibbles1(s, span.bytes(8 + set % 8 * 16)))
    }
}

impl<T: Grid> Octet for T {
    const LARGEST: usize = 2 * <T as Format>::OFFSET as usize;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        grid1(s, span, set)
    }
}

/// Unpacks the codes of block `block` of the span from the entries of a table.
#[inline(always)]
fn grid1<F: Grid + Format>(s: Avx2, span: Span<'_, F>, block: usize) -> __m256i {
    let ([a, b, c, d], bits) = F::entries(span.all(), block);
    let codes = s._mm256_setr_epi64x(a.cast_signed(), b.cast_signed(), c.cast_signed(), d.cast_signed());
    let is_set = bytes_of_bits(s, bits);
    if F::NEGATES {
        let negated = s._mm256_sub_epi8(s._mm256_set1_epi8((2 * <F as Format>::OFFSET).cast_signed()), codes);
        s._mm256_blendv_epi8(codes, negated, is_set)
    } else {
        s._mm256_sub_epi8(codes, s._mm256_and_si256(is_set, s._mm256_set1_epi8(2)))
    }
}

impl Octet for Mxfp4 {
    const LARGEST: usize = 24;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        look_up(s, &MXFP4_CODES, nibbles1(s, span.block(set).bytes(1)))
    }
}

impl Octet for Q2K {
    const LARGEST: usize = 3;
}

impl Octet for Q3K {
    const LARGEST: usize = 7;
}

impl Octet for Q4K {
    const LARGEST: usize = 15;
    const SHARED: usize = 2;
    #[inline(always)]
    fn bytes1(s: Avx2, span: Span<'_, Self>, set: usize) -> __m256i {
        s.load256(span.bytes::<32>(16 + set % 4 * 32))
    }
    #[inline(always)]
    fn codes(s: Avx2, bytes: __m256i, block: usize) -> __m256i {
        nibbles(s, bytes, block == 1)
    }
    #[inline(always)]
    fn collect_octets(s: Avx2, spans: Spans<'_, Self>, fields: &mut Fields) {
        q4_fields(s, spans, fields);
    }
}

impl Octet for Q5K {
    const LARGEST: usize = 31;
    #[inline(always)]
    fn collect_octets(s: Avx2, spans: Spans<'_, Self>, fields: &mut Fields) {
        q4_fields(s, spans, fields);
    }
}

impl Octet for Q6K {
    const LARGEST: usize = 63;
    #[inline(always)]
    fn collect_octets(s: Avx2, spans: Spans<'_, Self>, fields: &mut Fields) {
        for octet in 0..ROWS / OCTET {
            store_words(s, words(s, spans, octet * OCTET, 192), octet, fields);
            let [.., last] = words(s, spans, octet * OCTET, 194);
            let (_, scale) = low_and_high(s, last);
            s.store128(scale, &mut fields.scales[0].as_chunks_mut::<OCTET>().0[octet]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantized::formats::with_format;
    use crate::quantized::header::SPAN_BLOCKS;
    use crate::{DType, Level};

    /// Checks that fields and codes equal those of the portable code, for sixteen spans of random bytes.
    fn check<F: Octet>(s: Avx2, bytes: &[u8]) {
        let spans = Spans::<F>::every(F::SPAN_BYTES, bytes);
        let (mut want, mut got) = (Fields::ZERO, Fields::ZERO);
        bytes.chunks_exact(F::SPAN_BYTES).enumerate().for_each(|(row, span)| F::collect(span, row, &mut want));
        F::collect_octets(s, spans, &mut got);
        assert_eq!((got.scales, got.minima, got.words), (want.scales, want.minima, want.words), "{}", F::DTYPE);
        for block in 0..SPAN_BLOCKS {
            for first in [0, OCTET] {
                let words = turned(s, spans, first, block / F::SHARED);
                for (word, bytes) in words.into_iter().enumerate() {
                    let mut got = [[0u8; WORD]; OCTET];
                    s.store256(F::codes(s, bytes, block % F::SHARED), &mut got);
                    for (row, got) in got.into_iter().enumerate() {
                        let mut codes = [0; BLOCK];
                        F::unpack(spans.row(first + row).all(), block, &mut codes);
                        assert_eq!(got, codes[word * WORD..][..WORD], "{} row {row}, block {block}", F::DTYPE);
                        let is_signed = F::OFFSET == 128;
                        assert!(is_signed || codes.iter().all(|&code| usize::from(code) <= F::LARGEST));
                    }
                }
            }
        }
        assert!(F::OFFSET == 128 || F::ADDED * 2 * 127 * F::LARGEST <= 32_767, "{}", F::DTYPE);
    }

    #[test]
    fn octets_have_the_fields_and_codes_of_the_plain_way() {
        let Some(s) = Level::available().find_map(Avx2::of) else { return };
        let mut random = 7u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as u8
        })
        .take(ROWS * 300)
        .collect();
        let is_quantized = |dtype: &DType| !dtype.is_plain() && !dtype.is_decoded();
        for dtype in DType::ALL.into_iter().filter(is_quantized) {
            with_format!(dtype, F => check::<F>(s, &bytes[..ROWS * F::SPAN_BYTES]));
        }
    }
}
