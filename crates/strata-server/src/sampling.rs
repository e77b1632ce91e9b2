//! Request fields that both completion APIs share.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

use serde_json::Value;
use strata_engine::text::TextOptions;
use strata_engine::{BeamParams, SamplingParams};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, shown};

/// Most stop strings of a request (OpenAI allows 4), and the longest, in bytes.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 1024;
/// Longest `cache_salt`, in bytes.
const SALT_BYTES_MAX: usize = 1024;
/// Priorities that clients may ask for. The engine's queue ages, so none of them starves the others for ever.
const PRIORITIES: RangeInclusive<i64> = -100..=100;
/// Fields that would change the answer and are not supported: better refused than ignored.
const UNSUPPORTED: [&str; 20] = [
    "suffix",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "structural_tag",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "bad_words",
    "allowed_token_ids",
    "prompt_logprobs",
    "logits_processors",
    "thinking_token_budget",
    "functions",
    "function_call",
];

/// What both completion APIs take besides the prompt. Log-probabilities and `max_tokens` are theirs to fill in.
pub(crate) struct Common {
    pub(crate) params: SamplingParams,
    pub(crate) text: TextOptions,
    /// Choices per prompt.
    pub(crate) n: usize,
    /// Continuations per prompt of which the choices are the best: at least as many. For a beam search, as many.
    pub(crate) candidates: usize,
    pub(crate) beam: Option<BeamParams>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether `usage` is to say where the cached prefix of each prompt ended, and why.
    pub(crate) cache_report: bool,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
}

/// Takes the shared fields.
pub(crate) fn common(app: &App, fields: &mut Fields) -> Result<Common, ApiError> {
    check_model(app, fields)?;
    for name in UNSUPPORTED {
        match fields.take(name) {
            None | Some(Value::Bool(false)) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::Array(list)) if list.is_empty() => {}
            Some(_) => return Err(ApiError::invalid(name, format!("{name} is not supported; leave it out"))),
        }
    }
    if let Some(format) = fields.object("response_format")? {
        let kind = format.get("type").unwrap_or(&Value::Null);
        if kind != "text" {
            let message = format!("response_format of type {} is not supported; only \"text\" is", shown(kind));
            return Err(ApiError::invalid("response_format", message));
        }
    }
    let n = fields.count("n")?.unwrap_or(1);
    if n == 0 || n > app.config.sequences_max {
        let message = format!("n is {n}, but must be between 1 and {}", app.config.sequences_max);
        return Err(ApiError::invalid("n", message));
    }
    let best_of = fields.count("best_of")?.unwrap_or(n);
    if best_of < n || best_of > app.config.sequences_max {
        let message =
            format!("best_of is {best_of}, but must be between n, which is {n}, and {}", app.config.sequences_max);
        return Err(ApiError::invalid("best_of", message));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    let beam = beam(fields, best_of)?;
    for (chosen_at_the_end, name) in [(beam.is_some(), "use_beam_search"), (best_of > n, "best_of")] {
        if chosen_at_the_end && stream {
            let message =
                format!("{name} chooses among whole answers, so they cannot be streamed; set stream to false");
            return Err(ApiError::invalid("stream", message));
        }
    }
    let include_usage = match fields.object("stream_options")? {
        Some(_) if !stream => {
            return Err(ApiError::invalid("stream_options", "stream_options is for streams; set stream to true"));
        }
        Some(options) => options.get("include_usage").and_then(Value::as_bool).unwrap_or(false),
        None => false,
    };
    let cache_report = fields.bool("cache_report")?.unwrap_or(false);
    let params = match beam {
        Some(_) => params(fields, &neutral())?,
        None => params(fields, &app.config.default_sampling)?,
    };
    let mut end_tokens = app.config.eos_token_ids.clone();
    end_tokens.extend(&params.stop_token_ids);
    let text = TextOptions {
        stop: stops(fields)?,
        include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
        min_tokens: params.min_tokens,
        end_tokens,
    };
    if beam.is_some() && !text.stop.is_empty() {
        let message = "stop is not supported with beam search, which ends at tokens; send stop_token_ids instead";
        return Err(ApiError::invalid("stop", message));
    }
    let cache_salt = fields.string("cache_salt")?;
    if let Some(salt) = cache_salt.as_ref().filter(|salt| salt.len() > SALT_BYTES_MAX) {
        let message = format!("cache_salt has {} bytes, but at most {SALT_BYTES_MAX} are allowed", salt.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let priority = fields.integer("priority")?.unwrap_or(0);
    let priority = i32::try_from(priority).ok().filter(|_| PRIORITIES.contains(&priority)).ok_or_else(|| {
        let message =
            format!("priority is {priority}, but must be from {} to {}", PRIORITIES.start(), PRIORITIES.end());
        ApiError::invalid("priority", message)
    })?;
    let candidates = if beam.is_some() { n } else { best_of };
    Ok(Common { params, text, n, candidates, beam, stream, include_usage, cache_report, cache_salt, priority })
}

/// Refuses a `model` that is not served; a request may leave it out.
pub(crate) fn check_model(app: &App, fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("model")? {
        Some(model) if !app.config.model_names.contains(&model) => {
            Err(ApiError::model_not_found(&model, &app.config.model_names))
        }
        _ => Ok(()),
    }
}

/// A number for ids, and for seeds of requests that brought none.
pub(crate) fn random() -> u64 {
    // Every `RandomState` differs, and the first takes its keys from the system's random numbers.
    RandomState::new().build_hasher().finish()
}

/// What a beam search is asked for, of this width. What it cannot honour besides, the engine refuses.
fn beam(fields: &mut Fields, width: usize) -> Result<Option<BeamParams>, ApiError> {
    let wanted = fields.bool("use_beam_search")?.unwrap_or(false);
    let length_penalty = fields.number("length_penalty")?;
    let early_stopping = match fields.take("early_stopping") {
        None => None,
        Some(Value::Bool(early)) => Some(early),
        Some(Value::String(never)) if never == "never" => Some(false),
        Some(other) => {
            let message = format!("early_stopping must be true, false or \"never\", but is {}", shown(&other));
            return Err(ApiError::invalid("early_stopping", message));
        }
    };
    if wanted {
        let (length_penalty, early_stopping) = (length_penalty.unwrap_or(1.0), early_stopping.unwrap_or(false));
        return Ok(Some(BeamParams { width, length_penalty, early_stopping }));
    }
    // As in vLLM, values that change nothing are let pass.
    for (name, changes) in [
        ("length_penalty", length_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("early_stopping", early_stopping == Some(true)),
    ] {
        if changes {
            return Err(ApiError::invalid(name, format!("{name} is for beam search; set use_beam_search to true")));
        }
    }
    Ok(None)
}

/// What a beam search goes by where a request does not say: the model alone.
fn neutral() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// Ranges are checked by the engine, whose messages name the field too.
fn params(fields: &mut Fields, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
    let top_k = match fields.integer("top_k")? {
        None => defaults.top_k,
        Some(0 | -1) => None,
        Some(top_k) => Some(usize::try_from(top_k).map_err(|_| {
            ApiError::invalid("top_k", format!("top_k is {top_k}, but must be at least 1, or 0 or -1 for all tokens"))
        })?),
    };
    Ok(SamplingParams {
        max_tokens: 0,
        min_tokens: fields.count("min_tokens")?.unwrap_or(0),
        temperature: fields.number("temperature")?.unwrap_or(defaults.temperature),
        top_k,
        top_p: fields.number("top_p")?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p")?.unwrap_or(defaults.min_p),
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed")?.map_or_else(random, i64::cast_unsigned),
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        stop_token_ids: fields.tokens("stop_token_ids")?.unwrap_or_default(),
        logprobs: None,
        prompt_logprobs: None,
    })
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(stops)) => stops,
        Some(one) => vec![one],
    };
    if stops.len() > STOPS_MAX {
        let message = format!("stop has {} strings, but at most {STOPS_MAX} are allowed", stops.len());
        return Err(ApiError::invalid("stop", message));
    }
    let check = |stop: Value| match stop {
        Value::String(stop) if stop.is_empty() => {
            Err(ApiError::invalid("stop", "stop has an empty string, which would end every text at once"))
        }
        Value::String(stop) if stop.len() > STOP_BYTES_MAX => {
            let message =
                format!("stop has a string of {} bytes, but at most {STOP_BYTES_MAX} are allowed", stop.len());
            Err(ApiError::invalid("stop", message))
        }
        Value::String(stop) => Ok(stop),
        other => {
            let message = format!("stop must be a string or a list of strings, but has {}", shown(&other));
            Err(ApiError::invalid("stop", message))
        }
    };
    stops.into_iter().map(check).collect()
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let entry = |(token, bias): (String, Value)| {
        let id = token.trim().parse().map_err(|_| {
            let message = format!("logit_bias maps token ids to numbers, but has the key {token:?}");
            ApiError::invalid("logit_bias", message)
        })?;
        let bias = bias.as_f64().ok_or_else(|| {
            let message = format!("logit_bias of token {id} must be a number, but is {}", shown(&bias));
            ApiError::invalid("logit_bias", message)
        })?;
        Ok((id, bias as f32))
    };
    biases.into_iter().map(entry).collect()
}
