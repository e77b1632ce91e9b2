//! Reading a request's body, within limits of size, time and memory in all.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use hyper::body::Body as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::app::App;
use crate::auth::Tenant;
use crate::error::ApiError;
use crate::memory::{PREPARING_BYTES, RENDERED_SLACK, Share};

/// A body over the limit is read on, up to this many times the limit, and thrown away: a client that is still sending
/// when the connection closes may never see the answer that says why.
const DISCARD_FACTOR: usize = 4;

/// A request whose body is in memory.
pub(crate) struct Received {
    pub(crate) tenant: Tenant,
    pub(crate) body: ReceivedBody,
}

/// A body, with its share of memory: dropped as soon as all has been read from it.
pub(crate) struct ReceivedBody {
    bytes: Vec<u8>,
    _share: Share,
}

/// The memory that a request holds while it is prepared.
pub(crate) struct Preparing {
    /// Kept until the request has been submitted.
    pub(crate) share: Share,
    /// Longest text that a template may make of the request.
    pub(crate) rendered_max: usize,
}

impl Preparing {
    /// Waits for the memory to process a body whose values, once built, take `values` bytes in addition to their texts.
    /// Blocking: not for an async thread.
    pub(crate) fn begin(app: &App, body: &ReceivedBody, values: usize) -> Result<Self, ApiError> {
        let bytes = body.json().len();
        let parsed = bytes.saturating_mul(5).saturating_add(values).saturating_add(PREPARING_BYTES);
        let share = Handle::current().block_on(app.memory.parsed.take(parsed))?;
        Ok(Self { share, rendered_max: bytes.saturating_add(RENDERED_SLACK) })
    }
}

impl ReceivedBody {
    /// The text, a JSON object or not.
    pub(crate) fn json(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body of a request that has passed [`crate::auth::guard`].
pub(crate) async fn receive(app: &Arc<App>, request: Request) -> Result<Received, ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("unreadable"));
    if let Some(content_type) = content_type.filter(|content_type| !is_json(content_type)) {
        return Err(ApiError::not_json(content_type));
    }
    let tenant =
        *request.extensions().get::<Tenant>().ok_or_else(|| ApiError::internal("the request has no tenant"))?;
    let limit = app.config.body_bytes_max.min(app.memory.bodies.bytes());
    let body = request.into_body();
    let declared = body.size_hint().exact().map_or(limit, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let declared = declared.min(limit);
    let memory = app.memory.bodies.take(declared).await?;
    let read = timeout(app.config.body_timeout, read_limited(body, declared, limit)).await;
    let bytes = read.map_err(|_| {
        let seconds = app.config.body_timeout.as_secs_f32();
        ApiError::timeout(format!("the body did not arrive within {seconds} seconds"))
    })??;
    Ok(Received { tenant, body: ReceivedBody { bytes, _share: memory } })
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads a body, for which `expected` bytes of memory have been set aside.
async fn read_limited(mut body: Body, expected: usize, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(expected);
    let mut received = 0usize;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::malformed(format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        received = received.saturating_add(data.len());
        if received <= limit {
            bytes.extend_from_slice(&data);
        } else if received > limit.saturating_mul(DISCARD_FACTOR) {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if received > limit { Err(ApiError::too_large(limit)) } else { Ok(bytes) }
}
