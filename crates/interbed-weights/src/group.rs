//! Groups: the tensors that a layer of the forward pass sweeps over, by name, shape and access.

/// How the forward pass reads a matrix. Vectors are small and always in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A forward pass reads every row, in ascending order.
    Sweep,
    /// A forward pass reads every row together with the same row of the preceding matrix, which has the same shape.
    SweepBeside,
    /// A forward pass reads single rows, which it selects by index.
    Rows,
    /// The matrix belongs to an expert. A forward pass reads it whole, with the expert's other matrices, if a token
    /// uses the expert. The experts of a group come one after another, and all have the same matrices in the same
    /// order.
    Expert {
        /// Index of the expert in its group, counted from 0.
        number: u32,
        /// Number of the group's experts that each token uses.
        chosen: u32,
    },
}

/// Name and shape of a tensor that the model needs, and how the forward pass reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Hugging Face name of the tensor, such as `model.layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape that the model's configuration implies, outermost dimension first.
    pub shape: Vec<usize>,
    /// How the forward pass reads the tensor, if it is a matrix.
    pub access: Access,
}

impl TensorSpec {
    /// Describes a tensor whose rows are all read, in order, in every forward pass ([`Access::Sweep`]).
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), access: Access::Sweep }
    }

    /// Returns this description with another [`Access`].
    pub fn by(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// Description of the tensors that one part of the forward pass needs together, such as the attention of a decoder
/// layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name of the group in messages, such as "layer 3, attention".
    pub name: String,
    /// Role of the group in the forward pass.
    pub role: Role,
    /// Index of the decoder layer that the group belongs to, counted from 0. For the embedding, it is 0; for groups
    /// after the last decoder layer, it is the number of decoder layers.
    pub layer: usize,
    /// Tensors of the group, in the order in which the forward pass reads them.
    pub tensors: Vec<TensorSpec>,
}

/// Role of a group of tensors in the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Looks up the embedding vectors of tokens, before the first decoder layer.
    Embedding,
    /// Computes a layer's attention.
    Attention,
    /// Computes a layer's feed-forward network.
    FeedForward,
    /// Computes everything after the last decoder layer.
    Head,
}
