//! The server's routes. Each endpoint has a file under `endpoints/`, and a `mod` line and a route in this file.

mod chat;
mod completions;
mod embeddings;
mod front;
mod health;
mod live;
mod loading;
mod messages;
mod models;
mod ollama;
mod openapi;
mod page;
mod responses;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use serde_json::Value;
use tokio::sync::watch;
use tracing::Instrument;

use crate::app::App;
use crate::auth;
use crate::browsers::{self, Browsers};
use crate::config::ServerConfig;
use crate::cors;
use crate::error::ApiError;
use crate::load_progress::LoadProgress;
use crate::metrics::Metrics;
use crate::openapi::Operation;
use crate::other_paths;
use crate::request_id::{ANSWERED_ID, REQUEST_ID, request_id};
use crate::request_log::{Listener, RequestLog};

pub(crate) use front::Front;

type Route = (&'static str, MethodRouter<Arc<App>>);

/// Routes that require an API key if the server has keys.
fn guarded() -> Vec<Route> {
    vec![
        ("/v1/models", get(models::list)),
        ("/v1/models/{*model}", get(models::one)),
        ("/model_info", get(models::info)),
        ("/server_info", get(models::info)),
        ("/v1/completions", post(completions::handle)),
        ("/v1/chat/completions", post(chat::handle)),
        ("/v1/messages", post(messages::handle)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/responses", post(responses::handle)),
        ("/v1/responses/input_tokens", post(responses::input_tokens)),
        ("/v1/embeddings", post(embeddings::handle)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/api/chat", post(ollama::chat)),
        ("/api/generate", post(ollama::generate)),
        ("/api/embed", post(ollama::embed)),
        ("/api/embeddings", post(ollama::embeddings)),
        ("/api/tags", get(ollama::tags)),
        ("/api/ps", get(ollama::ps)),
        ("/api/show", post(ollama::show)),
    ]
}

/// Routes for monitoring, which need no API key.
fn open() -> Vec<Route> {
    vec![
        ("/health", get(health::health)),
        ("/version", get(health::version)),
        ("/api/version", get(ollama::version)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::handle)),
    ]
}

/// Returns the routes of the web page and its files, which need no API key.
fn page<S: Clone + Send + Sync + 'static>() -> Vec<(&'static str, MethodRouter<S>)> {
    vec![("/", get(page::index)), ("/page/{name}", get(page::asset))]
}

/// Routes for paths of Ollama's API that Interbed answers with a hint at what to use instead, except for the paths in
/// `has`. These routes need no API key, because their answers hold nothing but hints.
fn elsewhere<S: Clone + Send + Sync + 'static>(has: &[&str]) -> Vec<(&'static str, MethodRouter<S>)> {
    let paths = ollama::ELSEWHERE.iter().map(|&(path, _)| path).filter(|path| !has.contains(path));
    paths.map(|path| (path, any(ollama::elsewhere))).collect()
}

/// Returns the route of the events that the web page shows. This route requires an API key if the server has keys.
fn live() -> Vec<Route> {
    vec![("/live/events", get(live::events))]
}

/// Returns every operation of the API, as `/openapi.json` describes it.
pub(crate) fn operations() -> Vec<Operation> {
    let post = Operation::post;
    vec![
        Operation {
            required: &["prompt"],
            streams: true,
            ..post("/v1/completions", "Continue texts", completions::parts())
        },
        Operation {
            required: &["messages"],
            streams: true,
            ..post("/v1/chat/completions", "Answer a conversation", chat::parts())
        },
        Operation {
            required: &["messages", "max_tokens"],
            streams: true,
            ..post("/v1/messages", "Answer a conversation, as Anthropic's API does", messages::parts())
        },
        Operation {
            required: &["messages"],
            ..post("/v1/messages/count_tokens", "Count a conversation's tokens", messages::parts())
        },
        Operation {
            required: &["input"],
            streams: true,
            ..post("/v1/responses", "Answer a conversation, as OpenAI's newer API does", responses::parts())
        },
        Operation {
            required: &["input"],
            ..post("/v1/responses/input_tokens", "Count a conversation's tokens", responses::parts())
        },
        Operation { required: &["input"], ..post("/v1/embeddings", "Texts as vectors", embeddings::parts()) },
        post("/tokenize", "A text, or a conversation, to token ids", tokens::tokenize_parts()),
        Operation { required: &["tokens"], ..post("/detokenize", "Token ids to a text", tokens::detokenize_parts()) },
        Operation { lines: true, ..post("/api/chat", "Answer a conversation, as Ollama does", ollama::chat_parts()) },
        Operation { lines: true, ..post("/api/generate", "Answer a prompt, as Ollama does", ollama::generate_parts()) },
        Operation {
            required: &["input"],
            ..post("/api/embed", "Texts as vectors, as Ollama makes them", ollama::embed_parts())
        },
        post("/api/embeddings", "A text as a vector, as Ollama makes it", ollama::embeddings_parts()),
        post("/api/show", "What the model is, as Ollama tells it", ollama::show_parts()),
        Operation {
            lines: true,
            ..post(ollama::PULL, "Fetch a model, as Ollama does, where a server has several", front::pull_parts())
        },
        Operation::get("/api/tags", "The model's names, as Ollama lists them", true),
        Operation::get("/api/ps", "The model in memory, as Ollama lists it", true),
        Operation::get("/api/version", "The version of Ollama whose API this is, and the server's", false),
        Operation::get("/v1/models", "The model's names", true),
        Operation::get("/v1/models/{model}", "One of them", true),
        Operation::get("/model_info", "The model and its limits, for routers", true),
        Operation::get("/server_info", "The same", true),
        Operation::get("/health", "Whether the server makes progress", false),
        Operation::get("/version", "The server's version", false),
        Operation::get("/metrics", "Figures for Prometheus", false),
        Operation::get("/openapi.json", "This document", false),
    ]
}

/// Returns all routes of a server with one model.
pub(crate) fn router(app: Arc<App>, observers: Observers) -> Router {
    let for_clients = with(guarded()).merge(with(live()));
    let open = with(open()).merge(with(elsewhere(&[])));
    let routes = behind_guards(open, for_clients, &app.config, app.draining.clone());
    around(routes, &app.config.allow_origins, observers).with_state(app)
}

/// Returns the routes of one of several models. API keys are checked before a request gets here.
pub(crate) fn of_model(app: Arc<App>) -> Router {
    with(guarded()).with_state(app)
}

/// Returns all routes of a server with several models.
pub(crate) fn of_library(front: Arc<Front>, observers: Observers) -> Router {
    let open = Router::new()
        .route("/health", get(front::health))
        .route("/version", get(health::version))
        .route("/api/version", get(ollama::version))
        .route("/metrics", get(front::metrics))
        .route("/openapi.json", get(openapi::handle))
        .merge(with(elsewhere(&[ollama::PULL])));
    let own = Router::new()
        .route("/v1/models", get(front::list))
        .route("/v1/models/{*model}", get(front::one))
        .route("/model_info", get(front::info))
        .route("/server_info", get(front::info))
        .route("/api/tags", get(front::tags))
        .route("/api/ps", get(front::ps))
        .route("/api/show", post(front::show))
        .route(ollama::PULL, post(front::pull))
        .route("/live/events", get(front::events));
    let passed_on = guarded().into_iter().map(|(path, _)| path).filter(|path| !ANSWERED_FOR_ALL.contains(path));
    let for_clients = passed_on.fold(own, |router, path| router.route(path, post(front::pass_on)));
    let routes = behind_guards(open, for_clients, &front.config, front.draining.clone());
    around(routes, &front.config.allow_origins, observers).with_state(front)
}

/// The routes that a server with several models answers itself. The other routes that require a key are passed on to a
/// model.
const ANSWERED_FOR_ALL: [&str; 7] =
    ["/v1/models", "/v1/models/{*model}", "/model_info", "/server_info", "/api/tags", "/api/ps", "/api/show"];

/// Joins the routes that are open to all, the web page's included, with the routes for clients, and adds the checks of
/// API keys, draining, free connections and browsers.
fn behind_guards<S: Clone + Send + Sync + 'static>(
    open: Router<S>,
    for_clients: Router<S>,
    config: &ServerConfig,
    draining: watch::Receiver<bool>,
) -> Router<S> {
    let guard = middleware::from_fn_with_state(config.api_keys.clone(), auth::guard);
    let accept = middleware::from_fn_with_state(draining, refuse_while_draining);
    let browsers = middleware::from_fn_with_state(Browsers::of(config), browsers::guard);
    let places = middleware::from_fn(refuse_without_room);
    open.merge(with(page()))
        .merge(for_clients.route_layer(accept).route_layer(guard))
        .route_layer(places)
        .route_layer(browsers)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
}

/// Returns the routes for the time while the model is being loaded. The routes for monitoring answer, and those for
/// clients refuse.
pub(crate) fn before(config: &ServerConfig, observers: Observers, progress: Arc<LoadProgress>) -> Router {
    let refused = |routes: Vec<Route>| with(routes.into_iter().map(|(path, _)| (path, any(loading::refuse))).collect());
    let browsers = middleware::from_fn_with_state(Browsers::of(config), browsers::guard);
    let places = middleware::from_fn(refuse_without_room);
    let routes = Router::new()
        .route("/health", get(loading::health))
        .route("/version", get(health::version))
        .route("/api/version", get(ollama::version))
        .route("/metrics", get(loading::metrics))
        .route("/openapi.json", get(openapi::handle))
        .merge(with(page()))
        .merge(with(elsewhere(&[])))
        .merge(refused(guarded()))
        .merge(refused(live()))
        .route_layer(places)
        .route_layer(browsers)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method);
    let model = config.model_names.first().cloned().unwrap_or_default();
    let begun = loading::Begun { model, metrics: observers.metrics.clone(), progress };
    around(routes, &config.allow_origins, observers).with_state(Arc::new(begun))
}

/// Adds the parts that every route has: refusals in the form of the route's API, CORS headers, and the log and metrics
/// of requests.
fn around<S: Clone + Send + Sync + 'static>(routes: Router<S>, origins: &[String], observers: Observers) -> Router<S> {
    let routes = routes.layer(middleware::from_fn(in_its_form));
    let routes = match cors::layer(origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    };
    routes.layer(middleware::from_fn_with_state(observers, follow))
}

fn with<S: Clone + Send + Sync + 'static>(routes: Vec<(&'static str, MethodRouter<S>)>) -> Router<S> {
    routes.into_iter().fold(Router::new(), |router, (path, handlers)| router.route(path, handlers))
}

/// Refuses new requests once the server drains. Requests in flight continue.
async fn refuse_while_draining(
    State(draining): State<watch::Receiver<bool>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let is_draining = *draining.borrow();
    if is_draining { Err(ApiError::draining()) } else { Ok(next.run(request).await) }
}

/// Marks a request that the server refuses, because it already serves as many connections as it may.
#[derive(Clone)]
pub(crate) struct NoRoom;

/// Refuses the request if its connection is marked with `NoRoom`.
async fn refuse_without_room(request: Request, next: Next) -> Result<Response, ApiError> {
    match request.extensions().get::<NoRoom>() {
        Some(NoRoom) => Err(ApiError::overloaded("all connections are busy, and others wait for one; try again later")),
        None => Ok(next.run(request).await),
    }
}

/// A function that writes a refusal as the JSON of one API. The text is the id of the request.
type Form = fn(&ApiError, Option<&str>) -> Value;

/// Returns how refusals are written at `path`, or `None` for OpenAI's form.
fn form_at(path: &str) -> Option<Form> {
    match path {
        _ if path.starts_with("/v1/messages") => Some(messages::refusal),
        _ if path.starts_with("/api/") => Some(|error, _| ollama::refusal(error)),
        _ => None,
    }
}

/// Rewrites refusals into the form of the API that the request's path belongs to.
async fn in_its_form(request: Request, next: Next) -> Response {
    let Some(form) = form_at(request.uri().path()) else { return next.run(request).await };
    let id = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = form(error, id.as_deref());
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    (parts, axum::Json(body)).into_response()
}

async fn unknown_route(request: Request) -> ApiError {
    let path = request.uri().path();
    if let Some(instead) = other_paths::instead(path) {
        return ApiError::not_found(format!("there is no {path} here: {instead}"));
    }
    let paths = guarded().into_iter().chain(open()).map(|(path, _)| path);
    // Each route with a variable part also has a form without one, so the message still names it.
    let paths: Vec<_> = paths.filter(|path| !path.contains('{')).collect();
    ApiError::not_found(format!("there is no {path}; this server has {}", paths.join(", ")))
}

async fn wrong_method(method: Method, request: Request) -> ApiError {
    let path = request.uri().path();
    let taken = operations().into_iter().find(|operation| operation.path == path);
    let next = match taken.is_none_or(|operation| operation.parts.is_empty()) {
        true => "send GET, without a body",
        false => "send POST, with a JSON object as the body; /openapi.json and docs/guide/api.md tell its fields",
    };
    ApiError::wrong_method(format!("{method} is not what {path} answers to; {next}"))
}

/// The metrics and listeners that all requests share, with or without a model.
#[derive(Clone)]
pub(crate) struct Observers {
    pub(crate) metrics: Arc<Metrics>,
    /// The listeners that are told how each request ended.
    pub(crate) listeners: Arc<[Arc<dyn Listener>]>,
}

/// Logs a request until its answer has been written, and adds the request's id to the answer.
async fn follow(State(observers): State<Observers>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let id_text = id.to_str().unwrap_or_default();
    let (method, path) = (request.method().as_str(), request.uri().path());
    let log = RequestLog::begin(id_text, method, path, request.headers(), observers.listeners);
    // The span has the error level, so that log lines about failures carry the id at every log level.
    let span = tracing::error_span!("request", id = id_text);
    // Some APIs repeat the id in the bodies of their answers.
    request.headers_mut().insert(REQUEST_ID, id.clone());
    request.extensions_mut().insert(log.clone());
    let mut response = next.run(request).instrument(span).await;
    observers.metrics.count_response(response.status());
    log.facts().status = response.status().as_u16();
    response.headers_mut().insert(ANSWERED_ID, id.clone());
    response.headers_mut().insert(REQUEST_ID, id);
    response.map(|body| log.around(body))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::openapi::{described, names};

    #[test]
    fn each_route_is_described() {
        let routes = guarded().into_iter().chain(open()).map(|(path, _)| path).chain([ollama::PULL]);
        let routes = routes.map(|path| path.replace("{*", "{"));
        let described = operations().into_iter().map(|operation| operation.path.to_owned());
        assert_eq!(routes.collect::<BTreeSet<_>>(), described.collect::<BTreeSet<_>>());
    }

    #[test]
    fn each_field_is_described_and_nothing_else() {
        let operations = operations();
        let fields = || operations.iter().flat_map(|operation| &operation.parts).flat_map(|part| part.fields);
        for field in fields() {
            assert!(described(field).is_some_and(|text| text.ends_with('.')), "{field} has no description");
        }
        for name in names() {
            assert!(fields().any(|field| *field == name), "{name} is described, and no endpoint reads it");
        }
        for operation in &operations {
            let own: Vec<_> = operation.parts.iter().flat_map(|part| part.fields).collect();
            assert!(operation.required.iter().all(|field| own.contains(&field)), "{}", operation.path);
        }
    }

    /// Checks that every struct that is read from a body is part of an operation. The test finds those structs in the
    /// sources.
    #[test]
    fn no_struct_of_fields_is_left_out() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = vec![directory.join("sampling.rs")];
        for folder in ["endpoints", "endpoints/front", "endpoints/ollama"] {
            let entries = std::fs::read_dir(directory.join(folder)).expect("the endpoints");
            files.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()));
        }
        let mut found = 0;
        for file in files {
            let source = std::fs::read_to_string(&file).expect("a source file");
            // The test looks for structs that are read from the whole body, named in the call or as the type of a
            // variable.
            let names = source.match_indices("read(body.json())").map(|(at, _)| {
                let before = &source[..at];
                let line = &before[before.rfind('\n').map_or(0, |newline| newline + 1)..];
                let named = line.rsplit_once(": ").map(|(_, named)| named.trim_end_matches(" = "));
                let name =
                    named.unwrap_or_else(|| line.trim().trim_start_matches("let ").split(' ').next().unwrap_or(""));
                name.split(['<', ' ', '?']).next().unwrap_or_default().to_owned()
            });
            for name in names.filter(|name| !name.is_empty() && name.starts_with(char::is_uppercase)) {
                // Structs that end in `Cost` only count memory; another struct reads those fields again.
                let counted = name.ends_with("Cost");
                let is_part = source.contains(&format!("part!({name})")) || source.contains(&format!("part!({name}<"));
                assert!(counted || is_part, "{name} of {} is no part of an operation", file.display());
                found += 1;
            }
        }
        assert!(found >= 8, "only {found} were found");
    }
}
