//! Some columns of one head's matrix, which go through all tokens of a pass.
//!
//! One way down the matrix lets it decay, takes a token in, and adds up the token's result, in two chains, one of even
//! and one of odd rows.

use std::ops::Range;

use super::StateSpace;
use crate::simd::{LANES, Simd, dispatch};
use crate::state::States;
use crate::state_slices::{Recurrence, Row, Rows, Slice, advance};
use crate::{Level, Matrix, Share, StateSpan};

/// The number of chains of a sum, which take the rows of a matrix in turns.
const CHAINS: usize = 2;

/// The operands that all slices share. Steps have been found.
pub(super) struct Operands<'a> {
    pub states: States<'a>,
    pub spans: &'a [StateSpan],
    pub space: &'a StateSpace,
    /// `[tokens, x | B | C]`
    pub xbc: &'a [f32],
    /// `[tokens, heads]`
    pub steps: &'a [f32],
    /// `[tokens, heads]`
    pub decays: &'a [f32],
    /// `[heads]`
    pub skip: Matrix<'a>,
    /// `[tokens, heads, head_width]`
    pub out: Share<'a, f32>,
}

/// Takes a slice of one head's matrices through the tokens of all sequences.
pub(super) fn advance_slice(level: Level, operands: &Operands<'_>, slice: Slice) {
    dispatch!(level, advance_space::<_>(operands: &Operands<'_>, slice: Slice));
}

#[inline(always)]
fn advance_space<S: Simd>(s: S, operands: &Operands<'_>, slice: Slice) {
    advance(s, operands, slice);
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
        let shape = self.states.shape();
        let (width, height) = (self.space.width(&shape), shape.key_width);
        let group = slice.head / (shape.heads / self.space.groups);
        let skip = s.splat(self.skip.element(slice.head));
        let [first, between, last] = rows;
        let (mut from, end) = (first, tokens.end);
        for token in tokens {
            let (all, own) = self.xbc[token * width..][..width].split_at(shape.heads * shape.value_width);
            let (enters, leaves) = own.split_at(self.space.groups * height);
            let [enters, leaves] = [enters, leaves].map(|groups| &groups[group * height..][..height]);
            let mut x: Row<W> = [[0.0; LANES]; W];
            let at = slice.head * shape.value_width + slice.first;
            x.as_flattened_mut()[..slice.count].copy_from_slice(&all[at..][..slice.count]);
            let gate = token * shape.heads + slice.head;
            let to = if token + 1 == end { last } else { between };
            let mut change = [s.splat(0.0); W];
            for vector in 0..W {
                change[vector] = s.mul(s.splat(self.steps[gate]), s.load(&x[vector]));
            }
            // SAFETY: guaranteed by the caller.
            let sums = unsafe { take_in::<S, W>(s, [from, to], self.decays[gate], [enters, leaves], change) };
            let mut result: Row<W> = [[0.0; LANES]; W];
            for vector in 0..W {
                s.store(s.fma(skip, s.load(&x[vector]), sums[vector]), &mut result[vector]);
            }
            // SAFETY: each column of a head is in one slice only.
            let out = unsafe { self.out.slice(gate * shape.value_width + slice.first, slice.count) };
            out.copy_from_slice(&result.as_flattened()[..slice.count]);
            from = between;
        }
    }
}

/// Takes a token in: reads the matrix from `from`, and writes it to `to`. Returns what the token reads from the new
/// matrix.
///
/// # Safety
/// Both have as many rows as `enters` and `leaves` have elements, which are readable and writable, and nothing else
/// touches them meanwhile.
#[inline(always)]
unsafe fn take_in<S: Simd, const W: usize>(
    s: S,
    [from, to]: [Rows; 2],
    decay: f32,
    [enters, leaves]: [&[f32]; 2],
    change: [S::V; W],
) -> [S::V; W] {
    let decay = s.splat(decay);
    let mut results = [[s.splat(0.0); W]; CHAINS];
    let (height, leaves) = (enters.len(), &leaves[..enters.len()]);
    for first in (0..height).step_by(CHAINS) {
        for chain in 0..CHAINS {
            let index = first + chain;
            if index == height {
                break;
            }
            let (enter, leave) = (s.splat(enters[index]), s.splat(leaves[index]));
            for vector in 0..W {
                // SAFETY: guaranteed by the caller.
                let state = unsafe { s.load_at(from.start.add(index * from.stride + vector * LANES)) };
                let state = s.fma(enter, change[vector], s.mul(decay, state));
                // SAFETY: as above.
                unsafe { s.store_at(state, to.start.add(index * to.stride + vector * LANES)) };
                results[chain][vector] = s.fma(leave, state, results[chain][vector]);
            }
        }
    }
    let [mut sums, odd] = results;
    for vector in 0..W {
        sums[vector] = s.add(sums[vector], odd[vector]);
    }
    sums
}
