//! The messages for command lines that clap refuses, without those parts of clap's advice that mislead.

use std::path::Path;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::spelling::is_near;
use crate::{habits, report};

/// Replaces misleading advice in clap's error. For an unknown option, clap's explanation of how to pass a text that
/// begins with a hyphen is removed. If other commands of `root` have the option, the advice names these commands. For
/// an unknown subcommand that looks like a model's name, the advice is to put a command before it.
pub fn mended(mut error: Error, root: &Command) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = text_of(&error, ContextKind::InvalidArg);
            let known = text_of(&error, ContextKind::SuggestedArg);
            if !is_near(name_of(&typed), name_of(&known)) {
                error.remove(ContextKind::SuggestedArg);
            }
            let advice = error.remove(ContextKind::Suggested);
            if let Some(place) = commands_with(name_of(&typed), root) {
                error.remove(ContextKind::SuggestedArg);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![place.into()]));
            } else if let Some(ContextValue::StyledStrs(advice)) = advice {
                // Other advice names an option of another command, or explains how to pass a text.
                let is_kept = |line: &StyledStr| {
                    let line = line.to_string();
                    line.split_once("--").is_none_or(|(_, rest)| is_near(name_of(&typed), name_of(rest)))
                        && !line.starts_with("to pass ")
                };
                let kept: Vec<StyledStr> = advice.into_iter().filter(is_kept).collect();
                if !kept.is_empty() {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(kept));
                }
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = text_of(&error, ContextKind::InvalidSubcommand);
            if let Some(ContextValue::Strings(known)) = error.remove(ContextKind::SuggestedSubcommand) {
                let near: Vec<String> = known.into_iter().filter(|known| is_near(&word, known)).collect();
                match near.is_empty() {
                    true => error.remove(ContextKind::Suggested),
                    false => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near)),
                };
            }
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

/// Returns a text that names the commands with the option `typed`, or `None` if there is none.
fn commands_with(typed: &str, root: &Command) -> Option<String> {
    let names: Vec<String> = habits::commands_with(root, typed).map(|name| format!("interbed {name}")).collect();
    (!names.is_empty()).then(|| format!("{typed} is an option of {}, and goes behind the command", names.join(", ")))
}

fn text_of(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Returns the name of an option, without its value and other text around it.
fn name_of(option: &str) -> &str {
    let end = option.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-')).unwrap_or(option.len());
    &option[..end]
}

/// Prints help to stdout or an error to stderr, and ends the program.
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
