//! Describes the memory layout of keys and values.

use std::ops::Range;

use crate::DType;
use crate::block_range::BlockRange;

/// The storage type of the elements of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDType {
    /// 32-bit floats (IEEE single precision).
    F32,
    /// 16-bit floats (IEEE half precision).
    F16,
    /// bfloat16: the upper 16 bits of an f32.
    BF16,
    /// 8-bit integers, with one scale per [`KvDType::SCALED`] elements of a head.
    Q8,
}

impl KvDType {
    /// Lists every type.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::BF16, Self::Q8];

    /// The number of elements of a head that share a scale in [`KvDType::Q8`]. The last group of a head may be shorter.
    pub const SCALED: usize = 32;

    /// Returns the default type of keys and values for weights of `dtype`: the same type for plain weights, bf16 for
    /// FP8 and coded bf16, and half precision for quantized weights.
    pub const fn beside(dtype: DType) -> Self {
        match dtype.decoded() {
            // Models in FP8 compute in bf16 outside of their FP8 products.
            _ if matches!(dtype, DType::Fp8) => Self::BF16,
            DType::F32 => Self::F32,
            DType::BF16 => Self::BF16,
            _ => Self::F16,
        }
    }

    /// Returns the number of bytes of one slot, including scales. A slot holds the key or the value of one head of one
    /// token.
    ///
    /// A slot of [`KvDType::Q8`] holds its scales (bf16, one per [`KvDType::SCALED`] elements), and then its integers.
    pub const fn slot_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => head_dim.saturating_mul(4),
            Self::F16 | Self::BF16 => head_dim.saturating_mul(2),
            Self::Q8 => head_dim.saturating_add(2 * head_dim.div_ceil(Self::SCALED)),
        }
    }

    /// Returns the type's name, for reports.
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

/// The number and size of the heads whose keys and values a layer stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// The number of key-value heads.
    pub num_kv_heads: usize,
    /// The number of elements of one head.
    pub head_dim: usize,
}

/// The memory layout of one KV block: `[layer, k|v, kv_head, slot, head_dim]`. A block is contiguous, so that a swap, a
/// spill or a copy moves it in one piece.
///
/// A block has a part for each layer that stores keys and values. Each layer may have its own number and size of heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    block_size: usize,
    dtype: KvDType,
    block_bytes: usize,
    /// The number of bytes of `block_bytes` that hold nothing.
    padding_bytes: usize,
    layers: Vec<KvLayer>,
}

impl KvLayout {
    /// Creates a layout of blocks of `block_size` tokens, with one shape for each layer that stores keys and values.
    ///
    /// If the size of a block is too large for a `usize`, the size saturates. No memory can hold such a block, so
    /// allocating it fails.
    pub fn new(block_size: usize, dtype: KvDType, layers: impl IntoIterator<Item = KvShape>) -> Self {
        let mut layout = Self { block_size, dtype, block_bytes: 0, padding_bytes: 0, layers: Vec::new() };
        for shape in layers {
            let (offset, blocks) = (layout.block_bytes, BlockRange::ALONE);
            let layer = KvLayer { shape, block_size, dtype, offset, block_bytes: 0, blocks };
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

    /// Pads each block to whole pages of `page` bytes.
    ///
    /// # Panics
    /// Panics if `page` is 0.
    pub fn in_pages(mut self, page: usize) -> Self {
        let padded = self.block_bytes.checked_next_multiple_of(page).unwrap_or(usize::MAX);
        self.padding_bytes += padded - self.block_bytes;
        self.block_bytes = padded;
        for layer in &mut self.layers {
            layer.block_bytes = self.block_bytes;
        }
        self
    }

    /// Gives the blocks these numbers and this place among all blocks.
    pub(crate) fn set_blocks(&mut self, blocks: BlockRange) {
        self.layers.iter_mut().for_each(|layer| layer.blocks = blocks);
    }

    /// Returns the number of layers that store keys and values.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the number of tokens of one block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the storage type of the elements.
    pub fn dtype(&self) -> KvDType {
        self.dtype
    }

    /// Returns the number of bytes of one block: all layers, keys and values, and the padding of its last page.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of bytes of one token's keys and values in all layers.
    ///
    /// # Panics
    /// Panics if the block size is 0.
    pub fn token_bytes(&self) -> usize {
        (self.block_bytes - self.padding_bytes) / self.block_size
    }

    /// Returns the number of bytes at the start of a block that hold keys and values, without the padding.
    pub fn content_bytes(&self) -> usize {
        self.block_bytes - self.padding_bytes
    }

    /// Returns the number of bytes of padding at the end of a block.
    pub fn padding_bytes(&self) -> usize {
        self.padding_bytes
    }

    /// Returns the layout of one layer. `index` counts only layers that store keys and values.
    ///
    /// # Panics
    /// Panics if there is no such layer.
    pub fn layer(&self, index: usize) -> KvLayer {
        self.layers[index]
    }
}

/// The layout of one layer's part of each KV block. Only a [`KvLayout`] creates a `KvLayer`, so kernels trust that the
/// part lies within a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    shape: KvShape,
    block_size: usize,
    dtype: KvDType,
    /// The offset of this layer's part in a block, in bytes.
    offset: usize,
    /// The number of bytes of a block with all layers.
    block_bytes: usize,
    /// The blocks that have a part of this layer.
    blocks: BlockRange,
}

impl KvLayer {
    /// Returns the number of key-value heads.
    pub fn num_kv_heads(&self) -> usize {
        self.shape.num_kv_heads
    }

    /// Returns the number of elements of one head.
    pub fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    /// Returns the number of tokens of one block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the storage type of the elements.
    pub fn dtype(&self) -> KvDType {
        self.dtype
    }

    /// Returns the number of bytes from the start of one block to the start of the next block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of bytes of one slot, which holds the key or the value of one head of one token.
    pub fn slot_bytes(&self) -> usize {
        self.dtype.slot_bytes(self.shape.head_dim)
    }

    /// Returns the number of bytes from the start of a block to the first slot of the keys of `kv_head`.
    pub fn key_offset(&self, kv_head: usize) -> usize {
        self.offset + kv_head * self.head_bytes()
    }

    /// Returns the number of bytes from the slot of a key to the slot of the value of the same head and token.
    pub fn value_offset(&self) -> usize {
        self.shape.num_kv_heads * self.head_bytes()
    }

    /// Returns the number of bytes of this layer's keys and values in one block.
    pub fn part_bytes(&self) -> usize {
        2 * self.value_offset()
    }

    /// Returns the layout of this layer in adjacent blocks, numbered from 0, that contain no other layer.
    pub fn alone(self) -> Self {
        Self { offset: 0, block_bytes: self.part_bytes(), blocks: BlockRange::ALONE, ..self }
    }

    /// Returns the numbers of the blocks with a part of this layer that tables may list, in a memory of `len` bytes.
    pub fn listed_within(&self, len: usize) -> Range<usize> {
        self.blocks.within(len, self.block_bytes)
    }

    /// Returns the blocks that have a part of this layer.
    pub(crate) fn blocks(&self) -> &BlockRange {
        &self.blocks
    }

    /// Returns the number of bytes of one head's slots in a block, keys or values.
    pub(crate) fn head_bytes(&self) -> usize {
        self.block_size * self.slot_bytes()
    }
}
