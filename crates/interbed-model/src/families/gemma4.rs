//! Gemma 4: heads of two widths, values normed like keys, keys and values that later layers share, rows of a table for
//! each token and layer, and in one size a mixture beside the dense network. Of models that also see or hear, the
//! language model is read.

mod shape;
mod sizes;

use interbed_kernels::RopeStyle;

use super::shared::decoder::{Decoder, NormPlaces};
use super::shared::habits::{ActivationRule, Bias, Habits};
use super::shared::refusals::UNCOMPUTED;
use super::shared::rope::{self, FACTORS, Kinds, RopeRule, Rotated};
use super::{Family, GgufForm};
use crate::blueprint::{
    Activation, Attention, Blueprint, Branch, DecoderLayer, HeadNorms, InputTable, KvRows, Mixture, Norm, Part, Passage,
    RowProjection, TableLookup, ValueSource,
};
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;
use crate::keys::{Keys, key};
use shape::Shape;

/// The base of the rotation of layers with a window, unless the configuration says otherwise.
const THETA_OF_WINDOWS: f64 = 10_000.0;

pub(super) const HABITS: Habits = Habits {
    vocab_size: 262_144,
    hidden: 2304,
    inner: 9216,
    layers: 30,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    positions: 131_072,
    theta: 1_000_000.0,
    bos: Some(2),
    eos: Some(1),
    is_tied: true,
    input_bias: Bias::Stated("attention_bias", false),
    output_bias: Bias::Stated("attention_bias", false),
    rotated: Rotated::ByLayer,
    rope: RopeRule { by_window: true, kinds: Kinds::Proportional, ..RopeRule::USUAL },
    activation: ActivationRule::NamedBy("hidden_activation", Activation::GeluTanh),
    has_experts: true,
    caps_logits: true,
    layers_differ: true,
    slides_in_gguf: shape::slides,
    ..Habits::PLAIN
};

/// What absent keys of a `config.json` mean in a family.
pub(super) struct Absent {
    /// How many tokens a layer with a window sees.
    pub window: usize,
    /// The width of the rows of the table; `None` if there is no table.
    pub row_width: Option<usize>,
}

pub(super) static FAMILY: Family = Family {
    name: "Gemma4",
    model_types: &["gemma4_text"],
    within: &["gemma4"],
    gguf: Some(GgufForm::new(&["gemma4"], RopeStyle::Halves)),
    habits: HABITS,
    read: |keys, decoder| read(keys, decoder, &Absent { window: 512, row_width: Some(256) }),
    presets: sizes::PRESETS,
    ..Family::PLAIN
};

/// Makes the blueprint of a model from what `decoder` has read; `absent` says what absent keys mean.
pub(super) fn read(keys: &Keys<'_>, mut decoder: Decoder, absent: &Absent) -> Result<Blueprint, ConfigProblem> {
    if let Some(fields) = keys.json() {
        refuse_other(fields)?;
        decoder.windows = shape::windows_in_json(fields, decoder.layers, absent.window)?;
    }
    decoder.norms = NormPlaces::Both;
    decoder.norm_heads(HeadNorms::EachBefore);
    decoder.attention.norms_values = true;
    decoder.attention.scale = 1.0;
    decoder.embedding_factor = (decoder.hidden as f64).sqrt();
    let shape = Shape::read(keys, &decoder, absent)?;
    rotate(keys, &mut decoder, &shape)?;
    let cap = key("final_logit_softcapping", "final_logit_softcapping");
    let is_cap = |cap: f64| cap == 0.0 || (1e-6..=1e6).contains(&cap);
    let soft_cap = keys.number(cap, is_cap, "a number from 1e-6 to 1e6")?.filter(|&cap| cap > 0.0);
    let (epsilon, activation) = (decoder.norm_epsilon, decoder.activation);
    let mut blueprint = decoder.blueprint();
    blueprint.head.soft_cap = soft_cap.map(|cap| cap as f32);
    blueprint.tables = shape.row_width.map(|width| table(&blueprint, width, epsilon)).into_iter().collect();
    for (number, layer) in blueprint.layers.iter_mut().enumerate() {
        complete(layer, number, &shape, (epsilon, activation));
    }
    Ok(blueprint)
}

/// Refuses attention to later tokens.
fn refuse_other(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    let key = "use_bidirectional_attention";
    // Only tokens of images see later ones with this value.
    match fields.get(key).filter(|value| value.as_str() != Some("vision") && value.as_bool() != Some(false)) {
        Some(value) => Err(fields.unsupported(key, value, UNCOMPUTED)),
        None => Ok(()),
    }
}

/// Gives layers with a window and layers that see all rotations of their own. Layers that see all rotate only the first
/// pairs of a head; the others have a frequency of 0.
fn rotate(keys: &Keys<'_>, decoder: &mut Decoder, shape: &Shape) -> Result<(), ConfigProblem> {
    let pairs = shape.full.width / 2;
    decoder.rotate_windows(keys, key("", rope::THETA_OF_WINDOWS), Some(THETA_OF_WINDOWS))?;
    if let Some(of_windows) = decoder.ropes.get_mut(1) {
        of_windows.rotated = shape.sliding.width;
    }
    let full = &mut decoder.ropes[0];
    full.rotated = shape.full.width;
    if let Some(fields) = keys.json() {
        let rotated = (rope::read_proportion(fields, 0.25)? * shape.full.width as f64 / 2.0) as usize;
        full.factors = Some((0..pairs).map(|pair| if pair < rotated { 1.0 } else { f32::INFINITY }).collect());
    } else if full.factors.is_none() && decoder.windows.contains(&None) {
        let why = "layers that see all rotate only some pairs of a head, which it says";
        return Err(ConfigProblem::Missing { key: FACTORS.to_owned(), why });
    }
    Ok(())
}

/// The table that has a row of `width` elements for each token and layer.
fn table(blueprint: &Blueprint, width: usize, epsilon: f32) -> InputTable {
    let projection = RowProjection {
        factor: (blueprint.hidden_size as f64).powf(-0.5) as f32,
        norm: Norm { name: "per_layer_projection_norm", epsilon, offset: 0.0 },
        sum_factor: 0.5f64.sqrt() as f32,
    };
    let rows = blueprint.layers.len();
    InputTable { rows, width, factor: (width as f64).sqrt() as f32, ids: 1, projection: Some(projection) }
}

/// Gives a layer of a plain decoder what Gemma 4 has beyond it.
fn complete(layer: &mut DecoderLayer, number: usize, shape: &Shape, (epsilon, activation): (f32, Activation)) {
    let norm = |name: &'static str| Passage::Norm(Norm { name, epsilon, offset: 0.0 });
    let [first, second] = &mut layer.branches[..] else { unreachable!("attention, and a network") };
    if let Part::Attention(attention) = &mut first.part {
        set_heads(attention, number, shape);
    }
    if let Part::Dense(dense) = &mut second.part {
        dense.width = shape.inner[number];
    }
    if let Some(mixture) = &shape.mixture {
        *second = beside(second, mixture, norm);
    }
    if let Some(width) = shape.row_width {
        let lookup =
            TableLookup { table: 0, row: number, width, activation, convolution: None };
        let (part, leave) = (Part::Table(lookup), norm("post_per_layer_input_norm"));
        layer.branches.push(Branch { enter: Passage::Direct, part, leave, factor: 1.0 });
    }
    layer.has_factor = shape.has_factors;
}

fn set_heads(attention: &mut Attention, number: usize, shape: &Shape) {
    let is_full = attention.window.is_none();
    let heads = if is_full { shape.full } else { shape.sliding };
    (attention.key_width, attention.value_width, attention.kv_heads) = (heads.width, heads.width, heads.kv_heads);
    if is_full && shape.values_are_keys {
        attention.values = ValueSource::Keys;
    }
    if let Some(source) = shape.source_of(number) {
        attention.rows = KvRows::Of(source);
    }
}

/// Puts a mixture beside the dense network of `branch`: each has norms of its own, and their sum has those of the
/// branch.
fn beside(branch: &Branch, mixture: &Mixture, norm: impl Fn(&'static str) -> Passage) -> Branch {
    let term = |enter, part, leave| Branch { enter, part, leave, factor: 1.0 };
    let dense = term(branch.enter, branch.part.clone(), norm("post_feedforward_layernorm_1"));
    let [enter, leave] = ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"].map(norm);
    let mixture = term(enter, Part::Mixture(mixture.clone()), leave);
    Branch { enter: Passage::Direct, part: Part::Sum(vec![dense, mixture]), ..branch.clone() }
}
