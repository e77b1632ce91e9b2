//! Layers as runs of neighbours in the cyclic order.

/// Division of the order's positions into layers.
#[derive(Debug)]
pub(super) struct Layers {
    /// First position of each layer, and at the end the number of positions.
    starts: Vec<u32>,
    /// Layer of each position, counted from 0.
    layer_of: Vec<u32>,
}

impl Layers {
    /// Divides the positions of the order into layers. `names` has a number for each position, and consecutive
    /// positions with equal numbers form a layer. If `names` is empty, each position is a layer of its own.
    pub fn new(names: &[u32], num_positions: usize) -> Self {
        let mut starts = Vec::new();
        let mut layer_of = Vec::with_capacity(num_positions);
        for position in 0..num_positions {
            if position == 0 || names.is_empty() || names[position] != names[position - 1] {
                starts.push(position as u32);
            }
            layer_of.push(starts.len() as u32 - 1);
        }
        starts.push(num_positions as u32);
        Self { starts, layer_of }
    }

    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    pub fn layer_of(&self, position: usize) -> usize {
        self.layer_of[position] as usize
    }

    /// Returns the range of positions in a layer. `layer` is taken modulo the number of layers.
    pub fn positions(&self, layer: usize) -> std::ops::Range<usize> {
        let layer = layer % self.count();
        self.starts[layer] as usize..self.starts[layer + 1] as usize
    }

    /// Returns the total number of positions in `layers` consecutive layers, beginning with layer `layer`. After the
    /// last layer, the first layer comes again. Each position counts at most once.
    pub fn positions_in(&self, layer: usize, layers: usize) -> usize {
        let all = self.layer_of.len();
        if layers >= self.count() {
            return all;
        }
        let (from, to) = (self.positions(layer).start, self.positions(layer + layers).start);
        if to >= from { to - from } else { to + all - from }
    }
}
