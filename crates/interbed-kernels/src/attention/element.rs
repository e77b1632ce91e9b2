//! Widens the elements of a KV slot to f32 lanes, exactly.

use super::lanes::Lanes;
use crate::KvDType;
use crate::simd::{Bf16, Element, F16, F32, LANES, load_part};

/// The type of 8-bit integers with one scale for each [`KvDType::SCALED`] elements. The product of an 8-bit integer and
/// a scale with 8 significant bits is exact in f32.
#[derive(Clone, Copy)]
pub(crate) struct Q8;

/// A type in which keys and values are stored.
pub(crate) trait KvElement: Copy {
    /// The number of elements in 16 bytes.
    const COLUMNS: usize;

    /// Returns the byte offset of element `d` in a slot.
    fn offset(head_dim: usize, d: usize) -> usize;

    /// Loads elements `d .. d + count`, and sets the other lanes to zero. The number `d` is a multiple of [`LANES`].
    ///
    /// # Safety
    /// `slot` is a readable slot of `head_dim` elements, `count <= LANES` and `d + count <= head_dim`.
    unsafe fn load<S: Lanes>(s: S, slot: *const u8, head_dim: usize, d: usize, count: usize) -> S::V;

    /// Writes elements `d .. d + COLUMNS` of sixteen slots, given as `words`, to `[COLUMNS]` vectors that are `stride`
    /// elements apart.
    ///
    /// # Safety
    /// The slots are readable and the vectors writable; `d < head_dim` is a multiple of `COLUMNS`.
    unsafe fn spread<S: Lanes>(
        s: S,
        slots: &[*const u8; LANES],
        words: [S::V; 4],
        d: usize,
        columns: *mut f32,
        stride: usize,
    );
}

impl KvElement for F32 {
    const COLUMNS: usize = 4;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        4 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { plain::<S, F32>(s, slot.cast::<<F32 as Element>::Bits>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(
        s: S,
        _: &[*const u8; LANES],
        words: [S::V; 4],
        _: usize,
        columns: *mut f32,
        stride: usize,
    ) {
        for word in 0..4 {
            // SAFETY: guaranteed by the caller.
            unsafe { s.store_at(words[word], columns.add(word * stride)) };
        }
    }
}

impl KvElement for F16 {
    const COLUMNS: usize = 8;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        2 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { plain::<S, F16>(s, slot.cast::<<F16 as Element>::Bits>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(
        s: S,
        _: &[*const u8; LANES],
        words: [S::V; 4],
        _: usize,
        columns: *mut f32,
        stride: usize,
    ) {
        for word in 0..4 {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let pair = s.f16_of_words(words[word]);
                s.store_at(pair[0], columns.add(2 * word * stride));
                s.store_at(pair[1], columns.add((2 * word + 1) * stride));
            }
        }
    }
}

impl KvElement for Bf16 {
    const COLUMNS: usize = 8;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        2 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { plain::<S, Bf16>(s, slot.cast::<<Bf16 as Element>::Bits>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(
        s: S,
        _: &[*const u8; LANES],
        words: [S::V; 4],
        _: usize,
        columns: *mut f32,
        stride: usize,
    ) {
        for word in 0..4 {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let pair = s.bf16_of_words(words[word]);
                s.store_at(pair[0], columns.add(2 * word * stride));
                s.store_at(pair[1], columns.add((2 * word + 1) * stride));
            }
        }
    }
}

impl KvElement for Q8 {
    const COLUMNS: usize = 16;

    #[inline(always)]
    fn offset(head_dim: usize, d: usize) -> usize {
        2 * head_dim.div_ceil(KvDType::SCALED) + d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, slot: *const u8, head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller; 16 lanes from a multiple of 16 share one scale.
        unsafe {
            let scale = f32::from_bits(u32::from(scale_bits(slot, d)) << 16);
            let integers = slot.add(Self::offset(head_dim, d)).cast::<i8>();
            let integers = if count == LANES {
                s.load_i8(&*integers.cast())
            } else {
                let mut part = [0i8; LANES];
                std::ptr::copy_nonoverlapping(integers, part.as_mut_ptr(), count);
                s.load_i8(&part)
            };
            s.mul(integers, s.splat(scale))
        }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(
        s: S,
        slots: &[*const u8; LANES],
        words: [S::V; 4],
        d: usize,
        columns: *mut f32,
        stride: usize,
    ) {
        let mut scales = [[0; 2]; LANES];
        // SAFETY: guaranteed by the caller.
        unsafe {
            for slot in 0..LANES {
                scales[slot] = scale_bits(slots[slot], d).to_ne_bytes();
            }
            let scales = s.load_bf16(&scales);
            for word in 0..4 {
                let four = s.i8_of_words(words[word]);
                for byte in 0..4 {
                    s.store_at(s.mul(four[byte], scales), columns.add((4 * word + byte) * stride));
                }
            }
        }
    }
}

/// Returns the bits of the bf16 scale of element `d`.
///
/// # Safety
/// `slot` is a readable slot of [`Q8`], and has an element `d`.
#[inline(always)]
unsafe fn scale_bits(slot: *const u8, d: usize) -> u16 {
    // SAFETY: guaranteed by the caller; the read is unaligned.
    unsafe { slot.cast::<u16>().add(d / KvDType::SCALED).read_unaligned() }
}

/// Loads `count` elements of a plain type, and sets the other lanes to zero.
///
/// # Safety
/// `count <= LANES` elements are readable at `from`, at any address.
#[inline(always)]
unsafe fn plain<S: Lanes, E: Element>(s: S, from: *const E::Bits, count: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe { if count == LANES { E::load(s, &*from.cast()) } else { load_part::<S, E>(s, from, count) } }
}
