//! Mixtures of experts: which layers have them, and how tokens choose.

use serde_json::Value;

use super::fields::Fields;
use super::{Architecture, ConfigProblem, ModelConfig};

/// A mixture of experts in place of a dense feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts that each token goes through.
    pub chosen: usize,
    /// Width of one expert.
    pub expert_width: usize,
    /// How a token chooses.
    pub router: Router,
    /// Whether the router and the matrices of experts have biases.
    pub biases: bool,
    /// What all tokens go through as well.
    pub shared: Option<SharedExpert>,
    /// For each layer, whether it is a mixture; the others are dense.
    pub layers: Vec<bool>,
}

/// How tokens choose experts and weigh what these give.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// How the router's product becomes scores.
    pub scores: Scores,
    /// Whether a bias is added to the scores, for the choice only.
    pub choice_bias: bool,
    /// Only experts of the best groups are chosen.
    pub groups: Option<Groups>,
    /// If the weights of a token's experts are divided by their sum: what is done to a sum near zero.
    pub normalise: Option<Floor>,
    /// The factor of all weights.
    pub scale: f32,
}

/// How the router's product becomes scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
    /// The largest are chosen as they are; the softmax is over the chosen ones.
    SoftmaxOfChosen,
}

/// Experts in groups of equal size, of which only some are chosen from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Groups of a layer; divides the experts, into at least two each.
    pub count: usize,
    /// Groups that are kept: those with the largest sum of their two best.
    pub kept: usize,
}

/// What keeps a sum of weights from zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    /// This is added.
    Plus(f32),
    /// It is no less than this.
    Least(f32),
}

/// A dense network beside the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its width.
    pub width: usize,
    /// Whether its result is multiplied by a sigmoid of a product with the token.
    pub gated: bool,
}

impl Mixture {
    /// Elements of one layer's experts, router and shared expert.
    pub(super) fn layer_parameters(&self, hidden: u64) -> Option<u64> {
        let size = |value: usize| value as u64;
        let expert = hidden.checked_mul(size(self.expert_width))?.checked_mul(3)?;
        let of_biases = if self.biases { 2 * size(self.expert_width) + hidden + 1 } else { 0 };
        let router = hidden + u64::from(self.router.choice_bias) + of_biases;
        let experts = expert.checked_add(router)?.checked_mul(size(self.experts))?;
        let shared = match self.shared {
            Some(SharedExpert { width, gated }) => {
                hidden.checked_mul(size(width))?.checked_mul(3)? + if gated { hidden } else { 0 }
            }
            None => 0,
        };
        experts.checked_add(shared)
    }

    /// Layers that are mixtures.
    pub fn num_layers(&self) -> usize {
        self.layers.iter().filter(|is_mixture| **is_mixture).count()
    }

    /// The share of a layer's experts that `tokens` tokens together go through, if each expert is as likely.
    pub fn expected_share(&self, tokens: usize) -> f64 {
        1.0 - (1.0 - self.chosen as f64 / self.experts as f64).powf(tokens as f64)
    }
}

/// The most experts of a layer, or groups of them.
const EXPERTS_MAX: usize = 1 << 14;
/// The most experts of all layers; each has a few tensors with names of their own. Models have up to 80,000 by now.
const ALL_EXPERTS_MAX: usize = 1 << 18;

/// Reads the mixture of an architecture that has one.
pub(super) fn read_mixture(
    fields: &Fields<'_>,
    architecture: Architecture,
    num_layers: usize,
    intermediate_size: usize,
) -> Result<Option<Mixture>, ConfigProblem> {
    let count =
        |key: &str, default: usize| Ok::<_, ConfigProblem>(fields.count(key, 1..=EXPERTS_MAX)?.unwrap_or(default));
    let width = |key: &str, default: usize| {
        let limits = 1..=ModelConfig::INTERMEDIATE_SIZE_MAX;
        Ok::<_, ConfigProblem>(fields.count(key, limits)?.unwrap_or(default))
    };
    let flag = |key: &str, default: bool| Ok::<_, ConfigProblem>(fields.flag(key)?.unwrap_or(default));
    let softmax = |normalise: Option<Floor>| Router {
        scores: Scores::Softmax,
        choice_bias: false,
        groups: None,
        normalise,
        scale: 1.0,
    };
    let all = vec![true; num_layers];
    // `transformers` adds nothing to the sum of a softmax.
    let exact = Floor::Plus(0.0);
    let mixture = match architecture {
        Architecture::Qwen3Moe | Architecture::Qwen2Moe => {
            let is_qwen_3 = architecture == Architecture::Qwen3Moe;
            let shared = match is_qwen_3 {
                true => None,
                false => Some(SharedExpert { width: width("shared_expert_intermediate_size", 5632)?, gated: true }),
            };
            Mixture {
                experts: count("num_experts", if is_qwen_3 { 128 } else { 60 })?,
                chosen: count("num_experts_per_tok", if is_qwen_3 { 8 } else { 4 })?,
                expert_width: width("moe_intermediate_size", if is_qwen_3 { 768 } else { 1408 })?,
                router: softmax(flag("norm_topk_prob", false)?.then_some(exact)),
                biases: false,
                shared,
                layers: qwen_layers(fields, num_layers)?,
            }
        }
        Architecture::Mixtral => Mixture {
            experts: count("num_local_experts", 8)?,
            chosen: count("num_experts_per_tok", 2)?,
            expert_width: intermediate_size,
            router: softmax(Some(exact)),
            biases: false,
            shared: None,
            layers: all,
        },
        Architecture::Olmoe => Mixture {
            experts: count("num_experts", 64)?,
            chosen: count("num_experts_per_tok", 8)?,
            expert_width: intermediate_size,
            router: softmax(flag("norm_topk_prob", false)?.then_some(exact)),
            biases: false,
            shared: None,
            layers: all,
        },
        Architecture::GraniteMoe => Mixture {
            experts: count("num_local_experts", 8)?,
            chosen: count("num_experts_per_tok", 2)?,
            expert_width: intermediate_size,
            router: Router { scores: Scores::SoftmaxOfChosen, ..softmax(None) },
            biases: false,
            shared: None,
            layers: all,
        },
        Architecture::GptOss => Mixture {
            experts: count("num_local_experts", 128)?,
            chosen: count("num_experts_per_tok", 4)?,
            expert_width: intermediate_size,
            router: Router { scores: Scores::SoftmaxOfChosen, ..softmax(None) },
            biases: true,
            shared: None,
            layers: all,
        },
        Architecture::Glm4Moe => {
            let expert_width = width("moe_intermediate_size", 1408)?;
            let scale = fields.number("routed_scaling_factor", |scale| scale > 0.0, "a number above 0")?;
            let dense = fields.count("first_k_dense_replace", 0..=num_layers)?.unwrap_or(1);
            let groups = Groups { count: count("n_group", 1)?, kept: count("topk_group", 1)? };
            Mixture {
                experts: count("n_routed_experts", 128)?,
                chosen: count("num_experts_per_tok", 8)?,
                expert_width,
                router: Router {
                    scores: Scores::Sigmoid,
                    choice_bias: true,
                    groups: (groups.count > 1).then_some(groups),
                    normalise: flag("norm_topk_prob", true)?.then_some(Floor::Plus(1e-20)),
                    scale: scale.unwrap_or(1.0) as f32,
                },
                biases: false,
                shared: shared(fields.count("n_shared_experts", 0..=EXPERTS_MAX)?.unwrap_or(1), expert_width),
                layers: (0..num_layers).map(|layer| layer >= dense).collect(),
            }
        }
        Architecture::MiniMaxM2 => Mixture {
            experts: count("num_local_experts", 256)?,
            chosen: count("num_experts_per_tok", 8)?,
            expert_width: intermediate_size,
            router: Router {
                scores: Scores::Sigmoid,
                choice_bias: true,
                groups: None,
                normalise: Some(exact),
                scale: 1.0,
            },
            biases: false,
            shared: None,
            layers: all,
        },
        Architecture::HunyuanMoe => {
            // Of layers that differ, no model has been published.
            let same = |key: &str, max| same_in_layers(fields, key, max, num_layers);
            let (widths, shared_count) = (
                same("moe_intermediate_size", ModelConfig::INTERMEDIATE_SIZE_MAX)?,
                same("num_shared_expert", EXPERTS_MAX)?,
            );
            for (key, found, known) in
                [("moe_intermediate_size", widths, intermediate_size), ("num_shared_expert", shared_count, 1)]
            {
                if let Some(other) = found.filter(|&found| found != known) {
                    let hint = "experts are known as wide as intermediate_size, with one shared expert";
                    return Err(fields.unsupported(key, &Value::from(other), hint));
                }
            }
            Mixture {
                experts: same("num_experts", EXPERTS_MAX)?.unwrap_or(1),
                chosen: same("moe_topk", EXPERTS_MAX)?.or(same("num_experts_per_tok", EXPERTS_MAX)?).unwrap_or(1),
                expert_width: intermediate_size,
                router: softmax(Some(exact)),
                shared: shared(1, intermediate_size),
                layers: all,
                biases: false,
            }
        }
        Architecture::Ernie45Moe => {
            let expert_width = width("moe_intermediate_size", 1536)?;
            let least = fields.number("moe_norm_min", |least| least > 0.0, "a number above 0")?.unwrap_or(1e-12);
            Mixture {
                experts: count("moe_num_experts", 64)?,
                chosen: count("moe_k", 6)?,
                expert_width,
                router: Router { choice_bias: true, ..softmax(Some(Floor::Least(least as f32))) },
                biases: false,
                shared: shared(fields.count("moe_num_shared_experts", 0..=EXPERTS_MAX)?.unwrap_or(2), expert_width),
                layers: ernie_layers(fields, num_layers)?,
            }
        }
        _ => return Ok(None),
    };
    check(fields, &mixture)?;
    Ok(mixture.layers.contains(&true).then_some(mixture))
}

/// A number that may be written once, or for each layer.
fn same_in_layers(
    fields: &Fields<'_>,
    key: &str,
    max: usize,
    num_layers: usize,
) -> Result<Option<usize>, ConfigProblem> {
    let Some(Value::Array(values)) = fields.get(key) else { return fields.count(key, 1..=max) };
    let first = values.first().and_then(Value::as_u64).and_then(|first| usize::try_from(first).ok());
    let first = first.filter(|first| values.len() == num_layers && (1..=max).contains(first));
    match first.filter(|_| values.iter().all(|value| *value == values[0])) {
        Some(count) => Ok(Some(count)),
        None => {
            let (value, hint) =
                (Value::from(values.as_slice()), "a number that is the same for each layer is supported");
            Err(fields.unsupported(key, &value, hint))
        }
    }
}

fn shared(experts: usize, width: usize) -> Option<SharedExpert> {
    (experts > 0).then(|| SharedExpert { width: experts.saturating_mul(width), gated: false })
}

fn check(fields: &Fields<'_>, mixture: &Mixture) -> Result<(), ConfigProblem> {
    let out_of_range = |key: &str, found: usize, limit: String| {
        Err(ConfigProblem::OutOfRange { key: fields.name(key), found: found.to_string(), limit })
    };
    let all = mixture.num_layers().saturating_mul(mixture.experts);
    if all > ALL_EXPERTS_MAX {
        return out_of_range("the number of experts of all layers", all, format!("at most {ALL_EXPERTS_MAX}"));
    }
    let mut choice = mixture.experts;
    if let Some(Groups { count, kept }) = mixture.router.groups {
        let size = mixture.experts / count;
        if !mixture.experts.is_multiple_of(count) || size < 2 {
            let limit = format!("a divisor of the number of experts, {}, with at least 2 in a group", mixture.experts);
            return out_of_range("n_group", count, limit);
        }
        if kept > count {
            return out_of_range("topk_group", kept, format!("at most n_group, which is {count}"));
        }
        choice = kept * size;
    }
    if mixture.chosen > choice {
        let limit = format!("at most {choice}, the number of experts that there are to choose from");
        return out_of_range("num_experts_per_tok", mixture.chosen, limit);
    }
    Ok(())
}

/// Every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`.
fn qwen_layers(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let step = fields.count("decoder_sparse_step", 1..=ModelConfig::LAYERS_MAX)?.unwrap_or(1);
    let mut layers: Vec<bool> = (1..=num_layers).map(|layer| layer.is_multiple_of(step)).collect();
    match fields.get("mlp_only_layers") {
        None => {}
        Some(Value::Array(dense)) => {
            for layer in dense {
                let Some(layer) = layer.as_u64() else {
                    return Err(fields.wrong_type("mlp_only_layers", "a list of layers", layer));
                };
                if let Some(is_mixture) = usize::try_from(layer).ok().and_then(|layer| layers.get_mut(layer)) {
                    *is_mixture = false;
                }
            }
        }
        Some(other) => return Err(fields.wrong_type("mlp_only_layers", "a list of layers", other)),
    }
    Ok(layers)
}

/// Every `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index`, where -1 is the last.
fn ernie_layers(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let interval = fields.count("moe_layer_interval", 1..=ModelConfig::LAYERS_MAX)?.unwrap_or(1);
    let start = fields.count("moe_layer_start_index", 0..=ModelConfig::LAYERS_MAX)?.unwrap_or(1);
    let end = match fields.get("moe_layer_end_index").and_then(Value::as_i64) {
        Some(-1) => num_layers,
        _ => fields.count("moe_layer_end_index", 0..=ModelConfig::LAYERS_MAX)?.unwrap_or(num_layers),
    };
    Ok((0..num_layers).map(|layer| (layer + 1).is_multiple_of(interval) && (start..=end).contains(&layer)).collect())
}
