//! Implements CORS, which says which web pages' scripts may call the server from a browser. CORS is off unless origins
//! are allowed.

use std::time::Duration;

use axum::http::{HeaderValue, Method, Uri};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::request_id::{ANSWERED_ID, REQUEST_ID};

/// The time for which a browser may cache a preflight response.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Returns the CORS middleware for the allowed `origins`, or `None` if there are none.
pub(crate) fn layer(origins: &[String]) -> Option<CorsLayer> {
    let allowed = match origins {
        [] => return None,
        _ if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        _ => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // Clients send custom headers, and keys are not cookies: a page has to know a key to send it.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, ANSWERED_ID])
        .max_age(MAX_AGE);
    Some(layer)
}

/// Checks that `origin` is an origin as browsers send it, or `*`.
///
/// # Errors
/// Returns a description of what is wrong with the origin.
pub fn check_origin(origin: &str) -> Result<(), String> {
    let is_origin = origin.parse::<Uri>().is_ok_and(|uri| {
        let parts = uri.scheme_str().zip(uri.authority());
        parts.is_some_and(|(scheme, authority)| format!("{scheme}://{authority}") == origin)
    });
    if origin == "*" || origin == "null" || is_origin {
        return Ok(());
    }
    Err(format!(
        "{origin:?} is no origin: give it as browsers do, such as https://example.org or http://localhost:3000, \
         without a path; or * for all"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for good in ["*", "null", "https://example.org", "http://localhost:3000", "http://[::1]:80", "app://x"] {
            check_origin(good).expect(good);
        }
        for bad in ["", "example.org", "https://example.org/", "https://example.org/a", "https://", "https://a b"] {
            check_origin(bad).expect_err(bad);
        }
    }
}
