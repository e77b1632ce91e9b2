//! Buffers, arenas, budgets, and what the operating system says of memory and cores.

mod arena;
mod budget;
mod buffer;
mod bytes;
mod cores;
mod cpu;
mod kv_pool;
mod memory;

pub use arena::{Arena, ArenaFull, Frame};
pub use budget::{Budget, OverBudget};
pub use buffer::{AllocError, HostBuffer};
pub use bytes::{BadSize, Bytes};
pub use cores::usable_cores;
pub use cpu::CpuDevice;
pub use kv_pool::KvPool;
pub use memory::{HostMemory, peak_resident};
