//! One tile: consecutive tokens of a sequence, with the query heads that share a KV head, over a range of positions.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::products::{RowSlots, add_scores, add_values, turn_keys, widen_values};
use super::softmax::{Seen, finish, merge, weigh_rows};
use super::{CHUNK, RUN, SEGMENT};
use crate::simd::{LANES, Simd, dispatch};
use crate::{KvDType, KvLayer, KvView, Level, Matrix};

/// Rows (tokens times query heads) of a tile: what reads of keys and values are shared among.
pub(super) const ROWS: usize = 64;

/// Elements of the sums of a tile's rows.
const SUMS: usize = 16 << 10;

/// Tiles of at least this many rows widen values once for all rows rather than for each block of rows.
const ROWS_TO_WIDEN: usize = 12;

/// Rows that a tile of heads with `head_dim` elements has at most.
pub(super) const fn rows_max(head_dim: usize) -> usize {
    let fitting = SUMS / head_dim;
    if fitting < ROWS { fitting } else { ROWS }
}

/// The operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub layer: KvLayer,
    /// Where the sequence's keys and values lie.
    pub kv: KvView<'a>,
    /// Slot 0 of this layer's and head's keys in block 0.
    pub keys: *const u8,
    /// The first token's query of the tile's first head. Heads follow each other, tokens are `token_stride` apart.
    pub queries: *const f32,
    pub token_stride: usize,
    /// Query heads of the tile.
    pub heads: usize,
    /// Position of the first token.
    pub first_position: usize,
    /// Consecutive tokens; with `heads`, no more rows than [`rows_max`].
    pub tokens: usize,
    pub window: Option<usize>,
    pub scale: f32,
    /// A vector of the heads' sinks, if they have any; those of the tile's heads.
    pub sinks: Option<Matrix<'a>>,
}

impl Tile<'_> {
    pub fn rows(&self) -> usize {
        self.tokens * self.heads
    }

    /// Positions that a token of the tile sees.
    fn seen_by(&self, token: usize) -> Range<usize> {
        seen_from(self.first_position + token, self.window)
    }

    /// Positions that any token of the tile sees.
    pub fn seen(&self) -> Range<usize> {
        self.seen_by(0).start..self.first_position + self.tokens
    }
}

/// Positions that a token at `position` sees: itself and those before it, as far as the window reaches.
pub(super) fn seen_from(position: usize, window: Option<usize>) -> Range<usize> {
    window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1
}

/// Segments that these positions lie in.
pub(super) fn segments_of(positions: &Range<usize>) -> Range<usize> {
    positions.start / SEGMENT..positions.end.div_ceil(SEGMENT)
}

/// Memory that a thread works in; lives on its stack, and is not cleared.
pub(super) struct Workspace {
    /// Keys turned to `[CHUNK, RUN]`, or values widened to `[RUN, CHUNK]`.
    chunk: MaybeUninit<Aligned<{ CHUNK * RUN }>>,
    /// Scores, then weights: `[row, RUN]`.
    scores: MaybeUninit<Aligned<{ ROWS * RUN }>>,
    /// Sums of a segment that is not a row's first: `[row, head_dim]`.
    sums: MaybeUninit<Aligned<SUMS>>,
    /// The keys of a run that each row sees.
    keys: [Range<usize>; ROWS],
}

#[repr(C, align(64))]
struct Aligned<const COUNT: usize>([f32; COUNT]);

impl Workspace {
    pub const fn new() -> Self {
        let keys = [const { 0..0 }; ROWS];
        Self { chunk: MaybeUninit::uninit(), scores: MaybeUninit::uninit(), sums: MaybeUninit::uninit(), keys }
    }
}

/// Where the outcome of a tile goes, row by row; rows are `[token, head]`.
pub(super) struct Outcome<'a> {
    /// `[head_dim]` each, or null if it is not wanted. Their initial contents do not matter where a row's first segment
    /// is among those computed.
    pub sums: &'a [*mut f32],
    /// As many; what a row saw, of segments before as well.
    pub seen: &'a mut [Seen],
}

/// What the outcome of some segments is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One segment's part, to be merged with others.
    Part,
    /// These segments merged into what was in the outcome before, with more to come.
    Continued,
    /// The same, and the last: the outcome is final.
    Last,
}

/// Attention over `segments`, each computed by itself and, but for [`Kind::Part`], merged in ascending order. Those
/// that are not the first that a row sees are merged into what the outcome holds of it.
///
/// # Safety
/// The tile's queries, and the slots of the positions it sees, are readable; the outcome is writable and as long as the
/// tile has rows.
pub(super) unsafe fn attend(
    level: Level,
    tile: &Tile<'_>,
    segments: Range<usize>,
    kind: Kind,
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layer.head_dim(), tile.rows());
    let own = work.sums.as_mut_ptr().cast::<f32>();
    for segment in segments.clone() {
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        let mut seen = [Seen::NOTHING; ROWS];
        for row in 0..rows {
            // The first segment of a row needs no merging.
            let first = kind == Kind::Part || tile.seen_by(row / tile.heads).start / SEGMENT == segment;
            let wanted = first && !outcome.sums[row].is_null();
            sums[row] = if wanted { outcome.sums[row] } else { own.wrapping_add(row * head_dim) };
        }
        let mut part = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: the caller's promise; `work.sums` has room for the rows of a tile.
        unsafe { attend_segment(level, tile, segment, work, &mut part) };
        for row in 0..rows {
            let token = tile.seen_by(row / tile.heads);
            if sums[row] == outcome.sums[row] {
                outcome.seen[row] = seen[row];
            } else if token.start < segment * SEGMENT && token.end > segment * SEGMENT {
                // SAFETY: as above; the workspace is another's memory than the outcome.
                let (into, others) = unsafe { (numbers(outcome.sums[row], head_dim), numbers(sums[row], head_dim)) };
                merge(level, &mut outcome.seen[row], into, seen[row], others);
            }
        }
    }
    if kind == Kind::Last {
        for row in 0..rows {
            let sink = tile.sinks.map(|sinks| sinks.element(row % tile.heads));
            // SAFETY: the caller's promise.
            finish(level, &outcome.seen[row], sink, unsafe { numbers(outcome.sums[row], head_dim) });
        }
    }
}

/// # Safety
/// The numbers are writable, and nothing else touches them while they are in use.
unsafe fn numbers<'a>(first: *mut f32, count: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(first, count) }
}

/// Attention over one segment of [`SEGMENT`] positions; zeros and [`Seen::NOTHING`] for rows that see nothing there.
///
/// # Safety
/// As for [`attend`].
unsafe fn attend_segment(
    level: Level,
    tile: &Tile<'_>,
    segment: usize,
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layer.head_dim(), tile.rows());
    let bounds = segment * SEGMENT..(segment + 1) * SEGMENT;
    let seen = tile.seen();
    let end = seen.end.min(bounds.end);
    let mut queries = [std::ptr::null::<f32>(); ROWS];
    for row in 0..rows {
        outcome.seen[row] = Seen::NOTHING;
        // SAFETY: the outcome is writable, and the queries readable, by the caller's promise.
        unsafe {
            numbers(outcome.sums[row], head_dim).fill(0.0);
            queries[row] = tile.queries.add(row / tile.heads * tile.token_stride + row % tile.heads * head_dim);
        }
    }
    let mut run_start = seen.start.max(bounds.start) / RUN * RUN;
    while run_start < end {
        // SAFETY: the caller's promise.
        unsafe { attend_run(level, tile, run_start, &queries[..rows], work, outcome) };
        run_start += RUN;
    }
}

/// # Safety
/// As for [`attend`]; the tile sees some of the run.
unsafe fn attend_run(
    level: Level,
    tile: &Tile<'_>,
    run_start: usize,
    queries: &[*const f32],
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layer.head_dim(), queries.len());
    let in_run = |seen: Range<usize>| {
        let bound = |position: usize| position.clamp(run_start, run_start + RUN) - run_start;
        bound(seen.start)..bound(seen.end)
    };
    let run = in_run(tile.seen());
    for row in 0..rows {
        work.keys[row] = in_run(tile.seen_by(row / tile.heads));
    }
    let keys = &work.keys[..rows];
    let slots = slots_of(level, tile, run_start, &run);
    let (chunk, scores) = (work.chunk.as_mut_ptr().cast::<f32>(), work.scores.as_mut_ptr().cast::<f32>());
    let dtype = tile.layer.dtype();
    for first in (0..head_dim).step_by(CHUNK) {
        let keys = RowSlots { slots: &slots, head_dim, first, count: CHUNK.min(head_dim - first) };
        // SAFETY: `slots` are readable by the caller's promise; the workspace has room for a chunk and a tile's rows.
        unsafe {
            turn_keys(level, dtype, keys, &run, chunk);
            add_scores(level, queries, chunk, first..first + keys.count, &run, scores);
        }
    }
    // SAFETY: as above.
    unsafe { weigh_rows(level, scores, keys, tile.scale, outcome.seen, outcome.sums, head_dim) };
    let values = slots.map(|slot| slot.wrapping_add(tile.layer.value_offset()));
    for first in (0..head_dim).step_by(CHUNK) {
        let count = CHUNK.min(head_dim - first);
        let values = RowSlots { slots: &values, head_dim, first, count };
        // SAFETY: values lie behind their keys in the same block; the rest as above.
        unsafe {
            if rows < ROWS_TO_WIDEN {
                add_values(level, dtype, scores, keys, values, outcome.sums, first);
            } else {
                widen_values(level, dtype, values, &run, chunk);
                let widened = std::array::from_fn(|key| chunk.wrapping_add(key * CHUNK).cast::<u8>().cast_const());
                let values = RowSlots { slots: &widened, head_dim: CHUNK, first: 0, count };
                add_values(level, KvDType::F32, scores, keys, values, outcome.sums, first);
            }
        }
    }
}

/// The slots of a run's keys. Where the tile sees none, the slot of one that it does see: readable, and of no effect.
/// The values are asked for from memory on the way, while the keys are at work.
fn slots_of(level: Level, tile: &Tile<'_>, run_start: usize, run: &Range<usize>) -> [*const u8; RUN] {
    let (bytes, offset) = (tile.layer.slot_bytes(), tile.layer.value_offset());
    let mut slots = [std::ptr::null::<u8>(); RUN];
    let mut key = run.start;
    for side_by_side in tile.kv.runs(&tile.layer, run_start + run.start..run_start + run.end) {
        let mut at = tile.keys.wrapping_add(side_by_side.offset);
        for slot in &mut slots[key..][..side_by_side.tokens] {
            *slot = at;
            at = at.wrapping_add(bytes);
        }
        key += side_by_side.tokens;
    }
    let seen = &slots[run.clone()];
    dispatch!(level, ask_kernel::<_>(seen: &[*const u8], offset: usize, bytes: usize));
    let any = slots[run.start];
    for key in (run.start / LANES * LANES..run.start).chain(run.end..run.end.next_multiple_of(LANES)) {
        slots[key] = any;
    }
    slots
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for `bytes` at `offset` of each slot.
#[inline(always)]
fn ask_kernel<S: Simd>(s: S, slots: &[*const u8], offset: usize, bytes: usize) {
    for slot in slots {
        for line in (0..bytes).step_by(LINE) {
            s.prefetch(slot.wrapping_add(offset + line));
        }
    }
}
