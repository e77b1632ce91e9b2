//! Implements `/v1/models`, `/model_info` and `/server_info`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::sampling::check_name;

/// Lists all names of the model that is served.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.config.model_names.iter().map(|name| model(&app, name)).collect();
    Json(json!({"object": "list", "data": models}))
}

/// Describes the model under one of its names.
pub(crate) async fn one(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    check_name(&app, Some(name.clone())).map(|_| Json(model(&app, &name)))
}

/// Describes the model and its limits in the form that `sglang-router` reads from SGLang's servers. The path of the
/// model is left out, because the router would only use it to load a tokenizer that it does not need.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    let limits = app.engine.limits();
    Json(json!({
        "served_model_name": app.model_name(),
        "is_generation": true,
        "context_length": limits.max_model_len,
        "max_total_num_tokens": limits.kv_capacity_tokens,
        "vocab_size": limits.vocab_size,
        "tp_size": 1,
        "dp_size": 1,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started_at_s,
        "owned_by": "interbed",
        "root": app.model_name(),
        "parent": null,
        "max_model_len": app.engine.limits().max_model_len,
    })
}
