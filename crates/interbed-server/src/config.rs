//! How the server serves.

use std::path::PathBuf;
use std::time::Duration;

use interbed_engine::{Pooling, SamplingParams};

use crate::api_keys::ApiKeys;
use crate::guests::Network;
use crate::model_facts::ModelFacts;
use crate::schemas::COMPILING_MAX;
use crate::tls::Tls;
use crate::traces::OtlpEndpoint;

/// How the server serves. Every limit has a default that suits one machine.
#[derive(Clone)]
pub struct ServerConfig {
    /// Names that clients may ask for; the first is the one reported. At least one.
    pub model_names: Vec<String>,
    /// Whether clients may ask for any other name too. Answers then carry the name that was asked for.
    pub any_model_name: bool,
    /// What the server tells of the model.
    pub model: ModelFacts,
    /// Defaults for fields that a request leaves out: the model's `generation_config.json` over those of the API.
    pub default_sampling: SamplingParams,
    /// End-of-sequence tokens of the model besides the tokenizer's own.
    pub eos_token_ids: Vec<u32>,
    /// How the model writes calls of tools: one of [`tool_parsers`](crate::tool_parsers). By default, what its chat
    /// template tells.
    pub tool_parser: Option<String>,
    /// Keys of which a client must send one; none means that no key is needed.
    pub api_keys: ApiKeys,
    /// The certificate, where clients are to come over TLS.
    pub tls: Option<Tls>,
    /// Where traces of requests are sent, if they are.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Names that the server may be called by where it asks for no key, besides those that never leave a machine or its
    /// network: `gpu.example.org`, `*.example.org` for all that end so, or `*` for any.
    pub allow_hosts: Vec<String>,
    /// Web pages whose scripts may call, as origins (`https://example.org`), or `*` for all; none by default.
    pub allow_origins: Vec<String>,
    /// Whether, and how, the model makes embeddings; else why it does not.
    pub embeddings: Result<Embeddings, String>,
    /// Bytes of host memory that all of it may take, for display; 0 if that is not known.
    pub memory_bytes: u64,
    /// What this memory is reserved for, by name, for display. The rest of it is unused.
    pub reserved: Vec<(String, u64)>,
    /// Bytes of all weights, wherever they are, for display; 0 if that is not known.
    pub model_bytes: u64,
    /// The processor that computes, for display: "2 cores, avx2".
    pub processor: String,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Bytes of memory that all requests and connections may take together, the engine's own structures aside. A
    /// sixteenth of it is also the limit for a body, and each MiB allows eight connections, or three over TLS.
    pub request_bytes_max: usize,
    /// Connections served at a time, three quarters of them from one address. Idle ones make room for more; where all
    /// are busy, some more wait.
    pub connections_max: usize,
    /// Proxies, which speak for many: their addresses may have all connections.
    pub proxies: Vec<Network>,
    /// Sequences (prompts times `n`, or `best_of`) of one request.
    pub sequences_max: usize,
    /// Time in which a request's head must arrive, and for which an idle connection is kept.
    pub header_timeout: Duration,
    /// Time in which a request's body must arrive.
    pub body_timeout: Duration,
    /// Time for which a client may leave an answer unread before its connection is closed.
    pub write_timeout: Duration,
    /// Time for which a stream may tell nothing: then it sends an event that changes no answer, so that its client goes
    /// on waiting for a long prompt, or for its turn.
    pub silence_max: Duration,
    /// Time for which a request waits for its model while others are in memory, where a server has several.
    pub model_wait_max: Duration,
    /// Time that requests in flight have to finish once the server is told to stop.
    pub drain_timeout: Duration,
    /// Prompts tokenized, and templates rendered, at a time.
    pub tokenizing_max: usize,
    /// Schemas and grammars compiled at a time, each in [`COMPILING_BYTES`](crate::COMPILING_BYTES) at most; 0 refuses
    /// them.
    pub schemas_max: usize,
    /// A program that calls [`run_schema_worker`](crate::run_schema_worker) where its only argument is
    /// [`SCHEMA_WORKER`](crate::SCHEMA_WORKER); this program's own path, if it does. Schemas and grammars are compiled
    /// there first, so that none can take all memory or never end. Without one, only what is known to do so is refused.
    pub schema_worker: Option<PathBuf>,
}

/// How a model makes embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Embeddings {
    /// How hidden states become one vector.
    pub pooling: Pooling,
    /// Numbers of a vector.
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
