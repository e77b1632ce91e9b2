//! A last message that is to be continued, and where it ends in what the template writes.
//!
//! Its own text does not tell: templates write the same text elsewhere, as a part of their markers even, or write a
//! message twice, trimmed or escaped. So the message gets a mark before the template sees it, and the prompt ends where
//! the mark is found.

use serde_json::Value;

use crate::random::random;

/// A mark, and the message that has it.
pub(crate) struct Prefill {
    mark: String,
    /// The content as the client sent it.
    content: String,
}

impl Prefill {
    /// Puts a new mark behind the text of `message`, and before white space at its end: a template may trim that.
    pub(crate) fn mark(message: &mut Value) -> Self {
        let content = message["content"].as_str().unwrap_or_default().to_owned();
        // Digits: templates neither trim nor escape them, nor change their case. No text has so many by chance.
        let mark = format!("{:020}{:020}", random(), random());
        let (text, blank) = parts(&content);
        message["content"] = format!("{text}{mark}{blank}").into();
        Self { mark, content }
    }

    /// Takes the mark away again.
    pub(crate) fn unmark(&self, message: &mut Value) {
        message["content"] = self.content.as_str().into();
    }

    /// The content as the client sent it.
    pub(crate) fn content(&self) -> &str {
        &self.content
    }

    /// What a template has written up to the mark, which it writes last where the message stands; `None` if it writes
    /// no mark. White space that followed it there is told too: the template may have written it itself.
    pub(crate) fn up_to_mark(&self, rendered: &str) -> Option<(String, &str)> {
        let (before, behind) = rendered.rsplit_once(&self.mark)?;
        let (_, blank) = parts(&self.content);
        let kept = if behind.starts_with(blank) { blank } else { "" };
        Some((before.replace(&self.mark, ""), kept))
    }
}

/// A content without the white space at its end, and that.
fn parts(content: &str) -> (&str, &str) {
    content.split_at(content.trim_end().len())
}
