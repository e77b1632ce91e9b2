//! The server's configuration, made from options and a model.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use interbed_server::{Embeddings, ServerConfig};

use super::ServeArgs;
use super::address::own_names;
use super::secrets::Secrets;
use crate::load::Loaded;
use crate::sampling::model_defaults;

/// The value of `--served-model-name` that accepts any model name.
pub const ANY_NAME: &str = "*";

/// Returns the part of the configuration that does not depend on the loaded model. `names` are the model's names if
/// `--served-model-name` gives none.
pub fn base_config(args: &ServeArgs, names: Vec<String>, secrets: &Secrets) -> Result<ServerConfig> {
    let (any, named): (Vec<_>, Vec<_>) = args.served_model_name.iter().cloned().partition(|name| name == ANY_NAME);
    let mut model_names = if named.is_empty() { names } else { named };
    let mut seen = HashSet::new();
    model_names.retain(|name| seen.insert(name.clone()));
    Ok(ServerConfig {
        model_names,
        any_model_name: !any.is_empty(),
        tool_parser: args.tool_parser.clone(),
        api_keys: secrets.keys.clone(),
        tls: secrets.tls.clone(),
        allow_hosts: own_names(&args.host).chain(args.allow_host.clone()).collect(),
        allow_origins: args.allow_origin.clone(),
        body_bytes_max: usize::try_from(args.max_body.0)?,
        connections_max: args.max_connections,
        proxies: args.proxy.clone(),
        drain_timeout: Duration::from_secs(args.drain_seconds),
        otlp_endpoint: args.otlp_endpoint.clone(),
        schema_worker: own_program(),
        ..ServerConfig::default()
    })
}

/// Returns `base` with the settings that depend on the loaded model.
pub fn config(base: ServerConfig, loaded: &Loaded) -> ServerConfig {
    ServerConfig {
        model: loaded.facts.clone(),
        default_sampling: model_defaults(&loaded.generation),
        eos_token_ids: loaded.end_tokens.clone(),
        embeddings: loaded
            .pooling
            .clone()
            .map(|pooling| Embeddings { pooling, width: loaded.config.blueprint.hidden_size }),
        request_bytes_max: usize::try_from(loaded.plan.requests.0).unwrap_or(usize::MAX),
        schemas_max: loaded.plan.schemas,
        memory_bytes: loaded.plan.budget.total().0,
        reserved: loaded.plan.budget.entries().iter().map(|(name, bytes)| (name.clone(), bytes.0)).collect(),
        model_bytes: loaded.model_bytes,
        processor: loaded.processor.clone(),
        ..base
    }
}

/// Returns a path by which the running program can be started again. On Linux, the path stays valid if the program's
/// file is replaced.
pub fn own_program() -> Option<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Some(running) } else { std::env::current_exe().ok() }
}
