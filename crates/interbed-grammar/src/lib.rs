//! Constrains a model's output: compiles JSON schemas, regular expressions, choices and grammars into masks over
//! tokens.
//!
//! A [`Vocabulary`] holds the bytes of each token. It compiles a [`GrammarSource`] into a [`Constraint`], which is the
//! state of one answer. A constraint says which tokens are allowed next and advances by each token that is chosen. This
//! crate knows no requests, threads or clocks.
//!
//! **Invariant:** a token is allowed exactly if its bytes continue the answer to a prefix of some text of the grammar.
//! An end-of-sequence token is allowed exactly if the answer is complete. How the text is split into tokens makes no
//! difference. Special tokens are not text: a grammar allows only those that it names.

mod binding;
mod conjunctions;
mod constraint;
mod detours;
mod ebnf;
mod entries;
mod error;
mod lark;
mod likeness;
mod mask;
mod matching;
mod memory;
mod names;
mod opening;
mod overlaps;
mod portable;
mod preface;
mod schema;
mod sent_json;
mod source;
mod standing;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tokens;
mod trigger;
mod vocabulary;

pub use binding::Binding;
pub use conjunctions::checked_schema;
pub use constraint::Constraint;
pub use error::GrammarError;
pub use lark::quoted;
pub use mask::TokenMask;
pub use preface::Preface;
pub use schema::{arguments as arguments_schema, check_formats};
pub use sent_json::json_value;
pub use source::GrammarSource;
pub use standing::Standing;
pub use trigger::{Marker, Trigger};
pub use vocabulary::{TokenText, Vocabulary, VocabularyError};
