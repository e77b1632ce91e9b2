//! Writes answers in Ollama's form: one JSON object, or a stream of JSON lines.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::response::Response;
use interbed_engine::text::StopCause;
use interbed_engine::{PositionLogprobs, TokenId, json_value};
use serde_json::{Map, Value, json};

use super::refusal;
use super::settings::Settings;
use crate::answer::{Called, Form, Piece};
use crate::app::App;
use crate::blocks::refuse;
use crate::body::Arrival;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::generate::{Asked, Delta, Sequences, submit};
use crate::json_text::{list_of, object, with_field};
use crate::logprobs::chat_entry;
use crate::memory::Share;
use crate::outline::{Block, Change, Outline};
use crate::sampling::Common;
use crate::stream::{self, Events, LINES, line};
use crate::tool_list::arguments_of_text;
use crate::utc::rfc3339;

/// The field in which an answer holds its text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The answer has a `message`, as in `/api/chat`.
    Message,
    /// The answer has a `response`, as in `/api/generate`.
    Response,
}

/// The task of a request.
pub(super) enum Task {
    /// The request only asks to load the model of this name, without an answer.
    Load(String),
    Answer(Box<Prepared>),
}

/// A request whose fields are read and whose prompt is tokenized.
pub(super) struct Prepared {
    pub(super) common: Common,
    pub(super) prompt: Vec<TokenId>,
    /// Describes how the answer is split into thinking, text and calls. If the value is `None`, the text is passed on
    /// unchanged.
    pub(super) form: Option<Form>,
    pub(super) share: Share,
}

impl Task {
    /// Returns the task of a request without a prompt.
    ///
    /// # Errors
    /// Fails if the request asks to unload the model, which a server with one model never does.
    pub(super) fn load(settings: Settings) -> Result<Self, ApiError> {
        if settings.unloads {
            let problem = "asks for nothing but to unload the model, which this server keeps as long as it runs; end \
                           the server, or start it without a MODEL, which unloads models";
            return refuse("keep_alive", problem.into());
        }
        Ok(Self::Load(settings.common.model))
    }
}

/// Answers a request with a whole answer or a stream.
pub(super) async fn respond(
    app: &Arc<App>,
    arrival: Arrival,
    caller: Caller,
    shape: Shape,
    task: Task,
) -> Result<Response, ApiError> {
    let prepared = match task {
        Task::Load(model) => {
            return Ok(stream::json(shape.done(&model, "load").to_string().into_bytes(), Vec::new()));
        }
        Task::Answer(prepared) => *prepared,
    };
    let Prepared { common, prompt, form, share } = prepared;
    let mut writer = Writer {
        app: app.clone(),
        shape,
        model: common.model.clone(),
        arrival,
        is_plain: form.is_none(),
        outline: Outline::default(),
        open: None,
        cause: None,
    };
    let asked = Asked { prompts: vec![prompt], form, echo_bytes: 0, caller, beside: 0, share };
    let mut sequences = submit(app, asked, &common).await?;
    if common.stream {
        return Ok(stream::events(app, sequences, writer));
    }
    let output = sequences.collect().await?.pop().unwrap_or_default();
    let pieces = if writer.is_plain { vec![Piece::Text(output.text)] } else { output.pieces };
    let mut said = writer.said(pieces);
    said.join(writer.rest());
    writer.cause = output.cause;
    let mut answer = writer.shape.object(&writer.model, said);
    answer.extend(writer.figures(&sequences));
    let body = match common.params.logprobs {
        None => Value::Object(answer).to_string(),
        Some(_) => {
            answer.insert("logprobs".into(), Value::Null);
            let entries = output.tokens.iter().map(|(_, position)| chat_entry(&app.tokenizer, position));
            with_field(&answer, "logprobs", &list_of(entries))
        }
    };
    Ok(stream::json(body.into_bytes(), sequences.take_shares()))
}

/// The content of an answer, or of one part of it.
#[derive(Default)]
struct Said {
    thinking: String,
    text: String,
    calls: Vec<Value>,
}

impl Said {
    fn join(&mut self, more: Self) {
        self.thinking.push_str(&more.thinking);
        self.text.push_str(&more.text);
        self.calls.extend(more.calls);
    }

    fn is_empty(&self) -> bool {
        self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

impl Shape {
    /// Returns an answer without text that has ended for `reason`.
    pub(crate) fn done(self, model: &str, reason: &str) -> Value {
        let mut answer = self.object(model, Said::default());
        answer.extend([("done".to_owned(), true.into()), ("done_reason".to_owned(), reason.into())]);
        Value::Object(answer)
    }

    /// Returns an answer, or a part of one, to which the caller adds the fields of the answer's end.
    fn object(self, model: &str, said: Said) -> Map<String, Value> {
        let Said { thinking, text, calls } = said;
        let mut more = Map::new();
        if !thinking.is_empty() {
            more.insert("thinking".into(), thinking.into());
        }
        if !calls.is_empty() {
            more.insert("tool_calls".into(), calls.into());
        }
        let mut answer = Map::new();
        answer.insert("model".into(), model.into());
        answer.insert("created_at".into(), rfc3339(SystemTime::now()).into());
        match self {
            Self::Message => {
                let mut message = Map::new();
                message.insert("role".into(), "assistant".into());
                message.insert("content".into(), text.into());
                message.extend(more);
                answer.insert("message".into(), message.into());
            }
            Self::Response => {
                answer.insert("response".into(), text.into());
                answer.extend(more);
            }
        }
        answer
    }
}

/// Writes the answer, as a whole or line by line.
struct Writer {
    app: Arc<App>,
    shape: Shape,
    model: String,
    arrival: Arrival,
    /// Whether the text is passed on unchanged.
    is_plain: bool,
    outline: Outline,
    /// The last block, unless it has ended. A call holds the part of its arguments that has come so far.
    open: Option<Block>,
    cause: Option<StopCause>,
}

impl Writer {
    /// Returns the content that pieces of the answer add. A call is added once it is complete.
    fn said(&mut self, pieces: Vec<Piece>) -> Said {
        let changes = self.outline.push(pieces);
        self.of_changes(changes)
    }

    /// Returns the content that the end of the answer adds.
    fn rest(&mut self) -> Said {
        let changes = self.outline.end();
        self.of_changes(changes)
    }

    fn of_changes(&mut self, changes: Vec<(usize, Change)>) -> Said {
        let mut said = Said::default();
        for (_, change) in changes {
            match (change, &mut self.open) {
                (Change::Opened(block), open) => *open = Some(block),
                (Change::More(more), Some(Block::Thinking)) => said.thinking.push_str(&more),
                (Change::More(more), Some(Block::Text)) => said.text.push_str(&more),
                (Change::More(more), Some(Block::Call(call))) => call.arguments.push_str(&more),
                (Change::Closed, open) => {
                    if let Some(Block::Call(call)) = open.take() {
                        said.calls.extend(whole_call(call));
                    }
                }
                (Change::More(_), None) => {}
            }
        }
        said
    }

    /// Returns a line of a stream that goes on.
    fn part(&self, said: Said, logprobs: Option<&PositionLogprobs>) -> String {
        let mut part = self.shape.object(&self.model, said);
        part.insert("done".into(), false.into());
        if let Some(position) = logprobs {
            part.insert("logprobs".into(), vec![chat_entry(&self.app.tokenizer, position)].into());
        }
        line(&Value::Object(part))
    }

    /// Returns the fields of an answer's end. Durations are in nanoseconds.
    fn figures(&self, sequences: &Sequences) -> Map<String, Value> {
        let (prompt, answer) = sequences.durations();
        let reason = if self.cause == Some(StopCause::Length) { "length" } else { "stop" };
        let figures = json!({
            "done": true,
            "done_reason": reason,
            "total_duration": nanoseconds(self.arrival.at.elapsed()),
            "load_duration": nanoseconds(self.arrival.waited),
            "prompt_eval_count": sequences.prompt_tokens(),
            "prompt_eval_duration": nanoseconds(prompt),
            "eval_count": sequences.completion_tokens(),
            "eval_duration": nanoseconds(answer),
        });
        if let Value::Object(figures) = figures { figures } else { Map::new() }
    }
}

/// Returns a duration in nanoseconds.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a call of an answer. `None` for a call that was cut off, whose arguments are not a complete object.
fn whole_call(call: Called) -> Option<Value> {
    let arguments = match call.is_text {
        true => arguments_of_text(call.arguments.into()),
        false => json_value(&call.arguments).ok().filter(Value::is_object)?,
    };
    let function = object([("index", call.number.into()), ("name", call.name.into()), ("arguments", arguments)]);
    Some(object([("id", call.id.into()), ("function", function)]))
}

impl Events for Writer {
    const KIND: &'static str = LINES;

    fn delta(&mut self, _: usize, delta: Delta, _: &Sequences) -> Vec<String> {
        let Delta { text: delta, pieces, .. } = delta;
        let said = self.said(if self.is_plain { vec![Piece::Text(delta.text)] } else { pieces });
        let logprobs = delta.token.and_then(|(_, position)| position);
        if let Some(Ok(cause)) = delta.finished {
            self.cause = Some(cause);
        }
        let is_empty = said.is_empty() && logprobs.is_none();
        (!is_empty).then(|| self.part(said, logprobs.as_ref())).into_iter().collect()
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let rest = self.rest();
        let mut lines: Vec<String> = (!rest.is_empty()).then(|| self.part(rest, None)).into_iter().collect();
        let mut last = self.shape.object(&self.model, Said::default());
        last.extend(self.figures(sequences));
        lines.push(line(&Value::Object(last)));
        lines
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        vec![line(&refusal(error))]
    }

    fn idle(&mut self, _: &Sequences) -> Vec<String> {
        vec![self.part(Said::default(), None)]
    }
}
