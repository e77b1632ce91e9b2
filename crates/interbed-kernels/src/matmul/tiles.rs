//! Computes products of bf16 weights with activations rounded to bf16, by AMX tiles.
//!
//! Weights are the first operand, 16 rows of 32 columns as they are in files. Activations are the second operand,
//! rearranged once per operation as pairs of `k`. So one token and sixteen tokens take the same instructions, and a
//! single token still reads weights several times faster than DRAM delivers them. For few tokens, weights are streamed
//! in place. For many tokens, a block of a panel's columns is first copied together, since rows a power of two apart
//! would map to a few sets of the cache.
//!
//! Each output is one chain over steps of 32 columns in ascending order, where the instruction sums even and odd
//! columns of a step apart. The chain is kept in a tile or, between blocks of columns, in f32 memory. Neither the
//! number of tokens nor the blocking changes a bit.
//!
//! ```text
//! weights [16 rows][32 k]      *  activations [16 pairs of k][16 tokens][2]  ->  sums [16 rows][16 tokens]
//! ```

use std::ops::Range;

use super::Output;
use crate::cache;
use crate::level::Instructions;
use crate::pool::Pool;
use crate::{Level, Matrix};

/// The number of tokens of a tile.
const GROUP: usize = 16;

/// The number of columns of a tile.
const STEP: usize = 32;

/// The number of rows of a panel: two tiles.
const PANEL_ROWS: usize = 32;

/// The number of rows whose sums are stored at a time if columns are split into blocks.
const SUPER_ROWS: usize = 128;

/// The number of tokens whose sums are stored at a time.
const TOKEN_BLOCK: usize = 512;

/// The maximum number of tokens for which columns are not split, and weights are read once.
const STREAMED_TOKENS: usize = 4 * GROUP;

/// The maximum number of steps of a block of columns.
const BLOCK_STEPS_MAX: usize = 16;

/// The number of steps that one work item packs.
const PACK_STEPS: usize = 16;

/// Returns whether `level` has the instructions of these kernels.
pub(crate) fn runs_at(level: Level) -> bool {
    level.instructions() >= Instructions::Amx && cfg!(target_arch = "x86_64")
}

/// Returns the number of elements of a thread's work area: the sums of one block of outputs.
pub(crate) const fn work_len(tokens: usize) -> usize {
    let padded = tokens.next_multiple_of(GROUP);
    match padded <= STREAMED_TOKENS {
        true => PANEL_ROWS * padded,
        false => SUPER_ROWS * if padded < TOKEN_BLOCK { padded } else { TOKEN_BLOCK },
    }
}

/// The layout of packed activations: `[block of tokens][block of columns][group of tokens][step][pair of k
/// 16][token][2]`. Numbers that are multiplied together are adjacent. Groups have 16 tokens, except for the last one,
/// which has the remaining tokens. Columns are padded to whole steps with zeros.
#[derive(Clone, Copy)]
struct Layout {
    tokens: usize,
    steps: usize,
}

impl Layout {
    fn new(tokens: usize, cols: usize) -> Self {
        Self { tokens, steps: cols.div_ceil(STEP) }
    }

    /// Returns the block of tokens that begins with `first`.
    fn tokens_from(&self, first: usize) -> Range<usize> {
        first..(first + TOKEN_BLOCK).min(self.tokens)
    }

    /// Returns the number of steps of a block of columns when `tokens` tokens are multiplied.
    fn block_steps(&self, tokens: usize) -> usize {
        match tokens <= STREAMED_TOKENS {
            true => self.steps,
            // Weights of a panel, activations of two groups and their sums share the L1 cache.
            false => (cache::sizes().first / 3 / (PANEL_ROWS * STEP * 2)).clamp(4, BLOCK_STEPS_MAX),
        }
    }

    /// Returns the block of columns that contains `step`.
    fn columns_of(&self, step: usize, tokens: usize) -> Range<usize> {
        let size = self.block_steps(tokens);
        let first = step / size * size;
        first..(first + size).min(self.steps)
    }

    /// Returns the element offset of the pairs of `step` of the group that begins with `token`.
    fn place(&self, token: usize, step: usize) -> usize {
        let block = self.tokens_from(token / TOKEN_BLOCK * TOKEN_BLOCK);
        let columns = self.columns_of(step, block.len());
        let members = GROUP.min(self.tokens - token);
        let before = block.start * self.steps + columns.start * block.len() + (token - block.start) * columns.len();
        (before + (step - columns.start) * members) * STEP
    }
}

/// Rounds `x` `[tokens, cols]` to bf16 in `packed`, in the order of [`Layout`].
pub(crate) fn pack(pool: &Pool, level: Level, x: &[f32], cols: usize, packed: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    {
        let dots = crate::simd::Bf16Dots::of(level).expect("a level that has tiles");
        let layout = Layout::new(x.len() / cols, cols);
        let pieces = layout.steps.div_ceil(PACK_STEPS);
        let packed = crate::share::Share::new(packed);
        pool.split(layout.tokens.div_ceil(GROUP) * pieces, 1, GROUP * STEP * PACK_STEPS, |items| {
            for item in items {
                let (first, piece) = (item / pieces * GROUP, item % pieces);
                let members = GROUP.min(layout.tokens - first);
                for step in (piece * PACK_STEPS..layout.steps).take(PACK_STEPS) {
                    // SAFETY: each step of each group has its own place and is in one thread's share only; the token
                    // proves the instructions.
                    unsafe {
                        let to = packed.slice(layout.place(first, step), members * STEP);
                        x86::pack_step(dots, &x[first * cols..(first + members) * cols], cols, step, to);
                    }
                }
            }
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pool, x, cols, packed);
}

/// Computes rows `rows` of `w` for all tokens, whose activations [`pack`] has prepared. The memory `work` has
/// [`work_len`] elements.
///
/// # Safety
/// `out` has all tokens and rows, and no other thread touches these columns of it.
pub(super) unsafe fn rows(
    level: Level,
    x: &[u16],
    tokens: usize,
    w: Matrix<'_>,
    rows: Range<usize>,
    out: Output,
    work: &mut [f32],
) {
    assert!(runs_at(level) && rows.end <= w.rows() && w.row_bytes() == 2 * w.cols());
    assert!(work.len() >= work_len(tokens) && x.len() >= tokens * w.cols().next_multiple_of(STEP));
    #[cfg(target_arch = "x86_64")]
    {
        let token = crate::simd::Amx::of(level).expect("a level that has tiles");
        let layout = Layout::new(tokens, w.cols());
        for first in (0..tokens).step_by(TOKEN_BLOCK) {
            let block = x86::Block { token, layout, x, w, out, tokens: layout.tokens_from(first) };
            // SAFETY: the shapes were just checked, the level tested; the output is guaranteed by the caller.
            unsafe { block.rows(rows.clone(), work) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (out, tokens);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::ops::Range;

    use super::*;
    use crate::amx::{
        TileCall, TileConfig, release, stream_panel, stream_panel_pair, stream_row_tile, sweep_group, sweep_pairs,
        sweep_row_tile,
    };
    use crate::matmul::bf16::round;
    use crate::simd::{Amx, Bf16Dots};
    use crate::transpose::transpose;

    /// Packs one step of the columns of a group's tokens `x` `[members, cols]` as pairs.
    ///
    /// # Safety
    /// The level's instructions exist.
    ///
    /// # Panics
    /// Panics if `to` does not have the length of the step's pairs.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn pack_step(s: Bf16Dots, x: &[f32], cols: usize, step: usize, to: &mut [u16]) {
        let members = x.len() / cols;
        assert!(members <= GROUP && to.len() == members * STEP);
        let columns = step * STEP..((step + 1) * STEP).min(cols);
        let mut pairs = [[0.0f32; GROUP]; GROUP];
        for (row, pairs) in x.chunks_exact(cols).zip(&mut pairs) {
            // The pairs are moved as f32, but no arithmetic is done with them.
            s.store512(round(s, &row[columns.clone()]), pairs);
        }
        let to = to.as_mut_ptr().cast::<f32>();
        // SAFETY: `to` has 16 rows of a pair for each member.
        unsafe {
            if members == GROUP {
                return transpose(*s, pairs.as_ptr().cast(), GROUP, to, GROUP);
            }
            for (member, pairs) in pairs[..members].iter().enumerate() {
                for (k, pair) in pairs.iter().enumerate() {
                    to.add(k * members + member).write_unaligned(*pair);
                }
            }
        }
    }

    /// A product for one block of tokens.
    pub(super) struct Block<'a> {
        pub token: Amx,
        pub layout: Layout,
        pub x: &'a [u16],
        pub w: Matrix<'a>,
        pub out: Output,
        pub tokens: Range<usize>,
    }

    /// The steps of a panel's weights, tile after tile, with zeros beyond the columns.
    #[repr(align(64))]
    struct Weights([[[[u8; STEP * 2]; GROUP]; BLOCK_STEPS_MAX]; 2]);

    /// The partial step of a panel's weights, padded with zeros.
    #[repr(align(64))]
    struct Tail([[u8; STEP * 2]; PANEL_ROWS]);

    impl Block<'_> {
        /// Computes rows of the product for this block of tokens.
        ///
        /// # Safety
        /// The conditions of [`super::rows`] hold.
        pub(super) unsafe fn rows(&self, rows: Range<usize>, work: &mut [f32]) {
            // SAFETY: guaranteed by the caller; the level has AMX.
            unsafe {
                match self.tokens.len() <= STREAMED_TOKENS {
                    true => self.stream(rows, work),
                    false => self.sweep(rows, work),
                }
                release();
            }
        }

        /// Returns the number of sums in a row of the work area: one per token, rounded up to whole groups.
        fn width(&self) -> usize {
            self.tokens.len().next_multiple_of(GROUP)
        }

        /// Multiplies panel by panel over all columns, with weights in place, so that each is read once.
        ///
        /// # Safety
        /// The conditions of [`super::rows`] hold.
        unsafe fn stream(&self, rows: Range<usize>, sums: &mut [f32]) {
            let whole = self.w.cols() / STEP;
            let mut tail = Tail([[0; STEP * 2]; PANEL_ROWS]);
            for first in rows.clone().step_by(PANEL_ROWS) {
                let panel = first..(first + PANEL_ROWS).min(rows.end);
                let mut call = self.call(&panel, 0..self.layout.steps);
                let weights = self.row(panel.start);
                call.a = [weights, weights.wrapping_add(GROUP * self.w.row_bytes())];
                call.ahead = self.row(panel.start + PANEL_ROWS);
                if whole < self.layout.steps {
                    for (row, tail) in panel.clone().zip(&mut tail.0) {
                        copy_step(self.row_bytes(row), whole, tail);
                    }
                    (call.steps, call.tail) = (whole, tail.0.as_ptr().cast());
                }
                // SAFETY: the call was made from checked shapes.
                unsafe {
                    self.multiply(&mut call, panel.len(), 0, sums, |call, both_tiles, both_groups| {
                        match (both_tiles, both_groups) {
                            (true, true) => stream_panel_pair(call),
                            (true, false) => stream_panel(call),
                            (false, _) => stream_row_tile(call),
                        }
                    });
                    self.write(panel, sums);
                }
            }
        }

        /// Multiplies some panels at a time, one block of columns after the other. A panel's part is copied together
        /// and multiplied with all tokens while it is in the L1 cache. The activations of the block come from the L2
        /// cache.
        ///
        /// # Safety
        /// The conditions of [`super::rows`] hold.
        unsafe fn sweep(&self, rows: Range<usize>, work: &mut [f32]) {
            let mut weights = Weights([[[[0; STEP * 2]; GROUP]; BLOCK_STEPS_MAX]; 2]);
            for first in rows.clone().step_by(SUPER_ROWS) {
                let here = first..(first + SUPER_ROWS).min(rows.end);
                let mut step = 0;
                while step < self.layout.steps {
                    let columns = self.layout.columns_of(step, self.tokens.len());
                    for start in here.clone().step_by(PANEL_ROWS) {
                        let panel = start..(start + PANEL_ROWS).min(here.end);
                        for (index, row) in panel.clone().enumerate() {
                            let tile = &mut weights.0[index / GROUP];
                            for (to, step) in tile.iter_mut().zip(columns.clone()) {
                                copy_step(self.row_bytes(row), step, &mut to[index % GROUP]);
                            }
                        }
                        let mut call = self.call(&panel, columns.clone());
                        call.a = [weights.0[0].as_ptr().cast(), weights.0[1].as_ptr().cast()];
                        // The panel that is copied next: the next one of these columns, or the first one of the next
                        // columns.
                        let (next_row, next_step) = match (panel.end < here.end, columns.end < self.layout.steps) {
                            (true, _) => (panel.end, columns.start),
                            (false, true) => (here.start, columns.end),
                            (false, false) => (here.end, 0),
                        };
                        call.ahead = self.row(next_row).wrapping_add(next_step * STEP * 2);
                        let sums = &mut work[(start - first) * self.width()..];
                        // SAFETY: the call was made from checked shapes.
                        unsafe {
                            self.multiply(
                                &mut call,
                                panel.len(),
                                columns.start,
                                sums,
                                |call, both_tiles, both_groups| match (both_tiles, both_groups) {
                                    (true, true) => sweep_pairs(call),
                                    (true, false) => sweep_group(call),
                                    (false, _) => sweep_row_tile(call),
                                },
                            );
                        }
                    }
                    step = columns.end;
                }
                // SAFETY: these rows belong to this caller alone.
                unsafe { self.write(here, work) };
            }
        }

        fn row(&self, row: usize) -> *const u8 {
            self.w.bytes().as_ptr().wrapping_add(row * self.w.row_bytes())
        }

        fn row_bytes(&self, row: usize) -> &[u8] {
            &self.w.bytes()[row * self.w.row_bytes()..][..self.w.row_bytes()]
        }

        /// Prepares a call for one panel and block of columns, without its weights and tokens.
        fn call(&self, panel: &Range<usize>, columns: Range<usize>) -> TileCall {
            debug_assert!(panel.len() <= PANEL_ROWS);
            TileCall {
                config: TileConfig::default(),
                a: [std::ptr::null(); 2],
                a_stride: self.w.row_bytes(),
                b: [std::ptr::null(); 2],
                b_stride: 0,
                b_step: 0,
                steps: columns.len(),
                tail: std::ptr::null(),
                c: std::ptr::null_mut(),
                c_stride: self.width() * size_of::<f32>(),
                accumulate: usize::from(columns.start > 0),
                pairs: 1,
                pair_bytes: columns.len() * STEP * 2 * 2 * GROUP,
                ahead: std::ptr::null(),
            }
        }

        /// Runs the call for all tokens, from `step` on: pairs of whole groups first, then the rest. The arguments of
        /// `run` say whether there are two tiles of rows, and two groups of tokens.
        ///
        /// # Safety
        /// The conditions of [`super::rows`] hold; `sums` is `[rows, width]`.
        unsafe fn multiply(
            &self,
            call: &mut TileCall,
            rows: usize,
            step: usize,
            sums: &mut [f32],
            run: impl Fn(&mut TileCall, bool, bool),
        ) {
            assert!(sums.len() >= rows * self.width());
            let heights = [rows.min(GROUP), rows.saturating_sub(GROUP)];
            let (tokens, both_tiles) = (self.tokens.len(), heights[1] > 0);
            let mut at = 0;
            while at < tokens {
                let left = tokens - at;
                // A single tile of rows is multiplied with one group at a time.
                let (members, pairs) = match (both_tiles, left / (2 * GROUP)) {
                    (true, 0) if left > GROUP => ([GROUP, left - GROUP], 1),
                    (true, pairs) if pairs > 0 => ([GROUP, GROUP], pairs),
                    _ => ([left.min(GROUP), 0], 1),
                };
                let place = |token: usize| self.x[self.layout.place(self.tokens.start + token, step)..].as_ptr().cast();
                call.config = TileConfig::new(heights, members);
                let last = if members[1] > 0 { members[1] } else { members[0] };
                call.b = [place(at), if members[1] > 0 { place(at + GROUP) } else { std::ptr::null() }];
                (call.b_stride, call.b_step) = (4 * last, 4 * last * GROUP);
                (call.c, call.pairs) = (sums[at..].as_mut_ptr(), pairs);
                run(call, both_tiles, members[1] > 0);
                at += pairs * (members[0] + members[1]);
            }
        }

        /// Writes the finished sums of `rows` to the output: `[row, token]` becomes `[token, row]`.
        ///
        /// # Safety
        /// The conditions of [`super::rows`] hold.
        unsafe fn write(&self, rows: Range<usize>, sums: &[f32]) {
            let (width, stride) = (self.width(), self.out.stride);
            for row in (0..rows.len()).step_by(GROUP) {
                for token in (0..self.tokens.len()).step_by(GROUP) {
                    let (height, count) = (GROUP.min(rows.len() - row), GROUP.min(self.tokens.len() - token));
                    let from = &sums[row * width + token..];
                    // SAFETY: these rows belong to this caller alone; a whole square is readable and writable.
                    unsafe {
                        let to = self.out.at(self.tokens.start + token, rows.start + row);
                        if height == GROUP && count == GROUP {
                            assert!(from.len() >= (GROUP - 1) * width + GROUP);
                            transpose(**self.token, from.as_ptr(), width, to, stride);
                            continue;
                        }
                        for t in 0..count {
                            for r in 0..height {
                                *to.add(t * stride + r) = from[r * width + t];
                            }
                        }
                    }
                }
            }
        }
    }

    /// Copies the columns of `step` of a row, with zeros beyond its end.
    fn copy_step(row: &[u8], step: usize, to: &mut [u8; STEP * 2]) {
        let from = &row[step * STEP * 2..];
        match from.first_chunk() {
            Some(whole) => *to = *whole,
            None => {
                to[..from.len()].copy_from_slice(from);
                to[from.len()..].fill(0);
            }
        }
    }
}
