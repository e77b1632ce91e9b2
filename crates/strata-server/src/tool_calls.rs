//! Tool calls in an answer's text: each family of models writes them in a form of its own. Parsers are state machines,
//! fed the text piece by piece.
//!
//! **Invariant:** however a text is cut into pieces, the same parts come of it, apart from where texts are cut.

mod deepseek;
mod glm;
mod hermes;
mod llama3;
mod mistral;
mod qwen3_coder;
mod reading;

use serde_json::{Value, json};

/// What becomes of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Call(ToolCall),
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// A JSON object, as text.
    pub(crate) arguments: String,
}

/// A function that may be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of its arguments, an object.
    pub(crate) parameters: Value,
}

impl Function {
    /// The same with arguments of any kind.
    pub(crate) fn with_any_arguments(&self) -> Self {
        Self { name: self.name.clone(), parameters: json!({"type": "object"}) }
    }
}

/// How a family of models writes calls.
pub(crate) struct Family {
    /// As `--tool-parser` knows it.
    pub(crate) name: &'static str,
    /// Texts in the template of a model of this family: all of one list.
    signs: &'static [&'static [&'static str]],
    /// What a call begins with.
    marker: &'static str,
    /// What a call may begin with at the start of an answer, in place of the marker; part of the call.
    bare: Option<&'static str>,
    /// Markers around calls, which are no text.
    around: &'static [&'static str],
    /// Reads the call behind a marker.
    read: fn(&str, &[Function]) -> Reading,
    /// The call behind the marker, in Lark's form, for the grammar of an answer.
    grammar: fn(&[Function]) -> String,
}

/// What a text begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The beginning of a call.
    More,
    /// Calls, which take so many bytes of it.
    Calls(Vec<ToolCall>, usize),
    /// No call.
    Nothing,
}

/// All families. The first whose signs a template has is that of its model.
pub(crate) const FAMILIES: [&Family; 6] =
    [&qwen3_coder::FAMILY, &glm::FAMILY, &deepseek::FAMILY, &mistral::FAMILY, &hermes::FAMILY, &llama3::FAMILY];

/// The names of all families, as `--tool-parser` knows them.
pub fn tool_parsers() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).collect()
}

impl Family {
    /// Whether a call may stand alone at the start of an answer, without a marker.
    pub(crate) fn needs_no_marker(&self) -> bool {
        self.bare.is_some()
    }

    /// The family of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// The family of a model with this template.
    pub(crate) fn of_template(source: &str) -> Option<&'static Self> {
        let has_all = |signs: &&[&str]| signs.iter().all(|sign| source.contains(sign));
        FAMILIES.into_iter().find(|family| family.signs.iter().any(has_all))
    }

    /// The marker of a call.
    pub(crate) fn marker(&self) -> &'static str {
        self.marker
    }

    /// The part of a call that follows its marker, in Lark's form: a rule `call`, and those that it names.
    pub(crate) fn grammar(&self, functions: &[Function]) -> String {
        (self.grammar)(functions)
    }
}

/// Finds the calls in a text that comes in pieces.
pub(crate) struct ToolParser {
    family: &'static Family,
    functions: Vec<Function>,
    /// What is not decided: the end of a text that a marker may begin with, or a call with its marker.
    held: String,
    /// Bytes of the marker, if `held` begins with one.
    marker: Option<usize>,
    /// Whether there was nothing yet but white space, or nothing else since a call.
    at_start: bool,
    /// Whether a call was the last thing: white space between calls is no text.
    after_call: bool,
}

impl ToolParser {
    pub(crate) fn new(family: &'static Family, functions: Vec<Function>) -> Self {
        Self { family, functions, held: String::new(), marker: None, at_start: true, after_call: false }
    }

    /// Takes more text, and returns what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        // Only these end a call: looking at it anew with each piece would take time in its square.
        if self.marker.is_some() && !text.contains(['}', ']', '>']) {
            return Vec::new();
        }
        self.go_on(false)
    }

    /// The text has ended: what was held back is text.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        self.go_on(true)
    }

    fn go_on(&mut self, ended: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            if let Some(marker) = self.marker {
                match (self.family.read)(&self.held[marker..], &self.functions) {
                    Reading::More if !ended => return parts,
                    Reading::Calls(calls, length) => {
                        parts.extend(calls.into_iter().map(Part::Call));
                        self.held.drain(..marker + length);
                        (self.marker, self.at_start, self.after_call) = (None, true, true);
                    }
                    Reading::More | Reading::Nothing => {
                        // The marker was text, and what is behind it may have another one.
                        let first = self.held.chars().next().map_or(0, char::len_utf8);
                        let text: String = self.held.drain(..marker.max(first)).collect();
                        self.marker = None;
                        self.tell(text, &mut parts);
                    }
                }
                continue;
            }
            match self.next_marker() {
                Some((start, length, is_call)) => {
                    let text: String = self.held.drain(..start).collect();
                    self.tell(text, &mut parts);
                    if is_call {
                        self.marker = Some(length);
                    } else {
                        self.held.drain(..length);
                    }
                }
                None => {
                    let certain = if ended { self.held.len() } else { self.certain() };
                    let text: String = self.held.drain(..certain).collect();
                    self.tell(text, &mut parts);
                    return parts;
                }
            }
        }
    }

    /// Tells of a text, unless it is white space between or behind calls.
    fn tell(&mut self, text: String, parts: &mut Vec<Part>) {
        let is_blank = self.unblank(&text).is_empty();
        let text = if self.after_call { self.unblank(&text).to_owned() } else { text };
        if text.is_empty() {
            return;
        }
        self.at_start &= is_blank;
        self.after_call = false;
        match parts.last_mut() {
            Some(Part::Text(before)) => before.push_str(&text),
            _ => parts.push(Part::Text(text)),
        }
    }

    /// `text` without what may stand before a call that needs no marker.
    fn unblank<'t>(&self, text: &'t str) -> &'t str {
        let separates = self.after_call && self.family.bare.is_some();
        text.trim_start_matches(|character: char| character.is_whitespace() || (separates && character == ';'))
    }

    /// Where the first marker begins, its length within the call, and whether a call follows it.
    fn next_marker(&self) -> Option<(usize, usize, bool)> {
        let begun = self.held.len() - self.unblank(&self.held).len();
        let bare = self.family.bare.filter(|bare| self.at_start && self.held[begun..].starts_with(bare));
        let bare = bare.map(|_| (begun, 0, true));
        let marker = self.held.find(self.family.marker).map(|start| (start, self.family.marker.len(), true));
        let around =
            self.family.around.iter().filter_map(|around| Some((self.held.find(around)?, around.len(), false)));
        around.chain(marker).chain(bare).min_by_key(|&(start, length, _)| (start, std::cmp::Reverse(length)))
    }

    /// Bytes of the text that no marker can begin in any more.
    fn certain(&self) -> usize {
        let markers = || self.family.around.iter().chain([&self.family.marker]);
        let begins = |start: usize| {
            let end = &self.held[start..];
            markers().any(|marker| marker.starts_with(end))
        };
        let longest = markers().map(|marker| marker.len()).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest);
        let mut starts = (first..self.held.len()).filter(|&start| self.held.is_char_boundary(start));
        let marker = starts.find(|&start| begins(start)).unwrap_or(self.held.len());
        let begun = self.unblank(&self.held);
        let bare = self.at_start && self.family.bare.is_some_and(|bare| bare.starts_with(begun));
        if bare { marker.min(self.held.len() - begun.len()) } else { marker }
    }
}

#[cfg(test)]
mod tests;
