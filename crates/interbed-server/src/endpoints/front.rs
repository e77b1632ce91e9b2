//! Handles requests to a server with several models. The server passes each request on to its model, which is loaded
//! first if necessary, and answers requests about all models itself.

mod listing;
mod pulling;
mod wanted;
mod watching;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::body::read_body;
use crate::config::ServerConfig;
use crate::endpoints::{health, ollama};
use crate::error::ApiError;
use crate::holding_body::holding;
use crate::library::LibraryModel;
use crate::memory::RequestMemory;
use crate::metrics::{self, Metrics};
use crate::shelf::{Answering, Shelf};

pub(crate) use listing::{info, list, one, ps, show, tags};
pub(crate) use pulling::{pull, pull_parts};
use wanted::Wanted;
pub(crate) use watching::events;

/// The maximum number of model names that an error message lists.
const NAMES_TOLD: usize = 12;

/// The state that all handlers of a server with several models share.
pub(crate) struct Front {
    pub(crate) config: ServerConfig,
    pub(crate) draining: watch::Receiver<bool>,
    shelf: Arc<Shelf>,
    metrics: Arc<Metrics>,
    /// The memory for bodies of requests until a model takes them over. Each model has a budget of its own for
    /// everything else.
    memory: RequestMemory,
    started: SystemTime,
}

impl Front {
    /// Creates the state of a server with the models of `shelf`. The value `metrics` counts the answers of all models.
    pub(crate) fn new(
        config: ServerConfig,
        shelf: Arc<Shelf>,
        metrics: Arc<Metrics>,
        draining: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let memory = RequestMemory::new(config.request_bytes_max, &config.api_keys);
        Arc::new(Self { config, draining, shelf, metrics, memory, started: SystemTime::now() })
    }

    /// Returns the model in memory, if there is one.
    fn held(&self) -> Option<Arc<Answering>> {
        self.shelf.answering().map(|(held, _)| held)
    }

    async fn models(self: &Arc<Self>) -> Result<Vec<LibraryModel>, ApiError> {
        self.blocking(|front| Ok(front.shelf.library.models())).await
    }

    /// Returns the first name of the model that a request asks for. A request without a name gets the model in memory,
    /// or else the only model. If the server takes any name, so does a request with an unknown name. The function
    /// blocks.
    fn name_of(&self, asked: Option<&str>) -> Result<String, ApiError> {
        let library = &self.shelf.library;
        if let Some(found) = asked.and_then(|asked| library.find(asked)) {
            return Ok(found);
        }
        let known = || library.models().into_iter().filter_map(|model| model.names.into_iter().next());
        if let Some(asked) = asked.filter(|_| !self.config.any_model_name) {
            return Err(ApiError::not_in_library(asked, &told(known())));
        }
        let present = self.shelf.held().or_else(|| self.shelf.coming().map(|coming| coming.name));
        if let Some(present) = present {
            return Ok(present);
        }
        let mut names = known();
        match (names.next(), names.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(ApiError::not_in_library("", "")),
            (Some(first), Some(second)) => {
                let names = told([first, second].into_iter().chain(names));
                let message = format!("the request names no model, and this server has several: {names}; name one");
                Err(ApiError::invalid("model", message))
            }
        }
    }

    /// Runs `work`, which may read files, on a thread for blocking work.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let front = self.clone();
        let done = spawn_blocking(move || work(&front)).await;
        done.map_err(|error| ApiError::internal(format!("preparing the request failed: {error}")))?
    }
}

/// Completes once the server drains.
async fn drained(front: &Front) {
    // An error means that the server has ended, so it takes no requests either.
    let _ = front.draining.clone().wait_for(|&draining| draining).await;
}

/// Lists at most `NAMES_TOLD` names, separated by commas, for a message.
fn told(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.take(NAMES_TOLD + 1).collect();
    if names.len() > NAMES_TOLD {
        names[NAMES_TOLD] = "and more".into();
    }
    names.join(", ")
}

/// Passes a request on to the model that it names. The model stays in memory until the answer has been written.
pub(crate) async fn pass_on(State(front): State<Arc<Front>>, request: Request) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let received = read_body(&front.config, &front.memory.bodies, &head, body).await?;
    let path = head.uri.path().to_owned();
    let (mut received, wanted, name) = front
        .blocking(move |front| {
            let wanted = Wanted::read(&path, received.body.json())?;
            let name = front.name_of(wanted.model.as_deref())?;
            Ok((received, wanted, name))
        })
        .await?;
    if wanted.dismisses {
        front.shelf.dismiss(&name);
        let shape = if head.uri.path() == "/api/chat" { ollama::Shape::Message } else { ollama::Shape::Response };
        return Ok(Json(shape.done(wanted.model.as_deref().unwrap_or(&name), "unload")).into_response());
    }
    let begun = Instant::now();
    let lease = front.shelf.lease(&name, wanted.keep).await?;
    received.arrival.waited = begun.elapsed();
    head.extensions.insert(received.hand_over());
    let routes = TowerToHyperService::new(lease.routes());
    let Ok(response) = routes.call(Request::from_parts(head, Body::empty())).await;
    Ok(response.map(|body| holding(body, lease)))
}

/// Answers 200 while requests can be answered, whether or not a model is in memory.
pub(crate) async fn health(State(front): State<Arc<Front>>) -> Response {
    if let Some(held) = front.held() {
        return health::health(State(held.app.clone())).await;
    }
    if *front.draining.borrow() {
        let body = json!({"status": "draining", "sequences_in_flight": 0});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let body = match front.shelf.coming() {
        None => json!({"status": "ok"}),
        Some(coming) => {
            let (done, total) = coming.progress.bytes();
            let total = (total > 0).then_some(total);
            json!({"status": "ok", "loading": coming.name, "loaded_bytes": done, "total_bytes": total})
        }
    };
    Json(body).into_response()
}

/// Answers with the metrics of the server, and of the model in memory if there is one.
pub(crate) async fn metrics(State(front): State<Arc<Front>>) -> Response {
    let of_model = front.held().map(|held| {
        let (app, is_draining) = (&held.app, *front.draining.borrow());
        app.metrics.render(app.model_name(), &app.engine.status(), app.engine.limits(), is_draining)
    });
    let coming = front.shelf.coming();
    let coming = coming.as_ref().map(|coming| (coming.name.as_str(), coming.progress.bytes()));
    let text = front.metrics.render_several(of_model, coming);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}
