//! The fields of Ollama's requests besides the prompt: the model, options, the answer's format, thinking.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::named;
use crate::app::App;
use crate::blocks::refuse;
use crate::charge::logprob_tokens_unasked;
use crate::endpoints::chat::{add_effort, logprobs};
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, is_text, read, sent, shown};
use crate::keep_alive::{KeepAlive, keep_alive};
use crate::memory::Share;
use crate::openapi::{self, Part};
use crate::sampling::{Common, Stops, top_k_of, unasked};
use crate::schemas::Bond;
use crate::structured::json_constraint;
use crate::unsupported::{Api, Supported};

/// The fields that `/api/chat` and `/api/generate` share.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    stream: Option<Field<bool>>,
    options: Option<Field<Options>>,
    #[serde(borrow)]
    format: Option<&'b RawValue>,
    #[serde(borrow)]
    think: Option<&'b RawValue>,
    #[serde(borrow)]
    keep_alive: Option<&'b RawValue>,
    logprobs: Option<Field<bool>>,
    top_logprobs: Option<Field<usize>>,
}

/// The options of Ollama's API that change an answer.
#[derive(Deserialize)]
struct OptionFields {
    temperature: Option<Field<f32>>,
    top_k: Option<Field<i64>>,
    top_p: Option<Field<f32>>,
    min_p: Option<Field<f32>>,
    seed: Option<Field<i64>>,
    num_predict: Option<Field<i64>>,
    num_ctx: Option<Field<i64>>,
    stop: Option<Field<Stops>>,
    repeat_penalty: Option<Field<f32>>,
    repeat_last_n: Option<Field<i64>>,
    presence_penalty: Option<Field<f32>>,
    frequency_penalty: Option<Field<f32>>,
}

/// All options of a request. Reading them fails for options that would change an answer but are not supported.
pub(super) struct Options {
    fields: OptionFields,
    told: Supported<OfOptions>,
}

impl FromJson<'_> for Options {
    const EXPECTED: &'static str = "an object";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let (Object(told), Object(fields)) = (Object::from_json(raw)?, Object::from_json(raw)?);
        Ok(Self { fields, told })
    }
}

/// Names the fields of other APIs that have no place among the options. There are none.
struct OfOptions;

impl Api for OfOptions {
    fn elsewhere(_: &str) -> Option<&'static str> {
        None
    }
}

/// The settings of a request besides its prompt.
pub(super) struct Settings {
    pub(super) common: Common,
    /// The template variables that turn thinking on or off.
    pub(super) kwargs: Map<String, Value>,
    /// The maximum number of tokens of prompt and answer together, if the request sets it.
    context: Option<usize>,
    /// Whether the model should be unloaded after the answer.
    pub(super) unloads: bool,
}

/// Returns the part of a body that `/api/chat` and `/api/generate` both read.
pub(super) fn part() -> Part {
    openapi::part!(Fields<'_>)
}

/// Returns the fields of `options`.
pub(super) fn option_parts() -> Vec<Part> {
    vec![openapi::part!(OptionFields)]
}

impl Options {
    /// Returns the context length that the options ask for, in tokens, or `None` without a positive `num_ctx`.
    pub(super) fn context(&self) -> Option<usize> {
        let asked = self.fields.num_ctx.and_then(|Field(tokens)| usize::try_from(tokens).ok());
        asked.filter(|&tokens| tokens > 0)
    }
}

impl Settings {
    /// Reads and checks the fields. `share` grows by the memory that a schema takes. Blocks.
    ///
    /// # Errors
    /// Fails if a field is invalid, or asks for something that the model or the server cannot do.
    pub(super) fn read(app: &App, body: &[u8], share: &mut Share) -> Result<Self, ApiError> {
        let fields: Fields<'_> = read(body)?;
        let model = named(app, sent(fields.model))?;
        let mut common = Common { model, stream: sent(fields.stream).unwrap_or(true), ..unasked(app) };
        let options = sent(fields.options);
        let context = options.as_ref().and_then(Options::context);
        if let Some(options) = options {
            options.told.tell(&app.notes);
            sample(options.fields, &mut common)?;
        }
        common.params.logprobs = logprobs(sent(fields.logprobs), sent(fields.top_logprobs))?;
        common.constraint = constraint(fields.format, share)?;
        let kwargs = thinking(app, fields.think, &common.model)?;
        let keep_alive = keep_alive(fields.keep_alive)?;
        Ok(Self { common, kwargs, context, unloads: keep_alive == Some(KeepAlive::NONE) })
    }

    /// Limits the length of the answer to a prompt of `prompt` tokens.
    ///
    /// # Errors
    /// Fails if the context length that the request asks for is too short for the prompt.
    pub(super) fn bound(&mut self, app: &App, prompt: usize) -> Result<(), ApiError> {
        let own = app.engine.limits().max_model_len;
        if let Some(asked) = self.context.filter(|&asked| asked < own && asked <= prompt) {
            let message = format!(
                "options.num_ctx is {asked}, but the prompt alone has {prompt} tokens, and this server shortens no \
                 prompt; send a larger num_ctx, or none: the context has {own}"
            );
            return Err(ApiError::beyond_context("options", message, None));
        }
        let room = self.context.map_or(own, |asked| asked.min(own)).saturating_sub(prompt);
        let unasked = room.min(logprob_tokens_unasked(&self.common, app.memory.answers.bytes())).max(1);
        self.common.params.max_tokens = match self.common.max_tokens {
            None => unasked,
            // The engine refuses prompts that leave no room for an answer; its error message names the limit.
            Some(asked) if room == 0 => asked,
            Some(asked) => asked.min(room),
        };
        Ok(())
    }
}

/// Applies Ollama's sampling options to the request.
fn sample(fields: OptionFields, common: &mut Common) -> Result<(), ApiError> {
    let within = |error: ApiError| ApiError { message: format!("options.{}", error.message), ..error };
    let params = &mut common.params;
    params.temperature = sent(fields.temperature).unwrap_or(params.temperature);
    params.top_k = sent(fields.top_k).map_or(Ok(params.top_k), top_k_of).map_err(within)?;
    params.top_p = sent(fields.top_p).unwrap_or(params.top_p);
    params.min_p = sent(fields.min_p).unwrap_or(params.min_p);
    params.seed = sent(fields.seed).filter(|&seed| seed != -1).map_or(params.seed, i64::cast_unsigned);
    params.presence_penalty = sent(fields.presence_penalty).unwrap_or(params.presence_penalty);
    params.frequency_penalty = sent(fields.frequency_penalty).unwrap_or(params.frequency_penalty);
    params.repetition_penalty = match (sent(fields.repeat_penalty), sent(fields.repeat_last_n)) {
        (_, Some(0)) => 1.0,
        (penalty, None | Some(-1)) => penalty.unwrap_or(params.repetition_penalty),
        (penalty, Some(last)) => {
            let penalty = penalty.unwrap_or(params.repetition_penalty);
            if penalty != 1.0 {
                let problem = "but a repeat_penalty goes by all tokens here; send -1, or leave it out";
                return refuse("options.repeat_last_n", format!("is {last}, {problem}"));
            }
            penalty
        }
    };
    common.text.stop = sent(fields.stop).map_or_else(Vec::new, |Stops(stops)| stops);
    // Ollama's clients send 0 or a negative number for no limit.
    common.max_tokens = sent(fields.num_predict).and_then(|most| usize::try_from(most).ok()).filter(|&most| most > 0);
    Ok(())
}

/// Returns the constraint of the answer's format, if the request sets one.
fn constraint(format: Option<&RawValue>, share: &mut Share) -> Result<Option<Bond>, ApiError> {
    match format {
        None => Ok(None),
        Some(raw) if is_text(raw, "") => Ok(None),
        Some(raw) if is_text(raw, "json") => json_constraint(None, "format", share).map(Some),
        Some(raw) if raw.get().starts_with('{') => json_constraint(Some(raw), "format", share).map(Some),
        Some(raw) => refuse("format", format!("is {}, but must be \"json\" or a JSON schema", shown(raw.get()))),
    }
}

/// Returns the template variables that turn thinking on or off, or set its level, according to `think`.
fn thinking(app: &App, think: Option<&RawValue>, model: &str) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    let Some(raw) = think.filter(|raw| !is_text(raw, "")) else { return Ok(kwargs) };
    let level = String::from_json(raw).ok().filter(|level| ["low", "medium", "high", "max"].contains(&level.as_str()));
    let thinks = match (bool::from_json(raw), &level) {
        (Ok(thinks), _) => thinks,
        (_, Some(_)) => true,
        _ => {
            let known = "true, false, \"low\", \"medium\", \"high\" or \"max\"";
            return refuse("think", format!("is {}, but must be {known}", shown(raw.get())));
        }
    };
    if thinks && !app.speech.thinks() {
        let problem = format!("but {} does not support thinking; leave it out", shown(model));
        return refuse("think", format!("is {}, {problem}", raw.get()));
    }
    kwargs.extend(["enable_thinking", "thinking"].map(|name| (name.to_owned(), thinks.into())));
    add_effort(&mut kwargs, level);
    Ok(kwargs)
}
