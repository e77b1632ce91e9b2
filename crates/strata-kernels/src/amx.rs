//! AMX: tiles of up to 16 rows of 64 bytes, and their products.
//!
//! Neither intrinsics nor detection are stable in Rust, so both are done by hand (`lessons.md`). The compiler knows tile
//! registers as clobbers only, so whatever uses them between loading and storing is one block of assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Bits of CPUID leaf 7, EDX: AMX-BF16, AMX-TILE, AMX-INT8.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// CPUID leaf 1, ECX: the system has made `xgetbv` available.
const OSXSAVE: u32 = 1 << 27;

/// Tile configuration and tile data in the state components that the system saves.
const TILE_STATE: u32 = 1 << 17 | 1 << 18;

/// Linux's `arch_prctl` call, its request for the use of a large state component, and that of tile data.
const SYS_ARCH_PRCTL: usize = 158;
const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
const XFEATURE_XTILEDATA: usize = 18;

/// Whether this process may use AMX tiles of bf16 and int8. The first call asks the system for it.
pub(crate) fn enable() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| cfg!(target_os = "linux") && is_present() && is_saved_by_system() && request())
}

fn is_present() -> bool {
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES
}

fn is_saved_by_system() -> bool {
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: `xgetbv` exists because of OSXSAVE; register 0 always does.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low & TILE_STATE == TILE_STATE
}

fn request() -> bool {
    let outcome: isize;
    // SAFETY: this call takes two numbers and touches no memory of ours; the kernel changes rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL as isize => outcome,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    outcome == 0
}
