//! Blocks of several groups that come and leave, on devices with little memory: each block has the memory of its group.

use std::collections::BTreeSet;

use interbed_device::{
    BlockMemory, Bytes, Command, Device, Gpu, PassNeeds, ProductArithmetic, Queue, ReferenceDevice, Vulkan,
    VulkanDevice,
};
use interbed_kernels::{BlockGroups, KvDType, KvLayout, KvShape, StateLayout, StateShape};

/// Bytes of memory that blocks may take.
const MEMORY: u64 = 4 << 20;

/// A trunk of 8 KiB a block, a window of 16 KiB, and states of 72 KiB.
fn groups(counts: [usize; 3]) -> BlockGroups {
    let kv = |layers: usize| KvLayout::new(16, KvDType::F32, vec![KvShape { num_kv_heads: 2, head_dim: 32 }; layers]);
    let state = StateShape { rows: 2, channels: 1024, heads: 2, key_width: 16, value_width: 224 };
    let groups =
        BlockGroups::new(kv(1), counts[0]).with(kv(2), counts[1]).with(StateLayout::new([state; 2]), counts[2]);
    let bytes = groups.groups().iter().map(|group| group.block_bytes());
    assert_eq!(bytes.collect::<Vec<_>>(), [8 << 10, 16 << 10, 72 << 10]);
    groups
}

fn devices(groups: &BlockGroups) -> Vec<(&'static str, Box<dyn Device>)> {
    let needs = PassNeeds::default();
    let reference = ReferenceDevice::new(&needs, groups, 7).with_memory(MEMORY);
    let mut devices: Vec<(_, Box<dyn Device>)> = vec![("reference", Box::new(reference))];
    devices.extend(vulkan(groups, BlockMemory::FromWeights).map(|device| ("vulkan", device)));
    devices
}

/// A GPU whose blocks have their memory from `blocks`.
fn vulkan(groups: &BlockGroups, blocks: BlockMemory) -> Option<Box<dyn Device>> {
    let opened = Vulkan::load().and_then(|vulkan| {
        let number = vulkan.gpus()?.iter().find(|gpu| gpu.missing.is_none()).map(|gpu| gpu.number);
        let gpu = Gpu::open(&vulkan, number.unwrap_or(0), Bytes(MEMORY))?;
        VulkanDevice::with_blocks(&gpu, &PassNeeds::default(), groups, blocks, ProductArithmetic::Float)
    });
    match opened {
        Ok(device) => Some(Box::new(device)),
        Err(why) if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

/// What a test writes to a block.
fn pattern(block: u32, bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + 31 * block as usize) as u8);
}

fn fill(device: &mut dyn Device, blocks: impl IntoIterator<Item = u32>) {
    for block in blocks {
        let len = device.block_groups().layout_of(block).content_bytes();
        device.fill_block(block, 0..len, &mut |bytes| pattern(block, bytes)).unwrap();
    }
}

/// Asserts that a block holds what was written to the block `of`.
fn assert_holds(device: &mut dyn Device, block: u32, of: u32) {
    let mut got = vec![0; device.block_groups().layout_of(block).content_bytes()];
    let mut want = got.clone();
    device.read_block(block, 0, &mut got).unwrap();
    pattern(of, &mut want);
    assert!(got == want, "block {block} holds something else than what was written to {of}");
}

#[test]
fn memory_changes_hands_between_groups() {
    let groups = groups([100, 100, 100]);
    for (name, mut device) in devices(&groups) {
        let device = &mut *device;
        let wanted = [(0, 40), (1, 20), (2, 10)];
        for (group, count) in wanted {
            assert_eq!(device.reserve_blocks(group, count).unwrap(), count, "{name}");
        }
        let came: Vec<u32> = (0..40).chain(100..120).chain(200..210).collect();
        device.resize_blocks(&came, &[]).unwrap();
        fill(device, came.iter().copied());
        came.iter().for_each(|&block| assert_holds(device, block, block));
        // Copies go through the blocks' own bytes, one after the other.
        let copies = [(3, 4), (4, 39), (101, 119), (205, 200), (200, 209)];
        device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]).unwrap();
        for (block, of) in [(39, 3), (119, 101), (209, 205), (206, 206)] {
            assert_holds(device, block, of);
        }
        // What leaves makes room for blocks of any group, as much as there is.
        let most = device.reserve_blocks(2, 90).unwrap();
        assert!((30..=40).contains(&most), "{name}: {most}");
        let more: Vec<u32> = (210..210 + most as u32).collect();
        device.resize_blocks(&more, &[]).unwrap();
        fill(device, more.iter().copied());
        assert!(device.reserve_blocks(1, 10).unwrap() < 10, "{name}");
        device.resize_blocks(&[], &more[..10]).unwrap();
        assert_eq!(device.reserve_blocks(1, 30).unwrap(), 30, "{name}");
        device.resize_blocks(&(120..150).collect::<Vec<_>>(), &[]).unwrap();
        fill(device, 120..150);
        for block in [2, 118, 149, 203, more[10], more[most - 1]] {
            assert_holds(device, block, block);
        }
        assert!(device.resize_blocks(&[299], &[]).is_err_and(|error| error.is_full()), "{name}: nothing was reserved");
    }
}

/// Blocks of all groups come and leave within a number of bytes. There is always room, and contents stay, although the
/// device moves them so that chunks become free.
#[test]
fn blocks_that_share_memory_keep_their_contents() {
    let groups = groups([200, 120, 30]);
    let bytes = 2 << 20;
    let Some(mut device) = vulkan(&groups, BlockMemory::Shared(Bytes(bytes))) else { return };
    let device = &mut *device;
    let size = |block: u32| groups.layout_of(block).block_bytes() as u64;
    let (mut present, mut random) = (BTreeSet::new(), 7_u64);
    let mut below = |count: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as u32 % count
    };
    for round in 0..40 {
        let left: Vec<u32> = present.iter().copied().filter(|_| below(4) < round % 4).collect();
        left.iter().for_each(|block| assert!(present.remove(block)));
        device.resize_blocks(&[], &left).unwrap();
        let mut free = bytes - present.iter().map(|&block| size(block)).sum::<u64>();
        let mut came = Vec::new();
        for block in (0..600).map(|_| below(350)) {
            if size(block) <= free && present.insert(block) {
                free -= size(block);
                came.push(block);
            }
        }
        for group in 0..3 {
            let count = came.iter().filter(|&&block| groups.group_of(block) == group).count();
            assert_eq!(device.reserve_blocks(group, count).unwrap(), count, "round {round}, group {group}");
        }
        device.resize_blocks(&came, &[]).unwrap();
        fill(device, came);
        // Some contents are copied by the device's own commands, before their places change.
        let copies: Vec<_> = present.iter().zip(present.iter().skip(1)).map(|(&one, &other)| (one, other)).collect();
        let copies = copies.into_iter().filter(|&(one, other)| groups.group_of(one) == groups.group_of(other));
        let copies: Vec<_> = copies.step_by(9).collect();
        device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]).unwrap();
        copies.iter().for_each(|&(one, other)| assert_holds(device, other, one));
        fill(device, copies.iter().map(|&(_, other)| other));
        present.iter().for_each(|&block| assert_holds(device, block, block));
    }
    device.resize_blocks(&[], &present.into_iter().collect::<Vec<_>>()).unwrap();
    assert!(device.resize_blocks(&[0], &[]).is_err_and(|error| error.is_full()), "nothing was reserved");
}

#[test]
fn blocks_are_not_copied_between_groups() {
    let groups = groups([2, 2, 2]);
    let needs = PassNeeds::default();
    for (name, mut device) in crate::devices::devices(&needs, &groups) {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &[(1, 2)] }], &[]).is_ok()
        }));
        assert!(refused.is_err(), "{name}");
        // A submission that is half recorded is never handed over.
        std::mem::forget(device);
    }
}
