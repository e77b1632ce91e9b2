//! How queries and keys are rotated by their positions.

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
    /// A rotation of `rotated` elements as Hugging Face directories have it: without factors, element `i` rotated with
    /// `i + rotated / 2`.
    pub fn new(theta: f64, scaling: RopeScaling, rotated: usize) -> Self {
        Self { theta, scaling, factors: None, style: RopeStyle::Halves, rotated }
    }
}
/// The ways of stretching frequencies, with the parameters resolved as `transformers` resolves them.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Frequencies are unchanged.
    Default,
    /// Every frequency ÷ `factor`.
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
        /// The factor of cosines and sines.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded outward to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE: each frequency ÷ a factor of its own, of one set for sequences within the original context and of
    /// another beyond; cosines and sines are multiplied by `attention_factor`.
    LongRope {
        /// The factors within the original context.
        short: Vec<f32>,
        /// The factors beyond.
        long: Vec<f32>,
        /// The context of pre-training.
        original_max: usize,
        /// The factor of cosines and sines.
        attention_factor: f64,
        /// Which of the sets holds: see [`Blueprint::settle_length`](super::Blueprint::settle_length).
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
