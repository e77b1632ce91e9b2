//! The routes: an endpoint is a file, with its `mod` and its route here.

mod chat;
mod completions;
mod health;
mod messages;
mod models;
mod responses;
mod tokens;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use tracing::Instrument;

use crate::app::App;
use crate::auth;
use crate::cors;
use crate::error::ApiError;
use crate::request_id::{REQUEST_ID, request_id};

type Route = (&'static str, MethodRouter<Arc<App>>);

/// Routes for which a client needs a key, where keys are set.
fn guarded() -> Vec<Route> {
    vec![
        ("/v1/models", get(models::list)),
        ("/v1/models/{*model}", get(models::one)),
        ("/v1/completions", post(completions::handle)),
        ("/v1/chat/completions", post(chat::handle)),
        ("/v1/responses", post(responses::handle)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
    ]
}

/// The same, for an API whose errors have a form of their own.
fn messages() -> Vec<Route> {
    vec![("/v1/messages", post(messages::handle)), ("/v1/messages/count_tokens", post(messages::count_tokens))]
}

/// Routes for monitoring, open to all.
fn open() -> Vec<Route> {
    vec![("/health", get(health::health)), ("/version", get(health::version)), ("/metrics", get(health::metrics))]
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let guard = middleware::from_fn_with_state(app.clone(), auth::guard);
    let routes = with(open())
        .merge(with(guarded()).route_layer(guard.clone()))
        .merge(with(messages()).route_layer(guard).route_layer(middleware::from_fn(messages::in_its_form)))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method);
    let routes = match cors::layer(&app.config.allow_origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    };
    routes.layer(middleware::from_fn_with_state(app.clone(), log)).with_state(app)
}

fn with(routes: Vec<Route>) -> Router<Arc<App>> {
    routes.into_iter().fold(Router::new(), |router, (path, handlers)| router.route(path, handlers))
}

async fn unknown_route(request: Request) -> ApiError {
    let paths = guarded().into_iter().chain(messages()).chain(open()).map(|(path, _)| path);
    // Each route with a variable part has one without it beside it.
    let paths: Vec<_> = paths.filter(|path| !path.contains('{')).collect();
    ApiError::not_found(format!("there is no {}; this server has {}", request.uri().path(), paths.join(", ")))
}

async fn wrong_method(method: Method, request: Request) -> ApiError {
    ApiError::wrong_method(format!("{method} is not what {} answers to", request.uri().path()))
}

/// One line per request, when the answer begins, and the request's id in the answer.
async fn log(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = request_id(request.headers());
    // For those that tell it in their bodies too.
    request.headers_mut().insert(REQUEST_ID, id.clone());
    // At the level of errors, so that lines about failures carry it at every log level.
    let span = tracing::error_span!("request", id = id.to_str().unwrap_or_default());
    let mut response = next.run(request).instrument(span.clone()).await;
    app.metrics.count_response(response.status());
    let (status, elapsed) = (response.status().as_u16(), started.elapsed());
    span.in_scope(|| tracing::info!(%method, path, status, elapsed_ms = elapsed.as_millis() as u64, "request"));
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
