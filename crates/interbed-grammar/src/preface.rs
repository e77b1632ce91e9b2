//! What may come before the part of an answer that a grammar describes: a model's thinking.

use crate::trigger::{Marker, Scan, Trigger};

/// What may come before the part of an answer that a grammar describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preface {
    /// The token that opens it as the first one of the answer; without one, only a preface that has begun can come.
    pub(crate) open: Option<u32>,
    /// The text that closes it; a special token has its name.
    pub(crate) close: Trigger,
    pub(crate) begun: bool,
    /// Bytes of white space that may follow it.
    pub(crate) blanks: usize,
}

impl Preface {
    /// One that `open` opens, if the answer begins with it, and `close` ends. Up to `blanks` bytes of white space
    /// follow it.
    pub fn optional(open: Option<u32>, close: &str, blanks: usize) -> Self {
        let marker = Marker { text: close.to_owned(), at_start: false, included: false };
        Self { open, close: Trigger::new(vec![marker]), begun: false, blanks }
    }

    /// One that the answer is in from its first token on.
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
    /// It may begin.
    Before,
    /// It has begun.
    Inside(Scan),
    /// It has ended, and so many bytes of white space followed.
    Blank(usize),
}
