use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

fn functions() -> Vec<Function> {
    let parameters = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}}});
    let any = json!({"type": "object"});
    vec![Function { name: "weather".into(), parameters }, Function { name: "get_time-2".into(), parameters: any }]
}

/// How the template of each family writes a call.
fn written(family: &str, name: &str, arguments: &Map<String, Value>) -> String {
    let json = Value::Object(arguments.clone()).to_string();
    let raw = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match family {
        "hermes" => format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {json}}}\n</tool_call>"),
        "llama3" => format!("<|python_tag|>{{\"name\": \"{name}\", \"parameters\": {json}}}"),
        "mistral" => format!("[TOOL_CALLS]{name}[ARGS]{json}"),
        "deepseek" => format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>"),
        "qwen3-coder" => {
            let parameters: String = arguments
                .iter()
                .map(|(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value)))
                .collect();
            format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
        }
        "glm" => {
            let parameters: String = arguments
                .iter()
                .map(|(key, value)| format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", raw(value)))
                .collect();
            format!("<tool_call>{name}\n{parameters}</tool_call>")
        }
        other => panic!("{other}"),
    }
}

/// The parts of a text that comes in these pieces; texts that follow each other are one.
fn parts<'t>(family: &'static Family, pieces: impl Iterator<Item = &'t str>) -> Vec<Part> {
    let mut parser = ToolParser::new(family, functions());
    let mut all: Vec<Part> = pieces.flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    all.into_iter().fold(Vec::new(), |mut all, part| {
        match (all.last_mut(), part) {
            (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
            (_, part) => all.push(part),
        }
        all
    })
}

/// The parts of a whole text, which are the same however it is cut.
fn parsed(family: &'static Family, text: &str) -> Vec<Part> {
    let whole = parts(family, std::iter::once(text));
    for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
        let (one, other) = text.split_at(at);
        assert_eq!(parts(family, [one, other].into_iter()), whole, "{}: cut at {at} of {text:?}", family.name);
    }
    let mut rest = text;
    let characters = std::iter::from_fn(|| {
        let (one, other) = rest.split_at(rest.chars().next()?.len_utf8());
        rest = other;
        Some(one)
    });
    assert_eq!(parts(family, characters), whole, "{}: in characters: {text:?}", family.name);
    whole
}

fn called(name: &str, arguments: &Value) -> Part {
    Part::Call(ToolCall { name: name.into(), arguments: arguments.to_string() })
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn calls_are_read_back_with_text_before_and_between() {
    let one = json!({"city": "K\u{f6}ln </tool> \"x\" \\ {", "days": 3, "where": {"a": [1, "]}"]}});
    for family in FAMILIES {
        let first = written(family.name, "weather", &object(one.clone()));
        let second = written(family.name, "get_time-2", &Map::new());
        let expected = [called("weather", &one), called("get_time-2", &json!({}))];
        assert_eq!(parsed(family, &first), expected[..1], "{}", family.name);
        assert_eq!(parsed(family, &format!("{first}\n{second}")), expected, "{}", family.name);
        let text = |text: &str| Part::Text(text.into());
        let between = parsed(family, &format!("I look. {first} And: {second} Done <too"));
        let [call, other] = expected;
        assert_eq!(between, [text("I look. "), call, text("And: "), other, text("Done <too")], "{}", family.name);
    }
}

#[test]
fn what_is_no_call_is_text() {
    for family in FAMILIES {
        let call = written(family.name, "weather", &object(json!({"city": "a"})));
        for text in
            ["", "plain", "{", "a < b", "<tool", "[TOOL", "x <tool_call> y", "{\"a\": 1}", "{}}", "\u{e9}<\u{e9}"]
        {
            let all = parsed(family, text);
            assert!(all.iter().all(|part| matches!(part, Part::Text(_))), "{}: {text:?}", family.name);
            let told: String = all.iter().map(|part| if let Part::Text(text) = part { text } else { "" }).collect();
            assert_eq!(told, text, "{}", family.name);
        }
        // One that is not finished.
        for end in (1..call.len()).filter(|&end| call.is_char_boundary(end)) {
            for part in parts(family, std::iter::once(&call[..end])) {
                if let Part::Call(call) = part {
                    serde_json::from_str::<Map<String, Value>>(&call.arguments).expect("whole arguments");
                }
            }
        }
    }
}

#[test]
fn other_forms_of_the_same_families() {
    let call = called("weather", &json!({"city": "a"}));
    let of = |name| Family::named(name).expect("a family");
    let two = "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}, {\"name\": \"get_time-2\"}]";
    assert_eq!(parsed(of("mistral"), two), [call.clone(), called("get_time-2", &json!({}))]);
    let id = "[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{\"city\":\"a\"}";
    assert_eq!(parsed(of("mistral"), id), std::slice::from_ref(&call));
    let bare =
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"a\"}}; {\"name\": \"get_time-2\", \"parameters\": {}}";
    assert_eq!(parsed(of("llama3"), bare), [call.clone(), called("get_time-2", &json!({}))]);
    let block = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\":\"a\"}\n```\
        <｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    assert_eq!(parsed(of("deepseek"), block), [call]);
}

#[test]
fn templates_tell_their_family() {
    for (sign, name) in [
        ("<tool_call>\\n<function=example><parameter=a>", "qwen3-coder"),
        ("<tool_call>{name}<arg_key>k</arg_key><arg_value>", "glm"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call>{\"name\": n, \"arguments\": a}", "hermes"),
        ("<|start_header_id|> {\"name\": n, \"parameters\": p}", "llama3"),
    ] {
        assert_eq!(Family::of_template(sign).map(|family| family.name), Some(name));
        assert!(Family::named(name).is_some());
    }
    assert!(Family::of_template("{{ messages }}").is_none() && Family::named("none").is_none());
}

proptest! {
    #[test]
    fn any_arguments_are_read_back(
        texts in prop::collection::vec("[a-z<>/{}\\[\\]\"\\\\;\n \u{e9}]{0,12}", 1..4), number in any::<i32>(),
        pieces in prop::collection::vec(1usize..9, 1..20),
    ) {
        let city = texts[0].trim_matches('\n').to_owned();
        let arguments = json!({"city": city, "days": number, "where": {"list": texts}});
        for family in FAMILIES {
            let text = written(family.name, "weather", &object(arguments.clone()));
            let mut rest = text.as_str();
            let mut sizes = pieces.iter().copied().cycle();
            let cut = std::iter::from_fn(|| {
                let end = rest.ceil_char_boundary(sizes.next()?.min(rest.len()));
                let (one, other) = rest.split_at(end);
                rest = other;
                (!one.is_empty()).then_some(one)
            });
            prop_assert_eq!(parts(family, cut), [called("weather", &arguments)], "{}", family.name);
        }
    }
}
