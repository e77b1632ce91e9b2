//! Generates `/openapi.json` from the code that parses requests. The names of fields come from the structs, and the
//! types of fields are found by probing the parsers with values. So the document cannot differ from what the server
//! does.
//!
//! Only the descriptions in [`descriptions`] are written by hand, and tests compare them with the fields.

mod descriptions;

use std::fmt;

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

pub(crate) use descriptions::described;
#[cfg(test)]
pub(crate) use descriptions::names;

/// A struct of fields that an endpoint parses from bodies.
pub(crate) struct Part {
    pub(crate) fields: &'static [&'static str],
    /// Parses the struct from a body.
    pub(crate) read: fn(&[u8]) -> Result<(), ApiError>,
}

/// Makes the [`Part`] of a type.
macro_rules! part {
    ($type:ty) => {
        $crate::openapi::Part {
            fields: $crate::openapi::fields_of::<$type>(),
            read: |body: &[u8]| $crate::fields::read::<$type>(body).map(drop),
        }
    };
}
pub(crate) use part;

/// A path and the requests that it accepts.
pub(crate) struct Operation {
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    /// The parts of a body. The method GET has none.
    pub(crate) parts: Vec<Part>,
    /// The required fields.
    pub(crate) required: &'static [&'static str],
    /// Whether responses may be streams of server-sent events.
    pub(crate) streams: bool,
    /// Whether responses may be lines of JSON.
    pub(crate) lines: bool,
    /// Whether a client needs an API key, if the server has keys.
    pub(crate) guarded: bool,
}

impl Operation {
    /// Returns an operation with the method GET.
    pub(crate) fn get(path: &'static str, summary: &'static str, guarded: bool) -> Self {
        Self { path, summary, parts: Vec::new(), required: &[], streams: false, lines: false, guarded }
    }

    /// Returns an operation with the method POST, which takes a body.
    pub(crate) fn post(path: &'static str, summary: &'static str, parts: Vec<Part>) -> Self {
        Self { path, summary, parts, required: &[], streams: false, lines: false, guarded: true }
    }
}

/// Returns the document that describes `operations`.
pub(crate) fn document(operations: &[Operation]) -> Value {
    let mut paths = Map::new();
    for operation in operations {
        let method = if operation.parts.is_empty() { "get" } else { "post" };
        paths.insert(operation.path.into(), json!({method: describe(operation)}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Interbed",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Requests as this server reads them. A field that is null counts as left out; fields \
                that are not listed are ignored, unless they would change the answer: those are refused by name.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {
                "Error": error_schema(),
                "MessagesError": messages_error_schema(),
                "OllamaError": ollama_error_schema(),
            },
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let mut content = Map::new();
    content.insert(if operation.path == "/metrics" { "text/plain" } else { "application/json" }.into(), json!({}));
    if operation.streams {
        content.insert("text/event-stream".into(), json!({}));
    }
    if operation.lines {
        content.insert("application/x-ndjson".into(), json!({}));
    }
    let mut described = json!({
        "summary": operation.summary,
        "responses": {"200": {"description": "The answer.", "content": content}},
    });
    let form = match operation.path {
        path if path.starts_with("/v1/messages") => "MessagesError",
        path if path.starts_with("/api/") => "OllamaError",
        _ => "Error",
    };
    for (status, when) in errors(operation) {
        described["responses"][status.to_string()] = json!({
            "description": when,
            "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{form}")}}},
        });
    }
    if operation.guarded {
        described["security"] = json!([{"bearer": []}, {"key": []}, {}]);
    }
    if let Some(parameter) = operation.path.split_once('{').and_then(|(_, rest)| rest.split_once('}')) {
        described["parameters"] =
            json!([{"name": parameter.0, "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if !operation.parts.is_empty() {
        let mut properties = Map::new();
        for part in &operation.parts {
            for &field in part.fields {
                properties.entry(field).or_insert_with(|| property(part, field));
            }
        }
        let schema = json!({"type": "object", "properties": properties, "required": operation.required});
        described["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    described
}

/// Returns the error statuses of `operation`, with their conditions.
fn errors(operation: &Operation) -> Vec<(u16, &'static str)> {
    let takes_body = !operation.parts.is_empty();
    let names_model =
        operation.path.contains("{model}") || operation.parts.iter().any(|part| part.fields.contains(&"model"));
    let possible = [
        (400, takes_body, "The body, or one of its fields, is wrong: which, and why."),
        (401, operation.guarded, "This server needs a key."),
        (404, names_model, "The model is not served here."),
        (408, takes_body, "The body came too slowly."),
        (413, takes_body, "The body, or what it asks for, is larger than the server's limits."),
        (415, takes_body, "The body is not JSON."),
        (500, takes_body, "The server failed."),
        (503, takes_body || operation.path == "/health", "There is too much to do, the server is ending or it failed."),
    ];
    possible.iter().filter(|(_, can, _)| *can).map(|&(status, _, when)| (status, when)).collect()
}

/// Returns the schema of [`ApiError::to_json`].
fn error_schema() -> Value {
    json!({"type": "object", "required": ["error"], "properties": {"error": {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": {"type": ["string", "null"], "description": "The field that is wrong."},
            "code": {"type": ["string", "null"]},
        },
    }}})
}

/// Returns the schema of errors in Anthropic's API.
fn messages_error_schema() -> Value {
    json!({"type": "object", "required": ["type", "error", "request_id"], "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object", "properties": {"error_code": {"type": "string"}}},
            },
        },
        "request_id": {"type": "string"},
    }})
}

/// Returns the schema of errors in Ollama's API.
fn ollama_error_schema() -> Value {
    json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}})
}

/// A probe value for each JSON type.
const PROBES: [(&str, &str); 6] =
    [("boolean", "true"), ("integer", "1"), ("number", "0.5"), ("string", r#""x""#), ("array", "[]"), ("object", "{}")];

/// Returns the schema of a field, found by probing its parser.
fn property(part: &Part, field: &str) -> Value {
    let takes = |value: &str| (part.read)(format!("{{\"{field}\":{value}}}").as_bytes());
    let types: Vec<_> = PROBES.iter().filter(|(_, probe)| takes(probe).is_ok()).map(|(name, _)| *name).collect();
    let mut property = Map::new();
    // A parser that accepts every type checks the value later.
    if (1..PROBES.len()).contains(&types.len()) {
        // The type "number" includes whole numbers.
        let types: Vec<_> = types.iter().filter(|&&name| name != "integer" || !types.contains(&"number")).collect();
        let kind = if let [one] = types[..] { json!(one) } else { json!(types) };
        property.insert("type".into(), kind);
        if types.contains(&&"integer") && takes("-1").is_err() {
            property.insert("minimum".into(), json!(0));
        }
        if types.contains(&&"array") {
            let of = |probe: &str| takes(&format!("[{probe}]")).is_ok();
            let items: Vec<_> = PROBES.iter().filter(|(_, probe)| of(probe)).map(|(name, _)| *name).collect();
            if let [one] = items[..] {
                property.insert("items".into(), json!({"type": one}));
            }
        }
    }
    let mut text = described(field).unwrap_or_default().to_owned();
    // A parser that accepts no probe expects a particular form, which its error names.
    if types.is_empty()
        && let Err(error) = takes("{}")
        && let Some((_, wanted)) = error.message.split_once(" must be ")
    {
        let wanted = wanted.split(", but").next().unwrap_or(wanted);
        text = format!("{text} Must be {wanted}.");
    }
    property.insert("description".into(), text.trim().into());
    Value::Object(property)
}

/// Returns the names of the fields of all `parts`.
pub(crate) fn fields_of_all(parts: &[Part]) -> Vec<&'static str> {
    parts.iter().flat_map(|part| part.fields).copied().collect()
}

/// Returns the names of the fields of `T`.
pub(crate) fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields = None;
    // Deserialization fails after `T` has asked for its fields, which is all that is needed.
    let _ = T::deserialize(Lister(&mut fields));
    fields.unwrap_or_default()
}

/// A deserializer without data that records which fields are requested.
struct Lister<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Lister<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom(Nothing))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = Some(fields);
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Nothing;

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is nothing")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::fields::{Field, FromJson};

    struct Colour;

    impl FromJson<'_> for Colour {
        const EXPECTED: &'static str = "\"red\" or \"blue\"";
        fn from_json(raw: &RawValue) -> Result<Self, String> {
            Err(Self::other(raw))
        }
    }

    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only its shape is read")]
    struct Fields<'b> {
        n: Option<Field<usize>>,
        seed: Option<Field<i64>>,
        top_p: Option<Field<f32>>,
        model: Option<Field<String>>,
        stream: Option<Field<bool>>,
        messages: Option<Field<Vec<Value>>>,
        user: Option<Field<Colour>>,
        #[serde(borrow, rename = "input")]
        raw: Option<&'b RawValue>,
    }

    #[test]
    fn a_field_is_what_its_reader_takes() {
        let part = part!(Fields<'_>);
        assert_eq!(part.fields, ["n", "seed", "top_p", "model", "stream", "messages", "user", "input"]);
        let kind = |field: &str| property(&part, field)["type"].clone();
        let kinds: Vec<_> = part.fields.iter().map(|field| kind(field)).collect();
        let expected =
            [json!("integer"), json!("integer"), json!("number"), json!("string"), json!("boolean"), json!("array")];
        assert_eq!(kinds[..6], expected);
        assert_eq!(kinds[6..], [Value::Null, Value::Null]);
        assert_eq!((&property(&part, "n")["minimum"], &property(&part, "seed")["minimum"]), (&json!(0), &Value::Null));
        let choosy = property(&part, "user");
        assert!(choosy["description"].as_str().unwrap().ends_with("Must be \"red\" or \"blue\"."), "{choosy}");
    }
}
