//! Scales and minima of sixteen rows side by side, as the kernels multiply by them.

/// Rows whose scales lie in the lanes of a vector.
pub(super) const ROWS: usize = 16;

/// Columns of a span, a block of the types that end in K; and its blocks of 32.
pub(super) const SPAN: usize = 256;
pub(super) const SPAN_BLOCKS: usize = 8;

/// One number for each of sixteen rows.
pub(super) type Lanes = [f32; ROWS];

/// What the small fields of a span of sixteen rows mean. Only what the type has is filled in.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Header {
    /// Factor of the integer dot product, `[block][row]`.
    pub scales: [Lanes; SPAN_BLOCKS],
    /// What is taken from each number, `[block][row]`.
    pub minima: [Lanes; SPAN_BLOCKS],
    /// Integer factors of the dot products of half blocks, `[block][half][row]`.
    pub halves: [[Lanes; 2]; SPAN_BLOCKS],
    /// Integer factors of the minimum of half blocks, `[block][half][row]`.
    pub half_minima: [[Lanes; 2]; SPAN_BLOCKS],
}

impl Header {
    pub const ZERO: Self = Self {
        scales: [[0.0; ROWS]; SPAN_BLOCKS],
        minima: [[0.0; ROWS]; SPAN_BLOCKS],
        halves: [[[0.0; ROWS]; 2]; SPAN_BLOCKS],
        half_minima: [[[0.0; ROWS]; 2]; SPAN_BLOCKS],
    };
}

/// The small fields as they are in the file, so that all arithmetic can be done on sixteen rows at once.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Fields {
    /// Half floats (or exponents), one a block of the type, `[block][row]`.
    pub scales: [[u16; ROWS]; SPAN_BLOCKS],
    /// As above, of the minima.
    pub minima: [[u16; ROWS]; SPAN_BLOCKS],
    /// Packed bytes, four a word, `[word][row]`.
    pub words: [[u32; ROWS]; 4],
}

impl Fields {
    pub const ZERO: Self =
        Self { scales: [[0; ROWS]; SPAN_BLOCKS], minima: [[0; ROWS]; SPAN_BLOCKS], words: [[0; ROWS]; 4] };

    /// Byte `i` of the words, `shift` bits down, under `mask`.
    #[inline(always)]
    pub fn bytes(&self, i: usize, shift: usize, mask: u32) -> Lanes {
        let mut out = [0.0; ROWS];
        for (out, word) in out.iter_mut().zip(&self.words[i / 4]) {
            *out = (word >> (i % 4 * 8 + shift) & mask) as i32 as f32;
        }
        out
    }
}

/// Half floats to floats. Plain integer arithmetic, so that it is vectorised at every level; subnormal halves, common
/// among the scales of small weights, take no slow path.
#[inline(always)]
pub(super) fn widen(halves: &[u16; ROWS]) -> Lanes {
    let mut out = [0.0; ROWS];
    for (out, half) in out.iter_mut().zip(halves) {
        let magnitude = u32::from(half & 0x7fff);
        let sign = u32::from(half & 0x8000) << 16;
        // The exponent's bias is 127, not 15; that of infinity and NaN is the largest there is.
        let normal = (magnitude << 13) + ((127 - 15) << 23);
        let special = normal + ((127 - 15) << 23);
        let subnormal = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
        let bits = if magnitude < 0x400 { subnormal } else { normal };
        let bits = if magnitude >= 0x7c00 { special } else { bits };
        *out = f32::from_bits(bits | sign);
    }
    out
}

#[inline(always)]
pub(super) fn product(a: &Lanes, b: &Lanes) -> Lanes {
    let mut out = [0.0; ROWS];
    for i in 0..ROWS {
        out[i] = a[i] * b[i];
    }
    out
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_half_is_widened() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32();
            let got = widen(&[bits; ROWS])[3];
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
        }
    }
}
