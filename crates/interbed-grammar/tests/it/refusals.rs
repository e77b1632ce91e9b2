//! Tests that keywords which cannot be enforced are refused, by keyword and place.

use interbed_grammar::{GrammarError, GrammarSource, TokenText, Vocabulary};
use serde_json::{Value, json};

use crate::{PIECES, bytes_and};

fn refused(source: GrammarSource) -> String {
    // The schema is compiled on a large stack, as callers do.
    let compile = move || bytes_and(&PIECES).compile(&source).map(drop).expect_err("refused").to_string();
    let thread = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
    thread.spawn(compile).unwrap().join().unwrap()
}

fn place_of(schema: &Value) -> String {
    match bytes_and(&PIECES).compile(&GrammarSource::JsonSchema(schema.clone())) {
        Err(GrammarError::Schema { place, .. }) => place,
        other => panic!("{schema} gives {other:?}"),
    }
}

#[test]
fn keywords_that_cannot_be_enforced_are_named_with_their_place() {
    for (keyword, value) in [
        ("not", json!({"format": "date"})),
        ("not", json!({"multipleOf": 2})),
        ("dependentRequired", json!([])),
        ("propertyNames", json!({"format": "date"})),
        ("unevaluatedItems", json!(false)),
        ("pattern", json!("a(?=b)")),
        ("pattern", json!("[\\x00-!]")),
        ("$ref", json!("https://example.com/schema")),
        ("$ref", json!("#/$defs/none")),
        ("$dynamicRef", json!("#a")),
        ("x-guidance", json!({"lenient": true})),
    ] {
        assert_eq!(place_of(&json!({keyword: value})), format!("#/{keyword}"));
        for (around, place) in [
            (json!({"properties": {"a/b": {keyword: value}}}), "#/properties/a~1b"),
            (json!({"items": {keyword: value}}), "#/items"),
            (json!({"anyOf": [{"type": "null"}, {keyword: value}]}), "#/anyOf/1"),
            (json!({"$ref": "#/$defs/d", "$defs": {"d": {keyword: value}}}), "#/$defs/d"),
            (
                json!({"additionalProperties": {"prefixItems": [{keyword: value}]}}),
                "#/additionalProperties/prefixItems/0",
            ),
        ] {
            assert_eq!(place_of(&around), format!("{place}/{keyword}"));
        }
    }
    let message = refused(GrammarSource::JsonSchema(json!({"properties": {"a": {"$recursiveRef": "#"}}})));
    assert_eq!(
        message,
        "#/properties/a/$recursiveRef of the schema: \"$recursiveRef\" cannot be enforced; leave it out"
    );
    for (schema, place) in [
        (json!({"unevaluatedProperties": false, "anyOf": [{}]}), "#/unevaluatedProperties"),
        (json!({"type": "array", "contains": {"format": "date"}, "maxContains": 2}), "#/contains"),
        (json!({"type": "array", "contains": {}, "minContains": 2000}), "#/contains"),
        (json!({"type": "array", "contains": {"const": 1}, "minContains": 2, "uniqueItems": true}), "#/contains"),
        (json!({"oneOf": [{"minLength": 1}, {"format": "date"}]}), "#/oneOf"),
        (json!({"if": {"format": "date"}, "then": false}), "#/if"),
        (json!({"not": {"uniqueItems": true}}), "#/not"),
        (json!({"not": {"additionalProperties": false}}), "#/not"),
        (json!({"items": {"$id": "https://e.x/a", "items": {"$ref": "#/x"}}, "x": {}}), "#/items/items/$ref"),
        (json!(false), "#"),
        (json!({"minItems": 9_000_000, "type": "array"}), "#/minItems"),
        // No value satisfies these schemas: the error names a keyword without which there are values.
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "#/minimum"),
        (json!({"items": {"const": {"a": [1]}}, "minItems": 2, "type": "array", "uniqueItems": true}), "#/items/const"),
        (json!({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"}), "#/properties/a/enum"),
        (json!({"allOf": [{"type": "string"}, {"type": "null"}]}), "#/allOf/0/type"),
        (
            json!({"$ref": "#/$defs/d", "$defs": {"d": {"minLength": 2, "maxLength": 1, "type": "string"}}}),
            "#/$defs/d/minLength",
        ),
    ] {
        assert_eq!(place_of(&schema), place, "{schema}");
    }
}

#[test]
fn what_references_lead_to_is_checked_wherever_it_is() {
    let within = |inner: Value| json!({"type": "array", "items": {"properties": {"p": inner}}});
    for (keyword, value) in [
        ("not", json!({"format": "date"})),
        ("propertyNames", json!({"format": "date"})),
        ("$dynamicRef", json!("#a")),
        ("pattern", json!("(")),
    ] {
        let asks = json!({keyword: value});
        let at = "items/properties/p";
        for (schema, place) in [
            (
                json!({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": asks}}}),
                "#/components/schemas/A",
            ),
            (json!({"items": {"$ref": "#/x/y"}, "x": {"y": within(asks.clone())}}), &*format!("#/x/y/{at}")),
            // The references go through another one, into a list, to data elsewhere, and within another reference's
            // target.
            (json!({"$ref": "#/x/0", "x": [{"items": {"$ref": "#/x/1"}}, asks]}), "#/x/1"),
            (json!({"$ref": "#/default", "default": asks}), "#/default"),
            (json!({"allOf": [{"$ref": "#/x"}, {"$ref": "#/x/a/b"}], "x": {"a": {"b": asks}}}), "#/x/a/b"),
            (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/y"}}, "y": asks}), "#/y"),
        ] {
            assert_eq!(place_of(&schema), format!("{place}/{keyword}"), "{schema}");
        }
    }
    // Schemas that nothing refers to are not read; a schema that refers to itself is read once.
    for schema in [
        json!({"x": {"$dynamicRef": "#"}, "type": "null"}),
        json!({"$ref": "#/x/y", "x": {"y": {"items": {"$ref": "#/x/y"}, "uniqueItems": false}}}),
    ] {
        bytes_and(&PIECES).compile(&GrammarSource::JsonSchema(schema)).unwrap();
    }
}

#[test]
fn what_asks_for_nothing_or_is_data_passes() {
    for schema in [
        json!({"uniqueItems": false, "deprecated": true, "title": "t", "x-order": 1}),
        json!({"nullable": true, "format": "color", "then": false, "else": false, "minContains": 3, "$anchor": "a"}),
        json!({"if": {"$ref": "#"}, "dependentRequired": {}, "dependentSchemas": {}, "propertyNames": {}, "id": "x"}),
        json!({"propertyNames": {"type": "string"}, "items": {"$id": "https://e.x/a"}, "unevaluatedItems": true}),
        json!({"$id": "https://e.x/s", "$ref": "https://e.x/s#/$defs/a~1b%20c", "$defs": {"a/b c": true}}),
        json!({"enum": [{"not": 1}], "default": {"if": 2}, "examples": [{"contains": 3}]}),
        json!({"properties": {"not": {"type": "string"}, "if": true, "format": {"const": 1}}}),
        json!({"$defs": {"n": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}),
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}}),
        json!(true),
    ] {
        bytes_and(&PIECES).compile(&GrammarSource::JsonSchema(schema)).unwrap();
    }
}

#[test]
fn what_is_not_valid_is_an_error() {
    for source in [
        GrammarSource::JsonSchema(json!({"type": "strin"})),
        GrammarSource::JsonSchema(json!({"type": "object", "required": ["a"], "properties": {"a": false}})),
        GrammarSource::JsonSchema(json!(7)),
        GrammarSource::JsonSchema(json!({"properties": []})),
        GrammarSource::JsonSchema(json!({"type": "string", "pattern": "("})),
        GrammarSource::JsonSchema(json!({"type": "string", "pattern": "(?=a)b"})),
        GrammarSource::JsonSchema(json!({"minLength": -1})),
        GrammarSource::Regex("(".into()),
        GrammarSource::Regex("\\1(a)".into()),
        GrammarSource::Choice(vec![]),
        GrammarSource::Lark(String::new()),
        GrammarSource::Lark("begin: \"a\"".into()),
        GrammarSource::Lark("start: <none>".into()),
        GrammarSource::Lark("start: missing".into()),
    ] {
        let what = source.what();
        let message = refused(source);
        assert!(message.contains("schema") || message.contains(what), "{message}");
        assert!(message.len() < 500 && !message.contains('\n'), "{message}");
    }
}

#[test]
fn there_are_limits() {
    let deep = (0..100).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    assert!(refused(GrammarSource::JsonSchema(deep)).contains("nested deeper"));
    let many: Vec<_> = (0..5000).map(|number| number.to_string()).collect();
    assert!(refused(GrammarSource::Choice(many)).contains("5000 texts"));
    assert!(refused(GrammarSource::Regex("a".repeat(300 << 10))).contains("bytes"));
    assert!(refused(GrammarSource::Regex("(".repeat(100) + &")".repeat(100))).contains("nested brackets"));
    let brackets = format!("start: {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert!(refused(GrammarSource::Lark(brackets)).contains("nested brackets"));
}

/// Tests that the memory of rules is counted before it is used, because a short source may become many rules.
#[test]
fn rules_are_counted_as_memory() {
    let names: serde_json::Map<_, _> = (0..60).map(|n| (n.to_string(), json!(true))).collect();
    let counted = json!({"properties": names, "minProperties": 50, "additionalProperties": false, "type": "object"});
    let objects: Vec<Value> = (0..1000).map(|n| json!({"a": n})).collect();
    let rules: String = (0..4000).map(|n| format!("r{n}: \"a\" r{}\n", n + 1)).collect();
    let sources = [
        (GrammarSource::JsonSchema(counted), 2 << 20, 8 << 20),
        (GrammarSource::JsonSchema(json!({"enum": objects})), 4 << 20, 16 << 20),
        (GrammarSource::Lark(format!("start: r0\n{rules}r4000: \"b\"\n")), 3 << 20, 24 << 20),
        (GrammarSource::JsonSchema(json!({"properties": {"a": {"type": "integer"}}})), 60 << 10, 1 << 20),
    ];
    for (source, little, enough) in sources {
        let compile = move || {
            let compiled = |memory| bytes_and(&PIECES).with_memory(memory).compile(&source).map(drop);
            assert_eq!(compiled(little), Err(GrammarError::NoMemory));
            assert_eq!(compiled(enough), Ok(()));
        };
        std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES).spawn(compile).unwrap().join().unwrap();
    }
}

#[test]
fn hostile_grammars_fail_or_work_and_end_in_time() {
    let sources = [
        GrammarSource::Regex("a?".repeat(5000)),
        GrammarSource::Regex("[ab][cd]?".repeat(5000)),
        GrammarSource::Regex("(a|b|ab)*c{1,1000}d{1,100000}".into()),
        GrammarSource::Regex("((((a{1,99}){1,99}){1,99}){1,99})".into()),
        GrammarSource::Lark("start: start start | \"a\" | ".into()),
        GrammarSource::Lark("start: a\na: b\nb: a | \"x\"".into()),
        GrammarSource::Lark(format!("start: {}", "\"a\"? ".repeat(5000))),
        GrammarSource::JsonSchema(json!({"allOf": vec![json!({"anyOf": vec![json!({"type": "string"}); 30]}); 30]})),
        GrammarSource::JsonSchema(json!({"type": "string", "minLength": 100_000, "maxLength": 10_000_000})),
        GrammarSource::JsonSchema(json!({"$ref": "#"})),
        GrammarSource::JsonSchema(json!({"type": "number", "multipleOf": 1e-300})),
    ];
    for source in sources {
        let walk = move || {
            let vocabulary = bytes_and(&PIECES);
            let Ok(mut state) = vocabulary.compile(&source) else { return };
            for _ in 0..200 {
                let Ok(mask) = state.mask() else { return };
                let mask = mask.expect("all of it is bound");
                let Some(token) = (0..300).rev().find(|&token| mask.allows(token)) else { return };
                if state.advance(token) != Ok(interbed_grammar::Standing::Open) {
                    return;
                }
            }
        };
        std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES).spawn(walk).unwrap().join().unwrap();
    }
}

/// Tests long chains of names and references. The library follows them by recursion, so they are the deepest nesting
/// that a text can cause.
#[test]
fn chains_of_names_are_refused_before_they_fill_the_stack() {
    let rules = |rule: fn(usize) -> String| move |count: usize| (0..count).map(rule).collect::<String>();
    let lark = rules(|n| format!("r{n}: \"a\" r{}\n", n + 1));
    let grouped = rules(|n| format!("r{n}: ((((\"a\" r{}))))\n", n + 1));
    let terminals = rules(|n| format!("R{n}: \"a\" R{}\n", n + 1));
    let ebnf = rules(|n| format!("r{n} ::= \"a\" r{}\n", n + 1));
    let nested = rules(|n| format!("r{n} ::= ((((\"a\" r{}))))\n", n + 1));
    let definitions = |count: usize| {
        let one = |n: usize| (format!("d{n}"), json!({"items": {"items": {"$ref": format!("#/$defs/d{}", n + 1)}}}));
        let mut all: serde_json::Map<_, _> = (0..count).map(one).collect();
        all.insert(format!("d{count}"), json!({"type": "null"}));
        json!({"$ref": "#/$defs/d0", "$defs": all})
    };
    let chains: [&dyn Fn(usize) -> GrammarSource; 7] = [
        &|n| GrammarSource::Lark(format!("start: r0\n{}r{n}: \"b\"\n", lark(n))),
        &|n| GrammarSource::Lark(format!("start: r0\n{}r{n}: \"b\"\n", grouped(n))),
        &|n| GrammarSource::Lark(format!("start: R0\n{}R{n}: \"b\"\n", terminals(n))),
        &|n| GrammarSource::Ebnf(format!("root ::= r0\n{}r{n} ::= \"b\"\n", ebnf(n))),
        &|n| GrammarSource::Ebnf(format!("root ::= r0\n{}r{n} ::= \"b\"\n", nested(n))),
        &|n| GrammarSource::Ebnf(format!("root ::= r0\n{}r{n} ::= \"b\"\n", nested(n)).replace('\n', " ")),
        &|n| GrammarSource::JsonSchema(definitions(n)),
    ];
    for (index, chain) in chains.into_iter().enumerate() {
        // The chains go from short ones to the limit of bytes; none may crash the process.
        let mut refused = false;
        for count in [10, 100, 500, 1000, 1600, 4000, 8000, 10_000] {
            let source = chain(count);
            let compile = move || bytes_and(&PIECES).compile(&source).map(drop);
            let stack = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
            let compiled = stack.spawn(compile).unwrap().join().unwrap();
            assert!(compiled.is_ok() || count > 100, "{index}: {count}: {compiled:?}");
            refused |= match compiled {
                Err(GrammarError::TooLarge { unit, .. }) => unit != "bytes",
                Err(GrammarError::Schema { problem, .. }) => problem.contains("levels behind references"),
                _ => false,
            };
        }
        assert!(refused, "{index}");
    }
}

#[test]
fn what_is_wrong_with_an_expression_is_told() {
    assert!(refused(GrammarSource::Regex("(".into())).contains("unclosed group"));
    let schema = json!({"type": "string", "pattern": "(?=a)b"});
    assert!(refused(GrammarSource::JsonSchema(schema)).contains("look-around"));
}

#[test]
fn as_many_choices_as_are_allowed_can_be_made() {
    let choices = GrammarSource::Choice((0..4096).map(|n| format!("{n:04}")).collect());
    let compile = move || {
        let mut state = bytes_and(&PIECES).compile(&choices).expect("a grammar");
        for byte in b"4095" {
            assert!(state.mask().expect("a mask").expect("bound").allows(u32::from(*byte)));
            let _ = state.advance(u32::from(*byte)).expect("allowed");
        }
    };
    std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES).spawn(compile).unwrap().join().unwrap();
}

#[test]
fn white_space_of_any_object_ends() {
    let compile = || {
        let mut state = bytes_and(&PIECES).compile(&GrammarSource::JsonObject).expect("a grammar");
        let _ = state.advance(u32::from(b'{')).expect("allowed");
        (0..100).take_while(|_| state.advance(u32::from(b'\n')).is_ok()).count()
    };
    let thread = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
    assert!(thread.spawn(compile).unwrap().join().unwrap() <= 1);
}

#[test]
fn a_vocabulary_without_text_is_refused() {
    assert!(Vocabulary::new(&[], &[]).is_err());
    assert!(Vocabulary::new(&[TokenText::Unknown, TokenText::Special("<s>".into())], &[1]).is_err());
    let long = [TokenText::Text(b"a".to_vec()), TokenText::Text(vec![b'a'; 5000])];
    let vocabulary = Vocabulary::new(&long, &[]).unwrap();
    let mut state = vocabulary.compile(&GrammarSource::Regex("a+".into())).unwrap();
    let mask = state.mask().unwrap().expect("bound");
    assert!(mask.allows(0) && !mask.allows(1));
}
