//! Writing a GGUF file, one tensor at a time.

use std::path::Path;

use interbed_io::AtomicWriter;

use super::metadata::{Metadata, MetadataValue};
use super::reader::{ARRAY, BOOL, TEXT};
use super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, MAGIC, VERSION, gguf_name, types};
use crate::error::WeightError;
use crate::writer::{Sink, TensorMeta, append_tensor, finish};

/// Writes one GGUF file with `metadata` and, in the given order, `tensors`. Hugging Face names of tensors are
/// translated to GGUF names; other names are written unchanged. `produce(index, sink)` passes the bytes of
/// `tensors[index]` to the sink, in pieces of any size; no piece is kept in memory. The file appears at `path` only
/// when it is complete and synced to disk.
///
/// # Errors
/// Fails if a write fails, if a size overflows, if a row is not a whole number of blocks, or if `produce` passes too
/// few or too many bytes.
pub fn write_gguf(
    path: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    produce: &mut dyn FnMut(usize, &mut Sink<'_>) -> Result<(), WeightError>,
) -> Result<(), WeightError> {
    // Other readers demand what is the default to be so, unless it is said.
    let alignment = u64::from(ALIGNMENT_DEFAULT);
    debug_assert!(metadata.get(ALIGNMENT_KEY).is_none(), "tensors lie at the default alignment");
    let mut header = header_of(metadata, tensors.len());
    let mut offset = 0u64;
    for tensor in tensors {
        let too_large = || WeightError::TooLarge { group: tensor.name.clone() };
        let name = gguf_name(&tensor.name).unwrap_or_else(|| tensor.name.clone());
        write_text(&name, &mut header);
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        for &dim in tensor.shape.iter().rev() {
            header.extend((dim as u64).to_le_bytes());
        }
        header.extend(types::type_number(tensor.dtype).to_le_bytes());
        header.extend(offset.to_le_bytes());
        let bytes = tensor.bytes().ok_or_else(too_large)?;
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(alignment));
        offset = end.ok_or_else(too_large)?;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT_DEFAULT as usize), 0);

    let mut writer = AtomicWriter::create(path)?;
    writer.append(&header)?;
    for (index, tensor) in tensors.iter().enumerate() {
        append_tensor(&mut writer, tensor, index, produce)?;
        let declared = tensor.bytes().unwrap_or(0);
        let padding = declared.next_multiple_of(alignment) - declared;
        writer.append(&[0; ALIGNMENT_DEFAULT as usize][..padding as usize])?;
    }
    finish(writer, path)
}

/// Returns a GGUF file of this metadata and no tensors, in memory.
pub(crate) fn encode_metadata(metadata: &Metadata) -> Vec<u8> {
    header_of(metadata, 0)
}

/// Returns the header up to the list of tensors.
fn header_of(metadata: &Metadata, num_tensors: usize) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((num_tensors as u64).to_le_bytes());
    header.extend((metadata.pairs().len() as u64).to_le_bytes());
    for (key, value) in metadata.pairs() {
        write_text(key, &mut header);
        write_value(value, &mut header);
    }
    header
}

fn write_text(text: impl AsRef<[u8]>, out: &mut Vec<u8>) {
    out.extend((text.as_ref().len() as u64).to_le_bytes());
    out.extend(text.as_ref());
}

/// Writes the number of the value's type, then the value.
fn write_value(value: &MetadataValue, out: &mut Vec<u8>) {
    let list = |kind: u32, len: usize, out: &mut Vec<u8>| {
        out.extend(ARRAY.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    match value {
        MetadataValue::Number(number) => {
            out.extend(number.kind().to_le_bytes());
            number.write(out);
        }
        MetadataValue::Bool(flag) => {
            out.extend(BOOL.to_le_bytes());
            out.push(u8::from(*flag));
        }
        MetadataValue::Text(text) => {
            out.extend(TEXT.to_le_bytes());
            write_text(text, out);
        }
        MetadataValue::Numbers(numbers) => {
            list(numbers.kind(), numbers.len(), out);
            out.extend(numbers.bytes());
        }
        MetadataValue::Bools(flags) => {
            list(BOOL, flags.len(), out);
            out.extend(flags.iter().map(|&flag| u8::from(flag)));
        }
        MetadataValue::Texts(texts) => {
            list(TEXT, texts.len(), out);
            texts.iter().for_each(|text| write_text(text, out));
        }
        MetadataValue::Undecoded(undecoded) => {
            match undecoded.is_list() {
                true => list(TEXT, undecoded.texts().len(), out),
                false => out.extend(TEXT.to_le_bytes()),
            }
            undecoded.texts().for_each(|text| write_text(text, out));
        }
    }
}
