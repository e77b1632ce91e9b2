//! The reasons why a grammar cannot be used.

use thiserror::Error;

/// The reason why a grammar is rejected, or why an answer cannot continue under it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarError {
    /// The schema contains a keyword that cannot be enforced.
    #[error("{place} of the schema: {problem}")]
    Schema {
        /// The JSON pointer to the keyword; `#` is the schema itself.
        place: String,
        /// A description that names the keyword and what is wrong with it.
        problem: String,
    },
    /// The grammar is invalid, or cannot be compiled.
    #[error("the {what} cannot be used: {problem}")]
    Invalid {
        /// Kind of the grammar: "JSON schema", "regular expression".
        what: &'static str,
        /// Description of what is wrong.
        problem: String,
    },
    /// The grammar exceeds a limit.
    #[error("the {what} has {got} {unit}, but at most {limit} are allowed; simplify it")]
    TooLarge {
        /// Kind of the grammar: "JSON schema", "regular expression".
        what: &'static str,
        /// The plural noun for what is counted, such as "bytes".
        unit: &'static str,
        /// Count in the grammar.
        got: usize,
        /// Largest count that is accepted.
        limit: usize,
    },
    /// The grammar is too complex in the current state to compute which tokens may follow.
    #[error("what may follow could not be computed: {0}; simplify the schema or grammar")]
    TooComplex(String),
    /// Compiled grammars have used up their memory budget.
    #[error("schemas and grammars hold all the memory that there is for them; simplify this one, or send it later")]
    NoMemory,
    /// The grammar does not allow the token with this id as the next token.
    #[error("token {0} is not what the schema or grammar allows here")]
    NotAllowed(u32),
}

impl GrammarError {
    /// Turns an error about a schema as a whole into one at the schema's root.
    pub(crate) fn placed(self) -> Self {
        let problem = match self {
            Self::Invalid { problem, .. } => problem,
            Self::TooLarge { unit, got, limit, .. } => {
                format!("it has {got} {unit}, but at most {limit} are allowed; simplify it")
            }
            error => return error,
        };
        Self::Schema { place: "#".into(), problem }
    }

    /// Returns the first line of the library's message, without its internal states and traces. If the reason is in a
    /// later line, as in messages about regular expressions, the reason is joined to the first line.
    pub(crate) fn told(problem: &impl std::fmt::Display) -> String {
        const BYTES_MAX: usize = 300;
        let text = problem.to_string();
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason is known").trim();
        let reason = text.lines().find_map(|line| line.trim().strip_prefix("error: ")).filter(|_| line.ends_with(':'));
        let told = reason.map_or_else(|| line.to_owned(), |reason| format!("{line} {reason}"));
        told[..told.floor_char_boundary(BYTES_MAX)].to_owned()
    }
}
