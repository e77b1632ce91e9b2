//! What the text of an answer is made of: thinking, text and calls of tools, as they come.

use interbed_engine::{GrammarSource, Preface};

use crate::app::App;
use crate::error::ApiError;
use crate::harmony::{self, HarmonyParser};
use crate::random::random;
use crate::sampling::Common;
use crate::schemas::Bond;
use crate::speech::Speech;
use crate::thinking::{Begins, Thinking};
use crate::tool_calls::{Family, Part, ToolParser};
use crate::tool_use::ToolUse;

/// Bytes of white space that may stand between thinking and what is bound.
const BLANKS_MAX: usize = 16;

/// What the answers to a request may be made of.
pub(crate) struct Form {
    speech: Speech,
    tools: Option<ToolUse>,
    begins: Begins,
    continued: bool,
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
        Ok(Self { speech, tools, begins, continued })
    }

    /// A reader for one answer, whose calls have ids that begin so.
    pub(crate) fn answer(&self, id_begins: &'static str) -> Answer {
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
            _ => Some(id_begins),
        };
        Answer { reader, id_begins, calls: 0, most: if is_single { 1 } else { usize::MAX }, is_dropped: false }
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
    pub(crate) name: String,
    /// A JSON object as text, unless the answer was cut off in it.
    pub(crate) arguments: String,
}

/// One answer, as it comes.
pub(crate) struct Answer {
    reader: Reader,
    id_begins: Option<&'static str>,
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
    /// Takes more text, and the last if it has `ended`; returns what is certain.
    pub(crate) fn push(&mut self, text: &str, ended: bool) -> Vec<Piece> {
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
            match (part, pieces.last_mut()) {
                (Part::Reasoning(text) | Part::Text(text) | Part::Arguments(text), _) if text.is_empty() => {}
                (Part::Reasoning(text), Some(Piece::Reasoning(before))) => before.push_str(&text),
                (Part::Reasoning(text), _) => pieces.push(Piece::Reasoning(text)),
                (Part::Text(text), Some(Piece::Text(before))) => before.push_str(&text),
                (Part::Text(text), _) => pieces.push(Piece::Text(text)),
                (Part::Call(name), _) => {
                    self.is_dropped = self.calls == self.most;
                    if !self.is_dropped {
                        let id = match self.id_begins {
                            Some(begins) => format!("{begins}{:016x}", random()),
                            None => format!("{:09x}", random() & 0xF_FFFF_FFFF),
                        };
                        pieces.push(Piece::Call(Called { number: self.calls, id, name, arguments: String::new() }));
                        self.calls += 1;
                    }
                }
                (Part::Arguments(_), _) if self.is_dropped => {}
                (Part::Arguments(text), Some(Piece::Arguments(_, before))) => before.push_str(&text),
                (Part::Arguments(text), _) => pieces.push(Piece::Arguments(self.calls.saturating_sub(1), text)),
            }
        }
        pieces
    }

    /// Whether what comes next is thinking.
    pub(crate) fn is_thinking(&self) -> bool {
        match &self.reader {
            Reader::Harmony(parser) => parser.is_thinking(),
            Reader::Tagged { thinking, .. } => thinking.as_ref().is_some_and(Thinking::is_inside),
        }
    }

    /// Whether a call came.
    pub(crate) fn has_called(&self) -> bool {
        self.calls > 0
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
    /// Adds a piece.
    pub(crate) fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            Piece::Text(text) => self.text.push_str(text),
            Piece::Call(call) => self.calls.push(call.clone()),
            Piece::Arguments(_, text) => {
                self.calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(text))
            }
        }
    }

    /// All that `answer` makes of `text`.
    pub(crate) fn of(answer: &mut Answer, text: &str) -> Self {
        let mut whole = Self::default();
        answer.push(text, true).iter().for_each(|piece| whole.add(piece));
        whole
    }
}
