//! Submits one request, shows its answer while it is generated, and measures it.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Result;
use interbed_device::{Bytes, peak_resident};
use interbed_engine::text::{StopCause, TextOptions, TextStream};
use interbed_engine::{InvalidRequest, Request, SamplingParams, SubmitError, TokenId};
use interbed_weights::StreamStats;

use crate::interrupt::Interrupts;
use crate::load::Loaded;

/// A prompt, with the parameters of its answer.
pub struct Question {
    /// The tokens of the prompt.
    pub prompt: Vec<TokenId>,
    /// The sampling parameters.
    pub params: SamplingParams,
    /// The options for turning tokens into text, with the stop strings.
    pub text: TextOptions,
    /// A text that is printed before the answer, and that the answer continues.
    pub echo: Option<String>,
}

/// A generated answer, with statistics about its generation.
#[derive(Debug, Default)]
pub struct Answer {
    /// The text that was generated, possibly cut off by Ctrl-C.
    pub text: String,
    /// The reason why the answer ended, or `None` after Ctrl-C.
    pub cause: Option<StopCause>,
    /// Statistics about the generation.
    pub stats: Stats,
}

/// Statistics about the generation of one answer.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    /// The time from submission to the first token.
    first_token: Option<Duration>,
    /// The time from the first token to the last.
    decoding: Duration,
    budget: Bytes,
    /// The statistics of streaming during the answer, or `None` if no weights are streamed.
    stream: Option<StreamStats>,
}

/// Submits `question`, and passes the answer to `show` while it is generated. Ctrl-C cancels the request and keeps the
/// text so far.
///
/// # Errors
/// Fails if the request is refused or fails, or `show` fails.
pub fn answer(
    loaded: &Loaded,
    question: Question,
    interrupts: &Interrupts,
    show: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let Question { prompt, params, text, echo } = question;
    let mut answer = Answer::default();
    answer.stats.prompt_tokens = prompt.len();
    answer.stats.budget = loaded.plan.budget.total();
    let begin = Instant::now();
    let before = loaded.streamed.as_ref().map(|streaming| streaming.monitor.stats());
    let request = Request { prompt, params, ..Request::default() };
    let events = loaded.engine.handle().submit(request).map_err(by_flag)?;
    let mut stream = TextStream::new(events, loaded.tokenizer.clone(), text);
    let first_space = |id: TokenId, text: &str| {
        // Decoders strip the space at the start of a text, but this text continues another one.
        echo.is_some() && !text.starts_with(' ') && loaded.tokenizer.token_text(id).starts_with(' ')
    };
    let mut first = None;
    let work = async {
        if let Some(echo) = &echo {
            // The echo is printed only after the request was accepted: a refused request prints nothing but its error.
            // Ctrl-C ends the line that was printed.
            show(echo)?;
        }
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
                    show(" ")?;
                }
                answer.text.push_str(&delta.text);
                show(&delta.text)?;
            }
            if let Some(finished) = delta.finished {
                answer.cause = Some(finished?);
            }
        }
        Ok(())
    };
    // At Ctrl-C, this drops the stream, and dropping it cancels the request.
    if let Some(outcome) = interrupts.stop_at_ctrl_c(work) {
        let outcome: Result<()> = outcome;
        outcome?;
    }
    let after = loaded.streamed.as_ref().map(|streaming| streaming.monitor.stats());
    answer.stats.stream = after.zip(before).map(|(after, before)| after.since(&before));
    Ok(answer)
}

/// Replaces the parameter `max_tokens` by its flag in a message of the engine, which names parameters as the API spells
/// them. All other parameters have been checked as flags before.
fn by_flag(refused: SubmitError) -> SubmitError {
    match refused {
        SubmitError::Invalid(refused) => {
            let message = refused.message.replace("max_tokens", "--max-tokens");
            SubmitError::Invalid(InvalidRequest { message, ..refused })
        }
        other => other,
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prompt  {} tokens, {} of them cached", self.prompt_tokens, self.cached_tokens)?;
        if let Some(first) = self.first_token {
            write!(f, "; first token after {:.3} s", first.as_secs_f64())?;
        }
        write!(f, "\noutput  {} tokens", self.tokens)?;
        if self.tokens > 1 && !self.decoding.is_zero() {
            let rate = (self.tokens - 1) as f64 / self.decoding.as_secs_f64();
            // With streamed weights, a token may take seconds.
            let digits = if rate < 1.0 { 3 } else { 1 };
            write!(f, "; {rate:.digits$} tokens/s after the first")?;
        }
        write!(f, "\nmemory  {} at the peak, of a budget of {}", Bytes(peak_resident()), self.budget)?;
        let Some(stream) = &self.stream else { return Ok(()) };
        let each = |bytes: u64, count: u64| Bytes(bytes.checked_div(count).unwrap_or(0));
        let (a_pass, a_token) = (each(stream.bytes_read, stream.passes), each(stream.bytes_read, self.tokens as u64));
        write!(f, "\nstream  {} passes of {a_pass} from disk, {a_token} a token", stream.passes)?;
        if stream.bytes_copied > 0 {
            write!(f, "; {} a pass copied to the GPU", each(stream.bytes_copied, stream.passes))?;
        }
        if stream.bytes_on_host > 0 {
            write!(f, "; {} a pass computed with in host memory", each(stream.bytes_on_host, stream.passes))?;
        }
        for (name, share) in [
            ("waited", stream.stall_share()),
            ("of the disk's bound", stream.share_of_disk_bound()),
            ("overlap", stream.overlap_efficiency()),
        ] {
            if let Some(share) = share {
                write!(f, "; {name} {:.0} %", share * 100.0)?;
            }
        }
        if let Some(hits) = stream.expert_hits() {
            let (wanted, read) = (each(stream.experts_wanted, stream.passes), each(stream.experts_read, stream.passes));
            write!(f, "\nexperts {} a pass, {} of them read", wanted.0, read.0)?;
            let bytes = each(stream.expert_bytes_read, stream.passes);
            write!(f, " ({bytes}), {:.1} % were in memory", hits * 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_flags() {
        let refused = |param, message: &str| {
            by_flag(SubmitError::Invalid(InvalidRequest { param, message: message.into(), overflow: None }))
        };
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
            stream: Some(StreamStats {
                passes: 2,
                bytes_read: 22 << 30,
                stall: Duration::from_secs(1),
                io: Duration::from_secs(2),
                compute: Duration::from_secs(3),
                disk_bytes_per_s: f64::from(11u32 << 28),
                ..StreamStats::default()
            }),
        };
        let text = stats.to_string();
        let parts = [
            "20 tokens, 16 of them cached",
            "after 0.250 s",
            "11 tokens; 5.0 tokens/s",
            "of 6.00 GiB",
            "2 passes of 11.0 GiB from disk, 2.00 GiB a token",
            "waited 25 %",
            "of the disk's bound 200 %",
            "overlap 50 %",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
