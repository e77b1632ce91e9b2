//! Continues a last message of the assistant, for which it finds where the message ends in the rendered prompt.
//!
//! The message's text alone does not show where the message ends. Templates may write the same text elsewhere, even as
//! a part of their markers, or write a message twice, trimmed or escaped. So the message gets a unique mark before the
//! template is rendered, and the prompt ends where the mark is found.

use serde_json::Value;

use crate::random::random;

/// A mark, and the original content of the marked message.
pub(crate) struct Prefill {
    mark: String,
    /// The content as the client sent it.
    content: String,
}

impl Prefill {
    /// Appends a new mark to the text of `message`, before trailing white space, which a template may trim.
    pub(crate) fn mark(message: &mut Value) -> Self {
        let content = message["content"].as_str().unwrap_or_default().to_owned();
        // The mark consists of digits: templates neither trim nor escape them, nor change their case. It is too long to
        // occur by chance.
        let mark = format!("{:020}{:020}", random(), random());
        let (text, blank) = parts(&content);
        message["content"] = format!("{text}{mark}{blank}").into();
        Self { mark, content }
    }

    /// Removes the mark from the message.
    pub(crate) fn unmark(&self, message: &mut Value) {
        message["content"] = self.content.as_str().into();
    }

    /// Returns the content as the client sent it.
    pub(crate) fn content(&self) -> &str {
        &self.content
    }

    /// Returns the rendered prompt up to the last mark, or `None` if the template wrote no mark. Also returns the white
    /// space that followed the mark, which the template may have written itself.
    pub(crate) fn up_to_mark(&self, rendered: &str) -> Option<(String, &str)> {
        let (before, behind) = rendered.rsplit_once(&self.mark)?;
        let (_, blank) = parts(&self.content);
        let kept = if behind.starts_with(blank) { blank } else { "" };
        Some((before.replace(&self.mark, ""), kept))
    }
}

/// Splits a content into its text and the trailing white space.
fn parts(content: &str) -> (&str, &str) {
    content.split_at(content.trim_end().len())
}
