//! Syntaxes in which each parameter of a call is written by itself, as between tags: which keywords of a function's
//! schema can be enforced.

use interbed_engine::{GrammarError, checked_schema, quoted};
use serde_json::{Map, Value, json};

use super::Function;
use super::values::{is_plain_text, root_of};

/// Keywords that constrain an object as a whole and cannot be enforced here. Keywords at the root that are in neither
/// list do not concern objects.
const REFUSED: [&str; 15] = [
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "oneOf",
    "propertyNames",
    "unevaluatedProperties",
];
/// Keywords that contain definitions, to which references may lead.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords that are copied to the schema of each parameter, whose value is separate JSON.
const SHARED: [&str; 2] = ["$defs", "definitions"];

/// Checks the schema of a function's arguments, and returns it in the form that a grammar accepts. Each parameter is
/// written separately, so `properties` has to describe it. A root that is a reference to a definition is replaced by
/// the definition.
///
/// # Errors
/// Fails if a keyword cannot be enforced, and names the place of the first such keyword.
pub(super) fn checked(parameters: &Value) -> Result<Value, GrammarError> {
    let checked = checked_schema(parameters)?;
    let Some(root) = root_of(&checked).as_object() else {
        return refuse("#", "the arguments of a call are an object".into());
    };
    let mut schema = root.clone();
    if !std::ptr::eq(root_of(&checked), &checked) {
        let beside = checked.as_object().into_iter().flatten().filter(|(keyword, _)| *keyword != "$ref");
        for (keyword, value) in beside {
            if KEPT.contains(&keyword.as_str()) && (keyword != "type" || value != "object") {
                return refuse(&format!("#/{keyword}"), format!("\"{keyword}\" beside \"$ref\" {IN_TAGS}"));
            }
            schema.insert(keyword.clone(), value.clone());
        }
        DEFINITIONS.into_iter().filter(|key| checked.get(key).is_none()).for_each(|key| drop(schema.remove(key)));
    }
    for (keyword, value) in &schema {
        let place = format!("#/{}", escaped(keyword));
        match keyword.as_str() {
            "type" if value != "object" && !lists(Some(value), "object") => {
                return refuse(&place, "the arguments of a call are an object".into());
            }
            "required" if !value.is_array() => return refuse(&place, "it must be a list of names".into()),
            "properties" if !value.is_object() => return refuse(&place, "it must be an object of schemas".into()),
            "patternProperties" if value.as_object().is_some_and(|patterns| !patterns.is_empty()) => {
                return refuse(&place, format!("\"patternProperties\" {IN_TAGS}"));
            }
            // Without `properties`, only the names of parameters would be known.
            "additionalProperties"
                if value.is_object() && value != &json!({}) && !schema.contains_key("properties") =>
            {
                return refuse(&place, format!("\"additionalProperties\" without \"properties\" {IN_TAGS}"));
            }
            _ if REFUSED.contains(&keyword.as_str()) => return refuse(&place, format!("\"{keyword}\" {IN_TAGS}")),
            _ => {}
        }
        references(value, &place)?;
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let is_written = |name: &str| !name.is_empty() && name == name.trim() && !name.contains(['<', '>', '\n']);
    if let Some(name) = properties.into_iter().flat_map(Map::keys).find(|name| !is_written(name)) {
        return refuse_name(name);
    }
    for (index, name) in schema.get("required").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let property = name.as_str().and_then(|name| properties?.get(name));
        if property.is_none_or(|property| property == false) {
            let problem = format!("{name} is required, but \"properties\" does not say what it is, which {IN_TAGS}");
            return refuse(&format!("#/required/{index}"), problem);
        }
    }
    let schema = Value::Object(schema);
    match unique_array(&schema, "#") {
        Some(place) => refuse(&format!("{place}/uniqueItems"), format!("\"uniqueItems\" {IN_TAGS}")),
        None => Ok(schema),
    }
}

/// Keywords at the root that are enforced.
const KEPT: [&str; 5] = ["type", "properties", "required", "additionalProperties", "patternProperties"];
/// The end of messages about keywords that cannot be enforced in this syntax.
const IN_TAGS: &str = "cannot be enforced where this model writes each parameter by itself; leave it out";

/// Returns the place of the first array of distinct items below `place`.
fn unique_array(value: &Value, place: &str) -> Option<String> {
    let below = |(key, value): (String, &Value)| unique_array(value, &format!("{place}/{}", escaped(&key)));
    match value {
        Value::Array(values) => {
            (0..).zip(values).find_map(|(index, value): (usize, _)| below((index.to_string(), value)))
        }
        Value::Object(keywords) if keywords.get("uniqueItems") == Some(&Value::Bool(true)) => Some(place.to_owned()),
        Value::Object(keywords) => keywords.iter().find_map(|(key, value)| below((key.clone(), value))),
        _ => None,
    }
}

/// Refuses references that do not lead to a definition, because a parameter is the root of its own schema.
fn references(value: &Value, place: &str) -> Result<(), GrammarError> {
    match value {
        Value::Array(values) => {
            values.iter().enumerate().try_for_each(|(index, value)| references(value, &format!("{place}/{index}")))
        }
        Value::Object(values) => values.iter().try_for_each(|(key, value)| {
            let place = format!("{place}/{}", escaped(key));
            match value.as_str() {
                Some(to) if key == "$ref" && !DEFINITIONS.iter().any(|name| to.starts_with(&format!("#/{name}/"))) => {
                    let to: String = to.chars().take(80).collect();
                    refuse(&place, format!("\"$ref\" {to:?} leads to no place in \"$defs\", and so {IN_TAGS}"))
                }
                _ => references(value, &place),
            }
        }),
        _ => Ok(()),
    }
}

fn lists(list: Option<&Value>, one: &str) -> bool {
    list.and_then(Value::as_array).is_some_and(|list| list.iter().any(|value| value == one))
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Refuses a parameter whose name cannot be written.
pub(super) fn refuse_name<T>(name: &str) -> Result<T, GrammarError> {
    refuse(&format!("#/properties/{}", escaped(name)), "this model's calls cannot have this name".into())
}

/// Returns whether every call has this parameter.
pub(super) fn is_required(parameters: &Value, name: &str) -> bool {
    lists(parameters.get("required"), name)
}

fn refuse<T>(place: &str, problem: String) -> Result<T, GrammarError> {
    Err(GrammarError::Schema { place: place.into(), problem })
}

/// The texts around the parts of a call.
pub(super) struct TagForm {
    /// The text before the name of a parameter, and the text between the name and its value.
    pub(super) open: [&'static str; 2],
    /// The text before the tag that closes a value, that tag, and the text after it.
    pub(super) close: [&'static str; 3],
    /// The text that ends the call.
    pub(super) end: &'static str,
}

/// Returns a rule `call` with the parameters of each function in the order of its schema, which has passed [`checked`].
/// The function `begin` writes the beginning of a call. Strings extend to the tag that closes them, and other values
/// are JSON.
pub(super) fn calls(functions: &[Function], begin: impl Fn(&str) -> String, form: &TagForm) -> String {
    let [_, tag, behind] = form.close;
    let closed = quoted(&form.close.concat());
    let behind = quoted(behind);
    // The parser ends a string at the first tag, so the grammar does too.
    let mut rules = format!("text[suffix={}]: /(?s:.*)/\nname: /[^<>\\n]+/\n", quoted(tag));
    let mut calls = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let parameters = &function.parameters;
        let mut call = begin(&function.name);
        let properties = parameters["properties"].as_object();
        for (key, schema) in properties.into_iter().flatten().filter(|(_, schema)| **schema != false) {
            let choices = schema["enum"].as_array().filter(|_| is_plain_text(Some(schema)));
            let texts =
                choices.into_iter().flatten().chain(schema.get("const").filter(|_| is_plain_text(Some(schema))));
            let texts: Vec<_> = texts.filter_map(Value::as_str).map(quoted).collect();
            let value = match (is_plain_text(Some(schema)), texts.is_empty()) {
                // Such a string is written unescaped, so only its end is known.
                (true, true) => format!("text {behind}"),
                (true, false) => format!("({}) {closed}", texts.join(" | ")),
                (false, _) => format!("%json {} {closed}", by_itself(schema, parameters)),
            };
            let optional = if is_required(parameters, key) { "" } else { "?" };
            call += &format!(" ({} {value}){optional}", quoted(&format!("{}{key}{}", form.open[0], form.open[1])));
        }
        // Nothing is known about the parameters.
        if properties.is_none() && parameters["additionalProperties"] != false {
            call += &format!(" ({} name {} text {behind})*", quoted(form.open[0]), quoted(form.open[1]));
        }
        rules += &format!("call_{number}: {call} {}\n", quoted(form.end));
        calls.push(format!("call_{number}"));
    }
    format!("{rules}call: {}\n", calls.join(" | "))
}

/// Returns the schema of a parameter with the definitions of the whole schema.
pub(super) fn by_itself(schema: &Value, parameters: &Value) -> Value {
    let mut schema: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    for key in SHARED {
        // References lead to the definitions of the whole schema.
        match parameters.get(key) {
            Some(shared) => drop(schema.insert(key.into(), shared.clone())),
            None => drop(schema.remove(key)),
        }
    }
    Value::Object(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a schema with `keywords` at its root.
    fn schema(keywords: Value) -> Value {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b/c": {}}});
        schema.as_object_mut().expect("an object").extend(keywords.as_object().expect("an object").clone());
        schema
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_place() {
        let args = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        for (keywords, place) in [
            (json!({"required": ["a", "z"]}), "#/required/1"),
            (json!({"properties": {"a": false}, "required": ["a"]}), "#/required/0"),
            (json!({"anyOf": [{"required": ["a"]}]}), "#/anyOf"),
            (json!({"oneOf": [{}]}), "#/oneOf"),
            (json!({"allOf": [{}]}), "#/allOf"),
            (json!({"minProperties": 1}), "#/minProperties"),
            (json!({"maxProperties": 1}), "#/maxProperties"),
            (json!({"patternProperties": {"^x": {}}}), "#/patternProperties"),
            (json!({"enum": [{}]}), "#/enum"),
            (json!({"type": "array"}), "#/type"),
            (json!({"required": "a"}), "#/required"),
            (json!({"properties": []}), "#/properties"),
            (json!({"properties": {"a>": {}}}), "#/properties/a>"),
            (json!({"properties": {"b/c": {"items": {"$ref": "#"}}}}), "#/properties/b~1c/items/$ref"),
            (json!({"properties": {"a": {}, "b": {"$ref": "#/properties/a"}}}), "#/properties/b/$ref"),
            (json!({"$defs": {"X": {"items": {"$ref": "#/properties/a"}}}}), "#/$defs/X/items/$ref"),
            (json!({"$ref": "#/properties/a"}), "#/$ref"),
            (json!({"$ref": "#/$defs/Args", "$defs": {"Args": args}}), "#/properties"),
            (json!({"not": {}}), "#/not"),
        ] {
            match checked(&schema(keywords.clone())) {
                Err(GrammarError::Schema { place: told, .. }) => assert_eq!(told, place, "{keywords}"),
                other => panic!("{keywords}: {other:?}"),
            }
        }
        let map = json!({"type": "object", "additionalProperties": {"type": "integer"}});
        assert!(checked(&map).is_err());
        let circle = json!({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}});
        assert!(checked(&circle).is_err());
    }

    #[test]
    fn what_says_nothing_or_is_kept_to_passes() {
        for keywords in [
            json!({}),
            json!({"title": "t", "description": "d", "$schema": "s", "examples": [1], "default": {}, "strict": true}),
            json!({"required": ["b/c"], "additionalProperties": false}),
            json!({"additionalProperties": {"type": "integer"}, "patternProperties": {}}),
            json!({"type": ["object", "null"]}),
            json!({"$defs": {"X": {"items": {"$ref": "#/$defs/X"}}}, "properties": {"a": {"$ref": "#/$defs/X"}}}),
        ] {
            assert!(checked(&schema(keywords.clone())).is_ok(), "{keywords}");
        }
        assert!(checked(&json!({"type": "object"})).is_ok() && checked(&json!({})).is_ok());
    }

    #[test]
    fn a_root_that_is_a_reference_is_its_definition() {
        let args = json!({"type": "object", "required": ["child"], "$defs": {"Unused": {}},
            "properties": {"child": {"$ref": "#/$defs/Args"}}});
        let parameters = json!({"$ref": "#/$defs/Begin", "title": "t",
            "$defs": {"Begin": {"$ref": "#/$defs/Args"}, "Args": args}});
        let checked = checked(&parameters).expect("it can be enforced");
        assert_eq!((&checked["required"], &checked["title"]), (&json!(["child"]), &json!("t")));
        assert!(checked.get("$ref").is_none() && checked["$defs"].get("Args").is_some());
        let child = by_itself(&checked["properties"]["child"], &checked);
        assert_eq!(child["$defs"], checked["$defs"]);
        assert_eq!(child["$ref"], "#/$defs/Args");
    }
}
