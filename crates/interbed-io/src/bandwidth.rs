//! Measures the bandwidth of a disk with sequential direct reads.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{AlignedBuffer, DIRECT_ALIGN, DirectRead, EngineKind, IoError, ReadEngine, ReadRequest};

/// Reads a range of a file once from start to end and returns the bandwidth in bytes per second. The range is widened
/// to whole blocks and cut at the end of the file. `depth` is the number of reads in flight, and `chunk_bytes` is the
/// size of each read. The buffers take `depth` × `chunk_bytes` bytes of memory.
///
/// A range that was read before may give a higher result, because caches of the storage device cannot be bypassed.
///
/// # Errors
/// Fails with [`IoError::Engine`] if the engine is not available. Fails with [`IoError::BadRequest`] if the range is
/// empty, if `chunk_bytes` is not a positive multiple of the block size, or if memory is lacking. Also fails if a read
/// fails.
pub fn sequential_bandwidth(
    file: &Arc<dyn DirectRead>,
    range: Range<u64>,
    engine: EngineKind,
    depth: usize,
    chunk_bytes: usize,
) -> Result<f64, IoError> {
    let mut walk = Walk::new(Arc::clone(file), range, chunk_bytes)?;
    let mut engine = engine.start(depth)?;
    let mut buffers = take_buffers(file.as_ref(), depth.max(1), chunk_bytes)?;
    let bytes_max = walk.bytes();
    let sample = walk.measure(engine.as_mut(), &mut buffers, chunk_bytes, bytes_max, Duration::MAX)?;
    Ok(sample.bytes_per_s())
}

/// The number of bytes read, and the seconds from the first read's start to the last one's end.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// A position in a file, from which reads continue in sequence. Reads wrap around at the end of the range.
pub(crate) struct Walk {
    file: Arc<dyn DirectRead>,
    /// The range of bytes in the file; it starts on a block.
    range: Range<u64>,
    position: u64,
}

impl Sample {
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn add(&mut self, other: Sample) {
        self.bytes += other.bytes;
        self.seconds += other.seconds;
    }
}

impl Walk {
    /// Creates a walk that starts at the beginning of `range`, widened to whole blocks and cut at the file's end. Fails
    /// if there is nothing to read, or if `chunk_bytes` is not a number of whole blocks.
    pub(crate) fn new(file: Arc<dyn DirectRead>, range: Range<u64>, chunk_bytes: usize) -> Result<Self, IoError> {
        let start = range.start / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
        let range = start..range.end.min(file.len());
        let problem = if range.is_empty() {
            "there are no bytes to measure with"
        } else if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(DIRECT_ALIGN) {
            "the chunk is not a number of blocks"
        } else {
            return Ok(Self { file, position: range.start, range });
        };
        let path = file.path().to_owned();
        Err(IoError::BadRequest { path, offset: range.start, len: chunk_bytes, needed: chunk_bytes, problem })
    }

    /// Returns the number of bytes in the range.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Continues to read, with as many reads in flight as there are buffers, until `bytes_max` bytes were requested or
    /// `time_max` has passed; the first read of each buffer is not subject to the time limit. Returns all buffers to
    /// `buffers`.
    pub(crate) fn measure(
        &mut self,
        engine: &mut dyn ReadEngine<AlignedBuffer>,
        buffers: &mut Vec<AlignedBuffer>,
        chunk_bytes: usize,
        bytes_max: u64,
        time_max: Duration,
    ) -> Result<Sample, IoError> {
        let began = Instant::now();
        let (mut asked, mut bytes) = (0, 0);
        let mut times: Option<(Instant, Instant)> = None;
        let mut outcome = Ok(());
        let mut free = std::mem::take(buffers);
        let mut more = true;
        loop {
            while more
                && asked < bytes_max
                && let Some(buffer) = free.pop()
            {
                let request = self.next(buffer, chunk_bytes);
                asked += request.needed as u64;
                engine.submit(request);
            }
            let Some(done) = engine.wait() else { break };
            // The tag is the number of bytes in this read that lie within the file.
            bytes += done.tag;
            free.push(done.buffer);
            let (first, last) = times.unwrap_or((done.started, done.finished));
            times = Some((first.min(done.started), last.max(done.finished)));
            outcome = outcome.and(done.result);
            more = outcome.is_ok() && began.elapsed() < time_max;
        }
        *buffers = free;
        outcome?;
        let seconds = times.map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64());
        Ok(Sample { bytes, seconds })
    }

    fn next(&mut self, buffer: AlignedBuffer, chunk_bytes: usize) -> ReadRequest<AlignedBuffer> {
        if self.position >= self.range.end {
            self.position = self.range.start;
        }
        let offset = self.position;
        let left = usize::try_from(self.range.end - offset).unwrap_or(usize::MAX);
        let needed = left.min(chunk_bytes);
        let len = needed.next_multiple_of(DIRECT_ALIGN);
        self.position = offset.saturating_add(len as u64);
        ReadRequest { tag: needed as u64, file: Arc::clone(&self.file), offset, needed, len, buffer }
    }
}

/// Allocates `count` buffers of `chunk_bytes` bytes for reads of a file.
pub(crate) fn take_buffers(
    file: &dyn DirectRead,
    count: usize,
    chunk_bytes: usize,
) -> Result<Vec<AlignedBuffer>, IoError> {
    let none_left = || {
        let problem = "there is no memory for it";
        IoError::BadRequest { path: file.path().to_owned(), offset: 0, len: chunk_bytes, needed: chunk_bytes, problem }
    };
    let taken = |_| {
        let mut buffer = AlignedBuffer::new_zeroed(chunk_bytes).ok_or_else(none_left)?;
        // The system maps pages when they are first written, which must not count as time of reading.
        buffer.as_mut().fill(0);
        Ok(buffer)
    };
    (0..count).map(taken).collect()
}
