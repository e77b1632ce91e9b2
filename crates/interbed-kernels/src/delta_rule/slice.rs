//! Some columns of one head's matrix, which go through all tokens of a pass.
//!
//! A token's correction needs the sums `k S` over the whole height of the matrix, and the matrix is changed afterwards.
//! One way down the matrix does both: it applies a token's correction, adds up the token's result, and adds up what the
//! next token needs. Each sum has two chains, one of even and one of odd rows.

use std::ops::Range;

use super::DeltaRule;
use crate::simd::{LANES, Simd, dispatch};
use crate::state::States;
use crate::state_slices::{Recurrence, Row, Rows, Slice, advance};
use crate::{Level, Share, StateSpan};

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

/// Takes a slice of one head's matrices through the tokens of all sequences.
pub(super) fn advance_slice(level: Level, operands: &Operands<'_>, slice: Slice) {
    dispatch!(level, advance_rule::<_>(operands: &Operands<'_>, slice: Slice));
}

#[inline(always)]
fn advance_rule<S: Simd>(s: S, operands: &Operands<'_>, slice: Slice) {
    advance(s, operands, slice);
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

impl Operands<'_> {
    #[inline(always)]
    fn data(&self, slice: Slice, row: usize) -> TokenData<'_> {
        let Self { states, rule, qkv, decays, betas, .. } = self;
        let shape = states.shape();
        let (height, keys) = (shape.key_width, rule.key_heads * shape.key_width);
        let numbers = &qkv[row * rule.width(&shape)..][..rule.width(&shape)];
        let at = rule.sharing.key_head(slice.head, shape.heads, rule.key_heads) * height;
        let gate = row * shape.heads + slice.head;
        TokenData {
            query: &numbers[at..at + height],
            key: &numbers[keys + at..keys + at + height],
            values: &numbers[2 * keys + slice.head * shape.value_width + slice.first..][..slice.count],
            decay: decays[gate],
            beta: betas[gate],
        }
    }

    /// Writes the slice's part of a token's result.
    #[inline(always)]
    fn put<S: Simd, const W: usize>(&self, s: S, slice: Slice, row: usize, sums: [S::V; W]) {
        let mut result: Row<W> = [[0.0; LANES]; W];
        for (sum, to) in sums.into_iter().zip(&mut result) {
            s.store(sum, to);
        }
        let shape = self.states.shape();
        let at = (row * shape.heads + slice.head) * shape.value_width + slice.first;
        // SAFETY: each column of a head is in one slice only.
        let out = unsafe { self.out.slice(at, slice.count) };
        out.copy_from_slice(&result.as_flattened()[..slice.count]);
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, slice: Slice, row: usize) {
        let TokenData { query, key, values, .. } = self.data(slice, row);
        for numbers in [query, key, values] {
            for line in numbers.chunks(LANES) {
                s.prefetch(line.as_ptr().cast());
            }
        }
    }
}

impl Recurrence for Operands<'_> {
    #[inline(always)]
    fn states(&self) -> &States<'_> {
        &self.states
    }

    #[inline(always)]
    fn spans(&self) -> &[StateSpan] {
        self.spans
    }

    #[inline(always)]
    unsafe fn go<S: Simd, const W: usize>(&self, s: S, slice: Slice, tokens: Range<usize>, rows: [Rows; 3]) {
        let ([first, between, last], height) = (rows, self.states.shape().key_width);
        let mut now = self.data(slice, tokens.start);
        // SAFETY: guaranteed by the caller.
        let mut found = unsafe { look_up::<S, W>(s, height, first, now.key) };
        for token in tokens.start + 1..tokens.end {
            if token + AHEAD < tokens.end {
                self.prefetch(s, slice, token + AHEAD);
            }
            let next = self.data(slice, token);
            let change = correction(s, &now, found);
            let mut sums = [[s.splat(0.0); W]; 2];
            // SAFETY: as above; `first` is `between` where there are several tokens.
            unsafe { correct::<S, W, true>(s, height, [between; 2], &now, next.key, change, &mut sums) };
            self.put(s, slice, token - 1, sums[0]);
            (found, now) = (sums[1], next);
        }
        let change = correction(s, &now, found);
        let mut sums = [[s.splat(0.0); W]; 2];
        // SAFETY: as above.
        unsafe { correct::<S, W, false>(s, height, [between, last], &now, now.key, change, &mut sums) };
        self.put(s, slice, tokens.end - 1, sums[0]);
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
