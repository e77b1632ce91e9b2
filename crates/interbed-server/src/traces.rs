//! Sends traces of requests to an OpenTelemetry collector, as protobuf in OTLP over HTTP.
//!
//! The messages are encoded here, because OpenTelemetry's crates bring a dozen more crates and an exporter that blocks
//! its own thread. No request ever waits for the collector: spans wait in a bounded queue, and are dropped if the queue
//! is full or the collector does not accept them.

mod otlp;
mod spans;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Uri, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use crate::request_log::{Came, Facts, Listener};
use otlp::{ExportRequest, KeyValue, OneValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};

/// The maximum number of spans that wait to be sent.
const WAITING: usize = 4096;
/// The maximum number of spans that are sent together.
const BATCH: usize = 512;
/// The time for which the exporter waits for more spans before sending.
const GATHER: Duration = Duration::from_millis(500);
/// The timeout for the collector.
const SEND_MAX: Duration = Duration::from_secs(5);
/// The path of a collector's address without a path.
const PATH: &str = "/v1/traces";

/// The address of a collector that receives traces by OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint {
    host: String,
    port: u16,
    path: String,
}

impl OtlpEndpoint {
    /// Parses `http://HOST[:PORT][/PATH]`. The port defaults to 4318, and the path to `/v1/traces`.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the text.
    pub fn read(text: &str) -> Result<Self, String> {
        let example = "give for instance http://localhost:4318";
        let uri: Uri = text.parse().map_err(|_| format!("{text:?} is no URL; {example}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{text:?} is https, which is not spoken here; run a collector beside the server, and \
                                    {example}"
                ));
            }
            _ => return Err(format!("{text:?} is no URL of http; {example}")),
        }
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("{text:?} has no host; {example}"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { PATH } else { path };
        Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(4318), path: path.to_owned() })
    }

    /// Returns the address for sockets: without the brackets that an IPv6 address has in a URL.
    fn address(&self) -> (String, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']').to_owned(), self.port)
    }
}

/// The sending end of the queue of spans.
pub(crate) struct Traces {
    queue: mpsc::Sender<Span>,
    counts: Arc<TraceCounts>,
}

/// Counts of spans by outcome.
#[derive(Default)]
pub(crate) struct TraceCounts {
    pub(crate) sent: AtomicU64,
    /// The number of spans that were dropped, because the queue was full or the collector did not accept them.
    pub(crate) dropped: AtomicU64,
}

/// The receiving end of the queue, which sends spans to the collector.
pub(crate) struct Exporter {
    queue: mpsc::Receiver<Span>,
    endpoint: OtlpEndpoint,
    counts: Arc<TraceCounts>,
    /// A DNS look-up of the collector that has not ended. There is never a second one, because a look-up occupies a
    /// thread of the pool that also tokenizes, for as long as name servers take.
    lookup: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
}

impl Traces {
    /// Creates the queue for a collector, and the task that sends to it.
    pub(crate) fn to(endpoint: OtlpEndpoint) -> (Self, Exporter) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let counts = Arc::new(TraceCounts::default());
        (Self { queue: sender, counts: counts.clone() }, Exporter { queue: receiver, endpoint, counts, lookup: None })
    }

    /// Returns the counts of spans so far.
    pub(crate) fn counts(&self) -> Arc<TraceCounts> {
        self.counts.clone()
    }
}

impl Listener for Traces {
    fn ended(&self, came: &Came, facts: &Facts) {
        for span in spans::of(came, facts) {
            if self.queue.try_send(span).is_err() {
                self.counts.dropped.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Exporter {
    /// Sends spans until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let (mut batch, mut was_taken) = (Vec::new(), true);
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let until = tokio::time::Instant::now() + GATHER;
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                tokio::select! {
                    more = self.queue.recv_many(&mut batch, room) => if more == 0 { break },
                    () = sleep_until(until) => break,
                }
            }
            let count = batch.len() as u64;
            let sent = timeout(SEND_MAX, self.send(std::mem::take(&mut batch))).await;
            let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {} s", SEND_MAX.as_secs())));
            let counter = if sent.is_ok() { &self.counts.sent } else { &self.counts.dropped };
            counter.fetch_add(count, Relaxed);
            match &sent {
                Ok(()) if !was_taken => tracing::info!("the collector of traces takes them again"),
                Err(error) if was_taken => tracing::warn!("the collector takes no traces, which are dropped: {error}"),
                _ => {}
            }
            was_taken = sent.is_ok();
        }
    }

    /// Returns the addresses of the collector. If an earlier look-up has not ended, the function continues it.
    async fn addresses(&mut self) -> io::Result<Vec<SocketAddr>> {
        let address = self.endpoint.address();
        let lookup =
            self.lookup.get_or_insert_with(|| tokio::spawn(async move { Ok(lookup_host(address).await?.collect()) }));
        let found = lookup.await;
        self.lookup = None;
        found.map_err(io::Error::other)?
    }

    async fn send(&mut self, spans: Vec<Span>) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let addresses = self.addresses().await.map_err(|error| text(&error))?;
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| text(&error))?;
        let handshake = http1::handshake::<_, Body>(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| text(&error))?;
        let request = Request::post(&self.endpoint.path)
            .header(header::HOST, format!("{}:{}", self.endpoint.host, self.endpoint.port))
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(Body::from(message(spans).encode_to_vec()))
            .map_err(|error| text(&error))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
            if answer.status().is_success() { Ok(()) } else { Err(format!("it answers {}", answer.status())) }
        };
        let mut answer = pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // The connection task moves the bytes. It may end after it has received the response.
            ended = connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(text(&error)),
            },
        }
    }
}

fn message(spans: Vec<Span>) -> ExportRequest {
    let (name, version) = ("interbed".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let attribute = |key: &str, value: &str| KeyValue::new(key, OneValue::Text(value.to_owned()));
    let resource =
        Resource { attributes: vec![attribute("service.name", &name), attribute("service.version", &version)] };
    let scope_spans = vec![ScopeSpans { scope: Some(Scope { name, version }), spans }];
    ExportRequest { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::request_log::AskedFor;

    #[test]
    fn a_request_is_four_spans_with_its_figures() {
        let now = Instant::now();
        let [submitted, first, last] = [10, 40, 90].map(|ms| Some(now + Duration::from_millis(ms)));
        let asked = AskedFor {
            model: "m".into(),
            sequences: 2,
            n: 2,
            max_tokens: 8,
            temperature: 0.5,
            top_p: 1.0,
            stream: true,
        };
        let facts = Facts {
            status: 200,
            asked: Some(asked),
            prompt_tokens: 7,
            submitted,
            queued: Some(Duration::from_millis(20)),
            first_token: first,
            last_token: last,
            finish: Some("length"),
            ..Facts::default()
        };
        let came = |traceparent: Option<&str>| Came {
            id: "req-1".into(),
            method: "POST".into(),
            path: "/v1/completions".into(),
            traceparent: traceparent.map(str::to_owned),
            at: now,
            at_clock: SystemTime::UNIX_EPOCH,
        };
        let sent = message(spans::of(&came(None), &facts)).encode_to_vec();
        let read = ExportRequest::decode(&sent[..]).expect("what was written");
        let spans = &read.resource_spans[0].scope_spans[0].spans;
        let times = spans.iter().map(|span| (span.name.as_str(), span.start_time_unix_nano, span.end_time_unix_nano));
        let ms = 1_000_000;
        let expect = [("queued", 10 * ms, 30 * ms), ("prefill", 30 * ms, 40 * ms), ("decode", 40 * ms, 90 * ms)];
        assert_eq!(times.take(3).collect::<Vec<_>>(), expect);
        let whole = &spans[3];
        assert_eq!((whole.name.as_str(), whole.start_time_unix_nano, whole.kind), ("llm_request", 0, 2));
        assert!(spans[..3].iter().all(|span| span.parent_span_id == whole.span_id && span.trace_id == whole.trace_id));
        assert_eq!((whole.trace_id.len(), whole.span_id.len(), whole.parent_span_id.len()), (16, 8, 0));
        let value = |key: &str| {
            let found = whole.attributes.iter().find(|attribute| attribute.key == key);
            found.and_then(|attribute| attribute.value.clone()?.value)
        };
        assert_eq!(value("gen_ai.usage.prompt_tokens"), Some(OneValue::Int(7)));
        assert_eq!(value("gen_ai.latency.time_in_queue"), Some(OneValue::Double(0.02)));
        assert_eq!(value("gen_ai.latency.time_in_model_decode"), Some(OneValue::Double(0.05)));
        assert_eq!(value("gen_ai.operation.name"), Some(OneValue::Text("text_completion".into())));
        // Nothing is sent for a caller that does not sample, nor for a request that never reached the engine.
        let unsampled = came(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"));
        assert!(spans::of(&unsampled, &facts).is_empty());
        assert!(spans::of(&came(None), &Facts { asked: None, ..facts }).is_empty());
    }

    #[test]
    fn addresses_are_read_with_their_defaults() {
        let read = |text: &str| OtlpEndpoint::read(text).map(|OtlpEndpoint { host, port, path }| (host, port, path));
        let of = |host: &str, port, path: &str| Ok((host.to_owned(), port, path.to_owned()));
        assert_eq!(read("http://localhost"), of("localhost", 4318, "/v1/traces"));
        assert_eq!(read("http://10.0.0.1:99/"), of("10.0.0.1", 99, "/v1/traces"));
        assert_eq!(read("http://[::1]:1/otlp/v1/traces"), of("[::1]", 1, "/otlp/v1/traces"));
        assert_eq!(OtlpEndpoint::read("http://[::1]:1").unwrap().address(), ("::1".to_owned(), 1));
        for bad in ["", "localhost:4318", "grpc://x:1", "https://x", "http://", "/v1/traces", "http:// x"] {
            assert!(read(bad).is_err_and(|told| told.contains("http://localhost:4318")), "{bad}");
        }
    }
}
