//! Decodes a coded row: as a whole, or some columns at a time.

use super::{BLOCK, BLOCK_BYTES, PATCH, PLANES, TABLE, number_at, row_bytes};
use crate::Level;
use crate::simd::Vectors;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// The mask of a bf16 number's sign and mantissa, which surround the exponent.
const REST: u16 = 0x807f;

/// Decodes a coded row to f32.
///
/// # Panics
/// Panics if the bytes are not a row as long as `out`.
pub(crate) fn widen_row(row: &[u8], patches: u16, out: &mut [f32]) {
    let row = CodedRow::new(row, patches, out.len());
    row.decode(Level::PORTABLE, &mut Progress::default(), out);
}

/// Decodes the next columns of a coded row of `cols` numbers: whole blocks, from the place of `progress` on.
///
/// # Panics
/// Panics if the bytes are not a row of `cols` numbers, or fewer columns are left.
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

/// Converts a bf16 number to f32. A NaN keeps its bits, which library functions may not guarantee.
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Decodes a whole row to bf16.
///
/// # Panics
/// Panics if the bytes are not a row as long as `out`.
pub(super) fn decode_row(level: Level, row: &[u8], patches: u16, out: &mut [u16]) {
    CodedRow::new(row, patches, out.len()).decode(level, &mut Progress::default(), out);
}

/// Records how much of a row has been decoded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// The number of decoded numbers.
    numbers: usize,
    /// The number of patches used so far.
    patches: usize,
    /// The index of the number that the last patch was for.
    patched: usize,
}

/// The parts of a coded row.
#[derive(Clone, Copy)]
pub(crate) struct CodedRow<'a> {
    pub table: [u8; TABLE],
    pub(super) patches: &'a [[u8; PATCH]],
    pub blocks: &'a [[u8; BLOCK_BYTES]],
}

impl<'a> CodedRow<'a> {
    /// Splits a coded row into its parts.
    ///
    /// # Panics
    /// Panics if the bytes are not a row of `cols` numbers.
    #[inline(always)]
    pub(crate) fn new(row: &'a [u8], patches: u16, cols: usize) -> Self {
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
    /// Panics if fewer blocks are left.
    fn decode<N: Number>(&self, level: Level, progress: &mut Progress, out: &mut [N]) {
        let first = progress.numbers;
        progress.numbers += out.len();
        let blocks = &self.blocks[first / BLOCK..progress.numbers / BLOCK];
        let (numbers, _) = out.as_chunks_mut::<BLOCK>();
        // After a piece of a row come other rows, whose pieces are prefetched elsewhere.
        #[cfg(target_arch = "x86_64")]
        let ahead = blocks.len() == self.blocks.len();
        match Vectors::of(level) {
            // SAFETY: the token proves the instructions.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512(token) => unsafe { x86::decode_avx512(token, self.table, blocks, numbers, ahead) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2(token) => unsafe { x86::decode_avx2(token, self.table, blocks, numbers, ahead) },
            Vectors::Portable => decode_portable(self.table, blocks, numbers),
        }
        let Some(last) = (self.blocks.len() * BLOCK).checked_sub(1) else { return };
        while let Some(&[gap, exponent]) = self.patches.get(progress.patches) {
            // In a damaged file, this may be any number of the row. Patches that are left for later belong to numbers
            // after those decoded so far.
            let patched = (progress.patched + usize::from(gap)).min(last);
            let Some(number) = out.get_mut(patched - first) else { break };
            *number = number.with_exponent(exponent);
            progress.patched = patched;
            progress.patches += 1;
        }
    }
}

/// The type of the elements to which a row is decoded: bf16 as its bits, or f32.
pub(crate) trait Number: bytemuck::Pod {
    fn of(bits: u16) -> Self;
    fn with_exponent(self, exponent: u8) -> Self;
    /// Stores 16 numbers with these bits.
    #[cfg(target_arch = "x86_64")]
    fn store_16(s: Avx2, to: &mut [Self; 16], bits: std::arch::x86_64::__m256i);
    /// Stores 32 numbers with these bits.
    #[cfg(target_arch = "x86_64")]
    fn store_32(s: Avx512, to: &mut [Self; 32], bits: std::arch::x86_64::__m512i);
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
    fn store_16(s: Avx2, to: &mut [u16; 16], bits: std::arch::x86_64::__m256i) {
        s.store256(bits, to);
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn store_32(s: Avx512, to: &mut [u16; 32], bits: std::arch::x86_64::__m512i) {
        s.store512(bits, to);
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
    fn store_16(s: Avx2, to: &mut [f32; 16], bits: std::arch::x86_64::__m256i) {
        let [low, high]: &mut [[f32; 8]; 2] = bytemuck::cast_mut(to);
        let wide = |bits| s._mm256_slli_epi32::<16>(s._mm256_cvtepu16_epi32(bits));
        s.store256(wide(s._mm256_castsi256_si128(bits)), low);
        s.store256(wide(s._mm256_extracti128_si256::<1>(bits)), high);
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn store_32(s: Avx512, to: &mut [f32; 32], bits: std::arch::x86_64::__m512i) {
        let [low, high]: &mut [[f32; 16]; 2] = bytemuck::cast_mut(to);
        let wide = |bits| s._mm512_slli_epi32::<16>(s._mm512_cvtepu16_epi32(bits));
        s.store512(wide(s._mm512_castsi512_si256(bits)), low);
        s.store512(wide(s._mm512_extracti64x4_epi64::<1>(bits)), high);
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
pub(crate) use x86::Decoder;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::__m512i;
    use std::hint::black_box;

    use super::{BLOCK, BLOCK_BYTES, Number, PLANES, TABLE};
    use crate::simd::{Avx2, Avx512, prefetch_second};

    /// The distance, in bytes, at which coded rows are prefetched, because a core's own prefetcher stops at the end of
    /// each page. With this distance, which was measured, reads are still in flight while decoded numbers are
    /// multiplied.
    const AHEAD: usize = 128 * BLOCK_BYTES;

    /// The offset of a block's bytes, which follow the planes.
    const BYTES: usize = PLANES * size_of::<u64>();

    /// Prefetches the memory that is decoded some time after `block`: two lines, as a block is longer than a cache
    /// line.
    #[inline(always)]
    fn ask_ahead(block: &[u8; BLOCK_BYTES]) {
        for half in [0, BLOCK_BYTES / 2] {
            prefetch_second(block.as_ptr().wrapping_add(AHEAD + half));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn decode_avx512<N: Number>(
        s: Avx512,
        exponents: [u8; TABLE],
        blocks: &[[u8; BLOCK_BYTES]],
        numbers: &mut [[N; BLOCK]],
        ahead: bool,
    ) {
        let (decoder, table) = (Decoder::new(s), Decoder::table(s, exponents));
        for (block, numbers) in blocks.iter().zip(numbers) {
            if ahead {
                ask_ahead(block);
            }
            let [first, last] = Decoder::numbers(s, block, decoder.exponents(s, table, block));
            let [low, high]: &mut [[N; BLOCK / 2]; 2] = bytemuck::cast_mut(numbers);
            N::store_32(s, low, first);
            N::store_32(s, high, last);
        }
    }

    /// Decodes blocks in registers.
    #[derive(Clone, Copy)]
    pub(crate) struct Decoder {
        /// The weight of each plane's bits.
        weights: [__m512i; PLANES],
    }

    impl Decoder {
        #[inline(always)]
        pub(crate) fn new(s: Avx512) -> Self {
            // If the compiler knew the weights, it would take five instructions instead of three for a code.
            Self { weights: black_box([1, 2, 4]).map(|weight| s._mm512_set1_epi8(weight)) }
        }

        /// Returns a row's table of exponents as [`Decoder::exponents`] reads it.
        #[inline(always)]
        pub(crate) fn table(s: Avx512, exponents: [u8; TABLE]) -> __m512i {
            s._mm512_set1_epi64(i64::from_le_bytes(exponents))
        }

        /// Returns the exponents of a block's bytes before patches.
        #[inline(always)]
        pub(crate) fn exponents(self, s: Avx512, table: __m512i, block: &[u8; BLOCK_BYTES]) -> __m512i {
            let plane = |plane: usize| u64::from_le_bytes(block[..BYTES].as_chunks().0[plane]);
            let codes = s._mm512_maskz_mov_epi8(plane(0), self.weights[0]);
            let codes = s._mm512_mask_add_epi8(codes, plane(1), codes, self.weights[1]);
            let codes = s._mm512_mask_add_epi8(codes, plane(2), codes, self.weights[2]);
            s._mm512_shuffle_epi8(table, codes)
        }

        /// Returns the numbers of a block whose bytes have these exponents: the first half, and the last.
        #[inline(always)]
        pub(crate) fn numbers(s: Avx512, block: &[u8; BLOCK_BYTES], exponents: __m512i) -> [__m512i; 2] {
            let bytes = s.load512(&block[BYTES..].as_chunks::<BLOCK>().0[0]);
            let rotated = |pairs| s._mm512_or_si512(s._mm512_srli_epi16::<1>(pairs), s._mm512_slli_epi16::<15>(pairs));
            [rotated(s._mm512_unpacklo_epi8(bytes, exponents)), rotated(s._mm512_unpackhi_epi8(bytes, exponents))]
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn decode_avx2<N: Number>(
        s: Avx2,
        exponents: [u8; TABLE],
        blocks: &[[u8; BLOCK_BYTES]],
        numbers: &mut [[N; BLOCK]],
        ahead: bool,
    ) {
        let table = s._mm256_set1_epi64x(i64::from_le_bytes(exponents));
        // Spreads each of 4 bytes over eight lanes, then selects one of its bits in each.
        let (first, second) = (0, 0x0101_0101_0101_0101);
        let spread = s._mm256_setr_epi64x(first, second, 2 * second, 3 * second);
        let bit = s._mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let weights = [1, 2, 4].map(|bit| s._mm256_set1_epi8(bit));
        for (block, numbers) in blocks.iter().zip(numbers) {
            if ahead {
                ask_ahead(block);
            }
            let (planes, bytes) = block.split_at(BYTES);
            let ((planes, _), (bytes, _)) = (planes.as_chunks::<4>(), bytes.as_chunks::<32>());
            let quarters: &mut [[N; BLOCK / 4]; 4] = bytemuck::cast_mut(numbers);
            for half in 0..2 {
                let mut codes = s._mm256_setzero_si256();
                for (plane, weight) in weights.into_iter().enumerate() {
                    let bits = i32::from_le_bytes(planes[2 * plane + half]);
                    let bits = s._mm256_shuffle_epi8(s._mm256_set1_epi32(bits), spread);
                    let set = s._mm256_cmpeq_epi8(s._mm256_and_si256(bits, bit), bit);
                    codes = s._mm256_or_si256(codes, s._mm256_and_si256(set, weight));
                }
                let exponents = s._mm256_shuffle_epi8(table, codes);
                let bytes = s.load256(&bytes[half]);
                let rotated =
                    |pairs| s._mm256_or_si256(s._mm256_srli_epi16::<1>(pairs), s._mm256_slli_epi16::<15>(pairs));
                N::store_16(s, &mut quarters[half], rotated(s._mm256_unpacklo_epi8(bytes, exponents)));
                N::store_16(s, &mut quarters[half + 2], rotated(s._mm256_unpackhi_epi8(bytes, exponents)));
            }
        }
    }
}
