//! Weight formats and groups: safetensors, GGUF and packed stores in, bands of matrices out.
//!
//! The life of a weight: a [`Catalog`] finds every tensor of a directory and the place of its bytes; the model names
//! the tensors that it wants, as [`GroupSpec`]s; a [`WeightSource`] brings the tensors to the compute code as
//! [`Band`]s. [`ResidentWeights`] holds all weights in memory, and [`StreamedWeights`] holds the weights that a budget
//! has room for; the compute code cannot tell the two apart.

mod band_size;
mod catalog;
mod chunks;
mod content;
mod error;
pub mod experts;
mod gguf;
mod group;
mod hashed_file;
mod pairs;
mod partition;
mod resident;
mod safetensors;
mod source;
mod store;
mod streamed;
mod verify;
pub mod window;
mod writer;

pub use band_size::{BAND_LEAST, band_bytes};
pub use catalog::{Catalog, CatalogEntry, FileScales};
pub use content::ContentHash;
pub use error::{HeaderProblem, IndexProblem, WeightError};
pub use gguf::{
    GGUF_HEADER_BYTES_MAX, GgufHeader, GgufProblem, Metadata, MetadataValue, Number, Numbers, Texts, Undecoded,
    gguf_name, model_name, read_gguf, write_gguf,
};
pub use group::{Access, GroupSpec, Role, TensorSpec};
pub use partition::{
    BandPlace, ExpertBank, ExpertClasses, Group, Partition, Pieces, Slab, SlabMatrix, SlabRead, StoredAt, TensorPlace,
    Turn, VectorPlace, WeightUnit,
};
pub use resident::{ResidentWeights, plan_bytes};
pub use safetensors::{ElementType, HEADER_BYTES_MAX, TensorRecord, read_header};
pub use source::{
    BANDS_MAX, Band, Bands, EXPERT_MATRICES_MAX, ElasticWeights, Expert, Rows, SWEEP_MAX, StreamMemory, Sweep,
    TensorId, WeightSource,
};
pub use store::{
    Checksum, Coding, LARGE_TENSOR_FROM, MANIFEST_BYTES_MAX, METADATA_FILE, Manifest, PAGE_BYTES, PackPhase,
    PackReport, Region, SMALL_FILE_BYTES_MAX, STORE_VERSION, Source, SourceFile, Store, StorePlan, StoreProblem,
    StoredFile, StoredGroup, StoredTensor, inspect_target, is_store, write_store,
};
pub use streamed::{
    EVENTS_MAX, EventKind, GroupShape, Presence, StreamConfig, StreamEvent, StreamMonitor, StreamPlan, StreamPolicy,
    StreamStats, StreamedWeights, TieredWeights, UnitSight, WatchPace, WindowSight, open_direct,
};
pub use verify::{Checked, Damage, Method, VerifyStopped, verify};
pub use writer::{Sink, TensorMeta, write_model};

#[cfg(target_endian = "big")]
compile_error!(
    "weight files are little-endian and their bytes are used as they lie; big-endian machines need a swap here"
);
