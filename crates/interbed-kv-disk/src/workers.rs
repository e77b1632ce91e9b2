//! Runs the threads of a store: one that writes records, those of swaps before others, and a few that read records.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DiskTurns, SegmentWrite, Urgency};

use crate::job_queue::JobQueue;
use crate::jobs::{Blocks, Done, PieceDone, PieceJob, Read, ReadJob, WriteFailure, WriteJob, now};
use crate::record::{clear_gaps, pack};
use crate::store::{Store, memory};

const WRITER: &str = "interbed-kv-write";
const READER: &str = "interbed-kv-read";

/// Number of records after which the records written so far are synced to the disk, if more records are to come.
const SYNC_AFTER: usize = 16;

/// Error numbers of a disk that is full, and of a quota that is used up.
const FULL: [i32; 2] = [28, 122];

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
        store: &Arc<Store>,
        turns: Arc<DiskTurns>,
        readers: usize,
    ) -> std::io::Result<(Self, Receiver<PieceDone>)> {
        let (sender, done) = channel();
        let (frames_sender, frames) = channel();
        let (reads, writes) = (Arc::new(JobQueue::new()), Arc::new(JobQueue::new()));
        let threads = Vec::with_capacity(1 + readers);
        let mut workers = Self { reads: Arc::clone(&reads), writes: Arc::clone(&writes), turns, done, threads };
        let (to_write, turns, written) = (Arc::clone(store), Arc::clone(&workers.turns), sender.clone());
        workers.spawn(WRITER, move || write_all(&to_write, &writes, &turns, &written))?;
        for _ in 0..readers {
            let (to_read, jobs, turns) = (Arc::clone(store), Arc::clone(&reads), Arc::clone(&workers.turns));
            let (sender, frames) = (sender.clone(), frames_sender.clone());
            workers.spawn(READER, move || read_all(&to_read, &jobs, &turns, &sender, &frames))?;
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

fn write_all(store: &Store, writes: &JobQueue<WriteJob>, turns: &DiskTurns, done: &Sender<Done>) {
    let (unsynced, headed) = (Vec::new(), HashMap::new());
    let mut writer = Writer { store, record: None, unsynced, blocks: 0, headed, broken: None };
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
            && store.has_headers
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

fn read_all(store: &Store, jobs: &JobQueue<Read>, turns: &DiskTurns, done: &Sender<Done>, frames: &Sender<PieceDone>) {
    let mut area = None;
    while let Some(read) = jobs.next() {
        // Nobody listens any more when the store is being closed.
        let is_heard = match read {
            Read::Record(mut job) => {
                turns.give_way(Urgency::Sequence);
                let began = Instant::now();
                let outcome = catch_unwind(AssertUnwindSafe(|| store.read(&mut job)))
                    .unwrap_or_else(|_| Err("reading a record panicked".to_owned()));
                turns.end(Urgency::Sequence);
                done.send(Done::Read { job, outcome, seconds: began.elapsed().as_secs_f64() }).is_ok()
            }
            Read::Piece(mut job) => {
                // A pass that fails costs much more than a second look.
                let mut read = || {
                    store.read_piece(&mut job, &mut area).or_else(|reason| {
                        tracing::warn!("{reason}: it is read once more");
                        store.read_piece(&mut job, &mut area)
                    })
                };
                let outcome =
                    catch_unwind(AssertUnwindSafe(&mut read)).unwrap_or_else(|_| Err("reading KV panicked".to_owned()));
                turns.end(Urgency::Pass);
                frames.send(PieceDone { job, outcome }).is_ok()
            }
        };
        if !is_heard {
            return;
        }
    }
}

/// State of the thread that writes.
struct Writer<'a> {
    store: &'a Store,
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
        let Store { shape, seal, .. } = self.store;
        if let Some((segment, generation, failure)) = &self.broken
            && (*segment, *generation) == (record.segment, record.generation)
        {
            return Err(failure.clone());
        }
        let (count, written_at) = (usize::from(record.count), blocks.written_at());
        // For a segment that was removed from outside, a new one is made.
        let file = self.store.segment(record.segment, true).map_err(|error| match error.errno() {
            Some(errno) if FULL.contains(&errno) => WriteFailure::Full(error.to_string()),
            _ => error.into(),
        })?;
        let (bytes, labels) = match blocks {
            // The blocks lie where they belong.
            Blocks::Swapped { labels, buffer, .. } if shape.is_flat() => (buffer.as_mut(), labels.iter().collect()),
            _ => {
                let largest = shape.record_bytes(shape.blocks_per_record());
                let room = memory(&mut self.record, largest).ok_or("there is no memory for a record")?;
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
        if self.store.has_headers && self.headed.get(&record.segment) != Some(&record.generation) {
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

    fn sync(&mut self, done: &Sender<Done>) {
        if self.unsynced.is_empty() {
            return;
        }
        let mut files = std::mem::take(&mut self.unsynced);
        files.dedup_by(|one, next| Arc::ptr_eq(one, next));
        // All files are synced, even after one could not be.
        let well = files.iter().filter(|file| file.sync().is_err()).count() == 0;
        let _ = done.send(Done::Synced { blocks: std::mem::take(&mut self.blocks), well });
    }
}
