//! One tile of attention: consecutive tokens of a sequence, with the query heads of one or more KV heads, over a range
//! of positions.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pairs::{self, PairRun, attend_pairs, query_words, round_queries};
use super::products::{HeadSlots, RowSlots, add_scores, add_values, turn_keys, widen_values};
use super::softmax::{Seen, finish, merge, weigh_rows};
use super::{CHUNK, RUN, STRETCH};
use crate::simd::LANES;
use crate::{KvDType, KvLayer, KvView, Level, Matrix};

/// The maximum number of rows (tokens times query heads) of a tile. Those of one KV head share each read of keys and
/// values.
pub(super) const ROWS: usize = 64;

/// The maximum number of elements of the sums of a tile's rows.
const SUMS: usize = 16 << 10;

/// The number of rows from which a tile widens values once for all rows, rather than for each block of rows.
const ROWS_TO_WIDEN: usize = 12;

/// How far ahead kernels prefetch keys and values: the number of KV heads, or of runs of a tile of one KV head, between
/// those that are computed and those that are prefetched. One is too few: on Zen 4, a decode out of small pages took
/// 1.4 times as long as with two, and with three or eight as long as with two.
const AHEAD: usize = 2;

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
    /// The address of the first key slot of the tile's first KV head in this layer of block 0.
    pub keys: *const u8,
    /// The address of the query of the tile's first head for the tile's first token. The queries of a token's heads are
    /// adjacent. The queries of two consecutive tokens are `token_stride` elements apart.
    pub queries: *const f32,
    pub token_stride: usize,
    /// The number of KV heads of the tile, which are adjacent.
    pub kv_heads: usize,
    /// The number of query heads of the tile for each of its KV heads.
    pub heads: usize,
    /// The position of the first token.
    pub first_position: usize,
    /// The number of consecutive tokens. The product of `kv_heads`, `tokens` and `heads` is at most [`rows_max`].
    pub tokens: usize,
    pub window: Option<usize>,
    pub scale: f32,
    /// The sinks of the tile's heads, one score each, if the model has sinks.
    pub sinks: Option<Matrix<'a>>,
}

impl Tile<'_> {
    /// Returns the number of rows, which are `[kv_head, token, head]`.
    pub fn rows(&self) -> usize {
        self.kv_heads * self.rows_of_kv_head()
    }

    fn rows_of_kv_head(&self) -> usize {
        self.tokens * self.heads
    }

    /// Returns the token of a row.
    pub fn token(&self, row: usize) -> usize {
        row / self.heads % self.tokens
    }

    /// Returns the query head of a row, counted from the tile's first.
    pub fn head(&self, row: usize) -> usize {
        row / self.rows_of_kv_head() * self.heads + row % self.heads
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

/// The destination of a tile's results.
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
        queries[row] = unsafe { tile.queries.add(tile.token(row) * tile.token_stride + tile.head(row) * head_dim) };
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
            let first = kind == Kind::Part || tile.seen_by(tile.token(row)).start / STRETCH == stretch;
            let wanted = first && !outcome.sums[row].is_null();
            sums[row] = if wanted { outcome.sums[row] } else { own.wrapping_add(row * head_dim) };
        }
        let mut part = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: guaranteed by the caller; `work.sums` has room for the rows of a tile.
        unsafe { attend_stretch(level, tile, stretch, known_end, queries, work, &mut part) };
        for row in 0..rows {
            let token = tile.seen_by(tile.token(row));
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
            let sink = tile.sinks.map(|sinks| sinks.element(tile.head(row)));
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
    // Past the known runs, some run is prefetched again, which costs little.
    let mut later = run_start;
    let mut slots = [(); AHEAD + 1].map(|()| {
        let run_start = later;
        later = if later + RUN < known_end { later + RUN } else { later };
        slots_of(tile, run_start, &in_run(&seen, run_start))
    });
    while run_start < end {
        // SAFETY: guaranteed by the caller.
        unsafe { attend_run(level, tile, run_start, &slots, queries, work, outcome) };
        run_start += RUN;
        slots.rotate_left(1);
        let last = run_start + AHEAD * RUN;
        if last < known_end {
            slots[AHEAD] = slots_of(tile, last, &in_run(&seen, last));
        }
    }
}

/// Returns the positions of the run from `run_start` on that are in `seen`, counted from the run's first.
fn in_run(seen: &Range<usize>, run_start: usize) -> Range<usize> {
    let bound = |position: usize| position.clamp(run_start, run_start + RUN) - run_start;
    bound(seen.start)..bound(seen.end)
}

/// Computes attention over one run of [`RUN`] positions, KV head by KV head, so that what lies side by side in memory
/// is read one after the other. The first of `slots` are the run's, and the others those of the runs after it, for
/// which kernels ask.
///
/// # Safety
/// The conditions of [`attend`] hold; the tile sees some of the run.
unsafe fn attend_run(
    level: Level,
    tile: &Tile<'_>,
    run_start: usize,
    slots: &[[*const u8; RUN]; AHEAD + 1],
    queries: &[*const f32],
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (run, count) = (in_run(&tile.seen(), run_start), tile.rows_of_kv_head());
    // The rows of all KV heads see the same.
    for row in 0..count {
        work.keys[row] = in_run(&tile.seen_by(tile.token(row)), run_start);
    }
    let head_bytes = tile.layer.head_bytes();
    // The head that is prefetched, and its run.
    let (mut ahead, mut ahead_head) = (AHEAD / tile.kv_heads, AHEAD % tile.kv_heads);
    for kv_head in 0..tile.kv_heads {
        let now = HeadSlots { slots: &slots[0], offset: kv_head * head_bytes };
        let later = HeadSlots { slots: &slots[ahead], offset: ahead_head * head_bytes };
        // SAFETY: guaranteed by the caller.
        unsafe { attend_kv_head(level, tile, kv_head, now, later, run.clone(), queries, work, outcome) };
        ahead_head += 1;
        if ahead_head == tile.kv_heads {
            (ahead, ahead_head) = (ahead + 1, 0);
        }
    }
}

/// Computes attention of the rows of one of the tile's KV heads over the keys `run` of a run.
///
/// # Safety
/// The conditions of [`attend`] hold; the slots are those of the KV head, and `work` knows which keys rows see.
#[expect(clippy::too_many_arguments, reason = "a part of a function with this many operands")]
unsafe fn attend_kv_head(
    level: Level,
    tile: &Tile<'_>,
    kv_head: usize,
    slots: HeadSlots<'_>,
    later: HeadSlots<'_>,
    run: Range<usize>,
    queries: &[*const f32],
    work: &mut Workspace,
    outcome: &mut Outcome<'_>,
) {
    let (head_dim, dtype, count) = (tile.layer.head_dim(), tile.layer.dtype(), tile.rows_of_kv_head());
    let rows = kv_head * count..(kv_head + 1) * count;
    let (seen, sums) = (&mut outcome.seen[rows.clone()], &outcome.sums[rows.clone()]);
    let keys = &work.keys[..count];
    let (chunk, scores) = (work.chunk.as_mut_ptr().cast::<f32>(), work.scores.as_mut_ptr().cast::<f32>());
    if pairs::runs_at(level, dtype) {
        let queries = work.queries.as_ptr().cast::<u32>().wrapping_add(rows.start * query_words(head_dim));
        let run = PairRun {
            slots,
            later,
            value_offset: tile.layer.value_offset(),
            head_dim,
            run,
            keys,
            queries,
            scale: tile.scale,
            words: chunk.cast(),
            scores,
        };
        // SAFETY: as below; `attend` has rounded the queries.
        return unsafe { attend_pairs(level, &run, seen, sums) };
    }
    let slots: [*const u8; RUN] = std::array::from_fn(|key| slots.at(key));
    for first in (0..head_dim).step_by(CHUNK) {
        let keys = RowSlots { slots: &slots, head_dim, first, count: CHUNK.min(head_dim - first), later: Some(later) };
        // SAFETY: `slots` are readable, as the caller guarantees; the workspace has room for a chunk and a tile's rows.
        unsafe {
            turn_keys(level, dtype, keys, &run, chunk);
            add_scores(level, &queries[rows.clone()], chunk, first..first + keys.count, &run, scores);
        }
    }
    // SAFETY: as above.
    unsafe { weigh_rows(level, scores, keys, tile.scale, seen, sums, head_dim) };
    let values = slots.map(|slot| slot.wrapping_add(tile.layer.value_offset()));
    let later_values = HeadSlots { offset: later.offset + tile.layer.value_offset(), ..later };
    for first in (0..head_dim).step_by(CHUNK) {
        let count = CHUNK.min(head_dim - first);
        let values = RowSlots { slots: &values, head_dim, first, count, later: Some(later_values) };
        // SAFETY: values lie after their keys in the same block; the rest as above.
        unsafe {
            if rows.len() < ROWS_TO_WIDEN {
                add_values(level, dtype, scores, keys, values, sums, first);
            } else {
                widen_values(level, dtype, values, &run, chunk);
                let widened = std::array::from_fn(|key| chunk.wrapping_add(key * CHUNK).cast::<u8>().cast_const());
                let values = RowSlots { slots: &widened, head_dim: CHUNK, first: 0, count, later: None };
                add_values(level, KvDType::F32, scores, keys, values, sums, first);
            }
        }
    }
}

/// Returns the slots of a run's keys, of the tile's first KV head. A key that the tile does not see gets the slot of a
/// key that the tile sees, which is readable and has no effect.
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
