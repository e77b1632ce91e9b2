//! A model on disk, opened and checked.

use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use interbed_device::Bytes;
use interbed_kernels::{DType, KvLayout};
use interbed_model::chat_template::ChatTemplate;
use interbed_model::config::ModelConfig;
use interbed_model::generation_config::GenerationConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::tokenizer::Tokenizer;
use interbed_model::{HeadSource, layers};
use interbed_weights::{
    BAND_LEAST, Catalog, CatalogEntry, ElementType, GroupSpec, StreamPlan, WeightError, model_name, plan_bytes,
};

use crate::audience::Surroundings;
use crate::bundled::bundled_model;
use crate::failure::Advised;
use crate::identity::WeightsIdentity;
use crate::needs::{Needs, WeighedModel, kv_layout};
use crate::options::LimitOptions;
use crate::printable::plain_name;
use crate::quiet_panics::quietly;
use crate::small_files;

/// The number of bytes of the embedding and the head that are compared if the weights are not on this machine.
const COMPARED_ELSEWHERE: u64 = 64 << 10;

/// The checked contents of a directory, a GGUF file or a packed store. Weights are not loaded yet.
pub struct ModelDir {
    /// The path of the directory, the file or the block device.
    pub path: PathBuf,
    /// The shape of the model.
    pub config: ModelConfig,
    /// The model's sampling defaults.
    pub generation: GenerationConfig,
    /// The ids of the tokens that end a text, as far as they are known without the tokenizer.
    pub end_tokens: Vec<u32>,
    /// The tensors, and where their bytes are.
    pub catalog: Catalog,
    /// The weights that the head uses: its own, or the embedding's.
    pub head: HeadSource,
    /// The tensors of each layer, in the order in which a pass uses them.
    pub specs: Vec<GroupSpec>,
    /// The number of bytes of all tensors in `specs`.
    pub weight_bytes: Bytes,
    /// The identity of the weights, if a tier below memory needs it.
    pub identity: Option<WeightsIdentity>,
}

impl ModelDir {
    /// Opens the model at `path`, or the bundled model. A directory without safetensors files may hold a GGUF model.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => bundled_model()?,
        };
        if !path.is_dir() && !path.is_file() && !is_block_device(&path) {
            return Err(not_there(&path));
        }
        let opened = match Catalog::open(&path) {
            // The error is final for a file that cannot be opened and for a damaged GGUF file; a directory may have
            // another problem.
            Err(error) if !path.is_dir() || matches!(error, WeightError::Gguf { .. }) => return Err(error.into()),
            opened => opened,
        };
        // A missing configuration is reported before problems with weights, because without it the directory is no
        // model.
        if path.is_dir() && !is_gguf(&opened) && !path.join("config.json").exists() {
            return Err(no_configuration(&path, !matches!(opened, Err(WeightError::NoWeights { .. }))));
        }
        let (config, generation) = small_files::configuration(opened.as_ref().ok(), &path)?;
        Self::check(path, config, generation, opened?, u64::MAX)
    }

    /// Reads the model from the headers in `catalog` and the small files in `path`. The weights may be elsewhere.
    ///
    /// # Errors
    /// Fails if the model cannot be computed, or its weights do not match its configuration.
    pub fn of(path: PathBuf, catalog: Catalog) -> Result<Self> {
        let (config, generation) = small_files::configuration(Some(&catalog), &path)?;
        Self::check(path, config, generation, catalog, COMPARED_ELSEWHERE)
    }

    fn check(
        path: PathBuf,
        mut config: ModelConfig,
        generation: GenerationConfig,
        mut catalog: Catalog,
        compared: u64,
    ) -> Result<Self> {
        let head = HeadSource::settle(&mut config, &mut catalog, compared)?;
        let end_tokens = interbed_model::end_tokens(&generation, &config, None, None);
        let specs = layers::group_specs(&config.blueprint);
        if let Some(gguf) = GgufModel::of(&catalog) {
            gguf.check_tensors(&specs)?;
        }
        let weight_bytes = Bytes(plan_bytes(&catalog, &specs)?);
        Ok(Self { path, config, generation, end_tokens, catalog, head, specs, weight_bytes, identity: None })
    }

    /// Makes the identity of the weights known: from a note or checksums, or by hashing the weights as they are read.
    pub fn identify(&mut self) {
        self.identity = Some(WeightsIdentity::begin(&mut self.catalog, &self.specs));
    }

    /// Returns the configuration, and the identity of the weights if it was asked for: both decide which KV is
    /// computed.
    pub fn identified(&self) -> (&ModelConfig, Option<&WeightsIdentity>) {
        (&self.config, self.identity.as_ref())
    }

    /// Returns the name that clients see: the last part of the path. For a file, the extension and part numbers are
    /// left out.
    pub fn name(&self) -> String {
        // A block device's path names its bus, so the name comes from the store's manifest.
        if let Some(store) = self.catalog.store().filter(|_| is_block_device(&self.path)) {
            return plain_name(&store.manifest().name);
        }
        // In a Hub cache, a file is a link to a file named by its hash, so links to files are not followed.
        if self.path.is_file()
            && let Ok(absolute) = std::path::absolute(&self.path)
            && let Some(name) = model_name(&absolute)
        {
            return plain_name(&name);
        }
        // In a Hub cache, a folder is named by its commit.
        if let Some(name) = name_in_cache(&self.path) {
            return plain_name(&name);
        }
        let absolute = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        absolute.file_name().map_or_else(|| "model".into(), |name| plain_name(&name.to_string_lossy()))
    }

    /// Returns the name of the format in which the weights are stored.
    pub fn format(&self) -> &'static str {
        match (self.catalog.store(), self.catalog.metadata()) {
            (Some(_), _) => "interbed",
            (None, Some(_)) => "gguf",
            (None, None) => "safetensors",
        }
    }

    /// Returns the types of the model's weights with the bytes of each, largest first.
    pub fn weight_types(&self) -> Vec<(DType, Bytes)> {
        // Coded matrices may differ in the room for patches, but users see them as one type.
        self.sum_by_type(|(known, found)| known.name() == found.name(), |dtype, entry| (dtype, entry.bytes))
    }

    /// Returns the type of most weights, before any coding: a packed store has the type of the model that it was
    /// packed from.
    pub fn weight_dtype(&self) -> DType {
        let types = self.sum_by_type(
            |(known, found)| known == found,
            |dtype, entry| {
                let (&cols, outer) = entry.shape.split_last().unwrap_or((&1, &[]));
                let rows = outer.iter().fold(1u64, |rows, &dim| rows.saturating_mul(dim as u64));
                // FP8 counts as a type of its own, although it is decoded; coded bf16 counts as bf16.
                let dtype = if dtype == DType::Fp8 { dtype } else { dtype.decoded() };
                (dtype, rows.saturating_mul(dtype.row_bytes(cols).unwrap_or(0) as u64))
            },
        );
        types.first().map(|(dtype, _)| *dtype).or(self.config.dtype).unwrap_or(DType::F32)
    }

    /// Returns the bytes of all weights by type, largest first. `weigh` returns the type and the bytes that count for
    /// a tensor.
    fn sum_by_type(
        &self,
        is_same: impl Fn((DType, DType)) -> bool,
        weigh: impl Fn(DType, &CatalogEntry) -> (DType, u64),
    ) -> Vec<(DType, Bytes)> {
        let mut names = HashSet::new();
        let mut types: Vec<(DType, Bytes)> = Vec::new();
        // A tied head is the embedding, which has been counted already.
        for tensor in self.specs.iter().flat_map(|group| &group.tensors).filter(|tensor| names.insert(&tensor.name)) {
            // Loading refuses unknown types with an error that names them.
            let Some(entry) = self.catalog.get(&tensor.name) else { continue };
            let ElementType::Known(dtype) = entry.element_type else { continue };
            let (dtype, bytes) = weigh(dtype, entry);
            match types.iter_mut().find(|(known, _)| is_same((*known, dtype))) {
                Some((_, sum)) => sum.0 = sum.0.saturating_add(bytes),
                None => types.push((dtype, Bytes(bytes))),
            }
        }
        types.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.0));
        types
    }

    /// Returns the model's tokenizer.
    ///
    /// # Errors
    /// Fails if the tokenizer is missing or cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        quietly(|| small_files::tokenizer(&self.catalog, &self.path))
    }

    /// Returns the chat template, if the model has one.
    ///
    /// # Errors
    /// Fails if the template cannot be used.
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        small_files::template(&self.catalog, &self.path)
    }

    /// Returns the memory layout of the model's KV blocks under these options.
    pub fn kv_layout(&self, limits: &LimitOptions) -> KvLayout {
        kv_layout(&self.config, self.weight_dtype(), limits)
    }

    /// Returns the number of bytes of the weights of all experts, or 0 for a model without experts.
    pub fn expert_bytes(&self) -> Result<Bytes> {
        Ok(Bytes(StreamPlan::new(&self.catalog, &self.specs, BAND_LEAST)?.partition().expert_bytes()))
    }

    /// Returns what the model needs under these options.
    ///
    /// # Errors
    /// Fails if the options contradict the model.
    pub fn needs<'a>(&'a self, limits: &'a LimitOptions, surroundings: &Surroundings<'a>) -> Result<Needs<'a>> {
        let streamed = StreamPlan::new(&self.catalog, &self.specs, BAND_LEAST)?.partition().least_budget();
        let model = WeighedModel {
            name: self.name(),
            config: &self.config,
            dtype: self.weight_dtype(),
            weights: self.weight_bytes,
            weights_streamed: Bytes(streamed),
        };
        Needs::of(model, limits, surroundings)
    }
}

/// Returns `NAME` for a folder `models--ORG--NAME/snapshots/COMMIT`.
fn name_in_cache(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let folder = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    folder.split_once("--").map(|(_, name)| name.to_owned())
}

fn is_gguf(opened: &Result<Catalog, WeightError>) -> bool {
    opened.as_ref().is_ok_and(|catalog| catalog.metadata().is_some())
}

/// Returns the error for a MODEL path that does not exist on this machine.
fn not_there(path: &Path) -> anyhow::Error {
    Advised::input(
        format!("{} is neither a directory nor a file", path.display()),
        "give a GGUF file, a packed store, a Hugging Face directory with config.json, *.safetensors and \
         tokenizer.json, a short name such as llama3.2:1b (`interbed plan` lists some, and what fits), or ORG/NAME on \
         the Hub; a prompt goes behind --prompt",
    )
}

fn no_configuration(path: &Path, has_weights: bool) -> anyhow::Error {
    let (message, hint) = match has_weights {
        true => {
            ("has weights, but no config.json that says what they are", "fetch the model's config.json beside them")
        }
        false => (
            "holds no model: it has neither a config.json nor a GGUF file",
            "give a GGUF file, a packed store, or a Hugging Face directory with config.json, *.safetensors and \
             tokenizer.json; `interbed plan` lists models by name, and what fits",
        ),
    };
    Advised::input(format!("{} {message}", path.display()), hint)
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}
