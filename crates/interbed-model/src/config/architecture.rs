//! The families of models, and what each takes for granted.

use serde_json::Value;

use super::ConfigProblem;
use super::fields::Fields;

/// The supported families of models. All are the Llama decoder with small differences, which
/// [`ModelConfig`](super::ModelConfig) spells out; no other code needs to ask for the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3.x, Yi and the many models of the same form.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Biases on query, key and value.
    Qwen2,
    /// Norms on query and key heads.
    Qwen3,
    /// Scaled embeddings, residuals and logits: MiniCPM, FM9G/Jiuge.
    MiniCpm,
    /// The same scales under other names.
    Granite,
    /// Qwen2 with mixtures, and a shared expert behind a gate.
    Qwen2Moe,
    /// Qwen3 with mixtures.
    Qwen3Moe,
    /// Mistral with mixtures.
    Mixtral,
    /// Norms over all query heads together, and over all key heads.
    Olmoe,
    /// Granite with mixtures.
    GraniteMoe,
    /// GLM-4.5 to 4.7: experts chosen by sigmoids, half of each head rotated.
    Glm4Moe,
    /// MiniMax-M2: experts chosen by sigmoids, norms as OLMoE.
    MiniMaxM2,
    /// Ernie 4.5 with mixtures: rotated pairs are neighbours.
    Ernie45Moe,
    /// Some layers without rotation.
    SmolLm3,
    /// Biases on query, key and value, and a head width of its own.
    SeedOss,
    /// Norms of what branches give, and over all query heads together, and all key heads.
    Olmo2,
    /// The same with windows, whose layers rotate without scaling.
    Olmo3,
    /// Norms of what branches give; where some layers have windows, the others do not rotate.
    Exaone4,
    /// Phi-3 and Phi-4: matrices in one piece, two sets of factors of the frequencies.
    Phi3,
    /// Mistral with queries that grow with their positions.
    Ministral3,
    /// Norms on query and key heads after they are rotated.
    HunyuanDense,
    /// The same with mixtures and a shared expert.
    HunyuanMoe,
    /// Mixtures with biases, heads with sinks, and a window in every second layer.
    GptOss,
}

/// Every supported `model_type`.
pub(super) const MODEL_TYPES: [(&str, Architecture); 26] = [
    ("llama", Architecture::Llama),
    ("mistral", Architecture::Mistral),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("minicpm", Architecture::MiniCpm),
    ("fm9g", Architecture::MiniCpm),
    ("fm9g7b", Architecture::MiniCpm),
    ("granite", Architecture::Granite),
    ("qwen2_moe", Architecture::Qwen2Moe),
    ("qwen3_moe", Architecture::Qwen3Moe),
    ("mixtral", Architecture::Mixtral),
    ("olmoe", Architecture::Olmoe),
    ("granitemoe", Architecture::GraniteMoe),
    ("glm4_moe", Architecture::Glm4Moe),
    ("minimax_m2", Architecture::MiniMaxM2),
    ("ernie4_5_moe", Architecture::Ernie45Moe),
    ("smollm3", Architecture::SmolLm3),
    ("seed_oss", Architecture::SeedOss),
    ("olmo2", Architecture::Olmo2),
    ("olmo3", Architecture::Olmo3),
    ("exaone4", Architecture::Exaone4),
    ("phi3", Architecture::Phi3),
    ("ministral3", Architecture::Ministral3),
    ("hunyuan_v1_dense", Architecture::HunyuanDense),
    ("hunyuan_v1_moe", Architecture::HunyuanMoe),
    ("gpt_oss", Architecture::GptOss),
];

impl Architecture {
    /// The architecture of a `model_type`.
    pub fn named(model_type: &str) -> Option<Self> {
        MODEL_TYPES.iter().find(|(known, _)| *known == model_type).map(|(_, architecture)| *architecture)
    }

    /// Whether heads have 128 elements, where nothing else is said.
    pub(super) fn heads_have_128(self) -> bool {
        use Architecture::{Glm4Moe, MiniMaxM2, Ministral3, Qwen3, SeedOss};
        matches!(self, Glm4Moe | MiniMaxM2 | Ministral3 | Qwen3 | SeedOss)
    }

    /// Whether models of it have experts.
    pub fn is_mixture(self) -> bool {
        use Architecture::{
            Ernie45Moe, Glm4Moe, GptOss, GraniteMoe, HunyuanMoe, MiniMaxM2, Mixtral, Olmoe, Qwen2Moe, Qwen3Moe,
        };
        matches!(self, Ernie45Moe | Glm4Moe | GptOss | GraniteMoe | HunyuanMoe | MiniMaxM2 | Mixtral)
            || matches!(self, Olmoe | Qwen2Moe | Qwen3Moe)
    }
}

/// What an absent key means, for keys on which architectures differ.
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) intermediate_size: usize,
    /// `None` means as many as query heads.
    pub(super) num_kv_heads: Option<usize>,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: Option<u32>,
}

impl Defaults {
    pub(super) fn of(architecture: Architecture) -> Self {
        let llama = Defaults {
            vocab_size: 32_000,
            intermediate_size: 11_008,
            num_kv_heads: None,
            max_position_embeddings: 2048,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            bos_token_id: Some(1),
            eos_token_id: Some(2),
        };
        match architecture {
            Architecture::Llama | Architecture::MiniCpm | Architecture::Granite | Architecture::GraniteMoe => llama,
            Architecture::Mixtral => Defaults {
                intermediate_size: 14_336,
                num_kv_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 1_000_000.0,
                ..llama
            },
            Architecture::Olmoe => Defaults {
                vocab_size: 50_304,
                intermediate_size: 2048,
                max_position_embeddings: 4096,
                rms_norm_eps: 1e-5,
                bos_token_id: None,
                eos_token_id: Some(50_279),
                ..llama
            },
            Architecture::Glm4Moe => Defaults {
                vocab_size: 151_552,
                intermediate_size: 10_944,
                num_kv_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                bos_token_id: None,
                eos_token_id: None,
                ..llama
            },
            Architecture::MiniMaxM2 => Defaults {
                vocab_size: 200_064,
                intermediate_size: 1536,
                num_kv_heads: Some(8),
                max_position_embeddings: 196_608,
                rope_theta: 5_000_000.0,
                bos_token_id: Some(200_034),
                eos_token_id: Some(200_020),
                ..llama
            },
            Architecture::SmolLm3 => Defaults {
                vocab_size: 128_256,
                num_kv_heads: Some(4),
                max_position_embeddings: 32_768,
                rope_theta: 2_000_000.0,
                bos_token_id: Some(128_000),
                eos_token_id: Some(128_001),
                ..llama
            },
            Architecture::SeedOss => Defaults {
                vocab_size: 155_136,
                intermediate_size: 27_648,
                num_kv_heads: Some(8),
                max_position_embeddings: 524_288,
                bos_token_id: Some(0),
                ..llama
            },
            Architecture::Olmo2 | Architecture::Olmo3 => Defaults {
                vocab_size: 50_304,
                rms_norm_eps: 1e-5,
                rope_theta: if architecture == Architecture::Olmo3 { 500_000.0 } else { 10_000.0 },
                bos_token_id: None,
                eos_token_id: Some(50_279),
                ..llama
            },
            Architecture::Exaone4 => Defaults {
                vocab_size: 102_400,
                intermediate_size: 16_384,
                num_kv_heads: Some(32),
                rms_norm_eps: 1e-5,
                bos_token_id: Some(0),
                ..llama
            },
            Architecture::GptOss => Defaults {
                vocab_size: 201_088,
                intermediate_size: 2880,
                num_kv_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 150_000.0,
                bos_token_id: None,
                eos_token_id: None,
            },
            Architecture::Ernie45Moe => Defaults {
                vocab_size: 103_424,
                intermediate_size: 12_288,
                num_kv_heads: Some(4),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 500_000.0,
                ..llama
            },
            Architecture::Phi3 => Defaults {
                vocab_size: 32_064,
                intermediate_size: 8192,
                max_position_embeddings: 4096,
                rms_norm_eps: 1e-5,
                eos_token_id: Some(32_000),
                ..llama
            },
            Architecture::Ministral3 => Defaults {
                vocab_size: 131_072,
                intermediate_size: 14_336,
                num_kv_heads: Some(8),
                max_position_embeddings: 262_144,
                rms_norm_eps: 1e-5,
                ..llama
            },
            Architecture::HunyuanDense | Architecture::HunyuanMoe => {
                Defaults { vocab_size: 290_943, rms_norm_eps: 1e-5, ..llama }
            }
            Architecture::Mistral => {
                Defaults { intermediate_size: 14_336, num_kv_heads: Some(8), max_position_embeddings: 131_072, ..llama }
            }
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen2Moe | Architecture::Qwen3Moe => Defaults {
                vocab_size: 151_936,
                intermediate_size: 22_016,
                num_kv_heads: Some(32),
                max_position_embeddings: 32_768,
                bos_token_id: None,
                eos_token_id: None,
                ..llama
            },
        }
    }
}

/// Finds the architecture by `model_type`, or by the class name if the file has no `model_type`.
pub(super) fn read_architecture(fields: &Fields<'_>) -> Result<Architecture, ConfigProblem> {
    let classes = match fields.get("architectures") {
        Some(Value::Array(classes)) => classes.as_slice(),
        _ => &[],
    };
    let class = classes.first().and_then(Value::as_str);
    let model_type = fields.text("model_type")?;
    let architecture = match (model_type, class) {
        (Some(model_type), _) => Architecture::named(model_type),
        (None, Some(class)) => {
            class.strip_suffix("ForCausalLM").and_then(|name| Architecture::named(&name.to_lowercase()))
        }
        (None, None) => {
            return Err(ConfigProblem::Missing { key: "model_type".to_owned(), why: "it names the architecture" });
        }
    };
    architecture.ok_or_else(|| {
        let shown: String = model_type.or(class).unwrap_or_default().chars().take(80).collect();
        let known: Vec<_> = MODEL_TYPES.iter().map(|(name, _)| *name).collect();
        ConfigProblem::UnknownArchitecture { found: format!("{shown:?}"), known: known.join(", ") }
    })
}
