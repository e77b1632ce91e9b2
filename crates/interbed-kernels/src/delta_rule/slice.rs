//! Some columns of one head's matrix, which go through all tokens of a pass.
//!
//! A token's correction needs the sums `k S` over the whole height of the matrix, and the matrix is changed afterwards.
//! One way down the matrix does both: it applies a token's correction, adds up the token's result, and adds up what the
//! next token needs. Each sum has two chains, one of even and one of odd rows.

use std::mem::MaybeUninit;

use super::DeltaRule;
use crate::simd::{LANES, Simd, dispatch};
use crate::state::States;
use crate::{Level, Share, StateSpan};

/// The number of columns of a slice. 128 rows of it take half of a usual L1 cache.
pub(super) const COLUMNS: usize = 32;

/// The number of rows up to which a slice's own copy lies on the stack.
const HEIGHT: usize = 256;

/// The number of chains of a sum, which take the rows of a matrix in turns.
const CHAINS: usize = 2;

/// The number of tokens between the one that is computed and the one whose data is prefetched.
const AHEAD: usize = 2;

/// The operands that all slices share. Queries and keys have been normalized.
pub(super) struct Operands<'a> {
    pub states: States<'a>,
    pub spans: &'a [StateSpan],
    pub rule: &'a DeltaRule,
    /// `[tokens, q | k | v]`
    pub qkv: &'a [f32],
    /// `[tokens, value_heads]`
    pub decays: &'a [f32],
    /// `[tokens, value_heads]`
    pub betas: &'a [f32],
    /// `[tokens, value_heads, value_width]`
    pub out: Share<'a, f32>,
}

/// Takes the columns from `first` on, at most [`COLUMNS`], of one head's matrices through the tokens of all sequences.
pub(super) fn advance_slice(level: Level, operands: &Operands<'_>, head: usize, first: usize) {
    dispatch!(level, advance::<_>(operands: &Operands<'_>, head: usize, first: usize));
}

#[inline(always)]
fn advance<S: Simd>(s: S, operands: &Operands<'_>, head: usize, first: usize) {
    let count = COLUMNS.min(operands.states.shape().value_width - first);
    // Two vectors keep the latency of chains hidden; where registers are few, one vector is taken after the other.
    if S::MANY_REGISTERS {
        advance_columns::<S, 2>(s, operands, head, first, count);
    } else {
        for start in (0..count).step_by(LANES) {
            advance_columns::<S, 1>(s, operands, head, first + start, LANES.min(count - start));
        }
    }
}

/// The elements of a row of a slice, padded to `W` vectors.
type Row<const W: usize> = [[f32; LANES]; W];

/// A row of the slice's own copy.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct OwnRow<const W: usize>(Row<W>);

/// Rows of a slice in memory: the address of the first row, and the number of elements from one row to the next.
#[derive(Clone, Copy)]
struct Rows {
    start: *mut f32,
    stride: usize,
}

impl Rows {
    fn of<const W: usize>(own: &mut [MaybeUninit<OwnRow<W>>]) -> Self {
        Self { start: own.as_mut_ptr().cast(), stride: W * LANES }
    }
}

/// Takes `count` columns from `first` on through the tokens of all sequences.
#[inline(always)]
fn advance_columns<S: Simd, const W: usize>(s: S, operands: &Operands<'_>, head: usize, first: usize, count: usize) {
    let shape = operands.states.shape();
    let (height, stride) = (shape.key_width, shape.value_width);
    let is_whole = count == W * LANES;
    let mut few = [const { MaybeUninit::<OwnRow<W>>::uninit() }; HEIGHT];
    let mut many = Vec::new();
    let own = if height <= HEIGHT {
        &mut few[..height]
    } else {
        many.resize_with(height, MaybeUninit::uninit);
        &mut many[..]
    };
    let mut row = 0;
    for span in operands.spans {
        let place = |block| {
            let start = operands.states.matrices(block).wrapping_add(head * height * stride + first);
            Rows { start, stride }
        };
        let (from, to) = (span.from.map(place), place(span.to));
        let tokens = |row| Tokens { operands, head, first, count, row };
        // A single token goes through whole vectors in place. Otherwise the slice has a copy of its own.
        let is_in_place = is_whole && span.tokens == 1 && from.is_some();
        // SAFETY: the states have these rows and columns, which no other thread touches, and `own` is this slice's, and
        // is read once `read_columns` has written it.
        unsafe {
            match from {
                Some(from) if is_in_place => tokens(row).go::<S, W>(s, height, span.tokens, [from, from, to]),
                from => {
                    read_columns(from, own, count);
                    // The last token's matrix goes straight to its place, unless drafts go on from it.
                    let is_straight = is_whole && span.stored_after == span.tokens;
                    for part in [0..span.stored_after, span.stored_after..span.tokens] {
                        if part.is_empty() {
                            break;
                        }
                        let own_rows = Rows::of(own);
                        let last = if is_straight { to } else { own_rows };
                        tokens(row + part.start).go::<S, W>(s, height, part.len(), [own_rows, own_rows, last]);
                        if part.start == 0 && !is_straight {
                            write_columns(own, to, count);
                        }
                    }
                }
            }
        }
        row += span.tokens;
    }
}

/// Copies `count` columns to `own`, or zeros if there is nothing yet. Columns beyond them become zero.
///
/// # Safety
/// The columns are readable, with as many rows as `own` has.
unsafe fn read_columns<const W: usize>(from: Option<Rows>, own: &mut [MaybeUninit<OwnRow<W>>], count: usize) {
    for (index, own) in own.iter_mut().enumerate() {
        let own = own.write(OwnRow([[0.0; LANES]; W])).0.as_flattened_mut();
        if let Some(Rows { start, stride }) = from {
            // SAFETY: guaranteed by the caller.
            own[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(start.add(index * stride), count) });
        }
    }
}

/// Copies `count` columns of `own` to memory.
///
/// # Safety
/// `own` has been [read](read_columns). The columns are writable, with as many rows as `own` has, and nothing else
/// touches them meanwhile.
unsafe fn write_columns<const W: usize>(own: &[MaybeUninit<OwnRow<W>>], to: Rows, count: usize) {
    for (index, own) in own.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        let (own, to) =
            unsafe { (own.assume_init_ref(), std::slice::from_raw_parts_mut(to.start.add(index * to.stride), count)) };
        to.copy_from_slice(&own.0.as_flattened()[..count]);
    }
}

/// The tokens of one sequence, as one slice sees them.
struct Tokens<'a> {
    operands: &'a Operands<'a>,
    head: usize,
    /// The first column, and the number of columns.
    first: usize,
    count: usize,
    /// The row of the first token in the tensors of the batch.
    row: usize,
}

/// A token's data for one slice.
#[derive(Clone, Copy)]
struct TokenData<'a> {
    /// `[key_width]`
    query: &'a [f32],
    /// `[key_width]`
    key: &'a [f32],
    /// The values of the slice's columns.
    values: &'a [f32],
    decay: f32,
    beta: f32,
}

impl Tokens<'_> {
    #[inline(always)]
    fn data(&self, token: usize) -> TokenData<'_> {
        let Operands { states, rule, qkv, decays, betas, .. } = self.operands;
        let (shape, row) = (states.shape(), self.row + token);
        let (height, keys) = (shape.key_width, rule.key_heads * shape.key_width);
        let numbers = &qkv[row * rule.width(&shape)..][..rule.width(&shape)];
        let at = rule.sharing.key_head(self.head, shape.heads, rule.key_heads) * height;
        let gate = row * shape.heads + self.head;
        TokenData {
            query: &numbers[at..at + height],
            key: &numbers[keys + at..keys + at + height],
            values: &numbers[2 * keys + self.head * shape.value_width + self.first..][..self.count],
            decay: decays[gate],
            beta: betas[gate],
        }
    }

    /// Goes through all tokens. The matrix is read from `first`, kept in `between`, and in the end written to `last`.
    ///
    /// # Safety
    /// All three have `height` rows of `W` whole vectors, which nothing else touches meanwhile.
    #[inline(always)]
    unsafe fn go<S: Simd, const W: usize>(
        &self,
        s: S,
        height: usize,
        tokens: usize,
        [first, between, last]: [Rows; 3],
    ) {
        let mut now = self.data(0);
        // SAFETY: guaranteed by the caller.
        let mut found = unsafe { look_up::<S, W>(s, height, first, now.key) };
        for token in 1..tokens {
            if token + AHEAD < tokens {
                self.prefetch(s, token + AHEAD);
            }
            let next = self.data(token);
            let change = correction(s, &now, found);
            let mut sums = [[s.splat(0.0); W]; 2];
            // SAFETY: as above; `first` is `between` where there are several tokens.
            unsafe { correct::<S, W, true>(s, height, [between; 2], &now, next.key, change, &mut sums) };
            self.put(s, token - 1, sums[0]);
            (found, now) = (sums[1], next);
        }
        let change = correction(s, &now, found);
        let mut sums = [[s.splat(0.0); W]; 2];
        // SAFETY: as above.
        unsafe { correct::<S, W, false>(s, height, [between, last], &now, now.key, change, &mut sums) };
        self.put(s, tokens - 1, sums[0]);
    }

    /// Writes the slice's part of a token's result.
    #[inline(always)]
    fn put<S: Simd, const W: usize>(&self, s: S, token: usize, sums: [S::V; W]) {
        let mut result: Row<W> = [[0.0; LANES]; W];
        for (sum, to) in sums.into_iter().zip(&mut result) {
            s.store(sum, to);
        }
        let shape = self.operands.states.shape();
        let at = ((self.row + token) * shape.heads + self.head) * shape.value_width + self.first;
        // SAFETY: each column of a head is in one slice only.
        let out = unsafe { self.operands.out.slice(at, self.count) };
        out.copy_from_slice(&result.as_flattened()[..self.count]);
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, token: usize) {
        let TokenData { query, key, values, .. } = self.data(token);
        for numbers in [query, key, values] {
            for line in numbers.chunks(LANES) {
                s.prefetch(line.as_ptr().cast());
            }
        }
    }
}

/// Computes `k S`.
///
/// # Safety
/// The rows are readable.
#[inline(always)]
unsafe fn look_up<S: Simd, const W: usize>(s: S, height: usize, rows: Rows, key: &[f32]) -> [S::V; W] {
    let mut found = [[s.splat(0.0); W]; CHAINS];
    let key = &key[..height];
    for first in (0..height).step_by(CHAINS) {
        for chain in 0..CHAINS {
            let index = first + chain;
            if index == height {
                break;
            }
            let k = s.splat(key[index]);
            for vector in 0..W {
                // SAFETY: guaranteed by the caller.
                let state = unsafe { s.load_at(rows.start.add(index * rows.stride + vector * LANES)) };
                found[chain][vector] = s.fma(k, state, found[chain][vector]);
            }
        }
    }
    joined(s, found)
}

/// Computes `beta * (v - decay * found)`, the row of which each row of the matrix gets its share.
#[inline(always)]
fn correction<S: Simd, const W: usize>(s: S, token: &TokenData<'_>, found: [S::V; W]) -> [S::V; W] {
    let mut values: Row<W> = [[0.0; LANES]; W];
    values.as_flattened_mut()[..token.values.len()].copy_from_slice(token.values);
    let (forgotten, beta) = (s.splat(-token.decay), s.splat(token.beta));
    let mut change = [s.splat(0.0); W];
    for vector in 0..W {
        change[vector] = s.mul(beta, s.fma(forgotten, found[vector], s.load(&values[vector])));
    }
    change
}

/// Applies a token's correction: reads the matrix from `from`, and writes it to `to`. `sums` become the token's result,
/// and, with `NEXT`, what the next token's key finds.
///
/// # Safety
/// The rows are readable and writable, and nothing else touches them meanwhile.
#[inline(always)]
unsafe fn correct<S: Simd, const W: usize, const NEXT: bool>(
    s: S,
    height: usize,
    [from, to]: [Rows; 2],
    token: &TokenData<'_>,
    next: &[f32],
    change: [S::V; W],
    sums: &mut [[S::V; W]; 2],
) {
    let decay = s.splat(token.decay);
    let mut results = [[s.splat(0.0); W]; CHAINS];
    let mut found = [[s.splat(0.0); W]; CHAINS];
    let (query, key, next) = (&token.query[..height], &token.key[..height], &next[..height]);
    for first in (0..height).step_by(CHAINS) {
        for chain in 0..CHAINS {
            let index = first + chain;
            if index == height {
                break;
            }
            let (k, q, n) = (s.splat(key[index]), s.splat(query[index]), s.splat(next[index]));
            for vector in 0..W {
                // SAFETY: guaranteed by the caller.
                let state = unsafe { s.load_at(from.start.add(index * from.stride + vector * LANES)) };
                let state = s.fma(k, change[vector], s.mul(decay, state));
                // SAFETY: as above.
                unsafe { s.store_at(state, to.start.add(index * to.stride + vector * LANES)) };
                results[chain][vector] = s.fma(q, state, results[chain][vector]);
                if NEXT {
                    found[chain][vector] = s.fma(n, state, found[chain][vector]);
                }
            }
        }
    }
    *sums = [joined(s, results), joined(s, found)];
}

/// Adds up the chains of each sum.
#[inline(always)]
fn joined<S: Simd, const W: usize>(s: S, chains: [[S::V; W]; CHAINS]) -> [S::V; W] {
    let mut sums = chains[0];
    for vector in 0..W {
        sums[vector] = s.add(sums[vector], chains[1][vector]);
    }
    sums
}
