//! Reads the small fields of blocks that several readers need: half floats, packed scales, and tables of values.

use half::f16;

/// The values of IQ4_NL's 16 codes.
pub(super) const IQ4_NL_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of MXFP4's 16 codes, doubled so that the values are integers: E2M1 floats 0, 0.5, 1, 1.5, 2, 3, 4, 6.
pub(super) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Reads the half float at byte `at`.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns half of the power of two that MXFP4's scale byte stands for, to match the doubled values: `2^(scale - 128)`,
/// and NaN for 255.
#[inline(always)]
pub(super) fn half_power(scale: u8) -> f32 {
    f32::from_bits(match scale {
        // These are subnormal floats.
        0 | 1 => 0x0020_0000 << scale,
        255 => NAN_BITS,
        _ => u32::from(scale - 1) << 23,
    })
}

/// The bits of a NaN.
pub(super) const NAN_BITS: u32 = 0x7fc0_0000;

/// Returns the eight scales and eight minima, 6 bits each, of a block of Q4_K or Q5_K:
///
/// ```text
/// byte  0 .. 4    scale 0 .. 4 in bits 0 .. 6, upper two bits of scale 4 .. 8 in bits 6 .. 8
/// byte  4 .. 8    the same for the minima
/// byte  8 .. 12   lower four bits of scale 4 .. 8 in bits 0 .. 4, of minimum 4 .. 8 in bits 4 .. 8
/// ```
///
/// The results are the bytes of four words, first in the low byte: scales 0 .. 4, scales 4 .. 8, minima 0 .. 4, minima
/// 4 .. 8.
#[inline(always)]
pub(super) fn scales_and_minima(packed: &[u8; 12]) -> [u32; 4] {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (scales, minima, low) = (word(0), word(4), word(8));
    [
        scales & 0x3f3f_3f3f,
        low & 0x0f0f_0f0f | scales >> 2 & 0x3030_3030,
        minima & 0x3f3f_3f3f,
        low >> 4 & 0x0f0f_0f0f | minima >> 2 & 0x3030_3030,
    ]
}

/// Returns the sixteen scales of a block of Q3_K, still with their offset of 32:
///
/// ```text
/// byte  0 .. 8    lower four bits of scale 0 .. 8 in bits 0 .. 4, of scale 8 .. 16 in bits 4 .. 8
/// byte  8 .. 12   upper two bits of scale i, i + 4, i + 8, i + 12 in bits 0 .. 2, 2 .. 4, 4 .. 6, 6 .. 8 of byte 8 + i
/// ```
///
/// Returned as bytes of four words, first in the low byte.
#[inline(always)]
pub(super) fn q3_scales(packed: &[u8; 12]) -> [u32; 4] {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (first, second, high) = (word(0), word(4), word(8));
    const LOW: u32 = 0x0f0f_0f0f;
    const HIGH: u32 = 0x3030_3030;
    [
        first & LOW | high << 4 & HIGH,
        second & LOW | high << 2 & HIGH,
        first >> 4 & LOW | high & HIGH,
        second >> 4 & LOW | high >> 2 & HIGH,
    ]
}

/// Returns byte `i` of the words that [`q3_scales`] and [`scales_and_minima`] return.
#[inline(always)]
pub(super) fn byte(words: &[u32], i: usize) -> u8 {
    (words[i / 4] >> (i % 4 * 8)) as u8
}
