//! Integration tests of interbed-model, in one binary.

mod arithmetic;
mod below;
mod digests;
mod fuzz;
mod gguf;
mod harness;
mod hidden;
mod invariance;
mod kv_cache;
mod logits;
mod marked_spaces;
mod nested;
mod reference_device;
mod streamed;
mod templates;
mod tokenizers;
mod vocabulary;
mod vulkan;

/// Whether blocks are mapped side by side. The tests run both ways: see `tests/in_strips`.
pub const IN_STRIPS: bool = false;

/// Counts the allocations of a thread inside `assert_no_alloc`.
#[global_allocator]
static ALLOCATOR: assert_no_alloc::AllocDisabler = assert_no_alloc::AllocDisabler;
