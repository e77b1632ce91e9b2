//! The CPU kernels: operations on slices with SIMD that is selected at run time, and the thread pool that they share.
//!
//! **Invariant: results are batch-invariant.** The order of every sum is fixed by the model's shape and the token's
//! position, never by batch size, chunking or thread count. Everything that later compares tokens (cached, swapped,
//! streamed, spilled) relies on this.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
#[expect(clippy::needless_range_loop, reason = "rows and lanes index several arrays alike")]
mod attention;
mod block_groups;
mod block_range;
mod cache;
mod coded;
mod convolution;
#[expect(clippy::needless_range_loop, reason = "chains and vectors are indexed alike in every array")]
mod delta_rule;
mod dtype;
mod elementwise;
mod fp8;
mod kv;
mod kv_memory;
mod kv_view;
mod level;
#[expect(clippy::needless_range_loop, reason = "tiles are indexed alike in every array")]
mod matmul;
mod matrix;
mod norm;
mod pool;
mod probe;
mod quantized;
mod rope;
mod share;
mod short_convolution;
mod simd;
mod state;
mod state_slices;
#[expect(clippy::needless_range_loop, reason = "chains and vectors are indexed alike in every array")]
mod state_space;
mod store_kv;
mod subgroups;
#[cfg(target_arch = "x86_64")]
mod transpose;

pub use activations::{Activations, PreparedForm};
pub use attention::{ATTENTION_STATE, AttentionLayer, AttentionSpan, RUN, STRETCH, attention, attention_scratch};
pub use block_groups::{BlockGroup, BlockGroups, GroupLayout};
pub use coded::{encode_row, patches_of};
pub use convolution::{TAPS_MAX, convolve};
pub use delta_rule::{DecayForm, DeltaOperands, DeltaRule, KeySharing, delta_rule};
pub use dtype::DType;
pub use elementwise::{Activation, activate, add_scaled, cap, combine_rows, gated_activation, gather_rows, scale};
pub use fp8::join_scales;
pub use kv::{KvDType, KvLayer, KvLayout, KvShape};
pub use kv_memory::{KvBytes, KvBytesMut};
pub use kv_view::{KvPlace, KvRun, KvView};
pub use level::{LEVEL_VARIABLE, Level};
pub use matmul::{Columns, Product, matmul, matmul_gated};
pub use matrix::Matrix;
pub use norm::{add_and_norm, rms_norm, rms_norm_groups, rms_norm_heads};
pub use pool::Pool;
pub use probe::{Unit, peak, read_bandwidth};
pub use quantized::{dequantize, quantize};
pub use rope::{RopeStyle, rope};
pub use short_convolution::{ShortConvolutionOperands, short_convolution};
pub use state::{StateLayer, StateLayout, StateShape, StateSpan};
pub use state_space::{StateSpace, StateSpaceOperands, state_space};
pub use store_kv::{Rotation, rotate, rotate_and_store};
pub use subgroups::{SubgroupActivations, SubgroupOrder};

pub(crate) use share::Share;
