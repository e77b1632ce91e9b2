//! Interprets the decoder of `tokenizer.json`, if it is of a kind that language models use.

use serde_json::Value;

/// The ways in which the pieces of a vocabulary become text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DecoderKind {
    /// The pieces spell bytes in GPT-2's alphabet. The bytes of all pieces together are the text in UTF-8.
    ByteLevel,
    /// Some characters of a piece are replaced, for example each `▁` by a space, and the result is text. Pieces such as
    /// `<0xE4>` may stand for bytes.
    SentencePiece {
        /// Pairs of a pattern and its replacement, which are applied to each piece in order.
        replacements: Vec<(String, String)>,
        /// Whether pieces such as `<0xE4>` stand for bytes.
        byte_fallback: bool,
        /// A character that is removed from the beginning of the text, and the most times that it is removed.
        strip: Option<(char, usize)>,
    },
    /// The pieces are text in which a mark stands for each space. A mark at the beginning of the first piece may be
    /// dropped.
    Metaspace {
        /// The character that marks a space, usually "▁".
        replacement: char,
        /// Whether the marks at the beginning of the first piece are dropped instead of becoming spaces.
        strip_first: bool,
    },
    /// Any other decoder. The `tokenizers` crate decodes the pieces. In a stream, each new token is decoded together
    /// with a window of earlier tokens.
    Other,
}

impl DecoderKind {
    /// Reads the `decoder` of `tokenizer.json`. A decoder that is not fully understood becomes [`DecoderKind::Other`].
    pub(super) fn from_json(decoder: &Value) -> Self {
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map(Vec::as_slice).unwrap_or_default(),
            Some(_) => std::slice::from_ref(decoder),
            None => &[],
        };
        Self::from_steps(steps).unwrap_or(Self::Other)
    }

    fn from_steps(steps: &[Value]) -> Option<Self> {
        let types: Vec<&str> = steps.iter().map(|step| step["type"].as_str()).collect::<Option<_>>()?;
        match types[..] {
            ["ByteLevel"] | ["ByteLevel", "Fuse"] => return Some(Self::ByteLevel),
            ["Metaspace"] => return Self::metaspace(&steps[0]),
            _ => {}
        }
        // Replace*, ByteFallback?, Fuse, Strip?: what the converters of SentencePiece models write.
        let mut steps = steps.iter().zip(types).peekable();
        let mut replacements = Vec::new();
        while let Some((step, _)) = steps.next_if(|(_, kind)| *kind == "Replace") {
            let pattern = step["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty())?;
            replacements.push((pattern.to_owned(), step["content"].as_str()?.to_owned()));
        }
        let byte_fallback = steps.next_if(|(_, kind)| *kind == "ByteFallback").is_some();
        steps.next_if(|(_, kind)| *kind == "Fuse")?;
        let strip = match steps.next_if(|(_, kind)| *kind == "Strip") {
            None => None,
            Some((step, _)) if step["stop"].as_u64() == Some(0) => {
                let mut content = step["content"].as_str()?.chars();
                let (character, rest) = (content.next()?, content.next());
                let times = usize::try_from(step["start"].as_u64()?).ok()?;
                rest.is_none().then_some(Some((character, times)))?
            }
            Some(_) => return None,
        };
        steps.next().is_none().then_some(Self::SentencePiece { replacements, byte_fallback, strip })
    }

    fn metaspace(step: &Value) -> Option<Self> {
        let mut replacement = step["replacement"].as_str()?.chars();
        let (replacement, rest) = (replacement.next()?, replacement.next());
        // Files older than `prepend_scheme` say `add_prefix_space`.
        let strip_first = match (step["prepend_scheme"].as_str(), step["add_prefix_space"].as_bool()) {
            (Some(scheme), _) => scheme != "never",
            (None, Some(add)) => add,
            (None, None) => true,
        };
        rest.is_none().then_some(Self::Metaspace { replacement, strip_first })
    }

    /// Returns the bytes that a piece has in the middle of a text.
    pub(super) fn piece_bytes(&self, piece: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => byte_level_bytes(piece),
            Self::SentencePiece { byte_fallback: true, .. } if fallback_byte(piece).is_some() => {
                fallback_byte(piece).into_iter().collect()
            }
            Self::SentencePiece { replacements, .. } => replaced(piece, replacements).into_bytes(),
            Self::Metaspace { replacement, .. } => piece.replace(*replacement, " ").into_bytes(),
            Self::Other => piece.as_bytes().to_vec(),
        }
    }
}

/// Returns `piece` after all replacements, which are made in order.
pub(super) fn replaced(piece: &str, replacements: &[(String, String)]) -> String {
    replacements.iter().fold(piece.to_owned(), |piece, (from, to)| piece.replace(from.as_str(), to))
}

/// Returns the byte for which a piece such as `<0xE4>` stands, or `None` for other pieces.
pub(super) fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` also takes a sign, and so does the reference; both want exactly two characters.
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns the bytes of a piece in GPT-2's alphabet. A piece with any character outside the alphabet is taken
/// literally.
fn byte_level_bytes(piece: &str) -> Vec<u8> {
    piece.chars().map(byte_level_byte).collect::<Option<_>>().unwrap_or_else(|| piece.as_bytes().to_vec())
}

/// Returns the byte for which a character stands in GPT-2's alphabet. Bytes that are printable Latin-1 characters stand
/// for themselves, and the other 68 bytes, in order, are written as the characters from U+0100 on.
fn byte_level_byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 0x00..=0x20
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}
