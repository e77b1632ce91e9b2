//! Descriptions of how queries and keys are rotated by their positions.

use interbed_kernels::RopeStyle;

/// A rotation of queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies are changed for long contexts.
    pub scaling: RopeScaling,
    /// What each frequency is divided by before the scaling, `[rotated / 2]`; `None` means 1. GGUF files store the
    /// result of Llama 3's rule in this form (`rope_freqs.weight`).
    pub factors: Option<Vec<f32>>,
    /// Which elements of a head are rotated together; this depends on the format of the weights.
    pub style: RopeStyle,
    /// How many elements of each head are rotated, from the first on; even.
    pub rotated: usize,
}

impl Rope {
    /// Makes a rotation of `rotated` elements in the way of Hugging Face directories: without factors, and with element
    /// `i` rotated together with element `i + rotated / 2`.
    pub fn new(theta: f64, scaling: RopeScaling, rotated: usize) -> Self {
        Self { theta, scaling, factors: None, style: RopeStyle::Halves, rotated }
    }
}
/// Ways of changing the frequencies for long contexts, with the parameters resolved as `transformers` resolves them.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// The frequencies stay as they are.
    Default,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The stretch factor.
        factor: f64,
    },
    /// NTK-aware: the base grows with the sequence once it is longer than `original_max`.
    Dynamic {
        /// The stretch factor.
        factor: f64,
        /// The length up to which nothing changes: `max_position_embeddings`, as in `transformers`, even if
        /// `original_max_position_embeddings` is given.
        original_max: usize,
    },
    /// Interpolates low frequencies and keeps high ones, with a ramp in between; cosines and sines are multiplied by
    /// `attention_factor`.
    Yarn {
        /// The stretch factor.
        factor: f64,
        /// The context of pre-training.
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
    /// LongRoPE: each frequency is divided by a factor of its own, from one set for sequences within the original
    /// context and from another set for longer ones; cosines and sines are multiplied by `attention_factor`.
    LongRope {
        /// The divisors of frequencies for sequences within the original context.
        short: Vec<f32>,
        /// The divisors of frequencies for longer sequences.
        long: Vec<f32>,
        /// The context of pre-training.
        original_max: usize,
        /// Number that cosines and sines are multiplied by.
        attention_factor: f64,
        /// Whether `long` is used instead of `short`: see
        /// [`Blueprint::settle_length`](super::Blueprint::settle_length).
        is_long: bool,
    },
    /// Llama 3.1: frequencies of long wavelengths are divided by `factor`, those of short ones kept, and those in
    /// between interpolated.
    Llama3 {
        /// The stretch factor.
        factor: f64,
        /// Wavelengths above `original_max` divided by this are stretched.
        low_freq_factor: f64,
        /// Wavelengths below `original_max` divided by this are kept.
        high_freq_factor: f64,
        /// The context of pre-training.
        original_max: usize,
    },
}
