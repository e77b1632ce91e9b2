//! Translates the parts of JSON schemas that can be enforced into a grammar, and refuses everything else by keyword and
//! place.
//!
//! A schema is read into the shape of its values (`reader.rs`). Keywords that constrain the same value are combined
//! (`meet.rs`), and the shape is written as rules of a grammar (`rules.rs`). Patterns, formats and multiples of large
//! numbers are left to the library.

mod blame;
mod contains;
mod decimal;
mod dialect;
mod differ;
mod digits;
mod meet;
mod numbers;
mod pattern;
mod places;
mod pointer;
mod reader;
mod rules;
mod shape;
mod unique;

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::GrammarError;
use crate::sent_json::json_value;
pub(crate) use blame::blamed;
use dialect::Dialect;
use numbers::WholeFormat;
pub(crate) use places::{Place, Places};
pub(crate) use pointer::find;
use pointer::{fragment, pointer, step};
use rules::Rules;

/// Keywords that constrain values and cannot be enforced.
const REFUSED: [&str; 4] = ["$dynamicRef", "$recursiveRef", "unevaluatedItems", "x-guidance"];
/// The values of `format` that are enforced for strings; those of whole numbers are in `WholeFormat`. Other values of
/// `format` are annotations.
const FORMATS: [&str; 18] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];
/// Keywords whose value is one schema.
const WITH_SCHEMA: [&str; 10] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedProperties",
];
/// Keywords whose value is an array of schemas.
const WITH_LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const WITH_OBJECT: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Deepest nesting of schemas.
const DEPTH_MAX: usize = 64;

/// Checks that `schema` can be enforced, and returns it without keywords that are ignored, such as an unknown `format`.
///
/// # Errors
/// Fails at the first keyword that cannot be enforced. The error contains a JSON pointer to this keyword.
pub fn checked(schema: &Value) -> Result<Value, GrammarError> {
    let schema = known(schema)?;
    match Rules::default().add(&schema) {
        // A schema without values is reported when it is compiled.
        Ok(_) | Err(GrammarError::Invalid { .. }) => Ok(schema),
        Err(error) => Err(error),
    }
}

/// Checks that every `format` in the schema can be enforced. Clients that send `strict: true` expect this, while
/// [`checked_schema`](crate::checked_schema) ignores an unknown `format`.
///
/// # Errors
/// Fails at the first `format` or other keyword that cannot be enforced. The error contains a JSON pointer to this
/// keyword.
pub fn check_formats(schema: &Value) -> Result<(), GrammarError> {
    walk(schema, true).map(drop)
}

/// Restricts `schema` to objects, because the arguments of a tool call are an object.
///
/// # Errors
/// Fails if the schema allows no object.
pub fn arguments(schema: &Value) -> Result<Value, GrammarError> {
    let none = |place: &str| {
        let problem = "the arguments of a call are an object, but no object keeps to this".to_owned();
        Err(GrammarError::Schema { place: place.into(), problem })
    };
    let mut keywords = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(keywords) => keywords.clone(),
        _ => return none("#"),
    };
    let lists_objects = |types: &[Value]| types.iter().any(|one| one == "object");
    match keywords.get("type") {
        Some(Value::String(one)) if one != "object" => return none("#/type"),
        Some(Value::Array(types)) if !lists_objects(types) => return none("#/type"),
        _ => keywords.insert("type".into(), "object".into()),
    };
    let schema = Value::Object(keywords);
    // A schema that cannot be enforced is reported elsewhere.
    match known(&schema).and_then(|schema| Rules::has_values(&schema)) {
        Ok(false) => none("#"),
        _ => Ok(schema),
    }
}

/// Translates `schema` into a grammar of JSON in Lark's syntax. Returns the grammar with the places of its
/// `uniqueItems` arrays.
///
/// # Errors
/// Fails for the reasons for which [`checked`] fails, or if no value satisfies the schema.
pub(crate) fn grammar(schema: &Value) -> Result<(String, Places), GrammarError> {
    let mut rules = Rules::default();
    let first = rules.add(&known(schema)?)?;
    Ok((format!("start: {first}\n{}", rules.text()), rules.into_places()))
}

/// Replaces each schema after `%json` in a grammar in Lark's syntax by rules. Returns the grammar with the places of
/// the `uniqueItems` arrays.
///
/// # Errors
/// Fails for the reasons for which [`checked`] fails, or if no value satisfies the schema.
pub(crate) fn with_rules(grammar: &str) -> Result<(String, Places), GrammarError> {
    let (mut rules, mut written, mut rest) = (Rules::default(), String::new(), grammar);
    while let Some(at) = directive(rest) {
        let behind = &rest[at + DIRECTIVE.len()..];
        let mut values = serde_json::Deserializer::from_str(behind).into_iter::<IgnoredAny>();
        let is_json = values.next().is_some_and(|value| value.is_ok());
        // The library reports what is wrong with the JSON.
        let Some(schema) =
            behind.get(..values.byte_offset()).filter(|_| is_json).and_then(|text| json_value(text).ok())
        else {
            return Ok((grammar.to_owned(), Places::default()));
        };
        written.push_str(&rest[..at]);
        let schema = known(&schema)?;
        let is_ok = |schema: &Value| Rules::default().add(schema).is_ok();
        written.push_str(&rules.add(&schema).map_err(|error| blamed(error, &schema, is_ok))?);
        rest = &behind[values.byte_offset()..];
    }
    let end = if written.is_empty() || rest.ends_with('\n') { "" } else { "\n" };
    Ok((format!("{written}{rest}{end}{}", rules.text()), rules.into_places().embedded()))
}

/// The directive that precedes a schema in a grammar.
const DIRECTIVE: &str = "%json";

/// Returns the byte offset of the first `%json` in a grammar, outside of strings, expressions and comments.
fn directive(grammar: &str) -> Option<usize> {
    let mut at = 0;
    while at < grammar.len() {
        let part = part(&grammar[at..]);
        if part == DIRECTIVE {
            return Some(at);
        }
        at += part.len();
    }
    None
}

/// Returns whether the text that a grammar has around its schemas is fixed enough to be followed as JSON. This is so if
/// none of its expressions matches arbitrary characters.
pub(crate) fn is_spelled_out(grammar: &str) -> bool {
    let (mut rest, mut has_schema) = (grammar, false);
    while !rest.is_empty() {
        let part = part(rest);
        rest = &rest[part.len()..];
        if part == DIRECTIVE {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
            let _ = values.next();
            rest = &rest[values.byte_offset()..];
            has_schema = true;
        }
        let is_open = part.starts_with('/') && [".", "[^", "\\S", "\\W", "\\D"].iter().any(|any| part.contains(any));
        if is_open && !part.starts_with("//") {
            return false;
        }
    }
    has_schema
}

/// Returns the first lexical element of a grammar. This is a string, an expression, a comment, a special token,
/// `%json`, or a single character.
fn part(grammar: &str) -> &str {
    let until = |end: char| {
        let mut is_escaped = false;
        let length = grammar.char_indices().skip(1).find(|&(_, one)| {
            let is_end = one == '\n' || (one == end && !is_escaped);
            is_escaped = one == '\\' && !is_escaped;
            is_end
        });
        length.map_or(grammar, |(at, one)| &grammar[..at + one.len_utf8()])
    };
    match grammar.chars().next() {
        _ if grammar.starts_with(DIRECTIVE) => DIRECTIVE,
        Some('"') => until('"'),
        Some('#') => until('\n'),
        Some('<') => {
            let end = grammar.char_indices().skip(1).find(|&(_, one)| matches!(one, '<' | '>') || one.is_whitespace());
            &grammar[..end.filter(|&(_, one)| one == '>').map_or(1, |(at, _)| at + 1)]
        }
        Some('/') if grammar.starts_with("//") => until('\n'),
        Some('/') => until('/'),
        first => &grammar[..first.map_or(0, char::len_utf8)],
    }
}

/// Returns `schema` without keywords that constrain nothing.
///
/// # Errors
/// Fails at the first keyword that is not known to be enforced, and names its place.
fn known(schema: &Value) -> Result<Value, GrammarError> {
    walk(schema, false)
}

fn walk(schema: &Value, is_strict: bool) -> Result<Value, GrammarError> {
    let (place, references) = (Vec::new(), Vec::new());
    let (walked, dialect) = (HashSet::new(), Dialect::of(schema));
    let mut walk = Walk { root: schema, dialect, is_strict, place, depth: 0, is_named: false, walked, references };
    let checked = walk.schema(schema)?;
    // References may lead to places outside of the definitions.
    while let Some(to) = walk.references.pop() {
        let Some(names) = fragment(schema, &to).and_then(pointer::names) else { continue };
        let mut at = schema;
        walk.is_named = false;
        for (index, name) in names.iter().enumerate() {
            let Some(next) = step(at, name) else { break };
            walk.is_named |= index > 0 && walk.has_own_name(at);
            at = next;
        }
        walk.place = names;
        walk.schema(at)?;
    }
    Ok(checked)
}

/// Returns an upper bound on the nesting of a schema, if each target of a reference is followed once. The bound is the
/// schema's own depth plus the depths of these targets.
pub(crate) fn levels(schema: &Value) -> usize {
    let (mut places, mut depths) = (BTreeSet::new(), HashMap::new());
    let own = depth(schema, &mut places, &mut depths);
    let below =
        |place: &&str| find(schema, place).and_then(|at| depths.get(&std::ptr::from_ref(at))).map_or(0, |at| at + 1);
    own + places.iter().map(below).sum::<usize>()
}

/// Returns the depth of a JSON value. Also stores the depth of every value inside it in `depths`, and adds the targets
/// of references to `places`.
fn depth<'a>(value: &'a Value, places: &mut BTreeSet<&'a str>, depths: &mut HashMap<*const Value, usize>) -> usize {
    let within = match value {
        Value::Array(list) => list.iter().map(|value| depth(value, places, depths)).max().unwrap_or(0),
        Value::Object(map) => {
            if let Some(Value::String(to)) = map.get("$ref") {
                places.insert(to);
            }
            map.values().map(|value| depth(value, places, depths)).max().unwrap_or(0)
        }
        _ => 0,
    };
    depths.insert(value, within + 1);
    within + 1
}

/// A walk through a schema that checks its keywords.
struct Walk<'a> {
    root: &'a Value,
    dialect: Dialect,
    /// Whether a `format` that is not enforced is refused.
    is_strict: bool,
    place: Vec<String>,
    depth: usize,
    /// Whether the walk is inside a subschema with its own `$id`, relative to which references are resolved.
    is_named: bool,
    /// Addresses of the subschemas that were visited.
    walked: HashSet<*const Value>,
    /// References that were found and are yet to be followed.
    references: Vec<String>,
}

impl Walk<'_> {
    /// Checks a subschema and returns it without keywords that constrain nothing. Returns `null` for a subschema that
    /// was visited before.
    fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        let Value::Object(keywords) = schema else {
            return match schema {
                Value::Bool(_) => Ok(schema.clone()),
                _ => self.refuse("it must be an object or a boolean".into()),
            };
        };
        if !self.walked.insert(schema) {
            return Ok(Value::Null);
        }
        if self.depth == DEPTH_MAX {
            return self.refuse(format!("schemas are nested deeper than {DEPTH_MAX}"));
        }
        self.depth += 1;
        let was_named = self.is_named;
        self.is_named |= !self.place.is_empty() && self.has_own_name(schema);
        let mut checked = Map::new();
        for (keyword, value) in keywords {
            self.place.push(keyword.clone());
            let value = self.keyword(keyword, value)?;
            self.place.pop();
            value.into_iter().for_each(|value| drop(checked.insert(keyword.clone(), value)));
        }
        self.is_named = was_named;
        self.depth -= 1;
        Ok(Value::Object(checked))
    }

    /// Returns whether `schema` has its own `$id`, relative to which references inside it are resolved.
    fn has_own_name(&self, schema: &Value) -> bool {
        let name = schema.get(self.dialect.name()).and_then(Value::as_str);
        name.is_some_and(|name| !name.is_empty() && !name.starts_with('#'))
    }

    /// Checks a keyword and returns its value. Returns `None` if the keyword constrains nothing.
    fn keyword(&mut self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        // A nullable value may also be given without `null`, so `nullable` is not needed.
        let asks_for_nothing = match (keyword, value) {
            ("uniqueItems", Value::Bool(false)) | ("nullable", _) => true,
            ("unevaluatedItems" | "unevaluatedProperties", Value::Bool(true)) => true,
            ("unevaluatedItems" | "unevaluatedProperties", _) => self.dialect < Dialect::Draft2019,
            _ => false,
        };
        if asks_for_nothing {
            return Ok(None);
        }
        if REFUSED.contains(&keyword) {
            return self.refuse(format!("\"{keyword}\" cannot be enforced; leave it out"));
        }
        match (keyword, value) {
            ("format", Value::String(format))
                if !FORMATS.contains(&format.as_str()) && WholeFormat::of(format).is_none() =>
            {
                if self.is_strict {
                    return self.refuse(format!(
                        "\"format\" {} cannot be enforced, but {}; leave it out, or send a pattern",
                        Value::from(format.chars().take(40).collect::<String>()),
                        FORMATS.join(", ")
                    ));
                }
                Ok(None)
            }
            ("$ref", Value::String(to)) if self.is_named => {
                let to: String = to.chars().take(80).collect();
                self.refuse(format!(
                    "\"$ref\" {to:?} is within a schema with a \"{}\", so it does not lead to a place in this schema; \
                     leave that out",
                    self.dialect.name()
                ))
            }
            ("$ref", Value::String(to)) if find(self.root, to).is_none() => {
                let to: String = to.chars().take(80).collect();
                self.refuse(format!("\"$ref\" {to:?} does not lead to a place in this schema, as \"#/$defs/…\" does"))
            }
            ("$ref", Value::String(to)) => {
                self.references.push(to.clone());
                Ok(Some(value.clone()))
            }
            (_, Value::Array(list)) if WITH_LIST.contains(&keyword) || keyword == "items" => {
                let schemas = list.iter().enumerate().map(|(index, schema)| self.at(index.to_string(), schema));
                schemas.collect::<Result<_, _>>().map(|list| Some(Value::Array(list)))
            }
            (_, Value::Object(map)) if WITH_OBJECT.contains(&keyword) => {
                let schemas = map.iter().map(|(key, schema)| match schema {
                    // An array here lists property names, not schemas.
                    Value::Array(_) | Value::String(_) if keyword == "dependencies" => {
                        Ok((key.clone(), schema.clone()))
                    }
                    schema => Ok((key.clone(), self.at(key.clone(), schema)?)),
                });
                schemas.collect::<Result<_, _>>().map(|map| Some(Value::Object(map)))
            }
            _ if WITH_SCHEMA.contains(&keyword) => self.schema(value).map(Some),
            _ => Ok(Some(value.clone())),
        }
    }

    fn at(&mut self, name: String, schema: &Value) -> Result<Value, GrammarError> {
        self.place.push(name);
        let schema = self.schema(schema);
        self.place.pop();
        schema
    }

    fn refuse<T>(&self, problem: String) -> Result<T, GrammarError> {
        Err(GrammarError::Schema { place: pointer(&self.place), problem })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_in_a_grammar_are_found_where_they_are() {
        let grammar = r#"start: "%json {\"" </a> /\/%json [.]/ %json {"const": 1.0} "x" // %json {}"#;
        let (written, _) = with_rules(grammar).expect("a grammar");
        let (before, behind) = written.split_once("json__").expect("a rule");
        assert_eq!(before, r#"start: "%json {\"" </a> /\/%json [.]/ "#);
        assert!(behind.contains(" \"x\" // %json {}\nJSON__") && behind.contains(r"/1\.0/"), "{written}");
        assert!(!is_spelled_out(grammar) && is_spelled_out(r#"start: <a> "." %json {"pattern": "/.*/"} W? "}""#));
        assert!(!is_spelled_out("start: \"a\""));
        let (written, _) = with_rules("start: \"a\" // %json").expect("a grammar");
        assert_eq!(written, "start: \"a\" // %json");
    }

    #[test]
    fn arguments_are_an_object() {
        for (schema, expected) in [
            (json!(true), json!({"type": "object"})),
            (json!({}), json!({"type": "object"})),
            (json!({"type": ["null", "object"], "title": "t"}), json!({"type": "object", "title": "t"})),
            (json!({"$dynamicRef": "#a"}), json!({"$dynamicRef": "#a", "type": "object"})),
        ] {
            assert_eq!(arguments(&schema), Ok(expected));
        }
        // An object that has to contain itself never ends.
        let part = json!({"required": ["b"], "properties": {"b": {"$ref": "#"}}});
        let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": part}});
        let texts = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}});
        for (schema, place) in [
            (json!(false), "#"),
            (json!({"type": "string"}), "#/type"),
            (json!({"type": ["array", "null"]}), "#/type"),
            (json!({"const": [1]}), "#"),
            (json!({"not": {"type": "object"}}), "#"),
            (json!({"maxProperties": 0, "required": ["a"]}), "#"),
            (json!({"anyOf": [{"type": "array"}, {"required": ["a"], "properties": {"a": {"enum": []}}}]}), "#"),
            (texts, "#"),
            (circle, "#"),
        ] {
            match arguments(&schema) {
                Err(GrammarError::Schema { place: told, .. }) => assert_eq!(told, place, "{schema}"),
                other => panic!("{schema}: {other:?}"),
            }
        }
    }
}
