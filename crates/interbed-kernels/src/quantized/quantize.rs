//! Encodes numbers as blocks, fast: the scale comes from the extremes of each block, without a search.

use half::f16;

use super::fields::{NAN_BITS, half_power};
use crate::DType;

/// Encodes numbers as blocks of `dtype`, which is Q8_0, Q4_0, Q4_K or MXFP4. The source code of
/// [`dequantize`](crate::dequantize) shows the layouts of the blocks.
///
/// The encoder is meant for synthetic weights. It takes about a nanosecond per number. A block with a number that is
/// not finite, or too large for a scale in half precision, decodes to NaN or infinity, never to plausible numbers.
///
/// - `numbers`: whole blocks
/// - `out`: the encoded blocks, `dtype.row_bytes(numbers.len())` bytes
///
/// # Panics
/// Panics if `dtype` is another type, or the lengths disagree.
pub fn quantize(dtype: DType, numbers: &[f32], out: &mut [u8]) {
    assert_eq!(dtype.row_bytes(numbers.len()), Some(out.len()), "{} numbers as {dtype}", numbers.len());
    match dtype {
        DType::Q8_0 => each(numbers, out, q8_0),
        DType::Q4_0 => each(numbers, out, q4_0),
        DType::Q4K => each(numbers, out, q4_k),
        DType::Mxfp4 => each(numbers, out, mxfp4),
        other => panic!("there is no encoder for {other}"),
    }
}

fn each<const BYTES: usize, const NUMBERS: usize>(
    numbers: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; NUMBERS], &mut [u8; BYTES]),
) {
    let (numbers, _) = numbers.as_chunks::<NUMBERS>();
    let (out, _) = out.as_chunks_mut::<BYTES>();
    for (numbers, out) in numbers.iter().zip(out) {
        encode(numbers, out);
    }
}

fn q8_0(numbers: &[f32; 32], out: &mut [u8; 34]) {
    let (least, largest) = extremes(numbers);
    let scale = largest.max(-least) / 127.0;
    out[..2].copy_from_slice(&f16::from_f32(shown(numbers, scale)).to_le_bytes());
    let inverse = inverse(scale);
    for (q, number) in out[2..].iter_mut().zip(numbers) {
        *q = rounded(number * inverse) as u8;
    }
}

fn q4_0(numbers: &[f32; 32], out: &mut [u8; 18]) {
    let (least, largest) = extremes(numbers);
    // The codes range from -8 to 7, so the extreme that is farther from zero becomes -8.
    let extreme = if largest > -least { largest } else { least };
    let scale = extreme / -8.0;
    out[..2].copy_from_slice(&f16::from_f32(shown(numbers, scale)).to_le_bytes());
    let inverse = inverse(scale);
    let mut codes = [0u8; 32];
    for (q, number) in codes.iter_mut().zip(numbers) {
        *q = rounded((number * inverse + 8.0).clamp(0.0, 15.0)) as u8 & 15;
    }
    for i in 0..16 {
        out[2 + i] = codes[i] | codes[16 + i] << 4;
    }
}

fn q4_k(numbers: &[f32; 256], out: &mut [u8; 144]) {
    let (subs, _) = numbers.as_chunks::<32>();
    let (mut scales, mut minima) = ([0.0f32; 8], [0.0f32; 8]);
    for (sub, numbers) in subs.iter().enumerate() {
        let (least, largest) = extremes(numbers);
        // A minimum can only be subtracted: numbers that are all positive are counted from zero.
        minima[sub] = (-least).max(0.0);
        scales[sub] = (largest.max(0.0) + minima[sub]) / 15.0;
    }
    let d = f16::from_f32(shown(numbers, scales.iter().fold(0.0f32, |a, b| a.max(*b)) / 63.0));
    let m = f16::from_f32(minima.iter().fold(0.0f32, |a, b| a.max(*b)) / 63.0);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&m.to_le_bytes());
    let (d, m) = (d.to_f32(), m.to_f32());
    let six_bits = |number: f32, inverse: f32| rounded((number * inverse).min(63.0)) as u8 & 63;
    let scales: [u8; 8] = scales.map(|scale| six_bits(scale, inverse(d)));
    let minima: [u8; 8] = minima.map(|minimum| six_bits(minimum, inverse(m)));
    for i in 0..4 {
        out[4 + i] = scales[i] | scales[4 + i] >> 4 << 6;
        out[8 + i] = minima[i] | minima[4 + i] >> 4 << 6;
        out[12 + i] = scales[4 + i] & 15 | minima[4 + i] << 4;
    }
    let mut codes = [0u8; 256];
    for (sub, numbers) in subs.iter().enumerate() {
        // Uses the scale and minimum that the decoder will see, after their own rounding.
        let (inverse, minimum) = (inverse(d * f32::from(scales[sub])), m * f32::from(minima[sub]));
        for (q, number) in codes[sub * 32..][..32].iter_mut().zip(numbers) {
            *q = rounded(((number + minimum) * inverse).clamp(0.0, 15.0)) as u8 & 15;
        }
    }
    for (pair, out) in out[16..].as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[pair * 64 + i] | codes[pair * 64 + 32 + i] << 4;
        }
    }
}

fn mxfp4(numbers: &[f32; 32], out: &mut [u8; 17]) {
    let (least, largest) = extremes(numbers);
    // The smallest power of two that makes no number larger than 6, the largest code: rounded up from the bits of a
    // sixth of the largest number, whose exponent has the same offset.
    let sixth = shown(numbers, largest.max(-least) / 6.0).to_bits();
    out[0] = (sixth >> 23) as u8 + u8::from(sixth & 0x007f_ffff > 0 && sixth < NAN_BITS);
    let inverse = 1.0 / half_power(out[0]);
    let mut codes = [0u8; 32];
    for (code, number) in codes.iter_mut().zip(numbers) {
        // In halves of the power, codes are 0 1 2 3 4 6 8 12. Each midpoint between two of them that is exceeded adds
        // one.
        let size = (number * inverse).abs();
        let middles = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
        let above: u8 = middles.iter().map(|&middle| u8::from(size > middle)).sum();
        *code = above | u8::from(number.is_sign_negative()) << 3;
    }
    for i in 0..16 {
        out[1 + i] = codes[i] | codes[16 + i] << 4;
    }
}

fn extremes(numbers: &[f32; 32]) -> (f32, f32) {
    // Eight lanes are separate, because a single chain of comparisons would not be vectorized.
    let (mut least, mut largest) = ([0.0f32; 8], [0.0f32; 8]);
    for (i, chunk) in numbers.as_chunks::<8>().0.iter().enumerate() {
        for lane in 0..8 {
            least[lane] = if i == 0 || chunk[lane] < least[lane] { chunk[lane] } else { least[lane] };
            largest[lane] = if i == 0 || chunk[lane] > largest[lane] { chunk[lane] } else { largest[lane] };
        }
    }
    (least.into_iter().fold(least[0], f32::min), largest.into_iter().fold(largest[0], f32::max))
}

/// Returns the scale, or NaN if a number is not finite.
fn shown(numbers: &[f32], scale: f32) -> f32 {
    // Integer comparison cannot miss a NaN: infinity and NaN have the largest bits.
    let largest = numbers.iter().fold(0, |largest, number| largest.max(number.to_bits() & 0x7fff_ffff));
    if largest < f32::INFINITY.to_bits() { scale } else { f32::NAN }
}

fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    // The inverse of a scale of zero, or nearly zero, is useless: all codes become zero.
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Returns the nearest integer to `number` (ties to even) if `number` is between -2^22 and 2^22; otherwise returns an
/// arbitrary integer.
fn rounded(number: f32) -> i32 {
    // 1.5 * 2^23: adding it leaves the integer in the low bits of the mantissa, in one vector instruction.
    const ROUND: f32 = 12_582_912.0;
    (number + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}
