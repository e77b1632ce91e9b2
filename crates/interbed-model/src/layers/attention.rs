//! Attention: each token attends to itself and the tokens before it, whose keys and values are kept.

use arrayvec::ArrayVec;
use interbed_device::{Command, PassNeeds, Tensor, TensorArea};
use interbed_kernels::{ATTENTION_STATE, Activation, AttentionLayer, KvShape, RopeStyle, attention_scratch};
use interbed_weights::{Access, GroupSpec, Role, TensorId};

use super::branch_norm::{BranchNorm, Seat};
use super::tensors::LayerTensors;
use super::{Layer, Place};
use crate::blueprint::{self, Blueprint, HeadNorms, KvRows, ValueSource};
use crate::kept::{Kept, KeptPlace, TRUNK};
use crate::pass::{ForwardError, Linear, Pass, PassSize};

/// Attention of one layer, of any kind: how many heads, how far a token sees, and how positions are encoded.
pub(super) struct Attention {
    spec: GroupSpec,
    norm: BranchNorm,
    /// Makes queries. If the result is gated, the gate of each head follows the query of that head.
    q: Linear,
    /// Makes keys; `None` if the layer reads the keys and values of another layer.
    k: Option<Linear>,
    /// Makes values; `None` if keys and values are made together, or elsewhere.
    v: Option<Linear>,
    /// The index in the model's list of layers of the layer whose keys and values this layer reads; `None` if it keeps
    /// its own.
    source: Option<usize>,
    /// Weights of the norms of queries and of keys, if the model has these norms. Keys of another layer are normed
    /// there.
    norms: ArrayVec<TensorId, 2>,
    /// Whether values are normed, by a norm without weights.
    norms_values: bool,
    /// Whether queries and keys are normed after they are rotated.
    is_normed_after: bool,
    /// Whether queries grow with their positions.
    grows: bool,
    /// A score of each head that takes part in the softmax and has no value.
    sinks: Option<TensorId>,
    output: Linear,
    heads: usize,
    kv: KvShape,
    /// Whether the result is multiplied by the sigmoid of a gate.
    is_gated: bool,
    /// The factor of the attention scores.
    scale: f32,
    /// How many positions a token sees, itself included; `None` means all.
    window: Option<usize>,
    /// The index of the rotation among the model's; `None` if positions are not encoded.
    rope: Option<usize>,
    style: RopeStyle,
    /// Number that is added to each element of the weights of both norms.
    offset: f32,
    /// Number that is added to the mean square in the norms of queries and keys.
    epsilon: f32,
    /// Most positions that a sequence may have.
    context: usize,
    /// Whether this is the last layer that keeps anything for a sequence; after it, only rows whose logits are wanted
    /// are kept.
    is_last: bool,
}

/// Tensors that the layer uses within a pass.
struct Scratch {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// Queries and gates of all heads in turns, and the gates, if the result is gated.
    gated: Option<[Tensor; 2]>,
    attended: Tensor,
    /// Intermediate results of each row, kept between attention to KV below memory and attention to KV in memory.
    state: Tensor,
}

impl Attention {
    /// Makes the attention of a branch at `place`. `source` is the index, in the model's list of layers, of the layer
    /// whose keys and values it reads, if it has none of its own.
    pub(super) fn new(
        blueprint: &Blueprint,
        (seat, attention): (Seat<'_>, &blueprint::Attention),
        place: Place,
        source: Option<usize>,
    ) -> Self {
        let hidden = blueprint.hidden_size;
        let blueprint::Attention { heads, kv_heads, key_width, .. } = *attention;
        let (q, kv_rows) = (heads * key_width, kv_heads * key_width);
        let mut tensors = LayerTensors::of_layer(place, "attention", Role::Attention);
        let norm = BranchNorm::new(seat, hidden, &mut tensors);
        let mut input = |name: &str, rows| {
            tensors.linear(&format!("self_attn.{name}_proj"), [rows, hidden], attention.input_bias, Access::Sweep)
        };
        let q_rows = if attention.output_gate { 2 * q } else { q };
        let is_own = attention.rows == KvRows::Own;
        assert_eq!(is_own, source.is_none(), "keys and values are the layer's own or those of another");
        let q = input("q", q_rows);
        let k = is_own.then(|| input("k", kv_rows));
        let v = (is_own && attention.values == ValueSource::Projection).then(|| input("v", kv_rows));
        let width = heads * key_width;
        let over = attention.norms.map(|norms| norms.over);
        let norm_lens = over.map(|over| match over {
            HeadNorms::EachBefore | HeadNorms::EachAfter => [key_width; 2],
            HeadNorms::Whole => [width, kv_rows],
        });
        let lens = norm_lens.into_iter().flatten().zip(["q", "k"]).take(1 + usize::from(is_own));
        let norms = lens.map(|(len, name)| tensors.vector(&format!("self_attn.{name}_norm.weight"), len)).collect();
        let sinks = attention.sinks.then(|| tensors.vector("self_attn.sinks", heads));
        let output = tensors.linear("self_attn.o_proj", [hidden, width], attention.output_bias, Access::Sweep);
        Self {
            spec: tensors.finish(),
            norm,
            q,
            k,
            v,
            source,
            norms,
            norms_values: attention.norms_values && is_own,
            is_normed_after: over == Some(HeadNorms::EachAfter),
            grows: attention.growth.is_some(),
            sinks,
            output,
            heads,
            kv: attention.kv_shape(),
            is_gated: attention.output_gate,
            scale: attention.scale,
            window: attention.window,
            rope: attention.rope,
            style: blueprint.ropes[attention.rope.unwrap_or(0)].style,
            offset: attention.norms.map_or(0.0, |norms| norms.offset),
            epsilon: attention.norms.map_or(0.0, |norms| norms.epsilon),
            context: blueprint.context,
            is_last: false,
        }
    }

    /// Marks this layer as the last one that keeps anything for a sequence if `is_last`.
    pub(super) fn last_if(self, is_last: bool) -> Self {
        Self { is_last, ..self }
    }

    /// Norms queries and keys in place, if the model has norms for them.
    fn norm_heads(&self, pass: &mut Pass<'_>, both: [Tensor; 2]) -> Result<(), ForwardError> {
        for (heads, &norm) in both.into_iter().zip(&self.norms) {
            let (weight, offset, epsilon) = (&pass.weights.vector(norm), self.offset, self.epsilon);
            pass.submit(&[Command::Norm { x: heads, weight, offset, epsilon, out: heads }])?;
        }
        Ok(())
    }

    /// Makes queries, keys and values of `x`, and norms them unless they are normed after they are rotated.
    fn project(&self, pass: &mut Pass<'_>, x: Tensor, scratch: &Scratch) -> Result<(), ForwardError> {
        let &Scratch { q, k, v, gated, .. } = scratch;
        let queries = gated.map_or(q, |[both, _]| both);
        match (&self.k, &self.v) {
            (Some(of_k), Some(of_v)) => pass.products(x, [&self.q, of_k, of_v], [queries, k, v], None)?,
            (Some(of_k), None) => pass.products(x, [&self.q, of_k], [queries, k], None)?,
            _ => pass.products(x, [&self.q], [queries], None)?,
        }
        if let Some([both, gate]) = gated {
            pass.part_alternating(both, self.kv.head_dim, [q, gate])?;
        }
        if self.norms_values {
            let x = if self.v.is_some() { v } else { k };
            let (width, epsilon) = (self.kv.head_dim, self.epsilon);
            pass.submit(&[Command::Normalise { x, width, epsilon, out: v }])?;
        }
        if !self.is_normed_after {
            self.norm_heads(pass, [q, k])?;
        }
        Ok(())
    }

    /// Rotates queries and keys, keeps keys and values, and computes attention. Returns the tensor of the result.
    fn attend(&self, pass: &mut Pass<'_>, scratch: &Scratch) -> Result<Tensor, ForwardError> {
        let &Scratch { q, k, v, attended, state, .. } = scratch;
        let KeptPlace { group, index } = pass.kept(0);
        let (kv, sequences) = (pass.blocks.kv(group).layer(index), pass.sequences(group));
        let (style, [cos, sin]) = (self.style, pass.rotation(self.rope));
        let layer = AttentionLayer { kv, heads: self.heads, scale: self.scale, window: self.window };
        if self.source.is_some() {
            let shape = [self.heads, self.kv.head_dim];
            pass.submit(&[Command::Rotate { q, shape, style, cos, sin }])?;
        } else {
            pass.submit(&[Command::StoreKv { layer: kv, sequences, style, cos, sin, q, k, v }])?;
        }
        if self.is_normed_after {
            // The first command has rotated queries and keys in place. After the norm, the keys are stored again,
            // unrotated this time because an empty rotation is given.
            self.norm_heads(pass, [q, k])?;
            let [cos, sin] = pass.rotation(None);
            pass.submit(&[Command::StoreKv { layer: kv, sequences, style, cos, sin, q, k, v }])?;
        }
        // Grown queries are written to `attended`, so that the result of attention goes to `q` instead.
        let (q, attended) = if self.grows { (pass.grow_queries(q, attended, self.width())?, q) } else { (q, attended) };
        let sinks = self.sinks.map(|sinks| pass.weights.vector(sinks));
        let sinks = sinks.as_ref();
        // Within a window, all is in memory, unless the blocks are those of all positions.
        if group == TRUNK {
            pass.attend_below(layer, sinks, q, state, attended)?;
        }
        pass.submit(&[Command::Attend { layer, frame: None, sequences, sinks, q, state, out: attended }])?;
        Ok(attended)
    }

    /// Returns the number of elements of the queries of all heads.
    fn width(&self) -> usize {
        self.heads * self.kv.head_dim
    }

    /// Returns the number of elements of the keys, and of the values, that the layer makes for a token.
    fn kv_width(&self) -> usize {
        self.k.map_or(0, |k| k.rows)
    }

    fn scratch(&self, rows: usize, area: &mut TensorArea) -> Scratch {
        let mut take = |width| area.take(rows * width);
        Scratch {
            q: take(self.width()),
            k: take(self.kv_width()),
            v: take(self.kv_width()),
            gated: self.is_gated.then(|| [take(self.q.rows), take(self.width())]),
            attended: take(self.width()),
            state: take(self.heads * ATTENTION_STATE),
        }
    }
}

impl Layer for Attention {
    fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    fn keeps(&self) -> Vec<Kept> {
        match self.source {
            None => vec![Kept::Kv { shape: self.kv, window: self.window }],
            Some(layer) => vec![Kept::Shared { layer, window: self.window }],
        }
    }

    fn plan(&self, size: &PassSize, needs: &mut PassNeeds) {
        let mut area = needs.tensors.shared();
        self.scratch(size.tokens, &mut area);
        needs.tensors.reserve(&area);
        needs.product_cols = needs.product_cols.max(self.q.cols).max(self.output.cols);
        self.norm.plan(needs);
        needs.norm_cols = needs.norm_cols.max(self.width()).max(self.kv_width());
        let scratch = attention_scratch(self.heads, self.kv.head_dim, self.context);
        needs.attention_scratch = needs.attention_scratch.max(scratch);
    }

    fn compute(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let scratch = self.scratch(pass.rows(), &mut pass.area());
        let x = self.norm.begin(pass)?;
        self.project(pass, x, &scratch)?;
        // Where nothing is wanted any more, a layer without KV of its own has nothing to attend for.
        let (width, attended) = (self.width(), if pass.is_over() { scratch.q } else { self.attend(pass, &scratch)? });
        let attended = match scratch.gated {
            None => attended,
            Some([_, gate]) => {
                let (columns, activation) = (0..width, Activation::Sigmoid);
                pass.submit(&[Command::Gate { gate, up: attended, width, columns, activation }])?;
                gate
            }
        };
        let attended = if self.is_last { pass.keep_wanted_rows(attended, width)? } else { attended };
        let branch = pass.branch();
        pass.products(attended, [&self.output], [branch], None)?;
        self.norm.end(pass)
    }
}
