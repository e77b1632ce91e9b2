//! The formats of the IQ types with blocks of 256 columns. Each 32 or 16 numbers have a small integer factor, and the
//! block has one half float. A number is `half * UNIT * factor * (code - OFFSET)`, which f32 represents exactly.
//!
//! In the layouts, offsets are in bytes and all numbers are little-endian. `d` is a half float. Except in IQ4_XS, the
//! codes of eight or four adjacent numbers are one entry of a table (`grids.rs`), and `index` is the entry's position.
//! Where a type has `signs`, a set bit negates the number; seven bits stand for eight, of which an even number is set.

use super::{Format, IQ4_NL_CODES, Iq4Nl, nibbles};
use crate::DType;
use crate::quantized::grids::{
    IQ1, IQ1_OFFSET, IQ2_OFFSET, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_S_OFFSET, IQ3_XXS, IQ3_XXS_OFFSET,
};
use crate::quantized::header::{Fields, Header, SPAN_BLOCKS};
use crate::quantized::small::Small;

/// A type of 256 columns to a block, with one half float for the block and an integer factor for each 32 or 16 numbers.
pub(in crate::quantized) trait Scaled: Codes {
    const DTYPE: DType;
    const OFFSET: u8;
    /// Whether each 16 numbers have their own factor. Otherwise, each 32 have one.
    const HALVES: bool = false;
    /// A bound of the magnitudes of factors.
    const FACTOR: i32 = 31;
    /// The power of two that the half float is multiplied by.
    const UNIT: f32 = 1.0;

    /// Reads the half float.
    #[inline(always)]
    fn scale(block: &[u8]) -> u16 {
        word(block, 0)
    }

    /// Reads the factors: signed bytes, first in the low byte. Without [`HALVES`](Self::HALVES) there are eight.
    fn factors(block: &[u8]) -> [u64; 2];
}

/// The codes of a type with blocks of 256 columns.
pub(in crate::quantized) trait Codes: Copy {
    /// Unpacks the codes of 32-column block `part` (below 8).
    fn unpack(block: &[u8], part: usize, out: &mut [u8; 32]);
}

/// A type whose codes come from a table.
pub(in crate::quantized) trait Grid: Scaled {
    /// Whether a set bit of the second result of [`Grid::entries`] negates a number. Otherwise, the bit subtracts 2
    /// from the number's code.
    const NEGATES: bool = true;

    /// Returns the codes of the 32 numbers of block `part`, eight in each word, before they are changed by the bits:
    /// bit `i` for number `i`.
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32);
}

impl<T: Grid> Codes for T {
    #[inline(always)]
    fn unpack(block: &[u8], part: usize, out: &mut [u8; 32]) {
        let (entries, bits) = T::entries(block, part);
        for (eight, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *out = entries[eight].to_le_bytes();
            for (i, code) in out.iter_mut().enumerate() {
                let changed = if T::NEGATES { 2 * <T as Scaled>::OFFSET - *code } else { code.wrapping_sub(2) };
                *code = if bits >> (8 * eight + i) & 1 == 1 { changed } else { *code };
            }
        }
    }
}

impl<T: Scaled> Format for T {
    const DTYPE: DType = <T as Scaled>::DTYPE;
    const OFFSET: u8 = <T as Scaled>::OFFSET;
    const HALVES: bool = <T as Scaled>::HALVES;
    // The tables' integers go from -OFFSET to OFFSET at most.
    const WEIGHT_MAX: i32 = <T as Scaled>::OFFSET as i32 * T::FACTOR;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        <T as Codes>::unpack(span, block, out);
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        let [low, high] = T::factors(span);
        fields.scales[0][row] = T::scale(span);
        fields.words[0][row] = low as u32;
        fields.words[1][row] = (low >> 32) as u32;
        if <T as Scaled>::HALVES {
            fields.words[2][row] = high as u32;
            fields.words[3][row] = (high >> 32) as u32;
        }
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        s.store(s.mul(s.widen(&fields.scales[0]), s.splat(T::UNIT)), &mut header.scales[0]);
        for i in 0..SPAN_BLOCKS * 2 {
            if <T as Scaled>::HALVES {
                s.signed_bytes(&fields.words[i / 4], i as u32 % 4, &mut header.factors[i / 2][i % 2]);
            } else if i < SPAN_BLOCKS {
                s.signed_bytes(&fields.words[i / 4], i as u32 % 4, &mut header.factors[i][0]);
            }
        }
    }
}

macro_rules! formats {
    ($($name:ident)*) => {
        $(
            #[derive(Clone, Copy)]
            pub(in crate::quantized) struct $name;
        )*
    };
}
formats!(Iq4Xs Iq3S Iq3Xxs Iq2S Iq2Xs Iq2Xxs Iq1M Iq1S);

/// ```text
/// 0 d   2 upper pairs of bits of eight factors   4 lower four bits of eight factors[4]   8 nibbles[128]
///   number = d * (factor - 32) * IQ4_NL_VALUES[q]
/// nibbles: number 32 s + i (i < 16, s < 8) is in the lower half of byte 16 s + i, number 32 s + 16 + i in the upper
/// ```
impl Scaled for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const OFFSET: u8 = Iq4Nl::OFFSET;
    const FACTOR: i32 = 32;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        let low = nibbles_apart(double_word(block, 4));
        // Spreads pairs of bits to bytes.
        let pairs = u64::from(word(block, 2));
        let pairs = (pairs | pairs << 24) & 0x0000_00ff_0000_00ff;
        let pairs = (pairs | pairs << 12) & 0x000f_000f_000f_000f;
        let pairs = (pairs | pairs << 6) & 0x0303_0303_0303_0303;
        // Subtracts 32 from each byte of 6 bits: the upper bits of the difference are those of `!bit 5`.
        let factors = low | pairs << 4;
        let upper = !factors & 0x2020_2020_2020_2020;
        [factors & 0x1f1f_1f1f_1f1f_1f1f | upper | upper << 1 | upper << 2, 0]
    }
}

impl Codes for Iq4Xs {
    #[inline(always)]
    fn unpack(block: &[u8], part: usize, out: &mut [u8; 32]) {
        nibbles(&block[8 + part * 16..], out);
        for code in out {
            *code = IQ4_NL_CODES[usize::from(*code & 15)];
        }
    }
}

/// ```text
/// 0 d   2 low bytes of indices[64]   66 ninth bits[8], bit i of index i   74 signs[32]   106 nibbles of factors[4]
///   number = d * (2 * factor + 1) * sign * value, a factor for each 32, an index for each 4
/// ```
impl Scaled for Iq3S {
    const DTYPE: DType = DType::Iq3S;
    const OFFSET: u8 = IQ3_S_OFFSET;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [odd(nibbles_apart(double_word(block, 106))), 0]
    }
}

impl Grid for Iq3S {
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let (low, high) = (&block[2 + 8 * part..][..8], usize::from(block[66 + part]));
        let four = |i: usize| u64::from(IQ3_S[usize::from(low[i]) | (high >> i & 1) << 8]);
        ([0, 2, 4, 6].map(|i| four(i) | four(i + 1) << 32), double_word(block, 74 + 4 * part))
    }
}

/// ```text
/// 0 d   2 indices[64]   66 eight words, with four times 7 bits of signs, and a factor in the upper 4 bits
///   number = d / 4 * (2 * factor + 1) * sign * value, a factor for each 32, an index for each 4
/// ```
impl Scaled for Iq3Xxs {
    const DTYPE: DType = DType::Iq3Xxs;
    const OFFSET: u8 = IQ3_XXS_OFFSET;
    const UNIT: f32 = 0.25;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [upper_nibbles::<4>(&block[69..98]), 0]
    }
}

impl Grid for Iq3Xxs {
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let indices = &block[2 + 8 * part..][..8];
        let four = |i: usize| u64::from(IQ3_XXS[usize::from(indices[i])]);
        ([0, 2, 4, 6].map(|i| four(i) | four(i + 1) << 32), signs(double_word(block, 66 + 4 * part)))
    }
}

/// ```text
/// 0 d   2 low bytes of indices[32]   34 signs[32]   66 upper pairs of bits of indices[8]   74 nibbles of factors[8]
///   number = d / 8 * (2 * factor + 1) * sign * value, a factor for each 16, an index for each 8
/// ```
impl Scaled for Iq2S {
    const DTYPE: DType = DType::Iq2S;
    const OFFSET: u8 = IQ2_OFFSET;
    const HALVES: bool = true;
    const UNIT: f32 = 0.125;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [74, 78].map(|at| odd(nibbles_apart(double_word(block, at))))
    }
}

impl Grid for Iq2S {
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let (low, high) = (&block[2 + 4 * part..][..4], usize::from(block[66 + part]));
        let eight = |i: usize| IQ2_S[usize::from(low[i]) | (high >> (2 * i) & 3) << 8];
        ([0, 1, 2, 3].map(eight), double_word(block, 34 + 4 * part))
    }
}

/// ```text
/// 0 d   2 half words[32], with an index in the lower 9 bits and 7 bits of signs   66 nibbles of factors[8]
///   number = d / 8 * (2 * factor + 1) * sign * value, a factor for each 16, an index for each 8
/// ```
impl Scaled for Iq2Xs {
    const DTYPE: DType = DType::Iq2Xs;
    const OFFSET: u8 = IQ2_OFFSET;
    const HALVES: bool = true;
    const UNIT: f32 = 0.125;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [66, 70].map(|at| odd(nibbles_apart(double_word(block, at))))
    }
}

impl Grid for Iq2Xs {
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let words = [0, 1, 2, 3].map(|i| word(block, 2 + 8 * part + 2 * i));
        let seven = |i: usize| u32::from(words[i] >> 9) << (8 * i);
        let bits = with_eighth(seven(0) | seven(1) | seven(2) | seven(3));
        (words.map(|word| IQ2_XS[usize::from(word & 511)]), bits)
    }
}

/// ```text
/// 0 d   2 eight times: 4 indices, then a word with four times 7 bits of signs, and a factor in the upper 4 bits
///   number = d / 8 * (2 * factor + 1) * sign * value, a factor for each 32, an index for each 8
/// ```
impl Scaled for Iq2Xxs {
    const DTYPE: DType = DType::Iq2Xxs;
    const OFFSET: u8 = IQ2_OFFSET;
    const UNIT: f32 = 0.125;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [upper_nibbles::<8>(&block[9..66]), 0]
    }
}

impl Grid for Iq2Xxs {
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let indices = double_word(block, 2 + 8 * part).to_le_bytes();
        (indices.map(|index| IQ2_XXS[usize::from(index)]), signs(double_word(block, 6 + 8 * part)))
    }
}

/// ```text
/// 0 low bytes of indices[32]   32 nibbles[32]: upper 3 bits of an index, shift   48 half words[4] with four factors
///   of 3 bits; the upper four bits of these half words, first in the low bits, are d
///   number = d / 8 * (2 * factor + 1) * (8 * value + 1 - 2 * shift), a factor for each 16, an index for each 8
/// ```
impl Scaled for Iq1M {
    const DTYPE: DType = DType::Iq1M;
    const OFFSET: u8 = IQ1_OFFSET;
    const HALVES: bool = true;
    const UNIT: f32 = 0.125;
    #[inline(always)]
    fn scale(block: &[u8]) -> u16 {
        let part = |i: usize| word(block, 48 + 2 * i) >> 12 << (4 * i);
        part(0) | part(1) | part(2) | part(3)
    }
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        let four = |at: usize| {
            let word = u64::from(word(block, at));
            word & 7 | (word & 0x38) << 5 | (word & 0x1c0) << 10 | (word & 0xe00) << 15
        };
        [odd(four(48) | four(50) << 32), odd(four(52) | four(54) << 32)]
    }
}

impl Grid for Iq1M {
    const NEGATES: bool = false;
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let (low, high) = (&block[4 * part..][..4], word(block, 32 + 2 * part));
        let eight = |i: usize| IQ1[usize::from(low[i]) | usize::from(high >> (4 * i) & 7) << 8];
        let shifts = u32::from(high) >> 3;
        let bits = shifts & 1 | (shifts & 0x10) << 4 | (shifts & 0x100) << 8 | (shifts & 0x1000) << 12;
        ([0, 1, 2, 3].map(eight), bits * 255)
    }
}

/// ```text
/// 0 d   2 low bytes of indices[32]   34 half words[8]: four times the upper 3 bits of an index, a factor, a shift
///   number = d / 8 * (2 * factor + 1) * (8 * value + 1 - 2 * shift), a factor for each 32, an index for each 8
/// ```
impl Scaled for Iq1S {
    const DTYPE: DType = DType::Iq1S;
    const OFFSET: u8 = IQ1_OFFSET;
    const UNIT: f32 = 0.125;
    #[inline(always)]
    fn factors(block: &[u8]) -> [u64; 2] {
        [upper_nibbles::<2>(&block[35..50]) & 0x0f0f_0f0f_0f0f_0f0f, 0]
    }
}

impl Grid for Iq1S {
    const NEGATES: bool = false;
    #[inline(always)]
    fn entries(block: &[u8], part: usize) -> ([u64; 4], u32) {
        let part = part % SPAN_BLOCKS;
        let (low, high) = (&block[2 + 4 * part..][..4], word(block, 34 + 2 * part));
        let eight = |i: usize| IQ1[usize::from(low[i]) | usize::from(high >> (3 * i) & 7) << 8];
        ([0, 1, 2, 3].map(eight), if high >> 15 == 1 { u32::MAX } else { 0 })
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn double_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Spreads eight nibbles to bytes, first in the low byte.
#[inline(always)]
fn nibbles_apart(nibbles: u32) -> u64 {
    let spread = u64::from(nibbles);
    let spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Returns twice each byte, plus 1. The bytes are below 128.
#[inline(always)]
fn odd(bytes: u64) -> u64 {
    bytes << 1 | 0x0101_0101_0101_0101
}

/// Returns twice the upper half of each of eight bytes, plus 1. The bytes are `STEP` bytes apart.
#[inline(always)]
fn upper_nibbles<const STEP: usize>(bytes: &[u8]) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[i * STEP] >> 3 | 1))
}

/// Returns the bits of 32 signs, from four times 7 bits.
#[inline(always)]
fn signs(packed: u32) -> u32 {
    with_eighth(packed & 0x7f | (packed & 0x3f80) << 1 | (packed & 0x1f_c000) << 2 | (packed & 0xfe0_0000) << 3)
}

/// Adds to each byte, whose upper bit is 0, an upper bit that makes the number of its set bits even.
#[inline(always)]
fn with_eighth(sevens: u32) -> u32 {
    let folded = sevens ^ sevens >> 4;
    let folded = folded ^ folded >> 2;
    let folded = folded ^ folded >> 1;
    sevens | (folded & 0x0101_0101) << 7
}
