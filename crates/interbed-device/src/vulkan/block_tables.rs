//! Tables of KV blocks' addresses, which kernels of all layers of a pass read: written once, as long as passes go over
//! the same blocks.

use std::sync::Arc;

use interbed_kernels::{AttentionSpan, KvPlace};

use super::error::GpuError;
use super::gpu::Gpu;
use super::kv::GpuKv;
use super::memory::{GpuBuffer, Heap};
use crate::KvSequences;

/// Tables that are remembered for each group: where a pass goes through KV in parts, the store and attention have
/// different ones.
const REMEMBERED: usize = 2;

/// The least bytes of a table's memory, so that the next one that is a little longer fits too.
const LEAST: usize = 64 << 10;

/// The block tables that were used last, and their memory.
#[derive(Default)]
pub(super) struct BlockTables {
    /// The tables that were used last; the most recent one comes first.
    last: Vec<Arc<BlockTable>>,
    /// Memory of all tables, in use or not.
    memory: Vec<Arc<GpuBuffer>>,
}

/// The addresses of the blocks of some sequences.
pub(super) struct BlockTable {
    spans: Vec<AttentionSpan>,
    tables: Vec<u32>,
    /// The addresses of the blocks of the first span, and then those of the other spans one after the other.
    pub addresses: Vec<u64>,
    /// The place in `addresses` at which the addresses of each span begin.
    pub starts: Vec<u32>,
    /// The memory where kernels find the addresses, which must be kept until the GPU is done with it.
    pub memory: Arc<GpuBuffer>,
}

impl BlockTables {
    /// Returns the table of these sequences.
    ///
    /// # Errors
    /// Fails if the system has no memory for it.
    ///
    /// # Panics
    /// Panics if a block table is too short, or names a block that does not exist.
    pub fn of(&mut self, gpu: &Arc<Gpu>, kv: &GpuKv, sequences: KvSequences<'_>) -> Result<Arc<BlockTable>, GpuError> {
        let is_known = |table: &Arc<BlockTable>| table.spans == sequences.spans && table.tables == sequences.tables;
        let table = match self.last.iter().position(is_known) {
            Some(index) => self.last.remove(index),
            None => {
                self.last.truncate(REMEMBERED * kv.groups().groups().len() - 1);
                Arc::new(self.write(gpu, kv, sequences)?)
            }
        };
        self.last.insert(0, Arc::clone(&table));
        Ok(table)
    }

    fn write(&mut self, gpu: &Arc<Gpu>, kv: &GpuKv, sequences: KvSequences<'_>) -> Result<BlockTable, GpuError> {
        let KvSequences { spans, tables } = sequences;
        let (addresses, starts) = addresses(kv, sequences);
        let bytes: &[u8] = bytemuck::cast_slice(&addresses);
        let memory = self.room(gpu, bytes.len())?;
        // SAFETY: nothing but this has the memory: no table does, and the GPU is done with it.
        unsafe { memory.on_host(0..bytes.len()) }.copy_from_slice(bytes);
        Ok(BlockTable { spans: spans.to_vec(), tables: tables.to_vec(), addresses, starts, memory })
    }

    /// Returns memory of at least `len` bytes that nobody uses.
    fn room(&mut self, gpu: &Arc<Gpu>, len: usize) -> Result<Arc<GpuBuffer>, GpuError> {
        let is_free = |memory: &Arc<GpuBuffer>| Arc::strong_count(memory) == 1;
        if let Some(memory) = self.memory.iter().find(|memory| is_free(memory) && memory.len() >= len) {
            return Ok(Arc::clone(memory));
        }
        // What is free is too small.
        self.memory.retain(|memory| !is_free(memory));
        let memory = Arc::new(GpuBuffer::new(gpu, Heap::Upload, len.max(LEAST).next_power_of_two())?);
        self.memory.push(Arc::clone(&memory));
        Ok(memory)
    }
}

fn addresses(kv: &GpuKv, sequences: KvSequences<'_>) -> (Vec<u64>, Vec<u32>) {
    let (mut addresses, mut starts) = (Vec::new(), Vec::new());
    for span in sequences.spans {
        starts.push(addresses.len() as u32);
        let end = (span.first_position + span.tokens).min(span.held.end);
        let blocks = end.saturating_sub(span.held.start).div_ceil(kv.groups().trunk().block_size());
        match &span.place {
            KvPlace::Listed(range) => {
                let table = &sequences.tables[range.start as usize..range.end as usize];
                addresses.extend(table[..blocks].iter().map(|&block| kv.address(block)));
            }
            &KvPlace::From(first) => addresses.extend((first..).take(blocks).map(|block| kv.address(block))),
        }
    }
    (addresses, starts)
}
