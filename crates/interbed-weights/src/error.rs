//! Errors of weights and their files.

use std::path::PathBuf;

use interbed_device::{AllocError, DeviceError};
use interbed_io::{IoError, TargetError};
use thiserror::Error;

use crate::gguf::GgufProblem;
use crate::store::StoreProblem;

/// Weights could not be found, trusted or loaded.
#[derive(Debug, Error)]
pub enum WeightError {
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Memory for the weights was refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device has no room for the weights.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Streaming was stopped, so that the current pass ends early.
    #[error("the pass was stopped, because the program ends")]
    Stopped,
    /// More of the streamed weights is held than there are slots for, so that nothing can come.
    #[error("no memory is left for the streamed weights of group {group}: give more --memory")]
    Stuck {
        /// Number of the group whose weights the pass waits for.
        group: u32,
    },
    /// A window for streamed weights that cannot be.
    #[error(transparent)]
    Window(#[from] crate::window::WindowError),
    /// Experts that cannot be streamed.
    #[error(transparent)]
    Experts(#[from] crate::experts::ArenaError),
    /// Experts that do not fit, on a device with memory of its own.
    #[error(
        "experts that do not fit are streamed to the processor only: leave --device out, or give more --gpu-memory"
    )]
    ExpertsOnDevice,
    /// A safetensors header that cannot be trusted.
    #[error("{}: {problem}; the file is damaged or no safetensors file: fetch it again", file.display())]
    Header {
        /// Path of the file.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: HeaderProblem,
    },
    /// A GGUF file, or a set of them, that cannot be used.
    #[error("{}: {problem}", file.display())]
    Gguf {
        /// The file, or the directory.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: GgufProblem,
    },
    /// A packed store that cannot be used, or was not made.
    #[error("{}: {problem}", file.display())]
    Store {
        /// The file or the device.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: Box<StoreProblem>,
    },
    /// What a packed store was to be written to.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A shard index that does not fit its shards.
    #[error("{}: {problem}", file.display())]
    Index {
        /// Path of the index file.
        file: PathBuf,
        /// Reason why the file is refused.
        problem: IndexProblem,
    },
    /// The directory has no weights in a format we read.
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
        /// Whether it holds weights in Python's pickle format.
        has_pickle: bool,
    },
    /// Two files hold a tensor of one name, and no index says which is meant.
    #[error(
        "tensor {tensor} is in both {} and {}: remove one file, or add model.safetensors.index.json",
        first.display(), second.display()
    )]
    TensorInTwoFiles {
        /// Name of the tensor.
        tensor: String,
        /// The file that had it first.
        first: PathBuf,
        /// The file that has it too.
        second: PathBuf,
    },
    /// Two tensors of one file are the same one of the model, under names of two kinds of files.
    #[error("{}: {tensor} is there twice, under two names for {name}; fetch the file again", file.display())]
    SameTensorTwice {
        /// Path of the file.
        file: PathBuf,
        /// The second of them, as the file has it.
        tensor: String,
        /// Our name for both.
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
        /// The group that needs it.
        group: String,
    },
    /// A tensor's shape disagrees with the model's configuration.
    #[error("tensor {tensor} in {} has shape {found:?}, but the configuration makes it {expected:?}", file.display())]
    ShapeMismatch {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that holds the tensor.
        file: PathBuf,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor's elements are of a type we do not compute with.
    #[error(
        "tensor {tensor} in {} is stored as {found}; supported are F32, F16, BF16 and F8_E4M3, and in GGUF files \
         also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL and MXFP4: fetch another version of \
         the model",
        file.display()
    )]
    UnsupportedDType {
        /// Name of the tensor.
        tensor: String,
        /// Path of the file that holds the tensor.
        file: PathBuf,
        /// The type's name in the file.
        found: String,
    },
    /// A matrix that cannot be streamed as its file has it.
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
        /// The group at which the count overflowed.
        group: String,
    },
    /// A model that would be cut into more bands than a window takes.
    #[error(
        "with {group}, bands of {band_bytes} bytes make more than {limit} bands: the model is too large for them, or \
         its configuration is wrong"
    )]
    TooManyBands {
        /// The group at which there were too many.
        group: String,
        /// Bytes wanted for a band.
        band_bytes: usize,
        /// Largest number that is accepted.
        limit: usize,
    },
    /// Matrices that no sweep can take side by side.
    #[error("{group} has {count} matrices side by side: there may be {limit}, all of the same rows")]
    SideBySide {
        /// The group that has them.
        group: String,
        /// Number of them.
        count: usize,
        /// Largest number that is accepted.
        limit: usize,
    },
    /// A writer was handed another amount of bytes than the tensor's shape says.
    #[error("tensor {tensor}: {produced} bytes were produced, its shape and type make {declared}")]
    WrongAmount {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that its shape and type make.
        declared: u64,
        /// Bytes that were handed over.
        produced: u64,
    },
}

/// Why a safetensors header is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderProblem {
    /// Not even the eight bytes of the header's length are there.
    #[error("the file has {file_len} bytes, fewer than the 8 that give the header's length")]
    TooShort {
        /// Bytes in the file.
        file_len: u64,
    },
    /// The header is longer than the file.
    #[error("the header claims {header_len} bytes, but the file has only {available} after the length field")]
    HeaderBeyondFile {
        /// The length the header claims.
        header_len: u64,
        /// Bytes in the file after the length field.
        available: u64,
    },
    /// The header is longer than any real one.
    #[error("the header claims {header_len} bytes, the limit is {limit}")]
    HeaderOverLimit {
        /// The length the header claims.
        header_len: u64,
        /// Largest number that is accepted.
        limit: u64,
    },
    /// The header is not JSON of the right form.
    #[error("the header is not valid: {message}")]
    Json {
        /// What the parser said, with line and column.
        message: String,
    },
    /// A name occurs twice.
    #[error("the name {tensor} occurs twice in the header")]
    DuplicateName {
        /// Name that occurs twice.
        tensor: String,
    },
    /// The end lies before the beginning.
    #[error("tensor {tensor} begins at {begin} and ends before that, at {end}")]
    BackwardOffsets {
        /// Name of the tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// The tensor lies outside the file.
    #[error("tensor {tensor} ends at {end}, but the file has only {data_len} bytes of tensors (truncated?)")]
    OutOfRange {
        /// Name of the tensor.
        tensor: String,
        /// One past its last byte, counted from the end of the header.
        end: u64,
        /// Bytes in the file after the header.
        data_len: u64,
    },
    /// The shape's product overflows.
    #[error("tensor {tensor} has the impossible shape {shape:?}")]
    ImpossibleShape {
        /// Name of the tensor.
        tensor: String,
        /// The shape in the header.
        shape: Vec<u64>,
    },
    /// Shape, type and offsets disagree.
    #[error("tensor {tensor} of shape {shape:?} in {dtype} makes {expected} bytes, but its offsets span {found}")]
    WrongSize {
        /// Name of the tensor.
        tensor: String,
        /// The shape in the header.
        shape: Vec<u64>,
        /// Name of the element type.
        dtype: String,
        /// Bytes that shape and type make.
        expected: u64,
        /// Bytes between the offsets.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap: the first ends at {first_end}, the second begins at {second_begin}")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins within it.
        second: String,
        /// One past the first's last byte.
        first_end: u64,
        /// The second's first byte.
        second_begin: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {from} to {to} after the header belong to no tensor")]
    Hole {
        /// First byte of the hole, counted from the end of the header.
        from: u64,
        /// One past its last byte.
        to: u64,
    },
}

/// Why a shard index is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IndexProblem {
    /// The index is longer than any real one.
    #[error("the index has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Bytes in the index.
        bytes: u64,
        /// Largest number that is accepted.
        limit: u64,
    },
    /// The index is not JSON of the right form.
    #[error("the index is not valid: {message}")]
    Json {
        /// What the parser said, with line and column.
        message: String,
    },
    /// A name occurs twice.
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
        /// The shard's name in the index.
        shard: String,
    },
    /// A shard that the index names is not there.
    #[error("the shard {shard} is missing: the download is incomplete, fetch it again")]
    MissingShard {
        /// The shard's file name.
        shard: String,
    },
    /// A shard lacks a tensor that the index places there.
    #[error("tensor {tensor} is said to be in {shard}, but is not there")]
    TensorNotInShard {
        /// Name of the tensor.
        tensor: String,
        /// The shard's file name.
        shard: String,
    },
}
