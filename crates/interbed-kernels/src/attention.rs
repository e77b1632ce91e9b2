//! Computes exact attention over the KV cache with online softmax, for prefill chunks and decodes alike.
//!
//! A token attends to the positions from the start of its sliding window to its own. Positions are processed in
//! stretches of [`STRETCH`] positions and, within a stretch, in runs of [`RUN`], both counted from position 0. Each
//! stretch is summed by itself, and the parts are merged in ascending order. So the order of every sum depends on the
//! token's position alone, and not on its prefill chunk, on the batch, on the threads, or on where a prefix hit ended.
//!
//! Work is split into tiles, which are consecutive tokens of a sequence with the query heads that share a KV head. A
//! run of keys and values is read, widened and transposed once for all rows of a tile (flash attention). A decode is a
//! tile of one token, with as many KV heads as leave work for all threads: it goes through them run by run, in the
//! order in which they lie in memory. A thread that has finished a tile takes the next one, so that long and short
//! tiles balance. If there are fewer tiles than threads need, stretches become work items of their own, and their parts
//! wait in scratch memory until all are computed.
//!
//! Kernels ask for the keys and values that are needed next but one, a few with each step of what they compute.
//!
//! A score is one chain of multiply-adds over the elements of a head, and a weighted value is one chain over the
//! positions of a stretch. The levels that round activations of bf16 models multiply bf16 keys and values in pairs
//! (`attention/pairs.rs`): queries and softmax weights are rounded to bf16, and each step of a chain takes two elements
//! or two positions. All sums are f32 at every level.
//!
//! Keys and values need not be in memory all at once. Several calls, each over whole stretches in ascending order, keep
//! the state of every row between them, and give the result of a single call over all stretches.
//!
//! A head may have a sink, which is one more score that takes its share of the softmax weights and has no value. The
//! sink enters the total once, at the final division, when all parts of a row have been merged.

mod element;
mod lanes;
mod pairs;
mod products;
mod softmax;
mod tile;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use lanes::Lanes;
use softmax::{Seen, finish, merge};
use tile::{Kind, Outcome, ROWS, Tile, Workspace, attend, rows_max, seen_from, stretches_of};

use crate::pool::Pool;
use crate::share::Share;
use crate::{KvBytes, KvLayer, KvPlace, KvView, Level, Matrix};

/// The number of positions in a run. Kernels compute the scores of one run at a time.
pub const RUN: usize = 64;

/// The number of positions in a stretch. Each stretch is summed by itself, and then merged with the sums of earlier
/// stretches.
pub const STRETCH: usize = 1024;

/// Number of elements of a head that are widened at a time.
const CHUNK: usize = 64;

/// Number of tiles per thread below which tiles are split into stretches too.
const TILES_A_THREAD: usize = 4;

/// Number of elements before a part's sums: the part's greatest score and its total.
const PART_HEAD: usize = 2;

/// The maximum number of elements that [`attention_scratch`] asks for.
const SCRATCH_MAX: usize = 1 << 20;

/// The number of sequences for whose whole context [`attention_scratch`] has room to store parts.
const SCRATCH_SEQUENCES: usize = 4;

/// The tokens of one sequence that a forward pass computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionSpan {
    /// The position of the first token.
    pub first_position: usize,
    /// The number of tokens. In tensors of the batch, the rows of a span's tokens follow the rows of the previous span.
    pub tokens: usize,
    /// The positions whose keys and values are in memory. The range begins at a multiple of the block size, and ends at
    /// a multiple of [`STRETCH`] or after the last token of the span. If some of the tokens see positions before the
    /// range, it begins at a multiple of [`STRETCH`] too; layers whose window keeps the tokens from seeing such
    /// positions may have any block first.
    pub held: Range<usize>,
    /// The KV blocks of the positions in `held`.
    pub place: KvPlace,
}

impl AttentionSpan {
    /// Creates a span whose keys and values are all in memory.
    pub fn new(first_position: usize, tokens: usize, place: impl Into<KvPlace>) -> Self {
        let held = 0..first_position.saturating_add(tokens);
        Self { first_position, tokens, held, place: place.into() }
    }

    pub(crate) fn positions(&self) -> Range<usize> {
        let end = self.first_position.checked_add(self.tokens);
        self.first_position..end.expect("positions are counted in a usize")
    }

    pub(crate) fn kv<'a>(&self, tables: &'a [u32]) -> KvView<'a> {
        let view = match &self.place {
            KvPlace::Listed(range) => KvView::paged(&tables[range.start as usize..range.end as usize]),
            &KvPlace::From(first) => KvView::contiguous(first),
        };
        view.starting_at(self.held.start)
    }

    /// Returns whether this call completes the attention of the span, so that no later call continues it.
    fn is_last(&self) -> bool {
        self.held.end >= self.positions().end
    }

    /// Returns the part of `stretches` whose keys and values are in memory.
    fn held_of(&self, stretches: &Range<usize>) -> Range<usize> {
        let held = stretches_of(&self.held);
        let start = stretches.start.max(held.start);
        start..stretches.end.min(held.end).max(start)
    }

    /// Returns whether an earlier call has processed some of the positions `seen`.
    fn is_continued(&self, seen: &Range<usize>) -> bool {
        seen.start < self.held.start
    }
}

/// The number of f32 elements of state that [`attention`] keeps between calls for each head of each token.
pub const ATTENTION_STATE: usize = 2;

/// The state of all rows between two calls of [`attention`].
struct Carried<'a> {
    /// The states of all rows, `[row, ATTENTION_STATE]`.
    states: Share<'a, f32>,
}

impl Carried<'_> {
    /// Reads a row's state.
    ///
    /// # Safety
    /// Nothing else reads or writes this row's state while it is read.
    unsafe fn get(&self, row: usize) -> Seen {
        // SAFETY: guaranteed by the caller.
        let state = unsafe { self.states.slice(row * ATTENTION_STATE, ATTENTION_STATE) };
        Seen { greatest: state[0], total: state[1] }
    }

    /// Writes a row's state.
    ///
    /// # Safety
    /// Nothing else reads or writes this row's state meanwhile.
    unsafe fn set(&self, row: usize, seen: Seen) {
        // SAFETY: guaranteed by the caller.
        let state = unsafe { self.states.slice(row * ATTENTION_STATE, ATTENTION_STATE) };
        (state[0], state[1]) = (seen.greatest, seen.total);
    }
}

/// The parameters of one layer's attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLayer {
    /// The layout of the layer's keys and values.
    pub kv: KvLayer,
    /// The number of query heads, which is a multiple of the number of KV heads.
    pub heads: usize,
    /// The factor that scales the dot products of queries and keys.
    pub scale: f32,
    /// The size of the sliding window: the number of positions that a token attends to, including its own. `None` means
    /// that there is no limit.
    pub window: Option<usize>,
}

/// Returns the number of f32 elements of scratch memory that [`attention`] needs to keep all threads busy even for few
/// sequences. With less scratch memory, `attention` is slower, but its results are bit-identical.
///
/// - `context`: the maximum number of positions of a sequence
pub fn attention_scratch(heads: usize, head_dim: usize, context: usize) -> usize {
    let stretches = context.div_ceil(STRETCH);
    if stretches <= 1 {
        return 0;
    }
    let parts = heads.saturating_mul(stretches).saturating_mul(SCRATCH_SEQUENCES);
    parts.saturating_mul(head_dim.saturating_add(PART_HEAD)).min(SCRATCH_MAX)
}

/// Computes the attention of every token of the batch over the keys and values of the token's own sequence that are in
/// memory.
///
/// - `blocks`: the KV pool, `[block, layer, k|v, kv_head, slot, head_dim]`, which contains the keys and values of all
///   positions in the spans' `held`
/// - `tables`: the block tables, of which each [`KvPlace::Listed`] selects a range
/// - `sinks`: one score per head, which is not multiplied by the layer's `scale`
/// - `q`: `[tokens, heads, head_dim]`, already rotated
/// - `scratch`: [`attention_scratch`] elements, which may hold anything
/// - `carried`: the state between calls, `[tokens, heads, ATTENTION_STATE]`; may be empty if each span's `held`
///   contains all positions that the span's tokens see
/// - `out`: `[tokens, heads, head_dim]`, which the caller keeps between calls; the result is final for spans whose
///   `held` reaches the span's end
///
/// # Panics
/// Panics if the lengths disagree, or a block table is too short or names a block that is not in the KV pool.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn attention(
    pool: &Pool,
    level: Level,
    layer: &AttentionLayer,
    blocks: KvBytes<'_>,
    spans: &[AttentionSpan],
    tables: &[u32],
    sinks: Option<Matrix<'_>>,
    q: &[f32],
    scratch: &mut [f32],
    carried: &mut [f32],
    out: &mut [f32],
) {
    let &AttentionLayer { kv, heads, window, .. } = layer;
    let head_dim = kv.head_dim();
    assert!(heads.is_multiple_of(kv.num_kv_heads()));
    let (mut tokens, mut cost, mut carries) = (0usize, 0usize, false);
    for span in spans {
        let end = span.positions().end;
        let held = span.held.start..span.held.end.min(end);
        let is_continued = span.is_continued(&seen_from(span.first_position, window));
        assert!(held.start.is_multiple_of(kv.block_size()));
        assert!(held.start.is_multiple_of(STRETCH) || !is_continued, "a stretch whose beginning is not held");
        assert!(held.end.is_multiple_of(STRETCH) || held.end == end);
        span.kv(tables).check(&kv, blocks.len(), &held);
        tokens += span.tokens;
        let seen = seen_from(end.saturating_sub(1), window);
        let seen = seen.start.max(held.start)..seen.end.min(held.end);
        cost = cost.saturating_add(2 * seen.len() * span.tokens * heads * head_dim);
        carries |= is_continued || held.end < end;
    }
    assert!(!carries || carried.len() == tokens * heads * ATTENTION_STATE);
    let numbers = tokens.checked_mul(heads).and_then(|rows| rows.checked_mul(head_dim));
    assert!(numbers == Some(q.len()) && out.len() == q.len());
    assert!(sinks.is_none_or(|sinks| sinks.rows() == 1 && sinks.cols() == heads && sinks.dtype().is_plain()));
    let plan = Plan::new(*layer, pool.threads(), spans, tokens, scratch.len());

    let (next, threads) = (AtomicUsize::new(0), pool.threads());
    let (shared_out, shared_parts) = (Share::new(out), Share::new(scratch));
    let carried = Carried { states: Share::new(carried) };
    let operands = AttentionOperands {
        plan: &plan,
        level,
        blocks,
        spans,
        tables,
        sinks,
        q,
        out: shared_out,
        parts: shared_parts,
        carried,
    };
    // One share per thread; each thread takes items until none is left.
    pool.split(threads, 1, cost.div_ceil(threads), |_| {
        let mut work = Workspace::new();
        let mut cursor = Cursor::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = cursor.advance(&plan, number, spans) else { return };
            operands.compute(&item, &mut work);
        }
    });
    if plan.parts_per_row > 0 {
        let cost = 2 * plan.parts_per_row * head_dim * heads;
        pool.split(tokens, 1, cost, |rows| operands.merge_tokens(rows));
    }
}

/// The work items into which a batch is split.
struct Plan {
    layer: AttentionLayer,
    /// Query heads of a tile: the heads that share a KV head, or some of these heads if there are too many for a tile.
    tile_heads: usize,
    /// The number of tiles for the query heads of one KV head.
    tiles_per_kv_head: usize,
    tile_tokens: usize,
    /// The maximum number of KV heads of a tile.
    tile_kv_heads: usize,
    /// The number of parts per row that fit into the scratch memory, or 0 if stretches are not work items of their own.
    parts_per_row: usize,
}

impl Plan {
    /// Plans the tiles. Also splits tiles into stretches if there are few tiles and the parts fit into the scratch
    /// memory.
    fn new(layer: AttentionLayer, threads: usize, spans: &[AttentionSpan], tokens: usize, room: usize) -> Self {
        let (sharing, head_dim) = (layer.heads / layer.kv.num_kv_heads(), layer.kv.head_dim());
        let rows = rows_max(head_dim);
        assert!(rows > 0, "a head of {head_dim} elements is beyond what attention can hold");
        let tile_heads = sharing.min(rows);
        let mut plan = Self {
            layer,
            tile_heads,
            tiles_per_kv_head: sharing.div_ceil(tile_heads),
            tile_tokens: (rows / tile_heads).max(1),
            tile_kv_heads: if tile_heads < sharing { 1 } else { layer.kv.num_kv_heads() },
            parts_per_row: 0,
        };
        let mut parts = 0;
        for span in spans {
            // A sliding window that is not aligned may touch one stretch more than its length suggests.
            let window = layer.window.map_or(usize::MAX, |window| window.div_ceil(STRETCH) + 1);
            parts = parts.max(window.min(span.held_of(&stretches_of(&(0..span.positions().end))).len()));
        }
        let fits = tokens.saturating_mul(layer.heads).saturating_mul(parts * (head_dim + PART_HEAD)) <= room;
        let may_split = threads > 1 && parts > 1 && fits;
        let wanted = if threads > 1 { TILES_A_THREAD * threads } else { 0 };
        let items = |plan: &Self| spans.iter().map(|span| plan.items_of(span)).sum::<usize>();
        while items(&plan) < wanted {
            if may_split {
                plan.parts_per_row = parts;
            }
            if plan.tile_kv_heads == 1 || items(&plan) >= wanted {
                break;
            }
            plan.parts_per_row = 0;
            plan.tile_kv_heads = plan.tile_kv_heads.div_ceil(2);
        }
        plan
    }

    /// Returns the number of KV heads of each tile of the span except the last, which may have fewer.
    fn kv_heads_of(&self, span: &AttentionSpan) -> usize {
        let rows_of_kv_head = self.tile_heads * span.tokens.clamp(1, self.tile_tokens);
        (rows_max(self.layer.kv.head_dim()) / rows_of_kv_head).clamp(1, self.tile_kv_heads)
    }

    /// Returns the stretches in memory that a tile of tokens sees.
    fn seen_by(&self, span: &AttentionSpan, tile: usize) -> Range<usize> {
        let first = span.first_position + tile * self.tile_tokens;
        let end = (first + self.tile_tokens).min(span.first_position + span.tokens);
        span.held_of(&stretches_of(&(seen_from(first, self.layer.window).start..end)))
    }

    /// Returns the stretches in memory that the token at `position` sees.
    fn stretches_seen(&self, span: &AttentionSpan, position: usize) -> Range<usize> {
        span.held_of(&stretches_of(&seen_from(position, self.layer.window)))
    }

    /// Returns the number of work items for each tile of heads of the span.
    fn items_per_head(&self, span: &AttentionSpan) -> usize {
        let tiles = span.tokens.div_ceil(self.tile_tokens);
        match self.parts_per_row {
            0 => tiles,
            _ => (0..tiles).map(|tile| self.seen_by(span, tile).len()).sum(),
        }
    }

    fn items_of(&self, span: &AttentionSpan) -> usize {
        let kv_tiles = self.layer.kv.num_kv_heads().div_ceil(self.kv_heads_of(span));
        self.items_per_head(span) * kv_tiles * self.tiles_per_kv_head
    }
}

/// A work item.
struct Item<'a> {
    span: &'a AttentionSpan,
    /// The index of the row of the span's first token.
    first_row: usize,
    kv_heads: Range<usize>,
    /// Index of the tile among the tiles of the KV heads' query heads.
    head_tile: usize,
    token_tile: usize,
    /// All stretches that the tile sees, or a single one.
    stretches: Range<usize>,
}

/// Finds work items by their numbers, which have to be asked for in ascending order.
#[derive(Default)]
struct Cursor {
    span: usize,
    first_item: usize,
    first_row: usize,
}

impl Cursor {
    fn advance<'a>(&mut self, plan: &Plan, number: usize, spans: &'a [AttentionSpan]) -> Option<Item<'a>> {
        let span = loop {
            let span = spans.get(self.span)?;
            let items = plan.items_of(span);
            if number < self.first_item + items {
                break span;
            }
            self.span += 1;
            self.first_item += items;
            self.first_row += span.tokens;
        };
        let per_head = plan.items_per_head(span);
        let (head, mut left) = ((number - self.first_item) / per_head, (number - self.first_item) % per_head);
        // Later tokens see more positions, so their tiles come first.
        let mut token_tile = span.tokens.div_ceil(plan.tile_tokens) - 1;
        let mut stretches = plan.seen_by(span, token_tile);
        if plan.parts_per_row == 0 {
            token_tile -= left;
            stretches = plan.seen_by(span, token_tile);
        } else {
            while left >= stretches.len() {
                left -= stretches.len();
                token_tile -= 1;
                stretches = plan.seen_by(span, token_tile);
            }
            let stretch = stretches.start + left;
            stretches = stretch..stretch + 1;
        }
        let (kv_heads, first) = (plan.kv_heads_of(span), head / plan.tiles_per_kv_head * plan.kv_heads_of(span));
        Some(Item {
            span,
            first_row: self.first_row,
            kv_heads: first..(first + kv_heads).min(plan.layer.kv.num_kv_heads()),
            head_tile: head % plan.tiles_per_kv_head,
            token_tile,
            stretches,
        })
    }
}

/// The operands that all work items share.
struct AttentionOperands<'a> {
    plan: &'a Plan,
    level: Level,
    blocks: KvBytes<'a>,
    spans: &'a [AttentionSpan],
    tables: &'a [u32],
    sinks: Option<Matrix<'a>>,
    q: &'a [f32],
    out: Share<'a, f32>,
    /// The parts of all rows, `[row, part, PART_HEAD + head_dim]`.
    parts: Share<'a, f32>,
    carried: Carried<'a>,
}

impl<'a> AttentionOperands<'a> {
    fn compute(&self, item: &Item<'_>, work: &mut Workspace) {
        let plan = self.plan;
        let AttentionLayer { kv: layer, heads, scale, window } = plan.layer;
        let head_dim = layer.head_dim();
        let sharing = heads / layer.num_kv_heads();
        let first_head = item.kv_heads.start * sharing + item.head_tile * plan.tile_heads;
        let first_token = item.token_tile * plan.tile_tokens;
        let first = (item.first_row + first_token) * heads + first_head;
        let tile_heads = plan.tile_heads.min(sharing - item.head_tile * plan.tile_heads);
        let tile = Tile {
            layer,
            kv: item.span.kv(self.tables),
            keys: self.blocks.at(layer.key_offset(item.kv_heads.start)),
            queries: self.q[first * head_dim..].as_ptr(),
            token_stride: heads * head_dim,
            kv_heads: item.kv_heads.len(),
            heads: tile_heads,
            first_position: item.span.first_position + first_token,
            tokens: plan.tile_tokens.min(item.span.tokens - first_token),
            window,
            scale,
            sinks: self.sinks.map(|sinks| sinks.columns(first_head..first_head + item.kv_heads.len() * tile_heads)),
        };
        let (rows, span) = (tile.rows(), item.span);
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        let mut seen = [Seen::NOTHING; ROWS];
        for row in 0..rows {
            let (token, head) = (tile.token(row), tile.head(row));
            let at = first + token * heads + head;
            if plan.parts_per_row == 0 && span.is_continued(&seen_from(tile.first_position + token, window)) {
                // SAFETY: no two items have a row in common.
                seen[row] = unsafe { self.carried.get(at) };
            }
            sums[row] = match self.part_of(span, tile.first_position + token, &item.stretches) {
                // SAFETY: no two items have a row in common.
                _ if plan.parts_per_row == 0 => unsafe { self.out.slice(at * head_dim, head_dim) }.as_mut_ptr(),
                // SAFETY: no two items have a row's stretch in common.
                Some(part) => unsafe { &mut self.part(at, part)[PART_HEAD..] }.as_mut_ptr(),
                None => std::ptr::null_mut(),
            };
        }
        let kind = match (plan.parts_per_row, span.is_last()) {
            (0, true) => Kind::Last,
            (0, false) => Kind::Continued,
            _ => Kind::Part,
        };
        let mut outcome = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: `attention` has checked its operands, which have not changed since: queries and output have the
        // tile's rows, and all positions up to the tile's last lie in the pool.
        unsafe { attend(self.level, &tile, item.stretches.clone(), kind, work, &mut outcome) };
        for row in 0..rows {
            let (token, head) = (tile.token(row), tile.head(row));
            let at = first + token * heads + head;
            match (kind, self.part_of(span, tile.first_position + token, &item.stretches)) {
                (Kind::Part, Some(part)) => {
                    // SAFETY: as above; the sums after the part's head are not touched.
                    let part = unsafe { self.part(at, part) };
                    (part[0], part[1]) = (seen[row].greatest, seen[row].total);
                }
                // SAFETY: no two items have a row in common.
                (Kind::Continued, _) => unsafe { self.carried.set(at, seen[row]) },
                (Kind::Part, None) | (Kind::Last, _) => {}
            }
        }
    }

    /// Returns the index of the part that the token at `position` gets from the first of `stretches`; `None` if the
    /// token sees nothing of that stretch.
    fn part_of(&self, span: &AttentionSpan, position: usize, stretches: &Range<usize>) -> Option<usize> {
        let own = self.plan.stretches_seen(span, position);
        own.contains(&stretches.start).then(|| stretches.start - own.start)
    }

    /// Returns the first `count` parts of a row.
    ///
    /// # Safety
    /// Nothing else reads or writes these parts while they are in use.
    unsafe fn parts(&self, row: usize, count: usize) -> &'a mut [f32] {
        let len = PART_HEAD + self.plan.layer.kv.head_dim();
        assert!(count <= self.plan.parts_per_row);
        // SAFETY: guaranteed by the caller.
        unsafe { self.parts.slice(row * self.plan.parts_per_row * len, count * len) }
    }

    /// Returns one part of a row: the part's greatest score and total, and then its sums.
    ///
    /// # Safety
    /// Nothing else reads or writes this part while it is in use.
    unsafe fn part(&self, row: usize, part: usize) -> &'a mut [f32] {
        let len = PART_HEAD + self.plan.layer.kv.head_dim();
        // SAFETY: guaranteed by the caller.
        unsafe { self.parts.slice((row * self.plan.parts_per_row + part) * len, len) }
    }

    /// Merges the parts of the tokens in `tokens`, after all parts have been computed.
    fn merge_tokens(&self, tokens: Range<usize>) {
        let AttentionLayer { kv, heads, window, .. } = self.plan.layer;
        let mut first_token = 0;
        for span in self.spans {
            let own = first_token..first_token + span.tokens;
            for token in own.start.max(tokens.start)..own.end.min(tokens.end) {
                let position = span.first_position + token - own.start;
                let parts = self.plan.stretches_seen(span, position).len();
                let is_continued = span.is_continued(&seen_from(position, window));
                for head in 0..heads {
                    let row = token * heads + head;
                    // SAFETY: each token is in one share only, and all parts have been written.
                    let (out, parts) =
                        unsafe { (self.out.slice(row * kv.head_dim(), kv.head_dim()), self.parts(row, parts)) };
                    // SAFETY: as above.
                    let before = is_continued.then(|| unsafe { self.carried.get(row) });
                    let seen = merge_row(self.level, before, parts, out);
                    match span.is_last() {
                        true => finish(self.level, &seen, self.sinks.map(|sinks| sinks.element(head)), out),
                        // SAFETY: as above.
                        false => unsafe { self.carried.set(row, seen) },
                    }
                }
            }
            first_token = own.end;
        }
    }
}

/// Merges the parts of a row in ascending order, as a single thread would: `parts` are `[part, PART_HEAD + out.len()]`.
/// The sums of the state `before`, if any, are already in `out`.
fn merge_row(level: Level, before: Option<Seen>, parts: &[f32], out: &mut [f32]) -> Seen {
    let seen = |part: &[f32]| Seen { greatest: part[0], total: part[1] };
    let mut parts = parts.chunks_exact(PART_HEAD + out.len());
    let mut into = match before {
        Some(before) => before,
        None => {
            let Some(first) = parts.next() else { return Seen::NOTHING };
            out.copy_from_slice(&first[PART_HEAD..]);
            seen(first)
        }
    };
    for other in parts {
        merge(level, &mut into, out, seen(other), &other[PART_HEAD..]);
    }
    into
}
