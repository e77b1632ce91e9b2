//! The choice among the engines for background reads.

use std::fmt;

use crate::{IoError, ReadEngine, ReaderPool, UringReader, reader_pool, uring_reader};

/// The engines for background reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// A [`ReaderPool`], whose threads make blocking system calls.
    Pread,
    /// A [`UringReader`], which uses the kernel's io_uring queue. Not every machine allows io_uring.
    Uring,
}

impl EngineKind {
    /// Starts an engine that keeps up to `depth` reads in flight. A `depth` of 0 counts as 1.
    ///
    /// # Errors
    /// Fails with [`IoError::Engine`] if this machine does not allow the engine.
    pub fn start<B>(self, depth: usize) -> Result<Box<dyn ReadEngine<B>>, IoError>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        Ok(match self {
            EngineKind::Pread => Box::new(ReaderPool::new(depth)?),
            EngineKind::Uring => Box::new(UringReader::new(depth)?),
        })
    }

    /// Returns the display name of the engine, which is also its [`ReadEngine::name`].
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Pread => reader_pool::NAME,
            EngineKind::Uring => uring_reader::NAME,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
