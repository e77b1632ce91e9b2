//! Runs the threads of a store: one that writes records, those of swaps before others, and a few that read records.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DiskTurns, IoError, SegmentWrite, Urgency};
use interbed_kv::{BlockKey, BlockLabel, RecordPlace, TokenId};
use xxhash_rust::xxh3::xxh3_64;

use crate::directory::SegmentSpace;
use crate::job_queue::JobQueue;
use crate::jobs::{Blocks, Done, Expected, PieceDone, PieceJob, Read, ReadJob, WriteFailure, WriteJob, now};
use crate::record::{Header, Seal, clear_gaps, nameless_parent, pack};
use crate::shape::RecordShape;

const WRITER: &str = "interbed-kv-write";
const READER: &str = "interbed-kv-read";

/// Number of records after which the records written so far are synced to the disk, if more records are to come.
const SYNC_AFTER: usize = 16;

/// Error numbers of a disk that is full, and of a quota that is used up.
const FULL: [i32; 2] = [28, 122];

/// Maximum number of segments that are kept open.
const OPEN_MAX: usize = 64;

/// Data that all threads share.
struct Shared {
    space: Arc<dyn SegmentSpace>,
    shape: RecordShape,
    seal: Seal,
    segment_bytes: u64,
    /// Whether segments have headers, by which a later process finds their records.
    has_headers: bool,
    open: Mutex<HashMap<u32, Arc<dyn SegmentWrite>>>,
    /// Age in seconds above which records are not read; `None` for no limit.
    ttl: Option<u64>,
}

/// Starts the threads of a store, and gives them jobs. The threads finish the jobs that were submitted before this
/// value is dropped.
pub(crate) struct Workers {
    /// Reads. Those for a pass come first, then those for sequences that wait.
    reads: Arc<JobQueue<Read>>,
    /// Writes. Records of blocks that are swapped out come first, because sequences wait for the memory that they free.
    writes: Arc<JobQueue<WriteJob>>,
    /// Turns at the disk, which tell what other users of the disk wait for.
    turns: Arc<DiskTurns>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts a thread that writes and `readers` threads that read.
    pub(crate) fn start(
        (space, shape, seal): (Arc<dyn SegmentSpace>, RecordShape, Seal),
        (segment_bytes, has_headers): (u64, bool),
        ttl: Option<u64>,
        (turns, readers): (Arc<DiskTurns>, usize),
    ) -> std::io::Result<(Self, Receiver<PieceDone>)> {
        let shared = Shared { space, shape, seal, segment_bytes, has_headers, open: Mutex::default(), ttl };
        let shared = Arc::new(shared);
        let (sender, done) = channel();
        let (frames_sender, frames) = channel();
        let (reads, writes) = (Arc::new(JobQueue::new()), Arc::new(JobQueue::new()));
        let threads = Vec::with_capacity(1 + readers);
        let mut workers = Self { reads: Arc::clone(&reads), writes: Arc::clone(&writes), turns, done, threads };
        let (to_write, turns, written) = (Arc::clone(&shared), Arc::clone(&workers.turns), sender.clone());
        workers.spawn(WRITER, move || to_write.write_all(&writes, &turns, &written))?;
        for _ in 0..readers {
            let (to_read, jobs, turns) = (Arc::clone(&shared), Arc::clone(&reads), Arc::clone(&workers.turns));
            let (sender, frames) = (sender.clone(), frames_sender.clone());
            workers.spawn(READER, move || to_read.read_all(&jobs, &turns, &sender, &frames))?;
        }
        Ok((workers, frames))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    pub(crate) fn write(&self, job: WriteJob) {
        let is_urgent = matches!(job.blocks, Blocks::Swapped { .. });
        self.writes.add([job], is_urgent);
    }

    pub(crate) fn read(&self, job: ReadJob) {
        self.turns.begin(Urgency::Sequence, 1);
        self.reads.add([Read::Record(job)], false);
    }

    pub(crate) fn read_pieces(&self, jobs: Vec<PieceJob>) {
        self.turns.begin(Urgency::Pass, jobs.len());
        self.reads.add(jobs.into_iter().map(Read::Piece), true);
    }

    /// Returns a job that is done, if there is one within `wait`.
    pub(crate) fn done(&self, wait: Duration) -> Option<Done> {
        if wait.is_zero() { self.done.try_recv().ok() } else { self.done.recv_timeout(wait).ok() }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Nobody needs what is swapped out any more.
        self.writes.close(true);
        self.reads.close(false);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn write_all(&self, writes: &JobQueue<WriteJob>, turns: &DiskTurns, done: &Sender<Done>) {
        let (unsynced, headed) = (Vec::new(), HashMap::new());
        let mut writer = Writer { shared: self, record: None, unsynced, blocks: 0, headed, broken: None };
        loop {
            let job = writes.try_next().or_else(|| {
                writer.sync(done);
                writes.next()
            });
            let Some(mut job) = job else { break };
            turns.give_way(match job.blocks {
                // Others wait for the blocks.
                Blocks::Swapped { .. } => Urgency::Sequence,
                Blocks::Staged(_) => Urgency::Nobody,
            });
            // A bug must not leave a write pending for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| writer.write(&mut job)))
                .unwrap_or_else(|_| Err("writing a record panicked".into()));
            if let Err(failure) = &outcome
                && self.has_headers
            {
                writer.broken = Some((job.record.segment, job.record.generation, failure.clone()));
            }
            if done.send(Done::Written { job, outcome }).is_err() {
                break;
            }
            if writer.unsynced.len() >= SYNC_AFTER {
                writer.sync(done);
            }
        }
        writer.sync(done);
    }

    fn read_all(&self, jobs: &JobQueue<Read>, turns: &DiskTurns, done: &Sender<Done>, frames: &Sender<PieceDone>) {
        let mut area = None;
        while let Some(read) = jobs.next() {
            // Nobody listens any more when the store is being closed.
            let is_heard = match read {
                Read::Record(mut job) => {
                    turns.give_way(Urgency::Sequence);
                    let began = Instant::now();
                    let outcome = catch_unwind(AssertUnwindSafe(|| self.read(&mut job)))
                        .unwrap_or_else(|_| Err("reading a record panicked".to_owned()));
                    turns.end(Urgency::Sequence);
                    done.send(Done::Read { job, outcome, seconds: began.elapsed().as_secs_f64() }).is_ok()
                }
                Read::Piece(mut job) => {
                    // A pass that fails costs much more than a second look.
                    let mut read = || {
                        self.read_piece(&mut job, &mut area).or_else(|reason| {
                            tracing::warn!("{reason}: it is read once more");
                            self.read_piece(&mut job, &mut area)
                        })
                    };
                    let outcome = catch_unwind(AssertUnwindSafe(&mut read))
                        .unwrap_or_else(|_| Err("reading KV panicked".to_owned()));
                    turns.end(Urgency::Pass);
                    frames.send(PieceDone { job, outcome }).is_ok()
                }
            };
            if !is_heard {
                return;
            }
        }
    }

    /// Reads one layer's part of a piece, and checks it. `area` is memory to read into if the part cannot be read in
    /// place.
    fn read_piece(&self, job: &mut PieceJob, area: &mut Option<AlignedBuffer>) -> Result<(), String> {
        let PieceJob { layer, pieces, index, part: into, .. } = job;
        let (piece, layer, into) = (&pieces[*index], *layer, into.as_mut());
        let (record, count) = (piece.record, usize::from(piece.record.count));
        let file = self.segment(record.segment, false).map_err(|error| error.to_string())?;
        let place = || format!("the record at {} of {}", record.offset, file.path().display());
        let (begin, part) = self.shape.runs(count).nth(layer).ok_or("there is no such layer")?;
        let area = match area {
            Some(area) => area,
            empty => {
                let area = AlignedBuffer::new_zeroed(self.shape.room_to_read());
                empty.insert(area.ok_or("there is no memory to read into")?)
            }
        };
        let area = area.as_mut();
        if piece.sums.get().is_none() {
            let header = self.shape.header_bytes(count);
            let bytes = &mut area[..header];
            file.read_aligned_at(bytes, record.offset, header).map_err(|error| error.to_string())?;
            let header = self.seal.read_header(&self.shape, bytes).map_err(|_| format!("{} is damaged", place()))?;
            self.check(record, &piece.expected, &header, self.ttl).map_err(|reason| format!("{} {reason}", place()))?;
            let _ = piece.sums.set(header.into_sums());
        }
        let sum = piece.sums.get().and_then(|sums| sums.get(layer)).ok_or("there is no such layer")?;
        let (whole, used) = ((count * part).next_multiple_of(DIRECT_ALIGN), count * part);
        let offset = record.offset + begin as u64;
        let is_aligned = into.as_ptr().addr().is_multiple_of(DIRECT_ALIGN);
        if piece.expected.len() == count && whole == used && is_aligned {
            file.read_aligned_at(into, offset, used).map_err(|error| error.to_string())?;
            return if xxh3_64(into) == *sum { Ok(()) } else { Err(format!("{} is damaged", place())) };
        }
        let run = &mut area[..whole];
        file.read_aligned_at(run, offset, used).map_err(|error| error.to_string())?;
        if xxh3_64(&run[..used]) != *sum {
            return Err(format!("{} is damaged", place()));
        }
        let first = piece.expected.first().map_or(0, |expected| usize::from(expected.index)) * part;
        into.copy_from_slice(&run[first..first + into.len()]);
        Ok(())
    }

    /// Checks that `header` is that of the record that was wanted, and not older than `ttl` seconds. The error says
    /// what is wrong.
    fn check(
        &self,
        record: RecordPlace,
        expected: &[Expected],
        header: &Header,
        ttl: Option<u64>,
    ) -> Result<(), &'static str> {
        if header.generation != record.generation || header.labels.len() != usize::from(record.count) {
            return Err("was overwritten");
        }
        if ttl.is_some_and(|ttl| now().saturating_sub(header.written_at) > ttl) {
            return Err("is too old");
        }
        let is_there = |Expected { index, key, content }: &Expected| {
            let is_it = |label: &&BlockLabel| {
                label.key == *key && (*key != BlockKey::NAMELESS || label.parent == nameless_parent(record))
            };
            let label = header.labels.get(usize::from(*index)).filter(is_it);
            let same = |(parent, tokens): &(BlockKey, Box<[TokenId]>)| {
                label.is_some_and(|label| label.parent == *parent && label.tokens == *tokens)
            };
            label.is_some() && content.as_ref().is_none_or(same)
        };
        if expected.iter().all(is_there) { Ok(()) } else { Err("holds other tokens") }
    }

    /// Reads a record, and checks that it is the one that was wanted.
    fn read(&self, job: &mut ReadJob) -> Result<Header, String> {
        let ReadJob { record, expected, buffer, may_be_old, .. } = job;
        let ttl = self.ttl.filter(|_| !*may_be_old);
        let count = usize::from(record.count);
        let bytes = buffer.as_mut().get_mut(..self.shape.record_bytes(count)).ok_or("the record is too long")?;
        let file = self.segment(record.segment, false).map_err(|error| error.to_string())?;
        let len = bytes.len();
        file.read_aligned_at(bytes, record.offset, len).map_err(|error| error.to_string())?;
        let place = || format!("the record at {} of {}", record.offset, file.path().display());
        let header = self.seal.read_header(&self.shape, bytes).map_err(|_| format!("{} is damaged", place()))?;
        self.check(*record, expected, &header, ttl).map_err(|reason| format!("{} {reason}", place()))?;
        match header.runs_are_whole(&self.shape, bytes) {
            true => Ok(header),
            false => Err(format!("{} is damaged", place())),
        }
    }

    fn segment(&self, number: u32, create: bool) -> Result<Arc<dyn SegmentWrite>, IoError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = match create {
            true => self.space.create(number, self.segment_bytes)?,
            false => self.space.open(number)?,
        };
        if open.len() >= OPEN_MAX
            && let Some(&other) = open.keys().next()
        {
            open.remove(&other);
        }
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }
}

/// State of the thread that writes.
struct Writer<'a> {
    shared: &'a Shared,
    /// Memory in which records are put together.
    record: Option<AlignedBuffer>,
    /// Segments with records that may not be on the disk yet, one for each record.
    unsynced: Vec<Arc<dyn SegmentWrite>>,
    /// Number of blocks with names in the records that may not be on the disk yet.
    blocks: u64,
    /// Generation in the header that was last written to each segment. [segment]
    headed: HashMap<u32, u64>,
    /// Segment and generation in which a write has failed, and why. Recovery would not find records behind the failed
    /// one.
    broken: Option<(u32, u64, WriteFailure)>,
}

impl Writer<'_> {
    fn write(&mut self, WriteJob { record, blocks }: &mut WriteJob) -> Result<(), WriteFailure> {
        let Shared { shape, seal, .. } = self.shared;
        if let Some((segment, generation, failure)) = &self.broken
            && (*segment, *generation) == (record.segment, record.generation)
        {
            return Err(failure.clone());
        }
        let (count, written_at) = (usize::from(record.count), blocks.written_at());
        // For a segment that was removed from outside, a new one is made.
        let file = self.shared.segment(record.segment, true).map_err(|error| match error.errno() {
            Some(errno) if FULL.contains(&errno) => WriteFailure::Full(error.to_string()),
            _ => error.into(),
        })?;
        let (bytes, labels) = match blocks {
            // The blocks lie where they belong.
            Blocks::Swapped { labels, buffer, .. } if shape.is_flat() => (buffer.as_mut(), labels.iter().collect()),
            _ => {
                let room = Self::room(&mut self.record, shape)?;
                let block = |index: usize| match &*blocks {
                    Blocks::Staged(blocks) => &blocks[index].bytes[..],
                    Blocks::Swapped { buffer, .. } => {
                        let block_bytes = shape.block_bytes();
                        &buffer.as_slice()[shape.header_bytes(count) + index * block_bytes..][..block_bytes]
                    }
                };
                (0..count).for_each(|index| pack(shape, count, index, block(index), room));
                (room, blocks.labels())
            }
        };
        let bytes = &mut bytes[..shape.record_bytes(count)];
        clear_gaps(shape, count, bytes);
        seal.write_header(shape, &labels, record.generation, written_at, bytes);
        // The first record of a segment may be written after others, or never.
        if self.shared.has_headers && self.headed.get(&record.segment) != Some(&record.generation) {
            let mut header = AlignedBuffer::new_zeroed(DIRECT_ALIGN).ok_or("there is no memory for a header")?;
            seal.segment_header(record.generation, now(), header.as_mut());
            file.write_aligned_at(header.as_slice(), 0)?;
            self.headed.insert(record.segment, record.generation);
        }
        file.write_aligned_at(bytes, record.offset)?;
        self.unsynced.push(file);
        self.blocks += blocks.num_named();
        Ok(())
    }

    /// Returns memory for a record, which is allocated when it is first needed.
    fn room<'r>(record: &'r mut Option<AlignedBuffer>, shape: &RecordShape) -> Result<&'r mut [u8], WriteFailure> {
        let buffer = match record {
            Some(buffer) => buffer,
            empty => {
                let largest = shape.record_bytes(shape.blocks_per_record());
                empty.insert(AlignedBuffer::new_zeroed(largest).ok_or("there is no memory for a record")?)
            }
        };
        Ok(buffer.as_mut())
    }

    fn sync(&mut self, done: &Sender<Done>) {
        if self.unsynced.is_empty() {
            return;
        }
        let mut files = std::mem::take(&mut self.unsynced);
        files.dedup_by(|one, next| Arc::ptr_eq(one, next));
        let well = files.iter().all(|file| file.sync().is_ok());
        let _ = done.send(Done::Synced { blocks: std::mem::take(&mut self.blocks), well });
    }
}
