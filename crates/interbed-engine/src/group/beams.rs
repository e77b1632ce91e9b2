//! A beam search has the sequences of its beams, and the rows that have come for them. [`BeamSearch`] decides which
//! beams go on, and [`Beams`] carries the decisions out.
//!
//! Each live beam has a sequence. A beam whose row has come waits, with nothing pending, until the rows of all others
//! have come. When the beams have lost their blocks, one sequence, the *trunk*, stands for all of them: it computes the
//! tokens that the beams have in common, and then they branch off the trunk again.

use interbed_grammar::{Constraint, GrammarError};
use interbed_kv::SequenceId;
use interbed_model::{LogitRows, Logits};

use super::beam_search::{BeamSearch, Branch, Hypothesis, Row};
use super::{Policy, Prompt, Sampling, Stage};
use crate::continuation::Ends;
use crate::handle::Client;
use crate::masks::{Bound, MaskWorkers};
use crate::scheduler::PlannedTokens;
use crate::sequence::{Past, Sequence};
use crate::{BeamParams, Event, FinishReason, RequestError, SamplingParams, TokenId};

pub(super) struct Beams {
    search: BeamSearch,
    /// The sequences of the live beams, in the order of the beams. While there is a trunk, these are the sequences that
    /// the beams had before.
    sequences: Vec<SequenceId>,
    /// The row that follows each beam, once the row has come.
    rows: Vec<Option<Row>>,
    /// The constraint of each beam, in the order of the beams; empty if the answers are not constrained.
    bounds: Vec<Bound>,
    /// The reason why the search cannot go on: the logits of a beam were NaN, or the constraint could not say what may
    /// follow a beam.
    fault: Option<RequestError>,
    /// The clients, in the order of the hypotheses that they get; the first gets the best.
    clients: Vec<Client>,
    logprobs: Option<usize>,
}

impl Beams {
    /// Creates a search whose prompt will be computed by sequence `id`.
    pub(super) fn new(
        id: SequenceId,
        beam: BeamParams,
        params: &SamplingParams,
        prompt_len: usize,
        clients: Vec<Client>,
        eos: &[TokenId],
        constraint: Option<Constraint>,
    ) -> Self {
        let bounds = constraint.map(Bound::new).into_iter().collect();
        let search = BeamSearch::new(beam, clients.len(), prompt_len, params, eos);
        let (sequences, rows) = (vec![id], vec![None]);
        Self { search, sequences, rows, bounds, fault: None, clients, logprobs: params.logprobs }
    }

    /// Takes the rows of all beams, if all have come.
    fn take_rows(&mut self) -> Option<Vec<Row>> {
        if self.rows.iter().any(Option::is_none) {
            return None;
        }
        Some(self.rows.iter_mut().filter_map(Option::take).collect())
    }

    /// Takes a step of the search.
    fn advance(&mut self, rows: &[Row], prompt: &Prompt, stage: &mut Stage<'_>) {
        let branches = self.search.advance(rows);
        if branches.is_empty() {
            return self.finish(prompt, stage);
        }
        let parents: Vec<_> = branches.iter().map(|branch| self.sequences[branch.parent]).collect();
        // Dead beams are removed first, so that there are never more sequences than beams.
        for &dead in self.sequences.iter().filter(|id| !parents.contains(id)) {
            stage.scheduler.remove(dead);
        }
        if let Err(error) = self.advance_bounds(&branches) {
            return self.fail_all(&RequestError::Constraint(error), stage);
        }
        self.branch(parents.into_iter(), stage);
        for (&id, branch) in self.sequences.iter().zip(&branches) {
            stage.scheduler.extend(id, [branch.token]);
        }
    }

    /// Replaces the constraints of the beams by those of the next step's beams.
    fn advance_bounds(&mut self, branches: &[Branch]) -> Result<(), GrammarError> {
        if self.bounds.is_empty() {
            return Ok(());
        }
        let mut next = Vec::with_capacity(branches.len());
        for branch in branches {
            let mut bound = self.bounds[branch.parent].fork();
            // A complete answer goes on to the token that ends it, so that it is scored in the same way as any other
            // answer.
            bound.advance(branch.token)?;
            next.push(bound);
        }
        self.bounds = next;
        Ok(())
    }

    /// Ends the search as failed with `error`, and tells all clients.
    fn fail_all(&mut self, error: &RequestError, stage: &mut Stage<'_>) {
        self.end(stage);
        stage.status.finished.failed += self.clients.len() as u64;
        self.clients.iter().for_each(|client| client.send(Event::Failed(error.clone())));
    }

    /// Branches all beams off the trunk `id`, and gives each beam the tokens that the beams do not have in common.
    fn branch_off(&mut self, id: SequenceId, stage: &mut Stage<'_>) {
        let known = stage.scheduler.sequence(id).generated();
        self.branch(std::iter::repeat_n(id, self.search.num_live()), stage);
        for (beam, &sequence) in self.sequences.iter().enumerate() {
            stage.scheduler.extend(sequence, self.search.tokens(beam).skip(known));
        }
    }

    /// Makes one sequence for each of `parents`. The first child of a parent takes over the parent's sequence; the
    /// other children get new ones.
    fn branch(&mut self, parents: impl Iterator<Item = SequenceId>, stage: &mut Stage<'_>) {
        let mut next = Vec::with_capacity(self.search.width());
        for parent in parents {
            if next.contains(&parent) {
                let child = stage.scheduler.new_id();
                stage.scheduler.branch(parent, child);
                next.push(child);
            } else {
                next.push(parent);
            }
        }
        stage.scheduler.share_seats(&next, self.search.width());
        self.rows.clear();
        self.rows.resize_with(next.len(), || None);
        self.sequences = next;
    }

    /// Ends the search and tells each client its hypothesis. If the model allows fewer hypotheses than there are
    /// clients, the remaining clients get no token.
    fn finish(&mut self, prompt: &Prompt, stage: &mut Stage<'_>) {
        let past = self.end(stage);
        let is_swap = (0..past.preemptions).map(|time| time < past.swaps);
        let mut best = self.search.take_best().into_iter();
        for client in self.clients.drain(..) {
            is_swap.clone().for_each(|swapped| client.send(Event::Preempted { swapped }));
            let hypothesis = best.next();
            client.send(prompt.done(Vec::new()));
            let mut tokens = 0;
            for (id, logprobs) in hypothesis.iter().flat_map(Hypothesis::tokens) {
                tokens += 1;
                client.send(Event::Token { id, logprobs });
            }
            let reason = hypothesis.map_or(FinishReason::Length, |hypothesis| hypothesis.reason);
            stage.scheduler.ended(tokens);
            stage.status.generation_tokens += tokens as u64;
            stage.status.finished.count(reason);
            client.send(Event::Finished { reason });
        }
    }

    /// Gives all blocks back. Returns what has happened to the search.
    fn end(&mut self, stage: &mut Stage<'_>) -> Past {
        let removed = self.sequences.drain(..).filter_map(|id| stage.scheduler.remove(id));
        // All sequences were preempted together, so any of them has the numbers.
        removed.map(|sequence| sequence.past).last().unwrap_or_default()
    }
}

impl Policy for Beams {
    fn admitted(&mut self, _: &mut Sequence) {
        self.clients.iter_mut().for_each(Client::leave_queue);
    }

    /// Does nothing, because clients are told of preemptions when the search ends.
    fn preempted(&self, _: &Sequence, _: bool) {}

    fn begin_masks(&mut self, sequence: &mut Sequence, workers: &mut MaskWorkers) {
        let index = self.sequences.iter().position(|&id| id == sequence.id && !sequence.is_trunk());
        let bound = index.and_then(|index| self.bounds.get_mut(index));
        bound.into_iter().for_each(|bound| bound.begin(workers, &[]));
    }

    fn wanted_rows(&self, sequence: &Sequence, entry: &PlannedTokens) -> LogitRows {
        if entry.samples() && !sequence.is_trunk() { LogitRows::Last } else { LogitRows::None }
    }

    fn take_row(
        &mut self,
        sequence: &mut Sequence,
        _: &PlannedTokens,
        _: usize,
        logits: Logits<'_>,
        sampling: Sampling<'_>,
    ) {
        if logits.has_nan() {
            self.fault = Some(RequestError::NotFinite);
        }
        let logits = logits.all();
        let Some(index) = self.sequences.iter().position(|&id| id == sequence.id) else { return };
        if let Some(Err(error)) = self.bounds.get_mut(index).map(|bound| bound.apply(0, logits, false)) {
            self.fault.get_or_insert(RequestError::Constraint(error));
        }
        let len = self.search.row_len().max(self.logprobs.unwrap_or(0));
        let next = sampling.sampler.position_logprobs(logits, 0, len).top;
        let top = self.logprobs.map(|top| next.iter().take(top).copied().collect());
        self.rows[index] = Some(Row { next, top });
    }

    fn accept(&mut self, _: &mut Sequence, _: Ends<'_>) -> Option<usize> {
        self.fault.is_none().then_some(0)
    }

    fn apply(&mut self, entry: &PlannedTokens, prompt: &Prompt, stage: &mut Stage<'_>) {
        // Another sequence of the same pass may have ended the search or this beam.
        let Some(sequence) = stage.scheduler.get_mut(entry.id) else { return };
        if let Some(error) = self.fault.clone() {
            self.fail_all(&error, stage);
        } else if sequence.is_trunk() {
            if sequence.pending() == 0 {
                self.branch_off(entry.id, stage);
            }
        } else if let Some(rows) = self.take_rows() {
            self.advance(&rows, prompt, stage);
        }
    }

    fn drop_cancelled(&mut self, _: &Prompt, stage: &mut Stage<'_>) {
        if self.clients.iter().all(Client::is_closed) {
            self.end(stage);
            stage.status.finished.cancelled += self.clients.len() as u64;
        }
    }

    fn fail(&mut self, _: Sequence, error: &RequestError, stage: &mut Stage<'_>) {
        self.fail_all(error, stage);
    }

    fn is_over(&self) -> bool {
        self.sequences.is_empty()
    }
}
