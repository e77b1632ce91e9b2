//! Metadata to configuration.

use std::collections::HashSet;

use interbed_kernels::RopeStyle;
use interbed_weights::{GroupSpec, MetadataValue, Number, gguf_name};
use serde_json::{Value, json};

use super::mixture::{self, ExpertKeys};
use super::{GgufModel, tokenizer};
use crate::config::{Activation, Architecture, ConfigProblem, ModelConfig, QkNorm};
use crate::layers::{EMBEDDING_TENSOR, HEAD_TENSOR};

/// An architecture of GGUF files.
pub(super) struct Family {
    /// As `general.architecture` has it.
    pub(super) name: &'static str,
    /// As `config.json` has it.
    model_type: &'static str,
    /// Converters reorder the query and key rows of the Llama-like ones, so that pairs become neighbours.
    pub(super) style: RopeStyle,
}

const FAMILIES: [Family; 22] = [
    Family { name: "llama", model_type: "llama", style: RopeStyle::Neighbours },
    Family { name: "mistral", model_type: "mistral", style: RopeStyle::Neighbours },
    Family { name: "qwen2", model_type: "qwen2", style: RopeStyle::Halves },
    Family { name: "qwen3", model_type: "qwen3", style: RopeStyle::Halves },
    Family { name: "minicpm", model_type: "minicpm", style: RopeStyle::Neighbours },
    Family { name: "granite", model_type: "granite", style: RopeStyle::Neighbours },
    Family { name: "qwen2moe", model_type: "qwen2_moe", style: RopeStyle::Halves },
    Family { name: "qwen3moe", model_type: "qwen3_moe", style: RopeStyle::Halves },
    Family { name: "olmoe", model_type: "olmoe", style: RopeStyle::Halves },
    Family { name: "granitemoe", model_type: "granitemoe", style: RopeStyle::Neighbours },
    Family { name: "glm4moe", model_type: "glm4_moe", style: RopeStyle::Halves },
    Family { name: "minimax-m2", model_type: "minimax_m2", style: RopeStyle::Halves },
    Family { name: "ernie4_5-moe", model_type: "ernie4_5_moe", style: RopeStyle::Neighbours },
    Family { name: "smollm3", model_type: "smollm3", style: RopeStyle::Neighbours },
    Family { name: "seed_oss", model_type: "seed_oss", style: RopeStyle::Halves },
    Family { name: "olmo2", model_type: "olmo2", style: RopeStyle::Halves },
    Family { name: "gpt-oss", model_type: "gpt_oss", style: RopeStyle::Halves },
    Family { name: "exaone4", model_type: "exaone4", style: RopeStyle::Halves },
    Family { name: "phi3", model_type: "phi3", style: RopeStyle::Halves },
    Family { name: "mistral3", model_type: "ministral3", style: RopeStyle::Neighbours },
    Family { name: "hunyuan-dense", model_type: "hunyuan_v1_dense", style: RopeStyle::Halves },
    Family { name: "hunyuan-moe", model_type: "hunyuan_v1_moe", style: RopeStyle::Halves },
];

/// The `model_type` of a Mixtral, whose GGUF files say `llama`.
const MIXTRAL: &str = "mixtral";

/// The family that a model of this configuration is written as. A Mistral is a Llama there.
///
/// # Errors
/// What the model computes that readers of that family do not, or do differently.
pub(super) fn family_of(config: &ModelConfig) -> Result<&'static Family, &'static str> {
    let name = match config.architecture {
        Architecture::Llama | Architecture::Mistral | Architecture::Mixtral => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        Architecture::MiniCpm => "minicpm",
        Architecture::Granite => "granite",
        Architecture::Qwen2Moe => "qwen2moe",
        Architecture::Qwen3Moe => "qwen3moe",
        Architecture::Olmoe => "olmoe",
        Architecture::GptOss => "gpt-oss",
        _ => return Err("this architecture"),
    };
    let normalises = config.mixture.as_ref().map(|mixture| mixture.router.normalise.is_some());
    let by_family = matches!(config.architecture, Architecture::Qwen3Moe | Architecture::Mixtral);
    if normalises.is_some_and(|normalises| normalises != by_family) {
        return Err("weights of experts that are divided by their sum where readers do not, or the other way round");
    }
    if config.mixture.as_ref().is_some_and(|mixture| mixture.layers.contains(&false)) {
        return Err("layers without experts among layers that have some");
    }
    let scales = [config.embedding_multiplier, config.residual_multiplier, config.logits_divisor];
    let is_scaled = matches!(config.architecture, Architecture::MiniCpm | Architecture::Granite);
    let plain_attention = (config.head_dim as f64).sqrt().recip() as f32;
    // What a family's readers assume cannot be changed by a key or tensor.
    let activation = match config.architecture {
        Architecture::GptOss => Activation::ClampedSwish,
        _ => Activation::Silu,
    };
    if config.activation != activation {
        return Err("an activation other than SiLU");
    }
    let norms = match config.architecture {
        Architecture::Qwen3 | Architecture::Qwen3Moe => QkNorm::Heads,
        Architecture::Olmoe => QkNorm::Whole,
        _ => QkNorm::None,
    };
    if config.qk_norm != norms {
        return Err("norms of query and key heads outside Qwen3, or a Qwen3 without");
    }
    if !is_scaled && scales != [1.0; 3] {
        return Err("scaled embeddings, branches or logits outside MiniCPM and Granite");
    }
    if config.architecture != Architecture::Granite && config.attention_scale != plain_attention {
        return Err("attention scores of another scale outside Granite");
    }
    FAMILIES.iter().find(|family| family.name == name).ok_or("this architecture")
}

/// Factors that frequencies are divided by.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Their like for models with two sets, see `RopeScaling::LongRope`.
const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Tensors that may be there without being a weight of the model: rope's frequencies as old converters stored them,
/// which follow from the metadata.
fn is_beside_the_weights(name: &str) -> bool {
    [ROPE_FACTORS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].contains(&name)
        || name.strip_suffix(".attn_rot_embd.weight").is_some_and(|block| block.starts_with("blk."))
}

/// Refuses tensors that the model's groups do not ask for: a model with such tensors computes something else.
pub(super) fn check_tensors(model: &GgufModel<'_>, specs: &[GroupSpec]) -> Result<(), ConfigProblem> {
    let wanted: HashSet<&str> = specs.iter().flat_map(|group| &group.tensors).map(|spec| spec.name.as_str()).collect();
    // Layers behind the last guess at further tokens; they are counted, and not computed.
    let layers = specs.last().map_or(0, |head| head.layer);
    let guesses = |name: &str| {
        let layer = ["model.layers.", "blk."].iter().find_map(|prefix| name.strip_prefix(prefix));
        let layer = layer.and_then(|rest| rest.split_once('.')).and_then(|(layer, _)| layer.parse().ok());
        layer.is_some_and(|layer: usize| layer >= layers) && guessing_layers(model) > 0
    };
    let mut others = model.catalog.tensors().map(|(name, _)| name);
    match others.find(|name| !wanted.contains(name) && !is_beside_the_weights(name) && !guesses(name)) {
        None => Ok(()),
        Some(name) => {
            let shown: String = name.chars().take(120).collect();
            Err(ConfigProblem::UnwantedTensor { tensor: gguf_name(&shown).unwrap_or(shown) })
        }
    }
}

/// Layers behind the last that guess at further tokens.
fn guessing_layers(model: &GgufModel<'_>) -> u64 {
    let name = model.metadata.text("general.architecture").ok().flatten().unwrap_or_default();
    model.metadata.count(&format!("{name}.nextn_predict_layers")).ok().flatten().unwrap_or(0)
}

/// Keys of `config.json`, and what files here call the same.
const RENAMED: [(&str, &str); 22] = [
    ("vocab_size", "vocab_size"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("scale_emb", "embedding_scale"),
    ("scale_depth", "residual_scale"),
    ("dim_model_base", "logit_scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("num_experts", "expert_count"),
    ("num_local_experts", "expert_count"),
    ("n_routed_experts", "expert_count"),
    ("moe_num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];

/// A value at which a key changes nothing.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    Flag(bool),
    Number(f64),
}

/// By how much queries grow with their positions.
const TEMPERATURE_SCALE: &str = "attention.temperature_scale";
const TEMPERATURE_LENGTH: &str = "attention.temperature_length";

/// Keys that change what is computed, and the values with which they do not; other values are refused.
const NEUTRAL: [(&str, Neutral); 9] = [
    ("attention.causal", Neutral::Flag(true)),
    ("use_parallel_residual", Neutral::Flag(false)),
    ("attention.clamp_kqv", Neutral::Number(0.0)),
    ("attention.max_alibi_bias", Neutral::Number(0.0)),
    ("attn_logit_softcapping", Neutral::Number(0.0)),
    ("final_logit_softcapping", Neutral::Number(0.0)),
    // Of Ministral 3 they are read.
    (TEMPERATURE_SCALE, Neutral::Number(0.0)),
    (TEMPERATURE_LENGTH, Neutral::Number(0.0)),
    ("rope.scaling.yarn_ext_factor", Neutral::Number(1.0)),
];

pub(super) fn read(model: &GgufModel<'_>) -> Result<ModelConfig, ConfigProblem> {
    let kind = model.metadata.text("general.type")?.unwrap_or("model");
    if kind != "model" {
        let hint = "give the file of the language model itself";
        return Err(unsupported("general.type", &Value::from(kind), hint));
    }
    let Some(name) = model.metadata.text("general.architecture")? else {
        return Err(missing("general.architecture", "it names the architecture"));
    };
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        let shown: String = name.chars().take(80).collect();
        let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        return Err(ConfigProblem::UnknownArchitecture { found: format!("{shown:?}"), known: known.join(", ") });
    };
    let keys = Keys { model, family };
    let json = keys.config_json()?;
    let checked = ModelConfig::from_json(&json.to_string());
    let mut config = checked.map_err(|error| renamed(error.problem, family))?;
    // Only the tensors show it; there is no key for it.
    let has = |tensor: &str| model.catalog.get(&format!("model.layers.0.{tensor}")).is_some();
    config.qkv_bias = has("self_attn.q_proj.bias");
    config.output_bias = has("self_attn.o_proj.bias");
    config.mlp_bias = has("mlp.gate_proj.bias");
    if config.architecture == Architecture::Glm4Moe {
        config.qk_norm = if has("self_attn.q_norm.weight") { QkNorm::Heads } else { QkNorm::None };
    }
    if let Some(mixture) = &mut config.mixture {
        let first = mixture.layers.iter().position(|is_mixture| *is_mixture).unwrap_or(0);
        let bias = format!("model.layers.{first}.mlp.gate.e_score_correction_bias");
        mixture.router.choice_bias &= model.catalog.get(&bias).is_some();
    }
    config.sliding_windows = keys.windows(config.num_layers)?;
    config.rope.style = family.style;
    config.rope.factors = keys.rope_factors(config.rotated)?;
    Ok(config)
}

/// The keys of one architecture.
struct Keys<'a> {
    model: &'a GgufModel<'a>,
    family: &'a Family,
}

impl Keys<'_> {
    /// The equivalent `config.json`; whether its numbers make sense is for its reader to say.
    fn config_json(&self) -> Result<Value, ConfigProblem> {
        // Layers that are no mixtures may have none.
        let experts = ExpertKeys::count(self, "expert_count")?.filter(|&experts| experts > 0);
        let model_type = match (self.family.model_type, experts) {
            ("llama", Some(_)) => MIXTRAL,
            // OLMo 2 and OLMo 3 have one name in GGUF files; only OLMo 3 has windows.
            ("olmo2", _) if self.count("attention.sliding_window")?.is_some_and(|window| window > 0) => "olmo3",
            (model_type, _) => model_type,
        };
        let is_mixture = Architecture::named(model_type).is_some_and(Architecture::is_mixture);
        if let Some(experts) = experts.filter(|_| !is_mixture) {
            let hint = "this architecture is known without experts only";
            return Err(unsupported(&self.name("expert_count"), &json!(experts), hint));
        }
        self.refuse_what_is_not_computed(is_mixture)?;
        let hidden = self.required("embedding_length")?;
        // Converters count layers that guess at further tokens among the blocks.
        let layers = self.required("block_count")?.saturating_sub(self.count("nextn_predict_layers")?.unwrap_or(0));
        let heads = self.same_in_layers("attention.head_count")?;
        let heads = heads.ok_or_else(|| missing(&self.name("attention.head_count"), "it shapes the model"))?;
        let kv_heads = self.same_in_layers("attention.head_count_kv")?.unwrap_or(heads);
        let inner = self.same_in_layers("feed_forward_length")?;
        let inner = match (inner, ExpertKeys::count(self, "expert_feed_forward_length")?) {
            (Some(inner), _) => inner,
            (None, Some(of_expert)) if is_mixture => of_expert,
            (None, _) => return Err(missing(&self.name("feed_forward_length"), "it shapes the model")),
        };
        let context = self.required("context_length")?;
        let eps = self.number("attention.layer_norm_rms_epsilon")?;
        let eps = eps.ok_or_else(|| missing(&self.name("attention.layer_norm_rms_epsilon"), "every norm needs it"))?;
        let (head_dim, rotated) = self.head_dim(hidden, heads, model_type)?;
        let mut json = json!({
            "model_type": model_type,
            "vocab_size": self.vocab_size()?,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": context,
            "rms_norm_eps": eps,
            "tie_word_embeddings": self.is_tied(),
            "rope_theta": self.number("rope.freq_base")?.unwrap_or(10_000.0),
            "bos_token_id": tokenizer::bos_id(self.model.metadata)?,
            "eos_token_id": tokenizer::end_ids(self.model.metadata)?,
        });
        let scaling = match model_type {
            "phi3" => self.longrope(context, rotated)?,
            _ => self.rope_scaling(context)?,
        };
        if let Some(scaling) = scaling {
            json["rope_scaling"] = scaling;
        }
        if is_mixture {
            mixture::add_to_config(self, model_type, inner, &mut json)?;
        }
        match model_type {
            // Which layers have one is read below.
            "olmo3" | "exaone4" => json["sliding_window"] = Value::Null,
            "glm4_moe" | "phi3" => json["partial_rotary_factor"] = json!(rotated as f64 / head_dim as f64),
            "minimax_m2" => json["rotary_dim"] = json!(rotated),
            "minicpm" => {
                // Files older than these keys are of the first MiniCPM, and these are its scales. Zero means that there
                // is none.
                let scale = |key| {
                    let scale: Option<f64> = self.number(key)?;
                    Ok::<_, ConfigProblem>(scale.map(|scale| if scale == 0.0 { 1.0 } else { scale }))
                };
                let embedding = scale("embedding_scale")?.unwrap_or(12.0);
                let residual = scale("residual_scale")?.map(|scale| scale * (layers as f64).sqrt());
                let logits = scale("logit_scale")?.map(|scale| hidden as f64 / scale);
                json["scale_emb"] = json!(embedding);
                json["scale_depth"] = json!(residual.unwrap_or(1.4));
                json["dim_model_base"] = json!(logits.unwrap_or(256.0));
            }
            "granite" | "granitemoe" => {
                // Absent or zero means that there is none.
                let scale = |key| Ok::<_, ConfigProblem>(self.number(key)?.filter(|&scale| scale != 0.0));
                json["embedding_multiplier"] = json!(scale("embedding_scale")?);
                json["residual_multiplier"] = json!(scale("residual_scale")?);
                json["logits_scaling"] = json!(scale("logit_scale")?);
                let by_width = (head_dim as f64).sqrt().recip();
                json["attention_multiplier"] = json!(scale("attention.scale")?.unwrap_or(by_width));
            }
            _ => {}
        }
        Ok(json)
    }

    fn refuse_what_is_not_computed(&self, is_mixture: bool) -> Result<(), ConfigProblem> {
        let hint = "it changes what is computed, in a way that Interbed does not; use an engine that does";
        let refuse = |key: &str, value: Value| Err(unsupported(&self.name(key), &value, hint));
        let of_mixtures =
            [("nextn_predict_layers", Neutral::Number(0.0)), ("leading_dense_block_count", Neutral::Number(0.0))];
        let is_read = |key: &str| {
            self.family.model_type == "ministral3" && [TEMPERATURE_SCALE, TEMPERATURE_LENGTH].contains(&key)
        };
        let all = NEUTRAL.into_iter().chain(of_mixtures.into_iter().filter(|_| !is_mixture));
        for (key, neutral) in all.filter(|(key, _)| !is_read(key)) {
            match neutral {
                Neutral::Flag(neutral) => {
                    if let Some(flag) = self.model.metadata.flag(&self.name(key))?.filter(|&flag| flag != neutral) {
                        return refuse(key, json!(flag));
                    }
                }
                Neutral::Number(neutral) => {
                    if let Some(number) = self.number(key)?.filter(|&number| number != neutral) {
                        return refuse(key, json!(number));
                    }
                }
            }
        }
        // Granite's converters say by this that positions are not rotated at all.
        let finetuned = "rope.scaling.finetuned";
        if matches!(self.family.model_type, "granite" | "granitemoe")
            && self.model.metadata.flag(&self.name(finetuned))? == Some(false)
        {
            return refuse(finetuned, json!(false));
        }
        Ok(())
    }

    /// Rows of the embedding if the file has it; otherwise the value of a key, and loading will name what is missing.
    /// Files have no key for it: a head is stored unless it is the embedding, or stands for that too.
    fn is_tied(&self) -> bool {
        [EMBEDDING_TENSOR, HEAD_TENSOR].iter().any(|name| self.model.catalog.get(name).is_none())
    }

    fn vocab_size(&self) -> Result<u64, ConfigProblem> {
        let stored = |name| Some((name, self.model.catalog.get(name)?));
        let Some((name, embedding)) = [EMBEDDING_TENSOR, HEAD_TENSOR].into_iter().find_map(stored) else {
            return self.required("vocab_size");
        };
        let rows = embedding.shape.first().map_or(0, |&rows| rows as u64);
        // A token without a row would be read from beyond the end. Rows without a token are padding.
        let tokens = tokenizer::num_tokens(self.model.metadata)?;
        if tokens > rows {
            return Err(ConfigProblem::OutOfRange {
                key: tokenizer::TOKENS.to_owned(),
                found: format!("a list of {tokens} tokens"),
                limit: format!("at most {rows}, as many as {} has rows", self.model.catalog.name_in_file(name)),
            });
        }
        Ok(rows)
    }

    /// Elements of a head, and how many of them are rotated.
    fn head_dim(&self, hidden: u64, heads: u64, model_type: &str) -> Result<(u64, u64), ConfigProblem> {
        let head_dim = match self.count("attention.key_length")? {
            Some(length) => length,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let limit = format!("a multiple of {}, which is {heads}", self.name("attention.head_count"));
                let (key, found) = (self.name("embedding_length"), hidden.to_string());
                return Err(ConfigProblem::OutOfRange { key, found, limit });
            }
        };
        let (values, rotated) = ("attention.value_length", "rope.dimension_count");
        if let Some(other) = self.count(values)?.filter(|&other| other != head_dim) {
            return Err(unsupported(&self.name(values), &json!(other), "keys and values must be of one width"));
        }
        let of_head = self.count(rotated)?.unwrap_or(head_dim);
        let may_be_part = matches!(model_type, "glm4_moe" | "minimax_m2" | "phi3") && of_head < head_dim;
        if of_head != head_dim && !may_be_part {
            let hint = "this architecture is not known with a part of each head rotated";
            return Err(unsupported(&self.name(rotated), &json!(of_head), hint));
        }
        Ok((head_dim, of_head))
    }

    /// The `rope_scaling` of the model, or `None` if frequencies are not scaled.
    fn rope_scaling(&self, context: u64) -> Result<Option<Value>, ConfigProblem> {
        let factor = match self.number("rope.scaling.factor")? {
            Some(factor) => factor,
            // The key of older files.
            None => self.number("rope.scale_linear")?.unwrap_or(1.0),
        };
        let kind = self.model.metadata.text(&self.name("rope.scaling.type"))?;
        match kind.unwrap_or("linear") {
            "none" => Ok(None),
            "linear" if factor == 1.0 || factor == 0.0 => Ok(None),
            "linear" => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            "yarn" => {
                let key = "rope.scaling.yarn_log_multiplier";
                let log = self.number(key)?.filter(|&log| log != 0.0);
                let is_ministral = self.family.model_type == "ministral3";
                if let Some(log) = log.filter(|_| !is_ministral) {
                    return Err(unsupported(&self.name(key), &json!(log), "no model of this architecture has it"));
                }
                // Cosines and sines grow with the stretch, unless the file says by how much: converters write the
                // whole of it, `attention_factor`, under this key. A second factor comes on top of either.
                let whole = self.number("rope.scaling.yarn_attn_factor")?;
                let on_top = self.number("rope.scaling.attn_factor")?;
                let stretched = |by: f64| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
                let by_stretch = stretched(1.0) / log.map_or(1.0, stretched);
                let original = self.count("rope.scaling.original_context_length")?.unwrap_or(context);
                let length = match is_ministral {
                    true => self.count(TEMPERATURE_LENGTH)?.filter(|&length| length > 0),
                    false => None,
                };
                if let Some(other) = length.filter(|&length| length != original) {
                    let hint = "queries are known to grow with multiples of the original context only";
                    return Err(unsupported(&self.name(TEMPERATURE_LENGTH), &json!(other), hint));
                }
                Ok(Some(json!({
                    "rope_type": "yarn",
                    "factor": factor,
                    "original_max_position_embeddings": original,
                    "llama_4_scaling_beta": if is_ministral { self.number(TEMPERATURE_SCALE)? } else { None },
                    "attention_factor": on_top.unwrap_or(1.0) * whole.unwrap_or(by_stretch),
                    "beta_fast": self.number("rope.scaling.yarn_beta_fast")?,
                    "beta_slow": self.number("rope.scaling.yarn_beta_slow")?,
                    // Follows from the architecture.
                    "truncate": self.family.model_type != "gpt_oss",
                })))
            }
            other => {
                let hint = "supported rope types are none, linear and yarn, and factors in rope_freqs.weight";
                Err(unsupported(&self.name("rope.scaling.type"), &Value::from(other), hint))
            }
        }
    }

    /// The two sets of factors of the frequencies, if the file has them.
    fn longrope(&self, context: u64, rotated: u64) -> Result<Option<Value>, ConfigProblem> {
        let kind = self.model.metadata.text(&self.name("rope.scaling.type"))?;
        if let Some(other) = kind.filter(|&kind| !matches!(kind, "none" | "longrope")) {
            let hint = "this architecture is known with longrope only";
            return Err(unsupported(&self.name("rope.scaling.type"), &Value::from(other), hint));
        }
        let pairs = (rotated / 2) as usize;
        let sets = [ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].map(|name| self.factors(name, pairs));
        let [short, long] = sets;
        let (short, long) = match (short?, long?) {
            (Some(short), Some(long)) => (short, long),
            (None, None) if kind != Some("longrope") => return Ok(None),
            (short, _) => {
                let key = if short.is_none() { ROPE_FACTORS_SHORT } else { ROPE_FACTORS_LONG };
                return Err(ConfigProblem::Missing { key: key.to_owned(), why: "longrope needs both sets of factors" });
            }
        };
        Ok(Some(json!({
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings":
                self.count("rope.scaling.original_context_length")?.unwrap_or(context),
            "attention_factor": self.number("rope.scaling.attn_factor")?,
        })))
    }

    /// One factor for each pair, above zero.
    fn rope_factors(&self, head_dim: usize) -> Result<Option<Vec<f32>>, ConfigProblem> {
        // Where two sets are not read, they would change what is computed.
        let two_sets = [ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].into_iter().filter(|_| self.family.model_type != "phi3");
        for name in two_sets {
            if let Some(entry) = self.model.catalog.get(name) {
                let hint = "two sets of rope factors (longrope) are not supported in this architecture";
                return Err(unsupported(name, &json!(entry.shape), hint));
            }
        }
        self.factors(ROPE_FACTORS, head_dim / 2)
    }

    /// The factors of so many pairs in the tensor `name`, if there is one.
    fn factors(&self, name: &str, pairs: usize) -> Result<Option<Vec<f32>>, ConfigProblem> {
        let Some(entry) = self.model.catalog.get(name) else { return Ok(None) };
        let wrong = |found: String| ConfigProblem::OutOfRange {
            key: name.to_owned(),
            found,
            limit: format!("{pairs} numbers above 0, one for each pair of a head's elements"),
        };
        if entry.shape != [pairs] {
            return Err(wrong(format!("of shape {:?}", entry.shape)));
        }
        let read = self.model.catalog.read_f32(name, pairs);
        let factors = read.map_err(|error| wrong(format!("not to be read ({error})")))?.unwrap_or_default();
        match factors.iter().find(|factor| !(1e-6..1e6).contains(*factor)) {
            None => Ok(Some(factors)),
            Some(factor) => Err(wrong(format!("partly {factor}"))),
        }
    }

    /// The window of each layer. Qwen's windows concern some layers only; where the file does not say which, other
    /// programs use none, and so do we.
    fn windows(&self, num_layers: usize) -> Result<Vec<Option<usize>>, ConfigProblem> {
        let key = "attention.sliding_window";
        let none = vec![None; num_layers];
        let Some(window) = self.count(key)?.filter(|&window| window > 0) else { return Ok(none) };
        let Some(window) = usize::try_from(window).ok().filter(|&window| window <= ModelConfig::POSITIONS_MAX) else {
            let (found, limit) = (window.to_string(), format!("at most {}", ModelConfig::POSITIONS_MAX));
            return Err(ConfigProblem::OutOfRange { key: self.name(key), found, limit });
        };
        let pattern_key = self.name("attention.sliding_window_pattern");
        match self.model.metadata.get(&pattern_key) {
            Some(MetadataValue::Bools(slides)) if slides.len() == num_layers => {
                Ok(slides.iter().map(|&slides| slides.then_some(window)).collect())
            }
            Some(other) => {
                Err(unsupported(&pattern_key, &Value::from(other.to_string()), "expected a flag for each layer"))
            }
            // Every second layer sees all; of more than this, the file says nothing.
            None if self.family.model_type == "gpt_oss" => {
                Ok((0..num_layers).map(|layer| (layer % 2 == 0).then_some(window)).collect())
            }
            None if matches!(self.family.model_type, "llama" | "mistral" | "ministral3") => {
                Ok(vec![Some(window); num_layers])
            }
            // A window that the context fits into is none.
            None if self.family.model_type == "phi3" => {
                let context = self.required("context_length")?;
                Ok(vec![Some(window).filter(|&window| (window as u64) < context); num_layers])
            }
            // Every fourth layer sees all.
            None if matches!(self.family.model_type, "olmo2" | "exaone4") => {
                Ok((1..=num_layers).map(|layer| (layer % 4 != 0).then_some(window)).collect())
            }
            None => Ok(none),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    fn count(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        Ok(self.model.metadata.count(&self.name(key))?)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigProblem> {
        Ok(self.model.metadata.number(&self.name(key))?)
    }

    fn required(&self, key: &str) -> Result<u64, ConfigProblem> {
        self.count(key)?.ok_or_else(|| missing(&self.name(key), "it shapes the model"))
    }

    /// A number that may be written once, or for each layer; layers that differ are not computed.
    fn same_in_layers(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        let name = self.name(key);
        let Some(MetadataValue::Numbers(numbers)) = self.model.metadata.get(&name) else { return self.count(key) };
        let mut counts = numbers.iter().map(Number::as_integer);
        // One for each layer, or the file is not what it seems.
        let complete = self.count("block_count")?.is_none_or(|layers| layers == numbers.len() as u64);
        let first = counts.next().flatten().and_then(|count| u64::try_from(count).ok()).filter(|_| complete);
        match first.filter(|&first| counts.all(|count| count == Some(first.into()))) {
            Some(count) => Ok(Some(count)),
            None => {
                let hint = "one number for each layer is expected, and layers that differ in shape are not supported";
                Err(unsupported(&name, &Value::from(format!("a list of {}", numbers.len())), hint))
            }
        }
    }
}

impl ExpertKeys for Keys<'_> {
    fn count(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        // Layers that are no mixtures have none.
        if let Some(MetadataValue::Numbers(numbers)) = self.model.metadata.get(&self.name(key)) {
            let mut counts = numbers.iter().filter_map(|number| u64::try_from(number.as_integer()?).ok());
            let most = counts.by_ref().max();
            if numbers
                .iter()
                .filter_map(|number| number.as_integer())
                .all(|count| count == 0 || Some(count) == most.map(Into::into))
            {
                return Ok(most);
            }
        }
        Keys::count(self, key)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigProblem> {
        Keys::number(self, key)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ConfigProblem> {
        Ok(self.model.metadata.flag(&self.name(key))?)
    }
}

/// A problem by the name that the key has in this file.
fn renamed(mut problem: ConfigProblem, family: &Family) -> ConfigProblem {
    let key = match &mut problem {
        ConfigProblem::Missing { key, .. }
        | ConfigProblem::WrongType { key, .. }
        | ConfigProblem::OutOfRange { key, .. }
        | ConfigProblem::Unsupported { key, .. } => key,
        _ => return problem,
    };
    if let Some((_, name)) = RENAMED.iter().find(|(face, _)| face == key) {
        *key = format!("{}.{name}", family.name);
    }
    problem
}

fn missing(key: &str, why: &'static str) -> ConfigProblem {
    ConfigProblem::Missing { key: key.to_owned(), why }
}

fn unsupported(key: &str, value: &Value, hint: &'static str) -> ConfigProblem {
    ConfigProblem::Unsupported { key: key.to_owned(), found: crate::config::fields::shorten(value), hint }
}
