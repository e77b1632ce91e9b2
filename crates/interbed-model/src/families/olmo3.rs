//! OLMo 3: OLMo 2 with windows, whose layers rotate in a way of their own, without scaling unless it is stated.

use interbed_kernels::RopeStyle;

use super::olmo2;
use super::shared::habits::Habits;
use super::shared::rope::RopeRule;
use super::shared::windows;
use super::{Family, GgufForm};

pub(super) static FAMILY: Family = Family {
    name: "Olmo3",
    model_types: &["olmo3"],
    gguf: Some(GgufForm {
        fits: |keys| Ok(keys.count("attention.sliding_window")?.is_some_and(|window| window > 0)),
        ..GgufForm::new(&["olmo2"], RopeStyle::Halves)
    }),
    habits: Habits {
        theta: 500_000.0,
        rope: RopeRule { by_window: true, ..RopeRule::USUAL },
        slides_in_gguf: slides,
        ..olmo2::HABITS
    },
    read: |keys, mut decoder| {
        olmo2::place_norms(&mut decoder);
        if let Some(fields) = keys.json() {
            decoder.windows = windows::in_layers(fields, windows::read_or_default(fields)?, decoder.layers, slides)?;
        }
        decoder.rotate_windows(keys, None)?;
        Ok(decoder.blueprint())
    },
    ..Family::PLAIN
};

/// Every fourth layer sees all.
fn slides(layer: usize) -> bool {
    !(layer + 1).is_multiple_of(4)
}
