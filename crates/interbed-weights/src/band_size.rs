//! Computes how large the bands are that matrices are cut into.

/// Smallest size of a band, in bytes. A band is a run of a matrix's rows that is read at once. The minimum memory
/// budget is computed with this size.
pub const BAND_LEAST: usize = 256 << 10;

/// The inverse of the share of the budget that the memory buffers for reading bands should take at most.
const BAND_SHARE: u64 = 64;

/// Returns the size of a band in bytes. A band is a run of a matrix's rows that is read at once. The size is at most
/// `chunk_bytes`, the best size for a read. If `budget` (in bytes) has too little room for bands of this size, the
/// returned size is smaller, but never below [`BAND_LEAST`]. `least` returns the minimum budget, in bytes, for bands of
/// a given size.
///
/// # Errors
/// Fails if `least` fails.
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
