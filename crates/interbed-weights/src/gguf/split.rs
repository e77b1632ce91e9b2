//! Models that are cut into numbered files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use interbed_io::{ExactFile, IoError, RandomAccessFile};

use super::error::GgufProblem;
use super::{GgufHeader, read_gguf};
use crate::error::WeightError;

/// Most parts of a model.
const PARTS_MAX: u64 = 9999;
/// The key that counts the parts.
const COUNT: &str = "split.count";
/// Key that numbers the parts, from 0.
const NUMBER: &str = "split.no";
/// Key that counts the tensors of all parts.
const TENSORS: &str = "split.tensors.count";

/// Key that tells models from adapters and the like.
const TYPE: &str = "general.type";
/// The key that names the architecture.
const ARCHITECTURE: &str = "general.architecture";

/// A file of a model, and its header.
pub(crate) type ModelPart = (Arc<dyn RandomAccessFile>, GgufHeader);

/// Opens a model of one file, or all parts of the model that `path` is a part of, in order.
///
/// # Errors
/// Fails if a header is damaged, if a part is missing, or if parts do not belong together.
pub(crate) fn open_parts(path: &Path) -> Result<Vec<ModelPart>, WeightError> {
    let opened = open(path)?;
    let count = number(&opened, COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![opened]);
    }
    let problem = |problem| WeightError::Gguf { file: path.to_owned(), problem };
    if count > PARTS_MAX {
        return Err(problem(GgufProblem::TooMany { what: "parts", count, limit: PARTS_MAX }));
    }
    let stem = stem(path, count).ok_or_else(|| problem(GgufProblem::PartName { count }))?;
    let mut parts = Vec::new();
    for index in 0..count {
        let name = format!("{stem}-{:05}-of-{count:05}.gguf", index + 1);
        let part = open(&path.with_file_name(&name)).map_err(|error| match error {
            WeightError::Io(IoError::Open { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                problem(GgufProblem::MissingPart { part: name, count })
            }
            error => error,
        })?;
        parts.push(part);
    }
    check_parts(&parts)?;
    Ok(parts)
}

/// Checks that `parts` are all parts of one model, in order.
///
/// # Errors
/// Fails at the first file that is no part of the model, or that has another number than its place.
pub(crate) fn check_parts(parts: &[ModelPart]) -> Result<(), WeightError> {
    let count = parts.len() as u64;
    for (index, part) in (0..).zip(parts) {
        expect(part, COUNT, number(part, COUNT)?.unwrap_or(1), count)?;
        expect(part, NUMBER, number(part, NUMBER)?.unwrap_or(0), index)?;
    }
    let Some(first) = parts.first().filter(|_| count > 1) else { return Ok(()) };
    let tensors = parts.iter().map(|(_, header)| header.tensors.len() as u64).sum();
    if let Some(stated) = number(first, TENSORS)? {
        return expect(first, TENSORS, stated, tensors);
    }
    let (key, why) = (TENSORS.to_owned(), "a model in parts says how many tensors they hold together");
    Err(WeightError::Gguf { file: first.0.path().to_owned(), problem: GgufProblem::Missing { key, why } })
}

/// Returns the name of the GGUF model in the file `path`: the file name without its extension. If the model consists of
/// several files, the part number is left out too. Returns `None` if `path` has no file name.
pub fn model_name(path: &Path) -> Option<String> {
    match numbered(path) {
        Some((stem, _, _)) => Some(stem),
        None => path.file_stem().map(|stem| stem.to_string_lossy().into_owned()),
    }
}

/// The GGUF files of a directory, sorted, without later parts of models.
pub(crate) struct FilesOfDir<'a> {
    /// Files that begin a model.
    pub(crate) models: Vec<&'a PathBuf>,
    /// Files that lie beside a model and are no language models, such as a vision part.
    pub(crate) others: Vec<&'a PathBuf>,
}

/// Tells models from other files. Headers are read only where there is more than one file.
pub(crate) fn models_in(paths: &[PathBuf]) -> FilesOfDir<'_> {
    let mut models: Vec<_> = paths.iter().filter(|path| is_first_or_only(path)).collect();
    models.sort();
    if models.len() < 2 {
        return FilesOfDir { models, others: Vec::new() };
    }
    let (others, models): (Vec<_>, Vec<_>) = models.into_iter().partition(|path| is_no_model(path));
    match models.is_empty() {
        // What there is can be named then.
        true => FilesOfDir { models: others, others: models },
        false => FilesOfDir { models, others },
    }
}

/// Returns whether a file's header tells that the file is no language model. Returns false for a file that cannot be
/// read.
fn is_no_model(path: &Path) -> bool {
    let Ok((_, header)) = open(path) else { return false };
    let text = |key| header.metadata.text(key).ok().flatten();
    // Files of early converters have no type; what reads pictures has an architecture of its own.
    text(TYPE).is_some_and(|kind| kind != "model") || text(ARCHITECTURE) == Some("clip")
}

/// Returns whether a file of this name begins a model, rather than being a later part of one.
fn is_first_or_only(path: &Path) -> bool {
    match numbered(path) {
        Some((_, number, _)) => number == 1,
        None => true,
    }
}

fn open(path: &Path) -> Result<ModelPart, WeightError> {
    let file: Arc<dyn RandomAccessFile> = Arc::new(ExactFile::open(path)?);
    let header = read_gguf(file.as_ref())?;
    Ok((file, header))
}

fn number((file, header): &ModelPart, key: &str) -> Result<Option<u64>, WeightError> {
    let problem = |problem| WeightError::Gguf { file: file.path().to_owned(), problem };
    header.metadata.count(key).map_err(problem)
}

fn expect((file, _): &ModelPart, key: &'static str, found: u64, expected: u64) -> Result<(), WeightError> {
    if found == expected {
        return Ok(());
    }
    let problem = GgufProblem::PartMismatch { key, expected, found };
    Err(WeightError::Gguf { file: file.path().to_owned(), problem })
}

/// Returns the text before the numbers in a part's name, if the name says that it is one of `count` parts.
fn stem(path: &Path, count: u64) -> Option<String> {
    numbered(path).filter(|(_, _, of)| *of == count).map(|(stem, _, _)| stem)
}

/// Returns `("model", 2, 3)` for `model-00002-of-00003.gguf`, and `None` for other names.
fn numbered(path: &Path) -> Option<(String, u64, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits =
        |text: &str| (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?;
    Some((stem.to_owned(), digits(number)?, digits(count)?))
}
