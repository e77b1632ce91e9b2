//! What of a JSON schema can be enforced: all else is refused, by keyword and place.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::GrammarError;

/// Keywords that describe values and cannot be enforced.
const REFUSED: [&str; 19] = [
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "nullable",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "x-guidance",
];
/// Values of `format` that can be enforced.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Keywords with a schema, with a list of schemas, and with an object of schemas.
const WITH_SCHEMA: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
const WITH_LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const WITH_OBJECT: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// Deepest nesting of schemas.
const DEPTH_MAX: usize = 64;
/// White space between the parts of JSON: a space, or a line end with what indents the next line. JSON allows any, but
/// a model that writes white space without end would not be stopped.
const WHITE_SPACE: &str = r" |\n[ \t]{0,40}";

/// `schema` as a grammar may have it behind `%json`: with what sets white space, and without what asks for nothing.
///
/// # Errors
/// The first keyword that cannot be enforced, and its place.
pub fn checked(schema: &Value) -> Result<Value, GrammarError> {
    let mut walk = Walk { root: schema, place: vec![], depth: 0 };
    let schema = walk.schema(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other,
    };
    if let Value::Object(schema) = &mut schema {
        schema.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
    }
    Ok(schema)
}

/// How many levels a schema can have, one below another, if each place that a reference leads to is reached once: its
/// own, and those of these places.
pub(crate) fn levels(schema: &Value) -> usize {
    let mut places = BTreeSet::new();
    let own = depth(schema, &mut places);
    let below = |place: &&str| find(schema, place).map_or(0, |at| depth(at, &mut BTreeSet::new()) + 1);
    own + places.iter().map(below).sum::<usize>()
}

/// The deepest nesting of values; what references lead to is added to `places`.
fn depth<'a>(value: &'a Value, places: &mut BTreeSet<&'a str>) -> usize {
    match value {
        Value::Array(list) => list.iter().map(|value| depth(value, places)).max().unwrap_or(0) + 1,
        Value::Object(map) => {
            if let Some(Value::String(to)) = map.get("$ref") {
                places.insert(to);
            }
            map.values().map(|value| depth(value, places)).max().unwrap_or(0) + 1
        }
        _ => 1,
    }
}

/// What a reference, `#/…`, leads to.
pub(crate) fn find<'a>(schema: &'a Value, to: &str) -> Option<&'a Value> {
    if to == "#" || to == "#/" {
        return Some(schema);
    }
    to.strip_prefix("#/")?.split('/').try_fold(schema, |at, name| match at {
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    })
}

/// A walk through a schema.
struct Walk<'a> {
    root: &'a Value,
    place: Vec<String>,
    depth: usize,
}

impl Walk<'_> {
    /// The same schema without keywords that ask for nothing.
    fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        let Value::Object(keywords) = schema else {
            return match schema {
                Value::Bool(_) => Ok(schema.clone()),
                _ => self.refuse("it must be an object or a boolean".into()),
            };
        };
        if self.depth == DEPTH_MAX {
            return self.refuse(format!("schemas are nested deeper than {DEPTH_MAX}"));
        }
        self.depth += 1;
        let mut checked = Map::new();
        for (keyword, value) in keywords {
            self.place.push(keyword.clone());
            let value = self.keyword(keyword, value)?;
            self.place.pop();
            value.into_iter().for_each(|value| drop(checked.insert(keyword.clone(), value)));
        }
        self.depth -= 1;
        Ok(Value::Object(checked))
    }

    /// The value of a keyword; `None` if it asks for nothing.
    fn keyword(&mut self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        let neutral = matches!((keyword, value), ("uniqueItems" | "nullable", Value::Bool(false)));
        if neutral {
            return Ok(None);
        }
        if REFUSED.contains(&keyword) || keyword == "uniqueItems" {
            return self.refuse(format!("\"{keyword}\" cannot be enforced; leave it out"));
        }
        match (keyword, value) {
            ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => self.refuse(format!(
                "\"format\" {} cannot be enforced, but {}; leave it out, or send a pattern",
                Value::from(format.chars().take(40).collect::<String>()),
                FORMATS.join(", ")
            )),
            ("$ref", Value::String(to)) if !self.leads_somewhere(to) => {
                let to: String = to.chars().take(80).collect();
                self.refuse(format!("\"$ref\" {to:?} does not lead to a place in this schema, as \"#/$defs/…\" does"))
            }
            ("$id" | "id", Value::String(_)) if self.place.len() > 1 => {
                self.refuse(format!("\"{keyword}\" is supported at the top only; leave it out"))
            }
            (_, Value::Array(list)) if WITH_LIST.contains(&keyword) || keyword == "items" => {
                let schemas = list.iter().enumerate().map(|(index, schema)| self.at(index.to_string(), schema));
                schemas.collect::<Result<_, _>>().map(|list| Some(Value::Array(list)))
            }
            (_, Value::Object(map)) if WITH_OBJECT.contains(&keyword) => {
                let schemas = map.iter().map(|(key, schema)| Ok((key.clone(), self.at(key.clone(), schema)?)));
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

    /// Whether a reference names a place in the schema, in the one form that is supported.
    fn leads_somewhere(&self, to: &str) -> bool {
        find(self.root, to).is_some() && !to.contains(['~', '%'])
    }

    fn refuse<T>(&self, problem: String) -> Result<T, GrammarError> {
        let place: String =
            self.place.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
        Err(GrammarError::Schema { place: format!("#{place}"), problem })
    }
}
