//! Turns token events into text: incremental decoding, stop strings and usage, for the command line and the server
//! alike.

use std::sync::Arc;
use std::time::Duration;

use interbed_model::tokenizer::{Detokenizer, Tokenizer};

use crate::{Event, EventStream, FinishReason, PositionLogprobs, PromptDone, RequestError, TokenId};

/// Options for turning the tokens of one request into text.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// The strings that end generation as soon as the text contains one of them. Such a string may span several tokens.
    /// If the text contains several of them, the one that ends first counts; if several end at the same place, the
    /// longest counts.
    pub stop: Vec<String>,
    /// Whether the text includes what ended generation: the stop string, or the text of the stop token.
    pub include_stop: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// The number of tokens at the start of the answer that cannot complete a stop string. A stop string that ends
    /// within these tokens is ordinary text.
    pub min_tokens: usize,
    /// The tokens that may end the sequence: the request's `stop_token_ids` and the end-of-sequence tokens. The list
    /// may leave out special tokens and the tokenizer's own end-of-sequence token, because the decoder treats these as
    /// possible ends in any case.
    pub end_tokens: Vec<TokenId>,
}

/// The reason why a text ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// The model generated an end-of-sequence token.
    EndOfSequence,
    /// The model generated one of the request's stop tokens.
    StopToken(TokenId),
    /// The text reached this string, which is one of the request's stop strings.
    StopString(String),
    /// The answer is complete, because the request's constraint, such as a grammar, allows no further token.
    Complete,
    /// The answer reached `max_tokens`, or the sequence reached the maximum context length.
    Length,
}

impl StopCause {
    /// Returns the OpenAI API's `finish_reason` for this cause.
    pub fn openai_name(&self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::EndOfSequence | Self::StopToken(_) | Self::StopString(_) | Self::Complete => "stop",
        }
    }
}

/// What one event adds to the answer. Each field may be empty or `None`. For example, a token whose text may be part of
/// a stop string adds no text yet.
#[derive(Debug, Default)]
pub struct TextDelta {
    /// New text of the answer. The decoder holds text back while it may belong to a stop string or to an incomplete
    /// character.
    pub text: String,
    /// The generated token, with its log-probabilities if the request asked for them; `None` if the event carried no
    /// token.
    pub token: Option<(TokenId, Option<PositionLogprobs>)>,
    /// Information about the prompt; `None` unless the event reports that the prompt has been computed.
    pub prompt: Option<PromptDone>,
    /// The prompt's embedding; `None` unless the event carried an embedding.
    pub embedding: Option<Vec<f32>>,
    /// The outcome of the request: the reason why the text ended, or the error with which the request failed. The
    /// outcome is `None` unless the text ends with this event.
    pub finished: Option<Result<StopCause, RequestError>>,
}

/// Turns the events of one request into text.
#[derive(Debug)]
pub struct TextDecoder {
    options: TextOptions,
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// A token that may turn out to be the end, and then is no part of the text.
    undecided: Option<TokenId>,
    tokens: usize,
    preemptions: u32,
    ended: bool,
}

impl TextDecoder {
    /// Creates a decoder for one request.
    pub fn new(tokenizer: Arc<Tokenizer>, options: TextOptions) -> Self {
        let detokenizer = Detokenizer::new(tokenizer, options.skip_special_tokens);
        let stops = StopStrings::new(options.stop.clone());
        Self { options, detokenizer, stops, undecided: None, tokens: 0, preemptions: 0, ended: false }
    }

    /// Returns the number of tokens generated so far, including the token that ended the sequence, if one did. The
    /// OpenAI API calls this number `completion_tokens`.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of times that the sequence has been preempted so far. The preemptions of a beam search are
    /// counted only when the search ends.
    pub fn preemptions(&self) -> u32 {
        self.preemptions
    }

    /// Takes the next event and returns what it adds to the answer. After the event that ends the text, further events
    /// add nothing.
    pub fn push(&mut self, event: Event) -> TextDelta {
        let mut delta = TextDelta::default();
        if self.ended {
            return delta;
        }
        match event {
            Event::PromptDone(done) => delta.prompt = Some(done),
            Event::Token { id, logprobs } => {
                delta.token = Some((id, logprobs));
                let before = self.undecided.take();
                self.decode(before, &mut delta);
                self.tokens += 1;
                if self.may_end(id) {
                    self.undecided = Some(id);
                } else if !self.ended {
                    self.decode(Some(id), &mut delta);
                }
            }
            Event::Preempted { .. } => self.preemptions += 1,
            Event::Embedding(embedding) => delta.embedding = Some(embedding),
            Event::Finished { reason } => self.finish(reason, &mut delta),
            Event::Failed(error) => {
                self.ended = true;
                delta.finished = Some(Err(error));
            }
        }
        delta
    }

    fn may_end(&self, id: TokenId) -> bool {
        let tokenizer = self.detokenizer.tokenizer();
        tokenizer.is_special(id) || tokenizer.eos_id() == Some(id) || self.options.end_tokens.contains(&id)
    }

    fn decode(&mut self, token: Option<TokenId>, delta: &mut TextDelta) {
        if let Some(token) = token {
            let text = self.detokenizer.push(token);
            self.append(&text, delta);
        }
    }

    /// Adds the part of `text` that is certain, or ends at a stop string.
    fn append(&mut self, text: &str, delta: &mut TextDelta) {
        let armed = self.tokens > self.options.min_tokens;
        if let Some(found) = self.stops.push(text, armed, self.options.include_stop, &mut delta.text) {
            self.ended = true;
            delta.finished = Some(Ok(StopCause::StopString(found)));
        }
    }

    fn finish(&mut self, reason: FinishReason, delta: &mut TextDelta) {
        let ending = self.undecided.take();
        let is_cut = matches!(reason, FinishReason::Length | FinishReason::Complete);
        let part_of_text = is_cut || self.options.include_stop;
        self.decode(ending.filter(|_| part_of_text), delta);
        if !self.ended {
            let text = self.detokenizer.finish();
            self.append(&text, delta);
        }
        if !self.ended {
            delta.text.push_str(&self.stops.finish());
            self.ended = true;
            delta.finished = Some(Ok(match reason {
                FinishReason::EndOfSequence => StopCause::EndOfSequence,
                FinishReason::StopToken(id) => StopCause::StopToken(id),
                FinishReason::Complete => StopCause::Complete,
                FinishReason::Length => StopCause::Length,
            }));
        }
    }
}

/// The stream of the text that one request generates. The engine cancels the request when the stream is dropped, or
/// when the text reaches a stop string.
#[derive(Debug)]
pub struct TextStream {
    events: Option<EventStream>,
    decoder: TextDecoder,
}

impl TextStream {
    /// Creates a stream that reads `events` as text.
    pub fn new(events: EventStream, tokenizer: Arc<Tokenizer>, options: TextOptions) -> Self {
        Self { events: Some(events), decoder: TextDecoder::new(tokenizer, options) }
    }

    /// Returns how long this stream's continuation of the prompt waited in the queue, from the submission of the
    /// request until the engine admitted the continuation. Returns `None` before that, and after the text has ended.
    /// [`EventStream::waited`] explains when a continuation is admitted.
    pub fn waited(&self) -> Option<Duration> {
        self.events.as_ref().and_then(EventStream::waited)
    }

    /// Waits for the next event and returns what it adds to the answer. Returns `None` once the text has ended or
    /// [`end`](Self::end) was called. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<TextDelta> {
        let event = self.events.as_mut()?.next().await;
        self.received(event)
    }

    /// Blocks the thread until the next event comes, and returns what it adds to the answer. This is
    /// [`TextStream::next`] for callers outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<TextDelta> {
        let event = self.events.as_mut()?.blocking_next();
        self.received(event)
    }

    /// Returns the decoder, which counts the tokens and the preemptions so far.
    pub fn decoder(&self) -> &TextDecoder {
        &self.decoder
    }

    /// Cancels the request. Later calls to [`TextStream::next`] return `None`.
    pub fn end(&mut self) {
        self.events = None;
    }

    fn received(&mut self, event: Option<Event>) -> Option<TextDelta> {
        let delta = self.decoder.push(event?);
        if delta.finished.is_some() {
            self.events = None;
        }
        Some(delta)
    }
}

/// Finds stop strings in text that arrives in pieces, and holds back text that may be the beginning of a stop string.
#[derive(Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far, if a stop string begins with it. It is shorter than the longest stop string.
    held: String,
}

impl StopStrings {
    /// Creates a search for `stops`. Empty strings are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece of text. Appends to `output` all text that cannot be part of a stop string, including text
    /// that earlier calls held back. If `text` completes a stop string, returns that string. In this case, `output`
    /// receives only the text before the stop string and, if `include` is true, the stop string itself. If `armed` is
    /// false, a stop string that `text` completes is treated as ordinary text.
    pub fn push(&mut self, text: &str, armed: bool, include: bool, output: &mut String) -> Option<String> {
        if self.stops.is_empty() {
            output.push_str(text);
            return None;
        }
        let seen = self.held.len();
        self.held.push_str(text);
        if let Some((start, stop)) = self.find(seen).filter(|_| armed) {
            let end = if include { start + stop.len() } else { start };
            output.push_str(&self.held[..end]);
            self.held.clear();
            return Some(stop);
        }
        let certain = self.held.len() - self.longest_start();
        output.extend(self.held.drain(..certain));
        None
    }

    /// Returns the text that was held back because it may be the beginning of a stop string. Call this only after the
    /// last piece of text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the stop string that is complete first (of several, the longest), and where it begins. Stop strings that
    /// end within the first `seen` bytes are not found again.
    fn find(&self, seen: usize) -> Option<(usize, String)> {
        let found = self.stops.iter().filter_map(|stop| {
            let mut from = (seen + 1).saturating_sub(stop.len()).min(self.held.len());
            while !self.held.is_char_boundary(from) {
                from += 1;
            }
            Some((from + self.held[from..].find(stop.as_str())?, stop))
        });
        let (start, stop) = found.min_by_key(|&(start, stop)| (start + stop.len(), start))?;
        Some((start, stop.clone()))
    }

    /// Returns the length in bytes of the longest end of the text that begins a stop string without completing it.
    fn longest_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = (self.held.len() + 1).saturating_sub(longest);
        let starts = (first..self.held.len()).filter(|&start| self.held.is_char_boundary(start));
        let mut begins = starts.filter(|&start| {
            let end = &self.held[start..];
            self.stops.iter().any(|stop| stop.len() > end.len() && stop.starts_with(end))
        });
        begins.next().map_or(0, |start| self.held.len() - start)
    }
}

#[cfg(test)]
mod tests;
