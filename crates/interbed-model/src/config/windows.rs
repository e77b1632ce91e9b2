//! Which layers see only a window of the context.

use serde_json::Value;

use super::Architecture;
use super::error::ConfigProblem;
use super::fields::Fields;

/// The window of Mistral and Qwen if `sliding_window` is absent.
const WINDOW_DEFAULT: usize = 4096;
/// The same of gpt-oss.
const GPT_OSS_WINDOW_DEFAULT: usize = 128;
/// The first Qwen layer with a window if `max_window_layers` is absent.
const MAX_WINDOW_LAYERS_DEFAULT: usize = 28;
/// No window is longer than a context can be.
const WINDOW_MAX: usize = 1 << 31;

/// The window of each layer, in tokens (a token sees itself and `window - 1` before it), or `None` for all.
pub(super) fn read_windows(
    fields: &Fields<'_>,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Vec<Option<usize>>, ConfigProblem> {
    let layer_types = read_layer_types(fields, num_layers)?;
    match architecture {
        // If Mistral has a window, it holds for every layer, whatever `layer_types` says.
        Architecture::Mistral => Ok(vec![read_window(fields)?; num_layers]),
        // A window that the context fits into is none.
        Architecture::Phi3 => {
            let context = fields.count("max_position_embeddings", 1..=WINDOW_MAX)?.unwrap_or(4096);
            let window = fields.count("sliding_window", 1..=WINDOW_MAX)?.filter(|&window| window < context);
            Ok(vec![window; num_layers])
        }
        Architecture::Ministral3 => Ok(vec![fields.count("sliding_window", 1..=WINDOW_MAX)?; num_layers]),
        // Mixtral has one only if a window is written.
        Architecture::Mixtral if fields.is_written("sliding_window") => Ok(vec![read_window(fields)?; num_layers]),
        Architecture::Qwen2 | Architecture::Qwen3 => read_qwen(fields, layer_types, num_layers),
        // These have rules of their own, which no published model uses.
        Architecture::Qwen2Moe | Architecture::Qwen3Moe | Architecture::SmolLm3 => {
            match fields.get("use_sliding_window") {
                Some(value) if *value != Value::Bool(false) => {
                    let hint = "this architecture is known without windows only";
                    Err(fields.unsupported("use_sliding_window", value, hint))
                }
                _ => Ok(vec![None; num_layers]),
            }
        }
        Architecture::GptOss => {
            let slides = layer_types.unwrap_or_else(|| (0..num_layers).map(|layer| layer % 2 == 0).collect());
            let window = match read_window(fields)? {
                Some(_) if !fields.is_written("sliding_window") => Some(GPT_OSS_WINDOW_DEFAULT),
                window => window,
            };
            Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
        }
        Architecture::Olmo3 => {
            let slides = layer_types.unwrap_or_else(|| (1..=num_layers).map(|layer| layer % 4 != 0).collect());
            let window = read_window(fields)?;
            Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
        }
        Architecture::Exaone4 => {
            let Some(window) = read_window(fields)? else { return Ok(vec![None; num_layers]) };
            let Some(slides) = layer_types else {
                let why = "there is a sliding_window, and this says which layers have it";
                return Err(ConfigProblem::Missing { key: fields.name("layer_types"), why });
            };
            if !slides.contains(&true) {
                let (key, value) = ("layer_types", Value::from("without sliding_attention"));
                let hint = "beside a sliding_window it means that no layer rotates, which no published model has";
                return Err(fields.unsupported(key, &value, hint));
            }
            Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect())
        }
        _ => Ok(vec![None; num_layers]),
    }
}

/// Qwen slides only if `use_sliding_window` is set: in the layers that `layer_types` names, or else from
/// `max_window_layers` on.
fn read_qwen(
    fields: &Fields<'_>,
    layer_types: Option<Vec<bool>>,
    num_layers: usize,
) -> Result<Vec<Option<usize>>, ConfigProblem> {
    let enabled = fields.flag("use_sliding_window")?.unwrap_or(false);
    // An unused window may have any value, so it is read only if it is used.
    let window = if enabled { read_window(fields)? } else { None };
    if let Some(slides) = layer_types {
        if window.is_none() && slides.contains(&true) {
            let why = "layer_types names sliding layers, which also need use_sliding_window and a sliding_window";
            return Err(ConfigProblem::Missing { key: fields.name("sliding_window"), why });
        }
        return Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect());
    }
    let first = fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(MAX_WINDOW_LAYERS_DEFAULT);
    Ok((0..num_layers).map(|layer| window.filter(|_| layer >= first)).collect())
}

/// Reads `sliding_window`: null turns it off, absence means the default.
fn read_window(fields: &Fields<'_>) -> Result<Option<usize>, ConfigProblem> {
    match fields.count("sliding_window", 1..=WINDOW_MAX)? {
        None if !fields.is_written("sliding_window") => Ok(Some(WINDOW_DEFAULT)),
        window => Ok(window),
    }
}

/// For each layer, whether `layer_types` gives it a sliding window.
fn read_layer_types(fields: &Fields<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, ConfigProblem> {
    let Some(value) = fields.get("layer_types") else { return Ok(None) };
    let Value::Array(types) = value else { return Err(fields.wrong_type("layer_types", "a list of strings", value)) };
    if types.len() != num_layers {
        return Err(ConfigProblem::OutOfRange {
            key: fields.name("layer_types"),
            found: format!("a list of {}", types.len()),
            limit: format!("one entry for each of num_hidden_layers = {num_layers}"),
        });
    }
    let slides = types.iter().map(|kind| match kind.as_str() {
        Some("full_attention" | "attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(fields.unsupported("layer_types", kind, "supported are full_attention and sliding_attention")),
    });
    slides.collect::<Result<_, _>>().map(Some)
}
