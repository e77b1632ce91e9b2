//! Finds out how a template expects the results of calls: in messages of their own, or in the message with the calls.
//! Both are tried on a conversation with a call.

use serde_json::{Value as Json, json};

use super::arguments::{ArgumentsForm, conversation, probed, tool};
use super::contents::NoContent;

/// Where a template expects the results of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultsForm {
    /// Each result is a message with the role `tool`, as clients send it.
    Messages,
    /// The results are a list `tool_responses` in the message with the calls. Each has the `name` of the function and
    /// its `response`. A text of the model after the results is the content of the same message.
    WithCalls,
}

/// A result that no template writes by itself.
const RESULT: &str = "probe_result";

/// Finds out where `render` expects results. A template that shows results equally in both places expects messages.
pub(super) fn probe(
    arguments: ArgumentsForm,
    content: NoContent,
    render: impl Fn(&[Json], &[Json]) -> Option<String>,
) -> ResultsForm {
    let given = match arguments {
        ArgumentsForm::Object => probed(),
        ArgumentsForm::Text => Json::String(probed().to_string()),
    };
    let mut messages = conversation(&given, content.content(), 1);
    let mut with_calls = messages.clone();
    with_calls.truncate(2);
    if let [.., last] = messages.as_mut_slice() {
        last["content"] = RESULT.into();
    }
    if let [.., calling] = with_calls.as_mut_slice() {
        calling["tool_responses"] = json!([{"name": "f", "response": RESULT}]);
    }
    let shown = |messages: &[Json]| render(messages, &[tool()]).filter(|text| text.contains(RESULT));
    match (shown(&messages), shown(&with_calls)) {
        (one, Some(other)) if one.as_ref() != Some(&other) => ResultsForm::WithCalls,
        _ => ResultsForm::Messages,
    }
}
