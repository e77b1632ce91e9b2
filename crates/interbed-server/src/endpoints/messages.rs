//! `/v1/messages`: Anthropic's API, over the same path as a chat.

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

/// The version of the API, which its clients send along.
const VERSION: &str = "anthropic-version";
const VERSION_KNOWN: &str = "2023-06-01";

/// The fields of this API, but for the conversation.
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

/// What the answer is to be like.
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

/// Texts that end an answer; here a single one is none.
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

/// The fields that become the prompt.
#[derive(Deserialize)]
struct Conversation {
    messages: Option<Field<Vec<Value>>>,
    system: Option<Field<Content>>,
    tools: Option<Field<Vec<Value>>>,
}

/// The same, counted before they become values.
#[derive(Deserialize)]
struct ConversationCost {
    messages: Option<Field<JsonCost>>,
    system: Option<Field<JsonCost>>,
    tools: Option<Field<JsonCost>>,
}

/// A text, or a list of blocks.
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

/// A request, read and tokenized.
struct Prepared {
    common: Common,
    prompt: Vec<TokenId>,
    share: Share,
    form: Form,
    /// Whether the context leaves fewer tokens than were asked for.
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
    // Who is told of a call looks for it.
    let is_without_call = reason == "tool_use" && blocks.iter().all(|block| block["type"] != "tool_use");
    message["content"] = blocks.into();
    let reason = if is_without_call { json!("end_turn") } else { reason };
    (message["stop_reason"], message["stop_sequence"]) = (reason, sequence);
    Ok(stream::json(message.to_string().into_bytes(), sequences.take_shares()))
}

/// A block of a whole answer. A call that was cut off is none: its input would be no object.
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

/// `/v1/messages/count_tokens`: the tokens that the prompt would have.
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

/// The fields of chats that this API has not.
struct OfMessages;

impl Api for OfMessages {
    fn elsewhere(name: &str) -> Option<&'static str> {
        static FIELDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&parts()));
        if FIELDS.contains(&name) { None } else { of_chats(name).or_else(|| of_responses(name)) }
    }
}

/// The fields that it reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![conversation_part(), part!(Fields<'_>), part!(Conversation)]
}

/// A refusal of the request with this id, in the form that this API has for it.
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
    // Clients of this API find a context that is full by these words, and read the numbers.
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
    let mut preparing = begin(app, &body)?;
    let mut common = common_of(app, &body)?;
    // What counts tokens takes it, and counts the same.
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
    // A prompt without room is refused by the engine, which knows why there is none.
    let room = app.engine.limits().max_model_len.saturating_sub(prompt.len());
    common.params.max_tokens = if room == 0 { asked } else { asked.min(room) };
    Ok(Prepared { is_cut: asked > room, common, prompt, share: preparing.share, form })
}

/// Waits for the memory to prepare a body.
fn begin(app: &App, body: &ReceivedBody) -> Result<Preparing, ApiError> {
    let ConversationCost { messages, system, tools } = read(body.json())?;
    Preparing::conversation(app, body, [messages, system, tools])
}

/// Reads and checks all fields but the conversation.
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

/// Refuses a field that is not supported, unless it asks for nothing.
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

/// Refuses a conversation that the server is to keep, or has to know. Anthropic's clients send all of it instead when
/// they read this code.
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

/// The prompt of the conversation, and the tools that the answers may call. A last message of the assistant is
/// continued.
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

/// What templates know by which a client says whether the model is to think. How long it may is not known to them.
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

/// What has to be called, and whether there may be several calls.
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

/// A header that some clients put before the system's text: it says who pays, differs from request to request, and is
/// not for the model.
const BILLING: &str = "x-anthropic-billing-header:";

/// The conversation as templates know it.
fn turns(messages: Vec<Value>, system: Option<Content>) -> Result<History, ApiError> {
    let mut turns = History::default();
    if let Some(Content(mut system)) = system {
        let is_billing = |text: Option<&str>| text.is_some_and(|text| text.starts_with(BILLING));
        if let Value::Array(blocks) = &mut system {
            blocks.retain(|block| !is_billing(block["text"].as_str()));
        }
        let text = text_of(system, "system", Media::LeftOut)?;
        // As a text it is the first line.
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

/// Whether the user says something in a message, which is not what tools brought.
fn is_turn_of_user(message: &Value) -> bool {
    let says = match &message["content"] {
        Value::Array(blocks) => blocks.iter().any(|block| block["type"] != "tool_result"),
        _ => true,
    };
    message["role"] == "user" && says
}

/// Adds a block of what `role` says.
fn add_block(turns: &mut History, role: &str, block: Value, path: &str, media: Media) -> Result<(), ApiError> {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match (role, kind.as_str()) {
        ("assistant", "thinking") => turns.think(text_in(&object_of(block, path)?, "thinking", path)?),
        // Encrypted for another model.
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
            // Templates have no other place for it.
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

/// What blocks begin or end with that tell of tools that the API's servers ran, and of what these did to the context.
const PAST: [&str; 4] = ["server_tool_use", "mcp_tool_use", "_tool_result", "compaction"];

/// Number of pings in a row before another event shows that the answer goes on: Claude Code ignores pings, and gives up
/// after five minutes without another event.
const PINGS_MAX: usize = 5;

/// Whether the client is Claude Code, by what it calls itself.
fn is_claude_code(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("claude-cli/"))
}

/// Makes events of what comes.
struct Writer {
    id: String,
    model: String,
    is_cut: bool,
    /// Whether the client counts a ping as a sign of life. Others would read more into an event that says nothing.
    minds_pings: bool,
    has_begun: bool,
    /// How many were sent since the last event of another kind.
    pings: usize,
    has_called: bool,
    outline: Outline,
    /// Of the last block, what its deltas are.
    more: (&'static str, &'static str),
    cause: Option<StopCause>,
}

impl Writer {
    /// The event that begins the message.
    fn begin(&mut self, sequences: &Sequences) -> String {
        self.has_begun = true;
        named("message_start", json!({"message": self.message(sequences)}))
    }

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

    /// What pieces of the answer change.
    fn changes(&mut self, pieces: Vec<Piece>) -> Vec<(usize, Change)> {
        self.has_called |= pieces.iter().any(|piece| matches!(piece, Piece::Call(_)));
        self.outline.push(pieces)
    }

    /// `stop_reason` and `stop_sequence`.
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
    /// What changes a block, as an event.
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
