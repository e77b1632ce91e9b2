//! Products with panels of 32 rows, for any number of tokens. A panel is unpacked one span at a time, with four columns
//! of sixteen rows side by side, and then serves all tokens.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::{Small, add_whole};
use crate::quantized::activations::{BLOCK, Layout};
use crate::quantized::header::{Header, Lanes, ROWS, SPAN, SPAN_BLOCKS};
use crate::quantized::job::ProductRows;
use crate::quantized::spans::Spans;
use crate::quantized::unpack::Unpack;
use crate::simd::{Simd, Vnni, prefetch, prefetch_second};

/// The number of vectors of sixteen rows in a panel. There are two, so that each broadcast of a token's codes is used
/// twice, because loads are as scarce as products.
const VECTORS: usize = 2;

const PANEL_ROWS: usize = VECTORS * ROWS;

/// Number of tokens that share the unpacking: their codes of a span and their sums fit into the L2 cache.
const TOKENS: usize = 128;

/// Number of tokens whose sums are in registers at the same time, with as many dot products.
const SET: usize = 6;

/// The number of times that four columns fit into a block.
const QUADS: usize = BLOCK / 4;

/// The unpacked codes of a span.
#[repr(C, align(64))]
struct Panel {
    /// `[block][four columns][vector][row][4]`.
    codes: [[[[u8; 4 * ROWS]; VECTORS]; QUADS]; SPAN_BLOCKS],
}

/// The span of the next panel, which is prefetched into the L2 cache evenly while the current panel's span is computed.
/// A processor drops requests that come too fast.
struct Next {
    first: *const u8,
    /// The number of lines that each request prefetches, in units of 1/[`Next::PARTS`] of a cache line.
    rate: usize,
    /// The number of lines of the span, in units of 1/[`Next::PARTS`] of a cache line.
    end: usize,
    /// The number of lines that were requested so far, in units of 1/[`Next::PARTS`] of a cache line.
    asked: usize,
}

impl Next {
    const LINE: usize = 64;
    const PARTS: usize = 1 << 16;

    /// The maximum number of sets of tokens that prefetch.
    const SETS_MAX: usize = 3;

    /// Prefetches span `span` of the panel that begins at row `first`, which may not exist, during `sets` sets of
    /// tokens.
    fn new<F: Unpack>(job: &ProductRows<'_>, first: usize, span: usize, sets: usize) -> Self {
        // These bytes are prefetched in memory order: rows are read whole before the next panel.
        let bytes = PANEL_ROWS * F::SPAN_BYTES;
        let first = job.w.as_ptr().wrapping_add(first * job.row_bytes + span * bytes);
        let end = bytes.div_ceil(Self::LINE) * Self::PARTS;
        let times = (VECTORS + sets.min(Self::SETS_MAX)) * SPAN_BLOCKS;
        Self { first, rate: end.div_ceil(times), end, asked: 0 }
    }

    /// Prefetches the bytes that are due with one block that is unpacked, or computed for a set of tokens.
    #[inline(always)]
    fn ask(&mut self) {
        let due = (self.asked + self.rate).min(self.end);
        for line in self.asked / Self::PARTS..due / Self::PARTS {
            prefetch_second(self.first.wrapping_add(line * Self::LINE));
        }
        self.asked = due;
    }
}

/// The sums of all rows, `[token][vector][row]`.
#[repr(C, align(64))]
struct Sums([[Lanes; VECTORS]; TOKENS]);

/// Computes the job's rows, for activations in [`Layout::Spans`].
///
/// # Safety
/// The conditions of [`super::rows`] hold.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::quantized) unsafe fn panels<F: Unpack>(s: Vnni, job: &ProductRows<'_>) {
    debug_assert_eq!(job.x.layout, Layout::Spans);
    let mut small = [Small::NEW; VECTORS];
    // Not initialized, as that would take as long as several blocks.
    let (mut panel, mut sums) = (MaybeUninit::<Panel>::uninit(), MaybeUninit::<Sums>::uninit());
    let (panel, sums) = (panel.as_mut_ptr(), sums.as_mut_ptr().cast::<[Lanes; VECTORS]>());
    let tiles = job.x.tokens.div_ceil(TOKENS);
    for tile in 0..tiles {
        let part_of = |all: usize, i: usize, count: usize| all * i / count..all * (i + 1) / count;
        let Range { start: token, end } = part_of(job.x.tokens, tile, tiles);
        let tokens = end - token;
        let sets = tokens.div_ceil(SET);
        for first in (job.first..job.end).step_by(PANEL_ROWS) {
            // SAFETY: guaranteed by the caller; there is room for these tokens' sums, and `panel` holds a span before
            // it is read.
            unsafe {
                sums.write_bytes(0, tokens);
                for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                    let mut next = Next::new::<F>(job, first + PANEL_ROWS, span, sets);
                    unpack_span::<F>(s, job, first, span, &mut small, panel, &mut next);
                    let headers = [&small[0].header, &small[1].header];
                    for set in 0..sets {
                        let Range { start: begin, end } = part_of(tokens, set, sets);
                        let (token, sums) = (token + begin, sums.add(begin));
                        let next = if set < Next::SETS_MAX { Some(&mut next) } else { None };
                        match end - begin {
                            // There are at least four tokens, split evenly, so a set has at least three.
                            3 => add::<F, 3>(s, job, span, token, panel, headers, sums, next),
                            4 => add::<F, 4>(s, job, span, token, panel, headers, sums, next),
                            5 => add::<F, 5>(s, job, span, token, panel, headers, sums, next),
                            SET => add::<F, SET>(s, job, span, token, panel, headers, sums, next),
                            more => unreachable!("a set of {more} tokens"),
                        }
                    }
                }
                let count = PANEL_ROWS.min(job.end - first);
                for t in 0..tokens {
                    for v in 0..count.div_ceil(ROWS) {
                        let mask = u16::MAX >> (ROWS - ROWS.min(count - v * ROWS));
                        let to = job.out.at(token + t, first + v * ROWS);
                        _mm512_mask_storeu_ps(to, mask, _mm512_load_ps((*sums.add(t))[v].as_ptr()));
                    }
                }
            }
        }
    }
}

/// Unpacks a span of the panel that begins at row `first`. If there are fewer rows, the last one is repeated.
///
/// # Safety
/// The conditions of [`panels`] hold; `panel` is writable.
#[inline(always)]
unsafe fn unpack_span<F: Unpack>(
    s: Vnni,
    job: &ProductRows<'_>,
    first: usize,
    span: usize,
    small: &mut [Small; VECTORS],
    panel: *mut Panel,
    next: &mut Next,
) {
    let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
    for v in 0..VECTORS {
        let begin = (first + v * ROWS).min(job.end - 1);
        // SAFETY: guaranteed by the caller; prefetches may point anywhere.
        unsafe {
            let (spans, _) = small[v].collect::<F>(*s, job, begin, span);
            for set in 0..blocks.div_ceil(F::SET) {
                F::unpack_set(*s, spans, set, |of_set, quad, codes| {
                    let block = set * F::SET + of_set;
                    if quad == 0 {
                        next.ask();
                        prefetch_rows(spans, block);
                    }
                    _mm512_store_si512((&raw mut (*panel).codes[block][quad][v]).cast(), codes);
                });
            }
        }
    }
}

/// Prefetches the next span of two rows into the L1 cache, for block `block`. (After copies there may be nothing, which
/// does no harm.)
#[inline(always)]
fn prefetch_rows<F: Unpack>(spans: Spans<'_, F>, block: usize) {
    for row in [2 * block, 2 * block + 1] {
        for line in (F::SPAN_BYTES..2 * F::SPAN_BYTES).step_by(64) {
            prefetch(spans.row(row).as_ptr().wrapping_add(line));
        }
    }
}

/// Adds span `span` of the panel's rows to the sums of `T` tokens from `token` on.
///
/// # Safety
/// The activations have these tokens, `panel` has the blocks of the span, `sums` has room for the tokens; the
/// conditions of [`panels`] hold.
#[expect(clippy::too_many_arguments, reason = "a kernel with this many operands")]
#[inline(always)]
unsafe fn add<F: Unpack, const T: usize>(
    s: Vnni,
    job: &ProductRows<'_>,
    span: usize,
    token: usize,
    panel: *const Panel,
    headers: [&Header; VECTORS],
    sums: *mut [Lanes; VECTORS],
    mut next: Option<&mut Next>,
) {
    let x = &job.x;
    let at = span * x.tokens + token;
    // SAFETY: guaranteed by the caller; `Lanes` are whole vectors.
    unsafe {
        let codes = x.codes.as_ptr().add(at * SPAN);
        let mut integers = [[s._mm512_setzero_si512(); VECTORS]; T];
        let mut acc = [[s._mm512_setzero_ps(); VECTORS]; T];
        if !F::WHOLE {
            acc = load_sums(s, sums);
        }
        for block in 0..SPAN_BLOCKS.min(x.blocks - span * SPAN_BLOCKS) {
            if let Some(next) = &mut next {
                next.ask();
            }
            let code_sums = x.sums.as_ptr().add((at * SPAN_BLOCKS + block) * 2);
            let shifts = x.shifts.as_ptr().wrapping_add(at * SPAN_BLOCKS + block);
            if F::HALVES {
                let first = dots::<F, T, 0, 4>(s, panel, block, code_sums, codes);
                add_factored(s, first, headers, (block, 0), shifts, &mut integers);
                let last = dots::<F, T, 4, 8>(s, panel, block, code_sums.add(1), codes);
                add_factored(s, last, headers, (block, 1), shifts, &mut integers);
                continue;
            }
            let dots = dots::<F, T, 0, 8>(s, panel, block, code_sums, codes);
            if F::WHOLE {
                add_factored(s, dots, headers, (block, 0), shifts, &mut integers);
                continue;
            }
            for t in 0..T {
                let at = (at + t) * SPAN_BLOCKS + block;
                let scale = s._mm512_set1_ps(*x.scales.get_unchecked(at));
                let minimum = s._mm512_set1_ps(*x.minima.get_unchecked(at));
                for v in 0..VECTORS {
                    // The dot product is an integer that f32 represents exactly.
                    let scale = s._mm512_mul_ps(s.load(&headers[v].scales[block]), scale);
                    acc[t][v] = s._mm512_fmadd_ps(s._mm512_cvtepi32_ps(dots[t][v]), scale, acc[t][v]);
                    if F::MINIMA {
                        acc[t][v] = s._mm512_fnmadd_ps(s.load(&headers[v].minima[block]), minimum, acc[t][v]);
                    }
                }
            }
        }
        if F::WHOLE {
            acc = load_sums(s, sums);
            for t in 0..T {
                for v in 0..VECTORS {
                    let at = (at + t) * SPAN_BLOCKS;
                    acc[t][v] = add_whole::<F>(s, headers[v], x, at, integers[t][v], acc[t][v]);
                }
            }
        }
        for t in 0..T {
            for v in 0..VECTORS {
                _mm512_store_ps((*sums.add(t))[v].as_mut_ptr(), acc[t][v]);
            }
        }
    }
}

/// Loads the sums of `T` tokens.
///
/// # Safety
/// There are as many tokens.
#[inline(always)]
unsafe fn load_sums<const T: usize>(s: Vnni, sums: *const [Lanes; VECTORS]) -> [[__m512; VECTORS]; T] {
    let mut acc = [[s._mm512_setzero_ps(); VECTORS]; T];
    for t in 0..T {
        for v in 0..VECTORS {
            // SAFETY: guaranteed by the caller.
            acc[t][v] = unsafe { s.load(&(*sums.add(t))[v]) };
        }
    }
    acc
}

/// Multiplies dot products by the factors of their rows, shifts them by their token's number of bits, and adds them to
/// integer sums.
///
/// # Safety
/// `shifts` are those of a block of the first token; the next tokens' are [`SPAN_BLOCKS`] numbers apart.
#[inline(always)]
unsafe fn add_factored<const T: usize>(
    s: Vnni,
    dots: [[__m512i; VECTORS]; T],
    headers: [&Header; VECTORS],
    (block, half): (usize, usize),
    shifts: *const i32,
    sums: &mut [[__m512i; VECTORS]; T],
) {
    let factors = [s.load512(&headers[0].factors[block][half]), s.load512(&headers[1].factors[block][half])];
    for t in 0..T {
        // SAFETY: guaranteed by the caller.
        let shift = s._mm512_set1_epi32(unsafe { *shifts.add(t * SPAN_BLOCKS) });
        for v in 0..VECTORS {
            let product = s._mm512_mullo_epi32(s._mm512_sllv_epi32(dots[t][v], shift), factors[v]);
            sums[t][v] = s._mm512_add_epi32(sums[t][v], product);
        }
    }
}

/// Computes the integer dot products of a block's columns from `4 * FIRST` to `4 * END`, for `T` tokens.
///
/// # Safety
/// `codes` are the codes of a span of `T` tokens, at least three and at most [`SET`], and `sums` those of the first
/// token's codes: of a half of the block if it has its own factor, or else of both. AVX-512 VNNI exists.
#[inline(always)]
unsafe fn dots<F: Unpack, const T: usize, const FIRST: usize, const END: usize>(
    s: Vnni,
    panel: *const Panel,
    block: usize,
    sums: *const i32,
    codes: *const i8,
) -> [[__m512i; VECTORS]; T] {
    let mut dots = [[s._mm512_setzero_si512(); VECTORS]; T];
    if F::OFFSET != 0 {
        // A loop, because the compiler does not inline all closures, and those that it leaves pass vectors through
        // memory.
        for t in 0..T {
            // SAFETY: guaranteed by the caller.
            let sum = unsafe {
                let sums = sums.add(t * 2 * SPAN_BLOCKS);
                if F::HALVES { *sums } else { *sums + *sums.add(1) }
            };
            // This compensates for the offset of the weights' codes.
            dots[t] = [s._mm512_set1_epi32(-i32::from(F::OFFSET) * sum); VECTORS];
        }
    }
    for quad in FIRST..END {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let weights = &raw const (*panel).codes[block][quad];
            add_quad(weights.cast(), codes.add(block * BLOCK + quad * 4), &mut dots);
        }
    }
    dots
}

/// Adds the products of four columns of the tokens whose assembly names are given.
macro_rules! add_quad {
    ($weights:ident, $codes:ident, $dots:ident, $($token:literal $first:ident $second:ident)*) => {
        asm!(
            "vmovdqa64 zmm30, [{weights}]",
            "vmovdqa64 zmm31, [{weights} + 64]",
            $(
                concat!("vpbroadcastd zmm29, [{codes} + {span} * ", $token, "]"),
                concat!("vpdpbusd {", stringify!($first), "}, zmm30, zmm29"),
                concat!("vpdpbusd {", stringify!($second), "}, zmm31, zmm29"),
            )*
            weights = in(reg) $weights,
            codes = in(reg) $codes,
            span = const SPAN,
            $(
                $first = inout(zmm_reg) $dots[$token][0],
                $second = inout(zmm_reg) $dots[$token][1],
            )*
            out("zmm29") _,
            out("zmm30") _,
            out("zmm31") _,
            options(pure, readonly, nostack, preserves_flags)
        )
    };
}

/// Adds the products of four columns of a panel's rows and `T` tokens, in the order of the tokens.
///
/// The function is written in assembly because that order keeps the chains of sums apart. The compiler puts the
/// products of one sum next to each other, which took 1.04 times as long on Zen 4.
///
/// # Safety
/// `weights` are the codes of four columns, and `codes` those of the first token; the next tokens' are [`SPAN`] bytes
/// apart. There are at least three tokens and at most [`SET`].
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_quad<const T: usize>(weights: *const u8, codes: *const i8, dots: &mut [[__m512i; VECTORS]; T]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match T {
            3 => add_quad!(weights, codes, dots, 0 a0 b0 1 a1 b1 2 a2 b2),
            4 => add_quad!(weights, codes, dots, 0 a0 b0 1 a1 b1 2 a2 b2 3 a3 b3),
            5 => add_quad!(weights, codes, dots, 0 a0 b0 1 a1 b1 2 a2 b2 3 a3 b3 4 a4 b4),
            SET => add_quad!(weights, codes, dots, 0 a0 b0 1 a1 b1 2 a2 b2 3 a3 b3 4 a4 b4 5 a5 b5),
            more => unreachable!("a set of {more} tokens"),
        }
    }
}
