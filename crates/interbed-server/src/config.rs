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
    /// At least one name that clients may ask for. The server reports the first name.
    pub model_names: Vec<String>,
    /// Whether clients may also ask for any other name. An answer then carries the name that the request asked for.
    pub any_model_name: bool,
    /// The facts about the model, which the server tells to clients.
    pub model: ModelFacts,
    /// The values of fields that a request leaves out: those of the model's `generation_config.json`, or else those of
    /// the API.
    pub default_sampling: SamplingParams,
    /// The model's end-of-sequence tokens that the tokenizer does not name.
    pub eos_token_ids: Vec<u32>,
    /// The syntax in which the model writes calls of tools, as one of [`tool_parsers`](crate::tool_parsers). By
    /// default, the server detects the syntax from the chat template.
    pub tool_parser: Option<String>,
    /// The keys of which a client must send one. If there are none, clients need no key.
    pub api_keys: ApiKeys,
    /// The certificate of a server that clients reach over TLS. Without a certificate, the server uses plain HTTP.
    pub tls: Option<Tls>,
    /// The address to which the server sends traces of requests. Without an address, the server sends no traces.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// The further host names by which clients may address a server without keys. Names that never leave a machine or
    /// its network are always allowed. An entry is a name such as `gpu.example.org`, or `*.example.org` for all names
    /// with this end, or `*` for any name.
    pub allow_hosts: Vec<String>,
    /// The origins of web pages whose scripts may call the server, such as `https://example.org`, or `*` for all
    /// origins. By default, no web page of another origin may call the server.
    pub allow_origins: Vec<String>,
    /// The way in which the model computes embeddings, or else the reason why it computes none.
    pub embeddings: Result<Embeddings, String>,
    /// The number of bytes of host memory that the program may use, for display. 0 stands for an unknown number.
    pub memory_bytes: u64,
    /// The parts of the host memory with their numbers of bytes, by name, for display. The rest of the memory is
    /// unused.
    pub reserved: Vec<(String, u64)>,
    /// The number of bytes of all weights, wherever they are, for display. 0 stands for an unknown number.
    pub model_bytes: u64,
    /// A description of the processor that computes, for display, such as "2 cores, avx2".
    pub processor: String,
    /// The largest request body, in bytes.
    pub body_bytes_max: usize,
    /// The number of bytes of memory that all requests and connections together may take, without the engine's own
    /// structures. A body may take at most a sixteenth of this number. Each MiB allows eight connections, or three over
    /// TLS.
    pub request_bytes_max: usize,
    /// The maximum number of connections that are served at a time, of which one address may have three quarters. New
    /// connections take the places of idle ones. If all connections are busy, a few new ones wait.
    pub connections_max: usize,
    /// The addresses of proxies, which pass on requests of many clients. One proxy may have all connections.
    pub proxies: Vec<Network>,
    /// The maximum number of sequences of one request: the number of prompts times `n` or `best_of`.
    pub sequences_max: usize,
    /// The time in which a request's head must arrive, and for which an idle connection stays open.
    pub header_timeout: Duration,
    /// The time in which a request's body must arrive.
    pub body_timeout: Duration,
    /// The time for which a client may leave an answer unread before the server closes the connection.
    pub write_timeout: Duration,
    /// The longest time without an event in a stream. After this time, the server sends an event that changes no
    /// answer, so that a client goes on waiting while a long prompt is computed or the request waits for its turn.
    pub silence_max: Duration,
    /// The longest time for which a request to a server with several models waits while other models are in memory.
    pub model_wait_max: Duration,
    /// The time in which requests in flight must finish after the server is told to stop.
    pub drain_timeout: Duration,
    /// The maximum number of prompts and templates that are tokenized or rendered at a time.
    pub tokenizing_max: usize,
    /// The maximum number of schemas and grammars that are compiled at a time, each in at most
    /// [`COMPILING_BYTES`](crate::COMPILING_BYTES). 0 refuses all of them.
    pub schemas_max: usize,
    /// A program that calls [`run_schema_worker`](crate::run_schema_worker) if its only argument is
    /// [`SCHEMA_WORKER`](crate::SCHEMA_WORKER). This may be the path of the running program. The server first compiles
    /// each schema and grammar in such a process, so that none can take all memory or run for ever. Without a program,
    /// the server refuses only schemas and grammars that are known to do so.
    pub schema_worker: Option<PathBuf>,
}

/// Describes how a model computes embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Embeddings {
    /// The way in which hidden states become one vector.
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
