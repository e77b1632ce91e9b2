//! Which files of a repository are taken.

use std::collections::BTreeSet;

use serde::Deserialize;
use thiserror::Error;

/// Small files that are taken wherever a model has them.
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

/// The file of weights that are in one, and the index of those that are in several.
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// GGUF files that hold no model by themselves, by a part of their names: those that llama.cpp leaves out.
const NO_MODEL: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Tags that are looked for where none is given.
const USUAL_TAGS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Most shards that an index may name.
const SHARDS_MAX: usize = 10_000;

/// What to take.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileWish<'a> {
    /// The tag of a quantisation, or a file.
    pub tag: Option<&'a str>,
    /// The files that the index of the weights names, once it has been read.
    pub shards: Option<&'a BTreeSet<String>>,
}

/// The files that are taken, by their paths in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChoice {
    /// Weights, in the order in which they make a model.
    pub weights: Vec<String>,
    /// Everything beside the weights.
    pub small: Vec<String>,
    /// Whether the weights are GGUF: the first file is the model then, else the folder.
    pub is_gguf: bool,
    /// The index, if there is one that has not been read: its shards decide which weights are taken.
    pub unread_index: Option<String>,
}

/// Why no files can be taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChoiceProblem {
    /// Neither safetensors nor GGUF.
    #[error("it has neither safetensors nor GGUF files{}", if *.has_pickle {
        "; its weights are pickled (*.bin, *.pth), which can run code when they are read" } else { "" })]
    NoWeights {
        /// Whether it has weights of a kind that Interbed does not read.
        has_pickle: bool,
    },
    /// The tag is in no file's name.
    #[error("it has no GGUF file for {tag:?}{}", others(.available))]
    NoSuchTag {
        /// What was asked for.
        tag: String,
        /// The tags that it has.
        available: Vec<String>,
    },
    /// Nothing says what the weights are.
    #[error("it has safetensors files, but no config.json that says of which model")]
    NoConfig,
    /// A part of a model is not there.
    #[error("{missing} is missing, which {by} names")]
    Missing {
        /// The file.
        missing: String,
        /// What names it.
        by: String,
    },
}

fn others(tags: &[String]) -> String {
    if tags.is_empty() { ", nor for any other".into() } else { format!("; it has {}", tags.join(", ")) }
}

/// Chooses among the files of a repository, or of a folder of the cache.
///
/// # Errors
/// No weights, no such quantisation, or parts that are missing.
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
        // Only those that lie in the root are one model's; the originals of some models lie beside them.
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

/// The files that an index of weights names; they lie beside it.
///
/// # Errors
/// It is no index, or names files elsewhere.
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

/// The files of one GGUF model: that of `tag`, or what is usual.
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

/// The first file with `tag` followed by `.` or `-`, whatever the case. One where the tag is a whole word is preferred:
/// `Q4_0` is in `IQ4_0`, too.
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

/// The tags in the names of models, in order.
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
    // A file whose name ends with something else is called by its name.
    if is_quantised || is_float { Some(last) } else { Some(name_of(path).to_owned()) }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `("a/model", 2, 3)` for `a/model-00002-of-00003.gguf`.
fn numbered(path: &str) -> Option<(String, u32, u32)> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits =
        |text: &str| (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?;
    Some((stem.to_owned(), digits(number)?, digits(count)?)).filter(|(_, number, count)| (1..=*count).contains(number))
}
