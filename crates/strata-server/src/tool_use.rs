//! Calls of tools: what a chat asks for, and what becomes of its answers.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use strata_engine::{GrammarSource, Marker, Trigger, checked_schema};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, is_text, read, sent, shown};
use crate::openapi;
use crate::sampling::{Common, random};
use crate::structured::compile;
use crate::tool_calls::{Family, Function, Part, ToolCall, ToolParser, tool_parsers};

/// The fields that say how tools are called.
pub(crate) fn tools_part() -> openapi::Part {
    openapi::part!(Fields<'_>)
}

#[derive(Deserialize)]
struct Fields<'b> {
    tools: Option<Field<Vec<Value>>>,
    #[serde(borrow)]
    tool_choice: Option<&'b RawValue>,
    parallel_tool_calls: Option<Field<bool>>,
}

/// What a chat says of tools that its answers may call.
pub(crate) struct ToolUse {
    family: &'static Family,
    functions: Vec<Function>,
    /// Whether an answer may have several calls.
    parallel: bool,
}

/// What has to be called.
enum Choice {
    /// What the model likes.
    Auto,
    Required,
    Named(String),
}

/// The tools of a chat, in which each has been checked; `None` where no answer is to call one, or where it is not known
/// how this model writes calls. Binds the answers of `common` to the form of calls, from the first token or from the
/// marker of a call on. Blocking, and CPU-bound.
///
/// # Errors
/// A choice that cannot be kept to, or beside another constraint; a schema of arguments that cannot be enforced.
pub(crate) fn tool_use(app: &App, body: &[u8], common: &mut Common) -> Result<Option<ToolUse>, ApiError> {
    let fields: Fields<'_> = read(body)?;
    let tools = sent(fields.tools).unwrap_or_default();
    let Some(choice) = choice(fields.tool_choice, &tools)? else { return Ok(None) };
    let source = app.template.as_ref().map_or("", |template| template.source());
    let named = app.config.tool_parser.as_deref().and_then(Family::named);
    let Some(family) = named.or_else(|| Family::of_template(source)) else {
        if matches!(choice, Choice::Auto) {
            return Ok(None);
        }
        let message = format!(
            "tool_choice asks for a call, but this model's chat template does not tell how it writes calls; start the \
             server with --tool-parser, one of {}",
            tool_parsers().join(", ")
        );
        return Err(ApiError::invalid("tool_choice", message));
    };
    if common.constraint.is_some() {
        let message = "response_format, structured_outputs and guided_* cannot go with tools that may be called; send \
                       tool_choice \"none\", or leave one of them out";
        return Err(ApiError::invalid("tools", message));
    }
    let parallel = sent(fields.parallel_tool_calls).unwrap_or(true);
    let functions: Vec<Function> = tools.iter().map(function).collect();
    let callable: Vec<Function> = match &choice {
        Choice::Named(name) => functions.iter().filter(|function| function.name == *name).cloned().collect(),
        _ => functions.clone(),
    };
    let is_strict = tools.iter().any(|tool| tool["function"]["strict"] == true);
    let marker = family.marker();
    common.constraint = Some(match choice {
        Choice::Auto => {
            let bound = |functions: &[Function]| {
                let source = GrammarSource::Lark(format!("start: call\n{}", family.grammar(&checked(functions)?)));
                compile(app, &source, "tools", |vocabulary, source| {
                    vocabulary.compile_after(Trigger::new(markers(family)), source, parallel)
                })
            };
            match bound(&callable) {
                // A schema that cannot be enforced says what is wanted, but an optional call need not keep to it.
                Err(_) if !is_strict => bound(&callable.iter().map(Function::with_any_arguments).collect::<Vec<_>>())?,
                bound => bound?,
            }
        }
        Choice::Required | Choice::Named(_) => {
            let opening = match app.tokenizer.id_of(marker).filter(|&id| app.tokenizer.is_special(id)) {
                _ if family.needs_no_marker() => String::new(),
                Some(id) => format!("<[{id}]>"),
                None => Value::from(marker).to_string(),
            };
            let more = match parallel && !family.needs_no_marker() && !matches!(choice, Choice::Named(_)) {
                true => format!(" (\"\\n\"? {opening} call)*"),
                false => String::new(),
            };
            let source = format!("start: {opening} call{more}\n{}", family.grammar(&checked(&callable)?));
            compile(app, &GrammarSource::Lark(source), "tools", |vocabulary, source| vocabulary.compile(source))?
        }
    });
    let is_special = |text| app.tokenizer.id_of(text).is_some_and(|id| app.tokenizer.is_special(id));
    if is_special(marker) {
        common.text.skip_special_tokens = false;
    }
    Ok(Some(ToolUse { family, functions, parallel }))
}

fn choice(raw: Option<&RawValue>, tools: &[Value]) -> Result<Option<Choice>, ApiError> {
    let refuse = |problem: &str| Err(ApiError::invalid("tool_choice", format!("tool_choice {problem}")));
    let choice = match raw {
        None => Choice::Auto,
        Some(raw) if is_text(raw, "auto") => Choice::Auto,
        Some(raw) if is_text(raw, "none") => return Ok(None),
        Some(raw) if is_text(raw, "required") => Choice::Required,
        Some(raw) => {
            let choice: Map<String, Value> = serde_json::from_str(raw.get()).unwrap_or_default();
            let name = choice.get("function").and_then(|function| function["name"].as_str());
            let Some(name) = name.filter(|_| choice.get("type").is_some_and(|kind| kind == "function")) else {
                return refuse(&format!(
                    "is {}, but must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \"function\": \
                     {{\"name\": …}}}}",
                    shown(raw.get())
                ));
            };
            if !tools.iter().any(|tool| tool["function"]["name"] == name) {
                return refuse("names a function that is not among the tools");
            }
            Choice::Named(name.to_owned())
        }
    };
    match choice {
        Choice::Auto if tools.is_empty() => Ok(None),
        Choice::Required if tools.is_empty() => refuse("is \"required\", but there are no tools"),
        choice => Ok(Some(choice)),
    }
}

fn function(tool: &Value) -> Function {
    let function = &tool["function"];
    let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
    Function {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
    }
}

/// The functions with schemas that grammars may have.
fn checked(functions: &[Function]) -> Result<Vec<Function>, ApiError> {
    let one = |function: &Function| {
        let refused = |error| ApiError::invalid("tools", format!("the parameters of {}: {error}", function.name));
        let parameters = checked_schema(&function.parameters).map_err(refused)?;
        Ok(Function { name: function.name.clone(), parameters })
    };
    functions.iter().map(one).collect()
}

/// What a call begins with, to the constraint of an answer.
fn markers(family: &Family) -> Vec<Marker> {
    let mut markers = vec![Marker { text: family.marker().to_owned(), at_start: false, included: false }];
    if family.needs_no_marker() {
        markers.push(Marker { text: "{\"name\"".into(), at_start: true, included: true });
    }
    markers
}

impl ToolUse {
    /// A parser for one answer.
    pub(crate) fn answer(&self) -> ToolAnswer {
        let parser = ToolParser::new(self.family, self.functions.clone());
        ToolAnswer { parser, calls: 0, most: if self.parallel { usize::MAX } else { 1 }, family: self.family.name }
    }
}

/// One answer, as it comes.
pub(crate) struct ToolAnswer {
    parser: ToolParser,
    calls: usize,
    most: usize,
    family: &'static str,
}

impl ToolAnswer {
    /// Takes more text, and the last if it has `ended`; returns the content that is certain, and calls.
    pub(crate) fn push(&mut self, text: &str, ended: bool) -> (String, Vec<Value>) {
        let mut parts = self.parser.push(text);
        if ended {
            parts.extend(self.parser.finish());
        }
        let (mut content, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Text(text) => content.push_str(&text),
                Part::Call(call) if self.calls < self.most => {
                    calls.push(self.call(call));
                    self.calls += 1;
                }
                Part::Call(_) => {}
            }
        }
        (content, calls)
    }

    /// Whether a call came.
    pub(crate) fn has_called(&self) -> bool {
        self.calls > 0
    }

    fn call(&self, ToolCall { name, arguments }: ToolCall) -> Value {
        // Mistral's templates want ids of nine characters.
        let id = match self.family {
            "mistral" => format!("{:09x}", random() & 0xF_FFFF_FFFF),
            _ => format!("call_{:016x}", random()),
        };
        json!({"index": self.calls, "id": id, "type": "function",
            "function": {"name": name, "arguments": arguments}})
    }
}
