//! Seed-OSS: biases on query, key and value, and a width of heads that does not follow from other sizes.

use interbed_kernels::RopeStyle;

use super::shared::habits::{Bias, Habits};
use super::{Family, GgufForm};

pub(super) static FAMILY: Family = Family {
    name: "SeedOss",
    model_types: &["seed_oss"],
    gguf: Some(GgufForm::new(&["seed_oss"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 155_136,
        inner: 27_648,
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 524_288,
        bos: Some(0),
        input_bias: Bias::Stated("attention_bias", true),
        output_bias: Bias::Stated("attention_out_bias", false),
        network_bias: Bias::Stated("mlp_bias", false),
        ..Habits::PLAIN
    },
    ..Family::PLAIN
};
