//! Numbers that a template prints as they were sent.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};

/// A number that Python would write in another way than it was sent.
#[derive(Debug)]
pub(super) struct SentNumber(pub(super) String);

impl Object for SentNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
