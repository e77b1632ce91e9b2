//! Packed stores: a whole model in one file or on one raw block device, in the order in which a pass reads it.
//!
//! ```text
//! 0      | header, one page of 4,096 bytes                                             all numbers little-endian
//!        |   0  magic 89 "STRATA" 0A      8  version u32, 1 or 2     12  zero u32
//!        |  16  bytes of the manifest u64, a multiple of 4,096    24  bytes of the whole store u64
//!        |  32  zeros                     4,080  XXH3-128 of the bytes 0 to 4,080 and the manifest
//! 4,096  | manifest: JSON, filled up with spaces
//!        | the model's small files (config.json, tokenizer.json, …, or the metadata of a GGUF file), one after another
//!        | embedding │ layer 0, attention │ layer 0, ffn │ layer 1, attention │ … │ head │ what no pass reads
//! ```
//!
//! Small files and groups are *regions*. Each begins where the one before it ends, is filled up with zeros to whole
//! pages of 4,096 bytes, and has an XXH3-128 over all of its bytes in the manifest: there is no byte that no checksum
//! covers. In a group, tensors lie in the order in which the forward pass takes them, each at a multiple of 64 bytes,
//! and at a multiple of 4,096 from [`LARGE_TENSOR_FROM`] bytes on. A tied head is the embedding, which lies there once.
//! Offsets count from the start of the store.
//!
//! Checksums are XXH3-128 because it is faster than any disk on one core, and 128 bits miss no accident; BLAKE3 would
//! cost more time for a protection that checksums beside the data cannot give anyway: they are against rot, not malice.
//!
//! Matrices of bf16 may lie there coded without loss, which is decided matrix by matrix ([`Coding`]): their type is
//! "coded BF16", beside it `patches` says for how many patches a row has room, and `strata-kernels` draws the rows.
//! Since nothing else reads them, such a store has version 2; one without them has version 1.
//!
//! An unfinished store begins with another magic number (89 "STRPART"), under which the manifest has checksums of the
//! regions written so far and zeros for the rest; the header is written last, so a torn pack is no store.
//!
//! Readers refuse versions above their own and read all below. Fields that a reader does not know are passed over;
//! whatever an older reader must not pass over needs a new version.

mod check;
mod checksum;
mod coding;
mod error;
mod format;
mod layout;
mod reader;
mod source;
mod writer;

pub(crate) use check::checksums;
pub use checksum::Checksum;
pub use coding::Coding;
pub use error::StoreProblem;
pub use format::{
    LARGE_TENSOR_FROM, MANIFEST_BYTES_MAX, METADATA_FILE, Manifest, PAGE_BYTES, Region, SMALL_FILE_BYTES_MAX,
    STORE_VERSION, Source, SourceFile, StoredFile, StoredGroup, StoredTensor, is_store,
};
pub use layout::StorePlan;
pub use reader::Store;
pub use writer::{PackPhase, PackReport, inspect_target, write_store};

#[cfg(test)]
mod tests;
