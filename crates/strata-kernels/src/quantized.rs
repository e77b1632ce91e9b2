//! Quantised weights: what the blocks of each type mean, how they are made, and products with them.
//!
//! The types and their layouts are those of GGUF files, bit for bit; `dequantize.rs` draws them.

mod dequantize;
mod fields;
mod quantize;

pub use dequantize::dequantize;
pub use quantize::quantize;
