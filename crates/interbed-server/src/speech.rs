//! The syntax in which a model writes thinking and tool calls.

use crate::harmony;
use crate::thinking::Tags;
use crate::tool_calls::{FAMILIES, Family};

/// Returns the names of the tool-call syntaxes that `--tool-parser` accepts.
pub fn tool_parsers() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).chain([harmony::NAME]).collect()
}

/// The family whose syntax describes tools to a model whose chat template has none.
const TOLD_AS: &str = "hermes";

/// The syntax in which a model writes thinking and tool calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Speech {
    /// Whether the model uses harmony, which defines both.
    pub(crate) harmony: bool,
    pub(crate) thinking: Option<Tags>,
    pub(crate) family: Option<&'static Family>,
}

impl Speech {
    /// Detects the syntax from the source of the chat template. If `parser` is given, it takes precedence. If the
    /// template does not show tools, the system message describes them in the syntax that most models know.
    pub(crate) fn of(template: &str, shows_tools: bool, parser: Option<&str>) -> Self {
        let harmony = parser.map_or_else(|| harmony::is_spoken(template), |name| name == harmony::NAME);
        if harmony {
            return Self { harmony, ..Self::default() };
        }
        let family = parser.and_then(Family::named).or_else(|| Family::of_template(template));
        let family = family.or_else(|| Family::named(TOLD_AS).filter(|_| !shows_tools));
        Self { harmony, thinking: Tags::of_template(template), family }
    }

    /// Returns whether the model can think before it answers.
    pub(crate) fn thinks(&self) -> bool {
        self.harmony || self.thinking.is_some()
    }

    /// Returns whether the model's syntax of tool calls is known.
    pub(crate) fn calls(&self) -> bool {
        self.harmony || self.family.is_some()
    }
}
