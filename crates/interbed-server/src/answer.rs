//! Splits the text of an answer into thinking, text and tool calls while it is generated.

use std::collections::HashMap;
use std::sync::Arc;

use interbed_engine::text::{StopStrings, TextOptions};
use interbed_engine::{GrammarSource, Preface};

use crate::app::App;
use crate::error::ApiError;
use crate::harmony::{self, HarmonyParser};
use crate::json_cost::bytes_of;
use crate::random::random;
use crate::sampling::Common;
use crate::schemas::Bond;
use crate::speech::Speech;
use crate::thinking::{Begins, Said, Thinking};
use crate::tool_calls::{Family, JsonScan, Part, ToolParser};
use crate::tool_list::{CallForm, begun_text_of_arguments, text_of_arguments};
use crate::tool_use::ToolUse;

/// The maximum number of bytes of white space between thinking and the constrained text.
const BLANKS_MAX: usize = 16;

/// Describes how the answers to a request are read: their thinking, tool calls, and stop strings.
pub(crate) struct Form {
    speech: Speech,
    tools: Option<ToolUse>,
    begins: Begins,
    continued: bool,
    /// The prefix of the ids of tool calls.
    ids_begin: &'static str,
}

impl Form {
    /// Prepares reading the answers to a prompt. `begins` says where in its thinking an answer begins, and `continued`
    /// whether the answer continues the last message. The constraint of `common` is moved behind the thinking. The
    /// function blocks and is CPU-bound.
    ///
    /// # Errors
    /// Fails if the text before the constraint cannot be described by a grammar.
    pub(crate) fn new(
        app: &App,
        tools: Option<ToolUse>,
        begins: Begins,
        continued: bool,
        common: &mut Common,
    ) -> Result<Self, ApiError> {
        let speech = app.speech;
        let mut marks: Vec<&str> = Vec::new();
        if speech.harmony {
            marks.push("<|message|>");
            // Tool calls are constrained from the first token, or after their own marker.
            if tools.is_none()
                && !continued
                && let Some(bound) = common.constraint.take()
            {
                let grammar = harmony::final_grammar(|text| app.mark(text), app.is_special("<|end|>"));
                common.constraint = Some(bound.headed(GrammarSource::Lark(grammar)));
            }
        }
        if let Some(tags) = speech.thinking {
            marks.extend([tags.open, tags.close]);
            let behind = |bound: Bond| match begins {
                Begins::Behind => bound,
                Begins::Inside => bound.behind(Preface::begun(tags.close, BLANKS_MAX)),
                Begins::Before => {
                    bound.behind(Preface::optional(app.tokenizer.id_of(tags.open), tags.close, BLANKS_MAX))
                }
            };
            common.constraint = common.constraint.take().map(behind);
        }
        marks.extend(tools.as_ref().and(speech.family).map(Family::marker));
        if marks.into_iter().any(|mark| app.is_special(mark)) {
            common.text.skip_special_tokens = false;
        }
        Ok(Self { speech, tools, begins, continued, ids_begin: "call_" })
    }

    /// Sets the prefix of the ids of tool calls.
    pub(crate) fn with_ids(self, ids_begin: &'static str) -> Self {
        Self { ids_begin, ..self }
    }

    /// Returns the memory, in bytes, that the form uses.
    pub(crate) fn bytes(&self) -> usize {
        let functions = self.tools.iter().flat_map(|tools| &tools.functions);
        let bytes = functions.map(|function| bytes_of(&function.parameters.to_string()) + function.name.len());
        bytes.fold(0, usize::saturating_add)
    }

    /// Creates a reader for one answer, with the stop strings of `options`.
    pub(crate) fn answer(&self, options: &TextOptions) -> Answer {
        let functions = self.tools.as_ref().map(|tools| tools.functions.clone()).unwrap_or_default();
        let reader = if self.speech.harmony {
            let names = functions.into_iter().map(|function| function.name).collect();
            Reader::Harmony(HarmonyParser::new(names, self.continued))
        } else {
            let family = self.tools.as_ref().and(self.speech.family);
            Reader::Tagged {
                thinking: self.speech.thinking.map(|tags| Thinking::new(tags, self.begins)),
                tools: family.map(|family| ToolParser::new(family, functions)),
            }
        };
        let is_single = self.tools.as_ref().is_some_and(|tools| !tools.parallel);
        // Mistral's templates require ids of nine characters.
        let id_begins = match self.speech.family {
            Some(family) if family.name == "mistral" => None,
            _ => Some(self.ids_begin),
        };
        let stops = StopStrings::new(options.stop.clone());
        Answer {
            reader,
            stops,
            include_stop: options.include_stop,
            min_tokens: options.min_tokens,
            id_begins,
            forms: self.tools.as_ref().map(|tools| tools.forms.clone()).unwrap_or_default(),
            text: None,
            calls: 0,
            most: if is_single { 1 } else { usize::MAX },
            is_dropped: false,
        }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A further part of the model's thinking.
    Reasoning(String),
    /// A further part of the text.
    Text(String),
    /// The beginning of a tool call.
    Call(Called),
    /// A further part of the last call's arguments. The number is the index of that call.
    Arguments(usize, String),
}

/// A tool call, with its arguments so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Called {
    /// The index of the call in the answer.
    pub(crate) number: usize,
    pub(crate) id: String,
    /// The name of the tool as the client knows it.
    pub(crate) name: String,
    /// The group of functions to which the tool belongs, if any.
    pub(crate) namespace: Option<String>,
    /// Whether the tool takes plain text in place of arguments.
    pub(crate) is_text: bool,
    /// The text of a JSON object, which may be incomplete if the answer was cut off. If the tool takes plain text, this
    /// is the plain text.
    pub(crate) arguments: String,
}

/// Collects the arguments of a tool that takes plain text, which is reported once it is complete.
#[derive(Default)]
struct TextArguments {
    scan: JsonScan,
    held: String,
}

impl TextArguments {
    /// Appends to the arguments, and returns the plain text once the arguments are complete.
    fn push(&mut self, more: &str) -> Option<String> {
        self.held.push_str(more);
        self.scan.end(more).map(|_| text_of_arguments(std::mem::take(&mut self.held)))
    }

    /// Returns the plain text so far, if the answer was cut off in the arguments.
    fn cut(&mut self) -> String {
        begun_text_of_arguments(&std::mem::take(&mut self.held))
    }
}

/// Reads one answer while it is generated.
pub(crate) struct Answer {
    reader: Reader,
    /// Looks for stop strings in the text only, not in thinking or tool calls.
    stops: StopStrings,
    include_stop: bool,
    /// The number of tokens within which complete stop strings are ignored.
    min_tokens: usize,
    id_begins: Option<&'static str>,
    /// The names and kinds by which the client knows the tools, with the names that the model uses as keys.
    forms: Arc<HashMap<String, CallForm>>,
    /// Arguments so far of a call to a tool that takes plain text.
    text: Option<TextArguments>,
    calls: usize,
    most: usize,
    /// Whether the last call exceeds the allowed number and is dropped.
    is_dropped: bool,
}

enum Reader {
    Harmony(HarmonyParser),
    Tagged { thinking: Option<Thinking>, tools: Option<ToolParser> },
}

impl Answer {
    /// Appends text. `tokens` is the number of tokens so far, and `ended` says whether the answer has ended. Returns
    /// the pieces that are certain, and the stop string that ends the answer, if there is one.
    pub(crate) fn push(&mut self, text: &str, tokens: usize, ended: bool) -> (Vec<Piece>, Option<String>) {
        let parts = match &mut self.reader {
            Reader::Harmony(parser) => parser.push(text, ended),
            Reader::Tagged { thinking, tools } => {
                let said = match thinking {
                    Some(thinking) => thinking.push(text, ended),
                    None => vec![Said::Text(text.to_owned())],
                };
                let mut parts = Vec::new();
                for part in said {
                    match (part, tools.as_mut()) {
                        (Said::Thought(text), _) => parts.push(Part::Reasoning(text)),
                        (Said::Text(text), Some(tools)) => parts.extend(tools.push(&text)),
                        (Said::Text(text), None) => parts.push(Part::Text(text)),
                    }
                }
                parts.extend(tools.as_mut().filter(|_| ended).map(ToolParser::finish).unwrap_or_default());
                parts
            }
        };
        let mut pieces: Vec<Piece> = Vec::new();
        for part in parts {
            match part {
                Part::Reasoning(text) | Part::Text(text) | Part::Arguments(text) if text.is_empty() => {}
                Part::Text(text) => {
                    let (armed, mut certain) = (tokens > self.min_tokens, String::new());
                    let stop = self.stops.push(&text, armed, self.include_stop, &mut certain);
                    Piece::Text(certain).add_to(&mut pieces);
                    if stop.is_some() {
                        return (pieces, stop);
                    }
                }
                Part::Reasoning(text) => {
                    self.release(&mut pieces);
                    Piece::Reasoning(text).add_to(&mut pieces);
                }
                Part::Call(name) => {
                    self.release(&mut pieces);
                    self.is_dropped = self.calls == self.most;
                    if !self.is_dropped {
                        let id = match self.id_begins {
                            Some(begins) => format!("{begins}{:016x}", random()),
                            None => format!("{:09x}", random() & 0xF_FFFF_FFFF),
                        };
                        let form = self.forms.get(&name).cloned();
                        let form = form.unwrap_or(CallForm { name, namespace: None, is_text: false });
                        let CallForm { name, namespace, is_text } = form;
                        self.text = is_text.then(TextArguments::default);
                        let number = self.calls;
                        let call = Called { number, id, name, namespace, is_text, arguments: String::new() };
                        Piece::Call(call).add_to(&mut pieces);
                        self.calls += 1;
                    }
                }
                Part::Arguments(_) if self.is_dropped => {}
                Part::Arguments(text) => {
                    let text = match &mut self.text {
                        Some(arguments) => arguments.push(&text).unwrap_or_default(),
                        None => text,
                    };
                    Piece::Arguments(self.calls.saturating_sub(1), text).add_to(&mut pieces);
                }
            }
        }
        if ended {
            self.release(&mut pieces);
            if let Some(mut arguments) = self.text.take().filter(|_| !self.is_dropped) {
                Piece::Arguments(self.calls.saturating_sub(1), arguments.cut()).add_to(&mut pieces);
            }
        }
        (pieces, None)
    }

    /// Reports text that was held back for a possible stop string.
    fn release(&mut self, pieces: &mut Vec<Piece>) {
        Piece::Text(self.stops.finish()).add_to(pieces);
    }

    /// Returns whether the next text belongs to thinking.
    pub(crate) fn is_thinking(&self) -> bool {
        match &self.reader {
            Reader::Harmony(parser) => parser.is_thinking(),
            Reader::Tagged { thinking, .. } => thinking.as_ref().is_some_and(Thinking::is_inside),
        }
    }
}

impl Piece {
    /// Appends the piece to a list, and merges it with the last piece if both are of one kind. An empty piece is
    /// dropped.
    pub(crate) fn add_to(self, pieces: &mut Vec<Self>) {
        match (self, pieces.last_mut()) {
            (Self::Reasoning(text) | Self::Text(text) | Self::Arguments(_, text), _) if text.is_empty() => {}
            (Self::Reasoning(text), Some(Self::Reasoning(before)))
            | (Self::Text(text), Some(Self::Text(before)))
            | (Self::Arguments(_, text), Some(Self::Arguments(_, before))) => before.push_str(&text),
            (piece, _) => pieces.push(piece),
        }
    }
}

/// A complete answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Called>,
}

impl Whole {
    /// Merges pieces into an answer.
    pub(crate) fn of(pieces: Vec<Piece>) -> Self {
        let mut whole = Self::default();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => whole.reasoning.push_str(&text),
                Piece::Text(text) => whole.text.push_str(&text),
                Piece::Call(call) => whole.calls.push(call),
                Piece::Arguments(_, text) => {
                    whole.calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&text));
                }
            }
        }
        whole
    }
}
