//! Lists the storage types of weights, which are plain numbers or blocks of quantized numbers.

use crate::{coded, fp8};

/// The storage type of a weight matrix. The numbers of a row are stored in blocks. A block of a plain type is one
/// number.
///
/// The layouts of the quantized types are those of GGUF files, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats (IEEE single precision).
    F32,
    /// 16-bit floats (IEEE half precision).
    F16,
    /// bfloat16: the upper 16 bits of an f32.
    BF16,
    /// 8-bit integers, with one scale per 32 numbers.
    Q8_0,
    /// 4-bit integers, with one scale per 32 numbers.
    Q4_0,
    /// 4-bit integers, with one scale and one minimum per 32 numbers.
    Q4_1,
    /// 5-bit integers, with one scale per 32 numbers.
    Q5_0,
    /// 5-bit integers, with one scale and one minimum per 32 numbers.
    Q5_1,
    /// 2-bit integers in blocks of 256, with one scale and one minimum per 16 numbers.
    Q2K,
    /// 3-bit integers in blocks of 256, with one scale per 16 numbers.
    Q3K,
    /// 4-bit integers in blocks of 256, with one scale and one minimum per 32 numbers.
    Q4K,
    /// 5-bit integers in blocks of 256, with one scale and one minimum per 32 numbers.
    Q5K,
    /// 6-bit integers in blocks of 256, with one scale per 16 numbers.
    Q6K,
    /// 4-bit indices into a fixed table of 16 values, with one scale per 32 numbers.
    Iq4Nl,
    /// 4-bit indices into the table of IQ4_NL in blocks of 256, with one scale per 32 numbers.
    Iq4Xs,
    /// Indices into a table with entries of four values, and signs: 3.4 bits per number, in blocks of 256 with
    /// one scale per 32.
    Iq3S,
    /// Indices into a table with entries of four values, and signs: 3.1 bits per number, in blocks of 256 with
    /// one scale per 32.
    Iq3Xxs,
    /// Indices into a table with entries of eight values, and signs: 2.6 bits per number, in blocks of 256 with
    /// one scale per 16.
    Iq2S,
    /// Indices into a table with entries of eight values, and signs: 2.3 bits per number, in blocks of 256 with
    /// one scale per 16.
    Iq2Xs,
    /// Indices into a table with entries of eight values, and signs: 2.1 bits per number, in blocks of 256 with
    /// one scale per 32.
    Iq2Xxs,
    /// Indices into a table with entries of eight values: 1.75 bits per number, in blocks of 256 with
    /// one scale per 16.
    Iq1M,
    /// Indices into a table with entries of eight values: 1.6 bits per number, in blocks of 256 with
    /// one scale per 32.
    Iq1S,
    /// 4-bit floats (E2M1), with one scale per 32 numbers. Each scale is a power of two.
    Mxfp4,
    /// 8-bit floats (E4M3). Each row begins with its scales, one f32 per 128 numbers.
    Fp8,
    /// bf16 numbers that are losslessly compressed to about 11.3 bits each. Products are equal to products with
    /// [`DType::BF16`].
    CodedBf16 {
        /// The number of patches in each row, for numbers with a rare exponent.
        patches: u16,
    },
}

impl DType {
    /// The plain types and the quantized types, without [`DType::Fp8`] and [`DType::CodedBf16`].
    pub const ALL: [Self; 23] = [
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
        Self::Iq4Xs,
        Self::Iq3S,
        Self::Iq3Xxs,
        Self::Iq2S,
        Self::Iq2Xs,
        Self::Iq2Xxs,
        Self::Iq1M,
        Self::Iq1S,
        Self::Mxfp4,
    ];

    /// Returns the number of weights in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
            Self::Iq4Xs | Self::Iq3S | Self::Iq3Xxs | Self::Iq2S => 256,
            Self::Iq2Xs | Self::Iq2Xxs | Self::Iq1M | Self::Iq1S => 256,
            Self::Fp8 => fp8::BLOCK,
            Self::CodedBf16 { .. } => coded::BLOCK,
        }
    }

    /// Returns the number of bytes of one block. A row of coded bf16 also has a header before its blocks. A row of FP8
    /// stores all scales before the codes, and its last block may be shorter.
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
            Self::Iq4Xs => 2 + 2 + 4 + 128,
            Self::Iq3S => 2 + 64 + 8 + 32 + 4,
            Self::Iq3Xxs => 2 + 64 + 32,
            Self::Iq2S => 2 + 32 + 32 + 8 + 8,
            Self::Iq2Xs => 2 + 64 + 8,
            Self::Iq2Xxs => 2 + 64,
            Self::Iq1M => 32 + 16 + 8,
            Self::Iq1S => 2 + 32 + 16,
            Self::Mxfp4 => 1 + 16,
            Self::Fp8 => 4 + fp8::BLOCK,
            Self::CodedBf16 { .. } => coded::BLOCK_BYTES,
        }
    }

    /// Returns the number of bytes of a row of `cols` numbers. Returns `None` if the type requires whole blocks and
    /// `cols` is not a multiple of the block length, or on overflow.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Self::CodedBf16 { patches } => coded::row_bytes(cols, patches),
            Self::Fp8 => fp8::row_bytes(cols),
            _ if cols.is_multiple_of(self.block_len()) => (cols / self.block_len()).checked_mul(self.block_bytes()),
            _ => None,
        }
    }

    /// Returns the type to which numbers are decoded before they are multiplied: [`DType::BF16`] for coded bf16, and
    /// [`DType::F32`] for FP8. Returns the type itself if its numbers are multiplied in the form in which they are
    /// stored.
    pub const fn decoded(self) -> Self {
        match self {
            Self::CodedBf16 { .. } => Self::BF16,
            Self::Fp8 => Self::F32,
            other => other,
        }
    }

    /// Returns whether numbers of this type are decoded before they are multiplied. Numbers of all other types are
    /// multiplied in the form in which they are stored.
    pub fn is_decoded(self) -> bool {
        self.decoded() != self
    }

    /// Returns whether numbers are stored one by one, not in blocks.
    pub const fn is_plain(self) -> bool {
        self.block_len() == 1
    }

    /// Returns the type's name. This is the name in safetensors headers or GGUF tools if the type has one there.
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
            Self::Iq4Xs => "IQ4_XS",
            Self::Iq3S => "IQ3_S",
            Self::Iq3Xxs => "IQ3_XXS",
            Self::Iq2S => "IQ2_S",
            Self::Iq2Xs => "IQ2_XS",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Iq1M => "IQ1_M",
            Self::Iq1S => "IQ1_S",
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
