//! What a template wants as the content of a message that calls tools and says nothing: many print whatever is there,
//! `None` too, and some show calls only beside a content that is none. What a template does with each is tried on a
//! conversation with a call.

use serde_json::{Map, Value as Json};

use super::arguments::{ArgumentsForm, VALUE, conversation, probed, quality, tool};

/// The content of a message that calls tools and says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoContent {
    /// An empty text.
    Empty,
    /// `null`, which templates know as `none`.
    Null,
    /// The message has no content.
    Absent,
}

/// How a template shows calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallContents {
    /// The content with which it shows calls best where nothing is said; of equals, that which can be printed without
    /// harm.
    pub(super) without_text: NoContent,
    /// Whether it shows them as well beside a text.
    pub(super) beside_text: bool,
}

/// What `render` does with a call beside each content.
pub(super) fn probe(arguments: ArgumentsForm, render: impl Fn(&[Json], &[Json]) -> Option<String>) -> CallContents {
    let shown = probed();
    let given = match arguments {
        ArgumentsForm::Object => shown.clone(),
        ArgumentsForm::Text => Json::String(shown.to_string()),
    };
    let score = |content: Option<Json>| {
        let rendered = render(&conversation(&given, content, 1), std::slice::from_ref(&tool()));
        rendered.map_or(0, |text| quality(&text, &shown))
    };
    let (mut without_text, mut best) = (NoContent::Empty, score(NoContent::Empty.content()));
    for other in [NoContent::Null, NoContent::Absent] {
        let shown = score(other.content());
        if shown > best {
            (without_text, best) = (other, shown);
        }
    }
    CallContents { without_text, beside_text: score(Some("text".into())) >= best }
}

/// Whether `render` shows a call whose arguments are a text that is no JSON, in a message of this content.
pub(super) fn takes_text_arguments(content: NoContent, render: impl Fn(&[Json], &[Json]) -> Option<String>) -> bool {
    let rendered = render(&conversation(&VALUE.into(), content.content(), 1), std::slice::from_ref(&tool()));
    rendered.is_some_and(|text| text.contains(VALUE))
}

impl NoContent {
    /// Gives it to a message that says nothing.
    pub fn fill(self, message: &mut Map<String, Json>) {
        match self.content() {
            Some(content) => drop(message.insert("content".into(), content)),
            None => drop(message.shift_remove("content")),
        }
    }

    fn content(self) -> Option<Json> {
        match self {
            Self::Empty => Some("".into()),
            Self::Null => Some(Json::Null),
            Self::Absent => None,
        }
    }
}
