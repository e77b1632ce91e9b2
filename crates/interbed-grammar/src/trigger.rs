//! Searches for markers in a free answer, after which a grammar applies.

use serde_json::{Value, json};

/// A text that starts a constrained part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The marker's text. If the marker contains a special token, the text contains the name of this token.
    pub text: String,
    /// Whether the marker counts only at the start of the answer or right after a constrained part. White space before
    /// the marker is allowed. If this is `false`, the marker counts anywhere in unconstrained text.
    pub at_start: bool,
    /// Whether the marker itself is part of the text that the grammar describes.
    pub included: bool,
}

/// The markers that can start a constrained part of an answer. The marker that is completed first applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    markers: Vec<Marker>,
    longest: usize,
    /// The bytes that may come, like white space, between a constrained part and a marker with `at_start`.
    separators: Vec<u8>,
}

impl Trigger {
    /// Creates a trigger with these markers. Markers with an empty text are ignored.
    pub fn new(markers: Vec<Marker>) -> Self {
        let markers: Vec<_> = markers.into_iter().filter(|marker| !marker.text.is_empty()).collect();
        let longest = markers.iter().map(|marker| marker.text.len()).max().unwrap_or(0);
        Self { markers, longest, separators: Vec::new() }
    }

    /// Allows the bytes of `separators`, in addition to white space, between a constrained part and a marker with
    /// `at_start`.
    #[must_use]
    pub fn separated_by(self, separators: &str) -> Self {
        Self { separators: separators.into(), ..self }
    }

    /// Serializes the trigger as JSON, which [`from_json`](Self::from_json) reads back.
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

    /// Returns the last byte of each marker.
    pub(crate) fn last_bytes(&self) -> impl Iterator<Item = u8> {
        self.markers.iter().filter_map(|marker| marker.text.bytes().last())
    }

    /// Returns whether `text` contains a marker that counts anywhere.
    pub(crate) fn is_in(&self, text: &[u8]) -> bool {
        let mut anywhere = self.anywhere();
        anywhere.any(|marker| text.windows(marker.len()).any(|window| window == marker))
    }

    fn anywhere(&self) -> impl Iterator<Item = &[u8]> {
        self.markers.iter().filter(|marker| !marker.at_start).map(|marker| marker.text.as_bytes())
    }
}

/// The search for markers in a free text, which remembers the end of the text.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    /// The end of the text so far. It has at most one byte less than the longest marker, or all of the text while the
    /// text is at its start.
    end: Vec<u8>,
    start: Start,
}

/// The position of the text so far: whether it is only white space and the beginning of a marker, and what it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The text is at the start of the answer.
    OfAnswer,
    /// The text directly follows a constrained part.
    BehindPart,
    /// Markers with `at_start` no longer count, because other text has come before.
    Passed,
}

impl Scan {
    /// Returns the scan at the start of an answer.
    pub(crate) fn at_start() -> Self {
        Self { end: Vec::new(), start: Start::OfAnswer }
    }

    /// Returns the scan right after a constrained part.
    pub(crate) fn behind_part() -> Self {
        Self { end: Vec::new(), start: Start::BehindPart }
    }

    /// Returns the scan in the midst of a text, where markers with `at_start` do not count.
    pub(crate) fn further_on() -> Self {
        Self { end: Vec::new(), start: Start::Passed }
    }

    /// Returns whether a marker with `at_start` can still be completed.
    pub(crate) fn is_at_start(&self, trigger: &Trigger) -> bool {
        self.start != Start::Passed && trigger.markers.iter().any(|marker| marker.at_start)
    }

    /// Returns the rests of the markers that the text ends within.
    pub(crate) fn rests<'t>(&self, trigger: &'t Trigger) -> Vec<&'t [u8]> {
        let rests = |marker: &'t [u8]| {
            (1..marker.len()).filter(|&begun| self.end.ends_with(&marker[..begun])).map(|begun| &marker[begun..])
        };
        trigger.anywhere().flat_map(rests).collect()
    }

    /// Appends text. If a marker is then complete, returns the constrained text that has come already.
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

    /// Returns the text without the white space and separators that may precede a marker with `at_start`.
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

    /// Returns the byte offset of the marker, if the marker ends after the first `seen` bytes.
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

    /// Returns the constrained text, and the index of the piece in which the marker ends, if `text` comes in pieces of
    /// `size` bytes.
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
