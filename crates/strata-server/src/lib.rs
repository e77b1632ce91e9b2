//! HTTP: the OpenAI API, streaming, metrics.
//!
//! A request is read and checked here, becomes token ids, and goes to the engine through its handle; text comes back
//! through `strata_engine::text`. The server knows no devices and no files.

mod answer;
mod app;
mod auth;
mod blocks;
mod body;
mod charge;
mod config;
#[cfg(test)]
mod corpus;
mod cors;
mod endpoints;
mod error;
mod fields;
mod generate;
mod harmony;
mod json_cost;
mod json_text;
mod listener;
mod live;
mod logprobs;
mod memory;
mod metrics;
mod openapi;
mod outline;
mod patience;
mod request_id;
mod sampling;
mod speech;
mod stream;
mod structured;
mod thinking;
mod tool_calls;
mod tool_prompt;
mod tool_use;
mod tools;
mod truncation;
mod unsupported;

use std::future::Future;
use std::sync::Arc;

use strata_engine::EngineHandle;
use strata_model::chat_template::ChatTemplate;
use strata_model::tokenizer::Tokenizer;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use auth::tenant_of_key;
pub use config::{Embeddings, ServerConfig};
pub use cors::check_origin;
pub use listener::Drained;
pub use speech::tool_parsers;

/// Serves on `listener` until `shutdown` completes, then takes no more connections, finishes the requests in flight
/// within `drain_timeout`, and returns. The future that `shutdown` completes with ends that time early; requests that
/// are cut off get an error. Without a `template`, chat requests are refused with a hint.
pub async fn serve<F: Future<Output = ()>>(
    config: ServerConfig,
    engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    listener: TcpListener,
    shutdown: impl Future<Output = F>,
) -> Drained {
    let limits = listener::ListenerLimits::of(&config);
    let (cut, is_cut) = watch::channel(false);
    let app = app::App::new(config, engine, tokenizer, template, is_cut);
    let live = app.live.clone();
    #[expect(clippy::async_yields_async, reason = "patience ends later, and the listener waits for it")]
    let shutdown = async {
        let patience = shutdown.await;
        // It would go on for as long as somebody looks.
        live.end();
        patience
    };
    listener::run(listener, endpoints::router(app), limits, shutdown, cut).await
}
