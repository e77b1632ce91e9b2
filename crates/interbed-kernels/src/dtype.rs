//! Lists the storage types of weights, which are plain numbers or blocks of quantized numbers.

use crate::{coded, fp8};

/// The storage type of the numbers of a weight matrix. A row is a whole number of blocks. A block of a plain type is
/// one number.
///
/// The quantized types are those of GGUF files, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// Numbers of 32 bits in IEEE single precision.
    F32,
    /// Numbers of 16 bits in IEEE half precision.
    F16,
    /// The upper 16 bits of an f32 (bfloat16).
    BF16,
    /// Numbers of 8 bits, with one scale for each 32 numbers.
    Q8_0,
    /// Numbers of 4 bits, with one scale for each 32 numbers.
    Q4_0,
    /// Numbers of 4 bits, with one scale and one minimum for each 32 numbers.
    Q4_1,
    /// Numbers of 5 bits, with one scale for each 32 numbers.
    Q5_0,
    /// Numbers of 5 bits, with one scale and one minimum for each 32 numbers.
    Q5_1,
    /// Numbers of 2 bits, in blocks of 256, with a scale and a minimum for each 16 numbers.
    Q2K,
    /// Numbers of 3 bits, in blocks of 256, with a scale for each 16 numbers.
    Q3K,
    /// Numbers of 4 bits, in blocks of 256, with a scale and a minimum for each 32 numbers.
    Q4K,
    /// Numbers of 5 bits, in blocks of 256, with a scale and a minimum for each 32 numbers.
    Q5K,
    /// Numbers of 6 bits, in blocks of 256, with a scale for each 16 numbers.
    Q6K,
    /// The indices of 4 bits into a fixed table of 16 values, with one scale for each 32 numbers.
    Iq4Nl,
    /// Floats of 4 bits (E2M1), with a power of two as the scale of each 32 numbers.
    Mxfp4,
    /// Floats of 8 bits (E4M3), as in checkpoints. Each row carries its scales: one f32 for each 128 numbers.
    Fp8,
    /// bf16 that is coded losslessly in about 11.3 bits per number. Products and results are equal to those of
    /// [`DType::BF16`].
    CodedBf16 {
        /// The number of patches in each row, for numbers with a rare exponent.
        patches: u16,
    },
}

impl DType {
    /// Lists every type that occurs in files of other programs.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Mxfp4,
    ];

    /// Returns how many numbers one block has.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
            Self::Fp8 => fp8::BLOCK,
            Self::CodedBf16 { .. } => coded::BLOCK,
        }
    }

    /// Returns the number of bytes of one block. A coded row has a header before its blocks; a row of FP8 stores its
    /// scales apart and may end within a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 2 + 32,
            Self::Q4_0 | Self::Iq4Nl => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q2K => 16 + 64 + 2 + 2,
            Self::Q3K => 32 + 64 + 12 + 2,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
            Self::Mxfp4 => 1 + 16,
            Self::Fp8 => 4 + fp8::BLOCK,
            Self::CodedBf16 { .. } => coded::BLOCK_BYTES,
        }
    }

    /// Returns the number of bytes of a row of `cols` numbers; `None` if they are not whole blocks, or on overflow.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Self::CodedBf16 { patches } => coded::row_bytes(cols, patches),
            Self::Fp8 => fp8::row_bytes(cols),
            _ if cols.is_multiple_of(self.block_len()) => (cols / self.block_len()).checked_mul(self.block_bytes()),
            _ => None,
        }
    }

    /// Returns the type of the numbers after decoding, which products depend on.
    pub const fn decoded(self) -> Self {
        match self {
            Self::CodedBf16 { .. } => Self::BF16,
            Self::Fp8 => Self::F32,
            other => other,
        }
    }

    /// Returns whether the numbers are decoded before they are multiplied; numbers of other types are multiplied in the
    /// form in which they are stored.
    pub fn is_decoded(self) -> bool {
        self.decoded() != self
    }

    /// Returns whether numbers are stored one by one, not in blocks.
    pub const fn is_plain(self) -> bool {
        self.block_len() == 1
    }

    /// Returns the type's name in safetensors headers and GGUF tools, if the type has a name there.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Mxfp4 => "MXFP4",
            Self::Fp8 => "scaled FP8",
            Self::CodedBf16 { .. } => "coded BF16",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
