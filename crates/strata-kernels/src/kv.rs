//! How keys and values lie in memory.

use crate::DType;

/// How the elements of keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 8-bit integers, with one scale for each [`KvDType::SCALED`] elements of a head.
    Q8,
}

impl KvDType {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::BF16, Self::Q8];

    /// Elements of a head that share a scale in [`KvDType::Q8`]; the last of a head may be fewer.
    pub const SCALED: usize = 32;

    /// What keys and values are kept in beside weights of `dtype`, unless somebody asks for another type: the same, or
    /// half precision beside quantised weights.
    pub const fn beside(dtype: DType) -> Self {
        match dtype.decoded() {
            DType::F32 => Self::F32,
            DType::BF16 => Self::BF16,
            _ => Self::F16,
        }
    }

    /// Bytes of one slot: one head of one token, keys or values, scales included.
    ///
    /// A slot of [`KvDType::Q8`] is its scales (bf16, one for each [`KvDType::SCALED`] elements), then its integers.
    pub const fn slot_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 | Self::BF16 => 2 * head_dim,
            Self::Q8 => 2 * head_dim.div_ceil(Self::SCALED) + head_dim,
        }
    }

    /// The name that reports show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8 => "Q8",
        }
    }
}

impl std::fmt::Display for KvDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How one KV block lies in memory: `[layer, k|v, kv_head, slot, head_dim]`, contiguous, so that a swap, a spill or a
/// copy moves a block in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub num_layers: usize,
    /// Key-value heads of a layer.
    pub num_kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Tokens of one block.
    pub block_size: usize,
    /// How elements are stored.
    pub dtype: KvDType,
}

impl KvLayout {
    /// Bytes of one block: all layers, keys and values.
    pub const fn block_bytes(&self) -> usize {
        self.num_layers * 2 * self.num_kv_heads * self.head_bytes()
    }

    /// Bytes of the KV of one token.
    pub const fn token_bytes(&self) -> usize {
        self.block_bytes() / self.block_size
    }

    /// Bytes of one head of one token, keys or values.
    pub const fn slot_bytes(&self) -> usize {
        self.dtype.slot_bytes(self.head_dim)
    }

    /// Bytes of one head's slots, of one layer, keys or values.
    const fn head_bytes(&self) -> usize {
        self.block_size * self.slot_bytes()
    }

    /// Where the keys of `kv_head` begin in a block; the values follow [`KvLayout::value_offset`] later.
    pub(crate) const fn key_offset(&self, layer: usize, kv_head: usize) -> usize {
        (layer * 2 * self.num_kv_heads + kv_head) * self.head_bytes()
    }

    /// From a slot of keys to the slot of the same token's values.
    pub(crate) const fn value_offset(&self) -> usize {
        self.num_kv_heads * self.head_bytes()
    }
}
