//! Arcee (AFM-4.5B): Llama with a feed-forward network that has no gate and squares what is positive.

use interbed_kernels::RopeStyle;

use super::shared::habits::{ActivationRule, Bias, Habits};
use super::{Family, GgufForm};
use crate::blueprint::Activation;

pub(super) static FAMILY: Family = Family {
    name: "Arcee",
    model_types: &["arcee"],
    gguf: Some(GgufForm::new(&["arcee"], RopeStyle::Neighbours)),
    habits: Habits {
        hidden: 2560,
        inner: 18_432,
        positions: 4096,
        epsilon: 1e-5,
        bos: Some(128_000),
        eos: Some(128_001),
        input_bias: Bias::Stated("attention_bias", false),
        output_bias: Bias::Stated("attention_bias", false),
        network_bias: Bias::Stated("mlp_bias", false),
        activation: ActivationRule::Named(Activation::SquaredRelu),
        ..Habits::PLAIN
    },
    read: |_, mut decoder| {
        decoder.is_gated = false;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};
