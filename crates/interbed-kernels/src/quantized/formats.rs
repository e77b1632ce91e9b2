//! Formats of the quantized types in the form in which kernels read them: codes of 32 numbers as bytes, and the small
//! fields of sixteen rows.
//!
//! A code is an unsigned byte, which is the code's integer plus `OFFSET`. For a block of 32 columns,
//! `c` are the activations' codes, and the two sums below are integers. The order of the other sums is defined in
//! `product.rs`:
//!
//! ```text
//! dot     = sum of (code - OFFSET) * c
//! minimum = sum of c                                      with MINIMA
//! ```
//!
//! Types with blocks of 256 columns have integer factors for each block of 32, or for each half of it with HALVES, and
//! the activations have shifts for each block. The two sums then are over 256 columns:
//!
//! ```text
//! dot     = sum of factor * (code - OFFSET) * c * 2^shift
//! minimum = sum of minimum factor * c * 2^shift           with MINIMA
//! ```

mod iq;

pub(super) use iq::{Grid, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, Scaled};

use super::fields::{IQ4_NL_VALUES, MXFP4_VALUES, q3_scales, scales_and_minima};
use super::header::{Fields, Header, Lanes, ROWS, SPAN, SPAN_BLOCKS};
use super::small::Small;
use crate::DType;

/// A quantized type. A `span` is the bytes of up to 256 columns of one row, in whole blocks of the type.
pub(super) trait Format: Copy {
    const DTYPE: DType;
    /// The number that is subtracted from a code to get its integer.
    const OFFSET: u8;
    /// Whether a block of the type is a whole span, with integer factors for its parts.
    const WHOLE: bool = Self::DTYPE.block_len() == SPAN;
    /// Whether each 16 numbers have their own integer factor. Otherwise, each 32 share one if the type is
    /// [`WHOLE`](Self::WHOLE).
    const HALVES: bool = false;
    /// Whether a minimum is subtracted from each number.
    const MINIMA: bool = false;
    /// A bound of the magnitudes of codes' integers times their factors, if the type is [`WHOLE`](Self::WHOLE).
    const WEIGHT_MAX: i32 = 0;
    /// The number of bytes of a block of the type.
    const BYTES: usize = Self::DTYPE.block_bytes();
    /// The number of bytes of a span of a row.
    const SPAN_BYTES: usize = Self::BYTES * (SPAN / Self::DTYPE.block_len());

    /// Unpacks the codes of 32-column block `block` (below 8) of the span.
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]);

    /// Extracts the small fields of the span into row `row` of `fields`.
    fn collect(span: &[u8], row: usize, fields: &mut Fields);

    /// Decodes the extracted fields.
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header);
}

/// Evaluates `$call` with `$format` set to the format of `$dtype`.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $call:expr) => {{
        use $crate::quantized::formats as f;
        macro_rules! call {
            ($name:ident) => {{
                type $format = f::$name;
                $call
            }};
        }
        match $dtype {
            $crate::DType::Q8_0 => call!(Q8_0),
            $crate::DType::Q4_0 => call!(Q4_0),
            $crate::DType::Q4_1 => call!(Q4_1),
            $crate::DType::Q5_0 => call!(Q5_0),
            $crate::DType::Q5_1 => call!(Q5_1),
            $crate::DType::Q2K => call!(Q2K),
            $crate::DType::Q3K => call!(Q3K),
            $crate::DType::Q4K => call!(Q4K),
            $crate::DType::Q5K => call!(Q5K),
            $crate::DType::Q6K => call!(Q6K),
            $crate::DType::Iq4Nl => call!(Iq4Nl),
            $crate::DType::Iq4Xs => call!(Iq4Xs),
            $crate::DType::Iq3S => call!(Iq3S),
            $crate::DType::Iq3Xxs => call!(Iq3Xxs),
            $crate::DType::Iq2S => call!(Iq2S),
            $crate::DType::Iq2Xs => call!(Iq2Xs),
            $crate::DType::Iq2Xxs => call!(Iq2Xxs),
            $crate::DType::Iq1M => call!(Iq1M),
            $crate::DType::Iq1S => call!(Iq1S),
            $crate::DType::Mxfp4 => call!(Mxfp4),
            plain => panic!("{plain} is not quantised"),
        }
    }};
}
pub(super) use with_format;

macro_rules! formats {
    ($($name:ident)*) => {
        $(
            #[derive(Clone, Copy)]
            pub(super) struct $name;
        )*
    };
}
formats!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2K Q3K Q4K Q5K Q6K Iq4Nl Mxfp4);

impl Format for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const OFFSET: u8 = 128;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        for (out, code) in out.iter_mut().zip(&span[block * Self::BYTES + 2..][..32]) {
            *out = code ^ 0x80;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        widen_all(s, &fields.scales, &mut header.scales);
    }
}

impl Format for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const OFFSET: u8 = 8;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        nibbles(&span[block * Self::BYTES + 2..], out);
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        Q8_0::finish(s, fields, header);
    }
}

impl Format for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        nibbles(&span[block * Self::BYTES + 4..], out);
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
        halves::<Self, 2>(span, row, &mut fields.minima, ADDED);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        widen_all(s, &fields.scales, &mut header.scales);
        widen_all(s, &fields.minima, &mut header.minima);
    }
}

impl Format for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const OFFSET: u8 = 16;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let block = &span[block * Self::BYTES..][..Self::BYTES];
        nibbles(&block[6..], out);
        fifths(&block[2..], out);
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        Q8_0::finish(s, fields, header);
    }
}

impl Format for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let block = &span[block * Self::BYTES..][..Self::BYTES];
        nibbles(&block[8..], out);
        fifths(&block[4..], out);
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
        halves::<Self, 2>(span, row, &mut fields.minima, ADDED);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        Q4_1::finish(s, fields, header);
    }
}

impl Format for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const OFFSET: u8 = 128;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        nibbles(&span[block * Self::BYTES + 2..], out);
        for code in out {
            *code = IQ4_NL_CODES[usize::from(*code & 15)];
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        Q8_0::finish(s, fields, header);
    }
}

impl Format for Mxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    const OFFSET: u8 = 12;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        nibbles(&span[block * Self::BYTES + 1..], out);
        for code in out {
            *code = MXFP4_CODES[usize::from(*code & 15)];
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        // The exponent is the lower byte.
        halves::<Self, 0>(span, row, &mut fields.scales, 0);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        for (scales, exponents) in header.scales.iter_mut().zip(&fields.scales) {
            s.store(s.half_powers(exponents), scales);
        }
    }
}

impl Format for Q2K {
    const DTYPE: DType = DType::Q2K;
    const WEIGHT_MAX: i32 = 3 * 15;
    const OFFSET: u8 = 0;
    const HALVES: bool = true;
    const MINIMA: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let pairs = &span[16 + block / 4 * 32..][..32];
        for (out, pairs) in out.iter_mut().zip(pairs) {
            *out = pairs >> (block % 4 * 2) & 3;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        words(span, row, fields);
        fields.scales[0][row] = u16::from_le_bytes([span[80], span[81]]);
        fields.minima[0][row] = u16::from_le_bytes([span[82], span[83]]);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        s.store(s.widen(&fields.scales[0]), &mut header.scales[0]);
        s.store(s.widen(&fields.minima[0]), &mut header.minima[0]);
        for block in 0..SPAN_BLOCKS {
            let (words, first) = (&fields.words[block / 2], block as u32 % 2 * 16);
            s.bits(words, first, 4, 0, &mut header.factors[block][0]);
            s.bits(words, first + 8, 4, 0, &mut header.factors[block][1]);
            s.pairs(words, first + 4, 4, &mut header.minimum_factors[block]);
        }
    }
}

impl Format for Q3K {
    const DTYPE: DType = DType::Q3K;
    const WEIGHT_MAX: i32 = 4 * 32;
    const OFFSET: u8 = 4;
    const HALVES: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let pairs = &span[32 + block / 4 * 32..][..32];
        let thirds = &span[..32];
        for i in 0..32 {
            out[i] = pairs[i] >> (block % 4 * 2) & 3 | (thirds[i] >> block & 1) << 2;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        let scales = q3_scales(array(&span[96..108]));
        for (i, word) in scales.into_iter().enumerate() {
            fields.words[i][row] = word;
        }
        fields.scales[0][row] = u16::from_le_bytes([span[108], span[109]]);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        s.store(s.widen(&fields.scales[0]), &mut header.scales[0]);
        for i in 0..SPAN_BLOCKS * 2 {
            s.bits(&fields.words[i / 4], i as u32 % 4 * 8, 8, 32, &mut header.factors[i / 2][i % 2]);
        }
    }
}

impl Format for Q4K {
    const DTYPE: DType = DType::Q4K;
    const WEIGHT_MAX: i32 = 15 * 63;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let nibbles = &span[16 + block / 2 * 32..][..32];
        for (out, nibbles) in out.iter_mut().zip(nibbles) {
            *out = nibbles >> (block % 2 * 4) & 15;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        for (i, word) in scales_and_minima(array(&span[4..16])).into_iter().enumerate() {
            fields.words[i][row] = word;
        }
        fields.scales[0][row] = u16::from_le_bytes([span[0], span[1]]);
        fields.minima[0][row] = u16::from_le_bytes([span[2], span[3]]);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        s.store(s.widen(&fields.scales[0]), &mut header.scales[0]);
        s.store(s.widen(&fields.minima[0]), &mut header.minima[0]);
        for block in 0..SPAN_BLOCKS {
            s.bits(&fields.words[block / 4], block as u32 % 4 * 8, 8, 0, &mut header.factors[block][0]);
        }
        for pair in 0..SPAN_BLOCKS / 2 {
            s.pairs(&fields.words[2 + pair / 2], pair as u32 % 2 * 16, 8, &mut header.minimum_factors[pair]);
        }
    }
}

impl Format for Q5K {
    const DTYPE: DType = DType::Q5K;
    const WEIGHT_MAX: i32 = 31 * 63;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let nibbles = &span[48 + block / 2 * 32..][..32];
        let fifths = &span[16..48];
        for i in 0..32 {
            out[i] = nibbles[i] >> (block % 2 * 4) & 15 | (fifths[i] >> block & 1) << 4;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        Q4K::collect(span, row, fields);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        Q4K::finish(s, fields, header);
    }
}

impl Format for Q6K {
    const DTYPE: DType = DType::Q6K;
    const WEIGHT_MAX: i32 = 32 * 128;
    const OFFSET: u8 = 32;
    const HALVES: bool = true;
    #[inline(always)]
    fn unpack(span: &[u8], block: usize, out: &mut [u8; 32]) {
        let nibbles = &span[block / 4 * 64 + block % 2 * 32..][..32];
        let pairs = &span[128 + block / 4 * 32..][..32];
        for i in 0..32 {
            out[i] = nibbles[i] >> (block % 4 / 2 * 4) & 15 | (pairs[i] >> (block % 4 * 2) & 3) << 4;
        }
    }
    #[inline(always)]
    fn collect(span: &[u8], row: usize, fields: &mut Fields) {
        words(&span[192..], row, fields);
        fields.scales[0][row] = u16::from_le_bytes([span[208], span[209]]);
    }
    #[inline(always)]
    fn finish<S: Small>(s: S, fields: &Fields, header: &mut Header) {
        s.store(s.widen(&fields.scales[0]), &mut header.scales[0]);
        for i in 0..SPAN_BLOCKS * 2 {
            s.signed_bytes(&fields.words[i / 4], i as u32 % 4, &mut header.factors[i / 2][i % 2]);
        }
    }
}

/// Returns the number of pairs of minima's factors of a span, for a type whose blocks are whole spans.
pub(super) const fn pairs<F: Format>() -> usize {
    if F::HALVES { SPAN_BLOCKS } else { SPAN_BLOCKS / 2 }
}

/// The bit that flips the sign of a half float. Files of some types store a number to add, and the kernels subtract it.
pub(super) const ADDED: u16 = 0x8000;

/// The codes of IQ4_NL with their offset.
pub(super) const IQ4_NL_CODES: [u8; 16] = with_offset(IQ4_NL_VALUES, Iq4Nl::OFFSET);

/// The codes of MXFP4 with their offset.
pub(super) const MXFP4_CODES: [u8; 16] = with_offset(MXFP4_VALUES, Mxfp4::OFFSET);

const fn with_offset(values: [i8; 16], offset: u8) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = offset.wrapping_add_signed(values[i]);
        i += 1;
    }
    codes
}

#[inline(always)]
fn array(bytes: &[u8]) -> &[u8; 12] {
    &bytes.as_chunks::<12>().0[0]
}

/// Extracts the half float at byte `AT` of each block, and flips the bits of `change`.
#[inline(always)]
fn halves<F: Format, const AT: usize>(span: &[u8], row: usize, to: &mut [[u16; ROWS]; SPAN_BLOCKS], change: u16) {
    let mut put = |block: usize, span: &[u8]| {
        let at = block * F::BYTES + AT;
        to[block][row] = u16::from_le_bytes([span[at], span[at + 1]]) ^ change;
    };
    // Nearly all spans are whole and need no test for each block.
    if let Some(span) = span.get(..F::SPAN_BYTES) {
        for block in 0..SPAN_BLOCKS {
            put(block, span);
        }
    } else {
        for block in 0..span.len() / F::BYTES {
            put(block, span);
        }
    }
}

#[inline(always)]
fn widen_all<S: Small>(s: S, from: &[[u16; ROWS]; SPAN_BLOCKS], to: &mut [Lanes; SPAN_BLOCKS]) {
    for (from, to) in from.iter().zip(to) {
        s.store(s.widen(from), to);
    }
}

/// Stores sixteen bytes as four words.
#[inline(always)]
fn words(bytes: &[u8], row: usize, fields: &mut Fields) {
    for (i, bytes) in bytes[..16].as_chunks::<4>().0.iter().enumerate() {
        fields.words[i][row] = u32::from_le_bytes(*bytes);
    }
}

/// Unpacks numbers `i` and `16 + i` from the halves of byte `i`.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8; 32]) {
    let bytes = &bytes[..16];
    for i in 0..16 {
        out[i] = bytes[i] & 15;
        out[16 + i] = bytes[i] >> 4;
    }
}

/// Adds a fifth bit to each number, from 32 bits.
#[inline(always)]
fn fifths(bytes: &[u8], out: &mut [u8; 32]) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (i, out) in out.iter_mut().enumerate() {
        *out |= ((bits >> i & 1) << 4) as u8;
    }
}
