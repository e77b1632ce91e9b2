//! Implements `/v1/chat/completions`, which answers conversations.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::response::Response;
use interbed_engine::text::StopCause;
use interbed_engine::{TokenId, json_value};
use interbed_model::chat_template::{ArgumentsForm, ChatTemplate, NoContent, ResultsForm};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use crate::answer::{Called, Form, Piece, Whole};
use crate::app::{App, unix_seconds};
use crate::blocks::refuse;
use crate::body::{Preparing, Received, ReceivedBody, receive};
use crate::call_results::with_calls;
use crate::charge::tokens_unasked;
use crate::contents::{Media, text_of};
use crate::endpoints::completions::{stop_reason, unique_id};
use crate::error::ApiError;
use crate::fields::{Field, read, sent, shown};
use crate::generate::{Asked, Delta, Output, submit};
use crate::history::{History, newest_turn};
use crate::json_cost::JsonCost;
use crate::json_text::{list_of, object};
use crate::logprobs::{chat_entry, prompt_text};
use crate::memory::Share;
use crate::openapi::{Part, fields_of_all, part};
use crate::prefill::Prefill;
use crate::sampling::{Common, common, shared_part};
use crate::stream::{self, Choice, Choices, Envelope};
use crate::structured::{constraint, structured_part};
use crate::systems::{is_by_system, placed};
use crate::thinking::Begins;
use crate::tool_list::{ToolList, arguments_of_text};
use crate::tool_prompt::tell_tools;
use crate::tool_use::{AskedTools, bind, tools_part};
use crate::unsupported::Chats;

/// The request fields that only this endpoint reads, without those of the conversation.
#[derive(Deserialize)]
struct Fields {
    logprobs: Option<Field<bool>>,
    top_logprobs: Option<Field<usize>>,
}

/// The fields from which the prompt is made.
#[derive(Deserialize)]
struct Conversation {
    messages: Option<Field<Vec<Value>>>,
    tools: Option<Field<Vec<Value>>>,
    continue_final_message: Option<Field<bool>>,
    add_generation_prompt: Option<Field<bool>>,
    chat_template_kwargs: Option<Field<Map<String, Value>>>,
    reasoning_effort: Option<Field<String>>,
    add_special_tokens: Option<Field<bool>>,
}

/// The memory that the fields of a [`Conversation`] take as JSON values, counted before they are parsed.
#[derive(Deserialize)]
struct ConversationCost {
    messages: Option<Field<JsonCost>>,
    tools: Option<Field<JsonCost>>,
    chat_template_kwargs: Option<Field<JsonCost>>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let (common, prompt, share, form) = app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let envelope = Envelope {
        id: unique_id("chatcmpl-"),
        object: if common.stream { "chat.completion.chunk" } else { "chat.completion" },
        created: unix_seconds(),
        model: common.model.clone(),
    };
    let asked = Asked { prompts: vec![prompt], form: Some(form), echo_bytes: 0, caller, beside: 0, share };
    let mut sequences = submit(&app, asked, &common).await?;
    let writer = Writer {
        app: app.clone(),
        logprobs: common.params.logprobs.is_some(),
        has_called: vec![false; common.n],
        takes_text: vec![false; common.n],
    };
    if common.stream {
        return Ok(stream::answer(&app, sequences, envelope, common.include_usage, writer));
    }
    let outputs = sequences.collect().await?;
    let told =
        |output: &Output| common.prompt_logprobs.map(|top| prompt_text(&app.tokenizer, &output.prompt.logprobs, top));
    let prompt_logprobs = outputs.first().and_then(told);
    let choices = outputs.into_iter().enumerate().map(|(index, output)| writer.whole(index, output)).collect();
    Ok(stream::whole(&envelope, choices, sequences, prompt_logprobs))
}

/// Returns the fields that `/v1/chat/completions` reads.
pub(crate) fn parts() -> Vec<Part> {
    [shared_part(), part!(Fields), structured_part(), tools_part()].into_iter().chain(conversation_part()).collect()
}

/// Returns `/v1/chat/completions` if that endpoint reads a field of this name.
pub(crate) fn of_chats(name: &str) -> Option<&'static str> {
    static FIELDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&parts()));
    FIELDS.contains(&name).then_some("/v1/chat/completions")
}

/// Returns the fields of a conversation, which `/tokenize` reads too.
pub(crate) fn conversation_part() -> Option<Part> {
    Some(part!(Conversation))
}

/// A prepared request: its fields, its prompt's tokens, its share of memory, and how its answer is split into pieces.
type Prepared = (Common, Vec<TokenId>, Share, Form);

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let mut preparing = begin(app, &body)?;
    let mut common = common::<Chats>(app, preparing.share.tenant(), body.json())?;
    common.constraint = constraint(body.json(), &mut preparing.share)?;
    let fields: Fields = read(body.json())?;
    common.params.logprobs = logprobs(sent(fields.logprobs), sent(fields.top_logprobs))?;
    let tools = bind(app, AskedTools::of_chat(app, body.json())?, &mut common)?;
    let Prompt { tokens: mut prompt, begins, continued } = prompt(app, body, &mut preparing)?;
    let form = Form::new(app, tools, begins, continued, &mut common)?;
    if let Some(truncation) = common.truncation {
        truncation.apply(&mut prompt, app.tokenizer.bos_id(), app.engine.limits(), common.max_tokens.unwrap_or(1));
    }
    // The engine refuses prompts that leave no room for an answer; its error message names the limit.
    let unasked = tokens_unasked(app, &common, 1, prompt.len());
    common.params.max_tokens = common.max_tokens.unwrap_or(unasked);
    Ok((common, prompt, preparing.share, form))
}

/// Returns the number of alternatives whose log-probabilities the answer lists for each token, or `None` if the request
/// asks for no log-probabilities.
///
/// # Errors
/// Fails if `top_logprobs` is set, but `logprobs` is not true.
pub(crate) fn logprobs(told: Option<bool>, top: Option<usize>) -> Result<Option<usize>, ApiError> {
    match (told.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs to be true")),
    }
}

/// Waits until the memory to prepare `body`, which may hold a conversation, is free.
pub(crate) fn begin(app: &App, body: &ReceivedBody) -> Result<Preparing, ApiError> {
    let ConversationCost { messages, tools, chat_template_kwargs } = read(body.json())?;
    Preparing::conversation(app, body, [messages, tools, chat_template_kwargs])
}

/// Renders the conversation in a body with the model's template and tokenizes it. The caller has reserved the memory
/// with [`begin`]. The endpoint `/tokenize` calls this function for `messages`.
pub(crate) fn prompt(app: &App, body: ReceivedBody, preparing: &mut Preparing) -> Result<Prompt, ApiError> {
    let Conversation {
        messages,
        tools,
        continue_final_message,
        add_generation_prompt,
        chat_template_kwargs,
        reasoning_effort,
        add_special_tokens,
    } = read(body.json())?;
    drop(body);
    let messages = turns(sent(messages).unwrap_or_default())?;
    let tools = ToolList::of_chat(sent(tools).unwrap_or_default(), &app.notes)?.functions;
    let tools = Some(tools).filter(|tools| !tools.is_empty());
    let continued = sent(continue_final_message).unwrap_or(false).then_some("continue_final_message");
    let add_generation_prompt = sent(add_generation_prompt);
    if continued.is_some() && add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt cannot both be true";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    let add_generation_prompt = add_generation_prompt.unwrap_or(continued.is_none());
    let mut kwargs = sent(chat_template_kwargs).unwrap_or_default();
    add_effort(&mut kwargs, sent(reasoning_effort));

    let rendering = Rendering {
        messages,
        tools,
        continued,
        add_generation_prompt,
        kwargs,
        add_special: sent(add_special_tokens).unwrap_or(false),
    };
    rendering.prompt(app, preparing)
}

/// Checks a chat's messages and brings them into the form that chat templates expect.
///
/// # Errors
/// Fails if the list is empty, or a message is invalid.
pub(crate) fn turns(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages has no messages; send at least one"));
    }
    let newest = newest_turn(messages.iter().map(|message| message["role"] == "user"));
    let media = |index| Media::of(newest.contains(&index));
    let mut called = None;
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, value)| message(index, value, media(index), &mut called));
    Ok(History::of_chat(messages.collect::<Result<_, _>>()?).into_messages())
}

/// A conversation in the form that chat templates expect, whichever API it came through.
#[derive(Default)]
pub(crate) struct Rendering {
    /// Objects with a `role`, and a `content` that is a text.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    /// The name of the request field that asks to continue the last message, if the request asks for that.
    pub(crate) continued: Option<&'static str>,
    pub(crate) add_generation_prompt: bool,
    /// The additional variables for the template, such as those in `chat_template_kwargs`.
    pub(crate) kwargs: Map<String, Value>,
    /// Whether the tokenizer adds special tokens to the rendered text.
    pub(crate) add_special: bool,
}

/// A rendered and tokenized conversation.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<TokenId>,
    /// Whether the answer begins before, within or after the model's thinking.
    pub(crate) begins: Begins,
    /// Whether the answer continues the last message.
    pub(crate) continued: bool,
}

impl Rendering {
    /// Renders the conversation with the model's template and tokenizes it. The memory comes from `preparing`, whose
    /// share grows by the arguments of tool calls. The function blocks.
    pub(crate) fn prompt(self, app: &App, preparing: &mut Preparing) -> Result<Prompt, ApiError> {
        let rendered_max = preparing.rendered_max;
        let Self { mut messages, tools, continued, add_generation_prompt, kwargs, add_special } = self;
        let template = template_of(app)?;
        // A request without tools may still show earlier calls, which the template may render in a form of its own.
        let told = app.tools_told().filter(|_| tools.is_some() || app.config.tool_parser.is_some());
        let as_objects = told.is_some() || template.arguments_form() == ArgumentsForm::Object;
        if as_objects {
            let cost = messages.iter().map(arguments_cost).fold(0, usize::saturating_add);
            // Memory is counted three times: for the parsed values, and for the two copies that the template makes.
            Handle::current().block_on(preparing.share.grow(cost.saturating_mul(3)))?;
        }
        if told.is_none() {
            messages = apart(messages, template);
            if messages.iter().any(|message| message["role"] == "tool")
                && template.results_form() == ResultsForm::WithCalls
            {
                messages = with_calls(messages, continued.is_some());
            }
        }
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            name_thinking(message, app.speech.harmony);
            fill_arguments(message);
            match as_objects {
                true => parse_arguments(message, || told.is_none() && template.takes_text_arguments()),
                false => write_arguments(message),
            }
            // If calls are rendered as text, every message has a content.
            fill_content(message, || told.map_or_else(|| template.no_content(), |_| NoContent::Empty));
        }
        let mut tools = tools.as_deref();
        if let Some(family) = told {
            messages = tell_tools(messages, tools.unwrap_or_default(), family);
            tools = None;
        }
        if messages.iter().any(is_by_system) {
            messages = placed(messages, template.system_places());
        }
        let render =
            |messages: &[Value]| template.render_within(messages, tools, add_generation_prompt, &kwargs, rendered_max);
        let prefill = continued.map(|field| begun_by(field, &mut messages)).transpose()?;
        let mut text = render(&messages)?;
        if add_generation_prompt && let Some([end, begin]) = app.speech.family.and_then(|family| family.turn) {
            text.push_str(if text.ends_with(end) { begin } else { "" });
        }
        let tags = app.speech.thinking;
        let mut begins = tags.map_or(Begins::Before, |tags| tags.begins(&text));
        if let (Some(field), Some(prefill)) = (continued, prefill) {
            let Some((begun, blank)) = prefill.up_to_mark(&text) else {
                let problem = "the chat template leaves out the end of the last message, so it cannot be continued";
                return Err(ApiError::invalid(field, format!("{field}: {problem}")));
            };
            text = begun;
            if !blank.is_empty() {
                // Trailing white space of the message is kept if the template renders it.
                Handle::current().block_on(preparing.share.grow(text.len()))?;
                messages.last_mut().into_iter().for_each(|message| prefill.unmark(message));
                let whole = render(&messages)?;
                if whole.strip_prefix(&text).is_some_and(|rest| rest.starts_with(blank)) {
                    text.push_str(blank);
                }
            }
            begins = match prefill.content().trim() {
                // The message is empty so far, but the template may already have closed the model's thinking.
                "" => tags.map_or(Begins::Before, |tags| tags.begins(&text)),
                begun => tags.map_or(Begins::Before, |tags| tags.begins_in(begun)),
            };
        }
        // Templates usually write the special tokens themselves, so `add_special` is false unless the request sets it.
        let tokens = app.encode(preparing.share.tenant(), "messages", &text, add_special)?;
        Ok(Prompt { tokens, begins, continued: continued.is_some() })
    }
}

/// Marks the end of the last message, which `field` asks to continue.
fn begun_by(field: &'static str, messages: &mut [Value]) -> Result<Prefill, ApiError> {
    match messages.last_mut() {
        Some(last) if last["tool_calls"].as_array().is_none_or(Vec::is_empty) => Ok(Prefill::mark(last)),
        _ => {
            let problem = "the last message calls tools, so it cannot be continued; send what they brought";
            Err(ApiError::invalid(field, format!("{field}: {problem}")))
        }
    }
}

/// Sets the template variables that say how much the model should think.
pub(crate) fn add_effort(kwargs: &mut Map<String, Value>, effort: Option<String>) {
    let Some(effort) = effort else { return };
    let known = match effort.as_str() {
        "xhigh" | "max" => "high",
        "minimal" => "low",
        other => other,
    };
    if known == "none" {
        kwargs.entry("enable_thinking").or_insert(false.into());
    }
    kwargs.entry("reasoning_effort").or_insert_with(|| known.into());
}

fn template_of(app: &App) -> Result<&ChatTemplate, ApiError> {
    app.template.as_deref().ok_or_else(|| {
        ApiError::malformed("this model has no chat template; send a plain prompt to /v1/completions instead")
    })
}

/// Checks a message and brings it into the form that templates expect. The older `function_call` has no id, so it gets
/// one, which is stored in `called` until the message with the function's result takes it.
fn message(index: usize, message: Value, media: Media, called: &mut Option<String>) -> Result<Value, ApiError> {
    let path = format!("messages[{index}]");
    let Value::Object(mut message) = message else {
        return refuse(&path, format!("must be an object, but is {}", shown(&message.to_string())));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) => role.clone(),
        other => {
            let is = other.unwrap_or(&Value::Null).to_string();
            return refuse(&format!("{path}.role"), format!("must be a string, but is {}", shown(&is)));
        }
    };
    // Many clients send every field that they know, with null for those without a value.
    message.retain(|name, value| name == "content" || !value.is_null());
    if role == "developer" {
        message.insert("role".into(), "system".into());
    }
    if let Some(Value::Object(function)) = message.shift_remove("function_call") {
        let id = format!("call{index:05}");
        let call = object([("id", id.as_str().into()), ("type", "function".into()), ("function", function.into())]);
        message.entry("tool_calls").or_insert_with(|| vec![call].into());
        *called = Some(id);
    }
    if role == "function" {
        message.insert("role".into(), "tool".into());
        message.extend(called.take().map(|id| ("tool_call_id".to_owned(), id.into())));
    }
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => calls.iter_mut().for_each(as_function),
        Some(_) => drop(message.shift_remove("tool_calls")),
        None => {}
    }
    if let Some(content) = message.get_mut("content").filter(|content| is_other(content)) {
        *content = text_of(content.take(), &format!("{path}.content"), media)?.into();
    }
    // If the assistant refused, the text of its refusal becomes the message's content.
    if let Some(refusal @ Value::String(_)) = message.shift_remove("refusal") {
        let content = message.entry("content").or_insert(Value::Null);
        if content.as_str().is_none_or(str::is_empty) {
            *content = refusal;
        }
    }
    Ok(Value::Object(message))
}

/// Returns whether a content is neither a string nor null.
fn is_other(content: &Value) -> bool {
    !content.is_string() && !content.is_null()
}

/// Turns a call of a custom tool, whose input is a text, into a function call.
fn as_function(call: &mut Value) {
    if let Some(Value::Object(mut custom)) = call.get_mut("custom").map(Value::take) {
        let arguments = arguments_of_text(custom.get_mut("input").map_or(Value::Null, Value::take));
        let name = custom.get_mut("name").map_or(Value::Null, Value::take);
        let id = call["id"].take();
        let function = object([("name", name), ("arguments", arguments)]);
        *call = object([("id", id), ("type", "function".into()), ("function", function)]);
    }
}

/// Splits messages with both text and tool calls into two messages, if the template would drop the calls beside a
/// text.
fn apart(messages: Vec<Value>, template: &ChatTemplate) -> Vec<Value> {
    let has_both = |message: &Value| {
        let calls = message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        calls && message["content"].as_str().is_some_and(|text| !text.is_empty())
    };
    if !messages.iter().any(has_both) || template.shows_calls_beside_text() {
        return messages;
    }
    let mut apart = Vec::with_capacity(2 * messages.len());
    for mut message in messages {
        let calls = if has_both(&message) { message["tool_calls"].take() } else { Value::Null };
        if calls.is_null() {
            apart.push(message);
            continue;
        }
        let role = message["role"].clone();
        let calling = object([("role", role), ("content", Value::Null), ("tool_calls", calls)]);
        message.as_object_mut().into_iter().for_each(|message| drop(message.shift_remove("tool_calls")));
        apart.extend([message, calling]);
    }
    apart
}

/// Sets the content of a message without text to the value that the template needs: many templates print any value.
fn fill_content(message: &mut Map<String, Value>, of_calls: impl FnOnce() -> NoContent) {
    let says = message.get("content").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if !says {
        let calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        let content = if calls { of_calls() } else { NoContent::Empty };
        content.fill(message);
    }
}

/// Gives calls without arguments an empty object as arguments.
fn fill_arguments(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for function in calls.iter_mut().filter_map(|call| call.get_mut("function")?.as_object_mut()) {
        let is_none = match function.get("arguments") {
            None | Some(Value::Null) => true,
            Some(arguments) => arguments.as_str().is_some_and(|text| matches!(text.trim(), "" | "null")),
        };
        if is_none {
            function.insert("arguments".into(), "{}".into());
        }
    }
}

/// Returns the bytes that the arguments of a message's tool calls take as JSON values.
fn arguments_cost(message: &Value) -> usize {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let texts = calls.filter_map(|call| call["function"]["arguments"].as_str());
    let cost = |text: &str| serde_json::from_str(text).map_or(0, |JsonCost(cost)| cost.saturating_add(text.len()));
    texts.map(cost).fold(0, usize::saturating_add)
}

/// Parses the arguments of tool calls, which are JSON in a string, into objects, because most templates expect objects.
/// Arguments that are not a JSON object stay a text if `takes_text` returns true, and otherwise become an empty object.
fn parse_arguments(message: &mut Map<String, Value>, takes_text: impl Fn() -> bool) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for arguments in calls.iter_mut().filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        // Counting fails for arguments that are too deep or too large to be parsed.
        let sound = arguments.as_str().filter(|text| serde_json::from_str::<JsonCost>(text).is_ok());
        let parsed = sound.and_then(|text| json_value(text).ok());
        match parsed {
            Some(object @ Value::Object(_)) => *arguments = object,
            _ if arguments.is_object() => {}
            _ if !takes_text() => *arguments = Value::Object(Map::new()),
            _ if arguments.is_string() => {}
            _ => *arguments = arguments.to_string().into(),
        }
    }
}

/// Writes the arguments of tool calls as JSON text, for templates that expect text.
fn write_arguments(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for arguments in calls.iter_mut().filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        if arguments.is_object() {
            *arguments = arguments.to_string().into();
        }
    }
}

/// Moves the assistant's thinking to the field in which templates look for it, whatever the client's name for it.
/// Harmony templates read `thinking`, and ignore the content beside a call, so that content is added to the end of the
/// thinking.
fn name_thinking(message: &mut Map<String, Value>, harmony: bool) {
    let Some(Value::String(thought)) =
        ["reasoning_content", "reasoning"].iter().find_map(|name| message.get(*name).filter(|text| text.is_string()))
    else {
        return;
    };
    let mut thought = thought.clone();
    if !harmony {
        message.insert("reasoning_content".into(), thought.into());
        return;
    }
    let has_calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    if let Some(Value::String(said)) = message.get("content").filter(|content| has_calls && *content != "") {
        thought = format!("{thought}\n\n{said}");
        message.insert("content".into(), "".into());
    }
    message.entry("thinking").or_insert_with(|| thought.into());
}

/// Writes the `choices` of an answer from what the engine has generated.
struct Writer {
    app: Arc<App>,
    logprobs: bool,
    /// Says for each sequence whether it has called a tool.
    has_called: Vec<bool>,
    /// Says for each sequence whether its last call is of a custom tool, whose input is a text.
    takes_text: Vec<bool>,
}

impl Writer {
    fn whole(&self, index: usize, output: Output) -> Choice {
        let Whole { reasoning, text, calls } = Whole::of(output.pieces);
        let reason = output.cause.as_ref().map(|cause| finish_reason(cause, !calls.is_empty()));
        let mut message = json!({"role": "assistant", "content": text, "refusal": null});
        if !calls.is_empty() || !reasoning.is_empty() {
            if text.trim().is_empty() {
                message["content"] = Value::Null;
            }
            add_reasoning(&mut message, reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into_iter().map(whole_call).collect();
        }
        let entries = output.tokens.iter().map(|(_, position)| chat_entry(&self.app.tokenizer, position));
        let logprobs = self.logprobs.then(|| format!(r#"{{"content":{},"refusal":null}}"#, list_of(entries)));
        let choice = json!({
            "index": index,
            "message": message,
            "logprobs": null,
            "finish_reason": reason,
            "stop_reason": output.cause.as_ref().map_or(Value::Null, stop_reason),
        });
        Choice { choice, logprobs, prompt_logprobs: None }
    }

    fn has_called(&self, index: usize) -> bool {
        self.has_called.get(index).is_some_and(|&has_called| has_called)
    }

    fn logprobs(&self, entries: Vec<Value>) -> Value {
        if self.logprobs { json!({"content": entries, "refusal": null}) } else { Value::Null }
    }

    fn chunk(&self, index: usize, delta: Value, entries: Vec<Value>, cause: Option<StopCause>) -> Value {
        json!({
            "index": index,
            "delta": delta,
            "logprobs": if entries.is_empty() { Value::Null } else { self.logprobs(entries) },
            "finish_reason": cause.as_ref().map(|cause| finish_reason(cause, self.has_called(index))),
            "stop_reason": cause.as_ref().map_or(Value::Null, stop_reason),
        })
    }
}

/// Returns `tool_calls` for an answer that calls tools, unless the answer was cut off at its length limit.
fn finish_reason(cause: &StopCause, has_called: bool) -> &'static str {
    match cause {
        StopCause::Length => cause.openai_name(),
        _ if has_called => "tool_calls",
        _ => cause.openai_name(),
    }
}

/// Writes a tool call of an answer as JSON.
fn whole_call(Called { id, name, is_text, arguments, .. }: Called) -> Value {
    if is_text {
        return json!({"id": id, "type": "custom", "custom": {"name": name, "input": arguments}});
    }
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Adds the model's thinking to a message, under both names that clients of other servers read.
fn add_reasoning(message: &mut Value, reasoning: String) {
    if !reasoning.is_empty() {
        message["reasoning"] = reasoning.as_str().into();
        message["reasoning_content"] = reasoning.into();
    }
}

impl Choices for Writer {
    fn choices(&mut self, index: usize, Delta { text: delta, pieces, .. }: Delta) -> Vec<Value> {
        let mut choices = Vec::new();
        if delta.prompt.is_some() {
            choices.push(self.chunk(index, json!({"role": "assistant", "content": ""}), Vec::new(), None));
        }
        let token = delta.token.and_then(|(_, position)| position);
        let mut entries: Vec<Value> = token.iter().map(|position| chat_entry(&self.app.tokenizer, position)).collect();
        let cause = delta.finished.and_then(Result::ok);
        if pieces.iter().any(|piece| matches!(piece, Piece::Call(_))) {
            self.has_called.get_mut(index).into_iter().for_each(|has_called| *has_called = true);
        }
        let takes_text = &mut self.takes_text[index];
        let mut deltas: Vec<Value> = pieces.into_iter().map(|piece| delta_of(piece, takes_text)).collect();
        if deltas.is_empty() && !entries.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        // If the delta has only text, its chunk also tells the end; otherwise the end gets a chunk of its own.
        let with_text = deltas.len() == 1 && deltas[0].get("content").is_some();
        let mut deltas = deltas.into_iter();
        if with_text && let Some(delta) = deltas.next() {
            choices.push(self.chunk(index, delta, entries, cause));
            return choices;
        }
        choices.extend(deltas.map(|delta| self.chunk(index, delta, std::mem::take(&mut entries), None)));
        if cause.is_some() {
            choices.push(self.chunk(index, json!({}), Vec::new(), cause));
        }
        choices
    }

    fn empty(&self, index: usize) -> Value {
        self.chunk(index, json!({}), Vec::new(), None)
    }
}

/// Writes a piece of an answer as the delta of a chunk. `takes_text` remembers from one piece to the next whether the
/// last call is of a custom tool.
fn delta_of(piece: Piece, takes_text: &mut bool) -> Value {
    match piece {
        Piece::Text(text) => json!({"content": text}),
        Piece::Reasoning(text) => {
            let mut delta = json!({});
            add_reasoning(&mut delta, text);
            delta
        }
        // A call's name comes first; its arguments follow as pieces of their own.
        Piece::Call(call) => {
            let number = call.number;
            *takes_text = call.is_text;
            let mut call = whole_call(call);
            call["index"] = number.into();
            json!({"tool_calls": [call]})
        }
        Piece::Arguments(number, text) if *takes_text => {
            json!({"tool_calls": [{"index": number, "custom": {"input": text}}]})
        }
        Piece::Arguments(number, text) => {
            json!({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
        }
    }
}
