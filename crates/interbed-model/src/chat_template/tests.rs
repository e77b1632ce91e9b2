use serde_json::json;

use super::*;

fn render(source: &str, messages: Json) -> Result<String, TemplateError> {
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    let tokens = SpecialTokens::of(&TokenizerConfig::from_json(config));
    let Json::Array(messages) = messages else { panic!("messages must be a list") };
    ChatTemplate::new(source, tokens)?.render(&messages, None, true, &Map::new())
}

#[test]
fn messages_and_special_tokens_are_rendered() {
    let source = "{{ bos_token }}{% for m in messages %}\n[{{ m['role'] }}] {{ m.content.strip() }}{{ eos_token }}\n\
                  {% endfor %}\n{% if add_generation_prompt %}[assistant]{% endif %}";
    let rendered = render(source, json!([{"role": "user", "content": " hi "}])).unwrap();
    assert_eq!(rendered, "<s>[user] hi</s>\n[assistant]");
}

#[test]
fn json_is_pythons() {
    let check = |source: &str, expected: &str| {
        let messages = json!([{"z": 1, "a": [1.5, true, null, "é<&'\"\n\u{1}"], "e": {}, "l": []}]);
        assert_eq!(render(source, messages).unwrap(), expected, "{source}");
    };
    check("{{ messages[0] | tojson }}", r#"{"z": 1, "a": [1.5, true, null, "é<&'\"\n\u0001"], "e": {}, "l": []}"#);
    check("{{ messages[0].a[:2] | tojson(indent=2) }}", "[\n  1.5,\n  true\n]");
    check("{{ {'b': {'c': 1}} | tojson(indent=4) }}", "{\n    \"b\": {\n        \"c\": 1\n    }\n}");
    check("{{ 'é😀' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\ude00""#);
    check("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=[',', ':']) }}", r#"{"a":2,"b":1}"#);
}

#[test]
fn numbers_are_printed_as_they_were_sent() {
    for number in ["1.0", "0.1", "-5", "1e400", "1E5", "-0.0", "-0", "1.50", "12345678901234567890123", "1e16", "1e+16"]
    {
        // Reading the text, or `json!`, would give exponents a sign.
        let sent = || Json::from(serde_json::Number::from_string_unchecked(number.to_owned()));
        let mut messages = json!([{"n": null, "l": []}]);
        (messages[0]["n"], messages[0]["l"]) = (sent(), Json::Array(vec![sent()]));
        let source = "{{ messages[0] | tojson }} {{ messages[0].l | tojson(indent=1) }}";
        let expected = format!("{{\"n\": {number}, \"l\": [{number}]}} [\n {number}\n]");
        assert_eq!(render(source, messages.clone()).unwrap(), expected);
        assert_eq!(render("{{ messages[0].n ~ '' }}", messages).unwrap(), number);
    }
    // Those that are written as Python writes them are numbers for a template.
    let messages = json!([{"n": 2, "f": 1.5, "b": 12_345_678_901_234_567_890_u64}]);
    let source = "{{ messages[0].n + 1 }} {{ messages[0].f * 2 }} {{ 'y' if messages[0].b is number }}";
    assert_eq!(render(source, messages).unwrap(), "3 3.0 y");
}

#[test]
fn a_template_tells_where_it_takes_the_system() {
    let places = |source: &str| {
        let tokens = SpecialTokens::of(&TokenizerConfig::from_json(json!({})));
        ChatTemplate::new(source, tokens).unwrap().system_places()
    };
    assert_eq!(places("{% for m in messages %}{{ m.content }}{% endfor %}"), SystemPlaces::Anywhere);
    let first = "{{ messages[0].content }}{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}\
                 {% endfor %}";
    assert_eq!(places(first), SystemPlaces::First);
    let none = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(places(none), SystemPlaces::Nowhere);
    assert_eq!(places("{{ messages | length }}"), SystemPlaces::Anywhere, "it shows nobody's text");
}

#[test]
fn generation_tags_change_nothing() {
    let with = "{% for m in messages %}\n  {%- generation -%}\n  {{ m.content }}\n  {% endgeneration %}\n.{% endfor %}";
    let without = "{% for m in messages %}\n  {%- if true -%}\n  {{ m.content }}\n  {% endif %}\n.{% endfor %}";
    let messages = json!([{"content": "a"}, {"content": "b"}]);
    assert_eq!(render(with, messages.clone()).unwrap(), render(without, messages).unwrap());
}

#[test]
fn raise_exception_carries_the_templates_words() {
    let error = render("{{ raise_exception('roles must alternate') }}", json!([])).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised { message } if message == "roles must alternate"), "{error}");
    assert!(error.is_about_messages());
}

#[test]
fn undefined_is_as_in_jinja() {
    assert_eq!(
        render("[{{ nothing }}{% for x in nothing %}{% endfor %}{{ 'y' if nothing else 'n' }}]", json!([])).unwrap(),
        "[n]"
    );
    let error = render("a\n{{ nothing.more }}", json!([])).unwrap_err();
    assert!(matches!(&error, TemplateError::Render { problem } if problem.contains("line 2")), "{error}");
}

#[test]
fn python_prints_what_it_prints() {
    assert_eq!(
        render("{{ true }} {{ none }} {{ [1, 'a'] }} {{ {'k': 1.0} }}", json!([])).unwrap(),
        "True None [1, 'a'] {'k': 1.0}"
    );
}

#[test]
fn hostile_templates_end_with_an_error() {
    let fuel = render(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a + b %}{% endfor %}{% endfor %}",
        json!([]),
    );
    assert!(matches!(fuel, Err(TemplateError::OutOfFuel { .. })), "{fuel:?}");

    let recursion = render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", json!([]));
    assert!(matches!(recursion, Err(TemplateError::Render { .. })), "{recursion:?}");

    for inner in ["[".repeat(140) + "m()" + &"]".repeat(140), "m()".to_owned() + &" + 1".repeat(900)] {
        let deep = render(&format!("{{% macro m() %}}{{{{ {inner} }}}}{{% endmacro %}}{{{{ m() }}}}"), json!([]));
        assert!(matches!(deep, Err(TemplateError::Render { .. })), "{deep:?}");
    }
    for long in ["x".to_owned() + &".a".repeat(400_000), "x".to_owned() + &"|a".repeat(400_000)] {
        assert!(matches!(render(&format!("{{{{ {long} }}}}"), json!([])), Err(TemplateError::Syntax { .. })));
    }

    let output = render("{% set x = 'x' * 1000000 %}{% for a in range(1000) %}{{ x }}{% endfor %}", json!([]));
    assert!(matches!(output, Err(TemplateError::OutputTooLarge { limit: MAX_OUTPUT_BYTES })), "{output:?}");

    let nesting = "{{ ".to_owned() + &"(".repeat(100_000) + "1" + &")".repeat(100_000) + " }}";
    assert!(matches!(render(&nesting, json!([])), Err(TemplateError::Syntax { .. })));

    let deep_value = "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ \
                      ns.x | tojson }}";
    assert!(matches!(render(deep_value, json!([])), Err(TemplateError::Excessive { .. })));

    let long = " ".repeat(MAX_SOURCE_BYTES + 1);
    assert!(matches!(render(&long, json!([])), Err(TemplateError::SourceTooLarge { .. })));
    assert!(matches!(render("{% if %}", json!([])), Err(TemplateError::Syntax { .. })));
}

#[test]
fn templates_are_found_where_models_keep_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let load = || ChatTemplate::from_dir(path);
    assert!(matches!(load(), Err(TemplateError::Missing { .. })));

    let named = json!({"bos_token": "B", "chat_template": [
        {"name": "default", "template": "{{ bos_token }} plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]});
    std::fs::write(path.join("tokenizer_config.json"), named.to_string()).unwrap();
    let template = load().unwrap();
    assert_eq!(template.render(&[], None, false, &Map::new()).unwrap(), "B plain");
    assert_eq!(template.render(&[], Some(&[json!({})]), false, &Map::new()).unwrap(), "1 tools");

    std::fs::write(path.join("chat_template.jinja"), "from the file, {{ extra }}\n").unwrap();
    let kwargs = Map::from_iter([("extra".to_owned(), json!("with more"))]);
    assert_eq!(load().unwrap().render(&[], None, false, &kwargs).unwrap(), "from the file, with more");
    std::fs::create_dir(path.join("additional_chat_templates")).unwrap();
    std::fs::write(path.join("additional_chat_templates/tool_use.jinja"), "for tools").unwrap();
    assert_eq!(load().unwrap().render(&[], Some(&[json!({})]), false, &kwargs).unwrap(), "for tools");
    assert_eq!(load().unwrap().render(&[], None, false, &kwargs).unwrap(), "from the file, with more");
}

#[test]
fn a_template_in_a_file_of_json_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let file = |name: &str, content: Json| std::fs::write(path.join(name), content.to_string()).unwrap();
    let render = |tools: Option<&[Json]>| ChatTemplate::from_dir(path)?.render(&[], tools, false, &Map::new());
    file("chat_template.json", json!({"chat_template": "{{ bos_token }}alone"}));
    assert_eq!(render(None).unwrap(), "alone");
    // The older file of special tokens has what templates write.
    file("special_tokens_map.json", json!({"bos_token": {"content": "<s>"}}));
    assert_eq!(render(None).unwrap(), "<s>alone");
    let named = |default: &str, tools: &str| {
        let entry = |name: &str, template: &str| json!({"name": name, "template": template});
        json!([entry("default", default), entry("tool_use", tools)])
    };
    file("chat_template.json", json!({"chat_template": named("plain", "tools")}));
    assert_eq!((render(None).unwrap(), render(Some(&[])).unwrap()), ("plain".into(), "tools".into()));
    // The tokenizer's own wins; one without a default is none.
    file("tokenizer_config.json", json!({"chat_template": [{"name": "rag", "template": "no"}]}));
    assert_eq!(render(None).unwrap(), "plain");
    file("tokenizer_config.json", json!({"chat_template": "of the tokenizer"}));
    assert_eq!(render(None).unwrap(), "of the tokenizer");
    std::fs::remove_file(path.join("tokenizer_config.json")).unwrap();
    file("chat_template.json", json!({"audio_tokenizer": 1}));
    assert!(matches!(render(None), Err(TemplateError::Missing { .. })));
    std::fs::write(path.join("chat_template.json"), "{").unwrap();
    assert!(matches!(render(None), Err(TemplateError::Syntax { .. })));
}

#[test]
fn line_ends_are_line_feeds_wherever_a_template_lies() {
    let source = "{% for message in messages %}\r\n{{ message.content }}\r\n{% endfor %}\r{{ 'a\r\nb' }}\r\n";
    let messages = [json!({"content": "kept\r\n as sent"})];
    let expected = "kept\r\n as sent\na\nb";
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"chat_template": source}).to_string();
    for (name, content) in
        [("chat_template.json", &*config), ("tokenizer_config.json", &config), ("chat_template.jinja", source)]
    {
        std::fs::write(dir.path().join(name), content).unwrap();
        let rendered = ChatTemplate::from_dir(dir.path()).unwrap().render(&messages, None, false, &Map::new());
        assert_eq!(rendered.unwrap(), expected, "{name}");
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let tools = ChatTemplate::with_tool_template("", Some("a\r\nb\rc"), SpecialTokens::default()).unwrap();
    assert_eq!(tools.render(&[], Some(&[]), false, &Map::new()).unwrap(), "a\nb\nc");
}

#[test]
fn strings_have_pythons_methods() {
    for (expression, expected) in [
        ("'xax'.removeprefix('x') ~ 'xax'.removesuffix('x')", "axxa"),
        ("'a=b=c'.partition('=')", "('a', '=', 'b=c')"),
        ("'a=b=c'.rpartition('=')", "('a=b', '=', 'c')"),
        ("'abc'.partition('=')", "('abc', '', '')"),
        ("'abc'.rpartition('=')", "('', '', 'abc')"),
        ("'a b c'.rsplit(' ', 1)", "['a b', 'c']"),
        ("'a b c'.rsplit(' ')", "['a', 'b', 'c']"),
        ("'-5'.zfill(4) ~ 'abc'.zfill(2)", "-005abc"),
        ("'a b'.split() ~ ' x '.strip()", "['a', 'b']x"),
    ] {
        assert_eq!(render(&format!("{{{{ {expression} }}}}"), json!([])).unwrap(), expected, "{expression}");
    }
    assert!(matches!(render("{{ 'a'.partition('') }}", json!([])), Err(TemplateError::Render { .. })));
    assert!(matches!(render("{{ 'a'.nothing() }}", json!([])), Err(TemplateError::Render { .. })));
}

#[test]
fn templates_cannot_fill_memory() {
    let doubled = |step: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1]) %}}{{% for i in range(60) %}}{step}{{% endfor %}}\
             {{{{ ns.x | length }}}}"
        )
    };
    let doublings = [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = 2 * ns.x %}",
        "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x | replace('a', 'aa') %}",
        "{% set ns.x = ns.x.replace('a', 'aa') %}",
        "{% set ns.x = ns.x.replace('', 'a') %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}",
        "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = (ns.l, ns.l) %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 2 %}",
        "{% set ns.l = dict(a=ns.l, b=ns.l) %}",
        "{% set ns.l = [ns.l, ns.l] | sum(start=[]) %}{% set ns.l = [ns.l] + [ns.l] %}",
        "{% set ns.l = [ns.l] | map('list') | list + [ns.l] %}",
    ];
    let once = [
        "{{ 'a\nb' | indent(1000000000000) }}",
        "{{ 'a\nb' | indent(width=1000000000000) }}",
        "{{ ('a\n' * 1000000) | indent(1000) }}",
        "{{ 'x' * 99999999 }}",
        "{{ ((('x' * 9999) * 9999) * 9999) * 9999 }}",
        "{{ (1, 2) * 50000000 }}",
        "{{ [1, 2] * 50000000 }}",
        "{{ ['a', 'b'] | batch(1000000000000, 'x') }}",
        "{{ ['a', 'b'] | slice(1000000000000, 'x') }}",
        "{{ ('a' * 1000000) | join('b' * 1000) }}",
        "{{ ('b' * 1000).join('a' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
        "{{ ('a' * 9000000) | list | length }}",
        "{{ ('a' * 9000000).split('a') | length }}",
        "{{ ('a' * 9000000).rsplit('a') | length }}",
        "{{ 'a'.center(1000000000000) }}",
        "{{ ('\\t' * 1000000).expandtabs(4000) }}",
        "{{ '{:>1000000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000000) }}",
        "{{ '{:.1000000000000f}'.format(1.5) }}",
        "{{ '%1000000000000d' | format(1) }}",
        "{{ '%*d' | format(1000000000000, 1) }}",
        "{{ ('{0}' * 100000).format('a' * 100000) }}",
        "{{ (['a' * 1000] * 1000) | map('indent', 1000000) | list | length }}",
        "{{ (['ab'] * 1000) | map('join', 'x' * 30000000) | list | length }}",
        "{{ 'a'.zfill(1000000000000) | length * 1000000000000 * 'x' }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = namespace(b=ns) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = {'x': ns} %}{{ ns == ns.a }}",
        "{{ debug() }}",
    ];
    let sources = doublings.map(doubled).into_iter().chain(once.map(str::to_owned));
    for source in sources {
        let began = std::time::Instant::now();
        let before = peak_resident();
        let rendered = render(&source, json!([]));
        let grown = peak_resident().saturating_sub(before);
        let error = rendered.map(|text| text.len()).expect_err(&source);
        assert!(error.is_about_messages(), "{source}: {error}");
        assert!(error.to_string().len() < 2200, "{source}");
        assert!(grown < 1 << 30, "{source}: {} MiB", grown >> 20);
        assert!(began.elapsed().as_secs() < 60, "{source}: {:?}", began.elapsed());
    }
}

#[test]
fn values_cannot_stand_on_a_million_others() {
    for step in [
        "ns.x[0:]",
        "ns.x | reverse | list",
        "ns.x | map('string') | list",
        "(ns.x + [])",
        "ns.x | list",
        "ns.m.items()",
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[], m={{}}) %}}\
             {{% for a in range(90000) %}}{{% set ns.x = {step} %}}{{% endfor %}}\
             {{{{ ns.x | length }}}}"
        );
        assert_eq!(render(&source, json!([])).unwrap(), "0", "{step}");
    }
    let long_sum = "{{ 1".to_owned() + &" + 1".repeat(200_000) + " }}";
    assert!(matches!(render(&long_sum, json!([])), Err(TemplateError::Syntax { .. })));
    let raw = "{% for a in range(90000) %}{% set x %}".to_owned() + &"y".repeat(100_000) + "{% endset %}{% endfor %}";
    assert!(matches!(render(&raw, json!([])), Err(TemplateError::OutputTooLarge { .. })));
    for other in ["{% include 'default' %}", "{% extends 'default' %}", "{% import 'default' as x %}"] {
        assert!(matches!(render(other, json!([])), Err(TemplateError::Syntax { .. })), "{other}");
    }
}

#[test]
fn slow_steps_end_in_time() {
    let began = std::time::Instant::now();
    let slow = "{% set x = range(100000) | list %}{% for a in range(100000) %}{% set y = 'a' in x %}{% endfor %}";
    let error = render(slow, json!([])).unwrap_err();
    assert!(matches!(&error, TemplateError::Excessive { excess } if excess.contains("20 s")), "{error}");
    assert!(began.elapsed().as_secs() < 60);
}

#[test]
fn bounded_operations_are_jinjas() {
    for (expression, expected) in [
        ("'ab' * 3 ~ 2 * 'c'", "abababcc"),
        ("'ab' * -1", ""),
        ("[1, 2] * 2", "[1, 2, 1, 2]"),
        ("(1, 2) * 2", "(1, 2, 1, 2)"),
        ("[] * 1000000000000 ~ '' * 1000000000000", "[]"),
        ("2 * 3 * 1.5", "9.0"),
        ("[1] + [2] + [3]", "[1, 2, 3]"),
        ("'a\\nb' | indent(2)", "a\n  b"),
        ("'a\\nb' | indent(width=2, first=true)", "  a\n  b"),
        ("['a', 'b'] | join('-')", "a-b"),
        ("['a', 'b'] | join(d='-')", "a-b"),
        ("[{'n': 'a'}, {'n': 'b'}] | join(', ', attribute='n')", "a, b"),
        ("[{'n': 'a'}, {'n': 'b'}] | map(attribute='n') | join", "ab"),
        ("['a', 'b'] | map('upper') | list", "['A', 'B']"),
        ("[1, 2, 3] | select('odd') | list", "[1, 3]"),
        ("[1, 2, 3] | reject('odd') | list", "[2]"),
        ("[{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'b') | list | length", "1"),
        ("[{'r': 'a'}, {'r': 'b'}] | rejectattr('r', 'in', ['a', 'b']) | list | length", "0"),
        ("'%s-%05d' | format('a', 42)", "a-00042"),
        ("'{} {:>3}'.format('a', 1)", "a   1"),
        ("'aXbX'.replace('X', 'yy')", "ayybyy"),
        ("'aXbX'.replace('X', 'y', 1)", "aybX"),
        ("'aXbX' | replace('X', 'y')", "ayby"),
        ("'a\\nb'.splitlines()", "['a', 'b']"),
        ("['b', 'a', 'b'] | unique | sort | join", "ab"),
        ("[1, 2] | sum", "3"),
        ("[1, 2, 3] | batch(2) | list", "[[1, 2], [3]]"),
        ("'abc'[::-1] ~ [1, 2, 3][1:]", "cba[2, 3]"),
        ("{'a': 1}.items() | list", "[('a', 1)]"),
    ] {
        assert_eq!(render(&format!("{{{{ {expression} }}}}"), json!([])).unwrap(), expected, "{expression}");
    }
    let recursive = "{% for n in [[1], [2, [3]]] recursive %}{% if n is iterable %}[{{ loop(n) }}]{% else %}{{ n }}\
                     {% endif %}{% endfor %}";
    assert_eq!(render(recursive, json!([])).unwrap(), "[1][2[3]]");
    let called = "{% macro m(a, b='x') %}<{{ a }}{{ b }}{{ caller() }}>{% endmacro %}{% call m('1') %}in{% endcall %}";
    assert_eq!(render(called, json!([])).unwrap(), "<1xin>");
    let block =
        "{% block b %}{{ 'x' }}{% endblock %}{% filter upper %}a{% endfilter %}{% set (a, b) = (1, 2) %}{{ b }}";
    assert_eq!(render(block, json!([])).unwrap(), "xA2");
}

/// Returns the most memory that this process has had resident, in bytes.
fn peak_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

#[test]
fn arguments_come_in_the_form_that_the_template_shows_best() {
    let calls = |inner: &str| {
        format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content or '' }}}}{{% for c in m.tool_calls or [] %}}\
             {inner}{{% endfor %}}{{% endfor %}}"
        )
    };
    let pairs = "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}";
    for (inner, expected) in [
        ("<tool_call>{{ c.function | tojson }}</tool_call>", ArgumentsForm::Object),
        ("{{ c.function.name }} {{ c.function.arguments | tojson }}", ArgumentsForm::Object),
        (pairs, ArgumentsForm::Object),
        (
            "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}\
             {{ c.function.arguments | tojson }}{% endif %}",
            ArgumentsForm::Object,
        ),
        ("{{ '<sep>' + c.function.arguments + '<end>' }}", ArgumentsForm::Text),
        ("{{ c.function.name }}", ArgumentsForm::Object),
        ("{{ raise_exception('no calls') }}", ArgumentsForm::Object),
        (
            "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}\
             {{ '<sep>' + c.function.arguments + '<end>' }}",
            ArgumentsForm::Text,
        ),
        // Brackets of the template's own, with members in a form of its own or a text as it comes.
        (
            "{% if c.function.arguments is mapping %}{{ '{' }}{% for k, v in c.function.arguments | items %}\
             {{ k }}:'{{ v }}',{% endfor %}{{ '}' }}{% else %}{{ '{' ~ c.function.arguments ~ '}' }}{% endif %}",
            ArgumentsForm::Object,
        ),
    ] {
        let template = ChatTemplate::new(&calls(inner), SpecialTokens::default()).expect("a template");
        assert_eq!(template.arguments_form(), expected, "{inner}");
    }
}

#[test]
fn results_come_where_the_template_shows_them() {
    let form = |of_message: &str| {
        let source = format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content or '' }}}}{{% for c in m.tool_calls or [] %}}\
             {{{{ c.function | tojson }}}}{{% endfor %}}{of_message}{{% endfor %}}"
        );
        ChatTemplate::new(&source, SpecialTokens::default()).expect("a template").results_form()
    };
    let own = "{% for r in m.tool_responses or [] %}({{ r.name }}: {{ r.response }}){% endfor %}";
    assert_eq!(form(""), ResultsForm::Messages);
    assert_eq!(form(own), ResultsForm::WithCalls);
    assert_eq!(
        form(&format!("{{% if m.role == 'tool' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{own}")),
        ResultsForm::WithCalls
    );
    // Where both are shown alike, messages stay as they are sent.
    let fixture = include_str!("../../tests/fixtures/templates/dictionaries.json");
    let fixture: Json = serde_json::from_str(fixture).expect("JSON");
    let source = fixture["template"].as_str().expect("a template");
    let template = ChatTemplate::new(source, SpecialTokens::default()).expect("a template");
    assert_eq!((template.results_form(), template.arguments_form()), (ResultsForm::Messages, ArgumentsForm::Object));
}

#[test]
fn calls_have_the_content_with_which_the_template_shows_them() {
    let shown = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}";
    for (inner, expected, beside_text) in [
        ("{{ m.content }}CALLS", NoContent::Empty, true),
        ("{{ '' + m.content }}CALLS", NoContent::Empty, true),
        ("{{ m.content or '' }}CALLS", NoContent::Empty, true),
        ("{% if m.content is not none %}{{ m.content }}{% endif %}CALLS", NoContent::Empty, true),
        ("{% if m.content is none %}CALLS{% else %}{{ m.content }}{% endif %}", NoContent::Null, false),
        (
            "{% if m.content is string and m.tool_calls %}{{ raise_exception('both') }}{% endif %}CALLS",
            NoContent::Null,
            false,
        ),
        ("{% if 'content' in m %}{{ m.content }}{% else %}CALLS{% endif %}", NoContent::Absent, false),
        ("{{ m.content }}", NoContent::Empty, true),
        ("{{ raise_exception('no calls') }}", NoContent::Empty, true),
        // One call at a time, and its arguments as a text.
        (
            "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}\
             {% if m.content is none %}{{ '<' + m.tool_calls[0].function.arguments + '>' }}{% else %}\
             {{ m.content }}{% endif %}",
            NoContent::Null,
            false,
        ),
    ] {
        let source = format!("{{% for m in messages %}}{}{{% endfor %}}", inner.replace("CALLS", shown));
        let template = ChatTemplate::new(&source, SpecialTokens::default()).expect("a template");
        assert_eq!((template.no_content(), template.shows_calls_beside_text()), (expected, beside_text), "{inner}");
    }
}
