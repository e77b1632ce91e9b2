//! OLMo 3: OLMo 2 with windows, whose layers rotate in a way of their own, without scaling unless it is stated.

use interbed_kernels::RopeStyle;

use super::olmo2;
use super::shared::habits::Habits;
use super::shared::rope::{RopeRule, THETA_OF_WINDOWS};
use super::shared::windows;
use super::{Family, GgufForm};
use crate::keys::key;

/// The base of all rotations, unless the configuration says otherwise.
const THETA: f64 = 500_000.0;

pub(super) static FAMILY: Family = Family {
    name: "Olmo3",
    model_types: &["olmo3"],
    gguf: Some(GgufForm {
        fits: |keys| Ok(keys.count("attention.sliding_window")?.is_some_and(|window| window > 0)),
        ..GgufForm::new(&["olmo2"], RopeStyle::Halves)
    }),
    habits: Habits {
        theta: THETA,
        rope: RopeRule { by_window: true, ..RopeRule::USUAL },
        slides_in_gguf: slides,
        ..olmo2::HABITS
    },
    read: |keys, mut decoder| {
        olmo2::place_norms(&mut decoder);
        if let Some(fields) = keys.json() {
            decoder.windows = windows::required(fields, decoder.layers, slides)?;
        }
        // In `transformers`, layers with a window do not take the base of the others, but this one.
        let theta = keys.json().map(|_| THETA);
        decoder.rotate_windows(keys, key("", THETA_OF_WINDOWS), theta)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// Every fourth layer sees all.
fn slides(layer: usize) -> bool {
    windows::slides_by(4, layer)
}
