//! Tests arrays with `uniqueItems` whose values no schema lists.

use std::collections::HashSet;

use interbed_grammar::testing::Dice;
use interbed_grammar::{GrammarSource, json_value};
use serde_json::{Value, json};

use crate::walks::try_answer;
use crate::{EOS, PIECES, bytes_and};

/// Returns whether `text` is an answer, byte by byte. Checks also that exactly the tokens in the mask are accepted.
fn allows(source: &GrammarSource, text: &str) -> bool {
    let mut state = bytes_and(&[]).compile(source).unwrap_or_else(|error| panic!("{error}"));
    let mut may_come = |token: u32| {
        let is_in_mask = state.mask().expect("a mask").expect("all of it is bound").allows(token);
        assert_eq!(is_in_mask, state.advance(token).is_ok(), "{token} in {text}");
        is_in_mask
    };
    text.bytes().all(|byte| may_come(u32::from(byte))) && may_come(EOS)
}

/// Returns whether the items differ as values: numbers are compared in floating point, and objects regardless of order.
fn are_different(entries: &[Value]) -> bool {
    fn text(value: &Value) -> String {
        match value {
            Value::Array(entries) => format!("[{}]", entries.iter().map(text).collect::<Vec<_>>().join(",")),
            Value::Object(pairs) => {
                let mut pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{name}{}", text(value))).collect();
                pairs.sort();
                format!("{{{}}}", pairs.join(","))
            }
            _ => value.as_f64().map_or_else(|| value.to_string(), |number| (number + 0.0).to_string()),
        }
    }
    entries.iter().map(text).collect::<HashSet<_>>().len() == entries.len()
}

#[test]
fn no_entry_comes_twice_in_any_form() {
    let schema =
        |items: Value| GrammarSource::JsonSchema(json!({"items": items, "type": "array", "uniqueItems": true}));
    for (items, yes, no) in [
        (
            json!({"type": "string"}),
            &[r#"["a", "ab","b"]"#, r#"["", " "]"#][..],
            &[r#"["a","a"]"#, r#"["a","b","a"]"#][..],
        ),
        (json!({"type": "string"}), &[r#"["\n","n"]"#], &[r#"["\n","\u000a"]"#, r#"["\"","\""]"#]),
        (json!({}), &[r#"[1,[1],"1",{"a":1},{"b":1}]"#, "[true,false,null]"], &["[1, 1]", "[1,1.0]", "[null,null]"]),
        (json!({}), &[r#"[{"a":1,"b":2},{"a":2,"b":1}]"#], &[r#"[{"a":1,"b":2},{"b":2,"a":1}]"#, "[[1,2],[1, 2]]"]),
        (json!({"type": "number"}), &["[1,11,1.1,-1]"], &["[0,-0.0]", "[10,11,10]"]),
        (
            json!({"type": "object", "additionalProperties": false,
                "properties": {"a": {}, "tags": {"type": "array"}}}),
            &[r#"[{"a":1},{"a":1,"tags":[2,2]},{}]"#],
            &[r#"[{"a":1},{ "a": 1 }]"#, "[{},{}]"],
        ),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}}),
            &["[[1],[2],[1,2],[2,1]]"],
            &["[[1,1]]", "[[1,2],[1,2]]"],
        ),
    ] {
        yes.iter().for_each(|text| assert!(allows(&schema(items.clone()), text), "{items} has {text}"));
        no.iter().for_each(|text| assert!(!allows(&schema(items.clone()), text), "{items} has {text}"));
    }
}

#[test]
fn lists_are_found_wherever_they_are() {
    let unique = json!({"type": "array", "uniqueItems": true});
    for (schema, yes, no) in [
        (json!({"properties": {"a": unique}}), r#"{"a":[1,2],"b":[1,1]}"#, r#"{"a":[1,1]}"#),
        (json!({"patternProperties": {"^x": unique}, "type": "object"}), r#"{"x":[1,2]}"#, r#"{"xy":[1,1]}"#),
        (json!({"additionalProperties": unique, "type": "object"}), r#"{"x":[1,2]}"#, r#"{"xy":[1,1]}"#),
        (json!({"prefixItems": [{}, unique], "type": "array"}), "[[1,1],[1,2],[1,1]]", "[1,[1,1]]"),
        (json!({"prefixItems": [{}, {}], "type": "array", "uniqueItems": true}), "[1,2,3]", "[1,2,1]"),
        (
            json!({"$defs": {"t": {"type": "object", "properties": {"a": unique, "c": {"$ref": "#/$defs/t"}}}},
                "$ref": "#/$defs/t"}),
            r#"{"c":{"c":{"a":[1,2]}}}"#,
            r#"{"c":{"c":{"a":[1,1]}}}"#,
        ),
        (json!({"anyOf": [{"type": "string"}, {"allOf": [{"minItems": 1}, unique]}]}), "[1,2]", "[1,1]"),
    ] {
        let source = GrammarSource::JsonSchema(schema.clone());
        assert!(allows(&source, yes), "{schema} has {yes}");
        assert!(!allows(&source, no), "{schema} does not have {no}");
        let call = GrammarSource::Lark(format!(
            "start: \"<call>[{{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" %json {schema} \"}}]\""
        ));
        let around = |text: &str| format!("<call>[{{\"name\": \"f\", \"arguments\": {text}}}]");
        assert!(allows(&call, &around(yes)), "{schema} within a call has {yes}");
        assert!(!allows(&call, &around(no)), "{schema} within a call does not have {no}");
    }
    let free = GrammarSource::Lark(format!("start: /.*/ %json {unique}"));
    let error =
        bytes_and(&[]).compile(&free).map(drop).expect_err("brackets of a free text are not told from a list's");
    assert!(error.to_string().contains("uniqueItems"), "{error}");
}

/// Tests that an item can always be completed to one of the values that are left, where few are left.
#[test]
fn no_way_ends_where_values_are_left() {
    let closed = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false})
    };
    let flag = json!({"type": "boolean"});
    let vocabulary = bytes_and(&PIECES);
    for (index, (items, count)) in [
        (json!({"type": "integer", "minimum": 0, "maximum": 3}), 4),
        (json!({"type": "integer", "minimum": 8, "maximum": 13}), 6),
        (closed(json!({"a": flag, "b": flag}), json!(["a", "b"])), 4),
        (closed(json!({"a": flag, "b": flag}), json!([])), 9),
        (closed(json!({"a": {"enum": ["x", "xy", "y"]}, "b": flag}), json!(["b"])), 8),
        (json!({"type": "string", "pattern": "^[ab]{1,2}$"}), 6),
        (json!({"type": "string", "pattern": "^(a|bc|bcd)?$"}), 4),
        (json!({"type": "array", "items": flag, "minItems": 1, "maxItems": 2}), 6),
        (json!({"type": ["null", "boolean"]}), 3),
        (json!({"enum": ["a", "b", 1, 2, null, "ab"]}), 6),
        (json!({"enum": ["x-1", 2, "gr\u{fc}n", "gr\u{e9}n"], "type": "string"}), 3),
        (json!({"enum": ["x", "\u{e9}"]}), 2),
        (json!({"enum": ["reset", "r\u{e9}sum\u{e9}", "\u{d6}l"]}), 3),
        (json!({"type": "number", "minimum": 0, "maximum": 1}), 6),
        (json!({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": true}), 2),
    ]
    .into_iter()
    .enumerate()
    {
        let schema = json!({"type": "array", "items": items, "minItems": count, "uniqueItems": true});
        let fresh = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())).unwrap_or_else(|e| panic!("{e}"));
        for walk in 0..8 {
            let answer = try_answer(&vocabulary, fresh.clone(), &mut Dice::new(index as u64 * 100 + walk), 2000);
            let text = answer.unwrap_or_else(|error| panic!("{schema}: {error}")).expect("it ends");
            let value = json_value(&text).expect("JSON");
            let entries = value.as_array().expect("a list");
            // There are more numbers than are asked for, and no more of anything else.
            let is_complete = entries.len() == count || items["type"] == "number" && entries.len() > count;
            assert!(is_complete, "{schema} has {text}");
            assert!(are_different(entries), "{schema} has {text}");
        }
    }
}

/// Tests that a mask, for which few of many tokens are checked, excludes exactly the tokens that are refused one by
/// one.
#[test]
fn masks_have_what_may_come() {
    let pieces = [
        "\",\"",
        "\", \"a\"",
        "a\",\"a\"",
        "\"a\"",
        "[\"a\",\"a\"",
        "[1,1",
        "1,1",
        "1,",
        ",1]",
        "]],",
        "\\\"",
        "a\\n\"",
        "{\"a\":1},{\"a\":1}",
        "1},{",
        "\"},{\"a\":",
        "a\"},",
        "\":\"a\"}",
        "aa",
        "a\"]",
        "true,",
        "tru",
        "e,false",
        ",{\"",
        "[[",
    ];
    let vocabulary = bytes_and(&[&PIECES[..], &pieces].concat());
    let text = json!({"type": "string"});
    let object = json!({"type": "object", "properties": {"a": text, "b": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let lists =
        json!({"type": "array", "uniqueItems": true, "items": {"type": "integer", "minimum": 0, "maximum": 11}});
    let short = json!({"type": "string", "maxLength": 2, "pattern": "^[a1]*$"});
    let of_items = |items: Value| {
        let unique = json!({"type": "array", "items": items, "uniqueItems": true});
        json!({"anyOf": [unique, {"type": "object", "additionalProperties": unique}]})
    };
    let closed = |properties: Value| {
        json!({"type": "object", "properties": properties, "required": ["a", "b"],
            "additionalProperties": false})
    };
    let numbers = json!({"type": "array", "items": {"type": "integer"}});
    let texts = json!({"type": "array", "items": text, "uniqueItems": true});
    let schemas = [
        of_items(text.clone()),
        of_items(object),
        of_items(lists),
        of_items(short),
        of_items(json!({})),
        of_items(json!({"enum": ["a", "aa", 1, true]})),
        // Of the two arrays only one has distinct items, and only that one has strings.
        json!({"anyOf": [closed(json!({"a": {"const": "a"}, "b": texts})),
            closed(json!({"a": {"const": "1"}, "b": numbers}))]}),
        json!({"type": "object", "patternProperties": {"^a": texts}, "additionalProperties": numbers}),
    ];
    let mut refused = 0;
    for (index, schema) in schemas.iter().enumerate() {
        for walk in 0..3 {
            let mut dice = Dice::new(index as u64 * 10 + walk);
            let mut state = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())).expect("a grammar");
            // The plain grammar allows the same arrays without `uniqueItems`.
            let plain = json!({"anyOf": [{"type": "array"}, {"type": "object"}]});
            let mut plain = vocabulary.compile(&GrammarSource::JsonSchema(plain)).expect("a grammar");
            for _ in 0..60 {
                // The state without a mask checks each token by itself.
                let fresh = state.clone();
                let (mask, any) = (state.mask().expect("a mask"), plain.mask().expect("a mask"));
                let (mask, any) = (mask.expect("bound"), any.expect("bound"));
                let mut may_come = Vec::new();
                for token in 0..vocabulary.num_tokens() as u32 {
                    let comes = fresh.clone().advance(token).is_ok();
                    let told = String::from_utf8_lossy(vocabulary.text(token));
                    assert_eq!(mask.allows(token), comes, "{told} in {schema}, walk {walk}");
                    refused += usize::from(any.allows(token) && !comes);
                    may_come.extend((comes && token != EOS && any.allows(token)).then_some(token));
                }
                // Bytes that came before are preferred, so that there is something to exclude.
                let likely = |&token: &u32| vocabulary.text(token).iter().all(|byte| b"a1\",[]{}:tru\\".contains(byte));
                let likely: Vec<u32> = may_come.iter().copied().filter(likely).collect();
                let list = if likely.is_empty() { &may_come } else { &likely };
                if list.is_empty() {
                    break;
                }
                let token = list[dice.below(list.len())];
                let is_open = state.advance(token).expect("it may come") == interbed_grammar::Standing::Open;
                if !is_open || plain.advance(token).is_err() {
                    break;
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}
