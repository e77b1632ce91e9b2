//! The families of models. Each file in `families/` states everything about one family: its names in both file formats,
//! what absent keys mean, what it does that other families do not, how random models of it are made, and which
//! blueprint results. No code outside this folder asks which family a model is of.

mod presets;
mod shared;

use std::fmt;

use interbed_kernels::RopeStyle;

use crate::blueprint::{Activation, Blueprint, HeadNorms};
use crate::config_error::ConfigProblem;
use crate::keys::Keys;
use crate::keys::gguf::GgufKeys;
use shared::decoder::Decoder;
use shared::habits::Habits;

use presets::Preset;
pub use presets::{preset, preset_names};
pub(crate) use shared::rope::{FACTORS, FACTORS_LONG, FACTORS_SHORT};

/// Declares the modules of families, and lists them in the order in which messages and help name them.
macro_rules! families {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*

        /// All families.
        static FAMILIES: &[&Family] = &[$(&$module::FAMILY),*];
    };
}

families!(
    llama,
    mistral,
    qwen2,
    qwen3,
    minicpm,
    granite,
    qwen2_moe,
    qwen3_moe,
    mixtral,
    olmoe,
    granite_moe,
    granite_hybrid,
    glm4_moe,
    nemotron_h,
    minimax_m2,
    ernie4_5_moe,
    smollm3,
    seed_oss,
    arcee,
    olmo2,
    olmo3,
    exaone4,
    phi3,
    ministral3,
    hunyuan_dense,
    hunyuan_moe,
    gpt_oss,
    gemma3,
    gemma4,
    gemma4_unified,
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
    lfm2,
    lfm2_moe,
);

/// A family of models that Interbed supports: how its configurations are recognised and how they are read.
pub struct Family {
    /// The family's name, as it is shown to users.
    pub name: &'static str,
    /// Values of `model_type` in `config.json` by which the family is recognised.
    model_types: &'static [&'static str],
    /// Values of `model_type` of larger models, such as those that also see, whose language model of this family is
    /// described under `text_config`.
    within: &'static [&'static str],
    /// Values of `quant_method` in `config.json` that are accepted besides FP8, because the names of the weights tell
    /// how they are stored.
    pub(crate) quantizations: &'static [&'static str],
    /// Which of the family's GGUF files belong to tokenizers that drop white space behind special tokens; `None` if
    /// none do.
    white_space: Option<WhiteSpace>,
    /// How GGUF files hold models of the family; `None` if the family is not read from GGUF files.
    gguf: Option<GgufForm>,
    habits: Habits,
    /// Makes a blueprint from the decoder that the shared code has read, after changing what the family does
    /// differently.
    read: fn(&Keys<'_>, Decoder) -> Result<Blueprint, ConfigProblem>,
    /// Models of this family that can be made with random weights.
    presets: &'static [Preset],
}

/// How GGUF files hold models of a family.
struct GgufForm {
    /// Values of `general.architecture` by which the family is recognised.
    names: &'static [&'static str],
    /// Which elements of a head are rotated together: converters reorder the rows of some families.
    style: RopeStyle,
    /// Decides whether a file is of this family, for names that several families share.
    fits: fn(&GgufKeys<'_>) -> Result<bool, ConfigProblem>,
    /// The name that Interbed writes into GGUF files of random models, and what their readers assume; `None` if
    /// Interbed writes no GGUF files of the family.
    written: Option<(&'static str, GgufWriting)>,
}

impl GgufForm {
    /// Makes the form of a family whose names in GGUF files belong to no other family.
    const fn new(names: &'static [&'static str], style: RopeStyle) -> Self {
        Self { names, style, fits: |_| Ok(true), written: None }
    }

    /// Lets Interbed write GGUF files of this family under the first of its names.
    const fn written(self, written: GgufWriting) -> Self {
        let name = self.names[0];
        self.written_as(name, written)
    }

    /// Lets Interbed write GGUF files of this family under `name`.
    const fn written_as(mut self, name: &'static str, written: GgufWriting) -> Self {
        self.written = Some((name, written));
        self
    }
}

/// Tells which GGUF files belong to tokenizers that drop white space behind special tokens.
struct WhiteSpace {
    /// Parts of `general.name`, in lower case, that show that a file is concerned.
    names: &'static [&'static str],
    /// Special tokens that are exempt: the white space behind them is kept.
    besides: &'static [&'static str],
}

/// What programs that read GGUF files of a family assume, and which optional keys they read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufWriting {
    /// The norms that GGUF readers apply to queries and keys; `None` if they apply none.
    pub norms: Option<HeadNorms>,
    /// The activation that GGUF readers apply in feed-forward networks.
    pub activation: Activation,
    /// Whether GGUF readers divide the weights of a token's experts by the sum of these weights.
    pub normalises: bool,
    /// Whether GGUF readers use the keys for the factors of embeddings, branches and logits.
    pub has_factors: bool,
    /// Whether GGUF readers use the key for the factor of attention scores.
    pub has_attention_factor: bool,
    /// Whether GGUF files state the inner width of an expert under a separate key.
    pub has_expert_width: bool,
    /// Whether GGUF readers use the key for the number of layers without experts before those with experts.
    pub has_leading_layers: bool,
    /// What GGUF readers call the norm before a feed-forward network; `None` stands for `ffn_norm`.
    pub network_norm: Option<&'static str>,
    /// The name of GGUF files with experts, if it is another. Such files may have layers without experts, and say how
    /// the results of experts are weighed.
    pub with_experts: Option<&'static str>,
}

impl GgufWriting {
    /// Assumptions of programs that read GGUF files of most families.
    const PLAIN: Self = Self {
        norms: None,
        activation: Activation::Silu,
        normalises: false,
        has_factors: false,
        has_attention_factor: false,
        has_expert_width: false,
        has_leading_layers: false,
        network_norm: None,
        with_experts: None,
    };
}

impl Family {
    /// Defaults for the declaration of a family, which overrides what differs.
    const PLAIN: Self = Self {
        name: "",
        model_types: &[],
        within: &[],
        quantizations: &[],
        white_space: None,
        gguf: None,
        habits: Habits::PLAIN,
        read: |_, decoder| Ok(decoder.blueprint()),
        presets: &[],
    };

    /// Returns the family of a `model_type`, if it is supported.
    pub(crate) fn of_model_type(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type)).copied()
    }

    /// Returns the family of the language model that configurations with this `model_type` describe under
    /// `text_config`, unless its own `model_type` there says otherwise; `None` if they describe none there.
    pub(crate) fn within(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.within.contains(&model_type)).copied()
    }

    /// Returns the family of a GGUF file whose `general.architecture` is `name`, if it is supported.
    ///
    /// # Errors
    /// Reports a key that is needed to tell families apart but has a senseless value.
    pub(crate) fn of_gguf(name: &str, keys: &GgufKeys<'_>) -> Result<Option<&'static Self>, ConfigProblem> {
        for family in FAMILIES {
            if let Some(form) = family.gguf.as_ref().filter(|form| form.names.contains(&name))
                && (form.fits)(keys)?
            {
                return Ok(Some(family));
            }
        }
        Ok(None)
    }

    /// Decides whether the tokenizer of a GGUF file drops white space behind special tokens: `None` if it keeps it,
    /// otherwise the special tokens that are exempt. This follows from the model's `name` in lower case, or from its
    /// architecture if it has a SentencePiece vocabulary.
    pub(crate) fn strips_white_space(
        name: &str,
        architecture: &str,
        is_sentencepiece: bool,
    ) -> Option<&'static [&'static str]> {
        FAMILIES.iter().find_map(|family| {
            let WhiteSpace { names, besides } = family.white_space.as_ref()?;
            let is_it = family.gguf.as_ref().is_some_and(|form| form.names.contains(&architecture));
            let strips = is_it && is_sentencepiece || names.iter().any(|part| name.contains(part));
            strips.then_some(*besides)
        })
    }

    /// Returns every supported `model_type`.
    pub(crate) fn model_types() -> Vec<&'static str> {
        FAMILIES.iter().flat_map(|family| family.model_types).copied().collect()
    }

    /// Returns every supported `general.architecture`, each once.
    pub(crate) fn gguf_names() -> Vec<&'static str> {
        let mut names: Vec<_> =
            FAMILIES.iter().filter_map(|family| family.gguf.as_ref()).flat_map(|form| form.names).copied().collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// Reads the blueprint of a model of this family from its configuration.
    ///
    /// # Errors
    /// Names the first key that is missing, makes no sense, or asks for a computation that Interbed lacks.
    pub(crate) fn read(&self, keys: &Keys<'_>) -> Result<Blueprint, ConfigProblem> {
        let style = match (&self.gguf, keys) {
            (Some(form), Keys::Gguf(_)) => form.style,
            _ => RopeStyle::Halves,
        };
        (self.read)(keys, Decoder::read(keys, &self.habits, style)?)
    }

    /// Returns the tokens that begin and end a text in models whose `config.json` names none.
    pub(crate) fn default_ends(&self) -> [Option<u32>; 2] {
        [self.habits.bos, self.habits.eos]
    }

    /// Returns the name that GGUF files of this family carry, the order in which they store the rows of queries and
    /// keys, and what their readers assume; `None` if Interbed writes no such files.
    pub(crate) fn in_gguf(&self) -> Option<(&'static str, RopeStyle, GgufWriting)> {
        let form = self.gguf.as_ref()?;
        let (name, written) = form.written?;
        Some((name, form.style, written))
    }

    /// Returns whether the ends of YaRN's ramp are rounded in models of this family, for GGUF files, which have no key
    /// for it.
    pub(crate) fn truncates_in_gguf(&self) -> bool {
        self.habits.rope.truncates
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Family {}
