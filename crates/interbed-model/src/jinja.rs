//! Renders chat templates with the results of Python's `jinja2`.
//!
//! The Python library `transformers` renders chat templates with `jinja2` in a sandbox, and models were trained on
//! exactly what it writes. The values here therefore print, compare and fail as Python's values do. Where this code
//! might not write what `jinja2` writes, it returns an error that names the cause.
//!
//! The file `lexer.rs` divides a source into tokens, and `parser.rs` makes a tree of them. The file `scopes.rs` works
//! out the scopes of the tree beforehand, as Jinja's compiler does. The files `interpreter.rs` and `expressions.rs` run
//! the tree. The file `allowance.rs` counts the bytes of every value before the value is made.

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) mod allowance;
mod arguments;
mod attributes;
mod characters;
mod expressions;
pub(crate) mod fault;
mod filters;
mod format;
mod functions;
mod interpreter;
mod iteration;
mod json;
mod lexer;
mod methods;
mod operators;
mod parser;
mod predicates;
mod printing;
mod scopes;
mod sent;
mod syntax;
mod text_filters;
mod text_methods;
mod value;

use fault::Result;
pub(crate) use sent::value as sent_value;
pub(crate) use value::Value;

/// A parsed template, which can be rendered many times and on any thread.
pub(crate) struct Template {
    syntax: syntax::Template,
}

impl Template {
    /// Parses a source, whose lines end with `\n`. The parser recurses as deep as the source is nested.
    ///
    /// # Errors
    /// Fails if the source is no valid template, or uses a feature that Interbed does not know.
    pub(crate) fn parse(source: &str) -> Result<Self> {
        let syntax = parser::parse(source)?;
        scopes::resolve(&syntax)?;
        Ok(Self { syntax })
    }

    /// Returns the text that the template writes with these variables. The rendering takes at most `fuel` steps and
    /// keeps to the allowance of this thread. The function `date` formats the present date.
    ///
    /// # Errors
    /// Fails if Python would raise an error, or if the rendering exceeds a limit.
    pub(crate) fn render(
        &self,
        variables: HashMap<Arc<str>, Value>,
        fuel: u64,
        date: &dyn Fn(&str) -> Result<String>,
    ) -> Result<String> {
        interpreter::Machine::new(variables, fuel, date).run(&self.syntax)
    }
}
