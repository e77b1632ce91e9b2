//! One queue of a GPU. Commands are recorded, handed over some submissions at a time, and known to be done by the
//! numbers of their submissions.

use std::collections::VecDeque;
use std::sync::Arc;

use ash::vk;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::GpuBuffer;
use super::timestamps::{self, Timed, Timestamps};
use crate::{HostBuffer, Queue, Use};

/// Number of recorded operations after which a batch is handed over, so that the GPU computes while the host records.
const OPERATIONS_MAX: usize = 96;

/// The multiply-adds after which a batch is handed over: drivers treat a GPU as hung if one batch takes some seconds. A
/// small GPU does so many multiply-adds in about 0.2 s.
const MULTIPLY_ADDS_MAX: u64 = 100_000_000_000;

/// A queue of the GPU, with the batch that is being recorded for the queue and the batches that run.
pub(super) struct GpuQueue {
    gpu: Arc<Gpu>,
    pool: vk::CommandPool,
    /// Counts the numbers of submissions that are done.
    timeline: vk::Semaphore,
    open: Option<Batch>,
    handed: VecDeque<Batch>,
    free: Vec<vk::CommandBuffer>,
    /// The last submission that was handed over.
    handed_last: u64,
    done: u64,
    /// The times at which batches run, if the times are wanted.
    times: Option<Timestamps>,
    for_copies: bool,
    /// The reason for which a batch was never handed over. The submissions of that batch are lost, although the numbers
    /// of later submissions would pass theirs; so nothing is done and nothing is taken after such a failure.
    failed: Option<GpuError>,
    /// Makes the next batch fail.
    #[cfg(test)]
    refuses: bool,
}

/// Submissions that are handed over together.
struct Batch {
    commands: vk::CommandBuffer,
    waits: Vec<(vk::Semaphore, u64)>,
    /// The last of the submissions.
    last: u64,
    operations: usize,
    multiply_adds: u64,
    timed: Option<Timed>,
    /// The places that were used since the last barrier.
    uses: Vec<Use>,
    /// The buffers that the GPU uses until the batch is done.
    kept: Vec<Arc<GpuBuffer>>,
    /// The host memory that the batch reads in place.
    kept_on_host: Vec<Arc<HostBuffer>>,
}

impl GpuQueue {
    /// Creates a queue of the family for kernels, or of that for copies.
    pub fn new(gpu: &Arc<Gpu>, for_copies: bool) -> Result<Self, GpuError> {
        let (device, family) = (gpu.device(), gpu.families()[usize::from(for_copies)]);
        let create = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let counter = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `create` is complete.
        let pool = unsafe { device.create_command_pool(&create, None) }.map_err(GpuError::of("record commands"))?;
        // SAFETY: `counter` is complete.
        let timeline = unsafe { device.create_semaphore(&counter, None) }.map_err(|error| {
            // SAFETY: nothing uses the pool.
            unsafe { device.destroy_command_pool(pool, None) };
            GpuError::of("make a semaphore")(error)
        })?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            pool,
            timeline,
            open: None,
            handed: VecDeque::new(),
            free: Vec::new(),
            handed_last: 0,
            done: 0,
            times: None,
            for_copies,
            failed: None,
            #[cfg(test)]
            refuses: false,
        })
    }

    /// Notes from now on when batches run, and names `queue` as their queue.
    pub fn note_times(&mut self, queue: Queue) -> Result<(), GpuError> {
        self.times = Timestamps::new(&self.gpu, queue, self.for_copies)?;
        Ok(())
    }

    /// Returns the batches that have been done since the last call, if their times are noted.
    pub fn take_times(&mut self) -> Result<Vec<timestamps::Batch>, GpuError> {
        self.collect()?;
        Ok(self.times.iter_mut().flat_map(Timestamps::take).collect())
    }

    /// Returns the signal for another queue to wait for, if that queue is to come after submission `number` of this
    /// queue.
    pub fn signal_of(&self, number: u64) -> (vk::Semaphore, u64) {
        (self.timeline, number)
    }

    /// Begins submission `number`, after `waits`. Whatever these wait for was handed over before.
    pub fn begin(&mut self, number: u64, waits: Vec<(vk::Semaphore, u64)>) -> Result<(), GpuError> {
        self.check()?;
        if !waits.is_empty() {
            // What was recorded before does not wait with it.
            self.hand_over()?;
        }
        let batch = match self.open.take() {
            Some(batch) => batch,
            None => {
                let commands = self.recording()?;
                let timed = self.times.as_mut().and_then(|times| times.begin(commands));
                let (uses, kept, kept_on_host) = (Vec::new(), Vec::new(), Vec::new());
                let (operations, multiply_adds) = (0, 0);
                Batch { commands, waits, last: number, operations, multiply_adds, timed, uses, kept, kept_on_host }
            }
        };
        self.open.insert(batch).last = number;
        Ok(())
    }

    /// Returns the commands of the open batch, for an operation with these `uses`. Records a barrier first if the
    /// operation depends on an earlier operation.
    pub fn operation(&mut self, uses: &[Use]) -> vk::CommandBuffer {
        let batch = self.open.as_mut().expect("a submission has begun");
        let depends = batch.uses.iter().any(|earlier| uses.iter().any(|used| used.conflicts(earlier)));
        if depends {
            batch.uses.clear();
            barrier(&self.gpu, batch.commands);
        }
        batch.uses.extend_from_slice(uses);
        batch.operations += 1;
        batch.commands
    }

    /// Counts the multiply-adds of an operation, which bound how long its batch takes.
    pub fn count_multiply_adds(&mut self, count: u64) {
        let batch = self.open.as_mut().expect("a submission has begun");
        batch.multiply_adds = batch.multiply_adds.saturating_add(count);
    }

    /// Records a barrier: later commands come after everything that was recorded.
    pub fn barrier(&mut self) {
        let batch = self.open.as_mut().expect("a submission has begun");
        barrier(&self.gpu, batch.commands);
    }

    /// Keeps memory until the open batch is done.
    pub fn keep(&mut self, buffer: Arc<GpuBuffer>) {
        let batch = self.open.as_mut().expect("a submission has begun");
        if !batch.kept.iter().any(|kept| Arc::ptr_eq(kept, &buffer)) {
            batch.kept.push(buffer);
        }
    }

    /// Keeps host memory until the open batch is done.
    pub fn keep_on_host(&mut self, memory: Arc<HostBuffer>) {
        let batch = self.open.as_mut().expect("a submission has begun");
        batch.kept_on_host.push(memory);
    }

    /// Ends a submission. If the recorded batch is large, the batch is handed over.
    pub fn end(&mut self) -> Result<(), GpuError> {
        match &self.open {
            Some(batch) if batch.operations >= OPERATIONS_MAX || batch.multiply_adds >= MULTIPLY_ADDS_MAX => {
                self.hand_over()
            }
            _ => Ok(()),
        }
    }

    /// Hands over the open batch. If that fails, everything after it fails too.
    pub fn hand_over(&mut self) -> Result<(), GpuError> {
        self.check()?;
        let handed = self.try_hand_over();
        self.failed = handed.clone().err();
        handed
    }

    /// Checks that everything so far was handed over.
    ///
    /// # Errors
    /// Fails if something was never handed over, because whoever depends on it would compute with undefined data.
    fn check(&self) -> Result<(), GpuError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn try_hand_over(&mut self) -> Result<(), GpuError> {
        let Some(mut batch) = self.open.take() else { return Ok(()) };
        #[cfg(test)]
        if self.refuses {
            return Err(GpuError::of("take commands")(vk::Result::ERROR_UNKNOWN));
        }
        if let (Some(times), Some(timed)) = (&mut self.times, &mut batch.timed) {
            times.end(batch.commands, timed);
        }
        let device = self.gpu.device();
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        let info = |(semaphore, value): (vk::Semaphore, u64)| {
            vk::SemaphoreSubmitInfo::default().semaphore(semaphore).value(value).stage_mask(all)
        };
        let waits: Vec<_> = batch.waits.iter().copied().map(info).collect();
        let signals = [info((self.timeline, batch.last))];
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(batch.commands)];
        let submit = vk::SubmitInfo2::default()
            .wait_semaphore_infos(&waits)
            .signal_semaphore_infos(&signals)
            .command_buffer_infos(&commands);
        // SAFETY: the commands are recorded and not in use; their memory is kept until the batch is done; what they
        // wait for was handed over before; one thread uses their pool, through `&mut self`, and the GPU lends its queue
        // to one at a time.
        let submitted = unsafe {
            device
                .end_command_buffer(batch.commands)
                .and_then(|()| device.queue_submit2(*self.gpu.queue(self.for_copies), &[submit], vk::Fence::null()))
        };
        submitted.map_err(GpuError::of("take commands"))?;
        self.handed_last = batch.last;
        self.handed.push_back(batch);
        self.collect()
    }

    /// Returns whether submission `number` and all submissions before it are done.
    pub fn is_done(&mut self, number: u64) -> Result<bool, GpuError> {
        self.check()?;
        if self.done < number {
            self.collect()?;
        }
        Ok(self.done >= number)
    }

    /// Hands over submission `number` if that has not been done yet. Fails if the submission's batch was refused, for
    /// then the submission is never done.
    pub fn hand_over_to(&mut self, number: u64) -> Result<(), GpuError> {
        self.check()?;
        if number > self.handed_last {
            self.hand_over()?;
        }
        if number > self.handed_last { Err(GpuError::Dropped) } else { Ok(()) }
    }

    /// Waits until submission `number` is done.
    pub fn wait(&mut self, number: u64) -> Result<(), GpuError> {
        self.hand_over_to(number)?;
        let (semaphores, values) = ([self.timeline], [number]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is this queue's.
        unsafe { self.gpu.device().wait_semaphores(&wait, u64::MAX) }.map_err(GpuError::of("compute"))?;
        self.collect()
    }

    /// Waits for everything that was submitted.
    pub fn settle(&mut self) -> Result<(), GpuError> {
        self.hand_over()?;
        if self.handed_last > 0 { self.wait(self.handed_last) } else { Ok(()) }
    }

    /// Notes which batches are done, and lets go of the memory that these used.
    fn collect(&mut self) -> Result<(), GpuError> {
        // SAFETY: the semaphore is this queue's.
        let done = unsafe { self.gpu.device().get_semaphore_counter_value(self.timeline) };
        self.done = done.map_err(GpuError::of("compute"))?;
        while let Some(batch) = self.handed.pop_front_if(|batch| batch.last <= self.done) {
            if let (Some(times), Some(timed)) = (&mut self.times, batch.timed) {
                times.done(timed, batch.operations);
            }
            self.free.push(batch.commands);
        }
        Ok(())
    }

    /// Returns a command buffer that is being recorded, ordered after everything before it in the queue.
    fn recording(&mut self) -> Result<vk::CommandBuffer, GpuError> {
        let device = self.gpu.device();
        let commands = match self.free.pop() {
            Some(commands) => commands,
            None => {
                let allocate = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
                // SAFETY: the pool is this queue's, and one thread uses it.
                let made = unsafe { device.allocate_command_buffers(&allocate) };
                made.map_err(GpuError::of("record commands"))?[0]
            }
        };
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is new, or its batch is done.
        unsafe { device.begin_command_buffer(commands, &begin) }.map_err(GpuError::of("record commands"))?;
        barrier(&self.gpu, commands);
        Ok(commands)
    }
}

/// Records a barrier: what is recorded later comes after everything before the barrier, and after everything that the
/// host wrote before it signalled.
fn barrier(gpu: &Gpu, commands: vk::CommandBuffer) {
    let (stages, host) = (vk::PipelineStageFlags2::ALL_COMMANDS, vk::PipelineStageFlags2::HOST);
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(stages | host)
        .src_access_mask(vk::AccessFlags2::MEMORY_WRITE)
        .dst_stage_mask(stages | host)
        .dst_access_mask(vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE | vk::AccessFlags2::HOST_READ)];
    let dependency = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: the buffer is being recorded.
    unsafe { gpu.device().cmd_pipeline_barrier2(commands, &dependency) };
}

impl Drop for GpuQueue {
    fn drop(&mut self) {
        let device = self.gpu.device();
        // SAFETY: the GPU lends its queue to one thread at a time. The queue ends its work first, and a device that has
        // several of these waits for all of them before it drops any; so nothing uses pool and semaphore. What a lost
        // GPU says does not matter any more.
        unsafe {
            let _ = device.queue_wait_idle(*self.gpu.queue(self.for_copies));
            device.destroy_semaphore(self.timeline, None);
            device.destroy_command_pool(self.pool, None);
        }
    }
}

#[cfg(test)]
mod tests;
