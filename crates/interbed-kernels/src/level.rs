//! Detects the vector and matrix instructions of this machine.

use std::sync::OnceLock;

/// The environment variable that selects a [`Level`], so that tests on one machine can also run the code of lower
/// levels.
pub const LEVEL_VARIABLE: &str = "INTERBED_CPU";

/// A set of CPU instructions that this machine has. Safe code can create only levels that the machine has. Each level
/// includes the lower levels of its architecture.
///
/// At every level, f32 vectors have 16 lanes, which are reduced in the same order. The levels with fused multiply-add
/// give bit-identical f32 results. From `avx512-bf16` on, products with bf16 weights round the activations to bf16, and
/// attention over bf16 keys and values rounds queries and softmax weights to bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Instructions {
    /// Plain Rust, which runs on any machine.
    Portable,
    /// The vector instructions (NEON) that every 64-bit Arm machine has.
    Neon,
    /// The instructions AVX2, FMA and F16C.
    Avx2,
    /// The instructions AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The instructions of `Avx512`, and AVX-512 VNNI for dot products of bytes.
    Avx512Vnni,
    /// The instructions of `Avx512Vnni`, and AVX-512 BF16 for dot products of bf16.
    Avx512Bf16,
    /// The instructions of `Avx512Bf16`, and AMX for products of bf16 and int8 tiles.
    Amx,
}

/// All levels, in ascending order.
const ALL: [Level; 7] = [
    Level(Instructions::Portable),
    Level(Instructions::Neon),
    Level(Instructions::Avx2),
    Level(Instructions::Avx512),
    Level(Instructions::Avx512Vnni),
    Level(Instructions::Avx512Bf16),
    Level(Instructions::Amx),
];

impl Level {
    /// Returns the best level of this machine, or the one that `INTERBED_CPU` names (`portable`, `neon`, `avx2`,
    /// `avx512`, `avx512-vnni`, `avx512-bf16`, `amx`) if the machine has it.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Level> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let wanted = std::env::var(LEVEL_VARIABLE).ok();
            Self::available().find(|level| wanted.as_deref() == Some(level.name())).unwrap_or_else(best)
        })
    }

    /// Iterates over the levels that this machine can run, in ascending order.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = best();
        ALL.into_iter().filter(move |&level| {
            let foreign = level == Level(Instructions::Neon) && !cfg!(target_arch = "aarch64");
            level <= best && !foreign
        })
    }

    /// Returns the level with this name, even if the machine does not have it, for tests that run in an emulator.
    /// Returns `None` if no level has this name.
    ///
    /// # Safety
    /// This machine, or an emulator, has to execute the level's instructions.
    pub unsafe fn assume(name: &str) -> Option<Self> {
        ALL.into_iter().find(|level| level.name() == name)
    }

    /// The level of plain Rust, which every machine runs.
    pub(crate) const PORTABLE: Self = Self(Instructions::Portable);

    /// Returns the set of instructions. Only this module creates a `Level`, from what was detected.
    #[inline(always)]
    pub(crate) const fn instructions(self) -> Instructions {
        self.0
    }

    /// Returns whether there are 32 vector registers of 16 lanes.
    pub(crate) fn has_many_registers(self) -> bool {
        self.0 >= Instructions::Avx512
    }

    /// Returns the name that `INTERBED_CPU` accepts.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Instructions::Portable => "portable",
            Instructions::Neon => "neon",
            Instructions::Avx2 => "avx2",
            Instructions::Avx512 => "avx512",
            Instructions::Avx512Vnni => "avx512-vnni",
            Instructions::Avx512Bf16 => "avx512-bf16",
            Instructions::Amx => "amx",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn best() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let steps = [
        (avx2, Instructions::Avx2),
        (avx512, Instructions::Avx512),
        (is_x86_feature_detected!("avx512vnni"), Instructions::Avx512Vnni),
        (is_x86_feature_detected!("avx512bf16"), Instructions::Avx512Bf16),
        (crate::amx::enable(), Instructions::Amx),
    ];
    let reached = steps.into_iter().take_while(|(has, _)| *has).last();
    Level(reached.map_or(Instructions::Portable, |(_, instructions)| instructions))
}

#[cfg(target_arch = "aarch64")]
fn best() -> Level {
    Level(Instructions::Neon)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn best() -> Level {
    Level(Instructions::Portable)
}
