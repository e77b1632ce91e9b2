//! Limits how long a text may become by the steps that `tokenizer.json` prescribes.
//!
//! A normalizer may replace each character by a thousand, and a list of normalizers may repeat that. The `tokenizers`
//! crate has no limit for this growth. So each step has a bound on the number of bytes that it makes of one byte. If
//! the product of these bounds allows too long a result for a text, the text is normalized step by step, and its length
//! is checked before each step.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

/// The largest accepted product of the bounds of all steps.
const GROWTH_MAX: usize = 1 << 16;
/// The growth that needs no check, because the memory that encoding takes was measured with this growth.
const GROWTH_USUAL: usize = 16;
/// The number of bytes up to which a text may grow without being normalized beforehand.
const UNCHECKED_BYTES: usize = 4 << 20;
/// The most bytes that any step may make of a text.
const GROWN_BYTES_MAX: usize = 64 << 20;
/// The longest prefix or suffix of a part of a word, in bytes.
const AFFIX_BYTES_MAX: usize = 64;
/// The most special tokens that may be put around a text.
const AROUND_MAX: usize = 1024;
/// The shortest text that may stand between two added tokens. The length of this text after normalization is a lower
/// bound for all texts there.
const PART: &str = " a";

/// The bounds on the number of bytes that the steps of a tokenizer may make of one byte of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Growth {
    normalizer: usize,
    pre_tokenizer: usize,
    /// The bound of each step of the normalizer.
    steps: Vec<usize>,
    added_tokens: Vec<String>,
}

impl Growth {
    /// Works out the bounds for the `tokenizer.json` with the content `json`.
    ///
    /// # Errors
    /// Fails if a bound is too large. The error says which part grows too much.
    pub(super) fn of(json: &Value) -> Result<Self, String> {
        let (normalizer, pre_tokenizer) = (grown(&json["normalizer"]), grown(&json["pre_tokenizer"]));
        limited("its normalizer and pre-tokenizer", normalizer.saturating_mul(pre_tokenizer))?;
        limited("its decoder", grown(&json["decoder"]))?;
        limited("its post-processor", repeated(&json["post_processor"])?.saturating_mul(GROWTH_MAX / 4))?;
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            let bytes = json["model"][affix].as_str().map_or(0, str::len);
            if bytes > AFFIX_BYTES_MAX {
                return Err(format!("its {affix} has {bytes} bytes, but at most {AFFIX_BYTES_MAX} are accepted"));
            }
        }
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let added_tokens: Vec<String> =
            added.filter_map(|token| token["content"].as_str()).map(str::to_owned).collect();
        // They are normalized when the file is read.
        let longest = GROWN_BYTES_MAX / normalizer;
        let bytes: usize = added_tokens.iter().map(String::len).sum();
        if normalizer > GROWTH_USUAL && bytes > longest {
            return Err(format!("its added tokens have {bytes} bytes, but at most {longest} are accepted"));
        }
        let mut steps = Vec::new();
        each_step(&json["normalizer"], &mut steps);
        Ok(Self { normalizer, pre_tokenizer, steps, added_tokens })
    }

    /// Returns the memory that encoding `text` takes, as a multiple of the usual amount.
    ///
    /// # Errors
    /// Fails if the text may become too long.
    pub(super) fn factor(&self, text: &str, normalizer: Option<&NormalizerWrapper>) -> Result<usize, String> {
        let bound = text.len().saturating_mul(self.normalizer).saturating_mul(self.pre_tokenizer);
        let usual = text.len().saturating_mul(GROWTH_USUAL);
        if bound <= usual {
            return Ok(1);
        }
        if bound <= UNCHECKED_BYTES {
            return Ok(bound.div_ceil(usual.max(1)));
        }
        // Each text between added tokens is normalized separately.
        let parts: usize =
            self.added_tokens.iter().map(|token| text.matches(token.as_str()).take(1 << 24).count()).sum();
        let part = if parts == 0 { 0 } else { self.normalized_bytes(PART, normalizer)? };
        let normalized = self.normalized_bytes(text, normalizer)?.saturating_add(parts.saturating_mul(part));
        let grown = normalized.saturating_mul(self.pre_tokenizer);
        if grown > GROWN_BYTES_MAX {
            return Err(too_long(text.len()));
        }
        Ok(grown.div_ceil(usual.max(1)).max(1))
    }

    /// Returns the number of bytes that the normalizer makes of a text.
    fn normalized_bytes(&self, text: &str, normalizer: Option<&NormalizerWrapper>) -> Result<usize, String> {
        let mut steps = Vec::new();
        normalizer.into_iter().for_each(|normalizer| flatten(normalizer, &mut steps));
        let mut normalized = NormalizedString::from(text);
        for (index, step) in steps.into_iter().enumerate() {
            let growth = self.steps.get(index).copied().unwrap_or(GROWTH_MAX);
            if normalized.len().saturating_mul(growth) > GROWN_BYTES_MAX {
                return Err(too_long(text.len()));
            }
            step.normalize(&mut normalized).map_err(|error| error.to_string())?;
        }
        Ok(normalized.len())
    }
}

fn too_long(bytes: usize) -> String {
    format!(
        "the normalizer and pre-tokenizer of tokenizer.json may make more than {GROWN_BYTES_MAX} bytes of its {bytes}, \
         which is the limit; send a shorter text"
    )
}

/// Appends the bound of each step of a normalizer to `steps`, in order.
fn each_step(step: &Value, steps: &mut Vec<usize>) {
    match step["normalizers"].as_array() {
        Some(list) => list.iter().for_each(|step| each_step(step, steps)),
        None => steps.push(grown(step)),
    }
}

/// Appends the steps of a normalizer to `steps`, in order.
fn flatten<'a>(normalizer: &'a NormalizerWrapper, steps: &mut Vec<&'a NormalizerWrapper>) {
    match normalizer {
        NormalizerWrapper::Sequence(list) => list.as_ref().iter().for_each(|step| flatten(step, steps)),
        step => steps.push(step),
    }
}

fn limited(what: &str, growth: usize) -> Result<(), String> {
    if growth > GROWTH_MAX {
        return Err(format!(
            "{what} may make more than {GROWTH_MAX} bytes of one; that many steps, or replacements as long, are not \
             accepted"
        ));
    }
    Ok(())
}

/// Returns the most bytes that a step may make of one byte. The kind of the step follows from its fields, because older
/// files name no types.
fn grown(step: &Value) -> usize {
    let bytes = |key: &str| step[key].as_str().map_or(0, str::len);
    let lists = ["normalizers", "pretokenizers", "decoders"];
    if let Some(steps) = lists.iter().find_map(|key| step[key].as_array()) {
        // The same one twice in a row changes nothing more, but for replacements.
        let again = |index: &usize| *index > 0 && steps[*index] == steps[*index - 1] && is_idempotent(&steps[*index]);
        let counted = (0..steps.len()).filter(|index| !again(index));
        return counted.map(|index| grown(&steps[index])).fold(1, usize::saturating_mul);
    }
    if let Some(prepended) = step["prepend"].as_str() {
        // A text is normalized in parts, between its added tokens, and each gets its own.
        return 1 + prepended.len();
    }
    if !step["pattern"].is_null() && step["content"].is_string() {
        return match step["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => bytes("content").div_ceil(pattern.len()).max(1),
            // A regular expression may find nothing, everywhere.
            _ => 1 + bytes("content"),
        };
    }
    if let Some(map) = step["precompiled_charsmap"].as_str() {
        return longest_replacement(map);
    }
    match step["type"].as_str() {
        Some("NFKC" | "NFKD") => 11,
        Some("NFC" | "NFD") => 3,
        Some("BertNormalizer" | "Bert") => 6,
        Some("Lowercase") => 2,
        Some("ByteLevel") => 2 + usize::from(step["add_prefix_space"] == true),
        Some("Metaspace") => 1 + bytes("replacement").max(3),
        _ => 1,
    }
}

fn is_idempotent(step: &Value) -> bool {
    matches!(step["type"].as_str(), Some("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase"))
}

/// Returns how often a post-processor repeats the tokens of a text.
fn repeated(processor: &Value) -> Result<usize, String> {
    if let Some(steps) = processor["processors"].as_array() {
        return steps
            .iter()
            .map(repeated)
            .try_fold(1usize, |product, each| each.map(|each| product.saturating_mul(each)));
    }
    let Some(template) = processor["single"].as_array() else { return Ok(1) };
    let texts = template.iter().filter(|piece| !piece["Sequence"].is_null()).count();
    let special = |piece: &Value| {
        let token = &processor["special_tokens"][piece["SpecialToken"]["id"].as_str().unwrap_or_default()];
        token["ids"].as_array().map_or(1, Vec::len)
    };
    let around: usize = template.iter().filter(|piece| piece["Sequence"].is_null()).map(special).sum();
    if around > AROUND_MAX {
        return Err(format!(
            "its post-processor puts {around} tokens around a text, but at most {AROUND_MAX} are accepted"
        ));
    }
    Ok(texts.max(1))
}

/// Returns the length, in bytes, of the longest text by which a SentencePiece map replaces a character. The map
/// consists of the length of a table, the table, and texts that end with a zero byte. Returns 1 for a malformed map,
/// which the `tokenizers` crate refuses.
fn longest_replacement(map: &str) -> usize {
    let bytes = base64(map);
    let Some((length, rest)) = bytes.split_first_chunk() else { return 1 };
    let Some(texts) = rest.get(u32::from_le_bytes(*length) as usize..) else { return 1 };
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1)
}

/// Returns the bytes of a text in base64, up to the first character that is not part of base64.
fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for character in text.bytes() {
        let digit = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn growth_is_the_product_of_all_steps() {
        let of = |json: Value| Growth::of(&json).map(|growth| (growth.normalizer, growth.pre_tokenizer, growth.steps));
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}});
        assert_eq!(of(llama), Ok((12, 1, vec![4, 3])));
        let qwen = json!({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}});
        assert_eq!(of(qwen), Ok((3, 2, vec![3])));
        // A table of four bytes, then "ab" and "abc".
        let map = json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYgBhYmMA"}});
        assert_eq!(of(map), Ok((3, 1, vec![3])));
        assert_eq!(of(json!({})), Ok((1, 1, vec![1])));
    }

    #[test]
    fn base64_is_read() {
        assert_eq!(base64("aGVsbG8="), b"hello");
        assert_eq!(base64("+/+/"), [0xFB, 0xFF, 0xBF]);
        // Its table would be longer than the map.
        assert_eq!(longest_replacement("////"), 1);
    }
}
