//! The interface between the forward pass and the device that computes: a processor, a GPU, or a device that tests
//! ordering.

use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::{BlockGroups, DType};
use thiserror::Error;

use crate::{
    Bytes, Command, Cpu, DeviceEvent, DeviceStats, GpuError, HostBuffer, HostRates, KvStrips, OutOfTensors,
    PlacedBytes, Queue, Tensor, Token,
};

/// The reasons for which a device cannot do what was asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The tensors of a pass do not fit into the device's memory.
    #[error(transparent)]
    OutOfTensors(#[from] OutOfTensors),
    /// Weights were released that the device has yet to read. This error comes only with weight sources that reuse
    /// their memory.
    #[error("weights were released while the device still uses them")]
    WeightsInUse,
    /// Two submissions use the same memory without an order between them. Only devices that check the order report this
    /// error.
    #[error("submission {second} does not wait for submission {first}, which uses the same memory")]
    Unordered {
        /// The submission that came first.
        first: u64,
        /// The submission that should have waited.
        second: u64,
    },
    /// The host reads a tensor before its download is complete. Only devices that check the order report this error.
    #[error("the host reads a tensor that submission {writer} has not written yet")]
    ReadTooEarly {
        /// The submission that writes the tensor.
        writer: u64,
    },
    /// The device computes in host memory.
    #[error("this device has no memory of its own")]
    NoMemory,
    /// The memory that the device may use is taken.
    #[error("the device has no memory left")]
    Full,
    /// The system refused to take the memory of KV blocks back.
    #[error("the system does not take their memory back: {0}")]
    GiveBack(std::io::Error),
    /// The GPU or its driver failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl DeviceError {
    /// Returns whether the device refused because its memory is taken, so that less may still fit.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full => true,
            Self::Gpu(error) => error.is_full(),
            _ => false,
        }
    }
}

/// Executes the operations of forward passes on tensors and KV blocks, and owns the memory of both.
///
/// - Everything that a command borrows is read before [`submit`](Self::submit) returns, but for memory that the device
///   [shares](Self::share). When its *results* may be used depends on tokens: later commands of the same queue may use
///   them at once, commands of other queues if they wait for its token, and the host once
///   [`complete`](Self::complete) has returned.
/// - A submission may wait only for tokens of earlier submissions. The thread that submits waits in `complete` alone,
///   so nothing in a queue waits for that thread.
/// - If the execution of a submission fails, `complete` fails for its token and for all submissions that wait for it.
pub trait Device: Send {
    /// Returns the maximum number of numbers that all tensors of a pass together may have.
    fn tensor_capacity(&self) -> usize;

    /// Submits `commands`, to be executed in this order, after `waits`.
    ///
    /// # Errors
    /// Fails if the device refuses; nothing was submitted then.
    ///
    /// Fails if shapes disagree, a tensor lies outside the capacity, or a block table is too short or names a block
    /// that does not exist: callers must prevent this.
    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError>;

    /// Waits until everything submitted with `token` has been executed.
    ///
    /// # Errors
    /// Fails if the execution failed.
    fn complete(&mut self, token: Token) -> Result<(), DeviceError>;

    /// Returns whether everything submitted with `token` is known to have been executed, without waiting for it.
    ///
    /// # Errors
    /// Fails if the execution failed.
    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError>;

    /// Returns the numbers of a tensor that was [downloaded](Command::Download), once the download is complete. The
    /// host may change them.
    ///
    /// # Errors
    /// Fails if the device finds that the download is not complete ([`DeviceError::ReadTooEarly`]).
    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError>;

    /// Returns whether there is a [`Queue::Host`].
    fn computes_on_host(&self) -> bool {
        false
    }

    /// Returns whether the tensors that the host reads are copied to the host. If so, the host should want little, and
    /// [`Command::Best`] takes the place of whole rows.
    fn copies_downloads(&self) -> bool {
        false
    }

    /// Allocates `len` bytes of the device's own memory for weights, which [`Command::CopyWeights`] writes.
    ///
    /// # Errors
    /// Fails if the device has no memory left, or no memory of its own at all.
    fn allocate(&mut self, _len: usize) -> Result<PlacedBytes, DeviceError> {
        Err(DeviceError::NoMemory)
    }

    /// Lets [copies](Command::CopyWeights) from this host memory read the bytes in place from now on, and returns true.
    /// Returns false if the device cannot; copies then read all bytes before they are submitted. The device lets go of
    /// the memory once the copies are complete.
    fn share(&mut self, _memory: &HostBuffer) -> bool {
        false
    }

    /// Puts bytes of weights permanently where the device reads them fastest. By default they stay where they are.
    ///
    /// # Errors
    /// Fails if there is no memory for the bytes.
    fn place(&mut self, bytes: &Arc<HostBuffer>) -> Result<PlacedBytes, DeviceError> {
        Ok(PlacedBytes::Host(Arc::clone(bytes)))
    }

    /// Returns whether the device computes in memory of its own, to which weights have to be copied from host memory.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Returns the processor that computes, unless the device has memory of its own.
    fn processor(&self) -> Option<&Cpu> {
        None
    }

    /// Returns the groups of the device's blocks. A block's number means the same everywhere: in tables, spans and
    /// copies, and here.
    fn block_groups(&self) -> &BlockGroups;

    /// Copies the `into.len()` bytes of a block from byte `begin` on to the host, after everything that was submitted
    /// before.
    ///
    /// # Errors
    /// Fails if the device fails; the content of `into` is then unspecified.
    ///
    /// # Panics
    /// Panics if there is no such block, or if it has no such bytes.
    fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Replaces some bytes of a block by what `fill` writes, before everything that is submitted later. `fill` is
    /// called once, with as many bytes as `bytes` has. None of these is
    /// [padding](interbed_kernels::KvLayout::padding_bytes).
    ///
    /// # Errors
    /// Fails if the device fails, or has no memory; the content of the block is then unspecified.
    ///
    /// # Panics
    /// Panics if there is no such block, or if it has no such bytes.
    fn fill_block(
        &mut self,
        block: u32,
        bytes: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Takes memory for `count` blocks of a group that are to [come](Self::resize_blocks), as far as there is any.
    /// Returns for how many of them there is memory. A device whose blocks always have memory returns `count`.
    ///
    /// # Errors
    /// Fails if the device fails. That it has no memory left is no failure.
    ///
    /// # Panics
    /// Panics if there is no such group.
    fn reserve_blocks(&mut self, _group: usize, count: usize) -> Result<usize, DeviceError> {
        Ok(count)
    }

    /// Makes the memory of the first `count` blocks of a group ready now rather than when the blocks are first written.
    /// The blocks lose their content.
    ///
    /// # Panics
    /// Panics if there is no such group.
    fn prepare_blocks(&mut self, _group: usize, _count: usize) {}

    /// Gives the blocks `came` memory: what was [reserved](Self::reserve_blocks), and what the blocks `left` had. The
    /// rest goes back to the system, or to the weights of the device or the blocks of other groups. A block that came
    /// and has memory keeps memory and content, and a block that left and has no memory stays as it is. The content of
    /// all others is lost. Copies of blocks that were submitted before are still carried out.
    ///
    /// # Errors
    /// Fails if the system or the device refuses. Blocks that left may then still have their memory, and blocks that
    /// came must not be used.
    ///
    /// # Panics
    /// Panics if a block does not exist.
    fn resize_blocks(&mut self, _came: &[u32], _left: &[u32]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the strips in which blocks can be mapped side by side, if the device has any.
    fn strips(&mut self) -> Option<&mut KvStrips> {
        None
    }

    /// Has `cpu` compute products with weights in host memory on [`Queue::Host`], if trials show that the processor
    /// gives products with weights of these `dtypes` the same bits as the device. Returns whether it does. This must be
    /// called before the first pass.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn compute_on_host(&mut self, _cpu: Cpu, _dtypes: &[DType]) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Measures with at most `most` bytes of weights of a type how fast these are copied to the device, and how fast
    /// the [host](Self::compute_on_host) multiplies with them. Returns `None` if this cannot be measured. This must be
    /// called before the first pass.
    ///
    /// # Errors
    /// Fails if the device fails, or has no memory.
    fn host_rates(&mut self, _dtype: DType, _most: Bytes) -> Result<Option<HostRates>, DeviceError> {
        Ok(None)
    }

    /// Measures with at most `most` bytes of weights how many bytes a second are copied to the device. Returns `None`
    /// if this cannot be measured. This must be called before the first pass.
    ///
    /// # Errors
    /// Fails if the device fails, or has no memory.
    fn link_rate(&mut self, _most: Bytes) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// Waits until everything that was submitted has been executed.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the figures of a device with memory of its own.
    fn stats(&self) -> Option<DeviceStats> {
        None
    }

    /// Records from now on when batches of commands are executed, if the device can tell.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn note_times(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the recorded batches that have been executed since the last call, queue by queue.
    ///
    /// # Errors
    /// Fails if the device fails.
    fn take_times(&mut self) -> Result<Vec<DeviceEvent>, DeviceError> {
        Ok(Vec::new())
    }
}

/// A device whose kind is known only when the program runs. Every method is passed on, because one that is left out
/// would do what it does by default.
impl Device for Box<dyn Device> {
    fn tensor_capacity(&self) -> usize {
        (**self).tensor_capacity()
    }

    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        (**self).submit(queue, commands, waits)
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        (**self).complete(token)
    }

    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError> {
        (**self).is_complete(token)
    }

    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError> {
        (**self).downloaded(tensor)
    }

    fn computes_on_host(&self) -> bool {
        (**self).computes_on_host()
    }

    fn copies_downloads(&self) -> bool {
        (**self).copies_downloads()
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        (**self).allocate(len)
    }

    fn share(&mut self, memory: &HostBuffer) -> bool {
        (**self).share(memory)
    }

    fn place(&mut self, bytes: &Arc<HostBuffer>) -> Result<PlacedBytes, DeviceError> {
        (**self).place(bytes)
    }

    fn has_own_memory(&self) -> bool {
        (**self).has_own_memory()
    }

    fn processor(&self) -> Option<&Cpu> {
        (**self).processor()
    }

    fn block_groups(&self) -> &BlockGroups {
        (**self).block_groups()
    }

    fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_block(block, begin, into)
    }

    fn fill_block(
        &mut self,
        block: u32,
        bytes: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        (**self).fill_block(block, bytes, fill)
    }

    fn prepare_blocks(&mut self, group: usize, count: usize) {
        (**self).prepare_blocks(group, count)
    }

    fn reserve_blocks(&mut self, group: usize, count: usize) -> Result<usize, DeviceError> {
        (**self).reserve_blocks(group, count)
    }

    fn resize_blocks(&mut self, came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
        (**self).resize_blocks(came, left)
    }

    fn strips(&mut self) -> Option<&mut KvStrips> {
        (**self).strips()
    }

    fn compute_on_host(&mut self, cpu: Cpu, dtypes: &[DType]) -> Result<bool, DeviceError> {
        (**self).compute_on_host(cpu, dtypes)
    }

    fn host_rates(&mut self, dtype: DType, most: Bytes) -> Result<Option<HostRates>, DeviceError> {
        (**self).host_rates(dtype, most)
    }

    fn link_rate(&mut self, most: Bytes) -> Result<Option<f64>, DeviceError> {
        (**self).link_rate(most)
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        (**self).settle()
    }

    fn stats(&self) -> Option<DeviceStats> {
        (**self).stats()
    }

    fn note_times(&mut self) -> Result<(), DeviceError> {
        (**self).note_times()
    }

    fn take_times(&mut self) -> Result<Vec<DeviceEvent>, DeviceError> {
        (**self).take_times()
    }
}
