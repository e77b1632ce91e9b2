//! Reads a header piece by piece, and checks each length against the rest of the file.

use interbed_io::RandomAccessFile;

use super::GGUF_HEADER_BYTES_MAX;
use super::error::GgufProblem;
use super::metadata::{MetadataValue, Number, Numbers, Texts};
use super::undecoded::Undecoded;
use crate::error::WeightError;

/// Bytes that are read at a time: headers are read in order, and mostly whole.
const CHUNK_BYTES: u64 = 1 << 20;
/// Longest key, in bytes; the format's own limit.
const KEY_BYTES_MAX: u64 = (1 << 16) - 1;
/// Longest name of a tensor, in bytes; other readers stop at 64.
const NAME_BYTES_MAX: u64 = 1024;
/// Longest single text, in bytes. Chat templates and licences have some 20 KiB.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of entries of a list, which is the size of the largest vocabulary that is supported.
const ENTRIES_MAX: u64 = 1 << 24;
/// Id of truth values among the format's types of metadata.
pub(super) const BOOL: u32 = 7;
/// Id of texts among the format's types of metadata.
pub(super) const TEXT: u32 = 8;
/// Id of lists among the format's types of metadata.
pub(super) const ARRAY: u32 = 9;

/// A place in a header.
pub(super) struct Reader<'a> {
    file: &'a dyn RandomAccessFile,
    position: u64,
    /// Bytes of the file from `chunk_start` on.
    chunk: Vec<u8>,
    chunk_start: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a dyn RandomAccessFile) -> Self {
        Self { file, position: 0, chunk: Vec::new(), chunk_start: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn problem(&self, problem: GgufProblem) -> WeightError {
        WeightError::Gguf { file: self.file.path().to_owned(), problem }
    }

    /// Refuses `wanted` more bytes if the file or the limit does not have that many left.
    fn reserve(&self, what: &'static str, wanted: u64) -> Result<(), WeightError> {
        let (at, left) = (self.position, self.file.len().saturating_sub(self.position));
        if wanted > left {
            return Err(self.problem(GgufProblem::Truncated { what, at, wanted, left }));
        }
        if wanted > GGUF_HEADER_BYTES_MAX.saturating_sub(at) {
            let limit = GGUF_HEADER_BYTES_MAX;
            return Err(self.problem(GgufProblem::HeaderOverLimit { what, at, wanted, limit }));
        }
        Ok(())
    }

    /// Fills `out`, whose length has been reserved.
    fn fill(&mut self, mut out: &mut [u8]) -> Result<(), WeightError> {
        while !out.is_empty() {
            let chunk_end = self.chunk_start + self.chunk.len() as u64;
            if !(self.chunk_start..chunk_end).contains(&self.position) {
                let len = CHUNK_BYTES.min(self.file.len() - self.position);
                self.chunk.resize(len as usize, 0);
                self.file.read_exact_at(&mut self.chunk, self.position)?;
                self.chunk_start = self.position;
            }
            let have = &self.chunk[(self.position - self.chunk_start) as usize..];
            let count = have.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&have[..count]);
            (out, self.position) = (later, self.position + count as u64);
        }
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WeightError> {
        self.reserve(what, N as u64)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WeightError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, WeightError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a number of things to come, which must be within a limit.
    pub(super) fn count(&mut self, what: &'static str, limit: u64) -> Result<u64, WeightError> {
        let count = self.u64(what)?;
        if count > limit {
            return Err(self.problem(GgufProblem::TooMany { what, count, limit }));
        }
        Ok(count)
    }

    pub(super) fn key(&mut self) -> Result<String, WeightError> {
        self.text("a metadata key", KEY_BYTES_MAX)
    }

    pub(super) fn name(&mut self) -> Result<String, WeightError> {
        self.text("a tensor's name", NAME_BYTES_MAX)
    }

    /// Reads a length, and that many bytes of UTF-8.
    fn text(&mut self, what: &'static str, limit: u64) -> Result<String, WeightError> {
        let mut bytes = Vec::new();
        let at = self.text_bytes(what, limit, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.problem(GgufProblem::NotUtf8 { what, at }))
    }

    /// Replaces `bytes` by the bytes of a text, and returns the offset where they begin in the file.
    fn text_bytes(&mut self, what: &'static str, limit: u64, bytes: &mut Vec<u8>) -> Result<u64, WeightError> {
        let len = self.u64(what)?;
        self.reserve(what, len)?;
        if len > limit {
            return Err(self.problem(GgufProblem::TooMany { what: "bytes of a text", count: len, limit }));
        }
        let at = self.position;
        // Below the limit, so it fits.
        bytes.clear();
        bytes.resize(len as usize, 0);
        self.fill(bytes)?;
        Ok(at)
    }

    /// Reads the value of `key`, which is of the format's type number `kind`.
    pub(super) fn value(&mut self, key: &str, kind: u32) -> Result<MetadataValue, WeightError> {
        match kind {
            BOOL => self.flag(key).map(MetadataValue::Bool),
            TEXT => {
                let mut bytes = Vec::new();
                self.text_bytes("a metadata value", TEXT_BYTES_MAX, &mut bytes)?;
                Ok(match String::from_utf8(bytes) {
                    Ok(text) => MetadataValue::Text(text),
                    Err(error) => MetadataValue::Undecoded(Undecoded::text(error.into_bytes())),
                })
            }
            ARRAY => self.list(key),
            _ => {
                let Some(width) = Number::width(kind) else {
                    return Err(self.problem(GgufProblem::UnknownValueType { key: key.to_owned(), kind }));
                };
                self.reserve("a metadata value", width as u64)?;
                let mut bytes = [0; 8];
                self.fill(&mut bytes[..width])?;
                // A kind that has a width is one of numbers.
                Ok(MetadataValue::Number(Number::from_le(kind, bytes).unwrap_or(Number::U8(0))))
            }
        }
    }

    fn flag(&mut self, key: &str) -> Result<bool, WeightError> {
        match self.array::<1>("a flag")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(self.problem(GgufProblem::NotBool { key: key.to_owned(), found })),
        }
    }

    fn list(&mut self, key: &str) -> Result<MetadataValue, WeightError> {
        let kind = self.u32("a list's type")?;
        let len = self.count("entries of a list", ENTRIES_MAX)?;
        match kind {
            ARRAY => Err(self.problem(GgufProblem::NestedArray { key: key.to_owned() })),
            BOOL => {
                self.reserve("a list of flags", len)?;
                (0..len).map(|_| self.flag(key)).collect::<Result<_, _>>().map(MetadataValue::Bools)
            }
            TEXT => {
                // Each has at least its length.
                self.reserve("a list of texts", len.saturating_mul(8))?;
                let (mut texts, mut undecoded, mut bytes) = (Texts::default(), None::<Undecoded>, Vec::new());
                for _ in 0..len {
                    self.text_bytes("a list's text", TEXT_BYTES_MAX, &mut bytes)?;
                    match (&mut undecoded, std::str::from_utf8(&bytes)) {
                        (None, Ok(text)) => texts.push(text),
                        (none @ None, Err(_)) => none.insert(Undecoded::list(texts.iter())).push(&bytes),
                        (Some(list), _) => list.push(&bytes),
                    }
                }
                Ok(undecoded.map_or(MetadataValue::Texts(texts), MetadataValue::Undecoded))
            }
            _ => {
                let Some(width) = Number::width(kind) else {
                    return Err(self.problem(GgufProblem::UnknownValueType { key: key.to_owned(), kind }));
                };
                let bytes = len.saturating_mul(width as u64);
                self.reserve("a list of numbers", bytes)?;
                let mut numbers = vec![0; bytes as usize];
                self.fill(&mut numbers)?;
                Ok(MetadataValue::Numbers(Numbers::new(kind, numbers)))
            }
        }
    }
}
