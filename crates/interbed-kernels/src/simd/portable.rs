//! Vectors in plain Rust, for any machine.

use half::f16;

use super::{LANES, Simd};

/// The token for plain Rust, which needs no proof.
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

impl Simd for Portable {
    type V = [f32; LANES];
    const MANY_REGISTERS: bool = false;
    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }
    #[inline(always)]
    fn load_bits(self, from: &[[u8; 4]; LANES]) -> Self::V {
        from.map(f32::from_ne_bytes)
    }
    #[inline(always)]
    fn load_bf16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        from.map(|bits| f32::from_bits(u32::from(u16::from_ne_bytes(bits)) << 16))
    }
    #[inline(always)]
    fn load_f16(self, from: &[[u8; 2]; LANES]) -> Self::V {
        from.map(|bits| f16::from_ne_bytes(bits).to_f32_const())
    }
    #[inline(always)]
    fn load_e4m3(self, codes: &[u8; LANES]) -> Self::V {
        // Reinterprets exponent and mantissa as those of f32, whose exponent bias is larger by 120.
        const SCALE: f32 = f32::from_bits((127 + 120) << 23);
        codes.map(|code| {
            let magnitude = u32::from(code & 127);
            let nan = ((magnitude + 1) >> 7) * 0x7fc0_0000;
            f32::from_bits(u32::from(code & 128) << 24 | magnitude << 20 | nan) * SCALE
        })
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Every 64-bit Arm machine has a fused multiply-add; elsewhere one in software would be a hundred times slower.
        match cfg!(target_arch = "aarch64") {
            true => std::array::from_fn(|i| a[i].mul_add(b[i], c[i])),
            false => std::array::from_fn(|i| a[i] * b[i] + c[i]),
        }
    }
    #[inline(always)]
    fn exp2_of_biased(self, biased: Self::V) -> Self::V {
        biased.map(|n| f32::from_bits((n.to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)]
    fn prefetch(self, _from: *const u8) {}
    #[inline(always)]
    fn prefetch_second(self, _from: *const u8) {}
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        fold(v, |a, b| a + b)
    }
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        fold(v, |a, b| if a > b { a } else { b })
    }
}
