//! The OpenAI-compatible server in a program of one's own; Ctrl-C lets requests in flight finish.
//!
//! ```console
//! $ cargo run --release -p serve -- models/storyteller 127.0.0.1:8000
//! ```
//!
//! It starts itself once more to compile the schemas that clients send: see `ServerConfig::schema_worker`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use generate::open;
use interbed_model::chat_template::ChatTemplate;
use interbed_server::{SCHEMA_WORKER, ServerConfig, run_schema_worker};
use tokio::net::TcpListener;

fn main() -> Result<ExitCode> {
    if std::env::args().skip(1).eq([SCHEMA_WORKER]) {
        return Ok(run_schema_worker());
    }
    serve().map(|()| ExitCode::SUCCESS)
}

#[tokio::main]
async fn serve() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: serve MODEL_DIRECTORY ADDRESS";
    let (dir, address) = (args.next().context(usage)?, args.next().context(usage)?);
    let model = open(Path::new(&dir))?;
    // A model without a template answers completions only.
    let template = ChatTemplate::from_dir(Path::new(&dir)).ok().map(Arc::new);
    let config = ServerConfig {
        model_names: vec!["mine".into()],
        eos_token_ids: model.end_tokens,
        schema_worker: std::env::current_exe().ok(),
        ..ServerConfig::default()
    };
    let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))?;
    println!("http://{}/v1", listener.local_addr()?);
    #[expect(
        clippy::async_yields_async,
        reason = "the second Ctrl-C, which cuts what is in flight, comes after the first"
    )]
    let stop = async {
        ended().await;
        ended()
    };
    interbed_server::serve(config, model.engine.handle(), Arc::new(model.tokenizer), template, listener, stop).await;
    Ok(())
}

/// Completes at Ctrl-C; never, where there are no signals.
async fn ended() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
