//! Makes a random model as one GGUF file that needs no other files.

mod arrangement;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use interbed_kernels::{DType, RopeStyle};
use interbed_weights::{Metadata, TensorMeta, WeightError, write_gguf};
use serde_json::Value;

use super::random::{CHUNK_ELEMENTS, TensorStream, encode};
use super::{Chunks, SynthError, SynthSpec, produce_chunks};
use crate::blueprint::{Blueprint, Part};
use crate::config::ModelConfig;
use crate::gguf::describe::{Description, add_tokenizer, describe};
use arrangement::Arrangement;

/// The name of the file.
const FILE: &str = "model.gguf";
/// The name of the rule by which the synthetic tokenizer cuts a text into words.
const PRE_TOKENIZER: &str = "gpt-2";

/// The end of the name of each router's matrix.
const ROUTER: &str = ".mlp.gate.weight";
/// The name of the norm before a network, within a layer.
const NETWORK_NORM: &str = "post_attention_layernorm.weight";
/// The end of the name of the tensor from which a shared expert's gate is computed.
const SHARED_GATE: &str = ".mlp.shared_expert_gate.weight";

/// The end of the name of the matrix that joins all inputs of a state space, and the parts of it, in their order.
const SPACE_INPUT: &str = ".mamba.in_proj.weight";
const SPACE_INPUTS: [&str; 3] = ["z", "xbc", "dt"];

/// Returns the name of the tensor that joins one matrix of all experts, if `name` names that matrix of a single expert.
fn of_all_experts(name: &str) -> Option<String> {
    let (before, rest) = name.split_once(".mlp.experts.")?;
    let (_, matrix) = rest.split_once('.')?;
    Some(format!("{before}.mlp.experts.all.{matrix}"))
}

/// Returns whether the tensor `name` joins the biases that all experts add after one of their matrices.
fn is_of_all_biases(name: &str) -> bool {
    name.contains(".mlp.experts.all.") && name.ends_with(".bias")
}

/// Returns the name of the tensor that joins all inputs of a state space, if `name` names one of these.
fn of_all_inputs(name: &str) -> Option<String> {
    let (layer, _) = name.split_once(".mamba.in_proj_")?;
    Some(format!("{layer}{SPACE_INPUT}"))
}

/// Returns the matrix that GGUF files have in place of a vector of a state space: its rows, of a vector of `len`
/// elements in a model with `groups` groups.
fn rows_of_vector(name: &str, len: usize, groups: usize) -> Option<usize> {
    match name.split_once(".mamba.")?.1 {
        "A_log" | "D" => Some(len),
        "norm.weight" => Some(groups),
        _ => None,
    }
}

/// The content of a GGUF file that is ready to be written.
pub(super) struct GgufPlan {
    metadata: Metadata,
    tensors: Vec<TensorMeta>,
    rope_factors: Option<(&'static str, Vec<f32>)>,
    style: RopeStyle,
    /// What the norm before a network is called, where it is not the usual name.
    network_norm: Option<&'static str>,
}

impl GgufPlan {
    /// Plans a file of the model `config`, with matrices in `dtype` and vectors in F32.
    pub(super) fn new(
        config: &ModelConfig,
        dtype: DType,
        tokenizer: &Value,
        tokenizer_config: &Value,
    ) -> Result<Self, SynthError> {
        let Description { mut metadata, rope_factors, style, network_norm } =
            describe(config).map_err(|what| SynthError::NotInGguf { what })?;
        metadata.set("general.name", format!("synthetic {:?}", config.family));
        metadata.set("general.quantization_version", 2u32);
        if let Some(file_type) = file_type(dtype) {
            metadata.set("general.file_type", file_type);
        }
        add_tokenizer(&mut metadata, config, PRE_TOKENIZER, tokenizer, tokenizer_config)
            .map_err(|what| SynthError::NotInGguf { what })?;
        let mut tensors: Vec<TensorMeta> = Vec::new();
        // The factors come first, as converters write them.
        if let Some((name, factors)) = &rope_factors {
            tensors.push(TensorMeta { name: (*name).to_owned(), dtype: DType::F32, shape: vec![factors.len()] });
        }
        let mut of_experts: HashMap<String, usize> = HashMap::new();
        let groups = config.blueprint.parts().find_map(|part| match part {
            Part::Mamba(mamba) => Some(mamba.groups),
            _ => None,
        });
        for mut tensor in super::list_tensors(config, DType::F32)? {
            lay_out(&mut tensor, dtype, groups.unwrap_or(1));
            if let Some(all) = of_all_inputs(&tensor.name) {
                // The parts follow one another.
                match tensors.last_mut().filter(|last| last.name == all) {
                    Some(last) => last.shape[0] += tensor.shape[0],
                    None => tensors.push(TensorMeta { name: all, ..tensor }),
                }
                continue;
            }
            if let Some(mixture) = config.blueprint.mixture()
                && is_of_all_biases(&tensor.name)
            {
                // Readers want a matrix in which each row has the biases of one expert.
                tensor.shape = vec![mixture.experts, tensor.shape[0] / mixture.experts];
                tensors.push(tensor);
                continue;
            }
            if let Some(all) = of_all_experts(&tensor.name) {
                // One tensor joins this matrix of all experts; its place in the file is that of the first expert's.
                if let Some(&index) = of_experts.get(&all) {
                    tensors[index].shape[0] += 1;
                    continue;
                }
                tensor.shape.insert(0, 1);
                of_experts.insert(all.clone(), tensors.len());
                tensor.name = all;
            }
            if tensor.bytes().is_none() {
                return Err(WeightError::TooLarge { group: tensor.name }.into());
            }
            tensors.push(tensor);
        }
        Ok(Self { metadata, tensors, rope_factors, style, network_norm })
    }

    /// Returns the size of all tensors, in bytes.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.tensors.iter().filter_map(TensorMeta::bytes).sum()
    }

    /// Writes the file into `dir` and returns its path in a list.
    pub(super) fn write(
        &self,
        spec: &SynthSpec,
        config: &ModelConfig,
        dir: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<PathBuf>, WeightError> {
        let path = dir.join(FILE);
        let sources: Vec<Rows<'_>> = self.tensors.iter().map(|tensor| self.rows(spec, config, tensor)).collect();
        let mut named = self.tensors.clone();
        named.iter_mut().for_each(|tensor| self.rename(tensor));
        produce_chunks(&self.tensors, &sources, progress, &mut |produce| {
            write_gguf(&path, &self.metadata, &named, produce)
        })?;
        Ok(vec![path])
    }

    /// Gives the norm before a network the name that readers of the family know, where it is not the usual one.
    fn rename(&self, tensor: &mut TensorMeta) {
        let within = tensor.name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        if let (Some(norm), Some((layer, NETWORK_NORM))) = (self.network_norm, within) {
            tensor.name = format!("blk.{layer}.{norm}.weight");
        }
    }

    fn rows<'a>(&'a self, spec: &SynthSpec, config: &ModelConfig, tensor: &TensorMeta) -> Rows<'a> {
        let num_rows = tensor.shape[0];
        let arrangement = Arrangement::of(&config.blueprint, self.style, &tensor.name, num_rows);
        let (rows, cols) = match *tensor.shape {
            [rows, cols] => (rows, cols),
            [experts, rows, cols] => (experts * rows, cols),
            // A bias, whose elements are in the order of the rows that they belong to.
            [rows] if arrangement.is_column => (rows, 1),
            [cols] => (1, cols),
            _ => unreachable!("groups list vectors and matrices only, which are joined once"),
        };
        let given = self.rope_factors.as_ref().filter(|(name, _)| *name == tensor.name).map(|(_, f)| f.as_slice());
        let stream = |tensor: &TensorMeta| super::stream_of(spec, config, tensor);
        let alike = |streams: Vec<TensorStream>| {
            let each = rows / streams.len().max(1);
            streams.into_iter().map(|stream| (each, stream)).collect()
        };
        let streams = match *tensor.shape {
            [_, cols] if tensor.name.ends_with(SPACE_INPUT) => inputs_of_space(&config.blueprint)
                .map(|(part, rows)| {
                    let name = tensor.name.replacen("in_proj", &format!("in_proj_{part}"), 1);
                    (rows, stream(&TensorMeta { name, shape: vec![rows, cols], ..tensor.clone() }))
                })
                .into(),
            // Safetensors hold these as vectors.
            [rows, cols] if rows_of_vector(&tensor.name, 1, 1).is_some() => {
                alike(vec![stream(&TensorMeta { shape: vec![rows * cols], ..tensor.clone() })])
            }
            [experts, rows, cols] => {
                let of_expert = |expert: usize| {
                    let name = tensor.name.replacen(".all.", &format!(".{expert}."), 1);
                    stream(&TensorMeta { name, dtype: tensor.dtype, shape: vec![rows, cols] })
                };
                alike((0..experts).map(of_expert).collect())
            }
            // Safetensors hold this gate as a matrix of one row; its stream therefore gets the shape of that matrix.
            [cols] if tensor.name.ends_with(SHARED_GATE) => {
                alike(vec![stream(&TensorMeta { shape: vec![1, cols], ..tensor.clone() })])
            }
            // Safetensors hold these biases as one vector.
            [experts, cols] if is_of_all_biases(&tensor.name) => {
                alike(vec![stream(&TensorMeta { shape: vec![experts * cols], ..tensor.clone() })])
            }
            _ => alike(vec![stream(tensor)]),
        };
        Rows { streams, given, dtype: tensor.dtype, rows, cols, arrangement }
    }
}

/// Gives a tensor the shape and the type that readers want, in a model of type `dtype` whose state spaces have `groups`
/// groups.
fn lay_out(tensor: &mut TensorMeta, dtype: DType, groups: usize) {
    // Readers want routers in F32, and the single row of a shared expert's gate as a vector.
    if tensor.name.ends_with(SHARED_GATE) {
        tensor.shape.remove(0);
    } else if let [channels, 1, taps] = *tensor.shape {
        // The taps of a convolution are a matrix in F32.
        tensor.shape = vec![channels, taps];
    } else if let [_, cols] = *tensor.shape
        && !tensor.name.ends_with(ROUTER)
    {
        tensor.dtype = stored_as(dtype, &tensor.name, cols);
    } else if let [len] = *tensor.shape
        && let Some(rows) = rows_of_vector(&tensor.name, len, groups)
    {
        tensor.shape = vec![rows, len / rows];
    }
}

/// Returns the parts of the matrix that joins all inputs of a state space, with their rows.
fn inputs_of_space(blueprint: &Blueprint) -> [(&'static str, usize); 3] {
    let rows = blueprint.parts().find_map(|part| match part {
        Part::Mamba(mamba) => Some([mamba.inner_width(), mamba.row_width(), mamba.heads]),
        _ => None,
    });
    let rows = rows.unwrap_or_default();
    std::array::from_fn(|part| (SPACE_INPUTS[part], rows[part]))
}

/// The rows of a tensor in the order of a GGUF file. The values are those that the safetensors of the same seed have.
struct Rows<'a> {
    /// The number of rows and the stream of each part of a joined tensor, or of all of any other tensor.
    streams: Vec<(usize, TensorStream)>,
    given: Option<&'a [f32]>,
    dtype: DType,
    rows: usize,
    cols: usize,
    arrangement: Arrangement,
}

impl Rows<'_> {
    fn rows_per_chunk(&self) -> usize {
        (CHUNK_ELEMENTS as usize / self.cols.max(1)).max(1)
    }
}

impl Chunks for Rows<'_> {
    fn num_chunks(&self) -> u64 {
        self.rows.div_ceil(self.rows_per_chunk()) as u64
    }

    fn fill_chunk(&self, chunk: u64, bytes: &mut Vec<u8>) {
        let first = chunk as usize * self.rows_per_chunk();
        let rows = first..(first + self.rows_per_chunk()).min(self.rows);
        // This cannot overflow: it was checked when the file was planned.
        let row_bytes = self.dtype.row_bytes(self.cols).unwrap_or(0);
        bytes.resize(rows.len() * row_bytes, 0);
        let mut values = vec![0.0; self.cols];
        for (row, out) in rows.zip(bytes.chunks_exact_mut(row_bytes.max(1))) {
            match self.given {
                Some(given) => values.copy_from_slice(given),
                None => {
                    let mut row = self.arrangement.source(row);
                    let part = self.streams.iter().find(|(rows, _)| match row.checked_sub(*rows) {
                        None => true,
                        Some(behind) => {
                            row = behind;
                            false
                        }
                    });
                    let (_, stream) = part.expect("the parts have all rows");
                    stream.fill_values((row * self.cols) as u64, &mut values);
                    self.arrangement.convert(&mut values);
                }
            }
            encode(self.dtype, &values, out);
        }
    }
}

/// Chooses the stored type of the matrix `name`, whose rows have `cols` columns, in a model of type `dtype`. The choice
/// is `dtype` if the rows can be divided into its blocks, else a type with shorter blocks, else F16. In an MXFP4 model,
/// only the matrices of experts have that type, and all other matrices are BF16, as in published models.
fn stored_as(dtype: DType, name: &str, cols: usize) -> DType {
    if dtype == DType::Mxfp4 && of_all_experts(name).is_none() {
        return DType::BF16;
    }
    let candidates = [dtype, DType::Q8_0, DType::F16];
    candidates.into_iter().find(|dtype| dtype.row_bytes(cols).is_some()).unwrap_or(DType::F16)
}

/// Returns the number by which GGUF files name the type `dtype` of most of their tensors, or `None` for other types.
fn file_type(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q8_0 => 7,
        DType::Q4K => 14,
        DType::BF16 => 32,
        DType::Mxfp4 => 38,
        _ => return None,
    })
}
