//! Conversion of a GGUF file's vocabulary to `tokenizer.json`.

mod marked_spaces;

use std::collections::HashMap;

use interbed_weights::{GgufProblem, Metadata, Number, Texts};
use serde_json::{Map, Value, json};

use super::sentencepiece::{Piece, merges};
use super::{GgufModel, TokenizerFiles, pre_tokenizer};
use crate::end_tokens::{HARMONY_ENDS, MESSAGE_END, RESULT_BEGIN};
use crate::families::Family;
use crate::tokenizer::{MAX_TOKENIZER_BYTES, TokenizerConfig, TokenizerError};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Ids that SentencePiece gives its special tokens unless the file says otherwise.
const SENTENCEPIECE_IDS: [(&str, usize); 3] = [(UNKNOWN, 0), (BOS, 1), (EOS, 2)];
/// Keys of tokens that end a text, apart from EOS: the ends of a turn and of a message.
const OTHER_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Tokens that end a text in every model that has them, with or without a key, and whatever type a converter gave them:
/// these names do not occur as text.
const END_NAMES: [&str; 11] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    RESULT_BEGIN,
    "<EOT>",
];

/// Most tokens of a vocabulary. The largest in use have 262,144.
const TOKENS_MAX: usize = 1 << 20;
/// Most special and user-defined tokens, which are looked for in a text verbatim; each takes memory in a matcher. Real
/// files have some thousands.
const ADDED_MAX: usize = 1 << 16;
/// Most merges of byte-pair encoding; the largest in use have 446,189.
const MERGES_MAX: usize = 4_000_000;

/// SentencePiece's mark for a space.
const SPACE: &str = "▁";

/// Types of tokens that a GGUF file distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Makes `tokenizer.json` and `tokenizer_config.json` from the metadata.
pub(super) fn read(model: &GgufModel<'_>) -> Result<TokenizerFiles, TokenizerError> {
    let unsupported = |problem: String| TokenizerError::Unsupported { path: model.path.clone(), problem };
    let problem = |problem: GgufProblem| unsupported(problem.to_string());
    let metadata = model.metadata;
    let Some(kind) = metadata.text(MODEL).map_err(problem)? else {
        return Err(TokenizerError::NotInGguf { path: model.path.clone() });
    };
    let vocabulary = Vocabulary::read(metadata).map_err(problem)?;
    let merge_texts = metadata.texts(MERGES).map_err(problem)?;
    // Each becomes many times its bytes once it is an object, so numbers are bounded as well as bytes.
    let added = vocabulary.entries().filter(|(_, kind)| kind.is_added()).count();
    for (what, count, limit) in [
        ("tokens", vocabulary.tokens.len(), TOKENS_MAX),
        ("control and user-defined tokens", added, ADDED_MAX),
        ("merges", merge_texts.map_or(0, Texts::len), MERGES_MAX),
    ] {
        if count > limit {
            return Err(problem(GgufProblem::TooMany { what, count: count as u64, limit: limit as u64 }));
        }
    }
    let bytes = vocabulary.tokens.text_bytes().saturating_add(merge_texts.map_or(0, Texts::text_bytes)) as u64;
    if bytes > MAX_TOKENIZER_BYTES {
        return Err(TokenizerError::TooLarge { path: model.path.clone(), bytes, limit: MAX_TOKENIZER_BYTES });
    }
    let tokenizer = match kind {
        "gpt2" => {
            let Some(name) = metadata.text(PRE).map_err(problem)? else {
                return Err(unsupported(format!(
                    "it does not say how text is cut into words ({PRE}), as files of early converters do not; convert \
                     the model again"
                )));
            };
            let Some(pre) = pre_tokenizer::find(name) else {
                let known: Vec<_> = pre_tokenizer::names().collect();
                let shown: String = name.chars().take(80).collect();
                return Err(unsupported(format!(
                    "{PRE} is {shown:?}, which is not known; known are {}: use the Hugging Face directory of this \
                     model \
                     instead",
                    known.join(", ")
                )));
            };
            byte_level_json(metadata, &vocabulary, needed(merge_texts).map_err(problem)?, &pre).map_err(unsupported)?
        }
        "gemma4" => {
            let merges = needed(merge_texts).map_err(problem)?;
            marked_spaces::json(metadata, &vocabulary, merges).map_err(unsupported)?
        }
        "llama" => sentencepiece_json(metadata, &vocabulary).map_err(unsupported)?,
        other => {
            let shown: String = other.chars().take(80).collect();
            return Err(unsupported(format!(
                "{MODEL} is {shown:?}; supported are \"gpt2\" (byte-level BPE), \"gemma4\" (BPE with marks for \
                 spaces) and \"llama\" (SentencePiece): use the Hugging Face directory of this model instead"
            )));
        }
    };
    Ok(TokenizerFiles { tokenizer, config: names(model)? })
}

/// Returns the merges, which byte-pair encoding needs.
fn needed(merges: Option<&Texts>) -> Result<&Texts, GgufProblem> {
    merges.ok_or_else(|| GgufProblem::Missing { key: MERGES.to_owned(), why: "byte-pair encoding needs it" })
}

/// Makes `tokenizer_config.json`, with the texts of the special tokens.
pub(super) fn names(model: &GgufModel<'_>) -> Result<TokenizerConfig, TokenizerError> {
    let problem =
        |problem: GgufProblem| TokenizerError::Unsupported { path: model.path.clone(), problem: problem.to_string() };
    let metadata = model.metadata;
    let tokens = metadata.texts(TOKENS).map_err(problem)?;
    let mut json = Map::new();
    for (name, key) in [
        ("bos_token", BOS),
        ("eos_token", EOS),
        ("unk_token", UNKNOWN),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ] {
        let id = special_id(metadata, key).map_err(problem)?.and_then(|id| usize::try_from(id).ok());
        if let Some(token) = id.and_then(|id| tokens?.get(id)) {
            json.insert(name.to_owned(), token.into());
        }
    }
    Ok(TokenizerConfig::of_names(json))
}

/// Returns the number of tokens in the vocabulary; 0 without a tokenizer.
pub(crate) fn num_tokens(metadata: &Metadata) -> Result<u64, GgufProblem> {
    Ok(metadata.texts(TOKENS)?.map_or(0, Texts::len) as u64)
}

/// Returns the id of the token that begins a text, if there is one.
pub(crate) fn bos_id(metadata: &Metadata) -> Result<Option<u64>, GgufProblem> {
    special_id(metadata, BOS)
}

/// Returns the id under a key. If a SentencePiece vocabulary lacks the key, returns the usual id, provided that the
/// vocabulary has it.
fn special_id(metadata: &Metadata, key: &str) -> Result<Option<u64>, GgufProblem> {
    if let Some(id) = metadata.count(key)? {
        return Ok(Some(id));
    }
    let Some((_, id)) = SENTENCEPIECE_IDS.into_iter().find(|(known, _)| *known == key) else { return Ok(None) };
    let tokens = metadata.texts(TOKENS)?.map_or(0, Texts::len);
    Ok((metadata.text(MODEL)? == Some("llama") && tokens > id).then_some(id as u64))
}

/// Returns the tokens that end a text: EOS first, then those that other keys name, then those called by one of
/// [`END_NAMES`].
pub(crate) fn end_ids(metadata: &Metadata) -> Result<Vec<u64>, GgufProblem> {
    let mut ids = Vec::new();
    ids.extend(special_id(metadata, EOS)?);
    for key in OTHER_ENDS {
        ids.extend(metadata.count(key)?);
    }
    let vocabulary = Vocabulary::read(metadata)?;
    let of_harmony = HARMONY_ENDS.map(|name| vocabulary.control(name));
    for (id, (token, kind)) in vocabulary.entries().enumerate() {
        if kind == Kind::Control && END_NAMES.contains(&token) {
            ids.push(id as u64);
        }
    }
    if let [Some(_), Some(_)] = of_harmony {
        let message_end = vocabulary.control(MESSAGE_END);
        ids.retain(|&id| Some(id) != message_end);
        ids.extend(of_harmony.into_iter().flatten());
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|&id| seen.insert(id));
    Ok(ids)
}

/// The texts of all tokens, and the type of each.
struct Vocabulary<'a> {
    tokens: std::borrow::Cow<'a, Texts>,
    kinds: Vec<Kind>, // one for each token
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, GgufProblem> {
        let tokens = match metadata.texts(TOKENS)? {
            Some(tokens) => std::borrow::Cow::Borrowed(tokens),
            None => std::borrow::Cow::Owned(Texts::default()),
        };
        let mut kinds = Vec::new();
        if let Some(numbers) = metadata.numbers(TYPES)? {
            kinds.extend(numbers.iter().map(kind));
        }
        if !kinds.is_empty() && kinds.len() != tokens.len() {
            return Err(GgufProblem::WrongType {
                key: TYPES.to_owned(),
                expected: "one number for each token",
                found: format!("a list of {} for {} tokens", kinds.len(), tokens.len()),
            });
        }
        kinds.resize(tokens.len(), Kind::Normal);
        for (token, kind) in tokens.iter().zip(&mut kinds) {
            if matches!(kind, Kind::Normal | Kind::UserDefined) && END_NAMES.contains(&token) {
                *kind = Kind::Control;
            }
        }
        Ok(Self { tokens, kinds })
    }

    fn entries(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.tokens.iter().zip(self.kinds.iter().copied())
    }

    /// Returns the id of the control token with this text, if there is one.
    fn control(&self, name: &str) -> Option<u64> {
        let is_it = |(token, kind): (&str, Kind)| kind == Kind::Control && token == name;
        self.entries().position(is_it).map(|id| id as u64)
    }

    /// Returns the id of each token by its text. Of two tokens with one text, the first counts; tokens without text are
    /// left out.
    fn ids(&self) -> HashMap<&str, u32> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            // Lists have far fewer entries than 2^32.
            ids.entry(token).or_insert(id as u32);
        }
        ids
    }

    /// Returns whether each byte has a token.
    fn has_bytes(&self, ids: &HashMap<&str, u32>) -> bool {
        (0..=255u8).all(|byte| ids.contains_key(format!("<0x{byte:02X}>").as_str()))
    }

    /// Makes `model.vocab` of `tokenizer.json`, in the order of ids.
    fn json(&self, ids: &HashMap<&str, u32>) -> Value {
        let first = |(id, token): &(usize, &str)| ids.get(token) == Some(&(*id as u32));
        let entries = self.tokens.iter().enumerate().filter(first);
        Value::Object(entries.map(|(id, token)| (token.to_owned(), id.into())).collect())
    }

    /// Makes `added_tokens`: tokens that are looked for in a text verbatim, before anything else. With `strips`, white
    /// space behind them is dropped, except behind the tokens that `strips` lists.
    fn added(&self, ids: &HashMap<&str, u32>, strips: Option<&[&str]>) -> Value {
        let mut added = Vec::new();
        for (id, (token, kind)) in self.entries().enumerate() {
            if !kind.is_added() {
                continue;
            }
            let special = kind != Kind::UserDefined;
            if ids.get(token) == Some(&(id as u32)) {
                added.push(json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false,
                    "rstrip": strips.is_some_and(|besides| !besides.contains(&token)),
                    // One that holds the mark for spaces can only be found once spaces are marks.
                    "normalized": !special && token.contains(SPACE), "special": special,
                }));
            }
        }
        Value::Array(added)
    }
}

impl Kind {
    /// Returns whether tokens of this type are looked for in a text verbatim.
    fn is_added(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown | Kind::UserDefined)
    }
}

fn kind(number: Number) -> Kind {
    match number.as_integer() {
        Some(2) => Kind::Unknown,
        Some(3) => Kind::Control,
        Some(4) => Kind::UserDefined,
        Some(5) => Kind::Unused,
        Some(6) => Kind::Byte,
        _ => Kind::Normal,
    }
}

/// Returns the two parts of each merge.
fn pairs(merges: &Texts) -> Result<Vec<(&str, &str)>, String> {
    let both = |(index, merge): (usize, &'_ str)| {
        // A token may begin with a space in vocabularies that are not of bytes; none is one alone.
        let at = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ');
        at.map(|(at, _)| at).ok_or_else(|| format!("{MERGES}[{index}] is no pair of tokens"))
    };
    let merges = merges.iter().enumerate();
    merges.map(|(index, merge)| both((index, merge)).map(|at| (&merge[..at], &merge[at + 1..]))).collect()
}

/// Returns the text of the token for what no other token stands for, if there is one. A token with the right type is
/// preferred to one at the usual id.
fn unknown<'v>(metadata: &Metadata, vocabulary: &'v Vocabulary<'_>) -> Result<Option<&'v str>, String> {
    let text = |problem: GgufProblem| problem.to_string();
    let marked = vocabulary.entries().find(|(_, kind)| *kind == Kind::Unknown).map(|(token, _)| token);
    Ok(match (metadata.count(UNKNOWN).map_err(text)?, marked) {
        (None, Some(marked)) => Some(marked),
        _ => {
            special_id(metadata, UNKNOWN).map_err(text)?.and_then(|id| vocabulary.tokens.get(usize::try_from(id).ok()?))
        }
    })
}

fn byte_level_json(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    merges: &Texts,
    pre: &pre_tokenizer::PreTokenizer,
) -> Result<Value, String> {
    let ids = vocabulary.ids();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(&ids, strips(metadata)?),
        "normalizer": pre.normalizer,
        "pre_tokenizer": pre.json,
        "post_processor": surroundings(metadata, vocabulary, if pre.add_bos { Bos::UnlessTold } else { Bos::IfTold })?,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges, "vocab": vocabulary.json(&ids), "merges": pairs(merges)?,
        },
    }))
}

fn sentencepiece_json(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Value, String> {
    let text = |problem: GgufProblem| problem.to_string();
    let ids = vocabulary.ids();
    let scores = metadata.numbers(SCORES).map_err(text)?.filter(|scores| scores.len() == vocabulary.tokens.len());
    let scores = scores.ok_or_else(|| format!("{SCORES} should have one number for each token, and does not"))?;
    let pieces: Vec<_> = vocabulary
        .entries()
        .zip(scores.iter())
        .filter(|((_, kind), _)| matches!(kind, Kind::Normal | Kind::UserDefined))
        .map(|((text, _), score)| Piece { text, score: score.as_f64() as f32 })
        .collect();
    let merges: Vec<_> = merges(&pieces, &ids)?.into_iter().map(|(left, right)| json!([left, right])).collect();
    let unknown = unknown(metadata, vocabulary)?;
    let prefix = metadata.flag("tokenizer.ggml.add_space_prefix").map_err(text)?.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let normalizer = match prefix {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}),
        false => replace,
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(&ids, strips(metadata)?),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": surroundings(metadata, vocabulary, Bos::UnlessTold)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": vocabulary.has_bytes(&ids),
            "ignore_merges": false,
            "vocab": vocabulary.json(&ids), "merges": merges,
        },
    }))
}

/// Says when texts begin with BOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bos {
    /// In every model of this kind; files of early converters say otherwise.
    Always,
    /// Unless the file says otherwise.
    UnlessTold,
    /// If the file says so.
    IfTold,
}

/// Decides whether white space behind special tokens is dropped: `None` if it is kept, otherwise the tokens that are
/// exempt. The format has no key for it: the model's name tells, or its architecture and kind of vocabulary.
fn strips(metadata: &Metadata) -> Result<Option<&'static [&'static str]>, String> {
    let text = |key| metadata.text(key).map_err(|problem| problem.to_string());
    let name = metadata.description("general.name").unwrap_or_default().to_lowercase();
    let architecture = text("general.architecture")?.unwrap_or_default();
    Ok(Family::strips_white_space(&name, architecture, text(MODEL)? == Some("llama")))
}

/// Makes `post_processor`, which puts BOS before and EOS after a text if the file or the kind of model says so.
fn surroundings(metadata: &Metadata, vocabulary: &Vocabulary<'_>, bos: Bos) -> Result<Value, String> {
    let token = |flag: &str, kind: Bos, key: &str| {
        let told = metadata.flag(flag).map_err(|problem| problem.to_string())?;
        let wanted = kind == Bos::Always || told.unwrap_or(kind == Bos::UnlessTold);
        let id = special_id(metadata, key).map_err(|problem| problem.to_string())?.filter(|_| wanted);
        let token = id.and_then(|id| vocabulary.tokens.get(usize::try_from(id).ok()?));
        Ok::<_, String>(id.zip(token.filter(|token| !token.is_empty())))
    };
    let bos = token("tokenizer.ggml.add_bos_token", bos, BOS)?;
    let eos = token("tokenizer.ggml.add_eos_token", Bos::IfTold, EOS)?;
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let special = |token: Option<(u64, &str)>, sequence: u8| {
        token.map(|(_, token)| json!({"SpecialToken": {"id": token, "type_id": sequence}}))
    };
    let around = |name: &str, sequence: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": sequence}});
        [special(bos, sequence), Some(text), special(eos, sequence)].into_iter().flatten().collect::<Vec<_>>()
    };
    let named: Map<String, Value> = bos
        .into_iter()
        .chain(eos)
        .map(|(id, token)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    let pair: Vec<_> = around("A", 0).into_iter().chain(around("B", 1)).collect();
    Ok(json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": named}))
}
