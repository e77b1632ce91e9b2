//! Jinja, as chat templates use it and Python's `jinja2` renders it.
//!
//! `transformers` renders chat templates with `jinja2` in a sandbox, and models were trained on exactly what that
//! writes. So the values here are Python's, with what they print, how they compare and which errors they raise. What is
//! not known to give the same text is an error that names it.
//!
//! A source becomes tokens (`lexer.rs`), these a tree (`parser.rs`), whose scopes are worked out beforehand as Jinja's
//! compiler does it (`scopes.rs`); `interpreter.rs` and `expressions.rs` run it. Whatever grows is counted by
//! `allowance.rs` before it is made.

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

/// A template that can be rendered, many times and on any thread.
pub(crate) struct Template {
    syntax: syntax::Template,
}

impl Template {
    /// Reads a source, whose lines end with `\n`. Recurses as deep as the source is nested.
    ///
    /// # Errors
    /// It is no template, or uses what Interbed does not know.
    pub(crate) fn parse(source: &str) -> Result<Self> {
        let syntax = parser::parse(source)?;
        scopes::resolve(&syntax)?;
        Ok(Self { syntax })
    }

    /// What the template writes with these variables, within `fuel` steps and the allowance of this thread. `date`
    /// writes the date of now.
    ///
    /// # Errors
    /// Python would raise an error, or the rendering exceeds a limit.
    pub(crate) fn render(
        &self,
        variables: HashMap<Arc<str>, Value>,
        fuel: u64,
        date: &dyn Fn(&str) -> Result<String>,
    ) -> Result<String> {
        interpreter::Machine::new(variables, fuel, date).run(&self.syntax)
    }
}
