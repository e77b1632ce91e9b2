//! Configurations of well-known models, from which models with random weights are made (`interbed synth --like …`).

use serde_json::{Map, Value};

use super::FAMILIES;

/// The name of a well-known model, and a function that makes its configuration.
pub(crate) type Preset = (&'static str, fn() -> Config);
/// The contents of a `config.json`.
pub(super) type Config = Map<String, Value>;

/// Returns the text of a `config.json` that describes the well-known model `name`, or `None` if there is no preset of
/// this name.
pub fn preset(name: &str) -> Option<String> {
    let (_, config) = presets().find(|(known, _)| *known == name)?;
    Some(format!("{:#}\n", Value::Object(config())))
}

/// Returns the names of all presets, in the order in which the command line's help lists them.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    presets().map(|(name, _)| *name)
}

fn presets() -> impl Iterator<Item = &'static Preset> {
    FAMILIES.iter().flat_map(|family| family.presets)
}

/// Returns the keys of `base`, with those of `more` added or replaced.
pub(super) fn with(base: Value, more: Value) -> Config {
    let mut config = Config::new();
    for part in [base, more] {
        if let Value::Object(part) = part {
            config.extend(part);
        }
    }
    config
}
