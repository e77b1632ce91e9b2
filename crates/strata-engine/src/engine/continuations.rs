//! Continuations within the engine's loop: they begin, fork off, go on and end.

use strata_kv::{ChainRoot, Miss, SequenceId};

use super::Worker;
use crate::active::{Active, Outcome};
use crate::handle::Client;
use crate::scheduler::{Admitted, Arrival, Entry, Scheduler, StepPlan};
use crate::sequence::Place;
use crate::{Event, FinishReason, Request, RequestError, TokenId};

impl Worker {
    /// Queues what a request asks for.
    pub(super) fn begin(&mut self, request: Request, root: ChainRoot, clients: Vec<Client>) {
        let id = self.new_id();
        let arrival = Arrival {
            id,
            max_tokens: request.params.max_tokens,
            root,
            priority: request.priority,
            tenant: request.tenant,
            explain: request.explain_miss,
            beams: request.beam.map(|beam| beam.width),
            prompt: request.prompt,
        };
        match request.beam {
            Some(beam) => self.begin_beams(beam, &request.params, arrival, clients),
            None => {
                let active = Active::new(&arrival.prompt, request.params, self.config.limits.vocab_size, clients);
                self.active.insert(id, active);
                self.scheduler.add(arrival);
            }
        }
    }

    pub(super) fn drop_cancelled(&mut self) {
        let mut gone = Vec::new();
        for (&id, active) in &mut self.active {
            let (cancelled, goes_on) = active.drop_cancelled();
            self.totals.finished.cancelled += cancelled as u64;
            if !goes_on {
                gone.push(id);
            }
        }
        gone.into_iter().for_each(|id| drop(self.end(id)));
    }

    /// Takes a request out of every structure, and gives its blocks back.
    fn end(&mut self, id: SequenceId) -> Option<Active> {
        let active = self.active.remove(&id)?;
        self.scheduler.remove(id);
        Some(active)
    }

    fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        self.totals.finished.count(reason);
        if let Some(active) = self.end(id) {
            self.scheduler.ended(active.generated);
            active.send(Event::Finished { reason });
        }
    }

    pub(super) fn fail(&mut self, id: SequenceId, error: RequestError) {
        self.fail_beams(id, &error);
        if let Some(active) = self.end(id) {
            self.totals.finished.failed += 1 + active.siblings.len() as u64;
            active.siblings.iter().for_each(|sibling| sibling.send(Event::Failed(error.clone())));
            active.send(Event::Failed(error));
        }
    }

    /// Tells those that had to make room in this step; of beam searches, it is told in the end.
    pub(super) fn tell_preempted(&self, plan: &StepPlan) {
        for id in &plan.preempted {
            if let Some(active) = self.active.get(id) {
                active.send(Event::Preempted { swapped: self.scheduler.sequence(*id).place == Place::Leaving });
            }
        }
    }

    /// A sequence has been admitted, perhaps for the first time.
    pub(super) fn started(&mut self, admitted: Admitted) {
        let Admitted { id, cached, miss } = admitted;
        if let Some(miss) = &miss {
            tracing::debug!("{id}: {cached} tokens of its prompt were cached: {}", miss.reason);
        }
        let miss = miss.map(|miss| Miss { reason: miss.reason.for_client(), ..miss });
        let prompt_len = if let Some(active) = self.active.get_mut(&id).filter(|active| !active.started) {
            active.started = true;
            active.client.leave_queue();
            if active.generated > 0 {
                // It forked off when there was no room, and its prompt has been counted.
                return;
            }
            (active.cached_tokens, active.miss) = (cached, miss);
            active.prompt_len
        } else if let Some(run) = self.beams.get_mut(id).filter(|run| !run.started) {
            (run.started, run.cached_tokens, run.miss) = (true, cached, miss);
            run.leave_queue();
            run.prompt_len
        } else {
            return;
        };
        self.totals.prompt_tokens += prompt_len as u64;
        self.totals.cached_tokens += cached as u64;
    }

    /// A prompt is computed: its other continuations get sequences of their own.
    pub(super) fn fork_siblings(&mut self, entry: &Entry) {
        let Some(active) = self.active.get_mut(&entry.id).filter(|_| entry.samples) else { return };
        for sibling in active.take_siblings() {
            let id = self.new_id();
            self.active.insert(id, sibling);
            self.advance(id, entry, |scheduler, token| scheduler.fork(entry.id, id, token));
            // It has ended, or runs, or is still in the queue.
            if let Some(sibling) = self.active.get_mut(&id).filter(|_| self.scheduler.is_running(id)) {
                sibling.started = true;
                sibling.client.leave_queue();
            }
        }
    }

    /// Continuation `id` goes on by what the pass sampled for it in `entry`; `append` takes a token that does not end it.
    pub(super) fn advance(&mut self, id: SequenceId, entry: &Entry, append: impl FnOnce(&mut Scheduler, TokenId)) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let length = active.prompt_len + active.generated;
        let room = self.config.limits.max_model_len.saturating_sub(length);
        let before = active.generated;
        let outcome = active.advance(entry, room, &self.config.eos_token_ids);
        self.totals.generation_tokens += (active.generated - before) as u64;
        match outcome {
            Outcome::Prompt => {}
            Outcome::Token(token) => append(&mut self.scheduler, token),
            Outcome::Finished(reason) => self.finish(id, reason),
            Outcome::NotFinite => self.fail(id, RequestError::NotFinite),
        }
    }
}
