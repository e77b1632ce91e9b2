//! Sixteen f32 lanes on every machine: one source for each kernel, one order for each sum.
//!
//! A kernel is written once, generic over [`Simd`] and `#[inline(always)]`, and [`dispatch!`] compiles it with the CPU
//! features of each level. Lanes are added up as `i + (i + 8)`, then `+ 4`, `+ 2`, `+ 1`, at every level.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::Level;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Amx, Avx2, Avx512, Bf16Dots, Vnni, load128, prefetch, prefetch_second};

/// The number of lanes of a vector, at every level.
pub(crate) const LANES: usize = 16;

/// Vector operations of one level. A value of such a type is a token: the value proves that the level's instructions
/// exist, so arithmetic on lanes is safe. [`dispatch!`] creates the tokens.
pub(crate) trait Simd: Copy {
    type V: Copy;
    /// Whether 24 vectors fit into the registers. Otherwise only eight vectors fit.
    const MANY_REGISTERS: bool;
    fn splat(self, value: f32) -> Self::V;
    /// Loads lanes from their bits, at any address.
    fn load_bits(self, from: &[[u8; 4]; LANES]) -> Self::V;
    fn load_bf16(self, from: &[[u8; 2]; LANES]) -> Self::V;
    fn load_f16(self, from: &[[u8; 2]; LANES]) -> Self::V;
    /// Converts FP8 codes (E4M3) to f32.
    #[inline(always)]
    fn load_e4m3(self, codes: &[u8; LANES]) -> Self::V {
        // Reinterprets exponent and mantissa as those of a half float, whose exponent bias is larger by 8. Then no
        // number is a subnormal f32, which vector units multiply slowly.
        let halves = codes.map(|code| {
            let magnitude = u16::from(code & 127);
            // The largest code is NaN.
            let nan = ((magnitude + 1) >> 7) * 0x7e00;
            u16::from(code & 128) << 8 | magnitude << 7 | nan
        });
        self.mul(self.load_f16(bytemuck::cast_ref(&halves)), self.splat(256.0))
    }
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a * b + c`, with one rounding if the level has the instruction.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Computes `2^n` where each lane of `biased` is `n + 1.5 * 2^23`, `n` an integer in -126 ..= 127.
    fn exp2_of_biased(self, biased: Self::V) -> Self::V;
    /// Prefetches the cache line at `from`, which need not be readable.
    fn prefetch(self, from: *const u8);
    /// Prefetches the cache line at `from` into the L2 cache.
    fn prefetch_second(self, from: *const u8);
    fn sum(self, v: Self::V) -> f32;
    fn max_lane(self, v: Self::V) -> f32;
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        self.load_bits(bytemuck::cast_ref(from))
    }
    /// Loads a vector.
    ///
    /// # Safety
    /// [`LANES`] elements are readable at `from`, and not written meanwhile.
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        self.load_bits(unsafe { &*from.cast() })
    }
    /// Stores a vector.
    ///
    /// # Safety
    /// [`LANES`] elements are writable at `to`, and nothing else touches them meanwhile.
    #[inline(always)]
    unsafe fn store_at(self, v: Self::V, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        self.store(v, unsafe { &mut *to.cast() });
    }
    /// Writes the sum of each vector to `to`, or adds the sum to `to` if `added`.
    #[inline(always)]
    fn put_sums<const R: usize>(self, v: [Self::V; R], to: &mut [f32; R], added: bool) {
        put_each_sum(self, v, to, added);
    }
}

/// Implements [`Simd::put_sums`] one vector at a time.
#[inline(always)]
fn put_each_sum<S: Simd, const R: usize>(s: S, v: [S::V; R], to: &mut [f32; R], added: bool) {
    if added {
        for (v, to) in v.into_iter().zip(to) {
            *to += s.sum(v);
        }
    } else {
        for (v, to) in v.into_iter().zip(to) {
            *to = s.sum(v);
        }
    }
}

/// Converts elements of a weight or KV row to f32 lanes.
pub(crate) trait Element: Copy {
    /// The type of an element's bytes.
    type Bits: bytemuck::Pod;
    fn load<S: Simd>(s: S, from: &[Self::Bits; LANES]) -> S::V;
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Element for F32 {
    type Bits = [u8; 4];
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[[u8; 4]; LANES]) -> S::V {
        s.load_bits(from)
    }
}

impl Element for F16 {
    type Bits = [u8; 2];
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[[u8; 2]; LANES]) -> S::V {
        s.load_f16(from)
    }
}

impl Element for Bf16 {
    type Bits = [u8; 2];
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[[u8; 2]; LANES]) -> S::V {
        s.load_bf16(from)
    }
}

/// Loads the first `count` elements at `from`, and sets the other lanes to zero.
///
/// # Safety
/// `count <= LANES` elements are readable at `from`.
#[inline(always)]
pub(crate) unsafe fn load_part<S: Simd, E: Element>(s: S, from: *const E::Bits, count: usize) -> S::V {
    let mut part = [<E::Bits as bytemuck::Zeroable>::zeroed(); LANES];
    // SAFETY: the caller guarantees that `count` elements are readable at `from`, and they fit `part`.
    unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), count) };
    E::load(s, &part)
}

/// Loads fewer than [`LANES`] elements, and sets the other lanes to zero.
#[inline(always)]
pub(crate) fn load_few<S: Simd>(s: S, from: &[f32]) -> S::V {
    let mut part = [0.0; LANES];
    part[..from.len()].copy_from_slice(from);
    s.load(&part)
}

/// Stores the first lanes of `v` to fill `to`.
#[inline(always)]
pub(crate) fn store_few<S: Simd>(s: S, v: S::V, to: &mut [f32]) {
    let mut part = [0.0f32; LANES];
    s.store(v, &mut part);
    to.copy_from_slice(&part[..to.len()]);
}

/// Computes `e^x`, within 2 units in the last place for x in [-87, 88]. Beyond that range, computes the value at the
/// end of the range.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Taylor coefficients 1/7! .. 1/0!, enough for |r| <= ln 2 / 2.
    const COEFFICIENTS: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // The clamping keeps `n` within -126 ..= 127.
    let x = s.min(s.max(x, s.splat(-87.0)), s.splat(88.0));
    let biased = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.add(biased, s.splat(-ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut sum = s.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        sum = s.fma(sum, r, s.splat(*coefficient));
    }
    s.mul(sum, s.exp2_of_biased(biased))
}

/// The vector instructions of a level, with the token that proves that they exist.
pub(crate) enum Vectors {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    Portable,
}

impl Vectors {
    #[inline(always)]
    pub(crate) fn of(level: Level) -> Self {
        let _ = level;
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = Avx512::of(level) {
            return Self::Avx512(token);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = Avx2::of(level) {
            return Self::Avx2(token);
        }
        Self::Portable
    }
}

/// Calls `$kernel::<Level, …>(token, …)`, compiled for the instructions of `$level`.
///
/// `dispatch!(level, kernel::<_, Element>(a: A, b: B))` needs `kernel` to be an `#[inline(always)] fn` whose first
/// generic parameter is `S: Simd` and whose first argument is the token `S`; the name of an `unsafe fn` is preceded by
/// `unsafe`. The level is tested once per call, never inside a loop.
macro_rules! dispatch {
    ($level:expr, unsafe $kernel:ident $($rest:tt)*) => {
        $crate::simd::dispatch!(@ [unsafe] $level, $kernel $($rest)*)
    };
    ($level:expr, $kernel:ident $($rest:tt)*) => {
        $crate::simd::dispatch!(@ [] $level, $kernel $($rest)*)
    };
    (@ [$($unsafe:ident)?] $level:expr,
        $kernel:ident :: <_ $(, $generic:ident)*> ($($arg:ident : $type:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
        $($unsafe)? fn avx2(token: $crate::simd::Avx2, $($arg: $type),*) {
            // SAFETY: guaranteed by the caller of this function.
            $($unsafe)? { $kernel::<_ $(, $generic)*>(token, $($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
        $($unsafe)? fn avx512(token: $crate::simd::Avx512, $($arg: $type),*) {
            // SAFETY: guaranteed by the caller of this function.
            $($unsafe)? { $kernel::<_ $(, $generic)*>(token, $($arg),*) }
        }
        match $crate::simd::Vectors::of($level) {
            // SAFETY: the token proves the instructions that the function is compiled for; the arguments of an unsafe
            // kernel are guaranteed by the user of the macro.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Vectors::Avx512(token) => unsafe { avx512(token, $($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Vectors::Avx2(token) => unsafe { avx2(token, $($arg),*) },
            // SAFETY: as above, if the kernel is unsafe at all.
            $crate::simd::Vectors::Portable => {
                $($unsafe)? { $kernel::<_ $(, $generic)*>($crate::simd::Portable, $($arg),*) }
            }
        }
    }};
}
pub(crate) use dispatch;
