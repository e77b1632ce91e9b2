//! Chooses which files of a repository to download.

use std::collections::BTreeSet;

use serde::Deserialize;
use thiserror::Error;

/// Small files that are downloaded if a model has them.
const SMALL_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "model.safetensors.index.json",
    "1_Pooling/config.json",
];

/// Name of the only file of weights, if there is one.
pub(crate) const SINGLE: &str = "model.safetensors";
/// Name of the index of weights in several files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Parts of the names of GGUF files that are not models by themselves.
const NO_MODEL: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Tags that are tried in order if none is given.
const USUAL_TAGS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Maximum number of shards that an index may name.
const SHARDS_MAX: usize = 10_000;

/// Options for [`choose`].
#[derive(Debug, Clone, Copy, Default)]
pub struct FileWish<'a> {
    /// Quantization tag such as `Q4_K_M`, or the name of a GGUF file.
    pub tag: Option<&'a str>,
    /// Names of the weight files that the safetensors index lists; `None` if the index has not been read.
    pub shards: Option<&'a BTreeSet<String>>,
}

/// The files of a model to download, as paths in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChoice {
    /// Weight files, in shard order.
    pub weights: Vec<String>,
    /// Files that the model needs besides its weights, such as `config.json` and the tokenizer. Empty for GGUF.
    pub small: Vec<String>,
    /// Whether the weights are in GGUF files. A GGUF model is opened by its first weight file, any other model by its
    /// folder.
    pub is_gguf: bool,
    /// Path of the safetensors index, if the index has to be read to find the weight files. In that case, `weights` is
    /// empty, and [`choose`] has to be called again with [`FileWish::shards`].
    pub unread_index: Option<String>,
}

/// The reason why no files can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChoiceProblem {
    /// The repository has neither safetensors nor GGUF files.
    #[error("it has neither safetensors nor GGUF files{}", if *.has_pickle {
        "; its weights are pickled (*.bin, *.pth), which can run code when they are read" } else { "" })]
    NoWeights {
        /// Whether the repository has pickled weights, which Interbed does not read.
        has_pickle: bool,
    },
    /// No GGUF file matches the requested tag or file name.
    #[error("it has no GGUF file for {tag:?}{}", others(.available))]
    NoSuchTag {
        /// The tag that was requested.
        tag: String,
        /// Tags that exist.
        available: Vec<String>,
    },
    /// The repository has safetensors files, but no `config.json`, which would describe the model.
    #[error("it has safetensors files, but no config.json that says of which model")]
    NoConfig,
    /// The repository lacks a file that another file refers to, such as a shard.
    #[error("{missing} is missing, which {by} names")]
    Missing {
        /// The missing file.
        missing: String,
        /// The file that refers to the missing one.
        by: String,
    },
}

fn others(tags: &[String]) -> String {
    if tags.is_empty() { ", nor for any other".into() } else { format!("; it has {}", tags.join(", ")) }
}

/// Chooses the files to download. `paths` lists all files of a repository, or all cached files of one of its commits.
///
/// # Errors
/// Fails if there are no weights, if no GGUF file matches the tag, or if a shard is missing.
pub fn choose(paths: &[&str], wish: FileWish<'_>) -> Result<FileChoice, ChoiceProblem> {
    let has = |path: &str| paths.contains(&path);
    let small: Vec<String> = paths.iter().filter(|path| is_small(path)).map(|path| (*path).to_owned()).collect();
    let mut choice = FileChoice { weights: Vec::new(), small, is_gguf: false, unread_index: None };
    if wish.tag.is_none() {
        if has(SINGLE) {
            choice.weights = vec![SINGLE.to_owned()];
            return Ok(choice);
        }
        if has(INDEX) {
            match wish.shards {
                None => choice.unread_index = Some(INDEX.to_owned()),
                Some(shards) => {
                    if let Some(missing) = shards.iter().find(|shard| !has(shard)) {
                        return Err(ChoiceProblem::Missing { missing: missing.clone(), by: INDEX.to_owned() });
                    }
                    choice.weights = shards.iter().cloned().collect();
                }
            }
            return Ok(choice);
        }
        // Only weights in the root folder belong to the model, because some repositories have the original weights in
        // other folders.
        let is_weights =
            |path: &&&str| path.ends_with(".safetensors") && !path.contains('/') && !path.starts_with("consolidated");
        choice.weights = paths.iter().filter(is_weights).map(|path| (*path).to_owned()).collect();
        choice.weights.sort();
        if !choice.weights.is_empty() {
            return Ok(choice);
        }
    }
    choice.is_gguf = true;
    choice.small.clear();
    choice.weights = gguf(paths, wish.tag)?;
    Ok(choice)
}

/// Parses a safetensors index and returns the names of the weight files that it lists.
///
/// # Errors
/// Fails if `index` is not a valid index, lists more than 10,000 files, or lists a file that is not in the folder of
/// the index.
pub fn shards_of(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct RawIndex {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let RawIndex { weight_map } = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    if shards.len() > SHARDS_MAX {
        return Err(format!("{} files are named, but at most {SHARDS_MAX} are accepted", shards.len()));
    }
    match shards.iter().find(|shard| shard.contains('/') || !crate::answers::safe_path(shard)) {
        Some(shard) => Err(format!("{shard:?} is no name of a file beside it")),
        None => Ok(shards),
    }
}

fn is_small(path: &str) -> bool {
    SMALL_FILES.contains(&path) || (path.ends_with(".model") && !path.contains('/'))
}

/// Chooses the files of one GGUF model. This is the model with `tag`, or without a tag the first model with one of the
/// usual tags.
fn gguf(paths: &[&str], tag: Option<&str>) -> Result<Vec<String>, ChoiceProblem> {
    let mut models: Vec<&str> = paths.iter().copied().filter(|path| is_gguf_model(path)).collect();
    models.sort();
    let begins: Vec<&str> =
        models.iter().copied().filter(|path| numbered(path).is_none_or(|(_, no, _)| no == 1)).collect();
    let found = match tag {
        Some(file) if file.to_ascii_lowercase().ends_with(".gguf") => {
            models.iter().copied().find(|path| *path == file || name_of(path) == file)
        }
        Some(tag) => with_tag(&begins, tag),
        None => USUAL_TAGS.iter().find_map(|tag| with_tag(&begins, tag)).or(begins.first().copied()),
    };
    let Some(found) = found else {
        let has_pickle = paths.iter().any(|path| [".bin", ".pth", ".pt"].iter().any(|end| path.ends_with(end)));
        return Err(match tag {
            Some(tag) => ChoiceProblem::NoSuchTag { tag: tag.to_owned(), available: tags(&begins) },
            None if begins.is_empty() => ChoiceProblem::NoWeights { has_pickle },
            None => ChoiceProblem::NoWeights { has_pickle: false },
        });
    };
    let Some((stem, _, count)) = numbered(found) else { return Ok(vec![found.to_owned()]) };
    let part = |number| format!("{stem}-{number:05}-of-{count:05}.gguf");
    let parts: Vec<String> = (1..=count).map(part).collect();
    match parts.iter().find(|part| !models.contains(&part.as_str())) {
        Some(missing) => Err(ChoiceProblem::Missing { missing: missing.clone(), by: found.to_owned() }),
        None => Ok(parts),
    }
}

fn is_gguf_model(path: &str) -> bool {
    let name = name_of(path);
    name.to_ascii_lowercase().ends_with(".gguf") && !NO_MODEL.iter().any(|part| name.contains(part))
}

/// Returns the first file whose name contains `tag` followed by `.` or `-`, ignoring case. Prefers a file in which the
/// tag is a whole word, because `Q4_0` is also part of `IQ4_0`.
fn with_tag<'a>(paths: &[&'a str], tag: &str) -> Option<&'a str> {
    let tag = tag.to_ascii_lowercase();
    let places = |path: &str, whole: bool| {
        let path = path.to_ascii_lowercase();
        path.match_indices(&tag).any(|(at, _)| {
            let after = path[at + tag.len()..].chars().next();
            let before = path[..at].chars().next_back();
            let begins = before.is_none_or(|c| matches!(c, '.' | '-' | '_' | '/'));
            matches!(after, Some('.' | '-')) && (begins || !whole)
        })
    };
    [true, false].into_iter().find_map(|whole| paths.iter().copied().find(|path| places(path, whole)))
}

/// Returns the tags in the names of models, sorted.
fn tags(paths: &[&str]) -> Vec<String> {
    let tags: BTreeSet<String> = paths.iter().filter_map(|path| tag_of(path)).collect();
    tags.into_iter().collect()
}

fn tag_of(path: &str) -> Option<String> {
    let stem = match numbered(path) {
        Some((stem, _, _)) => stem,
        None => path[..path.len().checked_sub(".gguf".len())?].to_owned(),
    };
    let last = name_of(&stem).rsplit(['-', '.']).next()?.to_owned();
    let upper = last.to_ascii_uppercase();
    let is_quantised = ["Q", "IQ", "TQ"]
        .iter()
        .any(|start| upper.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())));
    let is_float = ["F16", "BF16", "F32", "FP16", "FP32", "MXFP4"].iter().any(|float| upper.starts_with(float));
    // If the name ends in neither, the whole file name serves as its tag.
    if is_quantised || is_float { Some(last) } else { Some(name_of(path).to_owned()) }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Splits the name of a shard: `a/model-00002-of-00003.gguf` gives `("a/model", 2, 3)`.
fn numbered(path: &str) -> Option<(String, u32, u32)> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits =
        |text: &str| (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?;
    Some((stem.to_owned(), digits(number)?, digits(count)?)).filter(|(_, number, count)| (1..=*count).contains(number))
}
