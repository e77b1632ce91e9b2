//! SmolLM3: every fourth layer does not rotate.

use interbed_kernels::RopeStyle;

use super::shared::habits::{Bias, Habits};
use super::shared::{rope, windows};
use super::{Family, GgufForm};

pub(super) static FAMILY: Family = Family {
    name: "SmolLm3",
    model_types: &["smollm3"],
    gguf: Some(GgufForm::new(&["smollm3"], RopeStyle::Neighbours)),
    habits: Habits {
        vocab_size: 128_256,
        kv_heads: Some(4),
        positions: 32_768,
        theta: 2_000_000.0,
        bos: Some(128_000),
        eos: Some(128_001),
        is_tied: true,
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        network_bias: Bias::Stated("mlp_bias", false),
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        let unrotated = match keys.json() {
            Some(fields) => {
                windows::refuse(fields)?;
                rope::read_unrotated(fields, decoder.layers)?
            }
            None => (1..=decoder.layers).map(|layer| layer.is_multiple_of(4)).collect(),
        };
        decoder.rope_of = unrotated.into_iter().map(|unrotated| (!unrotated).then_some(0)).collect();
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};
