//! Gemma 4 in the size that sees and hears without encoders (12B): as its sisters, without the table and the mixture.

use super::gemma4::{self, Absent};
use super::shared::habits::Habits;
use super::Family;

pub(super) static FAMILY: Family = Family {
    name: "Gemma4-Unified",
    model_types: &["gemma4_unified_text"],
    within: &["gemma4_unified"],
    habits: Habits { positions: 262_144, ..gemma4::HABITS },
    read: |keys, decoder| gemma4::read(keys, decoder, &Absent { window: 1024, row_width: None }),
    ..Family::PLAIN
};
