//! Extracts the text from message contents that are lists of parts, for every API. A part is a text, or stands for a
//! text. Images, files and audio are not supported.
//!
//! Only this module refuses unsupported kinds of parts, and names the kind.

use serde_json::{Map, Value};

use crate::blocks::refuse;
use crate::error::ApiError;
use crate::fields::shown;

/// Says how to treat images, files and audio in a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// The media are in the newest user turn, so the request is refused.
    Refused,
    /// The media are in an earlier turn or come from a tool, so a text replaces them.
    LeftOut,
}

impl Media {
    /// Returns how to treat media in the user's newest turn, or in earlier turns.
    pub(crate) fn of(is_newest: bool) -> Self {
        if is_newest { Self::Refused } else { Self::LeftOut }
    }
}

/// The kinds of parts that are not text, with a name for messages.
const MEDIA: [(&str, &str); 12] = [
    ("audio", "sound"),
    ("container_upload", "file"),
    ("document", "file"),
    ("file", "file"),
    ("image", "picture"),
    ("image_url", "picture"),
    ("input_audio", "sound"),
    ("input_file", "file"),
    ("input_image", "picture"),
    ("input_video", "video"),
    ("video", "video"),
    ("video_url", "video"),
];

/// The kinds of parts whose text is in a field of the given name, or in `text`.
const TEXTS: [(&str, &str); 4] =
    [("input_text", "text"), ("output_text", "text"), ("refusal", "refusal"), ("text", "text")];

/// Returns the text of a content, which is a string, or a list of parts that are joined by line ends. The text is empty
/// for `null`. Errors name the content by its `path`.
///
/// # Errors
/// Fails if a part is invalid, or of an unsupported kind.
pub(crate) fn text_of(content: Value, path: &str, media: Media) -> Result<String, ApiError> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            return refuse(path, format!("must be a text or a list of parts, but is {}", shown(&other.to_string())));
        }
    };
    let part = |(index, part)| part_text(part, &format!("{path}[{index}]"), media);
    Ok(parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Returns the text of one part.
pub(crate) fn part_text(part: Value, path: &str, media: Media) -> Result<String, ApiError> {
    let mut part = match part {
        Value::Object(part) => part,
        Value::String(text) => return Ok(text),
        other => return refuse(path, format!("must be a part, an object, but is {}", shown(&other.to_string()))),
    };
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let kind = kind.as_str();
    if let Some((_, field)) = TEXTS.iter().find(|(known, _)| *known == kind) {
        return match part.get_mut(*field).map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            other => {
                let is = other.unwrap_or(Value::Null).to_string();
                refuse(&format!("{path}.{field}"), format!("must be a text, but is {}", shown(&is)))
            }
        };
    }
    if kind == "document"
        && let Some(text) = document_text(&mut part, path)?
    {
        return Ok(text);
    }
    if kind == "search_result" {
        let content = part.get_mut("content").map_or(Value::Null, Value::take);
        let found = text_of(content, &format!("{path}.content"), media)?;
        let head = ["title", "source"].iter().filter_map(|field| part.get(*field)?.as_str());
        return Ok(head.chain([found.as_str()]).collect::<Vec<_>>().join("\n"));
    }
    if kind == "tool_reference" {
        let name = part.get("tool_name").and_then(Value::as_str).unwrap_or_default();
        return Ok(format!("[The tool {name} was found.]"));
    }
    match MEDIA.iter().find(|(known, _)| *known == kind) {
        Some((_, noun)) if media == Media::LeftOut => {
            Ok(format!("[A {noun} was left out here, as this model reads text alone.]"))
        }
        Some((_, noun)) => refuse(
            &format!("{path}.type"),
            format!("is {}, a {noun}, but this model reads text alone; leave it out", shown(&quoted(kind))),
        ),
        None => {
            let is = part.get("type").unwrap_or(&Value::Null).to_string();
            refuse(&format!("{path}.type"), format!("is {}, which is not supported here; send \"text\"", shown(&is)))
        }
    }
}

/// Returns the text of a document part, or `None` if the document is not text.
fn document_text(part: &mut Map<String, Value>, path: &str) -> Result<Option<String>, ApiError> {
    let title = part.get("title").and_then(Value::as_str).map(str::to_owned);
    let Some(source) = part.get_mut("source") else { return Ok(None) };
    let text = match source.get("type").and_then(Value::as_str) {
        Some("text") => match source.get_mut("data").map(Value::take) {
            Some(Value::String(text)) => text,
            _ => return refuse(&format!("{path}.source.data"), "must be a text".into()),
        },
        Some("content") => {
            let content = source.get_mut("content").map_or(Value::Null, Value::take);
            text_of(content, &format!("{path}.source.content"), Media::LeftOut)?
        }
        _ => return Ok(None),
    };
    Ok(Some(title.into_iter().chain([text]).collect::<Vec<_>>().join("\n")))
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_read_in_all_their_kinds() {
        let text = |content| text_of(content, "c", Media::Refused);
        assert_eq!(text(json!("a")).expect("a text"), "a");
        assert_eq!(text(json!(null)).expect("nothing"), "");
        assert_eq!(text(json!([])).expect("nothing"), "");
        let parts = json!([
            {"type": "text", "text": "a", "cache_control": {}},
            {"type": "input_text", "text": "b"},
            {"type": "output_text", "text": "c", "annotations": []},
            {"type": "refusal", "refusal": "d"},
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "e"}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "f"}]}},
            {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "g"}]},
            {"type": "tool_reference", "tool_name": "h"},
        ]);
        let expected = "a\nb\nc\nd\nT\ne\nf\nT\nS\ng\n[The tool h was found.]";
        assert_eq!(text(parts).expect("texts"), expected);
    }

    #[test]
    fn media_are_refused_or_said_to_be_left_out() {
        for (part, noun) in [
            (json!({"type": "image", "source": {"type": "base64", "data": "aGk="}}), "picture"),
            (json!({"type": "image_url", "image_url": {"url": "x"}}), "picture"),
            (json!({"type": "input_audio", "input_audio": {}}), "sound"),
            (json!({"type": "document", "source": {"type": "base64", "data": "aGk="}}), "file"),
        ] {
            let content = json!([{"type": "text", "text": "a"}, part]);
            let text = text_of(content.clone(), "c", Media::LeftOut).expect("left out");
            assert!(text.starts_with(&format!("a\n[A {noun} was left out")), "{text}");
            let error = text_of(content, "c", Media::Refused).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some("c[1].type"));
            assert!(error.message.contains(noun), "{}", error.message);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (content, param) in [
            (json!(1), "c"),
            (json!([{"type": "hologram"}]), "c[0].type"),
            (json!([{"type": "text", "text": "a"}, {"text": "b"}]), "c[1].type"),
            (json!([{"type": "text"}]), "c[0].text"),
            (json!([3]), "c[0]"),
            (json!([{"type": "document", "source": {"type": "text"}}]), "c[0].source.data"),
        ] {
            let error = text_of(content, "c", Media::LeftOut).expect_err(param);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
            assert!(error.message.starts_with(&format!("{param} ")), "{}", error.message);
        }
    }
}
