//! Tests schemas whose parts contain or reference each other many times. Such schemas are read with little stack and
//! time, or refused.

use interbed_grammar::{GrammarError, checked_schema};
use serde_json::{Map, Value, json};

/// The stack size in bytes of threads that read schemas, which is the default of a thread.
const STACK_BYTES: usize = 2 << 20;

fn read(schema: Value) -> Result<(), GrammarError> {
    let read = move || checked_schema(&schema).map(drop);
    // Without limits, some of these schemas would never be read to the end, or would first exhaust memory.
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(read).unwrap().join().unwrap()
}

fn refused(schema: Value, problem: &str) {
    let message = read(schema).expect_err(problem).to_string();
    assert!(message.contains(problem), "{message}");
}

/// Returns definitions, each of which uses `nests` to contain a reference to the next one, with a type beside the
/// reference.
fn chain(count: usize, nests: impl Fn(Value) -> Value) -> Map<String, Value> {
    let link = |n: usize| json!({"type": "array", "$ref": format!("#/$defs/d{}", n + 1)});
    let mut all: Map<_, _> = (0..count).map(|n| (format!("d{n}"), nests(link(n)))).collect();
    all.insert(format!("d{count}"), json!({"type": "array"}));
    all
}

fn nested(levels: usize, keyword: &str, inner: Value) -> Value {
    (0..levels).fold(inner, |inner, _| json!({keyword: inner}))
}

#[test]
fn levels_of_all_that_is_put_together_are_limited() {
    let deep = |count| chain(count, |link| nested(40, "items", link));
    refused(json!({"$ref": "#/$defs/d0", "$defs": deep(60)}), "levels deep");
    read(json!({"$ref": "#/$defs/d0", "$defs": deep(2)})).expect("a schema");
    // The list begins with the last definition: none is read within another, but each contains all of the next one.
    let known: Vec<Value> = (0..60).rev().map(|n| json!({"type": "array", "$ref": format!("#/$defs/d{n}")})).collect();
    refused(json!({"prefixItems": known, "$defs": deep(60)}), "levels deep");
    // The nesting is by values of objects, and by alternatives.
    let objects = chain(100, |link| json!({"properties": {"a": nested(9, "additionalProperties", link)}}));
    refused(json!({"type": "object", "$ref": "#/$defs/d0", "$defs": objects}), "levels deep");
    let any = |inner: Value| (0..30).fold(inner, |inner, _| json!({"anyOf": [inner, {"allOf": [{"const": 1}]}]}));
    refused(json!({"$ref": "#/$defs/d0", "type": "array", "$defs": chain(60, any)}), "levels deep");
}

/// Tests every kind of nesting up to its limit. All processing must fit into a small stack.
#[test]
fn what_is_as_deep_as_is_allowed_is_read_with_little_stack() {
    for count in 1..=6 {
        for levels in [20, 24, 30, 31, 40, 60] {
            let lists = chain(count, |link| nested(levels, "items", link));
            let objects = |link| {
                (0..levels).fold(link, |inner, _| {
                    json!({"type": "object", "required": ["a"],
                "minProperties": 2, "patternProperties": {"^b": true}, "properties": {"a": inner}})
                })
            };
            let patterns = |link| (0..levels).fold(link, |inner, _| json!({"patternProperties": {"^b": inner}}));
            for defs in [lists, chain(count, objects), chain(count, patterns)] {
                let one = json!({"type": ["array", "object"], "$ref": "#/$defs/d0", "$defs": defs.clone()});
                let both = json!({"allOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}], "$defs": defs});
                for schema in [one, both] {
                    let result = read(schema).map_err(|error| error.to_string());
                    assert!(
                        result.is_ok() || result.as_ref().is_err_and(|error| error.contains("levels deep")),
                        "{result:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_in_others_many_times_is_looked_at_once() {
    let doubled = |inner: Value| json!({"properties": {"a": {}, "b": {}}, "patternProperties": {"^[ab]$": inner}});
    for leaf in [json!({"type": "null"}), json!(false), json!({"type": "object", "required": ["b"]})] {
        read((0..24).fold(leaf, |inner, _| doubled(inner))).expect("a schema");
    }
    let lists = |inner: Value| json!({"allOf": [{"prefixItems": [{}, {}], "minItems": 2}, {"items": inner}]});
    read((0..24).fold(json!({"type": "null"}), |inner, _| lists(inner))).expect("a schema");
    let none = |inner: Value| json!({"type": "object", "required": ["a", "b"], "patternProperties": {"": inner}});
    read((0..30).fold(json!(false), |inner, _| none(inner))).expect("a schema without values");
}

#[test]
fn what_is_copied_is_counted() {
    let texts: Vec<String> = (0..2000).map(|n| format!("{n:040}")).collect();
    let any = vec![json!({"$ref": "#/$defs/a"}); 300];
    let all: Vec<Value> = (0..300).map(|least| json!({"minLength": least})).collect();
    let _ = read(json!({"allOf": all, "anyOf": any, "$defs": {"a": {"enum": texts}}}));
    // Each of many objects has a long name, is at a place with a long name, or has many names.
    let objects = vec![json!({"properties": {"a": {}}}); 2000];
    refused(json!({"properties": {"n".repeat(100_000): {"anyOf": objects}}}), "combinations of its parts");
    let names: Map<String, Value> = (0..3000).map(|n| (format!("n{n}"), json!({}))).collect();
    let refs = |to: &str| vec![json!({"$ref": to}); 100];
    let (one, other) = (json!({"properties": names.clone()}), json!({"properties": names}));
    let defs = json!({"a": one, "b": other});
    let schema = json!({"anyOf": refs("#/$defs/a"), "allOf": [{"anyOf": refs("#/$defs/b")}], "$defs": defs});
    refused(schema, "combinations of its parts");
    let numbers: Vec<usize> = (0..30_000).collect();
    let _ = read(json!({"allOf": [{"enum": numbers}, {"enum": numbers}]}));
}

#[test]
fn patterns_are_matched_within_limits() {
    let states = "(a|b)*a(a|b){20}";
    let texts: Vec<String> = (0..40).map(|n: u32| "ab".repeat(500) + &format!("{n:030b}").replace('0', "a")).collect();
    let random = |seed: usize| -> String {
        (0..4000usize).map(|n| if (n * n * (seed + 7) / 13 + n * 31) % 7 < 3 { 'a' } else { 'b' }).collect()
    };
    let long: Vec<String> = (0..40).map(random).collect();
    let _ = read(json!({"enum": texts, "pattern": states}));
    let _ = read(json!({"enum": long, "pattern": format!("^{states}$")}));
    let names: Map<String, Value> = long.iter().map(|name| (name.clone(), json!({}))).collect();
    let _ = read(json!({"properties": names, "patternProperties": {states: {}}}));
    let many: Map<String, Value> = (0..400).map(|n| (format!("^{states}.{{{n},}}x"), json!({}))).collect();
    let names: Map<String, Value> = (0..2000).map(|n| (format!("{n:b}"), json!({}))).collect();
    refused(json!({"properties": names, "patternProperties": many}), "combinations of its parts");
    let classes = r"\p{L}".repeat(3000);
    refused(json!({"enum": ["a"], "pattern": classes}), "combinations of its parts");
}

#[test]
fn what_published_schemas_have_is_within_limits() {
    let names: Map<String, Value> = (0..3000).map(|n| (format!("name_{n}"), json!({"type": "string"}))).collect();
    let required: Vec<&String> = names.keys().collect();
    read(json!({"properties": names, "required": required, "additionalProperties": false})).expect("a schema");
    let texts: Vec<String> = (0..3000).map(|n| format!("a text with the number {n}")).collect();
    read(json!({"enum": texts, "type": "string", "minLength": 3, "pattern": "^a text"})).expect("a schema");
    let names: Map<String, Value> = (0..300).map(|n| (format!("x-{n}"), json!({"type": "string"}))).collect();
    let patterns: Map<String, Value> =
        (0..20).map(|n| (format!("^[a-z]+-{n}[0-9]$"), json!({"maxLength": n}))).collect();
    read(json!({"properties": names, "patternProperties": patterns})).expect("a schema");
    let numbers: Vec<usize> = (0..5000).collect();
    read(json!({"enum": numbers, "minimum": 4000})).expect("a schema");
}

#[test]
fn many_of_one_thing_are_read_in_time() {
    let many = |count: usize, one: &dyn Fn(usize) -> (String, Value)| (0..count).map(one).collect::<Map<_, _>>();
    let members = |n: usize| (format!("a{n}"), json!({"properties": {format!("b{n}"): {}}}));
    let bytes = |schema: Value| {
        assert!(schema.to_string().len() < 256 << 10);
        schema
    };
    let _ = read(bytes(json!({"patternProperties": many(2500, &members)})));
    let _ = read(bytes(json!({"properties": many(2500, &members), "patternProperties": {"^a": {}}})));
    let any: Vec<Value> = (0..2500).map(|n| members(n).1).collect();
    let _ = read(bytes(json!({"anyOf": any})));
    let _ = read(bytes(json!({"prefixItems": any})));
    let names: Vec<String> = (0..8000).map(|n| format!("a{n}")).collect();
    let _ = read(bytes(json!({"type": "object", "required": names})));
    let properties = many(4000, &|n| (format!("a{n}"), json!({})));
    let _ = read(bytes(json!({"type": "object", "required": names[..4000], "properties": properties})));
    let _ = read(bytes(json!({"enum": (0..16_000).collect::<Vec<_>>(), "type": ["integer", "number"]})));
    // Each definition refers to the next, in an order in which no end is known before all others were visited.
    let link = |n: usize| {
        (format!("d{n:05}"), json!({"prefixItems": [{"$ref": format!("#/$defs/d{:05}", n + 1)}], "minItems": 1}))
    };
    let mut all = many(1000, &link);
    all.insert("d01000".into(), json!(true));
    let refs: Vec<Value> = (0..1000).rev().map(|n| json!({"$ref": format!("#/$defs/d{n:05}")})).collect();
    let _ = read(bytes(json!({"anyOf": refs, "$defs": all})));
    // One place has many names.
    let refs: Vec<Value> = (0..1500).map(|n| json!({"$ref": format!("#/x/{:0n$}", 1, n = n % 40 + 1)})).collect();
    let inner: Vec<Value> = (0..1500).map(|n| json!({"const": n})).collect();
    let _ = read(bytes(json!({"prefixItems": refs, "x": [{}, {"prefixItems": inner}]})));
}
