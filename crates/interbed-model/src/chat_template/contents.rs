//! Finds out which content a template expects in a message that calls tools and has no text. Many templates print any
//! content, even `None`, and some show calls only if the content is none. Each content is tried on a conversation with
//! a call.

use serde_json::{Map, Value as Json};

use super::arguments::{ArgumentsForm, VALUE, conversation, probed, quality, tool};

/// The content of a message that has tool calls but no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoContent {
    /// The content is an empty string.
    Empty,
    /// The content is `null`, which is `none` in a template.
    Null,
    /// The message has no key `content`.
    Absent,
}

/// Describes how a template shows calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallContents {
    /// The content with which the template shows calls best in a message without text. Of contents that are equally
    /// good, an empty text comes before `null`, and `null` before no content.
    pub(super) without_text: NoContent,
    /// Whether the template shows calls equally well in a message that has text.
    pub(super) beside_text: bool,
}

/// Finds out how `render` shows a call with each content.
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

/// Returns whether `render` shows a call whose arguments are a text that is not JSON, in a message with this content.
pub(super) fn takes_text_arguments(content: NoContent, render: impl Fn(&[Json], &[Json]) -> Option<String>) -> bool {
    let rendered = render(&conversation(&VALUE.into(), content.content(), 1), std::slice::from_ref(&tool()));
    rendered.is_some_and(|text| text.contains(VALUE))
}

impl NoContent {
    /// Sets the key `content` of `message` to this content, or removes the key if this is [`NoContent::Absent`]. The
    /// message must have no text, because its former content is lost.
    pub fn fill(self, message: &mut Map<String, Json>) {
        match self.content() {
            Some(content) => drop(message.insert("content".into(), content)),
            None => drop(message.shift_remove("content")),
        }
    }

    pub(super) fn content(self) -> Option<Json> {
        match self {
            Self::Empty => Some("".into()),
            Self::Null => Some(Json::Null),
            Self::Absent => None,
        }
    }
}
