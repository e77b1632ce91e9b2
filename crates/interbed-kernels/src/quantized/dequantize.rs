//! Decodes blocks to numbers. Each function shows the layout of its type, with offsets in bytes. All numbers are
//! little-endian.
//!
//! In these layouts, `q` are the small integers, and `d` and `m` are half floats. Nibbles lie in two rows: of 16 bytes,
//! byte `i` has number `i` in its lower half and number `16 + i` in its upper half.

use half::f16;

use super::fields::{IQ4_NL_VALUES, MXFP4_VALUES, byte, half, half_power, q3_scales, scales_and_minima};
use super::formats::{Format, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, Scaled};
use crate::DType;

/// Decodes whole blocks of a quantized type in f32 arithmetic. The results are bit-identical to those of the Python
/// package `gguf`.
///
/// - `blocks`: any number of blocks
/// - `out`: one element for each number in `blocks`
///
/// # Panics
/// Panics if `dtype` is not a quantized type of GGUF files, or the lengths disagree.
pub fn dequantize(dtype: DType, blocks: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.row_bytes(out.len()), Some(blocks.len()), "{} numbers of {dtype}", out.len());
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::Fp8 | DType::CodedBf16 { .. } => {
            panic!("{dtype} is not quantised")
        }
        DType::Q8_0 => each(blocks, out, q8_0),
        DType::Q4_0 => each(blocks, out, q4_0),
        DType::Q4_1 => each(blocks, out, q4_1),
        DType::Q5_0 => each(blocks, out, q5_0),
        DType::Q5_1 => each(blocks, out, q5_1),
        DType::Q2K => each(blocks, out, q2_k),
        DType::Q3K => each(blocks, out, q3_k),
        DType::Q4K => each(blocks, out, q4_k),
        DType::Q5K => each(blocks, out, q5_k),
        DType::Q6K => each(blocks, out, q6_k),
        DType::Iq4Nl => each(blocks, out, iq4_nl),
        DType::Iq4Xs => each(blocks, out, scaled::<Iq4Xs, 136>),
        DType::Iq3S => each(blocks, out, scaled::<Iq3S, 110>),
        DType::Iq3Xxs => each(blocks, out, scaled::<Iq3Xxs, 98>),
        DType::Iq2S => each(blocks, out, scaled::<Iq2S, 82>),
        DType::Iq2Xs => each(blocks, out, scaled::<Iq2Xs, 74>),
        DType::Iq2Xxs => each(blocks, out, scaled::<Iq2Xxs, 66>),
        DType::Iq1M => each(blocks, out, scaled::<Iq1M, 56>),
        DType::Iq1S => each(blocks, out, scaled::<Iq1S, 50>),
        DType::Mxfp4 => each(blocks, out, mxfp4),
    }
}

fn each<const BYTES: usize, const NUMBERS: usize>(
    blocks: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; NUMBERS]),
) {
    let (blocks, _) = blocks.as_chunks::<BYTES>();
    let (out, _) = out.as_chunks_mut::<NUMBERS>();
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

/// Decodes a block of Q8_0 to numbers:
///
/// ```text
/// 0 d   2 q[32] i8                                   number = d * q
/// ```
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*q as i8) * d;
    }
}

/// Decodes a block of Q4_0 to numbers:
///
/// ```text
/// 0 d   2 nibbles[16]                                number = d * (q - 8)
/// ```
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for i in 0..16 {
        let pair = block[2 + i];
        out[i] = d * f32::from(i16::from(pair & 15) - 8);
        out[16 + i] = d * f32::from(i16::from(pair >> 4) - 8);
    }
}

/// Decodes a block of Q4_1 to numbers:
///
/// ```text
/// 0 d   2 m   4 nibbles[16]                          number = d * q + m
/// ```
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for i in 0..16 {
        let pair = block[4 + i];
        out[i] = d * f32::from(pair & 15) + m;
        out[16 + i] = d * f32::from(pair >> 4) + m;
    }
}

/// Decodes a block of Q5_0 to numbers:
///
/// ```text
/// 0 d   2 fifth bits u32, bit i of number i   6 nibbles[16]      number = d * (q - 16)
/// ```
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for i in 0..16 {
        let pair = block[6 + i];
        out[i] = d * f32::from(i16::from(pair & 15 | fifth(high, i)) - 16);
        out[16 + i] = d * f32::from(i16::from(pair >> 4 | fifth(high, 16 + i)) - 16);
    }
}

/// Decodes a block of Q5_1 to numbers:
///
/// ```text
/// 0 d   2 m   4 fifth bits u32   8 nibbles[16]       number = d * q + m
/// ```
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for i in 0..16 {
        let pair = block[8 + i];
        out[i] = d * f32::from(pair & 15 | fifth(high, i)) + m;
        out[16 + i] = d * f32::from(pair >> 4 | fifth(high, 16 + i)) + m;
    }
}

fn fifth(high: u32, i: usize) -> u8 {
    (high >> i & 1) as u8 * 16
}

/// Decodes a block of Q2_K to numbers:
///
/// ```text
/// 0 scales[16], minimum << 4 | scale, one for each 16 numbers   16 pairs of bits[64]   80 d   82 m
///   number = d * scale * q - m * minimum
/// pairs of bits: number 128 g + 32 s + i (i < 32, s < 4) is in bits 2 s .. 2 s + 2 of byte 32 g + i
/// ```
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, m) = (half(block, 80), half(block, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[sub] & 15);
        let minimum = m * f32::from(block[sub] >> 4);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(pair_of_bits(&block[16..80], sub, i)) - minimum;
        }
    }
}

/// Decodes a block of Q3_K to numbers:
///
/// ```text
/// 0 third bits[32]   32 pairs of bits[64], as in Q2_K   96 scales[12], 16 of 6 bits (`q3_scales`)   108 d
///   number = d * (scale - 32) * (q - 4)
/// third bits: number 32 s + i (i < 32, s < 8) is in bit s of byte i
/// ```
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 108);
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[96..108]);
    let scales = q3_scales(&packed);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(i16::from(byte(&scales, sub)) - 32);
        for (i, out) in out.iter_mut().enumerate() {
            let high = block[sub % 2 * 16 + i] >> (sub / 2) & 1;
            let q = pair_of_bits(&block[32..96], sub, i) | high << 2;
            *out = scale * f32::from(i16::from(q) - 4);
        }
    }
}

/// Extracts number `i` of the 16 in sub-block `sub`.
fn pair_of_bits(pairs: &[u8], sub: usize, i: usize) -> u8 {
    pairs[sub / 8 * 32 + sub % 2 * 16 + i] >> (sub % 8 / 2 * 2) & 3
}

/// Decodes a block of Q4_K to numbers:
///
/// ```text
/// 0 d   2 m   4 scales and minima[12], 8 + 8 of 6 bits (`scales_and_minima`)   16 nibbles[128]
///   number = d * scale * q - m * minimum, a scale and a minimum for each 32
/// nibbles: number 64 g + i (i < 32) is in the lower half of byte 32 g + i, number 64 g + 32 + i in the upper
/// ```
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let header = header(block);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = header(sub);
        for (i, out) in out.iter_mut().enumerate() {
            let q = block[16 + sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
            *out = scale * f32::from(q) - minimum;
        }
    }
}

/// Decodes a block of Q5_K to numbers:
///
/// ```text
/// 0 d   2 m   4 scales and minima[12]   16 fifth bits[32]   48 nibbles[128]     otherwise as Q4_K
/// fifth bits: number 32 s + i (i < 32, s < 8) is in bit s of byte i
/// ```
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let header = header(block);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = header(sub);
        for (i, out) in out.iter_mut().enumerate() {
            let low = block[48 + sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
            let high = block[16 + i] >> sub & 1;
            *out = scale * f32::from(low | high << 4) - minimum;
        }
    }
}

/// Returns a function for the scale and minimum of each 32 numbers of Q4_K and Q5_K.
fn header(block: &[u8]) -> impl Fn(usize) -> (f32, f32) {
    let (d, m) = (half(block, 0), half(block, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let words = scales_and_minima(&packed);
    move |sub| (d * f32::from(byte(&words, sub)), m * f32::from(byte(&words, 8 + sub)))
}

/// Decodes a block of Q6_K to numbers:
///
/// ```text
/// 0 lower nibbles[128]   128 upper pairs of bits[64]   192 scales[16] i8, one for each 16 numbers   208 d
///   number = d * scale * (q - 32)
/// nibbles: number 128 g + i (i < 64) is in the lower half of byte 64 g + i, number 128 g + 64 + i in the upper
/// pairs of bits: number 128 g + 32 s + i (i < 32, s < 4) is in bits 2 s .. 2 s + 2 of byte 32 g + i
/// ```
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + sub] as i8);
        for (i, out) in out.iter_mut().enumerate() {
            let low = block[sub / 8 * 64 + sub % 4 * 16 + i] >> (sub % 8 / 4 * 4) & 15;
            let q = low | pair_of_bits(&block[128..192], sub, i) << 4;
            *out = scale * f32::from(i16::from(q) - 32);
        }
    }
}

/// Decodes a block of IQ4_NL to numbers:
///
/// ```text
/// 0 d   2 nibbles[16]                                number = d * IQ4_NL_VALUES[q]
/// ```
fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for i in 0..16 {
        let pair = usize::from(block[2 + i]);
        out[i] = d * f32::from(IQ4_NL_VALUES[pair & 15]);
        out[16 + i] = d * f32::from(IQ4_NL_VALUES[pair >> 4]);
    }
}

/// Decodes a block of MXFP4 to numbers:
///
/// ```text
/// 0 exponent u8   1 nibbles[16]                      number = 2^(exponent - 128) * MXFP4_VALUES[q], NaN for 255
/// ```
fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_power(block[0]);
    for i in 0..16 {
        let pair = usize::from(block[1 + i]);
        out[i] = d * f32::from(MXFP4_VALUES[pair & 15]);
        out[16 + i] = d * f32::from(MXFP4_VALUES[pair >> 4]);
    }
}

/// Decodes a block of an IQ type with one half float and integer factors. `formats/iq.rs` shows the layouts.
fn scaled<F: Scaled, const BYTES: usize>(block: &[u8; BYTES], out: &mut [f32; 256]) {
    let d = f16::from_bits(F::scale(block)).to_f32() * F::UNIT;
    let factors = F::factors(block).map(u64::to_le_bytes);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut codes = [0; 32];
        <F as Format>::unpack(block, part, &mut codes);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let at = if <F as Format>::HALVES { 2 * part + i / 16 } else { part };
            let scale = d * f32::from(factors.as_flattened()[at].cast_signed());
            *out = scale * f32::from(i16::from(code) - i16::from(<F as Format>::OFFSET));
        }
    }
}
