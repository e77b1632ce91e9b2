//! Decides whether text on a terminal has colours.

/// Returns whether colours may be written to a stream: only to a terminal, and not if `NO_COLOR` is set or the terminal
/// has no colours.
pub fn are_wanted(is_terminal: bool) -> bool {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    is_terminal && !is_set("NO_COLOR") && !is_dumb
}
