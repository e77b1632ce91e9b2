//! Which model is planned for: weights at hand, a configuration, or a well-known name.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use strata_device::Bytes;
use strata_io::DirectRead;
use strata_kernels::DType;
use strata_model::config::{ConfigError, ConfigProblem, ModelConfig};
use strata_model::groups;
use strata_model::presets::{preset, preset_names};
use strata_weights::{ElementType, GroupSpec, TensorSpec, WeightError, open_direct};

use super::shape::{Cut, Place, Shape};
use crate::failure::Advised;
use crate::load::ModelDir;
use crate::needs::WeightNeeds;
use crate::streaming::{self, BAND_LEAST};

/// Longest configuration that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// A model to plan for.
pub struct Subject {
    /// What it is called.
    pub name: String,
    /// Where its shape comes from, if not from weights.
    pub note: Option<String>,
    pub config: ModelConfig,
    /// The type that most weights have.
    pub dtype: DType,
    specs: Vec<GroupSpec>,
    weights: Weights,
}

enum Weights {
    AtHand(Box<ModelDir>),
    /// All matrices in one type, as far as their rows are whole blocks of it.
    Imagined(DType),
}

impl Subject {
    /// What `model` names: a directory, a file, a well-known name; `None` is the model that ships with Strata. `dtype` is
    /// for what has no weights.
    ///
    /// # Errors
    /// Nothing of that name, nothing that can be computed, or a `dtype` for weights that have one.
    pub fn find(model: Option<&Path>, dtype: Option<DType>) -> Result<Self> {
        if let Some((config, name, note)) = model.map(imagined).transpose()?.flatten() {
            let dtype = dtype.or(config.dtype).unwrap_or(DType::BF16);
            let specs = groups::group_specs(&config);
            let subject = Self { name, note: Some(note), config, dtype, specs, weights: Weights::Imagined(dtype) };
            subject.cut(Cut::Bands(BAND_LEAST))?;
            return Ok(subject);
        }
        let dir = ModelDir::open(model)?;
        if dtype.is_some() {
            return Err(Advised::input(
                format!("--dtype is for models without weights, but {} has some", dir.path.display()),
                format!("leave it out, or plan {}", dir.path.join("config.json").display()),
            ));
        }
        // Checks every tensor against the configuration.
        streaming::least_bytes(&dir)?;
        Ok(Self {
            name: dir.name(),
            note: None,
            config: dir.config.clone(),
            dtype: dir.weight_dtype(),
            specs: dir.specs.clone(),
            weights: Weights::AtHand(Box::new(dir)),
        })
    }

    /// The matrices as units.
    ///
    /// # Errors
    /// Sizes beyond what can be counted.
    pub fn cut(&self, cut: Cut) -> Result<Shape> {
        let shape = Shape::cut(&self.specs, &|tensor| self.place(tensor), cut);
        shape.with_context(|| format!("the sizes of {} cannot be counted", self.name))
    }

    /// What the weights need.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn needs(&self) -> Result<WeightNeeds> {
        if let Weights::AtHand(dir) = &self.weights {
            return Ok(WeightNeeds {
                dtype: self.dtype,
                whole: dir.weight_bytes,
                streamed: streaming::least_bytes(dir)?,
            });
        }
        let shape = self.cut(Cut::Bands(BAND_LEAST))?;
        let embedding = if self.config.tied_embeddings { 0 } else { shape.embedding_bytes };
        let whole = Bytes(shape.memory().saturating_add(shape.vector_bytes).saturating_add(embedding));
        Ok(WeightNeeds { dtype: self.dtype, whole, streamed: Bytes(shape.least_budget()) })
    }

    /// The weights' files, opened for direct reads; none where there are no weights.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn files(&self) -> Result<Vec<Arc<dyn DirectRead>>, WeightError> {
        match &self.weights {
            Weights::AtHand(dir) => open_direct(&dir.catalog),
            Weights::Imagined(_) => Ok(Vec::new()),
        }
    }

    fn place(&self, tensor: &TensorSpec) -> Place {
        match &self.weights {
            Weights::AtHand(dir) => {
                let entry = dir.catalog.get(&tensor.name);
                let dtype = match entry.map(|entry| &entry.element_type) {
                    Some(ElementType::Known(dtype)) => *dtype,
                    // Refused when the model was opened.
                    _ => self.dtype,
                };
                Place { dtype, offset: entry.map_or(0, |entry| entry.offset) }
            }
            Weights::Imagined(dtype) => {
                // As `strata synth` writes them.
                let candidates = match *tensor.shape {
                    [_, cols] => [*dtype, DType::Q8_0, DType::F16].map(|dtype| (dtype, cols)),
                    _ if dtype.is_plain() => [(*dtype, 1); 3],
                    _ => [(DType::F32, 1); 3],
                };
                let fitting = candidates.into_iter().find(|(dtype, cols)| dtype.row_bytes(*cols).is_some());
                Place { dtype: fitting.map_or(DType::F16, |(dtype, _)| dtype), offset: 0 }
            }
        }
    }
}

/// The configuration that `model` names, with the model's name and where it comes from; `None` if there may be weights.
fn imagined(model: &Path) -> Result<Option<(ModelConfig, String, String)>> {
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
        Advised::input(
            format!("{text} is neither a file or directory here nor a model whose shape Strata knows"),
            format!(
                "known are {}; nothing can be downloaded yet: for any other model, fetch its config.json and give \
                 that file",
                known.join(", ")
            ),
        )
    })?;
    // The name was found in the list.
    let json = preset(name).with_context(|| format!("unknown model {name}"))?;
    let note = format!("{name}: a shape that Strata knows, without weights");
    Ok(Some((ModelConfig::from_json(&json)?, name.to_owned(), note)))
}

/// The preset that a name means: its own, or that of a Hub's model.
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

fn holds_weights(dir: &Path) -> Result<bool> {
    let entries = dir.read_dir().with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let name: PathBuf = entry.with_context(|| format!("cannot read {}", dir.display()))?.file_name().into();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name.ends_with(".gguf") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn from_file(file: &Path, dir: Option<&Path>) -> Result<(ModelConfig, String, String)> {
    let failed = |problem: ConfigProblem| ConfigError { file: file.to_owned(), problem };
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(CONFIG_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error: io::Error| failed(ConfigProblem::Read(error)))?;
    let config = ModelConfig::from_json(&text).map_err(|error| failed(error.problem))?;
    let folder = dir.and_then(|dir| dir.canonicalize().ok());
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    Ok((config, name.unwrap_or_else(|| "model".into()), format!("shape of {}, without weights", file.display())))
}

#[cfg(test)]
mod tests {
    use strata_model::synth::{SynthSpec, synthesize};
    use strata_weights::StreamPlan;

    use super::*;

    /// A plan cuts, counts and keeps as the driver does.
    #[test]
    fn plans_agree_with_what_streams() {
        for dtype in [DType::F32, DType::Q8_0] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let dir = folder.path().join("tiny");
            let config_json = preset("tiny").expect("a preset");
            let spec = SynthSpec {
                config_json,
                num_layers: None,
                dtype: Some(dtype),
                seed: 1,
                shard_bytes: 1 << 30,
                gguf: false,
            };
            synthesize(&spec, &dir, &mut |_, _| ()).expect("a model");
            let subject = Subject::find(Some(&dir), None).expect("the model is there");
            let imagined = Subject::find(Some(&dir.join("config.json")), Some(dtype));
            let opened = ModelDir::open(Some(&dir)).expect("the model is there");
            for band in [8 << 10, 64 << 10] {
                let shape = subject.cut(Cut::Bands(band)).expect("sizes can be counted");
                let streamed = StreamPlan::new(&opened.catalog, &opened.specs, band).expect("a model that streams");
                assert_eq!(shape.swept_bytes(), streamed.swept_bytes(), "{dtype}");
                assert_eq!(shape.fixed_bytes(), streamed.fixed_bytes(), "{dtype}");
                assert_eq!(shape.memory(), streamed.band_memory(), "{dtype}");
                if let (Ok(imagined), DType::F32) = (&imagined, dtype) {
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
