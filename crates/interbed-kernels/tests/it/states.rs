//! Blocks of states for tests, among blocks of other groups.

use interbed_kernels::{BlockGroups, KvDType, StateLayer, StateLayout, StateShape, StateSpan};

use crate::support::alike;

/// The number of blocks of states.
pub const STATES: u32 = 6;

/// The number of the first block of states: a trunk and a window come before them.
pub const FIRST: u32 = 7;

/// Blocks of states, of three layers each. The middle layer's are tested.
#[derive(Clone)]
pub struct StateBlocks {
    pub layer: StateLayer,
    groups: BlockGroups,
    pub bytes: Vec<u8>,
}

impl StateBlocks {
    pub fn new(shape: StateShape) -> Self {
        let odd = StateShape { rows: 1, channels: 3, ..StateShape::default() };
        let groups = BlockGroups::new(alike(1, 1, 6, 4, KvDType::F32), 4)
            .with(alike(2, 1, 2, 4, KvDType::F16), 3)
            .with(StateLayout::new([odd, shape, odd]), STATES as usize);
        assert_eq!(groups.groups()[2].numbers().start, FIRST as usize);
        Self { layer: groups.states(2).layer(1), bytes: vec![0xff; groups.bytes()], groups }
    }

    /// The state of the tested layer in a block: its rows, and its matrices.
    pub fn state(&self, block: u32) -> [Vec<f32>; 2] {
        let shape = self.layer.shape();
        let start = self.groups.bytes_of(block).start;
        let numbers = |offset: usize, bytes: usize| {
            let bytes = &self.bytes[start + offset..][..bytes];
            bytes.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)).collect()
        };
        [
            numbers(self.layer.rows_offset(), shape.row_bytes()),
            numbers(self.layer.matrices_offset(), shape.matrix_bytes()),
        ]
    }

    /// Asserts that nothing was written but the rows, or the matrices, of the tested layer in `blocks`.
    pub fn assert_untouched_but(&self, blocks: &[u32], is_matrices: bool) {
        let shape = self.layer.shape();
        let mut rest = self.bytes.clone();
        for &block in blocks {
            let (offset, len) = match is_matrices {
                true => (self.layer.matrices_offset(), shape.matrix_bytes()),
                false => (self.layer.rows_offset(), shape.row_bytes()),
            };
            rest[self.groups.bytes_of(block).start + offset..][..len].fill(0xff);
        }
        assert!(rest.iter().all(|&byte| byte == 0xff), "bytes of others were written");
    }
}

/// The spans of one sequence that is cut into passes of these lengths, and has up to `drafts` drafts in each: each goes
/// on from a block in which the pass before has left the state, in turns in place and elsewhere.
pub fn passes(lengths: &[usize], drafts: usize) -> Vec<StateSpan> {
    let mut left: usize = lengths.iter().sum();
    let mut spans: Vec<StateSpan> = Vec::new();
    for (index, &length) in lengths.iter().enumerate() {
        left -= length;
        let from = spans.last().map(|span| span.to);
        let to = match from {
            Some(from) if index % 3 == 2 => from,
            Some(from) => FIRST + (from - FIRST + 1) % STATES,
            None => FIRST,
        };
        spans.push(StateSpan { tokens: length + drafts.min(left), from, to, stored_after: length });
    }
    spans
}

/// Cuts `tokens` into passes whose lengths follow from `cuts`.
pub fn lengths(tokens: usize, mut cuts: u64) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut left = tokens;
    while left > 0 {
        let next = (1 + cuts as usize % 7).min(left);
        cuts = cuts.rotate_right(3).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ left as u64;
        lengths.push(next);
        left -= next;
    }
    lengths
}
