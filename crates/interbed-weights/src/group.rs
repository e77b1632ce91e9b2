//! Groups: the tensors that a layer of the forward pass sweeps over, by name, shape and access.

/// Says how the forward pass reads a matrix. Vectors are small and always whole in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A pass reads every row, in ascending order.
    Sweep,
    /// A pass reads every row together with the same row of the matrix before it, which has the same shape.
    SweepBeside,
    /// A pass reads single rows, by their numbers.
    Rows,
    /// The matrix belongs to an expert. It is read whole with the expert's other matrices, in passes whose tokens use
    /// the expert. A group's experts follow each other, each with the same matrices in the same order.
    Expert {
        /// Index of the expert in its group, counted from 0.
        number: u32,
        /// Number of the group's experts that each token uses.
        chosen: u32,
    },
}

/// Description of a tensor that the model needs, by its name in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name of the tensor, as in `model.layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape that follows from the model's configuration, outermost dimension first.
    pub shape: Vec<usize>,
    /// Way in which the forward pass reads the tensor, if it is a matrix.
    pub access: Access,
}

impl TensorSpec {
    /// Describes a tensor of which passes read every row in order ([`Access::Sweep`]).
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), access: Access::Sweep }
    }

    /// Returns this description with another way of reading.
    pub fn by(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// Description of the tensors that one layer of the forward pass needs together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name of the group in messages, such as "layer 3, attention".
    pub name: String,
    /// Role of the group in a pass.
    pub role: Role,
    /// Index of the decoder layer that the group belongs to, counted from 0. Groups behind the last layer have one more
    /// than the last layer's index.
    pub layer: usize,
    /// Tensors of the group, in the order in which the forward pass reads them.
    pub tensors: Vec<TensorSpec>,
}

/// Role of a group of tensors in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Turns tokens into vectors, before the first layer.
    Embedding,
    /// Computes a layer's attention.
    Attention,
    /// Computes a layer's feed-forward network.
    FeedForward,
    /// Computes everything behind the last layer.
    Head,
}
