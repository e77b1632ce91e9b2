//! Independent continuations of one prompt, one for each client. They are the `n` answers, or the candidates of
//! `best_of`.
//!
//! The continuations begin as one sequence. When the sequence has computed the prompt, its row is sampled once for each
//! continuation, and the continuations fork.

use interbed_grammar::Constraint;
use interbed_kv::SequenceId;
use interbed_model::{LogitRows, Logits};

use super::{Policy, Prompt, Sampling, Stage};
use crate::continuation::{Continuation, Ends};
use crate::handle::Client;
use crate::masks::MaskWorkers;
use crate::sampler::{SamplerState, best_wanted};
use crate::scheduler::{PlannedTokens, Scheduler};
use crate::sequence::Sequence;
use crate::{Event, FinishReason, PositionLogprobs, RequestError, SamplingParams, TokenId};

pub(super) struct Independent {
    params: SamplingParams,
    /// The sequences of the continuations that have begun.
    sequences: Vec<SequenceId>,
    /// The continuations that wait until the first one's sequence has computed the prompt.
    unbegun: Vec<Continuation>,
    prompt_done: bool,
    prompt_logprobs: Vec<Option<PositionLogprobs>>,
}

impl Independent {
    /// Creates one continuation for each of `clients`. The first continuation, which is that of sequence `id`, is
    /// returned beside the others.
    pub(super) fn new(
        id: SequenceId,
        params: SamplingParams,
        prompt: &[TokenId],
        clients: Vec<Client>,
        vocab_size: usize,
        constraint: Option<Constraint>,
    ) -> (Self, Option<Continuation>) {
        let state = SamplerState::new(prompt, vocab_size, &params);
        let each = clients.into_iter().zip(0..);
        let mut all =
            each.map(|(client, number)| Continuation::new(client, state.continuation(number), constraint.clone()));
        let (first, unbegun) = (all.next(), all.collect());
        (Self { params, sequences: vec![id], unbegun, prompt_done: false, prompt_logprobs: Vec::new() }, first)
    }

    /// Returns whether log-probabilities of prompt tokens are still to be computed.
    fn wants_prompt_rows(&self) -> bool {
        self.params.prompt_logprobs.is_some() && !self.prompt_done
    }

    /// Tells `first` and all continuations that have not begun that the prompt has been computed.
    fn tell_prompt_done(&mut self, first: &Continuation, prompt: &Prompt) {
        self.prompt_done = true;
        let mut logprobs = std::mem::take(&mut self.prompt_logprobs);
        if self.params.prompt_logprobs.is_some() {
            // The first token of a prompt has no log-probability, so its entry is `None`.
            logprobs.resize(logprobs.len().max(1), None);
        }
        self.unbegun.iter().for_each(|other| other.client.send(prompt.done(logprobs.clone())));
        first.client.send(prompt.done(logprobs));
    }

    /// Begins `continuation` in a new sequence that forks off `parent`, unless the first token of `continuation` was
    /// its last.
    fn begin(&mut self, mut continuation: Continuation, parent: SequenceId, prompt: &Prompt, stage: &mut Stage<'_>) {
        continuation.accept(&self.params, prompt.len, stage.ends);
        if let Some(error) = continuation.fault.take() {
            return stage.fail(&continuation, error);
        }
        let (count, outcome) = continuation.deliver();
        stage.status.generation_tokens += count as u64;
        let token = match outcome {
            Ok(token) => token,
            Err(reason) => return stage.finish(&continuation, reason),
        };
        let child = stage.scheduler.new_id();
        self.sequences.push(child);
        if stage.scheduler.fork(parent, child, token, Some(continuation))
            && let Some(sequence) = stage.scheduler.get_mut(child)
        {
            self.admitted(sequence);
        }
    }

    /// Tells the client of sequence `id` what was sampled for it, then continues or ends the sequence.
    fn conclude(&mut self, id: SequenceId, prompt: &Prompt, stage: &mut Stage<'_>) {
        let sequence = stage.scheduler.get_mut(id);
        let Some(continuation) = sequence.and_then(|sequence| sequence.continuation.as_mut()) else { return };
        if let Some(error) = continuation.fault.take() {
            let sequence = stage.scheduler.remove(id);
            return sequence.into_iter().for_each(|sequence| self.fail(sequence, &error, stage));
        }
        let (count, outcome) = continuation.deliver();
        stage.status.generation_tokens += count as u64;
        // The other continuations begin before their parent has a token that they do not have.
        for other in std::mem::take(&mut self.unbegun) {
            self.begin(other, id, prompt, stage);
        }
        match outcome {
            Ok(token) => stage.scheduler.push_token(id, token),
            Err(reason) => {
                let ended = self.end(id, stage).and_then(|sequence| sequence.continuation);
                ended.iter().for_each(|continuation| stage.finish(continuation, reason));
            }
        }
    }

    /// Removes sequence `id` from the scheduler and from this group, and gives its blocks back.
    fn end(&mut self, id: SequenceId, stage: &mut Stage<'_>) -> Option<Sequence> {
        self.sequences.retain(|&other| other != id);
        stage.scheduler.remove(id)
    }
}

impl Policy for Independent {
    fn admitted(&mut self, sequence: &mut Sequence) {
        sequence.continuation.iter_mut().for_each(|continuation| continuation.client.leave_queue());
    }

    fn preempted(&self, sequence: &Sequence, swapped: bool) {
        sequence.continuation.iter().for_each(|one| one.client.send(Event::Preempted { swapped }));
    }

    fn begin_masks(&mut self, sequence: &mut Sequence, workers: &mut MaskWorkers) {
        let drafts = sequence.drafts().to_vec();
        sequence.continuation.iter_mut().for_each(|one| one.begin_masks(workers, &drafts));
    }

    fn wanted_rows(&self, sequence: &Sequence, entry: &PlannedTokens) -> LogitRows {
        match (self.wants_prompt_rows(), entry.rows) {
            (true, _) => LogitRows::All,
            (false, 0) => LogitRows::None,
            // A constraint rules tokens out in whole rows.
            (false, 1) if sequence.continuation.as_ref().is_some_and(Continuation::is_bound) => LogitRows::Last,
            (false, 1) => {
                // Continuations that have not begun have generated as little as the first.
                let generated = sequence.continuation.as_ref().map_or(0, Continuation::generated);
                best_wanted(&self.params, generated).map_or(LogitRows::Last, LogitRows::Best)
            }
            // The rows of a token and of the drafts behind it.
            (false, rows) => LogitRows::LastFew(rows),
        }
    }

    fn take_row(
        &mut self,
        sequence: &mut Sequence,
        entry: &PlannedTokens,
        position: usize,
        mut logits: Logits<'_>,
        Sampling { sampler, eos, late }: Sampling<'_>,
    ) {
        let next = position + 1;
        // The number of drafts in front of the token that is sampled from this row, if one is sampled.
        let drafts_before = if entry.samples() { next.checked_sub(sequence.len()) } else { None };
        let prompt_token = sequence.tokens()[..sequence.prompt_len].get(next).copied();
        let follows = |one: &Continuation| drafts_before.is_none_or(|count| one.follows(sequence.drafts(), count));
        if !sequence.continuation.as_ref().is_some_and(follows) {
            return;
        }
        let Some(continuation) = &mut sequence.continuation else { return };
        // A model whose numbers overflow must fail rather than give a plausible answer.
        if logits.has_nan() {
            continuation.fault = Some(RequestError::NotFinite);
        }
        if let (Some(top), Some(token), false) = (self.params.prompt_logprobs, prompt_token, self.prompt_done) {
            // A row that is computed again after a preemption has been reported already.
            self.prompt_logprobs.resize(self.prompt_logprobs.len().max(1), None);
            if let (Logits::All(row), true) = (&logits, self.prompt_logprobs.len() == next) {
                self.prompt_logprobs.push(Some(sampler.position_logprobs(row, token, top)));
            }
        }
        if drafts_before.is_some() {
            // Sampling overwrites a whole row, so the row is kept for the next continuation.
            let row = match &logits {
                Logits::All(row) if !self.unbegun.is_empty() => row.to_vec(),
                _ => Vec::new(),
            };
            for other in &mut self.unbegun {
                other.share_masks(continuation);
                other.sample(sampler, &self.params, &mut logits, eos, None);
                if let Logits::All(logits) = &mut logits {
                    logits.copy_from_slice(&row);
                }
            }
            // Continuations that have not begun need the row now, so the mask must not be late.
            let late = self.unbegun.is_empty().then_some(late);
            continuation.sample(sampler, &self.params, &mut logits, eos, late);
        }
    }

    fn accept(&mut self, sequence: &mut Sequence, ends: Ends<'_>) -> Option<usize> {
        let Some(continuation) = &mut sequence.continuation else { return Some(0) };
        let accepted = continuation.accept(&self.params, sequence.prompt_len, ends);
        continuation.fault.is_none().then_some(accepted)
    }

    fn apply(&mut self, entry: &PlannedTokens, prompt: &Prompt, stage: &mut Stage<'_>) {
        let sequence = stage.scheduler.get_mut(entry.id);
        let Some(continuation) = sequence.and_then(|sequence| sequence.continuation.as_mut()) else { return };
        if let Some(error) = continuation.fault.take() {
            let sequence = stage.scheduler.remove(entry.id);
            return sequence.into_iter().for_each(|sequence| self.fail(sequence, &error, stage));
        }
        if !entry.samples() {
            return;
        }
        if !self.prompt_done {
            self.tell_prompt_done(continuation, prompt);
        }
        if !continuation.is_late() {
            self.conclude(entry.id, prompt, stage);
        }
    }

    fn resume(&mut self, id: SequenceId, prompt: &Prompt, sampling: Sampling<'_>, stage: &mut Stage<'_>) {
        let sequence = stage.scheduler.get_mut(id);
        let Some(continuation) = sequence.and_then(|sequence| sequence.continuation.as_mut()) else { return };
        continuation.resume(sampling.sampler, &self.params, sampling.eos);
        continuation.accept(&self.params, prompt.len, stage.ends);
        self.conclude(id, prompt, stage);
    }

    fn drop_cancelled(&mut self, prompt: &Prompt, stage: &mut Stage<'_>) {
        let before = self.unbegun.len();
        self.unbegun.retain(|other| !other.client.is_closed());
        let mut cancelled = before - self.unbegun.len();
        let is_closed = |scheduler: &Scheduler, id| {
            scheduler.sequence(id).continuation.as_ref().is_some_and(|continuation| continuation.client.is_closed())
        };
        while let Some(&id) = self.sequences.iter().find(|&&id| is_closed(stage.scheduler, id)) {
            cancelled += 1;
            if self.unbegun.is_empty() {
                self.end(id, stage);
            } else if let Some(sequence) = stage.scheduler.get_mut(id) {
                // The first continuation that has not begun takes over the sequence.
                sequence.continuation = Some(self.unbegun.remove(0));
                if prompt.found.is_some() {
                    self.admitted(sequence);
                }
            }
        }
        stage.status.finished.cancelled += cancelled as u64;
    }

    fn fail(&mut self, sequence: Sequence, error: &RequestError, stage: &mut Stage<'_>) {
        self.sequences.retain(|&other| other != sequence.id);
        let failed = sequence.continuation.into_iter().chain(self.unbegun.drain(..));
        for continuation in failed {
            stage.fail(&continuation, error.clone());
        }
    }

    fn is_over(&self) -> bool {
        self.sequences.is_empty()
    }
}

impl Stage<'_> {
    /// Counts `continuation` as failed, and tells its client.
    fn fail(&mut self, continuation: &Continuation, error: RequestError) {
        self.status.finished.failed += 1;
        continuation.client.send(Event::Failed(error));
    }

    /// Counts `continuation` as finished, and tells its client.
    fn finish(&mut self, continuation: &Continuation, reason: FinishReason) {
        self.status.finished.count(reason);
        self.scheduler.ended(continuation.generated());
        continuation.client.send(Event::Finished { reason });
    }
}
