//! Free text that may come before the constrained part of an answer, such as a model's thinking.

use crate::trigger::{Marker, Scan, Trigger};

/// Free text that may come before the constrained part of an answer, such as a model's thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preface {
    /// The token that opens the preface at the start of the answer. Without such a token, only a preface that has
    /// already begun is possible.
    pub(crate) open: Option<u32>,
    /// The marker that closes the preface. A special token is written as its name.
    pub(crate) close: Trigger,
    pub(crate) begun: bool,
    /// Maximum number of bytes of white space that may follow the preface.
    pub(crate) blanks: usize,
}

impl Preface {
    /// Creates a preface with which the answer may begin. The token `open` begins the preface, and the text `close`
    /// ends it. If `open` is `None`, no preface can begin. Up to `blanks` bytes of white space may follow the preface.
    pub fn optional(open: Option<u32>, close: &str, blanks: usize) -> Self {
        let marker = Marker { text: close.to_owned(), at_start: false, included: false };
        Self { open, close: Trigger::new(vec![marker]), begun: false, blanks }
    }

    /// Creates a preface that the prompt has already begun. The answer starts inside the preface, and the text `close`
    /// ends the preface. Up to `blanks` bytes of white space may follow the preface.
    pub fn begun(close: &str, blanks: usize) -> Self {
        Self { begun: true, ..Self::optional(None, close, blanks) }
    }

    pub(crate) fn first(&self) -> Stage {
        if self.begun { Stage::Inside(Scan::further_on()) } else { Stage::Before }
    }
}

/// The stage that a preface has reached.
#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// The preface has not begun, and the answer is still empty.
    Before,
    /// The text is inside the preface, and the scan looks for the closing marker.
    Inside(Scan),
    /// The preface has ended. Contains the number of white-space bytes that have followed it.
    Blank(usize),
}
