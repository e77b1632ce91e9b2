//! What streaming took: bytes, waits, and on demand a line for everything that happened.

use std::time::{Duration, Instant};

/// Sums since the weights were opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamStats {
    /// Passes begun.
    pub passes: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Reads that failed, tried again or not.
    pub reads_failed: u64,
    /// Time that the forward pass waited for weights.
    pub stall: Duration,
    /// Time in which at least one read was in flight.
    pub io: Duration,
    /// Time that the forward pass computed with weights at hand.
    pub compute: Duration,
    /// Bytes a second that the disk gave when it was tried out; 0 if it was not.
    pub disk_bytes_per_s: f64,
}

impl StreamStats {
    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            passes: self.passes - earlier.passes,
            bytes_read: self.bytes_read - earlier.bytes_read,
            reads_failed: self.reads_failed - earlier.reads_failed,
            stall: self.stall.saturating_sub(earlier.stall),
            io: self.io.saturating_sub(earlier.io),
            compute: self.compute.saturating_sub(earlier.compute),
            disk_bytes_per_s: self.disk_bytes_per_s,
        }
    }

    /// The part of their time that passes waited for weights. `None` without passes.
    pub fn stall_share(&self) -> Option<f64> {
        let passes = self.stall + self.compute;
        (!passes.is_zero()).then(|| self.stall.as_secs_f64() / passes.as_secs_f64())
    }

    /// The time that the disk would need for these bytes, at the rate that it was tried out with, over the time that
    /// passes took. 1 where passes are as fast as the disk; it may be more where the disk is faster than it was, and is
    /// small where computing takes longer than reading. `None` without passes or rate.
    pub fn share_of_disk_bound(&self) -> Option<f64> {
        let passes = (self.stall + self.compute).as_secs_f64();
        let known = self.disk_bytes_per_s > 0.0 && passes > 0.0;
        known.then(|| self.bytes_read as f64 / self.disk_bytes_per_s / passes)
    }

    /// `1 - stall / I/O time`: 1 if reading was hidden behind computing, 0 if they took turns. `None` without I/O.
    pub fn overlap_efficiency(&self) -> Option<f64> {
        (!self.io.is_zero()).then(|| 1.0 - (self.stall.as_secs_f64() / self.io.as_secs_f64()).min(1.0))
    }
}

/// What an event of the timeline was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A read from disk.
    Read,
    /// The forward pass waited for weights.
    Stall,
    /// The forward pass computed with weights.
    Compute,
}

/// One thing that happened, from the opening of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamEvent {
    /// What.
    pub kind: EventKind,
    /// The group that it was about.
    pub group: u32,
    /// Bytes that it moved, of reads.
    pub bytes: u64,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
}

/// Keeps the sums, and events if they are wanted.
#[derive(Debug)]
pub struct Recorder {
    origin: Instant,
    pub stats: StreamStats,
    /// Until when reads were in flight, as far as is known.
    io_end: Instant,
    events: Option<Vec<StreamEvent>>,
}

/// Events that are kept; then the timeline ends. They take memory that no budget line has: some 20 MB.
pub const EVENTS_MAX: usize = 400_000;

impl Recorder {
    pub fn new(timeline: bool, disk_bytes_per_s: f64) -> Self {
        let now = Instant::now();
        let stats = StreamStats { disk_bytes_per_s, ..StreamStats::default() };
        Self { origin: now, stats, io_end: now, events: timeline.then(Vec::new) }
    }

    pub fn read(&mut self, group: u32, bytes: u64, start: Instant, end: Instant) {
        // Reads overlap; together they took the union of their times.
        self.stats.io += end.saturating_duration_since(start.max(self.io_end));
        self.io_end = self.io_end.max(end);
        self.stats.bytes_read += bytes;
        self.event(EventKind::Read, group, bytes, start, end);
    }

    pub fn stall(&mut self, group: u32, start: Instant, end: Instant) {
        self.stats.stall += end - start;
        self.event(EventKind::Stall, group, 0, start, end);
    }

    pub fn compute(&mut self, group: u32, start: Instant, end: Instant) {
        self.stats.compute += end - start;
        self.event(EventKind::Compute, group, 0, start, end);
    }

    /// What happened since the last call, in the order in which it ended.
    pub fn take_events(&mut self) -> impl Iterator<Item = StreamEvent> {
        self.events.iter_mut().flat_map(|events| events.drain(..))
    }

    fn event(&mut self, kind: EventKind, group: u32, bytes: u64, start: Instant, end: Instant) {
        let since = |time: Instant| time.saturating_duration_since(self.origin);
        let event = StreamEvent { kind, group, bytes, start: since(start), end: since(end) };
        if let Some(events) = &mut self.events {
            events.push(event);
        }
    }
}
