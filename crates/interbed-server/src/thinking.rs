//! Separates thinking, which a model writes between tags at the start of its answer, from the rest, piece by piece.
//! White space around thinking, and between thinking and the answer, belongs to neither.

/// The tags around thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) open: &'static str,
    pub(crate) close: &'static str,
}

const KNOWN: [Tags; 3] = [
    Tags { open: "<think>", close: "</think>" },
    Tags { open: "[THINK]", close: "[/THINK]" },
    Tags { open: "<seed:think>", close: "</seed:think>" },
];

impl Tags {
    /// Returns the tags of a model with this chat template.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        KNOWN.into_iter().find(|tags| source.contains(tags.close))
    }

    /// Returns where in its thinking an answer to `prompt` begins.
    pub(crate) fn begins(self, prompt: &str) -> Begins {
        let prompt = prompt.trim_end();
        if prompt.ends_with(self.open) {
            Begins::Inside
        } else if prompt.ends_with(self.close) {
            Begins::Behind
        } else {
            Begins::Before
        }
    }

    /// Returns where in its thinking an answer that continues `message` begins.
    pub(crate) fn begins_in(self, message: &str) -> Begins {
        match (message.rfind(self.open), message.rfind(self.close)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Begins::Inside,
            _ => Begins::Behind,
        }
    }
}

/// Says where in its thinking an answer begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Begins {
    /// The answer begins before any thinking. Thinking may follow.
    #[default]
    Before,
    /// The answer begins inside thinking.
    Inside,
    /// The first generated token is part of the answer itself, because no thinking follows.
    Behind,
}

/// Separates the thinking of one answer from the rest.
pub(crate) struct Thinking {
    tags: Tags,
    state: State,
    /// The text that cannot be classified yet.
    held: String,
}

enum State {
    Before,
    /// The text is inside thinking. The flag says whether some of the thinking was reported.
    Inside(bool),
    /// Thinking has ended, and only white space has followed.
    Closed,
    Behind,
}

impl Thinking {
    pub(crate) fn new(tags: Tags, begins: Begins) -> Self {
        let state = match begins {
            Begins::Before => State::Before,
            Begins::Inside => State::Inside(false),
            Begins::Behind => State::Behind,
        };
        Self { tags, state, held: String::new() }
    }

    /// Returns whether thinking has begun, and not ended.
    pub(crate) fn is_inside(&self) -> bool {
        matches!(self.state, State::Inside(_))
    }

    /// Appends text, and returns the thinking, and the text after it, that are now certain. `ended` says whether the
    /// answer has ended.
    pub(crate) fn push(&mut self, text: &str, ended: bool) -> (String, String) {
        self.held.push_str(text);
        let mut thought = String::new();
        loop {
            match self.state {
                State::Before => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(self.tags.open) {
                        self.held.drain(..self.held.len() - rest.len());
                        self.state = State::Inside(false);
                    } else if self.tags.open.starts_with(begun) && !ended {
                        return (thought, String::new());
                    } else {
                        self.state = State::Behind;
                    }
                }
                State::Inside(told) => {
                    let close = self.held.find(self.tags.close);
                    let end = close.unwrap_or_else(|| self.held.len() - begun_at_end(&self.held, &[self.tags.close]));
                    let whole = if close.is_none() && ended { self.held.as_str() } else { &self.held[..end] };
                    let certain = whole.trim_end();
                    let start = if told { 0 } else { certain.len() - certain.trim_start().len() };
                    thought.push_str(&certain[start..]);
                    let taken = certain.len();
                    self.state = State::Inside(told || taken > start);
                    match close {
                        Some(close) => {
                            self.held.drain(..close + self.tags.close.len());
                            self.state = State::Closed;
                        }
                        None => {
                            self.held.drain(..taken);
                            return (thought, String::new());
                        }
                    }
                }
                State::Closed => {
                    let blank = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..blank);
                    if self.held.is_empty() {
                        return (thought, String::new());
                    }
                    self.state = State::Behind;
                }
                State::Behind => return (thought, std::mem::take(&mut self.held)),
            }
        }
    }
}

/// Returns the number of bytes at the end of `text` that may be the beginning of one of `marks`.
pub(crate) fn begun_at_end(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let first = (text.len() + 1).saturating_sub(longest);
    let mut starts = (first..text.len()).filter(|&start| text.is_char_boundary(start));
    let begins = |start: &usize| marks.iter().any(|mark| mark.starts_with(&text[*start..]));
    starts.find(begins).map_or(0, |start| text.len() - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: Tags = KNOWN[0];

    fn told<'t>(begins: Begins, pieces: impl Iterator<Item = &'t str>) -> (String, String) {
        let mut thinking = Thinking::new(TAGS, begins);
        let pieces = pieces.map(|piece| (piece, false)).chain([("", true)]);
        let mut all = (String::new(), String::new());
        for (piece, ended) in pieces.collect::<Vec<_>>() {
            let (thought, rest) = thinking.push(piece, ended);
            assert!(all.1.is_empty() || thought.is_empty(), "thinking comes first");
            all.0 += &thought;
            all.1 += &rest;
        }
        all
    }

    /// Returns the thinking and the rest of a text, and checks that they do not depend on how the text is split.
    fn parts(begins: Begins, text: &str) -> (String, String) {
        let whole = told(begins, std::iter::once(text));
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(told(begins, [&text[..at], &text[at..]].into_iter()), whole, "cut at {at} of {text:?}");
        }
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(told(begins, characters.iter().map(String::as_str)), whole, "in characters: {text:?}");
        whole
    }

    #[test]
    fn thinking_is_told_from_the_answer() {
        for (begins, text, thought, rest) in [
            (Begins::Before, "<think>\nI see \u{e9}.\n</think>\n\n Yes. <think>", "I see \u{e9}.", "Yes. <think>"),
            (Begins::Before, " \n<think></think>a", "", "a"),
            (Begins::Before, "<think>a</thi</think>b</think>", "a</thi", "b</think>"),
            (Begins::Before, " <thin air", "", " <thin air"),
            (Begins::Before, "<thi", "", "<thi"),
            (Begins::Before, "", "", ""),
            (Begins::Inside, "\na b\n\nc </think>d ", "a b\n\nc", "d "),
            (Begins::Inside, "<think>a", "<think>a", ""),
            (Begins::Inside, " never ending \n</thin", "never ending \n</thin", ""),
            (Begins::Inside, " \n", "", ""),
            (Begins::Inside, "</think>\n\n", "", ""),
            (Begins::Behind, " <think>a</think>", "", " <think>a</think>"),
        ] {
            assert_eq!(parts(begins, text), (thought.into(), rest.into()), "{text:?}");
        }
    }

    #[test]
    fn prompts_tell_where_answers_begin() {
        assert_eq!(TAGS.begins("<user>what is <think>?<assistant>\n<think>\n"), Begins::Inside);
        assert_eq!(TAGS.begins("<user>a<assistant>\n<think>\n\n</think>\n\n"), Begins::Behind);
        assert_eq!(TAGS.begins("<user>what is <think>?<assistant>\n"), Begins::Before);
        assert_eq!(TAGS.begins_in("<think>so"), Begins::Inside);
        assert_eq!(TAGS.begins_in("<think>so</think>Yes"), Begins::Behind);
        assert_eq!(TAGS.begins_in("Yes"), Begins::Behind);
        assert_eq!(Tags::of_template("{{ c.split('</think>')[-1] }}"), Some(TAGS));
        assert_eq!(Tags::of_template("{{ c }}"), None);
    }
}
