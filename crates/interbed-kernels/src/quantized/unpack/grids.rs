//! Unpacks the types whose codes are entries of tables with AVX-512.
//!
//! A processor gathers words from a table no faster than one by one. So entries of eight codes are loaded one by one,
//! as halves of vectors. Entries of four codes would be twice as many: vectors look them up in registers instead, where
//! a table of 512 entries has room, since each takes 12 bits.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Unpack, broadcast};
use crate::quantized::collect::Collect;
use crate::quantized::formats::{Format, Grid, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use crate::quantized::grids::{
    Fours, IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S_CODES, IQ3_S_FOURS, IQ3_XXS_CODES, IQ3_XXS_FOURS,
};
use crate::quantized::header::{GROUP, GROUPS, SPAN_BLOCKS};
use crate::quantized::spans::{Block, Span};
use crate::simd::{Avx512, load128};

/// A type whose codes are entries of a table.
pub(super) trait Entries: Grid + Collect {
    /// Unpacks the codes of four parts: the first halves, 16 bytes each in the order of the parts, and the last halves.
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2];
}

impl<T: Entries> Unpack for T {
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], part: usize) -> [__m512i; 2] {
        T::unpack_parts(s, Apart { blocks, part: part % SPAN_BLOCKS })
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        T::unpack_parts(s, Adjacent { span, first: group % GROUPS * GROUP })
    }
}

/// Four parts of 32 columns each. A block has pieces of equal length for its eight parts, one after the other from some
/// byte on, which is the argument `at` of these functions.
pub(super) trait Parts: Copy {
    /// Returns the piece of one part.
    fn piece<const N: usize>(&self, at: usize, part: usize) -> &[u8; N];

    /// Returns the piece of one part, of eight bytes. The load is written in assembly: the compiler would load four
    /// parts as one vector, and it takes longer to get indices out of that.
    #[inline(always)]
    fn word(&self, at: usize, part: usize) -> u64 {
        let from: &[u8; 8] = self.piece(at, part);
        let word;
        // SAFETY: the bytes are readable, and nothing is written.
        unsafe {
            asm!("mov {}, [{}]", out(reg) word, in(reg) from, options(pure, readonly, nostack, preserves_flags));
        }
        word
    }

    /// Returns the pieces of one byte each.
    #[inline(always)]
    fn ones(self, at: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|part| self.piece::<1>(at, part)[0]))
    }

    /// Returns the pieces of two bytes each.
    #[inline(always)]
    fn twos(self, at: usize) -> u64 {
        let piece = |part: usize| u64::from(u16::from_le_bytes(*self.piece(at, part))) << (16 * part);
        piece(0) | piece(1) | piece(2) | piece(3)
    }

    /// Loads the pieces of four bytes each.
    #[inline(always)]
    fn fours(self, s: Avx512, at: usize) -> __m128i {
        let piece = |part: usize| i64::from(u32::from_le_bytes(*self.piece(at, part)));
        let pair = |first: usize| s._mm_cvtsi64_si128(piece(first) | piece(first + 1) << 32);
        s._mm_unpacklo_epi64(pair(0), pair(2))
    }

    /// Loads the pieces of eight bytes each.
    #[inline(always)]
    fn eights(self, s: Avx512, at: usize) -> __m256i {
        let piece = |part: usize| i64::from_le_bytes(*self.piece(at, part));
        s._mm256_setr_epi64x(piece(0), piece(1), piece(2), piece(3))
    }
}

/// Part `part` of four blocks.
#[derive(Clone, Copy)]
struct Apart<'a, F> {
    blocks: [Block<'a, F>; 4],
    part: usize,
}

/// Four parts of one block, from part `first` on.
#[derive(Clone, Copy)]
struct Adjacent<'a, F> {
    span: Span<'a, F>,
    first: usize,
}

impl<F: Format> Parts for Apart<'_, F> {
    #[inline(always)]
    fn piece<const N: usize>(&self, at: usize, part: usize) -> &[u8; N] {
        self.blocks[part].bytes(at + N * self.part)
    }
}

impl<F: Format> Parts for Adjacent<'_, F> {
    #[inline(always)]
    fn piece<const N: usize>(&self, at: usize, part: usize) -> &[u8; N] {
        self.span.bytes(at + N * (self.first + part))
    }
    #[inline(always)]
    fn ones(self, at: usize) -> u32 {
        u32::from_le_bytes(*self.span.bytes(at + self.first))
    }
    #[inline(always)]
    fn twos(self, at: usize) -> u64 {
        u64::from_le_bytes(*self.span.bytes(at + 2 * self.first))
    }
    #[inline(always)]
    fn fours(self, _: Avx512, at: usize) -> __m128i {
        load128(self.span.bytes::<16>(at + 4 * self.first))
    }
    #[inline(always)]
    fn eights(self, s: Avx512, at: usize) -> __m256i {
        s.load256(self.span.bytes::<32>(at + 8 * self.first))
    }
}

impl Entries for Iq3S {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let indices = s._mm512_cvtepu8_epi16(parts.eights(s, 2));
        let (low, high) = (of_256(s, &IQ3_S_FOURS[0], indices), of_256(s, &IQ3_S_FOURS[1], indices));
        // The ninth bits of a part's eight indices are one byte.
        let entries = s._mm512_mask_blend_epi16(parts.ones(66), low, high);
        negated::<Self>(s, numbers_of_four(s, &IQ3_S_CODES, entries), signs(s, parts.fours(s, 74)))
    }
}

impl Entries for Iq3Xxs {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let entries = of_256(s, &IQ3_XXS_FOURS[0], s._mm512_cvtepu8_epi16(parts.eights(s, 2)));
        let packed = s._mm256_broadcastsi128_si256(parts.fours(s, 66));
        let bits = s._mm256_castsi256_si128(with_eighths(s, sevens_apart(s, packed)));
        negated::<Self>(s, numbers_of_four(s, &IQ3_XXS_CODES, entries), signs(s, bits))
    }
}

impl Entries for Iq2S {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let high = s._mm256_set1_epi32(parts.ones(66).cast_signed());
        let high = s._mm256_shuffle_epi8(high, words(s, |part, _| [part, ZERO]));
        let codes = eights(s, &IQ2_S, indices(s, parts.fours(s, 2), high, 2, 3));
        negated::<Self>(s, codes, signs(s, parts.fours(s, 34)))
    }
}

impl Entries for Iq2Xs {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let words = parts.eights(s, 2);
        let codes = eights(s, &IQ2_XS, [0, 1, 2, 3].map(|part| parts.word(2, part)));
        let bits = with_eighths(s, s._mm256_srli_epi16::<9>(words));
        negated::<Self>(s, codes, copies(s, lane_of_each(s, bits), |_, i| 2 * i))
    }
}

impl Entries for Iq2Xxs {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let both = parts.eights(s, 2);
        let codes = eights(s, &IQ2_XXS, [0, 1, 2, 3].map(|part| parts.word(2, part)));
        let bits = with_eighths(s, sevens_apart(s, both));
        negated::<Self>(s, codes, copies(s, lane_of_each(s, bits), |_, i| 4 + i))
    }
}

impl Entries for Iq1M {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let high = high_words(s, parts.twos(32));
        let codes = eights(s, &IQ1, indices(s, parts.fours(s, 0), high, 4, 7));
        // Bit 3 of an entry's four bits becomes bit 1 of a byte.
        let shifts = s._mm256_srli_epi16::<2>(s._mm256_srlv_epi16(high, each_word(s, |i| 4 * i)));
        let twos = s._mm256_and_si256(shifts, s._mm256_set1_epi16(2));
        let twos = copies(s, lane_of_each(s, twos), |_, i| 2 * i);
        [s._mm512_sub_epi8(codes[0], twos[0]), s._mm512_sub_epi8(codes[1], twos[1])]
    }
}

impl Entries for Iq1S {
    #[inline(always)]
    fn unpack_parts<P: Parts>(s: Avx512, parts: P) -> [__m512i; 2] {
        let high = high_words(s, parts.twos(34));
        let codes = eights(s, &IQ1, indices(s, parts.fours(s, 2), high, 3, 7));
        let twos = s._mm256_and_si256(s._mm256_srai_epi16::<15>(high), s._mm256_set1_epi8(2));
        let twos = lane_of_each(s, twos);
        codes.map(|codes| s._mm512_sub_epi8(codes, twos))
    }
}

/// Looks up four entries of each part: the first two, and the last two. A part's indices are adjacent in its word, in
/// bytes if the table has 256 entries, otherwise in half words, whose upper bits are ignored.
#[inline(always)]
fn eights<const N: usize>(s: Avx512, table: &[u64; N], words: [u64; 4]) -> [__m512i; 2] {
    let [a, b, c, d] = words.map(|word| four_entries(table, word));
    let half = |i: usize| {
        let (low, high) = (s._mm256_set_m128i(b[i], a[i]), s._mm256_set_m128i(d[i], c[i]));
        s._mm512_inserti64x4::<1>(s._mm512_castsi256_si512(low), high)
    };
    [half(0), half(1)]
}

/// Looks up the four entries of a word (see [`eights`]), two in each result.
///
/// The function is written in assembly, since the compiler takes half as many instructions again for it.
#[inline(always)]
fn four_entries<const N: usize>(table: &[u64; N], word: u64) -> [__m128i; 2] {
    const { assert!(N.is_power_of_two() && N >= 256 && N <= 1 << 16) };
    let (first, last);
    macro_rules! look_up {
        ($part:literal, $bits:literal, $word:expr) => {
            asm!(
                concat!("movzx {index:e}, {word:", $part, "}"),
                concat!("shr {word}, ", $bits),
                "vmovq {first}, qword ptr [{table} + 8 * {index}]",
                concat!("movzx {index:e}, {word:", $part, "}"),
                concat!("shr {word}, ", $bits),
                "vmovhps {first}, {first}, qword ptr [{table} + 8 * {index}]",
                concat!("movzx {index:e}, {word:", $part, "}"),
                concat!("shr {word}, ", $bits),
                "vmovq {last}, qword ptr [{table} + 8 * {index}]",
                concat!("movzx {index:e}, {word:", $part, "}"),
                "vmovhps {last}, {last}, qword ptr [{table} + 8 * {index}]",
                table = in(reg) table.as_ptr(),
                word = inout(reg) $word => _,
                index = out(reg) _,
                first = out(xmm_reg) first,
                last = out(xmm_reg) last,
                options(pure, readonly, nostack),
            )
        };
    }
    // SAFETY: all indices are below N; AVX exists where vectors of AVX-512 do.
    unsafe {
        if N == 256 {
            look_up!("l", 8, word);
        } else {
            look_up!("x", 16, word & ((N as u64 - 1) * 0x0001_0001_0001_0001));
        }
    }
    [first, last]
}

/// Moves the four half words of each part out of the vector.
#[inline(always)]
fn four_words(s: Avx512, words: __m256i) -> [u64; 4] {
    let halves = [s._mm256_castsi256_si128(words), s._mm256_extracti128_si256::<1>(words)];
    let [[a, b], [c, d]] = halves.map(|half| [half, s._mm_unpackhi_epi64(half, half)]);
    [a, b, c, d].map(|word| s._mm_cvtsi128_si64(word).cast_unsigned())
}

/// The index of a byte that `vpshufb` sets to zero.
const ZERO: usize = 128;

/// Returns two bytes for each of sixteen entries, four of each part.
#[inline(always)]
fn words(s: Avx512, word: impl Fn(usize, usize) -> [usize; 2]) -> __m256i {
    let word = |part: usize, i: usize| {
        let [low, high] = word(part, i);
        (low | high << 8) as i64
    };
    let four = |part: usize| word(part, 0) | word(part, 1) << 16 | word(part, 2) << 32 | word(part, 3) << 48;
    s._mm256_setr_epi64x(four(0), four(1), four(2), four(3))
}

/// Returns a number for each entry, which depends on its position in its part only, like [`words`].
#[inline(always)]
fn each_word(s: Avx512, number: impl Fn(usize) -> usize) -> __m256i {
    words(s, |_, i| [number(i) & 255, number(i) >> 8])
}

/// Returns the half word of each part for each of its entries, like [`words`].
#[inline(always)]
fn high_words(s: Avx512, of_parts: u64) -> __m256i {
    let of_parts = s._mm256_set1_epi64x(of_parts.cast_signed());
    s._mm256_shuffle_epi8(of_parts, words(s, |part, _| [2 * part, 2 * part + 1]))
}

/// Returns the indices of entries, whose low bytes are four adjacent ones for each part. The bits above are those under
/// `mask` of the entry's half word of `high`, after a shift by `step` bits for each earlier entry of the part.
#[inline(always)]
fn indices(s: Avx512, low: __m128i, high: __m256i, step: usize, mask: i16) -> [u64; 4] {
    let low = s._mm256_shuffle_epi8(s._mm256_broadcastsi128_si256(low), words(s, |part, i| [4 * part + i, ZERO]));
    let high = s._mm256_and_si256(s._mm256_srlv_epi16(high, each_word(s, |i| step * i)), s._mm256_set1_epi16(mask));
    four_words(s, s._mm256_or_si256(low, s._mm256_slli_epi16::<8>(high)))
}

/// Looks up 32 packed entries of a table of 256.
#[inline(always)]
fn of_256(s: Avx512, table: &Fours, indices: __m512i) -> __m512i {
    // The lower six bits of an index choose from two vectors.
    let of_64 = |i: usize| {
        let [low, high] = [&table.0[2 * i], &table.0[2 * i + 1]].map(|part| s.load512(part));
        s._mm512_permutex2var_epi16(low, indices, high)
    };
    let is_odd = s._mm512_test_epi16_mask(indices, s._mm512_set1_epi16(64));
    let is_high = s._mm512_test_epi16_mask(indices, s._mm512_set1_epi16(128));
    let low = s._mm512_mask_blend_epi16(is_odd, of_64(0), of_64(1));
    let high = s._mm512_mask_blend_epi16(is_odd, of_64(2), of_64(3));
    s._mm512_mask_blend_epi16(is_high, low, high)
}

/// Returns the codes of 32 packed entries (see [`Fours`]), eight of each part: of the first four, and of the last.
#[inline(always)]
fn numbers_of_four(s: Avx512, codes: &[u8; 16], entries: __m512i) -> [__m512i; 2] {
    let (codes, mask) = (broadcast(s, codes), s._mm512_set1_epi8(7));
    let first = s._mm512_and_si512(entries, mask);
    let last = s._mm512_and_si512(s._mm512_srli_epi16::<3>(entries), mask);
    [
        s._mm512_shuffle_epi8(codes, s._mm512_unpacklo_epi16(first, last)),
        s._mm512_shuffle_epi8(codes, s._mm512_unpackhi_epi16(first, last)),
    ]
}

/// Negates the numbers whose bits are set: bit `i` of a byte for number `i` of the eight whose bytes have copies of it.
#[inline(always)]
fn negated<F: Grid>(s: Avx512, [first, last]: [__m512i; 2], bits: [__m512i; 2]) -> [__m512i; 2] {
    let each = s._mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed());
    let double = s._mm512_set1_epi8((2 * <F as Format>::OFFSET).cast_signed());
    let is_set = bits.map(|bits| s._mm512_test_epi8_mask(bits, each));
    [s._mm512_mask_sub_epi8(first, is_set[0], double, first), s._mm512_mask_sub_epi8(last, is_set[1], double, last)]
}

/// Returns eight copies of each byte: of bytes 0 and 1 of each part, and of bytes 2 and 3.
#[inline(always)]
fn signs(s: Avx512, of_parts: __m128i) -> [__m512i; 2] {
    copies(s, s._mm512_broadcast_i32x4(of_parts), |part, i| 4 * part + i)
}

/// Returns eight copies of bytes `at(part, i)` of lane `part` of four: of numbers 0 and 1 of each part, and of numbers
/// 2 and 3.
#[inline(always)]
fn copies(s: Avx512, lanes: __m512i, at: impl Fn(usize, usize) -> usize) -> [__m512i; 2] {
    let half = |first: usize| {
        let copies = |part: usize, i: usize| at(part, first + i) as i64 * 0x0101_0101_0101_0101;
        let pair = |part: usize| [copies(part, 0), copies(part, 1)];
        let [a, b, c, d] = [pair(0), pair(1), pair(2), pair(3)];
        s._mm512_shuffle_epi8(lanes, s._mm512_setr_epi64(a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]))
    };
    [half(0), half(2)]
}

/// Copies each 64 bits to both halves of a lane of 128.
#[inline(always)]
fn lane_of_each(s: Avx512, parts: __m256i) -> __m512i {
    let index = s._mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    s._mm512_permutexvar_epi64(index, s._mm512_castsi256_si512(parts))
}

/// Moves four times 7 bits of each 32 bits to bytes of their own.
#[inline(always)]
fn sevens_apart(s: Avx512, packed: __m256i) -> __m256i {
    let under = |bits: __m256i, mask: i32| s._mm256_and_si256(bits, s._mm256_set1_epi32(mask));
    let first = s._mm256_or_si256(under(packed, 0x7f), under(s._mm256_slli_epi32::<1>(packed), 0x7f00));
    let last = s._mm256_or_si256(
        under(s._mm256_slli_epi32::<2>(packed), 0x7f_0000),
        under(s._mm256_slli_epi32::<3>(packed), 0x7f00_0000),
    );
    s._mm256_or_si256(first, last)
}

/// Adds to each byte, whose upper bit is 0, an upper bit that makes the number of its set bits even.
#[inline(always)]
fn with_eighths(s: Avx512, sevens: __m256i) -> __m256i {
    const EIGHTHS: [u8; 16] = {
        let mut eighths = [0; 16];
        let mut bits = 0u32;
        while bits < 16 {
            eighths[bits as usize] = (bits.count_ones() as u8 & 1) << 7;
            bits += 1;
        }
        eighths
    };
    let folded = s._mm256_xor_si256(sevens, s._mm256_srli_epi16::<4>(sevens));
    let folded = s._mm256_and_si256(folded, s._mm256_set1_epi8(15));
    let eighths = s._mm256_shuffle_epi8(s._mm256_broadcastsi128_si256(load128(&EIGHTHS)), folded);
    s._mm256_or_si256(sevens, eighths)
}
