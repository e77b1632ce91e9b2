//! Beam searches within the engine's loop (K11).

use strata_kv::SequenceId;

use super::Worker;
use crate::beam::BeamSearch;
use crate::beam_run::BeamRun;
use crate::handle::Client;
use crate::scheduler::{Arrival, StepPlan};
use crate::sequence::Preempted;
use crate::{BeamParams, RequestError, SamplingParams};

impl Worker {
    /// Queues a beam search.
    pub(super) fn begin_beams(
        &mut self,
        params: BeamParams,
        sampling: &SamplingParams,
        arrival: Arrival,
        clients: Vec<Client>,
    ) {
        let (prompt_len, eos) = (arrival.prompt.len(), &self.config.eos_token_ids);
        let search = BeamSearch::new(params, clients.len(), prompt_len, sampling, eos);
        self.beams.insert(BeamRun::new(arrival.id, search, prompt_len, sampling.logprobs, clients));
        self.scheduler.add(arrival);
    }

    /// Ends the searches of which nobody is left to hear.
    pub(super) fn drop_cancelled_beams(&mut self) {
        let cancelled = self.beams.iter().filter(|run| run.is_cancelled());
        let gone: Vec<_> = cancelled.map(|run| (run.sequences[0], run.num_clients())).collect();
        for (id, clients) in gone {
            self.totals.finished.cancelled += clients as u64;
            self.end_beams(id);
        }
    }

    /// Searches whose beams have lost their blocks, to others or to a failed swap, wait as one sequence each.
    pub(super) fn gather_beams(&mut self, plan: &mut StepPlan) {
        let lost = |run: &&BeamRun| run.sequences.len() > 1 && self.scheduler.any_waits(&run.sequences);
        let gathered: Vec<_> =
            self.beams.iter().filter(lost).map(|run| (run.sequences.clone(), run.num_common())).collect();
        for (sequences, num_common) in gathered {
            plan.entries.retain(|entry| !sequences.contains(&entry.id));
            self.scheduler.gather(&sequences, num_common);
            self.beams.set_sequences(sequences[0], vec![sequences[0]]);
        }
    }

    /// A pass in which a sequence of a search took part has retired.
    pub(super) fn retire_beams(&mut self, id: SequenceId) {
        // Another sequence of the same pass may have ended the search.
        let Some(run) = self.beams.get_mut(id) else { return };
        if run.not_finite {
            return self.fail_beams(id, &RequestError::NotFinite);
        }
        if run.is_trunk() {
            if self.scheduler.sequence(id).pending() == 0 {
                self.branch_off(id);
            }
        } else if let Some(rows) = run.take_rows() {
            let sequences = run.sequences.clone();
            let branches = run.search.advance(&rows);
            if branches.is_empty() {
                return self.finish_beams(id);
            }
            let width = run.search.width();
            let parents: Vec<_> = branches.iter().map(|branch| sequences[branch.parent]).collect();
            // First, so that there are never more sequences than beams.
            for &dead in sequences.iter().filter(|id| !parents.contains(id)) {
                self.scheduler.remove(dead);
            }
            let next = self.branch(parents.into_iter());
            self.scheduler.share_seats(&next, width);
            for (&id, branch) in next.iter().zip(&branches) {
                self.scheduler.extend(id, [branch.token]);
            }
            self.beams.set_sequences(id, next);
        }
    }

    /// Fails a search and gives its blocks back.
    pub(super) fn fail_beams(&mut self, id: SequenceId, error: &RequestError) {
        if let Some((run, _)) = self.end_beams(id) {
            self.totals.finished.failed += run.num_clients() as u64;
            run.fail(error);
        }
    }

    /// All beams branch off the trunk `id`, with the tokens that they do not have in common.
    fn branch_off(&mut self, id: SequenceId) {
        let Some(run) = self.beams.get(id) else { return };
        let (num_live, known) = (run.search.num_live(), run.num_common() - run.prompt_len);
        let next = self.branch(std::iter::repeat_n(id, num_live));
        let Some(run) = self.beams.get(id) else { return };
        self.scheduler.share_seats(&next, run.search.width());
        for (beam, &sequence) in next.iter().enumerate() {
            self.scheduler.extend(sequence, run.search.tokens(beam).skip(known));
        }
        self.beams.set_sequences(id, next);
    }

    /// A sequence for each new beam, given those of their parents: the parent's own for its first child, new ones for
    /// others.
    fn branch(&mut self, parents: impl Iterator<Item = SequenceId>) -> Vec<SequenceId> {
        let mut next = Vec::new();
        for parent in parents {
            if next.contains(&parent) {
                let child = self.new_id();
                self.scheduler.branch(parent, child);
                next.push(child);
            } else {
                next.push(parent);
            }
        }
        next
    }

    fn finish_beams(&mut self, id: SequenceId) {
        let Some((run, preempted)) = self.end_beams(id) else { return };
        let Self { totals, scheduler, .. } = self;
        run.deliver(preempted, |reason, tokens| {
            scheduler.ended(tokens);
            totals.generation_tokens += tokens as u64;
            totals.finished.count(reason);
        });
    }

    /// Takes a search out of every structure, and gives its blocks back. Returns it with the times that it was preempted.
    fn end_beams(&mut self, id: SequenceId) -> Option<(BeamRun, Preempted)> {
        let run = self.beams.remove(id)?;
        let removed = run.sequences.iter().filter_map(|&id| self.scheduler.remove(id));
        // All have been through the same.
        let preempted = removed.map(|sequence| sequence.preempted()).last().unwrap_or_default();
        Some((run, preempted))
    }
}
