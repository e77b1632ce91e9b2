//! Computes rotary frequencies under every scaling that `transformers`, which is the reference, offers for these
//! models.

use std::f64::consts::PI;

use crate::blueprint::{Rope, RopeScaling};

/// Computes the cosines and sines for one kind of rotary position embedding.
#[derive(Debug, Clone)]
pub struct RopeTable {
    theta: f64,
    head_dim: usize,
    /// The angle per position in radians, `[head_dim / 2]`, for lengths within the original context.
    frequencies: Vec<f32>,
    /// The factor by which cosines and sines are multiplied. It differs from 1 under yarn scaling.
    magnitude: f32,
    dynamic: Option<Dynamic>,
}

/// The parameters of dynamic scaling: beyond the original context, the base of the frequencies grows with the length.
#[derive(Debug, Clone, Copy)]
struct Dynamic {
    factor: f64,
    original_max: usize,
}

impl RopeTable {
    /// Creates the table for one kind of rotary position embedding.
    pub fn new(config: &Rope) -> Self {
        let head_dim = config.rotated;
        let mut frequencies = frequencies(config.theta as f32, head_dim);
        for (frequency, factor) in frequencies.iter_mut().zip(config.factors.iter().flatten()) {
            *frequency /= factor;
        }
        let (mut magnitude, mut dynamic) = (1.0, None);
        match &config.scaling {
            RopeScaling::Default => {}
            RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= *factor as f32),
            RopeScaling::Dynamic { factor, original_max } => {
                dynamic = Some(Dynamic { factor: *factor, original_max: *original_max });
            }
            RopeScaling::Yarn { factor, original_max, beta_fast, beta_slow, attention_factor, truncate } => {
                magnitude = *attention_factor as f32;
                let turns_at = |turns: f64| {
                    head_dim as f64 * (*original_max as f64 / (turns * 2.0 * PI)).ln() / (2.0 * config.theta.ln())
                };
                let (mut low, mut high) = (turns_at(*beta_fast), turns_at(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    let own_factor = config.factors.as_ref().and_then(|factors| factors.get(i)).copied().unwrap_or(1.0);
                    let stretched = 1.0 / (*factor as f32 * own_factor * power(config.theta as f32, i, head_dim));
                    let own = 1.0 - ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    *frequency = stretched * (1.0 - own) + *frequency * own;
                }
            }
            RopeScaling::LongRope { short, long, attention_factor, is_long, .. } => {
                magnitude = *attention_factor as f32;
                let factors = if *is_long { long } else { short };
                for (i, (frequency, factor)) in frequencies.iter_mut().zip(factors).enumerate() {
                    *frequency = 1.0 / (factor * power(config.theta as f32, i, head_dim));
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max } => {
                let context = *original_max as f64;
                let (factor, low) = (*factor as f32, *low_freq_factor as f32);
                for frequency in &mut frequencies {
                    let wavelength = (2.0 * PI) as f32 / *frequency;
                    if wavelength > (context / low_freq_factor) as f32 {
                        *frequency /= factor;
                    } else if wavelength >= (context / high_freq_factor) as f32 {
                        let range = (high_freq_factor - low_freq_factor) as f32;
                        let smooth = (context as f32 / wavelength - low) / range;
                        *frequency = (1.0 - smooth) * *frequency / factor + smooth * *frequency;
                    }
                }
            }
        }
        Self { theta: config.theta, head_dim, frequencies, magnitude, dynamic }
    }

    /// Returns the number by which the scaling divides each frequency, `[rotated / 2]`. Some file formats store a
    /// scaling in this form. Scalings that depend on the length of the sequence cannot be expressed in this form.
    pub fn factors(config: &Rope) -> Vec<f32> {
        let plain = frequencies(config.theta as f32, config.rotated);
        let scaled = Self::new(config).frequencies;
        plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect()
    }

    /// Writes the cosines and sines for `position` in a sequence whose prompt has `prompt_len` tokens.
    ///
    /// Under dynamic scaling, all keys of the prompt are rotated at the scale for the prompt's length. Each later key
    /// is rotated at the scale for its own position. `transformers` does the same when it computes the prompt in one
    /// piece. The scale thus depends on the prompt and the position, but not on how the prompt is divided into chunks.
    ///
    /// - `cos` and `sin`: `[rotated / 2]` each
    pub fn fill(&self, position: usize, prompt_len: usize, cos: &mut [f32], sin: &mut [f32]) {
        let length = prompt_len.max(position + 1);
        let grown = self.dynamic.filter(|dynamic| length > dynamic.original_max).map(|dynamic| {
            let (dim, factor) = (self.head_dim as f32, dynamic.factor as f32);
            let ratio = factor * length as f32 / dynamic.original_max as f32;
            self.theta as f32 * (ratio - (factor - 1.0)).powf(dim / (dim - 2.0))
        });
        for i in 0..self.frequencies.len() {
            let frequency = grown.map_or(self.frequencies[i], |theta| 1.0 / power(theta, i, self.head_dim));
            // The angle is rounded to f32 before its cosine is taken, as in `transformers`.
            let angle = f64::from(frequency * position as f32);
            cos[i] = angle.cos() as f32 * self.magnitude;
            sin[i] = angle.sin() as f32 * self.magnitude;
        }
    }

    /// Returns the namespace that a prompt of `prompt_len` tokens has in the prefix cache. Only prompts with the same
    /// namespace may share cached keys. Under dynamic scaling, the keys of a prompt that exceeds the original context
    /// are rotated at a scale that depends on the prompt's length. Each such length therefore has its own namespace.
    /// All other prompts have namespace 0.
    pub fn cache_namespace(&self, prompt_len: usize) -> u64 {
        match self.dynamic {
            Some(dynamic) if prompt_len > dynamic.original_max => prompt_len as u64,
            _ => 0,
        }
    }
}

fn frequencies(theta: f32, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2).map(|i| 1.0 / power(theta, i, head_dim)).collect()
}

/// Computes `theta^(2i / head_dim)`, rounded to f32 wherever `transformers` rounds. At position 30,000, the last bit of
/// the result is a thousandth of a radian.
fn power(theta: f32, i: usize, head_dim: usize) -> f32 {
    let exponent = (2 * i) as f32 / head_dim as f32;
    f64::from(theta).powf(f64::from(exponent)) as f32
}
