//! All tensors of a model, and where their bytes lie.

pub(crate) mod fp8;
mod fused;
mod mixtures;
mod rearranged;

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use interbed_io::{DirectRead, ExactFile, IoError, RandomAccessFile};
use interbed_kernels::{DType, Matrix};
use serde::Deserialize;

use crate::content::{ContentHash, HashedTensor, TensorPart};
use crate::error::{IndexProblem, WeightError};
use crate::gguf::{
    FilesOfDir, GgufProblem, Metadata, ModelPart, TensorNames, check_parts, gguf_name, models_in, open_parts, read_gguf,
};
use crate::group::GroupSpec;
use crate::hashed_file::{HashedDirect, HashedFile};
use crate::pairs::Pairs;
use crate::safetensors::{ElementType, TensorRecord, read_header};
use crate::store::{METADATA_FILE, Store};
pub use fp8::FileScales;
use rearranged::{Rearranged, RearrangedFile};

/// Maximum number of bytes of a shard index that is read; the indexes of the largest models are under 10 MB.
const INDEX_BYTES_MAX: u64 = 100_000_000;

/// Number of bytes that are compared first, and after that at a time, when two tensors are compared.
const COMPARED_FIRST: u64 = 64 << 10;
const COMPARED_AT_A_TIME: u64 = 4 << 20;
/// Number of bytes that are hashed at a time of a tensor that has no rows.
const PIECE_BYTES: u64 = 64 << 10;

/// Position, shape and type of one tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Index in [`Catalog::files`] of the file that holds the tensor.
    pub file: usize,
    /// Offset of the tensor's first byte in that file.
    pub offset: u64,
    /// Length of the tensor in bytes.
    pub bytes: u64,
    /// Shape of the tensor, outermost dimension first.
    pub shape: Vec<usize>,
    /// Type in which the tensor's elements are stored.
    pub element_type: ElementType,
    /// Place of the scales of an FP8 matrix, if its file stores them as a separate tensor. The entry's own bytes are
    /// then only the FP8 codes.
    pub scales: Option<Box<FileScales>>,
}

impl CatalogEntry {
    /// Returns the name and the entry of a tensor in the file with index `file`.
    fn of(file: usize, tensor: TensorRecord) -> (String, Self) {
        let TensorRecord { name, element_type, shape, offset, bytes } = tensor;
        (name, Self { file, offset, bytes, shape, element_type, scales: None })
    }

    /// Returns how many bytes are hashed at a time: the bytes of a row, or of a piece of fixed size if the tensor has
    /// no rows.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        match *self.shape.as_slice() {
            [rows, _, ..] if rows > 0 && self.bytes.is_multiple_of(rows as u64) => (self.bytes / rows as u64).max(1),
            _ => PIECE_BYTES,
        }
    }

    /// Describes this tensor, called `name`, for hashing.
    fn hashed(&self, name: &str) -> HashedTensor {
        let mut parts =
            vec![TensorPart { file: self.file, offset: self.offset, bytes: self.bytes, leaf: self.leaf_bytes() }];
        if let (Some(scales), &[rows, cols]) = (&self.scales, self.shape.as_slice()) {
            let bytes = (scales.count([rows, cols]) * scales.dtype.block_bytes()) as u64;
            parts.push(TensorPart { file: scales.file, offset: scales.offset, bytes, leaf: PIECE_BYTES });
        }
        HashedTensor {
            name: name.to_owned(),
            described: format!("{} {:?}", self.element_type.name(), self.shape),
            parts,
        }
    }
}

/// The tensors of a model, by name, in one or more open files. Opening a catalog reads only the headers of the files.
///
/// Tensors have their Hugging Face names, whatever the format of the files. In mixtures, each matrix of each expert is
/// a separate tensor. `catalog/mixtures.rs` lists the names of these tensors. A tensor that has no Hugging Face name
/// keeps the name that it has in the file.
pub struct Catalog {
    files: Vec<Arc<dyn RandomAccessFile>>,
    tensors: BTreeMap<String, CatalogEntry>,
    /// Name in the file of each tensor that was given another name here.
    in_file: HashMap<String, Arc<str>>,
    metadata: Option<Metadata>,
    store: Option<Store>,
    /// The last of the files, which shows experts in another arrangement; `None` if no experts have to be rearranged.
    rearranged: Option<Arc<RearrangedFile>>,
    /// Hashes of what is read of the files; `None` if nothing is hashed.
    content: Option<Arc<ContentHash>>,
    left_alone: Vec<String>,
}

impl Catalog {
    /// Opens the weights at `path`, which is a packed store (a file or a block device), a GGUF file or a directory. For
    /// a split GGUF model, `path` may name any of its parts. In a directory, opens the first of the following that
    /// exists: `model.safetensors`, the shards that `model.safetensors.index.json` names, all files `*.safetensors`, or
    /// the only GGUF model. GGUF files in the directory that are not language models are ignored, and
    /// [`left_alone`](Self::left_alone) lists them.
    ///
    /// # Errors
    /// Fails if there are no weights, a header is damaged, an index does not match its shards, parts of a GGUF model
    /// are missing or do not belong together, a directory has several GGUF models, or a file cannot be read. The error
    /// names the file or directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let dir = path.as_ref();
        if !dir.is_dir() {
            let file: Arc<dyn RandomAccessFile> = Arc::new(ExactFile::open(dir)?);
            return match Store::is_at(file.as_ref())? {
                true => Self::from_store(Store::open(file)?),
                false => Self::from_gguf(open_parts(dir)?),
            };
        }
        let single = dir.join("model.safetensors");
        if single.exists() {
            return Self::from_files(vec![Arc::new(ExactFile::open(single)?)]);
        }
        let index = dir.join("model.safetensors.index.json");
        if index.exists() {
            return Self::open_index(dir, &index);
        }
        let Found { safetensors, gguf, has_pickle } = list_weights(dir)?;
        if safetensors.is_empty() {
            let FilesOfDir { models, others } = models_in(&gguf);
            return match models.as_slice() {
                [] => Err(WeightError::NoWeights { dir: dir.to_owned(), has_pickle }),
                [model] => {
                    let catalog = Self::from_gguf(open_parts(model)?)?;
                    Ok(Self { left_alone: others.into_iter().map(|path| file_name(path)).collect(), ..catalog })
                }
                [first, second, ..] => {
                    let [first, second] = [first, second].map(|path| file_name(path));
                    let problem = GgufProblem::SeveralModels { count: models.len(), first, second };
                    Err(WeightError::Gguf { file: dir.to_owned(), problem })
                }
            };
        }
        let mut files: Vec<Arc<dyn RandomAccessFile>> = Vec::with_capacity(safetensors.len());
        for path in safetensors {
            files.push(Arc::new(ExactFile::open(path)?));
        }
        Self::from_files(files)
    }

    /// Returns the names of the GGUF files that [`open`](Self::open) found in the directory and did not open, because
    /// they are not language models. An example is the vision part of a model.
    pub fn left_alone(&self) -> &[String] {
        &self.left_alone
    }

    /// Creates a catalog of all tensors in the given safetensors files. Every tensor must have a different name.
    ///
    /// # Errors
    /// Fails if a header is damaged, or if two files have a tensor of the same name.
    pub fn from_files(files: Vec<Arc<dyn RandomAccessFile>>) -> Result<Self, WeightError> {
        let entries = read_all(&files)?;
        Self::of(files, entries, None)
    }

    /// Creates a catalog of the tensors in `files`, which are the shards of a model in any order. `index` is the path
    /// of the shard index.
    ///
    /// # Errors
    /// Fails if a header is damaged, or if the index does not match the shards.
    pub fn from_shards(index: &Path, files: Vec<Arc<dyn RandomAccessFile>>) -> Result<Self, WeightError> {
        let shards = files.iter().enumerate().map(|(at, file)| (file_name(file.path()), at)).collect();
        Self::of_shards(index, &read_index(index)?, &shards, files)
    }

    /// Creates a catalog of the tensors of a GGUF model. `files` are all parts of the model, in order.
    ///
    /// # Errors
    /// Fails if a header is damaged, if two tensors have the same name, or if the parts do not belong together.
    pub fn from_gguf_files(files: Vec<Arc<dyn RandomAccessFile>>) -> Result<Self, WeightError> {
        let headers = files.into_iter().map(|file| read_gguf(file.as_ref()).map(|header| (file, header)));
        let parts = headers.collect::<Result<Vec<_>, _>>()?;
        check_parts(&parts)?;
        Self::from_gguf(parts)
    }

    /// Takes the tensors of all parts of a GGUF model, and the metadata of the first.
    fn from_gguf(parts: Vec<ModelPart>) -> Result<Self, WeightError> {
        let (mut files, mut entries, mut metadata) = (Vec::new(), Vec::new(), None);
        for (file, (opened, header)) in parts.into_iter().enumerate() {
            entries.extend(header.tensors.into_iter().map(|tensor| CatalogEntry::of(file, tensor)));
            files.push(opened);
            metadata.get_or_insert(header.metadata);
        }
        Self::of(files, entries, metadata)
    }

    /// Creates a catalog of the tensors in a packed store. If the store was packed from a GGUF model, the catalog
    /// includes the GGUF metadata.
    ///
    /// # Errors
    /// Fails if the metadata is damaged.
    pub fn from_store(store: Store) -> Result<Self, WeightError> {
        let metadata = store.read_gguf(METADATA_FILE)?.map(|header| header.metadata);
        let entries = store.tensors().into_iter().map(|tensor| CatalogEntry::of(0, tensor)).collect();
        let catalog = Self::of(vec![store.file().clone()], entries, metadata)?;
        Ok(Self { store: Some(store), ..catalog })
    }

    fn of(
        mut files: Vec<Arc<dyn RandomAccessFile>>,
        mut entries: Vec<(String, CatalogEntry)>,
        metadata: Option<Metadata>,
    ) -> Result<Self, WeightError> {
        let (mut tensors, mut in_file) = (BTreeMap::new(), HashMap::new());
        let is_gguf = metadata.is_some();
        fp8::join(&mut entries);
        let (found, arrangement) = rearranged::take(&mut entries, files.len());
        let rearranged = (!arrangement.is_empty()).then(|| Arc::new(RearrangedFile::new(&files, arrangement)));
        for Rearranged { name, in_file: original, entry } in found {
            in_file.insert(name.clone(), original.into());
            tensors.insert(name, entry);
        }
        files.extend(rearranged.iter().map(|file| Arc::clone(file) as Arc<dyn RandomAccessFile>));
        let names = is_gguf.then(|| TensorNames::new(entries.iter().map(|(name, _)| name.as_str())));
        for (name, entry) in entries {
            let face = match &names {
                Some(names) => names.hugging_face_name(&name),
                None => text_model_name(&name).or_else(|| name_of_mixer(&name)),
            };
            let mut known = mixtures::known_here(face.as_deref().unwrap_or(&name), &entry);
            if known.is_empty() {
                known.push((face.unwrap_or_else(|| name.clone()), entry));
            }
            let original: Arc<str> = name.into();
            for (name, entry) in known {
                let second = entry.file;
                if let Some(CatalogEntry { file: first, .. }) = tensors.insert(name.clone(), entry) {
                    let [first_path, second_path] = [first, second].map(|file| files[file].path().to_owned());
                    let of_gguf = is_gguf.then(|| gguf_name(&name)).flatten();
                    let tensor = of_gguf.unwrap_or_else(|| original.to_string());
                    return Err(match first == second {
                        // Two names in one file that mean the same tensor.
                        true if is_gguf => {
                            WeightError::Gguf { file: first_path, problem: GgufProblem::DuplicateTensor { tensor } }
                        }
                        true => WeightError::SameTensorTwice { file: first_path, tensor, name },
                        false => WeightError::TensorInTwoFiles { tensor, first: first_path, second: second_path },
                    });
                }
                if *original != *name {
                    in_file.insert(name, Arc::clone(&original));
                }
            }
        }
        for fused::Fused { name, parts } in fused::fused(&tensors) {
            // An up_proj may be in its own place.
            tensors.remove(&name);
            let original = in_file.remove(&name).unwrap_or_else(|| name.into());
            for (name, entry) in parts {
                if tensors.insert(name.clone(), entry).is_some() {
                    let (file, tensor) = (files[0].path().to_owned(), original.to_string());
                    return Err(WeightError::SameTensorTwice { file, tensor, name });
                }
                in_file.insert(name, Arc::clone(&original));
            }
        }
        Ok(Self { files, tensors, in_file, metadata, store: None, rearranged, content: None, left_alone: Vec::new() })
    }

    /// Opens the shards that an index names.
    fn open_index(dir: &Path, index: &Path) -> Result<Self, WeightError> {
        let problem = |problem| WeightError::Index { file: index.to_owned(), problem };
        let placed = read_index(index)?;
        let mut shards: BTreeMap<String, usize> = BTreeMap::new();
        let mut files: Vec<Arc<dyn RandomAccessFile>> = Vec::new();
        for (tensor, shard) in &placed {
            if shards.contains_key(shard.as_str()) {
                continue;
            }
            if !is_plain_file_name(shard) {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(problem(IndexProblem::ShardOutsideDirectory { tensor, shard }));
            }
            let file = ExactFile::open(dir.join(shard)).map_err(|error| match &error {
                IoError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                    problem(IndexProblem::MissingShard { shard: shard.clone() })
                }
                _ => error.into(),
            })?;
            shards.insert(shard.clone(), files.len());
            files.push(Arc::new(file));
        }
        Self::of_shards(index, &placed, &shards, files)
    }

    /// Takes the tensors of shards. `placed` maps tensors to names of shards, and `shards` maps these names to files.
    fn of_shards(
        index: &Path,
        placed: &[(String, String)],
        shards: &BTreeMap<String, usize>,
        files: Vec<Arc<dyn RandomAccessFile>>,
    ) -> Result<Self, WeightError> {
        let problem = |problem| WeightError::Index { file: index.to_owned(), problem };
        let mut found: HashMap<(usize, String), CatalogEntry> = HashMap::new();
        for (name, entry) in read_all(&files)? {
            found.insert((entry.file, name), entry);
        }
        let mut tensors = BTreeMap::new();
        for (tensor, shard) in placed {
            let file =
                *shards.get(shard).ok_or_else(|| problem(IndexProblem::MissingShard { shard: shard.clone() }))?;
            let Some(entry) = found.remove(&(file, tensor.clone())) else {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(problem(IndexProblem::TensorNotInShard { tensor, shard }));
            };
            tensors.insert(tensor.clone(), entry);
        }
        // Tensors that are in a shard but missing from the index are kept, as other readers do; the index wins on
        // conflict.
        for ((_, name), entry) in found {
            tensors.entry(name).or_insert(entry);
        }
        Self::of(files, tensors.into_iter().collect(), None)
    }

    /// Returns the packed store, if the catalog was opened from one.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Returns the metadata of a GGUF model, or `None` for a safetensors model. A safetensors model has `config.json`
    /// and other files instead, in its directory or packed store.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// Reads the elements of a small F32 tensor. Returns `None` if no tensor has this name, or if the tensor has more
    /// than `most` elements.
    ///
    /// # Errors
    /// Fails if the elements have another type, or if the read fails.
    pub fn read_f32(&self, name: &str, most: usize) -> Result<Option<Vec<f32>>, WeightError> {
        let Some(entry) = self.get(name).filter(|entry| entry.bytes <= most as u64 * 4) else { return Ok(None) };
        if entry.element_type != ElementType::Known(DType::F32) {
            let (tensor, found) = (self.name_in_file(name), entry.element_type.name().to_owned());
            return Err(WeightError::UnsupportedDType { tensor, file: self.path_of(entry), found });
        }
        let mut bytes = vec![0; entry.bytes as usize];
        self.files[entry.file].read_exact_at(&mut bytes, entry.offset)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok(Some(numbers.iter().map(|&number| f32::from_le_bytes(number)).collect()))
    }

    /// Reads the scale of each block of an FP8 matrix whose file stores scales as another tensor; `None` for other
    /// tensors.
    ///
    /// # Errors
    /// Fails if the read fails.
    pub(crate) fn read_scales(&self, entry: &CatalogEntry) -> Result<Option<Vec<f32>>, WeightError> {
        let (Some(scales), &[rows, cols]) = (&entry.scales, entry.shape.as_slice()) else { return Ok(None) };
        let count = scales.count([rows, cols]);
        // As many bytes as the header says, which was checked.
        let mut bytes = vec![0; count * scales.dtype.block_bytes()];
        self.files[scales.file].read_exact_at(&mut bytes, scales.offset)?;
        let mut numbers = vec![0.0; count];
        Matrix::new(scales.dtype, 1, count, &bytes).widen_row(0, &mut numbers);
        Ok(Some(scales.spread(numbers, [rows, cols])))
    }

    /// Fails if any matrix has its scales in another tensor. Streamed weights are used as they were read: joining
    /// scales to them would cost every read what packing costs once.
    pub(crate) fn check_streamable(&self) -> Result<(), WeightError> {
        match self.tensors().find(|(_, entry)| entry.scales.is_some()) {
            None => Ok(()),
            Some((name, entry)) => {
                Err(WeightError::ScalesApart { tensor: self.name_in_file(name), file: self.path_of(entry) })
            }
        }
    }

    /// Returns the tensor with that name, if there is one.
    pub fn get(&self, name: &str) -> Option<&CatalogEntry> {
        self.tensors.get(name)
    }

    /// Returns whether two tensors have the same shape, type and content. Compares at most the first `compared` bytes
    /// of their contents.
    ///
    /// # Errors
    /// Fails if a read fails.
    pub fn is_same(&self, one: &str, other: &str, compared: u64) -> Result<bool, WeightError> {
        let (Some(one), Some(other)) = (self.get(one), self.get(other)) else { return Ok(false) };
        let shape = |entry: &CatalogEntry| (entry.bytes, entry.shape.clone(), entry.element_type.clone());
        if shape(one) != shape(other) || one.scales.is_some() || other.scales.is_some() {
            return Ok(false);
        }
        if (one.file, one.offset) == (other.file, other.offset) {
            return Ok(true);
        }
        let mut buffers = [const { Vec::new() }; 2];
        let (mut at, end) = (0, one.bytes.min(compared));
        while at < end {
            // Two that differ mostly do so at once.
            let count = if at == 0 { COMPARED_FIRST } else { COMPARED_AT_A_TIME }.min(end - at);
            for (buffer, entry) in buffers.iter_mut().zip([one, other]) {
                buffer.resize(count as usize, 0);
                self.files[entry.file].read_exact_at(buffer, entry.offset + at)?;
            }
            if buffers[0] != buffers[1] {
                return Ok(false);
            }
            at += count;
        }
        Ok(true)
    }

    /// Renames the tensor `from`, if there is one, to `to`.
    pub fn rename(&mut self, from: &str, to: &str) {
        let in_file = self.name_in_file(from);
        if let Some(entry) = self.tensors.remove(from) {
            self.in_file.remove(from);
            self.in_file.insert(to.to_owned(), in_file.into());
            self.tensors.insert(to.to_owned(), entry);
        }
    }

    /// Returns all tensors with their names, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &CatalogEntry)> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Returns the files that the entries refer to. The last one may be a virtual file, which presents experts from the
    /// other files in another layout.
    pub fn files(&self) -> &[Arc<dyn RandomAccessFile>] {
        &self.files
    }

    /// Returns the model's own files, without the virtual file that [`files`](Self::files) may include.
    pub fn stored_files(&self) -> &[Arc<dyn RandomAccessFile>] {
        &self.files[..self.files.len() - usize::from(self.rearranged.is_some())]
    }

    /// Starts to hash the tensors that `specs` name. Each of their bytes is hashed when it is first read.
    pub fn hash_content(&mut self, specs: &[GroupSpec]) -> Arc<ContentHash> {
        let mut names: Vec<_> = specs.iter().flat_map(|group| &group.tensors).map(|tensor| &tensor.name).collect();
        names.sort_unstable();
        names.dedup();
        let tensors = names.into_iter().filter_map(|name| Some(self.get(name)?.hashed(name))).collect();
        let hash = Arc::new(ContentHash::new(self.files.clone(), tensors));
        let stored = self.stored_files().len();
        for (number, file) in self.files.iter_mut().enumerate() {
            let in_steps = number < stored;
            *file = Arc::new(HashedFile { file: Arc::clone(file), hash: Arc::clone(&hash), number, in_steps });
        }
        self.content = Some(Arc::clone(&hash));
        hash
    }

    /// Wraps `files`, which are opened for direct reads in the order of [`files`](Self::files), so that what is read of
    /// them is hashed. Returns `None` if nothing is left to be hashed.
    pub(crate) fn hashed_direct(&self, files: &[Arc<dyn DirectRead>]) -> Option<Vec<Arc<dyn DirectRead>>> {
        let hash = self.content.as_ref().filter(|hash| !hash.is_complete())?;
        let hashed = |(number, file): (usize, &Arc<dyn DirectRead>)| -> Arc<dyn DirectRead> {
            Arc::new(HashedDirect { file: Arc::clone(file), hash: Arc::clone(hash), number })
        };
        Some(files.iter().enumerate().map(hashed).collect())
    }

    /// Completes `opened`, which are the [stored files](Self::stored_files) opened for direct reads, to all
    /// [`files`](Self::files).
    pub(crate) fn with_rearranged(&self, mut opened: Vec<Arc<dyn DirectRead>>) -> Vec<Arc<dyn DirectRead>> {
        let rearranged = self.rearranged.as_ref().map(|file| file.direct(opened.clone()));
        opened.extend(rearranged);
        opened
    }

    /// Returns the name that a tensor has in its file. Messages should show this name, because users look for it in the
    /// file.
    pub fn name_in_file(&self, name: &str) -> String {
        if let Some(in_file) = self.in_file.get(name) {
            return in_file.to_string();
        }
        // A store has the names that are used here, whatever it was packed from.
        let is_gguf = self.metadata.is_some() && self.store.is_none();
        is_gguf.then(|| gguf_name(name)).flatten().unwrap_or_else(|| name.to_owned())
    }

    /// Returns the path of the file that holds an entry of this catalog.
    pub fn path_of(&self, entry: &CatalogEntry) -> PathBuf {
        self.files[entry.file].path().to_owned()
    }

    /// Returns the total size of all tensors, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|entry| entry.bytes).sum()
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<_> = self.files.iter().map(|file| file.path()).collect();
        f.debug_struct("Catalog").field("files", &paths).field("tensors", &self.tensors.len()).finish()
    }
}

/// Returns the name that a tensor has here if it belongs to the language model in a file that has other parts too, such
/// as a vision part.
fn text_model_name(name: &str) -> Option<String> {
    const PREFIXES: [(&str, &str); 3] = [
        ("language_model.model.", "model."),
        ("model.language_model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ];
    let named = |(prefix, here): &(&str, &str)| Some(format!("{here}{}", name.strip_prefix(prefix)?));
    PREFIXES.iter().find_map(named)
}

/// Returns the name that a tensor has here if it belongs to a model each of whose layers has a norm and one *mixer*,
/// which is a state space, attention, or a network. A mixer's tensors tell what it is.
fn name_of_mixer(name: &str) -> Option<String> {
    let within = name.strip_prefix("backbone.").or_else(|| name.strip_prefix("model."))?;
    match within {
        "embeddings.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "norm_f.weight" => return Some("model.norm.weight".to_owned()),
        _ => {}
    }
    let (layer, within) = within.strip_prefix("layers.")?.split_once('.')?;
    if within == "norm.weight" {
        return Some(format!("model.layers.{layer}.input_layernorm.weight"));
    }
    let tensor = within.strip_prefix("mixer.")?;
    let part = match tensor.split('.').next()? {
        "in_proj" | "out_proj" | "conv1d" | "A_log" | "D" | "dt_bias" | "norm" => "mamba",
        "q_proj" | "k_proj" | "v_proj" | "o_proj" => "self_attn",
        _ => "mlp",
    };
    Some(format!("model.layers.{layer}.{part}.{tensor}"))
}

/// Reads the headers of all files, and returns their tensors in order.
fn read_all(files: &[Arc<dyn RandomAccessFile>]) -> Result<Vec<(String, CatalogEntry)>, WeightError> {
    let mut entries = Vec::new();
    for (file, opened) in files.iter().enumerate() {
        entries.extend(read_header(opened.as_ref())?.into_iter().map(|tensor| CatalogEntry::of(file, tensor)));
    }
    Ok(entries)
}

/// The part of a shard index that is used; other entries are free-form.
#[derive(Deserialize)]
struct RawIndex {
    weight_map: Pairs<String>,
}

/// Reads an index as pairs of tensor and shard, each tensor once.
fn read_index(path: &Path) -> Result<Vec<(String, String)>, WeightError> {
    let problem = |problem| WeightError::Index { file: path.to_owned(), problem };
    let file = ExactFile::open(path)?;
    let bytes = file.len();
    if bytes > INDEX_BYTES_MAX {
        return Err(problem(IndexProblem::TooLong { bytes, limit: INDEX_BYTES_MAX }));
    }
    let mut text = vec![0; bytes as usize];
    file.read_exact_at(&mut text, 0)?;
    let RawIndex { weight_map: Pairs(placed) } =
        serde_json::from_slice(&text).map_err(|error| problem(IndexProblem::Json { message: error.to_string() }))?;
    let mut seen = std::collections::HashSet::with_capacity(placed.len());
    for (tensor, _) in &placed {
        if !seen.insert(tensor.as_str()) {
            return Err(problem(IndexProblem::DuplicateName { tensor: tensor.clone() }));
        }
    }
    Ok(placed)
}

/// Returns whether a shard's name stays inside the directory: it is one plain component, without separators or `..`.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let plain = matches!(components.next(), Some(Component::Normal(part)) if part == name);
    plain && components.next().is_none() && !name.contains(['\\', '\0'])
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Weight files of a directory, sorted, and whether the directory also holds pickled weights.
struct Found {
    safetensors: Vec<PathBuf>,
    gguf: Vec<PathBuf>,
    has_pickle: bool,
}

fn list_weights(dir: &Path) -> Result<Found, WeightError> {
    let open_error = |source| WeightError::Io(IoError::Open { path: dir.to_owned(), source });
    let mut found = Found { safetensors: Vec::new(), gguf: Vec::new(), has_pickle: false };
    for entry in std::fs::read_dir(dir).map_err(open_error)? {
        let path = entry.map_err(open_error)?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => found.safetensors.push(path),
            Some("gguf") => found.gguf.push(path),
            Some("bin" | "pth" | "pt") => found.has_pickle = true,
            _ => {}
        }
    }
    found.safetensors.sort();
    found.gguf.sort();
    Ok(found)
}
