//! Collection of one layer's tensors: each name and shape goes into the layer's spec, and a handle comes back.

use interbed_weights::{Access, GroupSpec, Role, TensorId, TensorSpec};

use super::Place;
use crate::pass::Linear;

/// Collects the specs of a layer's tensors, in the order in which a forward pass reads the tensors.
#[derive(Debug)]
pub struct LayerTensors {
    group: usize,
    prefix: String,
    spec: GroupSpec,
}

impl LayerTensors {
    /// Starts the list of tensors of a layer.
    ///
    /// - `group`: index of the layer in the model's list of layers
    /// - `layer`: number of the decoder layer to which the layer belongs
    /// - `prefix`: beginning of the names of all tensors in the list
    pub fn new(group: usize, name: impl Into<String>, role: Role, layer: usize, prefix: impl Into<String>) -> Self {
        let spec = GroupSpec { name: name.into(), role, layer, tensors: Vec::new() };
        Self { group, prefix: prefix.into(), spec }
    }

    /// Starts a list for the `part` of a decoder layer that stands at `place`.
    pub(super) fn of_layer(Place { group, layer }: Place, part: &str, role: Role) -> Self {
        Self::new(group, format!("layer {layer}, {part}"), role, layer, format!("model.layers.{layer}."))
    }

    /// Adds a vector of `len` elements.
    pub fn vector(&mut self, name: &str, len: usize) -> TensorId {
        self.add(TensorSpec::new(format!("{}{name}", self.prefix), [len]))
    }

    /// Adds the weights of a convolution of each channel by itself: `[channels, 1, taps]`. They are held and used as a
    /// whole, as vectors are.
    pub fn kernel(&mut self, name: &str, [channels, taps]: [usize; 2]) -> TensorId {
        self.add(TensorSpec::new(format!("{}{name}", self.prefix), [channels, 1, taps]))
    }

    /// Adds a matrix `[rows, cols]`. `access` says how the matrix is read.
    pub fn matrix(&mut self, name: &str, [rows, cols]: [usize; 2], access: Access) -> TensorId {
        self.add(TensorSpec::new(format!("{}{name}", self.prefix), [rows, cols]).by(access))
    }

    /// Adds the matrix `name.weight` and, if `has_bias` is true, the vector `name.bias`.
    pub fn linear(&mut self, name: &str, [rows, cols]: [usize; 2], has_bias: bool, access: Access) -> Linear {
        let weight = self.matrix(&format!("{name}.weight"), [rows, cols], access);
        let bias = has_bias.then(|| self.vector(&format!("{name}.bias"), rows));
        Linear { weight, bias, rows, cols }
    }

    /// Returns the spec with all tensors that were added.
    pub fn finish(self) -> GroupSpec {
        self.spec
    }

    fn add(&mut self, tensor: TensorSpec) -> TensorId {
        self.spec.tensors.push(tensor);
        TensorId { group: self.group, index: self.spec.tensors.len() - 1 }
    }
}
