//! Answers to requests while the model is being loaded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::ApiError;
use crate::load_progress::LoadProgress;
use crate::metrics::{self, Metrics};

/// The state of a server before its model is loaded.
pub(crate) struct Begun {
    /// The name that the model will have.
    pub(crate) model: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<LoadProgress>,
}

/// Answers 503 with the number of bytes that are loaded.
pub(crate) async fn health(State(begun): State<Arc<Begun>>) -> Response {
    let (done, total) = begun.progress.bytes();
    let body = json!({"status": "loading", "loaded_bytes": done, "total_bytes": (total > 0).then_some(total)});
    let retry_after = [(header::RETRY_AFTER, begun.progress.retry_after_s().to_string())];
    (StatusCode::SERVICE_UNAVAILABLE, retry_after, Json(body)).into_response()
}

/// Answers with the metrics that exist before the model is loaded.
pub(crate) async fn metrics(State(begun): State<Arc<Begun>>) -> Response {
    let text = begun.metrics.render_loading(&begun.model, begun.progress.bytes());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// Refuses a request that needs the model.
pub(crate) async fn refuse(State(begun): State<Arc<Begun>>) -> ApiError {
    ApiError::loading(&begun.progress)
}
