//! `/v1/messages`: Anthropic's API, over the same path as a chat.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use strata_engine::TokenId;
use strata_engine::text::{StopCause, TextDelta};

use crate::app::App;
use crate::blocks::{Turns, object_of, refuse, role_of, text_of};
use crate::body::{Preparing, Received, ReceivedBody, receive};
use crate::endpoints::chat::Rendering;
use crate::endpoints::completions::unique_id;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, read, sent, shown};
use crate::generate::{Asked, Sequences, submit};
use crate::json_cost::JsonCost;
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::request_id::REQUEST_ID;
use crate::sampling::{Common, Stops, check_name, top_k_of, unasked};
use crate::stream::{self, Events, named};

/// The version of the API, which its clients send along.
const VERSION: &str = "anthropic-version";
const VERSION_KNOWN: &str = "2023-06-01";

/// The fields of this API, but for the conversation.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    max_tokens: Option<Field<usize>>,
    stop_sequences: Option<Field<Stops>>,
    stream: Option<Field<bool>>,
    temperature: Option<Field<f32>>,
    top_p: Option<Field<f32>>,
    top_k: Option<Field<i64>>,
    metadata: Option<Field<Object<Metadata>>>,
    #[serde(borrow)]
    thinking: Option<Field<Object<Thinking<'b>>>>,
    #[serde(borrow)]
    tools: Option<&'b RawValue>,
    #[serde(borrow)]
    mcp_servers: Option<&'b RawValue>,
    #[serde(borrow)]
    container: Option<&'b RawValue>,
    #[serde(borrow)]
    context_management: Option<&'b RawValue>,
    #[serde(borrow)]
    output_config: Option<&'b RawValue>,
    #[serde(borrow)]
    output_format: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    user_id: Option<Field<String>>,
}

#[derive(Deserialize)]
struct Thinking<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
}

/// The fields that become the prompt.
#[derive(Deserialize)]
struct Conversation {
    messages: Option<Field<Vec<Value>>>,
    system: Option<Field<Blocks>>,
}

/// The same, counted before they become values.
#[derive(Deserialize)]
struct ConversationCost {
    messages: Option<Field<JsonCost>>,
    system: Option<Field<JsonCost>>,
}

/// A text, or a list of blocks.
struct Blocks(Value);

impl FromJson<'_> for Blocks {
    const EXPECTED: &'static str = "a text or a list of blocks";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw.get().as_bytes().first() {
            Some(b'"') => String::from_json(raw).map(|text| Self(text.into())),
            Some(b'[') => Vec::from_json(raw).map(|blocks| Self(Value::Array(blocks))),
            _ => Err(Self::other(raw)),
        }
    }
}

/// A request, read and tokenized.
struct Prepared {
    common: Common,
    prompt: Vec<TokenId>,
    share: Share,
    /// Whether the context leaves fewer tokens than were asked for.
    is_cut: bool,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    check_version(request.headers())?;
    let received = receive(&app, request).await?;
    let tenant = received.tenant;
    let Prepared { common, prompt, share, is_cut } = app.blocking(move |app| prepare(app, received)).await?;
    let asked = Asked { prompts: vec![prompt], echo_bytes: 0, tenant, share };
    let mut sequences = submit(&app, asked, &common).await?;
    let writer = Writer { id: unique_id("msg_"), model: app.model_name().to_owned(), is_cut, cause: None };
    if common.stream {
        return Ok(stream::events(&app, sequences, writer));
    }
    let output = sequences.collect().await?.pop().unwrap_or_default();
    let (reason, sequence) = writer.reason(output.cause.as_ref());
    let mut message = writer.message(&sequences);
    message["content"] = json!([{"type": "text", "text": output.text}]);
    (message["stop_reason"], message["stop_sequence"]) = (reason, sequence);
    let shares = [sequences.take_share(), sequences.take_answer()].into_iter().flatten().collect();
    Ok(stream::json(message.to_string().into_bytes(), shares))
}

/// `/v1/messages/count_tokens`: the tokens that the prompt would have.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    check_version(request.headers())?;
    let received = receive(&app, request).await?;
    let answer = app.blocking(move |app| {
        let Received { body, .. } = received;
        let preparing = begin(app, &body)?;
        common_of(app, &body)?;
        let prompt = prompt(app, body, preparing.rendered_max)?;
        let answer = json!({"input_tokens": prompt.len()});
        Ok(stream::json(answer.to_string().into_bytes(), vec![preparing.share]))
    });
    answer.await
}

/// The fields that it reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![part!(Fields<'_>), part!(Conversation)]
}

/// Gives refusals the form that this API has for them.
pub(crate) async fn in_its_form(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let mut body = error_json(error);
    body["request_id"] = json!(id);
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    (parts, axum::Json(body)).into_response()
}

fn error_json(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

/// A client may leave the version out. Those of 2023 to 2026 have the same forms for what is read and written here, and
/// a later one is taken at its word: it is a date.
fn check_version(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(version) = headers.get(VERSION) else { return Ok(()) };
    let version = version.to_str().unwrap_or("unreadable");
    let parts: Vec<_> = version.split('-').map(|part| (part.len(), part.parse::<u32>())).collect();
    match parts[..] {
        [(4, Ok(2023..)), (2, Ok(1..=12)), (2, Ok(1..=31))] => Ok(()),
        _ => {
            refuse(VERSION, format!("is {}, but must be a date from 2023 on, such as {VERSION_KNOWN}", shown(version)))
        }
    }
}

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let preparing = begin(app, &body)?;
    let mut common = common_of(app, &body)?;
    let Some(asked) = common.max_tokens else {
        return Err(ApiError::invalid(
            "max_tokens",
            "the request has no max_tokens; send how many the answer may have",
        ));
    };
    let prompt = prompt(app, body, preparing.rendered_max)?;
    // A prompt without room is refused by the engine, which knows why there is none.
    let room = app.engine.limits().max_model_len.saturating_sub(prompt.len());
    common.params.max_tokens = if room == 0 { asked } else { asked.min(room) };
    Ok(Prepared { is_cut: asked > room, common, prompt, share: preparing.share })
}

/// Waits for the memory to prepare a body.
fn begin(app: &App, body: &ReceivedBody) -> Result<Preparing, ApiError> {
    let ConversationCost { messages, system } = read(body.json())?;
    let costs = [messages, system].into_iter().flatten();
    let values = costs.fold(0usize, |sum, Field(JsonCost(cost))| sum.saturating_add(cost));
    // The parsed ones, and the template's two copies.
    Preparing::begin(app, body, values.saturating_mul(3))
}

/// Reads and checks all fields but the conversation.
fn common_of(app: &App, body: &ReceivedBody) -> Result<Common, ApiError> {
    let fields: Fields<'_> = read(body.json())?;
    check_name(app, sent(fields.model))?;
    // Tools are not joined to this API yet.
    for (name, value) in [
        ("tools", fields.tools),
        ("mcp_servers", fields.mcp_servers),
        ("container", fields.container),
        ("context_management", fields.context_management),
        ("output_config", fields.output_config),
        ("output_format", fields.output_format),
    ] {
        if let Some(value) = value.filter(|value| !matches!(value.get(), "[]" | "{}" | "null")) {
            return refuse(name, format!("is {}, which is not supported here; leave it out", shown(value.get())));
        }
    }
    if let Some(Object(Thinking { kind })) = sent(fields.thinking)
        && let kind = kind.map_or("null", RawValue::get)
        && kind != r#""disabled""#
    {
        return refuse("thinking.type", format!("is {}, but only \"disabled\" is supported here", shown(kind)));
    }
    // Whose request it is changes nothing here, but it must be a text.
    let _ = sent(fields.metadata).map(|Object(Metadata { user_id })| user_id);
    let mut common = unasked(app);
    let params = &mut common.params;
    params.temperature = sent(fields.temperature).unwrap_or(params.temperature);
    params.top_p = sent(fields.top_p).unwrap_or(params.top_p);
    params.top_k = sent(fields.top_k).map_or(Ok(params.top_k), top_k_of)?;
    common.text.stop = sent(fields.stop_sequences).map_or_else(Vec::new, |Stops(stops)| stops);
    common.max_tokens = sent(fields.max_tokens);
    common.stream = sent(fields.stream).unwrap_or(false);
    Ok(common)
}

/// The tokens of the conversation. A last message of the assistant is continued.
fn prompt(app: &App, body: ReceivedBody, rendered_max: usize) -> Result<Vec<TokenId>, ApiError> {
    let Conversation { messages, system } = read(body.json())?;
    drop(body);
    let mut turns = Turns::default();
    if let Some(Blocks(system)) = sent(system) {
        turns.push("system", text_of(system, "system", &["text"])?);
    }
    let messages = sent(messages).unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages has no messages; send at least one"));
    }
    for (index, message) in messages.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        let mut message = object_of(message, &path)?;
        let role = role_of(&message, &path, &["user", "assistant", "system"])?;
        let content = message.get_mut("content").map_or(Value::Null, Value::take);
        turns.push(role, text_of(content, &format!("{path}.content"), &["text"])?);
    }
    let continued = turns.last_role() == Some("assistant");
    let messages = turns.into_messages();
    Rendering { messages, continued, add_generation_prompt: !continued, ..Rendering::default() }
        .tokens(app, rendered_max)
}

/// Makes events of what comes.
struct Writer {
    id: String,
    model: String,
    is_cut: bool,
    cause: Option<StopCause>,
}

impl Writer {
    /// The message before its first token.
    fn message(&self, sequences: &Sequences) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(sequences),
        })
    }

    /// `stop_reason` and `stop_sequence`.
    fn reason(&self, cause: Option<&StopCause>) -> (Value, Value) {
        match cause {
            None => (Value::Null, Value::Null),
            Some(StopCause::StopString(stop)) => (json!("stop_sequence"), json!(stop)),
            Some(StopCause::EndOfSequence | StopCause::StopToken(_) | StopCause::Complete) => {
                (json!("end_turn"), Value::Null)
            }
            Some(StopCause::Length) if self.is_cut => (json!("model_context_window_exceeded"), Value::Null),
            Some(StopCause::Length) => (json!("max_tokens"), Value::Null),
        }
    }
}

/// Tokens that were in the cache are counted by themselves, as this API has it.
fn usage(sequences: &Sequences) -> Value {
    let cached = sequences.cached_tokens();
    json!({
        "input_tokens": sequences.prompt_tokens() - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sequences.completion_tokens(),
    })
}

impl Events for Writer {
    fn delta(&mut self, _: usize, delta: TextDelta, sequences: &Sequences) -> Vec<String> {
        let mut events = Vec::new();
        if delta.prompt.is_some() {
            events.push(named("message_start", json!({"message": self.message(sequences)})));
            let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
            events.extend([named("content_block_start", block), named("ping", Value::Null)]);
        }
        if !delta.text.is_empty() {
            let delta = json!({"type": "text_delta", "text": delta.text});
            events.push(named("content_block_delta", json!({"index": 0, "delta": delta})));
        }
        if let Some(Ok(cause)) = delta.finished {
            self.cause = Some(cause);
        }
        events
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let (reason, sequence) = self.reason(self.cause.as_ref());
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        vec![
            named("content_block_stop", json!({"index": 0})),
            named("message_delta", json!({"delta": delta, "usage": usage(sequences)})),
            named("message_stop", Value::Null),
        ]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        vec![named("error", json!({"error": error_json(error)["error"]}))]
    }

    fn idle(&mut self) -> Option<String> {
        Some(named("ping", Value::Null))
    }
}
