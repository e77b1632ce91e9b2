//! Errors in GGUF files.

use thiserror::Error;

/// Reason why a GGUF file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GgufProblem {
    /// The file does not begin with the letters GGUF.
    #[error(
        "it begins with {:?}, not with \"GGUF\": it is no GGUF file, or the download failed; fetch it again",
        String::from_utf8_lossy(found)
    )]
    NotGguf {
        /// First four bytes of the file.
        found: [u8; 4],
    },
    /// The file is of version 1, which is no longer in use.
    #[error("it is of GGUF version 1, which is not read; versions 2 and 3 are. Convert the model again")]
    VersionOne,
    /// The file is big-endian; only little-endian files are read.
    #[error("it is a big-endian GGUF file, which is not read; fetch the ordinary, little-endian one")]
    BigEndian,
    /// The file has an unknown version of the format.
    #[error(
        "it is of GGUF version {version}; versions 2 and 3 are read; fetch the file again, or convert the model anew"
    )]
    UnknownVersion {
        /// Version of the file.
        version: u32,
    },
    /// An item in the header extends beyond the end of the file.
    #[error(
        "{what} at byte {at} needs {wanted} bytes, but only {left} follow: the file is \
         truncated or damaged, fetch it again"
    )]
    Truncated {
        /// Description of what was being read.
        what: &'static str,
        /// Offset in the file at which the item begins.
        at: u64,
        /// Minimum number of bytes that the item would need.
        wanted: u64,
        /// Number of bytes that are left in the file.
        left: u64,
    },
    /// The header is longer than the limit, which no real header reaches.
    #[error("{what} at byte {at} needs {wanted} bytes, which makes the header longer than the limit of {limit}")]
    HeaderOverLimit {
        /// Description of what was being read.
        what: &'static str,
        /// Offset in the file at which the item begins.
        at: u64,
        /// Minimum number of bytes that the item would need.
        wanted: u64,
        /// Maximum number of bytes of a header.
        limit: u64,
    },
    /// A count in the file exceeds the limit, which no real file reaches.
    #[error("it claims {count} {what}, the limit is {limit}: the file is damaged, fetch it again")]
    TooMany {
        /// Name of the items of which there are too many.
        what: &'static str,
        /// Number that the file claims.
        count: u64,
        /// Maximum number that is accepted.
        limit: u64,
    },
    /// A metadata key is empty.
    #[error("a metadata key is empty: the file is damaged, fetch it again")]
    EmptyKey,
    /// A metadata key occurs twice.
    #[error("the metadata key {key:?} occurs twice: two readers would see two models; convert the model again")]
    DuplicateKey {
        /// Name of the metadata key.
        key: String,
    },
    /// A metadata value has a type that the format does not have.
    #[error(
        "the metadata key {key:?} has a value of the unknown type {kind}; fetch the file again, or convert the model \
         anew"
    )]
    UnknownValueType {
        /// Name of the metadata key.
        key: String,
        /// Number of the type.
        kind: u32,
    },
    /// A metadata value is an array of arrays, which no key needs.
    #[error(
        "the metadata key {key:?} is an array of arrays, which is not read; fetch the file again, or convert the \
         model anew"
    )]
    NestedArray {
        /// Name of the metadata key.
        key: String,
    },
    /// The byte of a Boolean value is neither 0 nor 1.
    #[error(
        "the metadata key {key:?} should be true or false, but its byte is {found}; fetch the file again, or convert \
         the model anew"
    )]
    NotBool {
        /// Name of the metadata key.
        key: String,
        /// Byte that the file has in place of the flag.
        found: u8,
    },
    /// A text that is needed is not valid UTF-8.
    #[error("{what} at byte {at} is no UTF-8 text; fetch the file again, or convert the model anew")]
    NotUtf8 {
        /// Description of what was being read.
        what: &'static str,
        /// Offset in the file at which the text begins.
        at: u64,
    },
    /// A metadata key that is needed is absent.
    #[error("the metadata key {key:?} is missing: {why}")]
    Missing {
        /// Name of the metadata key.
        key: String,
        /// Reason why the key is needed.
        why: &'static str,
    },
    /// A metadata value has a type other than the one that is needed.
    #[error(
        "the metadata key {key:?} is {found}, expected {expected}; fetch the file again, or convert the model anew"
    )]
    WrongType {
        /// Name of the metadata key.
        key: String,
        /// Type that is needed.
        expected: &'static str,
        /// Description of the value that was found.
        found: String,
    },
    /// The value of `general.alignment` is not a `u32`, is not a power of two, or exceeds the limit.
    #[error(
        "general.alignment is {found}, expected a 32-bit power of two up to {limit}; fetch the file again, or \
         convert the model anew"
    )]
    Alignment {
        /// Description of the value that was found.
        found: String,
        /// Maximum alignment that is accepted.
        limit: u32,
    },
    /// A tensor has no name.
    #[error("a tensor has an empty name: the file is damaged, fetch it again")]
    EmptyName,
    /// Two tensors have the same name, either in the file or after translation.
    #[error("the tensor {tensor} occurs twice; fetch the file again, or convert the model anew")]
    DuplicateTensor {
        /// Name that occurs twice.
        tensor: String,
    },
    /// A tensor has too many dimensions, or none.
    #[error(
        "the tensor {tensor} has {count} dimensions, expected 1 to {limit}; fetch the file again, or convert the \
         model anew"
    )]
    Dimensions {
        /// Name of the tensor.
        tensor: String,
        /// Number of dimensions of the tensor.
        count: u32,
        /// Maximum number of dimensions.
        limit: u32,
    },
    /// By its dimensions, a tensor has no elements, or its size overflows.
    #[error(
        "the tensor {tensor} has the impossible dimensions {dims:?}; fetch the file again, or convert the model anew"
    )]
    ImpossibleShape {
        /// Name of the tensor.
        tensor: String,
        /// Dimensions of the tensor, innermost first.
        dims: Vec<u64>,
    },
    /// The row length of a tensor is not a multiple of its element type's block length.
    #[error(
        "the tensor {tensor} has rows of {cols}, but {dtype} comes in blocks of {block_len}; fetch the file again, \
         or convert the model anew"
    )]
    RaggedRow {
        /// Name of the tensor.
        tensor: String,
        /// Number of elements of a row.
        cols: u64,
        /// Name of the element type.
        dtype: &'static str,
        /// Number of elements of a block.
        block_len: u64,
    },
    /// A tensor does not begin at a multiple of the alignment.
    #[error(
        "the tensor {tensor} begins at {offset}, which is no multiple of the alignment {alignment}; fetch the file \
         again, or convert the model anew"
    )]
    Misaligned {
        /// Name of the tensor.
        tensor: String,
        /// Offset of the tensor from the start of the tensors.
        offset: u64,
        /// Alignment of tensors in bytes.
        alignment: u32,
    },
    /// A tensor ends beyond the end of the file.
    #[error(
        "the tensor {tensor} ends at {end}, but the file has only {data_len} bytes of tensors: it \
         is truncated, fetch it again"
    )]
    OutOfRange {
        /// Name of the tensor.
        tensor: String,
        /// Offset one past the tensor's last byte, counted from the start of the tensors.
        end: u64,
        /// Number of bytes of all tensors in the file.
        data_len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "the tensors {first} and {second} overlap: the first ends at {first_end}, the second begins at \
         {second_begin}; fetch the file again, or convert the model anew"
    )]
    Overlap {
        /// Name of the tensor that begins first.
        first: String,
        /// Name of the tensor that begins within the first one.
        second: String,
        /// Offset in the file one past the last byte of the first tensor.
        first_end: u64,
        /// Offset in the file of the first byte of the second tensor.
        second_begin: u64,
    },
    /// The file is one part of a model in several files, but its name does not end like `-00001-of-00003.gguf`.
    /// The last number in the name must be the number of parts.
    #[error(
        "it is one of {count} parts, so its name must end in -00001-of-{count:05}.gguf; rename it as it was published"
    )]
    PartName {
        /// Number of parts, by the file's metadata.
        count: u64,
    },
    /// The model consists of several files, and one of them is missing.
    #[error("the part {part} is missing: the download is incomplete, fetch all {count} parts")]
    MissingPart {
        /// File name of the part.
        part: String,
        /// Number of parts in all.
        count: u64,
    },
    /// A number in a part's metadata does not match the other parts or the file name, so the parts do not belong
    /// together.
    #[error("{key} is {found}, expected {expected}: the parts do not belong together, fetch them again")]
    PartMismatch {
        /// Name of the metadata key that disagrees.
        key: &'static str,
        /// Value that follows from the first part and the name.
        expected: u64,
        /// Value in this part.
        found: u64,
    },
    /// A directory holds more than one model.
    #[error("it holds {count} GGUF models, among them {first} and {second}: give the file rather than the directory")]
    SeveralModels {
        /// Number of models in the directory.
        count: usize,
        /// File name of one model.
        first: String,
        /// File name of another model.
        second: String,
    },
}
