//! What goes over rows of activations: norm, rope, the gated activation.

use interbed_kernels::{Activation, RopeStyle, gated_activation, rms_norm, rope};

use crate::{Entry, Kernel, entry, numbers};

const TOKENS: usize = 8;
const HIDDEN: usize = 2048;
const HEAD_DIM: usize = 64;

pub fn kernels() -> impl Iterator<Item = Entry> {
    [entry("rms_norm", norm), entry("rope", rotate), entry("gated_activation", gate)].into_iter()
}

fn norm() -> Kernel {
    let (x, weight) = (numbers(TOKENS * HIDDEN), numbers(HIDDEN));
    let mut out = vec![0.0; x.len()];
    Box::new(move |pool, level| rms_norm(pool, level, &x, &weight, 1e-5, &mut out))
}

fn rotate() -> Kernel {
    let (mut x, cos, sin) = (numbers(TOKENS * HIDDEN), numbers(HEAD_DIM / 2), numbers(HEAD_DIM / 2));
    Box::new(move |_, _| {
        for token in x.chunks_exact_mut(HIDDEN) {
            rope(token, HEAD_DIM, RopeStyle::Halves, &cos, &sin);
        }
    })
}

fn gate() -> Kernel {
    let (x, up) = (numbers(TOKENS * HIDDEN), numbers(TOKENS * HIDDEN));
    let mut gate = x.clone();
    Box::new(move |pool, level| {
        gate.copy_from_slice(&x);
        gated_activation(pool, level, Activation::Silu, &mut gate, &up);
    })
}
