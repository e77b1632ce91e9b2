//! Reads in the background: requests go in, completions come out, buffers travel by value.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::{DirectRead, IoError};

/// Reads in the background. Buffers move in and come back by value, so that nobody can touch one in flight; `B` gives
/// the same memory each time it is asked for.
///
/// Dropping an engine drops what is queued, and waits for the reads that are in flight.
pub trait ReadEngine<B>: Send {
    /// Takes a request and returns at once. As many as the engine's depth are read at a time, begun in order of
    /// submission; the rest queue. A request that cannot be done comes back as a completion with its error.
    fn submit(&mut self, request: ReadRequest<B>);

    /// A completion, if there is one.
    fn poll(&mut self) -> Option<ReadDone<B>>;

    /// Waits for a completion; `None` if nothing is in flight.
    fn wait(&mut self) -> Option<ReadDone<B>>;

    /// Requests that were submitted and have not been handed back.
    fn in_flight(&self) -> usize;

    /// The engine's name for people.
    fn name(&self) -> &'static str;
}

/// One read: `len` bytes at `offset` into the front of `buffer`, at least the first `needed` of which must come. The
/// rules are those of [`DirectRead::read_aligned_at`].
pub struct ReadRequest<B> {
    /// The caller's name for the read; comes back with the completion.
    pub tag: u64,
    /// What is read.
    pub file: Arc<dyn DirectRead>,
    /// Where the read begins, in bytes from the file's start.
    pub offset: u64,
    /// Bytes that must come.
    pub needed: usize,
    /// Bytes to read.
    pub len: usize,
    /// Where they go; at least `len` bytes.
    pub buffer: B,
}

/// A read that has ended.
pub struct ReadDone<B> {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer. After a failure its content is unspecified.
    pub buffer: B,
    /// Whether the bytes needed came.
    pub result: Result<(), IoError>,
    /// When the read began, having waited its turn.
    pub started: Instant,
    /// When it ended.
    pub finished: Instant,
}

impl<B: AsMut<[u8]>> ReadRequest<B> {
    /// Does the read on this thread. A panic in it becomes an error.
    pub(crate) fn read_here(self) -> ReadDone<B> {
        let Self { tag, file, offset, needed, len, mut buffer } = self;
        let started = Instant::now();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let part = front(&mut buffer, len, file.as_ref(), offset, needed)?;
            file.read_aligned_at(part, offset, needed)
        }));
        let result = read.unwrap_or_else(|panic| {
            let message = message_of(panic.as_ref());
            Err(IoError::Panicked { path: file.path().to_owned(), offset, message })
        });
        ReadDone { tag, buffer, result, started, finished: Instant::now() }
    }
}

/// The part of a buffer that is read into.
pub(crate) fn front<'a, B: AsMut<[u8]>>(
    buffer: &'a mut B,
    len: usize,
    file: &dyn DirectRead,
    offset: u64,
    needed: usize,
) -> Result<&'a mut [u8], IoError> {
    buffer.as_mut().get_mut(..len).ok_or_else(|| {
        let problem = "the buffer is shorter than the read";
        IoError::BadRequest { path: file.path().to_owned(), offset, len, needed, problem }
    })
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
