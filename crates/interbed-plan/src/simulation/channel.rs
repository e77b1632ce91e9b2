//! A disk or a link, with its bytes per second, its latency, and its number of requests at a time.

use std::collections::VecDeque;

use interbed_weights::window::UnitId;

use super::machine::ChannelSpec;

/// Names a load that the channel must carry.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChannelJob {
    pub unit: UnitId,
    pub ticket: u64,
}

/// Tells when a job begins to move bytes, and when it is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub begin_ns: u64,
    pub done_ns: u64,
}

#[derive(Debug)]
pub(super) struct Channel {
    spec: ChannelSpec,
    queue: VecDeque<ChannelJob>,
    /// Number of requests in flight on the channel.
    outstanding: usize,
    free_at_ns: u64,
    /// Nanoseconds in which bytes moved, including requests in flight.
    pub busy_ns: u64,
}

impl Channel {
    pub fn new(spec: ChannelSpec) -> Self {
        Self { spec, queue: VecDeque::new(), outstanding: 0, free_at_ns: 0, busy_ns: 0 }
    }

    pub fn push(&mut self, job: ChannelJob) {
        self.queue.push_back(job);
    }

    /// Takes the next request, if there is one and the channel has room for it. The bytes of requests move one after
    /// the other; their latencies overlap.
    pub fn begin_one(&mut self, now_ns: u64, bytes: &[u64]) -> Option<(ChannelJob, Timing)> {
        if self.outstanding >= self.spec.depth {
            return None;
        }
        let job = self.queue.pop_front()?;
        let begin_ns = now_ns.max(self.free_at_ns);
        let transfer_ns = (bytes[job.unit.index()] as f64 / self.spec.bytes_per_s * 1e9).ceil() as u64;
        self.outstanding += 1;
        self.busy_ns += transfer_ns;
        self.free_at_ns = begin_ns + transfer_ns;
        Some((job, Timing { begin_ns, done_ns: self.free_at_ns + self.spec.latency_ns }))
    }

    /// Notes that a request was answered.
    pub fn end_one(&mut self) {
        self.outstanding -= 1;
    }
}
