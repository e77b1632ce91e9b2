//! Implements `/v1/responses`, which is OpenAI's newer API. The server translates conversations of this API into the
//! form of chats, and renders them like chats. The server stores no responses, so it refuses fields that refer to
//! earlier ones.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::response::Response;
use interbed_engine::text::StopCause;
use interbed_engine::{TokenId, json_value};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::answer::{Called, Form};
use crate::app::{App, unix_seconds};
use crate::blocks::{object_of, refuse, role_of, text_in};
use crate::body::{Preparing, Received, receive};
use crate::contents::{Media, text_of};
use crate::endpoints::chat::{Prompt, Rendering, add_effort, of_chats};
use crate::endpoints::completions::unique_id;
use crate::error::{ApiError, CONTEXT_EXCEEDED};
use crate::fields::{Field, FromJson, Object, is_text, read, sent, shown};
use crate::generate::{Asked, Delta, Sequences, submit};
use crate::history::{History, newest_turn, told_as_text};
use crate::json_cost::{JsonCost, bytes_of};
use crate::memory::Share;
use crate::openapi::{Part, fields_of_all, part};
use crate::outline::{Block, Blocks, Change, Outline};
use crate::sampling::{Common, conversation_part, of_conversation};
use crate::stream::{self, Events, named};
use crate::structured::{check_strict, json_constraint};
use crate::tool_choice::{Choice, ToolChoice};
use crate::tool_list::{ToolList, arguments_of_text, joined_name};
use crate::tool_use::{AskedTools, bind};
use crate::unsupported::{Api, Supported, of_messages};

/// The maximum number of entries of `metadata`, as in OpenAI's API.
const METADATA_MAX: usize = 16;
/// The maximum number of bytes of a key or a value of `metadata`.
const METADATA_BYTES_MAX: usize = 512;
/// The estimated number of bytes of a token's text, rather too high than too low. Streams reserve memory by this
/// number, because their last events repeat the whole text.
const TOKEN_TEXT_BYTES: usize = 8;

/// Fields that the answer repeats exactly as the client sent them.
#[derive(Deserialize)]
struct Repeated<'b> {
    #[serde(borrow)]
    temperature: Option<&'b RawValue>,
    #[serde(borrow)]
    top_p: Option<&'b RawValue>,
}

/// The request fields, without those of the conversation.
#[derive(Deserialize)]
struct Fields<'b> {
    max_output_tokens: Option<Field<usize>>,
    metadata: Option<Field<Metadata>>,
    #[serde(borrow)]
    text: Option<Field<Object<Text<'b>>>>,
    reasoning: Option<Field<Object<Reasoning>>>,
    user: Option<Field<String>>,
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
    tool_choice: Option<&'b RawValue>,
    parallel_tool_calls: Option<Field<bool>>,
    #[serde(borrow)]
    top_logprobs: Option<&'b RawValue>,
    #[serde(borrow)]
    truncation: Option<&'b RawValue>,
    #[serde(rename = "stream_options")]
    _stream_options: Option<Field<Object<StreamOptions>>>,
}

/// The options of a stream. The server accepts `include_obfuscation`, but never obfuscates a stream.
#[derive(Deserialize)]
struct StreamOptions {
    #[serde(rename = "include_obfuscation")]
    _obfuscated: Option<Field<bool>>,
}

#[derive(Deserialize)]
struct Text<'b> {
    #[serde(borrow)]
    format: Option<Field<Object<Format<'b>>>>,
    #[serde(borrow)]
    verbosity: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct Format<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
    name: Option<Field<String>>,
    /// Whether the schema is strict, which the answer repeats. The server enforces schemas in both cases.
    strict: Option<Field<bool>>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<Field<String>>,
}

/// The fields from which the prompt is made.
#[derive(Deserialize)]
struct Conversation {
    input: Option<Field<Input>>,
    instructions: Option<Field<String>>,
    tools: Option<Field<Vec<Value>>>,
}

/// The memory that the fields of a [`Conversation`] take as JSON values, counted before they are parsed.
#[derive(Deserialize)]
struct ConversationCost {
    input: Option<Field<JsonCost>>,
    tools: Option<Field<JsonCost>>,
}

/// The conversation that the model should answer.
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

/// The key-value pairs that the answer repeats for the client.
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

/// A request whose fields are read and whose prompt is tokenized.
struct Prepared {
    common: Common,
    prompt: Vec<TokenId>,
    share: Share,
    form: Form,
    /// The fields of the response object before its first token.
    response: Map<String, Value>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let Prepared { common, prompt, share, form, response } =
        app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let echo_bytes = if common.stream { common.params.max_tokens.saturating_mul(TOKEN_TEXT_BYTES) } else { 0 };
    let beside = response.iter().map(|(name, value)| name.len() + bytes_of(&value.to_string())).sum();
    let asked = Asked { prompts: vec![prompt], form: Some(form), echo_bytes, caller, beside, share };
    let mut writer = Writer {
        response,
        outline: Outline::default(),
        blocks: Blocks::default(),
        ids: Vec::new(),
        reasoning_tokens: 0,
        cause: None,
        number: 0,
    };
    let mut sequences = match submit(&app, asked, &common).await {
        // Codex reads this error code only in events, and then shortens its conversation.
        Err(error) if common.stream && error.code == Some(CONTEXT_EXCEEDED) => {
            let mut events = writer.begin();
            events.extend(writer.failed(&error));
            return Ok(stream::ended(&events));
        }
        submitted => submitted?,
    };
    if common.stream {
        return Ok(stream::events(&app, sequences, writer));
    }
    sequences.collect_with(|delta| drop(writer.changes(delta))).await?;
    drop(writer.last_changes());
    let body = writer.ended(&sequences).to_string().into_bytes();
    Ok(stream::json(body, sequences.take_shares()))
}

/// Answers `/v1/responses/input_tokens`: counts the tokens of the prompt without generating an answer.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let prepared = app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let answer = json!({"object": "response.input_tokens", "input_tokens": prepared.prompt.len()});
    Ok(stream::json(answer.to_string().into_bytes(), vec![prepared.share]))
}

/// Names the fields of other APIs that `/v1/responses` does not have.
struct OfResponses;

impl Api for OfResponses {
    fn elsewhere(name: &str) -> Option<&'static str> {
        static FIELDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&parts()));
        if FIELDS.contains(&name) { None } else { of_chats(name).or_else(|| of_messages(name)) }
    }
}

/// Returns the fields that `/v1/responses` reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![conversation_part(), part!(Fields<'_>), part!(Repeated<'_>), part!(Conversation)]
}

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let ConversationCost { input, tools } = read(body.json())?;
    let mut preparing = Preparing::conversation(app, &body, [input, tools])?;
    read::<Supported<OfResponses>>(body.json())?.tell(&app.notes);
    let fields: Fields<'_> = read(body.json())?;
    check_supported(&fields)?;
    tell_left_out(app, &fields);
    let mut common = of_conversation(app, body.json())?;
    common.max_tokens = sent(fields.max_output_tokens);
    let format = format(sent(fields.text), &mut common, &mut preparing.share)?;
    let choice = ToolChoice::read(fields.tool_choice)?;
    let tool_choice = match &choice.choice {
        None => json!("none"),
        Some(Choice::Auto) => json!("auto"),
        Some(Choice::Required) => json!("required"),
        // `ToolChoice::read` has parsed this JSON, so parsing cannot fail here.
        Some(Choice::Named(_)) => fields.tool_choice.and_then(|raw| json_value(raw.get()).ok()).unwrap_or_default(),
    };
    let parallel = sent(fields.parallel_tool_calls).unwrap_or(true);
    let effort = sent(fields.reasoning).and_then(|Object(Reasoning { effort, .. })| sent(effort));
    let (metadata, user) =
        (sent(fields.metadata).map_or_else(Map::new, |Metadata(metadata)| metadata), sent(fields.user));
    let Repeated { temperature, top_p } = read(body.json())?;
    let repeated = |raw: Option<&RawValue>, used: f32| {
        raw.and_then(|raw| json_value(raw.get()).ok()).unwrap_or_else(|| json!(used))
    };
    let (temperature, top_p) = (repeated(temperature, common.params.temperature), repeated(top_p, common.params.top_p));
    let Conversation { input, instructions, tools } = read(body.json())?;
    drop(body);
    let instructions = sent(instructions);
    let as_sent = sent(tools).unwrap_or_default();
    let list = ToolList::of_responses(&as_sent, &app.notes)?;
    let choice = choice.checked(&list)?;
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
        "model": common.model,
        "output": [],
        "parallel_tool_calls": parallel,
        "previous_response_id": null,
        "reasoning": {"effort": effort, "summary": null},
        "store": false,
        "temperature": temperature,
        "text": {"format": format},
        "tool_choice": tool_choice,
        "tools": as_sent,
        "top_logprobs": 0,
        "top_p": top_p,
        "truncation": "disabled",
        "usage": null,
        "user": user,
        "metadata": metadata,
    });
    let Value::Object(response) = response else { return Err(ApiError::internal("a response is an object")) };

    let mut rendering = Rendering {
        messages: turns(input, instructions)?,
        tools: (!list.is_empty()).then(|| list.functions.clone()),
        add_generation_prompt: true,
        ..Rendering::default()
    };
    add_effort(&mut rendering.kwargs, effort);
    let called = bind(app, AskedTools { list, choice, parallel }, &mut common)?;
    let Prompt { tokens: prompt, begins, continued } = rendering.prompt(app, &mut preparing)?;
    let form = Form::new(app, called, begins, continued, &mut common)?;
    // The engine refuses prompts that leave no room for an answer; its error message names the limit.
    let room = app.engine.limits().max_model_len.saturating_sub(prompt.len());
    common.params.max_tokens = common.max_tokens.unwrap_or(room.max(1));
    Ok(Prepared { common, prompt, share: preparing.share, form, response })
}

/// Refuses fields that would need state between requests, and fields that are not supported.
fn check_supported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let asks = |value: &&RawValue| !matches!(value.get(), "null" | "false" | "[]" | "{}" | "0");
    let no_state = "but this server keeps no responses; send the whole conversation as input";
    for (name, value, why) in [
        ("previous_response_id", fields.previous_response_id, no_state),
        ("conversation", fields.conversation, no_state),
        ("background", fields.background, "but this server keeps no responses to be fetched later; send false"),
        ("prompt", fields.prompt, "but this server keeps no prompts; send input and instructions"),
        ("top_logprobs", fields.top_logprobs, "which is not supported here; use /v1/chat/completions"),
    ] {
        if let Some(value) = value.filter(asks) {
            return refuse(name, format!("is {}, {why}", shown(value.get())));
        }
    }
    let included = fields.include.filter(asks).map(|include| serde_json::from_str::<Vec<String>>(include.get()));
    if included.is_some_and(|all| all.map_or(true, |all| all.iter().any(|name| !INCLUDED.contains(&name.as_str())))) {
        let shown = shown(fields.include.map_or("null", RawValue::get));
        let known = INCLUDED.join(", ");
        return refuse("include", format!("is {shown}, but this server can only be asked for {known}"));
    }
    if let Some(truncation) = fields.truncation.filter(|truncation| !is_text(truncation, "disabled")) {
        return refuse("truncation", format!("is {}, but only \"disabled\" is supported", shown(truncation.get())));
    }
    Ok(())
}

/// The accepted values of `include`, none of which adds anything to an answer. The model's thinking is never hidden, so
/// there is nothing to encrypt, and the other values belong to tools that run on OpenAI's servers.
const INCLUDED: [&str; 6] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
];

/// Writes to the log which field of the request has no effect.
fn tell_left_out(app: &App, fields: &Fields<'_>) {
    if let Some(Field(Object(Text { verbosity: Some(verbosity), .. }))) = &fields.text
        && !is_text(verbosity, "medium")
    {
        app.notes.tell("text.verbosity", "of which this server's models know nothing");
    }
}

/// Reads the format of the answer and constrains `common` to it. Returns the format as the response repeats it.
fn format(text: Option<Object<Text<'_>>>, common: &mut Common, share: &mut Share) -> Result<Value, ApiError> {
    let plain = json!({"type": "text"});
    let Some(Object(Text { format: Some(Field(Object(format))), .. })) = text else { return Ok(plain) };
    let Format { kind, schema, name, strict } = format;
    match kind.map_or("null", RawValue::get) {
        r#""text""# => Ok(plain),
        r#""json_object""# => {
            common.constraint = Some(json_constraint(None, "text.format", share)?);
            Ok(json!({"type": "json_object"}))
        }
        r#""json_schema""# => {
            let path = "text.format.schema";
            let Some(raw) = schema else {
                return refuse(path, "is missing; send the schema that the answer is to have".into());
            };
            common.constraint = Some(json_constraint(Some(raw), path, share)?);
            // `json_constraint` has parsed this JSON, so parsing cannot fail here.
            let schema = json_value(raw.get()).unwrap_or_default();
            let strict = sent(strict);
            if strict == Some(true) {
                check_strict(&schema, path)?;
            }
            let strict = strict.unwrap_or(true);
            Ok(json!({"type": "json_schema", "name": sent(name), "schema": schema, "strict": strict}))
        }
        other => {
            let problem = "but must be \"text\", \"json_object\" or \"json_schema\"";
            refuse("text.format.type", format!("is {}, {problem}", shown(other)))
        }
    }
}

/// Translates the conversation into the form that templates expect.
fn turns(input: Option<Field<Input>>, instructions: Option<String>) -> Result<Vec<Value>, ApiError> {
    let mut turns = History::default();
    let instructions = instructions.filter(|instructions| !instructions.is_empty());
    let is_instructed = instructions.is_some();
    if let Some(instructions) = instructions {
        turns.push("system", instructions);
    }
    match sent(input) {
        Some(Input::Text(text)) => turns.push("user", text),
        Some(Input::Items(items)) if !items.is_empty() || is_instructed => {
            let newest = newest_turn(items.iter().map(|item| item["role"] == "user"));
            for (index, item) in items.into_iter().enumerate() {
                let path = format!("input[{index}]");
                let media = Media::of(newest.contains(&index));
                add_item(&mut turns, object_of(item, &path)?, &path, media)?;
            }
        }
        _ => return Err(ApiError::invalid("input", "the request has no input; send a text, or a list of items")),
    }
    Ok(turns.into_messages())
}

/// The types of items that record calls of tools which OpenAI's servers, or special clients, ran.
const PAST: [&str; 20] = [
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "compaction_summary",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Adds an item of the input to the conversation.
fn add_item(turns: &mut History, mut item: Map<String, Value>, path: &str, media: Media) -> Result<(), ApiError> {
    // The model knows a function of a namespace by the namespace and the name, joined.
    let name_of = |item: &Map<String, Value>| {
        let name = text_in(item, "name", path)?;
        let namespace = item.get("namespace").and_then(Value::as_str);
        Ok::<_, ApiError>(namespace.map_or_else(|| name.clone(), |namespace| joined_name(namespace, &name)))
    };
    match item.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            let role = role_of(&item, path, &["user", "assistant", "system", "developer"])?;
            let content = item.get_mut("content").map_or(Value::Null, Value::take);
            let text = text_of(content, &format!("{path}.content"), media)?;
            turns.push(if role == "developer" { "system" } else { role }, text);
        }
        Some("function_call") => {
            let (id, name) = (text_in(&item, "call_id", path)?, name_of(&item)?);
            turns.call(id, name, text_in(&item, "arguments", path)?.into());
        }
        Some("custom_tool_call") => {
            let (id, name) = (text_in(&item, "call_id", path)?, name_of(&item)?);
            turns.call(id, name, arguments_of_text(text_in(&item, "input", path)?.into()));
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let id = text_in(&item, "call_id", path)?;
            let Some(output) = item.get_mut("output").map(Value::take) else {
                return refuse(&format!("{path}.output"), "is missing; send what the call has brought".into());
            };
            let text = text_of(output, &format!("{path}.output"), Media::LeftOut)?;
            turns.result(id, text);
        }
        Some("reasoning") => {
            let of = |field: &str, item: &mut Map<String, Value>| {
                let parts = item.get_mut(field).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.collect::<Vec<_>>().join("\n")
            };
            let content = of("content", &mut item);
            let text = if content.is_empty() { of("summary", &mut item) } else { content };
            // A reasoning item with only encrypted content has no text that the server can read.
            if !text.is_empty() {
                turns.think(text);
            }
        }
        Some("item_reference") => {
            let problem = "is \"item_reference\", but this server keeps no items; send the item itself";
            return refuse(&format!("{path}.type"), problem.into());
        }
        Some(kind) if PAST.contains(&kind) => {
            let brought = kind.ends_with("output") || kind.ends_with("response");
            let text = told_as_text(Value::Object(item));
            turns.push(if brought { "user" } else { "assistant" }, text);
        }
        _ => {
            let kind = item.get("type").unwrap_or(&Value::Null).to_string();
            let problem = "which is not known here; send messages, calls with their outputs, and reasoning";
            return refuse(&format!("{path}.type"), format!("is {}, {problem}", shown(&kind)));
        }
    }
    Ok(())
}

/// Writes the server-sent events of an answer, or the whole answer.
struct Writer {
    response: Map<String, Value>,
    outline: Outline,
    /// The blocks of the answer so far. Each block is an item of `output`.
    blocks: Blocks,
    /// The ids of the output's items, in the order of the blocks.
    ids: Vec<String>,
    reasoning_tokens: usize,
    cause: Option<StopCause>,
    /// The number of events so far.
    number: u64,
}

impl Writer {
    fn event(&mut self, name: &str, mut data: Value) -> String {
        data["sequence_number"] = self.number.into();
        self.number += 1;
        named(name, data)
    }

    /// Returns the first events, or none if they were sent already.
    fn begin(&mut self) -> Vec<String> {
        if self.number > 0 {
            return Vec::new();
        }
        let response = self.response.clone();
        let names = ["response.created", "response.in_progress"];
        names.map(|name| self.event(name, json!({"response": response.clone()}))).into()
    }

    /// Adds a delta to the blocks, and returns the changes that it makes.
    fn changes(&mut self, delta: &Delta) -> Vec<(usize, Change)> {
        let changes = self.outline.push(delta.pieces.clone());
        if delta.text.token.is_some() && delta.is_thinking {
            self.reasoning_tokens += 1;
        }
        if let Some(Ok(cause)) = &delta.text.finished {
            self.cause = Some(cause.clone());
        }
        self.add(&changes);
        changes
    }

    /// Ends the last block, and returns the changes that this makes.
    fn last_changes(&mut self) -> Vec<(usize, Change)> {
        let changes = self.outline.end();
        self.add(&changes);
        changes
    }

    fn add(&mut self, changes: &[(usize, Change)]) {
        for (_, change) in changes {
            self.blocks.add(change);
            if let Change::Opened(block) = change {
                self.ids.push(unique_id(match block {
                    Block::Text => "msg_",
                    Block::Thinking => "rs_",
                    Block::Call(call) if call.is_text => "ctc_",
                    Block::Call(_) => "fc_",
                }));
            }
        }
    }

    /// Returns the item of a block whose text so far is `text`. The item's content is empty until the block is `done`.
    fn item(&self, index: usize, block: &Block, text: &str, status: &str, done: bool) -> Value {
        let id = self.ids.get(index);
        let content = if done { vec![part_of(block, text)] } else { Vec::new() };
        match block {
            Block::Text => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Block::Thinking => {
                json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
            }
            Block::Call(call) => {
                let (kind, field) = call_names(call);
                let mut item = json!({
                    "id": id, "type": kind, "status": status, "call_id": call.id, "name": call.name, field: text,
                });
                if let Some(namespace) = &call.namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                item
            }
        }
    }

    /// Returns the events for a change to a block. `status` is the status of the item if the change closes it.
    fn events(&mut self, index: usize, change: Change, status: &str) -> Vec<String> {
        let mut place = json!({"item_id": self.ids.get(index), "output_index": index});
        let kind = match self.blocks.0.get(index) {
            Some((Block::Text, _)) => "output_text",
            Some((Block::Thinking, _)) => "reasoning_text",
            Some((Block::Call(call), _)) if call.is_text => "custom_tool_call_input",
            _ => "function_call_arguments",
        };
        let has_parts = !kind.contains("call");
        if has_parts {
            place["content_index"] = 0.into();
        }
        let mut events = Vec::new();
        match change {
            Change::Opened(block) => {
                let item = self.item(index, &block, "", "in_progress", false);
                events.push(self.event("response.output_item.added", json!({"output_index": index, "item": item})));
                if has_parts {
                    place["part"] = part_of(&block, "");
                    events.push(self.event("response.content_part.added", place));
                }
            }
            Change::More(more) => {
                place["delta"] = more.into();
                if kind == "output_text" {
                    place["logprobs"] = json!([]);
                }
                events.push(self.event(&format!("response.{kind}.delta"), place));
            }
            Change::Closed => {
                let Some((block, text)) = self.blocks.0.get(index).cloned() else { return events };
                let item = self.item(index, &block, &text, status, true);
                let mut whole = place.clone();
                if let Block::Call(call) = &block {
                    let (_, field) = call_names(call);
                    (whole["name"], whole[field]) = (call.name.as_str().into(), text.as_str().into());
                } else {
                    whole["text"] = text.as_str().into();
                }
                if block == Block::Text {
                    whole["logprobs"] = json!([]);
                }
                events.push(self.event(&format!("response.{kind}.done"), whole));
                if has_parts {
                    place["part"] = part_of(&block, &text);
                    events.push(self.event("response.content_part.done", place));
                }
                events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
            }
        }
        events
    }

    /// Returns `incomplete` if the answer was cut off at its length limit, otherwise `completed`.
    fn status(&self) -> &'static str {
        if self.cause == Some(StopCause::Length) { "incomplete" } else { "completed" }
    }

    /// Returns the whole response, with its output and token counts.
    fn ended(&mut self, sequences: &Sequences) -> Value {
        let status = self.status();
        let last = self.blocks.0.len().saturating_sub(1);
        let items = self.blocks.0.iter().enumerate().map(|(index, (block, text))| {
            // Only the last item can be cut off.
            let status = if index == last { status } else { "completed" };
            self.item(index, block, text, status, true)
        });
        let output: Vec<Value> = items.collect();
        let (input_tokens, output_tokens) = (sequences.prompt_tokens(), sequences.completion_tokens());
        let reason = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        self.response["status"] = status.into();
        self.response["incomplete_details"] = reason.unwrap_or(Value::Null);
        self.response["output"] = output.into();
        self.response["usage"] = json!({
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": sequences.cached_tokens()},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": input_tokens + output_tokens,
        });
        Value::Object(self.response.clone())
    }
}

/// Returns the type of a call's item, and the field that holds its arguments or its input text.
fn call_names(call: &Called) -> (&'static str, &'static str) {
    if call.is_text { ("custom_tool_call", "input") } else { ("function_call", "arguments") }
}

/// Returns the only part of the content of a text or reasoning item.
fn part_of(block: &Block, text: &str) -> Value {
    match block {
        Block::Thinking => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

impl Events for Writer {
    fn delta(&mut self, _: usize, delta: Delta, _: &Sequences) -> Vec<String> {
        let mut events = Vec::new();
        if delta.text.prompt.is_some() {
            events.extend(self.begin());
        }
        for (index, change) in self.changes(&delta) {
            events.extend(self.events(index, change, "completed"));
        }
        events
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let mut events = Vec::new();
        for (index, change) in self.last_changes() {
            events.extend(self.events(index, change, self.status()));
        }
        let response = self.ended(sequences);
        events.push(self.event(&format!("response.{}", self.status()), json!({"response": response})));
        events
    }

    fn idle(&mut self, _: &Sequences) -> Vec<String> {
        if self.number == 0 {
            return self.begin();
        }
        // OpenAI's Responses API has no keep-alive event, so the server sends `response.in_progress` again.
        let response = self.response.clone();
        vec![self.event("response.in_progress", json!({"response": response}))]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        let code = error.code.unwrap_or("server_error");
        self.response["status"] = "failed".into();
        self.response["error"] = json!({"code": code, "message": error.message});
        let response = self.response.clone();
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
