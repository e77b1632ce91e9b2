//! Streams: what comes of an answer, as it comes, in server-sent events or in lines of JSON.

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

/// Chunks that wait for a slow client; the tokens behind them wait in the sequences' own channels.
const CHUNKS_WAITING: usize = 16;

/// Turns what comes for a sequence into entries of `choices`.
pub(crate) trait Choices: Send + 'static {
    /// The entries; none where there is nothing to tell.
    fn choices(&mut self, index: usize, delta: Delta) -> Vec<Value>;

    /// An entry that adds nothing.
    fn empty(&self, index: usize) -> Value;
}

/// The fields that all chunks of an answer have in common.
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Envelope {
    /// One chunk, or a whole answer.
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
    /// The text of its `logprobs`, which is `null` in `choice`.
    pub(crate) logprobs: Option<String>,
    /// The text of its `prompt_logprobs`, if it has any.
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

/// Answers with the whole of what `sequences` brought. `prompt_logprobs`, if given, is the text of that field.
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
    // An echo is charged to the sequences' memory; the rest to the answer's own.
    json(body, [sequences.take_share(), sequences.take_answer()].into_iter().flatten().collect())
}

/// Answers with JSON. Its share of memory is given back once the client has read it.
pub(crate) fn json(body: Vec<u8>, mut shares: Vec<Share>) -> Response {
    shares.iter_mut().for_each(|share| share.shrink(body.capacity()));
    let mut response = Body::from(Bytes::from_owner(Owned { body, _shares: shares })).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Bytes with their share of memory.
struct Owned {
    body: Vec<u8>,
    _shares: Vec<Share>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Answers with a stream of chunks, as the completion APIs have it.
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
/// The content type of JSON values, one a line.
pub(crate) const LINES: &str = "application/x-ndjson";

/// Turns what comes for the sequences of a request into events, each the text of one: [`data`], [`named`], or [`line`].
pub(crate) trait Events: Send + 'static {
    /// The content type of the stream.
    const KIND: &'static str = SSE;

    /// Something has come for a sequence; no failure.
    fn delta(&mut self, index: usize, delta: Delta, sequences: &Sequences) -> Vec<String>;

    /// All have ended well.
    fn end(&mut self, sequences: &Sequences) -> Vec<String>;

    /// One has failed, and with it the answer.
    fn failed(&mut self, error: &ApiError) -> Vec<String>;

    /// Nothing was told for a while: events that change no answer, and by which clients see that it goes on. Comments
    /// of SSE would not do: some clients wait for events alone, and give up.
    fn idle(&mut self, sequences: &Sequences) -> Vec<String>;
}

/// An event without a name.
pub(crate) fn data(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// An event that is a line of JSON, for streams of [`LINES`].
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// An event of this name.
pub(crate) fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// An event whose name is the `type` of its data too.
pub(crate) fn named(name: &str, data: Value) -> String {
    let mut whole = Map::new();
    whole.insert("type".into(), name.into());
    if let Value::Object(data) = data {
        whole.extend(data);
    }
    event(name, &Value::Object(whole))
}

/// Chunks of `choices`.
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

/// Answers with a stream. When the client goes away, the answer's body is dropped, and with it the sequences.
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
    // Its log lines carry the request's id, as those of its handler do.
    tokio::spawn(writing.in_current_span());
    response(receiver, share, E::KIND)
}

/// Answers with these events alone.
pub(crate) fn ended(events: &[String]) -> Response {
    let (sender, receiver) = mpsc::channel(1);
    // There is room for one, and the receiver is here.
    let _ = sender.try_send(Bytes::from(events.concat()));
    response(receiver, None, SSE)
}

/// An answer of events of this content type that are written elsewhere. `share` is given back when it has ended.
pub(crate) fn response(chunks: mpsc::Receiver<Bytes>, share: Option<Share>, kind: &'static str) -> Response {
    let mut response = Body::new(EventBody { chunks, _share: share }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would make a stream no stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Writes all events, and some that tell of life where there were none for `silence_max`, up to when its key is
/// `revoked`; `None` when the client has gone.
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
            // Nothing is lost: what comes later is still to be read.
            Err(_) => {
                sink.send(events.idle(&sequences)).await?;
                continue;
            }
        };
        match next {
            None => return sink.send(events.end(&sequences)).await,
            Some((_, Delta { text: TextDelta { finished: Some(Err(error)), .. }, .. })) => {
                // One failed sequence fails the whole answer: the others will not be read.
                let error = ApiError::from(error);
                error.log();
                return sink.send(events.failed(&error)).await;
            }
            Some((index, delta)) => {
                sink.send(events.delta(index, delta, &sequences)).await?;
                // Tokens come, but nothing that can be told yet.
                if sink.told.elapsed() >= silence_max {
                    sink.send(events.idle(&sequences)).await?;
                }
            }
        }
    }
}

/// Where chunks go.
struct Sink {
    sender: mpsc::Sender<Bytes>,
    write_timeout: Duration,
    /// When something was sent last.
    told: Instant,
}

impl Sink {
    /// `None` when the client has gone, or reads nothing for too long.
    async fn send(&mut self, events: impl IntoIterator<Item = String>) -> Option<()> {
        for event in events {
            timeout(self.write_timeout, self.sender.send(Bytes::from(event))).await.ok()?.ok()?;
            self.told = Instant::now();
        }
        Some(())
    }
}

/// A body that is written elsewhere. It lives until its last chunk but a few is on its way to the client.
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
