//! Request fields that both completion APIs share.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use strata_engine::text::TextOptions;
use strata_engine::{BeamParams, SamplingParams};

use crate::app::App;
use crate::error::ApiError;
use crate::request::{Count, List, Object, StopTokens, Whole, is_text, read, shortened, shown};

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

/// The fields that both completion APIs share, as they are sent.
#[derive(Deserialize)]
struct SharedFields<'b> {
    n: Option<Count>,
    best_of: Option<Count>,
    max_tokens: Option<Count>,
    max_completion_tokens: Option<Count>,
    min_tokens: Option<Count>,
    temperature: Option<f32>,
    top_k: Option<Whole>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<LogitBias>,
    seed: Option<Whole>,
    #[serde(borrow)]
    stop: Option<&'b RawValue>,
    include_stop_str_in_output: Option<bool>,
    skip_special_tokens: Option<bool>,
    stop_token_ids: Option<StopTokens>,
    ignore_eos: Option<bool>,
    use_beam_search: Option<bool>,
    length_penalty: Option<f32>,
    early_stopping: Option<&'b RawValue>,
    stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,
    response_format: Option<Object<ResponseFormat<'b>>>,
    cache_report: Option<bool>,
    cache_salt: Option<String>,
    priority: Option<Whole>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct ResponseFormat<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct ModelField {
    model: Option<String>,
}

/// What both completion APIs take besides the prompt. Log-probabilities and the parameters' `max_tokens` are theirs to
/// fill in.
pub(crate) struct Common {
    pub(crate) params: SamplingParams,
    pub(crate) text: TextOptions,
    /// Most tokens of an answer, if the request says.
    pub(crate) max_tokens: Option<usize>,
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

/// Reads and checks the shared fields of a body, and refuses those that are not supported.
pub(crate) fn common(app: &App, body: &[u8]) -> Result<Common, ApiError> {
    check_model(app, body)?;
    let Supported = read(body)?;
    let fields: SharedFields<'_> = read(body)?;
    if let Some(Object(format)) = &fields.response_format
        && !format.kind.is_some_and(|kind| is_text(kind, "text"))
    {
        let kind = format.kind.map_or("null", RawValue::get);
        let message = format!("response_format of type {} is not supported; only \"text\" is", shown(kind));
        return Err(ApiError::invalid("response_format", message));
    }
    let n = fields.n.map_or(1, |Count(n)| n);
    if n == 0 || n > app.config.sequences_max {
        let message = format!("n is {n}, but must be between 1 and {}", app.config.sequences_max);
        return Err(ApiError::invalid("n", message));
    }
    let best_of = fields.best_of.map_or(n, |Count(best_of)| best_of);
    if best_of < n || best_of > app.config.sequences_max {
        let message =
            format!("best_of is {best_of}, but must be between n, which is {n}, and {}", app.config.sequences_max);
        return Err(ApiError::invalid("best_of", message));
    }
    let stream = fields.stream.unwrap_or(false);
    let beam = beam(&fields, best_of)?;
    for (chosen_at_the_end, name) in [(beam.is_some(), "use_beam_search"), (best_of > n, "best_of")] {
        if chosen_at_the_end && stream {
            let message =
                format!("{name} chooses among whole answers, so they cannot be streamed; set stream to false");
            return Err(ApiError::invalid("stream", message));
        }
    }
    let include_usage = match &fields.stream_options {
        Some(_) if !stream => {
            return Err(ApiError::invalid("stream_options", "stream_options is for streams; set stream to true"));
        }
        Some(Object(options)) => options.include_usage.unwrap_or(false),
        None => false,
    };
    let stop = fields.stop.map(stops).transpose()?.unwrap_or_default();
    if let Some(salt) = fields.cache_salt.as_ref().filter(|salt| salt.len() > SALT_BYTES_MAX) {
        let message = format!("cache_salt has {} bytes, but at most {SALT_BYTES_MAX} are allowed", salt.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let priority = fields.priority.map_or(0, |Whole(priority)| priority);
    let priority = i32::try_from(priority).ok().filter(|_| PRIORITIES.contains(&priority)).ok_or_else(|| {
        let message =
            format!("priority is {priority}, but must be from {} to {}", PRIORITIES.start(), PRIORITIES.end());
        ApiError::invalid("priority", message)
    })?;
    let defaults = if beam.is_some() { &neutral() } else { &app.config.default_sampling };
    let max_tokens = fields.max_completion_tokens.or(fields.max_tokens).map(|Count(most)| most);
    let (include_stop, skip_special) = (fields.include_stop_str_in_output, fields.skip_special_tokens);
    let (cache_report, cache_salt) = (fields.cache_report.unwrap_or(false), fields.cache_salt.clone());
    let params = params(fields, defaults)?;
    let mut end_tokens = app.config.eos_token_ids.clone();
    end_tokens.extend(&params.stop_token_ids);
    let text = TextOptions {
        stop,
        include_stop: include_stop.unwrap_or(false),
        skip_special_tokens: skip_special.unwrap_or(true),
        min_tokens: params.min_tokens,
        end_tokens,
    };
    if beam.is_some() && !text.stop.is_empty() {
        let message = "stop is not supported with beam search, which ends at tokens; send stop_token_ids instead";
        return Err(ApiError::invalid("stop", message));
    }
    let candidates = if beam.is_some() { n } else { best_of };
    Ok(Common {
        params,
        text,
        max_tokens,
        n,
        candidates,
        beam,
        stream,
        include_usage,
        cache_report,
        cache_salt,
        priority,
    })
}

/// Refuses a `model` that is not served; a request may leave it out.
pub(crate) fn check_model(app: &App, body: &[u8]) -> Result<(), ApiError> {
    match read::<ModelField>(body)?.model {
        Some(model) if !app.config.model_names.contains(&model) => {
            Err(ApiError::model_not_found(&model, &app.config.model_names))
        }
        _ => Ok(()),
    }
}

/// A body without [`UNSUPPORTED`] fields, but for those that ask for nothing.
struct Supported;

impl<'de> Deserialize<'de> for Supported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Supported;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Supported, A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    if !UNSUPPORTED.contains(&name.as_str()) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        map.next_value::<Nothing>()?;
                    }
                }
                Ok(Supported)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// A value that asks for nothing.
struct Nothing;

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value: &RawValue = Deserialize::deserialize(deserializer)?;
        if asks_for_nothing(value.get()) { Ok(Self) } else { Err(D::Error::custom("not supported; leave it out")) }
    }
}

fn asks_for_nothing(value: &str) -> bool {
    let is_empty_list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    matches!(value, "null" | "false" | r#""""#) || is_empty_list.is_some_and(|inner| inner.trim().is_empty())
}

/// A number for ids, and for seeds of requests that brought none.
pub(crate) fn random() -> u64 {
    // Every `RandomState` differs, and the first takes its keys from the system's random numbers.
    RandomState::new().build_hasher().finish()
}

/// What a beam search is asked for, of this width. What it cannot honour besides, the engine refuses.
fn beam(fields: &SharedFields<'_>, width: usize) -> Result<Option<BeamParams>, ApiError> {
    let wanted = fields.use_beam_search.unwrap_or(false);
    let length_penalty = fields.length_penalty;
    let early_stopping = match fields.early_stopping {
        None => None,
        Some(raw) if raw.get() == "true" => Some(true),
        Some(raw) if raw.get() == "false" || is_text(raw, "never") => Some(false),
        Some(other) => {
            let message = format!("early_stopping must be true, false or \"never\", but is {}", shown(other.get()));
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
fn params(fields: SharedFields<'_>, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
    let top_k = match fields.top_k {
        None => defaults.top_k,
        Some(Whole(0 | -1)) => None,
        Some(Whole(top_k)) => Some(usize::try_from(top_k).map_err(|_| {
            ApiError::invalid("top_k", format!("top_k is {top_k}, but must be at least 1, or 0 or -1 for all tokens"))
        })?),
    };
    Ok(SamplingParams {
        max_tokens: 0,
        min_tokens: fields.min_tokens.map_or(0, |Count(least)| least),
        temperature: fields.temperature.unwrap_or(defaults.temperature),
        top_k,
        top_p: fields.top_p.unwrap_or(defaults.top_p),
        min_p: fields.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: fields.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        logit_bias: fields.logit_bias.map_or_else(Vec::new, |LogitBias(biases)| biases),
        seed: fields.seed.map_or_else(random, |Whole(seed)| seed.cast_unsigned()),
        ignore_eos: fields.ignore_eos.unwrap_or(false),
        stop_token_ids: fields.stop_token_ids.map_or_else(Vec::new, |StopTokens(ids)| ids),
        logprobs: None,
        prompt_logprobs: None,
    })
}

/// One stop string, or a list of them.
fn stops(raw: &RawValue) -> Result<Vec<String>, ApiError> {
    let wrong =
        |error| ApiError::invalid("stop", format!("stop must be a string or a list of strings: {}", shortened(&error)));
    let stops: List<String> = if raw.get().starts_with('[') {
        serde_json::from_str(raw.get()).map_err(wrong)?
    } else {
        List { entries: vec![serde_json::from_str(raw.get()).map_err(wrong)?], count: 1 }
    };
    if stops.count > STOPS_MAX {
        let message = format!("stop has {} strings, but at most {STOPS_MAX} are allowed", stops.count);
        return Err(ApiError::invalid("stop", message));
    }
    for stop in &stops.entries {
        if stop.is_empty() {
            return Err(ApiError::invalid("stop", "stop has an empty string, which would end every text at once"));
        }
        if stop.len() > STOP_BYTES_MAX {
            let message =
                format!("stop has a string of {} bytes, but at most {STOP_BYTES_MAX} are allowed", stop.len());
            return Err(ApiError::invalid("stop", message));
        }
    }
    Ok(stops.entries)
}

/// Token ids, as an object's keys, with what is added to their logits.
struct LogitBias(Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Biases;
        impl<'de> Visitor<'de> for Biases {
            type Value = LogitBias;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object that maps token ids to numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some((token, bias)) = map.next_entry::<String, f32>()? {
                    let id = token.trim().parse();
                    let id = id.map_err(|_| A::Error::custom(format!("{} is no token id", shown(&token))))?;
                    biases.push((id, bias));
                }
                biases.sort_by_key(|&(id, _): &(u32, f32)| id);
                match biases.array_windows().find(|[one, next]| one.0 == next.0) {
                    Some([(id, _), _]) => Err(A::Error::custom(format!("token {id} stands there twice"))),
                    None => Ok(LogitBias(biases)),
                }
            }
        }
        deserializer.deserialize_map(Biases)
    }
}
