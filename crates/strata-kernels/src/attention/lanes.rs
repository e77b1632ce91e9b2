//! What attention asks of a level beyond [`Simd`]: to turn rows into columns, and to widen what lies packed in 32 bits.
//!
//! Each method has a plain form, which a level without a faster one inherits. All are exact, or round as IEEE says, so
//! levels cannot differ.

use half::f16;

use crate::simd::{LANES, Portable, Simd};

/// Moves, widenings and narrowings of one level.
///
/// # Safety
/// As for [`Simd`].
pub(crate) unsafe trait Lanes: Simd {
    /// The 16 bytes at `offset` of each of sixteen rows, as four vectors of 32-bit words: lane `r` of vector `c` is
    /// word `c` of row `r`.
    ///
    /// # Safety
    /// 16 bytes are readable at `offset` of each row; the level's instructions exist.
    #[inline(always)]
    unsafe fn words_of_rows(rows: &[*const u8; LANES], offset: usize) -> [Self::V; 4] {
        let mut words = [[0.0f32; LANES]; 4];
        // SAFETY: the caller's promise; an array has a vector's lanes.
        unsafe {
            for row in 0..LANES {
                for word in 0..4 {
                    words[word][row] = rows[row].add(offset + 4 * word).cast::<f32>().read_unaligned();
                }
            }
            [
                Self::load(words[0].as_ptr()),
                Self::load(words[1].as_ptr()),
                Self::load(words[2].as_ptr()),
                Self::load(words[3].as_ptr()),
            ]
        }
    }

    /// The two bf16 of each word, lower half first.
    ///
    /// # Safety
    /// The level's instructions exist.
    #[inline(always)]
    unsafe fn bf16_of_words(words: Self::V) -> [Self::V; 2] {
        let (mut low, mut high) = ([0.0f32; LANES], [0.0f32; LANES]);
        // SAFETY: an array has a vector's lanes.
        unsafe {
            Self::store(words, low.as_mut_ptr());
            for lane in 0..LANES {
                let word = low[lane].to_bits();
                low[lane] = f32::from_bits(word << 16);
                high[lane] = f32::from_bits(word & 0xffff_0000);
            }
            [Self::load(low.as_ptr()), Self::load(high.as_ptr())]
        }
    }

    /// The two f16 of each word, lower half first.
    ///
    /// # Safety
    /// The level's instructions exist.
    #[inline(always)]
    unsafe fn f16_of_words(words: Self::V) -> [Self::V; 2] {
        let mut lanes = [0.0f32; LANES];
        let (mut low, mut high) = ([0u16; LANES], [0u16; LANES]);
        // SAFETY: an array has a vector's lanes.
        unsafe {
            Self::store(words, lanes.as_mut_ptr());
            for lane in 0..LANES {
                let word = lanes[lane].to_bits();
                low[lane] = word as u16;
                high[lane] = (word >> 16) as u16;
            }
            [Self::load_f16(low.as_ptr()), Self::load_f16(high.as_ptr())]
        }
    }

    /// The four signed bytes of each word, lowest first.
    ///
    /// # Safety
    /// The level's instructions exist.
    #[inline(always)]
    unsafe fn i8_of_words(words: Self::V) -> [Self::V; 4] {
        let mut lanes = [0.0f32; LANES];
        let mut bytes = [[0.0f32; LANES]; 4];
        // SAFETY: an array has a vector's lanes.
        unsafe {
            Self::store(words, lanes.as_mut_ptr());
            for lane in 0..LANES {
                let word = lanes[lane].to_bits().to_le_bytes();
                for byte in 0..4 {
                    bytes[byte][lane] = f32::from(word[byte].cast_signed());
                }
            }
            [
                Self::load(bytes[0].as_ptr()),
                Self::load(bytes[1].as_ptr()),
                Self::load(bytes[2].as_ptr()),
                Self::load(bytes[3].as_ptr()),
            ]
        }
    }

    /// Sixteen signed bytes.
    ///
    /// # Safety
    /// [`LANES`] bytes are readable; the level's instructions exist.
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::V {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller's promise.
        unsafe {
            for lane in 0..LANES {
                lanes[lane] = f32::from(*from.add(lane));
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// Sixteen f16, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// [`LANES`] elements are writable, at any alignment; the level's instructions exist.
    #[inline(always)]
    unsafe fn store_f16(v: Self::V, to: *mut u16) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller's promise; an array has a vector's lanes.
        unsafe {
            Self::store(v, lanes.as_mut_ptr());
            for lane in 0..LANES {
                to.add(lane).write_unaligned(f16::from_f32(lanes[lane]).to_bits());
            }
        }
    }
}

// SAFETY: inherits every method.
unsafe impl Lanes for Portable {}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_op_in_unsafe_fn, reason = "each body is the intrinsics that its `# Safety` line asks for")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};
    use crate::simd::{Avx2, Avx512};

    /// Rows `first` and `first + 4` at `offset`, 16 bytes of each.
    #[inline(always)]
    unsafe fn two_rows(rows: &[*const u8; LANES], first: usize, offset: usize) -> __m256 {
        let low = _mm256_castps128_ps256(_mm_loadu_ps(rows[first].add(offset).cast()));
        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(rows[first + 4].add(offset).cast()))
    }

    /// The four words of rows `first .. first + 8`.
    #[inline(always)]
    unsafe fn words_of_eight(rows: &[*const u8; LANES], first: usize, offset: usize) -> [__m256; 4] {
        let a = two_rows(rows, first, offset);
        let b = two_rows(rows, first + 1, offset);
        let c = two_rows(rows, first + 2, offset);
        let d = two_rows(rows, first + 3, offset);
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xee>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
        ]
    }

    #[inline(always)]
    unsafe fn f16_of_eight(words: __m256) -> [__m256; 2] {
        let words = _mm256_castps_si256(words);
        let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
        // Four low and four high halves in each 128 bits; then all low ones before all high ones.
        let packed = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
        let sorted = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        [_mm256_cvtph_ps(_mm256_castsi256_si128(sorted)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(sorted))]
    }

    #[inline(always)]
    unsafe fn i8_of_eight(words: __m256) -> [__m256; 4] {
        let words = _mm256_castps_si256(words);
        [
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(words))),
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(words))),
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(words))),
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(words)),
        ]
    }

    // SAFETY: every method uses AVX2, FMA and F16C only, and touches what its contract says.
    unsafe impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn words_of_rows(rows: &[*const u8; LANES], offset: usize) -> [Self::V; 4] {
            let (low, high) = (words_of_eight(rows, 0, offset), words_of_eight(rows, 8, offset));
            [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
        }

        #[inline(always)]
        unsafe fn bf16_of_words(words: Self::V) -> [Self::V; 2] {
            let (a, b) = (_mm256_castps_si256(words[0]), _mm256_castps_si256(words[1]));
            let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
            [
                [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b))],
                [_mm256_and_ps(words[0], high), _mm256_and_ps(words[1], high)],
            ]
        }

        #[inline(always)]
        unsafe fn f16_of_words(words: Self::V) -> [Self::V; 2] {
            let (a, b) = (f16_of_eight(words[0]), f16_of_eight(words[1]));
            [[a[0], b[0]], [a[1], b[1]]]
        }

        #[inline(always)]
        unsafe fn i8_of_words(words: Self::V) -> [Self::V; 4] {
            let (a, b) = (i8_of_eight(words[0]), i8_of_eight(words[1]));
            [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self::V {
            let bytes = _mm_loadu_si128(from.cast());
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            ]
        }

        #[inline(always)]
        unsafe fn store_f16(v: Self::V, to: *mut u16) {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }

    /// Rows `first`, `first + 4`, `first + 8` and `first + 12` at `offset`, 16 bytes of each.
    #[inline(always)]
    unsafe fn four_rows(rows: &[*const u8; LANES], first: usize, offset: usize) -> __m512 {
        let row = _mm512_castps128_ps512(_mm_loadu_ps(rows[first].add(offset).cast()));
        let row = _mm512_insertf32x4::<1>(row, _mm_loadu_ps(rows[first + 4].add(offset).cast()));
        let row = _mm512_insertf32x4::<2>(row, _mm_loadu_ps(rows[first + 8].add(offset).cast()));
        _mm512_insertf32x4::<3>(row, _mm_loadu_ps(rows[first + 12].add(offset).cast()))
    }

    // SAFETY: every method uses AVX-512 F, BW, DQ and VL only, and touches what its contract says.
    unsafe impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn words_of_rows(rows: &[*const u8; LANES], offset: usize) -> [Self::V; 4] {
            let a = four_rows(rows, 0, offset);
            let b = four_rows(rows, 1, offset);
            let c = four_rows(rows, 2, offset);
            let d = four_rows(rows, 3, offset);
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            [
                _mm512_shuffle_ps::<0x44>(ab, cd),
                _mm512_shuffle_ps::<0xee>(ab, cd),
                _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
            ]
        }

        #[inline(always)]
        unsafe fn bf16_of_words(words: Self::V) -> [Self::V; 2] {
            let bits = _mm512_castps_si512(words);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)),
                _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
            ]
        }

        #[inline(always)]
        unsafe fn f16_of_words(words: Self::V) -> [Self::V; 2] {
            let bits = _mm512_castps_si512(words);
            [
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)),
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits))),
            ]
        }

        #[inline(always)]
        unsafe fn i8_of_words(words: Self::V) -> [Self::V; 4] {
            let bits = _mm512_castps_si512(words);
            [
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(bits))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(bits))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(bits))),
                _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(bits)),
            ]
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self::V {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
        }

        #[inline(always)]
        unsafe fn store_f16(v: Self::V, to: *mut u16) {
            _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        }
    }
}
