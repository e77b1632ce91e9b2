//! A sequence group stands for one request: it has the sequences that answer the request, and the policy by which they
//! go on.

mod beam_search;
mod beams;
mod embedding;
mod independent;

use std::time::Instant;

use interbed_kv::{Miss, SequenceId};
use interbed_model::{LogitRows, Logits};

use crate::continuation::{Continuation, Ends};
use crate::handle::Client;
use crate::live::GroupSight;
use crate::masks::MaskWorkers;
use crate::sampler::Sampler;
use crate::scheduler::{Admitted, PlannedTokens, Scheduler};
use crate::sequence::Sequence;
use crate::{EngineStatus, Event, PositionLogprobs, PromptDone, Request, RequestError, TokenId};
use beams::Beams;
use embedding::Embedding;
use independent::Independent;

/// The sequences of a request that the engine has taken on.
pub(crate) struct SequenceGroup {
    came: Instant,
    pub(crate) prompt: Prompt,
    pub(crate) policy: Box<dyn Policy>,
}

/// The facts about a request's prompt that do not depend on which sequence computes it.
pub(crate) struct Prompt {
    len: usize,
    /// What clients are told when the prompt has been computed, once a sequence that computes it has been admitted.
    /// Cache hits after a preemption are not counted.
    found: Option<PromptDone>,
}

/// A policy decides what the sequences of a group do, and which clients hear of it. All calls but
/// [`wanted_rows`](Self::wanted_rows) and [`take_row`](Self::take_row) are made between passes.
pub(crate) trait Policy: Send {
    /// Notes that `sequence` of the group has been admitted, for the first time or again.
    fn admitted(&mut self, sequence: &mut Sequence);

    /// Notes that `sequence` of the group makes room for others.
    fn preempted(&self, sequence: &Sequence, swapped: bool);

    /// Begins to compute the masks for a sequence for which the next pass will sample, if a constraint restricts its
    /// tokens.
    fn begin_masks(&mut self, _: &mut Sequence, _: &mut MaskWorkers) {}

    /// Returns the rows that a pass is to give for `entry`, the part of `sequence` in the pass.
    fn wanted_rows(&self, sequence: &Sequence, entry: &PlannedTokens) -> LogitRows;

    /// Takes the logits behind the token at `position` of `sequence`, whose part in the pass is `entry`. Rows come in
    /// the order of positions. The row is one that [`wanted_rows`](Self::wanted_rows) asked for, or a whole row. This
    /// may overwrite `logits`.
    fn take_row(
        &mut self,
        sequence: &mut Sequence,
        entry: &PlannedTokens,
        position: usize,
        logits: Logits<'_>,
        sampling: Sampling<'_>,
    );

    /// Returns, after a pass, how many of the tokens that were sampled for `sequence` are accepted. Returns `None` if
    /// the sequence failed, for example because its logits were NaN. In that case, nothing that was computed for it may
    /// enter the prefix cache, and [`apply`](Self::apply) ends it as failed.
    fn accept(&mut self, sequence: &mut Sequence, ends: Ends<'_>) -> Option<usize>;

    /// Continues, branches or ends the sequence of `entry`. This is called after a pass, once all accepted results of
    /// the pass are published.
    fn apply(&mut self, entry: &PlannedTokens, prompt: &Prompt, stage: &mut Stage<'_>);

    /// Resumes sequence `id` of the group, whose mask was late when the pass sampled and has come since.
    fn resume(&mut self, _: SequenceId, _: &Prompt, _: Sampling<'_>, _: &mut Stage<'_>) {}

    /// Ends the sequences whose clients have gone.
    fn drop_cancelled(&mut self, prompt: &Prompt, stage: &mut Stage<'_>);

    /// Notes that `sequence`, which the scheduler has already removed, has failed, and fails all that depends on it.
    fn fail(&mut self, sequence: Sequence, error: &RequestError, stage: &mut Stage<'_>);

    /// Returns whether the group has no sequence left.
    fn is_over(&self) -> bool;
}

/// The tools with which a policy samples tokens.
pub(crate) struct Sampling<'a> {
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) eos: &'a [TokenId],
    /// The number of sequences that wait until their masks say which tokens may come next.
    pub(crate) late: &'a mut usize,
}

/// The parts of the engine that policies act upon.
pub(crate) struct Stage<'a> {
    pub(crate) scheduler: &'a mut Scheduler,
    pub(crate) status: &'a mut EngineStatus,
    pub(crate) ends: Ends<'a>,
}

impl SequenceGroup {
    /// Creates the group that answers `request` for each of `clients`, of which there is at least one. Also returns the
    /// continuation of the first sequence, `id`, if that sequence samples for itself.
    pub(crate) fn new(
        id: SequenceId,
        request: &mut Request,
        clients: Vec<Client>,
        vocab_size: usize,
        eos: &[TokenId],
    ) -> (Self, Option<Continuation>) {
        let prompt = Prompt { len: request.prompt.len(), found: None };
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

    /// Returns what a watcher of the engine sees of this group.
    pub(crate) fn sight(&self) -> GroupSight {
        GroupSight { cached: self.prompt.found.as_ref().map_or(0, |found| found.cached_tokens), came: self.came }
    }

    /// Notes that a sequence of the group has been admitted.
    pub(crate) fn admitted(&mut self, admitted: &Admitted, stage: &mut Stage<'_>) {
        if let Some(sequence) = stage.scheduler.get_mut(admitted.id) {
            self.policy.admitted(sequence);
        }
        let Prompt { len, found } = &mut self.prompt;
        if found.is_none() {
            let miss = admitted.miss.map(|miss| Miss { reason: miss.reason.for_client(), ..miss });
            let (cached_tokens, below) = (admitted.cached, admitted.below.clone());
            *found = Some(PromptDone { cached_tokens, below, miss, logprobs: Vec::new() });
            stage.status.prompt_tokens += *len as u64;
            stage.status.cached_tokens += cached_tokens as u64;
        }
    }
}

impl Prompt {
    /// Returns the event that tells clients that the prompt has been computed.
    fn done(&self, logprobs: Vec<Option<PositionLogprobs>>) -> Event {
        Event::PromptDone(PromptDone { logprobs, ..self.found.clone().unwrap_or_default() })
    }
}
