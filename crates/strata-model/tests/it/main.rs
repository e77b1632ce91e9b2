//! Integration tests of strata-model, in one binary.

mod gguf;
mod harness;
mod invariance;
mod kv_cache;
mod logits;
mod reference_device;
mod streamed;
mod templates;

/// Counts allocations of the thread that asks for it.
#[global_allocator]
static ALLOCATOR: assert_no_alloc::AllocDisabler = assert_no_alloc::AllocDisabler;
