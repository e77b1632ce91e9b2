//! The content of KV blocks as bytes, in the layout that processors use.

use bytemuck::{cast_slice, cast_slice_mut};
use interbed_kernels::{KvDType, KvLayout};

use super::operations::{DeviceMemory, Slot};

impl DeviceMemory {
    /// Writes the first bytes of a block, in `layout`, to `into`. What was never written becomes NaN.
    ///
    /// # Panics
    /// Panics if the layout is not of f32.
    pub fn read_block(&self, layout: &KvLayout, block: u32, into: &mut [u8]) {
        for (slot, at, len) in places(layout, block) {
            let end = into.len().min(at + len);
            let to = &mut into[at.min(end)..end];
            let unwritten = vec![f32::NAN; len / size_of::<f32>()];
            let values = self.kv.get(&slot).unwrap_or(&unwritten);
            to.copy_from_slice(&cast_slice(values)[..to.len()]);
        }
    }

    /// Replaces the keys and values of a block by those in `bytes`.
    ///
    /// # Panics
    /// Panics if the layout is not of f32, or if `bytes` is shorter than the content of a block.
    pub fn fill_block(&mut self, layout: &KvLayout, block: u32, bytes: &[u8]) {
        for (slot, at, len) in places(layout, block) {
            let mut values = vec![0.0; len / size_of::<f32>()];
            cast_slice_mut(&mut values).copy_from_slice(&bytes[at..at + len]);
            self.kv.insert(slot, values);
        }
    }

    /// Forgets the keys and values of `blocks`.
    pub fn poison_blocks(&mut self, blocks: &[u32]) {
        self.kv.retain(|slot, _| !blocks.contains(&slot.0));
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
