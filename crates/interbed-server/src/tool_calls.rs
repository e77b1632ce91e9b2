//! Tool calls in an answer's text: each family of models writes them in a form of its own. Parsers are state machines,
//! fed the text piece by piece. A call is told as soon as its name is certain, and its arguments as they come; so what
//! breaks off behind the name stays a call.
//!
//! **Invariant:** however a text is cut into pieces, the same parts come of it, apart from where texts and arguments
//! are cut.

mod body;
mod deepseek;
mod glm;
mod hermes;
mod llama3;
mod mistral;
mod qwen3_coder;
mod reading;
mod tagged;
mod values;

pub(crate) use body::JsonScan;
use body::{Body, Progress};
use interbed_engine::{GrammarError, Marker, Trigger};
use serde_json::{Map, Value, json};

/// What becomes of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// The model's thinking.
    Reasoning(String),
    Text(String),
    /// A call begins: the name of its function.
    Call(String),
    /// More of the last call's arguments, which together are a JSON object as text.
    Arguments(String),
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
    /// What may stand, like white space, between calls that need no marker.
    between: &'static str,
    /// Markers around calls, which are no text.
    around: &'static [&'static str],
    /// Reads the call behind a marker, as far as its arguments.
    read: fn(&str) -> Reading,
    /// The schema of a function's arguments, as the grammar may have it.
    checked: fn(&Value) -> Result<Value, GrammarError>,
    /// The call behind the marker, in Lark's form, for the grammar of an answer.
    grammar: fn(&[Function]) -> String,
    /// Writes a call as the grammar has it: with its marker, unless a call may be [bare](Self::bare).
    write: fn(&str, &Map<String, Value>) -> String,
}

/// What a text begins with.
pub(crate) enum Reading {
    /// The beginning of a call.
    More,
    /// A call, known up to its arguments.
    Begun(Begun),
    /// No call.
    Nothing,
}

/// A call whose name is known.
pub(crate) struct Begun {
    name: String,
    /// Bytes up to here.
    length: usize,
    /// What of the arguments is known.
    arguments: String,
    /// What follows.
    body: Body,
}

/// All families. The first whose signs a template has is that of its model.
pub(crate) const FAMILIES: [&Family; 6] =
    [&qwen3_coder::FAMILY, &glm::FAMILY, &deepseek::FAMILY, &mistral::FAMILY, &hermes::FAMILY, &llama3::FAMILY];

impl Family {
    /// Whether a call may stand alone at the start of an answer, without a marker.
    pub(crate) fn needs_no_marker(&self) -> bool {
        self.bare.is_some()
    }

    /// What a call begins with in a free answer: wherever the parser reads a call, one of these has come.
    pub(crate) fn trigger(&self) -> Trigger {
        let marker = Marker { text: self.marker.to_owned(), at_start: false, included: false };
        let bare = self.bare.map(|bare| Marker { text: bare.to_owned(), at_start: true, included: true });
        Trigger::new([marker].into_iter().chain(bare).collect()).separated_by(self.between)
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

    /// A call as an answer that is a call has it.
    pub(crate) fn written(&self, name: &str, arguments: &Map<String, Value>) -> String {
        (self.write)(name, arguments)
    }

    /// The grammar of an answer that is a call from its first token on: `opening` is the marker as a grammar has it;
    /// further calls may follow if there may be `several`.
    pub(crate) fn answer_grammar(
        &self,
        opening: &str,
        functions: &[Function],
        several: bool,
        text: Option<&Value>,
    ) -> String {
        let more = if several { format!(" (\"\\n\"? {opening} call)*") } else { String::new() };
        let (or_text, text) = match text {
            Some(schema) => (" | text", format!("text: %json {schema}\n")),
            None => ("", String::new()),
        };
        format!("start: {opening} call{more}{or_text}\n{text}{}", self.grammar(functions))
    }

    /// The schema of a function's arguments as [`grammar`](Self::grammar) may have it.
    ///
    /// # Errors
    /// The first keyword that cannot be enforced in this form, and its place.
    pub(crate) fn checked(&self, parameters: &Value) -> Result<Value, GrammarError> {
        (self.checked)(parameters)
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
    /// What is not decided: the end of a text that a marker may begin with, a call with its marker, or a part of its
    /// arguments.
    held: String,
    state: State,
    /// Whether there was nothing yet but white space, or nothing else since a call.
    at_start: bool,
    /// Whether a call was the last thing: white space between calls is no text.
    after_call: bool,
}

enum State {
    Text,
    /// In a call up to its arguments, whose marker has so many bytes.
    Head(usize),
    /// In a call from its arguments on.
    Body(Body),
}

impl ToolParser {
    pub(crate) fn new(family: &'static Family, functions: Vec<Function>) -> Self {
        Self { family, functions, held: String::new(), state: State::Text, at_start: true, after_call: false }
    }

    /// Takes more text, and returns what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        // Only these decide there: looking at it anew with each piece would take time in its square.
        let decides = match &self.state {
            State::Head(_) => text.contains(['{', '}', ']', '>']),
            State::Body(body) => !body.waits_for_tags() || text.contains('>'),
            State::Text => true,
        };
        if decides { self.go_on(false) } else { Vec::new() }
    }

    /// The text has ended: what was held back is text, but in the arguments of a call.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        self.go_on(true)
    }

    fn go_on(&mut self, ended: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            match &mut self.state {
                State::Head(marker) => {
                    let marker = *marker;
                    match (self.family.read)(&self.held[marker..]) {
                        Reading::More if !ended => return parts,
                        Reading::Begun(Begun { name, length, arguments, body }) if self.knows(&name) => {
                            self.held.drain(..marker + length);
                            parts.push(Part::Call(name));
                            tell_arguments(arguments, &mut parts);
                            self.state = State::Body(body);
                        }
                        Reading::More | Reading::Begun(_) | Reading::Nothing => {
                            // The marker was text, and what is behind it may have another one.
                            let first = self.held.chars().next().map_or(0, char::len_utf8);
                            let text: String = self.held.drain(..marker.max(first)).collect();
                            self.state = State::Text;
                            self.tell(text, &mut parts);
                        }
                    }
                }
                State::Body(body) => {
                    let (arguments, progress) = body.go_on(&mut self.held, &self.functions, ended);
                    tell_arguments(arguments, &mut parts);
                    match progress {
                        Progress::More => return parts,
                        Progress::Ended => {
                            (self.state, self.at_start, self.after_call) = (State::Text, true, true);
                        }
                        Progress::Another => self.state = State::Head(0),
                    }
                }
                State::Text => match self.next_marker() {
                    Some((start, length, is_call)) => {
                        let text: String = self.held.drain(..start).collect();
                        self.tell(text, &mut parts);
                        if is_call {
                            self.state = State::Head(length);
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
                },
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
        let is_blank = |one: char| one.is_ascii_whitespace() || (separates && self.family.between.contains(one));
        text.trim_start_matches(is_blank)
    }

    /// Whether there is a function of this name.
    fn knows(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function.name == name)
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

fn tell_arguments(text: String, parts: &mut Vec<Part>) {
    if text.is_empty() {
        return;
    }
    match parts.last_mut() {
        Some(Part::Arguments(before)) => before.push_str(&text),
        _ => parts.push(Part::Arguments(text)),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::told_of;
