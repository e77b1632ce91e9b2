//! Implements the vector operations of a level that attention needs beyond [`Simd`]: transposing rows into columns, and
//! widening elements that are packed in 32 bits.
//!
//! Each method has a portable default for levels without a faster one. All operations are exact, or round as IEEE 754
//! prescribes, so all levels give equal bits.

use half::f16;

use crate::simd::{LANES, Portable, Simd};

/// The moves, widenings and narrowings of one level.
pub(crate) trait Lanes: Simd {
    /// Transposes 16 bytes of each of sixteen rows into four vectors of 32-bit words: lane `r` of vector `c` is word
    /// `c` of row `r`.
    #[inline(always)]
    fn words_of_rows(self, rows: [&[u8; 16]; LANES]) -> [Self::V; 4] {
        let mut words = [[[0; 4]; LANES]; 4];
        for row in 0..LANES {
            let (of_row, _) = rows[row].as_chunks::<4>();
            for word in 0..4 {
                words[word][row] = of_row[word];
            }
        }
        words.map(|words| self.load_bits(&words))
    }

    /// Widens the two bf16 of each word, lower half first.
    #[inline(always)]
    fn bf16_of_words(self, words: Self::V) -> [Self::V; 2] {
        let (mut low, mut high) = ([0.0f32; LANES], [0.0f32; LANES]);
        self.store(words, &mut low);
        for lane in 0..LANES {
            let word = low[lane].to_bits();
            low[lane] = f32::from_bits(word << 16);
            high[lane] = f32::from_bits(word & 0xffff_0000);
        }
        [self.load(&low), self.load(&high)]
    }

    /// Widens the two f16 of each word, lower half first.
    #[inline(always)]
    fn f16_of_words(self, words: Self::V) -> [Self::V; 2] {
        let mut lanes = [0.0f32; LANES];
        let (mut low, mut high) = ([[0u8; 2]; LANES], [[0u8; 2]; LANES]);
        self.store(words, &mut lanes);
        for lane in 0..LANES {
            let word = lanes[lane].to_bits();
            low[lane] = (word as u16).to_ne_bytes();
            high[lane] = ((word >> 16) as u16).to_ne_bytes();
        }
        [self.load_f16(&low), self.load_f16(&high)]
    }

    /// Widens the four signed bytes of each word, lowest first.
    #[inline(always)]
    fn i8_of_words(self, words: Self::V) -> [Self::V; 4] {
        let mut lanes = [0.0f32; LANES];
        let mut bytes = [[0.0f32; LANES]; 4];
        self.store(words, &mut lanes);
        for lane in 0..LANES {
            let word = lanes[lane].to_bits().to_le_bytes();
            for byte in 0..4 {
                bytes[byte][lane] = f32::from(word[byte].cast_signed());
            }
        }
        bytes.map(|bytes| self.load(&bytes))
    }

    /// Loads sixteen signed bytes.
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::V {
        self.load(&from.map(f32::from))
    }

    /// Stores sixteen lanes as f16, rounded to nearest, ties to even.
    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [[u8; 2]; LANES]) {
        let mut lanes = [0.0f32; LANES];
        self.store(v, &mut lanes);
        *to = lanes.map(|lane| f16::from_f32(lane).to_ne_bytes());
    }
}

impl Lanes for Portable {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};
    use crate::simd::{Avx2, Avx512, load128};

    /// Loads the 16 bytes of a row.
    #[inline(always)]
    fn row(s: Avx2, bytes: &[u8; 16]) -> __m128 {
        s._mm_castsi128_ps(load128(bytes))
    }

    /// Loads 16 bytes of rows `first` and `first + 4`.
    #[inline(always)]
    fn two_rows(s: Avx2, rows: [&[u8; 16]; LANES], first: usize) -> __m256 {
        let low = s._mm256_castps128_ps256(row(s, rows[first]));
        s._mm256_insertf128_ps::<1>(low, row(s, rows[first + 4]))
    }

    /// Transposes the four words of rows `first .. first + 8`.
    #[inline(always)]
    fn words_of_eight(s: Avx2, rows: [&[u8; 16]; LANES], first: usize) -> [__m256; 4] {
        let a = two_rows(s, rows, first);
        let b = two_rows(s, rows, first + 1);
        let c = two_rows(s, rows, first + 2);
        let d = two_rows(s, rows, first + 3);
        let (ab, cd) = (s._mm256_unpacklo_ps(a, b), s._mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (s._mm256_unpackhi_ps(a, b), s._mm256_unpackhi_ps(c, d));
        [
            s._mm256_shuffle_ps::<0x44>(ab, cd),
            s._mm256_shuffle_ps::<0xee>(ab, cd),
            s._mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            s._mm256_shuffle_ps::<0xee>(ab_high, cd_high),
        ]
    }

    #[inline(always)]
    fn f16_of_eight(s: Avx2, words: __m256) -> [__m256; 2] {
        let words = s._mm256_castps_si256(words);
        let low = s._mm256_and_si256(words, s._mm256_set1_epi32(0xffff));
        // Each 128-bit lane has four low and four high halves; the permutation puts all low ones before all high ones.
        let packed = s._mm256_packus_epi32(low, s._mm256_srli_epi32::<16>(words));
        let sorted = s._mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        [
            s._mm256_cvtph_ps(s._mm256_castsi256_si128(sorted)),
            s._mm256_cvtph_ps(s._mm256_extracti128_si256::<1>(sorted)),
        ]
    }

    #[inline(always)]
    fn i8_of_eight(s: Avx2, words: __m256) -> [__m256; 4] {
        let words = s._mm256_castps_si256(words);
        [
            s._mm256_cvtepi32_ps(s._mm256_srai_epi32::<24>(s._mm256_slli_epi32::<24>(words))),
            s._mm256_cvtepi32_ps(s._mm256_srai_epi32::<24>(s._mm256_slli_epi32::<16>(words))),
            s._mm256_cvtepi32_ps(s._mm256_srai_epi32::<24>(s._mm256_slli_epi32::<8>(words))),
            s._mm256_cvtepi32_ps(s._mm256_srai_epi32::<24>(words)),
        ]
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn words_of_rows(self, rows: [&[u8; 16]; LANES]) -> [Self::V; 4] {
            let (low, high) = (words_of_eight(self, rows, 0), words_of_eight(self, rows, 8));
            [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
        }

        #[inline(always)]
        fn bf16_of_words(self, words: Self::V) -> [Self::V; 2] {
            let (a, b) = (self._mm256_castps_si256(words[0]), self._mm256_castps_si256(words[1]));
            let high = self._mm256_castsi256_ps(self._mm256_set1_epi32(0xffff_0000_u32 as i32));
            [
                [
                    self._mm256_castsi256_ps(self._mm256_slli_epi32::<16>(a)),
                    self._mm256_castsi256_ps(self._mm256_slli_epi32::<16>(b)),
                ],
                [self._mm256_and_ps(words[0], high), self._mm256_and_ps(words[1], high)],
            ]
        }

        #[inline(always)]
        fn f16_of_words(self, words: Self::V) -> [Self::V; 2] {
            let (a, b) = (f16_of_eight(self, words[0]), f16_of_eight(self, words[1]));
            [[a[0], b[0]], [a[1], b[1]]]
        }

        #[inline(always)]
        fn i8_of_words(self, words: Self::V) -> [Self::V; 4] {
            let (a, b) = (i8_of_eight(self, words[0]), i8_of_eight(self, words[1]));
            [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
        }

        #[inline(always)]
        fn load_i8(self, from: &[i8; LANES]) -> Self::V {
            let bytes = load128(from);
            [
                self._mm256_cvtepi32_ps(self._mm256_cvtepi8_epi32(bytes)),
                self._mm256_cvtepi32_ps(self._mm256_cvtepi8_epi32(self._mm_srli_si128::<8>(bytes))),
            ]
        }

        #[inline(always)]
        fn store_f16(self, v: Self::V, to: &mut [[u8; 2]; LANES]) {
            let halves = [
                self._mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]),
                self._mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            ];
            *to = bytemuck::cast(halves);
        }
    }

    /// Loads 16 bytes of rows `first`, `first + 4`, `first + 8` and `first + 12`.
    #[inline(always)]
    fn four_rows(s: Avx512, rows: [&[u8; 16]; LANES], first: usize) -> __m512 {
        let all = s._mm512_castps128_ps512(row(*s, rows[first]));
        let all = s._mm512_insertf32x4::<1>(all, row(*s, rows[first + 4]));
        let all = s._mm512_insertf32x4::<2>(all, row(*s, rows[first + 8]));
        s._mm512_insertf32x4::<3>(all, row(*s, rows[first + 12]))
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn words_of_rows(self, rows: [&[u8; 16]; LANES]) -> [Self::V; 4] {
            let a = four_rows(self, rows, 0);
            let b = four_rows(self, rows, 1);
            let c = four_rows(self, rows, 2);
            let d = four_rows(self, rows, 3);
            let (ab, cd) = (self._mm512_unpacklo_ps(a, b), self._mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (self._mm512_unpackhi_ps(a, b), self._mm512_unpackhi_ps(c, d));
            [
                self._mm512_shuffle_ps::<0x44>(ab, cd),
                self._mm512_shuffle_ps::<0xee>(ab, cd),
                self._mm512_shuffle_ps::<0x44>(ab_high, cd_high),
                self._mm512_shuffle_ps::<0xee>(ab_high, cd_high),
            ]
        }

        #[inline(always)]
        fn bf16_of_words(self, words: Self::V) -> [Self::V; 2] {
            let bits = self._mm512_castps_si512(words);
            [
                self._mm512_castsi512_ps(self._mm512_slli_epi32::<16>(bits)),
                self._mm512_castsi512_ps(self._mm512_and_si512(bits, self._mm512_set1_epi32(0xffff_0000_u32 as i32))),
            ]
        }

        #[inline(always)]
        fn f16_of_words(self, words: Self::V) -> [Self::V; 2] {
            let bits = self._mm512_castps_si512(words);
            [
                self._mm512_cvtph_ps(self._mm512_cvtepi32_epi16(bits)),
                self._mm512_cvtph_ps(self._mm512_cvtepi32_epi16(self._mm512_srli_epi32::<16>(bits))),
            ]
        }

        #[inline(always)]
        fn i8_of_words(self, words: Self::V) -> [Self::V; 4] {
            let bits = self._mm512_castps_si512(words);
            [
                self._mm512_cvtepi32_ps(self._mm512_srai_epi32::<24>(self._mm512_slli_epi32::<24>(bits))),
                self._mm512_cvtepi32_ps(self._mm512_srai_epi32::<24>(self._mm512_slli_epi32::<16>(bits))),
                self._mm512_cvtepi32_ps(self._mm512_srai_epi32::<24>(self._mm512_slli_epi32::<8>(bits))),
                self._mm512_cvtepi32_ps(self._mm512_srai_epi32::<24>(bits)),
            ]
        }

        #[inline(always)]
        fn load_i8(self, from: &[i8; LANES]) -> Self::V {
            self._mm512_cvtepi32_ps(self._mm512_cvtepi8_epi32(load128(from)))
        }

        #[inline(always)]
        fn store_f16(self, v: Self::V, to: &mut [[u8; 2]; LANES]) {
            self.store256(self._mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v), to);
        }
    }
}
