//! Grammars of arguments that are written as a [dictionary](super::dictionary): which keywords of a function's schema
//! can be enforced, and the rules that enforce them.

use std::collections::HashMap;

use interbed_engine::{GrammarError, checked_schema, quoted};
use serde_json::{Map, Value, json};

use super::dictionary::{QUOTE, written};
use super::{Function, Mark};

/// Keywords that cannot be enforced here.
const REFUSED: [&str; 16] = [
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "not",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords that stand for a whole value, beside which no other may constrain it.
const WHOLE: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
/// Keywords that constrain a value together with others.
const PARTIAL: [&str; 14] = [
    "additionalProperties",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "multipleOf",
    "properties",
    "required",
    "type",
];
/// The keywords that constrain a number.
const OF_NUMBERS: [&str; 5] = ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];
/// The types of a schema that names none.
const TYPES: [&str; 6] = ["object", "array", "string", "number", "boolean", "null"];
/// The end of messages about keywords that cannot be enforced in this syntax.
const IN_DICTIONARY: &str = "cannot be enforced where this model writes arguments in a form of its own; leave it out";

/// Checks the schema of a function's arguments, and returns it in the form that [`calls`] accepts.
///
/// # Errors
/// Fails if a keyword cannot be enforced, and names the place of the first such keyword.
pub(super) fn checked(parameters: &Value) -> Result<Value, GrammarError> {
    let checked = checked_schema(parameters)?;
    Rules::new(&checked, 0, &|text| quoted(text)).root()?;
    Ok(checked)
}

/// Returns a rule `call` with the arguments of each function, whose schema has passed [`checked`]. The function `begin`
/// writes the beginning of a call, and `end` is the terminal behind the arguments.
pub(super) fn calls(functions: &[Function], begin: impl Fn(&str) -> String, end: &str, mark: Mark<'_>) -> String {
    let mut all = String::new();
    let mut calls = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let any = json!({"type": "object"});
        let rules = |schema: &Value| {
            let mut rules = Rules::new(schema, number, mark);
            rules.root().map(|root| (root, rules.written))
        };
        // What has passed the check is accepted again.
        let (root, rules) = rules(&function.parameters).or_else(|_| rules(&any)).unwrap_or_default();
        all += &rules;
        calls.push(format!("{} {root} {end}", begin(&function.name)));
    }
    format!("call: {}\n{all}{}", calls.join("\n    | "), shared(mark))
}

/// Returns the rules that all functions use: any text between marks, any value, and any key.
fn shared(mark: Mark<'_>) -> String {
    let quote = mark(QUOTE);
    // A mark that is a token occurs in no text; else the text ends at the first mark.
    let text = match quote.starts_with('<') {
        true => format!("quoted: {quote} TEXT? {quote}\nTEXT: /(?s:.+)/\n"),
        false => format!("quoted: {quote} rest\nrest[suffix={quote}]: /(?s:.*)/\n"),
    };
    let scalar = json!({"type": ["number", "boolean", "null"]});
    format!(
        "{text}any: quoted | scalar | any_list | any_object\nscalar: %json {scalar}\n\
         any_list: \"[\" (any (\",\" any)*)? \"]\"\n\
         any_object: \"{{\" (KEY \":\" any (\",\" KEY \":\" any)*)? \"}}\"\n\
         KEY: /[A-Za-z0-9_$.\\-]{{1,128}}/\n"
    )
}

/// Writes the rules of one schema.
struct Rules<'a> {
    schema: &'a Value,
    /// Distinguishes the rules of this schema from those of others.
    number: usize,
    mark: Mark<'a>,
    written: String,
    count: usize,
    /// The rules of definitions, by the references to them.
    definitions: HashMap<String, String>,
}

impl<'a> Rules<'a> {
    fn new(schema: &'a Value, number: usize, mark: Mark<'a>) -> Self {
        Self { schema, number, mark, written: String::new(), count: 0, definitions: HashMap::new() }
    }

    /// Returns the rule of the arguments, which are an object.
    fn root(&mut self) -> Result<String, GrammarError> {
        let kinds = self.schema["type"].clone();
        let is_whole = WHOLE.iter().any(|keyword| self.schema.get(keyword).is_some());
        let may_be_object = kinds.is_null()
            || kinds == "object"
            || kinds.as_array().is_some_and(|kinds| kinds.contains(&"object".into()));
        match self.schema.as_object() {
            _ if !may_be_object => refuse("#/type", "the arguments of a call are an object"),
            // The one type of arguments may stand beside what describes them as a whole.
            Some(keywords) if is_whole => {
                let rest = keywords.iter().filter(|(keyword, _)| *keyword != "type");
                self.whole(&rest.map(|(keyword, value)| (keyword.clone(), value.clone())).collect(), "#")
            }
            Some(keywords) if keywords.contains_key("enum") || keywords.contains_key("const") => {
                self.value(self.schema, "#")
            }
            Some(keywords) => {
                self.refuse_other(keywords, "#")?;
                self.object(keywords, "#")
            }
            None => Ok("any_object".to_owned()),
        }
    }

    /// Adds a rule, and returns its name.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("r{}_{}", self.number, self.count);
        self.count += 1;
        self.written += &format!("{name}: {body}\n");
        name
    }

    /// Returns the rule of a value, or a terminal.
    fn value(&mut self, schema: &Value, place: &str) -> Result<String, GrammarError> {
        let Some(keywords) = schema.as_object() else {
            return match schema {
                Value::Bool(false) => refuse(place, &format!("a value that cannot be {IN_DICTIONARY}")),
                _ => Ok("any".to_owned()),
            };
        };
        self.refuse_other(keywords, place)?;
        if WHOLE.iter().any(|keyword| keywords.contains_key(*keyword)) {
            return self.whole(keywords, place);
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if keywords.contains_key("properties") => vec!["object"],
            _ if keywords.contains_key("items") => vec!["array"],
            _ => TYPES.to_vec(),
        };
        let choices = schema["enum"].as_array().cloned();
        if let Some(choices) = choices.or_else(|| keywords.get("const").map(|one| vec![one.clone()])) {
            let fits = |value: &&Value| kinds.iter().any(|kind| is_of(kind, value));
            let texts: Vec<String> = choices.iter().filter(fits).map(|value| self.literal(value)).collect();
            return match texts.is_empty() {
                true => refuse(place, "it allows no value"),
                false => Ok(self.rule(&texts.join(" | "))),
            };
        }
        if !PARTIAL.iter().any(|keyword| keywords.contains_key(*keyword)) {
            return Ok("any".to_owned());
        }
        let each = kinds.into_iter().map(|kind| self.of_kind(kind, keywords, place));
        let each = each.collect::<Result<Vec<_>, _>>()?;
        Ok(match each.as_slice() {
            [one] => one.clone(),
            several => self.rule(&several.join(" | ")),
        })
    }

    /// Fails if a keyword cannot be enforced.
    fn refuse_other(&self, keywords: &Map<String, Value>, place: &str) -> Result<(), GrammarError> {
        for (keyword, value) in keywords {
            let says_nothing = match keyword.as_str() {
                "patternProperties" => value.as_object().is_some_and(Map::is_empty),
                "uniqueItems" => value == false,
                keyword => !REFUSED.contains(&keyword),
            };
            if !says_nothing {
                return refuse(&format!("{place}/{keyword}"), &format!("\"{keyword}\" {IN_DICTIONARY}"));
            }
        }
        Ok(())
    }

    /// Returns the rule of a value that a reference or alternatives describe.
    fn whole(&mut self, keywords: &Map<String, Value>, place: &str) -> Result<String, GrammarError> {
        let mut described =
            keywords.keys().filter(|keyword| WHOLE.contains(&keyword.as_str()) || PARTIAL.contains(&keyword.as_str()));
        let (Some(keyword), other) = (described.next(), described.next()) else { return Ok("any".to_owned()) };
        if let Some(other) = other {
            let problem = format!("\"{other}\" beside \"{keyword}\" {IN_DICTIONARY}");
            return refuse(&format!("{place}/{other}"), &problem);
        }
        let (value, place) = (&keywords[keyword], format!("{place}/{keyword}"));
        match (keyword.as_str(), value) {
            ("$ref", Value::String(to)) => self.reference(to, &place),
            ("allOf", Value::Array(schemas)) if schemas.len() != 1 => {
                refuse(&place, &format!("\"allOf\" of several schemas {IN_DICTIONARY}"))
            }
            (_, Value::Array(schemas)) => {
                let each = schemas.iter().enumerate().filter(|(_, schema)| **schema != false);
                let each = each.map(|(index, schema)| self.value(schema, &format!("{place}/{index}")));
                let each = each.collect::<Result<Vec<_>, _>>()?;
                Ok(self.rule(&each.join(" | ")))
            }
            _ => refuse(&place, &format!("this value of \"{keyword}\" {IN_DICTIONARY}")),
        }
    }

    fn reference(&mut self, to: &str, place: &str) -> Result<String, GrammarError> {
        if let Some(known) = self.definitions.get(to) {
            return Ok(known.clone());
        }
        let schema = self.schema;
        let Some(definition) = to.strip_prefix('#').and_then(|path| schema.pointer(path)) else {
            return refuse(place, &format!("\"$ref\" leads to no place in the schema, and so {IN_DICTIONARY}"));
        };
        // The rule is known before it is written, as it may refer to itself.
        let name = format!("d{}_{}", self.number, self.definitions.len());
        self.definitions.insert(to.to_owned(), name.clone());
        let value = self.value(definition, to)?;
        self.written += &format!("{name}: {value}\n");
        Ok(name)
    }

    fn of_kind(&mut self, kind: &str, keywords: &Map<String, Value>, place: &str) -> Result<String, GrammarError> {
        match kind {
            "object" => self.object(keywords, place),
            "array" => self.array(keywords, place),
            // A text is written unescaped, so only its end is known.
            "string" => Ok("quoted".to_owned()),
            _ => {
                let mut schema = json!({"type": kind});
                for keyword in OF_NUMBERS.into_iter().filter(|_| kind == "number" || kind == "integer") {
                    if let Some(value) = keywords.get(keyword) {
                        schema[keyword] = value.clone();
                    }
                }
                Ok(self.rule(&format!("%json {schema}")))
            }
        }
    }

    fn array(&mut self, keywords: &Map<String, Value>, place: &str) -> Result<String, GrammarError> {
        let item = match keywords.get("items") {
            Some(items) => self.value(items, &format!("{place}/items"))?,
            None => "any".to_owned(),
        };
        let bound = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        if most.is_some_and(|most| most < least) {
            return refuse(&format!("{place}/maxItems"), "it is less than \"minItems\"");
        }
        let more = |least: u64, most: Option<u64>| match most {
            Some(most) => format!("(\",\" {item}){{{least},{most}}}"),
            None => format!("(\",\" {item}){{{least},}}"),
        };
        let body = match (least, most) {
            (_, Some(0)) => "\"[\" \"]\"".to_owned(),
            (0, most) => format!("\"[\" ({item} {})? \"]\"", more(0, most.map(|most| most - 1))),
            (least, most) => format!("\"[\" {item} {} \"]\"", more(least - 1, most.map(|most| most - 1))),
        };
        Ok(self.rule(&body))
    }

    fn object(&mut self, keywords: &Map<String, Value>, place: &str) -> Result<String, GrammarError> {
        let required: Vec<&str> = keywords
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = keywords.get("properties").and_then(Value::as_object);
        for (index, name) in required.iter().enumerate() {
            if properties.and_then(|all| all.get(*name)).is_none_or(|property| property == false) {
                let problem =
                    format!("{name} is required, but \"properties\" does not say what it is, which {IN_DICTIONARY}");
                return refuse(&format!("{place}/required/{index}"), &problem);
            }
        }
        let Some(properties) = properties else {
            return match keywords.get("additionalProperties") {
                Some(Value::Bool(false)) => Ok(self.rule("\"{\" \"}\"")),
                Some(schema) => {
                    let value = self.value(schema, &format!("{place}/additionalProperties"))?;
                    Ok(self.rule(&format!("\"{{\" (KEY \":\" {value} (\",\" KEY \":\" {value})*)? \"}}\"")))
                }
                None => Ok("any_object".to_owned()),
            };
        };
        let mut members = Vec::with_capacity(properties.len());
        for (name, schema) in properties.iter().filter(|(_, schema)| **schema != false) {
            let place = format!("{place}/properties/{}", name.replace('~', "~0").replace('/', "~1"));
            let is_key =
                !name.is_empty() && name == name.trim() && !name.contains([':', ',', '{', '}', '"', '<', '\n']);
            if !is_key {
                return refuse(&place, "no key can have this name");
            }
            let value = self.value(schema, &place)?;
            members.push((name, format!("{} {value}", quoted(&format!("{name}:"))), required.contains(&name.as_str())));
        }
        // Templates show keys in this order, so models write them so.
        members.sort_by_key(|(name, ..)| name.to_lowercase());
        Ok(self.members(&members))
    }

    /// Returns the rule of an object with these members: the key and the value of each, and whether it is required.
    fn members(&mut self, members: &[(&String, String, bool)]) -> String {
        // The rule of what may follow each member.
        let mut rest = String::new();
        let mut first = Vec::new();
        let mut needed = false;
        for (_, member, is_required) in members.iter().rev() {
            if *is_required {
                first.clear();
                needed = true;
            }
            first.push(format!("{member} {rest}"));
            let optional = if *is_required { "" } else { "?" };
            rest = self.rule(&format!("(\",\" {member}){optional} {rest}"));
        }
        let optional = if needed { "" } else { "?" };
        match first.is_empty() {
            true => self.rule("\"{\" \"}\""),
            false => self.rule(&format!("\"{{\" ({}){optional} \"}}\"", first.join(" | "))),
        }
    }

    /// Returns the terminals of exactly this value.
    fn literal(&self, value: &Value) -> String {
        let quote = (self.mark)(QUOTE);
        let text = written(value);
        let parts = text.split(QUOTE).map(|part| if part.is_empty() { String::new() } else { quoted(part) });
        parts.collect::<Vec<_>>().join(&format!(" {quote} "))
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => value.is_number(),
    }
}

fn refuse<T>(place: &str, problem: &str) -> Result<T, GrammarError> {
    Err(GrammarError::Schema { place: place.into(), problem: problem.into() })
}

#[cfg(test)]
mod tests;
