//! The markers after which a free answer is bound.

/// A text after which an answer is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The text; a special token has its name.
    pub text: String,
    /// It counts only as the first thing in the answer, white space aside.
    pub at_start: bool,
    /// It is part of what the grammar describes.
    pub included: bool,
}

/// The markers of an answer. The one that is complete first counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    markers: Vec<Marker>,
    longest: usize,
}

impl Trigger {
    /// Empty markers do not count.
    pub fn new(markers: Vec<Marker>) -> Self {
        let markers: Vec<_> = markers.into_iter().filter(|marker| !marker.text.is_empty()).collect();
        let longest = markers.iter().map(|marker| marker.text.len()).max().unwrap_or(0);
        Self { markers, longest }
    }
}

/// How much of a marker a free text ends with.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    /// The end of the text so far, one byte shorter than the longest marker at most; at the start, all of it.
    end: Vec<u8>,
    /// Whether the text is nothing yet but white space and the beginning of a marker.
    at_start: bool,
}

impl Scan {
    /// At the start of an answer.
    pub(crate) fn at_start() -> Self {
        Self { end: Vec::new(), at_start: true }
    }

    /// Behind a part that was bound.
    pub(crate) fn further_on() -> Self {
        Self { end: Vec::new(), at_start: false }
    }

    /// Takes more text. Once a marker is complete, returns the text that is bound already.
    pub(crate) fn push(&mut self, trigger: &Trigger, text: &[u8]) -> Option<Vec<u8>> {
        let seen = self.end.len();
        self.end.extend_from_slice(text);
        let found = trigger.markers.iter().filter_map(|marker| {
            let start = if marker.at_start { self.find_at_start(marker)? } else { self.find(marker, seen)? };
            Some((start + marker.text.len(), start, marker.included))
        });
        if let Some((end, start, included)) = found.min() {
            let bound = self.end.split_off(if included { start } else { end });
            *self = Self::further_on();
            return Some(bound);
        }
        self.at_start &= trigger.markers.iter().any(|marker| {
            let begun = self.end.trim_ascii_start();
            marker.at_start && marker.text.as_bytes().starts_with(begun)
        });
        if !self.at_start {
            let kept = self.end.len().min(trigger.longest.saturating_sub(1));
            self.end.drain(..self.end.len() - kept);
        }
        None
    }

    fn find_at_start(&self, marker: &Marker) -> Option<usize> {
        let begun = self.end.trim_ascii_start();
        (self.at_start && begun.starts_with(marker.text.as_bytes())).then_some(self.end.len() - begun.len())
    }

    /// Where the marker begins, if it ends behind the first `seen` bytes.
    fn find(&self, marker: &Marker, seen: usize) -> Option<usize> {
        let marker = marker.text.as_bytes();
        let first = (seen + 1).saturating_sub(marker.len());
        let mut windows = self.end.get(first..)?.windows(marker.len());
        windows.position(|window| window == marker).map(|at| first + at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(text: &str, at_start: bool, included: bool) -> Marker {
        Marker { text: text.into(), at_start, included }
    }

    /// What is bound, and in which piece of `text` the marker ended, for pieces of `size` bytes.
    fn found(trigger: &Trigger, text: &str, size: usize) -> Option<(String, usize)> {
        let mut scan = Scan::at_start();
        text.as_bytes().chunks(size).enumerate().find_map(|(index, piece)| {
            let bound = scan.push(trigger, piece)?;
            let rest = text.as_bytes().chunks(size).skip(index + 1).flatten().copied();
            Some((String::from_utf8(bound.into_iter().chain(rest).collect()).unwrap(), index))
        })
    }

    #[test]
    fn a_marker_is_found_however_the_text_is_cut() {
        let anywhere = Trigger::new(vec![marker("<tool>", false, false), marker("{\"name\"", true, true)]);
        for size in 1..12 {
            let bound = |text| found(&anywhere, text, size).map(|(bound, _)| bound);
            assert_eq!(bound("some <to<tool>rest"), Some("rest".into()));
            assert_eq!(bound("<tool>"), Some(String::new()));
            assert_eq!(bound("  \n{\"name\": 1}"), Some("{\"name\": 1}".into()));
            assert_eq!(bound("no {\"name\": 1}"), None);
            assert_eq!(bound("{\"nam <tool>x"), Some("x".into()));
            assert_eq!(bound("<too l>"), None);
        }
    }

    #[test]
    fn the_text_behind_a_part_is_no_start() {
        let trigger = Trigger::new(vec![marker("{", true, true)]);
        let mut scan = Scan::further_on();
        assert_eq!(scan.push(&trigger, b"{"), None);
        assert_eq!(Scan::at_start().push(&trigger, b"{"), Some(b"{".to_vec()));
    }
}
