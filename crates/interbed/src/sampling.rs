//! The sampling options of `interbed run` and `interbed chat`.

use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use clap::Args;
use interbed_engine::SamplingParams;
use interbed_engine::text::TextOptions;
use interbed_model::generation_config::GenerationConfig;

use crate::load::Loaded;
use crate::options::count;
use crate::report::report;
use crate::seed::random_seed;

/// The maximum number of stop strings.
const STOPS_MAX: usize = 64;
/// The maximum length of a stop string, in bytes.
const STOP_BYTES_MAX: usize = 1024;

/// The maximum of `--max-tokens`, which is more than any context.
const TOKENS_MAX: usize = 1 << 30;

/// How the next token is chosen, and when generation ends.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Divides the logits before a token is drawn: 0 always takes the likeliest token, 1 leaves the logits unchanged
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Draw from the K likeliest tokens; 0 draws from all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Draw from the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", value_parser = top_p, allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Draw from the tokens with at least this share of the likeliest one's probability
    #[arg(long, value_name = "P", value_parser = min_p, allow_negative_numbers = true,
          hide_short_help = true)]
    pub min_p: Option<f32>,

    /// A value above 1 makes tokens that have already occurred less likely to be drawn again
    #[arg(long, value_name = "R", value_parser = repetition_penalty, allow_negative_numbers = true,
          hide_short_help = true)]
    pub repetition_penalty: Option<f32>,

    /// Seed of the random draws: the same seed gives the same text; -1 takes a random seed
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,

    /// Text that ends generation, and is not part of the output; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Go on past the model's end-of-sequence tokens
    #[arg(long)]
    pub ignore_eos: bool,

    /// Maximum number of tokens to generate, at least 1
    #[arg(long, short = 'n', value_name = "TOKENS", value_parser = count::<TOKENS_MAX>)]
    pub max_tokens: Option<NonZeroUsize>,
}

impl SamplingOptions {
    /// Returns the sampling parameters, with values from `defaults` for options that are not given. The seed is random
    /// if none is given.
    ///
    /// # Errors
    /// Fails if stop strings are empty, too long or too many.
    pub fn over(&self, defaults: SamplingParams) -> Result<SamplingParams> {
        if self.stop.len() > STOPS_MAX {
            bail!("--stop is given {} times, but at most {STOPS_MAX} are allowed", self.stop.len());
        }
        if self.stop.iter().any(String::is_empty) {
            bail!("--stop is empty, which would end every text at once; give some text");
        }
        if let Some(stop) = self.stop.iter().find(|stop| stop.len() > STOP_BYTES_MAX) {
            bail!("--stop has {} bytes, but at most {STOP_BYTES_MAX} are allowed", stop.len());
        }
        Ok(SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.map_or(defaults.top_k, all_if_0),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed: self.seed.unwrap_or_else(random_seed),
            ignore_eos: self.ignore_eos,
            ..defaults
        })
    }

    /// Returns a note about options that change nothing at this temperature, if there are any.
    pub fn unused_note(&self, temperature: f32) -> Option<String> {
        let given = [
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        let given: Vec<&str> = given.iter().filter(|(_, is_given)| *is_given).map(|(option, _)| *option).collect();
        if temperature != 0.0 || given.is_empty() {
            return None;
        }
        let (options, change) = (given.join(" and "), if given.len() == 1 { "changes" } else { "change" });
        Some(format!(
            "note: {options} {change} nothing at temperature 0, which takes the likeliest token each time; give \
             --temperature 0.8, for instance"
        ))
    }

    /// Returns the settings for converting generated tokens to text.
    pub fn text_options(&self, loaded: &Loaded) -> TextOptions {
        TextOptions {
            stop: self.stop.clone(),
            skip_special_tokens: true,
            end_tokens: loaded.end_tokens.clone(),
            ..TextOptions::default()
        }
    }
}

/// Returns the model's sampling defaults. Parameters that the model does not set get the defaults of the API.
pub fn model_defaults(generation: &GenerationConfig) -> SamplingParams {
    let defaults = SamplingParams::default();
    // Only `do_sample: false` makes sampling greedy, whatever the temperature; most files leave this key out.
    let temperature = match generation.do_sample {
        Some(false) => 0.0,
        _ => generation.temperature.unwrap_or(defaults.temperature),
    };
    SamplingParams {
        temperature,
        top_k: generation.top_k.map_or(defaults.top_k, |top_k| all_if_0(top_k as usize)),
        top_p: generation.top_p.unwrap_or(defaults.top_p),
        min_p: generation.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: generation.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        ..defaults
    }
}

/// Reports the sampling parameters `used`, if the model is a GGUF file without sampling defaults of its own.
pub fn tell(generation: &GenerationConfig, used: &SamplingParams) {
    if let Some(line) = told(generation, used) {
        report!("{line}");
    }
}

fn told(generation: &GenerationConfig, used: &SamplingParams) -> Option<String> {
    if *generation != GenerationConfig::llama_cpp() {
        return None;
    }
    let usual = model_defaults(generation);
    let parts = |params: &SamplingParams| {
        let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, .. } = params;
        let penalty =
            if *repetition_penalty == 1.0 { String::new() } else { format!(", penalty {repetition_penalty}") };
        let top_k = top_k.unwrap_or(0);
        format!("temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}{penalty}")
    };
    let how = match parts(used) == parts(&usual) {
        true => "sampling as llama.cpp does by default, for the file gives none",
        false => "sampling as options say, and else as llama.cpp does by default, for the file gives none",
    };
    Some(format!("{how}: {}", parts(used)))
}

fn all_if_0(top_k: usize) -> Option<usize> {
    (top_k > 0).then_some(top_k)
}

/// Parses `--seed`. The value -1 becomes a random seed.
fn seed(text: &str) -> Result<u64, String> {
    match text.trim() {
        "-1" => Ok(random_seed()),
        text => text.parse().map_err(|_| "expected a whole number, or -1 for a random one".to_owned()),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=100.0).contains(&value), "a number from 0 (greedy) to 100")
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0 && value <= 1.0, "a number above 0 and at most 1")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

fn repetition_penalty(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0 && value <= 100.0, "a number above 0 and at most 100; 1 does nothing")
}

/// Parses a number and checks its range. NaN is in no range.
fn number(text: &str, check: fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    text.trim().parse().ok().filter(|&value| check(value)).ok_or_else(|| format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert_eq!(temperature("0.7"), Ok(0.7));
        for bad in ["nan", "NaN", "-1", "inf", "1e9", "warm", ""] {
            assert!(temperature(bad).is_err(), "{bad}");
        }
        assert!(top_p("0").is_err() && top_p("1").is_ok() && top_p("1.1").is_err());
        assert!(min_p("0").is_ok() && min_p("-0.1").is_err());
        assert_eq!((seed("7"), seed("-2").is_err(), seed("x").is_err()), (Ok(7), true, true));
        assert!(seed("-1").is_ok_and(|one| seed("-1").is_ok_and(|other| one != other)));
        assert!(repetition_penalty("0").is_err() && repetition_penalty("1.1").is_ok());
    }

    #[test]
    fn the_sampling_that_is_used_is_told_where_the_file_says_none() {
        let usual = model_defaults(&GenerationConfig::llama_cpp());
        let line = |used: &SamplingParams| told(&GenerationConfig::llama_cpp(), used).expect("a line");
        let text = line(&usual);
        assert!(text.ends_with("gives none: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05"), "{text}");
        let text = line(&SamplingParams { temperature: 0.3, top_k: None, ..usual.clone() });
        assert!(
            text.contains("options") && text.ends_with("temperature 0.3, top_k 0, top_p 0.95, min_p 0.05"),
            "{text}"
        );
        assert_eq!(told(&GenerationConfig::default(), &usual), None);
    }

    #[test]
    fn options_that_change_nothing_are_told() {
        let options = |args: &[&str]| {
            #[derive(clap::Parser)]
            struct Line {
                #[command(flatten)]
                sampling: SamplingOptions,
            }
            <Line as clap::Parser>::parse_from([&["run"], args].concat()).sampling
        };
        let note = options(&["--top-k", "40", "--seed", "3"]).unused_note(0.0).expect("a note");
        assert!(note.contains("--top-k and --seed change nothing") && note.contains("--temperature"), "{note}");
        assert_eq!(options(&["--top-k", "40"]).unused_note(0.7), None);
        assert_eq!(options(&["--repetition-penalty", "1.5"]).unused_note(0.0), None);
    }

    #[test]
    fn the_models_authors_are_asked_first() {
        let generation = GenerationConfig { top_k: Some(0), top_p: Some(0.9), ..GenerationConfig::default() };
        let params = model_defaults(&generation);
        assert_eq!((params.temperature, params.top_k, params.top_p), (1.0, None, 0.9));
        let greedy = GenerationConfig { do_sample: Some(false), ..GenerationConfig::default() };
        assert_eq!(model_defaults(&greedy).temperature, 0.0);
        let greedy = GenerationConfig { temperature: Some(0.6), top_k: Some(20), ..greedy };
        assert_eq!((model_defaults(&greedy).temperature, model_defaults(&greedy).top_k), (0.0, Some(20)));
        let sampled = GenerationConfig { do_sample: Some(true), ..greedy };
        assert_eq!(model_defaults(&sampled).temperature, 0.6);
    }
}
