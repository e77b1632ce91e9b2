//! Runs `interbed serve`, the OpenAI-compatible server.

mod address;
mod announcement;
mod configure;
mod fetching;
mod help;
mod library;
mod secrets;
mod stop;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use interbed_device::{Bytes, share_heaps};
use interbed_server::{Drained, KeepAlive, Network, OtlpEndpoint, ServerConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::audience::{Audience, REQUEST_BYTES};
use crate::budget::budget;
use crate::failure::{Advised, INTERRUPTED};
use crate::hub;
use crate::kv_remote;
use crate::load::{self, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{
    ComputeOptions, ExpertCountsOption, KvDiskOptions, KvEventOptions, KvRemoteOptions, LimitOptions, ModelOptions,
    SwapOptions,
};
use crate::printable::is_command;
use crate::report::report;
use crate::sampling::{self, model_defaults};
use address::{bind, cannot_listen};
use announcement::Announcement;
use configure::{ANY_NAME, base_config, config};
use library::CacheLibrary;
use secrets::Secrets;
use stop::Stop;

pub use help::arrange as arrange_help;

/// The number of connections that the system queues until the server accepts them.
const BACKLOG: u32 = 1024;

/// The number of open files that the server asks the system for.
const DESCRIPTORS: u64 = 1 << 16;

/// The number of threads that handle requests. The number is small, because computing needs the cores.
const WORKERS: usize = 2;

/// The maximum number of threads for blocking work such as tokenizing. The number is small, because the allocator keeps
/// some freed memory for each thread.
const BLOCKING_WORKERS: usize = 8;

/// The stack size of a thread, in bytes: as large as that of the program's first thread, because models may be loaded
/// on it.
const STACK_BYTES: usize = 8 << 20;

/// The time that work in progress gets after the server has drained.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Serve a model over HTTP, or all models on this machine
///
/// Without MODEL, the server offers all models that were fetched by name, and the storyteller that ships with Interbed.
/// One model is in memory at a time. The server loads the model that a request names when it is the request's turn, and
/// keeps the model for --keep-alive after the last request for it.
///
/// The server answers /v1/completions, /v1/chat/completions, /v1/messages, /v1/messages/count_tokens, /v1/responses,
/// /v1/embeddings, /v1/models, /tokenize, /detokenize, /health, /version, /metrics and /openapi.json. For clients of
/// Ollama, it answers /api/chat, /api/generate, /api/embed, /api/embeddings, /api/tags, /api/show, /api/ps, /api/pull
/// and /api/version. Sampling parameters that a request leaves out come from the model's generation_config.json, or
/// from the GGUF file's sampling defaults (else llama.cpp's: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05). While
/// a model is being loaded, /health reports the progress. After Ctrl-C or SIGTERM, requests in flight may finish within
/// --drain-seconds; a second signal cuts them off, and tells their clients. At SIGHUP, the server reads --api-key-file,
/// --tls-cert and --tls-key again.
///
/// These options set limits: --max-body for the size of a request body (413), --max-model-len for the tokens of a
/// request (400), --max-num-seqs for the sequences that are computed together, --max-waiting for the requests that wait
/// to be computed (429, with Retry-After), and --max-connections for connections.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed serve                                         # all models here, on http://127.0.0.1:8000/v1\n  \
    interbed serve models/8b --memory 20G --port 9000\n  \
    interbed serve models/8b --host 0.0.0.0 --api-key-file keys --served-model-name llama\n\n\
    Any OpenAI client works: OpenAI(base_url=\"http://127.0.0.1:8000/v1\", api_key=\"none\").")]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelOptions,

    #[command(flatten)]
    pub counts: ExpertCountsOption,

    #[command(flatten)]
    pub compute: ComputeOptions,

    /// Address to listen on; 0.0.0.0 stands for all IPv4 addresses of this machine
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    pub host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    pub port: u16,

    /// API key that clients must send; for several keys, separate them by commas or repeat the option. Without keys,
    /// the server accepts all clients
    #[arg(long, value_name = "KEY", env = "INTERBED_API_KEY", hide_env_values = true, help_heading = "Server",
          value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub api_key: Vec<String>,

    /// File with the API keys that clients may send, one per line. A key may be followed by a name, which appears in
    /// logs; # begins a comment. At SIGHUP, the file is read again; if it is invalid, the old keys stay in use
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub api_key_file: Option<PathBuf>,

    /// Certificate of the server with its chain, as PEM; clients must then use https. At SIGHUP, the certificate and
    /// its key are read again
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Server", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Server", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// Origin of web pages whose scripts may call the server, such as `https://example.org`, or * for all web pages;
    /// may be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Server", hide_short_help = true, value_parser = origin)]
    pub allow_origin: Vec<String>,

    /// Host name by which clients may address a server without keys: gpu.example.org, *.example.org for all names with
    /// that ending, or * for any name; may be given several times. Always allowed are localhost, IP addresses, the
    /// machine's own name, *.local and *.internal. The server refuses other names, because web pages could use them to
    /// reach it
    #[arg(long, value_name = "NAME", help_heading = "Server", hide_short_help = true, value_parser = host_name)]
    pub allow_host: Vec<String>,

    /// Name by which clients request the model, in place of the directory's name; for several names, separate them by
    /// commas or repeat the option. Answers contain the first name, and /v1/models lists all. With *, the server also
    /// accepts any other name, and its answer contains the name that the client sent
    #[arg(long, value_name = "NAME", help_heading = "Server", value_delimiter = ',', value_parser = served_name)]
    pub served_model_name: Vec<String>,

    /// Syntax in which the model writes tool calls; by default, it is detected from the chat template. If the template
    /// does not support tools, the system message describes them in this syntax, or by default in that of hermes
    #[arg(long, value_name = "NAME", help_heading = "Server",
          value_parser = clap::builder::PossibleValuesParser::new(interbed_server::tool_parsers()))]
    pub tool_parser: Option<String>,

    /// How long a server that was started without a MODEL keeps a model in memory after the last request for it: 5m,
    /// 1h30m, or a number of seconds. 0 unloads the model at once, -1 keeps it until a request names another model.
    /// Requests of Ollama's API may give their own keep_alive
    #[arg(long, value_name = "DURATION", default_value = "5m", conflicts_with = "model", help_heading = "Server",
          allow_hyphen_values = true, value_parser = KeepAlive::read)]
    pub keep_alive: KeepAlive,

    #[command(flatten)]
    pub kv_disk: KvDiskOptions,

    #[command(flatten)]
    pub kv_remote: KvRemoteOptions,

    #[command(flatten)]
    pub kv_events: KvEventOptions,

    #[command(flatten)]
    pub swap: SwapOptions,

    /// Longest time between two tokens of an answer while prompts of other requests are computed. A forward pass
    /// computes as many prompt tokens as should fit into this time at the measured speed. If a pass takes longer even
    /// without prompt tokens, because weights come from disk, a pass with prompt tokens may take twice as long. A
    /// larger value makes long prompts faster, because each pass has a fixed cost. While no answer is generated, this
    /// option has no effect
    #[arg(long, value_name = "SECONDS", default_value = "0.5", help_heading = "Server", hide_short_help = true,
          value_parser = token_gap)]
    pub max_token_gap: Duration,

    /// Maximum number of requests that wait for their turn; further requests are refused with 429 and Retry-After
    #[arg(long, value_name = "N", default_value_t = MAX_WAITING, help_heading = "Server", hide_short_help = true,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub max_waiting: usize,

    /// Maximum number of connections that are served at a time, up to 1024. One address may have three quarters of them
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().connections_max, help_heading = "Server",
          hide_short_help = true, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub max_connections: usize,

    /// Address of a proxy that forwards requests of many clients, or a network of proxies such as 10.0.0.0/8; may be
    /// given several times. A proxy may have all connections
    #[arg(long, value_name = "ADDRESS", help_heading = "Server", hide_short_help = true, value_parser = Network::read)]
    pub proxy: Vec<Network>,

    /// Largest request body, up to 8M, which is a sixteenth of the memory that is set aside for requests
    #[arg(long, value_name = "SIZE", default_value = "4M", help_heading = "Server", hide_short_help = true,
          value_parser = body_size)]
    pub max_body: Bytes,

    /// Time that requests in flight are given to finish once the server is told to stop
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        alias = "drain-timeout",
        help_heading = "Server",
        hide_short_help = true
    )]
    pub drain_seconds: u64,

    /// How logs and reports on stderr are written: as text, or as one JSON object per line. Each request is logged in
    /// one line when it ends; the line never contains the request's texts or its key
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Server", hide_short_help = true)]
    pub log_format: LogFormat,

    /// Collector that traces of requests are sent to, such as http://localhost:4318 (OTLP over HTTP); none by default
    #[arg(long, value_name = "URL", help_heading = "Server", hide_short_help = true, value_parser = OtlpEndpoint::read)]
    pub otlp_endpoint: Option<OtlpEndpoint>,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors of logs.
    Json,
}

/// Parses `--max-token-gap`, a time in seconds.
fn token_gap(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.01 to 3600, such as 0.5".to_owned())
}

/// Runs `interbed serve` until a signal stops it.
///
/// # Errors
/// Fails if a model cannot be served, or the server cannot listen on its address.
pub fn run(args: ServeArgs) -> Result<()> {
    share_heaps();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_WORKERS)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    take_descriptors();
    // The port is bound before the model is opened, because opening may take a while.
    let socket = bind(&args.host, args.port)?;
    warn_of_key_in_process_list();
    let tls = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    kv_remote::begin_check(&args.kv_remote)?;
    let secrets = Arc::new(Secrets::open(&args.api_key, args.api_key_file.as_deref(), tls)?);
    let signals = runtime.block_on(async {
        secrets.clone().reload_at_hangup()?;
        Stop::listen(args.drain_seconds)
    })?;
    let begun = Begun { runtime, socket, secrets, signals };
    if args.model.model.is_some() { serve_one(&args, begun) } else { serve_library(&args, begun) }
}

/// The parts of a server that exist before it listens.
struct Begun {
    runtime: Runtime,
    socket: TcpSocket,
    secrets: Arc<Secrets>,
    signals: Stop,
}

/// Loads the model, and serves it until a signal stops the server.
fn serve_one(args: &ServeArgs, begun: Begun) -> Result<()> {
    let Begun { runtime, socket, secrets, mut signals } = begun;
    let impatient = signals.impatient.clone();
    let mut limits = limits_of(args);
    // A download may take hours, so a signal ends the process; bytes that were fetched are kept.
    let (model, options) = (args.model.model.clone(), limits.clone());
    let path = runtime.block_on(async {
        let found = tokio::task::spawn_blocking(move || hub::local(model.as_deref(), &options, Audience::Clients));
        tokio::select! {
            code = signals.next() => std::process::exit(code),
            found = found => found.context("the thread that looks for the model failed")?,
        }
    })?;
    let opened = Opened::open(path.as_deref())?;
    let (when_loaded, is_loaded) = oneshot::channel::<()>();
    #[expect(clippy::async_yields_async, reason = "the second signal can come only after the first")]
    let stop = async move {
        tokio::select! {
            // What has been loaded is served to the end, even if a signal comes at the same moment.
            biased;
            loaded = is_loaded => if loaded.is_err() {
                // Loading has failed, and its error ends the process.
                std::future::pending::<()>().await;
            },
            // No request was accepted yet, so the process may exit. It must exit explicitly, because signals do not
            // end the first process of a container by default.
            code = signals.next() => std::process::exit(code),
        }
        signals.future().await
    };
    // Clients may also use the name by which the model was requested on the command line.
    let names = std::iter::once(opened.dir.name()).chain(hub::names_of(args.model.model.as_deref()));
    let base = base_config(args, names.collect(), &secrets)?;
    let (door, address, serving) = runtime.block_on(async {
        let (listener, address) = listen(args, socket)?;
        let (door, serving) = interbed_server::listen(&base, listener, stop);
        Ok::<_, anyhow::Error>((door, address, tokio::spawn(serving)))
    })?;
    report!("Listening on {address}; /health tells how far the model is loaded");
    limits.watch = Some(door.progress());
    let loaded = load::load(opened, &limits, Audience::Clients, args.max_waiting)?;
    sampling::tell(&loaded.generation, &model_defaults(&loaded.generation));
    let config = config(base, &loaded);
    let (name, announcement) = (config.model_names[0].clone(), Announcement::of(&config, address));
    // The receiver lives as long as the server, so sending cannot fail. This comes before clients can see that the
    // model is loaded, because from then on a signal lets their requests finish.
    let _ = when_loaded.send(());
    door.open(config, loaded.engine.handle(), loaded.tokenizer.clone(), loaded.template.clone());
    announcement.announce(&name, loaded.template.is_some());
    let drained = runtime.block_on(serving).context("the server's task failed")?;
    tell_end(args, drained, &impatient);
    runtime.shutdown_timeout(LAST_CALL);
    Ok(())
}

/// Serves the models that are on this machine, loading each when a request asks for it, until a signal stops the
/// server.
fn serve_library(args: &ServeArgs, begun: Begun) -> Result<()> {
    let Begun { runtime, socket, secrets, signals } = begun;
    let impatient = signals.impatient.clone();
    refuse_for_library(args)?;
    let limits = limits_of(args);
    // A budget that this machine cannot provide is refused at once, not at the first request.
    budget(&limits)?;
    let base = base_config(args, Vec::new(), &secrets)?;
    let library = Arc::new(CacheLibrary::open(base.clone(), limits, args.max_waiting)?);
    let (open, announcement, serving) = runtime.block_on(async {
        let (listener, address) = listen(args, socket)?;
        let (door, serving) = interbed_server::listen(&base, listener, signals.future());
        let announcement = Announcement::of(&base, address);
        let open = door.open_library(base, library.clone(), args.keep_alive);
        Ok::<_, anyhow::Error>((open, announcement, tokio::spawn(serving)))
    })?;
    announcement.announce_library(&library.names());
    let drained = runtime.block_on(serving).context("the server's task failed")?;
    tell_end(args, drained, &impatient);
    runtime.block_on(open.close());
    runtime.shutdown_timeout(LAST_CALL);
    Ok(())
}

/// Refuses options that apply to one model only.
fn refuse_for_library(args: &ServeArgs) -> Result<()> {
    let given = [
        (
            args.served_model_name.iter().any(|name| name != ANY_NAME),
            "--served-model-name",
            "each of them has its own name",
        ),
        (args.kv_events.kv_events.is_some(), "--kv-events", "its messages do not tell of which model a prefix is"),
        (args.model.limits.hub.revision.is_some(), "--revision", "each of them has the one that was fetched"),
    ];
    let Some((_, option, why)) = given.into_iter().find(|(is_given, ..)| *is_given) else { return Ok(()) };
    Err(Advised::input(
        format!("{option} is for one MODEL, and without one all that are on this machine are served: {why}"),
        format!("name the MODEL, or leave {option} out"),
    ))
}

/// Returns the limits of what a model may use of this machine.
fn limits_of(args: &ServeArgs) -> LimitOptions {
    let mut limits = args.model.limits.clone();
    limits.compute = args.compute.clone();
    limits.stream.keep_expert_counts = !args.counts.no_expert_counts;
    limits.swap = Some(args.swap.clone());
    limits.max_token_gap = Some(args.max_token_gap);
    limits.kv_disk = Some(args.kv_disk.clone());
    limits.kv_remote = Some(args.kv_remote.clone());
    limits.kv_events = Some(args.kv_events.clone());
    limits
}

/// Starts to accept connections. Must be called within a runtime.
fn listen(args: &ServeArgs, socket: TcpSocket) -> Result<(TcpListener, SocketAddr)> {
    let listener = socket.listen(BACKLOG).map_err(|error| cannot_listen(&args.host, args.port, error))?;
    let address = listener.local_addr().context("cannot tell the port")?;
    Ok((listener, address))
}

/// Reports how many connections were cut. Ends the process if a second signal asked for that.
fn tell_end(args: &ServeArgs, drained: Drained, impatient: &AtomicBool) {
    if impatient.load(Ordering::Acquire) {
        std::process::exit(INTERRUPTED.into());
    }
    if let Drained::Cut(connections) = drained {
        report!("{connections} connections were still open after {} s and were cut", args.drain_seconds);
    }
}

/// Raises the limit of open files: connections, model files and KV files may need more than the 1,024 with which most
/// systems start a program.
fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|now| now < most)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Warns about keys on the command line, because every user of the machine can see the arguments of its processes.
fn warn_of_key_in_process_list() {
    let is_key = |argument: &str| argument == "--api-key" || argument.starts_with("--api-key=");
    if std::env::args_os().any(|argument| argument.to_str().is_some_and(is_key)) {
        report!(
            "note: --api-key shows its key in the list of processes, to all users of this machine; INTERBED_API_KEY or \
             --api-key-file do not"
        );
    }
}

fn served_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(is_command) {
        true => Err("a name has characters, and none that commands a terminal".into()),
        false => Ok(text.to_owned()),
    }
}

fn host_name(text: &str) -> Result<String, String> {
    interbed_server::check_host(text).map(|()| text.to_owned())
}

fn origin(text: &str) -> Result<String, String> {
    interbed_server::check_origin(text).map(|()| text.to_owned())
}

/// Parses `--max-body`. A body may take at most a sixteenth of the memory for requests,
/// `ServerConfig::request_bytes_max`, which is at least [`REQUEST_BYTES`].
fn body_size(text: &str) -> Result<Bytes, String> {
    let limit = Bytes(REQUEST_BYTES as u64 / 16);
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 || size.0 > limit.0 {
        return Err(format!("expected a size up to {limit}, which the memory for requests has room for"));
    }
    Ok(size)
}
