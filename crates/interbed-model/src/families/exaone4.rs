//! EXAONE 4: norms of what branches give; where some layers have windows, the others do not rotate.

use interbed_kernels::RopeStyle;
use serde_json::Value;

use super::shared::decoder::NormPlaces;
use super::shared::habits::Habits;
use super::shared::windows::{self, Windows};
use super::{Family, GgufForm};
use crate::blueprint::HeadNorms;
use crate::config_error::ConfigProblem;
use crate::keys::json::Fields;

pub(super) static FAMILY: Family = Family {
    name: "Exaone4",
    model_types: &["exaone4"],
    gguf: Some(GgufForm::new(&["exaone4"], RopeStyle::Halves)),
    habits: Habits {
        vocab_size: 102_400,
        inner: 16_384,
        kv_heads: Some(32),
        epsilon: 1e-5,
        bos: Some(0),
        // Every fourth layer sees all.
        slides_in_gguf: |layer| windows::slides_by(4, layer),
        ..Habits::PLAIN
    },
    read: |keys, mut decoder| {
        decoder.norms = NormPlaces::After;
        decoder.norm_heads(HeadNorms::EachBefore);
        if let Some(fields) = keys.json() {
            decoder.windows = read_windows(fields, decoder.layers)?;
        }
        if decoder.windows.iter().any(Option::is_some) {
            decoder.rope_of = decoder.windows.iter().map(|window| window.map(|_| 0)).collect();
        }
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

fn read_windows(fields: &Fields<'_>, layers: usize) -> Result<Windows, ConfigProblem> {
    let layer_types = windows::read_layer_types(fields, layers)?;
    let Some(window) = windows::read_or_default(fields)? else { return Ok(vec![None; layers]) };
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
