//! Describes errors in the format of OpenAI's API. Other APIs translate the errors into their own formats.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use interbed_engine::{ContextOverflow, InvalidRequest, RequestError, SubmitError};
use interbed_model::chat_template::TemplateError;
use interbed_model::tokenizer::TokenizerError;
use serde_json::{Value, json};

use crate::load_progress::LoadProgress;

/// The number of seconds after which a client may retry, if no better estimate is known.
const RETRY_AFTER_S: u64 = 1;

/// An error response.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The name of the request field that is wrong.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// The number of seconds after which the client may retry, if that makes sense.
    pub(crate) retry_after_s: Option<u64>,
    /// The token counts, if the prompt exceeds the context and the counts are known.
    pub(crate) overflow: Option<ContextOverflow>,
}

/// The error code of OpenAI's API for a prompt that exceeds the context. Agents shorten their conversation when they
/// see it.
pub(crate) const CONTEXT_EXCEEDED: &str = "context_length_exceeded";

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after_s: None, overflow: None }
    }

    /// Status 400, for a request whose field `param` is wrong.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// Status 400, for a prompt that exceeds the context.
    pub(crate) fn beyond_context(
        param: impl Into<String>,
        message: impl Into<String>,
        overflow: Option<ContextOverflow>,
    ) -> Self {
        Self { code: Some(CONTEXT_EXCEEDED), overflow, ..Self::invalid(param, message) }
    }

    /// Status 400, for a bad request without a single wrong field.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Status 401, for a missing or unknown API key.
    pub(crate) fn unauthorized() -> Self {
        let message = "this server needs an API key that it knows, as the header \"Authorization: Bearer KEY\" or \
                       \"x-api-key: KEY\"";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// Status 401, for a key that was removed after its request had arrived.
    pub(crate) fn revoked() -> Self {
        let message = "the API key of this request is known no more, so its answer ends here";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// Status 403, for a pull from another machine while the server has no API keys.
    pub(crate) fn remote_pull() -> Self {
        Self::forbidden(
            "without keys, models are fetched for clients on this machine alone, and for none that a proxy passes on; \
             run `interbed pull NAME` there, or start the server with --api-key-file",
        )
    }

    /// Status 403, for a host name by which the server is not known.
    pub(crate) fn foreign_host(host: &str) -> Self {
        let told = &host[..host.floor_char_boundary(200)];
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let name = told.rsplit_once(':').filter(|(name, port)| is_port(port) && !name.ends_with(':'));
        let name = name.map_or(told, |(name, _)| name);
        Self::forbidden(format!(
            "{told:?} is no name that this server knows itself by. Without keys it answers to localhost, IP addresses, \
             its machine's name, *.local and *.internal, so that no web page reaches it under a name of its own; start \
             it with --allow-host {name}, or with keys"
        ))
    }

    /// Status 403, for a web page of an origin that is not allowed.
    pub(crate) fn foreign_origin(origin: &str) -> Self {
        let told = &origin[..origin.floor_char_boundary(200)];
        Self::forbidden(format!(
            "web pages of {told} may not call this server; start it with --allow-origin {told} if they are to"
        ))
    }

    /// Status 403, for a web page of another site whose origin is unknown.
    pub(crate) fn foreign_site() -> Self {
        Self::forbidden(
            "a web page of another site may not call this server; start it with --allow-origin and the page's origin \
             if it is to",
        )
    }

    fn forbidden(message: impl Into<String>) -> Self {
        Self { code: Some("forbidden"), ..Self::new(StatusCode::FORBIDDEN, message) }
    }

    /// Status 404, for an unknown path or object.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { code: Some("not_found"), ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    /// Status 404, for an unknown model.
    pub(crate) fn model_not_found(model: &str, known: &[String]) -> Self {
        let told = &model[..model.floor_char_boundary(200)];
        let message = format!("the model {told:?} is not served here; this server has {}", known.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, message);
        Self { param: Some("model".into()), code: Some("model_not_found"), ..error }
    }

    /// Returns an error with status 404, for a model that a server with several models does not have. `known` lists the
    /// models of the server, and is empty if it has none.
    pub(crate) fn not_in_library(model: &str, known: &str) -> Self {
        let told = &model[..model.floor_char_boundary(200)];
        let has = if known.is_empty() { "no models yet".to_owned() } else { known.to_owned() };
        let next = "`interbed pull NAME` fetches one, or POST /api/pull with {\"model\": \"NAME\"}";
        let message = match told {
            "" => format!("this server has {has}; {next}"),
            told => format!("the model {told:?} is not on this machine, which has {has}; {next}"),
        };
        let error = Self::new(StatusCode::NOT_FOUND, message);
        Self { param: Some("model".into()), code: Some("model_not_found"), ..error }
    }

    /// Status 405, for a wrong method.
    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// Status 408, for a request that arrives too slowly.
    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Status 413, for a body over the size limit.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes, which is the limit"))
    }

    /// Status 413, for a request that needs more memory than all requests together may have.
    pub(crate) fn needs_too_much(needed: usize, limit: usize, purpose: &str) -> Self {
        let message = format!(
            "the request would take some {} KiB of memory, but all {purpose} together have {}; send a shorter prompt \
             or fewer of them, with a smaller n or best_of and fewer logprobs, for a beam search or with logprobs a \
             smaller max_tokens, or with logprobs a stream",
            needed.div_ceil(1024),
            limit / 1024
        );
        Self { code: Some("request_too_large"), ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
    }

    /// Status 415, for a body that is not declared as JSON.
    pub(crate) fn not_json(content_type: Option<&str>) -> Self {
        let told = match content_type {
            Some(content_type) => format!("the body is {:?}", &content_type[..content_type.floor_char_boundary(200)]),
            None => "the request does not say what its body is".to_owned(),
        };
        let message = format!("{told}; send it with the header \"Content-Type: application/json\"");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// Status 500, for an internal error.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Status 503, for a server that lacks a resource at the moment.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { code: Some("overloaded"), retry_after_s: Some(RETRY_AFTER_S), ..error }
    }

    /// Status 429, for a full queue.
    pub(crate) fn queue_full(message: impl Into<String>, retry_after_s: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        Self { code: Some("queue_full"), retry_after_s: Some(retry_after_s), ..error }
    }

    /// Status 503, while the model is being loaded.
    pub(crate) fn loading(progress: &LoadProgress) -> Self {
        let (done, total) = progress.bytes();
        let message = match total {
            0 => "the model is still being loaded; try again later".into(),
            _ => format!("the model is still being loaded ({done} of {total} bytes); try again later"),
        };
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { code: Some("loading"), retry_after_s: Some(progress.retry_after_s()), ..error }
    }

    /// Status 503, while the server shuts down and finishes the requests in flight.
    pub(crate) fn draining() -> Self {
        let message = "the server is stopping and takes no more requests; send it to another one, or again later";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { code: Some("draining"), retry_after_s: Some(RETRY_AFTER_S), ..error }
    }

    /// Logs errors of the server, except those that say that it is starting or stopping.
    pub(crate) fn log(&self) {
        if self.status.is_server_error() && !matches!(self.code, Some("loading" | "draining")) {
            tracing::warn!(status = self.status.as_u16(), reason = self.message, "request failed");
        }
    }

    /// Returns the body of the response: `{"error": {…}}`.
    pub(crate) fn to_json(&self) -> Value {
        let kind = match self.status {
            status if status.is_server_error() => "server_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        let mut response = (self.status, axum::Json(self.to_json())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The response keeps the error, so that other APIs can write it in their own format.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<InvalidRequest> for ApiError {
    fn from(error: InvalidRequest) -> Self {
        match error.overflow {
            None => Self::invalid(error.param, error.message),
            overflow => Self::beyond_context(error.param, error.message, overflow),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid(invalid) => invalid.into(),
            SubmitError::Overloaded { .. } => Self::queue_full(error.to_string(), RETRY_AFTER_S),
            SubmitError::Stopped => Self::overloaded(error.to_string()),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Forward(_) | RequestError::NotFinite => Self::internal(error.to_string()),
            RequestError::Constraint(_) => Self::malformed(error.to_string()),
            RequestError::TooLarge { .. } => Self::beyond_context("prompt", error.to_string(), None),
            RequestError::Unread => Self::timeout(error.to_string()),
            RequestError::Stopped => Self::overloaded(error.to_string()),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Missing { .. } => Self::malformed(error.to_string()),
            _ if error.is_about_messages() => Self::invalid("messages", error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        Self::invalid("prompt", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_told_without_its_port() {
        for (host, name) in
            [("a.example:80", "a.example"), ("a.example", "a.example"), ("[fe80::g]", "[fe80::g]"), ("a:", "a")]
        {
            let message = ApiError::foreign_host(host).message;
            assert!(message.contains(&format!("--allow-host {name}, or")), "{message}");
        }
    }
}
