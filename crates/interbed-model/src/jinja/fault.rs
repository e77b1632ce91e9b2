//! Describes why a template cannot be read or did not render.

use std::fmt;

use super::allowance::Excess;

/// An error, with the line of the source in which it happened.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) cause: Cause,
    /// The number of the line, counted from 1, or `None` while it is unknown.
    line: Option<usize>,
}

/// The cause of an error.
#[derive(Debug)]
pub(crate) enum Cause {
    /// A message that describes invalid syntax, an operation for which Python raises an error, or a feature that
    /// Interbed does not support.
    Problem(String),
    /// The template called `raise_exception` with this message.
    Raised(String),
    /// The template exceeded a limit, for example on memory, output or time.
    Excess(Excess),
    /// The template executed too many steps.
    OutOfFuel,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn new(problem: impl Into<String>) -> Self {
        Self { cause: Cause::Problem(problem.into()), line: None }
    }

    pub(crate) fn at(problem: impl Into<String>, line: usize) -> Self {
        Self::new(problem).in_line(line)
    }

    /// Returns the error for a feature of Python that Interbed does not support. The message names the feature.
    pub(crate) fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(format!("{what} is not supported in chat templates"))
    }

    pub(crate) fn raised(message: String) -> Self {
        Self { cause: Cause::Raised(message), line: None }
    }

    pub(crate) fn out_of_fuel() -> Self {
        Self { cause: Cause::OutOfFuel, line: None }
    }

    /// Returns the fault with a line. A line that the fault has already is kept.
    pub(crate) fn in_line(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl From<Excess> for Fault {
    fn from(excess: Excess) -> Self {
        Self { cause: Cause::Excess(excess), line: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Problem(text) | Cause::Raised(text) => f.write_str(text)?,
            Cause::Excess(excess) => excess.fmt(f)?,
            Cause::OutOfFuel => f.write_str("too many steps")?,
        }
        match self.line {
            Some(line) => write!(f, " (line {line})"),
            None => Ok(()),
        }
    }
}
