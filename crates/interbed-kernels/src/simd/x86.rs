//! Provides the vectors of x86-64: a token for each set of instructions, and the intrinsics that the token makes safe.
//!
//! An intrinsic that only computes on registers becomes a method of the same name. Intrinsics that read or write memory
//! take references to values of exactly the size that they touch. The few that need a pointer are unsafe and say why.

use std::arch::x86_64::*;
use std::ops::Deref;

use bytemuck::Pod;

use super::{LANES, Simd, put_each_sum};
use crate::Level;
use crate::level::Instructions;

/// The token for two vectors of eight lanes. A value proves AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// The token for one vector of sixteen lanes. A value proves AVX-512 F, BW, DQ and VL, and everything that [`Avx2`]
/// proves.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// The token for dot products of bytes. A value proves AVX-512 VNNI, and everything that [`Avx512`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Vnni(());

/// The token for dot products of bf16. A value proves AVX-512 BF16, and everything that [`Avx512`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dots(());

/// The token for tiles. A value proves AMX with bf16 and bytes, which the system lets this process use, and everything
/// that [`Vnni`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

/// Defines the only two ways to create a token, which proves that the processor has some instructions: from a level
/// that includes these instructions, and from a token that proves more instructions.
macro_rules! tokens {
    ($($token:ident: $least:ident $(, with what $less:ident proves)?;)*) => {$(
        impl $token {
            #[inline(always)]
            pub(crate) fn of(level: Level) -> Option<Self> {
                (level.instructions() >= Instructions::$least).then_some(Self(()))
            }
        }
        $(
            impl Deref for $token {
                type Target = $less;
                #[inline(always)]
                fn deref(&self) -> &$less {
                    const { &$less(()) }
                }
            }
        )?
    )*};
}
tokens! {
    Avx2: Avx2;
    Avx512: Avx512, with what Avx2 proves;
    Vnni: Avx512Vnni, with what Avx512 proves;
    Bf16Dots: Avx512Bf16, with what Avx512 proves;
    Amx: Amx, with what Vnni proves;
}

/// Defines methods of a token for the intrinsics of the same names, which touch no memory.
macro_rules! registers {
    ($token:ident $($signature:tt { $($name:ident)* })*) => {
        impl $token {
            $($(register! { $name $signature })*)*
        }
    };
}
macro_rules! register {
    ($name:ident [$(<$constant:ident: $of:ty>)? ($($arg:ident: $type:ty),*) -> $out:ty]) => {
        #[allow(clippy::too_many_arguments, reason = "mirrors the intrinsic")]
        #[inline(always)]
        pub(crate) fn $name $(<const $constant: $of>)? (self, $($arg: $type),*) -> $out {
            // SAFETY: the token proves the instructions, and no memory is touched.
            unsafe { std::arch::x86_64::$name $(::<$constant>)? ($($arg),*) }
        }
    };
}

registers! { Avx2
    [(value: f32) -> __m256] { _mm256_set1_ps }
    [(value: i8) -> __m256i] { _mm256_set1_epi8 }
    [(value: i16) -> __m256i] { _mm256_set1_epi16 }
    [(value: i32) -> __m256i] { _mm256_set1_epi32 }
    [(value: i64) -> __m256i] { _mm256_set1_epi64x }
    [(a: i64, b: i64, c: i64, d: i64) -> __m256i] { _mm256_setr_epi64x }
    [() -> __m256i] { _mm256_setzero_si256 }
    [(a: __m128i, b: __m128i) -> __m256i] { _mm256_set_m128i }
    [(a: __m128i) -> __m256i] { _mm256_broadcastsi128_si256 _mm256_cvtepu16_epi32 _mm256_cvtepi8_epi32 }
    [(a: __m128i) -> __m256] { _mm256_cvtph_ps }
    [() -> __m128i] { _mm_setzero_si128 }
    [(value: i32) -> __m128i] { _mm_cvtsi32_si128 }
    [(value: i64) -> __m128i] { _mm_cvtsi64_si128 }
    [<N: i32>(a: __m128i) -> __m128i] { _mm_srli_epi16 _mm_srli_si128 }
    [(a: __m128i, b: __m128i) -> __m128i] { _mm_unpacklo_epi64 _mm_unpackhi_epi64 }
    [(a: __m128i) -> i64] { _mm_cvtsi128_si64 }
    [(a: __m128i) -> __m128] { _mm_castsi128_ps }
    [(a: __m128) -> __m128] { _mm_movehdup_ps }
    [(a: __m128, b: __m128) -> __m128] { _mm_add_ps _mm_add_ss _mm_max_ps _mm_max_ss _mm_movehl_ps }
    [(a: __m128) -> f32] { _mm_cvtss_f32 }
    [(a: __m128i) -> i32] { _mm_cvtsi128_si32 }
    [(a: __m128) -> __m256] { _mm256_castps128_ps256 }
    [(a: __m256) -> __m128] { _mm256_castps256_ps128 }
    [<N: i32>(a: __m256) -> __m128] { _mm256_extractf128_ps }
    [<N: i32>(a: __m256) -> __m128i] { _mm256_cvtps_ph }
    [<N: i32>(a: __m256, b: __m128) -> __m256] { _mm256_insertf128_ps }
    [(a: __m256) -> f32] { _mm256_cvtss_f32 }
    [(a: __m256) -> __m256i] { _mm256_castps_si256 }
    [(a: __m256i) -> __m256] { _mm256_castsi256_ps _mm256_cvtepi32_ps }
    [(a: __m256i) -> __m128i] { _mm256_castsi256_si128 }
    [<N: i32>(a: __m256i) -> __m128i] { _mm256_extracti128_si256 }
    [(a: __m256, b: __m256) -> __m256] {
        _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_max_ps _mm256_min_ps _mm256_and_ps
        _mm256_unpacklo_ps _mm256_unpackhi_ps
    }
    [<N: i32>(a: __m256, b: __m256) -> __m256] { _mm256_shuffle_ps }
    [(a: __m256, b: __m256, c: __m256) -> __m256] { _mm256_fmadd_ps _mm256_fnmadd_ps }
    [(a: __m256i) -> __m256i] { _mm256_abs_epi8 }
    [<N: i32>(a: __m256i) -> __m256i] {
        _mm256_slli_epi32 _mm256_srli_epi32 _mm256_srai_epi32 _mm256_slli_epi16 _mm256_srli_epi16 _mm256_srai_epi16
        _mm256_shuffle_epi32 _mm256_permute4x64_epi64
    }
    [(a: __m256i, count: __m128i) -> __m256i] { _mm256_sll_epi32 _mm256_srl_epi32 }
    [(a: __m256i, b: __m256i) -> __m256i] {
        _mm256_and_si256 _mm256_or_si256 _mm256_xor_si256 _mm256_add_epi32 _mm256_sub_epi32
        _mm256_maddubs_epi16 _mm256_madd_epi16 _mm256_sign_epi8 _mm256_shuffle_epi8 _mm256_cmpeq_epi8
        _mm256_cmpgt_epi32 _mm256_sllv_epi32 _mm256_packus_epi32 _mm256_unpacklo_epi8 _mm256_unpackhi_epi8
        _mm256_unpacklo_epi32 _mm256_unpackhi_epi32 _mm256_unpacklo_epi64 _mm256_unpackhi_epi64 _mm256_add_epi16
        _mm256_sub_epi8 _mm256_mullo_epi32
    }
    [<N: i32>(a: __m256i, b: __m256i) -> __m256i] { _mm256_permute2x128_si256 }
    [(a: __m256i, b: __m256i, mask: __m256i) -> __m256i] { _mm256_blendv_epi8 }
}

registers! { Avx512
    [(value: f32) -> __m512] { _mm512_set1_ps }
    [(value: i8) -> __m512i] { _mm512_set1_epi8 }
    [(value: i16) -> __m512i] { _mm512_set1_epi16 }
    [(value: i32) -> __m512i] { _mm512_set1_epi32 }
    [(value: i64) -> __m512i] { _mm512_set1_epi64 }
    [(a: i64, b: i64, c: i64, d: i64, e: i64, f: i64, g: i64, h: i64) -> __m512i] { _mm512_setr_epi64 }
    [() -> __m512] { _mm512_setzero_ps }
    [() -> __m512i] { _mm512_setzero_si512 }
    [(a: __m128i) -> __m512i] {
        _mm512_broadcast_i32x4 _mm512_castsi128_si512 _mm512_zextsi128_si512 _mm512_cvtepi8_epi32
    }
    [(a: __m256i) -> __m512i] { _mm512_castsi256_si512 _mm512_cvtepu8_epi16 _mm512_cvtepu16_epi32 }
    [(a: __m256i) -> __m512] { _mm512_cvtph_ps }
    [(a: __m128) -> __m512] { _mm512_castps128_ps512 }
    [(a: __m512) -> __m128] { _mm512_castps512_ps128 }
    [(a: __m512) -> __m256] { _mm512_castps512_ps256 }
    [<N: i32>(a: __m512) -> __m256] { _mm512_extractf32x8_ps }
    [<N: i32>(a: __m512) -> __m256i] { _mm512_cvtps_ph }
    [<N: i32>(a: __m512, b: __m128) -> __m512] { _mm512_insertf32x4 }
    [(a: __m512) -> __m512i] { _mm512_castps_si512 _mm512_cvtps_epi32 _mm512_cvttps_epi32 }
    [(a: __m512) -> __m512d] { _mm512_castps_pd }
    [(a: __m512d) -> __m512] { _mm512_castpd_ps }
    [(a: __m512d, b: __m512d) -> __m512d] { _mm512_unpacklo_pd _mm512_unpackhi_pd }
    [(a: __m512i) -> __m512] { _mm512_castsi512_ps _mm512_cvtepi32_ps }
    [(a: __m512i) -> __m128i] { _mm512_castsi512_si128 _mm512_cvtepi32_epi8 }
    [(a: __m512i) -> __m256i] { _mm512_castsi512_si256 _mm512_cvtepi32_epi16 }
    [<N: i32>(a: __m512i) -> __m256i] { _mm512_extracti64x4_epi64 }
    [<N: i32>(a: __m512i, b: __m128i) -> __m512i] { _mm512_inserti32x4 }
    [<N: i32>(a: __m512i, b: __m256i) -> __m512i] { _mm512_inserti64x4 }
    [(a: __m512i) -> u32] { _mm512_reduce_max_epu32 }
    [(a: __m512) -> __m512] { _mm512_abs_ps }
    [<N: i32>(a: __m512) -> __m512] { _mm512_permute_ps }
    [(a: __m512, b: __m512) -> __m512] {
        _mm512_add_ps _mm512_mul_ps _mm512_div_ps _mm512_max_ps _mm512_min_ps _mm512_unpacklo_ps _mm512_unpackhi_ps
    }
    [<N: i32>(a: __m512, b: __m512) -> __m512] { _mm512_shuffle_ps _mm512_shuffle_f32x4 }
    [(a: __m512, b: __m512, c: __m512) -> __m512] { _mm512_fmadd_ps _mm512_fnmadd_ps }
    [(index: __m512i, a: __m512) -> __m512] { _mm512_permutexvar_ps }
    [<N: u32>(a: __m512i) -> __m512i] {
        _mm512_slli_epi32 _mm512_srli_epi32 _mm512_srai_epi32 _mm512_slli_epi16 _mm512_srli_epi16
    }
    [(a: __m512i, count: __m128i) -> __m512i] { _mm512_sll_epi32 _mm512_srl_epi32 _mm512_srl_epi16 }
    [(a: __m512i, b: __m512i) -> __m512i] {
        _mm512_and_si512 _mm512_or_si512 _mm512_xor_si512 _mm512_add_epi32 _mm512_sub_epi32 _mm512_sub_epi8
        _mm512_max_epu32 _mm512_shuffle_epi8 _mm512_srlv_epi64 _mm512_rolv_epi64 _mm512_unpacklo_epi8
        _mm512_unpackhi_epi8 _mm512_unpacklo_epi32 _mm512_unpackhi_epi32 _mm512_unpacklo_epi64
        _mm512_unpackhi_epi64 _mm512_mullo_epi32 _mm512_sllv_epi32 _mm512_unpacklo_epi16 _mm512_unpackhi_epi16
    }
    [<N: i32>(a: __m512i, b: __m512i) -> __m512i] { _mm512_shuffle_i32x4 }
    [(a: __m512i, b: __m512i, c: __m512i) -> __m512i] { _mm512_permutex2var_epi64 _mm512_permutex2var_epi16 }
    [<N: i32>(a: __m512i, b: __m512i, c: __m512i) -> __m512i] { _mm512_ternarylogic_epi64 }
    [(index: __m512i, a: __m512i) -> __m512i] { _mm512_permutexvar_epi64 }
    [(a: __m256i, counts: __m256i) -> __m256i] { _mm256_srlv_epi16 }
    [(a: __m512i, b: __m512i) -> u16] { _mm512_cmplt_epu32_mask }
    [(a: __m512i, b: __m512i) -> u32] { _mm512_test_epi16_mask }
    [(a: __m512i, b: __m512i) -> u64] { _mm512_test_epi8_mask }
    [(mask: u32, a: __m512i, b: __m512i) -> __m512i] { _mm512_mask_blend_epi16 }
    [(mask: u64, a: __m512i, b: __m512i) -> __m512i] { _mm512_mask_blend_epi8 }
    [(from: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i] { _mm512_mask_sllv_epi32 }
    [(from: __m512i, mask: u64, a: __m512i, b: __m512i) -> __m512i] { _mm512_mask_add_epi8 _mm512_mask_sub_epi8 }
    [(mask: u64, a: __m512i) -> __m512i] { _mm512_maskz_mov_epi8 }
    [(from: __m512, mask: u16, a: __m512, b: __m512) -> __m512] { _mm512_mask_mul_ps }
    [(mask: u16, a: __m512) -> __m512] { _mm512_maskz_mov_ps }
}

registers! { Vnni
    [(sums: __m512i, a: __m512i, b: __m512i) -> __m512i] { _mm512_dpbusd_epi32 _mm512_dpwssd_epi32 }
}

registers! { Bf16Dots
    [(sums: __m512, a: __m512bh, b: __m512bh) -> __m512] { _mm512_dpbf16_ps }
    [(high: __m512, low: __m512) -> __m512bh] { _mm512_cvtne2ps_pbh }
}

/// Loads the 16 bytes of a value.
#[inline(always)]
pub(crate) fn load128<T: Pod>(from: &T) -> __m128i {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: the value has 16 bytes, at any alignment.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(from).cast()) }
}

/// Prefetches the cache line at `from`, which need not be readable, into the L1 cache: for data that is needed at once,
/// or is in the L2 cache already.
#[inline(always)]
pub(crate) fn prefetch(from: *const u8) {
    // SAFETY: every x86-64 processor has the instruction, which reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
}

/// Prefetches the cache line at `from`, which need not be readable, into the L2 cache: for data in memory. Few lines
/// can be in flight to the L1 cache at a time, and loads wait while all of these are taken: one token's products took
/// up to 1.7 times as long on Zen 4 when weights were prefetched there.
#[inline(always)]
pub(crate) fn prefetch_second(from: *const u8) {
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) };
}

impl Avx2 {
    /// Loads the 32 bytes of a value.
    #[inline(always)]
    pub(crate) fn load256<T: Pod>(self, from: &T) -> __m256i {
        const { assert!(size_of::<T>() == 32) };
        // SAFETY: the value has 32 bytes, at any alignment, and the token proves the instruction.
        unsafe { _mm256_loadu_si256(std::ptr::from_ref(from).cast()) }
    }

    /// Stores the 32 bytes of a value.
    #[inline(always)]
    pub(crate) fn store256<T: Pod>(self, v: __m256i, to: &mut T) {
        const { assert!(size_of::<T>() == 32) };
        // SAFETY: as above; any bytes are a valid value.
        unsafe { _mm256_storeu_si256(std::ptr::from_mut(to).cast(), v) }
    }

    /// Stores the 16 bytes of a value.
    #[inline(always)]
    pub(crate) fn store128<T: Pod>(self, v: __m128i, to: &mut T) {
        const { assert!(size_of::<T>() == 16) };
        // SAFETY: as above.
        unsafe { _mm_storeu_si128(std::ptr::from_mut(to).cast(), v) }
    }

    /// Adds up eight lanes as `i + (i + 4)`, `+ 2`, `+ 1`.
    #[inline(always)]
    fn sum8(self, v: __m256) -> f32 {
        let v = self._mm_add_ps(self._mm256_castps256_ps128(v), self._mm256_extractf128_ps::<1>(v));
        let v = self._mm_add_ps(v, self._mm_movehl_ps(v, v));
        self._mm_cvtss_f32(self._mm_add_ss(v, self._mm_movehdup_ps(v)))
    }

    #[inline(always)]
    fn max8(self, v: __m256) -> f32 {
        let v = self._mm_max_ps(self._mm256_castps256_ps128(v), self._mm256_extractf128_ps::<1>(v));
        let v = self._mm_max_ps(v, self._mm_movehl_ps(v, v));
        self._mm_cvtss_f32(self._mm_max_ss(v, self._mm_movehdup_ps(v)))
    }

    #[inline(always)]
    fn exp2_8(self, n: __m256) -> __m256 {
        let exponent = self._mm256_slli_epi32::<23>(self._mm256_castps_si256(n));
        self._mm256_castsi256_ps(self._mm256_add_epi32(exponent, self._mm256_set1_epi32(127 << 23)))
    }

    #[inline(always)]
    fn widen_bf16(self, bits: __m128i) -> __m256 {
        self._mm256_castsi256_ps(self._mm256_slli_epi32::<16>(self._mm256_cvtepu16_epi32(bits)))
    }
}

/// Returns both halves of an array.
#[inline(always)]
fn halves<T: Pod>(all: &[T; LANES]) -> &[[T; LANES / 2]; 2]
where
    [T; LANES]: Pod,
    [[T; LANES / 2]; 2]: Pod,
{
    bytemuck::cast_ref(all)
}

impl Simd for Avx2 {
    type V = [__m256; 2];
    const MANY_REGISTERS: bool = false;
    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [self._mm256_set1_ps(value); 2]
    }
    #[inline(always)]
    fn load_bits(self, from: &[[u8; 4]; LANES]) -> Self::V {
        let [low, high] = halves(from);
        [self._mm256_castsi256_ps(self.load256(low)), self._mm256_castsi256_ps(self.load256(high))]
    }
    #[inline(always)]
    fn load_bf16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        let [low, high] = halves(from);
        [self.widen_bf16(load128(low)), self.widen_bf16(load128(high))]
    }
    #[inline(always)]
    fn load_f16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        let [low, high] = halves(from);
        [self._mm256_cvtph_ps(load128(low)), self._mm256_cvtph_ps(load128(high))]
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        let [low, high]: &mut [[f32; LANES / 2]; 2] = bytemuck::cast_mut(to);
        self.store256(self._mm256_castps_si256(v[0]), low);
        self.store256(self._mm256_castps_si256(v[1]), high);
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        [self._mm256_add_ps(a[0], b[0]), self._mm256_add_ps(a[1], b[1])]
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        [self._mm256_mul_ps(a[0], b[0]), self._mm256_mul_ps(a[1], b[1])]
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        [self._mm256_div_ps(a[0], b[0]), self._mm256_div_ps(a[1], b[1])]
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        [self._mm256_max_ps(a[0], b[0]), self._mm256_max_ps(a[1], b[1])]
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        [self._mm256_min_ps(a[0], b[0]), self._mm256_min_ps(a[1], b[1])]
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        [self._mm256_fmadd_ps(a[0], b[0], c[0]), self._mm256_fmadd_ps(a[1], b[1], c[1])]
    }
    #[inline(always)]
    fn exp2_of_biased(self, biased: Self::V) -> Self::V {
        [self.exp2_8(biased[0]), self.exp2_8(biased[1])]
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        prefetch(from);
    }
    #[inline(always)]
    fn prefetch_second(self, from: *const u8) {
        prefetch_second(from);
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.sum8(self._mm256_add_ps(v[0], v[1]))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        self.max8(self._mm256_max_ps(v[0], v[1]))
    }
}

impl Avx512 {
    /// Loads the 64 bytes of a value.
    #[inline(always)]
    pub(crate) fn load512<T: Pod>(self, from: &T) -> __m512i {
        const { assert!(size_of::<T>() == 64) };
        // SAFETY: the value has 64 bytes, at any alignment, and the token proves the instruction.
        unsafe { _mm512_loadu_si512(std::ptr::from_ref(from).cast()) }
    }

    /// Stores the 64 bytes of a value.
    #[inline(always)]
    pub(crate) fn store512<T: Pod>(self, v: __m512i, to: &mut T) {
        const { assert!(size_of::<T>() == 64) };
        // SAFETY: as above; any bytes are a valid value.
        unsafe { _mm512_storeu_si512(std::ptr::from_mut(to).cast(), v) }
    }

    /// Adds up the lanes of four vectors, each in the order of [`Simd::sum`].
    #[inline(always)]
    fn sum_of_four(self, [a, b, c, d]: [__m512; 4]) -> __m128 {
        // Adds up halves of two vectors, then quarters of four, then the lanes of each quarter.
        let ab = self._mm512_add_ps(self._mm512_shuffle_f32x4::<0x44>(a, b), self._mm512_shuffle_f32x4::<0xEE>(a, b));
        let cd = self._mm512_add_ps(self._mm512_shuffle_f32x4::<0x44>(c, d), self._mm512_shuffle_f32x4::<0xEE>(c, d));
        let v =
            self._mm512_add_ps(self._mm512_shuffle_f32x4::<0x88>(ab, cd), self._mm512_shuffle_f32x4::<0xDD>(ab, cd));
        let v = self._mm512_add_ps(v, self._mm512_permute_ps::<0x0E>(v));
        let v = self._mm512_add_ps(v, self._mm512_permute_ps::<0x01>(v));
        const FIRSTS: [i32; LANES] = [0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        self._mm512_castps512_ps128(self._mm512_permutexvar_ps(self.load512(&FIRSTS), v))
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const MANY_REGISTERS: bool = true;
    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        self._mm512_set1_ps(value)
    }
    #[inline(always)]
    fn load_bits(self, from: &[[u8; 4]; LANES]) -> Self::V {
        self._mm512_castsi512_ps(self.load512(from))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        self._mm512_castsi512_ps(self._mm512_slli_epi32::<16>(self._mm512_cvtepu16_epi32(self.load256(from))))
    }
    #[inline(always)]
    fn load_f16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        self._mm512_cvtph_ps(self.load256(from))
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        self.store512(self._mm512_castps_si512(v), to);
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        self._mm512_add_ps(a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        self._mm512_mul_ps(a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        self._mm512_div_ps(a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        self._mm512_max_ps(a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        self._mm512_min_ps(a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self._mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    fn exp2_of_biased(self, biased: Self::V) -> Self::V {
        let exponent = self._mm512_slli_epi32::<23>(self._mm512_castps_si512(biased));
        self._mm512_castsi512_ps(self._mm512_add_epi32(exponent, self._mm512_set1_epi32(127 << 23)))
    }
    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        prefetch(from);
    }
    #[inline(always)]
    fn prefetch_second(self, from: *const u8) {
        prefetch_second(from);
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.sum8(self._mm256_add_ps(self._mm512_castps512_ps256(v), self._mm512_extractf32x8_ps::<1>(v)))
    }
    #[inline(always)]
    fn put_sums<const R: usize>(self, v: [Self::V; R], to: &mut [f32; R], added: bool) {
        let (&[a, b, c, d], Some(four)) = (v.as_slice(), to.first_chunk_mut::<4>()) else {
            return put_each_sum(self, v, to, added);
        };
        let sums = self.sum_of_four([a, b, c, d]);
        let before: __m128 = bytemuck::cast(*four);
        *four = bytemuck::cast(if added { self._mm_add_ps(before, sums) } else { sums });
    }
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        self.max8(self._mm256_max_ps(self._mm512_castps512_ps256(v), self._mm512_extractf32x8_ps::<1>(v)))
    }
}
