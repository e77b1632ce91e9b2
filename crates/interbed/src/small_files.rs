//! Reads a model's small files: from the folder of its weights, from a packed store, or from the metadata of a GGUF
//! file.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use interbed_io::{ExactFile, IoError, RandomAccessFile};
use interbed_model::chat_template::{self, ChatTemplate, MAX_SOURCE_BYTES, TemplateError};
use interbed_model::config::{ConfigError, ConfigProblem, ModelConfig};
use interbed_model::generation_config::GenerationConfig;
use interbed_model::gguf::GgufModel;
use interbed_model::tokenizer::{
    ADDED_FILE, CONFIG_FILE, MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES, SPECIAL_FILE, Tokenizer, TokenizerConfig,
    TokenizerError,
};
use interbed_model::{POOLING_FILE, Pooling};
use interbed_weights::{Catalog, Store};

/// The small files that a packed store contains, with their maximum sizes: files that Interbed or other programs read,
/// and licences.
const FILES: [(&str, u64); 16] = [
    ("config.json", MAX_CONFIG_BYTES),
    ("generation_config.json", MAX_CONFIG_BYTES),
    ("tokenizer.json", MAX_TOKENIZER_BYTES),
    (CONFIG_FILE, MAX_CONFIG_BYTES),
    (SPECIAL_FILE, MAX_CONFIG_BYTES),
    (ADDED_FILE, MAX_CONFIG_BYTES),
    (chat_template::FILES[0], MAX_SOURCE_BYTES as u64),
    (chat_template::FILES[1], MAX_SOURCE_BYTES as u64),
    (chat_template::FILES[2], MAX_SOURCE_BYTES as u64),
    (POOLING_FILE, MAX_CONFIG_BYTES),
    ("README.md", MAX_CONFIG_BYTES),
    ("LICENSE", MAX_CONFIG_BYTES),
    ("LICENSE.md", MAX_CONFIG_BYTES),
    ("LICENSE.txt", MAX_CONFIG_BYTES),
    ("NOTICE", MAX_CONFIG_BYTES),
    ("USE_POLICY.md", MAX_CONFIG_BYTES),
];

/// Returns the name that a file has in a store, which has no folders.
fn name_in_store(path: &str) -> String {
    path.replace('/', "_")
}

/// Returns the model's configuration and its sampling defaults. If `catalog` describes a GGUF file or a packed store,
/// both come from there. Otherwise, both are read from the folder `path`. This also works if weights are missing or
/// damaged, in which case there is no catalog.
pub fn configuration(catalog: Option<&Catalog>, path: &Path) -> Result<(ModelConfig, GenerationConfig)> {
    if let Some(gguf) = catalog.and_then(GgufModel::of) {
        return Ok((gguf.config()?, gguf.generation_config()?));
    }
    let Some(store) = catalog.and_then(Catalog::store) else {
        return Ok((ModelConfig::from_dir(path)?, GenerationConfig::from_dir(path)?));
    };
    // For a file in a store, error messages give the store's path, followed by the file's name.
    let place = |ConfigError { file, problem }: ConfigError| ConfigError { file: path.join(file), problem };
    let Some(text) = text_in(store, "config.json", MAX_CONFIG_BYTES)? else {
        let problem = ConfigProblem::Read(io::ErrorKind::NotFound.into());
        return Err(place(ConfigError { file: "config.json".into(), problem }).into());
    };
    let config = ModelConfig::from_json(&text).map_err(place)?;
    let generation = match text_in(store, "generation_config.json", MAX_CONFIG_BYTES)? {
        Some(text) => GenerationConfig::from_json(&text).map_err(place)?,
        None => GenerationConfig::default(),
    };
    Ok((config, generation))
}

/// Returns the tokenizer. `path` is the path of the model that the catalog describes.
pub fn tokenizer(catalog: &Catalog, path: &Path) -> Result<Tokenizer> {
    if let Some(gguf) = GgufModel::of(catalog) {
        return Ok(gguf.tokenizer()?);
    }
    let Some(store) = catalog.store() else { return Ok(Tokenizer::from_dir(path)?) };
    let path = path.join("tokenizer.json");
    let Some(tokenizer) = in_store(store, "tokenizer.json", MAX_TOKENIZER_BYTES)? else {
        return Err(TokenizerError::Missing { path }.into());
    };
    let built = Tokenizer::new(&tokenizer, &tokenizer_config(store)?);
    Ok(built.map_err(|problem| TokenizerError::Malformed { path, problem })?)
}

/// Returns the chat template, if the model has one. `path` is the path of the model that the catalog describes.
pub fn template(catalog: &Catalog, path: &Path) -> Result<Option<ChatTemplate>> {
    let template = match (GgufModel::of(catalog), catalog.store()) {
        (Some(gguf), _) => gguf.chat_template().map_err(anyhow::Error::from),
        (None, None) => ChatTemplate::from_dir(path).map_err(anyhow::Error::from),
        (None, Some(store)) => ChatTemplate::from_files(&tokenizer_config(store)?, path, |name| {
            in_store(store, name, MAX_SOURCE_BYTES as u64)
        }),
    };
    match template {
        Ok(template) => Ok(Some(template)),
        Err(error) if matches!(error.downcast_ref(), Some(TemplateError::Missing { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the tokenizer's configuration from the files of a store.
fn tokenizer_config(store: &Store) -> Result<TokenizerConfig> {
    TokenizerConfig::from_files(|name| in_store(store, name, MAX_CONFIG_BYTES))
}

/// Returns how the model pools hidden states into an embedding, or the reason why it computes no embeddings. `path` is
/// the path of the model that the catalog describes.
pub fn pooling(catalog: &Catalog, path: &Path) -> Result<Pooling, String> {
    if let Some(gguf) = GgufModel::of(catalog) {
        return gguf.pooling();
    }
    let content = match catalog.store() {
        Some(store) => in_store(store, POOLING_FILE, MAX_CONFIG_BYTES),
        None => read(&path.join(POOLING_FILE), MAX_CONFIG_BYTES),
    };
    match content.map_err(|error| format!("{error:#}"))? {
        None => Ok(Pooling::default()),
        Some(text) => {
            let read = Pooling::from_json(&String::from_utf8_lossy(&text));
            read.map_err(|problem| format!("{POOLING_FILE} {problem}"))
        }
    }
}

/// Returns the names and contents of a model's small files, which are packed with its weights. The files come from the
/// model's packed store or from its folder. A GGUF model has no small files, because its metadata replaces them.
pub fn all(catalog: &Catalog, path: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (name, limit) in FILES {
        let content = match catalog.store() {
            Some(store) => in_store(store, name, limit)?,
            None if catalog.metadata().is_none() => read(&path.join(name), limit)?,
            None => None,
        };
        files.extend(content.map(|content| (name_in_store(name), content)));
    }
    Ok(files)
}

/// Reads a regular file of at most `limit` bytes. Returns `None` if there is none.
fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = match ExactFile::open(path) {
        Ok(file) => file,
        Err(IoError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A folder of that name is not the file that is meant.
        Err(IoError::NotRegular { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    check_length(&file.path().display().to_string(), file.len(), limit)?;
    let mut content = vec![0; file.len() as usize];
    file.read_exact_at(&mut content, 0)?;
    Ok(Some(content))
}

fn in_store(store: &Store, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let name = &name_in_store(path);
    if let Some(file) = store.manifest().files.iter().find(|file| file.name == *name) {
        check_length(&store.file().path().join(name).display().to_string(), file.bytes, limit)?;
    }
    Ok(store.read_file(name)?)
}

fn text_in(store: &Store, name: &str, limit: u64) -> Result<Option<String>> {
    let Some(bytes) = in_store(store, name, limit)? else { return Ok(None) };
    let text = String::from_utf8(bytes);
    text.map(Some).with_context(|| format!("{} is not UTF-8", store.file().path().join(name).display()))
}

fn check_length(name: &str, bytes: u64, limit: u64) -> Result<()> {
    anyhow::ensure!(
        bytes <= limit,
        "{name} has {bytes} bytes, but at most {limit} are accepted; is it the right file?"
    );
    Ok(())
}
