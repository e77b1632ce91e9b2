//! Reads a prompt, and turns it into tokens.

use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use interbed_device::Bytes;
use interbed_engine::TokenId;
use interbed_model::tokenizer::Tokenizer;

use crate::failure::Advised;
use crate::quiet_panics::quietly;

/// The maximum size of a prompt, in bytes. The context usually allows less, but is only known once the model is loaded.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

/// The factor by which a tokenizer's normalizer may shorten a text by composing characters. Larger factors hardly ever
/// occur.
const NORMALIZED_SHRINK: usize = 4;

/// The prompt.
#[derive(Debug, Clone, Args)]
pub struct PromptOptions {
    /// The prompt; `-` reads it from stdin
    #[arg(long, short, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,

    /// Read the prompt from this file; `-` is stdin
    #[arg(long, short = 'f', value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
}

impl PromptOptions {
    /// Returns whether `--prompt` or `--prompt-file` is given.
    pub fn is_given(&self) -> bool {
        self.prompt.is_some() || self.prompt_file.is_some()
    }

    /// Returns the prompt's text. Without options, the prompt is read from stdin, unless stdin is a terminal.
    ///
    /// # Errors
    /// Fails if there is no prompt, or if the prompt cannot be read, is too long, or is not UTF-8.
    pub fn read(&self) -> Result<String> {
        match (&self.prompt, &self.prompt_file) {
            (Some(text), _) if text != "-" => Ok(text.clone()),
            (None, Some(path)) if path.as_os_str() != "-" => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(|error| {
                    Advised::input(format!("cannot read {name}: {error}"), "give a readable file with --prompt-file")
                })?;
                read_text(file, &name)
            }
            (None, None) if stdin().is_terminal() => Err(Advised::input(
                "there is no prompt",
                "give one with --prompt TEXT or --prompt-file FILE; a chat takes no --raw, --stats and the like, and \
                 needs a terminal for its answers, too",
            )),
            _ => match read_text(stdin().lock(), "stdin")? {
                text if text.is_empty() => {
                    Err(Advised::input("stdin holds no prompt", "give one with --prompt TEXT or --prompt-file FILE"))
                }
                text => Ok(text),
            },
        }
    }
}

/// Joins the words of the command line into a prompt. If stdin is not a terminal, its text follows after an empty line.
///
/// # Errors
/// Fails if the text from stdin cannot be read, is too long, or is not UTF-8.
pub fn of_words(words: &[String]) -> Result<String> {
    let text = words.join(" ");
    if stdin().is_terminal() {
        return Ok(text);
    }
    let piped = read_text(stdin().lock(), "stdin")?;
    Ok(if piped.trim().is_empty() { text } else { format!("{text}\n\n{piped}") })
}

/// The limits that a prompt must fit into.
#[derive(Debug, Clone, Copy)]
pub struct PromptLimits {
    /// The context length in tokens.
    pub context: usize,
    /// The maximum amount of memory for tokenizing the prompt, in bytes.
    pub memory: usize,
}

/// Returns the token ids of `text`. With `add_special`, the tokenizer adds its special tokens. A text that cannot fit
/// into the context, or that would need too much memory, is refused before it is tokenized.
///
/// # Errors
/// Fails if the text exceeds a limit in `room`, or if the tokenizer cannot represent it.
pub fn encode(tokenizer: &Tokenizer, text: &str, add_special: bool, room: PromptLimits) -> Result<Vec<TokenId>> {
    let PromptLimits { context, memory } = room;
    let most = tokenizer.longest_entry().saturating_mul(NORMALIZED_SHRINK).saturating_mul(context.max(1));
    if text.len() > most {
        bail!(
            "the prompt has {} bytes, which is more than the context of {context} tokens can hold; shorten it",
            text.len()
        );
    }
    let needed = tokenizer.scratch_bytes(text);
    if needed > memory {
        bail!(
            "tokenizing the prompt of {} bytes would take {}, but the budget leaves {} for it; shorten it, break its \
             lines, or give more --memory",
            text.len(),
            Bytes(needed as u64),
            Bytes(memory as u64)
        );
    }
    Ok(quietly(|| tokenizer.encode(text, add_special))?)
}

fn read_text(from: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        bail!("the prompt in {name} has more than {PROMPT_BYTES_MAX} bytes, which no context holds; shorten it");
    }
    String::from_utf8(bytes).map_err(|error| {
        Advised::input(
            format!(
                "the prompt in {name} is no UTF-8: its byte {} begins no character",
                error.utf8_error().valid_up_to()
            ),
            "convert it to UTF-8 first, for instance with iconv",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_whole_and_must_be_utf8() {
        assert_eq!(read_text(&b"one\ntwo\n"[..], "stdin").unwrap(), "one\ntwo\n");
        let refused = read_text(&b"abc\xff"[..], "stdin").unwrap_err().to_string();
        assert!(refused.contains("stdin") && refused.contains("byte 3"), "{refused}");
    }

    #[test]
    fn endless_input_is_refused() {
        let refused = read_text(std::io::repeat(b'a'), "/dev/zero").unwrap_err().to_string();
        assert!(refused.contains("/dev/zero has more than"), "{refused}");
    }
}
