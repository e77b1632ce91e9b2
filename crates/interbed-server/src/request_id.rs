//! Handles `x-request-id`, and `request-id` in Anthropic's API, which identify a request in responses and logs.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::random::random;

/// The header with the id of a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header with the id in responses, which Anthropic's clients read.
pub(crate) const ANSWERED_ID: HeaderName = HeaderName::from_static("request-id");
/// The longest id that is accepted from a client, in bytes.
const BYTES_MAX: usize = 128;

/// Returns the client's own id if it sent one that is safe to log, and otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sent = headers.get(REQUEST_ID).filter(|id| is_sane(id.as_bytes()));
    let fresh = || HeaderValue::from_str(&format!("req-{:016x}{:016x}", random(), random()));
    match sent {
        Some(id) => id.clone(),
        // Hexadecimal digits are a valid header value.
        None => fresh().unwrap_or(HeaderValue::from_static("req-0")),
    }
}

fn is_sane(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(plain)
}
