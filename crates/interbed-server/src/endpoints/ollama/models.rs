//! What the model is: `/api/tags`, `/api/ps` and `/api/show`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{named, tagged};
use crate::app::App;
use crate::body::receive;
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::model_facts::ModelFacts;
use crate::openapi::{Part, part};
use crate::utc::rfc3339;

/// How long after the start of its server a model is told to leave that stays for ever: the longest duration that
/// Ollama's clients know.
const FOR_EVER: Duration = Duration::from_nanos(i64::MAX.cast_unsigned());

/// The fields of `/api/show`.
#[derive(Deserialize)]
struct Fields {
    model: Option<Field<String>>,
    /// The older name for it.
    name: Option<Field<String>>,
    verbose: Option<Field<bool>>,
}

/// All names of the one model that is served.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.config.model_names.iter().map(|name| model(&app, name).into()).collect();
    Json(json!({"models": models}))
}

/// The model in memory.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let mut model = model(&app, app.model_name());
    model.shift_remove("modified_at");
    model.insert("expires_at".into(), rfc3339(started(&app) + FOR_EVER).into());
    model.insert("size_vram".into(), app.config.model.bytes_on_gpu.into());
    model.insert("context_length".into(), app.engine.limits().max_model_len.into());
    Json(json!({"models": [model]}))
}

/// What the model is.
pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let received = receive(&app, request).await?;
    let fields: Fields = read(received.body.json())?;
    let name = named(&app, sent(fields.model.or(fields.name)))?;
    // There is nothing more to tell with it.
    let _ = sent(fields.verbose);
    let parameters = parameters(&app);
    let template = app.template.as_ref().map_or("", |template| template.source());
    Ok(Json(json!({
        "modelfile": modelfile(&name, &parameters),
        "parameters": parameters,
        "template": template,
        "details": details(&app.config.model),
        "model_info": info(&app),
        "capabilities": capabilities(&app),
        "modified_at": rfc3339(modified(&app)),
    })))
}

/// The fields that `/api/show` reads.
pub(crate) fn show_parts() -> Vec<Part> {
    vec![part!(Fields)]
}

fn model(app: &App, name: &str) -> Map<String, Value> {
    let facts = &app.config.model;
    let name = tagged(name);
    let told = json!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(modified(app)),
        "size": facts.bytes,
        "digest": facts.digest,
        "details": details(facts),
    });
    if let Value::Object(told) = told { told } else { Map::new() }
}

fn details(facts: &ModelFacts) -> Value {
    json!({
        "parent_model": "",
        "format": facts.format,
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": facts.size(),
        "quantization_level": facts.quantization,
    })
}

/// The names of these figures are those of GGUF's metadata. The context is the one that this server has.
fn info(app: &App) -> Map<String, Value> {
    let facts = &app.config.model;
    let limits = app.engine.limits();
    let own = |name: &str| format!("{}.{name}", facts.family);
    let figures = [
        ("general.architecture".to_owned(), json!(facts.family)),
        ("general.basename".to_owned(), json!(app.model_name())),
        ("general.parameter_count".to_owned(), json!(facts.parameters)),
        (own("context_length"), json!(limits.max_model_len)),
        (own("embedding_length"), json!(facts.hidden_size)),
        (own("feed_forward_length"), json!(facts.feed_forward)),
        (own("block_count"), json!(facts.layers)),
        (own("attention.head_count"), json!(facts.heads)),
        (own("attention.head_count_kv"), json!(facts.kv_heads)),
        (own("vocab_size"), json!(limits.vocab_size)),
    ];
    figures.into_iter().collect()
}

/// What the model can be asked for. Clients take one that makes embeddings for one that does nothing else, so this is
/// told only where the model does not chat.
fn capabilities(app: &App) -> Vec<&'static str> {
    let chats = app.template.is_some();
    let can = [
        ("completion", true),
        ("tools", chats && app.speech.calls()),
        ("thinking", chats && app.speech.thinks()),
        ("embedding", !chats && app.config.embeddings.is_ok()),
    ];
    can.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect()
}

/// How a request is answered that has no options, a line each.
fn parameters(app: &App) -> String {
    let sampling = &app.config.default_sampling;
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{name:<30} {value}");
    };
    line("num_ctx", app.engine.limits().max_model_len.to_string());
    line("temperature", sampling.temperature.to_string());
    line("top_k", sampling.top_k.unwrap_or(0).to_string());
    line("top_p", sampling.top_p.to_string());
    line("min_p", sampling.min_p.to_string());
    line("repeat_penalty", sampling.repetition_penalty.to_string());
    lines.truncate(lines.trim_end().len());
    lines
}

fn modelfile(name: &str, parameters: &str) -> String {
    let mut text = format!("# Interbed reads no Modelfile; this one says what it does.\nFROM {name}\n");
    for (name, value) in parameters.lines().filter_map(|line| line.split_once(' ')) {
        let _ = writeln!(text, "PARAMETER {name} {}", value.trim_start());
    }
    text
}

fn started(app: &App) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(app.started_at_s)
}

fn modified(app: &App) -> SystemTime {
    app.config.model.modified.unwrap_or_else(|| started(app))
}
