use super::*;
use crate::HostBuffer;
use crate::vulkan::memory::{GpuBuffer, Heap};

#[test]
fn host_memory_leaves_half_of_all_allocations_to_what_cannot_do_without() {
    let mut gpu = match Gpu::first(Bytes(1 << 24)) {
        Ok(gpu) if gpu.info.reads_host_memory => gpu,
        Ok(_) => return,
        Err(why) => return assert!(std::env::var_os("INTERBED_REQUIRE_VULKAN").is_none(), "{why}"),
    };
    Arc::get_mut(&mut gpu).unwrap().allocations_max = 6;
    let own = GpuBuffer::new(&gpu, Heap::Device, 100).unwrap();
    let memory = || HostBuffer::new_zeroed(4096).unwrap();
    let all = [memory(), memory(), memory()];
    let shared = || all.iter().map(|memory| GpuBuffer::share(&gpu, memory).is_ok()).collect::<Vec<_>>();
    assert_eq!(shared(), [true, true, false]);
    assert!(GpuBuffer::shared(&gpu, &all[2]).is_none(), "it is copied");
    // Others may have more, and what is gone makes room.
    GpuBuffer::new(&gpu, Heap::Device, 100).unwrap();
    assert_eq!(shared(), [true, true, false]);
    drop(own);
    assert_eq!(shared(), [true, true, true]);
}
