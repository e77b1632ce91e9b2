//! Panels of 32 rows, a span at a time: unpacked once, four columns of sixteen rows side by side, for any number of tokens.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{Small, load, scaled_minimum};
use crate::quantized::activations::BLOCK;
use crate::quantized::collect::turned;
use crate::quantized::header::{Header, Lanes, ROWS, SPAN, SPAN_BLOCKS};
use crate::quantized::product::Job;
use crate::quantized::unpack::Unpack;

/// Vectors of sixteen rows. Two, so that what is broadcast of a token is used twice: loads are as scarce as products.
const VECTORS: usize = 2;

const PANEL_ROWS: usize = VECTORS * ROWS;

/// Tokens that share the unpacking: their codes of a span and their sums are in the second-level cache at most.
const TOKENS: usize = 128;

/// Tokens whose sums are in registers together, beside as many dot products.
const SET: usize = 6;

/// Times that four columns go into a block.
const QUADS: usize = BLOCK / 4;

/// Codes of a span.
#[repr(C, align(64))]
struct Panel {
    /// What the codes stand for, `[block][four columns][vector][row][4]`.
    codes: [[[[i8; 4 * ROWS]; VECTORS]; QUADS]; SPAN_BLOCKS],
    /// What dot products start from, to make up for the 128 that are added to activations: `[block][half][vector][row]`,
    /// the halves together where they have no factors.
    starts: [[[[i32; ROWS]; VECTORS]; 2]; SPAN_BLOCKS],
}

/// What is asked for ahead, to the second-level cache: the next panel, evenly while this one is computed, since a processor
/// forgets what it is asked for too fast.
struct Next {
    at: *const u8,
    /// Cache lines while a block of sixteen rows is unpacked.
    lines: usize,
}

impl Next {
    const LINE: usize = 64;

    /// Sets of tokens that ask, of each span, for as much as unpacking it does.
    const SETS: usize = 3;

    /// The panel that begins at row `first`, of which there may be none, for so many sets of tokens.
    fn new<F: Unpack>(job: &Job<'_>, first: usize, sets: usize) -> Self {
        let times = (1 + sets.min(Self::SETS)) * VECTORS * SPAN_BLOCKS;
        let lines = (PANEL_ROWS * F::SPAN_BYTES).div_ceil(Self::LINE).div_ceil(times);
        Self { at: job.w.as_ptr().wrapping_add(first * job.row_bytes), lines }
    }

    /// Asks for as many lines as are due for so many blocks.
    ///
    /// # Safety
    /// SSE exists.
    #[inline(always)]
    unsafe fn ask(&mut self, blocks: usize) {
        for _ in 0..blocks * self.lines {
            // SAFETY: the caller's promise; prefetches may point anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(Self::LINE);
        }
    }
}

/// Sums of all rows, `[token][vector][row]`.
#[repr(C, align(64))]
struct Sums([[Lanes; VECTORS]; TOKENS]);

/// The job's rows, for activations in spans.
///
/// # Safety
/// As for [`super::rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(in crate::quantized) unsafe fn panels<F: Unpack>(job: &Job<'_>) {
    let mut small = [Small::NEW; VECTORS];
    // Not cleared: that would take as long as several blocks.
    let (mut panel, mut sums) = (MaybeUninit::<Panel>::uninit(), MaybeUninit::<Sums>::uninit());
    let sums = sums.as_mut_ptr().cast::<[Lanes; VECTORS]>();
    for token in (0..job.x.tokens).step_by(TOKENS) {
        let tokens = TOKENS.min(job.x.tokens - token);
        for first in (job.first..job.end).step_by(PANEL_ROWS) {
            // SAFETY: the caller's promise; there is room for so many tokens' sums.
            unsafe {
                sums.write_bytes(0, tokens);
                let sets = tokens.div_ceil(SET);
                let mut next = Next::new::<F>(job, first + PANEL_ROWS, sets);
                for span in 0..job.x.blocks.div_ceil(SPAN_BLOCKS) {
                    unpack_span::<F>(job, first, span, &mut small, panel.as_mut_ptr(), &mut next);
                    let headers = [&small[0].header, &small[1].header];
                    for set in 0..sets {
                        // As equal as can be.
                        let (begin, end) = (tokens * set / sets, tokens * (set + 1) / sets);
                        let (token, sums) = (token + begin, sums.add(begin));
                        let next = if set < Next::SETS { Some(&mut next) } else { None };
                        match end - begin {
                            1 => add::<F, 1>(job, span, token, &*panel.as_ptr(), headers, sums, next),
                            2 => add::<F, 2>(job, span, token, &*panel.as_ptr(), headers, sums, next),
                            3 => add::<F, 3>(job, span, token, &*panel.as_ptr(), headers, sums, next),
                            4 => add::<F, 4>(job, span, token, &*panel.as_ptr(), headers, sums, next),
                            5 => add::<F, 5>(job, span, token, &*panel.as_ptr(), headers, sums, next),
                            _ => add::<F, SET>(job, span, token, &*panel.as_ptr(), headers, sums, next),
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

/// Unpacks a span of the panel that begins at row `first`, the last row again and again where it has fewer.
///
/// # Safety
/// As for [`panels`]; `panel` is writable.
#[inline(always)]
unsafe fn unpack_span<F: Unpack>(
    job: &Job<'_>,
    first: usize,
    span: usize,
    small: &mut [Small; VECTORS],
    panel: *mut Panel,
    next: &mut Next,
) {
    let blocks = SPAN_BLOCKS.min(job.x.blocks - span * SPAN_BLOCKS);
    for v in 0..VECTORS {
        let begin = (first + v * ROWS).min(job.end - 1);
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            let spans = small[v].collect::<F>(job, begin, ROWS.min(job.end - begin), span);
            for block in 0..blocks {
                next.ask(1);
                // The next span comes to the first-level cache.
                for row in [2 * block, 2 * block + 1] {
                    for line in (F::SPAN_BYTES..2 * F::SPAN_BYTES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(spans[row].wrapping_add(line).cast());
                    }
                }
                unpack::<F>(&spans, block, v, panel);
            }
        }
    }
}

/// Unpacks block `block` of sixteen rows as vector `v` of the panel.
///
/// # Safety
/// The block is readable in all spans, `panel` is writable; AVX-512 BW and VNNI exist.
#[inline(always)]
unsafe fn unpack<F: Unpack>(spans: &[*const u8; ROWS], block: usize, v: usize, panel: *mut Panel) {
    // SAFETY: the caller's promise.
    unsafe {
        let (zero, bias) = (_mm512_setzero_si512(), _mm512_set1_epi8(i8::MIN));
        let mut halves = [[zero; 4]; 2];
        for i in 0..4 {
            let codes = F::unpack_rows([spans[i], spans[4 + i], spans[8 + i], spans[12 + i]], block);
            for half in 0..2 {
                halves[half][i] = _mm512_sub_epi8(codes[half], _mm512_set1_epi8(F::OFFSET as i8));
            }
        }
        let mut surplus = [zero; 2];
        for half in 0..2 {
            let quads = turned(halves[half]);
            for i in 0..4 {
                let to = &raw mut (*panel).codes[block][half * 4 + i][v];
                _mm512_store_si512(to.cast(), quads[i]);
                surplus[half] = _mm512_dpbusd_epi32(surplus[half], bias, quads[i]);
            }
        }
        if !F::HALVES {
            surplus[0] = _mm512_add_epi32(surplus[0], surplus[1]);
        }
        for half in 0..2 {
            let to = &raw mut (*panel).starts[block][half][v];
            _mm512_store_si512(to.cast(), _mm512_sub_epi32(zero, surplus[half]));
        }
    }
}

/// Adds span `span` of the panel's rows to the sums of `T` tokens from `token` on.
///
/// # Safety
/// The activations have these tokens, `panel` the blocks of the span, `sums` room for the tokens; otherwise as for
/// [`panels`].
#[inline(always)]
unsafe fn add<F: Unpack, const T: usize>(
    job: &Job<'_>,
    span: usize,
    token: usize,
    panel: &Panel,
    headers: [&Header; VECTORS],
    sums: *mut [Lanes; VECTORS],
    mut next: Option<&mut Next>,
) {
    let x = &job.x;
    let at = span * x.tokens + token;
    // SAFETY: the caller's promise; `Lanes` are whole vectors.
    unsafe {
        let codes = x.codes.as_ptr().add(at * SPAN);
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; T];
        for t in 0..T {
            for v in 0..VECTORS {
                acc[t][v] = load(&(*sums.add(t))[v]);
            }
        }
        for block in 0..SPAN_BLOCKS.min(x.blocks - span * SPAN_BLOCKS) {
            if let Some(next) = &mut next {
                next.ask(VECTORS);
            }
            let mut dot = [[_mm512_setzero_ps(); VECTORS]; T];
            if F::HALVES {
                // Integers that f32 can count: nothing is rounded here.
                let first = dots::<T, 0, 4>(panel, block, 0, codes);
                for t in 0..T {
                    for v in 0..VECTORS {
                        let factor = load(&headers[v].halves[block][0]);
                        dot[t][v] = _mm512_mul_ps(_mm512_cvtepi32_ps(first[t][v]), factor);
                    }
                }
                let last = dots::<T, 4, 8>(panel, block, 1, codes);
                for t in 0..T {
                    for v in 0..VECTORS {
                        let factor = load(&headers[v].halves[block][1]);
                        dot[t][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(last[t][v]), factor, dot[t][v]);
                    }
                }
            } else {
                let both = dots::<T, 0, 8>(panel, block, 0, codes);
                for t in 0..T {
                    for v in 0..VECTORS {
                        dot[t][v] = _mm512_cvtepi32_ps(both[t][v]);
                    }
                }
            }
            for t in 0..T {
                let at = (at + t) * SPAN_BLOCKS + block;
                let scale = *x.scales.get_unchecked(at);
                for v in 0..VECTORS {
                    let scale = _mm512_mul_ps(load(&headers[v].scales[block]), _mm512_set1_ps(scale));
                    acc[t][v] = _mm512_fmadd_ps(dot[t][v], scale, acc[t][v]);
                }
                if F::MINIMA {
                    let sums = [*x.sums.get_unchecked(at * 2), *x.sums.get_unchecked(at * 2 + 1)];
                    for v in 0..VECTORS {
                        let minimum = scaled_minimum::<F>(headers[v], block, scale, sums);
                        acc[t][v] = _mm512_fnmadd_ps(load(&headers[v].minima[block]), minimum, acc[t][v]);
                    }
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

/// The integer dot products of a block's columns from four times `FIRST` to four times `END`, for `T` tokens.
///
/// # Safety
/// `codes` are those of a span of `T` tokens; AVX-512 VNNI exists.
#[inline(always)]
unsafe fn dots<const T: usize, const FIRST: usize, const END: usize>(
    panel: &Panel,
    block: usize,
    half: usize,
    codes: *const i8,
) -> [[__m512i; VECTORS]; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let vector = |codes: *const [i8; 4 * ROWS]| _mm512_load_si512(codes.cast());
        let starts = &panel.starts[block][half];
        let start = [_mm512_load_si512(starts[0].as_ptr().cast()), _mm512_load_si512(starts[1].as_ptr().cast())];
        let mut dots = [start; T];
        for quad in FIRST..END {
            let [first, second] = &panel.codes[block][quad];
            let weights = [vector(first), vector(second)];
            for t in 0..T {
                let four = codes.add(t * SPAN + block * BLOCK + quad * 4).cast::<i32>();
                let four = _mm512_set1_epi32(four.read_unaligned());
                for v in 0..VECTORS {
                    dots[t][v] = _mm512_dpbusd_epi32(dots[t][v], four, weights[v]);
                }
            }
        }
        dots
    }
}
