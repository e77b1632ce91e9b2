//! Packed stores: a whole model in one file or on one raw block device, in the order in which a pass reads it.
//!
//! ```text
//! 0      | header, one page of 4,096 bytes                                             all numbers little-endian
//!        |   0  magic 89 "INTBED" 0A      8  version u32, 1 or 2     12  zero u32
//!        |  16  bytes of the manifest u64, a multiple of 4,096    24  bytes of the whole store u64
//!        |  32  zeros                     4,080  XXH3-128 of the bytes 0 to 4,080 and the manifest
//! 4,096  | manifest: JSON, filled up with spaces
//!        | the model's small files (config.json, tokenizer.json, …, or the metadata of a GGUF file), one after another
//!        | embedding │ layer 0, attention │ layer 0, ffn │ layer 1, attention │ … │ head │ what no pass reads
//! ```
//!
//! Small files and groups are *regions*. Each region begins where the one before it ends, is padded with zeros to whole
//! pages of 4,096 bytes, and has an XXH3-128 of all its bytes in the manifest, so that every byte is covered by a
//! checksum. In a group, tensors lie in the order in which the forward pass takes them, each at a multiple of 64 bytes,
//! and from [`LARGE_TENSOR_FROM`] bytes on at a multiple of 4,096. A tied head shares the embedding, which is stored
//! once. Offsets count from the start of the store.
//!
//! Checksums are XXH3-128 because it is faster than any disk on one core, and 128 bits are ample against accidental
//! damage. BLAKE3 would take more time for a protection against tampering that checksums stored beside the data cannot
//! give anyway.
//!
//! Matrices of bf16 may be coded without loss, decided matrix by matrix ([`Coding`]): their type is then "coded BF16",
//! and `patches` says for how many patches each row has room; the layout of a row is drawn in `interbed-kernels`. Older
//! versions cannot read coded matrices, so a store that has any has version 2; one without them has version 1.
//!
//! An unfinished store begins with another magic number (89 "INTPART"). Its manifest has checksums of the regions
//! written so far and zeros for the rest. The header of a finished store is written last, so an interrupted pack is
//! never taken for a store.
//!
//! Readers refuse versions above their own and read all lower ones. Fields that a reader does not know are ignored; a
//! change that an older reader must not ignore needs a new version.

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
