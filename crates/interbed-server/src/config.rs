//! Defines the settings of a server.

use std::path::PathBuf;
use std::time::Duration;

use interbed_engine::{Pooling, SamplingParams};

use crate::api_keys::ApiKeys;
use crate::guests::Network;
use crate::model_facts::ModelFacts;
use crate::schemas::COMPILING_MAX;
use crate::tls::Tls;
use crate::traces::OtlpEndpoint;

/// The settings of a server. Every limit has a default that suits one machine.
#[derive(Clone)]
pub struct ServerConfig {
    /// The names by which clients may request the model. There is at least one. The server reports the first name.
    pub model_names: Vec<String>,
    /// Whether clients may also request the model by any other name. The answer then has the name from the request.
    pub any_model_name: bool,
    /// Facts about the model that the server reports to clients.
    pub model: ModelFacts,
    /// The values of sampling parameters that a request does not set. They come from the model's files, or else they
    /// are the API's defaults.
    pub default_sampling: SamplingParams,
    /// The ids of the model's end-of-sequence tokens, as far as they are known without the tokenizer.
    pub eos_token_ids: Vec<u32>,
    /// The name of the syntax in which the model writes tool calls, which is one of
    /// [`tool_parsers`](crate::tool_parsers). By default, the server detects the syntax from the chat template.
    pub tool_parser: Option<String>,
    /// The API keys that the server accepts. If there are none, clients need no key.
    pub api_keys: ApiKeys,
    /// The TLS certificate with its private key. Without it, the server uses plain HTTP.
    pub tls: Option<Tls>,
    /// The address of the collector to which the server sends traces. Without it, the server sends no traces.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Additional host names by which clients may address a server without API keys. An entry is a name such as
    /// `gpu.example.org`, or `*.example.org` for all names that end in `.example.org`, or `*` for any name. Names that
    /// only refer to this machine or its own network, such as `localhost`, are always allowed.
    pub allow_hosts: Vec<String>,
    /// The origins of web pages whose scripts may call the server, such as `https://example.org`, or `*` for all
    /// origins. By default, no web page of another origin may call the server.
    pub allow_origins: Vec<String>,
    /// The settings for embeddings, or the reason why the model computes no embeddings.
    pub embeddings: Result<Embeddings, String>,
    /// The number of bytes of host memory that the program may use, for display. 0 stands for an unknown number.
    pub memory_bytes: u64,
    /// The parts of the host memory, each with its name and its size in bytes, for display. The rest of the memory is
    /// unused.
    pub reserved: Vec<(String, u64)>,
    /// The size of all weights in bytes, whether they are in memory or on disk, for display. 0 stands for an unknown
    /// size.
    pub model_bytes: u64,
    /// A description of the processor that computes, for display, such as "2 cores, avx2".
    pub processor: String,
    /// The largest request body, in bytes.
    pub body_bytes_max: usize,
    /// The maximum number of bytes of memory for all requests and connections together, without the engine's own
    /// structures. A request body may take at most a sixteenth of this memory. Each MiB allows eight plain connections
    /// or three TLS connections.
    pub request_bytes_max: usize,
    /// The maximum number of connections that are served at the same time. Connections from one address may take at
    /// most three quarters of them. At the limit, a new connection replaces an idle one. If no connection is idle, a
    /// few more connections are accepted, and their requests wait.
    pub connections_max: usize,
    /// The addresses of proxies that forward requests from many clients. The limit on connections from one address does
    /// not apply to proxies.
    pub proxies: Vec<Network>,
    /// The maximum number of sequences of one request: the number of prompts times `n` or `best_of`.
    pub sequences_max: usize,
    /// The maximum time until the head of a request has arrived. A connection that stays idle for this time is closed.
    pub header_timeout: Duration,
    /// The maximum time until the body of a request has arrived.
    pub body_timeout: Duration,
    /// The time for which a client may leave an answer unread before the server closes the connection.
    pub write_timeout: Duration,
    /// The maximum time without an event in a stream. After this time, the server sends an event that does not change
    /// the answer. Such events keep the client waiting while a long prompt is computed or the request is queued.
    pub silence_max: Duration,
    /// The maximum time for which a request waits while another model is in memory, if the server has several models.
    pub model_wait_max: Duration,
    /// The time that requests in flight have to finish after the server is told to stop.
    pub drain_timeout: Duration,
    /// The maximum number of prompts and templates that are tokenized or rendered at the same time.
    pub tokenizing_max: usize,
    /// The maximum number of schemas and grammars that are compiled at the same time. Compiling one takes at most
    /// [`COMPILING_BYTES`](crate::COMPILING_BYTES) bytes of memory. With 0, the server refuses all schemas and
    /// grammars.
    pub schemas_max: usize,
    /// The path of a program that calls [`run_schema_worker`](crate::run_schema_worker) if its only argument is
    /// [`SCHEMA_WORKER`](crate::SCHEMA_WORKER). The program may be the running one. The server first compiles each
    /// schema and grammar in a process of this program, so that a malicious schema cannot exhaust the server's memory
    /// or block it forever. Without a program, the server compiles schemas and grammars without this protection.
    pub schema_worker: Option<PathBuf>,
}

/// Describes how a model computes embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Embeddings {
    /// The method that reduces the hidden states of a text to one vector.
    pub pooling: Pooling,
    /// The number of elements of a vector.
    pub width: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            model_names: vec!["interbed".into()],
            any_model_name: false,
            model: ModelFacts::default(),
            default_sampling: SamplingParams::default(),
            eos_token_ids: Vec::new(),
            tool_parser: None,
            api_keys: ApiKeys::default(),
            tls: None,
            otlp_endpoint: None,
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            embeddings: Err("it was not told how this model pools".into()),
            memory_bytes: 0,
            reserved: Vec::new(),
            model_bytes: 0,
            processor: String::new(),
            body_bytes_max: 4 << 20,
            request_bytes_max: 128 << 20,
            connections_max: 1024,
            proxies: Vec::new(),
            sequences_max: 256,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(120),
            silence_max: Duration::from_secs(10),
            model_wait_max: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            tokenizing_max: std::thread::available_parallelism().map_or(2, usize::from).min(4),
            schemas_max: COMPILING_MAX,
            schema_worker: None,
        }
    }
}
