//! GGUF files: metadata and quantised tensors in one file, or in a numbered set.
//!
//! ```text
//! | "GGUF" | version u32 | tensors u64 | pairs u64 |                        all little-endian
//! | pairs:   key text, type u32, value                | text: length u64, bytes
//! | tensors: name text, dims u32, dims × u64, type u32, offset u64 |         dims innermost first
//! | padding to `general.alignment` | tensors, each at a multiple of it |
//! ```
//!
//! Nothing in a header is believed: every length is held against the file's own before memory is taken for it, and
//! everything is counted against a limit.

mod error;
mod metadata;
mod names;
mod reader;
mod split;
mod types;
mod undecoded;
mod writer;

use std::collections::{BTreeMap, HashSet};

use interbed_io::RandomAccessFile;
use interbed_kernels::DType;

use crate::error::WeightError;
use crate::safetensors::{ElementType, TensorRecord};

pub use error::GgufProblem;
pub use metadata::{Metadata, MetadataValue, Number, Numbers, Texts};
pub(crate) use names::TensorNames;
pub use names::gguf_name;
pub use undecoded::Undecoded;
pub(crate) use writer::encode_metadata;
pub use writer::write_gguf;

pub use split::model_name;
pub(crate) use split::{FilesOfDir, ModelPart, check_parts, models_in, open_parts};

use reader::Reader;

/// Maximum length of a GGUF header in bytes; a file with a longer header is refused. A header consists of the metadata,
/// which includes the vocabulary, and the list of tensors. Real headers are shorter than 32 MiB.
pub const GGUF_HEADER_BYTES_MAX: u64 = 256 << 20;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"GGUF";
/// The version that is written. Version 2 is read in the same way.
const VERSION: u32 = 3;
/// Maximum number of key and value pairs. Real files have some fifty.
const PAIRS_MAX: u64 = 1 << 16;
/// Most tensors of a file: more than the most layers have.
const TENSORS_MAX: u64 = 1 << 18;
/// Number of bytes at whose multiples tensors begin, unless `general.alignment` says otherwise.
const ALIGNMENT_DEFAULT: u32 = 32;
/// Maximum alignment that is accepted, in bytes.
const ALIGNMENT_MAX: u32 = 1 << 20;
/// Maximum number of dimensions, which is the format's own limit.
const DIMENSIONS_MAX: u32 = 4;
/// The key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// A checked header of a GGUF file: each tensor's bytes lie inside the file and overlap no other tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// The file's metadata.
    pub metadata: Metadata,
    /// Tensors of the file, in ascending order of offset. Their names are those in the file, not Hugging Face names.
    pub tensors: Vec<TensorRecord>,
}

/// Reads and checks the header of a GGUF file.
///
/// # Errors
/// Fails with [`WeightError::Gguf`], which names the reason, if the header is not accepted, and with
/// [`WeightError::Io`] if the file cannot be read.
pub fn read_gguf(file: &dyn RandomAccessFile) -> Result<GgufHeader, WeightError> {
    let problem = |problem| WeightError::Gguf { file: file.path().to_owned(), problem };
    let mut reader = Reader::new(file);
    read_version(&mut reader)?;
    let num_tensors = reader.count("tensors", TENSORS_MAX)?;
    let num_pairs = reader.count("metadata pairs", PAIRS_MAX)?;
    let metadata = read_metadata(&mut reader, num_pairs)?;
    let alignment = alignment(&metadata).map_err(problem)?;
    let mut raw = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..num_tensors {
        let tensor = read_tensor(&mut reader)?;
        if !names.insert(tensor.name.clone()) {
            return Err(problem(GgufProblem::DuplicateTensor { tensor: tensor.name }));
        }
        raw.push(tensor);
    }
    // The header ends below the limit, so this cannot overflow.
    let data_start = reader.position().next_multiple_of(u64::from(alignment));
    let tensors = place(raw, data_start, file.len(), alignment).map_err(problem)?;
    Ok(GgufHeader { metadata, tensors })
}

fn read_version(reader: &mut Reader<'_>) -> Result<(), WeightError> {
    let magic: [u8; 4] = reader.array("magic number")?;
    if &magic != MAGIC {
        return Err(reader.problem(GgufProblem::NotGguf { found: magic }));
    }
    match reader.u32("version")? {
        2 | 3 => Ok(()),
        1 => Err(reader.problem(GgufProblem::VersionOne)),
        // A small number with its bytes the wrong way round.
        version if version & 0xFFFF == 0 && version != 0 => Err(reader.problem(GgufProblem::BigEndian)),
        version => Err(reader.problem(GgufProblem::UnknownVersion { version })),
    }
}

fn read_metadata(reader: &mut Reader<'_>, num_pairs: u64) -> Result<Metadata, WeightError> {
    let mut pairs = BTreeMap::new();
    for _ in 0..num_pairs {
        let key = reader.key()?;
        if key.is_empty() {
            return Err(reader.problem(GgufProblem::EmptyKey));
        }
        let kind = reader.u32("value type")?;
        let value = reader.value(&key, kind)?;
        if pairs.contains_key(&key) {
            return Err(reader.problem(GgufProblem::DuplicateKey { key }));
        }
        pairs.insert(key, value);
    }
    Ok(Metadata::new(pairs))
}

/// Returns the number of bytes whose multiples tensors' offsets must be.
fn alignment(metadata: &Metadata) -> Result<u32, GgufProblem> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&MetadataValue::Number(Number::U32(alignment)))
            if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX =>
        {
            Ok(alignment)
        }
        Some(other) => Err(GgufProblem::Alignment { found: other.to_string(), limit: ALIGNMENT_MAX }),
    }
}

/// A tensor as the header writes it.
struct RawTensor {
    name: String,
    dims: Vec<u64>, // innermost first
    kind: u32,
    offset: u64, // from the start of the tensors
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<RawTensor, WeightError> {
    let name = reader.name()?;
    if name.is_empty() {
        return Err(reader.problem(GgufProblem::EmptyName));
    }
    let count = reader.u32("number of dimensions")?;
    if !(1..=DIMENSIONS_MAX).contains(&count) {
        return Err(reader.problem(GgufProblem::Dimensions { tensor: name, count, limit: DIMENSIONS_MAX }));
    }
    let mut dims = Vec::with_capacity(count as usize);
    for _ in 0..count {
        dims.push(reader.u64("dimension")?);
    }
    Ok(RawTensor { name, dims, kind: reader.u32("tensor type")?, offset: reader.u64("tensor offset")? })
}

/// Checks every tensor, then that no two overlap.
fn place(
    raw: Vec<RawTensor>,
    data_start: u64,
    file_len: u64,
    alignment: u32,
) -> Result<Vec<TensorRecord>, GgufProblem> {
    let mut records = Vec::with_capacity(raw.len());
    for tensor in raw {
        records.push(check_tensor(tensor, data_start, file_len, alignment)?);
    }
    records.sort_by_key(|record| record.offset);
    for index in 1..records.len() {
        let second_begin = records[index].offset;
        let first = &mut records[index - 1];
        if let ElementType::Other(_) = first.element_type {
            // Its size is not known; it cannot be loaded, but it can be listed.
            first.bytes = second_begin - first.offset;
        }
        let first_end = first.offset + first.bytes;
        // No tensor is empty, so one that begins where another does lies upon it.
        if first_end > second_begin || first.offset == second_begin {
            let (first, second) = (first.name.clone(), records[index].name.clone());
            return Err(GgufProblem::Overlap { first, second, first_end, second_begin });
        }
    }
    Ok(records)
}

fn check_tensor(
    tensor: RawTensor,
    data_start: u64,
    file_len: u64,
    alignment: u32,
) -> Result<TensorRecord, GgufProblem> {
    let RawTensor { name, dims, kind, offset } = tensor;
    let impossible = || GgufProblem::ImpossibleShape { tensor: name.clone(), dims: dims.clone() };
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(impossible)?;
    if elements == 0 {
        return Err(impossible());
    }
    if !offset.is_multiple_of(u64::from(alignment)) {
        return Err(GgufProblem::Misaligned { tensor: name, offset, alignment });
    }
    let (begin, data_len) = (data_start.checked_add(offset), file_len.saturating_sub(data_start));
    let (Some(begin), true) = (begin, offset < data_len) else {
        return Err(GgufProblem::OutOfRange { tensor: name, end: offset, data_len });
    };
    let element_type = types::element_type(kind);
    let bytes = match element_type {
        ElementType::Known(dtype) => {
            tensor_bytes(&name, dtype, dims[0], elements).map_err(|p| p.unwrap_or_else(impossible))?
        }
        // Up to the end of the file, until the next tensor is known.
        ElementType::Other(_) => file_len - begin,
    };
    let end = offset.checked_add(bytes).ok_or_else(impossible)?;
    if end > data_len {
        return Err(GgufProblem::OutOfRange { tensor: name, end, data_len });
    }
    let shape =
        dims.iter().rev().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>().map_err(|_| impossible())?;
    Ok(TensorRecord { name, element_type, shape, offset: begin, bytes })
}

/// Returns the number of bytes of a tensor with rows of `cols` elements; `Err(None)` if the bytes cannot be counted.
fn tensor_bytes(name: &str, dtype: DType, cols: u64, elements: u64) -> Result<u64, Option<GgufProblem>> {
    let block_len = dtype.block_len() as u64;
    if !cols.is_multiple_of(block_len) {
        return Err(Some(GgufProblem::RaggedRow { tensor: name.to_owned(), cols, dtype: dtype.name(), block_len }));
    }
    (elements / block_len).checked_mul(dtype.block_bytes() as u64).ok_or(None)
}
