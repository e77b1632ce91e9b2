//! `/v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// All names of the one model that is served.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.config.model_names.iter().map(|name| model(&app, name)).collect();
    Json(json!({"object": "list", "data": models}))
}

/// One model.
pub(crate) async fn one(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if app.config.model_names.contains(&name) {
        Ok(Json(model(&app, &name)))
    } else {
        Err(ApiError::model_not_found(&name, &app.config.model_names))
    }
}

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started_at_s,
        "owned_by": "strata",
        "root": app.config.model_root,
        "parent": null,
        "max_model_len": app.engine.limits().max_model_len,
    })
}
