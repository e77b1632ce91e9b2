//! Sixteen f32 lanes on every machine: one source for each kernel, one order for each sum.
//!
//! A kernel is written once, generic over [`Simd`] and `#[inline(always)]`, and [`dispatch!`] compiles it under the
//! features of each level. Lanes are added up as `i + (i + 8)`, then `+ 4`, `+ 2`, `+ 1`, at every level.

use half::f16;

/// Lanes of a vector, at every level.
pub(crate) const LANES: usize = 16;

/// Vector operations of one level.
///
/// # Safety
/// Each method may only run on a machine that has the level's instructions, which [`dispatch!`] sees to. Loads and
/// stores need [`LANES`] readable or writable elements at the pointer, at any alignment; [`Simd::put_sums`] writes `R`
/// numbers, and reads them if `added`.
pub(crate) unsafe trait Simd: Copy {
    type V: Copy;
    /// Whether two dozen vectors fit the registers; otherwise eight do.
    const MANY_REGISTERS: bool;
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn load_bf16(from: *const u16) -> Self::V;
    unsafe fn load_f16(from: *const u16) -> Self::V;
    unsafe fn store(v: Self::V, to: *mut f32);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, with one rounding where the level has the instruction.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `2^n` where each lane of `biased` is `n + 1.5 * 2^23`, `n` an integer in -126 ..= 127.
    unsafe fn exp2_of_biased(biased: Self::V) -> Self::V;
    /// Asks for the cache line at `from`, which need not be readable.
    unsafe fn prefetch(from: *const u8);
    /// Asks for it to come as far as the second-level cache.
    unsafe fn prefetch_second(from: *const u8);
    unsafe fn sum(v: Self::V) -> f32;
    /// The sum of each vector, to `to` on, or `added` to what is there: `R` numbers.
    #[inline(always)]
    unsafe fn put_sums<const R: usize>(v: [Self::V; R], to: *mut f32, added: bool) {
        // SAFETY: the caller's promise.
        unsafe { put_each_sum::<Self, R>(v, to, added) }
    }
    unsafe fn max_lane(v: Self::V) -> f32;
}

/// [`Simd::put_sums`], one by one.
///
/// # Safety
/// `R` numbers are writable at `to`, and readable if `added`; the level's instructions exist.
#[inline(always)]
unsafe fn put_each_sum<S: Simd, const R: usize>(v: [S::V; R], to: *mut f32, added: bool) {
    for (i, v) in v.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = S::sum(v);
            *to.add(i) = if added { *to.add(i) + sum } else { sum };
        }
    }
}

/// How the elements of a weight or KV row become f32 lanes.
///
/// # Safety
/// As for [`Simd`].
pub(crate) unsafe trait Element: Copy {
    type Bits: Copy + Default;
    unsafe fn load<S: Simd>(from: *const Self::Bits) -> S::V;
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

// SAFETY: forwards to the level's own load.
unsafe impl Element for F32 {
    type Bits = f32;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load(from) }
    }
}

// SAFETY: forwards to the level's own load.
unsafe impl Element for F16 {
    type Bits = u16;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(from) }
    }
}

// SAFETY: forwards to the level's own load.
unsafe impl Element for Bf16 {
    type Bits = u16;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(from) }
    }
}

/// The first `count` elements at `from`, the other lanes zero.
///
/// # Safety
/// `count <= LANES` elements are readable at `from`; the level's instructions exist.
#[inline(always)]
pub(crate) unsafe fn load_part<S: Simd, E: Element>(from: *const E::Bits, count: usize) -> S::V {
    let mut part = [E::Bits::default(); LANES];
    // SAFETY: `count` elements are readable at `from` by the caller's promise and fit `part`; bytes are copied, so
    // alignment does not matter.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), part.as_mut_ptr().cast::<u8>(), count * size_of::<E::Bits>());
        E::load::<S>(part.as_ptr())
    }
}

/// The first `count` lanes of `v`, to `to`.
///
/// # Safety
/// `count <= LANES` elements are writable at `to`; the level's instructions exist.
#[inline(always)]
pub(crate) unsafe fn store_part<S: Simd>(v: S::V, to: *mut f32, count: usize) {
    let mut part = [0.0f32; LANES];
    // SAFETY: `part` has room for a vector, and `to` for `count` of its lanes.
    unsafe {
        S::store(v, part.as_mut_ptr());
        std::ptr::copy_nonoverlapping(part.as_ptr(), to, count);
    }
}

/// `e^x`, within 2 units in the last place for x in [-87, 88]; beyond, the value at the end of that range.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Taylor coefficients 1/7! .. 1/0!, enough for |r| <= ln 2 / 2.
    const COEFFICIENTS: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // SAFETY: arithmetic on lanes only; `n` is within -126 ..= 127 because of the clamp.
    unsafe {
        let x = S::min(S::max(x, S::splat(-87.0)), S::splat(88.0));
        let biased = S::fma(x, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::add(biased, S::splat(-ROUND));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut sum = S::splat(COEFFICIENTS[0]);
        for coefficient in &COEFFICIENTS[1..] {
            sum = S::fma(sum, r, S::splat(*coefficient));
        }
        S::mul(sum, S::exp2_of_biased(biased))
    }
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fold(v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut v = v;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
    }
    v[0]
}

// SAFETY: needs no instructions beyond the baseline; reads and writes LANES elements.
unsafe impl Simd for Portable {
    type V = [f32; LANES];
    const MANY_REGISTERS: bool = false;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller's promise; unaligned.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        // SAFETY: the caller's promise; unaligned.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the caller's promise; unaligned.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store(v: Self::V, to: *mut f32) {
        // SAFETY: the caller's promise; unaligned.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Every 64-bit Arm fuses; elsewhere a fused operation in software would be a hundred times slower.
        match cfg!(target_arch = "aarch64") {
            true => std::array::from_fn(|i| a[i].mul_add(b[i], c[i])),
            false => std::array::from_fn(|i| a[i] * b[i] + c[i]),
        }
    }
    #[inline(always)]
    unsafe fn exp2_of_biased(biased: Self::V) -> Self::V {
        biased.map(|n| f32::from_bits((n.to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_second(_from: *const u8) {}
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        fold(v, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        fold(v, |a, b| if a > b { a } else { b })
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_op_in_unsafe_fn, reason = "each body is the intrinsics that its `# Safety` line asks for")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Simd, put_each_sum};

    /// Two vectors of eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// One vector of sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    /// Adds up eight lanes as `i + (i + 4)`, `+ 2`, `+ 1`.
    #[inline(always)]
    unsafe fn sum8(v: __m256) -> f32 {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }

    #[inline(always)]
    unsafe fn max8(v: __m256) -> f32 {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }

    // SAFETY: every method uses AVX2, FMA and F16C only, and touches LANES elements.
    #[rustfmt::skip]
    unsafe impl Simd for Avx2 {
        type V = [__m256; 2];
        const MANY_REGISTERS: bool = false;
        #[inline(always)] unsafe fn splat(x: f32) -> Self::V { [_mm256_set1_ps(x); 2] }
        #[inline(always)] unsafe fn load(p: *const f32) -> Self::V { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
        #[inline(always)] unsafe fn load_bf16(p: *const u16) -> Self::V {
            [widen_bf16(p), widen_bf16(p.add(8))]
        }
        #[inline(always)] unsafe fn load_f16(p: *const u16) -> Self::V {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
        }
        #[inline(always)] unsafe fn store(v: Self::V, p: *mut f32) {
            _mm256_storeu_ps(p, v[0]); _mm256_storeu_ps(p.add(8), v[1]);
        }
        #[inline(always)] unsafe fn add(a: Self::V, b: Self::V) -> Self::V { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        #[inline(always)] unsafe fn mul(a: Self::V, b: Self::V) -> Self::V { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        #[inline(always)] unsafe fn div(a: Self::V, b: Self::V) -> Self::V { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        #[inline(always)] unsafe fn max(a: Self::V, b: Self::V) -> Self::V { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        #[inline(always)] unsafe fn min(a: Self::V, b: Self::V) -> Self::V { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        #[inline(always)] unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        #[inline(always)] unsafe fn exp2_of_biased(n: Self::V) -> Self::V { [exp2_8(n[0]), exp2_8(n[1])] }
        #[inline(always)] unsafe fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        #[inline(always)] unsafe fn prefetch_second(p: *const u8) { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        #[inline(always)] unsafe fn sum(v: Self::V) -> f32 { sum8(_mm256_add_ps(v[0], v[1])) }
        #[inline(always)] unsafe fn max_lane(v: Self::V) -> f32 { max8(_mm256_max_ps(v[0], v[1])) }
    }

    #[inline(always)]
    unsafe fn widen_bf16(p: *const u16) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
    }

    #[inline(always)]
    unsafe fn exp2_8(n: __m256) -> __m256 {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
        _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)))
    }

    /// The sums of four vectors, each in the order of [`Simd::sum`].
    #[inline(always)]
    unsafe fn sum_of_four(a: __m512, b: __m512, c: __m512, d: __m512) -> __m128 {
        // Halves of two vectors, then quarters of four, then what is left within each quarter.
        let halves = |x, y| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xEE>(x, y));
        let (ab, cd) = (halves(a, b), halves(c, d));
        let v = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
        let v = _mm512_add_ps(v, _mm512_permute_ps::<0x0E>(v));
        let v = _mm512_add_ps(v, _mm512_permute_ps::<0x01>(v));
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, v))
    }

    // SAFETY: every method uses AVX-512 F, BW, DQ and VL only, and touches LANES elements.
    #[rustfmt::skip]
    unsafe impl Simd for Avx512 {
        type V = __m512;
        const MANY_REGISTERS: bool = true;
        #[inline(always)] unsafe fn splat(x: f32) -> Self::V { _mm512_set1_ps(x) }
        #[inline(always)] unsafe fn load(p: *const f32) -> Self::V { _mm512_loadu_ps(p) }
        #[inline(always)] unsafe fn load_bf16(p: *const u16) -> Self::V {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
        #[inline(always)] unsafe fn load_f16(p: *const u16) -> Self::V { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        #[inline(always)] unsafe fn store(v: Self::V, p: *mut f32) { _mm512_storeu_ps(p, v) }
        #[inline(always)] unsafe fn add(a: Self::V, b: Self::V) -> Self::V { _mm512_add_ps(a, b) }
        #[inline(always)] unsafe fn mul(a: Self::V, b: Self::V) -> Self::V { _mm512_mul_ps(a, b) }
        #[inline(always)] unsafe fn div(a: Self::V, b: Self::V) -> Self::V { _mm512_div_ps(a, b) }
        #[inline(always)] unsafe fn max(a: Self::V, b: Self::V) -> Self::V { _mm512_max_ps(a, b) }
        #[inline(always)] unsafe fn min(a: Self::V, b: Self::V) -> Self::V { _mm512_min_ps(a, b) }
        #[inline(always)] unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V { _mm512_fmadd_ps(a, b, c) }
        #[inline(always)] unsafe fn exp2_of_biased(n: Self::V) -> Self::V {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)))
        }
        #[inline(always)] unsafe fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        #[inline(always)] unsafe fn prefetch_second(p: *const u8) { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        #[inline(always)] unsafe fn sum(v: Self::V) -> f32 {
            sum8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
        #[inline(always)] unsafe fn put_sums<const R: usize>(v: [Self::V; R], p: *mut f32, added: bool) {
            let [a, b, c, d] = match *v.as_slice() {
                [a, b, c, d] => [a, b, c, d],
                _ => return put_each_sum::<Self, R>(v, p, added),
            };
            let sums = sum_of_four(a, b, c, d);
            _mm_storeu_ps(p, if added { _mm_add_ps(_mm_loadu_ps(p), sums) } else { sums });
        }
        #[inline(always)] unsafe fn max_lane(v: Self::V) -> f32 {
            max8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
}

/// Calls `$kernel::<Level, …>(…)`, compiled under the instructions of `$level`.
///
/// `dispatch!(level, kernel::<_, Element>(a: A, b: B))` needs `kernel` to be an `#[inline(always)] unsafe fn` generic
/// over `S: Simd` first. The level is tested once per call, never inside a loop.
macro_rules! dispatch {
    ($level:expr, $kernel:ident :: <_ $(, $generic:ident)*> ($($arg:ident : $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
        unsafe fn avx2($($arg: $type),*) {
            // SAFETY: this function's own promise.
            unsafe { $kernel::<$crate::simd::Avx2 $(, $generic)*>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
        unsafe fn avx512($($arg: $type),*) {
            // SAFETY: this function's own promise.
            unsafe { $kernel::<$crate::simd::Avx512 $(, $generic)*>($($arg),*) }
        }
        // SAFETY: a `Level` proves itself, so the instructions exist; the arguments are
        // the caller's promise to the kernel.
        unsafe {
            match $level.0 {
                #[cfg(target_arch = "x86_64")]
                $crate::level::Instructions::Avx512
                | $crate::level::Instructions::Avx512Vnni
                | $crate::level::Instructions::Avx512Bf16
                | $crate::level::Instructions::Amx => avx512($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::level::Instructions::Avx2 => avx2($($arg),*),
                _ => $kernel::<$crate::simd::Portable $(, $generic)*>($($arg),*),
            }
        }
    }};
}
pub(crate) use dispatch;
