//! Spreads the patches of some columns to their places, so that a kernel applies them to whole blocks.

use std::arch::x86_64::__m512i;
use std::hint::select_unpredictable;

use super::{BLOCK, CodedRow, number_at};
use crate::simd::{Avx512, prefetch_second};

/// The maximum number of columns whose patches are spread at a time.
pub(crate) const SPREAD_COLUMNS: usize = 4096;

/// The number of bytes that are prefetched while a patch is spread.
pub(crate) const PREFETCHED_BY_PATCH: usize = 32;

/// The number of blocks of [`SPREAD_COLUMNS`].
const BLOCKS: usize = SPREAD_COLUMNS / BLOCK;

/// The index in the block of the byte of each number: the inverse of [`number_at`].
const BYTE_OF: [u8; BLOCK] = {
    let mut bytes = [0; BLOCK];
    let mut j = 0;
    while j < BLOCK {
        bytes[number_at(j)] = j as u8;
        j += 1;
    }
    bytes
};

/// The patches of up to [`SPREAD_COLUMNS`] columns of a row, and how far the row's patches have been read.
#[repr(C, align(64))]
pub(crate) struct Spread {
    /// The exponents of the patched bytes. The others are unspecified.
    exponents: [[u8; BLOCK]; BLOCKS],
    /// The patched bytes of each block, bit `j` for byte `j`.
    masks: [u64; BLOCKS],
    /// The number of patches used so far.
    used: usize,
    /// The index of the number that the last patch was for.
    patched: usize,
}

impl Spread {
    pub(crate) const NEW: Self = Self { exponents: [[0; BLOCK]; BLOCKS], masks: [0; BLOCKS], used: 0, patched: 0 };

    /// Spreads the patches of the next columns of a row, from `first` on. The columns before them have been spread, and
    /// all their blocks taken. Prefetches [`PREFETCHED_BY_PATCH`] bytes for each patch from `ahead` on, and returns the
    /// end of that. The function is not inlined, so that its counters stay in registers.
    #[inline(never)]
    pub(crate) fn next(&mut self, row: &CodedRow<'_>, first: usize, ahead: *const u8) -> *const u8 {
        if first == 0 {
            (self.used, self.patched) = (0, 0);
        }
        let begin = (self.used, self.patched);
        if !self.put::<false>(row, first, ahead) {
            self.masks.fill(0);
            (self.used, self.patched) = begin;
            self.put::<true>(row, first, ahead);
        }
        ahead.wrapping_add((self.used - begin.0) * PREFETCHED_BY_PATCH)
    }

    /// Does the work of [`Spread::next`]. Returns `false` if there are patches behind the row, as in a damaged file. If
    /// `CHECKED`, they are for the row's last number.
    #[inline(always)]
    fn put<const CHECKED: bool>(&mut self, row: &CodedRow<'_>, first: usize, ahead: *const u8) -> bool {
        let last = (row.blocks.len() * BLOCK).saturating_sub(1);
        let columns = (last + 1 - first).min(SPREAD_COLUMNS);
        let patches = row.patches.get(self.used..).unwrap_or_default();
        // The mask of the last patch's block, which need not be loaded again to be extended.
        let (mut last_block, mut mask) = (0, 0);
        let mut at = self.patched;
        for (i, &[gap, exponent]) in patches.iter().enumerate() {
            prefetch_second(ahead.wrapping_add(i * PREFETCHED_BY_PATCH));
            let next = at + usize::from(gap);
            let next = if CHECKED { next.min(last) } else { next };
            let column = next - first;
            if column >= columns {
                // The patches that are left belong to numbers behind these columns.
                (self.used, self.patched) = (self.used + i, at);
                return next <= last;
            }
            let (block, byte) = (column / BLOCK % BLOCKS, BYTE_OF[column % BLOCK]);
            mask = select_unpredictable(block == last_block, mask, 0) | 1 << byte;
            self.masks[block] = mask;
            self.exponents[block][usize::from(byte) % BLOCK] = exponent;
            (at, last_block) = (next, block);
        }
        (self.used, self.patched) = (self.used + patches.len(), at);
        true
    }

    /// Replaces the exponents of block `block` of these columns that are patched, and forgets the block's patches.
    #[inline(always)]
    pub(crate) fn take(&mut self, s: Avx512, block: usize, exponents: __m512i) -> __m512i {
        let patches = s.load512(&self.exponents[block % BLOCKS]);
        s._mm512_mask_blend_epi8(std::mem::take(&mut self.masks[block % BLOCKS]), exponents, patches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::coded::decode::{Decoder, decode_row};
    use crate::coded::row_bytes;

    /// Decodes a row block by block, in registers.
    fn decoded(s: Avx512, spread: &mut Spread, row: &CodedRow<'_>) -> Vec<u16> {
        let (decoder, table) = (Decoder::new(s), Decoder::table(s, row.table));
        let mut out = vec![[0u16; BLOCK / 2]; 2 * row.blocks.len()];
        for (i, (block, out)) in row.blocks.iter().zip(out.as_chunks_mut::<2>().0).enumerate() {
            let first = i * BLOCK;
            if first.is_multiple_of(SPREAD_COLUMNS) {
                spread.next(row, first, block.as_ptr());
            }
            let exponents = spread.take(s, i % BLOCKS, decoder.exponents(s, table, block));
            for (half, out) in Decoder::numbers(s, block, exponents).into_iter().zip(out) {
                s.store512(half, out);
            }
        }
        out.into_flattened()
    }

    #[test]
    fn spread_patches_are_those_of_decoded_rows() {
        let Some(s) = Avx512::of(Level::detect()) else { return };
        let mut state = 1u64;
        let mut spread = Spread::NEW;
        // Gaps below `gap` lead anywhere: to few of a row's numbers, beyond its end, or beyond the columns of one call.
        for (blocks, patches, gap) in [
            (1, 0, 1),
            (2, 9, 20),
            (2, 40, 256),
            (3, 300, 1),
            (64, 70, 100),
            (65, 90, 100),
            (150, 200, 60),
            (9, 5, 256),
        ] {
            let cols = blocks * BLOCK;
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .take(row_bytes(cols, patches).unwrap())
            .collect();
            for patch in bytes[8..][..2 * usize::from(patches)].chunks_exact_mut(2) {
                patch[0] = (u16::from(patch[0]) % gap) as u8;
            }
            let mut want = vec![0; cols];
            decode_row(Level::detect(), &bytes, patches, &mut want);
            let got = decoded(s, &mut spread, &CodedRow::new(&bytes, patches, cols));
            assert!(got == want, "{blocks} blocks, {patches} patches, gaps below {gap}");
        }
    }
}
