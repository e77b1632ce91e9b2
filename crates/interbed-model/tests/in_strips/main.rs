//! Those tests of `tests/it` that compute with blocks in a pool, with blocks that are mapped side by side.

#[path = "../it/harness.rs"]
mod harness;
#[path = "../it/invariance.rs"]
mod invariance;
#[path = "../it/logits.rs"]
mod logits;
#[path = "../it/streamed.rs"]
mod streamed;

/// Whether blocks are mapped side by side.
pub const IN_STRIPS: bool = true;

/// Counts the allocations of a thread inside `assert_no_alloc`.
#[global_allocator]
static ALLOCATOR: assert_no_alloc::AllocDisabler = assert_no_alloc::AllocDisabler;
