//! What can be wrong with a packed store.

use thiserror::Error;

use super::checksum::Checksum;

/// Why a packed store is refused, or was not made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreProblem {
    /// It does not begin as a store does.
    #[error("this is no packed store: it begins with {found:02x?}")]
    NotAStore {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// Packing was interrupted.
    #[error("packing was interrupted before it was whole: run the same `strata pack` again to continue")]
    Unfinished,
    /// A later version of Strata wrote it.
    #[error(
        "the store has version {found}, this Strata reads up to {known}: update Strata, or pack the model again with \
         this one"
    )]
    NewerVersion {
        /// The store's version.
        found: u32,
        /// The highest that is read here.
        known: u32,
    },
    /// There is no version 0.
    #[error("the header is damaged (version 0): pack the model again")]
    NoVersion,
    /// The manifest is longer than any honest one.
    #[error(
        "the manifest is said to have {bytes} bytes, the limit is {limit}: the header is damaged, pack the model again"
    )]
    ManifestOverLimit {
        /// Bytes that the header names.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Sizes in the header that cannot be.
    #[error(
        "the header is damaged (a manifest of {manifest_bytes} bytes in a store of {total_bytes}): pack the model again"
    )]
    HeaderSizes {
        /// Bytes of the manifest.
        manifest_bytes: u64,
        /// Bytes of the store.
        total_bytes: u64,
    },
    /// The file is shorter than the store in it.
    #[error("it has {found} bytes of {expected}: it is truncated, copy it or pack the model again")]
    Truncated {
        /// Bytes that the header names.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The file goes on behind the store.
    #[error(
        "it has {found} bytes, but the store in it ends after {expected}: it was changed, copy it or pack the model again"
    )]
    TooLong {
        /// Bytes that the header names.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Header and manifest are not as they were written.
    #[error("header or manifest is damaged (checksum {found}, expected {expected}): copy it or pack the model again")]
    HeadChecksum {
        /// The checksum in the header.
        expected: Checksum,
        /// That of the bytes.
        found: Checksum,
    },
    /// The manifest is no JSON of the right form.
    #[error("the manifest is not valid: {message}")]
    Json {
        /// What the parser said, with line and column.
        message: String,
    },
    /// Two files or two tensors have one name.
    #[error("the name {name:?} occurs twice in the manifest")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A small file's name is not a plain one.
    #[error("the manifest names a file {name:?}, which is not the name of a file")]
    FileName {
        /// The name.
        name: String,
    },
    /// A small file that is not small.
    #[error("{name} has {bytes} bytes, at most {limit} are accepted")]
    FileOverLimit {
        /// The file.
        name: String,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A region does not begin where the one before it ends.
    #[error("{region} begins at byte {found}, but what lies before it ends at {expected}")]
    Misplaced {
        /// The region.
        region: String,
        /// Where it must begin.
        expected: u64,
        /// Where it is said to begin.
        found: u64,
    },
    /// A region reaches beyond the end, or is not whole pages.
    #[error(
        "{region} has {bytes} bytes from {offset} on, which is not whole pages within the {total} bytes of the store"
    )]
    RegionSize {
        /// The region.
        region: String,
        /// Its first byte.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Bytes of the store.
        total: u64,
    },
    /// The regions end before the store does.
    #[error("the bytes {from} to {to} belong to nothing")]
    Hole {
        /// First of them.
        from: u64,
        /// One past the last.
        to: u64,
    },
    /// A type of tensors that is not known.
    #[error("tensor {tensor} is stored as {found:?}, which is not known: update Strata")]
    UnknownDType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// A type that has patches, without them, or one that has none, with some.
    #[error("tensor {tensor} is {found:?} with patches {patches:?}: the manifest is damaged, pack the model again")]
    Patches {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
        /// For how many patches its rows are said to have room.
        patches: Option<u16>,
    },
    /// A shape whose size cannot be counted.
    #[error("tensor {tensor} has the impossible shape {shape:?}")]
    ImpossibleShape {
        /// The tensor.
        tensor: String,
        /// The shape.
        shape: Vec<u64>,
    },
    /// A size that is not what shape and type make.
    #[error("tensor {tensor} is said to have {found} bytes, its shape and type make {expected}")]
    WrongSize {
        /// The tensor.
        tensor: String,
        /// Bytes that shape and type make.
        expected: u64,
        /// Bytes that the manifest names.
        found: u64,
    },
    /// A tensor outside its group, upon another, or at an odd place.
    #[error(
        "tensor {tensor} lies at {offset} with {bytes} bytes, which is outside {group}, upon another tensor, or no \
         multiple of 64"
    )]
    TensorPlace {
        /// The tensor.
        tensor: String,
        /// Its group.
        group: String,
        /// Its first byte.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// A region's bytes are not as they were written.
    #[error(
        "{region} (bytes {offset} to {end}) is damaged: checksum {found}, expected {expected}; copy the store or pack \
         the model again"
    )]
    RegionChecksum {
        /// The region.
        region: String,
        /// Its first byte.
        offset: u64,
        /// One past its last byte.
        end: u64,
        /// The checksum in the manifest.
        expected: Checksum,
        /// That of the bytes.
        found: Checksum,
    },
    /// A source file was not the same at the end of packing as at its beginning.
    #[error("it was changed while it was being packed: pack again")]
    SourceChanged,
    /// A device holds something that is neither zeros nor a store.
    #[error("it holds {found}; give --force to overwrite it")]
    Occupied {
        /// What lies there, in words.
        found: String,
    },
    /// The caller asked to stop. What is written is kept.
    #[error("packing was stopped: run it again to continue")]
    Stopped,
}
