//! What a Gemma 4 configuration says of single layers: widths of heads, which layers share keys and values, widths of
//! networks, the mixture, and the rows of the table.

use serde_json::Value;

use super::{Absent, Decoder};
use crate::blueprint::{Blueprint, Mixture, RouterNorm};
use crate::config_error::ConfigProblem;
use crate::families::shared::windows::{self, Windows};
use crate::families::shared::{experts, sizes};
use crate::keys::gguf::GgufKeys;
use crate::keys::json::Fields;
use crate::keys::{Keys, key};

/// All layers but every sixth have a window, unless the configuration says otherwise.
const PERIOD: u64 = 6;
/// The width of heads in layers that see all, unless the configuration says otherwise.
const FULL_WIDTH: usize = 512;
/// The configuration's key for exceptions of single layers.
const PER_LAYER: &str = "per_layer_config";

/// What a configuration says of single layers.
pub(super) struct Shape {
    /// Heads in layers with a window.
    pub sliding: Heads,
    /// Heads in layers that see all.
    pub full: Heads,
    /// Whether the values of layers that see all are made by the projection of keys.
    pub values_are_keys: bool,
    /// For each layer, the inner width of its dense network.
    pub inner: Vec<usize>,
    /// The mixture beside the dense network of each layer, if there is one.
    pub mixture: Option<Mixture>,
    /// The width of the rows that a table has for each token and layer; `None` if there is no such table.
    pub row_width: Option<usize>,
    /// Whether layers multiply the hidden state by a learned factor.
    pub has_factors: bool,
    /// The layer whose keys and values each layer reads, if it has none of its own.
    sources: Vec<Option<usize>>,
}

/// The heads of a kind of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    /// Number of elements of a head.
    pub width: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
}

impl Shape {
    /// Reads what the configuration says of the layers of `decoder`, whose windows have been read.
    pub(super) fn read(keys: &Keys<'_>, decoder: &Decoder, absent: &Absent) -> Result<Self, ConfigProblem> {
        let layers = decoder.layers;
        let limits = 0..=layers - 1;
        let shared = key("num_kv_shared_layers", "attention.shared_kv_layers");
        let first_shared = layers - keys.count(shared, limits)?.unwrap_or(0);
        let [sliding, full] = match keys {
            Keys::Json(fields) => heads_in_json(fields, decoder)?,
            Keys::Gguf(gguf) => heads_in_gguf(gguf, decoder)?,
        };
        for kv_heads in [sliding.kv_heads, full.kv_heads] {
            if !decoder.attention.heads.is_multiple_of(kv_heads) {
                let limit = format!("a divisor of the number of heads, which is {}", decoder.attention.heads);
                return Err(keys.out_of_range(sizes::KV_HEADS, kv_heads, limit));
            }
        }
        let first_full = decoder.windows.iter().position(Option::is_none);
        let values_are_keys = match keys {
            Keys::Json(fields) => fields.flag("attention_k_eq_v")?.unwrap_or(false),
            Keys::Gguf(gguf) => first_full.is_some_and(|full| !gguf.has_in_layer(full, "self_attn.v_proj.weight")),
        };
        let row_width = key("hidden_size_per_layer_input", "embedding_length_per_layer_input");
        let row_width = match keys.count(row_width, 0..=Blueprint::HIDDEN_SIZE_MAX)? {
            None if keys.json().is_some_and(|fields| !fields.is_written(row_width.json)) => absent.row_width,
            width => width.filter(|&width| width > 0),
        };
        if let (Some(_), Some(fields)) = (row_width, keys.json()) {
            refuse_fewer_rows(fields, decoder.vocab_size)?;
        }
        Ok(Self {
            sliding,
            full,
            values_are_keys,
            inner: read_inner(keys, decoder, first_shared)?,
            mixture: read_mixture(keys, decoder)?,
            row_width,
            has_factors: keys.gguf().is_none_or(|gguf| gguf.has_in_first_layer("layer_scalar")),
            sources: sources(keys, decoder, first_shared)?,
        })
    }

    /// Returns the layer whose keys and values layer `number` reads, if it has none of its own.
    pub(super) fn source_of(&self, number: usize) -> Option<usize> {
        self.sources[number]
    }
}

/// Returns whether the layer with this index has a window, if the file gives none a flag.
pub(super) fn slides(layer: usize) -> bool {
    windows::slides_by(PERIOD, layer)
}

/// Reads the windows of a `config.json`, which are `window` tokens long if it does not say. The last layer sees all,
/// whatever the configuration says.
pub(super) fn windows_in_json(
    fields: &Fields<'_>,
    layers: usize,
    window: usize,
) -> Result<Windows, ConfigProblem> {
    let window = windows::read(fields)?.unwrap_or(window);
    let mut windows = windows::in_layers(fields, Some(window), layers, slides)?;
    windows.last_mut().into_iter().for_each(|last| *last = None);
    Ok(windows)
}

/// Reads the heads of layers with a window and of layers that see all. Exceptions for single layers win over keys for
/// all layers that see all.
fn heads_in_json(fields: &Fields<'_>, decoder: &Decoder) -> Result<[Heads; 2], ConfigProblem> {
    let attention = &decoder.attention;
    let sliding = Heads { width: attention.key_width, kv_heads: attention.kv_heads };
    let of_full = |fields: &Fields<'_>, [width_key, kv_heads_key]: [&str; 2], default: Heads| {
        let width = fields.count(width_key, 2..=Blueprint::HEAD_DIM_MAX)?.unwrap_or(default.width);
        if !width.is_multiple_of(2) {
            let (key, limit) = (fields.name(width_key), "an even number".to_owned());
            return Err(ConfigProblem::OutOfRange { key, found: width.to_string(), limit });
        }
        let kv_heads = fields.count(kv_heads_key, 1..=Blueprint::HEADS_MAX)?.unwrap_or(default.kv_heads);
        Ok(Heads { width, kv_heads })
    };
    let Some(exceptions) = fields.object(PER_LAYER, "per_layer_config.")? else {
        let default = Heads { width: FULL_WIDTH, ..sliding };
        let shares = fields.flag("attention_k_eq_v")?.unwrap_or(false);
        let kv_heads = if shares { "num_global_key_value_heads" } else { "" };
        return Ok([sliding, of_full(fields, ["global_head_dim", kv_heads], default)?]);
    };
    let mut full = None;
    for (layer, window) in decoder.windows.iter().enumerate() {
        let name = layer.to_string();
        let heads = match exceptions.object(&name, "per_layer_config.")? {
            Some(exception) => of_full(&exception, ["head_dim", "num_key_value_heads"], sliding)?,
            None => sliding,
        };
        let expected = if window.is_some() { sliding } else { *full.get_or_insert(heads) };
        if heads != expected {
            let value = exceptions.get(&name).unwrap_or(&Value::Null);
            let hint = "layers that see all are alike, and layers with a window are as the keys for all layers say";
            return Err(exceptions.unsupported(&name, value, hint));
        }
    }
    Ok([sliding, full.unwrap_or(sliding)])
}

/// Reads the heads of layers with a window and of layers that see all.
fn heads_in_gguf(gguf: &GgufKeys<'_>, decoder: &Decoder) -> Result<[Heads; 2], ConfigProblem> {
    let key = "attention.key_length_swa";
    let width = gguf.count_within(key, 2..=Blueprint::HEAD_DIM_MAX)?;
    let width = width.ok_or_else(|| gguf.missing(key, "it shapes the model"))?;
    if !width.is_multiple_of(2) {
        let (key, limit) = (gguf.name(key), "an even number".to_owned());
        return Err(ConfigProblem::OutOfRange { key, found: width.to_string(), limit });
    }
    let of_values = "attention.value_length_swa";
    if let Some(other) = gguf.count(of_values)?.filter(|&other| other != width as u64) {
        return Err(gguf.unsupported(of_values, &Value::from(other), "keys and values must be of one width"));
    }
    let kv_heads_key = sizes::KV_HEADS.gguf;
    let kv_heads = gguf.in_layers(kv_heads_key, decoder.layers)?;
    let of_kind = |is_full: bool, width: usize| {
        let mut of_layers = decoder.windows.iter().zip(&kv_heads).filter(|(window, _)| window.is_none() == is_full);
        let first = of_layers.next().map_or(1, |(_, &kv_heads)| kv_heads);
        if of_layers.any(|(_, &kv_heads)| kv_heads != first) {
            let hint = "layers with a window are alike, and so are layers that see all";
            return Err(gguf.unsupported(kv_heads_key, &Value::from(kv_heads.clone()), hint));
        }
        Ok(Heads { width, kv_heads: gguf.within(kv_heads_key, first, 1..=Blueprint::HEADS_MAX)? })
    };
    Ok([of_kind(false, width)?, of_kind(true, decoder.attention.key_width)?])
}

/// Reads the inner width of each layer's dense network. Networks of layers that share keys and values may be double.
fn read_inner(keys: &Keys<'_>, decoder: &Decoder, first_shared: usize) -> Result<Vec<usize>, ConfigProblem> {
    match keys {
        Keys::Json(fields) => {
            let is_double = fields.flag("use_double_wide_mlp")?.unwrap_or(false);
            let width = |layer| if is_double && layer >= first_shared { 2 * decoder.inner } else { decoder.inner };
            Ok((0..decoder.layers).map(width).collect())
        }
        Keys::Gguf(gguf) => {
            let key = sizes::INNER.gguf;
            let widths = gguf.in_layers(key, decoder.layers)?;
            widths.into_iter().map(|width| gguf.within(key, width, 1..=Blueprint::INNER_SIZE_MAX)).collect()
        }
    }
}

/// Reads the mixture that each layer has beside its dense network.
fn read_mixture(keys: &Keys<'_>, decoder: &Decoder) -> Result<Option<Mixture>, ConfigProblem> {
    let has_mixture = match keys {
        Keys::Json(fields) => fields.flag("enable_moe_block")?.unwrap_or(false),
        Keys::Gguf(gguf) => gguf.of_experts("expert_count")?.is_some_and(|count| count > 0),
    };
    if !has_mixture {
        return Ok(None);
    }
    let width = experts::width(keys, "moe_intermediate_size", 0, 0)?;
    let count = experts::count(keys, "num_experts", 0)?;
    let chosen = experts::chosen(keys, "top_k_experts", 0)?;
    for (name, number) in [("moe_intermediate_size", width), ("num_experts", count), ("top_k_experts", chosen)] {
        if let (0, Some(fields)) = (number, keys.json()) {
            let why = "enable_moe_block says that there are experts";
            return Err(ConfigProblem::Missing { key: fields.name(name), why });
        }
    }
    let mut router = experts::softmax(Some(experts::EXACT));
    let factor = (decoder.hidden as f64).powf(-0.5) as f32;
    router.own_norm = Some(RouterNorm { epsilon: decoder.norm_epsilon, factor });
    router.expert_factors = true;
    experts::refuse_other_routers(keys, &router)?;
    experts::refuse_shared(keys)?;
    let mixture = Mixture {
        experts: count,
        chosen,
        expert_width: width,
        activation: decoder.activation,
        router,
        gated: true,
        biases: false,
        shared: None,
    };
    experts::check(keys, &mixture, decoder.layers)?;
    Ok(Some(mixture))
}

/// Returns the layer whose keys and values each layer reads: the last of its kind before the first that shares.
fn sources(keys: &Keys<'_>, decoder: &Decoder, first_shared: usize) -> Result<Vec<Option<usize>>, ConfigProblem> {
    let source = |layer: usize| {
        if layer < first_shared {
            return Ok(None);
        }
        let is_alike = |&other: &usize| decoder.windows[other] == decoder.windows[layer];
        match (0..first_shared).rev().find(is_alike) {
            Some(source) => Ok(Some(source)),
            None => {
                let key = key("num_kv_shared_layers", "attention.shared_kv_layers");
                let limit = format!("so few that a layer of the kind of layer {layer} keeps keys and values");
                Err(keys.out_of_range(key, decoder.layers - first_shared, limit))
            }
        }
    };
    (0..decoder.layers).map(source).collect()
}

/// Refuses a table that has fewer rows than there are tokens.
fn refuse_fewer_rows(fields: &Fields<'_>, vocab_size: usize) -> Result<(), ConfigProblem> {
    let key = "vocab_size_per_layer_input";
    match fields.count(key, 1..=Blueprint::VOCAB_SIZE_MAX)? {
        Some(rows) if rows != vocab_size => {
            let hint = "the table is known with as many rows as there are tokens";
            Err(fields.unsupported(key, &Value::from(rows), hint))
        }
        _ => Ok(()),
    }
}
