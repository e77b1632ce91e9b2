//! Computes products with AMX tiles of bytes, sixteen rows by sixteen tokens.
//!
//! A tile product takes one block of 32 columns, or half of a block if halves have their own factors, since its result
//! is scaled by block. Vector instructions unpack the codes once for all tokens.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::activations::{BLOCK, Layout, TILE};
use super::header::{GROUP, GROUPS, Header, ROWS, SPAN, SPAN_BLOCKS};
use super::job::ProductRows;
use super::spans::Spans;
use super::unpack::Unpack;
use super::vnni::Small;
use crate::amx::{TileConfig, configure, multiply_bytes, release};
use crate::simd::{Amx, Avx512, prefetch};
use crate::transpose::transpose;

/// The number of rows whose sums are in registers at the same time.
const OCTET: usize = 8;

/// The number of tiles of tokens that share the unpacking of weights.
const TILES: usize = 8;

/// The codes of a span of sixteen rows, `[row][column]`.
#[repr(C, align(64))]
struct Codes([[u8; SPAN]; ROWS]);

/// The sums of sixteen rows, `[row][token]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([[f32; TILE]; ROWS]);

/// The integer dot products of a span of sixteen rows and sixteen tokens, `[block][half][row][token]`. If halves have
/// no factors, both halves are one product.
#[repr(C, align(64))]
struct Dots([[[i32; TILE]; ROWS]; 2 * SPAN_BLOCKS]);

/// Computes the job's rows, for activations in [`Layout::Tiles`].
///
/// # Safety
/// The conditions of [`super::product::rows`] hold; AMX with bytes exists.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles<F: Unpack>(s: Amx, job: &ProductRows<'_>) {
    // SAFETY: guaranteed by the caller. Between the first and the last line, this thread loads no other configuration.
    unsafe {
        configure(&TileConfig::for_bytes(ROWS, columns::<F>(), TILE));
        configured::<F>(s, job);
        release();
    }
}

/// Returns the number of columns of one tile product.
const fn columns<F: Unpack>() -> usize {
    if F::HALVES { BLOCK / 2 } else { BLOCK }
}

/// Computes the job's rows with a loaded tile configuration.
///
/// # Safety
/// The conditions of [`tiles`] hold, and the tiles have the shapes of [`TileConfig::for_bytes`].
#[inline(always)]
unsafe fn configured<F: Unpack>(s: Amx, job: &ProductRows<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Tiles);
    let mut small = Small::NEW;
    let mut codes = Codes([[0; SPAN]; ROWS]);
    // Not initialized, as that would take as long as several products.
    let mut dots = MaybeUninit::<Dots>::uninit();
    let tiles = job.x.tokens.div_ceil(TILE);
    for tile in (0..tiles).step_by(TILES) {
        for first in (job.first..job.end).step_by(ROWS) {
            let count = ROWS.min(job.end - first);
            let mut sums = [Sums([[0.0; TILE]; ROWS]); TILES];
            let sums = &mut sums[..TILES.min(tiles - tile)];
            for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
                // SAFETY: guaranteed by the caller; the codes of a span and the activations of each tile have these
                // blocks, and `dots` has room for all products.
                unsafe {
                    let (spans, header) = small.collect::<F>(**s, job, first, span);
                    let next = (first + ROWS) * job.row_bytes + span * ROWS * F::SPAN_BYTES;
                    unpack::<F>(**s, spans, blocks, job.w.as_ptr().wrapping_add(next), &mut codes);
                    for (t, sums) in sums.iter_mut().enumerate() {
                        let block = (tile + t) * job.x.blocks + span * SPAN_BLOCKS;
                        multiply_bytes(
                            codes.0.as_ptr().cast(),
                            SPAN,
                            job.x.codes.as_ptr().add(block * BLOCK * TILE).cast(),
                            columns::<F>(),
                            blocks * (BLOCK / columns::<F>()),
                            dots.as_mut_ptr().cast(),
                        );
                        add_scaled::<F>(**s, job, header, block, blocks, dots.as_ptr(), &mut sums.0);
                    }
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { store(**s, job, (tile + t) * TILE, first, count, &sums.0) };
            }
        }
    }
}

/// Unpacks `blocks` blocks of sixteen rows, and prefetches as many bytes from `next` on.
#[inline(always)]
fn unpack<F: Unpack>(s: Avx512, spans: Spans<'_, F>, blocks: usize, mut next: *const u8, codes: &mut Codes) {
    for group in 0..blocks.div_ceil(GROUP) {
        for row in 0..ROWS {
            for line in (0..F::SPAN_BYTES / GROUPS).step_by(64) {
                prefetch(next.wrapping_add(line));
            }
            next = next.wrapping_add(F::SPAN_BYTES / GROUPS);
            let [first, last] = natural(s, F::unpack4(s, spans.row(row), group));
            let to: &mut [[u8; SPAN / 4]; 4] = bytemuck::cast_mut(&mut codes.0[row]);
            s.store512(first, &mut to[2 * group]);
            s.store512(last, &mut to[2 * group + 1]);
        }
    }
}

/// Stores the sums of `count` rows from `first` on, for the existing tokens from `token` on.
///
/// # Safety
/// The conditions of [`tiles`] hold.
#[inline(always)]
unsafe fn store(
    s: Avx512,
    job: &ProductRows<'_>,
    token: usize,
    first: usize,
    count: usize,
    sums: &[[f32; TILE]; ROWS],
) {
    let tokens = TILE.min(job.x.tokens - token);
    // SAFETY: guaranteed by the caller; the sums of a whole tile are a square, and so is their destination.
    unsafe {
        if count == ROWS && tokens == TILE {
            transpose(s, sums.as_ptr().cast(), TILE, job.out.at(token, first), job.out.stride);
            return;
        }
        for lane in 0..tokens {
            for row in 0..count {
                job.store(token + lane, first + row, sums[row][lane]);
            }
        }
    }
}

/// Scales the dot products of `blocks` blocks and adds them to the sums, block by block.
///
/// # Safety
/// The conditions of [`tiles`] hold; the activations have all blocks that are read from `first` on, and `dots` their
/// products.
#[inline(always)]
unsafe fn add_scaled<F: Unpack>(
    s: Avx512,
    job: &ProductRows<'_>,
    header: &Header,
    first: usize,
    blocks: usize,
    dots: *const Dots,
    sums: &mut [[f32; TILE]; ROWS],
) {
    // SAFETY: the caller guarantees whole tiles of activations; rows are whole vectors.
    unsafe {
        for octet in (0..ROWS).step_by(OCTET) {
            let mut acc = [s._mm512_setzero_ps(); OCTET];
            for row in 0..OCTET {
                acc[row] = _mm512_loadu_ps(sums[octet + row].as_ptr());
            }
            if F::WHOLE {
                add_whole::<F>(s, job, header, first, octet, dots, &mut acc);
            } else {
                for block in 0..blocks {
                    let at = first + block;
                    let scales = _mm512_loadu_ps(job.x.scales.as_ptr().add(at * TILE));
                    let minima = _mm512_loadu_ps(job.x.minima.as_ptr().add(at * TILE));
                    let sums = halves_of(job, at);
                    let start = start::<F>(s, s._mm512_add_epi32(sums[0], sums[1]));
                    for row in 0..OCTET {
                        let lane = octet + row;
                        let dot = _mm512_loadu_si512((&raw const (*dots).0[block][lane]).cast());
                        let dot = s._mm512_cvtepi32_ps(s._mm512_add_epi32(dot, start));
                        let scale = s._mm512_mul_ps(s._mm512_set1_ps(header.scales[block][lane]), scales);
                        acc[row] = s._mm512_fmadd_ps(dot, scale, acc[row]);
                        if F::MINIMA {
                            let least = s._mm512_set1_ps(header.minima[block][lane]);
                            acc[row] = s._mm512_fnmadd_ps(least, minima, acc[row]);
                        }
                    }
                }
            }
            for row in 0..OCTET {
                _mm512_storeu_ps(sums[octet + row].as_mut_ptr(), acc[row]);
            }
        }
    }
}

/// Returns the sums of the codes of both halves of block `at` of sixteen tokens.
///
/// # Safety
/// The activations have this block.
#[inline(always)]
unsafe fn halves_of(job: &ProductRows<'_>, at: usize) -> [__m512i; 2] {
    let of = |half: usize| job.x.sums.as_ptr().wrapping_add((at * 2 + half) * TILE).cast();
    // SAFETY: guaranteed by the caller.
    unsafe { [_mm512_loadu_si512(of(0)), _mm512_loadu_si512(of(1))] }
}

/// Adds the dot products of a span of eight rows from `octet` on and of sixteen tokens to their sums, for a type whose
/// blocks are whole spans. The number `first` is the index of the span's first block among all blocks of the
/// activations.
///
/// # Safety
/// The activations have all blocks of the span, and `dots` their products.
#[inline(always)]
unsafe fn add_whole<F: Unpack>(
    s: Avx512,
    job: &ProductRows<'_>,
    header: &Header,
    first: usize,
    octet: usize,
    dots: *const Dots,
    acc: &mut [__m512; OCTET],
) {
    let parts = if F::HALVES { 2 } else { 1 };
    let (mut sums, mut minima) = ([s._mm512_setzero_si512(); OCTET], [s._mm512_setzero_si512(); OCTET]);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for block in 0..SPAN_BLOCKS {
            let [low, high] = halves_of(job, first + block);
            let codes = if F::HALVES { [low, high] } else { [s._mm512_add_epi32(low, high); 2] };
            let shifts = _mm512_loadu_si512(job.x.shifts.as_ptr().add((first + block) * TILE).cast());
            for part in 0..parts {
                let start = start::<F>(s, codes[part]);
                let shifted = s._mm512_sllv_epi32(codes[part], shifts);
                let at = parts * block + part;
                for row in 0..OCTET {
                    let lane = octet + row;
                    let dot = _mm512_loadu_si512((&raw const (*dots).0[at][lane]).cast());
                    let dot = s._mm512_sllv_epi32(s._mm512_add_epi32(dot, start), shifts);
                    let factor = s._mm512_set1_epi32(header.factors[block][part][lane]);
                    sums[row] = s._mm512_add_epi32(sums[row], s._mm512_mullo_epi32(dot, factor));
                    if F::MINIMA {
                        let pair = header.minimum_factors[at / 2][lane];
                        let factor = s._mm512_set1_epi32(pair >> (at % 2 * 16) & 0xffff);
                        minima[row] = s._mm512_add_epi32(minima[row], s._mm512_mullo_epi32(shifted, factor));
                    }
                }
            }
        }
        let scales = _mm512_loadu_ps(job.x.scales.as_ptr().add(first * TILE));
        for row in 0..OCTET {
            let scale = s._mm512_set1_ps(header.scales[0][octet + row]);
            let mut part = s._mm512_mul_ps(scale, s._mm512_cvtepi32_ps(sums[row]));
            if F::MINIMA {
                let least = s._mm512_set1_ps(header.minima[0][octet + row]);
                part = s._mm512_fnmadd_ps(least, s._mm512_cvtepi32_ps(minima[row]), part);
            }
            acc[row] = s._mm512_fmadd_ps(part, scales, acc[row]);
        }
    }
}

/// Returns the initial values of dot products, which compensate for the offset of the weights' codes.
#[inline(always)]
fn start<F: Unpack>(s: Avx512, sums: __m512i) -> __m512i {
    match F::OFFSET {
        0 => s._mm512_setzero_si512(),
        offset => s._mm512_mullo_epi32(sums, s._mm512_set1_epi32(-i32::from(offset))),
    }
}

/// Reorders the first and last halves of four unpacked blocks into the order of the columns.
#[inline(always)]
fn natural(s: Avx512, [first, last]: [__m512i; 2]) -> [__m512i; 2] {
    [
        s._mm512_permutex2var_epi64(first, s._mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), last),
        s._mm512_permutex2var_epi64(first, s._mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), last),
    ]
}
