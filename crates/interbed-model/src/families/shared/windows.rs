//! Functions that read which layers see only a window of the context.

use serde_json::Value;

use crate::blueprint::Blueprint;
use crate::config_error::ConfigProblem;
use crate::keys::gguf::{GgufKeys, Pattern};
use crate::keys::json::Fields;

/// The window if `sliding_window` is absent from a configuration whose family has windows.
const WINDOW_DEFAULT: usize = 4096;
/// The first layer with a window if `max_window_layers` is absent.
const MAX_WINDOW_LAYERS_DEFAULT: usize = 28;

/// For each layer, its window in tokens (a token sees itself and `window - 1` before it), or `None` if it sees all.
pub(in crate::families) type Windows = Vec<Option<usize>>;

/// Reads the windows of a GGUF file. If the file does not say which layers have one, `slides` decides by the layer's
/// number.
pub(super) fn read_gguf(
    keys: &GgufKeys<'_>,
    layers: usize,
    slides: fn(usize) -> bool,
) -> Result<Windows, ConfigProblem> {
    let key = "attention.sliding_window";
    let Some(window) = keys.count(key)?.filter(|&window| window > 0) else { return Ok(vec![None; layers]) };
    let Some(window) = usize::try_from(window).ok().filter(|&window| window <= Blueprint::POSITIONS_MAX) else {
        let (found, limit) = (window.to_string(), format!("at most {}", Blueprint::POSITIONS_MAX));
        return Err(ConfigProblem::OutOfRange { key: keys.name(key), found, limit });
    };
    let slides = match keys.pattern_of_layers("attention.sliding_window_pattern", layers)? {
        None => (0..layers).map(slides).collect(),
        Some(Pattern::Flags(slides)) => slides,
        Some(Pattern::Every(period)) => (0..layers).map(|layer| slides_by(period, layer)).collect(),
    };
    Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect())
}

/// Reads `sliding_window`; null or absence means that there is no window.
pub(in crate::families) fn read(fields: &Fields<'_>) -> Result<Option<usize>, ConfigProblem> {
    fields.count("sliding_window", 1..=Blueprint::POSITIONS_MAX)
}

/// Reads `sliding_window`; null means that there is no window, and absence means the default.
pub(in crate::families) fn read_or_default(fields: &Fields<'_>) -> Result<Option<usize>, ConfigProblem> {
    match read(fields)? {
        None if !fields.is_written("sliding_window") => Ok(Some(WINDOW_DEFAULT)),
        window => Ok(window),
    }
}

/// Gives `window` to the layers that `layer_types` names or, without that key, to those for which `slides` holds.
pub(in crate::families) fn in_layers(
    fields: &Fields<'_>,
    window: Option<usize>,
    layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Windows, ConfigProblem> {
    let slides = which_slide(fields, layers, slides)?;
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// Returns for each layer whether `layer_types` names it or, without that key, whether `slides` holds.
fn which_slide(fields: &Fields<'_>, layers: usize, slides: impl Fn(usize) -> bool) -> Result<Vec<bool>, ConfigProblem> {
    Ok(read_layer_types(fields, layers)?.unwrap_or_else(|| (0..layers).map(slides).collect()))
}

/// Reads windows that hold only if `use_sliding_window` is set: for the layers that `layer_types` names or, without
/// that key, for layers from `max_window_layers` on.
pub(in crate::families) fn if_used(fields: &Fields<'_>, layers: usize) -> Result<Windows, ConfigProblem> {
    let layer_types = read_layer_types(fields, layers)?;
    let enabled = fields.flag("use_sliding_window")?.unwrap_or(false);
    // An unused window may have any value, so it is read only if it is used.
    let window = if enabled { read_or_default(fields)? } else { None };
    if let Some(slides) = layer_types {
        if window.is_none() && slides.contains(&true) {
            let why = "layer_types names sliding layers, which also need use_sliding_window and a sliding_window";
            return Err(ConfigProblem::Missing { key: fields.name("sliding_window"), why });
        }
        return Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect());
    }
    let first = fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(MAX_WINDOW_LAYERS_DEFAULT);
    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
}

/// Reads windows of layers that `layer_types` names or, without that key, of those for which `slides` holds; these
/// layers must have one.
pub(in crate::families) fn required(
    fields: &Fields<'_>,
    layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Windows, ConfigProblem> {
    let window = read_or_default(fields)?;
    let slides = which_slide(fields, layers, slides)?;
    if window.is_none() && slides.contains(&true) {
        let why = "it is null, but some layers have a window, as layer_types says or as this architecture is known";
        return Err(ConfigProblem::Missing { key: fields.name("sliding_window"), why });
    }
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// Reads `n` of "all layers but every `n`-th have a window" from `sliding_window_pattern`; its default is `period`.
pub(in crate::families) fn read_period(fields: &Fields<'_>, period: u64) -> Result<u64, ConfigProblem> {
    let stated = fields.count("sliding_window_pattern", 1..=Blueprint::LAYERS_MAX)?;
    Ok(stated.map_or(period, |stated| stated as u64))
}

/// Returns whether layer `layer` has a window if all layers but every `period`-th have one; a period of 0 means all.
pub(in crate::families) fn slides_by(period: u64, layer: usize) -> bool {
    period == 0 || !(layer as u64 + 1).is_multiple_of(period)
}

/// Refuses `use_sliding_window` in families that are known without windows only.
pub(in crate::families) fn refuse(fields: &Fields<'_>) -> Result<(), ConfigProblem> {
    match fields.get("use_sliding_window") {
        Some(value) if *value != Value::Bool(false) => {
            let hint = "this architecture is known without windows only";
            Err(fields.unsupported("use_sliding_window", value, hint))
        }
        _ => Ok(()),
    }
}

/// Reads for each layer whether `layer_types` gives it a sliding window; returns `None` without that key.
pub(in crate::families) fn read_layer_types(
    fields: &Fields<'_>,
    layers: usize,
) -> Result<Option<Vec<bool>>, ConfigProblem> {
    let types = [("full_attention", false), ("attention", false), ("sliding_attention", true)];
    read_types(fields, layers, &types, "supported are full_attention and sliding_attention")
}

/// Reads what each layer is from `layer_types`, of which `types` has every known entry and what it means. Returns
/// `None` without that key.
pub(in crate::families) fn read_types(
    fields: &Fields<'_>,
    layers: usize,
    types: &[(&str, bool)],
    hint: &'static str,
) -> Result<Option<Vec<bool>>, ConfigProblem> {
    let Some(value) = fields.get("layer_types") else { return Ok(None) };
    let Value::Array(written) = value else { return Err(fields.wrong_type("layer_types", "a list of strings", value)) };
    if written.len() != layers {
        return Err(ConfigProblem::OutOfRange {
            key: fields.name("layer_types"),
            found: format!("a list of {}", written.len()),
            limit: format!("one entry for each of num_hidden_layers = {layers}"),
        });
    }
    let meant = written.iter().map(|kind| {
        let known = types.iter().find(|(known, _)| kind.as_str() == Some(known));
        known.map(|&(_, meant)| meant).ok_or_else(|| fields.unsupported("layer_types", kind, hint))
    });
    meant.collect::<Result<_, _>>().map(Some)
}
