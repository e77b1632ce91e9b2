//! The options of one command line that are refused: all of them are told at once.

use crate::failure::Advised;

/// Refused options in the order of the command line, each with a hint. Unknown options have no hint.
#[derive(Default)]
pub struct Refusals(Vec<(String, Option<String>)>);

impl Refusals {
    /// Adds an option, with a hint at what to use instead.
    pub fn add(&mut self, shown: String, hint: &str) {
        self.0.push((shown, Some(hint.to_owned())));
    }

    /// Adds an option that is not an option of Interbed or any other known program.
    pub fn add_unknown(&mut self, shown: String) {
        self.0.push((shown, None));
    }

    /// Returns one error about all refused options of `command`. Returns `None` if no option has a hint, because the
    /// parser then reports the unknown options better.
    pub fn told(&self, command: &str) -> Option<anyhow::Error> {
        let hints = self.0.iter().filter_map(|(shown, hint)| Some((shown.as_str(), hint.as_deref()?)));
        let hints: Vec<(&str, &str)> = hints.collect();
        let shown: Vec<&str> = self.0.iter().map(|(shown, _)| shown.as_str()).collect();
        let hint = match hints.as_slice() {
            [] => return None,
            [(_, hint)] if shown.len() == 1 => (*hint).to_owned(),
            _ => hints.iter().map(|(shown, hint)| format!("{shown}: {hint}")).collect::<Vec<_>>().join("\nhint: "),
        };
        Some(Advised::input(format!("`{command}` has no {}", shown.join(", no ")), hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_that_is_refused_has_a_hint_of_its_own() {
        let mut refusals = Refusals::default();
        refusals.add_unknown("--such".into());
        assert!(refusals.told("interbed run").is_none(), "the parser tells it");
        refusals.add("-a 1".into(), "use -b");
        let text = crate::failure::message(&refusals.told("interbed run").expect("an error"));
        assert_eq!(text.as_deref(), Some("error: `interbed run` has no --such, no -a 1\nhint: -a 1: use -b"));
        let mut one = Refusals::default();
        one.add("-a 1".into(), "use -b");
        let text = crate::failure::message(&one.told("interbed run").expect("an error"));
        assert_eq!(text.as_deref(), Some("error: `interbed run` has no -a 1\nhint: use -b"));
    }
}
