//! The times at which batches ran on a GPU, in the host's time.
//!
//! The batches themselves compare the clocks of the host and the GPU: no batch begins before it was handed over, and a
//! batch that finds nothing to wait for begins at once. So the batch that began soonest after its handing over shows
//! how far the GPU's clock is behind. The error is no more than the time from that batch's handing over to its
//! beginning.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;

use super::error::GpuError;
use super::gpu::Gpu;
use crate::{DeviceEvent, Queue};

/// Batches that can be in flight and have their times noted.
const SLOTS: u32 = 256;

/// The most batches that are kept until somebody takes them; further batches have no times.
const BATCHES_MAX: usize = 100_000;

/// The times of one queue's batches.
pub(super) struct Timestamps {
    gpu: Arc<Gpu>,
    queue: Queue,
    pool: vk::QueryPool,
    /// Slots that no batch has.
    free: Vec<u32>,
    batches: Vec<Batch>,
}

/// A batch that has run.
pub(super) struct Batch {
    queue: Queue,
    operations: usize,
    handed: Instant,
    /// The GPU's times of the batch's beginning and end.
    ticks: [u64; 2],
}

/// A batch whose times are noted.
#[derive(Clone, Copy)]
pub(super) struct Timed {
    slot: u32,
    handed: Instant,
}

impl Timestamps {
    /// Creates the times of a queue for kernels or for copies; returns `None` if the queue notes no times.
    pub fn new(gpu: &Arc<Gpu>, queue: Queue, for_copies: bool) -> Result<Option<Self>, GpuError> {
        if gpu.tick_bits(for_copies) == 0 {
            return Ok(None);
        }
        let create = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2 * SLOTS);
        // SAFETY: `create` is complete.
        let pool = unsafe { gpu.device().create_query_pool(&create, None) }.map_err(GpuError::of("note times"))?;
        Ok(Some(Self { gpu: Arc::clone(gpu), queue, pool, free: (0..SLOTS).collect(), batches: Vec::new() }))
    }

    /// Notes when what is recorded next begins.
    pub fn begin(&mut self, commands: vk::CommandBuffer) -> Option<Timed> {
        let slot = if self.batches.len() < BATCHES_MAX { self.free.pop()? } else { return None };
        // SAFETY: no batch that is in flight uses the slot, and the host may reset queries, or queues have no bits.
        unsafe { self.gpu.device().reset_query_pool(self.pool, 2 * slot, 2) };
        self.note(commands, 2 * slot);
        Some(Timed { slot, handed: Instant::now() })
    }

    /// Notes when the recorded commands have ended; the batch must be handed over now.
    pub fn end(&mut self, commands: vk::CommandBuffer, timed: &mut Timed) {
        self.note(commands, 2 * timed.slot + 1);
        timed.handed = Instant::now();
    }

    /// Notes that the batch, of `operations` operations, is done.
    pub fn done(&mut self, Timed { slot, handed }: Timed, operations: usize) {
        let mut ticks = [0u64; 2];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: both queries have been written, for the batch is done, and there is room for their results.
        let got = unsafe { self.gpu.device().get_query_pool_results(self.pool, 2 * slot, &mut ticks, flags) };
        self.free.push(slot);
        if got.is_ok() {
            self.batches.push(Batch { queue: self.queue, operations, handed, ticks });
        }
    }

    /// Returns the batches that have run since the last call.
    pub fn take(&mut self) -> impl Iterator<Item = Batch> {
        self.batches.drain(..)
    }

    fn note(&self, commands: vk::CommandBuffer, query: u32) {
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        // SAFETY: the buffer is being recorded, and the query was reset.
        unsafe { self.gpu.device().cmd_write_timestamp2(commands, all, self.pool, query) };
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: the queue has ended its work before.
        unsafe { self.gpu.device().destroy_query_pool(self.pool, None) };
    }
}

/// A GPU's clock, related to the host's clock. All queues have the same clock.
pub(super) struct Clock {
    /// Nanoseconds of a tick, and the bits of ticks that do not count.
    nanoseconds: f64,
    unused_bits: u32,
    /// The origin of the host's times; the GPU's times count from the first time that the GPU noted.
    origin: Instant,
    first_tick: Option<u64>,
    /// Lower bound of the nanoseconds from the origin to the first time that the GPU noted.
    first: Option<f64>,
}

impl Clock {
    pub fn new(gpu: &Gpu) -> Self {
        let bits = gpu.tick_bits(false).min(gpu.tick_bits(true)).clamp(1, 64);
        Self {
            nanoseconds: gpu.tick_nanoseconds(),
            unused_bits: 64 - bits,
            origin: Instant::now(),
            first_tick: None,
            first: None,
        }
    }

    /// Returns the times of these batches in the host's time.
    pub fn events(&mut self, batches: &[Batch]) -> impl Iterator<Item = DeviceEvent> {
        for batch in batches {
            let handed = batch.handed.saturating_duration_since(self.origin).as_nanos() as f64;
            let begun_at_least = handed - self.since_first(batch.ticks[0]);
            self.first = Some(self.first.map_or(begun_at_least, |first| first.max(begun_at_least)));
        }
        batches.iter().map(|batch| {
            let [start, end] = batch.ticks.map(|tick| self.first.unwrap_or(0.0) + self.since_first(tick));
            let at = |nanoseconds: f64| self.origin + Duration::from_nanos(nanoseconds.max(0.0) as u64);
            let (queue, operations) = (batch.queue, batch.operations);
            DeviceEvent { queue, operations, start: at(start), end: at(end.max(start)) }
        })
    }

    /// Returns the nanoseconds from the first time to `tick`, which may come before the first time.
    fn since_first(&mut self, tick: u64) -> f64 {
        let first = *self.first_tick.get_or_insert(tick);
        let ticks = (tick.wrapping_sub(first) << self.unused_bits) as i64 >> self.unused_bits;
        ticks as f64 * self.nanoseconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(unused_bits: u32) -> Clock {
        Clock { nanoseconds: 10.0, unused_bits, origin: Instant::now(), first_tick: None, first: None }
    }

    #[test]
    fn the_batch_that_began_soonest_sets_the_clock() {
        let mut clock = clock(28);
        let origin = clock.origin;
        let at = |micros| origin + Duration::from_micros(micros);
        // The GPU's clock is about to overflow; it was 1,000 at the host's 100 us. The second batch waited for 50 us.
        let last = u64::MAX >> 28;
        let batch = |queue, handed, ticks: [u64; 2]| Batch {
            queue,
            operations: 1,
            handed: at(handed),
            ticks: ticks.map(|tick| (last - 200 + tick) & last),
        };
        let batches = [
            batch(Queue::Download, 150, [10_000, 11_000]),
            batch(Queue::Compute, 100, [0, 5000]),
            batch(Queue::Upload, 130, [3500, 4000]),
        ];
        let (want, queues) = ([[200, 210], [100, 150], [135, 140]], [Queue::Download, Queue::Compute, Queue::Upload]);
        let want = want.map(|times| times.map(at));
        let got: Vec<_> = clock.events(&batches).map(|event| (event.queue, [event.start, event.end])).collect();
        assert_eq!(got, queues.into_iter().zip(want).collect::<Vec<_>>());
    }
}
