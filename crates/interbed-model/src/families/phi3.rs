//! Phi-3 and Phi-4: matrices in one piece, and two sets of factors of the frequencies.

use interbed_kernels::RopeStyle;

use super::shared::habits::Habits;
use super::shared::rope::{Kinds, RopeRule, Rotated};
use super::shared::windows;
use super::{Family, GgufForm, WhiteSpace};

pub(super) static FAMILY: Family = Family {
    name: "Phi3",
    model_types: &["phi3"],
    white_space: Some(WhiteSpace {
        names: &["phi-3", "phi3"],
        besides: &["<unk>", "<s>", "<|endoftext|>"],
    }),
    gguf: Some(GgufForm::new(&["phi3"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 32_064,
        inner: 8192,
        positions: 4096,
        epsilon: 1e-5,
        eos: Some(32_000),
        rotated: Rotated::Share(1.0),
        rope: RopeRule { kinds: Kinds::LongRope, ..RopeRule::USUAL },
        slides_in_gguf: |_| true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        if let Some(fields) = keys.json() {
            decoder.windows = vec![windows::read(fields)?; decoder.layers];
        }
        // A window that the context fits into is none.
        for window in &mut decoder.windows {
            *window = window.filter(|&window| window < decoder.positions);
        }
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};
