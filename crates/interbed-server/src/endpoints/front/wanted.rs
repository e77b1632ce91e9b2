//! The model that a request asks for, in each of the APIs.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::keep_alive::{KeepAlive, keep_alive};

/// The fields that name a model and say how long it stays. `keep_alive`, `prompt` and `messages` count at paths of
/// Ollama's API only.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    #[serde(borrow)]
    keep_alive: Option<&'b RawValue>,
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
    #[serde(borrow)]
    messages: Option<&'b RawValue>,
}

/// The model that a request is for, and the time for which the model should stay in memory.
pub(super) struct Wanted {
    pub(super) model: Option<String>,
    /// The time for which the model should stay in memory after the request, if the request sets it.
    pub(super) keep: Option<KeepAlive>,
    /// Whether the request only asks to unload the model.
    pub(super) dismisses: bool,
}

impl Wanted {
    /// Reads the fields of a body that came to `path`.
    ///
    /// # Errors
    /// Fails if the body is not a JSON object, or a field has a wrong type.
    pub(super) fn read(path: &str, body: &[u8]) -> Result<Self, ApiError> {
        let Fields { model, keep_alive: field, prompt, messages } = read(body)?;
        let model = sent(model);
        if !path.starts_with("/api/") {
            return Ok(Self { model, keep: None, dismisses: false });
        }
        let keep = keep_alive(field)?;
        let asks = match path {
            "/api/generate" => prompt,
            "/api/chat" => messages,
            _ => return Ok(Self { model, keep, dismisses: false }),
        };
        Ok(Self { model, keep, dismisses: keep == Some(KeepAlive::NONE) && asks.is_none_or(is_empty) })
    }
}

/// Returns whether a value is an empty string or an empty list.
fn is_empty(raw: &RawValue) -> bool {
    let inner = raw.get().strip_prefix(['"', '[']).and_then(|rest| rest.strip_suffix(['"', ']']));
    inner.is_some_and(|inner| inner.is_empty() || (raw.get().starts_with('[') && inner.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_request_for_nothing_with_no_time_dismisses() {
        for (path, body, dismisses) in [
            ("/api/generate", r#"{"model": "a", "keep_alive": 0}"#, true),
            ("/api/generate", r#"{"model": "a", "keep_alive": "0s", "prompt": ""}"#, true),
            ("/api/generate", r#"{"model": "a", "keep_alive": 0, "prompt": " "}"#, false),
            ("/api/generate", r#"{"model": "a", "keep_alive": 1}"#, false),
            ("/api/generate", r#"{"model": "a"}"#, false),
            ("/api/chat", r#"{"model": "a", "keep_alive": 0, "messages": [ ]}"#, true),
            ("/api/chat", r#"{"model": "a", "keep_alive": 0, "messages": null, "prompt": "x"}"#, true),
            ("/api/chat", r#"{"model": "a", "keep_alive": 0, "messages": [{}]}"#, false),
            ("/api/embed", r#"{"model": "a", "keep_alive": 0, "input": []}"#, false),
            ("/v1/completions", r#"{"model": "a", "keep_alive": 0}"#, false),
        ] {
            let wanted = Wanted::read(path, body.as_bytes()).expect(body);
            assert_eq!((wanted.dismisses, wanted.model.as_deref()), (dismisses, Some("a")), "{path} {body}");
        }
    }

    #[test]
    fn times_are_those_of_ollamas_paths() {
        let read = |path: &str, body: &str| Wanted::read(path, body.as_bytes());
        let keep = |path: &str| read(path, r#"{"keep_alive": "1s"}"#).expect("a duration").keep;
        assert_eq!(keep("/api/embed"), Some(KeepAlive::For(Duration::from_secs(1))));
        assert_eq!(keep("/v1/chat/completions"), None);
        for (path, body) in
            [("/api/chat", r#"{"keep_alive": "soon"}"#), ("/v1/messages", r#"{"model": 1}"#), ("/", "[]")]
        {
            assert_eq!(read(path, body).err().map(|error| error.status.as_u16()), Some(400), "{body}");
        }
    }
}
