//! Transposes squares of 16 by 16 numbers in registers.

use std::arch::x86_64::*;

use crate::simd::Avx512;

/// Sets `to[j][i] = from[i][j]` for 16 by 16 numbers, with the given strides between rows.
///
/// # Safety
/// The squares are readable and writable.
#[inline(always)]
pub(crate) unsafe fn transpose(s: Avx512, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the token proves the instructions; the rest is guaranteed by the caller.
    unsafe { transpose_kernel(s, from, from_stride, to, to_stride) };
}

/// Implements [`transpose`] with AVX-512 instructions.
///
/// # Safety
/// The conditions of [`transpose`] hold.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_kernel(s: Avx512, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let columns = transposed(s, std::array::from_fn(|i| _mm512_loadu_ps(from.add(i * from_stride))));
        for (j, column) in columns.into_iter().enumerate() {
            _mm512_storeu_ps(to.add(j * to_stride), column);
        }
    }
}

/// Returns the columns of 16 rows.
#[inline(always)]
fn transposed(s: Avx512, rows: [__m512; 16]) -> [__m512; 16] {
    // Interleaves pairs, then fours within each quarter of the vectors: `fours[4 * i + j]` holds, in quarter q, column
    // `4 * q + j` of rows `4 * i ..`.
    let mut fours = [s._mm512_setzero_ps(); 16];
    for i in 0..4 {
        let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
        let low = (s._mm512_unpacklo_ps(a, b), s._mm512_unpacklo_ps(c, d));
        let high = (s._mm512_unpackhi_ps(a, b), s._mm512_unpackhi_ps(c, d));
        let halves = |(x, y): (__m512, __m512)| {
            let (x, y) = (s._mm512_castps_pd(x), s._mm512_castps_pd(y));
            [s._mm512_castpd_ps(s._mm512_unpacklo_pd(x, y)), s._mm512_castpd_ps(s._mm512_unpackhi_pd(x, y))]
        };
        let ([first, second], [third, fourth]) = (halves(low), halves(high));
        fours[4 * i..4 * i + 4].copy_from_slice(&[first, second, third, fourth]);
    }
    let mut columns = [s._mm512_setzero_ps(); 16];
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        // Combines quarters 0 and 1, then 2 and 3, of two vectors.
        let (ab_low, ab_high) = (s._mm512_shuffle_f32x4::<0x44>(a, b), s._mm512_shuffle_f32x4::<0xEE>(a, b));
        let (cd_low, cd_high) = (s._mm512_shuffle_f32x4::<0x44>(c, d), s._mm512_shuffle_f32x4::<0xEE>(c, d));
        columns[j] = s._mm512_shuffle_f32x4::<0x88>(ab_low, cd_low);
        columns[4 + j] = s._mm512_shuffle_f32x4::<0xDD>(ab_low, cd_low);
        columns[8 + j] = s._mm512_shuffle_f32x4::<0x88>(ab_high, cd_high);
        columns[12 + j] = s._mm512_shuffle_f32x4::<0xDD>(ab_high, cd_high);
    }
    columns
}
