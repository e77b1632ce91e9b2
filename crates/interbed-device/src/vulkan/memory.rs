//! Memory that a GPU reads and writes by address.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;

use super::error::GpuError;
use super::gpu::Gpu;
use crate::HostBuffer;

/// The kinds of memory for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heap {
    /// Memory on the GPU.
    Device,
    /// Host memory, which the host writes and the GPU reads.
    Upload,
    /// Host memory, which the GPU writes and the host reads.
    Readback,
}

/// Some memory of a GPU's, or memory that a GPU can reach: an allocation of its own, or part of an allocation.
#[derive(Debug)]
pub struct GpuBuffer {
    allocation: Arc<Allocation>,
    start: usize,
    len: usize,
    /// What is dropped with the buffer: the hold on these bytes of an allocation that several buffers are parts of.
    _hold: Option<Box<dyn Any + Send + Sync>>,
}

/// Memory in the form in which drivers give it; many drivers give only a few thousand such allocations.
#[derive(Debug)]
struct Allocation {
    gpu: Arc<Gpu>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    address: u64,
    /// The address at which the host sees the memory.
    mapped: Option<NonNull<u8>>,
    /// The bytes that this allocation takes of the budget.
    taken: u64,
}

// SAFETY: it owns its memory; buffers give references to the host's view of it under their methods' conditions only.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl GpuBuffer {
    /// Takes `len` bytes of unspecified content.
    ///
    /// # Errors
    /// Fails if the budget, or the GPU, has no such memory.
    pub fn new(gpu: &Arc<Gpu>, heap: Heap, len: usize) -> Result<Self, GpuError> {
        Ok(Self { allocation: Arc::new(Allocation::new(gpu, heap, len)?), start: 0, len, _hold: None })
    }

    /// Lets copies to the GPU read host memory in place, from now on. Whoever submits such copies keeps the memory
    /// until the copies are done, so that nobody has exclusive access to the memory and can write it.
    ///
    /// # Errors
    /// Fails if the GPU or its driver cannot read this memory, or the driver gives few more allocations.
    pub(super) fn share(gpu: &Arc<Gpu>, memory: &HostBuffer) -> Result<(), GpuError> {
        if memory.view::<Self>().is_none() {
            let (start, len) = memory.pages();
            // SAFETY: they are whole pages of a mapping, which stays as it is while the view is kept. The rest is what
            // callers are told.
            let allocation = unsafe { Allocation::of_host(gpu, start, len) }?;
            memory.keep_view(Self { allocation: Arc::new(allocation), start: 0, len, _hold: None });
        }
        Ok(())
    }

    /// Returns host memory in the form in which this GPU sees it, if the memory was [shared](Self::share) with this
    /// GPU.
    pub(super) fn shared<'a>(gpu: &Arc<Gpu>, memory: &'a HostBuffer) -> Option<&'a Self> {
        memory.view::<Self>().filter(|view| Arc::ptr_eq(&view.allocation.gpu, gpu))
    }

    /// Returns a part of these bytes, which no other part may contain until `hold` is dropped with the part.
    ///
    /// # Panics
    /// Panics if the bytes are not within the buffer.
    pub(super) fn part(&self, range: Range<usize>, hold: Box<dyn Any + Send + Sync>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let (start, len) = (self.start + range.start, range.len());
        Self { allocation: Arc::clone(&self.allocation), start, len, _hold: Some(hold) }
    }

    /// Returns the buffer's address, for kernels.
    pub fn address(&self) -> u64 {
        self.allocation.address + self.start as u64
    }

    /// Returns the number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the driver's buffer, and the byte of it at which this buffer begins.
    pub(super) fn handle(&self) -> (vk::Buffer, usize) {
        (self.allocation.buffer, self.start)
    }

    /// Returns the host's view of some bytes.
    ///
    /// # Safety
    /// Until the reference is gone, nothing else on the host uses these bytes, and the GPU does not write them; if the
    /// host writes them, the GPU does not read them either.
    ///
    /// # Panics
    /// Panics if the bytes are not within the buffer, or the host cannot see them.
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub(super) unsafe fn on_host(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let start = self.allocation.mapped.expect("the host sees memory of this heap");
        // SAFETY: the range is mapped as long as the allocation lives; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(self.start + range.start), range.len()) }
    }
}

impl Allocation {
    fn new(gpu: &Arc<Gpu>, heap: Heap, len: usize) -> Result<Self, GpuError> {
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        // Kernels read whole words around what they need.
        let size = len.max(1).next_multiple_of(16);
        let mut create = vk::BufferCreateInfo::default().size(size as u64).usage(usage);
        if gpu.families()[0] != gpu.families()[1] {
            create = create.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(gpu.families());
        }
        let device = gpu.device();
        // SAFETY: `create` is complete.
        let buffer = unsafe { device.create_buffer(&create, None) }.map_err(GpuError::of("make a buffer"))?;
        let mut own =
            Self { gpu: Arc::clone(gpu), buffer, memory: vk::DeviceMemory::null(), address: 0, mapped: None, taken: 0 };
        // SAFETY: the buffer was just made of this device.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let (local, none) = (vk::MemoryPropertyFlags::DEVICE_LOCAL, vk::MemoryPropertyFlags::empty());
        // What the memory should have, what it should not have, and what it must have.
        let (wanted, unwanted, fallback) = match heap {
            Heap::Device => (local, visible, local),
            // In the host's own memory if the GPU has another: what goes through it is much.
            Heap::Upload => (visible, local, visible),
            // The host reads memory that is not cached very slowly.
            Heap::Readback => (visible | vk::MemoryPropertyFlags::HOST_CACHED, none, visible),
        };
        let kind = gpu
            .memory_type(needs.memory_type_bits, wanted, unwanted)
            .or_else(|| gpu.memory_type(needs.memory_type_bits, fallback, none))
            .ok_or(GpuError::Refused { what: "name memory of this kind", source: vk::Result::ERROR_UNKNOWN })?;
        if heap == Heap::Device {
            gpu.take(needs.size)?;
            own.taken = needs.size;
        }
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let allocate =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind).push_next(&mut flags);
        // SAFETY: `allocate` is complete.
        own.memory = unsafe { device.allocate_memory(&allocate, None) }.map_err(|error| match error {
            // Drivers say so of host memory too.
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY if heap != Heap::Device => {
                GpuError::HostMemory { what: "give memory" }
            }
            error => GpuError::of("give memory")(error),
        })?;
        gpu.count_allocation();
        // SAFETY: buffer and memory were just made, and belong together; the memory is as large as the buffer needs.
        unsafe { device.bind_buffer_memory(buffer, own.memory, 0) }.map_err(GpuError::of("bind memory"))?;
        let address = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer was made for use by address, and has its memory.
        own.address = unsafe { device.get_buffer_device_address(&address) };
        if heap != Heap::Device {
            // SAFETY: the memory is visible to the host, and not mapped yet.
            let mapped = unsafe { device.map_memory(own.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            own.mapped = NonNull::new(mapped.map_err(GpuError::of("map memory"))?.cast());
        }
        Ok(own)
    }

    /// Creates a buffer of host memory, which copies to the GPU read in place.
    ///
    /// # Safety
    /// The `len` bytes from `start` on are whole pages that stay mapped while the buffer exists.
    unsafe fn of_host(gpu: &Arc<Gpu>, start: NonNull<u8>, len: usize) -> Result<Self, GpuError> {
        const KIND: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let refused = |source| GpuError::Refused { what: "read host memory in place", source };
        let unfit = refused(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE);
        let Some((extension, alignment)) = gpu.host_memory() else { return Err(unfit) };
        if !gpu.can_share() {
            return Err(refused(vk::Result::ERROR_TOO_MANY_OBJECTS));
        }
        if len == 0 || !start.addr().get().is_multiple_of(*alignment) || !len.is_multiple_of(*alignment) {
            return Err(unfit);
        }
        let (device, size) = (gpu.device(), len as u64);
        let mut pointer = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the pages are mapped, which is the caller's promise.
        let known = unsafe {
            let ask = extension.fp().get_memory_host_pointer_properties_ext;
            ask(device.handle(), KIND, start.as_ptr().cast(), &mut pointer)
        };
        known.result().map_err(refused)?;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(KIND);
        let mut create = vk::BufferCreateInfo::default()
            .size(size)
            .usage(vk::BufferUsageFlags::TRANSFER_SRC)
            .push_next(&mut external);
        if gpu.families()[0] != gpu.families()[1] {
            create = create.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(gpu.families());
        }
        // SAFETY: `create` is complete.
        let buffer = unsafe { device.create_buffer(&create, None) }.map_err(GpuError::of("make a buffer"))?;
        let mut own =
            Self { gpu: Arc::clone(gpu), buffer, memory: vk::DeviceMemory::null(), address: 0, mapped: None, taken: 0 };
        // SAFETY: the buffer was just made of this device.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        // What the host has written is then seen by whatever is submitted afterwards.
        let coherent = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let none = vk::MemoryPropertyFlags::empty();
        let kind = gpu.memory_type(needs.memory_type_bits & pointer.memory_type_bits, coherent, none);
        let Some(kind) = kind.filter(|_| needs.size <= size) else { return Err(unfit) };
        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(KIND).host_pointer(start.as_ptr().cast());
        let allocate =
            vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(kind).push_next(&mut import);
        // SAFETY: `allocate` is complete, and the pages stay mapped, which is the caller's promise.
        own.memory = unsafe { device.allocate_memory(&allocate, None) }.map_err(refused)?;
        gpu.count_allocation();
        // SAFETY: buffer and memory were just made, of the same kind of handle; the memory is as large as needed.
        unsafe { device.bind_buffer_memory(buffer, own.memory, 0) }.map_err(GpuError::of("bind memory"))?;
        Ok(own)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: whoever gave the buffer to the GPU has kept it until the GPU was done with it. Null handles, which an
        // error in `new` leaves, are ignored.
        unsafe {
            self.gpu.device().destroy_buffer(self.buffer, None);
            self.gpu.device().free_memory(self.memory, None);
        }
        if self.memory != vk::DeviceMemory::null() {
            self.gpu.forget_allocation();
        }
        self.gpu.put_back(self.taken);
    }
}
