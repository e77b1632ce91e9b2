//! `strata serve`: the OpenAI-compatible server.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use strata_device::Bytes;
use strata_server::{Drained, Embeddings, ServerConfig};
use tokio::net::TcpSocket;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::audience::{Audience, REQUEST_BYTES};
use crate::failure::{Advised, INTERRUPTED};
use crate::load::{self, Loaded, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{ComputeOptions, KvDiskOptions, ModelOptions, SwapOptions};
use crate::report::report;
use crate::sampling::model_defaults;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Threads that carry requests. The cores belong to computing.
const WORKERS: usize = 2;

/// Threads that tokenize. Each keeps some freed memory to itself, so there are not many.
const BLOCKING_WORKERS: usize = 8;

/// Time that work in progress gets after the server has drained.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Serve a model over HTTP, as the OpenAI API does
///
/// Answers /v1/completions, /v1/chat/completions, /v1/messages, /v1/responses, /v1/embeddings, /v1/models, /tokenize,
/// /detokenize, /health, /version and /metrics.
/// What a request leaves out comes from the model's generation_config.json, or the GGUF file's sampling defaults (else
/// llama.cpp's: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05). Ctrl-C or SIGTERM lets requests in flight finish; a
/// second one cuts them, and tells their clients.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata serve                                         # the bundled model, http://127.0.0.1:8000/v1\n  \
    strata serve models/8b --memory 20G --port 9000\n  \
    strata serve models/8b --host 0.0.0.0 --api-key \"$KEY\" --served-model-name llama\n\n\
    Any OpenAI client works: OpenAI(base_url=\"http://127.0.0.1:8000/v1\", api_key=\"none\").")]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelOptions,

    #[command(flatten)]
    pub compute: ComputeOptions,

    /// Address to listen on; 0.0.0.0 is every one of this machine
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    pub host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    pub port: u16,

    /// Key that clients must send; may be given several times. Without any, everybody is served
    #[arg(long, value_name = "KEY", env = "STRATA_API_KEY", hide_env_values = true, help_heading = "Server",
          value_parser = NonEmptyStringValueParser::new())]
    pub api_key: Vec<String>,

    /// Web page whose scripts may call, by its origin, such as `https://example.org`, or * for every page; may be given
    /// several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Server", hide_short_help = true, value_parser = origin)]
    pub allow_origin: Vec<String>,

    /// Name that clients ask for, instead of the directory's; may be given several times
    #[arg(long, value_name = "NAME", help_heading = "Server", value_parser = NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,

    /// How the model writes calls of tools; by default, what its chat template tells
    #[arg(long, value_name = "NAME", help_heading = "Server",
          value_parser = clap::builder::PossibleValuesParser::new(strata_server::tool_parsers()))]
    pub tool_parser: Option<String>,

    #[command(flatten)]
    pub kv_disk: KvDiskOptions,

    #[command(flatten)]
    pub swap: SwapOptions,

    /// Requests that may wait; one more is told to try again later
    #[arg(long, value_name = "N", default_value_t = MAX_WAITING, help_heading = "Server", hide_short_help = true,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub max_waiting: usize,

    /// Connections that are served at a time; the memory for requests allows 1024
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().connections_max, help_heading = "Server",
          hide_short_help = true, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub max_connections: usize,

    /// Largest request body, at most 8M: a sixteenth of the memory that is set aside for requests
    #[arg(long, value_name = "SIZE", default_value = "4M", help_heading = "Server", hide_short_help = true,
          value_parser = body_size)]
    pub max_body: Bytes,

    /// Time that requests in flight are given to finish once the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Server", hide_short_help = true)]
    pub drain_timeout: u64,
}

/// Runs `strata serve` until a signal stops it.
///
/// # Errors
/// A model that cannot be served, or an address that cannot be listened on.
pub fn run(args: ServeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_WORKERS)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    // Taken before the model is loaded, which may take minutes; only then does it listen.
    let socket = bind(&args.host, args.port)?;
    let mut model = args.model.clone();
    model.limits.compute = args.compute.clone();
    model.limits.swap = Some(args.swap.clone());
    model.limits.kv_disk = Some(args.kv_disk.clone());
    let opened = Opened::open(model.model.as_deref())?;
    let loaded = load::load(opened, &model.limits, Audience::Clients, args.max_waiting)?;
    load::report::sampling(&loaded.generation);
    let config = config(&args, &loaded)?;
    let name = config.model_names[0].clone();
    let keyed = !config.api_keys.is_empty();
    let engine = loaded.engine.handle();
    let (tokenizer, template) = (loaded.tokenizer.clone(), loaded.template.clone());
    let impatient = Arc::new(AtomicBool::new(false));
    let drained = runtime.block_on(async {
        let stop = told_to_stop(args.drain_timeout, impatient.clone())?;
        let listener = socket.listen(BACKLOG).map_err(|error| cannot_listen(&args.host, args.port, error))?;
        announce(&name, listener.local_addr().context("cannot tell the port")?, keyed, loaded.template.is_some());
        Ok::<_, anyhow::Error>(strata_server::serve(config, engine, tokenizer, template, listener, stop).await)
    })?;
    if impatient.load(Ordering::Acquire) {
        std::process::exit(INTERRUPTED.into());
    }
    if let Drained::Cut(connections) = drained {
        report!("{connections} connections were still open after {} s and were cut", args.drain_timeout);
    }
    runtime.shutdown_timeout(LAST_CALL);
    Ok(())
}

fn config(args: &ServeArgs, loaded: &Loaded) -> Result<ServerConfig> {
    let model_names =
        if args.served_model_name.is_empty() { vec![loaded.name.clone()] } else { args.served_model_name.clone() };
    Ok(ServerConfig {
        model_names,
        model_root: loaded.path.display().to_string(),
        default_sampling: model_defaults(&loaded.generation),
        eos_token_ids: loaded.generation.end_tokens(&loaded.config).to_vec(),
        tool_parser: args.tool_parser.clone(),
        api_keys: args.api_key.clone(),
        allow_origins: args.allow_origin.clone(),
        embeddings: loaded.pooling.clone().map(|pooling| Embeddings { pooling, width: loaded.config.hidden_size }),
        memory_bytes: loaded.budget.0,
        body_bytes_max: usize::try_from(args.max_body.0)?,
        request_bytes_max: loaded.request_bytes,
        connections_max: args.max_connections,
        drain_timeout: Duration::from_secs(args.drain_timeout),
        ..ServerConfig::default()
    })
}

fn origin(text: &str) -> Result<String, String> {
    strata_server::check_origin(text).map(|()| text.to_owned())
}

/// A body takes a sixteenth of the memory for requests at most, which is at least [`REQUEST_BYTES`] (see
/// `ServerConfig::request_bytes_max`).
fn body_size(text: &str) -> Result<Bytes, String> {
    let limit = Bytes(REQUEST_BYTES as u64 / 16);
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 || size.0 > limit.0 {
        return Err(format!("expected a size up to {limit}, which the memory for requests has room for"));
    }
    Ok(size)
}

/// Binds the address without listening on it yet.
fn bind(host: &str, port: u16) -> Result<TcpSocket> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        Advised::input(
            format!("--host {host} is no address of this machine: {error}"),
            "give for instance 127.0.0.1 for this machine only, or 0.0.0.0 for everybody",
        )
    })?;
    let mut refused = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match bind_address(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused = error,
        }
    }
    Err(cannot_listen(host, port, refused))
}

fn bind_address(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that was just stopped leaves connections behind that would keep the port for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn cannot_listen(host: &str, port: u16, error: std::io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("another program listens there: stop it, or choose another --port (0 takes a free one) than {port}")
        }
        std::io::ErrorKind::PermissionDenied => "choose a --port of 1024 or more".into(),
        _ => "choose a --host that is an address of this machine, such as 127.0.0.1".into(),
    };
    Advised::system(format!("cannot listen on {host}:{port}"), hint, error)
}

/// Completes at the first Ctrl-C or SIGTERM, with what completes at the second and says so; the third ends the process.
#[expect(clippy::async_yields_async, reason = "the second signal can come only after the first")]
fn told_to_stop(
    drain_timeout_s: u64,
    impatient: Arc<AtomicBool>,
) -> Result<impl Future<Output = impl Future<Output = ()>>> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let mut signals = [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
    Ok(async move {
        next_of(&mut signals).await;
        report!("Stopping: requests in flight get {drain_timeout_s} s to finish; once more ends at once");
        async move {
            next_of(&mut signals).await;
            impatient.store(true, Ordering::Release);
            tokio::spawn(async move {
                next_of(&mut signals).await;
                std::process::exit(INTERRUPTED.into());
            });
        }
    })
}

async fn next_of([interrupt, terminate]: &mut [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Tells where, and how to try it.
fn announce(name: &str, address: SocketAddr, keyed: bool, chats: bool) {
    let url = format!("http://{address}/v1");
    let header = if keyed { "-H \"Authorization: Bearer $KEY\" " } else { "" };
    let (path, body) = if chats {
        ("chat/completions", r#"{"messages": [{"role": "user", "content": "Hello!"}]}"#)
    } else {
        ("completions", r#"{"prompt": "Once upon a time", "max_tokens": 64}"#)
    };
    report!("Serving {name} on {url}");
    report!("  curl {url}/{path} {header}-H 'Content-Type: application/json' -d '{body}'");
    if !keyed && !address.ip().is_loopback() {
        report!("note: whoever reaches this address can use the model; --api-key KEY asks for a key");
    }
}
