//! Loops for the units of 64-bit Arm, except for f32 lanes.

use std::arch::aarch64::*;
use std::hint::black_box;

use super::{CHAINS, Loop};
use crate::Level;
use crate::level::Instructions;
use crate::probe::Unit;

/// Returns the loop for `unit`, if every machine of this architecture has instructions for it. Returns `None` for f32,
/// whose loop all architectures share.
pub(super) fn of(level: Level, unit: Unit) -> Option<Loop> {
    if unit != Unit::Int8Dot || level.instructions() != Instructions::Neon {
        return None;
    }
    // SAFETY: every machine of this architecture has these instructions.
    Some(Loop::new(CHAINS * 16 * 2, |rounds| unsafe { int8_dot(rounds) }))
}

/// Multiplies 8 bytes to 16 bits, twice, then adds up pairs in 32 bits.
#[target_feature(enable = "neon")]
fn int8_dot(rounds: usize) {
    let factor = vdup_n_s8(black_box(-5));
    let mut chains = [vdupq_n_s32(1); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            // The chain itself is an operand, so that the compiler cannot hoist the products out of the loop.
            let bytes = vreinterpretq_s8_s32(*chain);
            let products = vmlal_s8(vmull_s8(vget_low_s8(bytes), factor), vget_high_s8(bytes), factor);
            *chain = vpadalq_s16(*chain, products);
        }
    }
    black_box(chains);
}
