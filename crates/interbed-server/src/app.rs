//! The state that all handlers of a model share.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use interbed_engine::{ContextOverflow, EngineHandle, Vocabulary, VocabularyError, quoted};
use interbed_model::chat_template::ChatTemplate;
use interbed_model::tokenizer::Tokenizer;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::live::{Live, Recent};
use crate::memory::{RequestMemory, Share};
use crate::metrics::Metrics;
use crate::notes::Notes;
use crate::pace::QueuePace;
use crate::permits::Permits;
use crate::schemas::Schemas;
use crate::speech::Speech;
use crate::tenant::Tenant;
use crate::tool_calls::Family;

/// The factor by which a tokenizer's normalizer may shorten a text by composing characters. Larger factors hardly ever
/// occur.
const NORMALIZED_SHRINK: usize = 4;
/// The number of bytes that are reserved for each byte of decoded text. The string doubles as it grows, and JSON may
/// need escapes.
const DECODE_FACTOR: usize = 8;

/// The state that all handlers of a model share.
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) engine: EngineHandle,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<Arc<ChatTemplate>>,
    /// The markers by which the model writes thinking and tool calls.
    pub(crate) speech: Speech,
    pub(crate) metrics: Arc<Metrics>,
    /// The rate at which requests leave the queue.
    pub(crate) pace: Arc<QueuePace>,
    pub(crate) started_at_s: u64,
    pub(crate) memory: RequestMemory,
    /// The bytes of the model's tokens, once a request has needed them.
    pub(crate) vocabulary: OnceLock<Result<Arc<Vocabulary>, VocabularyError>>,
    /// Whether the server drains: it takes no new requests, and finishes those in flight.
    pub(crate) draining: watch::Receiver<bool>,
    /// The event stream of the web page at `/`.
    pub(crate) live: Arc<Live>,
    /// Whether the server is ending without waiting any longer for requests in flight.
    pub(crate) is_cut: watch::Receiver<bool>,
    /// Permits for CPU-bound work, such as parsing and tokenizing.
    workers: Arc<Permits>,
    /// Compiles schemas and grammars that constrain answers.
    pub(crate) schemas: Arc<Schemas>,
    /// Logs each feature that requests ask for and the server ignores, once.
    pub(crate) notes: Notes,
}

/// Tells the handlers that the server is ending.
#[derive(Clone)]
pub(crate) struct Ending {
    /// Whether the server takes no new requests, and finishes those in flight.
    pub(crate) draining: watch::Receiver<bool>,
    /// Whether the server waits no longer for requests in flight.
    pub(crate) is_cut: watch::Receiver<bool>,
}

impl App {
    pub(crate) fn new(
        config: ServerConfig,
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        metrics: Arc<Metrics>,
        recent: Arc<Recent>,
        Ending { draining, is_cut }: Ending,
    ) -> Arc<Self> {
        let memory = RequestMemory::new(config.request_bytes_max, &config.api_keys);
        let workers = Permits::new(config.tokenizing_max);
        let schemas = Schemas::new(config.schemas_max, config.schema_worker.clone(), !config.api_keys.is_empty());
        let started_at_s = unix_seconds();
        let vocabulary = OnceLock::new();
        let source = template.as_ref().map_or("", |template| template.source());
        let shows_tools = template.as_ref().is_some_and(|template| template.reads_tools());
        let speech = Speech::of(source, shows_tools, config.tool_parser.as_deref());
        let live = Live::new(
            engine.clone(),
            config.api_keys.clone(),
            recent,
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "model": config.model_names.first(),
                "chats": template.is_some(),
                "block_tokens": engine.limits().kv_block_tokens,
                "context": engine.limits().max_model_len,
                "memory_bytes": config.memory_bytes,
                "reserved": config.reserved,
                "model_bytes": config.model_bytes,
                "processor": config.processor,
            }),
            draining.clone(),
        );
        let app = Self {
            config,
            engine,
            tokenizer,
            template,
            speech,
            metrics,
            pace: Arc::default(),
            started_at_s,
            memory,
            vocabulary,
            draining,
            live,
            is_cut,
            schemas,
            notes: Notes::default(),
            workers,
        };
        Arc::new(app)
    }

    /// Returns the model's first name, which answers carry.
    pub(crate) fn model_name(&self) -> &str {
        self.config.model_names.first().map_or("interbed", String::as_str)
    }

    /// Returns the form in which the prompt describes tools, if a form is known and the chat template does not describe
    /// tools itself.
    pub(crate) fn tools_told(&self) -> Option<&'static Family> {
        let reads_tools = self.template.as_ref().is_some_and(|template| template.reads_tools());
        self.speech.family.filter(|_| !reads_tools)
    }

    /// Returns whether `text` is a special token.
    pub(crate) fn is_special(&self, text: &str) -> bool {
        self.tokenizer.id_of(text).is_some_and(|id| self.tokenizer.is_special(id))
    }

    /// Writes a text in Lark's syntax: a special token as its id, and any other text as a quoted string.
    pub(crate) fn mark(&self, text: &str) -> String {
        match self.tokenizer.id_of(text).filter(|&id| self.tokenizer.is_special(id)) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    /// Returns the token ids of a prompt that belongs to `tenant`. A prompt that cannot fit the context, or needs too
    /// much memory, is refused before it is tokenized. The function blocks and is CPU-bound, so it must not be called
    /// on an async thread.
    pub(crate) fn encode(
        &self,
        tenant: Tenant,
        param: &'static str,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, ApiError> {
        let context = self.engine.limits().max_model_len;
        let most = self.tokenizer.longest_entry().saturating_mul(NORMALIZED_SHRINK).saturating_mul(context.max(1));
        if text.len() > most {
            let message = format!(
                "this model's maximum context length is {context} tokens, which can hold no prompt of {} bytes; \
                 shorten it",
                text.len()
            );
            // The prompt has at least this many tokens.
            let overflow = ContextOverflow { prompt: text.len() / (most / context.max(1)), prompt_max: context };
            return Err(ApiError::beyond_context(param, message, Some(overflow)));
        }
        self.tokenize(tenant, param, text, add_special)
    }

    /// Tokenizes like [`App::encode`], without the check against the context.
    pub(crate) fn tokenize(
        &self,
        tenant: Tenant,
        param: &'static str,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, ApiError> {
        let (needed, limit) = (self.tokenizer.scratch_bytes(text), self.memory.scratch.bytes());
        if needed > limit {
            let message = format!(
                "tokenizing the {} bytes of text would take {} KiB of memory, but all requests together have {}; send \
                 token ids, or a shorter text, or one of shorter lines",
                text.len(),
                needed.div_ceil(1024),
                limit / 1024
            );
            return Err(ApiError::invalid(param, message));
        }
        let _scratch = Handle::current().block_on(self.memory.scratch.take(tenant, needed))?;
        let encoded = self.tokenizer.encode(text, add_special);
        let mut ids = encoded.map_err(|error| ApiError::invalid(param, error.to_string()))?;
        ids.shrink_to_fit();
        Ok(ids)
    }

    /// Returns the text of token ids. A short list may decode to a long text, so `decoded` counts the bytes of all
    /// texts, and `share` grows to that number. The function blocks and is CPU-bound.
    pub(crate) fn decode(
        &self,
        ids: &[u32],
        skip_special: bool,
        share: &mut Share,
        decoded: &mut usize,
    ) -> Result<String, ApiError> {
        let bytes: usize =
            ids.iter().map(|&id| 4 + self.tokenizer.vocabulary_entry(id).map_or(0, |entry| entry.len())).sum();
        *decoded = decoded.saturating_add(bytes.saturating_mul(DECODE_FACTOR));
        Handle::current().block_on(share.ensure(*decoded))?;
        Ok(self.tokenizer.decode(ids, skip_special))
    }

    /// Runs CPU-bound work (parsing, templates, tokenizing) outside the async threads. Only a limited number of such
    /// jobs run at a time, and tenants take turns.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: Tenant,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.workers.take(tenant).await;
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&app)
        });
        done.await.map_err(|error| ApiError::internal(format!("preparing the request failed: {error}")))?
    }
}

/// Returns the seconds since 1970, for the field `created`.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
