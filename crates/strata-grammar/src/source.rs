//! What a grammar is written in, and the limits of each kind.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::GrammarError;
use crate::schema;

/// Longest schema, regular expression or grammar, in bytes.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Most texts to choose from, and their bytes together.
const CHOICES_MAX: usize = 4096;
/// Deepest nesting of brackets in a regular expression or grammar.
const NESTING_MAX: usize = 64;

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema describes.
    JsonSchema(Value),
    /// A text that all of this regular expression matches, in the syntax of the `regex` crate.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this context-free grammar, in Lark's form: a rule `start`, rules in small and terminals in capital
    /// letters.
    Lark(String),
}

impl GrammarSource {
    /// Its kind, for messages.
    pub fn what(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "list of choices",
            Self::Lark(_) => "grammar",
        }
    }

    /// In the library's form.
    ///
    /// # Errors
    /// It exceeds a limit, or asks for what cannot be enforced.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        match self {
            Self::JsonObject => Ok(of_schema(json!({"type": "object"}))),
            Self::JsonSchema(schema) => {
                self.limit("bytes", schema.to_string().len(), SOURCE_BYTES_MAX)?;
                Ok(of_schema(schema::checked(schema)?))
            }
            Self::Regex(regex) => {
                self.limit("bytes", regex.len(), SOURCE_BYTES_MAX)?;
                self.limit("nested brackets", nesting(regex), NESTING_MAX)?;
                Ok(TopLevelGrammar::from_regex(regex))
            }
            Self::Choice(choices) => {
                self.limit("texts", choices.len(), CHOICES_MAX)?;
                self.limit("bytes", choices.iter().map(String::len).sum(), SOURCE_BYTES_MAX)?;
                if choices.is_empty() {
                    let problem = "it has no text to choose".to_owned();
                    return Err(GrammarError::Invalid { what: self.what(), problem });
                }
                let texts: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
                Ok(TopLevelGrammar::from_lark(format!("start: {}\n", texts.join(" | "))))
            }
            Self::Lark(grammar) => {
                self.limit("bytes", grammar.len(), SOURCE_BYTES_MAX)?;
                self.limit("nested brackets", nesting(grammar), NESTING_MAX)?;
                if grammar.contains("::=") {
                    let problem = "it is written with \"::=\"; write it in Lark's form, \"start: …\"".to_owned();
                    return Err(GrammarError::Invalid { what: self.what(), problem });
                }
                Ok(TopLevelGrammar::from_lark(grammar.clone()))
            }
        }
    }

    fn limit(&self, unit: &'static str, got: usize, limit: usize) -> Result<(), GrammarError> {
        if got > limit {
            return Err(GrammarError::TooLarge { what: self.what(), unit, got, limit });
        }
        Ok(())
    }
}

/// A text in Lark's quotes, which are JSON's.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn of_schema(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(schema)
}

/// The deepest nesting of brackets, wherever they stand: an upper bound.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
