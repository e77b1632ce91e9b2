//! Loops that keep one arithmetic unit busy, on registers alone.

use super::Unit;
use crate::Level;
use crate::simd::{LANES, Simd, dispatch};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The number of independent chains: enough to cover the latency of two units, few enough for 16 registers with two
/// operands.
const CHAINS: usize = 12;

/// A loop that can run for any number of rounds, and the operations of one round.
pub(super) struct Loop {
    body: Box<dyn Fn(usize) + Sync>,
    operations: usize,
}

impl Loop {
    fn new(operations: usize, body: impl Fn(usize) + Sync + 'static) -> Self {
        Self { body: Box::new(body), operations }
    }

    pub(super) fn call(&self, rounds: usize) {
        (self.body)(rounds);
    }

    /// Returns the number of operations of `rounds` rounds.
    pub(super) fn operations(&self, rounds: usize) -> f64 {
        self.operations as f64 * rounds as f64
    }
}

/// Returns the loop for `unit`, if the level has that unit.
pub(super) fn of(level: Level, unit: Unit) -> Option<Loop> {
    if !unit.exists_at(level) {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(run) = x86_64::of(level, unit) {
        return Some(run);
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(run) = aarch64::of(level, unit) {
        return Some(run);
    }
    match unit {
        Unit::F32Fma => Some(Loop::new(CHAINS * LANES * 2, move |rounds| {
            let mut sum = [0.0f32; LANES];
            let to = &mut sum;
            dispatch!(level, multiply_add::<_>(rounds: usize, to: &mut [f32; LANES]));
            std::hint::black_box(sum);
        })),
        Unit::Int8Dot => Some(Loop::new(CHAINS * BYTES * 2, plain_bytes)),
        Unit::Bf16Dot | Unit::AmxBf16 | Unit::AmxInt8 => None,
    }
}

#[inline(always)]
fn multiply_add<S: Simd>(s: S, rounds: usize, to: &mut [f32; LANES]) {
    let (factor, term) = (s.splat(std::hint::black_box(0.999)), s.splat(std::hint::black_box(0.001)));
    let mut chains = [s.splat(1.0); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = s.fma(*chain, factor, term);
        }
    }
    let mut sum = s.splat(0.0);
    for chain in chains {
        sum = s.add(sum, chain);
    }
    s.store(sum, to);
}

/// The number of bytes of a chain in plain Rust.
const BYTES: usize = 16;

/// Multiplies bytes with the instructions that the compiler chooses.
fn plain_bytes(rounds: usize) {
    let factors = std::hint::black_box([3i8; BYTES]);
    let mut chains = [[1i32; BYTES]; CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            for (sum, &factor) in chain.iter_mut().zip(&factors) {
                // The sum's low byte is the other operand, so that the compiler cannot hoist a product out of the loop.
                *sum = sum.wrapping_add(i32::from(*sum as i8) * i32::from(factor));
            }
        }
    }
    std::hint::black_box(chains);
}
