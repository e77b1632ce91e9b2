//! Streams answers while they are generated, as server-sent events or lines of JSON.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use interbed_engine::text::TextDelta;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use crate::app::App;
use crate::error::ApiError;
use crate::generate::{Delta, Sequences};
use crate::json_text::{add_field, with_field};
use crate::memory::Share;

/// The maximum number of chunks that are buffered for a slow client. Later tokens wait in the channels of the
/// sequences.
const CHUNKS_WAITING: usize = 16;

/// Converts the output of a sequence to entries of `choices`.
pub(crate) trait Choices: Send + 'static {
    /// Returns the entries for new output of the sequence `index`, or no entries if there is nothing to report.
    fn choices(&mut self, index: usize, delta: Delta) -> Vec<Value>;

    /// Returns an entry that adds nothing, for chunks that only keep the connection alive.
    fn empty(&self, index: usize) -> Value;
}

/// The fields that all chunks of an answer share.
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Envelope {
    /// Builds one chunk, or a whole answer.
    pub(crate) fn with(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut chunk = Map::new();
        chunk.insert("id".into(), self.id.clone().into());
        chunk.insert("object".into(), self.object.into());
        chunk.insert("created".into(), self.created.into());
        chunk.insert("model".into(), self.model.clone().into());
        chunk.insert("choices".into(), choices.into());
        chunk
    }
}

/// An entry of the `choices` of an answer that is not streamed.
pub(crate) struct Choice {
    pub(crate) choice: Value,
    /// The JSON of the choice's `logprobs`, which is `null` in `choice`.
    pub(crate) logprobs: Option<String>,
    /// The JSON of the choice's `prompt_logprobs`, if it has any.
    pub(crate) prompt_logprobs: Option<String>,
}

impl Choice {
    fn into_text(self) -> String {
        let mut text = match (self.choice, self.logprobs) {
            (Value::Object(choice), Some(logprobs)) => with_field(&choice, "logprobs", &logprobs),
            (choice, _) => choice.to_string(),
        };
        add_field(&mut text, "prompt_logprobs", self.prompt_logprobs);
        text
    }
}

/// Builds the response with all output of `sequences`. `prompt_logprobs`, if given, is the JSON of the field of that
/// name.
pub(crate) fn whole(
    envelope: &Envelope,
    choices: Vec<Choice>,
    mut sequences: Sequences,
    prompt_logprobs: Option<String>,
) -> Response {
    let mut answer = envelope.with(Vec::new());
    answer.insert("usage".into(), sequences.usage());
    let mut list = String::from("[");
    for (index, choice) in choices.into_iter().enumerate() {
        list.push_str(if index == 0 { "" } else { "," });
        list.push_str(&choice.into_text());
    }
    list.push(']');
    let mut body = with_field(&answer, "choices", &list);
    drop(list);
    add_field(&mut body, "prompt_logprobs", prompt_logprobs);
    let body = body.into_bytes();
    // Text that `echo` repeats is charged to the share of the sequences, and the rest of the answer to a share of its
    // own.
    json(body, sequences.take_shares())
}

/// Returns a JSON response. The memory shares are released once the body has been sent to the client.
pub(crate) fn json(body: Vec<u8>, mut shares: Vec<Share>) -> Response {
    shares.iter_mut().for_each(|share| share.shrink(body.capacity()));
    let mut response = Body::from(Bytes::from_owner(Owned { body, _shares: shares })).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The bytes of a body, with the memory shares to which they are charged.
struct Owned {
    body: Vec<u8>,
    _shares: Vec<Share>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Returns a streamed response of chunks, in the format of OpenAI's completion APIs.
pub(crate) fn answer(
    app: &Arc<App>,
    sequences: Sequences,
    envelope: Envelope,
    include_usage: bool,
    choices: impl Choices,
) -> Response {
    events(app, sequences, Chunks { envelope, include_usage, choices })
}

/// The content type of server-sent events.
pub(crate) const SSE: &str = "text/event-stream; charset=utf-8";
/// The content type of JSON lines.
pub(crate) const LINES: &str = "application/x-ndjson";

/// Converts the output of a request's sequences to events. Each event is a text made by [`data`], [`named`] or
/// [`line`].
pub(crate) trait Events: Send + 'static {
    /// The content type of the stream.
    const KIND: &'static str = SSE;

    /// Returns the events for new output of a sequence that has not failed.
    fn delta(&mut self, index: usize, delta: Delta, sequences: &Sequences) -> Vec<String>;

    /// Returns the events for the end of an answer without failure.
    fn end(&mut self, sequences: &Sequences) -> Vec<String>;

    /// Returns the events for the failure of a sequence, which ends the whole answer.
    fn failed(&mut self, error: &ApiError) -> Vec<String>;

    /// Returns events for a period without output, which add nothing to the answer but show clients that it goes on.
    /// SSE comments are not enough, because some clients give up unless they receive events.
    fn idle(&mut self, sequences: &Sequences) -> Vec<String>;
}

/// Returns an event without a name.
pub(crate) fn data(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// Returns a line of JSON, for streams of [`LINES`].
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// Returns an event called `name`.
pub(crate) fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// Returns an event called `name`, whose data has this name as `type` too.
pub(crate) fn named(name: &str, data: Value) -> String {
    let mut whole = Map::new();
    whole.insert("type".into(), name.into());
    if let Value::Object(data) = data {
        whole.extend(data);
    }
    event(name, &Value::Object(whole))
}

/// The events of the completion APIs: chunks of `choices`.
struct Chunks<C> {
    envelope: Envelope,
    include_usage: bool,
    choices: C,
}

impl<C> Chunks<C> {
    fn chunk(&self, choice: Value) -> String {
        let mut chunk = self.envelope.with(vec![choice]);
        if self.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        data(&Value::Object(chunk).to_string())
    }
}

impl<C: Choices> Events for Chunks<C> {
    fn delta(&mut self, index: usize, delta: Delta, _: &Sequences) -> Vec<String> {
        self.choices.choices(index, delta).into_iter().map(|choice| self.chunk(choice)).collect()
    }

    fn idle(&mut self, sequences: &Sequences) -> Vec<String> {
        // Clients read the first choice of each chunk, so the chunk has one.
        vec![self.chunk(self.choices.empty(sequences.first_open()))]
    }

    fn end(&mut self, sequences: &Sequences) -> Vec<String> {
        let mut last = Vec::new();
        if self.include_usage {
            let mut chunk = self.envelope.with(Vec::new());
            chunk.insert("usage".into(), sequences.usage());
            last.push(data(&Value::Object(chunk).to_string()));
        }
        last.push(data("[DONE]"));
        last
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        vec![data(&error.to_json().to_string()), data("[DONE]")]
    }
}

/// Returns a streamed response. If the client disconnects, the body is dropped, and dropping it cancels the sequences.
pub(crate) fn events<E: Events>(app: &Arc<App>, mut sequences: Sequences, events: E) -> Response {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let share = sequences.take_share();
    let (write_timeout, silence_max) = (app.config.write_timeout, app.config.silence_max);
    let (keys, tenant) = (app.config.api_keys.clone(), sequences.tenant());
    let writing = async move {
        let gone = sender.clone();
        let sink = Sink { sender, write_timeout, told: Instant::now() };
        tokio::select! {
            () = gone.closed() => {}
            _ = write(sequences, events, sink, silence_max, keys.revoked(tenant)) => {}
        }
    };
    // The task's log lines carry the request's id, like those of the handler.
    tokio::spawn(writing.in_current_span());
    response(receiver, share, E::KIND)
}

/// Returns a streamed response of exactly these events.
pub(crate) fn ended(events: &[String]) -> Response {
    let (sender, receiver) = mpsc::channel(1);
    // The channel has room for one item, and its receiver exists.
    let _ = sender.try_send(Bytes::from(events.concat()));
    response(receiver, None, SSE)
}

/// Returns a streamed response whose chunks another task writes. `share` is released when the response has ended.
pub(crate) fn response(chunks: mpsc::Receiver<Bytes>, share: Option<Share>, kind: &'static str) -> Response {
    let mut response = Body::new(EventBody { chunks, _share: share }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // The header `x-accel-buffering` asks proxies not to buffer the stream, which would delay it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Writes all events until the answer ends or the API key is `revoked`, and idle events after each `silence_max`
/// without output. Returns `None` if the client has disconnected.
async fn write(
    mut sequences: Sequences,
    mut events: impl Events,
    mut sink: Sink,
    silence_max: Duration,
    revoked: impl Future<Output = ()>,
) -> Option<()> {
    let mut revoked = pin!(revoked);
    loop {
        let next = tokio::select! {
            next = timeout_at(sink.told + silence_max, sequences.next()) => next,
            () = &mut revoked => return sink.send(events.failed(&ApiError::revoked())).await,
        };
        let next = match next {
            Ok(next) => next,
            // The time-out loses no output; the next call reads it.
            Err(_) => {
                sink.send(events.idle(&sequences)).await?;
                continue;
            }
        };
        match next {
            None => return sink.send(events.end(&sequences)).await,
            Some((_, Delta { text: TextDelta { finished: Some(Err(error)), .. }, .. })) => {
                // One failed sequence fails the whole answer, so the others are not read.
                let error = ApiError::from(error);
                error.log();
                return sink.send(events.failed(&error)).await;
            }
            Some((index, delta)) => {
                sink.send(events.delta(index, delta, &sequences)).await?;
                // Tokens have arrived, but nothing was sent for `silence_max`.
                if sink.told.elapsed() >= silence_max {
                    sink.send(events.idle(&sequences)).await?;
                }
            }
        }
    }
}

/// The channel to the response's body, with a time-out for each chunk.
struct Sink {
    sender: mpsc::Sender<Bytes>,
    write_timeout: Duration,
    /// The time at which something was last sent.
    told: Instant,
}

impl Sink {
    /// Sends events. Returns `None` if the client has disconnected, or has read nothing for `write_timeout`.
    async fn send(&mut self, events: impl IntoIterator<Item = String>) -> Option<()> {
        for event in events {
            timeout(self.write_timeout, self.sender.send(Bytes::from(event))).await.ok()?.ok()?;
            self.told = Instant::now();
        }
        Some(())
    }
}

/// A body whose chunks another task writes. The body is dropped when almost all chunks are on their way to the client.
struct EventBody {
    chunks: mpsc::Receiver<Bytes>,
    _share: Option<Share>,
}

impl hyper::body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
