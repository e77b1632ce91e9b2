//! Finds out where a template accepts system messages: anywhere, only at the beginning, or nowhere. Each place is tried
//! on a short conversation.

use serde_json::{Value as Json, json};

/// Where in a conversation a template accepts system messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemPlaces {
    /// The template accepts a system message at the beginning and between other messages. This variant also stands for
    /// templates that could not be tested, because they do not even show a user's message.
    Anywhere,
    /// The template accepts a system message only as the first message. It refuses or omits later system messages.
    First,
    /// The template refuses or omits all system messages.
    Nowhere,
}

/// The text of the first system message that is tried, which no template writes by itself.
const FIRST: &str = "probe_first";
const LATER: &str = "probe_later";
/// The text of a user's message, which every template of conversations shows.
const USER: &str = "probe_user";

/// Finds out in which places `render` shows system messages.
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
