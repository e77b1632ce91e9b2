//! The HTTP server: the APIs of OpenAI, Anthropic and Ollama, streaming, and metrics.
//!
//! The server reads and checks each request, turns it into token ids, and passes it to the engine through the engine's
//! handle. Text comes back through `interbed_engine::text`. The server itself uses no devices and no files.

mod answer;
mod api_keys;
mod app;
mod auth;
mod blocks;
mod body;
mod browsers;
mod call_results;
mod caller;
mod charge;
mod config;
mod contents;
#[cfg(test)]
mod corpus;
mod cors;
mod door;
mod endpoints;
mod error;
mod fields;
mod generate;
mod guests;
mod harmony;
mod history;
mod holding_body;
mod hosts;
mod json_cost;
mod json_text;
mod keep_alive;
mod library;
mod listener;
mod live;
mod load_progress;
mod logprobs;
mod memory;
mod metrics;
mod model_facts;
mod notes;
mod openapi;
mod other_paths;
mod outline;
mod pace;
mod patience;
mod permits;
mod prefill;
mod random;
mod request_id;
mod request_log;
mod sampling;
mod schema_worker;
mod schemas;
mod shares;
mod shelf;
mod speech;
mod stream;
mod structured;
mod switch;
mod systems;
mod tenant;
mod text_offset;
mod thinking;
mod tls;
mod tool_calls;
mod tool_choice;
mod tool_list;
mod tool_prompt;
mod tool_use;
mod tools;
mod traces;
mod truncation;
mod turns;
mod unsupported;
mod utc;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use interbed_engine::EngineHandle;
use interbed_model::chat_template::ChatTemplate;
use interbed_model::tokenizer::Tokenizer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use listener::ListenerLimits;
use traces::Traces;

/// The time for which the server waits at its end for the last traces to be sent.
const LAST_TRACES: Duration = Duration::from_secs(1);

pub use api_keys::{ApiKey, ApiKeys, BadKeys};
pub use config::{Embeddings, ServerConfig};
pub use cors::check_origin;
pub use door::{Door, OpenLibrary};
pub use guests::Network;
pub use hosts::check_host;
pub use keep_alive::KeepAlive;
pub use library::{Library, LibraryError, LibraryModel, ModelDescription, PullStep, ServedModel};
pub use listener::Drained;
pub use load_progress::LoadProgress;
pub use model_facts::ModelFacts;
pub use schema_worker::{SCHEMA_WORKER, run_schema_worker};
pub use schemas::{COMPILED_BYTES, COMPILING_BYTES, COMPILING_MAX};
pub use speech::tool_parsers;
pub use tenant::tenant_of_key;
pub use tls::{BadTls, Tls};
pub use traces::OtlpEndpoint;

/// Accepts connections before the model is loaded. Until [`Door::open`] or [`Door::open_library`] is called, `/health`
/// reports how much of the model is loaded, and the server refuses requests that need the model.
///
/// The returned future serves the connections of `listener` until `shutdown` completes. After that, the server takes no
/// new requests, and waits for the requests in flight, for at most [`ServerConfig::drain_timeout`]. The output of
/// `shutdown` is a second future. When the second future completes, the server stops waiting. Requests that have not
/// finished by then get an error.
pub fn listen<F: Future<Output = ()>, S: Future<Output = F>>(
    config: &ServerConfig,
    listener: TcpListener,
    shutdown: S,
) -> (Door, impl Future<Output = Drained> + use<F, S>) {
    let ((drain, draining), (cut, is_cut)) = (watch::channel(false), watch::channel(false));
    let (traces, exporter) = config.otlp_endpoint.clone().map(Traces::to).unzip();
    let door = Door::new(config, traces, draining, is_cut);
    let (doorway, limits) = (door.doorway(), ListenerLimits::of(config));
    let serving = async move {
        let sending = exporter.map(|exporter| tokio::spawn(exporter.run()));
        let drained = listener::run(listener, doorway, limits, shutdown, drain, cut).await;
        if let Some(sending) = sending {
            // It ends when all requests have.
            let _ = timeout(LAST_TRACES, sending).await;
        }
        drained
    };
    (door, serving)
}

/// Serves a loaded model on `listener` until `shutdown` completes. After that, the server takes no new requests, and
/// waits for the requests in flight, for at most [`ServerConfig::drain_timeout`]. The output of `shutdown` is a second
/// future. When the second future completes, the server stops waiting.
pub async fn serve<F: Future<Output = ()>>(
    config: ServerConfig,
    engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    listener: TcpListener,
    shutdown: impl Future<Output = F>,
) -> Drained {
    let (door, serving) = listen(&config, listener, shutdown);
    door.open(config, engine, tokenizer, template);
    serving.await
}
