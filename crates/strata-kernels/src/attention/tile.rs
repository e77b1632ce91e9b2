//! One tile: consecutive tokens of a sequence, with the query heads that share a KV head, over a range of positions.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::KvElement;
use super::lanes::Lanes;
use super::products::{Values, add_scores, add_values, turn_keys, widen_values};
use super::softmax::{Seen, finish, merge, multiply, weigh_run};
use super::{CHUNK, RUN, SEGMENT};
use crate::KvLayout;
use crate::simd::{F32, LANES, Simd};

/// Rows (tokens times query heads) of a tile: what reads of keys and values are shared among.
pub(super) const ROWS: usize = 64;

/// Elements of the sums of a tile's rows.
const SUMS: usize = 16 << 10;

/// From so many rows on, values are widened once for all rows rather than for each block of rows.
const ROWS_TO_WIDEN: usize = 12;

/// Rows that a tile of heads with `head_dim` elements has at most.
pub(super) const fn rows_max(head_dim: usize) -> usize {
    let fitting = SUMS / head_dim;
    if fitting < ROWS { fitting } else { ROWS }
}

/// What a tile computes.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub layout: KvLayout,
    /// Slot 0 of this layer's and head's keys in block 0.
    pub keys: *const u8,
    pub block_table: &'a [u32],
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
}

#[repr(C, align(64))]
struct Aligned<const COUNT: usize>([f32; COUNT]);

impl Workspace {
    pub const fn new() -> Self {
        Self { chunk: MaybeUninit::uninit(), scores: MaybeUninit::uninit(), sums: MaybeUninit::uninit() }
    }
}

/// Where the outcome of a tile goes, row by row; rows are `[token, head]`.
pub(super) struct Outcome<'a> {
    /// `[head_dim]` each, or null where nobody wants it. What they hold before does not matter.
    pub sums: &'a [*mut f32],
    /// As many; what a row saw.
    pub seen: &'a mut [Seen],
}

/// What the tile sees in `segments`: each by itself, merged in ascending order. With `finished`, they are all segments
/// that the tile sees, and the outcome is attention's; otherwise it is one segment's part.
///
/// # Safety
/// The tile's queries, and the blocks that hold the positions it sees, are readable; the outcome is writable and as long
/// as the tile has rows; the level's instructions exist.
#[inline(always)]
pub(super) unsafe fn attend<S: Lanes, E: KvElement>(
    tile: &Tile<'_>,
    segments: Range<usize>,
    finished: bool,
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layout.head_dim, tile.rows());
    let own = work.sums.as_mut_ptr().cast::<f32>();
    for segment in segments.clone() {
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        let mut seen = [Seen::NOTHING; ROWS];
        for row in 0..rows {
            // What a row sees first needs no merging.
            let first = !finished || tile.seen_by(row / tile.heads).start / SEGMENT == segment;
            let wanted = first && !outcome.sums[row].is_null();
            sums[row] = if wanted { outcome.sums[row] } else { own.wrapping_add(row * head_dim) };
        }
        let mut part = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: the caller's promise; `work.sums` has room for the rows of a tile.
        unsafe { attend_segment::<S, E>(tile, segment, work, &mut part) };
        for row in 0..rows {
            let token = tile.seen_by(row / tile.heads);
            if sums[row] == outcome.sums[row] {
                outcome.seen[row] = seen[row];
            } else if token.start < segment * SEGMENT && token.end > segment * SEGMENT {
                // SAFETY: as above.
                unsafe { merge::<S>(&mut outcome.seen[row], outcome.sums[row], seen[row], sums[row], head_dim) };
            }
        }
    }
    if finished {
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { finish::<S>(&outcome.seen[row], outcome.sums[row], head_dim) };
        }
    }
}

/// What the tile sees in one segment of [`SEGMENT`] positions; zeros and [`Seen::NOTHING`] for rows that see nothing
/// there.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn attend_segment<S: Lanes, E: KvElement>(
    tile: &Tile<'_>,
    segment: usize,
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layout.head_dim, tile.rows());
    let bounds = segment * SEGMENT..(segment + 1) * SEGMENT;
    let seen = tile.seen();
    let end = seen.end.min(bounds.end);
    let mut queries = [std::ptr::null::<f32>(); ROWS];
    for row in 0..rows {
        outcome.seen[row] = Seen::NOTHING;
        // SAFETY: the outcome is writable, and the queries readable, by the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(outcome.sums[row], head_dim).fill(0.0);
            queries[row] = tile.queries.add(row / tile.heads * tile.token_stride + row % tile.heads * head_dim);
        }
    }
    let mut run_start = seen.start.max(bounds.start) / RUN * RUN;
    while run_start < end {
        // SAFETY: the caller's promise.
        unsafe { attend_run::<S, E>(tile, run_start, &queries[..rows], work, outcome) };
        run_start += RUN;
    }
}

/// # Safety
/// As for [`attend`]; the tile sees some of the run.
#[inline(always)]
unsafe fn attend_run<S: Lanes, E: KvElement>(
    tile: &Tile<'_>,
    run_start: usize,
    queries: &[*const f32],
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layout.head_dim, queries.len());
    let in_run = |seen: Range<usize>| {
        let bound = |position: usize| position.clamp(run_start, run_start + RUN) - run_start;
        bound(seen.start)..bound(seen.end)
    };
    let run = in_run(tile.seen());
    let mut keys = [const { 0..0 }; ROWS];
    for row in 0..rows {
        keys[row] = in_run(tile.seen_by(row / tile.heads));
    }
    let keys = &keys[..rows];
    let slots = slots_of::<S>(tile, run_start, &run);
    let (chunk, scores) = (work.chunk.as_mut_ptr().cast::<f32>(), work.scores.as_mut_ptr().cast::<f32>());
    let slot_bytes = tile.layout.slot_bytes();
    // SAFETY: `slots` are readable by the caller's promise; the workspace has room for a chunk and a tile's rows.
    unsafe {
        for first in (0..head_dim).step_by(CHUNK) {
            let count = CHUNK.min(head_dim - first);
            turn_keys::<S, E>(&slots, slot_bytes, head_dim, first, count, &run, chunk);
            let mut at = [std::ptr::null::<f32>(); ROWS];
            for row in 0..rows {
                at[row] = queries[row].add(first);
            }
            add_scores::<S>(&at[..rows], chunk, count, run.clone(), first == 0, scores);
        }
        for row in 0..rows {
            if keys[row].is_empty() {
                continue;
            }
            let scores = scores.add(row * RUN);
            let correction = weigh_run::<S>(scores, &keys[row], tile.scale, &mut outcome.seen[row]);
            if correction != 1.0 {
                multiply::<S>(outcome.sums[row], correction, head_dim);
            }
        }
        let mut values = slots;
        for slot in &mut values {
            *slot = slot.wrapping_add(tile.layout.value_offset());
        }
        for first in (0..head_dim).step_by(CHUNK) {
            let count = CHUNK.min(head_dim - first);
            let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
            for row in 0..rows {
                sums[row] = outcome.sums[row].add(first);
            }
            let values = Values { slots: &values, head_dim, first, count };
            if rows < ROWS_TO_WIDEN {
                add_values::<S, E>(scores, keys, values, &sums[..rows]);
            } else {
                widen_values::<S, E>(values, &run, chunk);
                let mut widened = [std::ptr::null::<u8>(); RUN];
                for key in 0..RUN {
                    widened[key] = chunk.add(key * CHUNK).cast();
                }
                let values = Values { slots: &widened, head_dim: CHUNK, first: 0, count };
                add_values::<S, F32>(scores, keys, values, &sums[..rows]);
            }
        }
    }
}

/// The slots of a run's keys. Where the tile sees none, the slot of one that it does see: readable, and of no effect.
/// Values and the next run's keys are asked for from memory on the way.
#[inline(always)]
fn slots_of<S: Simd>(tile: &Tile<'_>, run_start: usize, run: &Range<usize>) -> [*const u8; RUN] {
    let layout = &tile.layout;
    let (slot_bytes, block_bytes) = (layout.slot_bytes(), layout.block_bytes());
    let mut slots = [std::ptr::null::<u8>(); RUN];
    let first = run_start + run.start;
    let (mut logical, mut slot) = (first / layout.block_size, first % layout.block_size);
    for key in run.clone() {
        let block = tile.block_table[logical] as usize;
        slots[key] = tile.keys.wrapping_add(block * block_bytes + slot * slot_bytes);
        for line in (0..slot_bytes).step_by(LINE) {
            // SAFETY: a prefetch may name any address; the level's instructions exist where this is inlined.
            unsafe { S::prefetch(slots[key].wrapping_add(layout.value_offset() + line)) };
        }
        slot += 1;
        if slot == layout.block_size {
            (logical, slot) = (logical + 1, 0);
        }
    }
    let any = slots[run.start];
    for key in (run.start / LANES * LANES..run.start).chain(run.end..run.end.next_multiple_of(LANES)) {
        slots[key] = any;
    }
    slots
}

/// Bytes of a cache line.
const LINE: usize = 64;
