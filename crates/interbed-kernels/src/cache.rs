//! Sizes of the processor's caches, from which block sizes follow.

use std::sync::OnceLock;

/// The sizes of one core's data caches, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheSizes {
    /// The size of the L1 data cache, in bytes.
    pub first: usize,
    /// The size of the L2 cache, in bytes.
    pub second: usize,
}

/// Cache sizes that are assumed if the machine does not report its caches.
const USUAL: CacheSizes = CacheSizes { first: 32 << 10, second: 512 << 10 };

/// Returns the sizes of this machine's caches, detected once.
pub(crate) fn sizes() -> CacheSizes {
    static SIZES: OnceLock<CacheSizes> = OnceLock::new();
    *SIZES.get_or_init(|| {
        let [first, second] = [1, 2].map(size_of_level);
        CacheSizes { first: first.unwrap_or(USUAL.first), second: second.unwrap_or(USUAL.second) }
    })
}

/// Returns the size in bytes of the data or unified cache of one level, from the processor's list of caches: CPUID leaf
/// 4 on Intel, the same table at leaf 0x8000001D on AMD.
#[cfg(target_arch = "x86_64")]
fn size_of_level(level: u32) -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const CACHES_MAX: u32 = 16;
    let leaves = [(0, 4), (0x8000_0000, 0x8000_001D)];
    let caches = leaves.into_iter().filter(|&(range, leaf)| __cpuid(range).eax >= leaf).flat_map(|(_, leaf)| {
        (0..CACHES_MAX).map(move |index| __cpuid_count(leaf, index)).take_while(|cache| cache.eax & 31 != 0)
    });
    let field = |value: u32, first: u32, bits: u32| (value >> first & ((1 << bits) - 1)) as usize + 1;
    caches
        .filter(|cache| cache.eax & 31 != 2 && cache.eax >> 5 & 7 == level)
        .map(|cache| {
            let (line, partitions, ways) =
                (field(cache.ebx, 0, 12), field(cache.ebx, 12, 10), field(cache.ebx, 22, 10));
            line * partitions * ways * (cache.ecx as usize + 1)
        })
        .find(|&bytes| bytes > 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn size_of_level(_level: u32) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_caches() {
        let CacheSizes { first, second } = sizes();
        assert!((4 << 10..=1 << 20).contains(&first) && (first..=256 << 20).contains(&second), "{first} {second}");
    }
}
