//! Codes bf16 weights losslessly, with about 11.3 bits per number instead of 16. Decoded weights are bit-identical.
//!
//! The sign and the mantissa of a bf16 number are noise, but the exponent carries only 2 to 3 bits of information in
//! its 8 bits, because the weights of a row have few magnitudes. A row lists its eight most frequent exponents. Each
//! number has 3 bits that choose one of them, in planes of 64 bits, and a byte of mantissa and sign. The few numbers
//! with another exponent are patched afterwards. All rows of a matrix have room for the same number of patches, so that
//! all rows have one length and any row can be located.
//!
//! ```text
//! row:   8 exponents | patches, each: numbers since the last patch u8, exponent u8 | blocks of 64 numbers
//! block: planes of bits 0, 1, 2 of the codes, u64 each | 64 bytes: mantissa << 1 | sign
//! ```
//!
//! Bit `j` of a plane and byte `j` belong to the number of the block that [`number_at`] returns. With this order,
//! unpacking two registers into pairs, as vector units do within 16 bytes, gives the numbers in order. A gap too long
//! for a byte is bridged by patches that change nothing. Unused patches change nothing either.

mod decode;
mod panel;
#[cfg(target_arch = "x86_64")]
mod patches;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(crate) use decode::{CodedRow, Decoder};
pub(crate) use decode::{Number, Progress, decode_columns, widen_row, widened};
pub(crate) use panel::{Panel, panel_len, panel_rows};
#[cfg(target_arch = "x86_64")]
pub(crate) use patches::{PREFETCHED_BY_PATCH, SPREAD_COLUMNS, Spread};

/// The number of weights in a block.
pub(crate) const BLOCK: usize = 64;

/// The number of bytes of a block.
pub(crate) const BLOCK_BYTES: usize = PLANES * size_of::<u64>() + BLOCK;

/// The number of bits of a code.
const PLANES: usize = 3;

/// The number of exponents in a row's table.
const TABLE: usize = 1 << PLANES;

/// The number of bytes of a patch.
const PATCH: usize = 2;

/// Returns the number of bytes of a row with room for `patches` patches; `None` if `cols` is not whole blocks, or on
/// overflow.
pub(crate) const fn row_bytes(cols: usize, patches: u16) -> Option<usize> {
    match cols.is_multiple_of(BLOCK) {
        true => match (cols / BLOCK).checked_mul(BLOCK_BYTES) {
            Some(blocks) => blocks.checked_add(TABLE + PATCH * patches as usize),
            None => None,
        },
        false => None,
    }
}

/// Returns the bytes of a row that hold `columns`, which are whole blocks; for the first block also the header before
/// it.
pub(crate) fn bytes_of(columns: Range<usize>, patches: u16) -> Range<usize> {
    let at = |column: usize| TABLE + PATCH * usize::from(patches) + column / BLOCK * BLOCK_BYTES;
    let start = if columns.start == 0 { 0 } else { at(columns.start) };
    start..at(columns.end)
}

/// Returns the index in the block of the number that byte `j`, and bit `j` of each plane, belong to.
const fn number_at(j: usize) -> usize {
    // Of every 16 bytes, the first 8 belong to the first half of the block.
    j / 16 * 8 + j % 8 + j % 16 / 8 * (BLOCK / 2)
}

/// Returns the exponent of a bf16 number.
const fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

/// The code of one row, which is its table of exponents.
struct RowCode {
    table: [u8; TABLE],
    /// The index in the table of each exponent; `None` if the exponent is not in the table.
    codes: [Option<u8>; 256],
}

impl RowCode {
    fn of(row: &[u16]) -> Self {
        // Four counters take turns, as neighbours often have the same exponent and a counter that was just written is
        // slow to read.
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

    /// Returns the positions of the patches, including those that only bridge long gaps.
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

/// Returns the number of patches that a row of bf16 numbers needs when it is coded. Patches store the exponents that
/// are rare in the row.
pub fn patches_of(row: &[u16]) -> usize {
    RowCode::of(row).patches(row).count()
}

/// Encodes a row of bf16 numbers into `out`, which has room for `patches` patches. Returns `false` if the row needs
/// more patches. [`patches_of`] returns the number of patches that a row needs.
///
/// # Panics
/// Panics if the row is not whole blocks of 64 numbers, or `out` does not have the length of a coded row.
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
        // Bridging patches ensure that the gap fits a byte.
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
            // A number that is patched may have any code.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::decode::decode_row;
    use super::*;
    use crate::Level;

    /// Generates random rows that resemble the rows of a trained model, with arbitrary bits in some places.
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

    /// Decodes a row into `out`, `blocks` blocks at a time.
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
        fn any_bytes_are_some_row(
            blocks in 1usize..4, patches in 0u16..9, seed in prop::collection::vec(any::<u8>(), 512),
        ) {
            let cols = blocks * BLOCK;
            let bytes = &seed[..row_bytes(cols, patches).unwrap()];
            let row = decoded(Level::available().next().unwrap(), bytes, cols, patches);
            for level in Level::available() {
                prop_assert_eq!(&decoded(level, bytes, cols, patches), &row, "{}", level.name());
                let in_pieces = pieces(level, bytes, patches, vec![0xdead; cols], 1);
                prop_assert_eq!(&in_pieces, &row, "{} in pieces", level.name());
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
        // Every exponent is equally frequent, so most numbers are patches.
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
            // Seven other exponents fill the table.
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
