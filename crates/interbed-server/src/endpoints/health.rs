//! Implements `/health`, `/version` and `/metrics`, the endpoints for monitoring, which need no API key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use interbed_engine::Health;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::metrics;

/// Answers with status 200 if schemas can be compiled and the engine makes progress or is idle, and otherwise with
/// status 503 and the reason.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let status = app.engine.status();
    match status.health {
        Health::Ok if *app.draining.borrow() => {
            let left = status.running + status.waiting + status.swapped;
            let body = json!({"status": "draining", "sequences_in_flight": left});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
        Health::Ok => match app.schemas.stuck() {
            (0, _) => (StatusCode::OK, Json(json!({"status": "ok"}))).into_response(),
            (stuck, places) if stuck < places => {
                (StatusCode::OK, Json(json!({"status": "ok", "schema_workers_stuck": stuck}))).into_response()
            }
            (stuck, _) => {
                let message = format!("all {stuck} workers that compile schemas and grammars are stuck");
                ApiError::overloaded(message).into_response()
            }
        },
        Health::Stalled(reason) => {
            ApiError::overloaded(format!("the engine makes no progress: {reason}")).into_response()
        }
        Health::Dead(reason) => ApiError::overloaded(format!("the engine has ended: {reason}")).into_response(),
    }
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let is_draining = *app.draining.borrow();
    let text = app.metrics.render(app.model_name(), &app.engine.status(), app.engine.limits(), is_draining);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}
