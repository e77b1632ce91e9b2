//! Reads request bodies, within limits of size, time and total memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::http::request::Parts;
use hyper::body::Body as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::api_keys::Owner;
use crate::app::App;
use crate::caller::Caller;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::Field;
use crate::json_cost::JsonCost;
use crate::memory::{MemoryPart, PREPARING_BYTES, RENDERED_SLACK, Share};
use crate::request_log::RequestLog;

/// A body over the limit is read and discarded up to this many times the limit: a client that is still sending when the
/// connection closes may never see the response that says why.
const DISCARD_FACTOR: usize = 4;

/// Bytes of a body that are read before memory is reserved for it; see [`crate::memory`].
const FIRST_BYTES: usize = 4 << 10;
/// Lowest speed, after a grace period, at which a body may arrive while others wait for its memory.
const BYTES_PER_SECOND_MIN: f64 = 128.0 * 1024.0;
/// Grace period before the speed of a body is checked.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which the speed of a body is checked.
const LOOK: Duration = Duration::from_millis(250);

/// A request whose body is in memory.
pub(crate) struct Received {
    pub(crate) caller: Caller,
    pub(crate) body: ReceivedBody,
    pub(crate) arrival: Arrival,
}

/// When a request came.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// How long it then waited for its model to be in memory.
    pub(crate) waited: Duration,
}

/// A request whose body was read before it was known who answers it.
#[derive(Clone)]
pub(crate) struct HandedOver(Arc<Mutex<Option<Received>>>);

/// A body with its share of memory, which is released when the value is dropped after reading.
pub(crate) struct ReceivedBody {
    bytes: Vec<u8>,
    share: Share,
}

/// The memory that a request holds while it is prepared.
pub(crate) struct Preparing {
    /// Released when the request has been submitted.
    pub(crate) share: Share,
    /// Longest text that a chat template may render for the request.
    pub(crate) rendered_max: usize,
}

impl Preparing {
    /// Waits for the memory to process a body whose values, once built, use `values` bytes in addition to their texts.
    /// Blocking: not for an async thread.
    pub(crate) fn begin(app: &App, body: &ReceivedBody, values: usize) -> Result<Self, ApiError> {
        let bytes = body.json().len();
        let parsed = bytes.saturating_mul(5).saturating_add(values).saturating_add(PREPARING_BYTES);
        let share = Handle::current().block_on(app.memory.parsed.take(body.share.tenant(), parsed))?;
        Ok(Self { share, rendered_max: bytes.saturating_add(RENDERED_SLACK) })
    }

    /// Waits for the memory to process a conversation, of which these fields become values. Blocking.
    pub(crate) fn conversation(
        app: &App,
        body: &ReceivedBody,
        fields: impl IntoIterator<Item = Option<Field<JsonCost>>>,
    ) -> Result<Self, ApiError> {
        let costs = fields.into_iter().flatten().map(|Field(JsonCost(cost))| cost);
        // Memory is counted three times: for the parsed values, and for the two copies that the template makes.
        Self::begin(app, body, costs.fold(0, usize::saturating_add).saturating_mul(3))
    }
}

impl ReceivedBody {
    /// The bytes of the body, which may or may not be a JSON object.
    pub(crate) fn json(&self) -> &[u8] {
        &self.bytes
    }
}

impl Received {
    /// Puts it where [`receive`] finds it.
    pub(crate) fn hand_over(self) -> HandedOver {
        HandedOver(Arc::new(Mutex::new(Some(self))))
    }
}

/// Reads the body of a request that has passed [`crate::auth::guard`], unless it was read before.
pub(crate) async fn receive(app: &Arc<App>, mut request: Request) -> Result<Received, ApiError> {
    if let Some(HandedOver(received)) = request.extensions_mut().remove() {
        let received = received.lock().unwrap_or_else(PoisonError::into_inner).take();
        return received.ok_or_else(|| ApiError::internal("the body of this request was taken before"));
    }
    let (head, body) = request.into_parts();
    read_body(&app.config, &app.memory.bodies, &head, body).await
}

/// Reads a body within the limits of `config`, into memory of `bodies`.
pub(crate) async fn read_body(
    config: &ServerConfig,
    bodies: &Arc<MemoryPart>,
    head: &Parts,
    body: Body,
) -> Result<Received, ApiError> {
    let arrival = Arrival { at: Instant::now(), waited: Duration::ZERO };
    let content_type = head.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("unreadable"));
    // A foreign web page may send plain text, forms and bodies without a type without asking first, but not JSON.
    let is_taken = |kind: &str| is_json(kind) || (takes_forms(head.uri.path()) && is_form(kind));
    if !content_type.is_some_and(is_taken) {
        return Err(ApiError::not_json(content_type));
    }
    let known = head.extensions.get::<Owner>().zip(head.extensions.get::<Arc<RequestLog>>());
    let (owner, log) = known.ok_or_else(|| ApiError::internal("nobody knows whose request this is"))?;
    log.facts().client = owner.name.clone();
    let caller = Caller { tenant: owner.tenant, log: log.clone() };
    let limit = config.body_bytes_max.min(bodies.bytes());
    let declared = body.size_hint().exact().map_or(limit, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    // The declared bytes may never arrive, so no memory is reserved for them yet.
    let mut memory = bodies.take(caller.tenant, 0).await?;
    let read = timeout(config.body_timeout, read_limited(body, declared.min(limit), limit, &mut memory)).await;
    let bytes = read.map_err(|_| {
        let seconds = config.body_timeout.as_secs_f32();
        ApiError::timeout(format!("the body did not arrive within {seconds} seconds"))
    })??;
    Ok(Received { caller, body: ReceivedBody { bytes, share: memory }, arrival })
}

/// Reads and discards the body of a request that is refused in any case, if the body is short and arrives soon. After a
/// request that was not read to its end, the connection would be closed, which its client may be about to reuse.
pub(crate) async fn discard(mut body: Body) {
    let all = async {
        let mut received = 0;
        while received < FIRST_BYTES
            && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            received += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // A client that sends more, or more slowly, finds the connection closed.
    let _ = timeout(GRACE, all).await;
}

/// Whether this path accepts JSON that is declared as a form: Ollama's clients send it so, above all `curl -d`. A
/// foreign web page can send a form too, but its browser says so in headers (see [`crate::browsers`]).
fn takes_forms(path: &str) -> bool {
    path.starts_with("/api/")
}

fn is_form(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// A content type without its parameters.
fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads a body of `expected` bytes, if the client sends that many. Reserves `memory` for all of it, but only when the
/// first bytes have arrived.
async fn read_limited(mut body: Body, expected: usize, limit: usize, memory: &mut Share) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut received) = (Vec::new(), 0usize);
    let mut taken = None;
    loop {
        if let Some(taken) = taken
            && memory.is_wanted()
            && is_slow(received, taken)
        {
            return Err(ApiError::timeout(
                "the body arrives slowly, and other requests need the memory that it takes; send it again later",
            ));
        }
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = match timeout(LOOK, frame).await {
            // The frame is not lost; it is still to come.
            Err(_) => continue,
            Ok(None) => break,
            Ok(Some(frame)) => frame,
        };
        let frame = frame.map_err(|error| ApiError::malformed(format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        received = received.saturating_add(data.len());
        if received <= limit {
            if received > FIRST_BYTES && taken.is_none() {
                let whole = expected.max(received);
                memory.ensure(whole).await?;
                taken = Some(Instant::now());
                bytes.reserve_exact(whole - bytes.len());
            }
            bytes.extend_from_slice(&data);
        } else if received > limit.saturating_mul(DISCARD_FACTOR) {
            break;
        } else {
            (bytes, taken) = (Vec::new(), None);
            memory.shrink(0);
        }
    }
    if received > limit { Err(ApiError::too_large(limit)) } else { Ok(bytes) }
}

/// Whether a body, of which `received` bytes have arrived, is too slow to keep its memory while others wait.
fn is_slow(received: usize, taken: Instant) -> bool {
    let elapsed = taken.elapsed();
    elapsed > GRACE && (received as f64) < BYTES_PER_SECOND_MIN * elapsed.as_secs_f64()
}
