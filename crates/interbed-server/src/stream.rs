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

/// Chunks that are buffered for a slow client; the tokens after them wait in the sequences' own channels.
const CHUNKS_WAITING: usize = 16;

/// Converts the output of a sequence to entries of `choices`.
pub(crate) trait Choices: Send + 'static {
    /// The entries for new output; empty if there is nothing to report.
    fn choices(&mut self, index: usize, delta: Delta) -> Vec<Value>;

    /// An entry that adds nothing.
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

/// One entry of the `choices` of a whole answer.
pub(crate) struct Choice {
    pub(crate) choice: Value,
    /// JSON of the choice's `logprobs`, which is `null` in `choice`.
    pub(crate) logprobs: Option<String>,
    /// JSON of the choice's `prompt_logprobs`, if it has any.
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

/// Builds the response with all output of `sequences`. `prompt_logprobs`, if given, is the JSON of that field.
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

/// A JSON response. Its shares of memory are released once the client has read it.
pub(crate) fn json(body: Vec<u8>, mut shares: Vec<Share>) -> Response {
    shares.iter_mut().for_each(|share| share.shrink(body.capacity()));
    let mut response = Body::from(Bytes::from_owner(Owned { body, _shares: shares })).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Bytes with their shares of memory.
struct Owned {
    body: Vec<u8>,
    _shares: Vec<Share>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// A streamed response of chunks, in the format of the completion APIs.
pub(crate) fn answer(
    app: &Arc<App>,
    sequences: Sequences,
    envelope: Envelope,
    include_usage: bool,
    choices: impl Choices,
) -> Response {
    events(app, sequences, Chunks { envelope, include_usage, choices })
}

/// Content type of server-sent events.
pub(crate) const SSE: &str = "text/event-stream; charset=utf-8";
/// Content type of JSON values, one per line.
pub(crate) const LINES: &str = "application/x-ndjson";

/// Converts the output of a request's sequences to events, each a text from [`data`], [`named`] or [`line`].
pub(crate) trait Events: Send + 'static {
    /// Content type of the stream.
    const KIND: &'static str = SSE;

    /// Events for new output of a sequence that has not failed.
    fn delta(&mut self, index: usize, delta: Delta, sequences: &Sequences) -> Vec<String>;

    /// Events for the end of all sequences without failure.
    fn end(&mut self, sequences: &Sequences) -> Vec<String>;

    /// Events for the failure of a sequence, which ends the answer.
    fn failed(&mut self, error: &ApiError) -> Vec<String>;

    /// Events for a time without output. They change nothing in the answer, but show clients that it goes on. Comments
    /// in SSE would not do: some clients wait for events only, and give up.
    fn idle(&mut self, sequences: &Sequences) -> Vec<String>;
}

/// An event without a name.
pub(crate) fn data(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// A line of JSON, for streams of [`LINES`].
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// An event of this name.
pub(crate) fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// An event with a name, which is also the `type` of its data.
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
        // Clients look at the first choice, so there has to be one.
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

/// A streamed response. When the client disconnects, the body is dropped, and the sequences with it.
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
    // The task logs with the request's id, as its handler does.
    tokio::spawn(writing.in_current_span());
    response(receiver, share, E::KIND)
}

/// A streamed response of only these events.
pub(crate) fn ended(events: &[String]) -> Response {
    let (sender, receiver) = mpsc::channel(1);
    // The channel has room for one item, and its receiver exists.
    let _ = sender.try_send(Bytes::from(events.concat()));
    response(receiver, None, SSE)
}

/// A streamed response of chunks that another task writes. `share` is released when the response has ended.
pub(crate) fn response(chunks: mpsc::Receiver<Bytes>, share: Option<Share>, kind: &'static str) -> Response {
    let mut response = Body::new(EventBody { chunks, _share: share }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would delay the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Writes all events, and idle events after each `silence_max` without output, until the end or until the key is
/// `revoked`; returns `None` when the client has gone.
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
            // Nothing is lost; the output is still to be read.
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
                // Tokens arrive, but nothing that can be reported yet.
                if sink.told.elapsed() >= silence_max {
                    sink.send(events.idle(&sequences)).await?;
                }
            }
        }
    }
}

/// Destination of the chunks.
struct Sink {
    sender: mpsc::Sender<Bytes>,
    write_timeout: Duration,
    /// Time at which something was last sent.
    told: Instant,
}

impl Sink {
    /// Sends events; returns `None` when the client has gone, or reads nothing for too long.
    async fn send(&mut self, events: impl IntoIterator<Item = String>) -> Option<()> {
        for event in events {
            timeout(self.write_timeout, self.sender.send(Bytes::from(event))).await.ok()?.ok()?;
            self.told = Instant::now();
        }
        Some(())
    }
}

/// A body whose chunks another task writes. It lives until almost all chunks are on their way to the client.
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
