//! Implements `/v1/messages`, which is Anthropic's API. The server translates conversations of this API into the form
//! of chats, and renders them like chats.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::USER_AGENT;
use axum::response::Response;
use interbed_engine::ContextOverflow;
use interbed_engine::text::StopCause;
use interbed_engine::{TokenId, json_value};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::answer::{Form, Piece};
use crate::app::App;
use crate::blocks::{object_of, refuse, role_of, text_in};
use crate::body::{Preparing, Received, ReceivedBody, receive};
use crate::contents::{Media, part_text, text_of};
use crate::endpoints::chat::{Prompt, Rendering, add_effort, of_chats};
use crate::endpoints::completions::unique_id;
use crate::error::{ApiError, CONTEXT_EXCEEDED};
use crate::fields::{Field, FromJson, Object, is_text, read, sent, shown};
use crate::generate::{Asked, Delta, Sequences, submit};
use crate::history::{History, newest_turn, told_as_text};
use crate::json_cost::JsonCost;
use crate::json_text::object;
use crate::memory::Share;
use crate::openapi::{Part, fields_of_all, part};
use crate::outline::{Block, Blocks, Change, Outline};
use crate::sampling::{Common, Stops, conversation_part, of_conversation, top_k_of};
use crate::schemas::Bond;
use crate::stream::{self, Events, named};
use crate::structured::json_constraint;
use crate::tool_choice::{Choice, ToolChoice};
use crate::tool_list::ToolList;
use crate::tool_use::{AskedTools, bind};
use crate::unsupported::{Api, Supported, of_responses};

/// The header with the version of the API that a client uses.
const VERSION: &str = "anthropic-version";
const VERSION_KNOWN: &str = "2023-06-01";

/// The request fields, without those of the conversation.
#[derive(Deserialize)]
struct Fields<'b> {
    max_tokens: Option<Field<usize>>,
    stop_sequences: Option<Field<StopList>>,
    top_k: Option<Field<i64>>,
    metadata: Option<Field<Object<Metadata>>>,
    #[serde(borrow)]
    thinking: Option<Field<Object<Thinking<'b>>>>,
    #[serde(borrow)]
    tool_choice: Option<Field<Object<AskedChoice<'b>>>>,
    #[serde(borrow)]
    thread: Option<&'b RawValue>,
    #[serde(borrow)]
    compaction: Option<&'b RawValue>,
    #[serde(borrow)]
    output_config: Option<Field<Object<OutputConfig<'b>>>>,
    #[serde(borrow)]
    output_format: Option<Field<Object<Format<'b>>>>,
}

/// The effort and the format of the answer.
#[derive(Deserialize)]
struct OutputConfig<'b> {
    effort: Option<Field<String>>,
    #[serde(borrow)]
    format: Option<Field<Object<Format<'b>>>>,
}

#[derive(Deserialize)]
struct Format<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
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

#[derive(Deserialize)]
struct AskedChoice<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
    name: Option<Field<String>>,
    disable_parallel_tool_use: Option<Field<bool>>,
}

/// The texts that end an answer. A single text without a list is refused.
struct StopList(Vec<String>);

impl FromJson<'_> for StopList {
    const EXPECTED: &'static str = "a list of strings";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        if !raw.get().starts_with('[') {
            return Err(Self::other(raw));
        }
        Stops::from_json(raw).map(|Stops(stops)| Self(stops))
    }
}

/// The fields from which the prompt is made.
#[derive(Deserialize)]
struct Conversation {
    messages: Option<Field<Vec<Value>>>,
    system: Option<Field<Content>>,
    tools: Option<Field<Vec<Value>>>,
}

/// The memory that the fields of a [`Conversation`] take as JSON values, counted before they are parsed.
#[derive(Deserialize)]
struct ConversationCost {
    messages: Option<Field<JsonCost>>,
    system: Option<Field<JsonCost>>,
    tools: Option<Field<JsonCost>>,
}

/// The content of a message: a text, or a list of blocks.
struct Content(Value);

impl FromJson<'_> for Content {
    const EXPECTED: &'static str = "a text or a list of blocks";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw.get().as_bytes().first() {
            Some(b'"') => String::from_json(raw).map(|text| Self(text.into())),
            Some(b'[') => Vec::from_json(raw).map(|blocks| Self(Value::Array(blocks))),
            _ => Err(Self::other(raw)),
        }
    }
}

/// A request whose fields are read and whose prompt is tokenized.
struct Prepared {
    common: Common,
    prompt: Vec<TokenId>,
    share: Share,
    form: Form,
    /// Whether the context leaves fewer tokens for the answer than the request asks for.
    is_cut: bool,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    check_version(request.headers())?;
    let minds_pings = !is_claude_code(request.headers());
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let Prepared { common, prompt, share, form, is_cut } =
        app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let asked = Asked { prompts: vec![prompt], form: Some(form), echo_bytes: 0, caller, beside: 0, share };
    let mut sequences = submit(&app, asked, &common).await?;
    let (id, model) = (unique_id("msg_"), common.model.clone());
    let (outline, more) = (Outline::default(), ("text_delta", "text"));
    let mut writer = Writer {
        id,
        model,
        is_cut,
        minds_pings,
        has_begun: false,
        pings: 0,
        has_called: false,
        outline,
        more,
        cause: None,
    };
    if common.stream {
        return Ok(stream::events(&app, sequences, writer));
    }
    let output = sequences.collect().await?.pop().unwrap_or_default();
    let mut blocks = Blocks::default();
    let mut changes = writer.changes(output.pieces);
    changes.extend(writer.outline.end());
    changes.iter().for_each(|(_, change)| blocks.add(change));
    let (reason, sequence) = writer.reason(output.cause.as_ref());
    let mut message = writer.message(&sequences);
    let blocks: Vec<Value> = blocks.0.into_iter().filter_map(content_block).collect();
    // A client that reads `tool_use` looks for a call, so an answer whose only call was cut off has another reason.
    let is_without_call = reason == "tool_use" && blocks.iter().all(|block| block["type"] != "tool_use");
    message["content"] = blocks.into();
    let reason = if is_without_call { json!("end_turn") } else { reason };
    (message["stop_reason"], message["stop_sequence"]) = (reason, sequence);
    Ok(stream::json(message.to_string().into_bytes(), sequences.take_shares()))
}

/// Returns a block of a whole answer. `None` for a call that was cut off, whose input is not a complete object.
fn content_block((block, text): (Block, String)) -> Option<Value> {
    Some(match block {
        Block::Text => json!({"type": "text", "text": text}),
        Block::Thinking => json!({"type": "thinking", "thinking": text, "signature": ""}),
        Block::Call(call) => {
            let input = json_value(&text).ok().filter(Value::is_object)?;
            let (id, name) = (call.id.into(), call.name.into());
            object([("type", "tool_use".into()), ("id", id), ("name", name), ("input", input)])
        }
    })
}

/// Answers `/v1/messages/count_tokens`: counts the tokens of the prompt without generating an answer.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    check_version(request.headers())?;
    let received = receive(&app, request).await?;
    let answer = app.blocking(received.caller.tenant, move |app| {
        let Received { body, .. } = received;
        let mut preparing = begin(app, &body)?;
        common_of(app, &body)?;
        let (prompt, _) = prompt(app, body, &mut preparing)?;
        let answer = json!({"input_tokens": prompt.tokens.len()});
        Ok(stream::json(answer.to_string().into_bytes(), vec![preparing.share]))
    });
    answer.await
}

/// Names the fields of other APIs that `/v1/messages` does not have.
struct OfMessages;

impl Api for OfMessages {
    fn elsewhere(name: &str) -> Option<&'static str> {
        static FIELDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&parts()));
        if FIELDS.contains(&name) { None } else { of_chats(name).or_else(|| of_responses(name)) }
    }
}

/// Returns the fields that `/v1/messages` reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![conversation_part(), part!(Fields<'_>), part!(Conversation)]
}

/// Writes a refusal in Anthropic's form. `id` is the request's id.
pub(crate) fn refusal(error: &ApiError, id: Option<&str>) -> Value {
    let mut body = error_json(error);
    body["request_id"] = json!(id);
    body
}

fn error_json(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    // Clients of this API detect a full context by these words, and read the numbers.
    let message = match error.overflow {
        Some(ContextOverflow { prompt, prompt_max }) if prompt > prompt_max => {
            format!("prompt is too long: {prompt} tokens > {prompt_max} maximum ({})", error.message)
        }
        _ if error.code == Some(CONTEXT_EXCEEDED) => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    let mut told = json!({"type": kind, "message": message});
    if let Some(code) = error.code {
        told["details"] = json!({"error_code": code});
    }
    json!({"type": "error", "error": told})
}

/// Checks the version header, which a client may leave out. Any date from 2023 on is accepted, because the fields that
/// are read and written here are the same in all versions from 2023 to 2026, and later versions are assumed to keep
/// them.
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
    let mut preparing = begin(app, &body)?;
    let mut common = common_of(app, &body)?;
    // `count_tokens` accepts `compaction`, which does not change its count; this endpoint refuses it.
    let fields: Fields<'_> = read(body.json())?;
    check_unasked("compaction", fields.compaction)?;
    common.constraint = format(fields.output_config, fields.output_format, &mut preparing.share)?;
    let Some(asked) = common.max_tokens else {
        return Err(ApiError::invalid(
            "max_tokens",
            "the request has no max_tokens; send how many the answer may have",
        ));
    };
    let (Prompt { tokens: prompt, begins, continued }, tools) = prompt(app, body, &mut preparing)?;
    let tools = bind(app, tools, &mut common)?;
    let form = Form::new(app, tools, begins, continued, &mut common)?.with_ids("toolu_");
    // The engine refuses prompts that leave no room for an answer; its error message names the limit.
    let room = app.engine.limits().max_model_len.saturating_sub(prompt.len());
    common.params.max_tokens = if room == 0 { asked } else { asked.min(room) };
    Ok(Prepared { is_cut: asked > room, common, prompt, share: preparing.share, form })
}

/// Waits until the memory to prepare `body` is free.
fn begin(app: &App, body: &ReceivedBody) -> Result<Preparing, ApiError> {
    let ConversationCost { messages, system, tools } = read(body.json())?;
    Preparing::conversation(app, body, [messages, system, tools])
}

/// Reads and checks all fields except those of the conversation.
fn common_of(app: &App, body: &ReceivedBody) -> Result<Common, ApiError> {
    read::<Supported<OfMessages>>(body.json())?.tell(&app.notes);
    let fields: Fields<'_> = read(body.json())?;
    check_thread(fields.thread)?;
    let mut common = of_conversation(app, body.json())?;
    // The user id changes nothing, but it must be a text.
    let _ = sent(fields.metadata).map(|Object(Metadata { user_id })| user_id);
    common.params.top_k = sent(fields.top_k).map_or(Ok(common.params.top_k), top_k_of)?;
    common.text.stop = sent(fields.stop_sequences).map_or_else(Vec::new, |StopList(stops)| stops);
    common.max_tokens = sent(fields.max_tokens);
    Ok(common)
}

/// Refuses a field that is not supported, unless its value is null or empty.
fn check_unasked(name: &str, value: Option<&RawValue>) -> Result<(), ApiError> {
    match value.filter(|value| !matches!(value.get(), "[]" | "{}" | "null")) {
        Some(value) => refuse(name, format!("is {}, which is not supported here; leave it out", shown(value.get()))),
        None => Ok(()),
    }
}

/// Reads the schema that the answer has to match, from `output_config.format` or the older `output_format`.
fn format(
    config: Option<Field<Object<OutputConfig<'_>>>>,
    older: Option<Field<Object<Format<'_>>>>,
    share: &mut Share,
) -> Result<Option<Bond>, ApiError> {
    let newer = sent(config).and_then(|Object(OutputConfig { format, .. })| sent(format));
    let (path, Object(Format { kind, schema })) = match (newer, sent(older)) {
        (Some(format), None) => ("output_config.format", format),
        (None, Some(format)) => ("output_format", format),
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let problem = "and output_config.format both say what the answer is; send one of them";
            return refuse("output_format", problem.into());
        }
    };
    if !kind.is_some_and(|kind| is_text(kind, "json_schema")) {
        let is = shown(kind.map_or("null", RawValue::get));
        return refuse(&format!("{path}.type"), format!("is {is}, but must be \"json_schema\""));
    }
    let path = format!("{path}.schema");
    match schema {
        Some(schema) => json_constraint(Some(schema), &path, share).map(Some),
        None => refuse(&path, "is missing; send the schema that the answer is to have".into()),
    }
}

/// Refuses `thread`, which asks the server to keep a conversation. Anthropic's clients read this error code, and then
/// send the whole conversation instead.
fn check_thread(thread: Option<&RawValue>) -> Result<(), ApiError> {
    match thread.map(RawValue::get) {
        None | Some("null" | "false") => Ok(()),
        Some(thread) => {
            let problem =
                "but this server keeps no conversations; leave it out, and send all messages, system and tools";
            let error = ApiError::invalid("thread", format!("thread is {}, {problem}", shown(thread)));
            Err(ApiError { code: Some("thread_unsupported_request"), ..error })
        }
    }
}

/// Renders and tokenizes the conversation, and returns the tools that the answer may call. A last message by the
/// assistant is continued.
fn prompt(app: &App, body: ReceivedBody, preparing: &mut Preparing) -> Result<(Prompt, AskedTools), ApiError> {
    let fields: Fields<'_> = read(body.json())?;
    let Conversation { messages, system, tools } = read(body.json())?;
    let mut kwargs = thinking_kwargs(sent(fields.thinking))?;
    add_effort(&mut kwargs, sent(fields.output_config).and_then(|Object(OutputConfig { effort, .. })| sent(effort)));
    let (choice, parallel) = choice(sent(fields.tool_choice))?;
    drop(body);
    let list = ToolList::of_messages(sent(tools).unwrap_or_default(), &app.notes)?;
    let choice = ToolChoice::from(choice).checked(&list)?;
    let shown_tools = (!list.is_empty()).then(|| list.functions.clone());
    let turns = turns(sent(messages).unwrap_or_default(), sent(system))?;
    let continued = turns.is_to_be_continued().then_some("messages");
    let rendering = Rendering {
        messages: turns.into_messages(),
        tools: shown_tools,
        continued,
        add_generation_prompt: continued.is_none(),
        kwargs,
        ..Rendering::default()
    };
    Ok((rendering.prompt(app, preparing)?, AskedTools { list, choice, parallel }))
}

/// Returns the template variables that say whether the model should think. A thinking budget in tokens is ignored,
/// because templates have no variable for it.
fn thinking_kwargs(thinking: Option<Object<Thinking<'_>>>) -> Result<Map<String, Value>, ApiError> {
    let Some(Object(Thinking { kind })) = thinking else { return Ok(Map::new()) };
    let thinks = match kind.map_or("null", RawValue::get) {
        r#""disabled""# => false,
        r#""enabled""# | r#""adaptive""# => true,
        other => {
            let problem = "but must be \"enabled\", \"adaptive\" or \"disabled\"";
            return refuse("thinking.type", format!("is {}, {problem}", shown(other)));
        }
    };
    Ok(["enable_thinking", "thinking"].map(|name| (name.to_owned(), thinks.into())).into_iter().collect())
}

/// Returns which tool must be called, if any, and whether the answer may hold several calls.
fn choice(choice: Option<Object<AskedChoice<'_>>>) -> Result<(Option<Choice>, bool), ApiError> {
    let Some(Object(AskedChoice { kind, name, disable_parallel_tool_use })) = choice else {
        return Ok((Some(Choice::Auto), true));
    };
    let parallel = !sent(disable_parallel_tool_use).unwrap_or(false);
    let choice = match kind.map_or("null", RawValue::get) {
        r#""auto""# => Some(Choice::Auto),
        r#""any""# => Some(Choice::Required),
        r#""none""# => None,
        r#""tool""# => match sent(name) {
            Some(name) => Some(Choice::Named(name)),
            None => return refuse("tool_choice.name", "is missing; say which tool is to be used".into()),
        },
        other => {
            let problem = "but must be \"auto\", \"any\", \"tool\" or \"none\"";
            return refuse("tool_choice.type", format!("is {}, {problem}", shown(other)));
        }
    };
    Ok((choice, parallel))
}

/// The prefix of a billing header that some clients put at the start of the system prompt. The server removes it: it
/// differs from request to request, and is not meant for the model.
const BILLING: &str = "x-anthropic-billing-header:";

/// Translates the conversation into the form that templates expect.
fn turns(messages: Vec<Value>, system: Option<Content>) -> Result<History, ApiError> {
    let mut turns = History::default();
    if let Some(Content(mut system)) = system {
        let is_billing = |text: Option<&str>| text.is_some_and(|text| text.starts_with(BILLING));
        if let Value::Array(blocks) = &mut system {
            blocks.retain(|block| !is_billing(block["text"].as_str()));
        }
        let text = text_of(system, "system", Media::LeftOut)?;
        // In a system prompt that is one text, the header is the first line.
        let text = if is_billing(Some(&text)) { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
        if !text.is_empty() {
            turns.push("system", text.to_owned());
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages has no messages; send at least one"));
    }
    let newest = newest_turn(messages.iter().map(is_turn_of_user));
    for (index, message) in messages.into_iter().enumerate() {
        let path = format!("messages[{index}]");
        let media = Media::of(newest.contains(&index));
        let mut message = object_of(message, &path)?;
        let role = role_of(&message, &path, &["user", "assistant", "system"])?;
        let path = format!("{path}.content");
        match message.get_mut("content").map_or(Value::Null, Value::take) {
            Value::Array(blocks) if role != "system" && !blocks.is_empty() => {
                for (index, block) in blocks.into_iter().enumerate() {
                    add_block(&mut turns, role, block, &format!("{path}[{index}]"), media)?;
                }
            }
            Value::Null => return refuse(&path, "is missing; send a text, or a list of blocks".into()),
            content => turns.push(role, text_of(content, &path, Media::LeftOut)?),
        }
    }
    Ok(turns)
}

/// Returns whether a message is by the user and holds more than results of tools.
fn is_turn_of_user(message: &Value) -> bool {
    let says = match &message["content"] {
        Value::Array(blocks) => blocks.iter().any(|block| block["type"] != "tool_result"),
        _ => true,
    };
    message["role"] == "user" && says
}

/// Adds a block of a message by `role` to the conversation.
fn add_block(turns: &mut History, role: &str, block: Value, path: &str, media: Media) -> Result<(), ApiError> {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match (role, kind.as_str()) {
        ("assistant", "thinking") => turns.think(text_in(&object_of(block, path)?, "thinking", path)?),
        // Redacted thinking is encrypted for another model.
        ("assistant", "redacted_thinking") => {}
        ("assistant", "tool_use") => {
            let mut block = object_of(block, path)?;
            let (id, name) = (text_in(&block, "id", path)?, text_in(&block, "name", path)?);
            let input = block.get_mut("input").map_or(Value::Null, Value::take);
            if !matches!(input, Value::Null | Value::Object(_) | Value::String(_)) {
                let path = format!("{path}.input");
                return refuse(&path, format!("must be an object, but is {}", shown(&input.to_string())));
            }
            turns.call(id, name, input);
        }
        ("user", "tool_result") => {
            let mut block = object_of(block, path)?;
            let id = text_in(&block, "tool_use_id", path)?;
            let content = block.get_mut("content").map_or(Value::Null, Value::take);
            let mut text = text_of(content, &format!("{path}.content"), Media::LeftOut)?;
            // Templates have no field for failed calls, so the text says it.
            if block.get("is_error").is_some_and(|is_error| is_error == true) {
                text = format!("Error: {text}");
            }
            turns.result(id, text);
        }
        (_, kind) if PAST.iter().any(|past| kind.starts_with(past) || kind.ends_with(past)) => {
            turns.push(role, told_as_text(block));
        }
        _ => turns.push(role, part_text(block, path, media)?),
    }
    Ok(())
}

/// Prefixes and suffixes of the types of blocks that record tools which Anthropic's servers ran, and compactions of
/// the context.
const PAST: [&str; 4] = ["server_tool_use", "mcp_tool_use", "_tool_result", "compaction"];

/// The maximum number of pings in a row before the server sends another event: Claude Code ignores pings, and gives up
/// after five minutes without another event.
const PINGS_MAX: usize = 5;

/// Returns whether the `User-Agent` header names Claude Code.
fn is_claude_code(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("claude-cli/"))
}

/// Writes the server-sent events of an answer.
struct Writer {
    id: String,
    model: String,
    is_cut: bool,
    /// Whether the client accepts pings as a sign of life. Clients other than Claude Code do, and might misread a
    /// delta without content.
    minds_pings: bool,
    has_begun: bool,
    /// The number of pings since the last event of another kind.
    pings: usize,
    has_called: bool,
    outline: Outline,
    /// The type of the current block's deltas, and the field that holds their text.
    more: (&'static str, &'static str),
    cause: Option<StopCause>,
}

impl Writer {
    /// Returns the event that begins the message.
    fn begin(&mut self, sequences: &Sequences) -> String {
        self.has_begun = true;
        named("message_start", json!({"message": self.message(sequences)}))
    }

    /// Returns the message before its first token.
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

    /// Returns the changes to blocks that pieces of the answer make.
    fn changes(&mut self, pieces: Vec<Piece>) -> Vec<(usize, Change)> {
        self.has_called |= pieces.iter().any(|piece| matches!(piece, Piece::Call(_)));
        self.outline.push(pieces)
    }

    /// Returns `stop_reason` and `stop_sequence`.
    fn reason(&self, cause: Option<&StopCause>) -> (Value, Value) {
        match cause {
            None => (Value::Null, Value::Null),
            Some(StopCause::StopString(stop)) => (json!("stop_sequence"), json!(stop)),
            Some(StopCause::EndOfSequence | StopCause::StopToken(_) | StopCause::Complete) => {
                (json!(if self.has_called { "tool_use" } else { "end_turn" }), Value::Null)
            }
            Some(StopCause::Length) if self.is_cut => (json!("model_context_window_exceeded"), Value::Null),
            Some(StopCause::Length) => (json!("max_tokens"), Value::Null),
        }
    }
}

impl Writer {
    /// Returns the event for a change to a block.
    fn event(&mut self, index: usize, change: Change) -> String {
        match change {
            Change::Opened(block) => {
                let (begun, kind, field) = match block {
                    Block::Text => (json!({"type": "text", "text": ""}), "text_delta", "text"),
                    Block::Thinking => {
                        (json!({"type": "thinking", "thinking": "", "signature": ""}), "thinking_delta", "thinking")
                    }
                    Block::Call(call) => {
                        let begun = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                        (begun, "input_json_delta", "partial_json")
                    }
                };
                self.more = (kind, field);
                named("content_block_start", json!({"index": index, "content_block": begun}))
            }
            Change::More(text) => {
                let (kind, field) = self.more;
                named("content_block_delta", json!({"index": index, "delta": {"type": kind, field: text}}))
            }
            Change::Closed => named("content_block_stop", json!({"index": index})),
        }
    }
}

/// Returns the token counts. `input_tokens` leaves out tokens found in the prefix cache, which have a count of their
/// own.
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
    fn delta(&mut self, _: usize, delta: Delta, sequences: &Sequences) -> Vec<String> {
        let Delta { text: delta, pieces, .. } = delta;
        let mut events = Vec::new();
        if delta.prompt.is_some() && !self.has_begun {
            events.push(self.begin(sequences));
            events.push(named("ping", Value::Null));
        }
        for (index, change) in self.changes(pieces) {
            events.push(self.event(index, change));
        }
        if let Some(Ok(cause)) = delta.finished {
            self.cause = Some(cause);
        }
        if !events.is_empty() {
            self.pings = 0;
        }
        events
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let (reason, sequence) = self.reason(self.cause.as_ref());
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let changes = self.outline.end();
        let mut events: Vec<String> = changes.into_iter().map(|(index, change)| self.event(index, change)).collect();
        events.push(named("message_delta", json!({"delta": delta, "usage": usage(sequences)})));
        events.push(named("message_stop", Value::Null));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        vec![named("error", json!({"error": error_json(error)["error"]}))]
    }

    fn idle(&mut self, sequences: &Sequences) -> Vec<String> {
        if self.pings < PINGS_MAX || self.minds_pings && self.has_begun {
            self.pings += 1;
            return vec![named("ping", Value::Null)];
        }
        self.pings = 0;
        if !self.has_begun {
            return vec![self.begin(sequences)];
        }
        let delta = json!({"stop_reason": null, "stop_sequence": null});
        let usage = json!({"output_tokens": sequences.completion_tokens()});
        vec![named("message_delta", json!({"delta": delta, "usage": usage}))]
    }
}
