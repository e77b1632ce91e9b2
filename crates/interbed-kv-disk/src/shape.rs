//! Computes where the parts of a record lie.

use interbed_io::DIRECT_ALIGN;
use interbed_kv::{KEY_BYTES, TokenId};

/// Number of bytes that a record should have: enough for a disk's full speed, and few enough to be gathered soon.
const RECORD_BYTES: usize = 4 << 20;

/// Maximum number of blocks in a record.
const COUNT_MAX: usize = 256;

/// Number of bytes of a record's header before the entries of its blocks.
pub(crate) const HEADER_FIXED: usize = 128;

/// Returns the number of bytes of a block's entry in a header: key, parent, owner, and `block_size` tokens.
pub(crate) fn entry_bytes(block_size: usize) -> usize {
    3 * KEY_BYTES + block_size * size_of::<TokenId>()
}

/// Layout of the records that hold the KV blocks of one model. A record is a header followed by one *run* per layer.
/// A run holds one layer's part of every block in the record. The lengths of the header and of each run are multiples
/// of [`DIRECT_ALIGN`]. One read can therefore return exactly one layer of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordShape {
    block_size: usize,
    /// Number of bytes of each layer's part of a block, in the order in which the layers lie in a block. [layer]
    layers: Vec<usize>,
    block_bytes: usize,
    blocks_per_record: usize,
    stored_together: usize,
}

impl RecordShape {
    /// Creates the shape for blocks of `block_size` tokens. `layers[i]` is the number of bytes of layer `i` in a block.
    ///
    /// # Panics
    /// Panics if `block_size` is 0, or if the sum of `layers` is 0.
    pub fn new(block_size: usize, layers: Vec<usize>) -> Self {
        let block_bytes: usize = layers.iter().sum();
        assert!(block_bytes > 0 && block_size > 0, "a block holds something");
        let blocks_per_record = (RECORD_BYTES / block_bytes).clamp(1, COUNT_MAX);
        Self { block_size, layers, block_bytes, blocks_per_record, stored_together: 1 }
    }

    /// Says that up to `blocks` blocks are stored together, because none of them is of use without the others. A store
    /// has buffers for so many.
    #[must_use]
    pub fn with_stored_together(self, blocks: usize) -> Self {
        Self { stored_together: blocks.max(1), ..self }
    }

    /// Returns the number of blocks that are stored together at most.
    pub fn stored_together(&self) -> usize {
        self.stored_together
    }

    /// Creates the shape for blocks of `block_size` tokens and `block_bytes` bytes that are never read layer by layer.
    /// Records of at most `blocks` blocks hold one block behind the other.
    ///
    /// # Panics
    /// Panics if a block is empty.
    pub(crate) fn flat(block_size: usize, block_bytes: usize, blocks: usize) -> Self {
        Self { blocks_per_record: blocks.clamp(1, COUNT_MAX), ..Self::new(block_size, vec![block_bytes]) }
    }

    /// Returns whether the blocks of a record lie one behind the other, behind the record's header.
    pub(crate) fn is_flat(&self) -> bool {
        self.layers.len() == 1
    }

    /// Returns the number of tokens in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the number of bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of bytes that each layer takes in a block.
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// Returns the number of blocks in a full record.
    pub fn blocks_per_record(&self) -> usize {
        self.blocks_per_record
    }

    /// Returns the length, in bytes, of the header of a record that holds `count` blocks.
    pub fn header_bytes(&self, count: usize) -> usize {
        let sums = self.layers.len() * size_of::<u64>();
        (HEADER_FIXED + count * entry_bytes(self.block_size) + sums).next_multiple_of(DIRECT_ALIGN)
    }

    /// Returns the number of bytes of a buffer that can hold the header of a record, or any one of its runs.
    pub(crate) fn room_to_read(&self) -> usize {
        let most = self.blocks_per_record();
        let longest = self.layers.iter().max().map_or(0, |layer| layer * most);
        self.header_bytes(most).max(longest.next_multiple_of(DIRECT_ALIGN))
    }

    /// Returns for each layer where its run begins in a record of `count` blocks, in bytes from the record's beginning,
    /// and the number of bytes of the layer's part of a block.
    pub(crate) fn runs(&self, count: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut at = self.header_bytes(count);
        self.layers.iter().map(move |&layer| {
            let begin = at;
            at += (count * layer).next_multiple_of(DIRECT_ALIGN);
            (begin, layer)
        })
    }

    /// Returns the number of bytes of records of each number of blocks, from 0 on. [count]
    pub(crate) fn sizes(&self) -> Vec<u64> {
        (0..=self.blocks_per_record).map(|count| self.record_bytes(count) as u64).collect()
    }

    /// Returns the length, in bytes, of a record that holds `count` blocks, or 0 if `count` is 0.
    pub fn record_bytes(&self, count: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let runs = self.layers.iter().map(|&layer| (count * layer).next_multiple_of(DIRECT_ALIGN));
        self.header_bytes(count) + runs.sum::<usize>()
    }
}
