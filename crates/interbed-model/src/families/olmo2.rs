//! OLMo 2: norms of what branches give, and over all query heads together, and all key heads.

use interbed_kernels::RopeStyle;

use super::shared::decoder::{Decoder, NormPlaces};
use super::shared::habits::{Bias, Habits};
use super::{Family, GgufForm};
use crate::blueprint::HeadNorms;

pub(super) static FAMILY: Family = Family {
    name: "Olmo2",
    model_types: &["olmo2"],
    gguf: Some(GgufForm {
        // With a window, files of this name are of OLMo 3.
        fits: |keys| Ok(keys.count("attention.sliding_window")?.is_none_or(|window| window == 0)),
        ..GgufForm::new(&["olmo2"], RopeStyle::Halves)
    }),
    habits: HABITS,
    read: |_, mut decoder| {
        place_norms(&mut decoder);
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// What OLMo 2 and 3 take for granted.
pub(super) const HABITS: Habits = Habits {
    vocab_size: 50_304,
    epsilon: 1e-5,
    bos: None,
    eos: Some(50_279),
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    ..Habits::PLAIN
};

/// Norms what branches give, and all heads together.
pub(super) fn place_norms(decoder: &mut Decoder) {
    decoder.norms = NormPlaces::After;
    decoder.norm_heads(HeadNorms::Whole);
}
