//! Tests every kernel against a simple f64 reference, at every level of this machine, and that a token's result does
//! not depend on the batch.

mod attention;
mod bands;
mod coded;
mod convolution;
mod delta_rule;
mod fp8;
mod matmul;
mod pool;
mod probe;
mod quantized;
mod quantized_product;
mod rows;
mod short_convolution;
mod state_space;
mod states;
mod store_kv;
mod support;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tile_emulator;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
