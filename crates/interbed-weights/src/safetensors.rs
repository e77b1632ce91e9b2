//! The header of a safetensors file, read and distrusted.
//!
//! ```text
//! | 8 bytes: length N, little-endian | N bytes: JSON header | tensors, back to back |
//! ```
//!
//! The `safetensors` crate parses a file that lies in memory as a whole, and mapping a file is no way to read one that
//! may shrink; so the header has its own parser here, over any file that can be read at an offset.

use std::collections::HashSet;
use std::fmt;

use interbed_io::RandomAccessFile;
use interbed_kernels::DType;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::{HeaderProblem, WeightError};
use crate::pairs::Pairs;

/// Maximum length of a safetensors header in bytes; a file with a longer header is refused. The format itself sets this
/// limit. Real headers have at most a few megabytes.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Type in which a tensor's elements are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementType {
    /// A type that Interbed computes with.
    Known(DType),
    /// Any other type, by its name in the header. A tensor of such a type can be listed, but not loaded.
    Other(String),
}

impl ElementType {
    /// Returns the name of the type in the header.
    pub fn name(&self) -> &str {
        match self {
            ElementType::Known(dtype) => dtype.name(),
            ElementType::Other(name) => name,
        }
    }
}

/// A tensor in a file's header. The header has been checked: the tensor's bytes lie inside the file and overlap no
/// other tensor. If the size of the element type is known, the number of bytes matches shape and type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRecord {
    /// The tensor's name.
    pub name: String,
    /// Type in which the tensor's elements are stored.
    pub element_type: ElementType,
    /// Shape of the tensor, outermost dimension first.
    pub shape: Vec<usize>,
    /// Offset of the tensor's first byte, counted from the start of the file.
    pub offset: u64,
    /// Length of the tensor in bytes.
    pub bytes: u64,
}

/// Reads and checks the header of a safetensors file, and returns its tensors in ascending order of offset.
///
/// # Errors
/// Fails with [`WeightError::Header`], which names the reason, if the header is refused, and with [`WeightError::Io`]
/// if the file cannot be read.
pub fn read_header(file: &dyn RandomAccessFile) -> Result<Vec<TensorRecord>, WeightError> {
    let problem = |problem| WeightError::Header { file: file.path().to_owned(), problem };
    let Some(available) = file.len().checked_sub(8) else {
        return Err(problem(HeaderProblem::TooShort { file_len: file.len() }));
    };
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0)?;
    let header_len = u64::from_le_bytes(length);
    if header_len > available {
        return Err(problem(HeaderProblem::HeaderBeyondFile { header_len, available }));
    }
    if header_len > HEADER_BYTES_MAX {
        return Err(problem(HeaderProblem::HeaderOverLimit { header_len, limit: HEADER_BYTES_MAX }));
    }
    // Below the limit, so it fits any `usize` of 32 bits or more.
    let mut header = vec![0; header_len as usize];
    file.read_exact_at(&mut header, 8)?;
    parse_header(&header, available - header_len).map_err(problem)
}

/// A tensor as the header writes it.
#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header as it is written: its tensors in the order of the text, repeated names and all.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                // Free-form texts that no weight depends on; only their form is checked.
                map.next_value::<Pairs<String>>()?;
            } else {
                tensors.push((name, map.next_value()?));
            }
        }
        Ok(RawHeader(tensors))
    }
}

/// Checks a header whose tensors occupy `data_len` bytes after it.
fn parse_header(header: &[u8], data_len: u64) -> Result<Vec<TensorRecord>, HeaderProblem> {
    let RawHeader(tensors) =
        serde_json::from_slice(header).map_err(|error| HeaderProblem::Json { message: error.to_string() })?;
    let mut seen = HashSet::with_capacity(tensors.len());
    for (name, _) in &tensors {
        if !seen.insert(name.as_str()) {
            return Err(HeaderProblem::DuplicateName { tensor: name.clone() });
        }
    }
    let data_start = 8 + header.len() as u64;
    let check = |(name, raw)| check_tensor(name, raw, data_start, data_len);
    let mut records = tensors.into_iter().map(check).collect::<Result<Vec<_>, _>>()?;
    records.sort_by_key(|record| (record.offset, record.bytes));
    check_coverage(&records, data_start, data_len)?;
    Ok(records)
}

/// Checks one tensor by itself.
fn check_tensor(name: String, raw: RawTensor, data_start: u64, data_len: u64) -> Result<TensorRecord, HeaderProblem> {
    let (begin, end) = raw.data_offsets;
    let Some(found) = end.checked_sub(begin) else {
        return Err(HeaderProblem::BackwardOffsets { tensor: name, begin, end });
    };
    if end > data_len {
        return Err(HeaderProblem::OutOfRange { tensor: name, end, data_len });
    }
    let impossible = || HeaderProblem::ImpossibleShape { tensor: name.clone(), shape: raw.shape.clone() };
    let elements = raw.shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(impossible)?;
    if let Some(bits) = element_bits(&raw.dtype) {
        let expected = elements.checked_mul(bits).ok_or_else(impossible)?.div_ceil(8);
        if expected != found {
            let (shape, dtype) = (raw.shape, raw.dtype);
            return Err(HeaderProblem::WrongSize { tensor: name, shape, dtype, expected, found });
        }
    }
    let shape =
        raw.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>().map_err(|_| impossible())?;
    let element_type = match raw.dtype.as_str() {
        "F32" => ElementType::Known(DType::F32),
        "F16" => ElementType::Known(DType::F16),
        "BF16" => ElementType::Known(DType::BF16),
        _ => ElementType::Other(raw.dtype),
    };
    // No overflow: `begin` is at most `data_len`, and header and data lie in one file.
    Ok(TensorRecord { name, element_type, shape, offset: data_start + begin, bytes: found })
}

/// Checks that tensors, sorted by offset, cover the bytes after the header once and wholly.
fn check_coverage(records: &[TensorRecord], data_start: u64, data_len: u64) -> Result<(), HeaderProblem> {
    let mut covered = 0; // bytes after the header, up to which all belong to a tensor
    for (index, record) in records.iter().enumerate() {
        let begin = record.offset - data_start;
        if begin > covered {
            return Err(HeaderProblem::Hole { from: covered, to: begin });
        }
        if begin < covered {
            // `covered` is above zero, so there is a tensor before this one.
            let first = records[index - 1].name.clone();
            let second = record.name.clone();
            return Err(HeaderProblem::Overlap { first, second, first_end: covered, second_begin: begin });
        }
        covered = begin + record.bytes;
    }
    if covered < data_len {
        return Err(HeaderProblem::Hole { from: covered, to: data_len });
    }
    Ok(())
}

/// Bits of one element, for the types the format knows. Of a type that is newer than this list only the extent is
/// checked; it cannot be loaded anyway.
fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}
