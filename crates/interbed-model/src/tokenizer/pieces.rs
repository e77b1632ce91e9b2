//! Cuts a long text into pieces where a cut changes no token.
//!
//! The `tokenizers` crate takes up to some 400 bytes of memory for each byte of text, so a long text is tokenized in
//! pieces. A cut is exact only where no token, expression or normalization can reach across it. This is known for the
//! pre-tokenizers of the Llama 3, Qwen and GPT-2 families, at certain ends of lines, and with added tokens that contain
//! no end of a line. All other tokenizers get their texts whole.

use serde_json::Value;

/// The length, in bytes, from which on a piece ends at the next possible cut.
const PIECE_BYTES: usize = 16 << 10;

/// The most bytes of memory that the `tokenizers` crate takes for each byte of text with a pre-tokenizer. The largest
/// measured number was 406, for the text `"\na"` over and over: each character is then a part, a token and an entry of
/// the result. Without a pre-tokenizer, the largest measured number was 229.
const SPLITTING_FACTOR: usize = 512;
const WHOLE_FACTOR: usize = 288;
/// The most bytes that ids take for each byte of text, which may be one token. An id has four bytes, and while the list
/// of ids grows, half as many more ids are copied: eight bytes for the new list and four for the old one.
const ID_FACTOR: usize = 12;

/// The regular expressions of Llama 3, Qwen2 and Qwen3.5. They differ in the number of digits that a token may have,
/// and in whether marks are parts of words.
const LINE_REGEXES: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The kinds of places at which a text may be cut, so that its pieces can be tokenized separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// A cut between a line end and the letter after it. No match of the tokenizer's regular expression contains both.
    /// The alternative `\s*[\r\n]+` matches the line ends, whatever text comes after them, and no other alternative
    /// matches text beyond a line end.
    AfterLineEnds,
    /// A cut between a visible ASCII character and the line end after it. No alternative of GPT-2's regular expression
    /// matches both, and none depends on the text before its match.
    BeforeLineEnd,
}

/// Says where a tokenizer's texts may be cut, and how much memory encoding takes.
#[derive(Debug)]
pub(super) struct Pieces {
    cut: Option<Cut>,
    factor: usize,
}

impl Pieces {
    /// Reads the properties of the tokenizer from the content of `tokenizer.json`.
    pub(super) fn of(json: &Value) -> Self {
        let pre_tokenizer = json.get("pre_tokenizer").unwrap_or(&Value::Null);
        let factor = if pre_tokenizer.is_null() { WHOLE_FACTOR } else { SPLITTING_FACTOR };
        let cut = cut_of(pre_tokenizer).filter(|_| nothing_reaches_across(json));
        Self { cut, factor }
    }

    /// Returns the pieces of `text`, in order.
    pub(super) fn of_text<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        self.pieces_of(text, PIECE_BYTES)
    }

    /// Returns the most bytes of memory that tokenizing `text` takes at a time, including the ids.
    pub(super) fn scratch_bytes(&self, text: &str) -> usize {
        let longest = self.of_text(text).map(str::len).max().unwrap_or(0);
        longest.saturating_mul(self.factor).saturating_add(text.len().saturating_mul(ID_FACTOR))
    }

    fn pieces_of<'a>(&self, text: &'a str, target: usize) -> impl Iterator<Item = &'a str> {
        let cut = self.cut;
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest?;
            let end = cut.and_then(|cut| (target.max(2)..text.len()).find(|&at| cut.is_allowed(text, at)));
            let (piece, after) = text.split_at(end.unwrap_or(text.len()));
            rest = Some(after).filter(|after| !after.is_empty());
            Some(piece)
        })
    }
}

impl Cut {
    fn is_allowed(self, text: &str, at: usize) -> bool {
        if !text.is_char_boundary(at) {
            return false;
        }
        let before = text.as_bytes().get(at.wrapping_sub(1)).copied().unwrap_or(0);
        let Some(after) = text[at..].chars().next() else { return false };
        match self {
            Self::AfterLineEnds => before == b'\n' && is_letter(after),
            Self::BeforeLineEnd => before.is_ascii_graphic() && after == '\n',
        }
    }
}

/// Returns whether a character is a letter of one of the commonest scripts. Each of these letters is a `\p{L}`, and
/// Unicode normalization composes none of them with a line end before it.
fn is_letter(character: char) -> bool {
    matches!(character, 'A'..='Z' | 'a'..='z' | 'А'..='я' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}'
        | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7A3}')
}

fn cut_of(pre_tokenizer: &Value) -> Option<Cut> {
    if is_byte_level(pre_tokenizer, true) {
        return Some(Cut::BeforeLineEnd);
    }
    let [split, bytes] = pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice() else { return None };
    let known = split["pattern"]["Regex"].as_str().is_some_and(|regex| LINE_REGEXES.contains(&regex));
    let isolated = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
    (pre_tokenizer["type"] == "Sequence" && known && isolated && is_byte_level(bytes, false))
        .then_some(Cut::AfterLineEnds)
}

fn is_byte_level(pre_tokenizer: &Value, use_regex: bool) -> bool {
    let splits = pre_tokenizer.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
    pre_tokenizer["type"] == "ByteLevel" && pre_tokenizer["add_prefix_space"] == false && splits == use_regex
}

/// Returns whether no step but the pre-tokenizer looks beyond the text of a token.
fn nothing_reaches_across(json: &Value) -> bool {
    let normalizer = &json["normalizer"];
    let plain = |token: &Value| {
        ["lstrip", "rstrip", "single_word"].iter().all(|&key| token[key] != true)
            && token["content"].as_str().is_some_and(|content| !content.contains(['\n', '\r']))
    };
    (normalizer.is_null() || normalizer["type"] == "NFC")
        && json["model"]["type"] == "BPE"
        && json["model"]["dropout"].as_f64().unwrap_or(0.0) == 0.0
        && json["added_tokens"].as_array().is_none_or(|tokens| tokens.iter().all(plain))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::Tokenizer;
    use super::*;

    /// Returns a tokenizer with merges over line ends, spaces and letters.
    fn tokenizer(pre_tokenizer: &Value) -> (Tokenizer, Pieces) {
        let mut vocab = serde_json::Map::new();
        for token in [
            "a", "b", "s", "1", ".", "'", "<", ">", "Ċ", "Ġ", "č", "ĊĊ", "ĊĊĊ", ".Ċ", "Ċa", "aĊ", "ĠĊ", "ab", "Ġa",
            "ĊĠ", "ä", "½", "ł", "å", "¥", "Ì", "ģ",
        ] {
            vocab.insert(token.into(), vocab.len().into());
        }
        let merges = [
            ["Ċ", "Ċ"],
            ["ĊĊ", "Ċ"],
            [".", "Ċ"],
            ["Ċ", "a"],
            ["a", "Ċ"],
            ["Ġ", "Ċ"],
            ["a", "b"],
            ["Ġ", "a"],
            ["Ċ", "Ġ"],
        ];
        let special = json!({"id": vocab.len(), "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
            "normalizer": {"type": "NFC"}, "pre_tokenizer": pre_tokenizer, "decoder": null,
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [vocab.len()], "tokens": ["<s>"]}}},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                "merges": merges},
        });
        (Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap(), Pieces::of(&json))
    }

    fn byte_level(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn by_lines(regex: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}, byte_level(false)]})
    }

    proptest! {
        #[test]
        fn pieces_have_the_tokens_of_the_whole(text in "([ab1.'\n\r 你\u{301}]|<s>|\n\n|\na){0,60}") {
            let all = LINE_REGEXES.map(by_lines).into_iter().chain([byte_level(true)]);
            for (tokenizer, pieces) in all.map(|pre_tokenizer| tokenizer(&pre_tokenizer)) {
                prop_assert!(pieces.cut.is_some());
                let whole = tokenizer.encode_whole(&text, true).unwrap();
                for target in [2, 9] {
                    let cut: Vec<&str> = pieces.pieces_of(&text, target).collect();
                    prop_assert_eq!(cut.concat(), text.as_str());
                    prop_assert_eq!(tokenizer.encode_pieces(cut.into_iter(), true).unwrap(), whole.clone());
                }
            }
        }
    }

    #[test]
    fn only_what_is_known_is_cut() {
        let (_, pieces) = tokenizer(&by_lines(r"\s+|\S+"));
        assert_eq!(pieces.cut, None);
        assert_eq!(tokenizer(&Value::Null).1.cut, None);
        let long = "a line of text\n".repeat(10_000);
        assert_eq!(pieces.of_text(&long).count(), 1);
        assert!(pieces.scratch_bytes(&long) > long.len() * SPLITTING_FACTOR);
        let (_, pieces) = tokenizer(&by_lines(LINE_REGEXES[0]));
        assert!(pieces.of_text(&long).count() > 5);
        assert!(pieces.scratch_bytes(&long) < long.len() * 100);
    }
}
