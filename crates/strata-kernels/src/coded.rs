//! Lossless coding of bf16 weights (L8): about 11.3 bits a number instead of 16, and the same bits when decoded.
//!
//! Of a bf16 number the sign and the mantissa are noise, but the exponent carries 2 to 3 of its 8 bits: the weights of a
//! row have few magnitudes. A row names its eight most frequent exponents; a number has 3 bits that choose one of them,
//! in planes of 64 bits, and a byte of mantissa and sign. The few numbers with another exponent are patched afterwards.
//! All rows of a matrix have room for the same number of patches, so that rows are of one length and any can be found.
//!
//! ```text
//! row:   8 exponents | patches, each: numbers since the last patch u8, exponent u8 | blocks of 64 numbers
//! block: planes of bits 0, 1, 2 of the codes, u64 each | 64 bytes: mantissa << 1 | sign
//! ```
//!
//! Bit `j` of a plane and byte `j` belong to the number of the block that [`number_at`] says: unpacking two registers into
//! pairs, as vector units do within 16 bytes, then gives numbers in their order. Gaps that no byte can hold are bridged by
//! patches that change nothing, and so are patches that a row does not need.

use std::ops::Range;

use crate::level::Instructions;
use crate::{DType, Level, Matrix};

/// Numbers of a block.
pub(crate) const BLOCK: usize = 64;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = PLANES * size_of::<u64>() + BLOCK;

/// Bits of a code.
const PLANES: usize = 3;

/// Exponents of a row's table.
const TABLE: usize = 1 << PLANES;

/// Bytes of a patch.
const PATCH: usize = 2;

/// Rows that are decoded at a time at most: what the largest tile takes.
pub(crate) const PANEL_ROWS: usize = 32;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The place of the mantissa and the sign of a number, beside its exponent.
const REST: u16 = 0x807f;

/// Bytes of a row with room for so many patches; `None` if `cols` are not whole blocks, or more than can be counted.
pub(crate) const fn row_bytes(cols: usize, patches: u16) -> Option<usize> {
    match cols.is_multiple_of(BLOCK) {
        true => match (cols / BLOCK).checked_mul(BLOCK_BYTES) {
            Some(blocks) => blocks.checked_add(TABLE + PATCH * patches as usize),
            None => None,
        },
        false => None,
    }
}

/// Where columns of a row lie in it, whole blocks; with the first, all that precedes them.
pub(crate) fn bytes_of(columns: Range<usize>, patches: u16) -> Range<usize> {
    let at = |column: usize| TABLE + PATCH * usize::from(patches) + column / BLOCK * BLOCK_BYTES;
    let start = if columns.start == 0 { 0 } else { at(columns.start) };
    start..at(columns.end)
}

/// Which number of a block byte `j` and bit `j` of the planes belong to.
const fn number_at(j: usize) -> usize {
    // Of every 16 bytes, the first 8 are numbers of the first half of the block.
    j / 16 * 8 + j % 8 + j % 16 / 8 * (BLOCK / 2)
}

/// The exponent of a bf16 number.
const fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

/// How the numbers of one row are coded.
struct RowCode {
    table: [u8; TABLE],
    /// By exponent: its place in the table, if it has one.
    codes: [Option<u8>; 256],
}

impl RowCode {
    fn of(row: &[u16]) -> Self {
        // Neighbours often have the same exponent, and a counter that was just written is slow to be read.
        let mut counts = [[0u32; 256]; 4];
        for (i, &bits) in row.iter().enumerate() {
            counts[i % 4][usize::from(exponent(bits))] += 1;
        }
        let mut totals: [u32; 256] = std::array::from_fn(|exponent| counts.iter().map(|counts| counts[exponent]).sum());
        let (mut table, mut codes) = ([0; TABLE], [None; 256]);
        for (code, place) in table.iter_mut().enumerate() {
            let most = (0..=u8::MAX).max_by_key(|&exponent| totals[usize::from(exponent)]).unwrap_or(0);
            *place = most;
            totals[usize::from(most)] = 0;
            codes[usize::from(most)].get_or_insert(code as u8);
        }
        Self { table, codes }
    }

    /// Where patches are, those that bridge long gaps among them.
    fn patches(&self, row: &[u16]) -> impl Iterator<Item = usize> {
        let mut last = 0;
        row.iter().enumerate().filter(|(_, bits)| self.codes[usize::from(exponent(**bits))].is_none()).flat_map(
            move |(at, _)| {
                let bridges = (at - last).saturating_sub(1) / usize::from(u8::MAX);
                let first = std::mem::replace(&mut last, at);
                (1..=bridges).map(move |bridge| first + bridge * usize::from(u8::MAX)).chain([at])
            },
        )
    }
}

/// How many patches a row of bf16 numbers needs.
pub fn patches_of(row: &[u16]) -> usize {
    RowCode::of(row).patches(row).count()
}

/// Codes a row of bf16 numbers, with room for so many patches, into `out`, which has the bytes of one. Whether it has
/// fitted: a row may need more patches ([`patches_of`]).
///
/// # Panics
/// If the row is not whole blocks, or `out` has another length.
#[must_use]
pub fn encode_row(row: &[u16], patches: u16, out: &mut [u8]) -> bool {
    assert_eq!(row_bytes(row.len(), patches), Some(out.len()), "{} numbers, {patches} patches", row.len());
    let code = RowCode::of(row);
    let (table, rest) = out.split_at_mut(TABLE);
    table.copy_from_slice(&code.table);
    let (patched, blocks) = rest.split_at_mut(PATCH * usize::from(patches));
    let mut places = code.patches(row);
    let mut last = 0;
    for patch in patched.chunks_exact_mut(PATCH) {
        let at = places.next().unwrap_or(last);
        // Bridges see to it that this is a byte.
        patch.copy_from_slice(&[(at - last) as u8, row.get(at).map_or(0, |&bits| exponent(bits))]);
        last = at;
    }
    if places.next().is_some() {
        return false;
    }
    for (numbers, block) in row.chunks_exact(BLOCK).zip(blocks.chunks_exact_mut(BLOCK_BYTES)) {
        let (planes, bytes) = block.split_at_mut(PLANES * size_of::<u64>());
        let mut bits = [0u64; PLANES];
        for (j, byte) in bytes.iter_mut().enumerate() {
            let number = numbers[number_at(j)];
            // Of what is patched, any code will do.
            let code = u64::from(code.codes[usize::from(exponent(number))].unwrap_or(0));
            for (plane, bits) in bits.iter_mut().enumerate() {
                *bits |= (code >> plane & 1) << j;
            }
            *byte = number.rotate_left(1) as u8;
        }
        for (plane, bits) in planes.chunks_exact_mut(size_of::<u64>()).zip(bits) {
            plane.copy_from_slice(&bits.to_le_bytes());
        }
    }
    true
}

/// Numbers of f32 that [`Panel`] takes for rows of `cols`: for its rows, and for room to begin at a cache line.
pub(crate) const fn panel_len(cols: usize) -> usize {
    (PANEL_ROWS * cols * size_of::<u16>() + LINE).div_ceil(size_of::<f32>())
}

/// A thread's place for decoded rows, of unspecified content.
pub(crate) struct Panel<'a> {
    numbers: &'a mut [u16],
    cols: usize,
}

impl<'a> Panel<'a> {
    /// In `area`, which has [`panel_len`].
    pub(crate) fn new(area: &'a mut [f32], cols: usize) -> Self {
        let line = area.as_ptr().align_offset(LINE);
        let (_, area) = area.split_at_mut(line);
        Self { numbers: &mut bytemuck::cast_slice_mut(area)[..PANEL_ROWS * cols], cols }
    }

    /// Decodes `rows` of `weights`, at most [`PANEL_ROWS`].
    pub(crate) fn decode(&mut self, level: Level, weights: Matrix<'_>, rows: Range<usize>) -> Matrix<'_> {
        let count = rows.len();
        let numbers = &mut self.numbers[..count * self.cols];
        decode_rows(level, weights, rows, numbers);
        Matrix::new(DType::BF16, count, self.cols, bytemuck::cast_slice(numbers))
    }
}

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

/// Decodes `rows` of a coded matrix into `out` `[rows, cols]`, bf16.
///
/// # Panics
/// If the matrix is not coded, has no such rows, or `out` has another length.
fn decode_rows(level: Level, weights: Matrix<'_>, rows: Range<usize>, out: &mut [u16]) {
    let DType::CodedBf16 { patches } = weights.dtype() else { panic!("{} is not coded", weights.dtype()) };
    let (cols, row_bytes) = (weights.cols(), weights.row_bytes());
    assert!(rows.end <= weights.rows() && out.len() == rows.len() * cols);
    let coded = &weights.bytes()[rows.start * row_bytes..rows.end * row_bytes];
    for (row, out) in coded.chunks_exact(row_bytes).zip(out.chunks_exact_mut(cols)) {
        decode_row(level, row, patches, out);
    }
}

fn decode_row(level: Level, row: &[u8], patches: u16, out: &mut [u16]) {
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

    /// How far ahead of what is decoded is asked for, in bytes: a core's own prefetch ends at each page. Far enough that something
    /// is still under way while what was decoded is multiplied; measured.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row of numbers as a trained model has them, with any bits at some places.
    fn rows() -> impl Strategy<Value = Vec<u16>> {
        let number = prop_oneof![
            60 => (-1.0f32..1.0, -6i32..2).prop_map(|(x, scale)| half::bf16::from_f32(x * 2f32.powi(scale)).to_bits()),
            1 => any::<u16>(),
            1 => Just(0),
        ];
        (1usize..20).prop_flat_map(move |blocks| prop::collection::vec(number.clone(), blocks * BLOCK))
    }

    fn coded(row: &[u16], patches: u16) -> Vec<u8> {
        let mut bytes = vec![0xa5; row_bytes(row.len(), patches).unwrap()];
        assert!(encode_row(row, patches, &mut bytes));
        bytes
    }

    fn decoded(level: Level, bytes: &[u8], cols: usize, patches: u16) -> Vec<u16> {
        let mut out = vec![0xdead; cols];
        decode_row(level, bytes, patches, &mut out);
        out
    }

    /// The row, decoded to `out` so many blocks at a time.
    fn pieces<N: Number>(level: Level, bytes: &[u8], patches: u16, mut out: Vec<N>, blocks: usize) -> Vec<N> {
        let (cols, mut progress) = (out.len(), Progress::default());
        for out in out.chunks_mut(blocks * BLOCK) {
            decode_columns(level, bytes, patches, cols, &mut progress, out);
        }
        out
    }

    proptest! {
        #[test]
        fn a_row_comes_back_at_every_level(row in rows(), spare in 0u16..5, piece in 1usize..5) {
            let patches = patches_of(&row) as u16 + spare;
            let bytes = coded(&row, patches);
            let mut widened = vec![f32::NAN; row.len()];
            widen_row(&bytes, patches, &mut widened);
            let narrow: Vec<u16> = widened.iter().map(|number| (number.to_bits() >> 16) as u16).collect();
            prop_assert_eq!(&narrow, &row);
            for level in Level::available() {
                prop_assert_eq!(&decoded(level, &bytes, row.len(), patches), &row, "{}", level.name());
                let in_pieces = pieces(level, &bytes, patches, vec![f32::NAN; row.len()], piece);
                let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&in_pieces), bits(&widened), "{} in pieces of {} blocks", level.name(), piece);
                let in_pieces = pieces(level, &bytes, patches, vec![0xdead; row.len()], piece);
                prop_assert_eq!(&in_pieces, &row, "{} in pieces of {} blocks", level.name(), piece);
            }
        }

        #[test]
        fn any_bytes_are_some_row(blocks in 1usize..4, patches in 0u16..9, seed in prop::collection::vec(any::<u8>(), 512)) {
            let cols = blocks * BLOCK;
            let bytes = &seed[..row_bytes(cols, patches).unwrap()];
            let row = decoded(Level::available().next().unwrap(), bytes, cols, patches);
            for level in Level::available() {
                prop_assert_eq!(&decoded(level, bytes, cols, patches), &row, "{}", level.name());
                prop_assert_eq!(&pieces(level, bytes, patches, vec![0xdead; cols], 1), &row, "{} in pieces", level.name());
                let narrow: Vec<u16> = pieces(level, bytes, patches, vec![f32::NAN; cols], 1)
                    .iter()
                    .map(|number| (number.to_bits() >> 16) as u16)
                    .collect();
                prop_assert_eq!(&narrow, &row, "{} in pieces", level.name());
            }
        }
    }

    #[test]
    fn bits_of_every_kind_come_back() {
        // Every exponent equally often: most numbers are patches.
        let row: Vec<u16> = (0..=u16::MAX).map(|bits| bits.rotate_left(5)).collect();
        let patches = patches_of(&row) as u16;
        let bytes = coded(&row, patches);
        for level in Level::available() {
            assert!(decoded(level, &bytes, row.len(), patches) == row, "{}", level.name());
        }
    }

    #[test]
    fn gaps_of_any_length_are_bridged() {
        for gap in [0, 1, 254, 255, 256, 257, 509, 510, 511, 700, 900] {
            let mut row = vec![0x3f80; 1024];
            // Seven others, so that the table is full.
            (0..7).for_each(|i| row[1000 - i * 3..][..3].fill(0x100 << i));
            row[gap] = 0x7f80;
            row[1023] = 0xff80;
            let patches = patches_of(&row);
            assert!(patches <= 6, "{patches} patches after a gap of {gap}");
            let bytes = coded(&row, patches as u16);
            for level in Level::available() {
                assert_eq!(decoded(level, &bytes, row.len(), patches as u16), row, "{gap} at {}", level.name());
            }
        }
    }

    #[test]
    fn normal_weights_take_less_than_eleven_and_a_half_bits() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        let mut row = || -> Vec<u16> {
            // A sum of twelve uniform numbers is nearly normal.
            (0..4096).map(|_| half::bf16::from_f32((0..12).map(|_| uniform()).sum::<f32>() - 6.0).to_bits()).collect()
        };
        let patches = (0..64).map(|_| patches_of(&row())).max().unwrap() as u16;
        let bits = row_bytes(4096, patches).unwrap() as f64 * 8.0 / 4096.0;
        assert!((11.0..11.5).contains(&bits), "{bits}");
    }

    #[test]
    fn a_row_that_does_not_fit_is_refused() {
        let row: Vec<u16> = (0..64).map(|i| i << 7).collect();
        let (needed, mut out) = (patches_of(&row) as u16, vec![0; 1000]);
        for (patches, fits) in [(needed - 1, false), (needed, true)] {
            assert_eq!(encode_row(&row, patches, &mut out[..row_bytes(64, patches).unwrap()]), fits);
        }
    }
}
