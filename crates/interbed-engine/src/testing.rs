//! An engine without a model, for tests of code that is built on the engine. It answers each request by a script, one
//! token per step, on a thread of its own, and tests can inspect it. It is behind the feature `testing`, which no
//! program enables.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use interbed_model::tokenizer::Tokenizer;

use crate::handle::{Client, EngineShared, Submission};
use crate::live::Board;
use crate::{
    EngineHandle, EngineStatus, Event, FinishReason, Health, Limits, LiveState, Miss, MissReason, PositionLogprobs,
    PromptDone, Request, RequestError, TokenId, TokenLogprob,
};

/// The begin-of-sequence token of [`byte_tokenizer`].
pub const BOS: TokenId = 256;
/// The end-of-sequence token of [`byte_tokenizer`] and of [`ScriptedEngine`].
pub const EOS: TokenId = 257;

/// Returns a tokenizer with one token for each byte, whose id is the byte's value, and with the special tokens [`BOS`]
/// (`<s>`) and [`EOS`] (`</s>`).
pub fn byte_tokenizer() -> Tokenizer {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    let pieces = (0..256u32).map(|byte| {
        let code = if printable(byte) { byte } else { others.next().unwrap_or(0) };
        let piece = match char::from_u32(code).unwrap_or_default() {
            quoted @ ('"' | '\\') => format!("\\{quoted}"),
            other => other.to_string(),
        };
        format!("\"{piece}\": {byte}")
    });
    let vocabulary = pieces.collect::<Vec<_>>().join(", ");
    let added = [(BOS, "<s>"), (EOS, "</s>")].map(|(id, content)| {
        format!(
            r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}"#
        )
    });
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{}], "normalizer": null,
        "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
        "post_processor": null,
        "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
        "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": {{{vocabulary}}},
        "merges": []}}}}"#,
        added.join(", ")
    );
    let config = r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}"#;
    Tokenizer::from_bytes(json.as_bytes(), Some(config.as_bytes())).expect("the test tokenizer is valid")
}

/// What a [`ScriptedEngine`] does for a request in one step. An emitted token ends the sequence if it is [`EOS`] or one
/// of the request's stop tokens, or if the answer then has `max_tokens` tokens. The engine respects the request's
/// `min_tokens` and `ignore_eos`.
#[derive(Debug, Clone)]
pub enum Step {
    /// Emits this token.
    Token(TokenId),
    /// Emits this token with this log-probability.
    Likely(TokenId, f32),
    /// Reports that the sequence was preempted, then emits this token.
    Preempted(TokenId),
    /// Emits nothing.
    Wait,
    /// Fails the request with [`RequestError::Forward`], which contains this reason.
    Fail(String),
}

/// A function that receives the request and the number of tokens generated for it so far, and returns the next step.
pub type Script = dyn Fn(&Request, usize) -> Step + Send + Sync;

/// Returns a script that emits each byte of `text` as a token, then ends the sequence.
pub fn answer(text: &str) -> Box<Script> {
    let tokens: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
    Box::new(move |_, index| Step::Token(tokens.get(index).copied().unwrap_or(EOS)))
}

/// The time without a step after which health is no longer good; no test waits for so long.
const STALL: Duration = Duration::from_hours(1);

/// An engine without a model, for tests. A [`Script`] decides what it answers to each request. The engine stops when
/// this value is dropped.
pub struct ScriptedEngine {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    shared: Arc<EngineShared>,
    script: Box<Script>,
    step_time: Duration,
    requests: Mutex<Vec<Request>>,
    status: Mutex<EngineStatus>,
    miss: Mutex<MissReason>,
}

struct Running {
    request: Request,
    client: Client,
    generated: usize,
}

impl ScriptedEngine {
    /// Starts an engine that takes its answers from `script`. The engine sleeps for `step_time` after each step.
    pub fn start(limits: Limits, step_time: Duration, script: Box<Script>) -> Self {
        let (shared, submissions) = EngineShared::new(limits, STALL, Board::default());
        let state = Arc::new(State {
            shared,
            script,
            step_time,
            requests: Mutex::default(),
            status: Mutex::default(),
            miss: Mutex::new(MissReason::OtherSalt),
        });
        let thread = std::thread::spawn({
            let state = state.clone();
            move || state.run(&submissions)
        });
        Self { state, thread: Some(thread) }
    }

    /// Returns engine limits for tests. The vocabulary size in them is that of [`byte_tokenizer`].
    pub fn limits() -> Limits {
        Limits {
            vocab_size: 258,
            max_model_len: 4096,
            model_context: 4096,
            kv_capacity_tokens: 65_536,
            kv_block_tokens: 16,
            kv_blocks_beside: 0,
            max_logprobs: 20,
            max_beam_width: 8,
            max_waiting: 1024,
        }
    }

    /// Returns a handle for submitting requests.
    pub fn handle(&self) -> EngineHandle {
        EngineHandle { shared: Arc::clone(&self.state.shared) }
    }

    /// Returns the requests that the engine has received so far, in the order in which it received them. If a request
    /// asks for several continuations of its prompt, the list has one entry for each continuation, with the seed of
    /// that continuation.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.state.requests).clone()
    }

    /// Returns the number of steps that the engine has taken so far. Steps in which no request was running are counted
    /// too.
    pub fn steps(&self) -> u64 {
        lock(&self.state.status).steps
    }

    /// Sets the reason that the engine gives when a request asks why part of its prompt was not cached
    /// ([`Request::explain_miss`]). The engine reports the first half of every prompt as cached, and the second half as
    /// uncached. The default reason is [`MissReason::OtherSalt`].
    pub fn set_miss(&self, reason: MissReason) {
        *lock(&self.state.miss) = reason;
    }

    /// Returns whether any [`Watcher`](crate::Watcher) of the engine's state exists.
    pub fn is_watched(&self) -> bool {
        self.state.shared.board.is_watched()
    }

    /// Publishes `state` to every [`Watcher`](crate::Watcher) of the engine's state.
    pub fn show(&self, mut state: LiveState) {
        self.state.shared.board.show(&mut state);
    }

    /// Calls `change` with the engine's status, and publishes the changed status. [`EngineHandle::status`] then reports
    /// it.
    pub fn set_status(&self, change: impl FnOnce(&mut EngineStatus)) {
        let mut status = lock(&self.state.status);
        change(&mut status);
        self.state.publish(&status);
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.state.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn run(&self, submissions: &Receiver<Option<Submission>>) {
        let mut running: Vec<Running> = Vec::new();
        while !self.shared.stopping() {
            let arrived = submissions.try_iter().flatten().flat_map(|Submission { request, clients }| {
                clients.into_iter().zip(0..).map(move |(client, index)| {
                    let mut request = request.clone();
                    request.params.seed = request.params.seed.wrapping_add(index);
                    (request, client)
                })
            });
            for (request, mut client) in arrived {
                lock(&self.requests).push(request.clone());
                client.leave_queue();
                let wanted = request.params.prompt_logprobs;
                let logprobs = wanted.map_or_else(Vec::new, |top| {
                    let known = |(index, &token)| (index > 0).then(|| logprobs(token, -0.5, top));
                    request.prompt.iter().enumerate().map(known).collect()
                });
                let cached_tokens = request.prompt.len() / 2;
                let miss = Miss { matched_tokens: cached_tokens, reason: *lock(&self.miss) };
                let miss = request.explain_miss.then_some(miss);
                client.send(Event::PromptDone(PromptDone { cached_tokens, below: Vec::new(), miss, logprobs }));
                lock(&self.status).prompt_tokens += request.prompt.len() as u64;
                running.push(Running { request, client, generated: 0 });
            }
            running.retain_mut(|sequence| self.step(sequence));
            let mut status = lock(&self.status);
            status.running = running.len();
            status.steps += 1;
            self.publish(&status);
            drop(status);
            std::thread::sleep(self.step_time);
        }
    }

    fn publish(&self, status: &EngineStatus) {
        let stuck = if let Health::Stalled(reason) = &status.health { Some(reason.clone()) } else { None };
        self.shared.publish(Instant::now(), status.clone(), stuck);
    }

    /// Takes one step for one sequence. Returns false when the sequence has ended.
    fn step(&self, sequence: &mut Running) -> bool {
        let mut status = lock(&self.status);
        let params = &sequence.request.params;
        if sequence.client.is_closed() {
            status.finished.cancelled += 1;
            return false;
        }
        if sequence.request.embed.is_some() {
            status.finished.length += 1;
            sequence.client.send(Event::Embedding(embedding(&sequence.request.prompt)));
            sequence.client.send(Event::Finished { reason: FinishReason::Length });
            return false;
        }
        // A request that asks for no token gets none.
        let step = match params.max_tokens {
            0 => Step::Wait,
            _ => (self.script)(&sequence.request, sequence.generated),
        };
        if matches!(step, Step::Preempted(_)) {
            sequence.client.send(Event::Preempted { swapped: false });
        }
        let mut finish = |reason, count: fn(&mut EngineStatus) -> &mut u64| {
            *count(&mut status) += 1;
            sequence.client.send(Event::Finished { reason });
            false
        };
        if params.max_tokens == 0 {
            return finish(FinishReason::Length, |status| &mut status.finished.length);
        }
        let (id, logprob) = match step {
            Step::Token(id) | Step::Preempted(id) => (id, -0.5),
            Step::Likely(id, logprob) => (id, logprob),
            Step::Wait => return true,
            Step::Fail(reason) => {
                status.finished.failed += 1;
                sequence.client.send(Event::Failed(RequestError::Forward(reason)));
                return false;
            }
        };
        sequence.generated += 1;
        sequence.client.send(Event::Token { id, logprobs: params.logprobs.map(|top| logprobs(id, logprob, top)) });
        let may_stop = sequence.generated > params.min_tokens;
        if may_stop && id == EOS && !params.ignore_eos {
            return finish(FinishReason::EndOfSequence, |status| &mut status.finished.stop);
        }
        if may_stop && params.stop_token_ids.contains(&id) {
            return finish(FinishReason::StopToken(id), |status| &mut status.finished.stop);
        }
        if sequence.generated >= params.max_tokens {
            return finish(FinishReason::Length, |status| &mut status.finished.length);
        }
        status.generation_tokens += 1;
        true
    }
}

/// The number of dimensions of the embeddings that [`ScriptedEngine`] returns.
pub const EMBEDDING_WIDTH: usize = 4;

/// Returns the embedding that [`ScriptedEngine`] invents for a prompt. It consists of the number of tokens in the
/// prompt, the id of the first token, the id of the last token, and 1.
pub fn embedding(prompt: &[TokenId]) -> Vec<f32> {
    let [first, last] = [prompt.first(), prompt.last()].map(|token| token.copied().unwrap_or(0) as f32);
    vec![prompt.len() as f32, first, last, 1.0]
}

/// Returns made-up log-probabilities, in which the chosen token is the most likely, and tokens 0, 1, … follow.
fn logprobs(token: TokenId, logprob: f32, top: usize) -> PositionLogprobs {
    let chosen = TokenLogprob { token, logprob, rank: 1 };
    let others = (0..).filter(|&other| other != token).zip(2..).map(|(token, rank)| TokenLogprob {
        token,
        logprob: -(rank as f32),
        rank,
    });
    PositionLogprobs { chosen, top: std::iter::once(chosen).chain(others).take(top).collect() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
