//! The devices that there are.

use std::num::NonZeroUsize;

use interbed_device::{Bytes, Cpu, CpuDevice, Device, Gpu, KvPool, PassNeeds, ReferenceDevice, VulkanDevice};
use interbed_kernels::{BlockGroups, GroupLayout, KvDType};

/// Devices that execute in this many orders.
const ORDERS: u64 = 4;

/// All devices that can keep these blocks. Where there is no Vulkan, this says so; `INTERBED_REQUIRE_VULKAN=1` makes
/// that a failure.
pub fn devices(needs: &PassNeeds, groups: &BlockGroups) -> Vec<(String, Box<dyn Device>)> {
    let on_processor = |threads: usize| {
        let cpu = Cpu::new(NonZeroUsize::new(threads).unwrap());
        CpuDevice::new(cpu, needs, KvPool::new_sparse(groups.clone()).unwrap()).unwrap()
    };
    let mut devices: Vec<(String, Box<dyn Device>)> =
        vec![("cpu".into(), Box::new(on_processor(1))), ("cpu with threads".into(), Box::new(on_processor(3)))];
    let is_exact = |layout: &GroupLayout| !matches!(layout, GroupLayout::Kv(kv) if kv.dtype() != KvDType::F32);
    if groups.groups().iter().all(|group| is_exact(group.layout())) {
        for seed in 0..ORDERS {
            devices.push((format!("reference {seed}"), Box::new(ReferenceDevice::new(needs, groups, seed))));
        }
    }
    match Gpu::first(Bytes(1 << 30)) {
        Ok(gpu) => devices.push(("vulkan".into(), Box::new(VulkanDevice::new(&gpu, needs, groups).unwrap()))),
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => eprintln!("left out: {why}"),
    }
    devices
}
