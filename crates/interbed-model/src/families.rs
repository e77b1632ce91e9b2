//! The families of models. Each file in `families/` states all of one family: its names in both formats, what absent
//! keys mean, what it has that others have not, how random models of it are made, and the blueprint that results. No
//! code outside this folder asks for a family.

mod presets;
mod shared;

use std::fmt;

use interbed_kernels::RopeStyle;

use crate::blueprint::{Activation, Blueprint, HeadNorms};
use crate::config_error::ConfigProblem;
use crate::keys::Keys;
use crate::keys::gguf::GgufKeys;
use shared::decoder::{Decoder, Habits};

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
    glm4_moe,
    minimax_m2,
    ernie4_5_moe,
    smollm3,
    seed_oss,
    olmo2,
    olmo3,
    exaone4,
    phi3,
    ministral3,
    hunyuan_dense,
    hunyuan_moe,
    gpt_oss,
);

/// A family of models.
pub struct Family {
    /// The family's name, as messages show it.
    pub name: &'static str,
    /// Its values of `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// Values of `model_type` of models that hold one of this family under `text_config`.
    within: &'static [&'static str],
    /// Quantisation methods of `config.json` where the weights' own names tell how they are stored.
    pub(crate) quantizations: &'static [&'static str],
    /// White space behind tokens that are found verbatim, if the family leaves it out.
    white_space: Option<WhiteSpace>,
    /// Its form in GGUF files; `None` if there is none.
    gguf: Option<GgufForm>,
    habits: Habits,
    /// Makes the blueprint of what all decoders have, by changing what the family has of its own.
    read: fn(&Keys<'_>, Decoder) -> Result<Blueprint, ConfigProblem>,
    /// Models of this family that can be made with random weights.
    presets: &'static [Preset],
}

/// The form of a family in GGUF files.
struct GgufForm {
    /// Its values of `general.architecture`.
    names: &'static [&'static str],
    /// Which elements of a head are rotated together: converters reorder the rows of some families.
    style: RopeStyle,
    /// Whether a file is of this family, if several families have one name.
    fits: fn(&GgufKeys<'_>) -> Result<bool, ConfigProblem>,
    /// The name under which files of random models are written, and what is written into them; `None` if none are made.
    written: Option<(&'static str, GgufWriting)>,
}

impl GgufForm {
    /// The form of a family that shares its name with no other.
    const fn new(names: &'static [&'static str], style: RopeStyle) -> Self {
        Self { names, style, fits: |_| Ok(true), written: None }
    }

    /// The same form, of which files are written.
    const fn written(self, written: GgufWriting) -> Self {
        let name = self.names[0];
        self.written_as(name, written)
    }

    /// The same form, of which files are written under another name.
    const fn written_as(mut self, name: &'static str, written: GgufWriting) -> Self {
        self.written = Some((name, written));
        self
    }
}

/// Whose GGUF files mean tokenizers that leave out white space behind tokens that are found verbatim.
struct WhiteSpace {
    /// Parts of models' names, in lower case.
    names: &'static [&'static str],
    /// Tokens behind which white space counts.
    besides: &'static [&'static str],
}

/// What readers of a family's GGUF files assume, and which keys they read beyond the usual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufWriting {
    /// The norms of queries and keys.
    pub norms: Option<HeadNorms>,
    /// The activation.
    pub activation: Activation,
    /// Whether weights of experts are divided by their sum.
    pub normalises: bool,
    /// Whether factors of embeddings, branches and logits are read.
    pub has_factors: bool,
    /// Whether the factor of attention scores is read.
    pub has_attention_factor: bool,
    /// Whether the width of experts is written beside that of networks.
    pub has_expert_width: bool,
}

impl GgufWriting {
    /// What readers of most families assume.
    const PLAIN: Self = Self {
        norms: None,
        activation: Activation::Silu,
        normalises: false,
        has_factors: false,
        has_attention_factor: false,
        has_expert_width: false,
    };
}

impl Family {
    /// A family with nothing of its own, for families to change.
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

    /// The family of a `model_type`.
    pub(crate) fn of_model_type(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type)).copied()
    }

    /// Whether models of this `model_type` hold a language model under `text_config`.
    pub(crate) fn is_wrapper(model_type: &str) -> bool {
        FAMILIES.iter().any(|family| family.within.contains(&model_type))
    }

    /// The family of a GGUF file whose `general.architecture` is `name`, if there is one.
    ///
    /// # Errors
    /// A key that tells families apart and makes no sense.
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

    /// The tokens besides which white space behind tokens that are found verbatim is left out in a GGUF file; `None` if
    /// it is kept. A model's name in lower case tells, or its architecture if it has a SentencePiece vocabulary.
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

    /// Every supported `model_type`.
    pub(crate) fn model_types() -> Vec<&'static str> {
        FAMILIES.iter().flat_map(|family| family.model_types).copied().collect()
    }

    /// Every supported `general.architecture`.
    pub(crate) fn gguf_names() -> Vec<&'static str> {
        let mut names: Vec<_> =
            FAMILIES.iter().filter_map(|family| family.gguf.as_ref()).flat_map(|form| form.names).copied().collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// The blueprint of a model of this family.
    ///
    /// # Errors
    /// A key that is missing or makes no sense, or says what is not computed; by name.
    pub(crate) fn read(&self, keys: &Keys<'_>) -> Result<Blueprint, ConfigProblem> {
        let style = match (&self.gguf, keys) {
            (Some(form), Keys::Gguf(_)) => form.style,
            _ => RopeStyle::Halves,
        };
        (self.read)(keys, Decoder::read(keys, &self.habits, style)?)
    }

    /// The tokens that begin and end a text if `config.json` names none.
    pub(crate) fn default_ends(&self) -> [Option<u32>; 2] {
        [self.habits.bos, self.habits.eos]
    }

    /// The name under which models of this family are written as GGUF files, the order of query and key rows in these,
    /// and what their readers assume.
    pub(crate) fn in_gguf(&self) -> Option<(&'static str, RopeStyle, GgufWriting)> {
        let form = self.gguf.as_ref()?;
        let (name, written) = form.written?;
        Some((name, form.style, written))
    }

    /// Whether the ends of YaRN's ramp are rounded in GGUF files of this family, which do not say.
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
