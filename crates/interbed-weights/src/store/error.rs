//! Errors of packed stores.

use thiserror::Error;

use super::checksum::Checksum;

/// Reason why a packed store is refused, or could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreProblem {
    /// The file does not begin with the magic number of a packed store.
    #[error(
        "this is no packed store of Interbed, or one that is older than version 1: it begins with {found:02x?}; pack \
         the model with `interbed pack`"
    )]
    NotAStore {
        /// First bytes of the file.
        found: [u8; 8],
    },
    /// Packing was interrupted before the store was complete.
    #[error("packing was interrupted before it was whole: run the same `interbed pack` again to continue")]
    Unfinished,
    /// A later version of Interbed wrote the store.
    #[error(
        "the store has version {found}, this Interbed reads up to {known}: update Interbed, or pack the model again \
         with this one"
    )]
    NewerVersion {
        /// Version of the store.
        found: u32,
        /// Highest version that this Interbed reads.
        known: u32,
    },
    /// The header names version 0, which does not exist.
    #[error("the header is damaged (version 0): pack the model again")]
    NoVersion,
    /// The manifest is longer than the limit.
    #[error(
        "the manifest is said to have {bytes} bytes, the limit is {limit}: the header is damaged, pack the model again"
    )]
    ManifestOverLimit {
        /// Number of bytes that the header names for the manifest.
        bytes: u64,
        /// Largest number that is accepted.
        limit: u64,
    },
    /// Sizes in the header contradict each other or are not multiples of the page size.
    #[error(
        "the header is damaged (a manifest of {manifest_bytes} bytes in a store of {total_bytes}): pack the model again"
    )]
    HeaderSizes {
        /// Number of bytes of the manifest.
        manifest_bytes: u64,
        /// Number of bytes of the store.
        total_bytes: u64,
    },
    /// The file is shorter than the store that its header describes.
    #[error("it has {found} bytes of {expected}: it is truncated, copy it or pack the model again")]
    Truncated {
        /// Number of bytes that the header names.
        expected: u64,
        /// Number of bytes that are there.
        found: u64,
    },
    /// The file continues after the end of the store.
    #[error(
        "it has {found} bytes, but the store in it ends after {expected}: it was changed, copy it or pack the model \
         again"
    )]
    TooLong {
        /// Number of bytes that the header names.
        expected: u64,
        /// Number of bytes that are there.
        found: u64,
    },
    /// The header or the manifest does not match the checksum in the header.
    #[error("header or manifest is damaged (checksum {found}, expected {expected}): copy it or pack the model again")]
    HeadChecksum {
        /// Checksum in the header.
        expected: Checksum,
        /// Checksum of the bytes that are there.
        found: Checksum,
    },
    /// The manifest is not JSON of the expected form.
    #[error("the manifest is not valid: {message}")]
    Json {
        /// Message of the parser, with line and column.
        message: String,
    },
    /// Two files or two tensors have the same name.
    #[error("the name {name:?} occurs twice in the manifest")]
    DuplicateName {
        /// Name that occurs twice.
        name: String,
    },
    /// The name of a small file is not a plain file name.
    #[error("the manifest names a file {name:?}, which is not the name of a file")]
    FileName {
        /// Name that is not a plain file name.
        name: String,
    },
    /// A small file is too long.
    #[error("{name} has {bytes} bytes, at most {limit} are accepted")]
    FileOverLimit {
        /// Name of the file.
        name: String,
        /// Length of the file in bytes.
        bytes: u64,
        /// Maximum number of bytes that is accepted.
        limit: u64,
    },
    /// A region does not begin where the previous region ends.
    #[error("{region} begins at byte {found}, but what lies before it ends at {expected}")]
    Misplaced {
        /// Name of the region that does not begin at its place.
        region: String,
        /// Offset where the region must begin.
        expected: u64,
        /// Offset where the region is said to begin.
        found: u64,
    },
    /// A region extends beyond the end of the store, or is not a whole number of pages.
    #[error(
        "{region} has {bytes} bytes from {offset} on, which is not whole pages within the {total} bytes of the store"
    )]
    RegionSize {
        /// Name of the region whose size is wrong.
        region: String,
        /// Offset of the region's first byte.
        offset: u64,
        /// Length of the region in bytes.
        bytes: u64,
        /// Number of bytes of the store.
        total: u64,
    },
    /// The regions end before the store does.
    #[error("the bytes {from} to {to} belong to nothing")]
    Hole {
        /// Offset of the first byte that no region covers.
        from: u64,
        /// Offset one past the last byte that no region covers.
        to: u64,
    },
    /// A tensor has an unknown type.
    #[error("tensor {tensor} is stored as {found:?}, which is not known: update Interbed")]
    UnknownDType {
        /// Name of the tensor.
        tensor: String,
        /// Name of the element type.
        found: String,
    },
    /// The manifest states no number of patches for a tensor of a coded type, or states a number for a tensor of
    /// another type.
    #[error("tensor {tensor} is {found:?} with patches {patches:?}: the manifest is damaged, pack the model again")]
    Patches {
        /// Name of the tensor.
        tensor: String,
        /// Name of the element type.
        found: String,
        /// Number of patches that the manifest names; `None` if it names none.
        patches: Option<u16>,
    },
    /// The size that follows from a tensor's shape overflows, or its rows are not whole blocks.
    #[error("tensor {tensor} has the impossible shape {shape:?}")]
    ImpossibleShape {
        /// Name of the tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
    /// The manifest states a size for a tensor that does not match its shape and type.
    #[error("tensor {tensor} is said to have {found} bytes, its shape and type make {expected}")]
    WrongSize {
        /// Name of the tensor.
        tensor: String,
        /// Number of bytes that follow from shape and type.
        expected: u64,
        /// Number of bytes that the manifest names.
        found: u64,
    },
    /// A tensor lies outside its group, overlaps another tensor, or is not aligned.
    #[error(
        "tensor {tensor} lies at {offset} with {bytes} bytes, which is outside {group}, upon another tensor, or no \
         multiple of 64"
    )]
    TensorPlace {
        /// Name of the tensor.
        tensor: String,
        /// Name of the tensor's group.
        group: String,
        /// Offset of the tensor's first byte.
        offset: u64,
        /// Length of the tensor in bytes.
        bytes: u64,
    },
    /// The bytes of a region do not match its checksum.
    #[error(
        "{region} (bytes {offset} to {end}) is damaged: checksum {found}, expected {expected}; copy the store or pack \
         the model again"
    )]
    RegionChecksum {
        /// Name of the region in which the damage lies.
        region: String,
        /// Offset of the region's first byte.
        offset: u64,
        /// Offset one past the region's last byte.
        end: u64,
        /// Checksum in the manifest.
        expected: Checksum,
        /// Checksum of the bytes that are there.
        found: Checksum,
    },
    /// A source file changed while it was packed.
    #[error("it was changed while it was being packed: pack again")]
    SourceChanged,
    /// The target device holds data that is neither zeros nor an unfinished store.
    #[error("it holds {found}; give --force to overwrite it")]
    Occupied {
        /// Description of what the device holds.
        found: String,
    },
    /// The caller asked to stop. Anything already written is kept.
    #[error("packing was stopped: run it again to continue")]
    Stopped,
}
