//! MiniMax-M2: experts chosen by sigmoids, norms over all query heads together, and over all key heads.

use interbed_kernels::RopeStyle;

use super::shared::habits::Habits;
use super::shared::experts::{self, EXACT};
use super::shared::rope::Rotated;
use super::{Family, GgufForm};
use crate::blueprint::{HeadNorms, Mixture, Router, Scores};
use crate::keys::key;

pub(super) static FAMILY: Family = Family {
    name: "MiniMaxM2",
    model_types: &["minimax_m2"],
    gguf: Some(GgufForm::new(&["minimax-m2"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 200_064,
        inner: 1536,
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 196_608,
        theta: 5_000_000.0,
        bos: Some(200_034),
        eos: Some(200_020),
        rotated: Rotated::Count("rotary_dim"),
        has_experts: true,
        inner_is_of_experts: true,
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        if keys.flag(key("use_qk_norm", ""))?.unwrap_or(true) {
            decoder.norm_heads(HeadNorms::Whole);
        }
        let router = Router { scores: Scores::Sigmoid, choice_bias: true, ..experts::softmax(Some(EXACT)) };
        experts::refuse_other_routers(keys, &router)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_local_experts", 256)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 8)?,
            expert_width: decoder.inner,
            activation: decoder.activation,
            router,
            gated: true,
            biases: false,
            shared: None,
        };
        let all = vec![true; decoder.layers];
        decoder.use_experts(keys, mixture, all)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};
