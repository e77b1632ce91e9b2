//! Which results are those of this program.

/// Revision number of the engine's arithmetic. Every change that alters any bit of a result at one of the
/// [`RECORDED_LEVELS`] must increase this number. A test detects such changes: it compares digests of logits with
/// recorded digests. The engine does not use stored KV that was computed under another revision.
pub const ARITHMETIC_REVISION: u32 = 2;

/// Names of the instruction-set levels for which digests of logits are recorded. Results at other levels and on GPUs
/// may change without a new [`ARITHMETIC_REVISION`].
pub const RECORDED_LEVELS: &[&str] = &["avx2", "portable"];
