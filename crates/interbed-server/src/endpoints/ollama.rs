//! Implements `/api/…`, which is Ollama's API.
//!
//! Conversations and prompts of Ollama's API are translated into the form of OpenAI's chats and handled by
//! [`crate::endpoints::chat`]. The answers are written in Ollama's form.

mod answer;
mod chat;
mod conversation;
mod embed;
mod generate;
mod models;
mod settings;

use std::sync::LazyLock;

use axum::Json;
use axum::extract::Request;
use axum::http::header;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::discard;
use crate::endpoints::chat::of_chats;
use crate::error::ApiError;
use crate::openapi::{Part, fields_of_all};
use crate::sampling::check_name;
use crate::unsupported::Api;

pub(crate) use answer::Shape;
pub(crate) use chat::{handle as chat, parts as chat_parts};
pub(crate) use embed::{embed, embed_parts, embeddings, embeddings_parts};
pub(crate) use generate::{handle as generate, parts as generate_parts};
pub(crate) use models::{Portrait, in_memory, listed, modified, ps, show, show_parts, tags, wanted};

/// The version of Ollama whose API the server implements. Some clients refuse versions that are too old for them.
const VERSION: &str = "0.12.11";

/// The tag of a model's name that has no other tag.
const TAG: &str = ":latest";

/// The path for fetching models. Servers with several models serve this path, and servers with one model refuse it.
pub(crate) const PULL: &str = "/api/pull";

/// The paths of Ollama's API that the server does not serve, each with a hint at what to use instead.
pub(crate) const ELSEWHERE: [(&str, &str); 10] = [
    ("/api/blobs/{digest}", "a model is a folder or a GGUF file; start `interbed serve` with its path"),
    ("/api/copy", "`interbed serve --served-model-name` gives a model several names"),
    (
        "/api/create",
        "start `interbed serve` with a GGUF file or a folder of safetensors, and send what a Modelfile would say as \
         options and system",
    ),
    ("/api/delete", "`interbed rm NAME` removes a model from the cache, and `interbed list` lists what it holds"),
    ("/api/experimental/{*path}", "this server searches and fetches nothing"),
    ("/api/me", "this server has no accounts, but keys"),
    (
        PULL,
        "start `interbed serve` without a MODEL, which has it, or `interbed serve ORG/NAME`, which fetches that model",
    ),
    ("/api/push", "models go to the Hub with its own tools"),
    ("/api/signout", "this server has no accounts, but keys"),
    ("/api/status", "/health tells how the server is"),
];

/// Refuses a request to one of [`ELSEWHERE`]'s paths with the hint for it.
pub(crate) async fn elsewhere(request: Request) -> ApiError {
    let (head, body) = request.into_parts();
    // A client that sent `Expect: 100-continue` has not sent its body, so there is none to discard.
    if !head.headers.contains_key(header::EXPECT) {
        discard(body).await;
    }
    let path = head.uri.path();
    let is_at = |route: &str| route.split_once('{').map_or(path == route, |(begin, _)| path.starts_with(begin));
    let next = ELSEWHERE.iter().find(|(route, _)| is_at(route)).map_or("", |(_, next)| next);
    ApiError::not_found(format!("Interbed does not serve {path} of Ollama's API: {next}"))
}

/// Writes a refusal in Ollama's form.
pub(crate) fn refusal(error: &ApiError) -> Value {
    json!({"error": error.message})
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION, "interbed": env!("CARGO_PKG_VERSION")}))
}

/// Returns the model name for the answer: the name in the request, with or without the tag, or the server's if there
/// is none.
///
/// # Errors
/// Fails if the server has no model of this name.
fn named(app: &App, model: Option<String>) -> Result<String, ApiError> {
    let Some(model) = model else { return Ok(tagged(app.model_name())) };
    let bare = |name: &str| name.strip_suffix(TAG).unwrap_or(name).to_owned();
    if app.config.model_names.iter().any(|known| bare(known) == bare(&model)) {
        return Ok(model);
    }
    check_name(app, Some(model))
}

/// Appends `:latest` to a name without a tag, as Ollama's lists do.
fn tagged(name: &str) -> String {
    let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    if has_tag { name.to_owned() } else { format!("{name}{TAG}") }
}

/// Names the fields of other APIs that `/api/chat` does not have.
struct OfChat;

impl Api for OfChat {
    fn elsewhere(name: &str) -> Option<&'static str> {
        static OWN: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&chat::parts()));
        static OTHER: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&generate::parts()));
        foreign(name, &OWN, &OTHER, "/api/generate")
    }
}

/// Names the fields of other APIs that `/api/generate` does not have.
struct OfGenerate;

impl Api for OfGenerate {
    fn elsewhere(name: &str) -> Option<&'static str> {
        static OWN: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&generate::parts()));
        static OTHER: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&chat::parts()));
        foreign(name, &OWN, &OTHER, "/api/chat")
    }
}

/// Returns where a field belongs that is not one of the endpoint's `own`: in `options`, at `path`, which has the
/// `other` fields, or at `/v1/chat/completions`. Returns `None` if the field is the endpoint's own or unknown.
fn foreign(name: &str, own: &[&str], other: &[&str], path: &'static str) -> Option<&'static str> {
    static OPTIONS: LazyLock<Vec<&'static str>> = LazyLock::new(|| fields_of_all(&settings::option_parts()));
    match name {
        _ if own.contains(&name) => None,
        _ if OPTIONS.contains(&name) => Some("options"),
        _ if other.contains(&name) => Some(path),
        _ => of_chats(name),
    }
}

/// Returns the parts of a body that `/api/chat` and `/api/generate` both read.
fn shared_parts() -> Vec<Part> {
    vec![settings::part()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::read;
    use crate::unsupported::Supported;

    #[test]
    fn names_have_a_tag_or_get_one() {
        for (name, told) in
            [("a", "a:latest"), ("a:1b", "a:1b"), ("org/a", "org/a:latest"), ("host:80/a", "host:80/a:latest")]
        {
            assert_eq!(tagged(name), told);
        }
    }

    #[test]
    fn fields_in_the_wrong_place_say_where_they_belong() {
        let told = |error: ApiError| error.message;
        for (body, place) in [
            (r#"{"temperature": 1}"#, "options"),
            (r#"{"stop": ["a"]}"#, "options"),
            (r#"{"raw": true}"#, "/api/generate"),
            (r#"{"tool_choice": "none"}"#, "/v1/chat/completions"),
        ] {
            let error = read::<Supported<OfChat>>(body.as_bytes()).map(drop).expect_err(body);
            assert!(told(error).ends_with(&format!("is a field of {place}; leave it out here")), "{body}");
        }
        let error = read::<Supported<OfGenerate>>(br#"{"messages": [{}]}"#).map(drop).expect_err("a chat");
        assert_eq!(told(error), "messages is a field of /api/chat; leave it out here");
        for body in [r#"{"think": true, "messages": [], "keep_alive": 3, "unknown": 1}"#, r#"{"raw": false}"#] {
            read::<Supported<OfChat>>(body.as_bytes()).map(drop).expect(body);
        }
    }
}
