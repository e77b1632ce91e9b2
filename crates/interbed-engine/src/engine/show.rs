//! After steps, the engine shows its state to those who watch it.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use interbed_kv::{BlockUse, IdHasher, SequenceId};
use interbed_weights::WatchPace;

use super::Worker;
use crate::live::{GroupSight, LiveState, SHOWN_MAX};

/// What the engine shows, and when it shows it next.
#[derive(Default)]
pub(super) struct Show {
    pace: WatchPace,
    /// The state that was shown before the latest one. The next state is written into it.
    state: LiveState,
    numbers: Numbers,
    /// Whether a turn has passed since the state was last shown.
    is_stale: bool,
}

impl Worker {
    /// Shows the present state to those who watch, if it is time to. This costs nothing while nobody watches.
    pub(super) fn show(&mut self) {
        if !self.shared.board.is_watched() {
            return;
        }
        let begin = Instant::now();
        self.show.is_stale = true;
        if !self.show.pace.is_due(begin) {
            return;
        }
        let Show { pace, state, numbers, is_stale } = &mut self.show;
        let of_group = |group| match self.answers.groups.get(&group) {
            Some(group) => group.sight(),
            None => GroupSight { cached: 0, came: begin },
        };
        self.scheduler.live_sequences(SHOWN_MAX, of_group, &mut state.sequences);
        let blocks = self.scheduler.blocks();
        numbers.renew(blocks.sequences());
        state.sequences.iter_mut().for_each(|sequence| sequence.number = numbers.of(SequenceId(sequence.id)));
        blocks.map(|id| numbers.of(id), &mut state.blocks);
        if self.scheduler.is_idle() {
            // Passes show the weights themselves. Showing them between passes as well would hide what the passes show.
            self.runner.shown_weights().into_iter().for_each(|weights| weights.show());
        }
        self.shared.board.show(state);
        *is_stale = false;
        pace.note(begin, Instant::now());
    }

    /// Returns how long an idle engine may sleep before it has to show what has changed; `None` if it has nothing to
    /// show.
    pub(super) fn show_within(&self) -> Option<Duration> {
        let is_due = self.show.is_stale && self.shared.board.is_watched();
        is_due.then(|| self.show.pace.remaining(Instant::now()))
    }
}

/// Small numbers for sequences that hold blocks. A sequence keeps its number, so that blocks which do not change look
/// the same each time.
#[derive(Default)]
struct Numbers {
    of: HashMap<SequenceId, u16, BuildHasherDefault<IdHasher>>,
    /// Numbers below [`next`](Self::next) that nobody has.
    free: BTreeSet<u16>,
    next: u16,
}

impl Numbers {
    /// Gives each of `sequences` a number, and takes back the numbers of all other sequences.
    fn renew(&mut self, sequences: impl Iterator<Item = SequenceId>) {
        let before = std::mem::take(&mut self.of);
        let mut new = Vec::new();
        for id in sequences {
            match before.get(&id) {
                Some(&number) => drop(self.of.insert(id, number)),
                None => new.push(id),
            }
        }
        self.free.extend(before.iter().filter(|(id, _)| !self.of.contains_key(id)).map(|(_, &number)| number));
        for id in new {
            let number = self.free.pop_first().unwrap_or_else(|| {
                self.next = (self.next + 1).min(BlockUse::OWNERS_MAX);
                self.next - 1
            });
            self.of.insert(id, number);
        }
    }

    /// Returns the number of a sequence. A sequence that has none gets the highest number.
    fn of(&self, id: SequenceId) -> u16 {
        self.of.get(&id).copied().unwrap_or(BlockUse::OWNERS_MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_the_lowest_free_one_is_next() {
        let mut numbers = Numbers::default();
        let mut renew = |ids: &[u64]| {
            numbers.renew(ids.iter().copied().map(SequenceId));
            ids.iter().map(|&id| numbers.of(SequenceId(id))).collect::<Vec<_>>()
        };
        assert_eq!(renew(&[5, 6, 7]), [0, 1, 2]);
        assert_eq!(renew(&[6, 7, 9]), [1, 2, 0]);
        assert_eq!(renew(&[7]), [2]);
        assert_eq!(renew(&[7, 10, 11, 12]), [2, 0, 1, 3]);
        assert_eq!(numbers.of(SequenceId(6)), BlockUse::OWNERS_MAX - 1);
    }

    #[test]
    fn more_sequences_than_numbers_share_the_last() {
        let mut numbers = Numbers::default();
        let most = u64::from(BlockUse::OWNERS_MAX);
        numbers.renew((0..most + 5).map(SequenceId));
        assert_eq!(numbers.of(SequenceId(most - 1)), BlockUse::OWNERS_MAX - 1);
        assert_eq!(numbers.of(SequenceId(most + 4)), BlockUse::OWNERS_MAX - 1);
        // Several sequences gave the last number back, but it is one number and is free only once.
        numbers.renew([SequenceId(0)].into_iter());
        numbers.renew((0..most).map(SequenceId));
        assert_eq!(numbers.of.values().collect::<BTreeSet<_>>().len(), usize::from(BlockUse::OWNERS_MAX));
    }
}
