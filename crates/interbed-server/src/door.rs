//! What connections come in by: it answers before there is a model, and leads to the model once there is one.

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

/// Connections that are served at a time while the model is being loaded: no more than the least memory allows later.
const CONNECTIONS_BEFORE: usize = 64;
/// The way to a server that listens already, and has no model yet.
pub struct Door {
    doorway: Arc<Doorway>,
    is_cut: watch::Receiver<bool>,
}

/// The part of it that connections know.
pub(crate) struct Doorway {
    /// What answers while there is no model.
    before: Router,
    /// What answers once there is one.
    router: OnceLock<Router>,
    observers: Observers,
    recent: Arc<Recent>,
    progress: Arc<LoadProgress>,
    /// The connections that are open.
    pub(crate) guests: Arc<Guests>,
    /// Whether the server takes nothing new.
    pub(crate) draining: watch::Receiver<bool>,
}

impl Door {
    /// A server that is told through `draining` to take nothing new, and through `is_cut` to wait for nothing.
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

    /// Where to say how far the model is loaded.
    pub fn progress(&self) -> Arc<LoadProgress> {
        self.doorway.progress.clone()
    }

    /// Begins to serve. Without a `template`, chat requests are refused with a hint.
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

    /// Begins to serve the models of `library`, one in memory at a time: from the first request for it until `keep`
    /// after the last, where no request says otherwise. To be called within a runtime.
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

/// The models that a server serves in turns.
pub struct OpenLibrary(Arc<Shelf>);

impl OpenLibrary {
    /// Ends the engine of the model in memory, if one is there, and gives its memory back. To be called when nobody is
    /// served any more.
    pub async fn close(self) {
        self.0.close().await;
    }
}

impl Doorway {
    /// What answers now.
    pub(crate) fn router(&self) -> &Router {
        self.router.get().unwrap_or(&self.before)
    }
}

/// Connections that are served at a time: of those that may be open, some are for whoever comes when all are busy.
fn connections_max(config: &ServerConfig) -> usize {
    config.connections_max.min(affordable(config).saturating_sub(BESIDE)).max(1)
}

/// Connections that are served at a time; the log says so where these are fewer than was asked for.
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

/// Connections that there is memory for.
fn affordable(config: &ServerConfig) -> usize {
    RequestMemory::connections(config.request_bytes_max, config.tls.is_some())
}
