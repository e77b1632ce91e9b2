//! Errors of weights and their files.

use std::path::PathBuf;

use interbed_device::{AllocError, DeviceError};
use interbed_io::{IoError, TargetError};
use thiserror::Error;

use crate::gguf::GgufProblem;
use crate::store::StoreProblem;

/// Reason why weights could not be found, loaded or written.
#[derive(Debug, Error)]
pub enum WeightError {
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Memory for the weights could not be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device has no room for the weights, or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The program ends, so no further weights are read. The current forward pass fails with this error.
    #[error("the pass was stopped, because the program ends")]
    Stopped,
    /// All memory for streamed weights is in use, so no further weights can be read.
    #[error("no memory is left for the streamed weights of group {group}: give more --memory")]
    Stuck {
        /// Number of the group whose weights the pass waits for.
        group: u32,
    },
    /// The settings of the window (the memory for streamed weights) are invalid.
    #[error(transparent)]
    Window(#[from] crate::window::WindowError),
    /// The experts cannot be streamed with the given budget or settings.
    #[error(transparent)]
    Experts(#[from] crate::experts::ArenaError),
    /// The header of a safetensors file cannot be trusted.
    #[error("{}: {problem}; the file is damaged or no safetensors file: fetch it again", file.display())]
    Header {
        /// Path of the file.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: HeaderProblem,
    },
    /// A GGUF file, or a set of such files, cannot be used.
    #[error("{}: {problem}", file.display())]
    Gguf {
        /// Path of the file or of the directory.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: GgufProblem,
    },
    /// A packed store cannot be used, or could not be made.
    #[error("{}: {problem}", file.display())]
    Store {
        /// Path of the file or of the device.
        file: PathBuf,
        /// Reason why the store is refused or could not be made.
        problem: Box<StoreProblem>,
    },
    /// A packed store cannot be written to the given target.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A shard index is invalid, or does not match its shards.
    #[error("{}: {problem}", file.display())]
    Index {
        /// Path of the index file.
        file: PathBuf,
        /// Reason why the index is refused.
        problem: IndexProblem,
    },
    /// The directory has no weights in a supported format.
    #[error(
        "{}: no weights found, expected model.safetensors, model.safetensors.index.json, other *.safetensors, or a \
         *.gguf{}",
        dir.display(),
        if *has_pickle { "; the pickled weights there (*.bin, *.pth) are not read: convert them to \
                          safetensors" } else { "" }
    )]
    NoWeights {
        /// Path of the directory.
        dir: PathBuf,
        /// Whether the directory holds weights in Python's pickle format.
        has_pickle: bool,
    },
    /// Two files hold a tensor of the same name, and no index says which one to use.
    #[error(
        "tensor {tensor} is in both {} and {}: remove one file, or add model.safetensors.index.json",
        first.display(), second.display()
    )]
    TensorInTwoFiles {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that had the tensor first.
        first: PathBuf,
        /// Path of the file that has the tensor too.
        second: PathBuf,
    },
    /// A file holds one tensor of the model twice, under two different names.
    #[error("{}: {tensor} is there twice, under two names for {name}; fetch the file again", file.display())]
    SameTensorTwice {
        /// Path of the file.
        file: PathBuf,
        /// Name of the second tensor, as the file has it.
        tensor: String,
        /// Name that Interbed uses for both tensors.
        name: String,
    },
    /// The model needs a tensor that no file holds.
    #[error(
        "tensor {tensor} ({group}) is in no weight file: the model's configuration asks for it, so the two do not \
         belong \
         together"
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the group that needs the tensor.
        group: String,
    },
    /// A tensor's shape disagrees with the model's configuration.
    #[error("tensor {tensor} in {} has shape {found:?}, but the configuration makes it {expected:?}", file.display())]
    ShapeMismatch {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that holds the tensor.
        file: PathBuf,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// The elements of a tensor have a type that Interbed does not support.
    #[error(
        "tensor {tensor} in {} is stored as {found}; supported are F32, F16, BF16 and F8_E4M3, and in GGUF files \
         also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, \
         IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_XS, IQ4_NL and MXFP4: fetch another version of the model",
        file.display()
    )]
    UnsupportedDType {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that holds the tensor.
        file: PathBuf,
        /// Name of the type in the file.
        found: String,
    },
    /// An FP8 matrix cannot be streamed, because its file stores the scales as a separate tensor.
    #[error(
        "tensor {tensor} in {} has its FP8 scales in another tensor, and is streamed only with both in one place: run \
         `interbed pack` once and give the packed store as the model, or give --memory enough to hold all weights",
        file.display()
    )]
    ScalesApart {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that holds the tensor.
        file: PathBuf,
    },
    /// The tensors together are larger than this machine can address.
    #[error("the weights need more bytes than this machine can address (at {group})")]
    TooLarge {
        /// Name of the group at which the count overflowed.
        group: String,
    },
    /// The weights would be divided into too many bands (runs of a matrix's rows that are read at once).
    #[error(
        "with {group}, bands of {band_bytes} bytes make more than {limit} bands: the model is too large for them, or \
         its configuration is wrong"
    )]
    TooManyBands {
        /// Name of the group at which there were too many bands.
        group: String,
        /// Number of bytes that a band should have.
        band_bytes: usize,
        /// Maximum number of bands.
        limit: usize,
    },
    /// Several matrices of a group are to be read side by side, but there are too many of them, or their numbers of
    /// rows differ.
    #[error("{group} has {count} matrices side by side: there may be {limit}, all of the same rows")]
    SideBySide {
        /// Name of the group that has the matrices.
        group: String,
        /// Number of matrices side by side.
        count: usize,
        /// Maximum number of matrices side by side.
        limit: usize,
    },
    /// The number of bytes passed to a writer differs from what the tensor's shape and type require.
    #[error("tensor {tensor}: {produced} bytes were produced, its shape and type make {declared}")]
    WrongAmount {
        /// Name of the tensor.
        tensor: String,
        /// Number of bytes that follow from the tensor's shape and type.
        declared: u64,
        /// Number of bytes that were handed over.
        produced: u64,
    },
}

/// Reason why a safetensors header is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderProblem {
    /// The file is shorter than the 8 bytes that hold the length of the header.
    #[error("the file has {file_len} bytes, fewer than the 8 that give the header's length")]
    TooShort {
        /// Number of bytes in the file.
        file_len: u64,
    },
    /// The header is longer than the file.
    #[error("the header claims {header_len} bytes, but the file has only {available} after the length field")]
    HeaderBeyondFile {
        /// Number of bytes that the header claims to have.
        header_len: u64,
        /// Number of bytes in the file after the length field.
        available: u64,
    },
    /// The header is longer than the accepted maximum.
    #[error("the header claims {header_len} bytes, the limit is {limit}")]
    HeaderOverLimit {
        /// Number of bytes that the header claims to have.
        header_len: u64,
        /// Maximum number of bytes that is accepted.
        limit: u64,
    },
    /// The header is not JSON of the right form.
    #[error("the header is not valid: {message}")]
    Json {
        /// Message of the parser, with line and column.
        message: String,
    },
    /// A name occurs twice in the header.
    #[error("the name {tensor} occurs twice in the header")]
    DuplicateName {
        /// Name that occurs twice.
        tensor: String,
    },
    /// A tensor's end lies before its beginning.
    #[error("tensor {tensor} begins at {begin} and ends before that, at {end}")]
    BackwardOffsets {
        /// Name of the tensor.
        tensor: String,
        /// Offset of the tensor's first byte, counted from the end of the header.
        begin: u64,
        /// Offset after the tensor's last byte, counted from the end of the header.
        end: u64,
    },
    /// A tensor lies outside the file.
    #[error("tensor {tensor} ends at {end}, but the file has only {data_len} bytes of tensors (truncated?)")]
    OutOfRange {
        /// Name of the tensor.
        tensor: String,
        /// Offset after the tensor's last byte, counted from the end of the header.
        end: u64,
        /// Number of bytes in the file after the header.
        data_len: u64,
    },
    /// The product of a tensor's dimensions overflows.
    #[error("tensor {tensor} has the impossible shape {shape:?}")]
    ImpossibleShape {
        /// Name of the tensor.
        tensor: String,
        /// Shape in the header.
        shape: Vec<u64>,
    },
    /// Shape, type and offsets of a tensor disagree.
    #[error("tensor {tensor} of shape {shape:?} in {dtype} makes {expected} bytes, but its offsets span {found}")]
    WrongSize {
        /// Name of the tensor.
        tensor: String,
        /// Shape in the header.
        shape: Vec<u64>,
        /// Name of the element type.
        dtype: String,
        /// Number of bytes that follow from shape and type.
        expected: u64,
        /// Number of bytes between the offsets.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap: the first ends at {first_end}, the second begins at {second_begin}")]
    Overlap {
        /// Name of the tensor that begins first.
        first: String,
        /// Name of the tensor that begins within the first one.
        second: String,
        /// Offset after the last byte of the first tensor.
        first_end: u64,
        /// Offset of the first byte of the second tensor.
        second_begin: u64,
    },
    /// Some bytes of the file belong to no tensor.
    #[error("bytes {from} to {to} after the header belong to no tensor")]
    Hole {
        /// Offset of the first byte of the hole, counted from the end of the header.
        from: u64,
        /// Offset after the last byte of the hole.
        to: u64,
    },
}

/// Reason why a shard index is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IndexProblem {
    /// The index is longer than the accepted maximum.
    #[error("the index has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Number of bytes in the index.
        bytes: u64,
        /// Maximum number of bytes that is accepted.
        limit: u64,
    },
    /// The index is not JSON of the right form.
    #[error("the index is not valid: {message}")]
    Json {
        /// Message of the parser, with line and column.
        message: String,
    },
    /// A name occurs twice in the index.
    #[error("the name {tensor} occurs twice in the index")]
    DuplicateName {
        /// Name that occurs twice.
        tensor: String,
    },
    /// A shard's name is not a plain file name.
    #[error("tensor {tensor} is said to be in {shard:?}, which is not the name of a file in this directory")]
    ShardOutsideDirectory {
        /// Name of the tensor.
        tensor: String,
        /// Name of the shard in the index.
        shard: String,
    },
    /// A shard that the index names does not exist.
    #[error("the shard {shard} is missing: the download is incomplete, fetch it again")]
    MissingShard {
        /// File name of the shard.
        shard: String,
    },
    /// A shard does not contain a tensor that the index assigns to it.
    #[error("tensor {tensor} is said to be in {shard}, but is not there")]
    TensorNotInShard {
        /// Name of the tensor.
        tensor: String,
        /// File name of the shard.
        shard: String,
    },
}
