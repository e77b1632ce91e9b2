//! Configurations, architectures as lists of layers, the forward pass, tokenizer and chat template.
//!
//! A model here is a pure function of weights, KV and a batch: it knows nothing of scheduling, and nothing of where
//! weights come from.

mod arithmetic;
mod batch;
mod below;
pub mod blueprint;
mod bounded_file;
pub mod chat_template;
pub mod config;
mod config_error;
mod end_tokens;
mod families;
pub mod generation_config;
pub mod gguf;
mod head_source;
mod jinja;
mod kept;
mod keys;
pub mod layers;
mod model;
mod pass;
mod pooling;
pub mod rope;
mod route_sink;
mod routes;
pub mod synth;
pub mod tokenizer;

pub use arithmetic::{ARITHMETIC_REVISION, RECORDED_LEVELS};
pub use batch::{BatchSequence, GroupBlocks, LogitRow, LogitRows, Logits, SequenceBlocks};
pub use below::{FrameId, KvBelow, KvLost, NothingBelow};
pub use end_tokens::end_tokens;
pub use families::{Family, preset, preset_names};
pub use head_source::HeadSource;
pub use kept::{Kept, KeptGroup, KeptGroups, KeptPlace};
pub use model::Model;
pub use pass::{ForwardError, Linear, LogitSink, Pass, PassSize};
pub use pooling::{POOLING_FILE, Pooling};
pub use route_sink::{RouteSink, RoutedRow};
