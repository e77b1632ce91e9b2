//! A GPU that is in use: its queues, its memory and the budget of that memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;

use super::error::GpuError;
use super::loader::{GpuInfo, Vulkan, is_for_copies};
use crate::Bytes;

/// A GPU in use. Everything that was made on the GPU keeps this value alive.
pub struct Gpu {
    device: ash::Device,
    info: GpuInfo,
    memory: vk::PhysicalDeviceMemoryProperties,
    /// Families of the queues for kernels and for copies, which may be the same.
    families: [u32; 2],
    /// The queue for kernels, and the queue for copies if that is another. Vulkan lets one thread at a time use each
    /// queue.
    queues: Vec<Mutex<vk::Queue>>,
    /// Bytes of device memory that may be used.
    budget: u64,
    used: AtomicU64,
    /// The most bytes of one allocation.
    allocation_max: u64,
    /// Allocations of any memory, host memory that is read in place among them, and the most that the driver gives.
    allocations: AtomicU32,
    allocations_max: u32,
    /// Bits of the times that queues for kernels and for copies note, and nanoseconds of one tick.
    tick_bits: [u32; 2],
    tick_nanoseconds: f64,
    /// Whether kernels can ask for a number of threads that compute in step.
    chooses_subgroups: bool,
    /// The functions that let the GPU read host memory in place, and the number of bytes that such memory begins and
    /// ends at multiples of; `None` if the GPU cannot read host memory.
    host_memory: Option<(ash::ext::external_memory_host::Device, usize)>,
    _vulkan: Arc<Vulkan>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Gpu").field(&self.info.name).finish()
    }
}

impl Gpu {
    /// Opens GPU `number`, to use at most `budget` bytes of the GPU's memory.
    ///
    /// # Errors
    /// Fails if there is no such GPU, the GPU lacks what kernels need, or its driver refuses.
    pub fn open(vulkan: &Arc<Vulkan>, number: usize, budget: Bytes) -> Result<Arc<Self>, GpuError> {
        let gpu = *vulkan.physical_devices()?.get(number).ok_or(GpuError::NotFound { number })?;
        let info = vulkan.info(number, gpu);
        if let Some(missing) = info.missing {
            return Err(GpuError::Lacks { gpu: info.name, missing });
        }
        let queues = vulkan.queue_families(gpu);
        let computes = |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let computes = queues.iter().position(computes);
        let Some(computes) = computes else {
            return Err(GpuError::Lacks { gpu: info.name, missing: "a queue for kernels" });
        };
        let copies = queues.iter().position(is_for_copies).unwrap_or(computes);
        let families = [computes as u32, copies as u32];

        let mut properties_11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut properties_13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut properties_host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties =
            vk::PhysicalDeviceProperties2::default().push_next(&mut properties_11).push_next(&mut properties_13);
        if info.reads_host_memory {
            properties = properties.push_next(&mut properties_host);
        }
        let instance = vulkan.instance();
        let resets_queries = vulkan.resets_queries(gpu);
        let bits = |family: usize| if resets_queries { queues[family].timestamp_valid_bits } else { 0 };
        let tick_bits = [bits(computes), bits(copies)];
        // SAFETY: the GPU is of this instance, and the chain consists of structures that Vulkan 1.3 knows.
        unsafe { instance.get_physical_device_properties2(gpu, &mut properties) };
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(gpu) };
        let limits = properties.properties.limits;
        let (tick_nanoseconds, allocations_max) =
            (f64::from(limits.timestamp_period), limits.max_memory_allocation_count);

        let device = start(instance, gpu, families, &info, resets_queries)?;
        let mut of_queues = families.to_vec();
        of_queues.dedup();
        // SAFETY: the device was opened with one queue of each of these families.
        let queue = |family| Mutex::new(unsafe { device.get_device_queue(family, 0) });
        let queues = of_queues.into_iter().map(queue).collect();
        let host_memory = info.reads_host_memory.then(|| {
            let functions = ash::ext::external_memory_host::Device::new(instance, &device);
            let alignment = properties_host.min_imported_host_pointer_alignment.max(1);
            (functions, usize::try_from(alignment).unwrap_or(usize::MAX))
        });
        Ok(Arc::new(Self {
            device,
            info,
            host_memory,
            memory,
            families,
            queues,
            budget: budget.0,
            used: AtomicU64::new(0),
            allocation_max: properties_11.max_memory_allocation_size,
            allocations: AtomicU32::new(0),
            allocations_max,
            tick_bits,
            tick_nanoseconds,
            chooses_subgroups: properties_13.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE),
            _vulkan: Arc::clone(vulkan),
        }))
    }

    /// Opens the first GPU that kernels run on.
    ///
    /// # Errors
    /// Fails if there is none, or as [`open`](Self::open).
    pub fn first(budget: Bytes) -> Result<Arc<Self>, GpuError> {
        let vulkan = Vulkan::load()?;
        let usable = vulkan.gpus()?.into_iter().find(|gpu| gpu.missing.is_none());
        let number = usable.ok_or(GpuError::NotFound { number: 0 })?.number;
        Self::open(&vulkan, number, budget)
    }

    /// Returns the name and the abilities of the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Returns the number of bytes of the GPU's memory that are in use, and the number that may be used.
    pub fn used(&self) -> [Bytes; 2] {
        [Bytes(self.used.load(Ordering::Relaxed)), Bytes(self.budget)]
    }

    /// Returns the maximum number of bytes of one buffer.
    pub fn buffer_max(&self) -> usize {
        usize::try_from(self.allocation_max).unwrap_or(usize::MAX)
    }

    /// Returns the number of bits of the times that queues for copies, or queues for kernels, note; 0 if such queues
    /// note no times.
    pub(super) fn tick_bits(&self, for_copies: bool) -> u32 {
        self.tick_bits[usize::from(for_copies)]
    }

    pub(super) fn tick_nanoseconds(&self) -> f64 {
        self.tick_nanoseconds
    }

    pub(super) fn chooses_subgroups(&self) -> bool {
        self.chooses_subgroups
    }

    pub(super) fn host_memory(&self) -> Option<&(ash::ext::external_memory_host::Device, usize)> {
        self.host_memory.as_ref()
    }

    pub(super) fn device(&self) -> &ash::Device {
        &self.device
    }

    pub(super) fn families(&self) -> &[u32; 2] {
        &self.families
    }

    /// Returns the queue for copies, or that for kernels, which nobody else uses meanwhile.
    pub(super) fn queue(&self, for_copies: bool) -> MutexGuard<'_, vk::Queue> {
        let queue = if for_copies { self.queues.last() } else { self.queues.first() };
        // Handles are as good after a panic as before it.
        queue.expect("a GPU in use has queues").lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no queue has anything to do. What a lost GPU says does not matter any more.
    pub(super) fn wait_idle(&self) {
        let _queues: Vec<_> =
            self.queues.iter().map(|own| own.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        // SAFETY: nobody else uses a queue meanwhile.
        let _ = unsafe { self.device.device_wait_idle() };
    }

    /// Returns a kind of memory that has all of `flags` and none of `unwanted`, and that `allowed` has a bit for.
    pub(super) fn memory_type(
        &self,
        allowed: u32,
        flags: vk::MemoryPropertyFlags,
        unwanted: vk::MemoryPropertyFlags,
    ) -> Option<u32> {
        let types = &self.memory.memory_types[..self.memory.memory_type_count as usize];
        let found = types.iter().enumerate().find(|(index, memory)| {
            allowed >> index & 1 == 1
                && memory.property_flags.contains(flags)
                && !memory.property_flags.intersects(unwanted)
        });
        found.map(|(index, _)| index as u32)
    }

    /// Takes note of an allocation that was made.
    pub(super) fn count_allocation(&self) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an allocation that is gone.
    pub(super) fn forget_allocation(&self) {
        self.allocations.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether host memory may have another allocation. Sharing host memory is optional, and leaves half of all
    /// allocations to memory that needs one.
    pub(super) fn can_share(&self) -> bool {
        self.allocations.load(Ordering::Relaxed) < self.allocations_max / 2
    }

    /// Takes `bytes` of the budget.
    pub(super) fn take(&self, bytes: u64) -> Result<(), GpuError> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= self.budget)
        });
        taken.map(|_| ()).map_err(|used| GpuError::OutOfMemory {
            wanted: Bytes(bytes),
            budget: Bytes(self.budget),
            used: Bytes(used),
        })
    }

    pub(super) fn put_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Starts the GPU with one queue of each of these families, and with the features that kernels need.
fn start(
    instance: &ash::Instance,
    gpu: vk::PhysicalDevice,
    families: [u32; 2],
    info: &GpuInfo,
    resets_queries: bool,
) -> Result<ash::Device, GpuError> {
    let priority = [1.0];
    let mut queues = vec![vk::DeviceQueueCreateInfo::default().queue_family_index(families[0])];
    if families[1] != families[0] {
        queues.push(vk::DeviceQueueCreateInfo::default().queue_family_index(families[1]));
    }
    let queues: Vec<_> = queues.into_iter().map(|queue| queue.queue_priorities(&priority)).collect();
    let extension = ash::ext::external_memory_host::NAME.as_ptr();
    let extensions: &[_] = if info.reads_host_memory { &[extension] } else { &[] };
    let features = vk::PhysicalDeviceFeatures::default().shader_int64(true).shader_int16(true);
    let mut features_11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
    let mut features_12 = vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(true)
        .shader_int8(true)
        .timeline_semaphore(true)
        .buffer_device_address(true)
        .host_query_reset(resets_queries);
    let mut features_13 = vk::PhysicalDeviceVulkan13Features::default()
        .synchronization2(true)
        .subgroup_size_control(true)
        .compute_full_subgroups(true)
        .maintenance4(true)
        .shader_integer_dot_product(info.has_dot_products);
    let create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_features(&features)
        .enabled_extension_names(extensions)
        .push_next(&mut features_11)
        .push_next(&mut features_12)
        .push_next(&mut features_13);
    // SAFETY: families and features are those that the GPU was found to have.
    unsafe { instance.create_device(gpu, &create, None) }.map_err(GpuError::of("start"))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.wait_idle();
        // SAFETY: whatever was made of the device holds an `Arc` of this, and so is gone; the queues have ended their
        // work.
        unsafe { self.device.destroy_device(None) };
    }
}

#[cfg(test)]
mod tests;
