//! Figures on streaming: bytes read, time waited and, if wanted, an event for everything that happened.

use std::time::{Duration, Instant};

/// Statistics of weight streaming since the weights were opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamStats {
    /// Number of forward passes that have begun.
    pub passes: u64,
    /// Number of bytes read from disk.
    pub bytes_read: u64,
    /// Number of bytes copied from host memory to a device's own memory.
    pub bytes_copied: u64,
    /// Number of bytes of weights with which the host computed, so that they did not have to be copied to a device.
    pub bytes_on_host: u64,
    /// Number of times that a forward pass waited until a copy to a device had ended. This is necessary if copies still
    /// use all the host memory into which new weights could be read from disk.
    pub waits_for_copies: u64,
    /// Number of failed reads, including reads that were tried again.
    pub reads_failed: u64,
    /// Number of experts that forward passes needed. An expert counts once for each pass and layer that needed it.
    pub experts_wanted: u64,
    /// Number of experts whose reads began only when a forward pass needed them.
    pub experts_read: u64,
    /// Number of experts whose reads were in flight when a forward pass needed them. Such a read began ahead of need,
    /// or in an earlier pass that failed.
    pub experts_arriving: u64,
    /// Number of experts whose reads began ahead of need, whether or not a forward pass needed them later.
    pub experts_ahead: u64,
    /// Number of bytes of experts read from disk. The field `bytes_read` includes these bytes.
    pub expert_bytes_read: u64,
    /// Time that forward passes spent on computation with experts. The field `compute` includes this time.
    pub expert_compute: Duration,
    /// Time that forward passes spent waiting for weights.
    pub stall: Duration,
    /// Time during which at least one read was in flight.
    pub io: Duration,
    /// Time that forward passes spent on computation with weights.
    pub compute: Duration,
    /// Measured read rate of the disk in bytes per second; 0 if it was not measured.
    pub disk_bytes_per_s: f64,
}

impl StreamStats {
    /// Returns the statistics of the time between `earlier` and `self`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            passes: self.passes - earlier.passes,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_copied: self.bytes_copied - earlier.bytes_copied,
            bytes_on_host: self.bytes_on_host - earlier.bytes_on_host,
            waits_for_copies: self.waits_for_copies - earlier.waits_for_copies,
            reads_failed: self.reads_failed - earlier.reads_failed,
            experts_wanted: self.experts_wanted - earlier.experts_wanted,
            experts_read: self.experts_read - earlier.experts_read,
            experts_arriving: self.experts_arriving - earlier.experts_arriving,
            experts_ahead: self.experts_ahead - earlier.experts_ahead,
            expert_bytes_read: self.expert_bytes_read - earlier.expert_bytes_read,
            expert_compute: self.expert_compute.saturating_sub(earlier.expert_compute),
            stall: self.stall.saturating_sub(earlier.stall),
            io: self.io.saturating_sub(earlier.io),
            compute: self.compute.saturating_sub(earlier.compute),
            disk_bytes_per_s: self.disk_bytes_per_s,
        }
    }

    /// Returns the share of the passes' time that was spent waiting for weights, from 0 to 1. Returns `None` if there
    /// was no pass.
    pub fn stall_share(&self) -> Option<f64> {
        let passes = self.stall + self.compute;
        (!passes.is_zero()).then(|| self.stall.as_secs_f64() / passes.as_secs_f64())
    }

    /// Returns the share of the needed experts that were in memory or already being read, from 0 to 1. Returns `None`
    /// if no expert was needed.
    pub fn expert_hits(&self) -> Option<f64> {
        let read = self.experts_read as f64 / self.experts_wanted as f64;
        (self.experts_wanted > 0).then_some(1.0 - read)
    }

    /// Returns the time that the disk would need to read `bytes_read` bytes at its measured rate, divided by the time
    /// that the passes took. The result is 1 if passes are as fast as the disk, small if computation takes longer than
    /// reading, and above 1 if the disk was faster than measured. Returns `None` if there was no pass, or if the rate
    /// was not measured.
    pub fn share_of_disk_bound(&self) -> Option<f64> {
        let passes = (self.stall + self.compute).as_secs_f64();
        let known = self.disk_bytes_per_s > 0.0 && passes > 0.0;
        known.then(|| self.bytes_read as f64 / self.disk_bytes_per_s / passes)
    }

    /// Returns `1 - stall / io`, but at least 0. The result is 1 if passes never waited for reads, and 0 if passes
    /// waited during all reads. Returns `None` if nothing was read.
    pub fn overlap_efficiency(&self) -> Option<f64> {
        (!self.io.is_zero()).then(|| 1.0 - (self.stall.as_secs_f64() / self.io.as_secs_f64()).min(1.0))
    }
}

/// Kind of an event in the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A read from disk was in flight.
    Read,
    /// The forward pass waited for weights.
    Stall,
    /// The forward pass computed with weights.
    Compute,
}

/// An event in the timeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Group whose weights the event concerns.
    pub group: u32,
    /// Number of bytes that were read; 0 for events that are not reads.
    pub bytes: u64,
    /// When the event began.
    pub start: Instant,
    /// When the event ended.
    pub end: Instant,
}

/// Records the statistics, and also the events if the timeline is enabled.
#[derive(Debug)]
pub struct Recorder {
    pub stats: StreamStats,
    /// Latest end of a read so far.
    io_end: Instant,
    events: Option<Vec<StreamEvent>>,
}

/// Maximum number of events that are kept until a caller takes them. Further events are dropped. This many events take
/// about 20 MB, which do not count against any memory budget.
pub const EVENTS_MAX: usize = 400_000;

impl Recorder {
    pub fn new(timeline: bool, disk_bytes_per_s: f64) -> Self {
        let now = Instant::now();
        let stats = StreamStats { disk_bytes_per_s, ..StreamStats::default() };
        Self { stats, io_end: now, events: timeline.then(Vec::new) }
    }

    pub fn read(&mut self, group: u32, bytes: u64, start: Instant, end: Instant) {
        // Reads overlap; I/O time is the union of their times.
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

    /// Removes and returns the events since the last call, in the order in which they were recorded.
    pub fn take_events(&mut self) -> impl Iterator<Item = StreamEvent> {
        self.events.iter_mut().flat_map(|events| events.drain(..))
    }

    fn event(&mut self, kind: EventKind, group: u32, bytes: u64, start: Instant, end: Instant) {
        if let Some(events) = &mut self.events {
            events.push(StreamEvent { kind, group, bytes, start, end });
        }
    }
}
