//! The ways in which a grammar can be written, and the limits of each.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::GrammarError;
use crate::lark::quoted;
use crate::schema::Places;
use crate::{conjunctions, ebnf, schema};

/// Longest schema, regular expression or grammar, in bytes.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of choices.
const CHOICES_MAX: usize = 4096;
/// Deepest nesting of brackets in a regular expression or grammar.
const NESTING_MAX: usize = 64;
/// The deepest nesting of a grammar or schema through the names of rules and references. The library follows them by
/// recursion, with up to 3.3 KB of stack for each level.
const LEVELS_MAX: usize = 8192;

/// A grammar, schema or list that describes the allowed texts of an answer, or of a part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies this schema.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole. The expression has the syntax of the `regex` crate.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that this context-free grammar in Lark's syntax describes. The start rule is `start`. Rule names are in
    /// lower case, and terminal names in upper case.
    Lark(String),
    /// A text that this context-free grammar in EBNF (GBNF) describes, such as `root ::= "yes" | "no"`. The start rule
    /// is `root`.
    Ebnf(String),
}

impl GrammarSource {
    /// Wraps a grammar as EBNF if one of its lines begins a rule with `::=`, and otherwise as Lark.
    pub fn of_grammar(text: String) -> Self {
        if ebnf::is_ebnf(&text) { Self::Ebnf(text) } else { Self::Lark(text) }
    }

    /// Returns a name of the source's kind for use in messages, such as "regular expression".
    pub fn what(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "list of choices",
            Self::Lark(_) | Self::Ebnf(_) => "grammar",
        }
    }

    /// Returns the length of the source in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Choice(choices) => choices.iter().map(String::len).sum(),
            Self::Regex(text) | Self::Lark(text) | Self::Ebnf(text) => text.len(),
        }
    }

    /// Returns whether all texts are JSON, possibly with fixed text around it.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => true,
            Self::Lark(grammar) => schema::is_spelled_out(grammar),
            _ => false,
        }
    }

    /// Translates the source into the library's form. Returns it with the places of the `uniqueItems` arrays of its
    /// schemas.
    ///
    /// # Errors
    /// Fails if the source exceeds a limit, or asks for something that cannot be enforced.
    pub(crate) fn grammar(&self) -> Result<(TopLevelGrammar, Places), GrammarError> {
        let (grammar, places) = match self {
            Self::JsonObject => schema::grammar(&json!({"type": "object"}))?,
            Self::JsonSchema(schema) => {
                self.limit("bytes", schema.to_string().len(), SOURCE_BYTES_MAX)?;
                conjunctions::check(schema)?;
                self.limit("levels behind references", schema::levels(schema), LEVELS_MAX)?;
                schema::grammar(schema)?
            }
            Self::Regex(regex) => {
                self.limit("bytes", regex.len(), SOURCE_BYTES_MAX)?;
                self.limit("nested brackets", nesting(regex), NESTING_MAX)?;
                return Ok((TopLevelGrammar::from_regex(regex), Places::default()));
            }
            Self::Choice(choices) => {
                self.limit("texts", choices.len(), CHOICES_MAX)?;
                self.limit("bytes", choices.iter().map(String::len).sum(), SOURCE_BYTES_MAX)?;
                if choices.is_empty() {
                    let problem = "it has no text to choose".to_owned();
                    return Err(GrammarError::Invalid { what: self.what(), problem });
                }
                let texts: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
                // All choices form one terminal. As alternatives of a rule, each choice would be an item of the parser,
                // which allows 2,000.
                (format!("start: TEXT\nTEXT: {}\n", texts.join(" | ")), Places::default())
            }
            Self::Lark(grammar) | Self::Ebnf(grammar) => {
                self.limit("bytes", grammar.len(), SOURCE_BYTES_MAX)?;
                self.limit("nested brackets", nesting(grammar), NESTING_MAX)?;
                self.limit("levels of rules", levels(grammar), LEVELS_MAX)?;
                match self {
                    Self::Ebnf(_) => {
                        let wrong = |problem| GrammarError::Invalid { what: self.what(), problem };
                        (ebnf::lark_of(grammar).map_err(wrong)?, Places::default())
                    }
                    _ => {
                        conjunctions::check_within(grammar)?;
                        schema::with_rules(grammar)?
                    }
                }
            }
        };
        if !places.is_empty() && !self.is_json() {
            let problem = "\"uniqueItems\" cannot be enforced in a grammar that allows any text beside its schemas; \
                           leave it out"
                .to_owned();
            return Err(GrammarError::Invalid { what: self.what(), problem });
        }
        Ok((TopLevelGrammar::from_lark(grammar), places))
    }

    fn limit(&self, unit: &'static str, got: usize, limit: usize) -> Result<(), GrammarError> {
        if got > limit {
            return Err(GrammarError::TooLarge { what: self.what(), unit, got, limit });
        }
        Ok(())
    }
}

/// Returns the deepest nesting of brackets. Brackets in quotes count too, so the result may differ from the true
/// nesting; the library has its own limit as well.
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

/// Returns an upper bound on the nesting of a grammar's rules, as if each rule named the next one at its deepest place.
/// A rule has a colon and opens brackets.
fn levels(grammar: &str) -> usize {
    let of_line = |line: &str| {
        let rules = line.matches(':').count() - line.matches("::").count();
        rules + line.matches(['(', '[', '{']).count().min(NESTING_MAX * rules.max(1))
    };
    grammar.lines().map(of_line).sum()
}
