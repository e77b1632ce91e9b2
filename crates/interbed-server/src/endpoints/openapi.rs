//! `/openapi.json`.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::endpoints::operations;
use crate::openapi::document;

/// It depends on nothing but this program.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(&operations()).to_string());

pub(crate) async fn handle() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}
