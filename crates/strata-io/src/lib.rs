//! Reading and writing files at the edges: exact reads, atomic writes, every fault named with its file and figures.
//!
//! A read either fills its buffer or says what was wanted, what came, and from where; plausible garbage from a short
//! read never gets out of here. [`RandomAccessFile`] is the seam where later direct I/O, throttled and faulty files
//! plug in.

mod atomic_writer;
mod block_device;
mod disk;
mod error;
mod exact_file;
mod random_access;
mod write_target;

pub use atomic_writer::AtomicWriter;
pub use block_device::{block_device_bytes, signature};
pub use disk::disk_bytes_free;
pub use error::IoError;
pub use exact_file::ExactFile;
pub use random_access::RandomAccessFile;
pub use write_target::{TargetError, WriteTarget};
