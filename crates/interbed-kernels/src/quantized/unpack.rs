//! Unpacks the codes of a row with AVX-512.

mod grids;

use std::arch::x86_64::*;

use super::collect::{Collect, turned, words};
use super::formats::{
    Format, IQ4_NL_CODES, Iq4Nl, Iq4Xs, MXFP4_CODES, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use super::header::{GROUP, GROUPS, SPAN_BLOCKS};
use super::octet::Octet;
use super::spans::{Block, Span, Spans, load4};
use crate::simd::{Avx512, load128};

/// A type whose codes AVX-512 can unpack.
pub(super) trait Unpack: Collect + Octet {
    /// The number of 32-column blocks in a block of the type.
    const PARTS: usize = SPAN_BLOCKS / (Self::SPAN_BYTES / Self::BYTES);

    /// The number of 32-column blocks that [`unpack_set`](Self::unpack_set) unpacks together, because they share bytes.
    const SET: usize = 1;

    /// Unpacks the codes of set `set` of [`SET`](Self::SET) blocks of sixteen spans. Calls `put(block, quad, codes)`
    /// for each block of the set and each of its eight quads of columns, with the codes of four columns of each row.
    /// Types whose codes share bytes override this: transposing the bytes is cheaper than transposing the codes.
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        const { assert!(Self::SET == 1) };
        let mut halves = [[s._mm512_setzero_si512(); 4]; 2];
        for (i, four) in [0, 1, 2, 3].map(|i| spans.fourth(i)).into_iter().enumerate() {
            [halves[0][i], halves[1][i]] = Self::unpack_rows(s, four, set);
        }
        for (half, codes) in halves.into_iter().enumerate() {
            for (i, codes) in turned(s, codes).into_iter().enumerate() {
                put(0, half * 4 + i, codes);
            }
        }
    }

    /// Unpacks the codes of part `part`, 32 columns, of four blocks of the type: the first halves, 16 bytes each in the
    /// order of the blocks, and the last halves.
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], part: usize) -> [__m512i; 2];

    /// Unpacks the codes of 32-column block `block` of four spans: the first halves, in the order of the spans, and the
    /// last halves.
    #[inline(always)]
    fn unpack_rows(s: Avx512, [a, b, c, d]: [Span<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        let block = block % SPAN_BLOCKS;
        let (block, part) = if Self::PARTS == 1 { (block, 0) } else { (0, block) };
        Self::unpack_blocks(s, [a.block(block), b.block(block), c.block(block), d.block(block)], part)
    }

    /// Unpacks the codes of group `group` of the span: the first halves of its four 32-column blocks, 16 bytes each in
    /// the order of the blocks, and the last halves. Types with blocks of 256 override this.
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let first = group % GROUPS * GROUP;
        let blocks = [span.block(first), span.block(first + 1), span.block(first + 2), span.block(first + 3)];
        Self::unpack_blocks(s, blocks, 0)
    }
}

/// Loads 16 bytes of each of four blocks, from byte `at` on.
#[inline(always)]
fn part<F: Format>(s: Avx512, [a, b, c, d]: [Block<'_, F>; 4], at: usize) -> __m512i {
    load4(s, [a.bytes(at), b.bytes(at), c.bytes(at), d.bytes(at)])
}

/// Unpacks four blocks with all their nibbles in 16 bytes, from byte `at` on.
#[inline(always)]
fn nibbles<F: Format>(s: Avx512, blocks: [Block<'_, F>; 4], at: usize) -> [__m512i; 2] {
    split(s, part(s, blocks, at))
}

/// Splits all bytes into their lower and upper halves.
#[inline(always)]
fn split(s: Avx512, bytes: __m512i) -> [__m512i; 2] {
    let mask = s._mm512_set1_epi8(15);
    [s._mm512_and_si512(bytes, mask), s._mm512_and_si512(s._mm512_srli_epi16::<4>(bytes), mask)]
}

/// Loads the 32 bytes of `a`, followed by the 32 bytes of `b`.
#[inline(always)]
fn load2(s: Avx512, a: &[u8; 32], b: &[u8; 32]) -> __m512i {
    s._mm512_inserti64x4::<1>(s._mm512_castsi256_si512(s.load256(a)), s.load256(b))
}

/// Extracts bits `first .. first + count` of 32 bytes from byte `at` on, of four blocks: of the first 16 bytes, and of
/// the last. `first + count` is at most 8.
#[inline(always)]
fn bits<F: Format>(s: Avx512, blocks: [Block<'_, F>; 4], at: usize, first: usize, count: usize) -> [__m512i; 2] {
    let (shift, mask) = (s._mm_cvtsi64_si128(first as i64), s._mm512_set1_epi8((1 << count) - 1));
    let halves = [part(s, blocks, at), part(s, blocks, at + 16)];
    [
        s._mm512_and_si512(s._mm512_srl_epi16(halves[0], shift), mask),
        s._mm512_and_si512(s._mm512_srl_epi16(halves[1], shift), mask),
    ]
}

/// Combines `low` with the bits of `high`, shifted left by `UP`.
#[inline(always)]
fn with_upper<const UP: u32>(s: Avx512, low: [__m512i; 2], high: [__m512i; 2]) -> [__m512i; 2] {
    [
        s._mm512_or_si512(low[0], s._mm512_slli_epi16::<UP>(high[0])),
        s._mm512_or_si512(low[1], s._mm512_slli_epi16::<UP>(high[1])),
    ]
}

/// Copies 16 bytes to each 128 bits of a vector.
#[inline(always)]
fn broadcast(s: Avx512, bytes: &[u8; 16]) -> __m512i {
    s._mm512_broadcast_i32x4(load128(bytes))
}

/// Combines `low` with the bits under `mask` of `high`, which is rotated left in each of its four pairs of 64-bit
/// lanes.
#[inline(always)]
fn with_bits(s: Avx512, low: __m512i, high: __m512i, rotations: [i64; 4], mask: i8) -> __m512i {
    let rotated = s._mm512_rolv_epi64(high, lanes(s, rotations));
    // (a & b) | c
    s._mm512_ternarylogic_epi64::<0xea>(rotated, s._mm512_set1_epi8(mask), low)
}

#[inline(always)]
fn lanes(s: Avx512, [a, b, c, d]: [i64; 4]) -> __m512i {
    s._mm512_setr_epi64(a, a, b, b, c, c, d, d)
}

/// Returns the rotations that move bits `first .. first + 4` of the four lanes to bit `to`.
#[inline(always)]
fn one_bit_to(to: i64, first: i64) -> [i64; 4] {
    [0, 1, 2, 3].map(|lane| (64 + to - first - lane) % 64)
}

/// Adds a fifth bit to the codes of four blocks, from 32 bits at byte `at` of each.
#[inline(always)]
fn fifths<F: Format>(
    s: Avx512,
    [a, b, c, d]: [Block<'_, F>; 4],
    at: usize,
    [first, last]: [__m512i; 2],
) -> [__m512i; 2] {
    let part = |block: Block<'_, F>| u64::from(u32::from_le_bytes(*block.bytes(at)));
    let (a, b, c, d) = (part(a), part(b), part(c), part(d));
    let low = a & 0xffff | (b & 0xffff) << 16 | (c & 0xffff) << 32 | d << 48;
    let high = a >> 16 | b >> 16 << 16 | c >> 16 << 32 | d >> 16 << 48;
    let fifth = s._mm512_set1_epi8(16);
    [s._mm512_mask_add_epi8(first, low, first, fifth), s._mm512_mask_add_epi8(last, high, last, fifth)]
}

/// Looks all codes up in a table.
#[inline(always)]
fn look_up(s: Avx512, table: &[u8; 16], [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    let table = broadcast(s, table);
    [s._mm512_shuffle_epi8(table, first), s._mm512_shuffle_epi8(table, last)]
}

/// Unpacks bytes whose lower halves are the codes of two blocks and whose upper halves are the codes of the next two
/// blocks: blocks 0 and 1 are in the first 32 bytes, blocks 2 and 3 in the last.
#[inline(always)]
fn paired_nibbles(s: Avx512, bytes: &[u8; 64]) -> [__m512i; 2] {
    let [even, odd] = split(s, s.load512(bytes));
    [
        s._mm512_permutex2var_epi64(even, s._mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), odd),
        s._mm512_permutex2var_epi64(even, s._mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), odd),
    ]
}

/// Extracts two bits of each code, from 32 bytes in which block `i` has bits `2 i .. 2 i + 2`.
#[inline(always)]
fn pairs_of_bits(s: Avx512, [low, high]: [&[u8; 16]; 2]) -> [__m512i; 2] {
    let (shifts, mask) = (lanes(s, [0, 2, 4, 6]), s._mm512_set1_epi8(3));
    let part = [broadcast(s, low), broadcast(s, high)];
    [
        s._mm512_and_si512(s._mm512_srlv_epi64(part[0], shifts), mask),
        s._mm512_and_si512(s._mm512_srlv_epi64(part[1], shifts), mask),
    ]
}

/// Unpacks the nibbles of 16 bytes of sixteen rows from byte `at` on: the lower halves are the first 16 columns of a
/// block, the upper halves the last.
#[inline(always)]
fn nibbles_of_rows<F: Format>(s: Avx512, spans: Spans<'_, F>, at: usize, mut put: impl FnMut(usize, __m512i)) {
    for (i, bytes) in words(s, spans, at).into_iter().enumerate() {
        let [low, high] = split(s, bytes);
        put(i, low);
        put(4 + i, high);
    }
}

/// Combines `low` with the bits under `mask` of `high`, which is shifted left by `up`, or right if `up` is negative.
#[inline(always)]
fn with_shifted(s: Avx512, low: __m512i, high: __m512i, up: i64, mask: i8) -> __m512i {
    with_bits(s, low, high, [up.rem_euclid(64); 4], mask)
}

/// Extracts two bits of each byte, from bit `2 * pair` on.
#[inline(always)]
fn pair_of_bits(s: Avx512, bytes: __m512i, pair: usize) -> __m512i {
    s._mm512_and_si512(s._mm512_srl_epi16(bytes, s._mm_cvtsi64_si128(2 * pair as i64)), s._mm512_set1_epi8(3))
}

impl Unpack for Q8_0 {
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        let [a, b, c, d] = blocks;
        let (low, high) = (load2(s, a.bytes(2), b.bytes(2)), load2(s, c.bytes(2), d.bytes(2)));
        let offset = s._mm512_set1_epi8(-128);
        [
            s._mm512_xor_si512(s._mm512_shuffle_i32x4::<0x88>(low, high), offset),
            s._mm512_xor_si512(s._mm512_shuffle_i32x4::<0xdd>(low, high), offset),
        ]
    }
}

impl Unpack for Q4_0 {
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        nibbles_of_rows(s, spans, set % 8 * Self::BYTES + 2, |quad, codes| put(0, quad, codes));
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        nibbles(s, blocks, 2)
    }
}

impl Unpack for Q4_1 {
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        nibbles_of_rows(s, spans, set % 8 * Self::BYTES + 4, |quad, codes| put(0, quad, codes));
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        nibbles(s, blocks, 4)
    }
}

impl Unpack for Q5_0 {
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        fifths(s, blocks, 2, nibbles(s, blocks, 6))
    }
}

impl Unpack for Q5_1 {
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        fifths(s, blocks, 4, nibbles(s, blocks, 8))
    }
}

impl Unpack for Iq4Nl {
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        let table = broadcast(s, &IQ4_NL_CODES);
        nibbles_of_rows(s, spans, set % 8 * Self::BYTES + 2, |quad, codes| {
            put(0, quad, s._mm512_shuffle_epi8(table, codes))
        });
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        look_up(s, &IQ4_NL_CODES, nibbles(s, blocks, 2))
    }
}

impl Unpack for Iq4Xs {
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        let table = broadcast(s, &IQ4_NL_CODES);
        nibbles_of_rows(s, spans, 8 + set % 8 * 16, |quad, codes| put(0, quad, s._mm512_shuffle_epi8(table, codes)));
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        look_up(s, &IQ4_NL_CODES, nibbles(s, blocks, 8 + 16 * block))
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        look_up(s, &IQ4_NL_CODES, split(s, s.load512(span.bytes::<64>(8 + 64 * group))))
    }
}

impl Unpack for Mxfp4 {
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        let table = broadcast(s, &MXFP4_CODES);
        nibbles_of_rows(s, spans, set % 8 * Self::BYTES + 1, |quad, codes| {
            put(0, quad, s._mm512_shuffle_epi8(table, codes))
        });
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], _: usize) -> [__m512i; 2] {
        look_up(s, &MXFP4_CODES, nibbles(s, blocks, 1))
    }
}

impl Unpack for Q2K {
    const SET: usize = 4;
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        for half in 0..2 {
            for (i, bytes) in words(s, spans, 16 + set % 2 * 32 + 16 * half).into_iter().enumerate() {
                (0..4).for_each(|block| put(block, 4 * half + i, pair_of_bits(s, bytes, block)));
            }
        }
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        bits(s, blocks, 16 + block / 4 * 32, block % 4 * 2, 2)
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        pairs_of_bits(s, [span.bytes(16 + 32 * group), span.bytes(16 + 32 * group + 16)])
    }
}

impl Unpack for Q3K {
    const SET: usize = 8;
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        debug_assert_eq!(set, 0);
        for half in 0..2 {
            let thirds = words(s, spans, 16 * half);
            for group in 0..2 {
                for (i, bytes) in words(s, spans, 32 + 32 * group + 16 * half).into_iter().enumerate() {
                    for pair in 0..4 {
                        let (low, block) = (pair_of_bits(s, bytes, pair), 4 * group + pair);
                        put(block, 4 * half + i, with_shifted(s, low, thirds[i], 2 - block as i64, 4));
                    }
                }
            }
        }
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        let low = bits(s, blocks, 32 + block / 4 * 32, block % 4 * 2, 2);
        with_upper::<2>(s, low, bits(s, blocks, 0, block, 1))
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        let [first, last] = pairs_of_bits(s, [span.bytes(32 + 32 * group), span.bytes(32 + 32 * group + 16)]);
        let rotations = one_bit_to(2, 4 * group as i64);
        [
            with_bits(s, first, broadcast(s, span.bytes(0)), rotations, 4),
            with_bits(s, last, broadcast(s, span.bytes(16)), rotations, 4),
        ]
    }
}

impl Unpack for Q4K {
    const SET: usize = 2;
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        for half in 0..2 {
            for (i, bytes) in words(s, spans, 16 + set % 4 * 32 + 16 * half).into_iter().enumerate() {
                let [low, high] = split(s, bytes);
                put(0, 4 * half + i, low);
                put(1, 4 * half + i, high);
            }
        }
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        bits(s, blocks, 16 + block / 2 * 32, block % 2 * 4, 4)
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        paired_nibbles(s, span.bytes(16 + 64 * group))
    }
}

impl Unpack for Q5K {
    const SET: usize = 8;
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        debug_assert_eq!(set, 0);
        for half in 0..2 {
            let fifths = words(s, spans, 16 + 16 * half);
            for pair in 0..4 {
                for (i, bytes) in words(s, spans, 48 + 32 * pair + 16 * half).into_iter().enumerate() {
                    for (which, low) in split(s, bytes).into_iter().enumerate() {
                        let block = 2 * pair + which;
                        put(block, 4 * half + i, with_shifted(s, low, fifths[i], 4 - block as i64, 16));
                    }
                }
            }
        }
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        let low = bits(s, blocks, 48 + block / 2 * 32, block % 2 * 4, 4);
        with_upper::<4>(s, low, bits(s, blocks, 16, block, 1))
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        let [first, last] = paired_nibbles(s, span.bytes(48 + 64 * group));
        let rotations = one_bit_to(4, 4 * group as i64);
        let high = [broadcast(s, span.bytes(16)), broadcast(s, span.bytes(32))];
        [with_bits(s, first, high[0], rotations, 16), with_bits(s, last, high[1], rotations, 16)]
    }
}

impl Unpack for Q6K {
    const SET: usize = 4;
    #[inline(always)]
    fn unpack_set(s: Avx512, spans: Spans<'_, Self>, set: usize, mut put: impl FnMut(usize, usize, __m512i)) {
        let group = set % 2;
        for half in 0..2 {
            let pairs = words(s, spans, 128 + 32 * group + 16 * half);
            for first in 0..2 {
                let bytes = words(s, spans, 64 * group + 32 * first + 16 * half);
                for i in 0..4 {
                    for (which, low) in split(s, bytes[i]).into_iter().enumerate() {
                        let block = 2 * which + first;
                        put(block, 4 * half + i, with_shifted(s, low, pairs[i], 4 - 2 * block as i64, 0x30));
                    }
                }
            }
        }
    }
    #[inline(always)]
    fn unpack_blocks(s: Avx512, blocks: [Block<'_, Self>; 4], block: usize) -> [__m512i; 2] {
        let low = bits(s, blocks, block / 4 * 64 + block % 2 * 32, block / 2 % 2 * 4, 4);
        with_upper::<4>(s, low, bits(s, blocks, 128 + block / 4 * 32, block % 4 * 2, 2))
    }
    #[inline(always)]
    fn unpack4(s: Avx512, span: Span<'_, Self>, group: usize) -> [__m512i; 2] {
        let group = group % GROUPS;
        let [low, high] = split(s, s.load512(span.bytes::<64>(64 * group)));
        let first = s._mm512_shuffle_i32x4::<0x88>(low, high);
        let last = s._mm512_shuffle_i32x4::<0xdd>(low, high);
        // Rotates bits 0 .. 2, 2 .. 4, 4 .. 6 and 6 .. 8 to bit 4.
        let rotations = [4, 2, 0, 62];
        let pairs = 128 + 32 * group;
        [
            with_bits(s, first, broadcast(s, span.bytes(pairs)), rotations, 0x30),
            with_bits(s, last, broadcast(s, span.bytes(pairs + 16)), rotations, 0x30),
        ]
    }
}
