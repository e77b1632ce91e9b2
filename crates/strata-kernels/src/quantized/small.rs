//! Arithmetic on the small fields of sixteen rows. Written out for each level, because a compiler that is left to find
//! the vectors itself takes the wrong loop.

use super::fields::half_power;
use super::header::{Lanes, ROWS};
use crate::simd::{Portable, Simd};

/// A level's way with the small fields of sixteen rows.
///
/// # Safety
/// Each method may only run on a machine that has the level's instructions.
pub(super) unsafe trait Small: Simd {
    /// Half floats to floats.
    unsafe fn widen(halves: &[u16; ROWS]) -> Self::V;
    /// The lower bytes are MXFP4's exponents; half the powers of two that they mean.
    unsafe fn half_powers(exponents: &[u16; ROWS]) -> Self::V;
    /// The bits of each word under `mask`, `shift` bits down.
    unsafe fn bits(words: &[u32; ROWS], shift: u32, mask: u32) -> Self::V;
    /// Byte `byte` of each word, signed.
    unsafe fn signed_bytes(words: &[u32; ROWS], byte: u32) -> Self::V;
}

/// Stores sixteen lanes.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
pub(super) unsafe fn store<S: Small>(lanes: S::V, to: &mut Lanes) {
    // SAFETY: the caller's promise; a vector has as many lanes.
    unsafe { S::store(lanes, to.as_mut_ptr()) }
}

// SAFETY: needs no instructions beyond the baseline.
unsafe impl Small for Portable {
    #[inline(always)]
    unsafe fn widen(halves: &[u16; ROWS]) -> Lanes {
        halves.map(widen)
    }
    #[inline(always)]
    unsafe fn half_powers(exponents: &[u16; ROWS]) -> Lanes {
        exponents.map(|exponent| half_power(exponent as u8))
    }
    #[inline(always)]
    unsafe fn bits(words: &[u32; ROWS], shift: u32, mask: u32) -> Lanes {
        words.map(|word| (word >> shift & mask) as i32 as f32)
    }
    #[inline(always)]
    unsafe fn signed_bytes(words: &[u32; ROWS], byte: u32) -> Lanes {
        words.map(|word| f32::from((word >> (8 * byte)) as i8))
    }
}

/// Half float to float in plain integer arithmetic; subnormal halves, common among the scales of small weights, take no
/// slow path.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    // The exponent's bias is 127, not 15; that of infinity and NaN is the largest there is.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = normal + ((127 - 15) << 23);
    let subnormal = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let bits = if magnitude < 0x400 { subnormal } else { normal };
    let bits = if magnitude >= 0x7c00 { special } else { bits };
    f32::from_bits(bits | sign)
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_op_in_unsafe_fn, reason = "each body is the intrinsics that its `# Safety` line asks for")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Small;
    use crate::quantized::header::ROWS;
    use crate::simd::{Avx2, Avx512, Simd};

    // SAFETY: every method uses AVX2 and F16C only, and reads whole arrays.
    unsafe impl Small for Avx2 {
        #[inline(always)]
        unsafe fn widen(halves: &[u16; ROWS]) -> Self::V {
            Self::load_f16(halves.as_ptr())
        }
        #[inline(always)]
        unsafe fn half_powers(exponents: &[u16; ROWS]) -> Self::V {
            [half_powers(exponents.as_ptr()), half_powers(exponents.as_ptr().add(8))]
        }
        #[inline(always)]
        unsafe fn bits(words: &[u32; ROWS], shift: u32, mask: u32) -> Self::V {
            let (shift, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi32(mask as i32));
            let [low, high] = load(words);
            [
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(low, shift), mask)),
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(high, shift), mask)),
            ]
        }
        #[inline(always)]
        unsafe fn signed_bytes(words: &[u32; ROWS], byte: u32) -> Self::V {
            let shift = _mm_cvtsi32_si128(24 - 8 * byte as i32);
            let [low, high] = load(words);
            [
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_sll_epi32(low, shift))),
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_sll_epi32(high, shift))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load(words: &[u32; ROWS]) -> [__m256i; 2] {
        let words = words.as_ptr().cast::<__m256i>();
        [_mm256_loadu_si256(words), _mm256_loadu_si256(words.add(1))]
    }

    #[inline(always)]
    unsafe fn half_powers(exponents: *const u16) -> __m256 {
        let exponents = _mm256_cvtepu16_epi32(_mm_loadu_si128(exponents.cast()));
        let exponents = _mm256_and_si256(exponents, _mm256_set1_epi32(255));
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
        let least = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
        let is_least = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, least, is_least))
    }

    // SAFETY: every method uses AVX-512 F only, and reads whole arrays.
    unsafe impl Small for Avx512 {
        #[inline(always)]
        unsafe fn widen(halves: &[u16; ROWS]) -> Self::V {
            Self::load_f16(halves.as_ptr())
        }
        #[inline(always)]
        unsafe fn half_powers(exponents: &[u16; ROWS]) -> Self::V {
            let exponents = _mm512_cvtepu16_epi32(_mm256_loadu_si256(exponents.as_ptr().cast()));
            let exponents = _mm512_and_si512(exponents, _mm512_set1_epi32(255));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
            let is_least = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
            let least = _mm512_set1_epi32(0x0020_0000);
            _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_least, least, exponents))
        }
        #[inline(always)]
        unsafe fn bits(words: &[u32; ROWS], shift: u32, mask: u32) -> Self::V {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let words = _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(mask as i32)))
        }
        #[inline(always)]
        unsafe fn signed_bytes(words: &[u32; ROWS], byte: u32) -> Self::V {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let words = _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * byte as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(words))
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_half_is_widened() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32();
            let got = widen(bits);
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
        }
    }
}
