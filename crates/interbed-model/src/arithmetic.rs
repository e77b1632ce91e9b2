//! Which results are those of this program.

/// Revision number of the engine's arithmetic. It must be increased whenever any result changes in any bit at one of
/// the [`RECORDED_LEVELS`]. Stored KV that was computed under another revision is not used. A test finds such changes:
/// it compares digests of logits with recorded digests.
pub const ARITHMETIC_REVISION: u32 = 1;

/// Names of the instruction-set levels for which digests of logits are recorded. Results at other levels and on GPUs
/// may change without a new [`ARITHMETIC_REVISION`].
pub const RECORDED_LEVELS: &[&str] = &["avx2", "portable"];
