//! Rules for cutting text into words before tokens are merged, by the names that converters write into
//! `tokenizer.ggml.pre`.

use serde_json::{Value, json};

/// The pre-tokenizer that a name in a GGUF file means.
pub(super) struct PreTokenizer {
    /// The value of `pre_tokenizer` in a `tokenizer.json`.
    pub(super) json: Value,
    /// The value of `normalizer` in a `tokenizer.json`.
    pub(super) normalizer: Value,
    /// Whether a piece that equals a token becomes that token, without merging.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with BOS if the file does not say.
    pub(super) add_bos: bool,
}

/// GPT-2's expression.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's expression, which takes up to three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen's expression: that of Llama 3, except that it takes digits one by one.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen's later one, which takes marks for parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's later one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Seed-Coder's.
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

/// DeepSeek's from its third model on: runs of Chinese and Japanese on their own, and then words.
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];
/// Chinese, Japanese and Korean, as DeepSeek's first models take them together.
const EAST_ASIA: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
/// The words of DeepSeek's first model: letters of scripts that have capitals, as far as it lists them.
const CASED_WORDS: &str = concat!(
    r"\s?[",
    r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
    r"\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
    r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}",
    r"\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
    r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
    r"]+"
);
/// Punctuation and signs between words.
const SIGNS: &str = r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
/// Viking's: anything between spaces, full stops and commas.
const VIKING: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";

/// Rules for cutting text that some names in GGUF files stand for.
struct Known {
    names: &'static [&'static str],
    /// Expressions, each of which cuts what the one before it left.
    regexes: &'static [&'static str],
    ignores_merges: bool,
    begins_with_bos: bool,
    /// Whether the models were trained on text in Unicode's composed form (NFC).
    is_composed: bool,
}

/// Every name that is known.
const KNOWN: [Known; 22] = [
    cut(&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"], &[LLAMA3])
        .ignoring_merges()
        .with_bos(),
    // The vocabularies of GLM and of Llama 3 have words that no merges lead to.
    cut(&["smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]).ignoring_merges(),
    cut(&["dbrx"], &[LLAMA3]),
    cut(&["minicpm5"], &[r"\p{N}{1,3}", LLAMA3]).ignoring_merges(),
    cut(&["qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"], &[QWEN2]).composed(),
    cut(&["qwen35"], &[QWEN35]).composed(),
    cut(&["hunyuan"], &[QWEN2]).ignoring_merges().composed(),
    cut(&["stablelm2", "kormo", "solar-open"], &[QWEN2]),
    cut(&["mpt", "olmo"], &[GPT2]).composed(),
    cut(
        &["gpt-2", "phi-2", "gigachat", "jais", "trillion", "exaone4", "a.x-4.0", "mellum", "granite-docling"],
        &[GPT2],
    ),
    cut(&["command-r"], &[r"\p{N}", GPT2]).composed(),
    cut(&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"], &[r"\p{N}", GPT2]),
    cut(&["tekken"], &[TEKKEN]).ignoring_merges().with_bos(),
    cut(&["gpt-4o", "minimax-m2"], &[GPT4O]),
    cut(&["llama4"], &[GPT4O]).ignoring_merges(),
    cut(&["seed-coder"], &[SEED_CODER]),
    cut(&["deepseek-v3", "hunyuan-dense"], &DEEPSEEK3),
    cut(&["deepseek-llm"], &[r"[\r\n]", CASED_WORDS, SIGNS, r"\s+$", EAST_ASIA, r"\p{N}"]),
    cut(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIA, r"\p{N}"]),
    cut(&["viking"], &[VIKING, r"\p{N}"]),
    cut(&["superbpe"], &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    cut(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

/// Makes the rules of names whose text is cut by these expressions and merged as usual.
const fn cut(names: &'static [&'static str], regexes: &'static [&'static str]) -> Known {
    Known { names, regexes, ignores_merges: false, begins_with_bos: false, is_composed: false }
}

impl Known {
    const fn ignoring_merges(self) -> Self {
        Self { ignores_merges: true, ..self }
    }

    const fn with_bos(self) -> Self {
        Self { begins_with_bos: true, ..self }
    }

    const fn composed(self) -> Self {
        Self { is_composed: true, ..self }
    }
}

/// Returns the pre-tokenizer that `name` stands for, if it is known.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    let known = KNOWN.iter().find(|known| known.names.contains(&name))?;
    Some(PreTokenizer {
        json: steps(known.regexes),
        normalizer: if known.is_composed { json!({"type": "NFC"}) } else { Value::Null },
        ignore_merges: known.ignores_merges,
        add_bos: known.begins_with_bos,
    })
}

/// Returns all names that [`find`] knows.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|known| known.names.iter().copied())
}

fn steps(regexes: &[&str]) -> Value {
    if regexes == [GPT2] {
        // This form of the expression lets long texts be cut into pieces (`tokenizer/pieces.rs`).
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde::Deserialize;
    use tokenizers::normalizers::NormalizerWrapper;
    use tokenizers::{
        NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
        PreTokenizerWrapper,
    };

    use super::*;

    /// What the package `tokenizers` makes of texts with the pre-tokenizers of models (see `tools/reference`).
    #[derive(Deserialize)]
    struct Fixture {
        texts: Vec<String>,
        pieces: BTreeMap<String, Vec<Vec<String>>>, // by name, for each text
    }

    /// The pieces of `text`, composed first where the family composes.
    fn pieces(steps: &PreTokenizerWrapper, normalizer: Option<&NormalizerWrapper>, text: &str) -> Vec<String> {
        let mut text = NormalizedString::from(text);
        if let Some(normalizer) = normalizer {
            normalizer.normalize(&mut text).unwrap();
        }
        let text = text.get().to_owned();
        let mut cut = PreTokenizedString::from(text.as_str());
        steps.pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (begin, end), _)| text[begin..end].to_owned()).collect()
    }

    #[test]
    fn texts_are_cut_as_models_of_that_name_cut_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pre_tokenizers.json");
        let fixture: Fixture = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(fixture.pieces.len() >= 26 && fixture.texts.len() >= 20);
        for (name, expected) in &fixture.pieces {
            let pre = find(name).unwrap_or_else(|| panic!("{name} is not known"));
            assert_eq!(expected.len(), fixture.texts.len(), "{name}");
            let steps = serde_json::from_value(pre.json).unwrap();
            let normalizer: Option<_> = serde_json::from_value(pre.normalizer).unwrap();
            for (text, expected) in fixture.texts.iter().zip(expected) {
                assert_eq!(pieces(&steps, normalizer.as_ref(), text), *expected, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn every_name_is_known_once() {
        let mut all: Vec<_> = names().collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
    }

    #[test]
    fn merges_and_bos_are_as_each_family_has_them() {
        let facts = |name: &str| find(name).map(|pre| (pre.ignore_merges, pre.add_bos));
        for (name, expected) in [
            ("llama-bpe", (true, true)),
            ("lfm2", (true, true)),
            ("tekken", (true, true)),
            ("glm4", (true, false)),
            ("hunyuan", (true, false)),
            ("minicpm5", (true, false)),
            ("gpt-4o", (false, false)),
            ("deepseek-v3", (false, false)),
            ("dbrx", (false, false)),
        ] {
            assert_eq!(facts(name), Some(expected), "{name}");
        }
        assert_eq!(facts("chameleon"), None);
    }
}
