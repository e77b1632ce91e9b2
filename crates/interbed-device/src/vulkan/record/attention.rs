//! Attention, in tiles of tokens and heads.

use std::sync::Arc;

use interbed_kernels::{ATTENTION_STATE, AttentionLayer, AttentionSpan, KvLayer, STRETCH};

use super::{NUMBER, Recorder};
use crate::vulkan::error::GpuError;
use crate::vulkan::kernels::{AttentionPush, AttentionTile, Kernel, MergePush, Number, attention_rows};
use crate::{KvFrame, KvSequences, Tensor, Use, Weights};

/// Workgroups of attention that keep a large GPU busy.
const GROUPS_WANTED: usize = 512;

/// Numbers in front of a part's sums: greatest score and total.
const PART_HEAD: usize = 2;

/// The number with which a tile names its first part.
const PARTS_FROM: u32 = 2;

/// A window so long that every position is within it.
const WINDOW_MAX: usize = 1 << 30;

/// The KV that attention reads.
struct AttendedKv {
    /// The address of the addresses of the blocks.
    blocks: u64,
    /// The place at which the addresses of each sequence begin.
    starts: Vec<u32>,
    /// The place of the layer in a block.
    layer: KvLayer,
}

impl Recorder<'_> {
    pub(super) fn attend(
        &mut self,
        uses: &[Use],
        layer: AttentionLayer,
        frame: Option<&KvFrame>,
        sequences: KvSequences<'_>,
        sinks: Option<&Weights>,
        [q, state, out]: [Tensor; 3],
    ) -> Result<(), GpuError> {
        let AttendedKv { blocks, starts, layer: kv } = self.attended_kv(layer.kv, frame, sequences)?;
        let (head_dim, sharing) = (kv.head_dim(), layer.heads / kv.num_kv_heads());
        let rows = attention_rows(head_dim);
        let tile_heads = sharing.min(rows);
        let (mut tiles, row) = tiles_of(sequences, &starts, rows / tile_heads, layer.window);
        let head_tiles = kv.num_kv_heads() * sharing.div_ceil(tile_heads);
        // Where there are few tiles, the stretches of long contexts are computed side by side, if there is room for
        // their parts.
        let most = tiles.iter().map(AttentionTile::stretches).max().unwrap_or(0);
        let room = self.scratch.len() / NUMBER / (row * layer.heads * (head_dim + PART_HEAD)).max(1);
        let is_split = tiles.len() * head_tiles < GROUPS_WANTED
            && (2..=room).contains(&most)
            && tiles.iter().all(|tile| tile.part == 0 && tile.continued == 0);
        let counts: Vec<u32> =
            tiles.iter().flat_map(|tile| std::iter::repeat_n(tile.stretches() as u32, tile.tokens as usize)).collect();
        let scores: u64 = tiles.iter().map(|tile| u64::from(tile.tokens) * u64::from(tile.end - tile.from)).sum();
        self.gpu_queue.count_multiply_adds(2 * scores * (layer.heads * head_dim) as u64);
        if is_split {
            tiles = tiles.iter().flat_map(AttentionTile::split).collect();
        }
        assert!(
            state.len() == row * layer.heads * ATTENTION_STATE || tiles.iter().all(|t| t.part == 0 && t.continued == 0),
            "attention that goes on later has a state"
        );
        let push = AttentionPush {
            q: self.address(q),
            result: self.address(out),
            state: self.address(state),
            parts: self.scratch.address(),
            tiles: self.put(bytemuck::cast_slice(&tiles))?,
            blocks,
            sinks: sinks.map_or(Ok(0), |sinks| self.weights(sinks))?,
            heads: layer.heads as u32,
            sharing: sharing as u32,
            tile_heads: tile_heads as u32,
            block_size: kv.block_size() as u32,
            first_key: kv.key_offset(0) as u32,
            head_bytes: (kv.block_size() * kv.slot_bytes()) as u32,
            to_values: kv.value_offset() as u32,
            window: layer.window.map_or(0, |window| window.min(WINDOW_MAX) as u32),
            parts_per_row: most as u32,
            scale: layer.scale,
            sink_type: sinks.map_or(Ok(0), |sinks| Number::of(sinks.dtype()).map(Number::get))?,
            unused: 0,
        };
        let kernel = Kernel::Attention { dtype: kv.dtype(), head_dim: head_dim as u32 };
        let groups = [tiles.len(), head_tiles];
        if !is_split {
            return self.run(uses, kernel, &push, groups);
        }
        self.attend_in_parts(uses, [kernel, Kernel::Merge(head_dim as u32)], &push, groups, &counts)
    }

    /// Returns the KV blocks that attention reads: those of the pool, or those of a frame.
    fn attended_kv(
        &mut self,
        layer: KvLayer,
        frame: Option<&KvFrame>,
        sequences: KvSequences<'_>,
    ) -> Result<AttendedKv, GpuError> {
        let Some(frame) = frame else {
            let table = self.block_tables.of(self.gpu, self.kv, sequences)?;
            self.gpu_queue.keep(Arc::clone(&table.memory));
            return Ok(AttendedKv { blocks: table.memory.address(), starts: table.starts.clone(), layer });
        };
        let layer = layer.alone();
        let first = self.put(frame.bytes())?;
        let blocks = frame.bytes().len() / layer.block_bytes();
        let addresses: Vec<_> = (0..blocks).map(|block| first + (block * layer.block_bytes()) as u64).collect();
        let blocks = self.put(bytemuck::cast_slice(&addresses))?;
        Ok(AttendedKv { blocks, starts: vec![0; sequences.spans.len()], layer })
    }

    /// Runs attention whose tiles are parts of tokens, and merges these; `counts` are the parts of each token.
    fn attend_in_parts(
        &mut self,
        uses: &[Use],
        [kernel, merging]: [Kernel; 2],
        push: &AttentionPush,
        groups: [usize; 2],
        counts: &[u32],
    ) -> Result<(), GpuError> {
        let merge = MergePush {
            parts: push.parts,
            result: push.result,
            counts: self.put(bytemuck::cast_slice(counts))?,
            sinks: push.sinks,
            heads: push.heads,
            parts_per_row: push.parts_per_row,
            sink_type: push.sink_type,
            unused: 0,
        };
        let commands = self.gpu_queue.operation(uses);
        // The parts' room is no tensor: who used it before is done first, and they are all there before the merge.
        self.gpu_queue.barrier();
        self.kernels.run(commands, kernel, push, groups)?;
        self.gpu_queue.barrier();
        self.kernels.run(commands, merging, &merge, [push.heads as usize, counts.len()])
    }
}

impl AttentionTile {
    /// Stretches that the tile attends to.
    fn stretches(&self) -> usize {
        let stretch = STRETCH as u32;
        (self.end.div_ceil(stretch) - self.from / stretch) as usize
    }

    /// Returns a tile for each stretch.
    fn split(&self) -> impl Iterator<Item = Self> + use<> {
        let (tile, stretch) = (*self, STRETCH as u32);
        let first = tile.from / stretch;
        (first..tile.end.div_ceil(stretch)).map(move |number| Self {
            from: tile.from.max(number * stretch),
            end: tile.end.min((number + 1) * stretch),
            part: PARTS_FROM + number - first,
            ..tile
        })
    }
}

/// Returns the tiles of a batch, of `tile_tokens` tokens, and how many tokens it has; `starts` are where the addresses
/// of each sequence begin.
fn tiles_of(
    sequences: KvSequences<'_>,
    starts: &[u32],
    tile_tokens: usize,
    window: Option<usize>,
) -> (Vec<AttentionTile>, usize) {
    let (mut tiles, mut row) = (Vec::new(), 0);
    for (span, &table) in sequences.spans.iter().zip(starts) {
        add_tiles(span, table, row, tile_tokens, window, &mut tiles);
        row += span.tokens;
    }
    (tiles, row)
}

/// Adds the tiles of a span, of `tile_tokens` tokens each. `row` is the row of the span's first token, and the span's
/// addresses begin at `table`.
fn add_tiles(
    span: &AttentionSpan,
    table: u32,
    row: usize,
    tile_tokens: usize,
    window: Option<usize>,
    tiles: &mut Vec<AttentionTile>,
) {
    let end = span.first_position + span.tokens;
    for first in (0..span.tokens).step_by(tile_tokens) {
        let (position, tokens) = (span.first_position + first, tile_tokens.min(span.tokens - first));
        let seen = window.map_or(0, |window| (position + 1).saturating_sub(window));
        let from = seen.max(span.held.start);
        let to = (position + tokens).min(span.held.end);
        tiles.push(AttentionTile {
            token: (row + first) as u32,
            tokens: tokens as u32,
            position: position as u32,
            table,
            held: span.held.start as u32,
            from: from.min(to) as u32,
            end: to as u32,
            part: u32::from(span.held.end < end),
            continued: u32::from(seen < span.held.start),
        });
    }
}
