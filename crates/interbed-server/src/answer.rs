//! What the text of an answer is made of: thinking, text and calls of tools, as they come.

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
use crate::thinking::{Begins, Thinking};
use crate::tool_calls::{Family, JsonScan, Part, ToolParser};
use crate::tool_list::{CallForm, begun_text_of_arguments, text_of_arguments};
use crate::tool_use::ToolUse;

/// Bytes of white space that may stand between thinking and what is bound.
const BLANKS_MAX: usize = 16;

/// What the answers to a request may be made of.
pub(crate) struct Form {
    speech: Speech,
    tools: Option<ToolUse>,
    begins: Begins,
    continued: bool,
    /// What the ids of calls begin with.
    ids_begin: &'static str,
}

impl Form {
    /// The form of answers that follow a prompt, in which they begin so, or whose last message they `continue`. Binds
    /// those of `common` to it: what they have to be comes behind the thinking. Blocking, and CPU-bound.
    ///
    /// # Errors
    /// What comes before that cannot be bound.
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
            // A call is bound from the first token, or behind its own mark.
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

    /// This form, in which ids of calls begin with `ids_begin`.
    pub(crate) fn with_ids(self, ids_begin: &'static str) -> Self {
        Self { ids_begin, ..self }
    }

    /// The memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let functions = self.tools.iter().flat_map(|tools| &tools.functions);
        let bytes = functions.map(|function| bytes_of(&function.parameters.to_string()) + function.name.len());
        bytes.fold(0, usize::saturating_add)
    }

    /// A reader for one answer, which ends as `options` say.
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
        // Mistral's templates want ids of nine characters.
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
    /// More of the model's thinking.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A call begins.
    Call(Called),
    /// More of the last call's arguments, and how many calls came before it.
    Arguments(usize, String),
}

/// A call, with as much of its arguments as is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Called {
    /// How many calls came before it.
    pub(crate) number: usize,
    pub(crate) id: String,
    /// As the client knows it.
    pub(crate) name: String,
    /// The group of functions that it is of.
    pub(crate) namespace: Option<String>,
    /// Whether the tool takes a text in place of arguments.
    pub(crate) is_text: bool,
    /// A JSON object as text, unless the answer was cut off in it; or the text, if the tool takes one.
    pub(crate) arguments: String,
}

/// The arguments of a tool that takes a text, which is told once it is whole.
#[derive(Default)]
struct TextArguments {
    scan: JsonScan,
    held: String,
}

impl TextArguments {
    /// Takes more of the arguments; returns the text once they are whole.
    fn push(&mut self, more: &str) -> Option<String> {
        self.held.push_str(more);
        self.scan.end(more).map(|_| text_of_arguments(std::mem::take(&mut self.held)))
    }

    /// What there is of the text, where the answer is cut off in it.
    fn cut(&mut self) -> String {
        begun_text_of_arguments(&std::mem::take(&mut self.held))
    }
}

/// One answer, as it comes.
pub(crate) struct Answer {
    reader: Reader,
    /// Looked for in the text alone: neither thinking nor calls end at one.
    stops: StopStrings,
    include_stop: bool,
    /// A stop string that is complete within this many tokens does not count.
    min_tokens: usize,
    id_begins: Option<&'static str>,
    /// How the client knows what the model calls.
    forms: Arc<HashMap<String, CallForm>>,
    /// The arguments, so far, of a call that takes a text.
    text: Option<TextArguments>,
    calls: usize,
    most: usize,
    /// Whether the last call is one too many.
    is_dropped: bool,
}

enum Reader {
    Harmony(HarmonyParser),
    Tagged { thinking: Option<Thinking>, tools: Option<ToolParser> },
}

impl Answer {
    /// Takes more text, with which there are so many `tokens`, and the last if it has `ended`; returns what is certain,
    /// and the stop string that ends the answer with it, if one does.
    pub(crate) fn push(&mut self, text: &str, tokens: usize, ended: bool) -> (Vec<Piece>, Option<String>) {
        let parts = match &mut self.reader {
            Reader::Harmony(parser) => parser.push(text, ended),
            Reader::Tagged { thinking, tools } => {
                let (thought, text) = match thinking {
                    Some(thinking) => thinking.push(text, ended),
                    None => (String::new(), text.to_owned()),
                };
                let mut parts = vec![Part::Reasoning(thought)];
                match tools {
                    Some(tools) => {
                        parts.extend(tools.push(&text));
                        parts.extend(if ended { tools.finish() } else { Vec::new() });
                    }
                    None => parts.push(Part::Text(text)),
                }
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

    /// Tells text that was held back, since no stop string came of it.
    fn release(&mut self, pieces: &mut Vec<Piece>) {
        Piece::Text(self.stops.finish()).add_to(pieces);
    }

    /// Whether what comes next is thinking.
    pub(crate) fn is_thinking(&self) -> bool {
        match &self.reader {
            Reader::Harmony(parser) => parser.is_thinking(),
            Reader::Tagged { thinking, .. } => thinking.as_ref().is_some_and(Thinking::is_inside),
        }
    }
}

impl Piece {
    /// Adds it to those before it, unless it is empty.
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

/// All of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Called>,
}

impl Whole {
    /// All that these pieces tell.
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
