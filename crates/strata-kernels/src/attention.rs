//! Attention over a paged KV cache: exact, with online softmax, for prefill chunks and decodes alike.
//!
//! A token attends to the positions from its window's start up to its own. They are taken in segments of [`SEGMENT`]
//! positions and, within these, runs of [`RUN`], both counted from position 0; a segment's part is summed by itself, and
//! parts are merged in ascending order. So the order of every sum depends on the token's position alone: not on the chunk
//! that it came in, on the batch, on the threads, or on where a prefix hit ended.
//!
//! Work is cut into tiles: consecutive tokens of a sequence with the query heads that share a KV head. A run of keys and
//! values is read, widened and turned once for all rows of a tile (flash attention); a decode is a tile of one token.
//! Threads take the next tile when they are done with one, so that long and short ones balance. Where there are too few
//! tiles to go round, segments are dealt out too, and their parts wait in scratch until all are there.

mod element;
mod lanes;
mod products;
mod softmax;
mod tile;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use lanes::Lanes;
use softmax::{Seen, finish, merge};
use tile::{Outcome, ROWS, Tile, Workspace, attend, rows_max, seen_from, segments_of};

use crate::pool::Pool;
use crate::share::Share;
use crate::{KvLayout, Level};

/// Positions whose scores are held at a time.
pub const RUN: usize = 64;

/// Positions that are summed by themselves before they are merged with those before them.
pub const SEGMENT: usize = 1024;

/// Elements of a head that are widened at a time.
const CHUNK: usize = 64;

/// Fewer tiles than this many a thread are cut into segments too.
const TILES_A_THREAD: usize = 4;

/// Numbers in front of a part's sums: greatest score and total.
const PART_HEAD: usize = 2;

/// Most numbers that [`attention_scratch`] asks for.
const SCRATCH_MAX: usize = 1 << 20;

/// Sequences whose whole context [`attention_scratch`] has room for the parts of.
const SCRATCH_SEQUENCES: usize = 4;

/// The tokens of one sequence that a pass computes.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSequence<'a> {
    /// Position of the first of them.
    pub first_position: usize,
    /// How many there are. Their rows follow those of the sequence before.
    pub tokens: usize,
    /// Physical block of each logical block, up to that of the last token.
    pub block_table: &'a [u32],
}

/// One layer's attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLayer<'a> {
    /// How a block lies in memory.
    pub layout: &'a KvLayout,
    /// The layer.
    pub layer: usize,
    /// Query heads; a multiple of the KV heads.
    pub heads: usize,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// Positions that a token sees, itself included; `None` sees all.
    pub window: Option<usize>,
}

/// Scratch numbers with which [`attention`] keeps all threads busy however few sequences there are. With fewer it is as
/// correct, to the bit.
///
/// - `context`: most positions of a sequence
pub fn attention_scratch(heads: usize, head_dim: usize, context: usize) -> usize {
    let segments = context.div_ceil(SEGMENT);
    if segments <= 1 {
        return 0;
    }
    let parts = heads.saturating_mul(segments).saturating_mul(SCRATCH_SEQUENCES);
    parts.saturating_mul(head_dim.saturating_add(PART_HEAD)).min(SCRATCH_MAX)
}

/// Attention of every token of the batch to its own sequence.
///
/// - `blocks`: the pool, `[block, layer, k|v, kv_head, slot, head_dim]`, in which the keys and values of all positions up
///   to these tokens' own have been written
/// - `sequences`, `sequence_at`: how many, and which
/// - `q`: `[tokens, heads, head_dim]`, already rotated
/// - `scratch`: see [`attention_scratch`]; what it holds does not matter
/// - `out`: as `q`
///
/// # Panics
/// If the lengths disagree, or a block table is too short or names a block that is not in the pool.
#[expect(clippy::too_many_arguments, reason = "an operation with this many operands")]
pub fn attention<'a>(
    pool: &Pool,
    level: Level,
    layer: AttentionLayer<'_>,
    blocks: &[u8],
    sequences: usize,
    sequence_at: impl Fn(usize) -> AttentionSequence<'a> + Sync,
    q: &[f32],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let AttentionLayer { layout, heads, window, .. } = layer;
    let head_dim = layout.head_dim;
    assert!(heads.is_multiple_of(layout.num_kv_heads) && layer.layer < layout.num_layers);
    let num_blocks = blocks.len() / layout.block_bytes();
    let (mut tokens, mut cost) = (0usize, 0usize);
    let mut plan = Plan::new(layer);
    for sequence in (0..sequences).map(&sequence_at) {
        let end = sequence.first_position + sequence.tokens;
        let table = &sequence.block_table[..end.div_ceil(layout.block_size)];
        assert!(table.iter().all(|&block| (block as usize) < num_blocks));
        tokens += sequence.tokens;
        let seen = seen_from(end.saturating_sub(1), window).len();
        cost = cost.saturating_add(2 * seen * sequence.tokens * heads * head_dim);
    }
    assert!(q.len() == tokens * heads * head_dim && out.len() == q.len());
    plan.decide(pool.threads(), sequences, &sequence_at, tokens, scratch.len());

    let (next, threads) = (AtomicUsize::new(0), pool.threads());
    let (shared_out, shared_parts) = (Share::new(out), Share::new(scratch));
    let operands = Operands { plan: &plan, level, blocks, q, out: shared_out, parts: shared_parts };
    // One share a thread, each of which takes items until none is left.
    pool.split(threads, 1, cost.div_ceil(threads), |_| {
        let mut work = Workspace::new();
        let mut cursor = Cursor::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = cursor.advance(&plan, number, sequences, &sequence_at) else { return };
            operands.compute(&item, &mut work);
        }
    });
    if plan.parts_per_row > 0 {
        let cost = 2 * plan.parts_per_row * head_dim * heads;
        pool.split(tokens, 1, cost, |rows| operands.merge_tokens(rows, sequences, &sequence_at));
    }
}

/// How the batch is cut into items.
struct Plan<'a> {
    layer: AttentionLayer<'a>,
    /// Query heads of a tile: those that share a KV head, unless they are very many.
    tile_heads: usize,
    /// Tiles that the query heads of one KV head make.
    tiles_per_kv_head: usize,
    tile_tokens: usize,
    /// Room for so many segments' parts for each row, where segments are items of their own; otherwise 0.
    parts_per_row: usize,
}

impl<'a> Plan<'a> {
    fn new(layer: AttentionLayer<'a>) -> Self {
        let sharing = layer.heads / layer.layout.num_kv_heads;
        let rows = rows_max(layer.layout.head_dim);
        assert!(rows > 0, "a head of {} elements is beyond what attention can hold", layer.layout.head_dim);
        let tile_heads = sharing.min(rows);
        Self {
            layer,
            tile_heads,
            tiles_per_kv_head: sharing.div_ceil(tile_heads),
            tile_tokens: (rows / tile_heads).max(1),
            parts_per_row: 0,
        }
    }

    /// Cuts segments off too if there are few tiles, and room for the parts.
    fn decide<'s>(
        &mut self,
        threads: usize,
        sequences: usize,
        sequence_at: &impl Fn(usize) -> AttentionSequence<'s>,
        tokens: usize,
        room: usize,
    ) {
        let (mut tiles, mut parts) = (0, 0);
        for sequence in (0..sequences).map(sequence_at) {
            tiles += self.items_of(&sequence);
            let last = (sequence.first_position + sequence.tokens).saturating_sub(1);
            // A window that is not aligned touches one segment more than the last token's own may.
            let window = self.layer.window.map_or(usize::MAX, |window| window.div_ceil(SEGMENT) + 1);
            parts = parts.max(window.min(last / SEGMENT + 1));
        }
        let row = parts * (self.layer.layout.head_dim + PART_HEAD);
        let fits = tokens.saturating_mul(self.layer.heads).saturating_mul(row) <= room;
        if threads > 1 && tiles < TILES_A_THREAD * threads && parts > 1 && fits {
            self.parts_per_row = parts;
        }
    }

    /// Positions that a tile of tokens sees.
    fn seen_by(&self, sequence: &AttentionSequence<'_>, tile: usize) -> Range<usize> {
        let first = sequence.first_position + tile * self.tile_tokens;
        let end = (first + self.tile_tokens).min(sequence.first_position + sequence.tokens);
        seen_from(first, self.layer.window).start..end
    }

    /// Items that each head tile of the sequence makes.
    fn items_per_head(&self, sequence: &AttentionSequence<'_>) -> usize {
        let tiles = sequence.tokens.div_ceil(self.tile_tokens);
        match self.parts_per_row {
            0 => tiles,
            _ => (0..tiles).map(|tile| segments_of(&self.seen_by(sequence, tile)).len()).sum(),
        }
    }

    fn items_of(&self, sequence: &AttentionSequence<'_>) -> usize {
        self.items_per_head(sequence) * self.layer.layout.num_kv_heads * self.tiles_per_kv_head
    }
}

/// One piece of work.
struct Item<'a> {
    sequence: AttentionSequence<'a>,
    /// Row of the sequence's first token.
    first_row: usize,
    kv_head: usize,
    /// Which of the KV head's tiles of query heads.
    head_tile: usize,
    token_tile: usize,
    /// All that the tile sees, or one.
    segments: Range<usize>,
}

/// Finds items by their numbers, which only ever grow.
#[derive(Default)]
struct Cursor {
    sequence: usize,
    first_item: usize,
    first_row: usize,
}

impl Cursor {
    fn advance<'s>(
        &mut self,
        plan: &Plan<'_>,
        number: usize,
        sequences: usize,
        sequence_at: &impl Fn(usize) -> AttentionSequence<'s>,
    ) -> Option<Item<'s>> {
        let sequence = loop {
            if self.sequence == sequences {
                return None;
            }
            let sequence = sequence_at(self.sequence);
            let items = plan.items_of(&sequence);
            if number < self.first_item + items {
                break sequence;
            }
            self.sequence += 1;
            self.first_item += items;
            self.first_row += sequence.tokens;
        };
        let per_head = plan.items_per_head(&sequence);
        let (head, mut left) = ((number - self.first_item) / per_head, (number - self.first_item) % per_head);
        // Later tokens see more, so their tiles come first.
        let mut token_tile = sequence.tokens.div_ceil(plan.tile_tokens) - 1;
        let mut segments = segments_of(&plan.seen_by(&sequence, token_tile));
        if plan.parts_per_row == 0 {
            token_tile -= left;
            segments = segments_of(&plan.seen_by(&sequence, token_tile));
        } else {
            while left >= segments.len() {
                left -= segments.len();
                token_tile -= 1;
                segments = segments_of(&plan.seen_by(&sequence, token_tile));
            }
            let segment = segments.start + left;
            segments = segment..segment + 1;
        }
        Some(Item {
            sequence,
            first_row: self.first_row,
            kv_head: head / plan.tiles_per_kv_head,
            head_tile: head % plan.tiles_per_kv_head,
            token_tile,
            segments,
        })
    }
}

/// What all items read and write.
struct Operands<'a> {
    plan: &'a Plan<'a>,
    level: Level,
    blocks: &'a [u8],
    q: &'a [f32],
    out: Share<'a, f32>,
    /// `[row, part, PART_HEAD + head_dim]`
    parts: Share<'a, f32>,
}

impl<'a> Operands<'a> {
    fn compute(&self, item: &Item<'_>, work: &mut Workspace) {
        let plan = self.plan;
        let AttentionLayer { layout, layer, heads, scale, window } = plan.layer;
        let head_dim = layout.head_dim;
        let sharing = heads / layout.num_kv_heads;
        let first_head = item.kv_head * sharing + item.head_tile * plan.tile_heads;
        let first_token = item.token_tile * plan.tile_tokens;
        let first = (item.first_row + first_token) * heads + first_head;
        let tile = Tile {
            layout: *layout,
            keys: self.blocks[layout.key_offset(layer, item.kv_head)..].as_ptr(),
            block_table: item.sequence.block_table,
            queries: self.q[first * head_dim..].as_ptr(),
            token_stride: heads * head_dim,
            heads: plan.tile_heads.min(sharing - item.head_tile * plan.tile_heads),
            first_position: item.sequence.first_position + first_token,
            tokens: plan.tile_tokens.min(item.sequence.tokens - first_token),
            window,
            scale,
        };
        let rows = tile.rows();
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        let mut seen = [Seen::NOTHING; ROWS];
        for row in 0..rows {
            let (token, head) = (row / tile.heads, row % tile.heads);
            let at = first + token * heads + head;
            sums[row] = match self.part_of(tile.first_position + token, &item.segments) {
                // SAFETY: no two items have a row in common.
                _ if plan.parts_per_row == 0 => unsafe { self.out.slice(at * head_dim, head_dim) }.as_mut_ptr(),
                // SAFETY: no two items have a row's segment in common.
                Some(part) => unsafe { &mut self.part(at, part)[PART_HEAD..] }.as_mut_ptr(),
                None => std::ptr::null_mut(),
            };
        }
        let finished = plan.parts_per_row == 0;
        let mut outcome = Outcome { sums: &sums[..rows], seen: &mut seen[..rows] };
        // SAFETY: the operands have been checked: queries and outcome are as long as the tile has rows, and the block table
        // names blocks of the pool.
        unsafe { attend(self.level, &tile, item.segments.clone(), finished, work, &mut outcome) };
        if !finished {
            for row in 0..rows {
                let (token, head) = (row / tile.heads, row % tile.heads);
                if let Some(part) = self.part_of(tile.first_position + token, &item.segments) {
                    // SAFETY: as above; the sums behind the head are not touched.
                    let part = unsafe { self.part(first + token * heads + head, part) };
                    (part[0], part[1]) = (seen[row].greatest, seen[row].total);
                }
            }
        }
    }

    /// Which of its parts the token at `position` gets from the first of `segments`, if it sees any of it.
    fn part_of(&self, position: usize, segments: &Range<usize>) -> Option<usize> {
        let own = segments_of(&seen_from(position, self.plan.layer.window));
        own.contains(&segments.start).then(|| segments.start - own.start)
    }

    /// # Safety
    /// Nothing else reads or writes this part while it is in use.
    unsafe fn part(&self, row: usize, part: usize) -> &'a mut [f32] {
        let len = PART_HEAD + self.plan.layer.layout.head_dim;
        // SAFETY: the caller's promise.
        unsafe { self.parts.slice((row * self.plan.parts_per_row + part) * len, len) }
    }

    /// Merges the parts of the tokens in `tokens`, once all of them are there.
    fn merge_tokens<'s>(
        &self,
        tokens: Range<usize>,
        sequences: usize,
        sequence_at: &impl Fn(usize) -> AttentionSequence<'s>,
    ) {
        let AttentionLayer { layout, heads, window, .. } = self.plan.layer;
        let mut first_token = 0;
        for sequence in (0..sequences).map(sequence_at) {
            let own = first_token..first_token + sequence.tokens;
            for token in own.start.max(tokens.start)..own.end.min(tokens.end) {
                let parts = segments_of(&seen_from(sequence.first_position + token - own.start, window)).len();
                for row in token * heads..(token + 1) * heads {
                    // SAFETY: each token is in one share only, and all parts have been written.
                    let out = unsafe { self.out.slice(row * layout.head_dim, layout.head_dim) };
                    // SAFETY: as above.
                    let part = |part| &*unsafe { self.part(row, part) };
                    merge_row(self.level, parts, part, out);
                }
            }
            first_token = own.end;
        }
    }
}

/// What one thread would have merged on its way through all segments, in the same order.
fn merge_row<'a>(level: Level, parts: usize, part: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    let (sums, count) = (out.as_mut_ptr(), out.len());
    let seen = |part: &[f32]| Seen { greatest: part[0], total: part[1] };
    let first = part(0);
    out.copy_from_slice(&first[PART_HEAD..]);
    let into = &mut seen(first);
    for other in (1..parts).map(part) {
        // SAFETY: a part has as many sums as `out`.
        unsafe { merge(level, into, sums, seen(other), other[PART_HEAD..].as_ptr(), count) };
    }
    // SAFETY: `sums` are those of `out`.
    unsafe { finish(level, into, sums, count) };
}
