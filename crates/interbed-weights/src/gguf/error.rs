//! Errors in GGUF files.

use thiserror::Error;

/// Why a GGUF file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GgufProblem {
    /// The file does not begin as it should.
    #[error(
        "it begins with {:?}, not with \"GGUF\": it is no GGUF file, or the download failed; fetch it again",
        String::from_utf8_lossy(found)
    )]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The first version, which is no longer in use.
    #[error("it is of GGUF version 1, which is not read; versions 2 and 3 are. Convert the model again")]
    VersionOne,
    /// Bytes the wrong way round.
    #[error("it is a big-endian GGUF file, which is not read; fetch the ordinary, little-endian one")]
    BigEndian,
    /// A version that is not known.
    #[error(
        "it is of GGUF version {version}; versions 2 and 3 are read; fetch the file again, or convert the model anew"
    )]
    UnknownVersion {
        /// The version.
        version: u32,
    },
    /// Something goes on beyond the end of the file.
    #[error(
        "{what} at byte {at} needs {wanted} bytes, but only {left} follow: the file is \
         truncated or damaged, fetch it again"
    )]
    Truncated {
        /// Description of what was being read.
        what: &'static str,
        /// Where it begins.
        at: u64,
        /// Bytes it would need, at least.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
    /// More header than any real file has.
    #[error("{what} at byte {at} needs {wanted} bytes, which makes the header longer than the limit of {limit}")]
    HeaderOverLimit {
        /// Description of what was being read.
        what: &'static str,
        /// Where it begins.
        at: u64,
        /// Bytes it would need, at least.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A count above that of any real file.
    #[error("it claims {count} {what}, the limit is {limit}: the file is damaged, fetch it again")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: u64,
        /// Largest number that is accepted.
        limit: u64,
    },
    /// A key without letters.
    #[error("a metadata key is empty: the file is damaged, fetch it again")]
    EmptyKey,
    /// A key twice.
    #[error("the metadata key {key:?} occurs twice: two readers would see two models; convert the model again")]
    DuplicateKey {
        /// Name of the metadata key.
        key: String,
    },
    /// A type of value that the format does not have.
    #[error(
        "the metadata key {key:?} has a value of the unknown type {kind}; fetch the file again, or convert the model \
         anew"
    )]
    UnknownValueType {
        /// Name of the metadata key.
        key: String,
        /// The type's number.
        kind: u32,
    },
    /// Arrays of arrays, which no key needs.
    #[error(
        "the metadata key {key:?} is an array of arrays, which is not read; fetch the file again, or convert the \
         model anew"
    )]
    NestedArray {
        /// Name of the metadata key.
        key: String,
    },
    /// A flag that is neither 0 nor 1.
    #[error(
        "the metadata key {key:?} should be true or false, but its byte is {found}; fetch the file again, or convert \
         the model anew"
    )]
    NotBool {
        /// Name of the metadata key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// A text that is no text.
    #[error("{what} at byte {at} is no UTF-8 text; fetch the file again, or convert the model anew")]
    NotUtf8 {
        /// Description of what was being read.
        what: &'static str,
        /// Where it begins.
        at: u64,
    },
    /// A key is needed and absent.
    #[error("the metadata key {key:?} is missing: {why}")]
    Missing {
        /// Name of the metadata key.
        key: String,
        /// Why it is needed.
        why: &'static str,
    },
    /// A value of the wrong kind.
    #[error(
        "the metadata key {key:?} is {found}, expected {expected}; fetch the file again, or convert the model anew"
    )]
    WrongType {
        /// Name of the metadata key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The type found.
        found: String,
    },
    /// An alignment that is none.
    #[error(
        "general.alignment is {found}, expected a 32-bit power of two up to {limit}; fetch the file again, or \
         convert the model anew"
    )]
    Alignment {
        /// The value.
        found: String,
        /// The largest accepted number.
        limit: u32,
    },
    /// A tensor without a name.
    #[error("a tensor has an empty name: the file is damaged, fetch it again")]
    EmptyName,
    /// A name twice, as written or after translation.
    #[error("the tensor {tensor} occurs twice; fetch the file again, or convert the model anew")]
    DuplicateTensor {
        /// Name that occurs twice.
        tensor: String,
    },
    /// Too many dimensions, or none.
    #[error(
        "the tensor {tensor} has {count} dimensions, expected 1 to {limit}; fetch the file again, or convert the \
         model anew"
    )]
    Dimensions {
        /// Name of the tensor.
        tensor: String,
        /// How many.
        count: u32,
        /// Largest number that is accepted.
        limit: u32,
    },
    /// Dimensions that hold nothing, or more than can be counted.
    #[error(
        "the tensor {tensor} has the impossible dimensions {dims:?}; fetch the file again, or convert the model anew"
    )]
    ImpossibleShape {
        /// Name of the tensor.
        tensor: String,
        /// Its dimensions, innermost first.
        dims: Vec<u64>,
    },
    /// Rows that are not whole blocks.
    #[error(
        "the tensor {tensor} has rows of {cols}, but {dtype} comes in blocks of {block_len}; fetch the file again, \
         or convert the model anew"
    )]
    RaggedRow {
        /// Name of the tensor.
        tensor: String,
        /// Elements of a row.
        cols: u64,
        /// The type.
        dtype: &'static str,
        /// Elements of a block.
        block_len: u64,
    },
    /// A tensor that does not begin where it may.
    #[error(
        "the tensor {tensor} begins at {offset}, which is no multiple of the alignment {alignment}; fetch the file \
         again, or convert the model anew"
    )]
    Misaligned {
        /// Name of the tensor.
        tensor: String,
        /// Its offset from the start of the tensors.
        offset: u64,
        /// The alignment.
        alignment: u32,
    },
    /// A tensor beyond the file.
    #[error(
        "the tensor {tensor} ends at {end}, but the file has only {data_len} bytes of tensors: it \
         is truncated, fetch it again"
    )]
    OutOfRange {
        /// Name of the tensor.
        tensor: String,
        /// One past its last byte, from the start of the tensors.
        end: u64,
        /// Bytes of tensors.
        data_len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "the tensors {first} and {second} overlap: the first ends at {first_end}, the second begins at \
         {second_begin}; fetch the file again, or convert the model anew"
    )]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins within it.
        second: String,
        /// One past the first's last byte, in the file.
        first_end: u64,
        /// The second's first byte, in the file.
        second_begin: u64,
    },
    /// A part of a set whose name does not say which part it is.
    #[error(
        "it is one of {count} parts, so its name must end in -00001-of-{count:05}.gguf; rename it as it was published"
    )]
    PartName {
        /// Parts, by the file's metadata.
        count: u64,
    },
    /// A part of a set is not there.
    #[error("the part {part} is missing: the download is incomplete, fetch all {count} parts")]
    MissingPart {
        /// The part's file name.
        part: String,
        /// Parts in all.
        count: u64,
    },
    /// Parts of different sets.
    #[error("{key} is {found}, expected {expected}: the parts do not belong together, fetch them again")]
    PartMismatch {
        /// The key that disagrees.
        key: &'static str,
        /// The value that follows from the first part and the name.
        expected: u64,
        /// The value in this part.
        found: u64,
    },
    /// More than one model in a directory.
    #[error("it holds {count} GGUF models, among them {first} and {second}: give the file rather than the directory")]
    SeveralModels {
        /// How many.
        count: usize,
        /// One of them.
        first: String,
        /// Another.
        second: String,
    },
}
