//! Groups: the tensors that a layer of the forward pass sweeps over, by name, shape and access.

/// How the forward pass reads a matrix. Vectors are small and always whole in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every row, in ascending order.
    Sweep,
    /// Every row, side by side with the matrix before it, which has the same shape: the same rows of both are needed
    /// together.
    SweepBeside,
    /// Single rows, by their numbers.
    Rows,
    /// Whole, together with the other matrices of the same expert, in passes whose tokens need that expert. A group's
    /// experts follow each other, each with the same matrices in the same order.
    Expert {
        /// Which expert, counted from 0.
        number: u32,
        /// How many of the group's experts each token needs.
        chosen: u32,
    },
}

/// A tensor that the model wants, by its name in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name, as in `model.layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// The shape that follows from the configuration, outermost dimension first.
    pub shape: Vec<usize>,
    /// How it is read, if it is a matrix.
    pub access: Access,
}

impl TensorSpec {
    /// A tensor that is swept.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), access: Access::Sweep }
    }

    /// The same, read in another way.
    pub fn by(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// The tensors that one layer of the forward pass needs together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its name in messages: "layer 3, attention".
    pub name: String,
    /// Its role in a pass.
    pub role: Role,
    /// The decoder layer that it belongs to, counted from 0; what comes behind the last is one more.
    pub layer: usize,
    /// Its tensors, in the order in which the forward pass sweeps over them.
    pub tensors: Vec<TensorSpec>,
}

/// The role of a group of tensors in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Looks tokens up, before the first layer.
    Embedding,
    /// A layer's attention.
    Attention,
    /// A layer's feed-forward network.
    FeedForward,
    /// Everything behind the last layer.
    Head,
}
