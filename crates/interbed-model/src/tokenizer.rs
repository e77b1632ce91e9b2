//! Converts text to token ids and back, by the rules of `tokenizer.json`.
//!
//! The `tokenizers` crate encodes text. This module decodes tokens itself if the decoder is one of the two kinds that
//! language models use: a byte-level decoder, or that of SentencePiece with its "▁" and byte fallback. It can decode a
//! stream of tokens one by one with bounded work, which the crate cannot. Tests check that its results equal those of
//! the crate.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

mod added;
mod config;
mod decoder;
mod detokenizer;
mod growth;
mod pieces;

use crate::bounded_file::{self, Fault};
pub use config::{ADDED_FILE, CONFIG_FILE, SPECIAL_FILE, TokenizerConfig};
use decoder::DecoderKind;
pub use detokenizer::Detokenizer;
use growth::Growth;
use pieces::Pieces;

/// The largest `tokenizer.json` that is accepted, in bytes. The largest such file in use is 33 MiB.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// The largest `tokenizer_config.json` that is accepted, in bytes. The file may hold chat templates and hundreds of
/// added tokens.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The reasons why a tokenizer could not be loaded or used.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file `tokenizer.json` does not exist.
    #[error(
        "{} does not exist; Interbed needs the fast tokenizer, which transformers writes with \
         AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        path.display()
    )]
    Missing {
        /// The path at which the file was expected.
        path: PathBuf,
    },
    /// The GGUF file has no vocabulary.
    #[error(
        "{} has no tokenizer (tokenizer.ggml.model): fetch a file of the model that has one, or convert it again",
        path.display()
    )]
    NotInGguf {
        /// The file.
        path: PathBuf,
    },
    /// The tokenizer in a GGUF file is damaged, or of an unknown kind.
    #[error("{}: {problem}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Describes what was found and what is supported.
        problem: String,
    },
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is larger than the limit.
    #[error("{} has {bytes} bytes, but at most {limit} are accepted; is it the right file?", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size of the file, in bytes.
        bytes: u64,
        /// The largest accepted size, in bytes.
        limit: u64,
    },
    /// The file's content is not a tokenizer.
    #[error("{} is not a valid tokenizer: {problem}", path.display())]
    Malformed {
        /// The file whose content is no tokenizer.
        path: PathBuf,
        /// Describes what is wrong with the content.
        problem: String,
    },
    /// A text could not be tokenized.
    #[error("the text of {bytes} bytes cannot be tokenized: {problem}")]
    Encode {
        /// The length of the text, in bytes.
        bytes: usize,
        /// The error of the tokenizer.
        problem: String,
    },
}

/// A model's tokenizer with its special tokens. A tokenizer is immutable, and can be shared in an `Arc`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    decoder: DecoderKind,
    pieces: Pieces,
    growth: Growth,
    special_ids: HashSet<u32>,
    vocab_size: usize,
    longest_entry: usize,
    bos: Option<String>,
    eos: Option<String>,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    /// Whether `add_bos_token` is set in the configuration. With it, texts begin with BOS whatever `tokenizer.json`
    /// says.
    add_bos: bool,
}

impl Tokenizer {
    /// Loads `tokenizer.json` from `dir`, with the settings that [`TokenizerConfig::from_dir`] reads from the same
    /// directory.
    ///
    /// # Errors
    /// Fails if `tokenizer.json` is missing, or if any of the files is too large or malformed.
    pub fn from_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let bytes = read_limited(&path, MAX_TOKENIZER_BYTES)?.ok_or(TokenizerError::Missing { path: path.clone() })?;
        let config = TokenizerConfig::from_dir(dir)?;
        Self::new(&bytes, &config).map_err(|problem| TokenizerError::Malformed { path, problem })
    }

    /// Creates a tokenizer from the contents of `tokenizer.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// Fails if the content of a file is invalid. The error describes what is wrong.
    pub fn from_bytes(tokenizer_json: &[u8], config_json: Option<&[u8]>) -> Result<Self, String> {
        let config = config_json.map(serde_json::from_slice).transpose().map_err(|error| error.to_string())?;
        Self::new(tokenizer_json, &TokenizerConfig::from_json(config.unwrap_or(Value::Null)))
    }

    /// Creates a tokenizer from the content of `tokenizer.json` and the settings in `config`.
    ///
    /// # Errors
    /// Fails if the content or a setting is invalid. The error describes what is wrong.
    pub fn new(tokenizer_json: &[u8], config: &TokenizerConfig) -> Result<Self, String> {
        let mut json: Value = serde_json::from_slice(tokenizer_json).map_err(|error| error.to_string())?;
        check_merges(&json)?;
        let known = added::of(&json);
        let to_add = config.tokens_to_add(&known)?;
        added::put(&mut json, &to_add);
        let growth = Growth::of(&json)?;
        let decoder = DecoderKind::from_json(json.get("decoder").unwrap_or(&Value::Null));
        let pieces = Pieces::of(&json);
        drop(json);
        // Errors that `check_merges` does not foresee must not end the process: the crate uses what it reads as
        // indices.
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(tokenizer_json))?;
        // Both are settings of the training script, left in by many models; a truncated prompt is a wrong answer.
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        // Those of the vocabulary keep their ids; others get the next ones, as in `transformers`.
        if !to_add.is_empty() {
            guarded(|| inner.add_tokens(to_add))?;
        }
        let moved = config.listed()?.into_iter().find_map(|(id, token)| {
            let other = inner.token_to_id(&token.content).filter(|&other| other != id)?;
            Some((token.content, id, other))
        });
        if let Some((content, id, other)) = moved {
            tracing::warn!("{CONFIG_FILE} says that {content:?} has id {id}, but with tokenizer.json it is {other}");
        }

        let vocabulary = guarded(|| Ok(inner.get_vocab(true)))?;
        let vocab_size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        let longest_entry = vocabulary.keys().map(String::len).max().unwrap_or(0);
        drop(vocabulary);
        // One that `tokenizer.json` calls special has no text either way, as in `transformers`.
        let special = known.into_iter().chain(inner.get_added_tokens_decoder()).filter(|(_, token)| token.special);
        let special_ids = special.map(|(id, _)| id).collect();
        let [bos, eos] = ["bos_token", "eos_token"].map(|key| config.token(key).map(str::to_owned));
        let id_of = |token: &Option<String>| token.as_ref().and_then(|token| inner.token_to_id(token));
        let (bos_id, eos_id) = (id_of(&bos), id_of(&eos));
        let add_bos = config.get("add_bos_token").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            inner,
            decoder,
            pieces,
            growth,
            special_ids,
            vocab_size,
            longest_entry,
            bos,
            eos,
            bos_id,
            eos_id,
            add_bos,
        })
    }

    /// Returns the token ids of `text`. With `add_special`, the ids include the tokens that the model expects around a
    /// text, usually BOS at the beginning. Where `text` contains the spelling of a special token, such as `<s>`, that
    /// special token is returned, as in `transformers`.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_pieces(self.pieces.of_text(text), add_special)
    }

    /// Returns an upper bound for the memory that [`Tokenizer::encode`] takes for `text`, in bytes, including the ids.
    /// Encoding takes hundreds of bytes for each byte of the longest piece that is tokenized at once. A caller with a
    /// memory limit should check this bound first.
    pub fn scratch_bytes(&self, text: &str) -> usize {
        // One that becomes too long is refused when it is encoded, before it takes anything.
        let factor = self.growth_of(text).unwrap_or(1);
        self.pieces.scratch_bytes(text).saturating_mul(factor)
    }

    fn encode_pieces<'a>(
        &self,
        mut pieces: impl Iterator<Item = &'a str>,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let first = pieces.next().unwrap_or_default();
        let mut pieces = pieces.peekable();
        if pieces.peek().is_none() {
            return self.encode_whole(first, add_special);
        }
        let mut ids = self.encode_raw(first, false)?;
        for piece in pieces {
            ids.extend(self.encode_raw(piece, false)?);
        }
        if add_special {
            let (before, after) = self.surroundings()?;
            ids.splice(0..0, before);
            ids.extend(after);
        }
        Ok(self.begun(ids, add_special))
    }

    /// Returns the tokens that `add_special` puts before a text, and the tokens that it puts after a text.
    fn surroundings(&self) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        const PROBE: &str = "a";
        let (bare, mut before) = (self.encode_raw(PROBE, false)?, self.encode_raw(PROBE, true)?);
        let at = before.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(before.len());
        let after = before.split_off((at + bare.len()).min(before.len()));
        before.truncate(at);
        Ok((before, after))
    }

    fn encode_whole(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.begun(self.encode_raw(text, add_special)?, add_special))
    }

    /// Puts BOS in front of `ids` if the configuration says `add_bos_token` and `ids` do not begin with BOS already.
    fn begun(&self, mut ids: Vec<u32>, add_special: bool) -> Vec<u32> {
        if let Some(bos) = self.bos_id.filter(|bos| add_special && self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    fn encode_raw(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .growth_of(text)
            .and_then(|_| guarded(|| self.inner.encode_fast(text, add_special)))
            .map_err(|problem| TokenizerError::Encode { bytes: text.len(), problem })?;
        Ok(encoding.get_ids().to_vec())
    }

    fn growth_of(&self, text: &str) -> Result<usize, String> {
        guarded(|| Ok(self.growth.factor(text, self.inner.get_normalizer())))?
    }

    /// Returns the text of `ids`. Ids outside the vocabulary have no text, and bytes that are not UTF-8 become U+FFFD.
    /// With `skip_special`, special tokens have no text either.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        if let DecoderKind::Other = self.decoder {
            return self.decode_by_crate(ids, skip_special);
        }
        let mut state = detokenizer::State::new(skip_special);
        let mut text = String::new();
        for &id in ids {
            state.push(self, id, &mut text);
        }
        state.finish(self, &mut text);
        text
    }

    /// Returns the text of a single token, with U+FFFD for invalid UTF-8. A leading space is kept.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(id)).into_owned()
    }

    /// Returns the bytes of a single token, which may begin or end within a character. A token outside the vocabulary
    /// has no bytes.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.inner.id_to_token(id) {
            // The content of added tokens is text already, not the decoder's alphabet.
            Some(token) if self.special_ids.contains(&id) => token.into_bytes(),
            Some(token) => self.decoder.piece_bytes(&token),
            None => Vec::new(),
        }
    }

    /// Returns whether every token adds exactly its [`Tokenizer::token_bytes`] to the decoded text. Even then, the
    /// first token of a text may lose a leading space.
    pub fn spells_bytes(&self) -> bool {
        self.decoder != DecoderKind::Other
    }

    /// Returns the token as the vocabulary spells it, for instance `Ġhello`. Returns `None` for an id outside the
    /// vocabulary.
    pub fn vocabulary_entry(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Returns the id of the token whose spelling in the vocabulary is `token`, if there is one.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the id of the longest added token with which `text` begins. Ignores tokens that consist of white space
    /// only.
    pub fn added_token_at(&self, text: &str) -> Option<u32> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        let found = added.filter(|(_, token)| !token.content.trim().is_empty() && text.starts_with(&token.content));
        found.max_by_key(|(_, token)| token.content.len()).map(|(id, _)| id)
    }

    /// Returns whether the token is special. With `skip_special`, decoding leaves special tokens out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Returns the largest token id plus one. The vocabulary size in the model's configuration may be larger.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the length of the vocabulary's longest entry, in bytes. Callers use this length to estimate the longest
    /// text that fits into the context.
    pub fn longest_entry(&self) -> usize {
        self.longest_entry
    }

    /// Returns the text of the begin-of-sequence token, which chat templates use.
    pub fn bos_token(&self) -> Option<&str> {
        self.bos.as_deref()
    }

    /// Returns the text of the end-of-sequence token.
    pub fn eos_token(&self) -> Option<&str> {
        self.eos.as_deref()
    }

    /// Returns the id of the begin-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// Returns the id of the end-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// Decodes with the `tokenizers` crate. If the crate panics because of a malformed decoder, returns the tokens' own
    /// texts instead.
    fn decode_by_crate(&self, ids: &[u32], skip_special: bool) -> String {
        guarded(|| self.inner.decode(ids, skip_special)).unwrap_or_else(|_| {
            let kept = ids.iter().filter(|&&id| !(skip_special && self.is_special(id)));
            kept.map(|&id| self.token_text(id)).collect()
        })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("decoder", &self.decoder)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

/// Reads and parses a JSON file of at most [`MAX_CONFIG_BYTES`]. Returns `None` if the file does not exist.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, TokenizerError> {
    let Some(bytes) = read_limited(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| TokenizerError::Malformed { path: path.to_owned(), problem: error.to_string() })
}

/// Reads a regular file of at most `limit` bytes. Returns `None` if the file does not exist.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    bounded_file::read(path, limit).map_err(|fault| match fault {
        Fault::Read(source) => TokenizerError::Read { path: path.to_owned(), source },
        Fault::TooLong(bytes) => TokenizerError::TooLarge { path: path.to_owned(), bytes, limit },
    })
}

/// Refuses merges for which the `tokenizers` crate would panic. The crate removes `continuing_subword_prefix` from the
/// second half of each merge without a check, and expects that each merge has two parts.
fn check_merges(json: &Value) -> Result<(), String> {
    let Some(model) = json.get("model") else { return Err("it has no \"model\"".into()) };
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or("");
    let Some(merges) = model.get("merges") else { return Ok(()) };
    let Some(merges) = merges.as_array() else { return Err("\"merges\" is not a list".into()) };
    for (index, merge) in merges.iter().enumerate() {
        let second = match merge {
            Value::String(merge) => merge.split_once(' ').map(|(_, second)| second),
            Value::Array(parts) if parts.len() == 2 && parts[0].is_string() => parts[1].as_str(),
            _ => None,
        };
        match second {
            Some(second) if second.is_char_boundary(prefix.len()) && second.len() >= prefix.len() => {}
            _ => return Err(format!("merge {index} is not a pair of tokens")),
        }
    }
    Ok(())
}

/// Runs code of the `tokenizers` crate and turns its panics into errors. After a panic, no half-changed state is used
/// again, because a tokenizer that fails to load is dropped.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library gave up on it".into()),
    }
}

#[cfg(test)]
mod tests;
