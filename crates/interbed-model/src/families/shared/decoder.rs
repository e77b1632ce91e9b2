//! The decoder that most families vary: each layer has attention and a feed-forward network, and layers differ only in
//! windows, rotation and experts. [`Decoder::read`] reads the common keys of a configuration, the family's file then
//! changes the [`Decoder`], and [`Decoder::blueprint`] makes the list of layers.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::rope::{self, RopeRule, Rotated};
use super::windows;
use crate::blueprint::{
    Activation, Attention, Blueprint, Branch, DecoderLayer, Dense, Head, HeadNorms, KvRows, Mixture, Norm,
    NormsOfHeads, Part, Passage, Rope, RopeScaling, ValueSource,
};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Key, Keys, key};

const HIDDEN: Key = key("hidden_size", "embedding_length");
const INNER: Key = key("intermediate_size", "feed_forward_length");
const LAYERS: Key = key("num_hidden_layers", "block_count");
const HEADS: Key = key("num_attention_heads", "attention.head_count");
const KV_HEADS: Key = key("num_key_value_heads", "attention.head_count_kv");
const HEAD_DIM: Key = key("head_dim", "attention.key_length");
const POSITIONS: Key = key("max_position_embeddings", "context_length");
const EPSILON: Key = key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
const VOCAB_SIZE: Key = key("vocab_size", "vocab_size");
const TIE: Key = key("tie_word_embeddings", "");

/// Keys under which `config.json` files state the number of experts.
const EXPERT_COUNTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// What is known of a family without reading a configuration: defaults of absent keys, which keys it reads, and which
/// features it never has.
pub(in crate::families) struct Habits {
    /// Size of the vocabulary if `config.json` gives none.
    pub vocab_size: usize,
    /// Width of the hidden state if `config.json` gives none.
    pub hidden: usize,
    /// Width of the feed-forward network if `config.json` gives none.
    pub inner: usize,
    /// Number of layers if `config.json` gives none.
    pub layers: usize,
    /// Number of query heads if `config.json` gives none.
    pub heads: usize,
    /// Number of key and value heads if `config.json` gives none; `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// Elements of a head if the configuration gives none; `None` means the hidden size divided by the number of heads.
    pub head_dim: Option<usize>,
    /// Context in tokens if `config.json` gives none.
    pub positions: usize,
    /// Epsilon of all norms if `config.json` gives none.
    pub epsilon: f64,
    /// Base of the rotation's frequencies if `config.json` gives none.
    pub theta: f64,
    /// The token that begins a text if `config.json` names none.
    pub bos: Option<u32>,
    /// The token that ends a text if `config.json` names none.
    pub eos: Option<u32>,
    /// Whether the head uses the embedding's matrix if `config.json` does not say.
    pub is_tied: bool,
    /// Whether the query, key and value projections have biases.
    pub input_bias: Bias,
    /// Whether attention's output projection has a bias.
    pub output_bias: Bias,
    /// Whether the projections of feed-forward networks have biases.
    pub network_bias: Bias,
    /// How much of each head the family rotates.
    pub rotated: Rotated,
    /// How the family's rope parameters are read.
    pub rope: RopeRule,
    /// How the activation of feed-forward networks is found out.
    pub activation: ActivationRule,
    /// Whether models of the family have experts.
    pub has_experts: bool,
    /// Whether the key for the width of feed-forward networks states the width of an expert instead.
    pub inner_is_of_experts: bool,
    /// Whether the layer with this number has a window, in GGUF files that state a window but not its layers.
    pub slides_in_gguf: fn(usize) -> bool,
}

/// How the activation of a family's networks is found out.
pub(in crate::families) enum ActivationRule {
    /// `config.json` names the activation; the given one is used if it does not, and for GGUF files.
    Named(Activation),
    /// All models of the family have this activation.
    Fixed(Activation),
}

/// How to tell whether projections of a family have biases, in `config.json`; in a GGUF file, the presence of the
/// tensors tells.
pub(in crate::families) enum Bias {
    /// Projections have no biases.
    Never,
    /// Projections always have biases.
    Always,
    /// The key of this name says whether there are biases; the flag is its default.
    Stated(&'static str, bool),
}

impl Habits {
    /// Habits of the plainest decoder, which families start from.
    pub const PLAIN: Self = Self {
        vocab_size: 32_000,
        hidden: 4096,
        inner: 11_008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        epsilon: 1e-6,
        theta: 10_000.0,
        bos: Some(1),
        eos: Some(2),
        is_tied: false,
        input_bias: Bias::Never,
        output_bias: Bias::Never,
        network_bias: Bias::Never,
        rotated: Rotated::Whole,
        rope: RopeRule::USUAL,
        activation: ActivationRule::Named(Activation::Silu),
        has_experts: false,
        inner_is_of_experts: false,
        slides_in_gguf: |_| false,
    };
}

/// Where the norms of a layer's branches stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum NormPlaces {
    /// A norm is applied to what a branch reads.
    Before,
    /// A norm is applied to the result of a branch.
    After,
    /// Norms are applied to both.
    Both,
}

/// A decoder whose parts a family may still change before it becomes a blueprint.
pub(in crate::families) struct Decoder {
    pub vocab_size: usize,
    pub hidden: usize,
    /// Width of dense networks.
    pub inner: usize,
    pub layers: usize,
    pub positions: usize,
    /// Whether scalings of the rotation stretch the context beyond the stated positions.
    pub stretches: bool,
    /// Attention of a layer without a window.
    pub attention: Attention,
    pub activation: Activation,
    /// Whether dense networks have a gate.
    pub is_gated: bool,
    pub network_bias: bool,
    pub norms: NormPlaces,
    pub norm_epsilon: f32,
    /// Number to add to each element of the stored weights of norms.
    pub norm_offset: f32,
    pub ropes: Vec<Rope>,
    /// For each layer, the index of its rotation in `ropes`, or `None` if the layer does not rotate.
    pub rope_of: Vec<Option<usize>>,
    /// For each layer, how many positions a token sees, or `None` for all.
    pub windows: Vec<Option<usize>>,
    /// The mixture of experts, and for each layer whether it has this mixture in place of a dense network.
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
    /// Names the first key that is missing, makes no sense, or asks for a computation that Interbed lacks.
    pub fn read(keys: &Keys<'_>, habits: &Habits, style: RopeStyle) -> Result<Self, ConfigProblem> {
        refuse_uncomputed(keys, habits)?;
        let vocab_size = match keys.gguf() {
            Some(gguf) => gguf.within(VOCAB_SIZE.gguf, gguf.vocab_size()?, 1..=Blueprint::VOCAB_SIZE_MAX)?,
            None => keys.size(VOCAB_SIZE, habits.vocab_size, Blueprint::VOCAB_SIZE_MAX)?,
        };
        let hidden = keys.size(HIDDEN, habits.hidden, Blueprint::HIDDEN_SIZE_MAX)?;
        let inner = read_inner(keys, habits)?;
        let layers = read_layers(keys, habits)?;
        if let Some(fields) = keys.json() {
            // Families without windows check the list too, so that a senseless one is reported.
            windows::read_layer_types(fields, layers)?;
        }
        let heads = read_heads(keys, habits)?;
        let kv_heads = read_kv_heads(keys, heads, habits.kv_heads)?;
        let head_dim = read_head_dim(keys, habits, hidden, heads)?;
        let positions = keys.size(POSITIONS, habits.positions, Blueprint::POSITIONS_MAX)?;
        let epsilon = read_epsilon(keys, habits.epsilon)?;
        let rotated = rope::read_rotated(keys, &habits.rotated, head_dim)?;
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
                input_bias: read_bias(keys, &habits.input_bias, "self_attn.q_proj.bias")?,
                output_bias: read_bias(keys, &habits.output_bias, "self_attn.o_proj.bias")?,
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
            activation: read_activation(keys, &habits.activation)?,
            is_gated: true,
            network_bias: read_bias(keys, &habits.network_bias, "mlp.up_proj.bias")?,
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

    /// Gives the layers with a window a rotation of their own, whose base is `theta` unless the configuration states
    /// another; without a `theta`, the default is the base of the other layers. Windows must have been set before.
    pub fn rotate_windows(&mut self, keys: &Keys<'_>, theta: Option<f64>) -> Result<(), ConfigProblem> {
        if self.windows.iter().all(Option::is_none) {
            return Ok(());
        }
        let main = &self.ropes[0];
        let sizes = [self.positions, main.rotated];
        let (theta, scaling) = rope::read_of_windows(keys, sizes, theta.unwrap_or(main.theta))?;
        self.ropes.push(Rope { theta, scaling, factors: None, ..main.clone() });
        self.rope_of = self.windows.iter().map(|window| Some(usize::from(window.is_some()))).collect();
        Ok(())
    }

    /// Adds norms of queries and keys, with the epsilon and offset of the decoder's other norms.
    pub fn norm_heads(&mut self, over: HeadNorms) {
        let (epsilon, offset) = (self.norm_epsilon, self.norm_offset);
        self.attention.norms = Some(NormsOfHeads { over, epsilon, offset });
    }

    /// Makes the blueprint of this decoder.
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
        let stretched = match self.ropes[0].scaling {
            _ if !self.stretches => 0.0,
            RopeScaling::Linear { factor } => self.positions as f64 * factor,
            RopeScaling::Dynamic { factor, original_max } | RopeScaling::Yarn { factor, original_max, .. } => {
                original_max as f64 * factor
            }
            // With these scalings, the stated positions are stretched already.
            RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::LongRope { .. } => 0.0,
        };
        (stretched as usize).clamp(self.positions, Blueprint::POSITIONS_MAX)
    }

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
        let [of_attention, of_network] = self.norms.names();
        let branches = [(of_attention, Part::Attention(attention)), (of_network, network)];
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

/// Refuses models that Interbed would load without noticing that they need another computation.
fn refuse_uncomputed(keys: &Keys<'_>, habits: &Habits) -> Result<(), ConfigProblem> {
    match keys {
        Keys::Json(fields) => refuse_in_json(fields, habits.has_experts),
        Keys::Gguf(keys) => {
            let count = keys.of_experts("expert_count")?.filter(|&count| count > 0 && !habits.has_experts);
            if let Some(count) = count {
                let hint = "this architecture is known without experts only";
                return Err(keys.unsupported("expert_count", &Value::from(count), hint));
            }
            // A key of a known name and the wrong kind shows that the file is damaged.
            let of_shared = ["expert_shared_count", "expert_shared_feed_forward_length"];
            for key in of_shared.into_iter().filter(|_| habits.has_experts) {
                keys.of_experts(key)?;
            }
            let read = if habits.rope.grows { rope::TEMPERATURE.as_slice() } else { &[] };
            let of_mixtures = [("nextn_predict_layers", 0.0), ("leading_dense_block_count", 0.0)];
            let numbers = NEUTRAL_NUMBERS.into_iter().filter(|(key, _)| !read.contains(key));
            let flags = [("attention.causal", true), ("use_parallel_residual", false)];
            for (key, neutral) in flags {
                if let Some(flag) = keys.flag(key)?.filter(|&flag| flag != neutral) {
                    return Err(keys.unsupported(key, &Value::from(flag), UNCOMPUTED));
                }
            }
            for (key, neutral) in numbers.chain(of_mixtures.into_iter().filter(|_| !habits.has_experts)) {
                if let Some(number) = keys.number(key)?.filter(|&number| number != neutral) {
                    return Err(keys.unsupported(key, &Value::from(number), UNCOMPUTED));
                }
            }
            Ok(())
        }
    }
}

/// Advice of messages about a key that asks for a computation that Interbed lacks.
pub(in crate::families) const UNCOMPUTED: &str =
    "it changes what is computed, in a way that Interbed does not; use an engine that does";

/// Keys of GGUF files for computations that Interbed lacks, and the values that switch these off.
const NEUTRAL_NUMBERS: [(&str, f64); 7] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    (rope::TEMPERATURE[0], 0.0),
    (rope::TEMPERATURE[1], 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

fn refuse_in_json(fields: &Fields<'_>, has_experts: bool) -> Result<(), ConfigProblem> {
    for key in EXPERT_COUNTS {
        match fields.get(key).filter(|_| !has_experts) {
            None => {}
            Some(value) if value.as_f64() == Some(0.0) => {}
            Some(value) => {
                return Err(fields.unsupported(key, value, "this architecture is known without experts only"));
            }
        }
    }
    // These keys ask for computations that Interbed lacks, unless they have the neutral value.
    for (key, neutral) in [("clip_qkv", Value::Null), ("use_bias", Value::Bool(false))] {
        if let Some(value) = fields.get(key).filter(|value| has_experts && **value != neutral) {
            return Err(fields.unsupported(key, value, "it changes what is computed, in a way that Interbed does not"));
        }
    }
    Ok(())
}

/// Reads the width of dense networks. GGUF files of mixtures may give the width of an expert alone.
fn read_inner(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(INNER, habits.inner, Blueprint::INNER_SIZE_MAX) };
    let of_expert = "expert_feed_forward_length";
    let (inner, width) = (gguf.same_in_layers(INNER.gguf)?, gguf.of_experts(of_expert)?.filter(|_| habits.has_experts));
    let limits = 1..=Blueprint::INNER_SIZE_MAX;
    match (inner, width) {
        (None, None) => Err(gguf.missing(INNER.gguf, "it shapes the model")),
        (_, Some(width)) if habits.inner_is_of_experts && width > 0 => gguf.within(of_expert, width, limits),
        (Some(inner), _) => gguf.within(INNER.gguf, inner, limits),
        (None, Some(width)) => gguf.within(of_expert, width, limits),
    }
}

/// Reads the number of layers. GGUF files count layers that guess at further tokens as well, which are subtracted.
fn read_layers(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(LAYERS, habits.layers, Blueprint::LAYERS_MAX) };
    let guessing = gguf.count("nextn_predict_layers")?.unwrap_or(0);
    gguf.within(LAYERS.gguf, gguf.required(LAYERS.gguf)?.saturating_sub(guessing), 1..=Blueprint::LAYERS_MAX)
}

fn read_heads(keys: &Keys<'_>, habits: &Habits) -> Result<usize, ConfigProblem> {
    let Keys::Gguf(gguf) = keys else { return keys.size(HEADS, habits.heads, Blueprint::HEADS_MAX) };
    let heads = gguf.same_in_layers(HEADS.gguf)?;
    let heads = heads.ok_or_else(|| gguf.missing(HEADS.gguf, "it shapes the model"))?;
    gguf.within(HEADS.gguf, heads, 1..=Blueprint::HEADS_MAX)
}

fn read_kv_heads(keys: &Keys<'_>, heads: usize, default: Option<usize>) -> Result<usize, ConfigProblem> {
    let limits = 1..=Blueprint::HEADS_MAX;
    let kv_heads = match keys {
        Keys::Json(fields) => match fields.count(KV_HEADS.json, limits)? {
            Some(count) => count,
            None if fields.is_written(KV_HEADS.json) => heads,
            None => default.unwrap_or(heads),
        },
        Keys::Gguf(gguf) => match gguf.same_in_layers(KV_HEADS.gguf)? {
            Some(count) => gguf.within(KV_HEADS.gguf, count, limits)?,
            None => heads,
        },
    };
    if !heads.is_multiple_of(kv_heads) {
        let limit = format!("a divisor of {}, which is {heads}", HEADS.json);
        return Err(keys.out_of_range(KV_HEADS, kv_heads, limit));
    }
    Ok(kv_heads)
}

fn read_head_dim(keys: &Keys<'_>, habits: &Habits, hidden: usize, heads: usize) -> Result<usize, ConfigProblem> {
    let default = habits.head_dim.filter(|_| keys.gguf().is_none());
    let stated = keys.count(HEAD_DIM, 1..=Blueprint::HEAD_DIM_MAX)?;
    let head_dim = match stated.or(default) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let limit = match keys {
                Keys::Json(_) => format!("a multiple of {}, which is {heads} (there is no head_dim)", HEADS.json),
                Keys::Gguf(gguf) => format!("a multiple of {}, which is {heads}", gguf.name(HEADS.gguf)),
            };
            return Err(keys.out_of_range(HIDDEN, hidden, limit));
        }
    };
    if let Some(gguf) = keys.gguf()
        && let Some(other) = gguf.count("attention.value_length")?.filter(|&other| other != head_dim as u64)
    {
        let hint = "keys and values must be of one width";
        return Err(gguf.unsupported("attention.value_length", &Value::from(other), hint));
    }
    if !head_dim.is_multiple_of(2) || head_dim > Blueprint::HEAD_DIM_MAX {
        let limit = format!("an even number up to {}", Blueprint::HEAD_DIM_MAX);
        let key = match keys {
            Keys::Json(_) if stated.or(default).is_none() => "hidden_size / num_attention_heads".to_owned(),
            Keys::Json(_) => HEAD_DIM.json.to_owned(),
            Keys::Gguf(gguf) => gguf.name(HEAD_DIM.gguf),
        };
        return Err(ConfigProblem::OutOfRange { key, found: head_dim.to_string(), limit });
    }
    Ok(head_dim)
}

fn read_epsilon(keys: &Keys<'_>, default: f64) -> Result<f64, ConfigProblem> {
    let epsilon = keys.number(EPSILON, |eps| (0.0..1.0).contains(&eps), "a number from 0 to 1")?;
    match keys {
        Keys::Json(_) => Ok(epsilon.unwrap_or(default)),
        Keys::Gguf(gguf) => epsilon.ok_or_else(|| gguf.missing(EPSILON.gguf, "every norm needs it")),
    }
}

fn read_bias(keys: &Keys<'_>, bias: &Bias, tensor: &str) -> Result<bool, ConfigProblem> {
    match (keys, bias) {
        (Keys::Gguf(gguf), _) => Ok(gguf.has_in_first_layer(tensor)),
        (_, Bias::Never) => Ok(false),
        (_, Bias::Always) => Ok(true),
        (Keys::Json(fields), Bias::Stated(key, default)) => Ok(fields.flag(key)?.unwrap_or(*default)),
    }
}

fn read_activation(keys: &Keys<'_>, rule: &ActivationRule) -> Result<Activation, ConfigProblem> {
    let (fields, default) = match (keys, rule) {
        (Keys::Json(fields), ActivationRule::Named(default)) => (fields, *default),
        (_, ActivationRule::Fixed(activation) | ActivationRule::Named(activation)) => return Ok(*activation),
    };
    let key = if fields.get("hidden_act").is_none() { "hidden_activation" } else { "hidden_act" };
    match fields.text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu" | "gelu_python") => Ok(Activation::Gelu),
        Some("relu2") => Ok(Activation::SquaredRelu),
        // Four names of one formula.
        Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
        Some(other) => {
            let hint = "supported are silu, gelu, gelu_pytorch_tanh and relu2";
            Err(fields.unsupported(key, &Value::from(other), hint))
        }
    }
}
