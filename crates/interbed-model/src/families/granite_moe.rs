//! Granite 3 with mixtures: the largest scores are chosen, and weighed by a softmax over the chosen ones.

use interbed_kernels::RopeStyle;

use super::granite;
use super::shared::habits::Habits;
use super::shared::experts;
use super::{Family, GgufForm};
use crate::blueprint::{Mixture, Router, Scores};

pub(super) static FAMILY: Family = Family {
    name: "GraniteMoe",
    model_types: &["granitemoe"],
    gguf: Some(GgufForm::new(&["granitemoe"], RopeStyle::Neighbours)),
    habits: Habits { has_experts: true, inner_is_of_experts: true, ..granite::HABITS },
    read: |keys, mut decoder| {
        granite::read_factors(keys, &mut decoder)?;
        let router = Router { scores: Scores::SoftmaxOfChosen, ..experts::softmax(None) };
        experts::refuse_other_routers(keys, &router)?;
        experts::refuse_shared(keys)?;
        let mixture = Mixture {
            experts: experts::count(keys, "num_local_experts", 8)?,
            chosen: experts::chosen(keys, "num_experts_per_tok", 2)?,
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
