//! Implements `/api/tags`, `/api/ps` and `/api/show`, which describe the model.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Request, State};
use interbed_engine::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{named, tagged};
use crate::app::App;
use crate::body::receive;
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::model_facts::ModelFacts;
use crate::openapi::{Part, part};
use crate::speech::Speech;
use crate::utc::rfc3339;

/// The time from the server's start until the `expires_at` of a model that never leaves. This is the longest duration
/// that Ollama's clients can read.
const FOR_EVER: Duration = Duration::from_nanos(i64::MAX.cast_unsigned());

/// The fields of `/api/show`.
#[derive(Deserialize)]
struct Fields {
    model: Option<Field<String>>,
    /// The older name of `model`.
    name: Option<Field<String>>,
    verbose: Option<Field<bool>>,
}

/// Lists all names of the model.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let names = app.config.model_names.iter();
    Json(json!({"models": names.map(|name| listed(name, &app.config.model, started(&app))).collect::<Vec<_>>()}))
}

/// Lists the model in memory.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": [in_memory(&app, None)]}))
}

/// Describes the model.
pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let received = receive(&app, request).await?;
    let name = named(&app, wanted(received.body.json())?)?;
    let portrait = Portrait {
        name: app.model_name(),
        facts: &app.config.model,
        context: app.engine.limits().max_model_len,
        vocabulary: app.engine.limits().vocab_size,
        sampling: &app.config.default_sampling,
        template: app.template.as_ref().map(|template| template.source()),
        speech: app.speech,
        embeds: app.config.embeddings.is_ok(),
        modified: modified(&app.config.model, started(&app)),
    };
    Ok(Json(portrait.shown(&name)))
}

/// Returns the fields that `/api/show` reads.
pub(crate) fn show_parts() -> Vec<Part> {
    vec![part!(Fields)]
}

/// Returns the name of the model that a request to `/api/show` asks for.
pub(crate) fn wanted(body: &[u8]) -> Result<Option<String>, ApiError> {
    let fields: Fields = read(body)?;
    // `verbose` adds nothing to the answer.
    let _ = sent(fields.verbose);
    Ok(sent(fields.model.or(fields.name)))
}

/// Returns a model's entry in a list. `started` is its time of modification if its files have none.
pub(crate) fn listed(name: &str, facts: &ModelFacts, started: SystemTime) -> Map<String, Value> {
    let name = tagged(name);
    let told = json!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(modified(facts, started)),
        "size": facts.bytes,
        "digest": facts.digest,
        "details": details(facts),
    });
    if let Value::Object(told) = told { told } else { Map::new() }
}

/// Returns the entry of the model in memory, which leaves at `ends_at`, or never if that is `None`.
pub(crate) fn in_memory(app: &App, ends_at: Option<SystemTime>) -> Map<String, Value> {
    let facts = &app.config.model;
    let mut model = listed(app.model_name(), facts, started(app));
    model.shift_remove("modified_at");
    let ends_at = ends_at.unwrap_or_else(|| started(app) + FOR_EVER);
    model.insert("expires_at".into(), rfc3339(ends_at).into());
    model.insert("size_vram".into(), facts.bytes_on_gpu.into());
    model.insert("context_length".into(), app.engine.limits().max_model_len.into());
    model
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

/// All facts that `/api/show` tells about a model.
pub(crate) struct Portrait<'a> {
    pub(crate) name: &'a str,
    pub(crate) facts: &'a ModelFacts,
    /// The number of tokens of the context that the server has, or would have with enough memory.
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) sampling: &'a SamplingParams,
    pub(crate) template: Option<&'a str>,
    pub(crate) speech: Speech,
    pub(crate) embeds: bool,
    pub(crate) modified: SystemTime,
}

impl Portrait<'_> {
    /// Returns the answer of `/api/show` to a client that calls the model `name`.
    pub(crate) fn shown(&self, name: &str) -> Value {
        let parameters = self.parameters();
        json!({
            "modelfile": modelfile(name, &parameters),
            "parameters": parameters,
            "template": self.template.unwrap_or_default(),
            "details": details(self.facts),
            "model_info": self.info(),
            "capabilities": self.capabilities(),
            "modified_at": rfc3339(self.modified),
        })
    }

    /// Returns facts about the model under the names of GGUF's metadata.
    fn info(&self) -> Map<String, Value> {
        let facts = self.facts;
        let own = |name: &str| format!("{}.{name}", facts.family);
        let figures = [
            ("general.architecture".to_owned(), json!(facts.family)),
            ("general.basename".to_owned(), json!(self.name)),
            ("general.parameter_count".to_owned(), json!(facts.parameters)),
            (own("context_length"), json!(self.context)),
            (own("embedding_length"), json!(facts.hidden_size)),
            (own("feed_forward_length"), json!(facts.feed_forward)),
            (own("block_count"), json!(facts.layers)),
            (own("attention.head_count"), json!(facts.heads)),
            (own("attention.head_count_kv"), json!(facts.kv_heads)),
            (own("vocab_size"), json!(self.vocabulary)),
        ];
        figures.into_iter().collect()
    }

    /// Returns the tasks that the model can do. Clients assume that a model with `embedding` does nothing else, so
    /// only models that do not chat list it.
    fn capabilities(&self) -> Vec<&'static str> {
        let chats = self.template.is_some();
        let can = [
            ("completion", true),
            ("tools", chats && self.speech.calls()),
            ("thinking", chats && self.speech.thinks()),
            ("embedding", !chats && self.embeds),
        ];
        can.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect()
    }

    /// Returns the parameters of a request without options, one on each line.
    fn parameters(&self) -> String {
        let sampling = self.sampling;
        let mut lines = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{name:<30} {value}");
        };
        line("num_ctx", self.context.to_string());
        line("temperature", sampling.temperature.to_string());
        line("top_k", sampling.top_k.unwrap_or(0).to_string());
        line("top_p", sampling.top_p.to_string());
        line("min_p", sampling.min_p.to_string());
        line("repeat_penalty", sampling.repetition_penalty.to_string());
        lines.truncate(lines.trim_end().len());
        lines
    }
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

/// Returns when a model's files were modified, or `started` if they do not say so.
pub(crate) fn modified(facts: &ModelFacts, started: SystemTime) -> SystemTime {
    facts.modified.unwrap_or(started)
}
