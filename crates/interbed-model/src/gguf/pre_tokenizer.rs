//! How text is cut before merging, by the names that converters write into `tokenizer.ggml.pre`.

use serde_json::{Value, json};

/// The pre-tokenizer that a name in a GGUF file means.
pub(super) struct PreTokenizer {
    /// `pre_tokenizer` of a `tokenizer.json`.
    pub(super) json: Value,
    /// `normalizer` of a `tokenizer.json`.
    pub(super) normalizer: Value,
    /// Whether a piece that equals a token becomes that token, without merging.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with BOS if the file does not say.
    pub(super) add_bos: bool,
}

/// GPT-2's expression.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's, and Qwen's, which takes digits one by one.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's later one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Seed-Coder's.
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every name with its expressions, each of which cuts what the one before it left.
const KNOWN: [(&[&str], &[&str]); 8] = [
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "dbrx", "smaug-bpe"], &[LLAMA3]),
    (&["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"], &[QWEN2]),
    (&["gpt-2", "phi-2", "gigachat", "mpt", "olmo", "jais", "trillion"], &[GPT2]),
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], &[r"\p{N}", GPT2]),
    (&["tekken"], &[TEKKEN]),
    (&["gpt-4o"], &[GPT4O]),
    (&["seed-coder"], &[SEED_CODER]),
    (&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

/// Names of pre-tokenizers whose pieces that equal a token are not merged.
const IGNORE_MERGES: [&str; 7] = ["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "tekken"];
/// Names whose models were trained on text in Unicode's composed form (NFC).
const COMPOSED: [&str; 6] = ["qwen2", "deepseek-r1-qwen", "megrez", "command-r", "mpt", "olmo"];

/// The pre-tokenizer that `name` means, if it is known.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    let (_, regexes) = KNOWN.iter().find(|(names, _)| names.contains(&name))?;
    let ignore_merges = IGNORE_MERGES.contains(&name);
    let normalizer = if COMPOSED.contains(&name) { json!({"type": "NFC"}) } else { Value::Null };
    Some(PreTokenizer { json: steps(regexes), normalizer, ignore_merges, add_bos: ignore_merges })
}

/// The names that [`find`] knows.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|(names, _)| names.iter().copied())
}

fn steps(regexes: &[&str]) -> Value {
    if regexes == [GPT2] {
        // The same, in the form that long texts can be cut in.
        return byte_level(true);
    }
    let split =
        |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let steps: Vec<_> = regexes.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}
