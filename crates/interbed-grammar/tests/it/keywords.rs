//! Tests keywords that exclude values or count them. Random answers must satisfy them, and texts that do not must be no
//! answers.

use std::collections::HashSet;

use interbed_grammar::testing::Dice;
use interbed_grammar::{Constraint, GrammarSource, Vocabulary, json_value};
use serde_json::{Value, json};

use crate::walks::try_answer;
use crate::{EOS, PIECES, bytes_and};

fn compiled(vocabulary: &Vocabulary, schema: &Value) -> Constraint {
    let source = GrammarSource::JsonSchema(schema.clone());
    vocabulary.compile(&source).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// Returns whether a text is an answer, byte by byte.
fn allows(fresh: &Constraint, text: &str) -> bool {
    let mut state = fresh.clone();
    text.bytes().all(|byte| state.advance(u32::from(byte)).is_ok())
        && state.mask().unwrap().is_none_or(|mask| mask.allows(EOS))
}

/// Tests that each schema allows the first texts and not the second, and that random answers satisfy `keeps`.
#[test]
fn what_is_excluded_or_counted_is_kept_to() {
    type Keeps = fn(&Value) -> bool;
    let table: [(Value, &[&str], &[&str], Keeps); 13] = [
        (
            json!({"type": "string", "maxLength": 4, "not": {"enum": ["a", "red"]}}),
            &["\"ab\"", "\"\""],
            &["\"a\"", "\"red\""],
            |value| value != "a" && value != "red",
        ),
        (
            json!({"type": "string", "maxLength": 9, "not": {"pattern": "^a"}}),
            &["\"ba\"", "\"\""],
            &["\"a\"", "\"abc\""],
            |value| !value.as_str().unwrap().starts_with('a'),
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": 99, "not": {"minimum": 10, "maximum": 19}}),
            &["9", "20"],
            &["10", "15"],
            |value| !(10..20).contains(&value.as_i64().unwrap()),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
                "additionalProperties": false,
            "if": {"properties": {"a": {"const": true}}, "required": ["a"]}, "then": {"required": ["b"]},
                "else": {"properties": {"b": false}}}),
            &["{\"a\":true,\"b\":null}", "{\"a\":false}", "{}"],
            &["{\"a\":true}", "{\"b\":null}", "{\"a\":false,\"b\":null}"],
            |value| (value.get("a") == Some(&json!(true))) == value.get("b").is_some(),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"},
                "c": {"type": "null"}}, "additionalProperties": false,
            "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"properties": {"a": false}}}}),
            &["{}", "{\"b\":null}", "{\"a\":null,\"b\":null}", "{\"b\":null,\"c\":null}"],
            &["{\"a\":null}", "{\"a\":null,\"b\":null,\"c\":null}"],
            |value| value.get("a").is_none() || (value.get("b").is_some() && value.get("c").is_none()),
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "additionalProperties": false, "dependencies": {"a": ["b"], "b": {"required": ["a"]}}}),
            &["{}", "{\"a\":null,\"b\":null}"],
            &["{\"a\":null}", "{\"b\":null}"],
            |value| value.get("a").is_some() == value.get("b").is_some(),
        ),
        (
            json!({"oneOf": [{"type": "integer", "minimum": 0, "maximum": 50}, {"type": "integer", "minimum": 40,
                "maximum": 90}]}),
            &["39", "51", "90"],
            &["40", "45", "50", "91"],
            |value| (0..40).contains(&value.as_i64().unwrap()) || (51..=90).contains(&value.as_i64().unwrap()),
        ),
        (
            json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "additionalProperties": false}),
            &["{\"a\":null}", "{\"b\":null}"],
            &["{}", "{\"a\":null,\"b\":null}"],
            |value| value.get("a").is_some() != value.get("b").is_some(),
        ),
        (
            json!({"type": "object", "oneOf": [{"properties": {"k": {"const": "a"}},
                "additionalProperties": {"type": "null"}},
            {"properties": {"k": {"const": "b"}}, "additionalProperties": {"type": "boolean"}}]}),
            &["{\"k\":\"a\"}", "{\"k\":\"b\"}"],
            &["{}", "{\"k\":\"c\"}", "{\"k\":\"a\",\"x\":1}"],
            |value| value.get("k").is_some_and(|kind| kind == "a" || kind == "b"),
        ),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"enum": [1, "1", null, true, "a", "b", "c"]}}),
            &["[\"c\",1,\"1\",true]", "[]"],
            &["[1,1]", "[null,\"a\",null]"],
            is_unique,
        ),
        (
            json!({"type": "array", "contains": {"const": 7}, "minContains": 1, "maxContains": 2, "minItems": 2,
                "maxItems": 4,
            "items": {"type": "integer", "minimum": 0, "maximum": 9}}),
            &["[7,1]", "[1,7]", "[7,7,1,2]"],
            &["[7]", "[1,2]", "[7,7,7]", "[1,2,3,4,7]", "[1,2,3,4]"],
            |value| (1..3).contains(&value.as_array().unwrap().iter().filter(|entry| **entry == 7).count()),
        ),
        (
            json!({"type": "object", "allOf": [{"properties": {"a": {"type": "null"}}}],
                "properties": {"b": {"type": "null"}},
            "additionalProperties": {"type": "boolean"}, "propertyNames": {"pattern": "^[a-d]$"}}),
            &["{\"c\":true}", "{\"b\":null}"],
            &["{\"e\":true}", "{\"b\":true}", "{\"ab\":true}"],
            |value| value.as_object().unwrap().keys().all(|name| ["a", "b", "c", "d"].contains(&name.as_str())),
        ),
        (
            json!({"type": "object", "properties": {"b": {"type": "null"}}, "unevaluatedProperties": false,
                "propertyNames": {"enum": ["a", "b"]}}),
            &["{}", "{\"b\":null}"],
            &["{\"a\":null}", "{\"a\":null,\"b\":null}"],
            |value| value.get("a").is_none(),
        ),
    ];
    let vocabulary = bytes_and(&PIECES);
    for (index, (schema, answers, others, keeps)) in table.iter().enumerate() {
        let fresh = compiled(&vocabulary, schema);
        answers.iter().for_each(|text| assert!(allows(&fresh, text), "{schema} has {text}"));
        others.iter().for_each(|text| assert!(!allows(&fresh, text), "{schema} does not have {text}"));
        let mut ended = 0;
        for walk in 0..12 {
            let found = try_answer(&vocabulary, fresh.clone(), &mut Dice::new(index as u64 * 100 + walk), 400);
            let Some(text) = found.unwrap_or_else(|error| panic!("{schema}: {error}")) else { continue };
            let value = json_value(&text).unwrap();
            assert!(keeps(&value), "{schema} has {text}");
            ended += 1;
        }
        assert!(ended > 2, "{ended} answers to {schema} ended");
    }
}

/// Returns whether all items are distinct, with numbers compared in floating point.
fn is_unique(value: &Value) -> bool {
    let entries = value.as_array().unwrap();
    let text = |entry: &Value| entry.as_f64().map_or_else(|| entry.to_string(), |number| (number + 0.0).to_string());
    entries.iter().map(text).collect::<HashSet<_>>().len() == entries.len()
}

/// Tests that a negated class of quotes or backslashes contains neither, whether escaped or not.
#[test]
fn classes_of_all_but_quotes_and_backslashes_have_none() {
    let vocabulary = bytes_and(&PIECES);
    for (pattern, yes, no) in [
        (r"^[^\\]+$", &[r#""a""#, r#""\"""#][..], &[r#""\\""#, r#""a\\b""#, r#""\u005c""#][..]),
        (r#"^[^"]+$"#, &[r#""a""#, r#""\\""#], &[r#""\"""#, r#""a\"b""#, r#""\u0022""#]),
        (r#"^[^"\\]*$"#, &[r#""""#, r#""ab""#], &[r#""\"""#, r#""\\""#, r#""a\\\"""#]),
        (r"^[^a]$", &[r#""b""#], &[r#""a""#, r#""\u0061""#]),
    ] {
        for around in [
            json!({"type": "string", "pattern": pattern}),
            json!({"allOf": [{"type": "string"}, {"pattern": pattern}]}),
        ] {
            let fresh = compiled(&vocabulary, &around);
            yes.iter().for_each(|text| assert!(allows(&fresh, text), "{around} has {text}"));
            no.iter().for_each(|text| assert!(!allows(&fresh, text), "{around} does not have {text}"));
        }
    }
}

/// Tests the exact text of an object without properties, because clients compare the arguments of a call without
/// parameters with this text.
#[test]
fn an_object_that_is_always_empty_has_no_white_space() {
    let vocabulary = bytes_and(&PIECES);
    for schema in [
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({"type": "object", "maxProperties": 0}),
        json!({"const": {}}),
    ] {
        let fresh = compiled(&vocabulary, &schema);
        assert!(allows(&fresh, "{}") && !allows(&fresh, "{ }") && !allows(&fresh, "{\n}"), "{schema}");
    }
}
