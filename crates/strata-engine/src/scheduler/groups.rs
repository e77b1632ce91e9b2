//! Sequences of one prompt (K11): continuations that fork off and go their own ways, and the beams of a search, which go
//! in lockstep, hold their seats together, and make room together.

use strata_kv::SequenceId;

use super::Scheduler;
use crate::TokenId;
use crate::sequence::{Place, Sequence};

impl Scheduler {
    /// `child` becomes what `parent` is, all of whose tokens are computed, with `token` after that. Where there are a seat
    /// and blocks it runs, and shares the parent's blocks; else it waits.
    pub(crate) fn fork(&mut self, parent: SequenceId, child: SequenceId, token: TokenId) {
        // What its parent went through before was not its own.
        let mut sequence = Sequence { preemptions: 0, swaps: 0, ..self.copied(parent) };
        sequence.tokens.push(token);
        if self.seats_taken() < self.config.max_num_seqs
            && self.has_room_to_grow(&[&sequence], 1)
            && self.blocks.fork(parent, child).is_ok()
        {
            if self.blocks.append(child, &[token]).is_ok() {
                return self.run(child, sequence);
            }
            self.blocks.free(child);
        }
        sequence.place = Place::Waiting;
        sequence.computed = 0;
        self.queue(child, sequence);
    }

    /// `child` becomes another beam like `parent`, all of whose tokens are computed. It takes no block yet.
    /// [`Scheduler::share_seats`] is to follow.
    pub(crate) fn branch(&mut self, parent: SequenceId, child: SequenceId) {
        let sequence = Sequence { seats: 1, ..self.copied(parent) };
        self.blocks.fork(parent, child).expect("a running parent holds blocks, and a new child none");
        self.run(child, sequence);
    }

    /// Divides the seats of a search of this width among its beams, of which there are no more.
    pub(crate) fn share_seats(&mut self, beams: &[SequenceId], width: usize) {
        for (index, id) in beams.iter().enumerate() {
            let sequence = self.sequences.get_mut(id).expect("a live beam is known");
            self.seats_reserved -= sequence.seats - 1;
            sequence.seats = if index == 0 { width - (beams.len() - 1) } else { 1 };
            self.seats_reserved += sequence.seats - 1;
        }
    }

    /// Whether any of these has lost its blocks.
    pub(crate) fn any_waits(&self, beams: &[SequenceId]) -> bool {
        beams.iter().any(|id| self.sequences[id].place == Place::Waiting)
    }

    /// Appends tokens that are known and have no KV.
    pub(crate) fn extend(&mut self, id: SequenceId, tokens: impl IntoIterator<Item = TokenId>) {
        self.sequences.get_mut(&id).expect("a live beam is known").tokens.extend(tokens);
    }

    /// All beams of a search that have lost their blocks: the first one's sequence waits in their place, with the leading
    /// tokens that all have in common.
    pub(crate) fn gather(&mut self, beams: &[SequenceId], num_common: usize) {
        let tenant = beams.iter().find_map(|id| Some(self.sequences.get(id)?.tenant)).unwrap_or_default();
        let turn = self.tenants.get(&tenant).map(|tenant| tenant.turn);
        let gathered = beams.iter().filter_map(|&id| self.remove(id)).reduce(|mut all, beam| {
            all.seats += beam.seats;
            all.preemptions = all.preemptions.max(beam.preemptions);
            all.swaps = all.swaps.max(beam.swaps);
            all.overtaken = all.overtaken.max(beam.overtaken);
            all
        });
        let Some(mut sequence) = gathered else { return };
        sequence.tokens.truncate(num_common);
        sequence.computed = 0;
        sequence.place = Place::Waiting;
        self.queue(beams[0], sequence);
        // It has not come anew.
        let tenant = self.tenants.get_mut(&tenant).expect("it has a sequence");
        tenant.turn = turn.unwrap_or(tenant.turn);
    }

    /// A running sequence like `id`, which comes after it, and before all that came later, in every order. Its list of
    /// tokens may become twice as long, but not longer than it can come to, before it needs more memory.
    fn copied(&mut self, id: SequenceId) -> Sequence {
        self.branches += 1;
        let sequence = &self.sequences[&id];
        debug_assert!(sequence.place == Place::Running && sequence.pending() == 0, "{id} is to be computed first");
        let mut copy = Sequence { branch: self.branches, ..sequence.clone() };
        let length = copy.tokens.len();
        copy.tokens.reserve_exact(copy.tokens_max.saturating_sub(length).min(length));
        copy
    }

    fn run(&mut self, id: SequenceId, sequence: Sequence) {
        self.running.insert(sequence.running_key(), id);
        self.seats_reserved += sequence.seats - 1;
        self.know(id, sequence);
    }
}
