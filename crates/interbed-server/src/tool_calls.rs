//! Parses tool calls in an answer's text, for which each family of models has its own syntax. Parsers are state
//! machines that receive the text piece by piece. A call is reported as soon as its name is certain, and its arguments
//! as they arrive. So a call that breaks off after the name remains a call.
//!
//! **Invariant:** however a text is split into pieces, the same parts result, except for where texts and arguments are
//! split.

mod body;
mod deepseek;
mod dictionary;
mod dictionary_schema;
mod gemma4;
mod glm;
mod hermes;
mod lfm2;
mod llama3;
mod mistral;
mod python;
mod qwen3_coder;
mod reading;
mod tagged;
mod values;

pub(crate) use body::JsonScan;
use body::{Body, Progress};
use interbed_engine::{GrammarError, Marker, Trigger};
use serde_json::{Map, Value, json};

/// A part of an answer's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// The model's thinking.
    Reasoning(String),
    Text(String),
    /// The beginning of a call, with the name of its function.
    Call(String),
    /// A further part of the last call's arguments. All these parts together are the text of a JSON object.
    Arguments(String),
}

/// A function that may be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The JSON schema of the function's arguments, which are an object.
    pub(crate) parameters: Value,
}

impl Function {
    /// Returns the function with a schema that allows any arguments.
    pub(crate) fn with_any_arguments(&self) -> Self {
        Self { name: self.name.clone(), parameters: json!({"type": "object"}) }
    }
}

/// Writes a text in Lark's syntax: a special token as its id, and any other text as a quoted string.
pub(crate) type Mark<'m> = &'m dyn Fn(&str) -> String;

/// The tool-call syntax of a family of models.
pub(crate) struct Family {
    /// The name of the family for `--tool-parser`.
    pub(crate) name: &'static str,
    /// The texts by which a chat template of this family is recognized. The template has all texts of one of the lists.
    signs: &'static [&'static [&'static str]],
    /// The marker that begins a call.
    marker: &'static str,
    /// The text that may begin a call at the start of an answer, in place of the marker. This text is part of the call.
    bare: Option<&'static str>,
    /// Characters that may separate, like white space, calls without a marker.
    between: &'static str,
    /// The markers around calls, which are not part of the text.
    around: &'static [&'static str],
    /// The texts that end a turn and begin the model's. A template of this family may leave out the latter where the
    /// model is to answer behind a turn of its own.
    pub(crate) turn: Option<[&'static str; 2]>,
    /// Parses a call after its marker, up to its arguments.
    read: fn(&str) -> Reading,
    /// Checks the schema of a function's arguments, and returns it in the form that the grammar accepts.
    checked: fn(&Value) -> Result<Value, GrammarError>,
    /// The grammar of a call after the marker, in Lark's syntax.
    grammar: fn(&[Function], Mark<'_>) -> String,
    /// Writes a call as the grammar describes it: with its marker, unless a call may be [bare](Self::bare).
    write: fn(&str, &Map<String, Value>) -> String,
}

/// The result of parsing the beginning of a text.
pub(crate) enum Reading {
    /// The text may be the beginning of a call, but more text is needed.
    More,
    /// The text begins a call, which has been parsed up to its arguments.
    Begun(Begun),
    /// The text is not a call.
    Nothing,
}

/// A call whose name is known.
pub(crate) struct Begun {
    name: String,
    /// The number of bytes up to the arguments.
    length: usize,
    /// Arguments that are known already.
    arguments: String,
    /// The state of parsing what follows.
    body: Body,
}

/// All families, in order. A chat template belongs to the first family whose signs it has.
pub(crate) const FAMILIES: [&Family; 8] = [
    &gemma4::FAMILY,
    &qwen3_coder::FAMILY,
    &glm::FAMILY,
    &deepseek::FAMILY,
    &mistral::FAMILY,
    &lfm2::FAMILY,
    &hermes::FAMILY,
    &llama3::FAMILY,
];

impl Family {
    /// Returns whether a call may begin at the start of an answer without a marker.
    fn needs_no_marker(&self) -> bool {
        self.bare.is_some()
    }

    /// Returns the trigger of a call in an unconstrained answer. The trigger fires wherever the parser would find a
    /// call.
    pub(crate) fn trigger(&self) -> Trigger {
        let marker = Marker { text: self.marker.to_owned(), at_start: false, included: false };
        let bare = self.bare.map(|bare| Marker { text: bare.to_owned(), at_start: true, included: true });
        Trigger::new([marker].into_iter().chain(bare).collect()).separated_by(self.between)
    }

    /// Returns the family with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// Returns the family of a model with this chat template.
    pub(crate) fn of_template(source: &str) -> Option<&'static Self> {
        let has_all = |signs: &&[&str]| signs.iter().all(|sign| source.contains(sign));
        FAMILIES.into_iter().find(|family| family.signs.iter().any(has_all))
    }

    /// Returns the marker that begins a call.
    pub(crate) fn marker(&self) -> &'static str {
        self.marker
    }

    /// Writes a call in the form that it has in an answer that is a call.
    pub(crate) fn written(&self, name: &str, arguments: &Map<String, Value>) -> String {
        (self.write)(name, arguments)
    }

    /// Returns the grammar of an answer that is a call from its first token on, in Lark's syntax. With `several`,
    /// further calls may follow where calls have markers. The answer may also be a text that satisfies the schema
    /// `text`.
    pub(crate) fn answer_grammar(
        &self,
        functions: &[Function],
        several: bool,
        text: Option<&Value>,
        mark: Mark<'_>,
    ) -> String {
        let opening = if self.needs_no_marker() { String::new() } else { mark(self.marker) };
        let several = several && !self.needs_no_marker();
        let more = if several { format!(" (\"\\n\"? {opening} call)*") } else { String::new() };
        let (or_text, text) = match text {
            // Families have rules called `text`.
            Some(schema) => (" | plain", format!("plain: %json {schema}\n")),
            None => ("", String::new()),
        };
        format!("start: {opening} call{more}{or_text}\n{text}{}", self.grammar(functions, mark))
    }

    /// Checks the schema of a function's arguments, and returns it in the form that [`grammar`](Self::grammar) accepts.
    ///
    /// # Errors
    /// Fails if a keyword cannot be enforced in this syntax, and names the place of the first such keyword.
    pub(crate) fn checked(&self, parameters: &Value) -> Result<Value, GrammarError> {
        (self.checked)(parameters)
    }

    /// Returns the grammar of a call after its marker, in Lark's syntax: a rule `call` and the rules that it uses.
    pub(crate) fn grammar(&self, functions: &[Function], mark: Mark<'_>) -> String {
        (self.grammar)(functions, mark)
    }
}

/// Finds the calls in a text that arrives in pieces.
pub(crate) struct ToolParser {
    family: &'static Family,
    functions: Vec<Function>,
    /// The text that cannot be classified yet: the end of a text that may begin a marker, a call with its marker, or a
    /// part of its arguments.
    held: String,
    state: State,
    /// Whether the text so far is only white space, or only white space has followed a call.
    at_start: bool,
    /// Whether a call came last: white space between calls is dropped.
    after_call: bool,
}

enum State {
    Text,
    /// The parser is in a call before its arguments. The number is the length of the call's marker in bytes.
    Head(usize),
    /// The parser is in a call, at its arguments or after them.
    Body(Body),
}

impl ToolParser {
    pub(crate) fn new(family: &'static Family, functions: Vec<Function>) -> Self {
        Self { family, functions, held: String::new(), state: State::Text, at_start: true, after_call: false }
    }

    /// Appends text, and returns the parts that are certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        // Only these characters can complete a call's beginning; parsing it again with each piece would take quadratic
        // time.
        let decides = match &self.state {
            State::Head(_) => text.contains(['{', '(', '}', ']', '>']),
            State::Body(body) => body.can_use(text),
            State::Text => true,
        };
        if decides { self.go_on(false) } else { Vec::new() }
    }

    /// Ends the text. Held-back text is reported as text, unless it is in the arguments of a call.
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
                            // The marker was plain text, and another one may follow it.
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

    /// Reports text, unless the text is white space between or after calls.
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

    /// Removes what may precede a call without a marker.
    fn unblank<'t>(&self, text: &'t str) -> &'t str {
        let separates = self.after_call && self.family.bare.is_some();
        let is_blank = |one: char| one.is_ascii_whitespace() || (separates && self.family.between.contains(one));
        text.trim_start_matches(is_blank)
    }

    /// Returns whether a function with this name may be called.
    fn knows(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function.name == name)
    }

    /// Returns the offset of the first marker, the length of the marker within the call, and whether a call follows it.
    fn next_marker(&self) -> Option<(usize, usize, bool)> {
        let begun = self.held.len() - self.unblank(&self.held).len();
        let bare = self.family.bare.filter(|bare| self.at_start && self.held[begun..].starts_with(bare));
        let bare = bare.map(|_| (begun, 0, true));
        let marker = self.held.find(self.family.marker).map(|start| (start, self.family.marker.len(), true));
        let around =
            self.family.around.iter().filter_map(|around| Some((self.held.find(around)?, around.len(), false)));
        around.chain(marker).chain(bare).min_by_key(|&(start, length, _)| (start, std::cmp::Reverse(length)))
    }

    /// Returns the number of bytes in which no marker can begin any more.
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
