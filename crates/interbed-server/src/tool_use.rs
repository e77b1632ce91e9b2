//! Parses the tools that a request asks for, and constrains its answers to calls of these tools.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use interbed_engine::{
    Binding, GrammarError, GrammarSource, Marker, Trigger, arguments_schema, check_formats, checked_schema,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::harmony;
use crate::openapi;
use crate::sampling::Common;
use crate::schemas::Bond;
use crate::speech::tool_parsers;
use crate::tool_calls::{Family, Function};
use crate::tool_choice::{Choice, ToolChoice};
use crate::tool_list::{CallForm, ToolList};

/// Returns the fields about tool calls.
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

/// The tools and the choice of a request, from any API.
pub(crate) struct AskedTools {
    pub(crate) list: ToolList,
    /// Says which tools must be called, and which may be called.
    pub(crate) choice: ToolChoice,
    /// Whether an answer may contain several calls.
    pub(crate) parallel: bool,
}

/// The tools that the answers to a request may call.
pub(crate) struct ToolUse {
    pub(crate) functions: Vec<Function>,
    /// Describes how the client knows tools that are not functions with their own names.
    pub(crate) forms: Arc<HashMap<String, CallForm>>,
    /// Whether an answer may contain several calls.
    pub(crate) parallel: bool,
}

impl AskedTools {
    /// Parses the fields of a chat.
    ///
    /// # Errors
    /// Fails if a field is invalid.
    pub(crate) fn of_chat(app: &App, body: &[u8]) -> Result<Self, ApiError> {
        let fields: Fields<'_> = read(body)?;
        let list = ToolList::of_chat(sent(fields.tools).unwrap_or_default(), &app.notes)?;
        let choice = ToolChoice::read(fields.tool_choice)?.checked(&list)?;
        Ok(Self { list, choice, parallel: sent(fields.parallel_tool_calls).unwrap_or(true) })
    }
}

/// Returns the tools that the answers of `common` may call, or `None` if they must not call any or if this model's
/// syntax of calls is unknown. The function constrains the answers to that syntax, from the first token or from the
/// marker of a call on. The function blocks and is CPU-bound.
///
/// # Errors
/// Fails if the choice or a schema of arguments cannot be enforced, or cannot be combined with another constraint.
pub(crate) fn bind(app: &App, asked: AskedTools, common: &mut Common) -> Result<Option<ToolUse>, ApiError> {
    let AskedTools { list, choice, parallel } = asked;
    let Some(chosen) = &choice.choice else { return Ok(None) };
    let is_optional = *chosen == Choice::Auto;
    let way = match (app.speech.harmony, app.speech.family) {
        (true, _) => Way::Harmony,
        (_, Some(family)) => Way::Family(family),
        _ if is_optional => return Ok(None),
        _ => {
            let message = format!(
                "tool_choice asks for a call, but this model's chat template does not tell how it writes calls; start \
                 the server with --tool-parser, one of {}",
                tool_parsers().join(", ")
            );
            return Err(ApiError::invalid("tool_choice", message));
        }
    };
    let bond = common.constraint.take();
    let text = match bond.as_ref().map(|bond| (bond, bond.json())) {
        None => None,
        Some((_, Some(schema))) => Some(schema.clone()),
        Some((bond, None)) => {
            let message = format!(
                "{} cannot go with tools that may be called; send tool_choice \"none\", or leave one of them out",
                bond.param
            );
            return Err(ApiError::invalid("tools", message));
        }
    };
    let functions: Vec<Function> = list.functions.iter().map(function).collect();
    let functions: Vec<Function> = functions.into_iter().filter(|function| choice.allows(&function.name)).collect();
    let callable = functions.iter().map(with_object).collect::<Result<Vec<Function>, ApiError>>()?;
    let strict = list.functions.iter().filter(|tool| tool["function"]["strict"] == true);
    let strict: HashSet<&str> = strict.filter_map(|tool| tool["function"]["name"].as_str()).collect();
    let is_strict = |function: &Function| strict.contains(function.name.as_str());
    for function in callable.iter().filter(|function| is_strict(function)) {
        check_formats(&function.parameters).map_err(|error| refused(function, &error))?;
    }
    let all =
        |one: &dyn Fn(&Function) -> Result<Function, ApiError>| callable.iter().map(one).collect::<Result<Vec<_>, _>>();
    let several = parallel && !matches!(chosen, Choice::Named(_));
    common.constraint = Some(if is_optional {
        let bound = |functions: &[Function]| match &text {
            // An answer that is no call has to satisfy the requested schema.
            Some(schema) => Binding::whole(GrammarSource::Lark(way.answer(app, functions, several, Some(schema)))),
            None => {
                let source = GrammarSource::Lark(format!("start: call\n{}", way.call(app, functions)));
                Binding { source, after: Some((way.trigger(), parallel)) }
            }
        };
        // An optional call may use a schema that cannot be enforced: the schema then only informs the model.
        let loose = |function: &Function| way.checked(&function.with_any_arguments());
        let each = all(&|function| match way.checked(function) {
            Err(_) if !is_strict(function) => loose(function),
            checked => checked,
        })?;
        let mut bindings = vec![bound(&each)];
        if !callable.iter().any(is_strict) {
            // Fallback if each schema can be enforced, but not all together.
            bindings.push(bound(&all(&loose)?));
        }
        Bond::new(bond.as_ref().map_or("tools", |bond| &bond.param), bindings)
    } else {
        let source = way.answer(app, &all(&|function| way.checked(function))?, several, None);
        Bond::new("tools", vec![Binding::whole(GrammarSource::Lark(source))])
    });
    Ok(Some(ToolUse { functions, forms: Arc::new(list.forms), parallel }))
}

/// The syntax of calls.
#[derive(Clone, Copy)]
enum Way {
    Harmony,
    Family(&'static Family),
}

impl Way {
    /// Returns the trigger of a call in an unconstrained answer.
    fn trigger(self) -> Trigger {
        match self {
            Self::Harmony => {
                Trigger::new(vec![Marker { text: harmony::CALL.to_owned(), at_start: false, included: false }])
            }
            Self::Family(family) => family.trigger(),
        }
    }

    /// Returns the function with its schema in the form that grammars accept.
    fn checked(self, function: &Function) -> Result<Function, ApiError> {
        let checked = match self {
            Self::Harmony => checked_schema(&function.parameters),
            Self::Family(family) => family.checked(&function.parameters),
        };
        Ok(Function { name: function.name.clone(), parameters: checked.map_err(|error| refused(function, &error))? })
    }

    /// Returns the grammar of a call after its marker, in Lark's syntax: a rule `call` and the rules that it uses.
    fn call(self, app: &App, functions: &[Function]) -> String {
        match self {
            Self::Harmony => harmony::call_grammar(functions, |text| app.mark(text)),
            Self::Family(family) => family.grammar(functions, &|text| app.mark(text)),
        }
    }

    /// Returns the grammar of an answer, in Lark's syntax. The answer is one call, or several calls with `several`, or
    /// a text that satisfies the schema `text`, if there is one.
    fn answer(self, app: &App, functions: &[Function], several: bool, text: Option<&Value>) -> String {
        let Self::Family(family) = self else {
            let is_special = app.is_special("<|end|>");
            return harmony::answer_grammar(functions, text, |text| app.mark(text), is_special);
        };
        family.answer_grammar(functions, several, text, &|text| app.mark(text))
    }
}

/// Restricts the arguments of a function to objects.
fn with_object(function: &Function) -> Result<Function, ApiError> {
    let parameters = arguments_schema(&function.parameters).map_err(|error| refused(function, &error))?;
    Ok(Function { name: function.name.clone(), parameters })
}

fn refused(function: &Function, error: &GrammarError) -> ApiError {
    ApiError::invalid("tools", format!("the parameters of {}: {error}", function.name))
}

fn function(tool: &Value) -> Function {
    let function = &tool["function"];
    let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
    Function {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
    }
}
