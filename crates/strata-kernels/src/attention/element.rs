//! How the elements of a slot become f32 lanes. Every widening is exact.

use super::lanes::Lanes;
use crate::KvDType;
use crate::simd::{Bf16, Element, F16, F32, LANES, load_part};

/// Integers with a scale for each [`KvDType::SCALED`]. An integer of 8 bits times a scale of 8 bits is exact in f32.
#[derive(Clone, Copy)]
pub(crate) struct Q8;

/// One of the types that keys and values are kept in.
///
/// # Safety
/// `slot` is a readable slot of `head_dim` elements in every method, and the level's instructions exist.
pub(crate) unsafe trait KvElement: Copy {
    /// Elements of 16 bytes.
    const COLUMNS: usize;

    /// Where element `d` lies in a slot, in bytes.
    fn offset(head_dim: usize, d: usize) -> usize;

    /// Elements `d .. d + count`, the other lanes zero; `d` is a multiple of [`LANES`].
    ///
    /// # Safety
    /// `count <= LANES` and `d + count <= head_dim`.
    unsafe fn load<S: Lanes>(slot: *const u8, head_dim: usize, d: usize, count: usize) -> S::V;

    /// Writes elements `d .. d + COLUMNS` of sixteen slots, given as `words`, to `[COLUMNS]` vectors `stride` apart.
    ///
    /// # Safety
    /// The vectors are writable; `d < head_dim` is a multiple of `COLUMNS`.
    unsafe fn spread<S: Lanes>(
        slots: &[*const u8; LANES],
        words: [S::V; 4],
        d: usize,
        columns: *mut f32,
        stride: usize,
    );
}

// SAFETY: reads what its contract allows.
unsafe impl KvElement for F32 {
    const COLUMNS: usize = 4;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        4 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { plain::<S, F32>(slot.cast::<f32>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(_: &[*const u8; LANES], words: [S::V; 4], _: usize, columns: *mut f32, stride: usize) {
        for word in 0..4 {
            // SAFETY: the caller's promise.
            unsafe { S::store(words[word], columns.add(word * stride)) };
        }
    }
}

// SAFETY: reads what its contract allows.
unsafe impl KvElement for F16 {
    const COLUMNS: usize = 8;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        2 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { plain::<S, F16>(slot.cast::<u16>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(_: &[*const u8; LANES], words: [S::V; 4], _: usize, columns: *mut f32, stride: usize) {
        for word in 0..4 {
            // SAFETY: the caller's promise.
            unsafe {
                let pair = S::f16_of_words(words[word]);
                S::store(pair[0], columns.add(2 * word * stride));
                S::store(pair[1], columns.add((2 * word + 1) * stride));
            }
        }
    }
}

// SAFETY: reads what its contract allows.
unsafe impl KvElement for Bf16 {
    const COLUMNS: usize = 8;

    #[inline(always)]
    fn offset(_head_dim: usize, d: usize) -> usize {
        2 * d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(slot: *const u8, _head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { plain::<S, Bf16>(slot.cast::<u16>().wrapping_add(d), count) }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(_: &[*const u8; LANES], words: [S::V; 4], _: usize, columns: *mut f32, stride: usize) {
        for word in 0..4 {
            // SAFETY: the caller's promise.
            unsafe {
                let pair = S::bf16_of_words(words[word]);
                S::store(pair[0], columns.add(2 * word * stride));
                S::store(pair[1], columns.add((2 * word + 1) * stride));
            }
        }
    }
}

// SAFETY: reads what its contract allows.
unsafe impl KvElement for Q8 {
    const COLUMNS: usize = 16;

    #[inline(always)]
    fn offset(head_dim: usize, d: usize) -> usize {
        2 * head_dim.div_ceil(KvDType::SCALED) + d
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(slot: *const u8, head_dim: usize, d: usize, count: usize) -> S::V {
        // SAFETY: the caller's promise; 16 lanes from a multiple of 16 lie under one scale.
        unsafe {
            let scale = f32::from_bits(u32::from(scale_bits(slot, d)) << 16);
            let integers = slot.add(Self::offset(head_dim, d)).cast::<i8>();
            let integers = if count == LANES {
                S::load_i8(integers)
            } else {
                let mut part = [0i8; LANES];
                std::ptr::copy_nonoverlapping(integers, part.as_mut_ptr(), count);
                S::load_i8(part.as_ptr())
            };
            S::mul(integers, S::splat(scale))
        }
    }

    #[inline(always)]
    unsafe fn spread<S: Lanes>(
        slots: &[*const u8; LANES],
        words: [S::V; 4],
        d: usize,
        columns: *mut f32,
        stride: usize,
    ) {
        let mut scales = [0u16; LANES];
        // SAFETY: the caller's promise.
        unsafe {
            for slot in 0..LANES {
                scales[slot] = scale_bits(slots[slot], d);
            }
            let scales = S::load_bf16(scales.as_ptr());
            for word in 0..4 {
                let four = S::i8_of_words(words[word]);
                for byte in 0..4 {
                    S::store(S::mul(four[byte], scales), columns.add((4 * word + byte) * stride));
                }
            }
        }
    }
}

/// # Safety
/// `slot` is a readable slot of [`Q8`], and has an element `d`.
#[inline(always)]
unsafe fn scale_bits(slot: *const u8, d: usize) -> u16 {
    // SAFETY: the caller's promise; unaligned.
    unsafe { slot.cast::<u16>().add(d / KvDType::SCALED).read_unaligned() }
}

/// # Safety
/// `count <= LANES` elements are readable at `from`; the level's instructions exist.
#[inline(always)]
unsafe fn plain<S: Lanes, E: Element>(from: *const E::Bits, count: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { if count == LANES { E::load::<S>(from) } else { load_part::<S, E>(from, count) } }
}
