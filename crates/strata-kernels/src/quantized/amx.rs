//! Products by AMX tiles of bytes, sixteen rows by sixteen tokens.
//!
//! A tile product takes one block of 32 columns (or half of one, where halves have factors of their own), since what
//! comes after it is scaled by block. The codes are unpacked once for all tokens, by vectors.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::activations::{BLOCK, TILE};
use super::header::{ROWS, SPAN, SPAN_BLOCKS};
use super::product::Job;
use super::unpack::Unpack;
use super::vnni::{Multiplier, Panel, start, tiles_by};
use crate::amx::{TileConfig, configure, multiply_bytes, release};

/// The job's rows, for activations in tiles.
///
/// # Safety
/// As for [`super::product::rows`]; AVX-512 with VNNI and AMX with bytes exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles<F: Unpack>(job: &Job<'_>) {
    // SAFETY: the caller's promise. Between the first and the last line, this thread loads no other configuration.
    unsafe {
        configure(&TileConfig::for_bytes(ROWS, columns::<F>(), TILE));
        tiles_by::<F, Tiles>(job);
        release();
    }
}

/// Columns of one tile product.
const fn columns<F: Unpack>() -> usize {
    if F::HALVES { BLOCK / 2 } else { BLOCK }
}

/// Integer dot products of a span of sixteen rows and sixteen tokens: `[block][half][row][token]`, the halves together
/// where they have no factors.
#[repr(C, align(64))]
struct Dots([[[i32; TILE]; ROWS]; 2 * SPAN_BLOCKS]);

struct Tiles;

impl Multiplier for Tiles {
    #[inline(always)]
    unsafe fn add_span<F: Unpack, const T: usize>(
        job: &Job<'_>,
        panel: &Panel<'_>,
        tile: usize,
        sums: *mut [[f32; TILE]; ROWS],
    ) {
        // Not cleared: that would take as long as several products.
        let mut dots = MaybeUninit::<Dots>::uninit();
        let parts = if F::HALVES { 2 } else { 1 };
        for t in 0..T {
            let first = (tile + t) * job.x.blocks + panel.span * SPAN_BLOCKS;
            // SAFETY: the span has so many blocks of codes, the activations as many of this tile; `dots` has room for all
            // products, `sums` for this tile.
            unsafe {
                multiply_bytes(
                    panel.codes.0.as_ptr().cast(),
                    SPAN,
                    job.x.codes.as_ptr().add(first * BLOCK * TILE).cast(),
                    columns::<F>(),
                    panel.blocks * parts,
                    dots.as_mut_ptr().cast(),
                );
                add_scaled::<F>(job, panel, first, dots.as_ptr(), &mut *sums.add(t));
            }
        }
    }
}

/// Scales a span's dot products and adds them to the sums, block by block.
///
/// # Safety
/// As for [`tiles`]; the activations have the panel's blocks from `first` on, and `dots` the products of all of them.
#[inline(always)]
unsafe fn add_scaled<F: Unpack>(
    job: &Job<'_>,
    panel: &Panel<'_>,
    first: usize,
    dots: *const Dots,
    sums: &mut [[f32; TILE]; ROWS],
) {
    const OCTET: usize = 8;
    let header = panel.header;
    // SAFETY: whole tiles of activations, by the caller's promise; rows are whole vectors.
    unsafe {
        for octet in (0..ROWS).step_by(OCTET) {
            let mut acc = [_mm512_setzero_ps(); OCTET];
            for row in 0..OCTET {
                acc[row] = _mm512_loadu_ps(sums[octet + row].as_ptr());
            }
            for block in 0..panel.blocks {
                let at = first + block;
                let scales = _mm512_loadu_ps(job.x.scales.as_ptr().add(at * TILE));
                let halves = [
                    _mm512_loadu_ps(job.x.sums.as_ptr().add(at * 2 * TILE)),
                    _mm512_loadu_ps(job.x.sums.as_ptr().add((at * 2 + 1) * TILE)),
                ];
                let both = _mm512_add_ps(halves[0], halves[1]);
                let starts =
                    if F::HALVES { [start::<F>(halves[0]), start::<F>(halves[1])] } else { [start::<F>(both); 2] };
                for row in 0..OCTET {
                    let lane = octet + row;
                    let integer = |part: usize| {
                        let product = if F::HALVES { 2 * block + part } else { block };
                        let from = &raw const (*dots).0[product][lane];
                        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_loadu_si512(from.cast()), starts[part]))
                    };
                    let dot = if F::HALVES {
                        let factors = &header.halves[block];
                        let low = _mm512_mul_ps(integer(0), _mm512_set1_ps(factors[0][lane]));
                        _mm512_fmadd_ps(integer(1), _mm512_set1_ps(factors[1][lane]), low)
                    } else {
                        integer(0)
                    };
                    let scale = _mm512_mul_ps(_mm512_set1_ps(header.scales[block][lane]), scales);
                    acc[row] = _mm512_fmadd_ps(dot, scale, acc[row]);
                    if F::MINIMA {
                        let minimum = if F::HALVES {
                            let factors = &header.half_minima[block];
                            let low = _mm512_mul_ps(_mm512_set1_ps(factors[0][lane]), halves[0]);
                            _mm512_fmadd_ps(_mm512_set1_ps(factors[1][lane]), halves[1], low)
                        } else {
                            both
                        };
                        let least = _mm512_set1_ps(header.minima[block][lane]);
                        acc[row] = _mm512_fnmadd_ps(least, _mm512_mul_ps(scales, minimum), acc[row]);
                    }
                }
            }
            for row in 0..OCTET {
                _mm512_storeu_ps(sums[octet + row].as_mut_ptr(), acc[row]);
            }
        }
    }
}
