//! One tile of attention: consecutive tokens of a sequence, with the query heads that share a KV head, over a range of
//! positions.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pairs::{self, PairRun, attend_pairs, query_words, round_queries};
use super::products::{RowSlots, add_scores, add_values, turn_keys, widen_values};
use super::softmax::{Seen, finish, merge, weigh_rows};
use super::{CHUNK, RUN, STRETCH};
use crate::simd::{LANES, Simd, dispatch};
use crate::{KvDType, KvLayer, KvView, Level, Matrix};

/// The maximum number of rows (tokens times query heads) of a tile, which share each read of keys and values.
pub(super) const ROWS: usize = 64;

/// The maximum number of elements of the sums of a tile's rows.
const SUMS: usize = 16 << 10;

/// The number of rows from which a tile widens values once for all rows, rather than for each block of rows.
const ROWS_TO_WIDEN: usize = 12;

/// Returns the maximum number of rows of a tile for heads of `head_dim` elements.
pub(super) const fn rows_max(head_dim: usize) -> usize {
    let fitting = SUMS / head_dim;
    if fitting < ROWS { fitting } else { ROWS }
}

/// The operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub layer: KvLayer,
    /// The locations of the sequence's keys and values.
    pub kv: KvView<'a>,
    /// The address of the first key slot of the tile's KV head in this layer of block 0.
    pub keys: *const u8,
    /// The address of the query of the tile's first head for the tile's first token. The queries of a token's heads are
    /// adjacent. The queries of two consecutive tokens are `token_stride` elements apart.
    pub queries: *const f32,
    pub token_stride: usize,
    /// The number of query heads of the tile.
    pub heads: usize,
    /// The position of the first token.
    pub first_position: usize,
    /// The number of consecutive tokens. The product of `tokens` and `heads` is at most [`rows_max`].
    pub tokens: usize,
    pub window: Option<usize>,
    pub scale: f32,
    /// The sinks of the tile's heads, one score each, if the model has sinks.
    pub sinks: Option<Matrix<'a>>,
}

impl Tile<'_> {
    pub fn rows(&self) -> usize {
        self.tokens * self.heads
    }

    /// Returns the positions that one token of the tile sees.
    fn seen_by(&self, token: usize) -> Range<usize> {
        seen_from(self.first_position + token, self.window)
    }

    /// Returns the range of positions that at least one token of the tile attends to.
    pub fn seen(&self) -> Range<usize> {
        self.seen_by(0).start..self.first_position + self.tokens
    }
}

/// Returns the positions that a token at `position` sees: the token's own and the positions before it within the
/// sliding window.
pub(super) fn seen_from(position: usize, window: Option<usize>) -> Range<usize> {
    window.map_or(0, |window| (position + 1).saturating_sub(window))..position + 1
}

/// Returns the stretches that contain these positions.
pub(super) fn stretches_of(positions: &Range<usize>) -> Range<usize> {
    positions.start / STRETCH..positions.end.div_ceil(STRETCH)
}

/// A thread's working memory for one tile, which lies on the stack and is not initialized.
pub(super) struct Workspace {
    /// The keys, transposed to `[CHUNK, RUN]`, or the values, widened to `[RUN, CHUNK]`.
    chunk: MaybeUninit<Aligned<{ CHUNK * RUN }>>,
    /// The scores, which later become weights, `[row, RUN]`.
    scores: MaybeUninit<Aligned<{ ROWS * RUN }>>,
    /// The sums of a stretch that is not a row's first, `[row, head_dim]`.
    sums: MaybeUninit<Aligned<SUMS>>,
    /// The queries in pairs, `[row, query_words]`.
    queries: MaybeUninit<Aligned<{ SUMS / 2 + ROWS * query_words(1) }>>,
    /// The keys of the current run that each row sees.
    keys: [Range<usize>; ROWS],
}

#[repr(C, align(64))]
struct Aligned<const COUNT: usize>([f32; COUNT]);

impl Workspace {
    pub const fn new() -> Self {
        let keys = [const { 0..0 }; ROWS];
        Self {
            chunk: MaybeUninit::uninit(),
            scores: MaybeUninit::uninit(),
            sums: MaybeUninit::uninit(),
            queries: MaybeUninit::uninit(),
            keys,
        }
    }
}

/// The destination of a tile's results. The rows are `[token, head]`.
pub(super) struct Outcome<'a> {
    /// The address of each row's sums, `[head_dim]`, or null if the sums of the row are not wanted. If this call
    /// computes the row's first stretch, it overwrites the sums, so they need not be initialized.
    pub sums: &'a [*mut f32],
    /// The softmax state of each row, over all stretches that the row's sums contain.
    pub seen: &'a mut [Seen],
}

/// The meaning of the results of some stretches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The result covers a single stretch and is merged later.
    Part,
    /// The stretches are merged into earlier results, and a later call continues.
    Continued,
    /// The stretches are merged into earlier results, and the result is final.
    Last,
}

/// Computes attention over `stretches`, each stretch by itself. Merges the results in ascending order, except for
/// [`Kind::Part`]. A stretch that is not the first that a row sees is merged into the row's earlier results.
///
/// # Safety
/// The tile's queries, and the slots of the positions that the tile sees, are readable. The results are writable and
/// have the tile's rows.
pub(super) unsafe fn attend(
    level: Level,
    tile: &Tile<'_>,
    stretches: Range<usize>,
    kind: Kind,
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layer.head_dim(), tile.rows());
    let mut queries = [std::ptr::null::<f32>(); ROWS];
    for row in 0..rows {
        // SAFETY: guaranteed by the caller.
        queries[row] = unsafe { tile.queries.add(row / tile.heads * tile.token_stride + row % tile.heads * head_dim) };
    }
    let queries = &queries[..rows];
    if pairs::runs_at(level, tile.layer.dtype()) {
        // SAFETY: queries are readable, as the caller guarantees; the workspace has room for a tile's rows.
        unsafe { round_queries(level, queries, head_dim, work.queries.as_mut_ptr().cast()) };
    }
    let known_end = tile.seen().end.min(stretches.end * STRETCH);
    let own = work.sums.as_mut_ptr().cast::<f32>();
    for stretch in stretches.clone() {
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        let mut seen = [Seen::NOTHING; ROWS];
        for row in 0..rows {
            // The first stretch of a row needs no merging.
            let first = kind == Kind::Part || tile.seen_by(row / tile.heads).start / STRETCH == stretch;
            let wanted = first && !outcome.sums[row].is_null();
            sums[row] = if wanted { outcome.sums[row] } else { own.wrapping_add(row * head_dim) };
        }
        let mut part = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: guaranteed by the caller; `work.sums` has room for the rows of a tile.
        unsafe { attend_stretch(level, tile, stretch, known_end, queries, work, &mut part) };
        for row in 0..rows {
            let token = tile.seen_by(row / tile.heads);
            if sums[row] == outcome.sums[row] {
                outcome.seen[row] = seen[row];
            } else if token.start < stretch * STRETCH && token.end > stretch * STRETCH {
                // SAFETY: as above; the workspace does not overlap the results.
                let (into, others) = unsafe { (numbers(outcome.sums[row], head_dim), numbers(sums[row], head_dim)) };
                merge(level, &mut outcome.seen[row], into, seen[row], others);
            }
        }
    }
    if kind == Kind::Last {
        for row in 0..rows {
            let sink = tile.sinks.map(|sinks| sinks.element(row % tile.heads));
            // SAFETY: guaranteed by the caller.
            finish(level, &outcome.seen[row], sink, unsafe { numbers(outcome.sums[row], head_dim) });
        }
    }
}

/// Returns the `count` elements at `first` as a slice.
///
/// # Safety
/// The elements are writable, and nothing else touches them while they are in use.
unsafe fn numbers<'a>(first: *mut f32, count: usize) -> &'a mut [f32] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(first, count) }
}

/// Computes attention over one stretch of [`STRETCH`] positions. Writes zeros and [`Seen::NOTHING`] for rows that see
/// nothing of the stretch.
///
/// # Safety
/// The conditions of [`attend`] hold.
unsafe fn attend_stretch(
    level: Level,
    tile: &Tile<'_>,
    stretch: usize,
    known_end: usize,
    queries: &[*const f32],
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, rows) = (tile.layer.head_dim(), tile.rows());
    let bounds = stretch * STRETCH..(stretch + 1) * STRETCH;
    let seen = tile.seen();
    let end = seen.end.min(bounds.end);
    for row in 0..rows {
        outcome.seen[row] = Seen::NOTHING;
        // SAFETY: guaranteed by the caller.
        unsafe { numbers(outcome.sums[row], head_dim).fill(0.0) };
    }
    let mut run_start = seen.start.max(bounds.start) / RUN * RUN;
    while run_start < end {
        ask_for(level, tile, run_start + RUN..known_end.min(run_start + 2 * RUN));
        // SAFETY: guaranteed by the caller.
        unsafe { attend_run(level, tile, run_start, queries, work, outcome) };
        run_start += RUN;
    }
}

/// Computes attention over one run of [`RUN`] positions.
///
/// # Safety
/// The conditions of [`attend`] hold; the tile sees some of the run.
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
    let slots = slots_of(tile, run_start, &run);
    let (chunk, scores) = (work.chunk.as_mut_ptr().cast::<f32>(), work.scores.as_mut_ptr().cast::<f32>());
    let dtype = tile.layer.dtype();
    if pairs::runs_at(level, dtype) {
        let run = PairRun {
            slots: &slots,
            value_offset: tile.layer.value_offset(),
            head_dim,
            run,
            keys,
            queries: work.queries.as_ptr().cast(),
            scale: tile.scale,
            words: chunk.cast(),
            scores,
        };
        // SAFETY: as below; `attend` has rounded the queries.
        return unsafe { attend_pairs(level, &run, outcome.seen, outcome.sums) };
    }
    for first in (0..head_dim).step_by(CHUNK) {
        let keys = RowSlots { slots: &slots, head_dim, first, count: CHUNK.min(head_dim - first) };
        // SAFETY: `slots` are readable, as the caller guarantees; the workspace has room for a chunk and a tile's rows.
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
        // SAFETY: values lie after their keys in the same block; the rest as above.
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

/// Returns the slots of a run's keys. A key that the tile does not see gets the slot of a key that the tile sees, which
/// is readable and has no effect.
fn slots_of(tile: &Tile<'_>, run_start: usize, run: &Range<usize>) -> [*const u8; RUN] {
    let bytes = tile.layer.slot_bytes();
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
    let any = slots[run.start];
    for key in (run.start / LANES * LANES..run.start).chain(run.end..run.end.next_multiple_of(LANES)) {
        slots[key] = any;
    }
    slots
}

/// The number of bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the keys and values of `positions`, which the next run needs, into the second-level cache.
fn ask_for(level: Level, tile: &Tile<'_>, positions: Range<usize>) {
    if positions.is_empty() {
        return;
    }
    for run in tile.kv.runs(&tile.layer, positions) {
        let keys = tile.keys.wrapping_add(run.offset);
        let values = keys.wrapping_add(tile.layer.value_offset());
        let bytes = run.tokens * tile.layer.slot_bytes();
        dispatch!(level, ask_kernel::<_>(keys: *const u8, values: *const u8, bytes: usize));
    }
}

#[inline(always)]
fn ask_kernel<S: Simd>(s: S, keys: *const u8, values: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        s.prefetch_second(keys.wrapping_add(line));
    }
    for line in (0..bytes).step_by(LINE) {
        s.prefetch_second(values.wrapping_add(line));
    }
}
