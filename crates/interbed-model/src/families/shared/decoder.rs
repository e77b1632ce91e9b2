//! The decoder that most families vary: each layer has attention and a feed-forward network, and layers differ only in
//! windows, rotation and experts. [`Decoder::read`] reads the common keys of a configuration, the family's file then
//! changes the [`Decoder`], and [`Decoder::blueprint`] makes the list of layers.

use interbed_kernels::RopeStyle;

use super::habits::Habits;
use super::refusals::refuse_uncomputed;
use super::{rope, sizes, windows};
use crate::blueprint::{
    Activation, Attention, Blueprint, Branch, DecoderLayer, Dense, Head, HeadNorms, KvRows, Mixture, Norm,
    NormsOfHeads, Part, Passage, Rope, RopeScaling, ValueSource,
};
use crate::config_error::ConfigProblem;
use crate::keys::{Key, Keys, key};

const TIE: Key = key("tie_word_embeddings", "");

/// Where the norms of a layer's branches stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum NormPlaces {
    /// A norm is applied to the input of a branch.
    Before,
    /// A norm is applied to the result of a branch.
    After,
    /// Norms are applied to the input and to the result of a branch.
    Both,
}

/// A decoder whose parts a family may still change before it becomes a blueprint.
pub(in crate::families) struct Decoder {
    pub vocab_size: usize,
    pub hidden: usize,
    /// Inner width of dense networks.
    pub inner: usize,
    pub layers: usize,
    pub positions: usize,
    /// Whether RoPE scaling extends the context beyond `positions`.
    pub stretches: bool,
    /// The attention that all layers have in common. The fields `window` and `rope` of this value are ignored:
    /// `windows` and `rope_of` of the decoder have an entry for each layer.
    pub attention: Attention,
    /// The part that replaces attention in some layers, such as a gated delta rule, and whether it does in each layer.
    pub recurrence: Option<(Part, Vec<bool>)>,
    pub activation: Activation,
    /// Whether dense networks have a gate projection.
    pub is_gated: bool,
    pub network_bias: bool,
    pub norms: NormPlaces,
    pub norm_epsilon: f32,
    /// Number that is added to each element of the stored weights of norms.
    pub norm_offset: f32,
    pub ropes: Vec<Rope>,
    /// For each layer, the index in `ropes` of the rotation of queries and keys, or `None` if they are not rotated.
    pub rope_of: Vec<Option<usize>>,
    /// For each layer, how many positions a token sees, itself included, or `None` for all positions up to its own.
    pub windows: Vec<Option<usize>>,
    /// The mixture of experts and, for each layer, whether the mixture replaces the dense network.
    pub mixture: Option<(Mixture, Vec<bool>)>,
    pub embedding_factor: f64,
    pub branch_factor: f64,
    pub logits_divisor: f64,
    pub is_tied: bool,
}

impl Decoder {
    /// Reads the keys that all families have in common.
    ///
    /// # Errors
    /// Fails if a key is missing, is not valid, or asks for a computation that Interbed lacks. The error names the
    /// first such key.
    pub fn read(keys: &Keys<'_>, habits: &Habits, style: RopeStyle) -> Result<Self, ConfigProblem> {
        refuse_uncomputed(keys, habits)?;
        let vocab_size = match keys.gguf() {
            Some(gguf) => gguf.within(sizes::VOCAB_SIZE.gguf, gguf.vocab_size()?, 1..=Blueprint::VOCAB_SIZE_MAX)?,
            None => keys.size(sizes::VOCAB_SIZE, habits.vocab_size, Blueprint::VOCAB_SIZE_MAX)?,
        };
        let hidden = keys.size(sizes::HIDDEN, habits.hidden, Blueprint::HIDDEN_SIZE_MAX)?;
        let inner = sizes::read_inner(keys, habits)?;
        let layers = sizes::read_layers(keys, habits)?;
        if let Some(fields) = keys.json().filter(|_| !habits.has_recurrence) {
            // Families without windows check the list too, so that a senseless one is reported.
            windows::read_layer_types(fields, layers)?;
        }
        let heads = sizes::read_heads(keys, habits)?;
        let kv_heads = sizes::read_kv_heads(keys, heads, habits)?;
        let head_dim = sizes::read_head_dim(keys, habits, hidden, heads)?;
        let positions = keys.size(sizes::POSITIONS, habits.positions, Blueprint::POSITIONS_MAX)?;
        let epsilon = sizes::read_epsilon(keys, habits.epsilon)?;
        let rotated = rope::read_rotated(keys, &habits.rope, &habits.rotated, head_dim)?;
        let (theta, scaling) = rope::read(keys, &habits.rope, [positions, rotated], habits.theta)?;
        let factors = match keys.gguf() {
            Some(gguf) => rope::read_factors(gguf, &habits.rope, rotated)?,
            None => None,
        };
        let is_tied = match keys.gguf() {
            Some(gguf) => gguf.is_tied(),
            None => keys.flag(TIE)?.unwrap_or(habits.is_tied),
        };
        Ok(Self {
            vocab_size,
            hidden,
            inner,
            layers,
            positions,
            stretches: true,
            attention: Attention {
                heads,
                kv_heads,
                key_width: head_dim,
                value_width: head_dim,
                input_bias: sizes::read_bias(keys, &habits.input_bias, "self_attn.q_proj.bias")?,
                output_bias: sizes::read_bias(keys, &habits.output_bias, "self_attn.o_proj.bias")?,
                norms: None,
                norms_values: false,
                rope: Some(0),
                scale: (head_dim as f64).sqrt().recip() as f32,
                growth: None,
                window: None,
                sinks: false,
                soft_cap: None,
                output_gate: false,
                values: ValueSource::Projection,
                rows: KvRows::Own,
                selection: None,
            },
            recurrence: None,
            activation: sizes::read_activation(keys, &habits.activation)?,
            is_gated: true,
            network_bias: sizes::read_bias(keys, &habits.network_bias, "mlp.up_proj.bias")?,
            norms: NormPlaces::Before,
            norm_epsilon: epsilon as f32,
            norm_offset: 0.0,
            ropes: vec![Rope { theta, scaling, factors, style, rotated }],
            rope_of: vec![Some(0); layers],
            windows: match keys.gguf() {
                Some(gguf) => windows::read_gguf(gguf, layers, habits.slides_in_gguf)?,
                None => vec![None; layers],
            },
            mixture: None,
            embedding_factor: 1.0,
            branch_factor: 1.0,
            logits_divisor: 1.0,
            is_tied,
        })
    }

    /// Gives layers with a window their own rotation. The family must set `windows` before it calls this function. The
    /// base of the frequencies is read from the RoPE parameters of layers with a window or else from `key`. If the
    /// configuration has neither, the base is `theta` or, if this is `None`, the base of the other layers.
    ///
    /// # Errors
    /// Fails if a key has a value that is not valid or not supported.
    pub fn rotate_windows(&mut self, keys: &Keys<'_>, key: Key, theta: Option<f64>) -> Result<(), ConfigProblem> {
        if self.windows.iter().all(Option::is_none) {
            return Ok(());
        }
        let main = &self.ropes[0];
        let sizes = [self.positions, main.rotated];
        let (theta, scaling) = rope::read_of_windows(keys, key, sizes, theta.unwrap_or(main.theta))?;
        self.ropes.push(Rope { theta, scaling, factors: None, ..main.clone() });
        self.rope_of = self.windows.iter().map(|window| Some(usize::from(window.is_some()))).collect();
        Ok(())
    }

    /// Adds norms of queries and keys to the attention of all layers. `over` says what each norm covers and when it is
    /// applied. Epsilon and offset are those of the decoder's other norms.
    pub fn norm_heads(&mut self, over: HeadNorms) {
        let (epsilon, offset) = (self.norm_epsilon, self.norm_offset);
        self.attention.norms = Some(NormsOfHeads { over, epsilon, offset });
    }

    /// Creates the blueprint of this decoder.
    pub fn blueprint(self) -> Blueprint {
        let layers = (0..self.layers).map(|layer| self.layer(layer)).collect();
        let context = self.context();
        let norm = self.norm("model.norm");
        Blueprint {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden,
            positions: self.positions,
            context,
            streams: 1,
            tables: Vec::new(),
            embedding_factor: self.embedding_factor as f32,
            ropes: self.ropes,
            layers,
            head: Head {
                mixer: None,
                norm,
                divisor: self.logits_divisor as f32,
                soft_cap: None,
                is_tied: self.is_tied,
            },
        }
    }

    /// Returns the longest context in tokens. Scalings that stretch positions stretch the context too, as in vLLM.
    fn context(&self) -> usize {
        if !self.stretches {
            return self.positions;
        }
        let stretched = match self.ropes[0].scaling {
            RopeScaling::Linear { factor } => self.positions as f64 * factor,
            RopeScaling::Dynamic { factor, original_max } | RopeScaling::Yarn { factor, original_max, .. } => {
                original_max as f64 * factor
            }
            // With these scalings, the stated positions are stretched already.
            RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. } => 0.0,
        };
        (stretched as usize).clamp(self.positions, Blueprint::POSITIONS_MAX)
    }

    /// Returns the norm of this name, which has the epsilon and the offset of the decoder's other norms.
    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, epsilon: self.norm_epsilon, offset: self.norm_offset }
    }

    fn layer(&self, layer: usize) -> DecoderLayer {
        let attention = Attention { window: self.windows[layer], rope: self.rope_of[layer], ..self.attention.clone() };
        let network = match &self.mixture {
            Some((mixture, layers)) if layers[layer] => Part::Mixture(mixture.clone()),
            _ => Part::Dense(Dense {
                width: self.inner,
                activation: self.activation,
                gated: self.is_gated,
                bias: self.network_bias,
            }),
        };
        let first = match &self.recurrence {
            Some((part, layers)) if layers[layer] => part.clone(),
            _ => Part::Attention(attention),
        };
        let [of_first, of_network] = self.norms.names();
        let branches = [(of_first, first), (of_network, network)];
        let branch = |([before, after], part): ([Option<&'static str>; 2], Part)| {
            let passage =
                |name: Option<&'static str>| name.map_or(Passage::Direct, |name| Passage::Norm(self.norm(name)));
            Branch { enter: passage(before), part, leave: passage(after), factor: self.branch_factor as f32 }
        };
        DecoderLayer { branches: branches.map(branch).into(), has_factor: false }
    }
}

impl NormPlaces {
    /// The names of the norms before and after attention, and before and after the network.
    fn names(self) -> [[Option<&'static str>; 2]; 2] {
        let (first, second) = (Some("input_layernorm"), Some("post_attention_layernorm"));
        let (third, last) = (Some("pre_feedforward_layernorm"), Some("post_feedforward_layernorm"));
        match self {
            Self::Before => [[first, None], [second, None]],
            Self::After => [[None, second], [None, last]],
            Self::Both => [[first, second], [third, last]],
        }
    }
}

/// Reads a factor, which may not be zero.
pub(in crate::families) fn other_than_zero(keys: &Keys<'_>, key: Key) -> Result<Option<f64>, ConfigProblem> {
    keys.number(key, |number| number.abs() >= 1e-9, "a number other than 0")
}
