//! Descriptions of how queries and keys are rotated by their positions.

use interbed_kernels::RopeStyle;

/// A rotary position encoding (RoPE) of queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies are changed for long contexts.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies, `[rotated / 2]`, which are applied before `scaling`; `None` means that all divisors
    /// are 1. GGUF files store Llama 3's scaling in this form (`rope_freqs.weight`).
    pub factors: Option<Vec<f32>>,
    /// Which elements of a head are rotated together. This depends on the file format of the weights.
    pub style: RopeStyle,
    /// Number of elements that are rotated at the beginning of each head. It is even.
    pub rotated: usize,
}

impl Rope {
    /// Creates a rotation of `rotated` elements for weights from a Hugging Face directory. The rotation has no
    /// `factors`, and it rotates element `i` together with element `i + rotated / 2`.
    pub fn new(theta: f64, scaling: RopeScaling, rotated: usize) -> Self {
        Self { theta, scaling, factors: None, style: RopeStyle::Halves, rotated }
    }
}
/// How the frequencies are changed for long contexts. The parameters have the values that `transformers` derives from a
/// configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// The frequencies stay as they are.
    Default,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The stretch factor.
        factor: f64,
    },
    /// NTK-aware scaling: beyond `original_max` tokens, the base of the frequencies grows with the length of the
    /// sequence. For every token of the prompt, this length is that of the whole prompt. For a later token, it is the
    /// length up to and including that token.
    Dynamic {
        /// The stretch factor.
        factor: f64,
        /// Longest sequence, in tokens, for which nothing changes. This is `max_position_embeddings`, as in
        /// `transformers`, even if the configuration has `original_max_position_embeddings`.
        original_max: usize,
    },
    /// YaRN: low frequencies are interpolated, which means that they are divided by `factor`. High frequencies are
    /// kept. Between the two lies a ramp, on which frequencies change gradually from interpolated to kept. Cosines and
    /// sines are multiplied by `attention_factor`.
    Yarn {
        /// The stretch factor.
        factor: f64,
        /// Context length of pre-training, in tokens.
        original_max: usize,
        /// A frequency with at least this many rotations over `original_max` positions is kept.
        beta_fast: f64,
        /// A frequency with at most this many rotations over `original_max` positions is interpolated.
        beta_slow: f64,
        /// Number that cosines and sines are multiplied by.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded outward to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE: each frequency has its own divisor. One set of divisors is for sequences within the original context,
    /// and another set is for longer sequences. Cosines and sines are multiplied by `attention_factor`.
    LongRope {
        /// The divisors of frequencies for sequences within the original context.
        short: Vec<f32>,
        /// The divisors of frequencies for longer sequences.
        long: Vec<f32>,
        /// Context length of pre-training, in tokens.
        original_max: usize,
        /// Number that cosines and sines are multiplied by.
        attention_factor: f64,
        /// Whether `long` is used instead of `short`: see
        /// [`Blueprint::settle_length`](super::Blueprint::settle_length).
        is_long: bool,
    },
    /// Llama 3.1: frequencies with long wavelengths are divided by `factor`, those with short wavelengths are kept, and
    /// those in between are divided by a number between 1 and `factor`.
    Llama3 {
        /// The stretch factor.
        factor: f64,
        /// Frequencies with wavelengths above `original_max / low_freq_factor` are divided by `factor`.
        low_freq_factor: f64,
        /// Frequencies with wavelengths below `original_max / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pre-training, in tokens.
        original_max: usize,
    },
}
