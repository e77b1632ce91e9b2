//! Computes with the small fields of sixteen rows. The code is written out for each level, because a compiler that is
//! left to vectorize it by itself picks the wrong loop.

use super::fields::half_power;
use super::header::{Factors, Lanes, ROWS};
use crate::simd::{Portable, Simd};

/// The operations of a level on the small fields of sixteen rows.
pub(super) trait Small: Simd {
    /// Converts half floats to floats.
    fn widen(self, halves: &[u16; ROWS]) -> Self::V;
    /// Converts MXFP4's exponents, in the lower bytes, to half of the powers of two that they stand for.
    fn half_powers(self, exponents: &[u16; ROWS]) -> Self::V;
    /// Extracts byte `byte` of each word, signed.
    fn signed_bytes(self, words: &[u32; ROWS], byte: u32, to: &mut Factors);
    /// Extracts the `count` bits from bit `first` on of each word, and subtracts `offset`.
    fn bits(self, words: &[u32; ROWS], first: u32, count: u32, offset: i32, to: &mut Factors);
    /// Extracts the `count` bits from bit `first` on of each word, and as many from bit `first + 8` on, which become
    /// the upper half of the integer. `count` is at most 8.
    fn pairs(self, words: &[u32; ROWS], first: u32, count: u32, to: &mut Factors);
}

impl Small for Portable {
    #[inline(always)]
    fn widen(self, halves: &[u16; ROWS]) -> Lanes {
        halves.map(widen)
    }
    #[inline(always)]
    fn half_powers(self, exponents: &[u16; ROWS]) -> Lanes {
        exponents.map(|exponent| half_power(exponent as u8))
    }
    #[inline(always)]
    fn signed_bytes(self, words: &[u32; ROWS], byte: u32, to: &mut Factors) {
        *to = words.map(|word| i32::from((word >> (8 * byte)) as i8));
    }
    #[inline(always)]
    fn bits(self, words: &[u32; ROWS], first: u32, count: u32, offset: i32, to: &mut Factors) {
        *to = words.map(|word| (word >> first & low_bits(count)).cast_signed() - offset);
    }
    #[inline(always)]
    fn pairs(self, words: &[u32; ROWS], first: u32, count: u32, to: &mut Factors) {
        let of = |word: u32| word >> first & low_bits(count) | (word >> (first + 8) & low_bits(count)) << 16;
        *to = words.map(|word| of(word).cast_signed());
    }
}

#[inline(always)]
fn low_bits(count: u32) -> u32 {
    (1 << count) - 1
}

/// Converts a half float to a float in plain integer arithmetic. Subnormal halves, which are common among the scales of
/// small weights, take no slow path.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    // The exponent's bias is 127, not 15; infinity and NaN have the largest exponent.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = normal + ((127 - 15) << 23);
    let subnormal = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let bits = if magnitude < 0x400 { subnormal } else { normal };
    let bits = if magnitude >= 0x7c00 { special } else { bits };
    f32::from_bits(bits | sign)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Small, low_bits};
    use crate::quantized::fields::NAN_BITS;
    use crate::quantized::header::{Factors, ROWS};
    use crate::simd::{Avx2, Avx512, Simd, load128};

    impl Small for Avx2 {
        #[inline(always)]
        fn widen(self, halves: &[u16; ROWS]) -> Self::V {
            self.load_f16(bytemuck::cast_ref(halves))
        }
        #[inline(always)]
        fn half_powers(self, exponents: &[u16; ROWS]) -> Self::V {
            let [low, high]: &[[u16; ROWS / 2]; 2] = bytemuck::cast_ref(exponents);
            [half_powers(self, low), half_powers(self, high)]
        }
        #[inline(always)]
        fn signed_bytes(self, words: &[u32; ROWS], byte: u32, to: &mut Factors) {
            let shift = self._mm_cvtsi32_si128(24 - 8 * byte as i32);
            store(self, words, to, |words| self._mm256_srai_epi32::<24>(self._mm256_sll_epi32(words, shift)));
        }
        #[inline(always)]
        fn bits(self, words: &[u32; ROWS], first: u32, count: u32, offset: i32, to: &mut Factors) {
            let shift = self._mm_cvtsi32_si128(first as i32);
            let mask = self._mm256_set1_epi32(low_bits(count).cast_signed());
            store(self, words, to, |words| {
                let bits = self._mm256_and_si256(self._mm256_srl_epi32(words, shift), mask);
                self._mm256_sub_epi32(bits, self._mm256_set1_epi32(offset))
            });
        }
        #[inline(always)]
        fn pairs(self, words: &[u32; ROWS], first: u32, count: u32, to: &mut Factors) {
            let shift = self._mm_cvtsi32_si128(first as i32);
            let low = self._mm256_set1_epi32(low_bits(count).cast_signed());
            store(self, words, to, |words| {
                let words = self._mm256_srl_epi32(words, shift);
                let high = self._mm256_and_si256(self._mm256_srli_epi32::<8>(words), low);
                self._mm256_or_si256(self._mm256_and_si256(words, low), self._mm256_slli_epi32::<16>(high))
            });
        }
    }

    /// Stores what `of` makes of each eight words.
    #[inline(always)]
    fn store(s: Avx2, words: &[u32; ROWS], to: &mut Factors, of: impl Fn(__m256i) -> __m256i) {
        let [low, high]: &mut [[i32; ROWS / 2]; 2] = bytemuck::cast_mut(to);
        let words = load(s, words);
        s.store256(of(words[0]), low);
        s.store256(of(words[1]), high);
    }

    #[inline(always)]
    fn load(s: Avx2, words: &[u32; ROWS]) -> [__m256i; 2] {
        let [low, high]: &[[u32; ROWS / 2]; 2] = bytemuck::cast_ref(words);
        [s.load256(low), s.load256(high)]
    }

    #[inline(always)]
    fn half_powers(s: Avx2, exponents: &[u16; ROWS / 2]) -> __m256 {
        let exponents = s._mm256_cvtepu16_epi32(load128(exponents));
        let exponents = s._mm256_and_si256(exponents, s._mm256_set1_epi32(255));
        let normal = s._mm256_slli_epi32::<23>(s._mm256_sub_epi32(exponents, s._mm256_set1_epi32(1)));
        let least = s._mm256_sllv_epi32(s._mm256_set1_epi32(0x0020_0000), exponents);
        let is_least = s._mm256_cmpgt_epi32(s._mm256_set1_epi32(2), exponents);
        let powers = s._mm256_blendv_epi8(normal, least, is_least);
        let is_nan = s._mm256_cmpgt_epi32(exponents, s._mm256_set1_epi32(254));
        s._mm256_castsi256_ps(s._mm256_blendv_epi8(powers, s._mm256_set1_epi32(NAN_BITS as i32), is_nan))
    }

    impl Small for Avx512 {
        #[inline(always)]
        fn widen(self, halves: &[u16; ROWS]) -> Self::V {
            self.load_f16(bytemuck::cast_ref(halves))
        }
        #[inline(always)]
        fn half_powers(self, exponents: &[u16; ROWS]) -> Self::V {
            let exponents = self._mm512_cvtepu16_epi32(self.load256(exponents));
            let exponents = self._mm512_and_si512(exponents, self._mm512_set1_epi32(255));
            let normal = self._mm512_slli_epi32::<23>(self._mm512_sub_epi32(exponents, self._mm512_set1_epi32(1)));
            let is_least = self._mm512_cmplt_epu32_mask(exponents, self._mm512_set1_epi32(2));
            let least = self._mm512_set1_epi32(0x0020_0000);
            let powers = self._mm512_mask_sllv_epi32(normal, is_least, least, exponents);
            let is_nan = self._mm512_cmplt_epu32_mask(self._mm512_set1_epi32(254), exponents);
            let (nan, unshifted) = (self._mm512_set1_epi32(NAN_BITS as i32), self._mm512_setzero_si512());
            self._mm512_castsi512_ps(self._mm512_mask_sllv_epi32(powers, is_nan, nan, unshifted))
        }
        #[inline(always)]
        fn signed_bytes(self, words: &[u32; ROWS], byte: u32, to: &mut Factors) {
            let words = self._mm512_sll_epi32(self.load512(words), self._mm_cvtsi32_si128(24 - 8 * byte as i32));
            self.store512(self._mm512_srai_epi32::<24>(words), to);
        }
        #[inline(always)]
        fn bits(self, words: &[u32; ROWS], first: u32, count: u32, offset: i32, to: &mut Factors) {
            let words = self._mm512_srl_epi32(self.load512(words), self._mm_cvtsi32_si128(first as i32));
            let mask = self._mm512_set1_epi32(low_bits(count).cast_signed());
            let bits = self._mm512_and_si512(words, mask);
            self.store512(self._mm512_sub_epi32(bits, self._mm512_set1_epi32(offset)), to);
        }
        #[inline(always)]
        fn pairs(self, words: &[u32; ROWS], first: u32, count: u32, to: &mut Factors) {
            let words = self._mm512_srl_epi32(self.load512(words), self._mm_cvtsi32_si128(first as i32));
            let low = self._mm512_set1_epi32(low_bits(count).cast_signed());
            let high = self._mm512_and_si512(self._mm512_srli_epi32::<8>(words), low);
            self.store512(
                self._mm512_or_si512(self._mm512_and_si512(words, low), self._mm512_slli_epi32::<16>(high)),
                to,
            );
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
