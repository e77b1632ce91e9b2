//! Separates thinking, which a model writes between tags at the start of its answer, from the rest, piece by piece.
//! Some models think again later. White space around thinking, and between thinking and the answer, belongs to neither.

/// The tags around thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) open: &'static str,
    pub(crate) close: &'static str,
    /// The text that may follow the opening tag and is not part of the thinking.
    name: &'static str,
    /// If the model may think again, the text from which on it does not: a call, whose arguments may have any text.
    until: Option<&'static str>,
}

const KNOWN: [Tags; 4] = [
    Tags::new("<think>", "</think>"),
    Tags::new("[THINK]", "[/THINK]"),
    Tags::new("<seed:think>", "</seed:think>"),
    Tags { name: "thought", until: Some("<|tool_call>"), ..Tags::new("<|channel>", "<channel|>") },
];

impl Tags {
    const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close, name: "", until: None }
    }

    /// Returns the tags of a model with this chat template.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        KNOWN.into_iter().find(|tags| source.contains(tags.close))
    }

    /// Returns where in its thinking an answer to `prompt` begins.
    pub(crate) fn begins(self, prompt: &str) -> Begins {
        let prompt = prompt.trim_end();
        let unnamed = prompt.strip_suffix(self.name).map_or(prompt, str::trim_end);
        if unnamed.ends_with(self.open) {
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

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Thought(String),
    Text(String),
}

/// Separates the thinking of one answer from the rest.
pub(crate) struct Thinking {
    tags: Tags,
    state: State,
    /// The text that cannot be classified yet.
    held: String,
    /// Whether some thinking was reported. A further thought begins with an empty line.
    has_thought: bool,
}

enum State {
    Before,
    /// The text is behind an opening tag, where the name may follow.
    Opened,
    /// The text is inside thinking. The flag says whether some of the thinking was reported.
    Inside(bool),
    /// Thinking has ended, and only white space has followed.
    Closed,
    /// The text is part of the answer. More thinking may follow if the tags say so.
    Behind,
    /// No thinking follows.
    Done,
}

impl Thinking {
    pub(crate) fn new(tags: Tags, begins: Begins) -> Self {
        let state = match begins {
            Begins::Before => State::Before,
            Begins::Inside => State::Inside(false),
            Begins::Behind => State::Behind,
        };
        Self { tags, state, held: String::new(), has_thought: false }
    }

    /// Returns whether thinking has begun, and not ended.
    pub(crate) fn is_inside(&self) -> bool {
        matches!(self.state, State::Opened | State::Inside(_))
    }

    /// Appends text, and returns the parts that are now certain. `ended` says whether the answer has ended.
    pub(crate) fn push(&mut self, text: &str, ended: bool) -> Vec<Said> {
        self.held.push_str(text);
        let mut said = Vec::new();
        while self.go_on(&mut said, ended) {}
        said
    }

    /// Classifies the next part of the held text. Returns false if more text is needed.
    fn go_on(&mut self, said: &mut Vec<Said>, ended: bool) -> bool {
        match self.state {
            State::Before => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(self.tags.open) {
                    self.held.drain(..self.held.len() - rest.len());
                    self.state = State::Opened;
                } else if self.tags.open.starts_with(begun) && !ended {
                    return false;
                } else {
                    self.state = State::Behind;
                }
                true
            }
            State::Opened => self.open(ended),
            State::Inside(told) => self.think(told, said, ended),
            State::Closed => {
                let blank = self.held.len() - self.held.trim_start().len();
                self.held.drain(..blank);
                if !self.held.is_empty() {
                    self.state = State::Behind;
                }
                !self.held.is_empty()
            }
            State::Behind => match self.tags.until {
                Some(until) => self.answer(until, said, ended),
                None => {
                    self.state = State::Done;
                    true
                }
            },
            State::Done => {
                add(Said::Text(std::mem::take(&mut self.held)), said);
                false
            }
        }
    }

    /// Leaves out the name behind an opening tag, and further opening tags.
    fn open(&mut self, ended: bool) -> bool {
        let Tags { open, close, name, .. } = self.tags;
        let begun = self.held.trim_start();
        if let Some(rest) = begun.strip_prefix(open).filter(|_| !name.is_empty()) {
            self.held.drain(..self.held.len() - rest.len());
            return true;
        }
        let rest = begun.strip_prefix(name).filter(|_| !name.is_empty());
        let may_follow = match rest {
            Some(rest) => close.starts_with(rest),
            None => !name.is_empty() && (open.starts_with(begun) || name.starts_with(begun)),
        };
        if may_follow && !ended {
            return false;
        }
        if let Some(rest) =
            rest.filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace) || rest.starts_with(close))
        {
            self.held.drain(..self.held.len() - rest.len());
        }
        self.state = State::Inside(false);
        true
    }

    fn think(&mut self, told: bool, said: &mut Vec<Said>, ended: bool) -> bool {
        let close = self.held.find(self.tags.close);
        let end = close.unwrap_or_else(|| self.held.len() - begun_at_end(&self.held, &[self.tags.close]));
        let whole = if close.is_none() && ended { self.held.as_str() } else { &self.held[..end] };
        let certain = whole.trim_end();
        let start = if told { 0 } else { certain.len() - certain.trim_start().len() };
        let thought = &certain[start..];
        let taken = certain.len();
        if !thought.is_empty() {
            let between = if !told && self.has_thought { "\n\n" } else { "" };
            add(Said::Thought(format!("{between}{thought}")), said);
            self.has_thought = true;
        }
        self.state = State::Inside(told || taken > start);
        match close {
            Some(close) => {
                self.held.drain(..close + self.tags.close.len());
                self.state = State::Closed;
            }
            None => drop(self.held.drain(..taken)),
        }
        close.is_some()
    }

    /// Reads the answer of a model that may think again before `until`.
    fn answer(&mut self, until: &str, said: &mut Vec<Said>, ended: bool) -> bool {
        let Tags { open, close, .. } = self.tags;
        let marks = [until, open, close];
        let found = marks.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        let end = match found {
            Some((at, _)) => at,
            None if ended => self.held.len(),
            None => self.held.len() - begun_at_end(&self.held, &marks),
        };
        add(Said::Text(self.held.drain(..end).collect()), said);
        let Some((_, mark)) = found else { return false };
        if mark == until {
            self.state = State::Done;
            return true;
        }
        // A closing tag by itself is left out.
        self.held.drain(..mark.len());
        if mark == open {
            self.state = State::Opened;
        }
        true
    }
}

/// Appends a part, and merges it with the last one if both are of one kind.
fn add(part: Said, said: &mut Vec<Said>) {
    match (part, said.last_mut()) {
        (Said::Thought(text) | Said::Text(text), _) if text.is_empty() => {}
        (Said::Thought(text), Some(Said::Thought(before))) | (Said::Text(text), Some(Said::Text(before))) => {
            before.push_str(&text);
        }
        (part, _) => said.push(part),
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
    const CHANNEL: Tags = KNOWN[3];

    fn told<'t>(tags: Tags, begins: Begins, pieces: impl Iterator<Item = &'t str>) -> Vec<Said> {
        let mut thinking = Thinking::new(tags, begins);
        let pieces = pieces.map(|piece| (piece, false)).chain([("", true)]);
        let mut all = Vec::new();
        pieces.flat_map(|(piece, ended)| thinking.push(piece, ended)).for_each(|part| add(part, &mut all));
        all
    }

    /// Returns the parts of a text, and checks that they do not depend on how the text is split.
    fn parts(tags: Tags, begins: Begins, text: &str) -> Vec<Said> {
        let whole = told(tags, begins, std::iter::once(text));
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(told(tags, begins, [&text[..at], &text[at..]].into_iter()), whole, "cut at {at} of {text:?}");
        }
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(told(tags, begins, characters.iter().map(String::as_str)), whole, "in characters: {text:?}");
        whole
    }

    fn thought(text: &str) -> Said {
        Said::Thought(text.into())
    }

    fn says(text: &str) -> Said {
        Said::Text(text.into())
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
            let mut expected = Vec::new();
            [Said::Thought(thought.into()), says(rest)].into_iter().for_each(|part| add(part, &mut expected));
            assert_eq!(parts(TAGS, begins, text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_channel_has_a_name_and_may_come_again() {
        for (begins, text, expected) in [
            (Begins::Before, "<|channel>thought\nI see.\n<channel|>Yes.", vec![thought("I see."), says("Yes.")]),
            (Begins::Before, "<|channel>thought\n<channel|>Yes.", vec![says("Yes.")]),
            (Begins::Before, "<|channel>thought<channel|>\nYes.", vec![says("Yes.")]),
            (Begins::Before, "<|channel>thoughtful<channel|>Yes.", vec![thought("thoughtful"), says("Yes.")]),
            (Begins::Before, "<|channel><|channel>thought\nso", vec![thought("so")]),
            (Begins::Before, "<|channel>thought", vec![]),
            (Begins::Before, "<|channel>thou", vec![thought("thou")]),
            (Begins::Inside, "so<channel|>Yes.<channel|>", vec![thought("so"), says("Yes.")]),
            (Begins::Behind, "Yes <|chan.<|channel>thought\n<channel|>", vec![says("Yes <|chan.")]),
            (
                Begins::Before,
                "<|channel>thought\na<channel|>b<|channel>thought\nc\n<channel|>d",
                vec![thought("a"), says("b"), thought("\n\nc"), says("d")],
            ),
            // What a call says is not read.
            (
                Begins::Behind,
                "a<channel|><|tool_call>call:f{a:<|\"|><|channel>x<channel|><|\"|>}",
                vec![says("a<|tool_call>call:f{a:<|\"|><|channel>x<channel|><|\"|>}")],
            ),
        ] {
            assert_eq!(parts(CHANNEL, begins, text), expected, "{text:?}");
        }
        assert_eq!(CHANNEL.begins("<|turn>model\n<|channel>thought\n"), Begins::Inside);
        assert_eq!(CHANNEL.begins("<|turn>model\n<|channel>"), Begins::Inside);
        assert_eq!(CHANNEL.begins("<|turn>model\n<|channel>thought\n<channel|>"), Begins::Behind);
        assert_eq!(CHANNEL.begins("<|turn>user\na thought<turn|>\n<|turn>model\n"), Begins::Before);
        assert_eq!(Tags::of_template("{{ text.split('<channel|>') }}"), Some(CHANNEL));
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
