//! Codes as AVX-512 and AVX2 take them out of a row.

use std::arch::x86_64::*;

use super::collect::Collect;
use super::formats::{
    Format, IQ4_NL_CODES, Iq4Nl, MXFP4_CODES, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use super::header::GROUP;
use super::spans::load4;

/// A type whose codes vectors can take out.
pub(super) trait Unpack: Collect {
    /// The codes of block `block` of four spans: the first halves, 16 bytes each in the order of the spans, and the
    /// last halves.
    ///
    /// # Safety
    /// The block is readable in each span; for types with blocks of 256, the whole span. AVX-512 F and BW exist.
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2];

    /// The codes of group `group` of the span at `span`: the first halves of its four blocks, 16 bytes each in the
    /// order of the blocks, and the last halves.
    ///
    /// # Safety
    /// The group's blocks are readable; for types with blocks of 256, the whole block. AVX-512 F and BW exist.
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: four blocks of a row are as good as those of four rows; types with blocks of 256 have their own way.
        unsafe { Self::unpack_rows([0, 1, 2, 3].map(|i| span.add((group * GROUP + i) * Self::BYTES)), 0) }
    }

    /// The codes of block `block` of the span. Written out only where a compiler makes nothing good of the plain way.
    ///
    /// # Safety
    /// AVX2 exists.
    #[inline(always)]
    unsafe fn unpack1(span: &[u8], block: usize) -> __m256i {
        let mut codes = [0; 32];
        Self::unpack(span, block, &mut codes);
        // SAFETY: the array has 32 bytes.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    }
}

/// Four blocks with all their nibbles in 16 bytes, from `at` on.
///
/// # Safety
/// As for [`Unpack::unpack_rows`].
#[inline(always)]
unsafe fn nibbles(spans: [*const u8; 4], at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe { split(load4(spans, at)) }
}

/// Lower and upper halves of all bytes.
///
/// # Safety
/// AVX-512 BW exists.
#[inline(always)]
unsafe fn split(bytes: __m512i) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        [_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask)]
    }
}

/// The 32 bytes at `a`, and those at `b` behind them.
///
/// # Safety
/// They are readable; AVX-512 F exists.
#[inline(always)]
unsafe fn load2(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
        _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(b.cast()))
    }
}

/// Bits `first .. first + count` of 32 bytes from `at` on, of four spans: those of the first 16 bytes, and of the last.
///
/// # Safety
/// They are readable, `first + count` is 8 at most; AVX-512 BW exists.
#[inline(always)]
unsafe fn bits(spans: [*const u8; 4], at: usize, first: usize, count: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let (shift, mask) = (_mm_cvtsi64_si128(first as i64), _mm512_set1_epi8((1 << count) - 1));
        let part = [load4(spans, at), load4(spans, at + 16)];
        [
            _mm512_and_si512(_mm512_srl_epi16(part[0], shift), mask),
            _mm512_and_si512(_mm512_srl_epi16(part[1], shift), mask),
        ]
    }
}

/// `low`, with the bits of `high` moved up by so many.
///
/// # Safety
/// AVX-512 BW exists.
#[inline(always)]
unsafe fn with_upper<const UP: u32>(low: [__m512i; 2], high: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: arithmetic on registers.
    unsafe {
        [
            _mm512_or_si512(low[0], _mm512_slli_epi16::<UP>(high[0])),
            _mm512_or_si512(low[1], _mm512_slli_epi16::<UP>(high[1])),
        ]
    }
}

/// The same 16 bytes four times.
///
/// # Safety
/// 16 bytes are readable; AVX-512 F exists.
#[inline(always)]
unsafe fn broadcast(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast())) }
}

/// `low` with the bits under `mask` of `high`, rotated left by so many bits in each of four lanes of 128.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn with_bits(low: __m512i, high: __m512i, rotations: [i64; 4], mask: i8) -> __m512i {
    // SAFETY: arithmetic on registers.
    unsafe {
        let rotated = _mm512_rolv_epi64(high, lanes(rotations));
        // (a & b) | c
        _mm512_ternarylogic_epi64::<0xea>(rotated, _mm512_set1_epi8(mask), low)
    }
}

/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn lanes([a, b, c, d]: [i64; 4]) -> __m512i {
    // SAFETY: no memory is touched.
    unsafe { _mm512_setr_epi64(a, a, b, b, c, c, d, d) }
}

/// Rotations that bring bits `first .. first + 4` of the four lanes to bit `to`.
#[inline(always)]
fn one_bit_to(to: i64, first: i64) -> [i64; 4] {
    [0, 1, 2, 3].map(|lane| (64 + to - first - lane) % 64)
}

/// Puts a fifth bit to the codes of four spans, from 32 bits at `at` of each.
///
/// # Safety
/// As for [`Unpack::unpack_rows`].
#[inline(always)]
unsafe fn fifths(spans: [*const u8; 4], at: usize, [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: the bytes are within the four blocks.
    unsafe {
        let part = |span: usize| u64::from(spans[span].add(at).cast::<u32>().read_unaligned());
        let (a, b, c, d) = (part(0), part(1), part(2), part(3));
        let low = a & 0xffff | (b & 0xffff) << 16 | (c & 0xffff) << 32 | d << 48;
        let high = a >> 16 | b >> 16 << 16 | c >> 16 << 32 | d >> 16 << 48;
        let fifth = _mm512_set1_epi8(16);
        [_mm512_mask_add_epi8(first, low, first, fifth), _mm512_mask_add_epi8(last, high, last, fifth)]
    }
}

/// Looks all codes up in a table.
///
/// # Safety
/// AVX-512 BW exists.
#[inline(always)]
unsafe fn look_up(table: &[u8; 16], [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: the table has 16 bytes.
    unsafe {
        let table = broadcast(table.as_ptr());
        [_mm512_shuffle_epi8(table, first), _mm512_shuffle_epi8(table, last)]
    }
}

/// Numbers `i` and `16 + i` from the halves of byte `i` of 16.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn nibbles1(bytes: &[u8]) -> __m256i {
    let bytes = &bytes[..16];
    // SAFETY: 16 bytes are there.
    unsafe {
        let low = _mm_loadu_si128(bytes.as_ptr().cast());
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(low), low), _mm256_set1_epi8(15))
    }
}

/// 16 where one of 32 bits is set, each for one byte.
///
/// # Safety
/// AVX2 exists.
#[inline(always)]
unsafe fn fifths1(bytes: &[u8]) -> __m256i {
    let bits = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    // SAFETY: arithmetic on registers.
    unsafe {
        // Byte `i / 8` of the bits to byte `i`, and bit `i % 8` of that.
        let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), bytes);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        _mm256_and_si256(is_set, _mm256_set1_epi8(16))
    }
}

/// From bytes whose lower halves are the codes of two blocks and whose upper halves are those of the two next ones:
/// blocks 0 and 1 in the first 32 bytes, 2 and 3 in the last.
///
/// # Safety
/// 64 bytes are readable; AVX-512 BW exists.
#[inline(always)]
unsafe fn paired_nibbles(at: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [even, odd] = split(_mm512_loadu_si512(at.cast()));
        [
            _mm512_permutex2var_epi64(even, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), odd),
            _mm512_permutex2var_epi64(even, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), odd),
        ]
    }
}

/// Two bits of each code, from 32 bytes of which block `i` has bits `2 i .. 2 i + 2`.
///
/// # Safety
/// 32 bytes are readable; AVX-512 F exists.
#[inline(always)]
unsafe fn pairs_of_bits(at: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let (shifts, mask) = (lanes([0, 2, 4, 6]), _mm512_set1_epi8(3));
        let part = [broadcast(at), broadcast(at.add(16))];
        [
            _mm512_and_si512(_mm512_srlv_epi64(part[0], shifts), mask),
            _mm512_and_si512(_mm512_srlv_epi64(part[1], shifts), mask),
        ]
    }
}

impl Unpack for Q8_0 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        let [a, b, c, d] = spans;
        let at = block * Self::BYTES + 2;
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = (load2(a.add(at), b.add(at)), load2(c.add(at), d.add(at)));
            let offset = _mm512_set1_epi8(-128);
            [
                _mm512_xor_si512(_mm512_shuffle_i32x4::<0x88>(low, high), offset),
                _mm512_xor_si512(_mm512_shuffle_i32x4::<0xdd>(low, high), offset),
            ]
        }
    }
}

impl Unpack for Q4_0 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { nibbles(spans, block * Self::BYTES + 2) }
    }
}

impl Unpack for Q4_1 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { nibbles(spans, block * Self::BYTES + 4) }
    }
}

impl Unpack for Q5_0 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { fifths(spans, block * Self::BYTES + 2, nibbles(spans, block * Self::BYTES + 6)) }
    }
    #[inline(always)]
    unsafe fn unpack1(span: &[u8], block: usize) -> __m256i {
        let block = &span[block * Self::BYTES..][..Self::BYTES];
        // SAFETY: the caller's promise.
        unsafe { _mm256_or_si256(nibbles1(&block[6..]), fifths1(&block[2..])) }
    }
}

impl Unpack for Q5_1 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { fifths(spans, block * Self::BYTES + 4, nibbles(spans, block * Self::BYTES + 8)) }
    }
    #[inline(always)]
    unsafe fn unpack1(span: &[u8], block: usize) -> __m256i {
        let block = &span[block * Self::BYTES..][..Self::BYTES];
        // SAFETY: the caller's promise.
        unsafe { _mm256_or_si256(nibbles1(&block[8..]), fifths1(&block[4..])) }
    }
}

impl Unpack for Iq4Nl {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { look_up(&IQ4_NL_CODES, nibbles(spans, block * Self::BYTES + 2)) }
    }
    #[inline(always)]
    unsafe fn unpack1(span: &[u8], block: usize) -> __m256i {
        // SAFETY: the caller's promise; the table has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_NL_CODES.as_ptr().cast()));
            _mm256_shuffle_epi8(table, nibbles1(&span[block * Self::BYTES + 2..]))
        }
    }
}

impl Unpack for Mxfp4 {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { look_up(&MXFP4_CODES, nibbles(spans, block * Self::BYTES + 1)) }
    }
    #[inline(always)]
    unsafe fn unpack1(span: &[u8], block: usize) -> __m256i {
        // SAFETY: the caller's promise; the table has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(MXFP4_CODES.as_ptr().cast()));
            _mm256_shuffle_epi8(table, nibbles1(&span[block * Self::BYTES + 1..]))
        }
    }
}

impl Unpack for Q2K {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { bits(spans, 16 + block / 4 * 32, block % 4 * 2, 2) }
    }
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { pairs_of_bits(span.add(16 + 32 * group)) }
    }
}

impl Unpack for Q3K {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = bits(spans, 32 + block / 4 * 32, block % 4 * 2, 2);
            with_upper::<2>(low, bits(spans, 0, block, 1))
        }
    }
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let [first, last] = pairs_of_bits(span.add(32 + 32 * group));
            let rotations = one_bit_to(2, 4 * group as i64);
            [with_bits(first, broadcast(span), rotations, 4), with_bits(last, broadcast(span.add(16)), rotations, 4)]
        }
    }
}

impl Unpack for Q4K {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { bits(spans, 16 + block / 2 * 32, block % 2 * 4, 4) }
    }
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { paired_nibbles(span.add(16 + 64 * group)) }
    }
}

impl Unpack for Q5K {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = bits(spans, 48 + block / 2 * 32, block % 2 * 4, 4);
            with_upper::<4>(low, bits(spans, 16, block, 1))
        }
    }
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let [first, last] = paired_nibbles(span.add(48 + 64 * group));
            let rotations = one_bit_to(4, 4 * group as i64);
            let high = [broadcast(span.add(16)), broadcast(span.add(32))];
            [with_bits(first, high[0], rotations, 16), with_bits(last, high[1], rotations, 16)]
        }
    }
}

impl Unpack for Q6K {
    #[inline(always)]
    unsafe fn unpack_rows(spans: [*const u8; 4], block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = bits(spans, block / 4 * 64 + block % 2 * 32, block / 2 % 2 * 4, 4);
            with_upper::<4>(low, bits(spans, 128 + block / 4 * 32, block % 4 * 2, 2))
        }
    }
    #[inline(always)]
    unsafe fn unpack4(span: *const u8, group: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = split(_mm512_loadu_si512(span.add(64 * group).cast()));
            let first = _mm512_shuffle_i32x4::<0x88>(low, high);
            let last = _mm512_shuffle_i32x4::<0xdd>(low, high);
            // Bits 0 .. 2, 2 .. 4, 4 .. 6, 6 .. 8 to bit 4.
            let rotations = [4, 2, 0, 62];
            let pairs = span.add(128 + 32 * group);
            [
                with_bits(first, broadcast(pairs), rotations, 0x30),
                with_bits(last, broadcast(pairs.add(16)), rotations, 0x30),
            ]
        }
    }
}
