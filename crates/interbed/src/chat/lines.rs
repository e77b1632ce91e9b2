//! Reads messages: from a person through a line editor, or from a pipe.

use std::borrow::Cow;
use std::io::{BufRead, stdin, stdout};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use crate::colours;
use crate::failure::Advised;
use crate::user_folders;

/// The maximum number of lines in the history.
const HISTORY_LINES: usize = 1000;

/// The quotes before and after a message of several lines.
const QUOTES: &str = "\"\"\"";

/// The maximum size of a message, in bytes. The context usually allows less.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The source of messages.
pub enum Lines {
    /// A terminal on which a person types, with line editing. `history` is the path of the history file.
    Terminal { editor: Box<Editor<Prompter, DefaultHistory>>, history: Option<PathBuf> },
    /// A pipe or a file, of which `read` lines have been read.
    Pipe { read: usize },
}

/// One input of the user.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// One line, which may be a command.
    Line(String),
    /// The text between two lines of `"""`.
    Quoted(String),
}

impl Lines {
    /// Opens stdin, with a line editor if stdin is a terminal.
    ///
    /// # Errors
    /// Fails if the terminal cannot be used.
    pub fn open() -> Result<Self> {
        if !stdin().is_terminal() {
            return Ok(Self::Pipe { read: 0 });
        }
        let config = rustyline::Config::builder()
            .max_history_size(HISTORY_LINES)
            .context("cannot keep a history")?
            .auto_add_history(true)
            .build();
        let mut editor = Box::new(Editor::with_config(config).context("cannot read from the terminal")?);
        editor.set_helper(Some(Prompter { colours: colours::are_wanted(stdout().is_terminal()) }));
        let history = history_file();
        if let Some(path) = &history
            && let Err(error) = editor.load_history(path)
        {
            tracing::debug!("no history in {}: {error}", path.display());
        }
        Ok(Self::Terminal { editor, history })
    }

    /// Returns whether a person types the messages.
    pub fn are_typed(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Returns the width of the terminal in columns, or `None` if messages do not come from a terminal.
    pub fn width(&mut self) -> Option<usize> {
        match self {
            Self::Terminal { editor, .. } => editor.dimensions().map(|(columns, _)| usize::from(columns)),
            Self::Pipe { .. } => None,
        }
    }

    /// Reads the next line or quoted message. Returns `None` at the end of input.
    ///
    /// # Errors
    /// Fails if the terminal or the pipe cannot be read, or the pipe ends within quotes.
    pub fn next(&mut self) -> Result<Option<Input>> {
        let text = match self {
            Self::Terminal { editor, .. } => loop {
                match editor.readline("> ") {
                    Ok(text) => break text,
                    Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D or /bye leaves."),
                    Err(ReadlineError::Eof) => {
                        // The shell's prompt should begin on a line of its own.
                        stdout().write_all(b"\n")?;
                        return Ok(None);
                    }
                    Err(error) => return Err(error).context("cannot read from the terminal"),
                }
            },
            Self::Pipe { read } => match read_message(&mut stdin().lock(), read)? {
                Some(text) => text,
                None => return Ok(None),
            },
        };
        Ok(Some(Input::of(&text)))
    }

    /// Saves the history for the next conversation, in a file that only its owner can read.
    pub fn save_history(&mut self) {
        if let Self::Terminal { editor, history: Some(path) } = self {
            // A history that cannot be written is not worth an error.
            let saved = user_folders::create_private(path)
                .map_err(ReadlineError::from)
                .and_then(|()| editor.save_history(path));
            if let Err(error) = saved {
                tracing::debug!("the history was not saved to {}: {error}", path.display());
            }
        }
    }
}

impl Input {
    fn of(text: &str) -> Self {
        let text = text.trim();
        match text.strip_prefix(QUOTES) {
            Some(inside) => {
                Self::Quoted(inside.trim_end().strip_suffix(QUOTES).unwrap_or(inside).trim_matches('\n').to_owned())
            }
            None => Self::Line(text.to_owned()),
        }
    }
}

/// Returns whether a message begins with quotes that are not closed yet.
fn is_open(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix(QUOTES);
    inside.is_some_and(|inside| !inside.trim_end().ends_with(QUOTES))
}

/// Reads a line. If the line begins with quotes, reads all lines up to the closing quotes. `read` counts the lines.
fn read_message(from: &mut dyn BufRead, read: &mut usize) -> Result<Option<String>> {
    let mut text = String::new();
    let begun = *read + 1;
    loop {
        *read += 1;
        let bytes =
            from.read_line(&mut text).with_context(|| format!("cannot read line {read} of stdin; it must be UTF-8"))?;
        if bytes == 0 && is_open(&text) {
            return Err(Advised::input(
                format!("stdin ends within the message that begins with {QUOTES} in its line {begun}"),
                format!("end the message with {QUOTES}"),
            ));
        }
        if bytes == 0 && text.is_empty() {
            return Ok(None);
        }
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(Advised::input(
                format!("the message in line {begun} of stdin has more than {MESSAGE_BYTES_MAX} bytes"),
                "no context holds it: shorten it",
            ));
        }
        if bytes == 0 || !is_open(&text) {
            return Ok(Some(text));
        }
    }
}

fn history_file() -> Option<PathBuf> {
    Some(user_folders::state()?.join("chat_history"))
}

/// Draws the editor's prompt, and decides when a message is complete.
pub struct Prompter {
    colours: bool,
}

impl Helper for Prompter {}

impl Completer for Prompter {
    type Candidate = String;
}

impl Hinter for Prompter {
    type Hint = String;
}

impl Highlighter for Prompter {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        if self.colours { Cow::Owned(format!("\x1b[1;32m{prompt}\x1b[0m")) } else { Cow::Borrowed(prompt) }
    }
}

impl Validator for Prompter {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut text: &[u8]) -> Vec<Input> {
        let (mut found, mut read) = (Vec::new(), 0);
        while let Some(message) = read_message(&mut text, &mut read).expect("it can be read") {
            found.push(Input::of(&message));
        }
        found
    }

    #[test]
    fn lines_between_quotes_are_one_message() {
        let (line, quoted) = (|text: &str| Input::Line(text.into()), |text: &str| Input::Quoted(text.into()));
        let text = b"one\n\"\"\"\ntwo\n  three\n\"\"\"\n/bye\n\"\"\"/bye\"\"\"\n\"\"\"a\nb\"\"\"\nlast";
        let expect = [line("one"), quoted("two\n  three"), line("/bye"), quoted("/bye"), quoted("a\nb"), line("last")];
        assert_eq!(all(text), expect);
        assert_eq!(all(b"\"\"\"\"\"\"\n"), [quoted("")]);
        assert_eq!(all(b""), []);
    }

    #[test]
    fn quotes_that_nothing_closes_are_an_error() {
        let refused = read_message(&mut &b"hello\n\"\"\"\nfor ever\n"[..], &mut 0).map(|first| (first, ()));
        assert_eq!(refused.expect("the first line stands alone").0.as_deref(), Some("hello\n"));
        let refused = read_message(&mut &b"\"\"\"\nfor ever\n"[..], &mut 1).expect_err("nothing closes it").to_string();
        assert!(refused.contains("line 2"), "{refused}");
    }
}
