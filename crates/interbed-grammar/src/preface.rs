//! Free text that may come before the constrained part of an answer: a model's thinking.

use crate::trigger::{Marker, Scan, Trigger};

/// Free text that may come before the constrained part of an answer, such as a model's thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preface {
    /// The token that opens the preface at the start of the answer; without one, only a preface that has already begun
    /// is possible.
    pub(crate) open: Option<u32>,
    /// The marker that closes the preface. A special token is written as its name.
    pub(crate) close: Trigger,
    pub(crate) begun: bool,
    /// Maximum number of bytes of white space that may follow the preface.
    pub(crate) blanks: usize,
}

impl Preface {
    /// A preface that the answer may begin with: the token `open` opens it and the text `close` ends it. Up to `blanks`
    /// bytes of white space may follow.
    pub fn optional(open: Option<u32>, close: &str, blanks: usize) -> Self {
        let marker = Marker { text: close.to_owned(), at_start: false, included: false };
        Self { open, close: Trigger::new(vec![marker]), begun: false, blanks }
    }

    /// A preface that has begun in the prompt: the answer starts inside it and `close` ends it. Up to `blanks` bytes of
    /// white space may follow.
    pub fn begun(close: &str, blanks: usize) -> Self {
        Self { begun: true, ..Self::optional(None, close, blanks) }
    }

    pub(crate) fn first(&self) -> Stage {
        if self.begun { Stage::Inside(Scan::further_on()) } else { Stage::Before }
    }
}

/// How far a preface has come.
#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// The answer has not begun; the preface may still be opened.
    Before,
    /// The text is inside the preface; the scan looks for the closing marker.
    Inside(Scan),
    /// The preface has ended, and this many bytes of white space have followed it.
    Blank(usize),
}
