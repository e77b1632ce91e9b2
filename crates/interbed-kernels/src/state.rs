//! Describes the states of a fixed size that layers keep for a sequence, and where they lie in blocks.

use crate::block_range::BlockRange;
use crate::{KvBytesMut, Share};

/// The size of the state that one layer keeps for a sequence. All numbers are f32: first the rows, `[rows, channels]`,
/// then the matrices, `[heads, key_width, value_width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateShape {
    /// The number of earlier inputs that a convolution needs: one less than the convolution has taps.
    pub rows: usize,
    /// The number of channels of the convolution.
    pub channels: usize,
    /// The number of matrices, one for each value head.
    pub heads: usize,
    /// The number of rows of a matrix, which is the number of elements of a key.
    pub key_width: usize,
    /// The number of columns of a matrix, which is the number of elements of a value.
    pub value_width: usize,
}

impl StateShape {
    /// Returns the number of bytes of the rows.
    pub fn row_bytes(&self) -> usize {
        self.rows.saturating_mul(self.channels).saturating_mul(size_of::<f32>())
    }

    /// Returns the number of bytes of the matrices.
    pub fn matrix_bytes(&self) -> usize {
        let matrix = self.key_width.saturating_mul(self.value_width).saturating_mul(size_of::<f32>());
        self.heads.saturating_mul(matrix)
    }

    /// Returns the number of bytes of the whole state.
    pub fn bytes(&self) -> usize {
        self.row_bytes().saturating_add(self.matrix_bytes())
    }
}

/// The memory layout of a block of states: the states of all layers that keep one, of one sequence at one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    block_bytes: usize,
    layers: Vec<StateLayer>,
}

impl StateLayout {
    /// Creates the layout of states of these shapes, one for each layer that keeps a state.
    ///
    /// If the size of a block is too large for a `usize`, the size saturates. No memory can hold such a block, so
    /// allocating it fails.
    pub fn new(layers: impl IntoIterator<Item = StateShape>) -> Self {
        let mut layout = Self { block_bytes: 0, layers: Vec::new() };
        for shape in layers {
            let offset = layout.block_bytes;
            layout.layers.push(StateLayer { shape, offset, block_bytes: 0, blocks: BlockRange::ALONE });
            layout.block_bytes = layout.block_bytes.saturating_add(shape.bytes());
        }
        for layer in &mut layout.layers {
            layer.block_bytes = layout.block_bytes;
        }
        layout
    }

    /// Gives the blocks these numbers and this place among all blocks.
    pub(crate) fn set_blocks(&mut self, blocks: BlockRange) {
        self.layers.iter_mut().for_each(|layer| layer.blocks = blocks);
    }

    /// Returns the number of layers that keep a state.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the number of bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the place of one layer's state. `index` counts only layers that keep a state.
    ///
    /// # Panics
    /// Panics if there is no such layer.
    pub fn layer(&self, index: usize) -> StateLayer {
        self.layers[index]
    }
}

/// The number of spans up to which checking them takes no memory but the stack.
const FEW_SPANS: usize = 512;

/// The place of one layer's state in each block of states. Only a [`StateLayout`] creates a `StateLayer`, so kernels
/// trust that the state lies within a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayer {
    shape: StateShape,
    /// The place of the state in a block, in bytes.
    offset: usize,
    /// The number of bytes of a block with all layers.
    block_bytes: usize,
    blocks: BlockRange,
}

impl StateLayer {
    /// Returns the size of the state.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// Returns the number of bytes from the start of a block to the rows.
    pub fn rows_offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes from the start of a block to the matrices.
    pub fn matrices_offset(&self) -> usize {
        self.offset + self.shape.row_bytes()
    }

    /// Checks that an operation may go over `spans`, in a memory of all blocks of `len` bytes.
    ///
    /// # Panics
    /// Panics if a span names a block that does not exist or is of another group, or writes a state that another span
    /// reads or writes, or has no tokens, or stores the state behind a token that it does not have.
    pub fn check(&self, spans: &[StateSpan], len: usize) {
        let numbers = self.blocks.within(len, self.block_bytes);
        let is_there = |block: u32| numbers.contains(&(block as usize));
        // A pass allocates nothing, unless it has very many sequences.
        let (mut few, mut many) = ([0; FEW_SPANS], Vec::new());
        let written = if spans.len() <= FEW_SPANS {
            &mut few[..spans.len()]
        } else {
            many.resize(spans.len(), 0);
            &mut many[..]
        };
        written.iter_mut().zip(spans).for_each(|(written, span)| *written = span.to);
        written.sort_unstable();
        assert!(written.is_sorted_by(|one, other| one < other), "two sequences write their states to one block");
        for span in spans {
            let has_state = (1..=span.tokens).contains(&span.stored_after);
            assert!(has_state, "the state to store is one behind a token of the pass");
            assert!(is_there(span.to) && span.from.is_none_or(is_there), "a state beyond the blocks of states");
            let is_own = span.from.is_none_or(|from| from == span.to || written.binary_search(&from).is_err());
            assert!(is_own, "a sequence begins with a state that another sequence writes");
        }
    }
}

/// The tokens of one sequence that a forward pass computes, and the states before the first and after one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpan {
    /// The number of tokens, at least one. In tensors of the batch, the rows of a span's tokens follow the rows of the
    /// previous span.
    pub tokens: usize,
    /// The block of the state before the first token; `None` at the beginning of a sequence, where the state is zero.
    pub from: Option<u32>,
    /// The block to which a state is written; may be `from`. If an operation of a pass fails, or the pass is given up
    /// between its operations, the states in these blocks are of no use: what was changed in place is lost, and has to
    /// be computed again from an older state.
    pub to: u32,
    /// The number of tokens after which the state is written to `to`, from 1 to `tokens`. The tokens behind them are
    /// drafts: they are computed from the states that all tokens before them leave, but their own states are dropped.
    pub stored_after: usize,
}

/// The states that an operation reads and writes.
pub(crate) struct States<'a> {
    layer: StateLayer,
    blocks: Share<'a, u8>,
}

impl<'a> States<'a> {
    /// Wraps the states of `layer` in `blocks`.
    ///
    /// # Panics
    /// Panics as [`StateLayer::check`] does.
    pub fn new(layer: &StateLayer, blocks: KvBytesMut<'a>, spans: &[StateSpan]) -> Self {
        layer.check(spans, blocks.len());
        Self { layer: *layer, blocks: blocks.share() }
    }

    pub fn shape(&self) -> StateShape {
        self.layer.shape
    }

    /// Returns the address of the rows in a block of a span.
    pub fn rows(&self, block: u32) -> *mut f32 {
        self.at(block, self.layer.rows_offset(), self.layer.shape.row_bytes())
    }

    /// Returns the address of the matrices in a block of a span.
    pub fn matrices(&self, block: u32) -> *mut f32 {
        self.at(block, self.layer.matrices_offset(), self.layer.shape.matrix_bytes())
    }

    fn at(&self, block: u32, offset: usize, len: usize) -> *mut f32 {
        let block = self.layer.blocks.offset(block as usize, self.layer.block_bytes);
        let address = self.blocks.pointer(block + offset, len);
        assert!(address.addr().is_multiple_of(align_of::<f32>()), "states are whole numbers");
        address.cast()
    }
}
