//! Decoding a row: whole, or some columns after the others.

use super::{BLOCK, BLOCK_BYTES, PATCH, PLANES, TABLE, number_at, row_bytes};
use crate::Level;
use crate::level::Instructions;

/// The place of the mantissa and the sign of a number, beside its exponent.
const REST: u16 = 0x807f;

/// Widens a coded row to f32.
///
/// # Panics
/// If the bytes are not those of a row as long as `out`.
pub(crate) fn widen_row(row: &[u8], patches: u16, out: &mut [f32]) {
    let row = CodedRow::new(row, patches, out.len());
    row.decode(Level(Instructions::Portable), &mut Progress::default(), out);
}

/// Decodes the next columns of a coded row of `cols`, whole blocks behind those that `progress` tells of.
///
/// # Panics
/// If the bytes are not those of such a row, or it has no such columns.
pub(crate) fn decode_columns<N: Number>(
    level: Level,
    row: &[u8],
    patches: u16,
    cols: usize,
    progress: &mut Progress,
    out: &mut [N],
) {
    CodedRow::new(row, patches, cols).decode(level, progress, out);
}

/// A bf16 number as f32. A NaN keeps its bits, which a library may not promise.
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Decodes a whole row to bf16.
///
/// # Panics
/// If the bytes are not those of a row as long as `out`.
pub(super) fn decode_row(level: Level, row: &[u8], patches: u16, out: &mut [u16]) {
    CodedRow::new(row, patches, out.len()).decode(level, &mut Progress::default(), out);
}

/// How far a row has been decoded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Numbers.
    numbers: usize,
    /// Patches that those have used up, and the number that the last one was for.
    patches: usize,
    patched: usize,
}

/// The parts of a coded row.
struct CodedRow<'a> {
    table: [u8; TABLE],
    patches: &'a [[u8; PATCH]],
    blocks: &'a [[u8; BLOCK_BYTES]],
}

impl<'a> CodedRow<'a> {
    /// # Panics
    /// If the bytes are not those of a row of `cols`.
    fn new(row: &'a [u8], patches: u16, cols: usize) -> Self {
        assert_eq!(row_bytes(cols, patches), Some(row.len()), "{cols} numbers, {patches} patches");
        let (exponents, rest) = row.split_at(TABLE);
        let (patches, blocks) = rest.split_at(PATCH * usize::from(patches));
        let mut table = [0; TABLE];
        table.copy_from_slice(exponents);
        Self { table, patches: patches.as_chunks().0, blocks: blocks.as_chunks().0 }
    }

    /// Decodes the next blocks.
    ///
    /// # Panics
    /// If there are not so many left.
    fn decode<N: Number>(&self, level: Level, progress: &mut Progress, out: &mut [N]) {
        let first = progress.numbers;
        progress.numbers += out.len();
        let blocks = &self.blocks[first / BLOCK..progress.numbers / BLOCK];
        let (numbers, _) = out.as_chunks_mut::<BLOCK>();
        // Behind a piece, other rows come first, and their pieces are asked for by who wants them.
        #[cfg(target_arch = "x86_64")]
        let ahead = blocks.len() == self.blocks.len();
        match level.0 {
            // SAFETY: a `Level` proves that the instructions exist.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Avx512Vnni | Instructions::Avx512Bf16 | Instructions::Amx => unsafe {
                x86::decode_avx512(self.table, blocks, numbers, ahead);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { x86::decode_avx2(self.table, blocks, numbers, ahead) },
            _ => decode_portable(self.table, blocks, numbers),
        }
        let Some(last) = (self.blocks.len() * BLOCK).checked_sub(1) else { return };
        while let Some(&[gap, exponent]) = self.patches.get(progress.patches) {
            // Of a file that lies, some number in the row. What was left for later lies behind what was decoded then.
            let patched = (progress.patched + usize::from(gap)).min(last);
            let Some(number) = out.get_mut(patched - first) else { break };
            *number = number.with_exponent(exponent);
            progress.patched = patched;
            progress.patches += 1;
        }
    }
}

/// What a row is decoded to: bf16 as its bits, or f32.
pub(crate) trait Number: Copy {
    fn of(bits: u16) -> Self;
    fn with_exponent(self, exponent: u8) -> Self;
    /// Stores 16 numbers, of which these are the bits.
    ///
    /// # Safety
    /// AVX2 exists, and there is room for them.
    #[cfg(target_arch = "x86_64")]
    unsafe fn store_16(to: *mut Self, bits: std::arch::x86_64::__m256i);
    /// Stores 32 numbers, of which these are the bits.
    ///
    /// # Safety
    /// AVX-512 F and BW exist, and there is room for them.
    #[cfg(target_arch = "x86_64")]
    unsafe fn store_32(to: *mut Self, bits: std::arch::x86_64::__m512i);
}

impl Number for u16 {
    fn of(bits: u16) -> Self {
        bits
    }
    fn with_exponent(self, exponent: u8) -> Self {
        self & REST | u16::from(exponent) << 7
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_16(to: *mut u16, bits: std::arch::x86_64::__m256i) {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm256_storeu_si256(to.cast(), bits) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_32(to: *mut u16, bits: std::arch::x86_64::__m512i) {
        // SAFETY: the caller's promise.
        unsafe { std::arch::x86_64::_mm512_storeu_si512(to.cast(), bits) }
    }
}

impl Number for f32 {
    fn of(bits: u16) -> Self {
        widened(bits)
    }
    fn with_exponent(self, exponent: u8) -> Self {
        widened(((self.to_bits() >> 16) as u16).with_exponent(exponent))
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_16(to: *mut f32, bits: std::arch::x86_64::__m256i) {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        unsafe {
            for (half, bits) in
                [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)].into_iter().enumerate()
            {
                let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits));
                _mm256_storeu_si256(to.add(8 * half).cast(), wide);
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_32(to: *mut f32, bits: std::arch::x86_64::__m512i) {
        use std::arch::x86_64::*;
        // SAFETY: the caller's promise.
        unsafe {
            let halves = [_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64::<1>(bits)];
            for (half, bits) in halves.into_iter().enumerate() {
                let wide = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits));
                _mm512_storeu_si512(to.add(16 * half).cast(), wide);
            }
        }
    }
}

fn decode_portable<N: Number>(exponents: [u8; TABLE], blocks: &[[u8; BLOCK_BYTES]], numbers: &mut [[N; BLOCK]]) {
    for (block, numbers) in blocks.iter().zip(numbers) {
        let (planes, bytes) = block.split_at(PLANES * size_of::<u64>());
        let (planes, _) = planes.as_chunks();
        let planes: [u64; PLANES] = std::array::from_fn(|plane| u64::from_le_bytes(planes[plane]));
        for (j, &byte) in bytes.iter().enumerate() {
            let code = planes.iter().rev().fold(0, |code, plane| code << 1 | (plane >> j & 1) as usize);
            numbers[number_at(j)] = N::of((u16::from(exponents[code]) << 8 | u16::from(byte)).rotate_right(1));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, BLOCK_BYTES, Number, PLANES, TABLE};

    /// How far ahead of what is decoded is asked for, in bytes: a core's own prefetch ends at each page. Far enough
    /// that something is still under way while what was decoded is multiplied; measured.
    const AHEAD: usize = 128 * BLOCK_BYTES;

    /// Where a block's bytes begin, behind the planes.
    const BYTES: usize = PLANES * size_of::<u64>();

    /// Asks for the memory that is decoded a while after `block`: a block is longer than a cache line.
    #[inline(always)]
    fn ask_ahead(block: &[u8; BLOCK_BYTES]) {
        for half in [0, BLOCK_BYTES / 2] {
            // SAFETY: every x86-64 processor has the instruction, and what is asked for need not be readable.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD + half).cast()) };
        }
    }

    /// # Safety
    /// The level's instructions exist.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn decode_avx512<N: Number>(
        exponents: [u8; TABLE],
        blocks: &[[u8; BLOCK_BYTES]],
        numbers: &mut [[N; BLOCK]],
        ahead: bool,
    ) {
        let table = _mm512_set1_epi64(i64::from_le_bytes(exponents));
        let weights = [1, 2, 4].map(|bit| _mm512_set1_epi8(bit));
        for (block, numbers) in blocks.iter().zip(numbers) {
            if ahead {
                ask_ahead(block);
            }
            // SAFETY: planes and bytes lie within the block, vectors of results within `numbers`.
            unsafe {
                let plane = |plane: usize| block.as_ptr().cast::<u64>().add(plane).read_unaligned();
                let codes = _mm512_maskz_mov_epi8(plane(0), weights[0]);
                let codes = _mm512_mask_add_epi8(codes, plane(1), codes, weights[1]);
                let codes = _mm512_mask_add_epi8(codes, plane(2), codes, weights[2]);
                let exponents = _mm512_shuffle_epi8(table, codes);
                let bytes = _mm512_loadu_si512(block.as_ptr().add(BYTES).cast());
                let rotated = |pairs| _mm512_or_si512(_mm512_srli_epi16::<1>(pairs), _mm512_slli_epi16::<15>(pairs));
                let out = numbers.as_mut_ptr();
                N::store_32(out, rotated(_mm512_unpacklo_epi8(bytes, exponents)));
                N::store_32(out.add(32), rotated(_mm512_unpackhi_epi8(bytes, exponents)));
            }
        }
    }

    /// # Safety
    /// The level's instructions exist.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn decode_avx2<N: Number>(
        exponents: [u8; TABLE],
        blocks: &[[u8; BLOCK_BYTES]],
        numbers: &mut [[N; BLOCK]],
        ahead: bool,
    ) {
        let table = _mm256_set1_epi64x(i64::from_le_bytes(exponents));
        // Each of 4 bytes eight times, and then one bit of it in each.
        let (first, second) = (0, 0x0101_0101_0101_0101);
        let spread = _mm256_setr_epi64x(first, second, 2 * second, 3 * second);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let weights = [1, 2, 4].map(|bit| _mm256_set1_epi8(bit));
        for (block, numbers) in blocks.iter().zip(numbers) {
            if ahead {
                ask_ahead(block);
            }
            // SAFETY: planes and bytes lie within the block, vectors of results within `numbers`.
            unsafe {
                for half in 0..2 {
                    let mut codes = _mm256_setzero_si256();
                    for (plane, weight) in weights.into_iter().enumerate() {
                        let bits = block.as_ptr().cast::<i32>().add(2 * plane + half).read_unaligned();
                        let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
                        let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
                        codes = _mm256_or_si256(codes, _mm256_and_si256(set, weight));
                    }
                    let exponents = _mm256_shuffle_epi8(table, codes);
                    let bytes = _mm256_loadu_si256(block.as_ptr().add(BYTES + 32 * half).cast());
                    let rotated =
                        |pairs| _mm256_or_si256(_mm256_srli_epi16::<1>(pairs), _mm256_slli_epi16::<15>(pairs));
                    let out = numbers.as_mut_ptr().add(16 * half);
                    N::store_16(out, rotated(_mm256_unpacklo_epi8(bytes, exponents)));
                    N::store_16(out.add(32), rotated(_mm256_unpackhi_epi8(bytes, exponents)));
                }
            }
        }
    }
}
