//! Describes the models of a server that has several, of which one is in memory at a time.

use std::any::Any;
use std::sync::Arc;

use interbed_engine::{EngineHandle, SamplingParams};
use interbed_model::chat_template::ChatTemplate;
use interbed_model::tokenizer::Tokenizer;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::config::ServerConfig;
use crate::load_progress::LoadProgress;
use crate::model_facts::ModelFacts;

/// The models that a server can load or fetch. The program that starts the server implements this trait, and knows
/// where the models' files are.
///
/// The methods may read files, so the server does not call them on async threads.
pub trait Library: Send + Sync {
    /// Returns all models, in the order in which clients see them.
    fn models(&self) -> Vec<LibraryModel>;

    /// Returns the first name of the model that a client calls `name`, if the library has it.
    fn find(&self, name: &str) -> Option<String>;

    /// Describes a model, which need not be in memory. `name` is the first of its names.
    ///
    /// # Errors
    /// Fails if the model's files cannot be used.
    fn describe(&self, name: &str) -> Result<ModelDescription, LibraryError>;

    /// Loads the model whose first name is `name`. No other model is in memory.
    ///
    /// # Errors
    /// Fails if the model cannot be computed, if there is too little memory, or if reading its files fails.
    fn load(&self, name: &str, progress: Arc<LoadProgress>) -> Result<ServedModel, LibraryError>;

    /// Begins to fetch the model that a client calls `name`, and reports the progress through the returned channel. The
    /// last report is [`PullStep::Done`] or an error. Fetching stops once the channel is closed. This function is
    /// called within a runtime, and must not wait.
    fn pull(&self, name: &str) -> mpsc::Receiver<Result<PullStep, LibraryError>>;
}

/// A model in a [`Library`].
#[derive(Debug, Clone)]
pub struct LibraryModel {
    /// The names by which clients may request the model. There is at least one.
    pub names: Vec<String>,
    /// The facts about the model.
    pub facts: ModelFacts,
}

/// A description of a model for clients. The model need not be in memory.
pub struct ModelDescription {
    /// The facts about the model.
    pub facts: ModelFacts,
    /// The model's maximum context length in tokens.
    pub context: usize,
    /// The number of tokens in the model's vocabulary.
    pub vocabulary: usize,
    /// The values of sampling parameters that a request does not set.
    pub sampling: SamplingParams,
    /// The chat template, which renders conversations for the model.
    pub template: Option<Arc<ChatTemplate>>,
    /// Whether the model computes embeddings.
    pub embeds: bool,
}

/// A model in memory, and the settings with which it is served.
pub struct ServedModel {
    /// The server's settings, together with the settings that depend on the model.
    pub config: ServerConfig,
    /// The handle of the model's engine.
    pub engine: EngineHandle,
    /// The tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, which renders conversations for the model. Without a template, the server refuses chat
    /// requests and suggests plain completions.
    pub template: Option<Arc<ChatTemplate>>,
    /// The value that keeps the model in memory. Dropping it ends the engine and frees the memory, which may take a
    /// while.
    pub keeper: Box<dyn Any + Send>,
}

/// A report on the progress of fetching a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullStep {
    /// Another part of the model's files has been fetched.
    Fetched {
        /// The hash that identifies what is fetched, such as a commit hash.
        content: String,
        /// The number of bytes that have been fetched.
        done: u64,
        /// The total number of bytes to fetch.
        all: u64,
    },
    /// All files of the model have been fetched and verified.
    Done,
}

/// The reasons why a library cannot load, describe or fetch a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// The request can never succeed with this model or on this machine, so repeating it does not help.
    #[error("{0}")]
    Unfit(String),
    /// The library has reached its limit on concurrent operations. The request may succeed later.
    #[error("{0}")]
    Busy(String),
    /// The request failed for another reason.
    #[error("{0}")]
    Failed(String),
}
