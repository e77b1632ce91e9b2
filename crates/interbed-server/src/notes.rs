//! What requests ask for and this server does without: the log tells of each thing once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Most things that are told of; clients choose some of their names.
const TOLD_MAX: usize = 256;

/// The things that the log has told of.
#[derive(Default)]
pub(crate) struct Notes(Mutex<HashSet<String>>);

impl Notes {
    /// Tells the log that requests ask for `what`, and what becomes of that, unless it was told before. Returns whether
    /// this is the first time.
    pub(crate) fn tell(&self, what: &str, outcome: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX || !told.insert(what.to_owned()) {
            return false;
        }
        tracing::info!("requests have {what}, {outcome}; this is told once");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_told_once_and_their_number_is_bounded() {
        let notes = Notes::default();
        assert!(notes.tell("a field", "which is left out"));
        assert!(!notes.tell("a field", "which is left out"));
        let told = (0..2 * TOLD_MAX).filter(|number| notes.tell(&number.to_string(), "which is left out")).count();
        assert_eq!(told, TOLD_MAX - 1);
    }
}
