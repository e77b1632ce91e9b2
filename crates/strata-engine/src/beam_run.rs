//! Beam searches that the engine has taken on: whose they are, which sequences their beams are, and what has come for
//! them.

use std::collections::HashMap;

use strata_kv::{Miss, SequenceId};
use strata_model::LogitRows;

use crate::beam::{BeamSearch, Hypothesis, Row};
use crate::handle::Client;
use crate::sampler::Sampler;
use crate::scheduler::Entry;
use crate::sequence::Preempted;
use crate::{Event, FinishReason, RequestError};

/// The engine's side of one beam search.
///
/// Its live beams have a sequence each, in their order. Where they have lost their blocks there is one sequence instead,
/// the *trunk*, which computes the tokens that all of them begin with; they then branch off it.
pub(crate) struct BeamRun {
    pub(crate) search: BeamSearch,
    pub(crate) sequences: Vec<SequenceId>,
    pub(crate) prompt_len: usize,
    pub(crate) cached_tokens: usize,
    /// Why not more of them, if the client asked.
    pub(crate) miss: Option<Miss>,
    /// Whether it has been admitted before.
    pub(crate) started: bool,
    /// Whether the logits of a beam were not numbers.
    pub(crate) not_finite: bool,
    clients: Vec<Client>,
    /// For each sequence, what follows it, once that has come.
    rows: Vec<Option<Row>>,
    logprobs: Option<usize>,
}

impl BeamRun {
    /// A search whose prompt will be computed by `sequence`.
    pub(crate) fn new(
        sequence: SequenceId,
        search: BeamSearch,
        prompt_len: usize,
        logprobs: Option<usize>,
        clients: Vec<Client>,
    ) -> Self {
        Self {
            search,
            sequences: vec![sequence],
            prompt_len,
            cached_tokens: 0,
            miss: None,
            started: false,
            not_finite: false,
            clients,
            rows: vec![None],
            logprobs,
        }
    }

    /// Whether its only sequence is what several beams begin with.
    pub(crate) fn is_trunk(&self) -> bool {
        self.sequences.len() < self.search.num_live()
    }

    /// Leading tokens that all live beams have in common, those of the prompt included.
    pub(crate) fn num_common(&self) -> usize {
        let common = |beam| {
            let pairs = self.search.tokens(0).zip(self.search.tokens(beam));
            self.prompt_len + pairs.take_while(|(one, other)| one == other).count()
        };
        (0..self.search.num_live()).map(common).min().unwrap_or(self.prompt_len)
    }

    /// Sets which sequences there are from now on.
    pub(crate) fn set_sequences(&mut self, sequences: Vec<SequenceId>) {
        self.rows.clear();
        self.rows.resize_with(sequences.len(), || None);
        self.sequences = sequences;
    }

    /// The rows that a pass is to give for `entry`, its part in it.
    pub(crate) fn wanted_rows(&self, entry: &Entry) -> LogitRows {
        if entry.samples && !self.is_trunk() { LogitRows::Last } else { LogitRows::None }
    }

    /// Takes the row of logits after sequence `id`.
    pub(crate) fn take_row(&mut self, sampler: &mut Sampler, id: SequenceId, logits: &[f32]) {
        self.not_finite |= logits.iter().any(|logit| logit.is_nan());
        let Some(index) = self.sequences.iter().position(|&sequence| sequence == id) else { return };
        let len = self.search.row_len().max(self.logprobs.unwrap_or(0));
        let next = sampler.position_logprobs(logits, 0, len).top;
        let top = self.logprobs.map(|top| next.iter().take(top).copied().collect());
        self.rows[index] = Some(Row { next, top });
    }

    /// What follows each beam, if that is known of all.
    pub(crate) fn take_rows(&mut self) -> Option<Vec<Row>> {
        if self.is_trunk() || self.rows.iter().any(Option::is_none) {
            return None;
        }
        Some(self.rows.iter_mut().filter_map(Option::take).collect())
    }

    /// It has been admitted.
    pub(crate) fn leave_queue(&mut self) {
        self.clients.iter_mut().for_each(Client::leave_queue);
    }

    /// Clients that there are, gone or not.
    pub(crate) fn num_clients(&self) -> usize {
        self.clients.len()
    }

    /// Whether nobody is left to hear of it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.clients.iter().all(Client::is_closed)
    }

    /// The search is over: tells each client its hypothesis, and `finished` why and after how many tokens it ended. Where
    /// there are fewer hypotheses than clients, because the model says that nothing else is possible, some get no token.
    pub(crate) fn deliver(self, preempted: Preempted, mut finished: impl FnMut(FinishReason, usize)) {
        let Self { search, clients, cached_tokens, miss, .. } = self;
        let mut best = search.into_best().into_iter();
        let is_swap = (0..preempted.times).map(|time| time < preempted.swaps);
        for client in clients {
            for swapped in is_swap.clone() {
                client.send(Event::Preempted { swapped });
            }
            let hypothesis = best.next();
            client.send(Event::PromptDone { cached_tokens, miss, logprobs: Vec::new() });
            let mut tokens = 0;
            for (id, logprobs) in hypothesis.iter().flat_map(|hypothesis| hypothesis.tokens()) {
                tokens += 1;
                client.send(Event::Token { id, logprobs });
            }
            let reason = hypothesis.as_ref().map_or(FinishReason::Length, |hypothesis: &Hypothesis| hypothesis.reason);
            finished(reason, tokens);
            client.send(Event::Finished { reason });
        }
    }

    /// Tells every client that it has failed.
    pub(crate) fn fail(&self, error: &RequestError) {
        for client in &self.clients {
            client.send(Event::Failed(error.clone()));
        }
    }
}

/// All beam searches, found by any of their sequences.
#[derive(Default)]
pub(crate) struct BeamRuns {
    /// By the sequence that they began with.
    runs: HashMap<SequenceId, BeamRun>,
    /// To that from all of their sequences.
    first: HashMap<SequenceId, SequenceId>,
}

impl BeamRuns {
    pub(crate) fn insert(&mut self, run: BeamRun) {
        let first = run.sequences[0];
        self.first.insert(first, first);
        self.runs.insert(first, run);
    }

    /// The search that sequence `id` is part of.
    pub(crate) fn get(&self, id: SequenceId) -> Option<&BeamRun> {
        self.runs.get(self.first.get(&id)?)
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut BeamRun> {
        self.runs.get_mut(self.first.get(&id)?)
    }

    /// Sets which sequences the search that `id` is part of has from now on.
    pub(crate) fn set_sequences(&mut self, id: SequenceId, sequences: Vec<SequenceId>) {
        let Some(&first) = self.first.get(&id) else { return };
        let Some(run) = self.runs.get_mut(&first) else { return };
        for id in &run.sequences {
            self.first.remove(id);
        }
        self.first.extend(sequences.iter().map(|&id| (id, first)));
        run.set_sequences(sequences);
    }

    /// Takes the search that `id` is part of out.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<BeamRun> {
        let first = *self.first.get(&id)?;
        let run = self.runs.remove(&first)?;
        for id in &run.sequences {
            self.first.remove(id);
        }
        Some(run)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &BeamRun> {
        self.runs.values()
    }
}
