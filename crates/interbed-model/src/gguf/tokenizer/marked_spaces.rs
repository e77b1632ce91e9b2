//! Byte-pair encoding over plain UTF-8, in which a mark stands for each space.
//!
//! A text is cut only into runs of line ends and what is between them. A run of line ends that is a token becomes that
//! token, whichever merges the file has.

use std::collections::{HashMap, HashSet};

use interbed_weights::{Metadata, Texts};
use serde_json::{Value, json};

use super::{Bos, SPACE, UNKNOWN, Vocabulary, pairs, strips, surroundings, unknown};

/// The longest run of line ends for which merges are added. The longest in use is 31.
const LINE_ENDS_MAX: usize = 64;

/// Makes `tokenizer.json` of a vocabulary with these merges.
pub(super) fn json(metadata: &Metadata, vocabulary: &Vocabulary<'_>, merges: &Texts) -> Result<Value, String> {
    let ids = vocabulary.ids();
    let mut all = pairs(merges)?;
    let known: HashSet<(&str, &str)> = all.iter().copied().collect();
    all.extend(line_ends(&ids).into_iter().filter(|pair| !known.contains(pair)));
    let unknown = unknown(metadata, vocabulary)?;
    if unknown.is_none() && !vocabulary.has_bytes(&ids) {
        return Err(format!("{UNKNOWN} is missing, and so are tokens of single bytes"));
    }
    let replaced = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(&ids, strips(metadata)?),
        "normalizer": replaced(" ", SPACE),
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\n+"}, "behavior": "Isolated", "invert": false},
        "post_processor": surroundings(metadata, vocabulary, Bos::Always)?,
        "decoder": {
            "type": "Sequence",
            "decoders": [replaced(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": vocabulary.has_bytes(&ids),
            "ignore_merges": false, "vocab": vocabulary.json(&ids), "merges": all,
        },
    }))
}

/// Returns every pair of runs of line ends that together are a token, the shorter ones first. With these merges, a run
/// becomes one token if it is one.
fn line_ends<'v>(ids: &HashMap<&'v str, u32>) -> Vec<(&'v str, &'v str)> {
    let is_run = |token: &str| token.len() <= LINE_ENDS_MAX && token.bytes().all(|byte| byte == b'\n');
    let mut runs: Vec<&str> = ids.keys().copied().filter(|token| is_run(token)).collect();
    runs.sort_by_key(|run| run.len());
    let is_token = |length: usize| runs.binary_search_by_key(&length, |run| run.len()).is_ok();
    let splits = |run: &'v str| (1..run.len()).map(move |at| run.split_at(at));
    runs.iter()
        .flat_map(|run| splits(run))
        .filter(|(one, other)| is_token(one.len()) && is_token(other.len()))
        .collect()
}
