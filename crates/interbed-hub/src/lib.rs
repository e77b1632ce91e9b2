//! Models by name: what a Hub has, which of its files are taken, the cache they lie in, and their download.
//!
//! The life of a name: [`HubName`] reads it, [`Hub::find`] asks which files the model has (or, offline, which are in
//! the cache) and chooses those to take, [`HubModel::headers`] opens weights where they are, so that what cannot be
//! computed is refused before it is fetched, and [`HubModel::fetch`] brings the rest. The cache has the layout of
//! Python's `huggingface_hub`, and both can use it at the same time.
//!
//! Names, answers, choices and ranges are read and decided without I/O. What a server says is not believed: names of
//! files are checked, answers are limited, and bytes are compared with the digest that the listing gave.

mod answers;
mod cache;
mod choice;
mod digest;
mod download;
mod error;
mod hub;
mod listing;
mod lock;
mod name;
mod patience;
mod ranges;
mod remote_file;
mod settings;
mod source;
#[cfg(feature = "testing")]
pub mod testing;
mod web;

pub use answers::{TreeFile, safe_path};
pub use cache::{CachedModel, HubCache};
pub use choice::{ChoiceProblem, FileChoice, FileWish, choose, shards_of};
pub use digest::{BlobHasher, BlobId};
pub use error::{HubError, HubProblem};
pub use hub::{Hub, HubModel};
pub use name::{HubName, NameProblem};
pub use patience::HubPatience;
pub use ranges::{RANGE_BYTES, content_range, ranges, retry_after};
pub use settings::{HubSettings, SettingsProblem};
