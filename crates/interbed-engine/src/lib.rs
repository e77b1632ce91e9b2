//! The engine has sequences, a scheduler and a sampler. One engine thread runs one loop and owns all of this state.
//!
//! The engine knows nothing of HTTP or of text: token ids go in through [`EngineHandle::submit`], and [`Event`]s come
//! out. [`text`] turns token ids into text.

mod continuation;
mod device_timeline;
mod drafter;
mod engine;
mod event;
mod forecast;
mod group;
mod handle;
mod live;
mod masks;
mod memory_plan;
mod memory_trade;
mod model_runner;
mod pace;
mod places;
mod preemption;
mod request;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
mod tier_policy;
mod tiers_below;
mod unread;
mod vocabulary;

pub use continuation::LATE_MAX;
pub use device_timeline::DeviceTimeline;
pub use drafter::Drafter;
pub use engine::{Attachments, Engine, EngineConfig, StartError};
pub use event::*;
pub use handle::{EngineHandle, EventStream};
pub use interbed_device::{DeviceEvent, DeviceStats};
pub use interbed_grammar::{
    Binding, Constraint, GrammarError, GrammarSource, Marker, Preface, Trigger, Vocabulary, VocabularyError,
    arguments_schema, check_formats, checked_schema, json_value, quoted,
};
pub use interbed_kv::{
    BlockBytes, BlockUse, Keeps, KvStats, Miss, MissReason, SwapTook, SwapTrial, TailGroupStats, TailStats,
    TierFigures, TokenId,
};
pub use interbed_model::Pooling;
pub use interbed_weights::{GroupShape, StreamStats, UnitSight, WatchPace, WindowSight};
pub use live::{LivePlace, LiveSequence, LiveState, SHOWN_MAX, Watcher};
pub use memory_plan::{BudgetTooSmall, LEAST_CONTEXT, MemoryNeeds, MemoryPlan, SchemaNeeds};
pub use memory_trade::{KvDemand, KvGrant, MemoryTrade, TradeLimits};
pub use model_runner::{ModelRunner, WeightMemory};
pub use places::{Place, Places};
pub use preemption::PreemptionMode;
pub use request::*;
pub use runner::{KvMemory, PassError, Runner, RunnerMemory, ShownWeights, StripMemory};
pub use scheduler::{SchedulerConfig, blocks_beside_disk};
pub use status::*;
pub use tier_policy::{Recompute, StoreMode, TierPolicy};
pub use tiers_below::{LaterTiers, TierBelow};
pub use unread::UnreadBudget;
pub use vocabulary::vocabulary_of;
