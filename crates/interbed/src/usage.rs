//! What the parser of the command line says of input that it refuses, without its advice that would mislead.

use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::report;

/// Mends what the parser advises. It takes every unknown option for text that begins with a hyphen, and says how such
/// text is written; and it knows no models.
pub fn mended(mut error: Error) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let advice = error.remove(ContextKind::Suggested);
            if let Some(ContextValue::StyledStrs(advice)) = advice {
                let kept: Vec<StyledStr> =
                    advice.into_iter().filter(|line| !line.to_string().starts_with("to pass ")).collect();
                if !kept.is_empty() {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(kept));
                }
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => word.clone(),
                _ => return error,
            };
            if names_a_model(&word) {
                error.remove(ContextKind::SuggestedSubcommand);
                let advice = format!("a model goes behind a command: interbed run {word}, or interbed serve {word}");
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
            }
        }
        _ => {}
    }
    error
}

/// Ends the program with help on stdout, or with what is wrong on stderr.
pub fn exit(error: Error) -> ! {
    if report::is_json() && error.use_stderr() {
        report::fail(&error.render().to_string());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

fn names_a_model(word: &str) -> bool {
    word.contains(['/', ':']) || Path::new(word).exists()
}
