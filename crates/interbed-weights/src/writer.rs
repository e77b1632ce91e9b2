//! Writing safetensors, sharded, one tensor at a time.

use std::path::{Path, PathBuf};

use interbed_io::{AtomicWriter, ExactFile, RandomAccessFile};
use interbed_kernels::DType;
use serde_json::{Map, Value, json};

use crate::error::WeightError;

/// Tensor data begins on a multiple of this, so that direct reads need no copy at the front.
const DATA_ALIGN: usize = 4096;

/// Name, type and shape of a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMeta {
    /// Name of the tensor.
    pub name: String,
    /// Type in which the tensor's elements are stored.
    pub dtype: DType,
    /// Shape of the tensor, outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorMeta {
    /// Returns the tensor's length in bytes. Returns `None` if the length overflows, or if a row is not a whole number
    /// of blocks of the type.
    pub fn bytes(&self) -> Option<u64> {
        let (&cols, outer) = self.shape.split_last().unwrap_or((&1, &[]));
        let rows = outer.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64))?;
        rows.checked_mul(self.dtype.row_bytes(cols)? as u64)
    }
}

/// Writes a model's tensors into `dir` in the safetensors format, in the order of `tensors`. Each shard holds at most
/// `shard_bytes` bytes of tensors; a larger tensor gets a shard of its own. A single shard is named
/// `model.safetensors`. Several shards have numbered names, and an index is written after them. The function calls
/// `produce(index, sink)` for each tensor. `produce` passes the bytes of `tensors[index]` to `sink`, in pieces of any
/// size. Returns the paths of the files.
///
/// Each file appears under its name only once it is complete and synced to disk.
///
/// # Errors
/// Fails if a write fails, if a size overflows, if `produce` fails, or if `produce` passes too few or too many bytes.
pub fn write_model(
    dir: &Path,
    tensors: &[TensorMeta],
    shard_bytes: u64,
    produce: &mut dyn FnMut(usize, &mut Sink<'_>) -> Result<(), WeightError>,
) -> Result<Vec<PathBuf>, WeightError> {
    let (shards, total) = cut_into_shards(tensors, shard_bytes)?;
    let mut weight_map = Map::new();
    let mut paths = Vec::with_capacity(shards.len());
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let path = dir.join(&name);
        let mut writer = AtomicWriter::create(&path)?;
        writer.append(&header(&tensors[shard.clone()]))?;
        for index in shard.clone() {
            let tensor = &tensors[index];
            append_tensor(&mut writer, tensor, index, produce)?;
            weight_map.insert(tensor.name.clone(), Value::String(name.clone()));
        }
        finish(writer, &path)?;
        paths.push(path);
    }
    if shards.len() > 1 {
        let path = dir.join("model.safetensors.index.json");
        let mut writer = AtomicWriter::create(&path)?;
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        writer.append(format!("{index:#}\n").as_bytes())?;
        writer.commit()?;
        paths.push(path);
    }
    Ok(paths)
}

/// Function that takes the next bytes of the tensor that is being written.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), WeightError> + 'a;

/// Appends what `produce` hands over for `tensors[index]`, which must be as much as the tensor has. Sizes have been
/// computed before.
pub(crate) fn append_tensor(
    writer: &mut AtomicWriter,
    tensor: &TensorMeta,
    index: usize,
    produce: &mut dyn FnMut(usize, &mut Sink<'_>) -> Result<(), WeightError>,
) -> Result<(), WeightError> {
    let declared = tensor.bytes().unwrap_or(0);
    let wrong = |produced| WeightError::WrongAmount { tensor: tensor.name.clone(), declared, produced };
    let mut produced = 0u64;
    produce(index, &mut |bytes| {
        produced += bytes.len() as u64;
        if produced > declared {
            return Err(wrong(produced));
        }
        Ok(writer.append(bytes)?)
    })?;
    if produced == declared { Ok(()) } else { Err(wrong(produced)) }
}

/// Makes the file appear. What was just written is not what will be read next, so it must not push other things out of
/// memory.
pub(crate) fn finish(writer: AtomicWriter, path: &Path) -> Result<(), WeightError> {
    writer.commit()?;
    let written = ExactFile::open(path)?;
    written.drop_cache(0..written.len());
    Ok(())
}

/// Returns the index ranges of the tensors of each shard, and the bytes of all shards.
fn cut_into_shards(
    tensors: &[TensorMeta],
    shard_bytes: u64,
) -> Result<(Vec<std::ops::Range<usize>>, u64), WeightError> {
    let mut shards: Vec<std::ops::Range<usize>> = Vec::new();
    let mut total = 0u64;
    let mut filled = 0u64;
    for (index, tensor) in tensors.iter().enumerate() {
        let too_large = || WeightError::TooLarge { group: tensor.name.clone() };
        let bytes = tensor.bytes().ok_or_else(too_large)?;
        total = total.checked_add(bytes).ok_or_else(too_large)?;
        match shards.last_mut() {
            Some(shard) if filled.saturating_add(bytes) <= shard_bytes => {
                shard.end = index + 1;
                filled += bytes;
            }
            _ => {
                shards.push(index..index + 1);
                filled = bytes;
            }
        }
    }
    if shards.is_empty() {
        shards.push(0..0);
    }
    Ok((shards, total))
}

/// Returns the length field and the JSON header of one shard, padded with spaces.
fn header(tensors: &[TensorMeta]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut begin = 0u64;
    for tensor in tensors {
        let end = begin + tensor.bytes().unwrap_or(0);
        let entry = json!({ "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [begin, end] });
        entries.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize((json.len() + 8).next_multiple_of(DATA_ALIGN) - 8, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}
