//! The model to plan for: existing weights, a configuration, or a well-known name.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use interbed_device::Bytes;
use interbed_io::DirectRead;
use interbed_kernels::DType;
use interbed_model::config::{ConfigError, ConfigProblem, ModelConfig};
use interbed_model::layers;
use interbed_model::{preset, preset_names};
use interbed_weights::{
    BAND_LEAST, Catalog, ElementType, GroupSpec, Partition, StoredAt, StreamPlan, TensorSpec, WeightError, open_direct,
};

use super::shape::{Cut, Shape};
use crate::refusal::Refusal;

/// Maximum number of bytes of a configuration that is read.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// What a plan says of a model without a tokenizer, from which the memory of the process would follow.
const ESTIMATE: &str = "what its process takes is an estimate";

/// A model to plan for.
pub struct Subject {
    /// Name of the model.
    pub name: String,
    /// Source of the model's shape, if it does not come from weights.
    pub note: Option<String>,
    /// Configuration of the model.
    pub config: ModelConfig,
    /// Number type that most weights have.
    pub dtype: DType,
    specs: Vec<GroupSpec>,
    weights: Weights,
}

enum Weights {
    AtHand {
        catalog: Box<Catalog>,
        bytes: WeightBytes,
    },
    /// The model has no weights here. All its matrices are taken to have this type, if their rows are whole blocks of
    /// it.
    Imagined(DType),
}

/// Memory that a model's weights take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightBytes {
    /// Bytes of memory for all weights.
    pub whole: Bytes,
    /// Least bytes of memory with which the weights can be streamed.
    pub streamed: Bytes,
}

impl Subject {
    /// Returns the model that `model` names, if it has no weights: a configuration, or a well-known name. `dtype` is
    /// the type that its weights would have; the configuration's type is taken if it is `None`. Returns `None` if there
    /// may be weights.
    ///
    /// # Errors
    /// Fails if no model has that name, or if the model cannot be computed.
    pub fn imagined(model: &Path, dtype: Option<DType>) -> Result<Option<Self>, Refusal> {
        let Some((config, name, note)) = imagined(model)? else { return Ok(None) };
        let dtype = dtype.or(config.dtype).unwrap_or(DType::BF16);
        let specs = layers::group_specs(&config.blueprint);
        let subject = Self { name, note: Some(note), config, dtype, specs, weights: Weights::Imagined(dtype) };
        subject.cut(Cut::Bands(BAND_LEAST))?;
        Ok(Some(subject))
    }

    /// Returns a model with existing weights, `whole` bytes of them, mostly of one type.
    ///
    /// # Errors
    /// Fails if a tensor does not fit the configuration.
    pub fn at_hand(
        name: String,
        config: ModelConfig,
        dtype: DType,
        specs: Vec<GroupSpec>,
        catalog: Catalog,
        whole: Bytes,
    ) -> Result<Self, WeightError> {
        let streamed = Bytes(StreamPlan::new(&catalog, &specs, BAND_LEAST)?.partition().least_budget());
        let weights = Weights::AtHand { catalog: Box::new(catalog), bytes: WeightBytes { whole, streamed } };
        Ok(Self { name, note: None, config, dtype, specs, weights })
    }

    /// Cuts the model's matrices into units.
    ///
    /// # Errors
    /// Fails if sizes overflow.
    pub(super) fn cut(&self, cut: Cut) -> Result<Shape, Refusal> {
        let shape = Shape::cut(&self.specs, &|tensor| self.place(tensor), cut);
        shape.ok_or_else(|| Refusal::new(format!("the sizes of {} cannot be counted", self.name)))
    }

    /// Divides the weights into pieces, with bands of about `band_bytes`.
    ///
    /// # Errors
    /// Fails if sizes overflow.
    pub(super) fn partition(&self, band_bytes: usize) -> Result<Partition, Refusal> {
        Ok(Partition::new(&self.specs, band_bytes, |_, tensor| Ok(self.place(tensor)))?)
    }

    /// Returns how much memory the weights take.
    ///
    /// # Errors
    /// Fails if sizes overflow.
    pub fn weight_bytes(&self) -> Result<WeightBytes, Refusal> {
        if let Weights::AtHand { bytes, .. } = &self.weights {
            return Ok(*bytes);
        }
        let shape = self.cut(Cut::Bands(BAND_LEAST))?;
        let embedding = if self.config.blueprint.head.is_tied { 0 } else { shape.embedding_bytes };
        let others = shape.vector_bytes.saturating_add(embedding).saturating_add(shape.expert_memory.0);
        let whole = Bytes(shape.memory().saturating_add(others));
        Ok(WeightBytes { whole, streamed: Bytes(shape.least_budget()) })
    }

    /// Opens the weights' files for direct reads; returns none if there are no weights here.
    ///
    /// # Errors
    /// Fails if a file cannot be opened.
    pub(super) fn files(&self) -> Result<Vec<Arc<dyn DirectRead>>, WeightError> {
        match &self.weights {
            // Of weights that are elsewhere, only the headers are known.
            Weights::AtHand { catalog, .. } if catalog.files().iter().any(|file| file.identity().is_none()) => {
                Ok(Vec::new())
            }
            Weights::AtHand { catalog, .. } => open_direct(catalog),
            Weights::Imagined(_) => Ok(Vec::new()),
        }
    }

    fn place(&self, tensor: &TensorSpec) -> StoredAt {
        match &self.weights {
            Weights::AtHand { catalog, .. } => {
                let entry = catalog.get(&tensor.name);
                let dtype = match entry.map(|entry| &entry.element_type) {
                    Some(ElementType::Known(dtype)) => *dtype,
                    // Refused when the model was opened.
                    _ => self.dtype,
                };
                StoredAt { dtype, file: 0, offset: entry.map_or(0, |entry| entry.offset) }
            }
            Weights::Imagined(dtype) => {
                // As `interbed synth` writes them.
                let candidates = match *tensor.shape {
                    // Of MXFP4 are experts only.
                    [_, cols] if *dtype == DType::Mxfp4 && !tensor.name.contains(".mlp.experts.") => {
                        [(DType::BF16, cols); 3]
                    }
                    [_, cols] => [*dtype, DType::Q8_0, DType::F16].map(|dtype| (dtype, cols)),
                    _ if dtype.is_plain() => [(*dtype, 1); 3],
                    _ => [(DType::F32, 1); 3],
                };
                let fitting = candidates.into_iter().find(|(dtype, cols)| dtype.row_bytes(*cols).is_some());
                StoredAt { dtype: fitting.map_or(DType::F16, |(dtype, _)| dtype), file: 0, offset: 0 }
            }
        }
    }
}

/// Finds the configuration that `model` names, with the model's name and the source of the configuration. Returns
/// `None` if there may be weights.
fn imagined(model: &Path) -> Result<Option<(ModelConfig, String, String)>, Refusal> {
    if model.is_file() && model.extension().is_some_and(|extension| extension == "json") {
        return from_file(model, model.parent()).map(Some);
    }
    if model.is_dir() {
        let config = model.join("config.json");
        return if config.is_file() && !holds_weights(model)? {
            from_file(&config, Some(model)).map(Some)
        } else {
            Ok(None)
        };
    }
    if model.exists() {
        return Ok(None);
    }
    let text = model.to_string_lossy();
    let name = well_known(&text).ok_or_else(|| {
        let known: Vec<&str> = preset_names().collect();
        Refusal::advised(
            format!("{text} is neither a file or directory here nor a model whose shape Interbed knows"),
            format!(
                "known are {}; any other model is named ORG/NAME on the Hub, or by its path, or by that of its \
                 config.json",
                known.join(", ")
            ),
        )
    })?;
    // The name was found in the list.
    let json = preset(name).ok_or_else(|| Refusal::new(format!("unknown model {name}")))?;
    let note = format!("{name}: a shape that Interbed knows, without weights; {ESTIMATE}");
    Ok(Some((ModelConfig::from_json(&json)?, name.to_owned(), note)))
}

/// Finds the preset that `text` means, by the preset's own name, or by a name on the Hugging Face Hub.
fn well_known(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let model = lower.rsplit('/').next().unwrap_or(&lower);
    let model = model.strip_prefix("meta-").unwrap_or(model);
    let ends = ["-instruct", "-chat", "-base", "-hf"];
    let mut plain = model;
    while let Some(shorter) = ends.iter().find_map(|end| plain.strip_suffix(end)) {
        plain = shorter;
    }
    preset_names().find(|name| *name == plain || *name == model)
}

fn holds_weights(dir: &Path) -> Result<bool, Refusal> {
    let unreadable = |error| Refusal::because(format!("cannot read {}", dir.display()), error);
    let entries = dir.read_dir().map_err(unreadable)?;
    for entry in entries {
        let name: PathBuf = entry.map_err(unreadable)?.file_name().into();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name.ends_with(".gguf") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn from_file(file: &Path, dir: Option<&Path>) -> Result<(ModelConfig, String, String), Refusal> {
    let failed = |problem: ConfigProblem| ConfigError { file: file.to_owned(), problem };
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(CONFIG_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error: io::Error| failed(ConfigProblem::Read(error)))?;
    let config = ModelConfig::from_json(&text).map_err(|error| failed(error.problem))?;
    let folder = dir.and_then(|dir| dir.canonicalize().ok());
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    Ok((
        config,
        name.unwrap_or_else(|| "model".into()),
        format!("shape of {}, without weights; {ESTIMATE}", file.display()),
    ))
}

#[cfg(test)]
mod tests {
    use interbed_model::HeadSource;
    use interbed_model::synth::{SynthSpec, synthesize};
    use interbed_weights::plan_bytes;

    use super::*;

    /// Returns the model of this configuration in `dir`.
    fn at_hand(dir: &Path, config_json: &str, dtype: DType) -> Subject {
        let mut config = ModelConfig::from_json(config_json).expect("a configuration");
        let mut catalog = Catalog::open(dir).expect("weights");
        HeadSource::settle(&mut config, &mut catalog, u64::MAX).expect("weights that can be read");
        let specs = layers::group_specs(&config.blueprint);
        let whole = Bytes(plan_bytes(&catalog, &specs).expect("weights that fit"));
        Subject::at_hand("tiny".into(), config, dtype, specs, catalog, whole).expect("weights that fit")
    }

    /// Checks that a plan cuts, counts and keeps as the driver does.
    #[test]
    fn plans_agree_with_what_streams() {
        for dtype in [DType::F32, DType::Q8_0] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let dir = folder.path().join("tiny");
            let config_json = preset("tiny").expect("a preset");
            let spec = SynthSpec {
                config_json: config_json.clone(),
                num_layers: None,
                dtype: Some(dtype),
                seed: 1,
                router_skew: 0.0,
                shard_bytes: 1 << 30,
                gguf: false,
            };
            synthesize(&spec, &dir, &mut |_, _| ()).expect("a model");
            assert!(Subject::imagined(&dir, None).expect("a directory").is_none(), "it has weights");
            let subject = at_hand(&dir, &config_json, dtype);
            let (catalog, specs) = (Catalog::open(&dir).expect("weights"), &subject.specs);
            let imagined = Subject::imagined(&dir.join("config.json"), Some(dtype));
            for band in [8 << 10, 64 << 10] {
                let shape = subject.cut(Cut::Bands(band)).expect("sizes can be counted");
                let streamed = StreamPlan::new(&catalog, specs, band).expect("a model that streams");
                assert_eq!(shape.swept_bytes(), streamed.partition().swept_bytes(), "{dtype}");
                assert_eq!(shape.fixed_bytes(), streamed.partition().fixed_bytes(), "{dtype}");
                assert_eq!(shape.memory(), streamed.partition().band_memory(), "{dtype}");
                if let (Ok(Some(imagined)), DType::F32) = (&imagined, dtype) {
                    let without = imagined.cut(Cut::Bands(band)).expect("sizes can be counted");
                    assert_eq!(without.swept_bytes(), shape.swept_bytes());
                }
            }
        }
    }

    #[test]
    fn hub_ids_name_presets() {
        let found = |text: &str| well_known(text);
        assert_eq!(found("llama-3-70b"), Some("llama-3-70b"));
        assert_eq!(found("meta-llama/Meta-Llama-3-70B-Instruct"), Some("llama-3-70b"));
        assert_eq!(found("meta-llama/Llama-3.1-8B"), Some("llama-3.1-8b"));
        assert_eq!(found("Qwen/Qwen2.5-7B-Instruct"), Some("qwen2.5-7b"));
        assert_eq!(found("meta-llama/Llama-2-7b-chat-hf"), Some("llama-2-7b"));
        assert_eq!(found("gpt-2"), None);
    }
}
