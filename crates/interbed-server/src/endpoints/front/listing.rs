//! Lists and descriptions of the models that a server with several models has.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, Request, State};
use serde_json::{Map, Value, json};

use super::Front;
use crate::body::read_body;
use crate::endpoints::{models, ollama};
use crate::error::ApiError;
use crate::library::{LibraryModel, ModelDescription};
use crate::shelf::{Answering, refusal};
use crate::speech::Speech;

/// Lists all names of all models, in Ollama's form.
pub(crate) async fn tags(State(front): State<Arc<Front>>) -> Result<Json<Value>, ApiError> {
    let models = front.models().await?;
    let named = models.iter().flat_map(|model| model.names.iter().map(|name| (name, &model.facts)));
    let listed: Vec<_> = named.map(|(name, facts)| ollama::listed(name, facts, front.started)).collect();
    Ok(Json(json!({"models": listed})))
}

/// Lists the model in memory, in Ollama's form.
pub(crate) async fn ps(State(front): State<Arc<Front>>) -> Json<Value> {
    let held = front.shelf.answering();
    let models: Vec<_> = held.iter().map(|(held, ends_at)| ollama::in_memory(&held.app, *ends_at)).collect();
    Json(json!({"models": models}))
}

/// Describes a model, in memory or not, in Ollama's form.
pub(crate) async fn show(State(front): State<Arc<Front>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (head, body) = request.into_parts();
    let received = read_body(&front.config, &front.memory.bodies, &head, body).await?;
    front
        .blocking(move |front| {
            let asked = ollama::wanted(received.body.json())?;
            let name = front.name_of(asked.as_deref())?;
            let told = front.shelf.library.describe(&name);
            let told = told.map_err(|error| refusal(&format!("{name} cannot be shown"), error))?;
            let ModelDescription { facts, context, vocabulary, sampling, template, embeds } = &told;
            let source = template.as_ref().map(|template| template.source());
            let shows_tools = template.as_ref().is_some_and(|template| template.reads_tools());
            let portrait = ollama::Portrait {
                name: &name,
                facts,
                context: *context,
                vocabulary: *vocabulary,
                sampling,
                template: source,
                speech: Speech::of(source.unwrap_or_default(), shows_tools, front.config.tool_parser.as_deref()),
                embeds: *embeds,
                modified: ollama::modified(facts, front.started),
            };
            Ok(Json(portrait.shown(asked.as_deref().unwrap_or(&name))))
        })
        .await
}

/// Lists all names of all models, in OpenAI's form.
pub(crate) async fn list(State(front): State<Arc<Front>>) -> Result<Json<Value>, ApiError> {
    let (models, held) = (front.models().await?, front.held());
    let named = models.iter().flat_map(|model| model.names.iter().map(move |name| (model, name)));
    let list: Vec<_> = named.map(|(model, name)| told(&front, model, name, held.as_deref())).collect();
    Ok(Json(json!({"object": "list", "data": list})))
}

/// Describes one model under the name in the path, in OpenAI's form.
pub(crate) async fn one(
    State(front): State<Arc<Front>>,
    Path(asked): Path<String>,
) -> Result<Json<Map<String, Value>>, ApiError> {
    let held = front.held();
    front
        .blocking(move |front| {
            let name = front.name_of(Some(&asked))?;
            let model = front.shelf.library.models().into_iter().find(|model| model.names.first() == Some(&name));
            let model = model.ok_or_else(|| ApiError::not_found(format!("{name} cannot be used; the log says why")))?;
            Ok(Json(told(front, &model, &asked, held.as_deref())))
        })
        .await
}

/// Describes the model in memory for routers. If no model is in memory, the answer has status 404.
pub(crate) async fn info(State(front): State<Arc<Front>>) -> Result<Json<Value>, ApiError> {
    match front.held() {
        Some(held) => Ok(models::info(State(held.app.clone())).await),
        None => Err(ApiError::not_found("no model is in memory; the first request for one loads it")),
    }
}

/// Describes a model under one of its names. Only the model in memory has a `max_model_len`.
fn told(front: &Front, model: &LibraryModel, name: &str, held: Option<&Answering>) -> Map<String, Value> {
    let root = model.names.first().map_or(name, String::as_str);
    let modified = ollama::modified(&model.facts, front.started);
    let mut told = Map::new();
    told.insert("id".into(), name.into());
    told.insert("object".into(), "model".into());
    told.insert("created".into(), seconds(modified).into());
    told.insert("owned_by".into(), "interbed".into());
    told.insert("root".into(), root.into());
    told.insert("parent".into(), Value::Null);
    if let Some(held) = held.filter(|held| held.app.model_name() == root) {
        told.insert("max_model_len".into(), held.app.engine.limits().max_model_len.into());
    }
    told
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
