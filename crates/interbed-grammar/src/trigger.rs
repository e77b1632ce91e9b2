//! The markers after which a free answer is bound.

use serde_json::{Value, json};

/// A text after which an answer is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The text; a special token has its name.
    pub text: String,
    /// It counts only as the first thing in the answer or behind a part that was bound, white space aside.
    pub at_start: bool,
    /// It is part of what the grammar describes.
    pub included: bool,
}

/// The markers of an answer. The one that is complete first counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    markers: Vec<Marker>,
    longest: usize,
    /// What may stand, like white space, between a part that was bound and a marker at the start of what follows.
    separators: Vec<u8>,
}

impl Trigger {
    /// Empty markers do not count.
    pub fn new(markers: Vec<Marker>) -> Self {
        let markers: Vec<_> = markers.into_iter().filter(|marker| !marker.text.is_empty()).collect();
        let longest = markers.iter().map(|marker| marker.text.len()).max().unwrap_or(0);
        Self { markers, longest, separators: Vec::new() }
    }

    /// The same with these bytes like white space between a part that was bound and a marker that counts there.
    #[must_use]
    pub fn separated_by(self, separators: &str) -> Self {
        Self { separators: separators.into(), ..self }
    }

    /// As JSON, of which [`from_json`](Self::from_json) makes the same.
    pub(crate) fn to_json(&self) -> Value {
        let marker = |marker: &Marker| json!([marker.text, marker.at_start, marker.included]);
        json!([self.markers.iter().map(marker).collect::<Vec<_>>(), self.separators])
    }

    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let marker = |json: &Value| {
            let (at_start, included) = (json.get(1)?.as_bool()?, json.get(2)?.as_bool()?);
            Some(Marker { text: json.get(0)?.as_str()?.to_owned(), at_start, included })
        };
        let markers = json.get(0)?.as_array()?.iter().map(marker).collect::<Option<_>>()?;
        let separator = |json: &Value| u8::try_from(json.as_u64()?).ok();
        let separators = json.get(1)?.as_array()?.iter().map(separator).collect::<Option<_>>()?;
        Some(Self { separators, ..Self::new(markers) })
    }

    /// The last bytes of the markers.
    pub(crate) fn last_bytes(&self) -> impl Iterator<Item = u8> {
        self.markers.iter().filter_map(|marker| marker.text.bytes().last())
    }

    /// Whether `text` has a marker in it that counts anywhere.
    pub(crate) fn is_in(&self, text: &[u8]) -> bool {
        let mut anywhere = self.anywhere();
        anywhere.any(|marker| text.windows(marker.len()).any(|window| window == marker))
    }

    fn anywhere(&self) -> impl Iterator<Item = &[u8]> {
        self.markers.iter().filter(|marker| !marker.at_start).map(|marker| marker.text.as_bytes())
    }
}

/// How much of a marker a free text ends with.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    /// The end of the text so far, one byte shorter than the longest marker at most; at the start, all of it.
    end: Vec<u8>,
    start: Start,
}

/// What the text is, as far as it is nothing yet but white space and the beginning of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The start of an answer.
    OfAnswer,
    /// What follows a part that was bound.
    BehindPart,
    /// It is more than that.
    Passed,
}

impl Scan {
    /// At the start of an answer.
    pub(crate) fn at_start() -> Self {
        Self { end: Vec::new(), start: Start::OfAnswer }
    }

    /// Behind a part that was bound.
    pub(crate) fn behind_part() -> Self {
        Self { end: Vec::new(), start: Start::BehindPart }
    }

    /// Where no marker counts that has to be at a start.
    pub(crate) fn further_on() -> Self {
        Self { end: Vec::new(), start: Start::Passed }
    }

    /// Whether a marker can end next that has to be at a start.
    pub(crate) fn is_at_start(&self, trigger: &Trigger) -> bool {
        self.start != Start::Passed && trigger.markers.iter().any(|marker| marker.at_start)
    }

    /// What would complete the markers that the text ends within.
    pub(crate) fn rests<'t>(&self, trigger: &'t Trigger) -> Vec<&'t [u8]> {
        let rests = |marker: &'t [u8]| {
            (1..marker.len()).filter(|&begun| self.end.ends_with(&marker[..begun])).map(|begun| &marker[begun..])
        };
        trigger.anywhere().flat_map(rests).collect()
    }

    /// Takes more text. Once a marker is complete, returns the text that is bound already.
    pub(crate) fn push(&mut self, trigger: &Trigger, text: &[u8]) -> Option<Vec<u8>> {
        let seen = self.end.len();
        self.end.extend_from_slice(text);
        let found = trigger.markers.iter().filter_map(|marker| {
            let start = if marker.at_start { self.find_at_start(trigger, marker)? } else { self.find(marker, seen)? };
            Some((start + marker.text.len(), start, marker.included))
        });
        if let Some((end, start, included)) = found.min() {
            let bound = self.end.split_off(if included { start } else { end });
            *self = Self::further_on();
            return Some(bound);
        }
        let begun = self.begun(trigger);
        if !trigger.markers.iter().any(|marker| marker.at_start && marker.text.as_bytes().starts_with(begun)) {
            self.start = Start::Passed;
        }
        if self.start == Start::Passed {
            let kept = self.end.len().min(trigger.longest.saturating_sub(1));
            self.end.drain(..self.end.len() - kept);
        }
        None
    }

    /// The text without what may stand before a marker at the start.
    fn begun(&self, trigger: &Trigger) -> &[u8] {
        let separators: &[u8] = if self.start == Start::BehindPart { &trigger.separators } else { &[] };
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || separators.contains(byte);
        let blank = self.end.iter().take_while(|byte| is_blank(byte)).count();
        &self.end[blank..]
    }

    fn find_at_start(&self, trigger: &Trigger, marker: &Marker) -> Option<usize> {
        let begun = self.begun(trigger);
        let is_found = self.start != Start::Passed && begun.starts_with(marker.text.as_bytes());
        is_found.then_some(self.end.len() - begun.len())
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
    fn the_text_behind_a_part_is_a_start_in_which_it_may_be_separated() {
        let trigger = Trigger::new(vec![marker("{", true, true)]).separated_by(";");
        let push = |mut scan: Scan, text: &str| scan.push(&trigger, text.as_bytes());
        for (text, at_start, behind) in
            [("{", true, true), (" {", true, true), (" ;\n{", false, true), ("x{", false, false)]
        {
            assert_eq!(push(Scan::at_start(), text).is_some(), at_start, "{text:?}");
            assert_eq!(push(Scan::behind_part(), text).is_some(), behind, "{text:?}");
            assert_eq!(push(Scan::further_on(), text), None, "{text:?}");
        }
    }

    #[test]
    fn what_completes_a_marker_is_known() {
        let trigger = Trigger::new(vec![marker("aab", false, false), marker("{", true, true)]);
        let mut scan = Scan::at_start();
        assert!(scan.is_at_start(&trigger) && scan.rests(&trigger).is_empty());
        scan.push(&trigger, b"xaa");
        assert!(!scan.is_at_start(&trigger));
        assert_eq!(scan.rests(&trigger), [&b"ab"[..], b"b"]);
    }
}
