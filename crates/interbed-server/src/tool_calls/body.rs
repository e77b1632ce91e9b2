//! Parses a call from its arguments on, as it arrives.

use serde_json::Value;

use super::Function;
use super::dictionary::Dictionary;
use super::values::typed;

/// The state of parsing a call after its name: the arguments, and the text that closes the call.
pub(crate) struct Body {
    step: Step,
    closing: Closing,
}

/// Describes the text that closes a call after its arguments.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Closing {
    /// Whether the arguments are in an object, whose other fields may follow.
    pub(super) object: bool,
    /// Texts that may follow, in this order, each after optional white space.
    pub(super) ends: &'static [&'static str],
    /// Whether the call is in a list, in which others may follow.
    pub(super) list: bool,
    /// Texts that may follow the list, in this order, each after optional white space.
    pub(super) behind: &'static [&'static str],
}

enum Step {
    /// The parser is in arguments that are JSON.
    Json(JsonScan),
    /// The parser is in arguments that are parameters between tags.
    Tagged(Tagged),
    /// The parser is in arguments that are a dictionary.
    Dictionary(Dictionary),
    /// The parser is after the arguments, in the object around them.
    Object(JsonScan),
    /// The parser expects the text with this index in `Closing::ends`.
    Ends(usize),
    /// The parser is after the closing texts, in the list of calls.
    List,
}

/// Parses the next parameter of a call to this function.
type ReadParameter = for<'t> fn(&'t str, Option<&Function>) -> Parameter<'t>;

struct Tagged {
    read: ReadParameter,
    function: String,
    /// Characters of which one ends every parameter, and the call.
    ends: &'static [char],
    /// The names of the parameters that were reported.
    keys: Vec<String>,
}

/// The result of parsing the beginning of a text between tags.
pub(super) enum Parameter<'t> {
    /// The text may be the beginning of a parameter or of the call's end, but more text is needed.
    More,
    /// The text begins with a parameter. The length is that of the parameter with its tags, in bytes.
    One { key: &'t str, value: &'t str, length: usize },
    /// The text begins with a parameter whose value in JSON is known. The length is that of the parameter with what
    /// separates it from others, in bytes.
    Known { key: &'t str, json: String, length: usize },
    /// The text begins with the end of the call. The number is the length of that end in bytes.
    End(usize),
    /// The text does not continue a call.
    Nothing,
}

impl<'t> Parameter<'t> {
    /// Converts the result of parsing a parameter at the beginning of `text`, which is its key, its value and the rest,
    /// or `None` for an incomplete parameter.
    pub(super) fn of(text: &str, read: Result<Option<(&'t str, &'t str, &'t str)>, ()>) -> Self {
        match read {
            Ok(Some((key, value, rest))) => Self::One { key, value, length: text.len() - rest.len() },
            Ok(None) => Self::More,
            Err(()) => Self::Nothing,
        }
    }
}

/// Says how much of a call has arrived.
pub(super) enum Progress {
    More,
    Ended,
    /// Another call follows in the list.
    Another,
}

impl Body {
    /// Starts with arguments that are a JSON object.
    pub(super) fn json(closing: Closing) -> Self {
        Self { step: Step::Json(JsonScan::default()), closing }
    }

    /// Starts with the parameters of `function`, which `read` parses. The opening bracket of the arguments was
    /// reported.
    pub(super) fn tagged(function: &str, read: ReadParameter, closing: Closing) -> Self {
        let tagged = Tagged { read, function: function.to_owned(), ends: &['>'], keys: Vec::new() };
        Self { step: Step::Tagged(tagged), closing }
    }

    /// Says that every parameter, and the call, ends with one of these characters, rather than with a tag.
    pub(super) fn decided_by(mut self, ends: &'static [char]) -> Self {
        if let Step::Tagged(tagged) = &mut self.step {
            tagged.ends = ends;
        }
        self
    }

    /// Starts with arguments that are a [dictionary](super::dictionary).
    pub(super) fn dictionary(closing: Closing) -> Self {
        Self { step: Step::Dictionary(Dictionary::default()), closing }
    }

    /// Starts after the arguments, which are all known.
    pub(super) fn known(closing: Closing) -> Self {
        Self { step: Step::Ends(0), closing }
    }

    /// Returns whether a further part of the text can make progress.
    pub(super) fn can_use(&self, text: &str) -> bool {
        match &self.step {
            Step::Tagged(tagged) => text.contains(tagged.ends),
            _ => true,
        }
    }

    /// Consumes the part of `held` that can be parsed, and returns a further part of the arguments. `ended` says
    /// whether the text has ended.
    pub(super) fn go_on(&mut self, held: &mut String, functions: &[Function], ended: bool) -> (String, Progress) {
        let mut arguments = String::new();
        loop {
            match &mut self.step {
                Step::Json(scan) => {
                    if arguments.is_empty() && scan.depth == 0 {
                        let blank = held.len() - held.trim_start().len();
                        held.drain(..blank);
                    }
                    let end = scan.end(held);
                    arguments.extend(held.drain(..end.unwrap_or(held.len())));
                    match end {
                        None => return (arguments, Progress::More),
                        Some(_) if self.closing.object => self.step = Step::Object(JsonScan::inside()),
                        Some(_) => self.step = Step::Ends(0),
                    }
                }
                Step::Tagged(tagged) => match (tagged.read)(held, named(functions, &tagged.function)) {
                    Parameter::More => return (arguments, Progress::More),
                    Parameter::One { key, value, length } => {
                        let json = typed(value, named(functions, &tagged.function), key);
                        arguments.push_str(&tagged.argument(key, &json));
                        held.drain(..length);
                    }
                    Parameter::Known { key, json, length } => {
                        arguments.push_str(&tagged.argument(key, &json));
                        held.drain(..length);
                    }
                    Parameter::End(length) => {
                        held.drain(..length);
                        arguments.push('}');
                        self.step = Step::Ends(0);
                    }
                    Parameter::Nothing => {
                        arguments.push('}');
                        return (arguments, Progress::Ended);
                    }
                },
                Step::Dictionary(dictionary) => {
                    let (taken, is_whole) = dictionary.read(held, &mut arguments);
                    held.drain(..taken);
                    if !is_whole {
                        return (arguments, Progress::More);
                    }
                    self.step = Step::Ends(0);
                }
                Step::Object(scan) => {
                    let end = scan.end(held);
                    held.drain(..end.unwrap_or(held.len()));
                    match end {
                        None => return (arguments, Progress::More),
                        Some(_) => self.step = Step::Ends(0),
                    }
                }
                Step::Ends(next) => {
                    let Some(end) = self.closing.ends.get(*next) else {
                        if !self.closing.list {
                            return (arguments, Progress::Ended);
                        }
                        self.step = Step::List;
                        continue;
                    };
                    if !has_dropped(end, held, ended) {
                        return (arguments, Progress::More);
                    }
                    *next += 1;
                }
                Step::List => match in_list(held, ended) {
                    Progress::Ended if !self.closing.behind.is_empty() => {
                        self.closing = Closing { ends: self.closing.behind, ..Closing::default() };
                        self.step = Step::Ends(0);
                    }
                    progress => return (arguments, progress),
                },
            }
        }
    }
}

/// Drops the closing text `end` from the beginning of `held`, if it is there. Returns false if more text is needed to
/// know that. `ended` says whether the text has ended.
fn has_dropped(end: &str, held: &mut String, ended: bool) -> bool {
    let begun = held.trim_start();
    if let Some(rest) = begun.strip_prefix(end) {
        held.drain(..held.len() - rest.len());
    } else if end.starts_with(begun) {
        if !ended {
            return false;
        }
        // A fragment of a closing text is not reported as text.
        held.clear();
    }
    true
}

impl Tagged {
    /// Returns a parameter as a field of the arguments. The first parameter of a name counts, so the result is empty
    /// for a parameter that was reported before.
    fn argument(&mut self, key: &str, json: &str) -> String {
        if self.keys.iter().any(|told| told == key) {
            return String::new();
        }
        let separator = if self.keys.is_empty() { "" } else { "," };
        self.keys.push(key.to_owned());
        format!("{separator}{}:{json}", Value::from(key))
    }
}

/// Consumes from `held` what follows a call in a list.
fn in_list(held: &mut String, ended: bool) -> Progress {
    let begun = held.trim_start();
    let (blank, next) = (held.len() - begun.len(), begun.chars().next());
    match next {
        None if !ended => Progress::More,
        // The rest of the list is parsed as if it began here.
        Some(',') => {
            held.replace_range(..=blank, "[");
            Progress::Another
        }
        Some(']') => {
            held.drain(..=blank);
            Progress::Ended
        }
        _ => Progress::Ended,
    }
}

/// Returns the function with this name.
fn named<'f>(functions: &'f [Function], name: &str) -> Option<&'f Function> {
    functions.iter().find(|function| function.name == name)
}

/// Finds the end of a JSON object or array that arrives in pieces.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JsonScan {
    /// The number of open brackets.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    /// Returns the state after the first bracket.
    fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Scans a further part of the text. If the value ends in it, returns the length that belongs to the value.
    pub(crate) fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
