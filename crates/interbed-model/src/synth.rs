//! Makes models with random weights in any shape, so that tests and benchmarks need no download.
//!
//! A made model is either a Hugging Face directory or one GGUF file. The directory has `config.json`, safetensors, a
//! tokenizer that can encode every text and decode every id, and a chat template. The GGUF file holds the weights, the
//! tokenizer and the chat template, and its matrices may be quantised. One seed gives the same bytes on every machine.

mod gguf;
mod random;
mod tokenizer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use interbed_io::{AtomicWriter, IoError, disk_bytes_free};
use interbed_kernels::DType;
use interbed_weights::{Sink, TensorMeta, WeightError, write_model};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::blueprint::{Blueprint, Norm, Part};
use crate::config::{ConfigError, ModelConfig};
use crate::layers::group_specs;
use gguf::GgufPlan;
use random::TensorStream;

/// The number of threads that generate weights. One more thread writes them.
const GENERATORS: usize = 2;
/// The number of chunks that each generator may be ahead of the writer. This number bounds the memory that chunks take.
const CHUNKS_AHEAD: usize = 2;
/// The disk space, in bytes, that is reserved for every file except the weights.
const EXTRA_BYTES: u64 = 64 << 20;

/// Describes the model to create.
#[derive(Debug, Clone)]
pub struct SynthSpec {
    /// The text of the model's `config.json`, as [`preset`](crate::preset) returns it.
    pub config_json: String,
    /// The number of layers, or `None` for the number in the configuration.
    pub num_layers: Option<usize>,
    /// The type of the weights. `None` stands for the type in the configuration, or for bf16 if the configuration has
    /// none.
    pub dtype: Option<DType>,
    /// The seed from which all weights are generated.
    pub seed: u64,
    /// How unevenly routers choose experts. Each row of a router's matrix gives the scores of one expert. Row `r`,
    /// counted from 1, is multiplied by `r` to the power of `-router_skew`. With a positive number, the first experts
    /// therefore have the most extreme scores. With 0, the rows are not changed.
    pub router_skew: f32,
    /// The most bytes that one safetensors file may have. A GGUF file is never split.
    pub shard_bytes: u64,
    /// Whether to write a GGUF file even if safetensors can hold the weights. A model with quantised weights is always
    /// written as a GGUF file.
    pub gguf: bool,
}

/// Describes the model that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SynthReport {
    /// The number of parameters. The weights of a tied head count once.
    pub num_parameters: u64,
    /// The size of all weights, in bytes.
    pub weight_bytes: u64,
    /// The type of the matrices. Matrices whose rows cannot be divided into whole blocks of this type have another
    /// type.
    pub dtype: DType,
    /// The files that were written, in the order in which they were written.
    pub files: Vec<PathBuf>,
}

/// The reasons why no model can be created. After an error, no file of the model is left behind.
#[derive(Debug, Error)]
pub enum SynthError {
    /// The configuration is invalid, or describes a model that Interbed does not support.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory is not empty.
    #[error("{} exists and is not empty; give a new directory or remove that one first", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// The disk has too little free space.
    #[error(
        "{needed} bytes are needed, but the disk of {} has {free} left; free some, or choose a smaller model, fewer \
         layers or a shorter type",
        dir.display()
    )]
    DiskTooSmall {
        /// The directory on the disk that is too small.
        dir: PathBuf,
        /// The number of bytes that the model needs.
        needed: u64,
        /// The number of bytes that are free on the disk.
        free: u64,
    },
    /// The model has a part that GGUF files cannot express.
    #[error("GGUF files have no words for {what}; choose another model, or a plain type without --gguf")]
    NotInGguf {
        /// The part that cannot be expressed.
        what: &'static str,
    },
    /// Interbed cannot encode weights in the requested type.
    #[error("models are not made in {dtype}; choose F32, F16, BF16, Q8_0, Q4_0, Q4_K or MXFP4")]
    NoEncoder {
        /// The requested type.
        dtype: DType,
    },
    /// The vocabulary is too small to hold a token for each of the 256 bytes and the special tokens.
    #[error("vocab_size is {vocab_size}, but a byte-level tokenizer needs at least {needed}")]
    VocabularyTooSmall {
        /// The size of the vocabulary in the configuration, in tokens.
        vocab_size: usize,
        /// The smallest size that would do, in tokens.
        needed: usize,
    },
    /// The weights could not be written.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// A file other than the weights could not be written.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Writes a model with random weights into `dir`, which must be new or empty. While it writes the weights, the function
/// calls `progress` with the number of bytes written so far and the total number of bytes.
///
/// # Errors
/// Fails if the configuration is invalid or not supported, the directory is not empty, the disk has too little free
/// space, or a file cannot be written. The free space is checked before anything is written. After a failure, every
/// written file is removed.
pub fn synthesize(spec: &SynthSpec, dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<SynthReport, SynthError> {
    let (config_json, config, dtype) = resolve_config(spec)?;
    let tokenizer_files = tokenizer::tokenizer_files(&config)?;
    let (tensors, plan) = match spec.gguf || !dtype.is_plain() {
        true => {
            let [(_, tokenizer), (_, tokenizer_config)] = &tokenizer_files;
            (Vec::new(), Some(GgufPlan::new(&config, dtype, tokenizer, tokenizer_config)?))
        }
        false => (list_tensors(&config, dtype)?, None),
    };
    let weight_bytes = match &plan {
        Some(plan) => plan.weight_bytes(),
        None => tensors.iter().filter_map(TensorMeta::bytes).sum(),
    };

    let existed = claim_directory(dir)?;
    let outcome = (|| {
        let needed = weight_bytes + EXTRA_BYTES;
        let free = disk_bytes_free(dir)?;
        if free < needed {
            return Err(SynthError::DiskTooSmall { dir: dir.to_owned(), needed, free });
        }
        if let Some(plan) = &plan {
            let files = plan.write(spec, &config, dir, progress)?;
            return Ok(SynthReport { num_parameters: config.blueprint.num_parameters(), weight_bytes, dtype, files });
        }
        let mut files = write_weights(spec, dir, &config, &tensors, progress)?;
        let generation = json!({ "bos_token_id": config.ends.bos_token_id, "eos_token_id": config.ends.eos_token_ids });
        // The configuration is written last: a directory with `config.json` is a whole model.
        let rest =
            tokenizer_files.into_iter().chain([("generation_config.json", generation), ("config.json", config_json)]);
        for (name, value) in rest {
            let path = dir.join(name);
            let mut writer = AtomicWriter::create(&path)?;
            // Pretty-printed, the tokenizer would have hundreds of thousands of lines.
            let text = if name == "tokenizer.json" { format!("{value}\n") } else { format!("{value:#}\n") };
            writer.append(text.as_bytes())?;
            writer.commit()?;
            files.push(path);
        }
        Ok(SynthReport { num_parameters: config.blueprint.num_parameters(), weight_bytes, dtype, files })
    })();
    if outcome.is_err() {
        clear_directory(dir, existed);
    }
    outcome
}

/// Returns the configuration to write, the parsed configuration, and the type of the weights.
fn resolve_config(spec: &SynthSpec) -> Result<(Value, ModelConfig, DType), SynthError> {
    // The text is read unchanged first, so that error messages refer to the caller's text.
    let given = ModelConfig::from_json(&spec.config_json)?;
    let dtype = spec.dtype.or(given.dtype).unwrap_or(DType::BF16);
    let mut map: Map<String, Value> = serde_json::from_str(&spec.config_json).unwrap_or_default();
    if let Some(num_layers) = spec.num_layers {
        map.insert("num_hidden_layers".to_owned(), json!(num_layers));
        if let Some(Value::Array(types)) = map.get_mut("layer_types") {
            // The pattern of the layers is repeated or cut off.
            let pattern = types.clone();
            *types = pattern.into_iter().cycle().take(num_layers.min(Blueprint::LAYERS_MAX)).collect();
        }
        if let Some(Value::String(letters)) = map.get_mut("hybrid_override_pattern") {
            let pattern = letters.clone();
            *letters = pattern.chars().cycle().take(num_layers.min(Blueprint::LAYERS_MAX)).collect();
        }
    }
    map.remove("dtype");
    let name = match dtype {
        DType::F32 => Some("float32"),
        DType::F16 => Some("float16"),
        DType::BF16 => Some("bfloat16"),
        DType::Q8_0 | DType::Q4_0 | DType::Q4K | DType::Mxfp4 => None,
        dtype => return Err(SynthError::NoEncoder { dtype }),
    };
    map.insert("torch_dtype".to_owned(), json!(name));
    if given.ends.eos_token_ids.is_empty() {
        // A text must be able to end.
        map.insert("eos_token_id".to_owned(), json!(given.blueprint.vocab_size - 1));
    }
    let value = Value::Object(map);
    let config = ModelConfig::from_json(&value.to_string())?;
    Ok((value, config, dtype))
}

/// Lists every tensor of the model once, in the order in which a pass uses them.
fn list_tensors(config: &ModelConfig, dtype: DType) -> Result<Vec<TensorMeta>, SynthError> {
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    for group in group_specs(&config.blueprint) {
        for tensor in group.tensors {
            if seen.insert(tensor.name.clone()) {
                let meta = TensorMeta { name: tensor.name, dtype, shape: tensor.shape };
                if meta.bytes().is_none() {
                    return Err(WeightError::TooLarge { group: group.name }.into());
                }
                tensors.push(meta);
            }
        }
    }
    Ok(tensors)
}

fn write_weights(
    spec: &SynthSpec,
    dir: &Path,
    config: &ModelConfig,
    tensors: &[TensorMeta],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PathBuf>, WeightError> {
    let sources: Vec<_> = tensors.iter().map(|tensor| stream_of(spec, config, tensor)).collect();
    let mut paths = Vec::new();
    produce_chunks(tensors, &sources, progress, &mut |produce| {
        paths = write_model(dir, tensors, spec.shard_bytes, produce)?;
        Ok(())
    })?;
    Ok(paths)
}

/// Returns the generator of the values of a tensor.
fn stream_of(spec: &SynthSpec, config: &ModelConfig, tensor: &TensorMeta) -> TensorStream {
    let routed = config.blueprint.mixture().is_some();
    let stream = TensorStream::new(spec.seed, spec.router_skew, routed, tensor);
    stream.less(norm_offset(&config.blueprint, &tensor.name))
}

/// Returns the number that is added to each element of the tensor `name`, which is 0 unless it is the weight of a norm.
fn norm_offset(blueprint: &Blueprint, name: &str) -> f32 {
    if !name.ends_with("norm.weight") {
        return 0.0;
    }
    let of_parts = blueprint.parts().find_map(|part| match part {
        Part::GatedDelta(delta) => Some(delta.norm),
        _ => None,
    });
    let is_of_part = |norm: &Norm| name.strip_suffix(".weight").is_some_and(|stem| stem.ends_with(norm.name));
    of_parts.filter(is_of_part).unwrap_or(blueprint.head.norm).offset
}

/// Produces the bytes of one tensor in chunks, which can be generated in any order.
trait Chunks: Sync {
    fn num_chunks(&self) -> u64;

    /// Replaces the content of `bytes` with chunk number `chunk`.
    fn fill_chunk(&self, chunk: u64, bytes: &mut Vec<u8>);
}

/// A function that writes the bytes of the tensor with the given index into a writer's sink.
type Produce<'a> = dyn FnMut(usize, &mut Sink<'_>) -> Result<(), WeightError> + 'a;

/// Calls `write` with a function that passes on the bytes of the tensors, which threads generate from `sources`. The
/// generators take chunks in turns, so the writer knows which of them has the next chunk, and nothing needs sorting.
fn produce_chunks(
    tensors: &[TensorMeta],
    sources: &[impl Chunks],
    progress: &mut dyn FnMut(u64, u64),
    write: &mut dyn FnMut(&mut Produce<'_>) -> Result<(), WeightError>,
) -> Result<(), WeightError> {
    let weight_bytes = tensors.iter().filter_map(TensorMeta::bytes).sum();
    std::thread::scope(|scope| {
        let mut full: Vec<Receiver<Vec<u8>>> = Vec::new();
        let mut empty: Vec<SyncSender<Vec<u8>>> = Vec::new();
        for turn in 0..GENERATORS {
            let (full_sender, full_receiver) = sync_channel(CHUNKS_AHEAD);
            let (empty_sender, empty_receiver) = sync_channel(CHUNKS_AHEAD + 2);
            full.push(full_receiver);
            empty.push(empty_sender);
            scope.spawn(move || generate(sources, turn, &full_sender, &empty_receiver));
        }
        let mut turn = 0;
        let mut done = 0;
        progress(0, weight_bytes);
        let mut produce = |index: usize, sink: &mut Sink<'_>| {
            let mut left = tensors[index].bytes().unwrap_or(0);
            while left > 0 {
                // A generator stops early only by panicking, and the scope passes the panic on.
                let Ok(chunk) = full[turn].recv() else { break };
                sink(&chunk)?;
                left = left.saturating_sub(chunk.len() as u64);
                done += chunk.len() as u64;
                progress(done, weight_bytes);
                // This only returns memory for reuse; a generator that has finished does not need it.
                let _ = empty[turn].try_send(chunk);
                turn = (turn + 1) % GENERATORS;
            }
            Ok(())
        };
        let outcome = write(&mut produce);
        // If writing failed, this makes the generators stop.
        drop(full);
        outcome
    })
}

/// Generates every chunk whose number modulo [`GENERATORS`] is `turn`, until all chunks are generated or the receiver
/// is gone.
fn generate(sources: &[impl Chunks], turn: usize, full: &SyncSender<Vec<u8>>, empty: &Receiver<Vec<u8>>) {
    let mut number = 0;
    for source in sources {
        for chunk in 0..source.num_chunks() {
            if number % GENERATORS == turn {
                let mut bytes = empty.try_recv().unwrap_or_default();
                source.fill_chunk(chunk, &mut bytes);
                if full.send(bytes).is_err() {
                    return;
                }
            }
            number += 1;
        }
    }
}

/// Makes sure that `dir` is an empty directory, and returns whether the directory existed before.
fn claim_directory(dir: &Path) -> Result<bool, SynthError> {
    let fault = |source| IoError::Write { path: dir.to_owned(), action: "create", source };
    match std::fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(true),
            Some(_) => Err(SynthError::NotEmpty { dir: dir.to_owned() }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(dir).map_err(fault)?;
            Ok(false)
        }
        Err(error) => Err(fault(error).into()),
    }
}

/// Removes the files that a failed attempt wrote into `dir`, and the directory itself unless it `existed` before. The
/// directory was empty at the start, so all files in it come from this attempt.
fn clear_directory(dir: &Path, existed: bool) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // Errors are ignored here: the failure being reported is the one that matters.
        let _ = std::fs::remove_file(entry.path());
    }
    if !existed {
        let _ = std::fs::remove_dir(dir);
    }
}

#[cfg(test)]
mod tests;
