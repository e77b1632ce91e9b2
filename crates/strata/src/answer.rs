//! One answer: submitted, streamed to stdout as it comes, and measured.

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use strata_device::{Bytes, peak_resident};
use strata_engine::text::{StopCause, TextOptions, TextStream};
use strata_engine::{InvalidRequest, Request, SamplingParams, SubmitError, TokenId};
use strata_weights::StreamStats;

use crate::interrupt::Interrupts;
use crate::load::Loaded;

/// What was asked for.
pub struct Question {
    /// Prompt tokens.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// How tokens become text.
    pub text: TextOptions,
    /// Text to print before the answer, which continues it.
    pub echo: Option<String>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Answer {
    /// The text, as far as it came.
    pub text: String,
    /// Why it ended; `None` after Ctrl-C.
    pub cause: Option<StopCause>,
    /// The figures.
    pub stats: Stats,
}

/// Figures of one answer.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    /// From submission to the first token.
    first_token: Option<Duration>,
    /// From the first token to the last.
    decoding: Duration,
    budget: Bytes,
    /// What streamed weights took.
    stream: Option<StreamFigures>,
}

/// What streamed weights took while an answer was made.
#[derive(Debug, Clone, Copy)]
struct StreamFigures {
    stats: StreamStats,
    elapsed: Duration,
    /// Bytes a second that the disk gave when it was tried out.
    disk: f64,
}

/// Submits `question`, and writes the answer to `out` as it comes. Ctrl-C cancels the request and keeps what came.
///
/// # Errors
/// The request is refused or fails, or `out` cannot be written.
pub fn answer(loaded: &Loaded, question: Question, interrupts: &Interrupts, out: &mut dyn Write) -> Result<Answer> {
    let Question { prompt, params, text, echo } = question;
    let mut answer = Answer::default();
    answer.stats.prompt_tokens = prompt.len();
    answer.stats.budget = loaded.budget;
    let begin = Instant::now();
    let before = loaded.streamed.as_ref().map(|streaming| streaming.weights.stats());
    let request = Request { prompt, params, cache_salt: None, priority: 0 };
    let events = loaded.engine.handle().submit(request).map_err(by_flag)?;
    if let Some(echo) = &echo {
        // Only now: a request that is refused prints nothing but its error.
        write_shown(out, echo)?;
        out.flush()?;
    }
    let mut stream = TextStream::new(events, loaded.tokenizer.clone(), text);
    let first_space = |id: TokenId, text: &str| {
        // Decoders strip the first space of a text, but this text began earlier.
        echo.is_some() && !text.starts_with(' ') && loaded.tokenizer.token_text(id).starts_with(' ')
    };
    let mut first = None;
    let work = async {
        while let Some(delta) = stream.next().await {
            if let Some(prompt) = &delta.prompt {
                answer.stats.cached_tokens = prompt.cached_tokens;
            }
            if let Some((id, _)) = delta.token {
                first.get_or_insert(id);
                answer.stats.tokens += 1;
                match answer.stats.first_token {
                    None => answer.stats.first_token = Some(begin.elapsed()),
                    Some(first) => answer.stats.decoding = begin.elapsed() - first,
                }
            }
            if !delta.text.is_empty() {
                if answer.text.is_empty() && first.is_some_and(|id| first_space(id, &delta.text)) {
                    answer.text.push(' ');
                    out.write_all(b" ")?;
                }
                answer.text.push_str(&delta.text);
                write_shown(out, &delta.text)?;
                out.flush()?;
            }
            if let Some(finished) = delta.finished {
                answer.cause = Some(finished?);
            }
        }
        Ok(())
    };
    // Dropping the stream, which this does at Ctrl-C, cancels the request.
    if let Some(outcome) = interrupts.stop_at_ctrl_c(work) {
        let outcome: Result<()> = outcome;
        outcome?;
    }
    answer.stats.stream = loaded.streamed.as_ref().zip(before).map(|(streaming, before)| StreamFigures {
        stats: streaming.weights.stats().since(&before),
        elapsed: begin.elapsed(),
        disk: streaming.settings.bytes_per_s,
    });
    Ok(answer)
}

/// The engine names parameters as the API spells them. At the command line they are flags, and `max_tokens` is the
/// only one that has not been checked as a flag before.
fn by_flag(refused: SubmitError) -> SubmitError {
    match refused {
        SubmitError::Invalid(InvalidRequest { param, message }) => {
            SubmitError::Invalid(InvalidRequest { param, message: message.replace("max_tokens", "--max-tokens") })
        }
        other => other,
    }
}

/// Writes text, which on a terminal must not be more than text: control characters could change the terminal's title,
/// colours or clipboard, so they are spelled out. Files and pipes get what the model made.
fn write_shown(out: &mut dyn Write, text: &str) -> std::io::Result<()> {
    if std::io::stdout().is_terminal() {
        out.write_all(without_controls(text).as_bytes())
    } else {
        out.write_all(text.as_bytes())
    }
}

/// Control characters but newline and tab as `\u{1b}`.
fn without_controls(text: &str) -> Cow<'_, str> {
    let is_control = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if !text.contains(is_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown.into()
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prompt  {} tokens, {} of them cached", self.prompt_tokens, self.cached_tokens)?;
        if let Some(first) = self.first_token {
            write!(f, "; first token after {:.3} s", first.as_secs_f64())?;
        }
        write!(f, "\noutput  {} tokens", self.tokens)?;
        if self.tokens > 1 && !self.decoding.is_zero() {
            write!(f, "; {:.1} tokens/s after the first", (self.tokens - 1) as f64 / self.decoding.as_secs_f64())?;
        }
        write!(f, "\nmemory  {} at the peak, of a budget of {}", Bytes(peak_resident()), self.budget)?;
        self.stream.as_ref().map_or(Ok(()), |stream| write!(f, "\n{stream}"))
    }
}

impl fmt::Display for StreamFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamStats { passes, bytes_read, stall, .. } = self.stats;
        let seconds = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let a_pass = Bytes(bytes_read.checked_div(passes).unwrap_or(0));
        write!(f, "stream  {passes} passes of {a_pass} from disk, {:.2} GB/s", bytes_read as f64 / seconds / 1e9)?;
        write!(f, " ({:.0} % of what the disk gave when tried)", bytes_read as f64 / seconds / self.disk * 100.0)?;
        write!(f, "; waited {:.0} % of the time", stall.as_secs_f64() / seconds * 100.0)?;
        let overlap = self.stats.overlap_efficiency();
        overlap.map_or(Ok(()), |overlap| write!(f, ", overlap {:.0} %", overlap * 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_text_only() {
        assert_eq!(without_controls("one\n\ttwo é"), "one\n\ttwo é");
        assert_eq!(without_controls("\x1b]0;title\x07\r\u{9b}31m"), "\\u{1b}]0;title\\u{7}\\u{d}\\u{9b}31m");
    }

    #[test]
    fn refusals_name_flags() {
        let refused =
            |param, message: &str| by_flag(SubmitError::Invalid(InvalidRequest { param, message: message.into() }));
        let message = refused("max_tokens", "max_tokens is 9; lower max_tokens").to_string();
        assert_eq!(message, "--max-tokens is 9; lower --max-tokens");
        let message = refused("prompt", "the prompt has 9 tokens; shorten it or lower max_tokens").to_string();
        assert_eq!(message, "the prompt has 9 tokens; shorten it or lower --max-tokens");
        assert_eq!(by_flag(SubmitError::Stopped), SubmitError::Stopped);
    }

    #[test]
    fn figures_are_those_of_the_answer() {
        let stats = Stats {
            prompt_tokens: 20,
            cached_tokens: 16,
            tokens: 11,
            first_token: Some(Duration::from_millis(250)),
            decoding: Duration::from_secs(2),
            budget: Bytes(6 << 30),
            stream: Some(StreamFigures {
                stats: StreamStats {
                    passes: 2,
                    bytes_read: 4 << 30,
                    stall: Duration::from_secs(1),
                    io: Duration::from_secs(2),
                    ..StreamStats::default()
                },
                elapsed: Duration::from_secs(4),
                disk: f64::from(2u32 << 30),
            }),
        };
        let text = stats.to_string();
        let parts = [
            "20 tokens, 16 of them cached",
            "after 0.250 s",
            "11 tokens; 5.0 tokens/s",
            "of 6.00 GiB",
            "2 passes of 2.00 GiB",
            "(50 % of",
            "waited 25 %",
            "overlap 50 %",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
