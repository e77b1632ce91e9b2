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

/// A body over the limit is read and discarded up to this many times the limit: if the connection closed while the
/// client is still sending, the client might never see the response with the reason.
const DISCARD_FACTOR: usize = 4;

/// The number of bytes of a body that are read before memory is reserved for it. The module [`crate::memory`] describes
/// this memory.
const FIRST_BYTES: usize = 4 << 10;
/// The minimum speed of a body, in bytes per second, while other requests wait for its memory. The speed is checked
/// after [`GRACE`].
const BYTES_PER_SECOND_MIN: f64 = 128.0 * 1024.0;
/// The time after which the speed of a body is checked.
const GRACE: Duration = Duration::from_secs(1);
/// The interval at which the speed of a body is checked.
const LOOK: Duration = Duration::from_millis(250);

/// A request whose body is in memory.
pub(crate) struct Received {
    pub(crate) caller: Caller,
    pub(crate) body: ReceivedBody,
    pub(crate) arrival: Arrival,
}

/// Records when a request arrived, and how long it waited for its model.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// The time that the request waited for its model to be loaded.
    pub(crate) waited: Duration,
}

/// A request whose body the server has read before passing it on to one of several models.
#[derive(Clone)]
pub(crate) struct HandedOver(Arc<Mutex<Option<Received>>>);

/// A body and its share of memory, which is released when this value is dropped.
pub(crate) struct ReceivedBody {
    bytes: Vec<u8>,
    share: Share,
}

/// The memory that a request holds while it is prepared.
pub(crate) struct Preparing {
    /// The memory share of the request, which is released after the request has been submitted to the engine.
    pub(crate) share: Share,
    /// The maximum number of bytes that a chat template may render for the request.
    pub(crate) rendered_max: usize,
}

impl Preparing {
    /// Waits for the memory to process a body whose JSON values, once built, take `values` bytes in addition to their
    /// texts. The function blocks, so it must not be called on an async thread.
    pub(crate) fn begin(app: &App, body: &ReceivedBody, values: usize) -> Result<Self, ApiError> {
        let bytes = body.json().len();
        let parsed = bytes.saturating_mul(5).saturating_add(values).saturating_add(PREPARING_BYTES);
        let share = Handle::current().block_on(app.memory.parsed.take(body.share.tenant(), parsed))?;
        Ok(Self { share, rendered_max: bytes.saturating_add(RENDERED_SLACK) })
    }

    /// Waits for the memory to process a conversation, of which these fields become values. The function blocks.
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
    /// Returns the bytes of the body, which need not be a JSON object.
    pub(crate) fn json(&self) -> &[u8] {
        &self.bytes
    }
}

impl Received {
    /// Stores the request so that [`receive`] finds it.
    pub(crate) fn hand_over(self) -> HandedOver {
        HandedOver(Arc::new(Mutex::new(Some(self))))
    }
}

/// Reads the body of a request that has passed [`crate::auth::guard`], or takes it from a [`HandedOver`].
pub(crate) async fn receive(app: &Arc<App>, mut request: Request) -> Result<Received, ApiError> {
    if let Some(HandedOver(received)) = request.extensions_mut().remove() {
        let received = received.lock().unwrap_or_else(PoisonError::into_inner).take();
        return received.ok_or_else(|| ApiError::internal("the body of this request was taken before"));
    }
    let (head, body) = request.into_parts();
    read_body(&app.config, &app.memory.bodies, &head, body).await
}

/// Reads a body within the limits of `config`, with memory from `bodies`.
pub(crate) async fn read_body(
    config: &ServerConfig,
    bodies: &Arc<MemoryPart>,
    head: &Parts,
    body: Body,
) -> Result<Received, ApiError> {
    let arrival = Arrival { at: Instant::now(), waited: Duration::ZERO };
    let content_type = head.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("unreadable"));
    // Browsers let any web page send plain text, forms and bodies without a type without a preflight request, but not
    // JSON.
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

/// Reads and discards the body of a request that is refused in any case, if the body is short and arrives soon. An
/// unread body would force the server to close the connection, which the client may be about to reuse.
pub(crate) async fn discard(mut body: Body) {
    let all = async {
        let mut received = 0;
        while received < FIRST_BYTES
            && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            received += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // If the client sends more, or more slowly, the connection is closed.
    let _ = timeout(GRACE, all).await;
}

/// Returns whether the path accepts JSON that is declared as a form, as clients of Ollama and above all `curl -d` send
/// it. Web pages can send forms too, but browsers mark such requests with headers, which [`crate::browsers`] checks.
fn takes_forms(path: &str) -> bool {
    path.starts_with("/api/")
}

fn is_form(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Returns a content type without its parameters.
fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads a body whose client announces `expected` bytes. The memory for the whole body is reserved once the first bytes
/// have arrived.
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
            // The time-out loses no data; the next call reads the frame.
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

/// Returns whether a body, of which `received` bytes have arrived, is too slow to keep its memory while others wait.
fn is_slow(received: usize, taken: Instant) -> bool {
    let elapsed = taken.elapsed();
    elapsed > GRACE && (received as f64) < BYTES_PER_SECOND_MIN * elapsed.as_secs_f64()
}
