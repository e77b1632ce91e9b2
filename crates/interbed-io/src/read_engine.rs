//! Reads in the background: callers submit requests and receive completions, and buffers are passed by value.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::{DirectRead, IoError};

/// An engine that reads files in the background. The caller passes each buffer by value and receives it back with the
/// completion, so that nothing else can access the buffer during the read. `B::as_mut` must return the same memory each
/// time.
///
/// Dropping an engine discards the queued requests and waits for the reads in flight.
pub trait ReadEngine<B>: Send {
    /// Submits a request and returns at once. The engine reads up to its depth of requests concurrently and begins them
    /// in order of submission; the rest are queued. An impossible request comes back as a completion with its error.
    fn submit(&mut self, request: ReadRequest<B>);

    /// Returns a completion, if one is available.
    fn poll(&mut self) -> Option<ReadDone<B>>;

    /// Waits for a completion. Returns `None` if nothing is in flight.
    fn wait(&mut self) -> Option<ReadDone<B>>;

    /// Returns the number of requests that were submitted and have not come back.
    fn in_flight(&self) -> usize;

    /// Returns the display name of the engine.
    fn name(&self) -> &'static str;
}

/// A request to read `len` bytes at `offset` into the beginning of `buffer`. The read must deliver at least the first
/// `needed` bytes. The requirements of [`DirectRead::read_aligned_at`] apply.
pub struct ReadRequest<B> {
    /// The caller's id for the read. The completion contains the id.
    pub tag: u64,
    /// The file to read.
    pub file: Arc<dyn DirectRead>,
    /// Offset at which the read begins, in bytes.
    pub offset: u64,
    /// Minimum number of bytes that the read must deliver.
    pub needed: usize,
    /// Number of bytes to read.
    pub len: usize,
    /// Destination of the bytes; its length is at least `len` bytes.
    pub buffer: B,
}

/// A read that has succeeded or failed.
pub struct ReadDone<B> {
    /// The `tag` of the request.
    pub tag: u64,
    /// The buffer of the request. After a failure its content is unspecified.
    pub buffer: B,
    /// `Ok` if at least the needed bytes were read.
    pub result: Result<(), IoError>,
    /// The time at which the read left the queue and began.
    pub started: Instant,
    /// The time at which the read ended.
    pub finished: Instant,
}

impl<B: AsMut<[u8]>> ReadRequest<B> {
    /// Executes the read on this thread. A panic in the read becomes an error.
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

/// Returns the front part of a buffer, into which the bytes are read.
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

/// Returns the message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
