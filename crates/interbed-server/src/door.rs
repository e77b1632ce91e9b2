//! Accepts requests before the model is loaded, and passes them on to the model once it is there.

use std::sync::{Arc, OnceLock};

use axum::Router;
use interbed_engine::EngineHandle;
use interbed_model::chat_template::ChatTemplate;
use interbed_model::tokenizer::Tokenizer;
use tokio::sync::watch;

use crate::app::{App, Ending};
use crate::config::ServerConfig;
use crate::endpoints::{self, Front, Observers};
use crate::guests::{BESIDE, Guests};
use crate::keep_alive::KeepAlive;
use crate::library::{Library, ServedModel};
use crate::live::Recent;
use crate::load_progress::LoadProgress;
use crate::memory::RequestMemory;
use crate::metrics::Metrics;
use crate::request_log::Listener;
use crate::shelf::{Held, Shelf};
use crate::traces::Traces;

/// The number of connections that are served at a time while the model is being loaded. The smallest memory for
/// requests allows at least as many.
const CONNECTIONS_BEFORE: usize = 64;
/// A handle to a server that already listens but has no model yet.
pub struct Door {
    doorway: Arc<Doorway>,
    is_cut: watch::Receiver<bool>,
}

/// The part of a [`Door`] that connections share.
pub(crate) struct Doorway {
    /// The routes that answer while there is no model.
    before: Router,
    /// The routes that answer once there is a model.
    router: OnceLock<Router>,
    observers: Observers,
    recent: Arc<Recent>,
    progress: Arc<LoadProgress>,
    /// The open connections.
    pub(crate) guests: Arc<Guests>,
    /// Whether the server takes no new requests.
    pub(crate) draining: watch::Receiver<bool>,
}

impl Door {
    /// Creates the entrance of a server. `draining` tells the server to take no new requests, and `is_cut` tells it to
    /// wait no longer for requests in flight.
    pub(crate) fn new(
        config: &ServerConfig,
        traces: Option<Traces>,
        draining: watch::Receiver<bool>,
        is_cut: watch::Receiver<bool>,
    ) -> Self {
        let progress = Arc::new(LoadProgress::default());
        let metrics = Arc::new(Metrics::new(traces.as_ref().map(Traces::counts)));
        let recent = Arc::new(Recent::default());
        let traces = traces.map(|traces| Arc::new(traces) as Arc<dyn Listener>);
        let listeners = traces.into_iter().chain([recent.clone() as _]).collect();
        let observers = Observers { metrics, listeners };
        let most = CONNECTIONS_BEFORE.min(connections_max(config));
        let doorway = Doorway {
            before: endpoints::before(config, observers.clone(), progress.clone()),
            router: OnceLock::new(),
            observers,
            recent,
            progress,
            guests: Guests::new(most, config.proxies.clone()),
            draining,
        };
        Self { doorway: Arc::new(doorway), is_cut }
    }

    pub(crate) fn doorway(&self) -> Arc<Doorway> {
        self.doorway.clone()
    }

    /// Returns the value in which the loading code records how much of the model is loaded.
    pub fn progress(&self) -> Arc<LoadProgress> {
        self.doorway.progress.clone()
    }

    /// Begins to serve the model. Without a `template`, the server refuses chat requests and suggests plain
    /// completions.
    pub fn open(
        self,
        config: ServerConfig,
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
    ) {
        let Self { doorway, is_cut } = self;
        let connections = connections_of(&config);
        let (observers, draining) = (doorway.observers.clone(), doorway.draining.clone());
        let (metrics, recent) = (observers.metrics.clone(), doorway.recent.clone());
        let app = App::new(config, engine, tokenizer, template, metrics, recent, Ending { draining, is_cut });
        // It is opened once: this takes the door.
        let _ = doorway.router.set(endpoints::router(app, observers));
        doorway.guests.set_most(connections);
    }

    /// Begins to serve the models of `library`. One model is in memory at a time. The first request for a model loads
    /// it. The model then stays in memory until `keep` after the last request for it, unless a request sets another
    /// time. This function must be called within a Tokio runtime.
    pub fn open_library(self, config: ServerConfig, library: Arc<dyn Library>, keep: KeepAlive) -> OpenLibrary {
        let Self { doorway, is_cut } = self;
        let connections = connections_of(&config);
        let (observers, draining, recent) =
            (doorway.observers.clone(), doorway.draining.clone(), doorway.recent.clone());
        let ending = Ending { draining: draining.clone(), is_cut };
        let open = move |served: ServedModel| {
            let ServedModel { config, engine, tokenizer, template, keeper } = served;
            // A client may call the model by any name by which the library finds it.
            let config = ServerConfig { any_model_name: true, ..config };
            let metrics = Arc::new(Metrics::of_model());
            let app = App::new(config, engine, tokenizer, template, metrics, recent.clone(), ending.clone());
            Held::new(app.clone(), endpoints::of_model(app), keeper)
        };
        let shelf = Shelf::new(library, keep, config.model_wait_max, Box::new(open));
        let front = Front::new(config, shelf.clone(), observers.metrics.clone(), draining);
        // It is opened once: this takes the door.
        let _ = doorway.router.set(endpoints::of_library(front, observers));
        doorway.guests.set_most(connections);
        OpenLibrary(shelf)
    }
}

/// The models of a server with several models, of which at most one is in memory at a time.
pub struct OpenLibrary(Arc<Shelf>);

impl OpenLibrary {
    /// Ends the engine of the model in memory, if there is one, and frees its memory. Before the call, the caller must
    /// make sure that no request is in flight.
    pub async fn close(self) {
        self.0.close().await;
    }
}

impl Doorway {
    /// Returns the routes that answer now.
    pub(crate) fn router(&self) -> &Router {
        self.router.get().unwrap_or(&self.before)
    }
}

/// Returns the number of connections that are served at a time. Some of the connections that may be open are left over,
/// for requests that come when all others are busy.
fn connections_max(config: &ServerConfig) -> usize {
    config.connections_max.min(affordable(config).saturating_sub(BESIDE)).max(1)
}

/// Returns the number of connections that are served at a time. If this number is smaller than the configured one, the
/// function logs it.
fn connections_of(config: &ServerConfig) -> usize {
    let connections = connections_max(config);
    if affordable(config) < config.connections_max {
        tracing::info!(
            "{connections} connections are served at a time, not {}: the memory for requests holds no more",
            config.connections_max
        );
    }
    connections
}

/// Returns the number of connections for which there is memory.
fn affordable(config: &ServerConfig) -> usize {
    RequestMemory::connections(config.request_bytes_max, config.tls.is_some())
}
