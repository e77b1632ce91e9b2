//! Products with AVX-512 VNNI: many rows side by side for a few tokens (`rows.rs`), many tokens side by side otherwise
//! (`tiles.rs`).

use super::header::{Fields, Header, ROWS, SPAN_BLOCKS};
use super::product::Job;
use super::unpack::{GROUP, Unpack};
use crate::simd::Avx512;

mod rows;
mod tiles;

pub(super) use rows::rows;
pub(super) use tiles::{Multiplier, Panel, start, tiles, tiles_by};

/// Most tokens that are worth the kernel with rows in the lanes: at five, tiles are as fast even if eleven of their
/// sixteen tokens are missing.
pub(super) const ROW_TOKENS: usize = 4;

/// Groups of a span.
const GROUPS: usize = SPAN_BLOCKS / GROUP;

/// Bytes of four blocks of the largest type with blocks of 32, which is Q8_0.
const MAX_GROUP_BYTES: usize = GROUP * 34;

/// Header and addresses of a span of sixteen rows.
///
/// # Safety
/// As for [`rows`].
#[inline(always)]
unsafe fn collect<F: Unpack>(
    job: &Job<'_>,
    first: usize,
    count: usize,
    span: usize,
    spans: &mut [*const u8; ROWS],
    scratch: &mut Scratch,
) {
    for (row, address) in spans.iter_mut().enumerate() {
        let bytes = job.span::<F>(first + row.min(count - 1), span);
        *address = bytes.as_ptr();
        F::collect(bytes, row, &mut scratch.fields);
    }
    // SAFETY: the caller's promise.
    unsafe { F::finish::<Avx512>(&scratch.fields, &mut scratch.header) };
}

/// What a thread needs besides registers. Made once, for to clear it takes longer than a few blocks.
struct Scratch {
    fields: Fields,
    header: Header,
    /// The last blocks of sixteen rows, where they are too few for [`Unpack::unpack4`]. What lies behind them is of no
    /// consequence.
    padded: [[u8; MAX_GROUP_BYTES]; ROWS],
}

impl Scratch {
    const NEW: Self = Self { fields: Fields::ZERO, header: Header::ZERO, padded: [[0; MAX_GROUP_BYTES]; ROWS] };
}

/// Copies the last `blocks` blocks of sixteen rows, group `group` of their spans, to where four can be read; they are
/// group 0 there.
///
/// # Safety
/// The spans have these blocks, fewer than four.
unsafe fn pad<F: Unpack>(
    spans: &mut [*const u8; ROWS],
    group: usize,
    blocks: usize,
    padded: &mut [[u8; MAX_GROUP_BYTES]; ROWS],
) {
    for (span, padded) in spans.iter_mut().zip(padded) {
        let part = &mut padded[..blocks * F::BYTES];
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(span.add(group * F::GROUP_BYTES), part.as_mut_ptr(), part.len()) };
        *span = padded.as_ptr();
    }
}
