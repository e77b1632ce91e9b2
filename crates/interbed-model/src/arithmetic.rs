//! Which results are those of this program.

/// Changes whenever any result may differ in any bit, at any level of instructions, from what it was: KV that another
/// revision has computed is not this one's. A test holds digests of logits against it.
pub const ARITHMETIC_REVISION: u32 = 1;

/// The levels of instructions whose digests were recorded, by name. What others compute, and GPUs, may change without
/// another revision.
pub const RECORDED_LEVELS: &[&str] = &["avx2", "portable"];
