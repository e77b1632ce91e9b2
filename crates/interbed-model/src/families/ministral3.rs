//! Ministral 3: Mistral with queries that grow with their positions.

use interbed_kernels::RopeStyle;

use super::shared::habits::Habits;
use super::shared::rope::{self, RopeRule};
use super::shared::windows;
use super::{Family, GgufForm};

pub(super) static FAMILY: Family = Family {
    name: "Ministral3",
    model_types: &["ministral3"],
    within: &["mistral3"],
    gguf: Some(GgufForm::new(&["mistral3"], RopeStyle::Neighbours)),
    habits: Habits {
        vocab_size: 131_072,
        inner: 14_336,
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 262_144,
        epsilon: 1e-5,
        rope: RopeRule { is_required: true, grows: true, ..RopeRule::USUAL },
        slides_in_gguf: |_| true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        decoder.attention.growth = rope::read_growth(keys, &decoder.ropes[0].scaling)?;
        if let Some(fields) = keys.json() {
            decoder.windows = vec![windows::read(fields)?; decoder.layers];
        }
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};
