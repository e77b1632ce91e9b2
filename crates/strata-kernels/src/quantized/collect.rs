//! Small fields of sixteen rows as AVX-512 takes them out: of whole spans, four times four bytes of each row, turned so
//! that each four lie beside their like; or of a group of blocks, with its codes.

use std::arch::x86_64::*;

use super::formats::{ADDED, Format, Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::header::{Fields, GROUP, Header, Lanes, ROWS, SPAN_BLOCKS};
use super::spans::{Spans, load4};

/// Where a block of 32 has its scale, and what is added to each number.
const SCALE_AT: usize = 0;
const ADDED_AT: usize = 2;

/// A type whose small fields vectors can take out.
pub(super) trait Collect: Format {
    /// Whether the fields are half floats in each block of 32: the scale, and with minima what is added to each number.
    /// A kernel that uses codes once takes them out with the codes ([`GroupFields`]); to collect those of a whole span
    /// first would be to wait for all of it.
    const IN_BLOCKS: bool = false;

    /// What [`Format::collect`] does with one span, for sixteen rows.
    ///
    /// # Safety
    /// The spans are whole; AVX-512 F and BW exist.
    #[inline(always)]
    unsafe fn collect_rows(spans: Spans, fields: &mut Fields) {
        for row in 0..ROWS {
            // SAFETY: the caller's promise.
            let span = unsafe { std::slice::from_raw_parts(spans.row(row), Self::SPAN_BYTES) };
            Self::collect(span, row, fields);
        }
    }
}

/// Types with a half float in each block of 32, and perhaps what is added to each number behind it.
macro_rules! with_halves {
    ($($name:ident)*) => {
        $(
            impl Collect for $name {
                const IN_BLOCKS: bool = true;
                #[inline(always)]
                unsafe fn collect_rows(spans: Spans, fields: &mut Fields) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        store_halves(halves::<Self, SCALE_AT>(spans), 0, &mut fields.scales);
                        if Self::MINIMA {
                            store_halves(halves::<Self, ADDED_AT>(spans), ADDED, &mut fields.minima);
                        }
                    }
                }
            }
        )*
    };
}
with_halves!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl);

// Blocks of an odd number of bytes.
impl Collect for Mxfp4 {}

// Rare, and so left to the plain way.
impl Collect for Q2K {}
impl Collect for Q3K {}

impl Collect for Q4K {
    #[inline(always)]
    unsafe fn collect_rows(spans: Spans, fields: &mut Fields) {
        // SAFETY: the caller's promise.
        unsafe {
            let [both, scales, minima, low] = words(spans, 0);
            let (scale, minimum) = low_and_high(both);
            _mm256_storeu_si256(fields.scales[0].as_mut_ptr().cast(), scale);
            _mm256_storeu_si256(fields.minima[0].as_mut_ptr().cast(), minimum);
            // As `fields::scales_and_minima` has it.
            let (six, four, two) = (_mm512_set1_epi8(0x3f), _mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x30));
            let (low, next) = (_mm512_and_si512(low, four), _mm512_and_si512(_mm512_srli_epi32::<4>(low), four));
            let last_scales = _mm512_and_si512(_mm512_srli_epi32::<2>(scales), two);
            let last_minima = _mm512_and_si512(_mm512_srli_epi32::<2>(minima), two);
            let packed = [
                _mm512_and_si512(scales, six),
                _mm512_or_si512(low, last_scales),
                _mm512_and_si512(minima, six),
                _mm512_or_si512(next, last_minima),
            ];
            store_words(packed, fields);
        }
    }
}

impl Collect for Q5K {
    #[inline(always)]
    unsafe fn collect_rows(spans: Spans, fields: &mut Fields) {
        // SAFETY: the fields are those of Q4_K, which begins alike and is shorter.
        unsafe { Q4K::collect_rows(spans, fields) };
    }
}

impl Collect for Q6K {
    #[inline(always)]
    unsafe fn collect_rows(spans: Spans, fields: &mut Fields) {
        // SAFETY: the caller's promise; the scale is the last two of the block's 210 bytes.
        unsafe {
            store_words(words(spans, 192), fields);
            let [_, _, _, last] = words(spans, 194);
            let (_, scale) = low_and_high(last);
            _mm256_storeu_si256(fields.scales[0].as_mut_ptr().cast(), scale);
        }
    }
}

/// The half floats at byte `AT` of the eight blocks of sixteen rows: those of two blocks, the first one's below, in
/// each.
///
/// # Safety
/// The spans are whole, of a type with an even number of bytes, 18 to 34, for 32 columns; AVX-512 BW exists.
#[inline(always)]
unsafe fn halves<F: Format, const AT: usize>(spans: Spans) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let four = spans.fourth(i);
            let all = _mm512_castsi128_si512(halves_of_row::<F, AT>(four[0]));
            let all = _mm512_inserti32x4::<1>(all, halves_of_row::<F, AT>(four[1]));
            let all = _mm512_inserti32x4::<2>(all, halves_of_row::<F, AT>(four[2]));
            rows[i] = _mm512_inserti32x4::<3>(all, halves_of_row::<F, AT>(four[3]));
        }
        turned(rows)
    }
}

/// The half floats at byte `AT` of eight blocks.
///
/// # Safety
/// As for [`halves`].
#[inline(always)]
unsafe fn halves_of_row<F: Format, const AT: usize>(span: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_unpacklo_epi64(four_halves::<F, AT, 0>(span), four_halves::<F, AT, 4>(span)) }
}

/// The half floats at byte `AT` of four blocks from `FIRST` on, in the lower half.
///
/// # Safety
/// As for [`halves`].
#[inline(always)]
unsafe fn four_halves<F: Format, const AT: usize, const FIRST: usize>(span: *const u8) -> __m128i {
    const LINE: usize = 64;
    // Of two vectors: one that begins with the four blocks, and one behind it, or as far behind as the span allows.
    let from = FIRST * F::BYTES;
    let next = (from + LINE).min(F::SPAN_BYTES - LINE);
    let word = |i: usize| {
        let at = (FIRST + i) * F::BYTES + AT;
        (if at < from + LINE { (at - from) / 2 } else { (LINE + at - next) / 2 }) as i64
    };
    // SAFETY: both vectors are within the span.
    unsafe {
        let index = _mm_cvtsi64_si128(word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48);
        let (low, high) = (_mm512_loadu_si512(span.add(from).cast()), _mm512_loadu_si512(span.add(next).cast()));
        _mm512_castsi512_si128(_mm512_permutex2var_epi16(low, _mm512_zextsi128_si512(index), high))
    }
}

/// The half floats of a group of four blocks of sixteen rows, as they are taken out with the codes of four rows at a
/// time: `[four rows][row][block]`. For other types, nothing.
pub(super) struct GroupFields {
    scales: [__m256i; 4],
    minima: [__m256i; 4],
}

impl GroupFields {
    /// # Safety
    /// AVX exists.
    #[inline(always)]
    pub unsafe fn none() -> Self {
        // SAFETY: no memory is touched.
        let zero = unsafe { _mm256_setzero_si256() };
        Self { scales: [zero; 4], minima: [zero; 4] }
    }

    /// Takes those of group `group` of the first four rows of `spans`, which are rows `4 quad .. 4 quad + 4` of
    /// sixteen.
    ///
    /// # Safety
    /// The spans are whole; AVX-512 BW exists.
    #[inline(always)]
    pub unsafe fn take<F: Collect>(&mut self, spans: Spans, group: usize, quad: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if F::IN_BLOCKS {
                self.scales[quad] = halves_of_group::<F, SCALE_AT>(spans, group);
                if F::MINIMA {
                    self.minima[quad] = halves_of_group::<F, ADDED_AT>(spans, group);
                }
            }
        }
    }

    /// Puts what they mean into the header, once all are taken.
    ///
    /// # Safety
    /// AVX-512 BW exists.
    #[inline(always)]
    pub unsafe fn put<F: Collect>(&self, group: usize, header: &mut Header) {
        // SAFETY: the caller's promise.
        unsafe {
            if F::IN_BLOCKS {
                put_halves(self.scales, 0, group, &mut header.scales);
                if F::MINIMA {
                    put_halves(self.minima, ADDED, group, &mut header.minima);
                }
            }
        }
    }
}

/// The half floats at byte `AT` of group `group` of four blocks, of the first four rows: `[row][block]`.
///
/// # Safety
/// As for [`halves`].
#[inline(always)]
unsafe fn halves_of_group<F: Format, const AT: usize>(spans: Spans, group: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [_mm_setzero_si128(); 4];
        for row in 0..4 {
            rows[row] = match group {
                0 => four_halves::<F, AT, 0>(spans.row(row)),
                _ => four_halves::<F, AT, 4>(spans.row(row)),
            };
        }
        _mm256_set_m128i(_mm_unpacklo_epi64(rows[2], rows[3]), _mm_unpacklo_epi64(rows[0], rows[1]))
    }
}

/// What [`halves_of_group`] returned for four times four rows, with some bits changed, as the fields of these blocks.
///
/// # Safety
/// AVX-512 BW exists.
#[inline(always)]
unsafe fn put_halves(rows: [__m256i; 4], change: u16, group: usize, to: &mut [Lanes; SPAN_BLOCKS]) {
    // SAFETY: `Lanes` are one vector.
    unsafe {
        let first = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(rows[0]), rows[1]);
        let last = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(rows[2]), rows[3]);
        // Word 0 of each row of either vector, in the lower half.
        let word = _mm512_setr_epi64(
            0x000c_0008_0004_0000,
            0x001c_0018_0014_0010,
            0x002c_0028_0024_0020,
            0x003c_0038_0034_0030,
            0,
            0,
            0,
            0,
        );
        for block in 0..GROUP {
            let word = _mm512_or_si512(word, _mm512_set1_epi16(block as i16));
            let halves = _mm512_castsi512_si256(_mm512_permutex2var_epi16(first, word, last));
            let halves = _mm256_xor_si256(halves, _mm256_set1_epi16(change as i16));
            _mm512_storeu_ps(to[group * GROUP + block].as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
    }
}

/// 16 bytes at `at` of sixteen rows, as four words.
///
/// # Safety
/// They are readable; AVX-512 F exists.
#[inline(always)]
unsafe fn words(spans: Spans, at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        turned([
            load4(spans.fourth(0), at),
            load4(spans.fourth(1), at),
            load4(spans.fourth(2), at),
            load4(spans.fourth(3), at),
        ])
    }
}

/// The first of four vectors has four words of row 0, then of rows 4, 8 and 12; the next ones those of the rows behind
/// them. Returns each word of all sixteen, in their order.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
pub(super) unsafe fn turned([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: arithmetic on registers.
    unsafe {
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// The lower and the upper halves of sixteen words.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn low_and_high(words: __m512i) -> (__m256i, __m256i) {
    // SAFETY: arithmetic on registers.
    unsafe { (_mm512_cvtepi32_epi16(words), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words))) }
}

/// Stores what [`halves`] returns, with some bits changed.
///
/// # Safety
/// AVX-512 BW exists.
#[inline(always)]
unsafe fn store_halves(pairs: [__m512i; 4], change: u16, to: &mut [[u16; ROWS]; SPAN_BLOCKS]) {
    // SAFETY: sixteen halves are a whole array.
    unsafe {
        for i in 0..4 {
            let (even, odd) = low_and_high(_mm512_xor_si512(pairs[i], _mm512_set1_epi16(change as i16)));
            _mm256_storeu_si256(to[2 * i].as_mut_ptr().cast(), even);
            _mm256_storeu_si256(to[2 * i + 1].as_mut_ptr().cast(), odd);
        }
    }
}

/// Stores sixteen packed bytes of each row.
///
/// # Safety
/// AVX-512 F exists.
#[inline(always)]
unsafe fn store_words(words: [__m512i; 4], fields: &mut Fields) {
    // SAFETY: sixteen words are a whole array.
    unsafe {
        for i in 0..4 {
            _mm512_storeu_si512(fields.words[i].as_mut_ptr().cast(), words[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Instructions;
    use crate::quantized::formats::with_format;
    use crate::quantized::header::GROUPS;
    use crate::quantized::unpack::Unpack;
    use crate::simd::Avx512;
    use crate::{DType, Level};

    /// Sixteen spans of random bytes.
    fn check<F: Unpack>(bytes: &[u8]) {
        let spans: Vec<&[u8]> = bytes.chunks_exact(F::SPAN_BYTES).collect();
        let (mut want, mut got) = (Fields::ZERO, Fields::ZERO);
        spans.iter().enumerate().for_each(|(row, span)| F::collect(span, row, &mut want));
        // SAFETY: the spans are whole, AVX-512 exists.
        unsafe { F::collect_rows(Spans::every(F::SPAN_BYTES, bytes), &mut got) };
        assert_eq!((got.scales, got.minima, got.words), (want.scales, want.minima, want.words), "{}", F::DTYPE);
        if F::IN_BLOCKS {
            check_groups::<F>(Spans::every(F::SPAN_BYTES, bytes), &want);
        }
        for four in 0..4 {
            for block in 0..SPAN_BLOCKS {
                let spans_of_four = std::array::from_fn(|i| spans[4 * four + i].as_ptr());
                // SAFETY: as above; two vectors are eight times sixteen bytes.
                let halves: [[[u8; 16]; 4]; 2] = unsafe { std::mem::transmute(F::unpack_rows(spans_of_four, block)) };
                for i in 0..4 {
                    let mut want = [0; 32];
                    F::unpack(spans[4 * four + i], block, &mut want);
                    assert_eq!([halves[0][i], halves[1][i]].concat(), want, "{} block {block}", F::DTYPE);
                }
            }
        }
    }

    /// Fields that are taken out group by group mean the same.
    fn check_groups<F: Unpack>(spans: Spans, fields: &Fields) {
        let (mut want, mut got) = (Header::ZERO, Header::ZERO);
        // SAFETY: the spans are whole, AVX-512 exists.
        unsafe {
            F::finish::<Avx512>(fields, &mut want);
            for group in 0..GROUPS {
                let mut taken = GroupFields::none();
                (0..4).for_each(|quad| taken.take::<F>(spans.from(4 * quad), group, quad));
                taken.put::<F>(group, &mut got);
            }
        }
        let bits = |header: &Header| {
            [header.scales, header.minima].as_flattened().as_flattened().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&got), bits(&want), "{}", F::DTYPE);
    }

    #[test]
    fn vectors_take_out_what_the_plain_way_does() {
        if Level::detect().0 < Instructions::Avx512 {
            return;
        }
        let mut state = 1u64;
        for dtype in
            DType::ALL.into_iter().filter(|dtype| dtype.block_len() > 1 && !matches!(dtype, DType::CodedBf16 { .. }))
        {
            let len = ROWS * dtype.row_bytes(SPAN_BLOCKS * 32).unwrap();
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .take(len)
            .collect();
            with_format!(dtype, F => check::<F>(&bytes));
        }
    }
}
