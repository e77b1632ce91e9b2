//! The arithmetic units that matrix products use.

use crate::level::Instructions;
use crate::{DType, Level};

/// An arithmetic unit of the CPU, named after the numbers that it multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The unit for multiply-adds of f32 lanes.
    F32Fma,
    /// The unit for dot products of bf16 pairs in vector registers.
    Bf16Dot,
    /// The unit for dot products of bytes in vector registers.
    Int8Dot,
    /// The unit for products of bf16 tiles.
    AmxBf16,
    /// The unit for products of int8 tiles.
    AmxInt8,
}

impl Unit {
    /// Lists every unit.
    pub const ALL: [Self; 5] = [Self::F32Fma, Self::Bf16Dot, Self::Int8Dot, Self::AmxBf16, Self::AmxInt8];

    /// Returns the unit that products with weights of this type use at this level.
    pub fn of(level: Level, weights: DType) -> Self {
        let amx = level.instructions() == Instructions::Amx;
        match weights.decoded() {
            DType::F32 | DType::F16 => Self::F32Fma,
            DType::BF16 if amx => Self::AmxBf16,
            DType::BF16 if level.instructions() >= Instructions::Avx512Bf16 => Self::Bf16Dot,
            DType::BF16 => Self::F32Fma,
            _ if amx => Self::AmxInt8,
            _ => Self::Int8Dot,
        }
    }

    /// Returns whether a machine of this level has the unit.
    pub fn exists_at(self, level: Level) -> bool {
        match self {
            Self::F32Fma | Self::Int8Dot => true,
            Self::Bf16Dot => level.instructions() >= Instructions::Avx512Bf16,
            Self::AmxBf16 | Self::AmxInt8 => level.instructions() == Instructions::Amx,
        }
    }

    /// Returns a short name, for reports and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32Fma => "f32-fma",
            Self::Bf16Dot => "bf16-dot",
            Self::Int8Dot => "int8-dot",
            Self::AmxBf16 => "amx-bf16",
            Self::AmxInt8 => "amx-int8",
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
