//! Every kernel against a plain f64 reference, at every level of this machine, and the promise that everything rests
//! on: a token's result does not depend on its company.

mod attention;
mod bands;
mod coded;
mod fp8;
mod matmul;
mod pool;
mod probe;
mod quantized;
mod quantized_product;
mod rows;
mod store_kv;
mod support;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tile_emulator;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
