//! How a model writes thinking and calls.

use crate::harmony;
use crate::thinking::Tags;
use crate::tool_calls::{FAMILIES, Family};

/// The forms of calls, as `--tool-parser` knows them.
pub fn tool_parsers() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).chain([harmony::NAME]).collect()
}

/// The family in whose form tools are told to a model whose chat template shows none.
const TOLD_AS: &str = "hermes";

/// How a model writes thinking and calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Speech {
    /// In harmony, which is all there is to say.
    pub(crate) harmony: bool,
    pub(crate) thinking: Option<Tags>,
    pub(crate) family: Option<&'static Family>,
}

impl Speech {
    /// As the source of the chat template tells, and `parser`, which wins. Where the template does not show tools, the
    /// system's message tells of them, in the form that most models know.
    pub(crate) fn of(template: &str, shows_tools: bool, parser: Option<&str>) -> Self {
        let harmony = parser.map_or_else(|| harmony::is_spoken(template), |name| name == harmony::NAME);
        if harmony {
            return Self { harmony, ..Self::default() };
        }
        let family = parser.and_then(Family::named).or_else(|| Family::of_template(template));
        let family = family.or_else(|| Family::named(TOLD_AS).filter(|_| !shows_tools));
        Self { harmony, thinking: Tags::of_template(template), family }
    }

    /// Whether the model can think before it answers.
    pub(crate) fn thinks(&self) -> bool {
        self.harmony || self.thinking.is_some()
    }

    /// Whether it is known how the model calls tools.
    pub(crate) fn calls(&self) -> bool {
        self.harmony || self.family.is_some()
    }
}
