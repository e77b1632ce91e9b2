//! File I/O: exact reads, direct reads in the background, atomic writes, and errors that name the file and the figures.
//!
//! A read either fills its buffer or reports what was wanted, what was read, and from where. A short read never returns
//! a buffer whose rest is stale. There are two interfaces. Formats use [`RandomAccessFile`], which reads headers and
//! single tensors through the page cache. Streaming weights use [`DirectRead`] with [`ReadEngine`], which reads many
//! whole blocks at a time past the page cache. [`SwapFile`] is space on a disk that is written and read in whole blocks
//! ([`DirectWrite`]).

mod aligned_buffer;
mod alignment;
mod atomic_writer;
mod bandwidth;
mod block_device;
mod buffer_part;
mod direct_file;
mod direct_read;
mod disk;
mod disk_turns;
mod engine_kind;
mod error;
mod exact_file;
mod fixed_file;
mod identity;
mod private_folder;
mod probe;
mod progress;
mod random_access;
mod read_engine;
mod reader_pool;
mod segment_file;
mod short_slice;
mod swap_file;
pub mod testing;
mod trials;
mod uring_reader;
mod write_target;

pub use aligned_buffer::AlignedBuffer;
pub use alignment::{DIRECT_ALIGN, aligned_superset};
pub use atomic_writer::AtomicWriter;
pub use bandwidth::sequential_bandwidth;
pub use block_device::{block_device_bytes, signature};
pub use buffer_part::BufferPart;
pub use direct_file::DirectFile;
pub use direct_read::{DirectRead, DirectWrite};
pub use disk::disk_bytes_free;
pub use disk_turns::{DiskTurns, Urgency};
pub use engine_kind::EngineKind;
pub use error::{FileChange, IoError};
pub use exact_file::ExactFile;
pub use identity::FileIdentity;
pub use private_folder::PrivateFolder;
pub use probe::{ProbeLimits, ReadSettings, probe};
pub use random_access::RandomAccessFile;
pub use read_engine::{ReadDone, ReadEngine, ReadRequest};
pub use reader_pool::ReaderPool;
pub use segment_file::{SegmentFile, SegmentWrite};
pub use swap_file::{SwapFile, SwapFileError};
pub use uring_reader::UringReader;
pub use write_target::{TargetError, WriteTarget};
