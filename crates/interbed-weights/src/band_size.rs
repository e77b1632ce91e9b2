//! How large the bands are that matrices are cut into.

/// The smallest bands that matrices are cut into, in bytes; what the least budget is counted with.
pub const BAND_LEAST: usize = 256 << 10;

/// Bands pass through several slots, which together should take no more than one part in this many of the budget.
const BAND_SHARE: u64 = 64;

/// Bands as large as a read should be, if the `budget`, in bytes, has room for the slots that they pass through.
/// `least` tells the least budget that bands of a size need.
///
/// # Errors
/// The errors of `least`.
pub fn band_bytes<E>(
    budget: u64,
    chunk_bytes: usize,
    mut least: impl FnMut(usize) -> Result<u64, E>,
) -> Result<usize, E> {
    let affordable = usize::try_from(budget / BAND_SHARE).unwrap_or(usize::MAX);
    let mut bytes = chunk_bytes.min(affordable).max(BAND_LEAST);
    // If much is always in memory, smaller bands may be needed; the smallest fit in any accepted budget.
    while bytes > BAND_LEAST && least(bytes)? > budget {
        bytes = (bytes / 2).max(BAND_LEAST);
    }
    Ok(bytes)
}
