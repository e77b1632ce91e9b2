//! Ends a command that fails, with an error message and an exit code.

use std::error::Error;
use std::fmt;
use std::io;

use interbed_device::AllocError;
use interbed_engine::{BudgetTooSmall, InvalidRequest, RequestError, StartError, SubmitError};
use interbed_hub::{HubError, HubProblem};
use interbed_model::chat_template::TemplateError;
use interbed_model::config::{ConfigError, ConfigProblem};
use interbed_model::tokenizer::TokenizerError;
use interbed_plan::Refusal;
use interbed_weights::WeightError;

use crate::printable::printable;

/// The exit code for bad input: wrong usage, files or parameters.
pub const BAD_INPUT: u8 = 2;
/// The exit code for all other failures.
pub const FAILED: u8 = 1;
/// The exit code after Ctrl-C, by the convention of shells: 128 plus the signal's number.
pub const INTERRUPTED: u8 = 130;

/// The error for a command that the user ended with Ctrl-C. No message is printed for it.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl Error for Interrupted {}

/// A failure with advice on what to do next. The advice is printed on a line of its own.
#[derive(Debug)]
pub struct Advised {
    /// The message that says what failed.
    pub message: String,
    /// The advice on what to do next.
    pub hint: String,
    /// The error of the operating system, if there was one.
    pub source: Option<io::Error>,
}

impl Advised {
    /// Returns an error about bad input, with advice.
    pub fn input(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        Self { message: message.into(), hint: hint.into(), source: None }.into()
    }

    /// Returns an error about a failure of the operating system, with advice.
    pub fn system(message: impl Into<String>, hint: impl Into<String>, source: io::Error) -> anyhow::Error {
        Self { message: message.into(), hint: hint.into(), source: Some(source) }.into()
    }
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Advised {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

/// Returns the error message for stderr, safe to print on a terminal. Returns `None` after Ctrl-C or a broken pipe, for
/// which nothing is printed.
pub fn message(error: &anyhow::Error) -> Option<String> {
    if is_quiet(error) {
        return None;
    }
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Many messages include their cause already.
        if !text.contains(&cause) {
            text.push_str(&format!("\n  caused by: {cause}"));
        }
    }
    if let Some(hint) = hint(error) {
        text.push_str(&format!("\nhint: {hint}"));
    }
    Some(printable(&text).into_owned())
}

/// Returns the exit code for `error`.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        return INTERRUPTED;
    }
    if is_quiet(error) {
        // The reader has closed the pipe, which is not a failure of this command.
        return 0;
    }
    if error.chain().any(|cause| cause.is::<AllocError>()) {
        return FAILED;
    }
    // A failed read of a file on the Hub counts as a network problem, too.
    if error.chain().filter_map(hub_problem).any(HubProblem::is_of_the_network) {
        return FAILED;
    }
    if error.chain().any(is_about_input) {
        return BAD_INPUT;
    }
    let failed = |cause: &(dyn Error + 'static)| {
        cause.is::<RequestError>() || cause.is::<StartError>() || cause.is::<SubmitError>() || cause.is::<io::Error>()
    };
    // All other errors refuse arguments with a plain message.
    if error.chain().any(failed) { FAILED } else { BAD_INPUT }
}

fn is_about_input(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<ConfigError>()
        || cause.is::<WeightError>()
        || cause.is::<TokenizerError>()
        || cause.is::<TemplateError>()
        || cause.is::<BudgetTooSmall>()
        || cause.is::<InvalidRequest>()
        || matches!(cause.downcast_ref(), Some(SubmitError::Invalid(_)))
        || matches!(cause.downcast_ref::<Advised>(), Some(Advised { source: None, .. }))
}

/// Returns the problem with the Hub that this error reports, or that it contains as the cause of a failed read.
fn hub_problem<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a HubProblem> {
    let inside = |error: &'a io::Error| error.get_ref()?.downcast_ref::<HubProblem>();
    let of_hub = || cause.downcast_ref::<HubError>().map(|error| &error.problem);
    cause.downcast_ref().or_else(of_hub).or_else(|| cause.downcast_ref().and_then(inside))
}

fn is_quiet(error: &anyhow::Error) -> bool {
    let broken_pipe = |cause: &(dyn Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.is::<Interrupted>() || error.chain().any(broken_pipe)
}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(advised) = cause.downcast_ref::<Advised>() {
            return Some(advised.hint.clone());
        }
        if let Some(problem) = hub_problem(cause) {
            return Some(problem.hint());
        }
        if let Some(hint) = cause.downcast_ref::<Refusal>().and_then(Refusal::hint) {
            return Some(hint.to_owned());
        }
        match &cause.downcast_ref::<ConfigError>()?.problem {
            ConfigProblem::Read(error) if error.kind() == io::ErrorKind::NotFound => Some(
                "give a GGUF file, a Hugging Face directory with config.json, *.safetensors and tokenizer.json, or a \
                 short name such as llama3.2:1b; `interbed plan` lists models and what fits"
                    .into(),
            ),
            ConfigProblem::Read(_) => Some("make the file readable for this user".into()),
            ConfigProblem::UnknownArchitecture { .. } => Some(
                "choose a model of a supported architecture; this one is not damaged, Interbed cannot compute it"
                    .into(),
            ),
            // The messages of these problems already say what to do.
            ConfigProblem::UnwantedTensor { .. } | ConfigProblem::Unsupported { .. } => None,
            _ => Some("correct the file, or fetch the model again".into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_ends_with_2_and_the_rest_with_1() {
        let code = |error: anyhow::Error| exit_code(&error);
        assert_eq!(code(anyhow::anyhow!("--batch counts from 1")), BAD_INPUT);
        assert_eq!(code(Advised::input("no template", "use run")), BAD_INPUT);
        assert_eq!(code(RequestError::Stopped.into()), FAILED);
        assert_eq!(code(SubmitError::Stopped.into()), FAILED);
        let refused = InvalidRequest { param: "prompt", message: "too long".into(), overflow: None };
        assert_eq!(code(SubmitError::Invalid(refused).into()), BAD_INPUT);
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        assert_eq!(code(Advised::system("cannot bind", "--port", io(io::ErrorKind::AddrInUse))), FAILED);
        assert_eq!(code(io(io::ErrorKind::BrokenPipe).into()), 0);
        assert_eq!(code(Interrupted.into()), INTERRUPTED);
    }

    #[test]
    fn a_read_that_failed_on_its_way_to_the_hub_is_told_like_any_other_request() {
        let lost = || HubProblem::Unreachable { address: "http://hub/".into(), message: "no route".into() };
        let (path, source) = ("model.gguf".into(), io::Error::other(lost()));
        let read = interbed_io::IoError::Read { path, offset: 0, wanted: 1, got: 0, source };
        let error = anyhow::Error::from(WeightError::from(read));
        assert_eq!(exit_code(&error), FAILED);
        let text = message(&error).unwrap();
        assert!(text.contains("no route") && text.ends_with(&format!("hint: {}", lost().hint())), "{text}");
    }

    #[test]
    fn causes_and_hint_stand_on_their_own_lines() {
        let error = Advised::system("cannot listen", "choose another --port", io::Error::other("in use"));
        let expect = "error: cannot listen\n  caused by: in use\nhint: choose another --port";
        assert_eq!(message(&error).as_deref(), Some(expect));
        assert_eq!(message(&Interrupted.into()), None);
    }
}
