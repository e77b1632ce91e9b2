//! A batch in the form that devices need.

use std::ops::Range;

use interbed_device::KvSequences;
use interbed_kernels::{AttentionSpan, KvPlace, STRETCH, StateSpan};

use crate::batch::{BatchSequence, GroupBlocks, LogitRow, SequenceBlocks};
use crate::below::{FrameId, stretches_below};
use crate::blueprint::QueryGrowth;
use crate::kept::{KeptGroup, KeptGroups, TrunkUse};
use crate::rope::RopeTable;

/// A batch in the form that devices need, with one row for each token. [`set`](Self::set) reuses the memory of earlier
/// batches, and allocates more only if this memory is too small.
#[derive(Debug, Default)]
pub struct BatchRows {
    pub(super) num_sequences: usize,
    pub(super) tokens: Vec<u32>,
    /// The position of each row, and the length of the prompt of the row's sequence.
    pub(super) positions: Vec<(usize, usize)>,
    /// The places of each sequence's KV, for one group after the other: as many spans as sequences for each group.
    pub(super) spans: Vec<AttentionSpan>,
    pub(super) tables: Vec<u32>,
    /// The places of each sequence's states, if the model keeps states.
    pub(super) states: Vec<StateSpan>,
    pub(super) wanted: Vec<LogitRow>,
    /// Whether each of `wanted` asks for the hidden state instead of the logits.
    pub(super) wanted_hidden: Vec<bool>,
    /// How many of the greatest logits suffice for each of `wanted`, or `None` if all logits are needed.
    pub(super) wanted_best: Vec<Option<usize>>,
    /// The row numbers of `wanted`.
    pub(super) wanted_rows: Vec<u32>,
    /// The number of each row and the factor of its query, in models whose queries grow with their positions.
    pub(super) row_numbers: Vec<u32>,
    pub(super) growth: Vec<f32>,
    /// Even numbers, odd numbers and as many ones, in models whose queries alternate with gates.
    pub(super) alternating: [Vec<u32>; 2],
    pub(super) ones: Vec<f32>,
    /// The places of the rows of a table beside the embedding, in models that have one: for all tokens, and for the
    /// wanted ones alone.
    pub(super) of_table: [Vec<u32>; 2],
    /// The sequences that have KV below memory.
    pub(super) below: Vec<Below>,
    /// What is left of the batch once only wanted rows are kept, if layers after that still attend to tokens.
    pub(super) kept: KeptRows,
    /// The frames of KV below memory for which the pass will ask, in this order.
    pub(super) frames: Vec<FrameId>,
}

/// The wanted rows of a batch. Each run of successive rows of one sequence is a sequence of its own.
#[derive(Debug, Default)]
pub(super) struct KeptRows {
    /// The number of runs.
    pub(super) runs: usize,
    /// The places of each run's KV, for one group after the other; none of states. The list is empty if no layer
    /// attends for these rows alone.
    pub(super) spans: Vec<AttentionSpan>,
    /// The runs that have KV below memory.
    pub(super) below: Vec<Below>,
}

/// A sequence with KV below memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Below {
    /// The sequence's index in the batch.
    pub(super) sequence: usize,
    /// The index of the span that says where its KV in memory is.
    pub(super) span: usize,
    pub(super) first_row: usize,
    /// The number of positions, from the first on, whose KV is below memory.
    pub(super) positions: usize,
}

impl BatchRows {
    /// Replaces all rows with those of `batch`. `groups` is what the layers of the model keep.
    ///
    /// # Panics
    /// Panics if [`BatchSequence::below`], the number of positions whose KV is on disk or in a shared store, is not a
    /// multiple of [`STRETCH`] or exceeds [`BatchSequence::first_position`]. Also panics if the blocks of a sequence
    /// are not those of `groups`, if there is a state before the first position or none before a later one, or if more
    /// tokens are behind a state than there are.
    pub fn set(&mut self, batch: &[BatchSequence<'_>], groups: &KeptGroups) {
        self.below.clear();
        self.frames.clear();
        self.tokens.clear();
        self.positions.clear();
        self.wanted.clear();
        self.wanted_hidden.clear();
        self.wanted_best.clear();
        self.wanted_rows.clear();
        for (index, sequence) in batch.iter().enumerate() {
            let first_row = self.tokens.len();
            let count = sequence.tokens.len();
            self.tokens.extend_from_slice(sequence.tokens);
            self.positions.extend((0..count).map(|i| (sequence.first_position + i, sequence.prompt_len)));
            let positions = sequence.below;
            if positions > 0 {
                self.below.push(Below { sequence: index, span: index, first_row, positions });
            }
            let wanted = sequence.logits.of(count);
            self.wanted_hidden.extend(wanted.clone().map(|_| sequence.logits.are_hidden()));
            self.wanted_best.extend(wanted.clone().map(|_| sequence.logits.best()));
            self.wanted_rows.extend(wanted.clone().map(|token| (first_row + token) as u32));
            self.wanted.extend(wanted.map(|token| LogitRow { sequence: index, token }));
        }
        self.set_places(batch, groups);
        self.set_kept(groups);
        let are_kept = self.wanted.len() < self.tokens.len();
        for &TrunkUse { index: layer, window, is_shared } in groups.uses_of_trunk() {
            let (spans, below) = match is_shared && are_kept {
                true => (&self.kept.spans, &self.kept.below),
                false => (&self.spans, &self.below),
            };
            for &Below { sequence, span, positions, .. } in below {
                let stretches = stretches_below(spans[span].first_position, positions, window);
                self.frames.extend(stretches.map(|stretch| FrameId { sequence, layer, stretch }));
            }
        }
    }

    /// Makes a sequence of each run of wanted rows, if layers attend for these rows alone.
    fn set_kept(&mut self, groups: &KeptGroups) {
        let KeptRows { spans, below, runs } = &mut self.kept;
        spans.clear();
        below.clear();
        *runs = 0;
        if !groups.shares() {
            return;
        }
        // As many as there can be, whatever a pass wants.
        spans.reserve(self.spans.len() / self.num_sequences.max(1) * self.tokens.len());
        below.reserve(self.tokens.len());
        if self.wanted.len() == self.tokens.len() {
            return;
        }
        let wanted = || {
            let follows =
                |one: &LogitRow, next: &LogitRow| one.sequence == next.sequence && one.token + 1 == next.token;
            self.wanted.chunk_by(follows)
        };
        for of_group in self.spans.chunks_exact(self.num_sequences.max(1)) {
            spans.extend(wanted().map(|run| {
                let LogitRow { sequence, token } = run[0];
                let AttentionSpan { first_position, ref held, ref place, .. } = of_group[sequence];
                let (first_position, tokens) = (first_position + token, run.len());
                AttentionSpan {
                    first_position,
                    tokens,
                    held: held.start..first_position + tokens,
                    place: place.clone(),
                }
            }));
        }
        let mut first_row = 0;
        for (span, run) in wanted().enumerate() {
            let of_run = self.below.iter().filter(|below| below.sequence == run[0].sequence);
            below.extend(of_run.map(|&of_run| Below { span, first_row, ..of_run }));
            first_row += run.len();
            *runs += 1;
        }
    }

    /// Replaces the places of what the sequences keep.
    fn set_places(&mut self, batch: &[BatchSequence<'_>], groups: &KeptGroups) {
        self.num_sequences = batch.len();
        self.spans.clear();
        self.tables.clear();
        self.states.clear();
        for sequence in batch {
            let (positions, first_position) = (sequence.below, sequence.first_position);
            assert!(positions.is_multiple_of(STRETCH) && positions <= first_position);
            assert_eq!(sequence.groups.len() + 1, groups.groups().len(), "blocks for each group of layers");
            self.add_span(sequence, positions, sequence.blocks);
        }
        for (group, kept) in groups.groups().iter().enumerate().skip(1) {
            for sequence in batch {
                match (kept, sequence.groups[group - 1]) {
                    (KeptGroup::Kv { .. }, GroupBlocks::Window { first, blocks }) => {
                        self.add_span(sequence, first, blocks);
                    }
                    (KeptGroup::States(_), GroupBlocks::State { from, to, tokens_behind }) => {
                        let is_first = sequence.first_position == 0;
                        assert_eq!(from.is_none(), is_first, "the state before a token stands for all earlier tokens");
                        let tokens = sequence.tokens.len();
                        self.states.push(StateSpan { tokens, from, to, stored_after: tokens - tokens_behind });
                    }
                    _ => panic!("blocks of another kind than group {group} has"),
                }
            }
        }
    }

    /// Adds the place of a sequence's keys and values from position `first` on.
    fn add_span(&mut self, sequence: &BatchSequence<'_>, first: usize, blocks: SequenceBlocks<'_>) {
        let place = match blocks {
            SequenceBlocks::Listed(table) => {
                let begin = self.tables.len() as u32;
                self.tables.extend_from_slice(table);
                KvPlace::Listed(begin..self.tables.len() as u32)
            }
            SequenceBlocks::From(first) => KvPlace::From(first),
        };
        let (first_position, tokens) = (sequence.first_position, sequence.tokens.len());
        self.spans.push(AttentionSpan { first_position, tokens, held: first..first_position + tokens, place });
    }

    /// Prepares [`Pass::part_alternating`](super::Pass::part_alternating) for tensors of up to `count` pairs of pieces
    /// a row.
    pub fn set_alternating(&mut self, count: usize) {
        let pairs = (self.tokens.len() * count) as u32;
        for (first, places) in (0..).zip(&mut self.alternating) {
            places.clear();
            places.extend((0..pairs).map(|pair| 2 * pair + first));
        }
        self.ones.resize(self.ones.len().max(pairs as usize), 1.0);
    }

    /// Prepares [`Pass::take_table_row`](super::Pass::take_table_row) for a table that has `count` rows for each token.
    pub fn set_table_rows(&mut self, count: usize) {
        let Self { of_table: [of_all, of_kept], wanted_rows, tokens, .. } = self;
        of_all.clear();
        of_kept.clear();
        of_kept.reserve(tokens.len() * count);
        for row in 0..count as u32 {
            of_all.extend((0..tokens.len() as u32).map(|token| token * count as u32 + row));
            of_kept.extend(wanted_rows.iter().map(|&token| token * count as u32 + row));
        }
        self.ones.resize(self.ones.len().max(tokens.len()), 1.0);
    }

    /// Returns the places of rows in a table's rows, for one row of each token after the other: those of all tokens, or
    /// of wanted tokens alone.
    pub(super) fn table_rows(&self, wanted_alone: bool) -> &[u32] {
        &self.of_table[usize::from(wanted_alone)]
    }

    /// Computes the factor by which the query of each row is multiplied. Models that scale queries according to the
    /// token's position need these factors. `growth` describes the scaling.
    pub fn set_growth(&mut self, growth: QueryGrowth) {
        self.row_numbers.clear();
        self.row_numbers.extend(0..self.positions.len() as u32);
        self.growth.clear();
        self.growth.extend(self.positions.iter().map(|&(position, _)| growth.factor(position)));
    }

    /// Returns the frames (pieces of KV on disk or in a shared store) that the forward pass will request, in this
    /// order.
    pub fn frames(&self) -> &[FrameId] {
        &self.frames
    }

    /// Returns the token id of each row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the tokens whose logits or hidden states are wanted, in the order of their rows.
    pub fn wanted(&self) -> &[LogitRow] {
        &self.wanted
    }

    /// Returns the [`wanted`](Self::wanted) tokens in runs of at most `most` tokens. The flag of a run is true if the
    /// hidden states of all its tokens are wanted, and false if the logits of all its tokens are wanted.
    pub fn wanted_runs(&self, most: usize) -> impl Iterator<Item = (bool, &[LogitRow])> {
        let mut rest = &self.wanted[..];
        let kinds = self.wanted_hidden.chunk_by(|one, next| one == next).flat_map(move |run| run.chunks(most));
        kinds.map(move |kinds| (kinds[0], rest.split_off(..kinds.len()).unwrap_or_default()))
    }

    /// Returns how many of the greatest logits suffice for every wanted row in `range`. Returns `None` if one of these
    /// rows needs all its logits. `range` is a range of indices in [`wanted`](Self::wanted).
    pub fn wanted_best(&self, range: Range<usize>) -> Option<usize> {
        let best = self.wanted_best[range].iter();
        best.copied().reduce(|one, other| Some(one?.max(other?))).flatten()
    }

    /// Returns the places of each sequence's KV of one group in the device's memory.
    pub fn sequences(&self, group: usize) -> KvSequences<'_> {
        let count = self.num_sequences;
        KvSequences { spans: &self.spans[group * count..(group + 1) * count], tables: &self.tables }
    }

    /// Returns the places of each sequence's states in the device's memory.
    pub fn states(&self) -> &[StateSpan] {
        &self.states
    }

    /// Writes the cosines of all rows' positions, then their sines, `[2, rows, rotated / 2]`.
    pub(super) fn fill_rotation(&self, table: &RopeTable, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(out.len() / 2);
        let half = cos.len() / self.positions.len().max(1);
        let rows = cos.chunks_exact_mut(half.max(1)).zip(sin.chunks_exact_mut(half.max(1)));
        for ((cos, sin), &(position, prompt_len)) in rows.zip(&self.positions) {
            table.fill(position, prompt_len, cos, sin);
        }
    }
}
