//! The models that a server has at hand, of which it holds one in memory at a time.

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

/// Models that can be loaded, and fetched from elsewhere. Whoever starts a server knows where they lie.
///
/// Methods may read files, and are not called on async threads.
pub trait Library: Send + Sync {
    /// All models, in the order in which clients see them.
    fn models(&self) -> Vec<LibraryModel>;

    /// The first name of the model that a client calls `name`, if it is here.
    fn find(&self, name: &str) -> Option<String>;

    /// What a model is that need not be in memory. `name` is the first of its names.
    ///
    /// # Errors
    /// The model's files cannot be used.
    fn describe(&self, name: &str) -> Result<ModelDescription, LibraryError>;

    /// Loads a model, of which `name` is the first name. No other one is in memory.
    ///
    /// # Errors
    /// It cannot be computed, there is too little memory for it, or reading failed.
    fn load(&self, name: &str, progress: Arc<LoadProgress>) -> Result<ServedModel, LibraryError>;

    /// Begins to fetch what a client calls `name`, and tells how far it is: its last word is [`PullStep::Done`] or an
    /// error. It stops once nobody listens. Called within a runtime, and must not wait.
    fn pull(&self, name: &str) -> mpsc::Receiver<Result<PullStep, LibraryError>>;
}

/// A model of a library.
#[derive(Debug, Clone)]
pub struct LibraryModel {
    /// Names that clients may ask for. At least one.
    pub names: Vec<String>,
    /// What it is.
    pub facts: ModelFacts,
}

/// What clients are told of a model that need not be in memory.
pub struct ModelDescription {
    /// What it is.
    pub facts: ModelFacts,
    /// Tokens of its context.
    pub context: usize,
    /// Tokens that it knows.
    pub vocabulary: usize,
    /// Defaults for fields that a request leaves out.
    pub sampling: SamplingParams,
    /// How conversations are written for it.
    pub template: Option<Arc<ChatTemplate>>,
    /// Whether it makes embeddings.
    pub embeds: bool,
}

/// A model in memory, and how it is served.
pub struct ServedModel {
    /// How it is served: the server's own settings, and what the model says.
    pub config: ServerConfig,
    /// The way to its engine.
    pub engine: EngineHandle,
    /// What makes token ids of texts.
    pub tokenizer: Arc<Tokenizer>,
    /// How conversations are written for it. Without it, chats are refused with a hint.
    pub template: Option<Arc<ChatTemplate>>,
    /// What the model is in memory by: dropping it ends the engine and gives the memory back. It may take a while.
    pub keeper: Box<dyn Any + Send>,
}

/// How far a model is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullStep {
    /// So many bytes are there.
    Fetched {
        /// What is fetched: a name of this content.
        content: String,
        /// Bytes that are there.
        done: u64,
        /// Bytes that will be.
        all: u64,
    },
    /// All is there, and as it should be.
    Done,
}

/// Why a library does not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// It cannot be done with this model, or not on this machine: asking again is of no use.
    #[error("{0}")]
    Unfit(String),
    /// The library already does as much as it may do at a time.
    #[error("{0}")]
    Busy(String),
    /// It went wrong.
    #[error("{0}")]
    Failed(String),
}
