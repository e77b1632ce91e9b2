//! Implements `/openapi.json`, which describes the API.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::endpoints::operations;
use crate::openapi::document;

/// The document as JSON text, which is the same for each server of this version.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(&operations()).to_string());

pub(crate) async fn handle() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}
