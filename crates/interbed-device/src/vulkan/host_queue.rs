//! Products that the host computes between a GPU's queues: a thread waits for the activations, computes, and signals.
//! The thread that submits need not wait for the activations or the results, and no GPU queue waits for the thread that
//! submits.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ash::vk;
use interbed_kernels::{Columns, Matrix, Product, SubgroupActivations, SubgroupOrder};

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{GpuBuffer, Heap};
use crate::{BandProduct, Cpu, Operand, Tensor, Use, Weights};

/// Bytes of a number in tensors.
const NUMBER: usize = size_of::<f32>();

/// The signal that a queue waits for: a semaphore, and the value that the semaphore is to reach.
type Signal = (vk::Semaphore, u64);

/// A queue of products that the host computes for the GPU.
pub(super) struct HostQueue {
    gpu: Arc<Gpu>,
    /// Counts the numbers of submissions that are done.
    timeline: vk::Semaphore,
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    failed: Arc<AtomicBool>,
    inputs: Rooms,
    outputs: Rooms,
    /// Activations that the host has, or will have.
    input: Option<Input>,
    inputs_made: u64,
    /// Results that no queue of the GPU has copied yet, in the order of their submissions.
    results: VecDeque<HostResults>,
}

/// Activations that are being copied to the host.
#[derive(Clone)]
pub(super) struct Input {
    tensor: Tensor,
    buffer: Arc<GpuBuffer>,
    copied: Signal,
    number: u64,
}

/// Results of a submission, which the GPU copies once the submission is done.
pub(super) struct HostResults {
    number: u64,
    pub buffer: Arc<GpuBuffer>,
    pub products: Vec<HostResult>,
}

/// The result of one product.
pub(super) struct HostResult {
    /// The number of `buffer` at which the result begins: `[tokens, rows]`.
    pub start: usize,
    pub tokens: usize,
    /// The columns of `out` that the result is for.
    pub rows: Range<usize>,
    pub out: Tensor,
}

impl HostResult {
    /// Returns the place that the result is written to.
    pub fn place(&self) -> Operand {
        Operand::Columns { tensor: self.out, start: self.rows.start, end: self.rows.end }
    }
}

struct Job {
    number: u64,
    input: Input,
    cols: usize,
    output: Arc<GpuBuffer>,
    products: Vec<OwnProduct>,
}

struct OwnProduct {
    weights: Weights,
    bias: Option<Weights>,
    rows: Range<usize>,
}

impl HostQueue {
    /// Creates a queue whose products `cpu` computes, with sums of this order.
    pub fn new(gpu: &Arc<Gpu>, cpu: Cpu, order: SubgroupOrder) -> Result<Self, GpuError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let counter = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `counter` is complete.
        let timeline = unsafe { gpu.device().create_semaphore(&counter, None) };
        let timeline = timeline.map_err(GpuError::of("make a semaphore"))?;
        let (jobs, taken) = channel();
        let failed = Arc::new(AtomicBool::new(false));
        let (of_worker, failing) = (Arc::clone(gpu), Arc::clone(&failed));
        let worker = std::thread::Builder::new()
            .name("host-products".into())
            .spawn(move || work(&of_worker, timeline, &taken, (&cpu, order), &failing))
            .expect("a thread can be started");
        Ok(Self {
            gpu: Arc::clone(gpu),
            timeline,
            jobs: Some(jobs),
            worker: Some(worker),
            failed,
            inputs: Rooms::new(Heap::Readback),
            outputs: Rooms::new(Heap::Upload),
            input: None,
            inputs_made: 0,
            results: VecDeque::new(),
        })
    }

    /// Returns the activations of `tensor` that are being copied already, if they have not changed since.
    pub fn input(&self, tensor: Tensor) -> Option<Input> {
        self.input.clone().filter(|input| input.tensor == tensor)
    }

    /// Returns room for the activations of `tensor`.
    pub fn room_for(&mut self, tensor: Tensor) -> Result<Arc<GpuBuffer>, GpuError> {
        self.inputs.take(&self.gpu, tensor.len() * NUMBER)
    }

    /// Notes that the activations of `tensor` will be in `buffer` when `copied` is signalled.
    pub fn set_input(&mut self, tensor: Tensor, buffer: Arc<GpuBuffer>, copied: Signal) -> Input {
        self.inputs_made += 1;
        self.input.insert(Input { tensor, buffer, copied, number: self.inputs_made }).clone()
    }

    /// Forgets activations that a command with these `uses` changes, and results in whose place the command writes.
    /// Nobody has waited for such results, because their pass failed, and their place may now belong to another tensor.
    pub fn forget(&mut self, uses: &[Use]) {
        for results in &mut self.results {
            results.products.retain(|result| {
                let place = result.place();
                !uses.iter().any(|used| used.writes && used.place.overlaps(&place))
            });
        }
        self.input.take_if(|input| {
            let read = Use { place: Operand::Tensor(input.tensor), writes: false };
            uses.iter().any(|used| used.conflicts(&read))
        });
    }

    /// Submits products of `input`, whose rows have `cols` numbers, as submission `number`.
    ///
    /// # Panics
    /// Panics if weights are not in host memory.
    pub fn submit(
        &mut self,
        number: u64,
        input: Input,
        cols: usize,
        products: &[BandProduct<'_>],
    ) -> Result<(), GpuError> {
        let tokens = input.tensor.len() / cols;
        let (mut own, mut results, mut start) = (Vec::new(), Vec::new(), 0);
        for &BandProduct { weights, ref rows, bias, out } in products {
            own.push(OwnProduct { weights: weights.clone(), bias: bias.cloned(), rows: rows.clone() });
            results.push(HostResult { start, tokens, rows: rows.clone(), out });
            start += tokens * rows.len();
        }
        let output = self.outputs.take(&self.gpu, start * NUMBER)?;
        self.results.push_back(HostResults { number, buffer: Arc::clone(&output), products: results });
        let job = Job { number, input, cols, output, products: own };
        let jobs = self.jobs.as_ref().expect("jobs are taken until the queue is dropped");
        // The worker ends only after the sender is gone.
        jobs.send(job).map_err(|_| GpuError::HostFailed)
    }

    /// Returns the signal for another queue to wait for, if that queue is to come after submission `number`.
    pub fn signal_of(&self, number: u64) -> Signal {
        (self.timeline, number)
    }

    /// Returns the next results of submissions up to `number` that are still to be copied.
    pub fn take_results(&mut self, number: u64) -> Option<HostResults> {
        self.results.pop_front_if(|results| results.number <= number)
    }

    /// Checks that everything so far could be computed.
    ///
    /// # Errors
    /// Fails if something could not be computed: no later result can be trusted.
    pub fn check(&self) -> Result<(), GpuError> {
        if self.failed.load(Ordering::Acquire) { Err(GpuError::HostFailed) } else { Ok(()) }
    }

    /// Returns whether submission `number` is done.
    pub fn is_done(&self, number: u64) -> Result<bool, GpuError> {
        self.check()?;
        // SAFETY: the semaphore is this queue's.
        let done = unsafe { self.gpu.device().get_semaphore_counter_value(self.timeline) };
        Ok(done.map_err(GpuError::of("compute"))? >= number)
    }

    /// Waits until submission `number` is done.
    pub fn wait(&self, number: u64) -> Result<(), GpuError> {
        wait(&self.gpu, self.signal_of(number))?;
        self.check()
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        // The worker finishes what was submitted, so that no queue of the GPU waits for ever.
        drop(self.jobs.take());
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        self.gpu.wait_idle();
        // SAFETY: the GPU is idle, so nothing uses the semaphore.
        unsafe { self.gpu.device().destroy_semaphore(self.timeline, None) };
    }
}

/// Buffers that are used again once nobody else holds them.
struct Rooms {
    heap: Heap,
    all: Vec<Arc<GpuBuffer>>,
}

impl Rooms {
    fn new(heap: Heap) -> Self {
        Self { heap, all: Vec::new() }
    }

    /// Returns a buffer of at least `len` bytes.
    fn take(&mut self, gpu: &Arc<Gpu>, len: usize) -> Result<Arc<GpuBuffer>, GpuError> {
        let is_free = |room: &Arc<GpuBuffer>| Arc::strong_count(room) == 1;
        if let Some(room) = self.all.iter().find(|room| room.len() >= len && is_free(room)) {
            return Ok(Arc::clone(room));
        }
        // What is free is too small.
        self.all.retain(|room| !is_free(room));
        let room = Arc::new(GpuBuffer::new(gpu, self.heap, len.next_power_of_two())?);
        self.all.push(Arc::clone(&room));
        Ok(room)
    }
}

fn wait(gpu: &Gpu, (semaphore, value): Signal) -> Result<(), GpuError> {
    let (semaphores, values) = ([semaphore], [value]);
    let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
    // SAFETY: whoever has the signal keeps its semaphore.
    unsafe { gpu.device().wait_semaphores(&wait, u64::MAX) }.map_err(GpuError::of("compute"))
}

/// Computes jobs in order, and signals each job even if it failed, because whoever waits for the signal must go on.
fn work(
    gpu: &Gpu,
    timeline: vk::Semaphore,
    jobs: &Receiver<Job>,
    (cpu, order): (&Cpu, SubgroupOrder),
    failed: &AtomicBool,
) {
    let mut activations = SubgroupActivations::new(order);
    let mut held = 0;
    for job in jobs {
        let computed = catch_unwind(AssertUnwindSafe(|| compute(gpu, &job, cpu, &mut activations, &mut held)));
        if !matches!(computed, Ok(Ok(()))) {
            failed.store(true, Ordering::Release);
        }
        let number = job.number;
        // Nobody else may use the buffers once others know that this is done.
        drop(job);
        let signal = vk::SemaphoreSignalInfo::default().semaphore(timeline).value(number);
        // SAFETY: the semaphore outlives this thread, and numbers ascend.
        if unsafe { gpu.device().signal_semaphore(&signal) }.is_err() {
            failed.store(true, Ordering::Release);
        }
    }
}

fn compute(
    gpu: &Gpu,
    job: &Job,
    cpu: &Cpu,
    activations: &mut SubgroupActivations,
    held: &mut u64,
) -> Result<(), GpuError> {
    let Job { input, cols, output, products, .. } = job;
    if *held != input.number {
        wait(gpu, input.copied)?;
        // SAFETY: the GPU has written the activations, and neither side writes the buffer while an input has it.
        let bytes = unsafe { input.buffer.on_host(0..input.tensor.len() * NUMBER) };
        activations.set(bytemuck::cast_slice(bytes), *cols);
        *held = input.number;
    }
    let tokens = input.tensor.len() / cols;
    let len = products.iter().map(|product| tokens * product.rows.len()).sum::<usize>();
    // SAFETY: the buffer is this job's until the GPU copies from it, once the job is done.
    let bytes = unsafe { output.on_host(0..len * NUMBER) };
    let mut rest: &mut [f32] = bytemuck::cast_slice_mut(bytes);
    let products = products.iter().map(|OwnProduct { weights, bias, rows }| {
        let (out, behind) = std::mem::take(&mut rest).split_at_mut(tokens * rows.len());
        rest = behind;
        let bias: Option<Matrix<'_>> = bias.as_ref().map(|bias| bias.matrix().columns(rows.clone()));
        Product { weights: weights.matrix(), bias, out: Columns::new(out, rows.len()) }
    });
    activations.multiply(&cpu.pool, cpu.level, products);
    Ok(())
}
