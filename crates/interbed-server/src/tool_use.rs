//! Calls of tools: what a request asks for, and how that binds its answers.

use interbed_engine::{
    Binding, GrammarError, GrammarSource, Marker, Trigger, arguments_schema, check_formats, checked_schema,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, is_text, read, sent, shown};
use crate::harmony;
use crate::openapi;
use crate::sampling::Common;
use crate::schemas::Bond;
use crate::speech::tool_parsers;
use crate::tool_calls::{Family, Function};

/// The longest name, in bytes, and the most tools that a message tells.
const SHOWN_BYTES: usize = 64;
const SHOWN_TOOLS: usize = 8;

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

/// A `tool_choice` that is an object.
#[derive(Deserialize)]
struct NamedTool<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
    function: Option<Field<Object<NamedFunction>>>,
}

#[derive(Deserialize)]
struct NamedFunction {
    name: Option<Field<String>>,
}

/// What a request asks for, from whichever API it came.
#[derive(Default)]
pub(crate) struct AskedTools {
    /// As a chat has them, each checked.
    pub(crate) tools: Vec<Value>,
    /// What has to be called; none where nothing is.
    pub(crate) choice: Option<Choice>,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
}

/// What has to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// What the model likes.
    Auto,
    Required,
    Named(String),
}

/// What the answers to a request may call.
pub(crate) struct ToolUse {
    pub(crate) functions: Vec<Function>,
    /// Whether an answer may have several calls.
    pub(crate) parallel: bool,
}

impl AskedTools {
    /// What the fields of a chat ask for.
    ///
    /// # Errors
    /// They are wrong.
    pub(crate) fn of_chat(body: &[u8]) -> Result<Self, ApiError> {
        let fields: Fields<'_> = read(body)?;
        let tools = sent(fields.tools).unwrap_or_default();
        let choice = choice(fields.tool_choice, &tools)?;
        Ok(Self { tools, choice, parallel: sent(fields.parallel_tool_calls).unwrap_or(true) })
    }

    /// Checks what `choice` says against the tools.
    ///
    /// # Errors
    /// It names none of them, or requires one where there are none.
    pub(crate) fn chosen(choice: Option<Choice>, tools: &[Value]) -> Result<Option<Choice>, ApiError> {
        let refuse = |problem: &str| Err(ApiError::invalid("tool_choice", format!("tool_choice {problem}")));
        match choice {
            Some(Choice::Named(name)) if !tools.iter().any(|tool| tool["function"]["name"] == name.as_str()) => {
                let shown = &name[..name.floor_char_boundary(SHOWN_BYTES)];
                let names = tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
                let names: String = names.take(SHOWN_TOOLS).map(|name| format!(" {name:?},")).collect();
                let problem = match names.trim_end_matches(',') {
                    "" => "but there are no tools; send it among them".to_owned(),
                    names => format!("which is not among the tools; they are{names}"),
                };
                refuse(&format!("names the function {shown:?}, {problem}"))
            }
            Some(Choice::Required) if tools.is_empty() => refuse("requires a call, but there are no tools"),
            Some(Choice::Auto) if tools.is_empty() => Ok(None),
            choice => Ok(choice),
        }
    }
}

/// The tools that the answers of `common` may call; `None` where they are to call none, or where it is not known how
/// this model writes calls. Binds the answers to the form of calls, from the first token or from the marker of a call
/// on. Blocking, and CPU-bound.
///
/// # Errors
/// A choice that cannot be kept to, or beside another constraint; a schema of arguments that cannot be enforced.
pub(crate) fn bind(app: &App, asked: AskedTools, common: &mut Common) -> Result<Option<ToolUse>, ApiError> {
    let AskedTools { tools, choice, parallel } = asked;
    let Some(choice) = choice else { return Ok(None) };
    let way = match (app.speech.harmony, app.speech.family) {
        (true, _) => Way::Harmony,
        (_, Some(family)) => Way::Family(family),
        _ if choice == Choice::Auto => return Ok(None),
        _ => {
            let message = format!(
                "tool_choice asks for a call, but this model's chat template does not tell how it writes calls; start \
                 the server with --tool-parser, one of {}",
                tool_parsers().join(", ")
            );
            return Err(ApiError::invalid("tool_choice", message));
        }
    };
    if common.constraint.is_some() {
        let message = "response_format, structured_outputs, guided_* and text.format cannot go with tools that may be \
                       called; send tool_choice \"none\", or leave one of them out";
        return Err(ApiError::invalid("tools", message));
    }
    let functions: Vec<Function> = tools.iter().map(function).collect();
    let is_callable = |function: &&Function| match &choice {
        Choice::Named(name) => function.name == *name,
        _ => true,
    };
    let callable =
        functions.iter().filter(is_callable).map(with_object).collect::<Result<Vec<Function>, ApiError>>()?;
    let is_strict = |function: &Function| {
        let strict = |tool: &Value| tool["function"]["strict"] == true;
        tools.iter().any(|tool| strict(tool) && tool["function"]["name"] == function.name.as_str())
    };
    for function in callable.iter().filter(|function| is_strict(function)) {
        check_formats(&function.parameters).map_err(|error| refused(function, &error))?;
    }
    let all =
        |one: &dyn Fn(&Function) -> Result<Function, ApiError>| callable.iter().map(one).collect::<Result<Vec<_>, _>>();
    common.constraint = Some(if choice == Choice::Auto {
        let bound = |functions: &[Function]| {
            let source = GrammarSource::Lark(format!("start: call\n{}", way.call(app, functions)));
            Binding { source, after: Some((way.trigger(), parallel)) }
        };
        // A schema that cannot be enforced says what is wanted, but an optional call need not keep to it.
        let loose = |function: &Function| way.checked(&function.with_any_arguments());
        let each = all(&|function| match way.checked(function) {
            Err(_) if !is_strict(function) => loose(function),
            checked => checked,
        })?;
        let mut bindings = vec![bound(&each)];
        if !callable.iter().any(is_strict) {
            // Where each alone can be enforced, but not all together.
            bindings.push(bound(&all(&loose)?));
        }
        Bond::new("tools", bindings)
    } else {
        let several = parallel && choice == Choice::Required;
        let source = GrammarSource::Lark(way.answer(app, &all(&|function| way.checked(function))?, several));
        Bond::new("tools", vec![Binding::whole(source)])
    });
    Ok(Some(ToolUse { functions, parallel }))
}

/// How calls are written.
#[derive(Clone, Copy)]
enum Way {
    Harmony,
    Family(&'static Family),
}

impl Way {
    /// What a call begins with in a free answer.
    fn trigger(self) -> Trigger {
        match self {
            Self::Harmony => {
                Trigger::new(vec![Marker { text: harmony::CALL.to_owned(), at_start: false, included: false }])
            }
            Self::Family(family) => family.trigger(),
        }
    }

    /// A function with a schema that grammars may have.
    fn checked(self, function: &Function) -> Result<Function, ApiError> {
        let checked = match self {
            Self::Harmony => checked_schema(&function.parameters),
            Self::Family(family) => family.checked(&function.parameters),
        };
        Ok(Function { name: function.name.clone(), parameters: checked.map_err(|error| refused(function, &error))? })
    }

    /// A call behind its marker, in Lark's form: a rule `call`, and those that it names.
    fn call(self, app: &App, functions: &[Function]) -> String {
        match self {
            Self::Harmony => harmony::call_grammar(functions, |text| app.mark(text)),
            Self::Family(family) => family.grammar(functions),
        }
    }

    /// An answer that is a call, or `several`, in Lark's form.
    fn answer(self, app: &App, functions: &[Function], several: bool) -> String {
        let Self::Family(family) = self else {
            return harmony::answer_grammar(functions, |text| app.mark(text), app.is_special("<|end|>"));
        };
        let opening = if family.needs_no_marker() { String::new() } else { app.mark(family.marker()) };
        family.answer_grammar(&opening, functions, several && !family.needs_no_marker())
    }
}

/// A function whose arguments are an object, whatever else their schema says.
fn with_object(function: &Function) -> Result<Function, ApiError> {
    let parameters = arguments_schema(&function.parameters).map_err(|error| refused(function, &error))?;
    Ok(Function { name: function.name.clone(), parameters })
}

fn refused(function: &Function, error: &GrammarError) -> ApiError {
    ApiError::invalid("tools", format!("the parameters of {}: {error}", function.name))
}

fn choice(raw: Option<&RawValue>, tools: &[Value]) -> Result<Option<Choice>, ApiError> {
    let choice = match raw {
        None => Choice::Auto,
        Some(raw) if is_text(raw, "auto") => Choice::Auto,
        Some(raw) if is_text(raw, "none") => return Ok(None),
        Some(raw) if is_text(raw, "required") => Choice::Required,
        Some(raw) => {
            let named = match Object::<NamedTool<'_>>::from_json(raw) {
                Ok(Object(NamedTool { kind: Some(kind), function: Some(Field(Object(function))) })) => {
                    sent(function.name).filter(|_| is_text(kind, "function"))
                }
                _ => None,
            };
            let Some(name) = named else {
                let message = format!(
                    "tool_choice is {}, but must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \
                     \"function\": {{\"name\": …}}}}",
                    shown(raw.get())
                );
                return Err(ApiError::invalid("tool_choice", message));
            };
            Choice::Named(name)
        }
    };
    AskedTools::chosen(Some(choice), tools)
}

fn function(tool: &Value) -> Function {
    let function = &tool["function"];
    let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
    Function {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
    }
}
