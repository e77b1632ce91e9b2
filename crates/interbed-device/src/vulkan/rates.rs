//! The rates at which a GPU copies: within its memory, and over its link to the host.

use std::sync::Arc;
use std::time::Instant;

use super::error::GpuError;
use super::gpu::Gpu;
use super::gpu_queue::GpuQueue;
use super::memory::{GpuBuffer, Heap};
use super::record::copy;

/// Copies in one measurement, while nothing else runs.
const COPIES: usize = 8;

/// Measurements of each rate; the best counts, because other work of the machine only makes copies slower.
const TIMES: usize = 4;

/// Rates of copies, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyRates {
    /// The rate of a copy within device memory, with the bytes read and the bytes written both counted.
    pub device: f64,
    /// The rate of copies from host memory to the GPU.
    pub to_device: f64,
    /// The rate of copies from the GPU to host memory.
    pub to_host: f64,
}

impl CopyRates {
    /// Measures copies of `bytes` bytes, for which there must be room twice on the GPU, and twice on the host. `bytes`
    /// should be much more than caches hold.
    ///
    /// # Errors
    /// Fails if there is no such memory, or the GPU fails.
    pub fn measure(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, GpuError> {
        let buffer = |heap| GpuBuffer::new(gpu, heap, bytes).map(Arc::new);
        let [one, other, upload, readback] =
            [buffer(Heap::Device)?, buffer(Heap::Device)?, buffer(Heap::Upload)?, buffer(Heap::Readback)?];
        let rate = |for_copies, from: &Arc<GpuBuffer>, to: &Arc<GpuBuffer>| {
            let mut queue = GpuQueue::new(gpu, for_copies)?;
            let mut best = 0f64;
            // Once to warm up.
            for number in 1..=TIMES as u64 + 1 {
                queue.begin(number, Vec::new())?;
                for _ in 0..COPIES {
                    let commands = queue.operation(&[]);
                    copy(gpu, commands, (from, 0), (to, 0), bytes);
                    queue.barrier();
                }
                queue.keep(Arc::clone(from));
                queue.keep(Arc::clone(to));
                let begin = Instant::now();
                queue.wait(number)?;
                if number > 1 {
                    best = best.max((COPIES * bytes) as f64 / begin.elapsed().as_secs_f64());
                }
            }
            Ok::<_, GpuError>(best)
        };
        Ok(Self {
            device: 2.0 * rate(false, &one, &other)?,
            to_device: rate(true, &upload, &one)?,
            to_host: rate(true, &one, &readback)?,
        })
    }
}
