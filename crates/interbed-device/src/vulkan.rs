//! A GPU as a device, through Vulkan. Tensors, KV blocks and kernels are on the GPU; commands are recorded, and handed
//! over some at a time.
//!
//! Everything that a command borrows is copied when the command is submitted, also weights in host memory: all of this
//! goes into a ring of host memory that kernels read. So weights may lie anywhere; weights that are used often belong
//! on the GPU ([`Device::place`]).

mod agreement;
mod arguments;
mod block_tables;
mod chunks;
mod downloads;
mod error;
mod gpu;
mod gpu_queue;
mod host_queue;
mod host_rates;
mod integers;
mod kernels;
mod kv;
mod loader;
mod memory;
mod rates;
mod record;
mod timestamps;

use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::{BlockGroup, BlockGroups, DType, GroupLayout};

use crate::{
    BlockMemory, Bytes, Command, Cpu, Device, DeviceError, DeviceEvent, DeviceStats, HostBuffer, HostRates, Operand,
    PassNeeds, PlacedBytes, Queue, Tensor, Token, Use,
};
use arguments::{Arguments, PIECE_MAX};
use block_tables::BlockTables;
use chunks::Chunks;
use downloads::Downloads;
use gpu_queue::GpuQueue;
use host_queue::{HostQueue, Input};
use integers::Integers;
use kernels::Kernels;
use kv::{GpuKv, Place, Resized};
use record::Recorder;
use timestamps::Clock;

pub use error::GpuError;
pub use gpu::Gpu;
pub use integers::ProductArithmetic;
pub use loader::{GpuInfo, Vulkan};
pub use memory::{GpuBuffer, Heap};
pub use rates::CopyRates;

/// A GPU as a device, through Vulkan.
pub struct VulkanDevice {
    host: Option<HostQueue>,
    /// The queues wait for each other: all end their work before any of them is dropped.
    queues: [GpuQueue; 3],
    kernels: Kernels,
    tensors: Arc<GpuBuffer>,
    /// Room for parts of attention.
    scratch: Arc<GpuBuffer>,
    kv: GpuKv,
    integers: Integers,
    /// Room for the greatest numbers of parts of rows.
    best_room: Arc<GpuBuffer>,
    arguments: Arguments,
    block_tables: BlockTables,
    chunks: Chunks,
    downloads: Downloads,
    /// Room on the host for KV blocks that are read.
    block_room: Option<Arc<GpuBuffer>>,
    submitted: u64,
    /// Times that the host had to wait for room in the ring of arguments.
    waits_for_room: u64,
    /// Whether the driver has shared all host memory that it was asked to share.
    shares: bool,
    /// Bytes to the GPU and to the host, beside arguments and downloads.
    beside: [u64; 2],
    /// The last submission of each queue that the host has waited for.
    known: [u64; 3],
    name: Arc<str>,
    /// The clock of the batches' times, if times are noted.
    clock: Option<Clock>,
    gpu: Arc<Gpu>,
}

impl VulkanDevice {
    /// Returns whether there are kernels for weights of type `dtype`.
    pub fn computes(dtype: DType) -> bool {
        kernels::Number::of(dtype).is_ok()
    }

    /// Returns the number of bytes of GPU memory that passes of these `needs` take, without weights and KV.
    pub fn pass_bytes(needs: &PassNeeds, arithmetic: ProductArithmetic) -> usize {
        let scratch = needs.attention_scratch.saturating_mul(size_of::<f32>());
        needs
            .tensors
            .bytes()
            .saturating_add(scratch)
            .saturating_add(Integers::bytes(needs, arithmetic))
            .saturating_add(record::room_bytes(needs))
    }

    /// Creates a device with memory for passes of these `needs`, and the blocks of `groups`.
    ///
    /// # Errors
    /// Fails if the GPU has no such memory, or cannot keep KV of these layouts.
    pub fn new(gpu: &Arc<Gpu>, needs: &PassNeeds, groups: &BlockGroups) -> Result<Self, GpuError> {
        Self::with_products(gpu, needs, groups, ProductArithmetic::Float)
    }

    /// Creates a device in the way of [`new`](Self::new), whose products with quantised weights are computed in this
    /// arithmetic.
    ///
    /// # Errors
    /// Fails if the GPU has no such memory, cannot keep KV of these layouts, or lacks that arithmetic.
    pub fn with_products(
        gpu: &Arc<Gpu>,
        needs: &PassNeeds,
        groups: &BlockGroups,
        arithmetic: ProductArithmetic,
    ) -> Result<Self, GpuError> {
        Self::with_blocks(gpu, needs, groups, BlockMemory::Own, arithmetic)
    }

    /// Creates a device in the way of [`with_products`](Self::with_products), whose blocks have their memory from
    /// `blocks`.
    ///
    /// # Errors
    /// Fails if the GPU has no such memory, cannot keep KV of these layouts, or lacks that arithmetic.
    pub fn with_blocks(
        gpu: &Arc<Gpu>,
        needs: &PassNeeds,
        groups: &BlockGroups,
        blocks: BlockMemory,
        arithmetic: ProductArithmetic,
    ) -> Result<Self, GpuError> {
        let kv = GpuKv::new(gpu, groups.clone(), blocks)?;
        let layouts = kv.groups().groups().iter().filter_map(|group| match group.layout() {
            GroupLayout::Kv(layout) => Some(layout),
            GroupLayout::States(_) => None,
        });
        let mut heads = layouts.flat_map(|layout| (0..layout.num_layers()).map(|layer| layout.layer(layer).head_dim()));
        if let Some(head_dim) = heads.find(|head_dim| !head_dim.is_multiple_of(4)) {
            return Err(GpuError::Heads { head_dim });
        }
        Ok(Self {
            host: None,
            queues: [GpuQueue::new(gpu, false)?, GpuQueue::new(gpu, true)?, GpuQueue::new(gpu, true)?],
            kernels: Kernels::new(gpu)?,
            tensors: Arc::new(GpuBuffer::new(gpu, Heap::Device, needs.tensors.bytes())?),
            scratch: Arc::new(GpuBuffer::new(gpu, Heap::Device, needs.attention_scratch * size_of::<f32>())?),
            kv,
            integers: Integers::new(gpu, needs, arithmetic)?,
            best_room: Arc::new(GpuBuffer::new(gpu, Heap::Device, record::room_bytes(needs))?),
            arguments: Arguments::new(gpu)?,
            block_tables: BlockTables::default(),
            chunks: Chunks::default(),
            downloads: Downloads::default(),
            block_room: None,
            submitted: 0,
            waits_for_room: 0,
            shares: true,
            beside: [0; 2],
            known: [0; 3],
            name: gpu.info().name.as_str().into(),
            clock: None,
            gpu: Arc::clone(gpu),
        })
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Copies `bytes` of a block to `room` if `is_read`, otherwise from `room` to the block.
    fn copy_block(
        &mut self,
        block: u32,
        is_read: bool,
        room: (&Arc<GpuBuffer>, usize),
        bytes: Range<usize>,
    ) -> Result<Token, GpuError> {
        // In the queue of passes, so that it is ordered with them.
        let (queue, number) = (Queue::Compute, self.submitted + 1);
        self.begin(COMPUTE, number, &[])?;
        self.submitted = number;
        let gpu_queue = &mut self.queues[COMPUTE];
        let commands = gpu_queue.operation(&[Use { place: Operand::Kv, writes: !is_read }]);
        let (slab, offset) = self.kv.place(block);
        assert!(bytes.end <= self.kv.groups().layout_of(block).block_bytes());
        let offset = offset + bytes.start;
        let (from, to) =
            if is_read { ((&**slab, offset), (&**room.0, room.1)) } else { ((&**room.0, room.1), (&**slab, offset)) };
        record::copy(&self.gpu, commands, from, to, bytes.len());
        if is_read {
            gpu_queue.barrier();
        }
        gpu_queue.keep(Arc::clone(room.0));
        gpu_queue.end()?;
        Ok(Token { queue, number })
    }

    /// Copies the contents of blocks to other places, after everything that was submitted before.
    fn move_contents(&mut self, moves: &[(Place, Place, usize)]) -> Result<(), GpuError> {
        let number = self.submitted + 1;
        self.begin(COMPUTE, number, &[])?;
        self.submitted = number;
        // None begins where another ends, so no barrier is between them.
        let commands = self.queues[COMPUTE].operation(&[Use { place: Operand::Kv, writes: true }]);
        for ((from, source), (to, destination), len) in moves {
            record::copy(&self.gpu, commands, (&**from, *source), (&**to, *destination), *len);
        }
        self.queues[COMPUTE].end()
    }

    /// Begins a submission behind `waits`. Waits that have not been handed over yet are handed over first.
    fn begin(&mut self, gpu_queue: usize, number: u64, waits: &[Token]) -> Result<(), GpuError> {
        let mut signals = Vec::new();
        for token in waits {
            let Some(of) = index_of(token.queue) else {
                signals.extend(self.host.as_ref().map(|host| host.signal_of(token.number)));
                continue;
            };
            if of == gpu_queue || self.queues[of].is_done(token.number)? {
                continue;
            }
            self.queues[of].hand_over_to(token.number)?;
            signals.push(self.queues[of].signal_of(token.number));
        }
        self.queues[gpu_queue].begin(number, signals)
    }

    /// Makes room in the ring of arguments, if much of the ring is in use.
    fn make_room(&mut self) -> Result<(), GpuError> {
        while let Some((gpu_queue, number)) = self.arguments.oldest() {
            let own = &mut self.queues[gpu_queue];
            if !own.is_done(number)? {
                if !self.arguments.is_tight() {
                    return Ok(());
                }
                own.wait(number)?;
                self.waits_for_room += 1;
            }
            self.arguments.give_back_oldest();
        }
        Ok(())
    }

    fn try_submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, GpuError> {
        let Some(of) = index_of(queue) else { return self.submit_to_host(commands, waits) };
        self.make_room()?;
        let number = self.submitted + 1;
        self.begin(of, number, waits)?;
        self.submitted = number;
        let Self {
            host,
            queues,
            kernels,
            tensors,
            scratch,
            kv,
            integers,
            best_room,
            arguments,
            block_tables,
            downloads,
            known,
            beside,
            gpu,
            ..
        } = self;
        let gpu_queue = &mut queues[of];
        let mut recorder = Recorder {
            gpu,
            gpu_queue,
            submission: (of, number),
            kernels,
            arguments,
            block_tables,
            downloads,
            tensors,
            scratch,
            kv,
            integers,
            best_room,
            known: *known,
            in_place: &mut beside[0],
        };
        if let Some(host) = host {
            host.check()?;
            let of_host = waits.iter().filter(|token| token.queue == Queue::Host).map(|token| token.number).max();
            while let Some(results) = of_host.and_then(|number| host.take_results(number)) {
                *recorder.in_place += recorder.take_in(&results);
            }
            commands.iter().for_each(|command| host.forget(&command.uses()));
        }
        commands.iter().try_for_each(|command| recorder.record(command))?;
        gpu_queue.end()?;
        Ok(Token { queue, number })
    }

    /// Has the host compute products, once the host has their activations.
    ///
    /// # Panics
    /// Panics if the commands are others than one [`Command::Products`] without a gate, or there is no such queue.
    fn submit_to_host(&mut self, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, GpuError> {
        let &[Command::Products { x, cols, products, gate: None }] = commands else {
            panic!("the host computes products, one command at a time")
        };
        let known = self.host.as_ref().expect("the device has a queue of the host").input(x);
        let input = match known {
            Some(input) => input,
            None => self.bring_to_host(x, waits)?,
        };
        let (host, number) = (self.host.as_mut().expect("as above"), self.submitted + 1);
        host.submit(number, input, cols, products)?;
        self.submitted = number;
        Ok(Token { queue: Queue::Host, number })
    }

    /// Copies activations to host memory, where the host computes with them.
    fn bring_to_host(&mut self, x: Tensor, waits: &[Token]) -> Result<Input, GpuError> {
        let number = self.submitted + 1;
        self.begin(COMPUTE, number, waits)?;
        self.submitted = number;
        let Self { host, queues, tensors, beside, gpu, .. } = self;
        let (host, gpu_queue) = (host.as_mut().expect("the device has a queue of the host"), &mut queues[COMPUTE]);
        let room = host.room_for(x)?;
        let commands = gpu_queue.operation(&[Use { place: Operand::Tensor(x), writes: false }]);
        let (start, len) = (x.range().start * size_of::<f32>(), x.len() * size_of::<f32>());
        record::copy(gpu, commands, (&**tensors, start), (&*room, 0), len);
        beside[1] += len as u64;
        // The host reads it once it knows that this is done, and waits for it soon.
        gpu_queue.barrier();
        gpu_queue.keep(Arc::clone(&room));
        gpu_queue.hand_over()?;
        Ok(host.set_input(x, room, gpu_queue.signal_of(number)))
    }

    fn try_complete(&mut self, token: Token) -> Result<(), GpuError> {
        if let Some(host) = &self.host {
            host.check()?;
        }
        let Some(of) = index_of(token.queue) else {
            return self.host.as_ref().map_or(Ok(()), |host| host.wait(token.number));
        };
        self.queues[of].wait(token.number)?;
        self.known[of] = self.known[of].max(token.number);
        // What was computed with results of the host is as good as those.
        self.host.as_ref().map_or(Ok(()), HostQueue::check)
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        // The host first: it ends what the queues wait for.
        self.host = None;
        self.gpu.wait_idle();
    }
}

impl Device for VulkanDevice {
    fn tensor_capacity(&self) -> usize {
        self.tensors.len() / size_of::<f32>()
    }

    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        let submitted = self.try_submit(queue, commands, waits);
        if submitted.is_err() {
            self.integers.forget();
        }
        Ok(submitted?)
    }

    fn copies_downloads(&self) -> bool {
        true
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        Ok(self.try_complete(token)?)
    }

    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError> {
        match index_of(token.queue) {
            Some(of) => {
                // Whoever asks again and again would never see the end of what is not handed over.
                self.queues[of].hand_over_to(token.number)?;
                Ok(self.queues[of].is_done(token.number)?)
            }
            None => Ok(self.host.as_ref().map_or(Ok(true), |host| host.is_done(token.number))?),
        }
    }

    fn share(&mut self, memory: &HostBuffer) -> bool {
        // What was refused once is not asked for again: drivers have limits to how much memory they share.
        self.shares = self.shares && GpuBuffer::share(&self.gpu, memory).is_ok();
        GpuBuffer::shared(&self.gpu, memory).is_some()
    }

    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError> {
        let (buffer, (gpu_queue, number)) = self.downloads.find(tensor).expect("the host reads what was downloaded");
        if number > self.known[gpu_queue] {
            return Err(DeviceError::ReadTooEarly { writer: number });
        }
        // SAFETY: the submission that wrote it is done; the next one that does comes through `&mut self`, as does every
        // other reference.
        let bytes = unsafe { buffer.on_host(0..tensor.len() * size_of::<f32>()) };
        Ok(bytemuck::cast_slice_mut(bytes))
    }

    fn computes_on_host(&self) -> bool {
        self.host.is_some()
    }

    fn compute_on_host(&mut self, cpu: Cpu, dtypes: &[DType]) -> Result<bool, DeviceError> {
        // The host adds up as the GPU does in f32, and has no bytes.
        let in_integers = dtypes.iter().any(|&dtype| self.integers.address(dtype).is_some());
        let order = if in_integers { None } else { self.order_of_sums(dtypes)? };
        self.host = order.map(|order| HostQueue::new(&self.gpu, cpu, order)).transpose()?;
        Ok(self.host.is_some())
    }

    fn host_rates(&mut self, dtype: DType, most: Bytes) -> Result<Option<HostRates>, DeviceError> {
        host_rates::measure(self, dtype, most)
    }

    fn link_rate(&mut self, most: Bytes) -> Result<Option<f64>, DeviceError> {
        host_rates::link(self, most)
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn block_groups(&self) -> &BlockGroups {
        self.kv.groups()
    }

    fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        let room = match self.block_room.take() {
            Some(room) => room,
            None => {
                let groups = self.kv.groups().groups().iter();
                let longest = groups.map(BlockGroup::block_bytes).max().unwrap_or(0);
                Arc::new(GpuBuffer::new(&self.gpu, Heap::Readback, longest)?)
            }
        };
        let token = self.copy_block(block, true, (&room, 0), begin..begin + into.len())?;
        self.try_complete(token)?;
        self.beside[1] += into.len() as u64;
        // SAFETY: the copy into it is done, and nothing else uses it.
        into.copy_from_slice(unsafe { room.on_host(0..into.len()) });
        self.block_room = Some(room);
        Ok(())
    }

    fn fill_block(
        &mut self,
        block: u32,
        bytes: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.make_room()?;
        let put = self.arguments.put((COMPUTE, self.submitted + 1), bytes.len(), |bytes| fill(bytes))?;
        self.copy_block(block, false, (&put.buffer, put.offset), bytes)?;
        Ok(())
    }

    fn reserve_blocks(&mut self, group: usize, count: usize) -> Result<usize, DeviceError> {
        let reserved = self.kv.reserve(&self.gpu, &mut self.chunks, group, count)?;
        if reserved == count {
            return Ok(reserved);
        }
        // Weights that were dropped keep their memory until the queues are done with them.
        self.settle()?;
        Ok(self.kv.reserve(&self.gpu, &mut self.chunks, group, count)?)
    }

    fn resize_blocks(&mut self, came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
        // Tables have the addresses of blocks.
        self.block_tables = BlockTables::default();
        let Resized { moves, unused, is_enough } = self.kv.resize(came, left);
        if !moves.is_empty() {
            self.move_contents(&moves)?;
        }
        if !unused.iter().all(Vec::is_empty) {
            // Copies of blocks may still read it.
            let settled = self.settle();
            if settled.is_err() {
                self.kv.keep(unused);
            }
            settled?;
        }
        if is_enough { Ok(()) } else { Err(DeviceError::Full) }
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(self.queues.iter_mut().try_for_each(GpuQueue::settle)?)
    }

    fn stats(&self) -> Option<DeviceStats> {
        let [memory_used, memory_budget] = self.gpu.used();
        Some(DeviceStats {
            name: Arc::clone(&self.name),
            memory_used,
            memory_budget,
            bytes_to_device: self.arguments.bytes_put() + self.beside[0],
            bytes_to_host: self.downloads.bytes() + self.beside[1],
            waits_for_room: self.waits_for_room,
        })
    }

    fn note_times(&mut self) -> Result<(), DeviceError> {
        for (own, queue) in self.queues.iter_mut().zip(QUEUES) {
            own.note_times(queue)?;
        }
        self.clock = Some(Clock::new(&self.gpu));
        Ok(())
    }

    fn take_times(&mut self) -> Result<Vec<DeviceEvent>, DeviceError> {
        let Some(clock) = &mut self.clock else { return Ok(Vec::new()) };
        let mut batches = Vec::new();
        for queue in &mut self.queues {
            batches.extend(queue.take_times()?);
        }
        Ok(clock.events(&batches).collect())
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        let taken = match self.chunks.take(&self.gpu, len) {
            Err(error) if error.is_full() && self.kv.is_elastic() => {
                // What was dropped keeps its memory until the queues are done with it.
                self.settle()?;
                self.chunks.take(&self.gpu, len)
            }
            taken => taken,
        };
        Ok(PlacedBytes::Gpu(Arc::new(taken?)))
    }

    fn place(&mut self, bytes: &Arc<HostBuffer>) -> Result<PlacedBytes, DeviceError> {
        let to = self.allocate(bytes.len())?;
        let mut last = None;
        for at in (0..bytes.len()).step_by(PIECE_MAX) {
            let range = at..(at + PIECE_MAX).min(bytes.len());
            let copy = Command::CopyWeights { from: bytes, range, to: &to, at };
            last = Some(self.submit(Queue::Upload, &[copy], &[])?);
        }
        // Kernels read these weights without waiting for their copy.
        last.map_or(Ok(()), |token| self.complete(token))?;
        Ok(to)
    }
}

/// The GPU's queues, in their order.
const QUEUES: [Queue; 3] = [Queue::Compute, Queue::Upload, Queue::Download];

/// The place of the queue of kernels in [`QUEUES`].
const COMPUTE: usize = 0;

/// Returns a queue's place in [`QUEUES`]; `None` for the host's queue.
fn index_of(queue: Queue) -> Option<usize> {
    match queue {
        Queue::Compute => Some(COMPUTE),
        Queue::Upload => Some(1),
        Queue::Download => Some(2),
        Queue::Host => None,
    }
}
