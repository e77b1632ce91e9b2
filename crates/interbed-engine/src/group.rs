//! A request: the sequences that answer it, and the policy by which they go on.

mod beam_search;
mod beams;
mod embedding;
mod independent;

use std::time::Instant;

use interbed_kv::{Miss, SequenceId};
use interbed_model::{LogitRows, Logits};

use crate::event::FoundBelow;
use crate::handle::Client;
use crate::live::GroupSight;
use crate::masks::MaskWorkers;
use crate::sampler::Sampler;
use crate::scheduler::{Admitted, PlannedTokens, Scheduler};
use crate::sequence::{Continuation, Ends, Sequence};
use crate::status::Totals;
use crate::{Event, PositionLogprobs, Request, RequestError, TokenId};
use beams::Beams;
use embedding::Embedding;
use independent::Independent;

/// A request that the engine has taken on.
pub(crate) struct SequenceGroup {
    came: Instant,
    prompt: Prompt,
    policy: Box<dyn Policy>,
}

/// What is known of a request's prompt, whichever sequence computes it.
pub(crate) struct Prompt {
    len: usize,
    /// Whether a sequence that computes it has been admitted. Cache hits after a preemption are not counted.
    admitted: bool,
    cached_tokens: usize,
    /// What of it came from below memory.
    below: Option<FoundBelow>,
    /// Why no more of the prompt was cached, if the client asked.
    miss: Option<Miss>,
}

/// What the sequences of a group do, and which clients hear of it. All calls but [`wanted_rows`](Self::wanted_rows) and
/// [`take_row`](Self::take_row) are made between passes.
pub(crate) trait Policy: Send {
    /// One of its sequences has been admitted, perhaps for the first time.
    fn admitted(&mut self, sequence: &mut Sequence);

    /// One of its sequences makes room for others.
    fn preempted(&self, sequence: &Sequence, swapped: bool);

    /// A pass will sample for `sequence`: has computed what may come next, if not anything may.
    fn begin_masks(&mut self, sequence: &mut Sequence, workers: &mut MaskWorkers);

    /// The rows that a pass is to give for `entry`, the part of `sequence` in it.
    fn wanted_rows(&self, sequence: &Sequence, entry: &PlannedTokens) -> LogitRows;

    /// A pass gives the logits behind the token at `position` of `sequence`, whose part in it is `entry`. Rows come in
    /// order. What this leaves in `logits` does not matter. They are those that [`wanted_rows`](Self::wanted_rows)
    /// asked for, or whole rows.
    fn take_row(
        &mut self,
        sequence: &mut Sequence,
        entry: &PlannedTokens,
        position: usize,
        logits: Logits<'_>,
        sampling: Sampling<'_>,
    );

    /// The pass has retired. Returns how many of the tokens that were sampled for `sequence` are accepted. `None` if
    /// its logits were NaN: then what was computed for it must not enter the prefix cache, and [`apply`](Self::apply)
    /// lets it fail.
    fn accept(&mut self, sequence: &mut Sequence, prompt: &Prompt, ends: Ends<'_>) -> Option<usize>;

    /// Called once all accepted results of the pass are published: the sequence of `entry` goes on, branches or ends.
    fn apply(&mut self, entry: &PlannedTokens, prompt: &Prompt, stage: &mut Stage<'_>);

    /// Sequence `id` of the group goes on: its mask, which was late when the pass sampled, has come.
    fn resume(&mut self, _: SequenceId, _: &Prompt, _: Sampling<'_>, _: &mut Stage<'_>) {}

    /// Ends sequences whose clients have gone.
    fn drop_cancelled(&mut self, prompt: &Prompt, stage: &mut Stage<'_>);

    /// Its sequence, which the scheduler has already removed, has failed, and with it all that depends on it.
    fn fail(&mut self, sequence: Sequence, error: &RequestError, stage: &mut Stage<'_>);

    /// Whether it has no sequence left.
    fn is_over(&self) -> bool;
}

/// What tokens are sampled with.
pub(crate) struct Sampling<'a> {
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) eos: &'a [TokenId],
    /// Sequences that wait until it is known what may come.
    pub(crate) late: &'a mut usize,
}

/// What policies act upon.
pub(crate) struct Stage<'a> {
    pub(crate) scheduler: &'a mut Scheduler,
    pub(crate) totals: &'a mut Totals,
    pub(crate) ends: Ends<'a>,
}

impl SequenceGroup {
    /// The group that answers `request` for each of `clients`, of which there is at least one; and the continuation of
    /// its first sequence, `id`, if that samples for itself.
    pub(crate) fn new(
        id: SequenceId,
        request: &mut Request,
        clients: Vec<Client>,
        vocab_size: usize,
        eos: &[TokenId],
    ) -> (Self, Option<Continuation>) {
        let prompt = Prompt { len: request.prompt.len(), admitted: false, cached_tokens: 0, below: None, miss: None };
        let params = std::mem::take(&mut request.params);
        let constraint = request.constraint.take();
        let (policy, continuation): (Box<dyn Policy>, _) = match (request.embed, request.beam) {
            (Some(pooling), _) => (Box::new(Embedding::new(id, pooling, clients)), None),
            (None, Some(beam)) => (Box::new(Beams::new(id, beam, &params, prompt.len, clients, eos, constraint)), None),
            (None, None) => {
                let (policy, first) = Independent::new(id, params, &request.prompt, clients, vocab_size, constraint);
                (Box::new(policy), first)
            }
        };
        (Self { came: Instant::now(), prompt, policy }, continuation)
    }

    /// What those who watch see of it.
    pub(crate) fn sight(&self) -> GroupSight {
        GroupSight { cached: self.prompt.cached_tokens, came: self.came }
    }

    /// One of its sequences has been admitted.
    pub(crate) fn admitted(&mut self, admitted: &Admitted, stage: &mut Stage<'_>) {
        if let Some(sequence) = stage.scheduler.get_mut(admitted.id) {
            self.policy.admitted(sequence);
        }
        if !self.prompt.admitted {
            let miss = admitted.miss.map(|miss| Miss { reason: miss.reason.for_client(), ..miss });
            let (len, cached_tokens) = (self.prompt.len, admitted.cached);
            self.prompt = Prompt { len, admitted: true, cached_tokens, below: admitted.below, miss };
            stage.totals.prompt_tokens += len as u64;
            stage.totals.cached_tokens += cached_tokens as u64;
        }
    }

    /// See [`Policy::preempted`].
    pub(crate) fn preempted(&self, sequence: &Sequence, swapped: bool) {
        self.policy.preempted(sequence, swapped);
    }

    /// See [`Policy::begin_masks`].
    pub(crate) fn begin_masks(&mut self, sequence: &mut Sequence, workers: &mut MaskWorkers) {
        self.policy.begin_masks(sequence, workers);
    }

    /// See [`Policy::wanted_rows`].
    pub(crate) fn wanted_rows(&self, sequence: &Sequence, entry: &PlannedTokens) -> LogitRows {
        self.policy.wanted_rows(sequence, entry)
    }

    /// See [`Policy::take_row`].
    pub(crate) fn take_row(
        &mut self,
        sequence: &mut Sequence,
        entry: &PlannedTokens,
        position: usize,
        logits: Logits<'_>,
        sampling: Sampling<'_>,
    ) {
        self.policy.take_row(sequence, entry, position, logits, sampling);
    }

    /// See [`Policy::accept`].
    pub(crate) fn accept(&mut self, sequence: &mut Sequence, ends: Ends<'_>) -> Option<usize> {
        self.policy.accept(sequence, &self.prompt, ends)
    }

    /// See [`Policy::apply`].
    pub(crate) fn apply(&mut self, entry: &PlannedTokens, stage: &mut Stage<'_>) {
        self.policy.apply(entry, &self.prompt, stage);
    }

    /// See [`Policy::resume`].
    pub(crate) fn resume(&mut self, id: SequenceId, sampling: Sampling<'_>, stage: &mut Stage<'_>) {
        self.policy.resume(id, &self.prompt, sampling, stage);
    }

    /// See [`Policy::drop_cancelled`].
    pub(crate) fn drop_cancelled(&mut self, stage: &mut Stage<'_>) {
        self.policy.drop_cancelled(&self.prompt, stage);
    }

    /// See [`Policy::fail`].
    pub(crate) fn fail(&mut self, sequence: Sequence, error: &RequestError, stage: &mut Stage<'_>) {
        self.policy.fail(sequence, error, stage);
    }

    /// See [`Policy::is_over`].
    pub(crate) fn is_over(&self) -> bool {
        self.policy.is_over()
    }
}

impl Prompt {
    /// The event for clients when the prompt has been computed.
    fn done(&self, logprobs: Vec<Option<PositionLogprobs>>) -> Event {
        Event::PromptDone { cached_tokens: self.cached_tokens, below: self.below, miss: self.miss, logprobs }
    }
}
