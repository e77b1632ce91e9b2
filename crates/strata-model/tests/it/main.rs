//! Integration tests of strata-model, in one binary.

mod below;
mod fuzz;
mod gguf;
mod harness;
mod invariance;
mod kv_cache;
mod logits;
mod reference_device;
mod streamed;
mod templates;

/// Counts the allocations of a thread inside `assert_no_alloc`.
#[global_allocator]
static ALLOCATOR: assert_no_alloc::AllocDisabler = assert_no_alloc::AllocDisabler;
