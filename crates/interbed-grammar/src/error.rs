//! Why a grammar cannot be used.

use thiserror::Error;

/// A grammar that is refused, or that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarError {
    /// A keyword of a schema that cannot be enforced. Nothing of a schema is ignored.
    #[error("{place} of the schema: {problem}")]
    Schema {
        /// Where, as a JSON pointer; `#` is the schema itself.
        place: String,
        /// The keyword, and what is wrong with it.
        problem: String,
    },
    /// The grammar is not valid, or cannot be compiled.
    #[error("the {what} cannot be used: {problem}")]
    Invalid {
        /// "JSON schema", "regular expression".
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The grammar exceeds a limit.
    #[error("the {what} has {got} {unit}, but at most {limit} are allowed; simplify it")]
    TooLarge {
        /// "JSON schema", "regular expression".
        what: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many there are.
        got: usize,
        /// How many may be.
        limit: usize,
    },
    /// A state in which it is not known what may follow: the grammar is too complex there.
    #[error("what may follow could not be computed: {0}; simplify the schema or grammar")]
    TooComplex(String),
    /// What has been compiled holds all the memory that there is for it.
    #[error("schemas and grammars hold all the memory that there is for them; simplify this one, or send it later")]
    NoMemory,
    /// A token that the grammar does not allow here.
    #[error("token {0} is not what the schema or grammar allows here")]
    NotAllowed(u32),
}

impl GrammarError {
    /// Gives an error about a whole schema the schema's root as its place.
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

    /// The first line of what the library says, without states and traces of its own; with the reason, where that is in
    /// a later line, as of regular expressions.
    pub(crate) fn told(problem: &impl std::fmt::Display) -> String {
        const BYTES_MAX: usize = 300;
        let text = problem.to_string();
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason is known").trim();
        let reason = text.lines().find_map(|line| line.trim().strip_prefix("error: ")).filter(|_| line.ends_with(':'));
        let told = reason.map_or_else(|| line.to_owned(), |reason| format!("{line} {reason}"));
        told[..told.floor_char_boundary(BYTES_MAX)].to_owned()
    }
}
