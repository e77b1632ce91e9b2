//! Measurements of two ways to use weights in host memory: to copy them to the GPU, or to let the host compute with
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_kernels::DType;

use super::VulkanDevice;
use super::memory::{GpuBuffer, Heap};
use crate::{
    BandProduct, Bytes, Command, Device, DeviceError, GpuError, HostBuffer, HostRates, PlacedBytes, Queue, TensorArea,
    Weights,
};

/// Columns of the matrix that is tried, whole blocks of every type.
const COLS: usize = 4096;

/// Bytes that are copied at a time.
const PIECE: usize = 4 << 20;

/// How often each speed is measured; the highest result counts.
const TRIES: usize = 3;

/// Tokens of the longer of the passes that are tried.
const TOKENS: usize = 8;

/// Measures by the rules of [`Device::host_rates`]. Returns `None` if the tensors of `device` are too small.
///
/// # Errors
/// Fails if the GPU fails, or has no memory.
pub fn measure(device: &mut VulkanDevice, dtype: DType, most: Bytes) -> Result<Option<HostRates>, DeviceError> {
    let row = dtype.row_bytes(COLS).expect("whole blocks of every type");
    let rows = usize::try_from(most.0).unwrap_or(usize::MAX) / row;
    let mut area = TensorArea::default();
    let (x, out) = (area.take(TOKENS * COLS), area.take(TOKENS * rows));
    if rows == 0 || area.check(device.tensor_capacity()).is_err() {
        return Ok(None);
    }
    let bytes = row * rows;
    let (host, copying) = copy(device, bytes)?;
    let weights = Weights::new(dtype, rows, COLS, Arc::clone(&host), 0..bytes);
    let mut multiplying = |tokens: usize| {
        let (x, out) = (x.first(tokens * COLS), out.first(tokens * rows));
        let fill = Command::Fill { out: x, values: &|numbers: &mut [f32]| numbers.fill(1.0) };
        device.submit(Queue::Compute, &[fill], &[])?;
        let products = [BandProduct { weights: &weights, rows: 0..rows, bias: None, out }];
        fastest(|| {
            let command = Command::Products { x, cols: COLS, products: &products, gate: None };
            let token = device.submit(Queue::Host, &[command], &[])?;
            device.complete(token)?;
            // Nobody wants the results.
            device.submit(Queue::Compute, &[], &[token]).map(|_| ())
        })
    };
    let (one, several) = (multiplying(1)?, multiplying(TOKENS)?);
    let [copying, one, several] = [copying, one, several].map(|time| time.as_secs_f64().max(1e-9));
    let further = ((several - one) / (TOKENS - 1) as f64).max(one / 64.0);
    let tokens_max = if one < copying { 1 + ((copying - one) / further) as usize } else { 0 };
    Ok(Some(HostRates { link: bytes as f64 / copying, host: bytes as f64 / one, tokens_max }))
}

/// Measures the rate of copies to the GPU by the rules of [`Device::link_rate`].
///
/// # Errors
/// Fails if the GPU fails, or has no memory.
pub fn link(device: &mut VulkanDevice, most: Bytes) -> Result<Option<f64>, DeviceError> {
    let bytes = usize::try_from(most.0).unwrap_or(usize::MAX);
    if bytes == 0 {
        return Ok(None);
    }
    let (_, copying) = copy(device, bytes)?;
    Ok(Some(bytes as f64 / copying.as_secs_f64().max(1e-9)))
}

/// Copies `bytes` bytes to the GPU. Returns the host memory that they come from, and the time that this takes.
fn copy(device: &mut VulkanDevice, bytes: usize) -> Result<(Arc<HostBuffer>, Duration), DeviceError> {
    let host = HostBuffer::new_zeroed(bytes).map_err(|error| GpuError::Host(Arc::new(error)))?;
    let host = Arc::new(host);
    device.share(&host);
    let on_gpu = PlacedBytes::Gpu(Arc::new(GpuBuffer::new(device.gpu(), Heap::Device, bytes)?));
    let copying = fastest(|| {
        let mut last = None;
        for at in (0..bytes).step_by(PIECE) {
            let range = at..(at + PIECE).min(bytes);
            let copy = Command::CopyWeights { from: &host, range, to: &on_gpu, at };
            last = Some(device.submit(Queue::Upload, &[copy], &[])?);
        }
        last.map_or(Ok(()), |token| device.complete(token))
    })?;
    Ok((host, copying))
}

fn fastest(mut act: impl FnMut() -> Result<(), DeviceError>) -> Result<Duration, DeviceError> {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        act()?;
        least = least.min(begin.elapsed());
    }
    Ok(least)
}
