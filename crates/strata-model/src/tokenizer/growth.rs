//! How long a text may become on its way through what `tokenizer.json` says, found before any of it is run.
//!
//! A normalizer may replace each character by a thousand, and a list of normalizers do so again and again; the
//! `tokenizers` crate has no limit for it. So each step has a bound for what it makes of a byte, and the product of all
//! of them is limited. It is no estimate: most texts hardly grow.

use serde_json::Value;

/// Most bytes that may be made of one; SentencePiece's space has three bytes for one, and NFKC eleven.
const GROWTH_MAX: usize = 256;
/// Growth that is nothing to worry about: memory was measured with as much.
const GROWTH_USUAL: usize = 16;
/// Most bytes that a text may become where it may grow more than usual.
const GROWN_BYTES_MAX: usize = 16 << 20;
/// Longest prefix or suffix of a part of a word, in bytes.
const AFFIX_BYTES_MAX: usize = 64;
/// Most special tokens that are put around a text.
const AROUND_MAX: usize = 1024;

/// Bytes that may be made of one byte of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth(usize);

impl Growth {
    /// The growth of a tokenizer's texts.
    ///
    /// # Errors
    /// What grows too much.
    pub(super) fn of(json: &Value) -> Result<Self, String> {
        let normalized = grown(&json["normalizer"]);
        let growth = normalized.saturating_mul(grown(&json["pre_tokenizer"]));
        limited("its normalizer and pre-tokenizer", growth)?;
        limited("its decoder", grown(&json["decoder"]))?;
        limited("its post-processor", repeated(&json["post_processor"])?)?;
        for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
            let bytes = json["model"][affix].as_str().map_or(0, str::len);
            if bytes > AFFIX_BYTES_MAX {
                return Err(format!("its {affix} has {bytes} bytes, but at most {AFFIX_BYTES_MAX} are accepted"));
            }
        }
        let growth = Self(growth);
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let bytes = added.filter_map(|token| token["content"].as_str()).map(str::len).sum();
        growth.check(bytes).map_err(|problem| format!("its added tokens are too long: {problem}"))?;
        Ok(growth)
    }

    /// How many times the usual memory a text may take.
    pub(super) fn factor(self) -> usize {
        self.0.div_ceil(GROWTH_USUAL).max(1)
    }

    /// Refuses a text of so many bytes, if it may become too long.
    ///
    /// # Errors
    /// Which limit it exceeds.
    pub(super) fn check(self, bytes: usize) -> Result<(), String> {
        let longest = GROWN_BYTES_MAX / self.0;
        if self.0 > GROWTH_USUAL && bytes > longest {
            return Err(format!(
                "the tokenizer may make {} bytes of one, and so takes texts of at most {longest} bytes, but this has \
                 {bytes}",
                self.0
            ));
        }
        Ok(())
    }
}

fn limited(what: &str, growth: usize) -> Result<(), String> {
    if growth > GROWTH_MAX {
        return Err(format!(
            "{what} may make more than {GROWTH_MAX} bytes of one; that many steps, or replacements as long, are not accepted"
        ));
    }
    Ok(())
}

/// Bytes that a step makes of one at most. What it is follows from its fields: older files have no types.
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

/// How often a text's tokens stand in what a post-processor makes of them.
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

/// The longest text that a SentencePiece map puts in the place of a character: the length of a table, the table, and
/// texts that end with a zero.
fn longest_replacement(map: &str) -> usize {
    let bytes = base64(map);
    let Some((length, rest)) = bytes.split_first_chunk() else { return usize::MAX };
    let Some(texts) = rest.get(u32::from_le_bytes(*length) as usize..) else { return usize::MAX };
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1)
}

/// Bytes of a text in base64, as far as it is that.
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
    fn honest_tokenizers_pass() {
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}});
        assert_eq!(Growth::of(&llama), Ok(Growth(12)));
        let qwen = json!({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}});
        assert_eq!(Growth::of(&qwen), Ok(Growth(6)));
        // A table of four bytes, then "ab" and "abc".
        let map = json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYgBhYmMA"}});
        assert_eq!(Growth::of(&map), Ok(Growth(3)));
        assert_eq!(Growth::of(&json!({})), Ok(Growth(1)));
        assert_eq!(Growth(16).check(usize::MAX), Ok(()));
        assert!(Growth(32).check(1 << 19).is_ok() && Growth(32).check((1 << 19) + 1).is_err());
        assert_eq!((Growth(6).factor(), Growth(256).factor()), (1, 16));
    }

    #[test]
    fn base64_is_read() {
        assert_eq!(base64("aGVsbG8="), b"hello");
        assert_eq!(base64("+/+/"), [0xFB, 0xFF, 0xBF]);
        assert_eq!(longest_replacement("////"), usize::MAX);
    }
}
