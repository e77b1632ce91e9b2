//! An embedding pools the hidden states of a prompt. Nothing is sampled.
//!
//! The last token is always computed, whatever the prefix cache holds, so pooling by the last token works with prefix
//! hits. The mean is summed in f64 in the order of positions, however the prompt is cut into chunks. A position that is
//! computed again counts once.

use interbed_kv::SequenceId;
use interbed_model::{LogitRows, Logits, Pooling};

use super::{Policy, Prompt, Sampling, Stage};
use crate::continuation::Ends;
use crate::handle::Client;
use crate::scheduler::PlannedTokens;
use crate::sequence::Sequence;
use crate::{Event, FinishReason, RequestError};

pub(super) struct Embedding {
    pooling: Pooling,
    /// The sequence that computes the prompt, until it ends.
    sequence: Option<SequenceId>,
    clients: Vec<Client>,
    /// The sum of the hidden states of the first `taken` positions, `[hidden_size]`. With pooling by the last token,
    /// this is the last row that came.
    sum: Vec<f64>,
    taken: usize,
    not_finite: bool,
}

impl Embedding {
    /// Creates the embedding of the prompt of sequence `id`, for each of `clients`.
    pub(super) fn new(id: SequenceId, pooling: Pooling, clients: Vec<Client>) -> Self {
        Self { pooling, sequence: Some(id), clients, sum: Vec::new(), taken: 0, not_finite: false }
    }

    fn tell(&self, event: &Event) {
        self.clients.iter().for_each(|client| client.send(event.clone()));
    }

    /// Gives all blocks back.
    fn end(&mut self, stage: &mut Stage<'_>) {
        self.sequence.take().into_iter().for_each(|id| drop(stage.scheduler.remove(id)));
    }
}

impl Policy for Embedding {
    fn admitted(&mut self, _: &mut Sequence) {
        self.clients.iter_mut().for_each(Client::leave_queue);
    }

    fn preempted(&self, _: &Sequence, swapped: bool) {
        self.tell(&Event::Preempted { swapped });
    }

    fn wanted_rows(&self, _: &Sequence, entry: &PlannedTokens) -> LogitRows {
        match self.pooling {
            Pooling::Last if entry.samples() => LogitRows::LastHidden,
            Pooling::Last => LogitRows::None,
            Pooling::Mean => LogitRows::AllHidden,
        }
    }

    fn take_row(&mut self, _: &mut Sequence, _: &PlannedTokens, position: usize, hidden: Logits<'_>, _: Sampling<'_>) {
        let hidden = hidden.all();
        self.not_finite |= hidden.iter().any(|number| !number.is_finite());
        self.sum.resize(hidden.len(), 0.0);
        match self.pooling {
            Pooling::Last => self.sum.fill(0.0),
            // A row that is computed again after a preemption has been counted already.
            Pooling::Mean if position != self.taken => return,
            Pooling::Mean => self.taken += 1,
        }
        self.sum.iter_mut().zip(hidden).for_each(|(sum, number)| *sum += f64::from(*number));
    }

    fn accept(&mut self, _: &mut Sequence, _: Ends<'_>) -> Option<usize> {
        (!self.not_finite).then_some(0)
    }

    fn apply(&mut self, entry: &PlannedTokens, prompt: &Prompt, stage: &mut Stage<'_>) {
        if self.not_finite {
            let failed = stage.scheduler.remove(entry.id);
            failed.into_iter().for_each(|sequence| self.fail(sequence, &RequestError::NotFinite, stage));
        } else if entry.samples() {
            self.end(stage);
            let count = self.taken.max(1) as f64;
            let mean = self.sum.iter().map(|sum| (sum / count) as f32).collect();
            let reason = FinishReason::Length;
            self.tell(&prompt.done(Vec::new()));
            self.tell(&Event::Embedding(mean));
            self.tell(&Event::Finished { reason });
            stage.status.finished.count(reason);
        }
    }

    fn drop_cancelled(&mut self, _: &Prompt, stage: &mut Stage<'_>) {
        if self.clients.iter().all(Client::is_closed) {
            self.end(stage);
            stage.status.finished.cancelled += self.clients.len() as u64;
        }
    }

    fn fail(&mut self, _: Sequence, error: &RequestError, stage: &mut Stage<'_>) {
        self.sequence = None;
        stage.status.finished.failed += self.clients.len() as u64;
        self.tell(&Event::Failed(error.clone()));
    }

    fn is_over(&self) -> bool {
        self.sequence.is_none()
    }
}
