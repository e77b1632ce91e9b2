//! Parses the constraint on answers from OpenAI's `response_format` and vLLM's `structured_outputs`.

use std::sync::Arc;

use interbed_engine::{
    Binding, Constraint, GrammarSource, Vocabulary, VocabularyError, check_formats, json_value, vocabulary_of,
};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, entries, is_text, read, sent, shown};
use crate::json_cost::JsonCost;
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::schemas::{Bond, COMPILED_BYTES};
use crate::tenant::Tenant;

/// The longest schema, in bytes of the body.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// The maximum memory of a schema's values, in bytes.
const SCHEMA_COST_MAX: usize = 8 << 20;
/// The maximum number of texts of a `choice`.
const CHOICES_MAX: usize = 4096;

/// Returns the fields that constrain the answer.
pub(crate) fn structured_part() -> Part {
    part!(Fields<'_>)
}

#[derive(Deserialize)]
struct Fields<'b> {
    #[serde(borrow)]
    response_format: Option<Field<Object<ResponseFormat<'b>>>>,
    #[serde(borrow)]
    structured_outputs: Option<Field<Object<StructuredOutputs<'b>>>>,
    // vLLM's older names for the fields of `structured_outputs`.
    #[serde(borrow)]
    guided_json: Option<&'b RawValue>,
    guided_regex: Option<Field<String>>,
    guided_choice: Option<Field<Choices>>,
    guided_grammar: Option<Field<String>>,
    // llama.cpp's names for the same.
    grammar: Option<Field<String>>,
    #[serde(borrow)]
    json_schema: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct ResponseFormat<'b> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'b RawValue>,
    #[serde(borrow)]
    json_schema: Option<Field<Object<NamedSchema<'b>>>>,
    /// The schema that other servers accept beside `json_object`.
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
}

#[derive(Deserialize)]
struct NamedSchema<'b> {
    #[serde(borrow)]
    schema: Option<&'b RawValue>,
    /// Whether to enforce `format` too, which the standard allows to ignore. The rest of a schema is always enforced.
    strict: Option<Field<bool>>,
}

#[derive(Deserialize)]
struct StructuredOutputs<'b> {
    #[serde(borrow)]
    json: Option<&'b RawValue>,
    json_object: Option<Field<bool>>,
    regex: Option<Field<String>>,
    choice: Option<Field<Choices>>,
    grammar: Option<Field<String>>,
    #[serde(borrow)]
    structural_tag: Option<&'b RawValue>,
    #[serde(borrow)]
    whitespace_pattern: Option<&'b RawValue>,
    disable_any_whitespace: Option<Field<bool>>,
    disable_additional_properties: Option<Field<bool>>,
}

/// Texts to choose from.
struct Choices(Vec<String>);

impl FromJson<'_> for Choices {
    const EXPECTED: &'static str = "a list of strings";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match entries(raw, CHOICES_MAX) {
            None => Err(Self::other(raw)),
            Some((_, count)) if count == 0 || count > CHOICES_MAX => {
                Err(format!("has {count} texts, but must have 1 to {CHOICES_MAX}"))
            }
            Some((texts, _)) => {
                let text = |raw| String::from_json(raw).map_err(|_| Self::other(raw));
                texts.into_iter().map(text).collect::<Result<_, _>>().map(Self)
            }
        }
    }
}

/// Returns the constraint that a body sets, or `None` if there is none, and grows `share` by the memory that the
/// constraint uses. The function blocks.
///
/// # Errors
/// Fails if a field is invalid.
pub(crate) fn constraint(body: &[u8], share: &mut Share) -> Result<Option<Bond>, ApiError> {
    let asked = source(body, share)?;
    Ok(asked.map(|(param, source)| Bond::new(&param, vec![Binding::whole(source)])))
}

/// Returns the constraint to JSON that satisfies the schema in the field `name`, or to any JSON object without a
/// schema. The function grows `share` by the memory that the constraint uses, and blocks.
///
/// # Errors
/// Fails if the schema cannot be parsed.
pub(crate) fn json_constraint(raw: Option<&RawValue>, name: &str, share: &mut Share) -> Result<Bond, ApiError> {
    let source = match raw {
        Some(raw) => GrammarSource::JsonSchema(schema(raw, name, share)?),
        None => GrammarSource::JsonObject,
    };
    Ok(Bond::new(name, vec![Binding::whole(source)]))
}

/// Checks that each `format` in a schema that was sent with `strict: true` can be enforced.
///
/// # Errors
/// Fails if a `format` cannot be enforced, or the schema cannot for another reason.
pub(crate) fn check_strict(schema: &Value, name: &str) -> Result<(), ApiError> {
    check_formats(schema).map_err(|error| ApiError::invalid(name, error.to_string()))
}

impl App {
    /// Compiles the constraint on the answers to a request of `tenant`.
    ///
    /// # Errors
    /// Fails if the model's tokenizer or the schema cannot be used, or memory is lacking now.
    pub(crate) async fn compile(self: &Arc<Self>, tenant: Tenant, bond: &Bond) -> Result<Constraint, ApiError> {
        let turn = self.schemas.turn(tenant, &bond.param).await?;
        // The first request builds the vocabulary, while others wait.
        let app = self.clone();
        let vocabulary = spawn_blocking(move || app.vocabulary()).await;
        let vocabulary =
            vocabulary.map_err(|error| ApiError::internal(format!("reading the tokens failed: {error}")))?;
        let vocabulary = vocabulary.map_err(|error| ApiError::invalid(&bond.param, error.to_string()))?;
        turn.compile(bond, &vocabulary).await
    }

    /// Returns the vocabulary of the model's tokens, which is built on first use. The function blocks and is CPU-bound.
    fn vocabulary(&self) -> Result<Arc<Vocabulary>, VocabularyError> {
        let build = || vocabulary_of(&self.tokenizer, &self.config.eos_token_ids);
        self.vocabulary.get_or_init(|| Ok(Arc::new(build()?.with_memory(COMPILED_BYTES)))).clone()
    }
}

/// Returns the grammar that a body asks for, and the name of the field.
fn source(body: &[u8], share: &mut Share) -> Result<Option<(String, GrammarSource)>, ApiError> {
    let fields: Fields<'_> = read(body)?;
    let mut asked = Vec::new();
    if let Some(Field(Object(format))) = fields.response_format {
        asked.extend(format.source(share)?.map(|source| ("response_format".to_owned(), source)));
    }
    let Object(outputs) = sent(fields.structured_outputs).unwrap_or(Object(StructuredOutputs {
        json: None,
        json_object: None,
        regex: None,
        choice: None,
        grammar: None,
        structural_tag: None,
        whitespace_pattern: None,
        disable_any_whitespace: None,
        disable_additional_properties: None,
    }));
    outputs.refuse_options()?;
    let schemas = [
        ("structured_outputs.json", outputs.json),
        ("guided_json", fields.guided_json),
        ("json_schema", fields.json_schema),
    ];
    for (name, raw) in schemas {
        // An empty text sets no constraint.
        if let Some(raw) = raw.filter(|raw| !is_text(raw, "")) {
            asked.push((name.to_owned(), GrammarSource::JsonSchema(schema(raw, name, share)?)));
        }
    }
    if sent(outputs.json_object) == Some(true) {
        asked.push(("structured_outputs.json_object".into(), GrammarSource::JsonObject));
    }
    let texts = [
        ("structured_outputs.regex", sent(outputs.regex).map(GrammarSource::Regex)),
        ("guided_regex", sent(fields.guided_regex).map(GrammarSource::Regex)),
        ("structured_outputs.grammar", sent(outputs.grammar).map(GrammarSource::of_grammar)),
        ("guided_grammar", sent(fields.guided_grammar).map(GrammarSource::of_grammar)),
        ("grammar", sent(fields.grammar).map(GrammarSource::of_grammar)),
        ("structured_outputs.choice", sent(outputs.choice).map(|Choices(texts)| GrammarSource::Choice(texts))),
        ("guided_choice", sent(fields.guided_choice).map(|Choices(texts)| GrammarSource::Choice(texts))),
    ];
    let is_empty = |source: &GrammarSource| match source {
        GrammarSource::Regex(text) | GrammarSource::Lark(text) | GrammarSource::Ebnf(text) => text.is_empty(),
        _ => false,
    };
    let texts = texts.into_iter().filter_map(|(name, source)| Some((name.to_owned(), source?)));
    asked.extend(texts.filter(|(_, source)| !is_empty(source)));
    match asked.len() {
        0 | 1 => Ok(asked.pop()),
        _ => {
            let (one, other) = (&asked[0].0, &asked[1].0);
            Err(ApiError::invalid(other, format!("{other} and {one} both say what the answer is; send one of them")))
        }
    }
}

impl ResponseFormat<'_> {
    fn source(self, share: &mut Share) -> Result<Option<GrammarSource>, ApiError> {
        let is = |name| self.kind.is_some_and(|kind| is_text(kind, name));
        if is("text") {
            Ok(None)
        } else if is("json_object") {
            let given = self.schema.map(|raw| schema(raw, "response_format.schema", share)).transpose()?;
            Ok(Some(given.map_or(GrammarSource::JsonObject, GrammarSource::JsonSchema)))
        } else if is("json_schema") {
            let name = "response_format.json_schema.schema";
            let (given, strict) =
                sent(self.json_schema).map_or((None, None), |Object(named)| (named.schema, named.strict));
            let given = given.ok_or_else(|| {
                ApiError::invalid(name, format!("{name} is missing; send the schema that the answer is to have"))
            })?;
            let schema = schema(given, name, share)?;
            if sent(strict) == Some(true) {
                check_strict(&schema, name)?;
            }
            Ok(Some(GrammarSource::JsonSchema(schema)))
        } else {
            let message = format!(
                "response_format of type {} is not supported; \"text\", \"json_object\" and \"json_schema\" are",
                shown(self.kind.map_or("null", RawValue::get))
            );
            Err(ApiError::invalid("response_format", message))
        }
    }
}

impl StructuredOutputs<'_> {
    /// Refuses options that are not supported and would change what is allowed.
    fn refuse_options(&self) -> Result<(), ApiError> {
        let is_set = |flag: &Option<Field<bool>>| flag.as_ref().is_some_and(|&Field(set)| set);
        for (name, given) in [
            ("structural_tag", self.structural_tag.is_some()),
            ("whitespace_pattern", self.whitespace_pattern.is_some()),
            ("disable_any_whitespace", is_set(&self.disable_any_whitespace)),
            ("disable_additional_properties", is_set(&self.disable_additional_properties)),
        ] {
            if given {
                let name = format!("structured_outputs.{name}");
                return Err(ApiError::invalid(&name, format!("{name} is not supported; leave it out")));
            }
        }
        Ok(())
    }
}

/// Parses a schema, which may be sent as JSON or as a string of JSON.
fn schema(raw: &RawValue, name: &str, share: &mut Share) -> Result<Value, ApiError> {
    let refuse = |problem: String| ApiError::invalid(name, format!("{name} {problem}"));
    let text = match raw.get().starts_with('"') {
        true => String::from_json(raw).map_err(refuse)?,
        false => raw.get().to_owned(),
    };
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(refuse(format!("has {} bytes, but at most {SCHEMA_BYTES_MAX} are allowed", text.len())));
    }
    let unreadable = |error: serde_json::Error| refuse(crate::fields::unbuildable(&error));
    let JsonCost(cost) = serde_json::from_str(&text).map_err(unreadable)?;
    if cost > SCHEMA_COST_MAX {
        return Err(refuse("has too many values; simplify it".into()));
    }
    // Memory for the values, and for copies of them while they are compiled.
    Handle::current().block_on(share.grow(cost.saturating_add(text.len()).saturating_mul(3)))?;
    json_value(&text).map_err(unreadable)
}
