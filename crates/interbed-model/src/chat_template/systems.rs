//! Where a template takes messages of the system: anywhere, at the beginning alone, or nowhere. What a template does
//! with them is tried on short conversations.

use serde_json::{Value as Json, json};

/// Where a template takes messages of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemPlaces {
    /// Between other messages too.
    Anywhere,
    /// As the first message alone: it refuses later ones, or leaves them out.
    First,
    /// It refuses all, or leaves them out.
    Nowhere,
}

/// What tells the messages of the system from all else that a template writes.
const FIRST: &str = "probe_first";
const LATER: &str = "probe_later";
/// The text of a user, which every template of conversations shows.
const USER: &str = "probe_user";

/// Where `render` shows messages of the system.
pub(super) fn probe(render: impl Fn(&[Json]) -> Option<String>) -> SystemPlaces {
    let says = |role: &str, text: &str| json!({"role": role, "content": text});
    let shows = |messages: &[Json], texts: &[&str]| {
        render(messages).is_some_and(|prompt| texts.iter().all(|text| prompt.contains(text)))
    };
    let (first, user) = (says("system", FIRST), says("user", USER));
    let between = [first.clone(), user.clone(), says("assistant", "a"), says("system", LATER), user.clone()];
    if shows(&between, &[FIRST, LATER]) {
        SystemPlaces::Anywhere
    } else if shows(&[first, user.clone()], &[FIRST]) {
        SystemPlaces::First
    } else if shows(&[user], &[USER]) {
        SystemPlaces::Nowhere
    } else {
        // A template that does not show the user's text either is given the messages as they are.
        SystemPlaces::Anywhere
    }
}
