use interbed_engine::{Constraint, GrammarSource, Vocabulary};
use interbed_grammar::TokenText;

use super::*;

/// The marks of the syntax, which are tokens 256 and on in a vocabulary that has them.
const MARKS: [&str; 3] = ["<|tool_call>", "<tool_call|>", QUOTE];

/// Compiles the grammar of calls of one function, over single bytes. With `has_marks`, marks are special tokens.
fn compiled(parameters: &Value, has_marks: bool) -> Constraint {
    let bytes = (0..=255).map(|byte| TokenText::Text(vec![byte]));
    let marks = MARKS.iter().filter(|_| has_marks).map(|mark| TokenText::Special((*mark).to_owned()));
    let mut tokens: Vec<TokenText> = bytes.chain(marks).collect();
    tokens.push(TokenText::Special("<eos>".into()));
    let eos = tokens.len() as u32 - 1;
    let vocabulary = Vocabulary::new(&tokens, &[eos]).expect("a vocabulary");
    let mark = |text: &str| match MARKS.iter().position(|mark| has_marks && *mark == text) {
        Some(index) => format!("<[{}]>", 256 + index),
        None => quoted(text),
    };
    let functions = [Function { name: "f".into(), parameters: parameters.clone() }];
    let calls = calls(&functions, |name| quoted(&format!("call:{name}")), &mark("<tool_call|>"), &mark);
    let source = GrammarSource::Lark(format!("start: call\n{calls}"));
    vocabulary.compile(&source).unwrap_or_else(|error| panic!("{error}: {calls}"))
}

/// Returns the tokens of a text.
fn tokens(mut text: &str, has_marks: bool) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let mark = MARKS.iter().position(|mark| has_marks && text.starts_with(mark));
        tokens.push(mark.map_or_else(|| u32::from(text.as_bytes()[0]), |index| 256 + index as u32));
        text = &text[mark.map_or(1, |index| MARKS[index].len())..];
    }
    tokens
}

#[test]
fn arguments_keep_to_their_schema() {
    let parameters = json!({
        "type": "object",
        "required": ["city", "days"],
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 20},
            "Exact": {"type": ["boolean", "null"]},
            "kind": {"enum": ["a", 2, null, ["b", {"c": "d"}]]},
            "list": {"type": "array", "items": {"$ref": "#/$defs/Pair"}, "minItems": 1, "maxItems": 2},
            "some": {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "number"}}]},
            "any": {},
        },
        "$defs": {"Pair": {"type": "object", "required": ["x"], "additionalProperties": false,
            "properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/Pair"}}}},
    });
    let parameters = checked(&parameters).expect("it can be enforced");
    let city = "city:<|\"|>K\n\"o\" {<|\"|>,days:3";
    for has_marks in [true, false] {
        let fresh = compiled(&parameters, has_marks);
        for (arguments, is_allowed) in [
            (city.to_owned(), true),
            (format!("{city},Exact:true"), true),
            (format!("{city},Exact:null,kind:<|\"|>a<|\"|>"), true),
            (format!("{city},kind:[<|\"|>b<|\"|>,{{c:<|\"|>d<|\"|>}}]"), true),
            (format!("{city},kind:2,list:[{{x:1.5}}]"), true),
            (format!("{city},list:[{{x:1}},{{next:{{next:{{x:0}},x:3}},x:-2e3}}]"), true),
            (format!("{city},some:<|\"|><|\"|>"), true),
            (format!("{city},some:{{a:1,b_2:2.5}}"), true),
            (format!("any:[1,<|\"|>a<|\"|>,{{b:[],c:{{}}}}],{city}"), true),
            ("city:<|\"|>a<|\"|>,days:21".into(), false),
            ("city:<|\"|>a<|\"|>,days:1.5".into(), false),
            ("city:<|\"|>a<|\"|>".into(), false),
            ("city:a,days:3".into(), false),
            ("days:3".into(), false),
            (String::new(), false),
            (format!("{city},other:1"), false),
            (format!("{city},kind:<|\"|>b<|\"|>"), false),
            (format!("{city},list:[]"), false),
            (format!("{city},list:[{{x:1}},{{x:1}},{{x:1}}]"), false),
            (format!("{city},list:[{{}}]"), false),
            (format!("{city},some:3"), false),
            // Keys come in the order of templates.
            ("days:3,city:<|\"|>a<|\"|>".into(), false),
        ] {
            let text = format!("call:f{{{arguments}}}<tool_call|>");
            let tokens = tokens(&text, has_marks);
            let mut constraint = fresh.clone();
            let taken = tokens.iter().take_while(|&&token| constraint.advance(token).is_ok()).count();
            let is_taken = taken == tokens.len() && constraint.may_end();
            assert_eq!(is_taken, is_allowed, "{has_marks}: {taken} tokens of {text}");
        }
    }
}

#[test]
fn arguments_of_unknown_form_are_any_object() {
    for (parameters, arguments, is_allowed) in [
        (json!({"type": "object"}), "{a:{b:[null,1]},c:<|\"|><|\"|>}", true),
        (json!({}), "{}", true),
        (json!({}), "[]", false),
        (json!({"type": "object", "additionalProperties": false}), "{}", true),
        (json!({"type": "object", "additionalProperties": false}), "{a:1}", false),
        (json!({"type": "object", "properties": {"a": {"type": "null"}}}), "{}", true),
        (json!({"type": "object", "properties": {"a": {"type": "null"}}}), "{a:null}", true),
        (json!({"type": "object", "properties": {}, "required": []}), "{}", true),
        (json!({"enum": [{"a": 1}, {"a": "b"}]}), "{a:<|\"|>b<|\"|>}", true),
        (json!({"enum": [{"a": 1}, {"a": "b"}]}), "{a:2}", false),
        (
            json!({"type": "object", "$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"const": 1}}}}}),
            "{a:1}",
            true,
        ),
    ] {
        let parameters = checked(&parameters).expect("it can be enforced");
        let text = format!("call:f{arguments}<tool_call|>");
        let mut constraint = compiled(&parameters, false);
        let tokens = tokens(&text, false);
        let taken = tokens.iter().take_while(|&&token| constraint.advance(token).is_ok()).count();
        assert_eq!(taken == tokens.len() && constraint.may_end(), is_allowed, "{taken} tokens of {text}");
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_place() {
    for (keywords, place) in [
        (json!({"required": ["z"]}), "#/required/0"),
        (json!({"minProperties": 1}), "#/minProperties"),
        (json!({"properties": {"a": {"uniqueItems": true}}}), "#/properties/a/uniqueItems"),
        (json!({"properties": {"a": {"prefixItems": [{}]}}}), "#/properties/a/prefixItems"),
        (json!({"properties": {"a": {"anyOf": [{}], "enum": [1]}}}), "#/properties/a/enum"),
        (json!({"properties": {"a": {"allOf": [{}, {}]}}}), "#/properties/a/allOf"),
        (json!({"properties": {"a/b:": {}}}), "#/properties/a~1b:"),
        (json!({"properties": {"a": {"type": "array", "items": {"not": {}}}}}), "#/properties/a/items/not"),
        (json!({"type": "array"}), "#/type"),
    ] {
        match checked(&keywords) {
            Err(GrammarError::Schema { place: told, .. }) => assert_eq!(told, place, "{keywords}"),
            other => panic!("{keywords}: {other:?}"),
        }
    }
}
