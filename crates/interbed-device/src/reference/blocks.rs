//! The content of blocks as bytes, in the layout that processors use.

use bytemuck::{cast_slice, cast_slice_mut};
use interbed_kernels::{GroupLayout, KvDType, KvLayout, StateLayout};

use super::operations::{DeviceMemory, Slot};

impl DeviceMemory {
    /// Writes the first bytes of a block, in `layout`, to `into`. What was never written becomes NaN.
    ///
    /// # Panics
    /// Panics if the layout is of KV that is not of f32.
    pub fn read_block(&self, layout: &GroupLayout, block: u32, into: &mut [u8]) {
        let mut put = |values: Option<&Vec<f32>>, at: usize, len: usize| {
            let end = into.len().min(at + len);
            let to = &mut into[at.min(end)..end];
            let unwritten = vec![f32::NAN; len / size_of::<f32>()];
            to.copy_from_slice(&cast_slice(values.unwrap_or(&unwritten))[..to.len()]);
        };
        match layout {
            GroupLayout::Kv(layout) => {
                places(layout, block).for_each(|(slot, at, len)| put(self.kv.get(&slot), at, len));
            }
            GroupLayout::States(layout) => {
                parts(layout).for_each(|(at, len)| put(self.states.get(&(block, at)), at, len));
            }
        }
    }

    /// Replaces the content of a block by that in `bytes`.
    ///
    /// # Panics
    /// Panics if the layout is of KV that is not of f32, or if `bytes` is shorter than the content of a block.
    pub fn fill_block(&mut self, layout: &GroupLayout, block: u32, bytes: &[u8]) {
        let values = |at: usize, len: usize| {
            let mut values = vec![0.0; len / size_of::<f32>()];
            cast_slice_mut(&mut values).copy_from_slice(&bytes[at..at + len]);
            values
        };
        match layout {
            GroupLayout::Kv(layout) => {
                self.kv.extend(places(layout, block).map(|(slot, at, len)| (slot, values(at, len))));
            }
            GroupLayout::States(layout) => {
                self.states.extend(parts(layout).map(|(at, len)| ((block, at), values(at, len))));
            }
        }
    }

    /// Forgets the content of `blocks`.
    pub fn poison_blocks(&mut self, blocks: &[u32]) {
        self.kv.retain(|slot, _| !blocks.contains(&slot.0));
        self.states.retain(|(block, _), _| !blocks.contains(block));
    }
}

/// Returns every head of every token of a block, with the first of its bytes in the block and their number.
fn places(layout: &KvLayout, block: u32) -> impl Iterator<Item = (Slot, usize, usize)> {
    assert_eq!(layout.dtype(), KvDType::F32, "the reference device keeps numbers of f32");
    let layers = (0..layout.num_layers()).map(|layer| layout.layer(layer));
    layers.flat_map(move |layer| {
        let len = layer.slot_bytes();
        (0..layer.block_size()).flat_map(move |slot| {
            (0..layer.num_kv_heads()).flat_map(move |head| {
                [false, true].map(|is_value| {
                    let part = if is_value { layer.value_offset() } else { 0 };
                    let name = (block, slot, layer.key_offset(0), head, is_value);
                    (name, layer.key_offset(head) + part + slot * len, len)
                })
            })
        })
    })
}

/// Returns the parts of a block of states that have bytes, with the first byte of each in the block and the number of
/// its bytes.
fn parts(layout: &StateLayout) -> impl Iterator<Item = (usize, usize)> {
    let layers = (0..layout.num_layers()).map(|layer| layout.layer(layer));
    layers.flat_map(|layer| {
        let shape = layer.shape();
        let parts = [(layer.rows_offset(), shape.row_bytes()), (layer.matrices_offset(), shape.matrix_bytes())];
        parts.into_iter().filter(|&(_, bytes)| bytes > 0)
    })
}
