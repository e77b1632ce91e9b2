//! Prompts rendered by real models' templates equal those that `transformers` rendered.

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
                template.render(&fixture.messages, tools, fixture.add_generation_prompt, &Map::new())
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
