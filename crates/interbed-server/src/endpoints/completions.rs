//! Implements `/v1/completions`, which continues prompts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use interbed_engine::text::StopCause;
use interbed_engine::{PromptDone, TokenId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::{App, unix_seconds};
use crate::body::{Preparing, Received, receive};
use crate::charge::tokens_unasked;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, entries, read, sent, shown, token_ids};
use crate::generate::{Asked, Delta, Output, submit};
use crate::logprobs::{CompletionLogprobs, prompt_text};
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::random::random;
use crate::sampling::{Common, common, shared_part};
use crate::stream::{self, Choice, Choices, Envelope};
use crate::structured::{constraint, structured_part};
use crate::text_offset::TextOffsets;
use crate::unsupported::Completions;

/// The default of `max_tokens`, as in OpenAI's API.
const MAX_TOKENS_DEFAULT: usize = 16;

/// The request fields that only this endpoint reads.
#[derive(Deserialize)]
struct Fields<'b> {
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
    echo: Option<Field<bool>>,
    logprobs: Option<Field<usize>>,
    add_special_tokens: Option<Field<bool>>,
}

/// A request whose fields are read and whose prompts are tokenized.
struct PreparedPrompts {
    common: Common,
    prompts: Vec<Prompt>,
    echo: bool,
    share: Share,
}

/// A prompt in the form in which the client sent it.
pub(crate) enum Asking {
    Text(String),
    Ids(Vec<TokenId>),
}

/// A prompt as token ids.
struct Prompt {
    ids: Vec<TokenId>,
    /// The prompt's text, which `echo` repeats in the answer. Without `echo`, the text is empty.
    echo: String,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let prepared = app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let PreparedPrompts { common, mut prompts, echo, share } = prepared;
    let envelope = Envelope {
        id: unique_id("cmpl-"),
        object: "text_completion",
        created: unix_seconds(),
        model: common.model.clone(),
    };
    // The prompt's token ids are needed after submission only if `echo` is combined with log-probabilities.
    let repeated = echo && common.params.logprobs.is_some();
    let ids = |ids: &mut Vec<_>| if repeated { ids.clone() } else { std::mem::take(ids) };
    let ids = prompts.iter_mut().map(|prompt| ids(&mut prompt.ids)).collect();
    let echo_bytes = prompts.iter().map(|prompt| prompt.echo.len()).sum();
    let beside = prompts.iter().map(|prompt| size_of_val(&prompt.ids[..])).sum();
    let asked = Asked { prompts: ids, form: None, echo_bytes, caller, beside, share };
    let mut sequences = submit(&app, asked, &common).await?;
    let mut writer = Writer::new(&app, prompts, &common, echo);
    if common.stream {
        return Ok(stream::answer(&app, sequences, envelope, common.include_usage, writer));
    }
    let outputs = sequences.collect().await?;
    let choices = outputs.into_iter().enumerate().map(|(index, output)| writer.whole(index, output)).collect();
    Ok(stream::whole(&envelope, choices, sequences, None))
}

/// Returns the fields that `/v1/completions` reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![shared_part(), part!(Fields<'_>), structured_part()]
}

fn prepare(app: &App, received: Received) -> Result<PreparedPrompts, ApiError> {
    let Received { body, .. } = received;
    let mut share = Preparing::begin(app, &body, 0)?.share;
    let mut common = common::<Completions>(app, share.tenant(), body.json())?;
    common.constraint = constraint(body.json(), &mut share)?;
    let fields: Fields<'_> = read(body.json())?;
    let (echo, logprobs) = (sent(fields.echo).unwrap_or(false), sent(fields.logprobs));
    let add_special = sent(fields.add_special_tokens).unwrap_or(true);
    let prompts = fields.prompt.ok_or_else(|| ApiError::invalid("prompt", "the request has no prompt"))?;
    let prompts = prompts_of("prompt", prompts, app.config.sequences_max)?;
    drop(body);
    let echoing = echo.then_some(common.text.skip_special_tokens);
    let mut prompts = tokenized(app, prompts, add_special, echoing, &mut share)?;
    if let Some(truncation) = common.truncation {
        if echo {
            let message = "echo repeats the whole prompt, which truncate_prompt_tokens cuts; leave one of them out";
            return Err(ApiError::invalid("truncate_prompt_tokens", message));
        }
        let unasked = if common.unlimited { 1 } else { MAX_TOKENS_DEFAULT };
        let (bos, answer) = (app.tokenizer.bos_id(), common.max_tokens.unwrap_or(unasked));
        prompts.iter_mut().for_each(|prompt| truncation.apply(&mut prompt.ids, bos, app.engine.limits(), answer));
    }

    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    let room = app.engine.limits().max_model_len.saturating_sub(longest);
    common.params.logprobs = logprobs;
    common.params.max_tokens = match common.max_tokens {
        Some(asked) => asked,
        None if common.unlimited => tokens_unasked(app, &common, prompts.len(), longest),
        None => MAX_TOKENS_DEFAULT.min(room).max(1),
    };
    if echo {
        // A request with `max_tokens` 0 is computed only for the log-probabilities of its prompt, even if it asks for
        // none.
        let echoed = logprobs.or((common.params.max_tokens == 0).then_some(0));
        common.params.prompt_logprobs = common.params.prompt_logprobs.max(echoed);
        if common.beam.is_some() && common.params.prompt_logprobs.is_some() {
            let message = "a beam search tells no log-probabilities of the prompt; leave echo or logprobs out";
            return Err(ApiError::invalid("echo", message));
        }
    }
    Ok(PreparedPrompts { common, prompts, echo, share })
}

/// Reads the prompts of the field `name`: a text, a list of texts, a list of token ids, or a list of lists of token
/// ids. More than `most` prompts are an error.
pub(crate) fn prompts_of(name: &str, raw: &RawValue, most: usize) -> Result<Vec<Asking>, ApiError> {
    let first = raw.get().strip_prefix('[').map(|entries| entries.trim_start().as_bytes().first());
    let list = matches!(first, Some(Some(b'"' | b'[' | b'{' | b']')));
    match list.then(|| entries(raw, most)).flatten() {
        None => Ok(vec![Asking::read(name, raw)?]),
        Some((prompts, count)) if (1..=most).contains(&count) => {
            prompts.into_iter().map(|raw| Asking::read(name, raw)).collect()
        }
        Some((_, count)) => {
            let message = format!("{name} has {count} entries, but must have 1 to {most}");
            Err(ApiError::invalid(name, message))
        }
    }
}

impl Asking {
    fn read(name: &str, raw: &RawValue) -> Result<Self, ApiError> {
        let read = match raw.get().as_bytes().first() {
            Some(b'"') => String::from_json(raw).map(Self::Text),
            Some(b'[') => token_ids(raw, usize::MAX).map(Self::Ids),
            _ => Err(format!(
                "must be a text, a list of texts, a list of token ids or a list of such lists, but has {}",
                shown(raw.get())
            )),
        };
        read.map_err(|problem| ApiError::invalid(name, format!("{name} {problem}")))
    }
}

/// Returns the token ids of each prompt. If `echo` is given, the prompts' texts are kept for the answer, and its value
/// says whether special tokens are left out of these texts.
fn tokenized(
    app: &App,
    prompts: Vec<Asking>,
    add_special: bool,
    echo: Option<bool>,
    share: &mut Share,
) -> Result<Vec<Prompt>, ApiError> {
    let mut decoded = 0;
    let one = |asking| match asking {
        Asking::Text(text) => {
            let ids = app.encode(share.tenant(), "prompt", &text, add_special)?;
            Ok(Prompt { ids, echo: if echo.is_some() { text } else { String::new() } })
        }
        Asking::Ids(ids) => {
            let echo = echo.map(|skip_special| app.decode(&ids, skip_special, share, &mut decoded)).transpose()?;
            Ok(Prompt { ids, echo: echo.unwrap_or_default() })
        }
    };
    prompts.into_iter().map(one).collect()
}

/// Returns a random id that begins with `prefix`.
pub(crate) fn unique_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// Writes the `choices` of an answer from what the engine has generated.
struct Writer {
    app: Arc<App>,
    prompts: Vec<Prompt>,
    n: usize,
    echo: bool,
    /// The number of alternatives whose log-probabilities the answer lists for each token, or `None` if it lists no
    /// log-probabilities.
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    /// The position in the text at which the next token of each sequence begins.
    offsets: Vec<TextOffsets>,
}

impl Writer {
    fn new(app: &Arc<App>, prompts: Vec<Prompt>, common: &Common, echo: bool) -> Self {
        let Common { n, prompt_logprobs, .. } = *common;
        let logprobs = common.params.logprobs;
        let offsets = || TextOffsets::new(app.tokenizer.clone(), common.text.skip_special_tokens);
        let offsets = (0..prompts.len() * n).map(|_| offsets()).collect();
        Self { app: app.clone(), prompts, n, echo, logprobs, prompt_logprobs, offsets }
    }

    fn whole(&mut self, index: usize, output: Output) -> Choice {
        let mut logprobs = CompletionLogprobs::default();
        let told = |top| prompt_text(&self.app.tokenizer, &output.prompt.logprobs, top);
        let prompt_logprobs = self.prompt_logprobs.map(told);
        let mut text = self.echoed(index, &output.prompt, &mut logprobs);
        text.push_str(&output.text);
        for (token, position) in &output.tokens {
            logprobs.push(&self.app.tokenizer, *token, Some(position), self.offsets[index].next(*token));
        }
        let logprobs = self.logprobs.map(|_| logprobs.into_text());
        Choice { choice: self.choice(index, text, Value::Null, output.cause), logprobs, prompt_logprobs }
    }

    /// Returns the prompt's text if the answer repeats it, and adds the log-probabilities of the prompt's tokens if
    /// the request asks for them.
    fn echoed(&mut self, index: usize, prompt: &PromptDone, logprobs: &mut CompletionLogprobs) -> String {
        let Some(echoed) = self.prompts.get(index / self.n).filter(|_| self.echo) else { return String::new() };
        if let Some(top) = self.logprobs {
            let offsets = self.offsets[index].of_prompt(&echoed.ids, &echoed.echo);
            for ((&token, position), offset) in echoed.ids.iter().zip(&prompt.logprobs).zip(offsets) {
                // The engine may have computed more alternatives, for `prompt_logprobs`.
                let position = position.as_ref().map(|position| position.best(top));
                logprobs.push(&self.app.tokenizer, token, position.as_ref(), offset);
            }
        }
        echoed.echo.clone()
    }

    fn choice(&self, index: usize, text: String, logprobs: Value, cause: Option<StopCause>) -> Value {
        json!({
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": cause.as_ref().map(StopCause::openai_name),
            "stop_reason": cause.as_ref().map_or(Value::Null, stop_reason),
        })
    }
}

impl Choices for Writer {
    fn choices(&mut self, index: usize, Delta { text: delta, .. }: Delta) -> Vec<Value> {
        let mut logprobs = CompletionLogprobs::default();
        let mut text = delta.prompt.map(|prompt| self.echoed(index, &prompt, &mut logprobs)).unwrap_or_default();
        text.push_str(&delta.text);
        let mut has_logprobs = self.logprobs.is_some() && !text.is_empty();
        if let Some((token, Some(position))) = delta.token {
            logprobs.push(&self.app.tokenizer, token, Some(&position), self.offsets[index].next(token));
            has_logprobs = true;
        }
        let cause = delta.finished.and_then(Result::ok);
        if text.is_empty() && !has_logprobs && cause.is_none() {
            return Vec::new();
        }
        let logprobs = self.logprobs.map_or(Value::Null, |_| logprobs.to_json());
        vec![self.choice(index, text, logprobs, cause)]
    }

    fn empty(&self, index: usize) -> Value {
        self.choice(index, String::new(), Value::Null, None)
    }
}

/// Returns vLLM's `stop_reason`, which is the stop string or the stop token that ended the answer, if there is one.
pub(crate) fn stop_reason(cause: &StopCause) -> Value {
    match cause {
        StopCause::StopString(stop) => json!(stop),
        StopCause::StopToken(token) => json!(token),
        StopCause::EndOfSequence | StopCause::Complete | StopCause::Length => Value::Null,
    }
}
