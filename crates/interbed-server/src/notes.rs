//! Logs once for each feature that requests ask for and that this server ignores.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The maximum number of features that are logged, because clients can choose some of the names.
const TOLD_MAX: usize = 256;

/// The features that were logged already.
#[derive(Default)]
pub(crate) struct Notes(Mutex<HashSet<String>>);

impl Notes {
    /// Logs that requests ask for `what`, with the `outcome`, unless this was logged before. Returns whether this is
    /// the first time.
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
