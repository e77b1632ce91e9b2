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

    /// The default type of keys and values for weights of `dtype`: the same, or half precision for quantised weights.
    pub const fn beside(dtype: DType) -> Self {
        match dtype.decoded() {
            // Models in FP8 compute in bf16 otherwise.
            _ if matches!(dtype, DType::Fp8) => Self::BF16,
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
            Self::F32 => head_dim.saturating_mul(4),
            Self::F16 | Self::BF16 => head_dim.saturating_mul(2),
            Self::Q8 => head_dim.saturating_add(2 * head_dim.div_ceil(Self::SCALED)),
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

/// Heads that a layer keeps keys and values of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key-value heads.
    pub num_kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

/// How one KV block lies in memory: `[layer, k|v, kv_head, slot, head_dim]`, contiguous, so that a swap, a spill or a
/// copy moves a block in one piece.
///
/// The layers are those that keep keys and values; each has heads of its own number and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    block_size: usize,
    dtype: KvDType,
    block_bytes: usize,
    /// Those of them that hold nothing.
    padding_bytes: usize,
    layers: Vec<KvLayer>,
}

impl KvLayout {
    /// Blocks of `block_size` tokens, for one shape for each layer that keeps keys and values.
    ///
    /// The size of a block too large for a `usize` saturates: no memory can hold it, and allocating it gives an error.
    pub fn new(block_size: usize, dtype: KvDType, layers: impl IntoIterator<Item = KvShape>) -> Self {
        let mut layout = Self { block_size, dtype, block_bytes: 0, padding_bytes: 0, layers: Vec::new() };
        for shape in layers {
            let layer = KvLayer { shape, block_size, dtype, offset: layout.block_bytes, block_bytes: 0 };
            let heads = shape.num_kv_heads.saturating_mul(2);
            let bytes = heads.saturating_mul(block_size).saturating_mul(layer.slot_bytes());
            layout.block_bytes = layout.block_bytes.saturating_add(bytes);
            layout.layers.push(layer);
        }
        for layer in &mut layout.layers {
            layer.block_bytes = layout.block_bytes;
        }
        layout
    }

    /// The same blocks, each followed by as much as makes it whole pages of `page` bytes.
    ///
    /// # Panics
    /// If `page` is 0.
    pub fn in_pages(mut self, page: usize) -> Self {
        let padded = self.block_bytes.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        self.padding_bytes += padded - self.block_bytes;
        self.block_bytes = padded;
        for layer in &mut self.layers {
            layer.block_bytes = self.block_bytes;
        }
        self
    }

    /// Layers that keep keys and values.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens of one block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// How elements are stored.
    pub fn dtype(&self) -> KvDType {
        self.dtype
    }

    /// Bytes of one block: all layers, keys and values, and what fills its last page.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of the KV of one token.
    ///
    /// # Panics
    /// If a block has room for no token.
    pub fn token_bytes(&self) -> usize {
        (self.block_bytes - self.padding_bytes) / self.block_size
    }

    /// Bytes of a block that hold keys and values: the first.
    pub fn content_bytes(&self) -> usize {
        self.block_bytes - self.padding_bytes
    }

    /// Bytes of a block that hold no keys and no values.
    pub fn padding_bytes(&self) -> usize {
        self.padding_bytes
    }

    /// The layer number `index` of those that keep keys and values.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, index: usize) -> KvLayer {
        self.layers[index]
    }
}

/// One layer's part of every block. Only a [`KvLayout`] makes it, so kernels trust that it lies within a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    shape: KvShape,
    block_size: usize,
    dtype: KvDType,
    /// Offset of this layer's part in a block.
    offset: usize,
    /// Bytes of a block, all layers.
    block_bytes: usize,
}

impl KvLayer {
    /// Key-value heads.
    pub fn num_kv_heads(&self) -> usize {
        self.shape.num_kv_heads
    }

    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    /// Tokens of one block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// How elements are stored.
    pub fn dtype(&self) -> KvDType {
        self.dtype
    }

    /// From the start of one block to that of the next.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of one head of one token, keys or values.
    pub fn slot_bytes(&self) -> usize {
        self.dtype.slot_bytes(self.shape.head_dim)
    }

    /// From the start of a block to the first slot of the keys of `kv_head`.
    pub fn key_offset(&self, kv_head: usize) -> usize {
        self.offset + kv_head * self.head_bytes()
    }

    /// From a slot of keys to the slot of the same token's values.
    pub fn value_offset(&self) -> usize {
        self.shape.num_kv_heads * self.head_bytes()
    }

    /// Bytes of this layer's part of a block, keys and values.
    pub fn part_bytes(&self) -> usize {
        2 * self.value_offset()
    }

    /// This layer's parts of blocks by themselves, side by side.
    pub fn alone(self) -> Self {
        Self { offset: 0, block_bytes: self.part_bytes(), ..self }
    }

    /// Bytes of one head's slots, keys or values.
    fn head_bytes(&self) -> usize {
        self.block_size * self.slot_bytes()
    }
}
