//! Implements harmony, the response format of gpt-oss. An answer is a list of messages, each with a channel and perhaps
//! a recipient. Thinking is in the channel `analysis`. A tool call is a message to `functions.NAME`, whose content is
//! the call's arguments.
//!
//! An answer begins after `<|start|>assistant`, in the header of its first message.

use interbed_engine::quoted;
use serde_json::Value;

use crate::thinking::begun_at_end;
use crate::tool_calls::{Function, JsonScan, Part};

/// The name of the format for `--tool-parser`.
pub(crate) const NAME: &str = "harmony";
/// The beginning of a call in an unconstrained answer.
pub(crate) const CALL: &str = "to=functions.";

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Marks that end a message's content.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", CHANNEL];

/// Returns whether a model with this chat template uses the format.
pub(crate) fn is_spoken(source: &str) -> bool {
    [CHANNEL, MESSAGE].iter().all(|sign| source.contains(sign))
}

/// Parses the messages of one answer.
pub(crate) struct HarmonyParser {
    /// The functions that may be called. Calls of other functions count as text. If the list is empty, all calls count
    /// as text.
    functions: Vec<String>,
    state: State,
    held: String,
    /// Whether thinking was reported, and whether text was reported. A further message of the same kind begins with an
    /// empty line.
    told: (bool, bool),
}

#[derive(Clone, Copy)]
enum State {
    Header,
    Content(Kind),
    /// The parser is inside a call's arguments, which are a JSON object. Marks inside the object do not end the
    /// message.
    Arguments(JsonScan),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A message of thinking. If the flag is false, the next reported part begins with an empty line, which separates
    /// this message from the thinking in earlier messages.
    Thinking(bool),
    Text(bool),
    /// A call. The flag says whether arguments have been reported.
    Call(bool),
}

impl HarmonyParser {
    /// Creates a parser for an answer that begins in a header, or in the text of a message that is `continued`.
    pub(crate) fn new(functions: Vec<String>, continued: bool) -> Self {
        let state = if continued { State::Content(Kind::Text(true)) } else { State::Header };
        Self { functions, state, held: String::new(), told: (false, false) }
    }

    /// Returns whether the text is inside a message of thinking.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Content(Kind::Thinking(_)))
    }

    /// Appends text, and returns the parts that are certain. `ended` says whether the answer has ended.
    pub(crate) fn push(&mut self, text: &str, ended: bool) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            match self.state {
                State::Header => {
                    let Some(at) = self.held.find(MESSAGE) else {
                        if ended {
                            self.unheaded(&mut parts);
                        }
                        return parts;
                    };
                    let kind = self.kind(&self.held[..at], &mut parts);
                    self.held.drain(..at + MESSAGE.len());
                    self.state = State::Content(kind);
                }
                State::Content(Kind::Call(false)) if self.held.trim_start().starts_with('{') => {
                    self.held.drain(..self.held.len() - self.held.trim_start().len());
                    self.state = State::Arguments(JsonScan::default());
                }
                State::Arguments(mut scan) => {
                    let end = scan.end(&self.held);
                    let more: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                    if !more.is_empty() {
                        parts.push(Part::Arguments(more));
                    }
                    if end.is_none() {
                        self.state = State::Arguments(scan);
                        return parts;
                    }
                    self.state = State::Content(Kind::Call(true));
                }
                State::Content(kind) => {
                    let end = ENDS.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
                    let certain = match end {
                        Some((at, _)) => at,
                        None if ended => self.held.len(),
                        None => self.held.len() - begun_at_end(&self.held, &ENDS),
                    };
                    let content: String = self.held.drain(..certain).collect();
                    let kind = self.tell(kind, content, &mut parts);
                    if (end.is_some() || ended) && kind == Kind::Call(false) {
                        parts.push(Part::Arguments("{}".into()));
                    }
                    self.state = State::Content(kind);
                    let Some((_, mark)) = end else { return parts };
                    // The channel belongs to the next header.
                    if mark != CHANNEL {
                        self.held.drain(..mark.len());
                    }
                    self.state = State::Header;
                }
            }
        }
    }

    /// Returns the kind of a message with this header.
    fn kind(&self, header: &str, parts: &mut Vec<Part>) -> Kind {
        let word = |text: &str| {
            let end = text.find(|character: char| character.is_whitespace() || character == '<').unwrap_or(text.len());
            text[..end].to_owned()
        };
        let channel = header.find(CHANNEL).map(|at| word(&header[at + CHANNEL.len()..]));
        let recipient = header.find("to=").map(|at| word(&header[at + 3..]));
        if let Some(recipient) = recipient {
            // A recipient in another form is not constrained.
            if let Some(name) = recipient.strip_prefix("functions.")
                && self.functions.iter().any(|known| known == name)
            {
                parts.push(Part::Call(name.to_owned()));
                return Kind::Call(false);
            }
        }
        match channel.as_deref() {
            Some("analysis") => Kind::Thinking(!self.told.0),
            _ => Kind::Text(!self.told.1),
        }
    }

    fn tell(&mut self, kind: Kind, content: String, parts: &mut Vec<Part>) -> Kind {
        if content.is_empty() {
            return kind;
        }
        match kind {
            Kind::Thinking(begun) => {
                self.told.0 = true;
                parts.push(Part::Reasoning(if begun { content } else { format!("\n\n{content}") }));
                Kind::Thinking(true)
            }
            Kind::Text(begun) => {
                self.told.1 = true;
                parts.push(Part::Text(if begun { content } else { format!("\n\n{content}") }));
                Kind::Text(true)
            }
            Kind::Call(told) => {
                // White space alone is no argument.
                let content = if told { content.as_str() } else { content.trim_start() };
                if content.is_empty() {
                    return kind;
                }
                parts.push(Part::Arguments(content.to_owned()));
                Kind::Call(true)
            }
        }
    }

    /// Handles an answer that ends in a header. A text without any mark is no header, and is reported as text.
    fn unheaded(&mut self, parts: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.held);
        if !text.contains("<|") && !text.trim().is_empty() {
            let kind = Kind::Text(!self.told.1);
            self.tell(kind, text, parts);
        }
    }
}

/// Returns the grammar of a call after [`CALL`], in Lark's syntax: a rule `call` and the rules that it uses. The
/// function `mark` writes a mark as a terminal.
pub(crate) fn call_grammar(functions: &[Function], mark: impl Fn(&str) -> String) -> String {
    let one = |function: &Function| format!("{} tail %json {}", quoted(&function.name), function.parameters);
    let calls: Vec<_> = functions.iter().map(one).collect();
    let (channel, constrain, message) = (mark(CHANNEL), mark("<|constrain|>"), mark(MESSAGE));
    format!(
        "call: {}\ntail: ({channel} \"commentary\")? (\" json\" | \" \"? {constrain} \"json\")? {message}\n",
        calls.join("\n    | ")
    )
}

/// Returns the grammar of an answer, in Lark's syntax. The answer is optional thinking, and then a call, or a text that
/// satisfies the schema `text`, if there is one. The function `mark` writes a mark as a terminal, and `is_special` says
/// whether the marks are tokens.
pub(crate) fn answer_grammar(
    functions: &[Function],
    text: Option<&Value>,
    mark: impl Fn(&str) -> String,
    is_special: bool,
) -> String {
    let (channel, constrain, message) = (mark(CHANNEL), mark("<|constrain|>"), mark(MESSAGE));
    let thought = thought_grammar(&mark, is_special);
    let (or_final, text) = match text {
        Some(schema) => (
            " | final",
            format!("final: {channel} \"final\" (\" \"? {constrain} \"json\")? {message} %json {schema}\n"),
        ),
        None => ("", String::new()),
    };
    let calls = call_grammar(functions, mark);
    format!(
        "start: thought? (({channel} \"commentary to=functions.\" | \" to=functions.\") call{or_final})\n\
         {text}{thought}{calls}"
    )
}

/// Returns the grammar of what precedes the content of an answer to the user, in Lark's syntax.
pub(crate) fn final_grammar(mark: impl Fn(&str) -> String, is_special: bool) -> String {
    let (channel, constrain, message) = (mark(CHANNEL), mark("<|constrain|>"), mark(MESSAGE));
    let thought = thought_grammar(&mark, is_special);
    format!(
        "start: thought? {channel} \"final\" (\" \"? {constrain} KIND)? {message}\nKIND: /[A-Za-z_]{{1,32}}/\n{thought}"
    )
}

/// Returns a rule `thought` for a message of thinking and the beginning of the next message.
fn thought_grammar(mark: impl Fn(&str) -> String, is_special: bool) -> String {
    let (channel, message, end, start) = (mark(CHANNEL), mark(MESSAGE), mark("<|end|>"), mark("<|start|>"));
    // If marks are tokens, no text contains one; else the text ends at the first mark.
    let (text, rule) = match is_special {
        true => (format!("TEXT? {end}"), "TEXT: /(?s:.+)/\n".to_owned()),
        false => ("text".to_owned(), format!("text[suffix={end}]: /(?s:.*)/\n")),
    };
    format!("thought: {channel} \"analysis\" {message} {text} {start} \"assistant\"\n{rule}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts of a text that comes in these pieces, with adjacent ones merged.
    fn told(functions: &[&str], pieces: &[&str]) -> Vec<Part> {
        let functions = functions.iter().map(|name| (*name).to_owned()).collect();
        let mut parser = HarmonyParser::new(functions, false);
        let mut all: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece, false)).collect();
        all.extend(parser.push("", true));
        all.into_iter().fold(Vec::new(), |mut all, part| {
            match (all.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text))
                | (Some(Part::Reasoning(before)), Part::Reasoning(text))
                | (Some(Part::Arguments(before)), Part::Arguments(text)) => before.push_str(&text),
                (_, part) => all.push(part),
            }
            all
        })
    }

    fn parts(functions: &[&str], text: &str) -> Vec<Part> {
        let whole = told(functions, &[text]);
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(told(functions, &[&text[..at], &text[at..]]), whole, "cut at {at} of {text:?}");
        }
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(told(functions, &characters), whole, "in characters: {text:?}");
        whole
    }

    #[test]
    fn channels_and_recipients_say_what_a_message_is() {
        let (text, thought) = (|text: &str| Part::Text(text.into()), |text: &str| Part::Reasoning(text.into()));
        let call = || Part::Call("weather".into());
        let city = || Part::Arguments("{\"city\": \"K\u{f6}ln\"}".into());
        let thinking = "<|channel|>analysis<|message|>I see <|.<|end|><|start|>assistant";
        let json = "<|message|>{\"city\": \"K\u{f6}ln\"}";
        for (answer, expected) in [
            (format!("{thinking}<|channel|>final<|message|>Yes.<|return|>"), vec![thought("I see <|."), text("Yes.")]),
            (
                format!("{thinking}<|channel|>commentary to=functions.weather <|constrain|>json{json}<|call|>"),
                vec![thought("I see <|."), call(), city()],
            ),
            (format!(" to=functions.weather<|channel|>commentary json{json}"), vec![call(), city()]),
            (
                format!("{thinking} to=functions.weather<|channel|>analysis code{json}<|call|>"),
                vec![thought("I see <|."), call(), city()],
            ),
            (
                "<|channel|>commentary to=functions.weather<|message|> <|call|>".into(),
                vec![call(), Part::Arguments("{}".into())],
            ),
            (
                "<|channel|>commentary<|message|>First<|end|><|start|>assistant<|channel|>final<|message|>then".into(),
                vec![text("First\n\nthen")],
            ),
            (format!("{thinking}<|channel|>analysis<|message|>More"), vec![thought("I see <|.\n\nMore")]),
            // Functions that were not offered cannot be called.
            ("<|channel|>commentary to=functions.other<|message|>{}<|call|>".into(), vec![text("{}")]),
            ("<|channel|>commentary to=weather<|message|>{}<|call|>".into(), vec![text("{}")]),
            // Marks in plain text are part of the arguments.
            (
                "<|channel|>commentary to=functions.weather<|message|>{\"city\": \"<|end|><|call|>}\"} <|call|>".into(),
                vec![call(), Part::Arguments("{\"city\": \"<|end|><|call|>}\"} ".into())],
            ),
            ("Plain <b>".into(), vec![text("Plain <b>")]),
            ("<|channel|>fin".into(), vec![]),
            ("<|channel|>final<|message|>cut <|en".into(), vec![text("cut <|en")]),
        ] {
            assert_eq!(parts(&["weather"], &answer), expected, "{answer}");
        }
        let mut continued = HarmonyParser::new(Vec::new(), true);
        assert_eq!(continued.push("so on<|return|>", true), [text("so on")]);
        assert!(is_spoken("<|channel|>{{ c }}<|message|>") && !is_spoken("<|message|>"));
    }
}
