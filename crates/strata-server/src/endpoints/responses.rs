//! `/v1/responses`: OpenAI's newer API, over the same path as a chat. Nothing is stored: what would need a response of
//! before is refused by name.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use strata_engine::TokenId;
use strata_engine::text::{StopCause, TextDelta};

use crate::app::{App, unix_seconds};
use crate::blocks::{Turns, object_of, refuse, role_of, text_of};
use crate::body::{Preparing, Received, receive};
use crate::endpoints::chat::Rendering;
use crate::endpoints::completions::unique_id;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, is_text, read, sent, shown};
use crate::generate::{Asked, Sequences, submit};
use crate::json_cost::JsonCost;
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::sampling::{Common, check_name, unasked};
use crate::stream::{self, Events, named};

/// Most entries of `metadata`, and the longest of their texts, as OpenAI has them.
const METADATA_MAX: usize = 16;
const METADATA_BYTES_MAX: usize = 512;
/// Text of a token, on average and rather too long: a stream keeps its text for the events at its end.
const TOKEN_TEXT_BYTES: usize = 8;

/// The fields of this API, but for the conversation.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    max_output_tokens: Option<Field<usize>>,
    stream: Option<Field<bool>>,
    temperature: Option<Field<f32>>,
    top_p: Option<Field<f32>>,
    metadata: Option<Field<Metadata>>,
    #[serde(borrow)]
    text: Option<Field<Object<Text<'b>>>>,
    #[serde(borrow)]
    reasoning: Option<Field<Object<Reasoning<'b>>>>,
    user: Option<Field<String>>,
    #[serde(borrow)]
    store: Option<&'b RawValue>,
    #[serde(borrow)]
    previous_response_id: Option<&'b RawValue>,
    #[serde(borrow)]
    conversation: Option<&'b RawValue>,
    #[serde(borrow)]
    background: Option<&'b RawValue>,
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
    #[serde(borrow)]
    include: Option<&'b RawValue>,
    #[serde(borrow)]
    tools: Option<&'b RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'b RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<&'b RawValue>,
    #[serde(borrow)]
    truncation: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct Text<'b> {
    #[serde(borrow)]
    format: Option<Field<Object<Format<'b>>>>,
}

#[derive(Deserialize)]
struct Format<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct Reasoning<'b> {
    effort: Option<Field<String>>,
    #[serde(borrow)]
    summary: Option<&'b RawValue>,
}

/// The fields that become the prompt.
#[derive(Deserialize)]
struct Conversation {
    input: Option<Field<Input>>,
    instructions: Option<Field<String>>,
}

/// The same, counted before they become values.
#[derive(Deserialize)]
struct ConversationCost {
    input: Option<Field<JsonCost>>,
}

/// What the model is to answer.
enum Input {
    Text(String),
    Items(Vec<Value>),
}

impl FromJson<'_> for Input {
    const EXPECTED: &'static str = "a text or a list of items";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw.get().as_bytes().first() {
            Some(b'"') => String::from_json(raw).map(Self::Text),
            Some(b'[') => Vec::from_json(raw).map(Self::Items),
            _ => Err(Self::other(raw)),
        }
    }
}

/// What the client wants to find in the answer again.
struct Metadata(Map<String, Value>);

impl FromJson<'_> for Metadata {
    const EXPECTED: &'static str = "an object of texts";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let pairs: Vec<(String, String)> = crate::fields::pairs(raw)?;
        if pairs.len() > METADATA_MAX {
            return Err(format!("has {} entries, but at most {METADATA_MAX} are allowed", pairs.len()));
        }
        if let Some((key, _)) = pairs.iter().find(|(key, value)| key.len().max(value.len()) > METADATA_BYTES_MAX) {
            return Err(format!("has {}, longer than {METADATA_BYTES_MAX} bytes with its value", shown(key)));
        }
        Ok(Self(pairs.into_iter().map(|(key, value)| (key, value.into())).collect()))
    }
}

/// A request, read and tokenized.
struct Prepared {
    common: Common,
    prompt: Vec<TokenId>,
    share: Share,
    /// The response before its first token.
    response: Map<String, Value>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let tenant = received.tenant;
    let Prepared { common, prompt, share, response } = app.blocking(move |app| prepare(app, received)).await?;
    let echo_bytes = if common.stream { common.params.max_tokens.saturating_mul(TOKEN_TEXT_BYTES) } else { 0 };
    let asked = Asked { prompts: vec![prompt], echo_bytes, tenant, share };
    let mut sequences = submit(&app, asked, &common).await?;
    let mut writer = Writer { response, item: unique_id("msg_"), text: String::new(), cause: None, number: 0 };
    if common.stream {
        return Ok(stream::events(&app, sequences, writer));
    }
    let output = sequences.collect().await?.pop().unwrap_or_default();
    (writer.text, writer.cause) = (output.text, output.cause);
    let body = writer.ended(&sequences).to_string().into_bytes();
    let shares = [sequences.take_share(), sequences.take_answer()].into_iter().flatten().collect();
    Ok(stream::json(body, shares))
}

/// The fields that it reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![part!(Fields<'_>), part!(Conversation)]
}

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let ConversationCost { input } = read(body.json())?;
    let values = input.map_or(0, |Field(JsonCost(cost))| cost);
    // The parsed ones, and the template's two copies.
    let preparing = Preparing::begin(app, &body, values.saturating_mul(3))?;
    let fields: Fields<'_> = read(body.json())?;
    check_supported(&fields)?;
    check_name(app, sent(fields.model))?;
    let mut common = unasked(app);
    let params = &mut common.params;
    params.temperature = sent(fields.temperature).unwrap_or(params.temperature);
    params.top_p = sent(fields.top_p).unwrap_or(params.top_p);
    common.max_tokens = sent(fields.max_output_tokens);
    common.stream = sent(fields.stream).unwrap_or(false);
    let effort = sent(fields.reasoning).and_then(|Object(Reasoning { effort, .. })| sent(effort));
    let (metadata, user) =
        (sent(fields.metadata).map_or_else(Map::new, |Metadata(metadata)| metadata), sent(fields.user));
    let Conversation { input, instructions } = read(body.json())?;
    drop(body);
    let instructions = sent(instructions);
    let response = json!({
        "id": unique_id("resp_"),
        "object": "response",
        "created_at": unix_seconds(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": instructions,
        "max_output_tokens": common.max_tokens,
        "model": app.model_name(),
        "output": [],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": effort, "summary": null},
        "store": false,
        "temperature": common.params.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": common.params.top_p,
        "truncation": "disabled",
        "usage": null,
        "user": user,
        "metadata": metadata,
    });
    let Value::Object(response) = response else { return Err(ApiError::internal("a response is an object")) };

    let mut rendering =
        Rendering { messages: turns(input, instructions)?, add_generation_prompt: true, ..Rendering::default() };
    if let Some(effort) = effort {
        // Under the name that templates know it by.
        rendering.kwargs.insert("reasoning_effort".into(), effort.into());
    }
    let prompt = rendering.tokens(app, preparing.rendered_max)?;
    // A prompt without room is refused by the engine, which knows why there is none.
    let room = app.engine.limits().max_model_len.saturating_sub(prompt.len());
    common.params.max_tokens = common.max_tokens.unwrap_or(room.max(1));
    Ok(Prepared { common, prompt, share: preparing.share, response })
}

/// Refuses what would need state between requests, and what is not supported yet.
fn check_supported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let asks = |value: &&RawValue| !matches!(value.get(), "null" | "false" | "[]" | "{}" | "0");
    let no_state = "but this server keeps no responses; send the whole conversation as input";
    for (name, value, why) in [
        ("previous_response_id", fields.previous_response_id, no_state),
        ("conversation", fields.conversation, no_state),
        ("store", fields.store, "but this server keeps no responses; send false, or leave it out"),
        ("background", fields.background, "but this server keeps no responses to be fetched later; send false"),
        ("prompt", fields.prompt, "but this server keeps no prompts; send input and instructions"),
        ("include", fields.include, "which is not supported; leave it out"),
        // Tools are not joined to this API yet.
        ("tools", fields.tools, "which is not supported here; leave it out, or use /v1/chat/completions"),
        ("top_logprobs", fields.top_logprobs, "which is not supported here; use /v1/chat/completions"),
    ] {
        if let Some(value) = value.filter(asks) {
            return refuse(name, format!("is {}, {why}", shown(value.get())));
        }
    }
    if let Some(choice) = fields.tool_choice.filter(|choice| !is_text(choice, "auto") && !is_text(choice, "none")) {
        return refuse("tool_choice", format!("is {}, but there are no tools here", shown(choice.get())));
    }
    if let Some(truncation) = fields.truncation.filter(|truncation| !is_text(truncation, "disabled")) {
        return refuse("truncation", format!("is {}, but only \"disabled\" is supported", shown(truncation.get())));
    }
    if let Some(Field(Object(Text { format: Some(Field(Object(Format { kind }))) }))) = &fields.text
        && !kind.is_some_and(|kind| is_text(kind, "text"))
    {
        let kind = kind.map_or("null", RawValue::get);
        return refuse("text.format.type", format!("is {}, but only \"text\" is supported here", shown(kind)));
    }
    if let Some(Field(Object(Reasoning { summary: Some(summary), .. }))) = &fields.reasoning {
        return refuse(
            "reasoning.summary",
            format!("is {}, which is not supported; leave it out", shown(summary.get())),
        );
    }
    Ok(())
}

/// The conversation as templates know it.
fn turns(input: Option<Field<Input>>, instructions: Option<String>) -> Result<Vec<Value>, ApiError> {
    let mut turns = Turns::default();
    if let Some(instructions) = instructions {
        turns.push("system", instructions);
    }
    match sent(input) {
        Some(Input::Text(text)) => turns.push("user", text),
        Some(Input::Items(items)) if !items.is_empty() => {
            for (index, item) in items.into_iter().enumerate() {
                let path = format!("input[{index}]");
                let mut item = object_of(item, &path)?;
                if let Some(kind) = item.get("type").filter(|&kind| kind != "message") {
                    let problem = "which is not supported here; this server reads items of message";
                    return refuse(&format!("{path}.type"), format!("is {}, {problem}", shown(&kind.to_string())));
                }
                let role = role_of(&item, &path, &["user", "assistant", "system", "developer"])?;
                let content = item.get_mut("content").map_or(Value::Null, Value::take);
                let kinds = ["input_text", "output_text", "text"];
                let text = text_of(content, &format!("{path}.content"), &kinds)?;
                turns.push(if role == "developer" { "system" } else { role }, text);
            }
        }
        _ => return Err(ApiError::invalid("input", "the request has no input; send a text, or a list of items")),
    }
    Ok(turns.into_messages())
}

/// Makes events of what comes.
struct Writer {
    response: Map<String, Value>,
    /// The id of the one item of the output.
    item: String,
    text: String,
    cause: Option<StopCause>,
    /// Events so far.
    number: u64,
}

impl Writer {
    fn event(&mut self, name: &str, mut data: Value) -> String {
        data["sequence_number"] = self.number.into();
        self.number += 1;
        named(name, data)
    }

    fn part(&self) -> Value {
        json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
    }

    fn item(&self, status: &str, content: Vec<Value>) -> Value {
        json!({"id": self.item, "type": "message", "status": status, "role": "assistant", "content": content})
    }

    /// Where in the response an event happens.
    fn place(&self) -> Value {
        json!({"item_id": self.item, "output_index": 0, "content_index": 0})
    }

    /// `completed`, unless the answer was cut short.
    fn status(&self) -> &'static str {
        if self.cause == Some(StopCause::Length) { "incomplete" } else { "completed" }
    }

    /// The whole response.
    fn ended(&mut self, sequences: &Sequences) -> Value {
        let status = self.status();
        let output = self.item(status, vec![self.part()]);
        let (input_tokens, output_tokens) = (sequences.prompt_tokens(), sequences.completion_tokens());
        let reason = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        self.response["status"] = status.into();
        self.response["incomplete_details"] = reason.unwrap_or(Value::Null);
        self.response["output"] = vec![output].into();
        self.response["usage"] = json!({
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": sequences.cached_tokens()},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        });
        Value::Object(self.response.clone())
    }
}

impl Events for Writer {
    fn delta(&mut self, _: usize, delta: TextDelta, _: &Sequences) -> Vec<String> {
        let mut events = Vec::new();
        if delta.prompt.is_some() {
            for name in ["response.created", "response.in_progress"] {
                let response = self.response.clone();
                events.push(self.event(name, json!({"response": response})));
            }
            let item = self.item("in_progress", Vec::new());
            events.push(self.event("response.output_item.added", json!({"output_index": 0, "item": item})));
            let mut added = self.place();
            added["part"] = self.part();
            events.push(self.event("response.content_part.added", added));
        }
        if !delta.text.is_empty() {
            self.text.push_str(&delta.text);
            let mut more = self.place();
            (more["delta"], more["logprobs"]) = (delta.text.into(), json!([]));
            events.push(self.event("response.output_text.delta", more));
        }
        if let Some(Ok(cause)) = delta.finished {
            self.cause = Some(cause);
        }
        events
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let mut text = self.place();
        (text["text"], text["logprobs"]) = (self.text.as_str().into(), json!([]));
        let mut part = self.place();
        part["part"] = self.part();
        let (status, item) = (self.status(), self.item(self.status(), vec![self.part()]));
        let response = self.ended(sequences);
        vec![
            self.event("response.output_text.done", text),
            self.event("response.content_part.done", part),
            self.event("response.output_item.done", json!({"output_index": 0, "item": item})),
            self.event(&format!("response.{status}"), json!({"response": response})),
        ]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        let code = error.code.unwrap_or("server_error");
        self.response["status"] = "failed".into();
        self.response["error"] = json!({"code": code, "message": error.message});
        let response = self.response.clone();
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
