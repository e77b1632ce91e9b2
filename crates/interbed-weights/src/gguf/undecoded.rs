//! Texts in a header that are not UTF-8.

use std::borrow::Cow;
use std::fmt;

/// A text, or a list of texts, that is not valid UTF-8; the bytes are kept as in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecoded {
    bytes: Vec<u8>,
    /// One past the last byte of each text; headers are shorter than 4 GiB.
    ends: Vec<u32>,
    is_list: bool,
}

impl Undecoded {
    /// Creates a single text.
    pub(super) fn text(bytes: Vec<u8>) -> Self {
        Self { ends: vec![bytes.len() as u32], bytes, is_list: false }
    }

    /// Creates a list that begins with these texts.
    pub(super) fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut list = Self { bytes: Vec::new(), ends: Vec::new(), is_list: true };
        texts.for_each(|text| list.push(text.as_bytes()));
        list
    }

    /// Appends a text to a list.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.bytes.extend(text);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(super) fn is_list(&self) -> bool {
        self.is_list
    }

    /// Returns the bytes of each text.
    pub(super) fn texts(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let begins = |index: usize| index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.ends.iter().enumerate().map(move |(index, &end)| &self.bytes[begins(index)..end as usize])
    }

    /// Returns what can be read of a single text; `None` for a list.
    pub(super) fn readable(&self) -> Option<Cow<'_, str>> {
        (!self.is_list).then(|| String::from_utf8_lossy(&self.bytes))
    }
}

impl fmt::Display for Undecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_list {
            false => f.write_str("a text that is not UTF-8"),
            true => write!(f, "a list of {} texts that are not all UTF-8", self.ends.len()),
        }
    }
}
