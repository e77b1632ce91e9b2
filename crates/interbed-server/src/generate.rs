//! Submits, reads and cancels the sequences of one request together.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use interbed_engine::text::{StopCause, TextDelta, TextOptions, TextStream};
use interbed_engine::{
    Constraint, FoundBelow, Miss, MissReason, PositionLogprobs, PromptDone, Request, RequestError, SubmitError, TokenId,
};
use serde_json::{Value, json};

use crate::answer::{Answer, Form, Piece};
use crate::app::App;
use crate::caller::Caller;
use crate::charge::{SEQUENCE_BYTES, TEXT_FACTOR, bytes_held, bytes_prepared, logprob_bytes};
use crate::error::ApiError;
use crate::memory::Share;
use crate::metrics::{Finished, Metrics};
use crate::pace::QueuePace;
use crate::request_log::{AskedFor, RequestLog};
use crate::sampling::Common;
use crate::tenant::Tenant;

/// The step, in bytes, in which a growing answer is charged. The number [`SEQUENCE_BYTES`] covers the first step.
const CHARGED_AT_ONCE: usize = SEQUENCE_BYTES;

/// A checked request: its prompts and the memory that it holds.
pub(crate) struct Asked {
    pub(crate) prompts: Vec<Vec<TokenId>>,
    /// Describes how answers are split into thinking, text and calls. If the value is `None`, the text is passed on
    /// unchanged.
    pub(crate) form: Option<Form>,
    /// The number of bytes of prompt text that the answer repeats (`echo`).
    pub(crate) echo_bytes: usize,
    pub(crate) caller: Caller,
    /// The number of bytes of other data that the endpoint keeps for the request.
    pub(crate) beside: usize,
    pub(crate) share: Share,
}

/// All sequences of one request. Dropping the value cancels the sequences that have not ended.
pub(crate) struct Sequences {
    streams: Vec<Stream>,
    tenant: Tenant,
    /// A future that completes when the server ends without waiting for the request.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    ready: VecDeque<(usize, Delta)>,
    observed: Observed,
    prompt_tokens: usize,
    /// The number of choices per prompt.
    n: usize,
    /// The number of sequences per prompt.
    candidates: usize,
    /// Whether the answer contains log-probabilities.
    logprobs: bool,
    /// Whether the answer reports, for each prompt, where its cached prefix ended and why.
    cache_report: bool,
    /// Whether the cache report may say how long ago a block was evicted: with several tenants, that would reveal how
    /// many requests others send.
    lookups_told: bool,
    /// The memory share of the sequences, which a streamed response takes over.
    share: Option<Share>,
    /// The memory share of an answer that is not streamed, which the response takes over.
    answer: Option<Share>,
}

/// Destinations of statistics about the sequences.
struct Observed {
    metrics: Arc<Metrics>,
    pace: Arc<QueuePace>,
    log: Arc<RequestLog>,
    started: Instant,
    max_tokens: usize,
}

struct Stream {
    text: TextStream,
    /// Splits the answer into thinking, text and calls. The value is `None` if the text is passed on unchanged.
    answer: Option<Answer>,
    prompt_tokens: usize,
    cached_tokens: usize,
    below: Vec<FoundBelow>,
    miss: Option<Miss>,
    /// Whether all tokens arrive together, as in a beam search, so that the time between tokens means nothing.
    at_once: bool,
    /// Whether this is the first sequence of its prompt. Only the first sequence counts the prompt's time in the queue.
    is_first: bool,
    timing: Timing,
    ended: bool,
}

/// The new output of a sequence.
#[derive(Default)]
pub(crate) struct Delta {
    pub(crate) text: TextDelta,
    /// Pieces of the answer, if it is split into thinking, text and calls.
    pub(crate) pieces: Vec<Piece>,
    /// Whether the text that comes next belongs to the model's thinking.
    pub(crate) is_thinking: bool,
}

/// Times at which a sequence reached its stages.
#[derive(Default)]
struct Timing {
    /// The time that the sequence waited in the queue.
    queued: Option<Duration>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    ended: Option<Instant>,
}

/// The output of a sequence that has ended.
#[derive(Default)]
pub(crate) struct Output {
    /// The text, which is empty if the answer is split into `pieces`.
    pub(crate) text: String,
    /// Pieces of the answer, if it is split.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) prompt: PromptDone,
    /// The tokens with their log-probabilities, if the request asks for those.
    pub(crate) tokens: Vec<(TokenId, PositionLogprobs)>,
    pub(crate) cause: Option<StopCause>,
    pub(crate) embedding: Vec<f32>,
    /// The sum of the log-probabilities of all tokens, where they are known.
    logprob: f64,
    /// The number of generated tokens.
    num_tokens: usize,
}

/// Submits the sequences of each prompt, `candidates` for each. Sequence `i` belongs to prompt `i / candidates`, and
/// its seed is the request's plus `i % candidates`.
pub(crate) async fn submit(app: &Arc<App>, asked: Asked, common: &Common) -> Result<Sequences, ApiError> {
    let Asked { prompts, form, echo_bytes, caller: Caller { tenant, log }, beside, share: mut parsed } = asked;
    check_amount(app, &prompts, common.candidates)?;
    let prompt_tokens: usize = prompts.iter().map(Vec::len).sum();
    // Memory that only parsing needed is released, so that other requests need not wait for it.
    let ids = prompt_tokens.saturating_mul(size_of::<TokenId>());
    let kept = [ids, echo_bytes, beside, form.as_ref().map_or(0, Form::bytes), bytes_prepared(common)];
    parsed.shrink(kept.into_iter().fold(0, usize::saturating_add));
    let constraint = match &common.constraint {
        Some(bond) => Some(app.compile(tenant, bond).await?),
        None => None,
    };
    let needed = bytes_held(prompts.len(), prompt_tokens, echo_bytes, common);
    let share = app.memory.held.take(tenant, needed).await?;
    let answer = app.memory.answers.take(tenant, logprob_bytes(prompts.len(), common)).await?;
    drop(parsed);
    note(app, &log, prompts.len(), prompt_tokens, common);
    let template = template(app, tenant, common, constraint);
    // If the answer is split into pieces, the splitter looks for stop strings, because it knows which part is text.
    let options = match &form {
        Some(_) => TextOptions { stop: Vec::new(), ..common.text.clone() },
        None => common.text.clone(),
    };
    let mut streams = Vec::with_capacity(prompts.len() * common.candidates);
    // The clock starts before the engine may begin, so that the first token comes later than this time plus the time
    // in the queue.
    let started = Instant::now();
    for prompt in prompts {
        let prompt_tokens = prompt.len();
        let request = Request { prompt, ..template.clone() };
        // An error drops the sequences that were submitted before, and dropping cancels them.
        let submitted = app.engine.submit_many(request, common.candidates);
        for events in submitted.map_err(|error| refusal(error, &app.pace))? {
            let text = TextStream::new(events, app.tokenizer.clone(), options.clone());
            streams.push(Stream {
                text,
                answer: form.as_ref().map(|form| form.answer(&common.text)),
                prompt_tokens,
                cached_tokens: 0,
                below: Vec::new(),
                miss: None,
                at_once: common.beam.is_some(),
                is_first: streams.len() % common.candidates.max(1) == 0,
                timing: Timing::default(),
                ended: false,
            });
        }
    }
    let (metrics, pace) = (app.metrics.clone(), app.pace.clone());
    log.facts().submitted.get_or_insert(started);
    let mut is_cut = app.is_cut.clone();
    let cut = Box::pin(async move {
        // An error means that the server has ended, which has the same effect.
        let _ = is_cut.wait_for(|&cut| cut).await;
    });
    Ok(Sequences {
        streams,
        tenant,
        cut,
        ready: VecDeque::new(),
        observed: Observed { metrics, pace, log, started, max_tokens: common.params.max_tokens },
        prompt_tokens,
        n: common.n,
        candidates: common.candidates,
        logprobs: common.params.logprobs.is_some(),
        cache_report: common.cache_report,
        lookups_told: app.config.api_keys.len() < 2,
        share: Some(share),
        answer: Some(answer),
    })
}

/// Returns the maximum number of sequences of a request.
pub(crate) fn sequences_max(app: &App) -> usize {
    app.config.sequences_max.min(app.engine.limits().max_waiting.max(1))
}

fn check_amount(app: &App, prompts: &[Vec<TokenId>], candidates: usize) -> Result<(), ApiError> {
    let limit = sequences_max(app);
    let sequences = prompts.len().saturating_mul(candidates);
    if sequences > limit {
        let message = format!(
            "{} prompts times {candidates} answers (n, or best_of) are {sequences} sequences, but at most {limit} are \
             allowed",
            prompts.len()
        );
        return Err(ApiError::invalid("prompt", message));
    }
    Ok(())
}

/// Returns the request to the engine, without its prompt.
fn template(app: &App, tenant: Tenant, common: &Common, constraint: Option<Constraint>) -> Request {
    let mut params = common.params.clone();
    if common.candidates > common.n {
        // The best candidates are chosen by log-probabilities, so the engine must compute them.
        params.logprobs = params.logprobs.or(Some(0));
    }
    Request {
        prompt: Vec::new(),
        params,
        cache_salt: tenant.cache_salt(common.cache_salt.clone()),
        priority: common.priority,
        tenant: tenant.id(),
        explain_miss: common.cache_report,
        beam: common.beam,
        embed: common.embed,
        // Only streams may be slowed down by their clients; other answers are read as they come.
        unread: common.stream.then(|| app.memory.unread.clone()),
        constraint,
    }
}

impl Sequences {
    /// Waits for the next delta, and returns it with the index of its sequence, or `None` when all sequences have
    /// ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Delta)> {
        if self.ready.is_empty() {
            poll_fn(|context| {
                let mut open = false;
                for (index, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| !stream.ended) {
                    open = true;
                    // Dropping the future loses no output, so each poll may create a new one.
                    let next = pin!(stream.text.next()).poll(context);
                    if let Poll::Ready(Some(delta)) = next {
                        let delta = stream.read(delta);
                        stream.received(&delta.text, &self.observed);
                        self.ready.push_back((index, delta));
                    }
                }
                if !open || !self.ready.is_empty() {
                    return Poll::Ready(());
                }
                // The first open sequence reports that the server ends; dropping the struct cancels the others.
                let first = self.streams.iter_mut().enumerate().find(|(_, stream)| !stream.ended);
                match first {
                    Some((index, stream)) if self.cut.as_mut().poll(context).is_ready() => {
                        let finished = Some(Err(RequestError::Stopped));
                        let text = TextDelta { finished, ..TextDelta::default() };
                        let delta = Delta { text, ..Delta::default() };
                        stream.received(&delta.text, &self.observed);
                        self.ready.push_back((index, delta));
                        Poll::Ready(())
                    }
                    _ => Poll::Pending,
                }
            })
            .await;
        }
        self.ready.pop_front()
    }

    /// Returns the index of the first sequence that has not ended, or 0 if all have ended.
    pub(crate) fn first_open(&self) -> usize {
        self.streams.iter().position(|stream| !stream.ended).unwrap_or(0)
    }

    /// Hands over the memory share of the sequences.
    pub(crate) fn take_share(&mut self) -> Option<Share> {
        self.share.take()
    }

    /// Takes over all memory: that of the sequences, and that of the answer that [`Sequences::collect`] gathered.
    pub(crate) fn take_shares(&mut self) -> Vec<Share> {
        self.share.take().into_iter().chain(self.answer.take()).collect()
    }

    /// Waits until all sequences have ended. Returns the `n` best outputs of each prompt, or all outputs in order if
    /// there are no more than `n`.
    pub(crate) async fn collect(&mut self) -> Result<Vec<Output>, ApiError> {
        self.collect_with(|_| {}).await
    }

    /// Collects like [`Sequences::collect`], and passes each delta to `seen`.
    pub(crate) async fn collect_with(&mut self, mut seen: impl FnMut(&Delta)) -> Result<Vec<Output>, ApiError> {
        let mut uncharged = 0;
        let mut outputs: Vec<Output> = Vec::new();
        outputs.resize_with(self.streams.len(), Output::default);
        while let Some((index, delta)) = self.next().await {
            seen(&delta);
            let Delta { text: mut delta, pieces, .. } = delta;
            let Some(output) = outputs.get_mut(index) else { continue };
            if let Some((_, position)) = &mut delta.token {
                output.num_tokens += 1;
                output.logprob += position.as_ref().map_or(0.0, |position| f64::from(position.chosen.logprob));
                // The client did not ask for log-probabilities; they are only needed to choose the best candidates.
                position.take_if(|_| !self.logprobs);
            }
            // Memory for log-probabilities was charged when the request was submitted.
            uncharged += delta.text.len() * TEXT_FACTOR;
            if uncharged > CHARGED_AT_ONCE {
                if let Some(answer) = &mut self.answer {
                    answer.grow(uncharged).await?;
                }
                uncharged = 0;
            }
            match self.streams.get(index).is_some_and(|stream| stream.answer.is_some()) {
                true => pieces.into_iter().for_each(|piece| piece.add_to(&mut output.pieces)),
                false => output.text.push_str(&delta.text),
            }
            if let Some(embedding) = delta.embedding {
                output.embedding = embedding;
            }
            if let Some(prompt) = delta.prompt {
                output.prompt = prompt;
            }
            if let Some((id, Some(logprobs))) = delta.token {
                output.tokens.push((id, logprobs));
            }
            if let Some(cause) = delta.finished.transpose()? {
                output.cause = Some(cause);
            }
        }
        if self.candidates == self.n {
            return Ok(outputs);
        }
        let mut choices = Vec::with_capacity(outputs.len() / self.candidates * self.n);
        let mut outputs = outputs.into_iter();
        while outputs.len() > 0 {
            let mut candidates: Vec<_> = outputs.by_ref().take(self.candidates).collect();
            // The sort is stable, so candidates with equal scores keep their order.
            candidates.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            choices.extend(candidates.into_iter().take(self.n));
        }
        Ok(choices)
    }

    /// Returns the tenant that sent the request.
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Returns the number of tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the number of prompt tokens that were found in the prefix cache, as far as is known yet.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.streams.iter().step_by(self.candidates.max(1)).map(|stream| stream.cached_tokens).sum()
    }

    /// Returns the number of tokens generated so far, including those of candidates that are not chosen.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.streams.iter().map(|stream| stream.text.decoder().tokens()).sum()
    }

    /// Returns the time from the end of queueing to the first sequence's first token, and the time from that token to
    /// the sequence's end.
    pub(crate) fn durations(&self) -> (Duration, Duration) {
        let Some(Timing { queued, first_token, ended, .. }) = self.streams.first().map(|stream| &stream.timing) else {
            return <_>::default();
        };
        let begun = self.observed.started + queued.unwrap_or_default();
        let end = ended.unwrap_or_else(Instant::now);
        let first = first_token.unwrap_or(end);
        (first.saturating_duration_since(begun), end.saturating_duration_since(first))
    }

    /// Returns the `usage` so far. A prompt counts once, whatever `n` is, and generated tokens of all candidates count.
    pub(crate) fn usage(&self) -> Value {
        let (completion, cached) = (self.completion_tokens(), self.cached_tokens());
        let prompts = || self.streams.iter().step_by(self.candidates.max(1));
        let mut usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        });
        // The fields under `interbed` are added only if they have something to report, because OpenAI's API has no
        // such fields. The sequences of a beam search all report that one search, so only the first of them counts.
        let told =
            self.streams.iter().enumerate().filter(|(index, stream)| !stream.at_once || index % self.candidates == 0);
        let preemptions: u32 = told.map(|(_, stream)| stream.text.decoder().preemptions()).sum();
        if preemptions > 0 {
            usage["interbed"]["preemptions"] = preemptions.into();
        }
        add_below(&mut usage, &prompts().flat_map(|stream| &stream.below).copied().collect::<Vec<_>>());
        if self.cache_report {
            let entry = |stream: &Stream| {
                stream.miss.map_or(Value::Null, |miss| cache_miss(miss, &stream.below, self.lookups_told))
            };
            let misses: Vec<_> = prompts().map(entry).collect();
            usage["interbed"]["cache_misses"] = misses.into();
        }
        usage
    }
}

/// Adds to `usage` what tiers below memory had of the prompts, and what they have brought.
fn add_below(usage: &mut Value, below: &[FoundBelow]) {
    for tier in below.iter().map(|found| found.tier) {
        let of_tier = || below.iter().filter(|found| found.tier == tier);
        let sum = |of: fn(&FoundBelow) -> usize| of_tier().map(of).sum::<usize>();
        let (tokens, loaded) = (sum(|found| found.tokens), sum(|found| found.loaded));
        if tokens > 0 {
            usage["interbed"][tier]["found_tokens"] = tokens.into();
        }
        if tokens + loaded > 0 {
            usage["interbed"][tier]["loaded_tokens"] = loaded.into();
            let seconds = of_tier().map(|found| found.seconds).sum::<f64>();
            usage["interbed"][tier]["read_ms"] = (seconds * 1e3).round().into();
        }
    }
}

/// Describes where a prompt's cached prefix ended and why, and how much of the rest a tier below memory had but was not
/// loaded. The number of look-ups since an eviction is included only if `lookups_told`.
fn cache_miss(miss: Miss, below: &[FoundBelow], lookups_told: bool) -> Value {
    let (reason, lookups_ago) = match miss.reason.for_client() {
        MissReason::NeverSeen | MissReason::OtherSalt => ("never_seen", None),
        MissReason::Evicted { lookups_ago, .. } => ("evicted", Some(lookups_ago)),
        MissReason::CacheReset { lookups_ago } => ("cache_reset", Some(lookups_ago)),
        MissReason::PartialBlock => ("partial_block", None),
        MissReason::NoState => ("no_state", None),
        MissReason::NoWindow => ("no_window", None),
        MissReason::NotCacheable => ("not_cacheable", None),
    };
    let mut entry = json!({"matched_tokens": miss.matched_tokens, "reason": reason});
    if let Some(lookups_ago) = lookups_ago.filter(|_| lookups_told) {
        entry["lookups_ago"] = json!(lookups_ago);
    }
    for &FoundBelow { tier, tokens, loaded, computed, .. } in below.iter().filter(|found| found.tokens > found.loaded) {
        // The first tokens are computed while the rest is read, so both reasons may apply.
        let reason = if tokens > loaded + computed { "could_not_be_read" } else { "computing_is_faster" };
        entry[format!("on_{tier}")] = json!({"tokens": tokens, "not_loaded_tokens": tokens - loaded, "reason": reason});
    }
    entry
}

impl Output {
    /// Returns the score by which `best_of` chooses: the mean log-probability of the tokens. An empty answer has the
    /// worst score.
    fn mean_logprob(&self) -> f64 {
        if self.num_tokens == 0 { f64::NEG_INFINITY } else { self.logprob / self.num_tokens as f64 }
    }
}

impl Stream {
    /// Passes new text to the splitter of the answer, if there is one. A stop string in the text ends the sequence.
    fn read(&mut self, mut text: TextDelta) -> Delta {
        let Some(answer) = &mut self.answer else { return Delta { text, ..Delta::default() } };
        let (pieces, stop) = answer.push(&text.text, self.text.decoder().tokens(), text.finished.is_some());
        if let Some(stop) = stop {
            text.finished = Some(Ok(StopCause::StopString(stop)));
            self.text.end();
        }
        Delta { text, pieces, is_thinking: answer.is_thinking() }
    }

    fn received(&mut self, delta: &TextDelta, observed: &Observed) {
        let Observed { metrics, pace, log, started, .. } = observed;
        let now = Instant::now();
        if let Some(prompt) = &delta.prompt {
            (self.cached_tokens, self.below, self.miss) = (prompt.cached_tokens, prompt.below.clone(), prompt.miss);
        }
        if let Some(waited) = self.text.waited().filter(|_| self.timing.queued.is_none() && self.is_first) {
            self.timing.queued = Some(waited);
            metrics.request_queue.observe(waited.as_secs_f64());
            pace.waited(waited);
            let mut facts = log.facts();
            facts.queued = facts.queued.max(Some(waited));
        }
        if let Some(prompt) = delta.prompt.as_ref().filter(|_| self.is_first) {
            log.facts().cached_tokens += prompt.cached_tokens;
        }
        if delta.token.is_some() {
            match self.timing.last_token.replace(now) {
                None => {
                    self.timing.first_token = Some(now);
                    metrics.time_to_first_token.observe((now - *started).as_secs_f64());
                    log.facts().first_token.get_or_insert(now);
                }
                Some(_) if self.at_once => {}
                Some(before) => metrics.inter_token_latency.observe((now - before).as_secs_f64()),
            }
        }
        if let Some(finished) = &delta.finished {
            self.end(finished.as_ref().map_or("error", StopCause::openai_name), now, observed);
        }
    }

    /// Records that the sequence has ended for `reason`.
    fn end(&mut self, reason: &'static str, now: Instant, observed: &Observed) {
        self.ended = true;
        self.timing.ended = Some(now);
        let Timing { queued, first_token, last_token, .. } = self.timing;
        let tokens = self.text.decoder().tokens();
        observed.metrics.finished(Finished {
            reason,
            prompt_tokens: self.prompt_tokens,
            generation_tokens: tokens,
            max_tokens: observed.max_tokens,
            elapsed: now - observed.started,
            queued,
            to_first_token: first_token.map(|first| first - observed.started),
            decoding: first_token.zip(last_token).map(|(first, last)| last - first),
        });
        let mut facts = observed.log.facts();
        facts.completion_tokens += tokens;
        facts.last_token = facts.last_token.max(last_token);
        facts.finished(reason);
    }
}

impl Drop for Sequences {
    fn drop(&mut self) {
        let now = Instant::now();
        for stream in self.streams.iter_mut().filter(|stream| !stream.ended) {
            stream.end("abort", now, &self.observed);
        }
    }
}

/// Records in the request's log what the request asks for.
fn note(app: &App, log: &RequestLog, prompts: usize, prompt_tokens: usize, common: &Common) {
    app.metrics.params_n.observe(common.n as f64);
    let mut facts = log.facts();
    facts.prompt_tokens += prompt_tokens;
    let before = facts.asked.as_ref().map_or(0, |asked| asked.sequences);
    facts.asked = Some(AskedFor {
        model: app.model_name().to_owned(),
        sequences: before + prompts * common.candidates,
        n: common.n,
        max_tokens: common.params.max_tokens,
        temperature: common.params.temperature,
        top_p: common.params.top_p,
        stream: common.stream,
    });
}

/// Converts the engine's refusal of a request to an error that says when to retry.
fn refusal(error: SubmitError, pace: &QueuePace) -> ApiError {
    match error {
        SubmitError::Overloaded { .. } => ApiError::queue_full(error.to_string(), pace.retry_after_s()),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_tells_what_tiers_had_and_have_brought() {
        let check = |below: &[FoundBelow], expected: &str| {
            let mut usage = json!({});
            add_below(&mut usage, below);
            assert_eq!(usage.to_string(), expected);
        };
        let found = |tier, tokens, loaded, seconds| FoundBelow { tier, tokens, loaded, computed: 0, seconds };
        check(&[], "{}");
        check(&[found("disk", 0, 0, 0.0), found("remote", 0, 0, 0.3)], "{}");
        // Of two prompts.
        check(
            &[found("disk", 64, 48, 0.0112), found("remote", 0, 16, 0.004), found("disk", 32, 0, 0.001)],
            r#"{"interbed":{"disk":{"found_tokens":96,"loaded_tokens":48,"read_ms":12.0},"remote":{"loaded_tokens":16,"read_ms":4.0}}}"#,
        );
        check(
            &[found("disk", 8, 0, 0.0)],
            r#"{"interbed":{"disk":{"found_tokens":8,"loaded_tokens":0,"read_ms":0.0}}}"#,
        );
    }

    #[test]
    fn what_was_on_disk_and_not_loaded_is_told_with_the_reason() {
        let told = |tokens, loaded, computed| {
            let below = FoundBelow { tier: "disk", tokens, loaded, computed, seconds: 0.1 };
            cache_miss(Miss { matched_tokens: 0, reason: MissReason::NeverSeen }, &[below], true)["on_disk"].clone()
        };
        let of = |not_loaded, reason| json!({"tokens": 64, "not_loaded_tokens": not_loaded, "reason": reason});
        assert_eq!((told(0, 0, 0), told(64, 64, 0)), (Value::Null, Value::Null));
        assert_eq!((told(64, 0, 64), told(64, 48, 16)), (of(64, "computing_is_faster"), of(16, "computing_is_faster")));
        assert_eq!((told(64, 16, 0), told(64, 16, 32)), (of(48, "could_not_be_read"), of(48, "could_not_be_read")));
    }

    #[test]
    fn a_client_learns_nothing_of_others() {
        let check = |reason: MissReason, alone: Value, among_others: Value| {
            let miss = Miss { matched_tokens: 32, reason };
            assert_eq!((cache_miss(miss, &[], true), cache_miss(miss, &[], false)), (alone, among_others));
        };
        let told = |reason: &str| json!({"matched_tokens": 32, "reason": reason});
        let when = |reason: &str, ago: u32| json!({"matched_tokens": 32, "reason": reason, "lookups_ago": ago});
        let evicted = MissReason::Evicted { by: None, lookups_ago: 4 };
        check(evicted, when("evicted", 4), told("evicted"));
        check(MissReason::CacheReset { lookups_ago: 0 }, when("cache_reset", 0), told("cache_reset"));
        check(MissReason::OtherSalt, told("never_seen"), told("never_seen"));
        check(MissReason::NeverSeen, told("never_seen"), told("never_seen"));
        check(MissReason::PartialBlock, told("partial_block"), told("partial_block"));
        check(MissReason::NoState, told("no_state"), told("no_state"));
        check(MissReason::NoWindow, told("no_window"), told("no_window"));
        check(MissReason::NotCacheable, told("not_cacheable"), told("not_cacheable"));
    }
}
