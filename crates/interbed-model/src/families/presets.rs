//! Shapes of well-known models, for models of random weights (`interbed synth --like …`).

use serde_json::{Map, Value};

use super::FAMILIES;

/// A name, and how the configuration of that name is made.
pub(crate) type Preset = (&'static str, fn() -> Config);
/// A `config.json`.
pub(super) type Config = Map<String, Value>;

/// The `config.json` of a well-known model, as its Hugging Face directory carries it, or `None` if the name is unknown.
pub fn preset(name: &str) -> Option<String> {
    let (_, config) = presets().find(|(known, _)| *known == name)?;
    Some(format!("{:#}\n", Value::Object(config())))
}

/// The names that [`preset`] knows, in the order in which help should list them.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    presets().map(|(name, _)| *name)
}

fn presets() -> impl Iterator<Item = &'static Preset> {
    FAMILIES.iter().flat_map(|family| family.presets)
}

/// `base` with the keys of `more` added or replaced.
pub(super) fn with(base: Value, more: Value) -> Config {
    let mut config = Config::new();
    for part in [base, more] {
        if let Value::Object(part) = part {
            config.extend(part);
        }
    }
    config
}
