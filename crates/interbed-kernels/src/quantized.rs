//! Handles quantized weights: the block formats of each type, encoding and decoding of blocks, and products with them.
//!
//! The types and their layouts equal those of GGUF files, bit for bit; `dequantize.rs` shows the layouts. Products stay
//! in integers: activations become bytes (`activations.rs`), a type defines how its codes become bytes and what its
//! small fields mean (`formats.rs`), and the arithmetic around that is fixed (`product.rs`), so that any kernel may
//! compute any part of a product.

mod activations;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "tiles are indexed alike in every array")]
mod amx;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "tiles are indexed alike in every array")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "vectors are indexed alike in every array")]
mod collect;
mod dequantize;
mod fields;
mod formats;
mod grids;
mod header;
mod job;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "vectors are indexed alike in every array")]
mod octet;
mod portable;
mod product;
mod quantize;
mod small;
#[cfg(target_arch = "x86_64")]
mod spans;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "tiles are indexed alike in every array")]
mod vnni;

pub use dequantize::dequantize;
pub use quantize::quantize;

pub(crate) use activations::{Group, Layout};
pub(crate) use product::{PreparedBytes, prepare, rows, scratch_bytes};
