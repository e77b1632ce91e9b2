//! The Vulkan loader, and the GPUs that its drivers offer.

use std::ffi::CStr;
use std::sync::Arc;

use ash::vk;

use super::error::GpuError;
use crate::Bytes;

/// The version of Vulkan that kernels need. Every driver since 2022 has this version.
const API_VERSION: u32 = vk::API_VERSION_1_3;

/// The Vulkan loader of this machine.
pub struct Vulkan {
    instance: ash::Instance,
    /// The functions of `instance` are in this library.
    _entry: ash::Entry,
}

/// A GPU, with its abilities.
#[derive(Debug, Clone)]
pub struct GpuInfo {
    /// The number of the GPU, counted from 0 in the order in which drivers list GPUs.
    pub number: usize,
    /// The GPU's name, from its driver.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// What kind of device it is: "discrete", "integrated", "virtual", "software" or "other".
    pub kind: &'static str,
    /// The size of the GPU's largest heap of device memory.
    pub memory: Bytes,
    /// Whether the GPU shares its memory with the processor.
    pub is_unified: bool,
    /// The number of threads that compute in step.
    pub subgroup: u32,
    /// Whether copies can run beside kernels, in a queue of their own.
    pub copies_apart: bool,
    /// Whether the GPU has matrix units that kernels can use.
    pub has_matrices: bool,
    /// Whether kernels can take sums of products of bytes (`--gpu-products integer`).
    pub has_dot_products: bool,
    /// Whether the GPU has instructions for sums of products of bytes, which are not made of other instructions.
    pub has_fast_dot_products: bool,
    /// Whether the GPU copies from host memory in place, instead of from memory of the driver's.
    pub reads_host_memory: bool,
    /// Whether memory can be mapped into buffers by the page.
    pub has_sparse_memory: bool,
    /// The feature that the GPU lacks, if kernels cannot run on this GPU.
    pub missing: Option<&'static str>,
}

impl Vulkan {
    /// Loads Vulkan.
    ///
    /// # Errors
    /// Fails if there is no loader, or it cannot start.
    pub fn load() -> Result<Arc<Self>, GpuError> {
        let no_vulkan = |why: String| GpuError::NoVulkan { why };
        // SAFETY: the system's Vulkan loader keeps to Vulkan's specification, as do the drivers that it loads.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| no_vulkan(error.to_string()))?;
        let application = vk::ApplicationInfo::default().application_name(c"interbed").api_version(API_VERSION);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: `info` is complete, and what it points to lives beyond the call.
        let instance = unsafe { entry.create_instance(&info, None) };
        let instance = instance.map_err(|error| no_vulkan(error.to_string()))?;
        Ok(Arc::new(Self { instance, _entry: entry }))
    }

    /// Returns the GPUs of this machine; drivers that compute on the processor are among them.
    ///
    /// # Errors
    /// Fails if the drivers cannot list them.
    pub fn gpus(&self) -> Result<Vec<GpuInfo>, GpuError> {
        Ok(self.physical_devices()?.into_iter().enumerate().map(|(number, gpu)| self.info(number, gpu)).collect())
    }

    pub(super) fn instance(&self) -> &ash::Instance {
        &self.instance
    }

    pub(super) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, GpuError> {
        // SAFETY: the instance is alive.
        unsafe { self.instance.enumerate_physical_devices() }.map_err(GpuError::of("list GPUs"))
    }

    /// Returns the name and the abilities of a GPU.
    pub(super) fn info(&self, number: usize, gpu: vk::PhysicalDevice) -> GpuInfo {
        let mut properties_11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut properties_12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut properties_13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut properties_11)
            .push_next(&mut properties_12)
            .push_next(&mut properties_13);
        // SAFETY: the GPU is of this instance, and the chain consists of structures that Vulkan 1.3 knows; an older
        // driver leaves those that it does not know as they are.
        unsafe { self.instance.get_physical_device_properties2(gpu, &mut properties) };
        let properties = properties.properties;
        // SAFETY: as above.
        let memory = unsafe { self.instance.get_physical_device_memory_properties(gpu) };
        let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
        let local = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let families = self.queue_families(gpu);
        let text = |bytes: Result<&CStr, _>| {
            bytes.map_or_else(|_: std::ffi::FromBytesUntilNulError| String::new(), |t| t.to_string_lossy().into_owned())
        };
        let (name, driver, version) = (
            text(properties.device_name_as_c_str()),
            text(properties_12.driver_name_as_c_str()),
            text(properties_12.driver_info_as_c_str()),
        );
        GpuInfo {
            number,
            name,
            driver: format!("{driver} {version}").trim().to_owned(),
            kind: match properties.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU => "discrete",
                vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated",
                vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
                vk::PhysicalDeviceType::CPU => "software",
                _ => "other",
            },
            memory: Bytes(local.map(|heap| heap.size).max().unwrap_or(0)),
            is_unified: heaps.iter().all(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)),
            subgroup: properties_11.subgroup_size,
            copies_apart: families.iter().any(is_for_copies),
            has_matrices: self.has_extension(gpu, ash::khr::cooperative_matrix::NAME),
            has_dot_products: self.features(gpu).dot_products,
            has_fast_dot_products: properties_13.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
            reads_host_memory: self.reads_host_memory(gpu),
            has_sparse_memory: self.features(gpu).sparse,
            missing: match properties.api_version < API_VERSION {
                true => Some("Vulkan 1.3"),
                false => self.features(gpu).missing.or(missing_of_subgroups(&properties_11, &properties_13)),
            },
        }
    }

    pub(super) fn queue_families(&self, gpu: vk::PhysicalDevice) -> Vec<vk::QueueFamilyProperties> {
        // SAFETY: the GPU is of this instance.
        unsafe { self.instance.get_physical_device_queue_family_properties(gpu) }
    }

    fn has_extension(&self, gpu: vk::PhysicalDevice, name: &CStr) -> bool {
        // SAFETY: as above.
        let extensions = unsafe { self.instance.enumerate_device_extension_properties(gpu) }.unwrap_or_default();
        extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name))
    }

    /// Returns whether buffers for copies can be made of host memory.
    fn reads_host_memory(&self, gpu: vk::PhysicalDevice) -> bool {
        let buffer = vk::PhysicalDeviceExternalBufferInfo::default()
            .usage(vk::BufferUsageFlags::TRANSFER_SRC)
            .handle_type(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT);
        let mut found = vk::ExternalBufferProperties::default();
        // SAFETY: the GPU is of this instance, and both structures are complete.
        unsafe { self.instance.get_physical_device_external_buffer_properties(gpu, &buffer, &mut found) };
        let can = found.external_memory_properties.external_memory_features;
        self.has_extension(gpu, ash::ext::external_memory_host::NAME)
            && can.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
            && !can.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
    }

    /// Returns whether the host may reset queries.
    pub(super) fn resets_queries(&self, gpu: vk::PhysicalDevice) -> bool {
        self.features(gpu).resets_queries
    }

    fn features(&self, gpu: vk::PhysicalDevice) -> Features {
        let mut features_11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut features_12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut features_13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut features_11)
            .push_next(&mut features_12)
            .push_next(&mut features_13);
        // SAFETY: as for the properties in `info`.
        unsafe { self.instance.get_physical_device_features2(gpu, &mut features) };
        let features = features.features;
        let needed = [
            (features.shader_int64, "64-bit integers in kernels"),
            (features.shader_int16, "16-bit integers in kernels"),
            (features_11.storage_buffer16_bit_access, "16-bit numbers in memory"),
            (features_12.storage_buffer8_bit_access, "8-bit numbers in memory"),
            (features_12.shader_int8, "8-bit integers in kernels"),
            (features_12.timeline_semaphore, "timeline semaphores"),
            (features_12.buffer_device_address, "memory addresses in kernels"),
            (features_13.synchronization2, "fine synchronisation"),
            (features_13.subgroup_size_control, "subgroups of a known size"),
            (features_13.compute_full_subgroups, "full subgroups"),
            (features_13.maintenance4, "Vulkan 1.3's maintenance"),
        ];
        let missing = needed.into_iter().find_map(|(has, name)| (has == vk::FALSE).then_some(name));
        let sparse = features.sparse_binding == vk::TRUE && features.sparse_residency_buffer == vk::TRUE;
        let dot_products = features_13.shader_integer_dot_product == vk::TRUE;
        let resets_queries = features_12.host_query_reset == vk::TRUE;
        Features { missing, sparse, dot_products, resets_queries }
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        // SAFETY: whatever was made of the instance holds an `Arc` of this, and so is gone.
        unsafe { self.instance.destroy_instance(None) };
    }
}

struct Features {
    missing: Option<&'static str>,
    sparse: bool,
    dot_products: bool,
    resets_queries: bool,
}

/// Returns the ability of subgroups (threads that compute in step) that kernels need and a GPU lacks, if there is one.
fn missing_of_subgroups(
    properties_11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    properties_13: &vk::PhysicalDeviceVulkan13Properties<'_>,
) -> Option<&'static str> {
    let (stages, has) = (properties_11.subgroup_supported_stages, properties_11.subgroup_supported_operations);
    let is_of_one_size = properties_13.min_subgroup_size == properties_13.max_subgroup_size;
    let compute = vk::ShaderStageFlags::COMPUTE;
    let needed = [
        (stages.contains(compute), "subgroups in kernels"),
        (has.contains(vk::SubgroupFeatureFlags::BASIC), "subgroups"),
        (has.contains(vk::SubgroupFeatureFlags::ARITHMETIC), "sums over subgroups"),
        (has.contains(vk::SubgroupFeatureFlags::SHUFFLE), "exchanges within subgroups"),
        // Products are made for one size.
        (properties_13.required_subgroup_size_stages.contains(compute) || is_of_one_size, "subgroups of a chosen size"),
    ];
    needed.into_iter().find_map(|(has, name)| (!has).then_some(name))
}

/// Returns whether a family's queues do nothing but copy; such queues run beside kernels.
pub(super) fn is_for_copies(family: &vk::QueueFamilyProperties) -> bool {
    let others = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS | vk::QueueFlags::VIDEO_DECODE_KHR;
    family.queue_flags.contains(vk::QueueFlags::TRANSFER) && !family.queue_flags.intersects(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_need_subgroups_that_add_and_exchange_and_have_a_size() {
        let has = |stages, operations, sizes: [u32; 2], chooses: bool| {
            let properties_11 = vk::PhysicalDeviceVulkan11Properties::default()
                .subgroup_supported_stages(stages)
                .subgroup_supported_operations(operations);
            let stages = if chooses { vk::ShaderStageFlags::COMPUTE } else { vk::ShaderStageFlags::empty() };
            let properties_13 = vk::PhysicalDeviceVulkan13Properties::default()
                .min_subgroup_size(sizes[0])
                .max_subgroup_size(sizes[1])
                .required_subgroup_size_stages(stages);
            missing_of_subgroups(&properties_11, &properties_13)
        };
        let compute = vk::ShaderStageFlags::COMPUTE;
        let (basic, arithmetic, shuffle) =
            (vk::SubgroupFeatureFlags::BASIC, vk::SubgroupFeatureFlags::ARITHMETIC, vk::SubgroupFeatureFlags::SHUFFLE);
        let all = basic | arithmetic | shuffle;
        assert_eq!(has(compute, all, [8, 32], true), None);
        assert_eq!(has(compute, all, [32, 32], false), None);
        assert_eq!(has(compute, all, [8, 32], false), Some("subgroups of a chosen size"));
        assert_eq!(has(vk::ShaderStageFlags::FRAGMENT, all, [32, 32], true), Some("subgroups in kernels"));
        assert_eq!(has(compute, all ^ arithmetic, [32, 32], true), Some("sums over subgroups"));
        assert_eq!(has(compute, all ^ shuffle, [32, 32], true), Some("exchanges within subgroups"));
    }
}
