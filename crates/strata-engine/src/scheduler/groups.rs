//! Sequences of one prompt (K11): continuations that fork off and go their own ways, and the beams of a search, which go
//! in lockstep, hold their seats together, and make room together.

use strata_kv::SequenceId;

use super::Scheduler;
use crate::TokenId;
use crate::sequence::{Place, Sequence};

impl Scheduler {
    /// `child` becomes what `parent` is, all of whose tokens are computed, with `token` after that. Where a seat and the
    /// block for the token are free it runs, and shares the parent's blocks; else it waits.
    pub(crate) fn fork(&mut self, parent: SequenceId, child: SequenceId, token: TokenId) {
        let mut sequence = self.copied(parent);
        sequence.tokens.push(token);
        if self.seats < self.config.max_num_seqs && self.blocks.fork(parent, child).is_ok() {
            if self.blocks.append(child, &[token]).is_ok() {
                return self.seat(child, sequence);
            }
            self.blocks.free(child);
        }
        sequence.place = Place::Waiting;
        sequence.computed = 0;
        self.waiting.insert(sequence.waiting_key(), child);
        self.sequences.insert(child, sequence);
    }

    /// The waiting sequence `id` is to be a beam search of this width: it runs once so many sequences may run besides the
    /// others, and keeps these seats for all its beams.
    pub(crate) fn reserve_seats(&mut self, id: SequenceId, width: usize) {
        let sequence = self.sequences.get_mut(&id).expect("a beam search that waits is known");
        debug_assert!(sequence.place == Place::Waiting && width <= self.config.max_num_seqs);
        sequence.seats = width;
    }

    /// `child` becomes another beam like `parent`, all of whose tokens are computed. It takes no block yet, and its seat is
    /// among those that the search has.
    pub(crate) fn branch(&mut self, parent: SequenceId, child: SequenceId) {
        let sequence = Sequence { seats: 0, ..self.copied(parent) };
        self.blocks.fork(parent, child).expect("a running parent holds blocks, and a new child none");
        self.seat(child, sequence);
    }

    /// A beam is given up; the seats that it holds go to `heir`, another one of its search.
    pub(crate) fn drop_branch(&mut self, id: SequenceId, heir: SequenceId) {
        let Some(dropped) = self.remove(id) else { return };
        self.sequences.get_mut(&heir).expect("the heir lives").seats += dropped.seats;
        self.seats += dropped.seats;
    }

    /// Appends tokens that are known and have no KV.
    pub(crate) fn extend(&mut self, id: SequenceId, tokens: impl IntoIterator<Item = TokenId>) {
        self.sequences.get_mut(&id).expect("a live beam is known").tokens.extend(tokens);
    }

    /// All beams of a search lose their blocks, one of them having been preempted. The first one's sequence waits in their
    /// place, with the leading tokens that all have in common.
    pub(crate) fn gather(&mut self, beams: &[SequenceId], num_common: usize) {
        let gathered = beams.iter().filter_map(|&id| self.remove(id)).reduce(|mut all, beam| {
            all.seats += beam.seats;
            all.arrival = all.arrival.min(beam.arrival);
            all.preemptions = all.preemptions.max(beam.preemptions);
            all.overtaken = all.overtaken.max(beam.overtaken);
            all
        });
        let Some(mut sequence) = gathered else { return };
        sequence.tokens.truncate(num_common);
        sequence.computed = 0;
        sequence.place = Place::Waiting;
        self.waiting.insert(sequence.waiting_key(), beams[0]);
        self.sequences.insert(beams[0], sequence);
    }

    /// A running sequence like `id`, with a place of its own in every order.
    fn copied(&mut self, id: SequenceId) -> Sequence {
        self.arrivals += 1;
        let sequence = &self.sequences[&id];
        debug_assert!(sequence.place == Place::Running && sequence.pending() == 0, "{id} is to be computed first");
        Sequence { arrival: self.arrivals, ..sequence.clone() }
    }

    fn seat(&mut self, id: SequenceId, sequence: Sequence) {
        self.seats += sequence.seats;
        self.running.insert(sequence.running_key(), id);
        let before = self.sequences.insert(id, sequence);
        debug_assert!(before.is_none(), "{id} was there already");
    }
}
