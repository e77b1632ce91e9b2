//! What is known of a family without reading a configuration: defaults of absent keys, which keys the family reads, and
//! which features it never has.

use super::rope::{RopeRule, Rotated};
use crate::blueprint::Activation;

/// What is known of a family without reading a configuration: defaults of absent keys, which keys it reads, and which
/// features it never has.
pub(in crate::families) struct Habits {
    /// Size of the vocabulary if `config.json` gives none.
    pub vocab_size: usize,
    /// Width of the hidden state if `config.json` gives none.
    pub hidden: usize,
    /// Inner width of the feed-forward network if `config.json` gives none.
    pub inner: usize,
    /// Number of layers if `config.json` gives none.
    pub layers: usize,
    /// Number of query heads if `config.json` gives none.
    pub heads: usize,
    /// Number of key and value heads if `config.json` gives none; `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// Number of elements of a head if the configuration gives none; `None` means the hidden size divided by the number
    /// of heads.
    pub head_dim: Option<usize>,
    /// Context length in tokens if `config.json` gives none.
    pub positions: usize,
    /// Epsilon of all norms if `config.json` gives none.
    pub epsilon: f64,
    /// Base of the rotation's frequencies if `config.json` gives none.
    pub theta: f64,
    /// The token that begins a text if `config.json` names none.
    pub bos: Option<u32>,
    /// The token that ends a text if `config.json` names none.
    pub eos: Option<u32>,
    /// Whether the head is tied to the embedding if `config.json` does not say.
    pub is_tied: bool,
    /// Whether the query, key and value projections have biases.
    pub input_bias: Bias,
    /// Whether attention's output projection has a bias.
    pub output_bias: Bias,
    /// Whether the projections of feed-forward networks have biases.
    pub network_bias: Bias,
    /// Where configurations state how many elements of each head are rotated.
    pub rotated: Rotated,
    /// How the family's RoPE parameters are read.
    pub rope: RopeRule,
    /// How the activation of feed-forward networks is determined.
    pub activation: ActivationRule,
    /// Whether models of the family have experts.
    pub has_experts: bool,
    /// Whether some layers of the family keep a state of fixed size instead of keys and values.
    pub has_recurrence: bool,
    /// Whether GGUF files of the family may hold layers that guess at further tokens, although they hold no experts.
    /// Such layers are not computed.
    pub has_guesses: bool,
    /// Whether the logits of models of the family may be bounded. The family reads the bound.
    pub caps_logits: bool,
    /// Whether layers may differ in heads and in the widths of networks. The family reads what each layer has, and the
    /// shared code takes the first layer's.
    pub layers_differ: bool,
    /// Whether the usual key for the inner width of feed-forward networks states the inner width of an expert.
    pub inner_is_of_experts: bool,
    /// Returns whether the layer with this index has an attention window. This is used for GGUF files that state the
    /// size of the window but not which layers have it.
    pub slides_in_gguf: fn(usize) -> bool,
}

/// How the activation of a family's feed-forward networks is determined.
pub(in crate::families) enum ActivationRule {
    /// The key `hidden_act` or `hidden_activation` in `config.json` names the activation. If both are absent, and for
    /// GGUF files, it is the activation given here.
    Named(Activation),
    /// The key of this name in `config.json` names the activation. If the key is absent, and for GGUF files, it is the
    /// activation given here.
    NamedBy(&'static str, Activation),
    /// All models of the family have this activation.
    Fixed(Activation),
}

/// How to tell whether projections of a family have biases, in `config.json`; in a GGUF file, the presence of the
/// tensors tells.
pub(in crate::families) enum Bias {
    /// Projections have no biases.
    Never,
    /// Projections always have biases.
    Always,
    /// The key of this name says whether projections have biases. If the key is absent, the flag given here says
    /// whether they do.
    Stated(&'static str, bool),
}

impl Habits {
    /// Habits of a plain decoder, from which the families' habits are derived.
    pub const PLAIN: Self = Self {
        vocab_size: 32_000,
        hidden: 4096,
        inner: 11_008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        epsilon: 1e-6,
        theta: 10_000.0,
        bos: Some(1),
        eos: Some(2),
        is_tied: false,
        input_bias: Bias::Never,
        output_bias: Bias::Never,
        network_bias: Bias::Never,
        rotated: Rotated::Whole,
        rope: RopeRule::USUAL,
        activation: ActivationRule::Named(Activation::Silu),
        has_experts: false,
        has_recurrence: false,
        has_guesses: false,
        caps_logits: false,
        layers_differ: false,
        inner_is_of_experts: false,
        slides_in_gguf: |_| false,
    };
}
