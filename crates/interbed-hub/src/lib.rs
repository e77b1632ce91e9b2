//! Provides models by name: looks up a model on a Hub, chooses its files, downloads them, and keeps them in a cache.
//!
//! [`HubName`] parses a name. [`Hub::find`] looks up the model's files on the Hub (or, offline, in the cache) and
//! chooses those to use. [`HubModel::headers`] reads the headers of weights on the Hub, so that a model that cannot be
//! run is refused before it is downloaded. [`HubModel::fetch`] downloads the rest. The cache has the layout of Python's
//! `huggingface_hub`, and both can use the cache at the same time.
//!
//! Names, responses, choices and ranges are parsed and decided without I/O. Servers are not trusted: file names are
//! checked, responses are limited in size, and bytes are verified with the digests of the listing.

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
