//! Simulates what a trace would keep in memory at a time. Requests arrive when the trace says, compute at an assumed
//! pace, and hold their KV meanwhile.

use std::collections::VecDeque;

use interbed_kv::{SequenceId, TokenId};

use super::room::{Admission, Room, Slots};
use super::trace::{Request, Trace};
use interbed_plan::Refusal;

/// A token that stands for all tokens that the trace does not distinguish. Such tokens are never published.
const UNKNOWN: TokenId = TokenId::MAX;

/// How fast each sequence is assumed to compute, whatever else is being computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// The number of prompt tokens that are computed in a second.
    pub prefill_rate: f64,
    /// The number of answer tokens that a sequence gets in a second. All sequences take their steps together, one token
    /// each.
    pub decode_rate: f64,
}

/// What a room held, and how long sequences waited for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Load {
    /// Seconds from the first arrival until the last sequence has left.
    pub seconds: f64,
    /// The mean number of sequences that run at a time.
    pub running_mean: f64,
    pub running_peak: usize,
    /// The mean number of token slots that are taken at a time.
    pub taken_mean: f64,
    pub taken_peak: usize,
    /// The share of taken slots that were empty.
    pub fragmentation: f64,
    /// Seconds between arrival and admission, of the admitted sequences, in ascending order.
    pub waits: Vec<f64>,
    /// The number of preemptions of all sequences.
    pub preemptions: usize,
    /// The number of preemptions of the sequence that was preempted most often.
    pub preemptions_peak: usize,
    /// The number of requests that were too long for the room.
    pub refused: usize,
    /// The number of tokens that were cached when their sequence was admitted. A token counts again at each admission.
    pub cached_tokens: u64,
}

impl Load {
    /// Returns the mean wait in seconds.
    pub fn wait_mean(&self) -> f64 {
        if self.waits.is_empty() { 0.0 } else { self.waits.iter().sum::<f64>() / self.waits.len() as f64 }
    }

    /// Returns the longest wait in seconds.
    pub fn wait_max(&self) -> f64 {
        self.waits.last().copied().unwrap_or(0.0)
    }

    /// Returns the number of requests that waited at all.
    pub fn waited(&self) -> usize {
        self.waits.iter().filter(|&&wait| wait > 0.0).count()
    }
}

/// Sends the trace through `room` in the order of arrival. When room runs out, the sequence that came last is
/// preempted, and computed again later. `progress` is called for each request that has ended.
///
/// # Errors
/// Fails if the room refuses what it should not.
pub(super) fn replay(trace: &Trace, pace: Pace, room: &mut impl Room, progress: impl FnMut()) -> Result<Load, Refusal> {
    let mut simulation = Simulation {
        trace,
        pace,
        arrivals: trace.requests().iter().enumerate().map(|(number, request)| (pace.step(request), number)).collect(),
        waiting: VecDeque::new(),
        running: Vec::new(),
        step: 0,
        blocked: false,
        tokens: Vec::new(),
        sums: Sums::default(),
        load: Load::default(),
        progress,
    };
    // The sort is stable, so that requests that arrive together stay in the order of the file.
    simulation.arrivals.make_contiguous().sort_by_key(|&(step, _)| step);
    simulation.run(room)?;
    Ok(simulation.finish())
}

/// Returns the number of blocks of `block_size` tokens with which no sequence has to wait, which is the most that is
/// held at a time if nothing is shared.
pub(super) fn ample_blocks(trace: &Trace, pace: Pace, block_size: usize) -> usize {
    let mut changes = Vec::with_capacity(2 * trace.requests().len());
    for request in trace.requests() {
        let blocks = (request.input_tokens + request.output_tokens).div_ceil(block_size) as i64;
        let begin = pace.step(request);
        let end = begin + pace.prefill_steps(request.input_tokens) + request.output_tokens.max(1) as u64;
        changes.push((begin, false, blocks));
        changes.push((end, true, -blocks));
    }
    changes.sort_unstable();
    let (mut held, mut peak) = (0, 0);
    for (_, _, change) in changes {
        held += change;
        peak = peak.max(held);
    }
    usize::try_from(peak).unwrap_or(0).max(1)
}

impl Pace {
    /// Returns the first step after a request's arrival.
    fn step(self, request: &Request) -> u64 {
        (request.arrival * self.decode_rate).ceil() as u64
    }

    fn prefill_steps(self, tokens: usize) -> u64 {
        (tokens as f64 / self.prefill_rate * self.decode_rate).ceil() as u64
    }
}

struct Waiting {
    number: usize,
    /// The number of answer tokens that the sequence had before it was preempted.
    answered: usize,
    preemptions: usize,
}

struct Running {
    waiting: Waiting,
    /// The step in which the sequence gets its first token.
    ready: u64,
}

#[derive(Default)]
struct Sums {
    running: f64,
    taken: f64,
    empty: f64,
}

struct Simulation<'t, P> {
    trace: &'t Trace,
    pace: Pace,
    arrivals: VecDeque<(u64, usize)>, // step and number
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    step: u64,
    /// Whether the first sequence of the queue did not fit and no sequence has left since.
    blocked: bool,
    tokens: Vec<TokenId>,
    sums: Sums,
    load: Load,
    progress: P,
}

impl<P: FnMut()> Simulation<'_, P> {
    fn run(&mut self, room: &mut impl Room) -> Result<(), Refusal> {
        loop {
            self.retire(room);
            while let Some((_, number)) = self.arrivals.pop_front_if(|(step, _)| *step <= self.step) {
                self.waiting.push_back(Waiting { number, answered: 0, preemptions: 0 });
            }
            self.admit(room)?;
            match (self.waiting.front(), self.arrivals.front()) {
                _ if !self.running.is_empty() => {}
                (Some(waiting), _) => {
                    let number = waiting.number;
                    return Err(Refusal::new(format!("request {number} does not fit although nobody else is there")));
                }
                (None, Some(&(step, _))) => {
                    self.step = step;
                    continue;
                }
                (None, None) => return Ok(()),
            }
            self.grow(room);
            let steps = self.steps_to_next();
            self.count(room.slots(), steps as f64);
            self.step += steps;
        }
    }

    /// Returns the number of steps until something changes. It is 1 unless all running sequences still compute their
    /// prompts.
    fn steps_to_next(&self) -> u64 {
        let ready = self.running.iter().map(|running| running.ready.max(self.step + 1));
        let arrival = self.arrivals.front().map(|(step, _)| *step);
        ready.chain(arrival).min().map_or(1, |next| next - self.step)
    }

    /// Removes the sequences whose answers are complete.
    fn retire(&mut self, room: &mut impl Room) {
        let (step, requests, load) = (self.step, self.trace.requests(), &mut self.load);
        for Running { waiting, .. } in self.running.extract_if(.., |Running { waiting, ready }| {
            step > *ready && waiting.answered == requests[waiting.number].output_tokens
        }) {
            room.release(SequenceId(waiting.number as u64));
            load.preemptions_peak = load.preemptions_peak.max(waiting.preemptions);
            self.blocked = false;
            (self.progress)();
        }
    }

    fn admit(&mut self, room: &mut impl Room) -> Result<(), Refusal> {
        while let Some(waiting) = self.waiting.pop_front_if(|_| !self.blocked) {
            let request = &self.trace.requests()[waiting.number];
            let longest = request.input_tokens + request.output_tokens;
            self.tokens.clear();
            let size = self.trace.block_tokens();
            for &block in self.trace.blocks(request) {
                let end = (self.tokens.len() + size).min(request.input_tokens);
                self.tokens.resize(end, block);
            }
            self.tokens.resize(request.input_tokens + waiting.answered, UNKNOWN);
            match room.admit(SequenceId(waiting.number as u64), &self.tokens, longest)? {
                Admission::Now { cached } => {
                    let ready = self.step + self.pace.prefill_steps(self.tokens.len() - cached);
                    if waiting.preemptions == 0 {
                        let waited = self.step - self.pace.step(request);
                        self.load.waits.push(waited as f64 / self.pace.decode_rate);
                    }
                    self.load.cached_tokens += cached as u64;
                    self.running.push(Running { waiting, ready });
                }
                Admission::Later => {
                    self.waiting.push_front(waiting);
                    self.blocked = true;
                }
                Admission::Never => {
                    self.load.refused += 1;
                    (self.progress)();
                }
            }
        }
        Ok(())
    }

    /// Adds one token to every sequence whose prompt is computed.
    fn grow(&mut self, room: &mut impl Room) {
        let mut at = 0;
        while let Some(Running { waiting, ready }) = self.running.get_mut(at) {
            let (id, request) = (SequenceId(waiting.number as u64), &self.trace.requests()[waiting.number]);
            if self.step == *ready {
                let known = self.trace.tokens_of(self.trace.blocks(request).len());
                room.publish(id, request.input_tokens.min(known));
            }
            if self.step >= *ready && waiting.answered < request.output_tokens {
                if !room.grow(id, UNKNOWN) {
                    // The last sequence may be the one that needs the room.
                    self.preempt_last(room);
                    continue;
                }
                waiting.answered += 1;
            }
            at += 1;
        }
    }

    fn count(&mut self, slots: Slots, steps: f64) {
        self.load.running_peak = self.load.running_peak.max(self.running.len());
        self.load.taken_peak = self.load.taken_peak.max(slots.taken);
        self.sums.running += self.running.len() as f64 * steps;
        self.sums.taken += slots.taken as f64 * steps;
        self.sums.empty += slots.empty as f64 * steps;
    }

    fn preempt_last(&mut self, room: &mut impl Room) {
        let Some(Running { waiting, .. }) = self.running.pop() else { return };
        room.release(SequenceId(waiting.number as u64));
        self.load.preemptions += 1;
        self.blocked = false;
        self.waiting.push_front(Waiting { preemptions: waiting.preemptions + 1, ..waiting });
    }

    fn finish(mut self) -> Load {
        let steps = self.step.max(1) as f64;
        self.load.seconds = steps / self.pace.decode_rate;
        self.load.running_mean = self.sums.running / steps;
        self.load.taken_mean = self.sums.taken / steps;
        self.load.fragmentation = if self.sums.taken == 0.0 { 0.0 } else { self.sums.empty / self.sums.taken };
        self.load.waits.sort_by(f64::total_cmp);
        self.load
    }
}
