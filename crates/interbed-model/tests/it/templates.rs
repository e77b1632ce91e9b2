//! Prompts rendered by templates equal those that `transformers` and Python's `jinja2` rendered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use interbed_model::chat_template::{ChatTemplate, SpecialTokens, TemplateError};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Fixture {
    template: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    messages: Vec<Value>,
    add_generation_prompt: bool,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    kwargs: Map<String, Value>,
    expected: Option<String>,
    /// What the template says by `raise_exception`.
    expected_error: Option<String>,
}

#[test]
fn renderings_equal_those_of_transformers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let mut checked = 0;
    let mut different = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("the fixtures are part of the repository") {
        let path = entry.expect("the directory can be read").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("the fixture can be read");
        let fixture: Fixture = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let special = |key: &str, token: Option<String>| token.map(|token| (key.to_owned(), token));
        let tokens =
            [special("bos_token", fixture.bos_token), special("eos_token", fixture.eos_token)].into_iter().flatten();
        let rendered = ChatTemplate::new(&fixture.template, SpecialTokens { tokens: tokens.collect() })
            .and_then(|template| {
                let tools = fixture.tools.as_deref();
                template.render(&fixture.messages, tools, fixture.add_generation_prompt, &fixture.kwargs)
            })
            .map_err(|error| match error {
                TemplateError::Raised { message } => message,
                other => other.to_string(),
            });
        let expected = match (fixture.expected, fixture.expected_error) {
            (Some(text), None) => Ok(text),
            (None, Some(error)) => Err(error),
            _ => panic!("{name} must have either `expected` or `expected_error`"),
        };
        if rendered != expected {
            different.push(format!("{name}\n  expected {expected:?}\n  rendered {rendered:?}"));
        }
        checked += 1;
    }
    assert!(checked > 0, "no fixtures in {}", dir.display());
    assert!(different.is_empty(), "{} of {checked} differ:\n{}", different.len(), different.join("\n"));
}

/// A template of `tools/templates`, with what Python makes of it.
#[derive(Deserialize)]
struct Case {
    template: String,
    /// The text, unless Python raises an error.
    expected: Option<String>,
    error: Option<String>,
}

#[derive(Default)]
struct Tally {
    equal: usize,
    both_refuse: usize,
    /// What Python renders and we refuse, by reason.
    refused: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn compare(&mut self, case: &Case, context: &Map<String, Value>) {
        let rendered = ChatTemplate::new(&case.template, SpecialTokens::default()).and_then(|template| {
            let mut variables = context.clone();
            let messages = variables.remove("messages").and_then(|list| list.as_array().cloned()).unwrap_or_default();
            let tools = variables.remove("tools").and_then(|list| list.as_array().cloned());
            let generation = variables.remove("add_generation_prompt").is_some_and(|value| value == true);
            template.render(&messages, tools.as_deref(), generation, &variables)
        });
        match (&case.expected, rendered) {
            (Some(expected), Ok(text)) if *expected == text => self.equal += 1,
            (None, Err(_)) => self.both_refuse += 1,
            (Some(_), Err(error)) => {
                let reason = error.to_string();
                let reason = reason.split(" (line ").next().unwrap_or_default();
                *self.refused.entry(reason.to_owned()).or_default() += 1;
            }
            (expected, Ok(text)) => {
                let python = expected.as_ref().or(case.error.as_ref());
                self.wrong.push(format!("{:?}\n  Python {python:?}\n  here   {text:?}", case.template));
            }
        }
    }

    /// Ends the test where texts differ, or where much is refused that Python renders.
    fn check(&self) {
        let refused: usize = self.refused.values().sum();
        for (reason, count) in &self.refused {
            println!("{count:6} refused: {reason}");
        }
        let (equal, both, wrong) = (self.equal, self.both_refuse, self.wrong.len());
        println!("{equal} equal, {both} refused by Python too, {refused} refused, {wrong} different");
        assert!(self.wrong.is_empty(), "{wrong} differ:\n{}", self.wrong.join("\n"));
        assert!(equal > 0 && refused * 10 < equal, "{refused} are refused, and {equal} are equal");
    }
}

#[test]
fn every_kind_of_expression_and_statement_is_pythons() {
    #[derive(Deserialize)]
    struct Kinds {
        context: Map<String, Value>,
        cases: Vec<Case>,
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/template_kinds.json");
    let text = std::fs::read_to_string(path).expect("the fixture is part of the repository");
    let kinds: Kinds = serde_json::from_str(&text).expect("a fixture");
    let mut tally = Tally::default();
    for case in &kinds.cases {
        tally.compare(case, &kinds.context);
    }
    tally.check();
}

/// Templates that `tools/templates/generate.py` wrote into the folder that `INTERBED_TEMPLATES` names; without it there
/// is nothing to do. `.ci/nightly` runs it.
#[test]
fn generated_templates_are_rendered_as_python_renders_them() {
    #[derive(Deserialize)]
    struct Line {
        #[serde(flatten)]
        case: Case,
        context: Map<String, Value>,
    }
    let Some(folder) = std::env::var_os("INTERBED_TEMPLATES") else { return };
    let path = Path::new(&folder).join("templates.jsonl");
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut tally = Tally::default();
    for line in BufReader::new(file).lines() {
        let line: Line = serde_json::from_str(&line.expect("text")).expect("a case");
        tally.compare(&line.case, &line.context);
    }
    tally.check();
}
