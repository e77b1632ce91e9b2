//! `/health`, `/version` and `/metrics`: for monitoring, open to all.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use strata_engine::Health;

use crate::app::App;
use crate::error::ApiError;

/// 200 while the engine makes progress or has nothing to do, otherwise 503 with the reason.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.status().health {
        Health::Ok => (StatusCode::OK, Json(json!({"status": "ok"}))).into_response(),
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
    let text = app.metrics.render(app.model_name(), &app.engine.status());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
