//! Reasons why a question about a model and a machine has no answer.

use std::error::Error;
use std::fmt;
use std::io;

use interbed_device::AllocError;
use interbed_engine::BudgetTooSmall;
use interbed_io::IoError;
use interbed_kv::KvConfigError;
use interbed_model::config::ConfigError;
use interbed_weights::WeightError;
use interbed_weights::experts::ArenaError;
use interbed_weights::window::WindowError;

use crate::simulation::SimulationError;

/// Tells why a question cannot be answered, and what to do next if that is known.
#[derive(Debug)]
pub struct Refusal {
    message: String,
    hint: Option<String>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl Refusal {
    /// Makes a refusal that says `message`.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, cause: None }
    }

    /// Makes a refusal that says `message`, and in `hint` what to do next.
    pub fn advised(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::new(message) }
    }

    /// Makes a refusal that says `message`, with the error that caused it.
    pub fn because(message: impl Into<String>, cause: impl Error + Send + Sync + 'static) -> Self {
        Self { cause: Some(Box::new(cause)), ..Self::new(message) }
    }

    /// Adds `hint`, which says what to do next, to this refusal.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns what to do next, if that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause.as_ref() as _)
    }
}

/// Errors of the crates below, which need no further explanation.
macro_rules! passed_on {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for Refusal {
            fn from(error: $error) -> Self {
                Self::because(error.to_string(), error)
            }
        })+
    };
}

passed_on!(
    AllocError,
    ArenaError,
    BudgetTooSmall,
    KvConfigError,
    IoError,
    ConfigError,
    SimulationError,
    WeightError,
    WindowError,
    io::Error,
    std::num::TryFromIntError,
);
