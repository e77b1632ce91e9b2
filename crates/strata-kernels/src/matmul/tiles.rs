//! Products of bf16 weights with activations rounded to bf16, by AMX tiles.
//!
//! Weights are the first operand, 16 rows of 32 columns in place; activations the second, re-laid once per operation as
//! pairs of `k`; so one token and sixteen take the same instructions, and a single token still reads weights several
//! times faster than DRAM gives them. Each output is one chain over pairs of `k` in ascending order, kept in a tile or,
//! between cache blocks, in f32 memory: neither the number of tokens nor the blocking changes a bit.
//!
//! ```text
//! weights [16 rows][32 k]      *  activations [16 pairs of k][16 tokens][2]  ->  sums [16 rows][16 tokens]
//! ```

use std::ops::Range;

use super::Output;
use crate::level::Instructions;
use crate::pool::Pool;
use crate::{Level, Matrix};

/// Tokens of a tile.
const GROUP: usize = 16;

/// Columns of a tile.
const STEP: usize = 32;

/// Rows of a panel: two tiles.
const PANEL_ROWS: usize = 32;

/// Rows whose sums are kept at a time where columns are cut into blocks.
const SUPER_ROWS: usize = 128;

/// Tokens whose sums are kept at a time.
const TOKEN_BLOCK: usize = 512;

/// Tokens of the widest tile product; up to as many, columns are not cut and weights stream through once.
const STREAMED_TOKENS: usize = 2 * GROUP;

/// Whether `level` has these instructions.
pub(crate) fn runs_at(level: Level) -> bool {
    level.0 >= Instructions::Amx && cfg!(target_arch = "x86_64")
}

/// Numbers of a thread's work area: the sums of one block of outputs.
pub(crate) const fn work_len(tokens: usize) -> usize {
    let padded = tokens.next_multiple_of(GROUP);
    match padded <= STREAMED_TOKENS {
        true => PANEL_ROWS * padded,
        false => SUPER_ROWS * if padded < TOKEN_BLOCK { padded } else { TOKEN_BLOCK },
    }
}

/// Rounds `x` `[tokens, cols]` to bf16 in `packed`: groups of 16 tokens (the last one of what is left), each `[pairs of
/// k, token, 2]`, with `cols` padded to whole steps by zeros.
pub(crate) fn pack(pool: &Pool, level: Level, x: &[f32], cols: usize, packed: &mut [u16]) {
    assert!(runs_at(level));
    #[cfg(target_arch = "x86_64")]
    {
        let (tokens, padded) = (x.len() / cols, cols.next_multiple_of(STEP));
        let packed = crate::share::Share::new(packed);
        pool.split(tokens.div_ceil(GROUP), 1, GROUP * cols, |groups| {
            for group in groups {
                let members = group * GROUP..((group + 1) * GROUP).min(tokens);
                let count = members.len();
                // SAFETY: each group is in one thread's share only.
                let to = unsafe { packed.slice(members.start * padded, count * padded) };
                for (index, token) in members.enumerate() {
                    // SAFETY: the level, tested above, has the instructions.
                    unsafe { x86::pack_token(&x[token * cols..(token + 1) * cols], index, count, to) };
                }
            }
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pool, x, cols, packed);
}

/// Rows `rows` of `w` for all tokens, whose activations [`pack`] has prepared; `work` has [`work_len`].
///
/// # Safety
/// `out` is `[tokens, w.rows()]`, and no other thread touches these columns of it.
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
    for first in (0..tokens).step_by(TOKEN_BLOCK) {
        let block = x86::Block { x, w, out, tokens: first..(first + TOKEN_BLOCK).min(tokens) };
        // SAFETY: the shapes were just checked, the level tested; the output is the caller's promise.
        unsafe { block.rows(rows.clone(), work) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (out, tokens);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::*;
    use crate::amx::{
        TileCall, TileConfig, release, stream_panel, stream_panel_pair, sweep_panel, sweep_panel_group, sweep_row_tile,
    };
    use crate::cache;
    use crate::matmul::bf16::round;

    /// One token of a group of `count`, into the group's pairs.
    ///
    /// # Safety
    /// The level's instructions exist.
    ///
    /// # Panics
    /// If `to` is not the whole group, or has no such member.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn pack_token(from: &[f32], index: usize, count: usize, to: &mut [u16]) {
        assert!(index < count && count <= GROUP && to.len() == from.len().next_multiple_of(STEP) * count);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(count as i32));
        for (step, from) in from.chunks(STEP).enumerate() {
            // SAFETY: the 16 pairs of this step lie `count` pairs apart from the member's first on, all within the
            // step's `16 * count` pairs.
            unsafe {
                let to = to.as_mut_ptr().cast::<i32>().add(step * GROUP * count + index);
                _mm512_i32scatter_epi32::<4>(to, places, round(from));
            }
        }
    }

    /// A product for one block of tokens.
    pub(super) struct Block<'a> {
        pub x: &'a [u16],
        pub w: Matrix<'a>,
        pub out: Output,
        pub tokens: Range<usize>,
    }

    impl Block<'_> {
        /// # Safety
        /// As for [`super::rows`].
        pub(super) unsafe fn rows(&self, rows: Range<usize>, work: &mut [f32]) {
            let streamed = self.tokens.len() <= STREAMED_TOKENS;
            let (height, steps) = match streamed {
                true => (PANEL_ROWS, usize::MAX),
                // A panel's block of columns should fill two thirds of the first-level cache.
                false => (SUPER_ROWS, (cache::sizes().first * 2 / 3 / (PANEL_ROWS * STEP * 2)).max(4)),
            };
            let whole_steps = self.w.cols().div_ceil(STEP);
            for first in rows.clone().step_by(height) {
                let here = first..(first + height).min(rows.end);
                let mut step = 0;
                while step < whole_steps {
                    let block = step..step.saturating_add(steps).min(whole_steps);
                    for panel in here.clone().step_by(PANEL_ROWS) {
                        let panel_rows = panel..(panel + PANEL_ROWS).min(here.end);
                        let sums = &mut work[(panel - first) * self.width()..];
                        // SAFETY: as the caller vouches; rows and steps stay within the operands.
                        unsafe { self.panel(panel_rows, block.clone(), sums, streamed) };
                    }
                    step = block.end;
                }
                // SAFETY: these rows are the caller's.
                unsafe { self.write(here, work) };
            }
            // SAFETY: the level has AMX.
            unsafe { release() };
        }

        /// Sums of a row of the work area: one a token, to whole groups.
        fn width(&self) -> usize {
            self.tokens.len().next_multiple_of(GROUP)
        }

        /// Adds columns `steps` of up to 32 rows to `sums` `[rows, width]`, for all tokens; from nothing if they are the
        /// first columns.
        ///
        /// # Safety
        /// As for [`super::rows`].
        unsafe fn panel(&self, rows: Range<usize>, steps: Range<usize>, sums: &mut [f32], streamed: bool) {
            let (cols, row_bytes) = (self.w.cols(), self.w.row_bytes());
            let weights = self.w.bytes()[rows.start * row_bytes..].as_ptr();
            // The last columns, where they are no whole step, come from a copy that ends in zeros.
            let mut tail = Tail([[0; STEP * 2]; PANEL_ROWS]);
            let whole = cols / STEP;
            let has_tail = steps.end > whole;
            if has_tail {
                for (row, tail) in rows.clone().zip(&mut tail.0) {
                    let from = &self.w.bytes()[row * row_bytes + whole * STEP * 2..(row + 1) * row_bytes];
                    tail[..from.len()].copy_from_slice(from);
                }
            }
            let group_bytes = |tokens: usize| cols.next_multiple_of(STEP) * 2 * tokens;
            let tokens = self.tokens.len();
            let (pairs, rest) = (tokens / (2 * GROUP), tokens % (2 * GROUP));
            let base = self.x.as_ptr().cast::<u8>().wrapping_add(group_bytes(self.tokens.start));
            let heights = [rows.len().min(GROUP), rows.len().saturating_sub(GROUP)];
            let mut call = TileCall {
                config: TileConfig::default(),
                a: [weights, weights.wrapping_add(GROUP * row_bytes)].map(|a| a.wrapping_add(steps.start * STEP * 2)),
                a_stride: row_bytes,
                b: [base; 2],
                b_stride: 0,
                b_step: 0,
                steps: steps.end.min(whole) - steps.start.min(whole),
                tail: if has_tail { tail.0.as_ptr().cast() } else { std::ptr::null() },
                c: std::ptr::null_mut(),
                c_stride: self.width() * size_of::<f32>(),
                accumulate: usize::from(steps.start > 0),
                pairs: 1,
                pair_bytes: group_bytes(2 * GROUP),
                // What is needed next: the next panel of this block of columns.
                ahead: weights.wrapping_add(PANEL_ROWS * row_bytes + steps.start * STEP * 2),
            };
            // Group by group: tokens, and how many groups of two go through in one call.
            let mut at = 0;
            let mut run = |members: [usize; 2], pairs: usize| {
                call.config = TileConfig::new(heights, members);
                let first = base.wrapping_add(group_bytes(at) + steps.start * STEP * 2 * members[0]);
                let second = base.wrapping_add(group_bytes(at + members[0]) + steps.start * STEP * 2 * members[1]);
                call.b = [first, second];
                let last = if members[1] > 0 { members[1] } else { members[0] };
                (call.b_stride, call.b_step) = (4 * last, 4 * last * GROUP);
                call.c = sums[at..].as_mut_ptr();
                call.pairs = pairs;
                // SAFETY: the pointers and shapes of the call were made from checked ones above.
                unsafe {
                    match (heights[1] > 0, members[1] > 0) {
                        (true, true) if streamed => stream_panel_pair(&mut call),
                        (true, true) => sweep_panel(&mut call),
                        (true, false) if streamed => stream_panel(&mut call),
                        (true, false) => sweep_panel_group(&mut call),
                        (false, _) => sweep_row_tile(&mut call),
                    }
                }
                at += pairs * (members[0] + members[1]);
            };
            if heights[1] > 0 {
                if pairs > 0 {
                    run([GROUP, GROUP], pairs);
                }
                match rest {
                    0 => {}
                    1..=GROUP => run([rest, 0], 1),
                    _ => run([GROUP, rest - GROUP], 1),
                }
            } else {
                for first in (0..tokens).step_by(GROUP) {
                    run([GROUP.min(tokens - first), 0], 1);
                }
            }
        }

        /// Writes the finished sums of `rows` where they belong: `[row, token]` becomes `[token, row]`.
        ///
        /// # Safety
        /// As for [`super::rows`].
        unsafe fn write(&self, rows: Range<usize>, sums: &[f32]) {
            let (width, all_rows) = (self.width(), self.w.rows());
            for row in (0..rows.len()).step_by(GROUP) {
                for token in (0..self.tokens.len()).step_by(GROUP) {
                    let (height, count) = (GROUP.min(rows.len() - row), GROUP.min(self.tokens.len() - token));
                    let from = &sums[row * width + token..];
                    let first = (self.tokens.start + token) * all_rows + rows.start + row;
                    // SAFETY: these rows are the caller's; a whole square is readable and writable.
                    unsafe {
                        let to = self.out.0.add(first);
                        if height == GROUP && count == GROUP {
                            assert!(from.len() >= (GROUP - 1) * width + GROUP);
                            transpose(from.as_ptr(), width, to, all_rows);
                            continue;
                        }
                        for t in 0..count {
                            for r in 0..height {
                                *to.add(t * all_rows + r) = from[r * width + t];
                            }
                        }
                    }
                }
            }
        }
    }

    #[repr(align(64))]
    struct Tail([[u8; STEP * 2]; PANEL_ROWS]);

    /// `to[j][i] = from[i][j]` for 16 by 16 numbers, rows so many numbers apart.
    ///
    /// # Safety
    /// The squares are readable and writable, and the level's instructions exist.
    #[target_feature(enable = "avx512f")]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let rows: [__m512; 16] = std::array::from_fn(|i| _mm512_loadu_ps(from.add(i * from_stride)));
            // Pairs, then fours within each quarter of the vectors: `fours[4 * i + j]` holds, in quarter q, column
            // `4 * q + j` of rows `4 * i ..`.
            let mut fours = [_mm512_setzero_ps(); 16];
            for i in 0..4 {
                let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
                let low = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
                let high = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
                let halves = |(x, y): (__m512, __m512)| {
                    let (x, y) = (_mm512_castps_pd(x), _mm512_castps_pd(y));
                    [_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y))]
                };
                let ([first, second], [third, fourth]) = (halves(low), halves(high));
                fours[4 * i..4 * i + 4].copy_from_slice(&[first, second, third, fourth]);
            }
            for j in 0..4 {
                let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
                // Quarters 0 and 1, then 2 and 3, of two vectors.
                let (ab_low, ab_high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
                let (cd_low, cd_high) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
                let columns = [
                    _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low),
                    _mm512_shuffle_f32x4::<0xDD>(ab_low, cd_low),
                    _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high),
                    _mm512_shuffle_f32x4::<0xDD>(ab_high, cd_high),
                ];
                for (quarter, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((4 * quarter + j) * to_stride), column);
                }
            }
        }
    }
}
