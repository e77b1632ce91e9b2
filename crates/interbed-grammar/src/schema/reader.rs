//! A schema as the shape of its values.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::GrammarError;

use super::decimal::Decimal;
use super::meet::{Definitions, are_apart, is_match, meet};
use super::numbers::Numbers;
use super::pattern::Matching;
use super::pointer::{find, pointer};
use super::shape::{Lists, Node, Objects, Part, Shape, Strings};

/// Most steps in which parts of a schema are put together.
const STEPS_MAX: usize = 100_000;
/// Most levels of that, and of a shape: each is followed by recursion.
const DEPTH_MAX: usize = 128;
/// Bytes of a place, and of a text that is matched, in a step.
const BYTES: usize = 64;
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that say something of values of one type.
const TYPED: [&str; 21] = [
    "additionalItems",
    "additionalProperties",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];
/// Dialects in which `prefixItems` says nothing.
const OLD: [&str; 5] = ["draft-03", "draft-04", "draft-06", "draft-07", "2019-09"];

/// Reads a schema, which has passed the check of its keywords.
pub(super) struct Reader<'a> {
    root: &'a Value,
    is_old: bool,
    /// What references lead to; nothing while it is being read.
    definitions: HashMap<String, Option<Rc<Node>>>,
    /// Expressions that were matched, or what is wrong with them.
    patterns: HashMap<String, Result<Matching, String>>,
    place: Vec<String>,
    steps: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let dialect = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_old = OLD.iter().any(|old| dialect.contains(old));
        let (definitions, patterns) = (HashMap::new(), HashMap::new());
        Self { root, is_old, definitions, patterns, place: Vec::new(), steps: 0, depth: 0 }
    }

    /// The shape of the values of the whole schema.
    pub(super) fn whole(&mut self) -> Result<Rc<Node>, GrammarError> {
        let shape = self.read(self.root)?;
        self.node(shape)
    }

    fn read(&mut self, schema: &'a Value) -> Result<Shape, GrammarError> {
        self.spend(1)?;
        let keywords = match schema {
            Value::Bool(true) => return Ok(Shape::Any),
            Value::Bool(false) => return Ok(Shape::nothing()),
            Value::Object(keywords) => keywords,
            _ => return self.refuse("it must be an object or a boolean"),
        };
        self.descend()?;
        let mut shape = self.typed(keywords)?;
        for (keyword, value) in keywords {
            self.place.push(keyword.clone());
            shape = self.applied(shape, keyword, value)?;
            self.place.pop();
        }
        self.ascend();
        Ok(shape)
    }

    /// What the keywords say that are of one type each.
    fn typed(&mut self, keywords: &'a Map<String, Value>) -> Result<Shape, GrammarError> {
        if !keywords.keys().any(|keyword| TYPED.contains(&keyword.as_str())) {
            return Ok(Shape::Any);
        }
        let named = match keywords.get("type") {
            None => TYPES.to_vec(),
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(several)) => several.iter().map(|one| one.as_str().unwrap_or_default()).collect(),
            Some(_) => return self.refuse_at("type", "it must be the name of a type, or a list of such"),
        };
        let mut parts = Vec::new();
        for name in named {
            parts.push(match name {
                "null" => Part::Null,
                "boolean" => Part::Bool(None),
                "number" | "integer" => Part::Number(self.numbers(keywords, name == "integer")?),
                "string" => Part::Text(self.strings(keywords)?),
                "array" => Part::List(self.lists(keywords)?),
                "object" => Part::Object(self.objects(keywords)?),
                _ => {
                    return self
                        .refuse_at("type", &format!("{:?} is no type", name.chars().take(40).collect::<String>()));
                }
            });
        }
        Ok(Shape::OneOf(parts))
    }

    /// What a keyword that applies schemas leaves of `shape`.
    fn applied(&mut self, shape: Shape, keyword: &str, value: &'a Value) -> Result<Shape, GrammarError> {
        let list = || value.as_array().map(Vec::as_slice);
        match keyword {
            "const" => {
                let one = Shape::one(literal(value, &self.here()?));
                meet(&shape, &one, self)
            }
            "enum" => match list() {
                None => self.refuse("it must be a list of values"),
                Some(values) => {
                    let listed = listed(values, &self.here()?);
                    meet(&shape, &listed, self)
                }
            },
            "$ref" => match value.as_str() {
                None => self.refuse("it must be a text"),
                Some(to) => meet(&shape, &Shape::one(Part::Definition(to.to_owned())), self),
            },
            "allOf" => {
                let options = self.options(list())?;
                options.iter().try_fold(shape, |shape, option| meet(&shape, option, self))
            }
            "anyOf" => {
                let options = self.options(list())?;
                let mut parts = Vec::new();
                for option in options {
                    match option {
                        Shape::Any => return Ok(shape),
                        Shape::OneOf(more) => parts.extend(more),
                    }
                }
                meet(&shape, &Shape::OneOf(parts), self)
            }
            "oneOf" => {
                let options = self.options(list())?;
                let options: Vec<Shape> =
                    options.iter().map(|option| meet(&shape, option, self)).collect::<Result<_, _>>()?;
                for (index, one) in options.iter().enumerate() {
                    for (at, other) in options.iter().enumerate().skip(index + 1) {
                        if !are_apart(one, other, self)? {
                            return self.refuse(&format!(
                                "values may be both {index} and {at} of the \"oneOf\", so it cannot be enforced; send \
                                 \"anyOf\", or a property that tells them apart"
                            ));
                        }
                    }
                }
                let parts = options.into_iter().map(|option| match option {
                    Shape::Any => None,
                    Shape::OneOf(parts) => Some(parts),
                });
                let parts: Option<Vec<Vec<Part>>> = parts.collect();
                Ok(parts.map_or(Shape::Any, |parts| Shape::OneOf(parts.concat())))
            }
            _ => Ok(shape),
        }
    }

    fn options(&mut self, list: Option<&'a [Value]>) -> Result<Vec<Shape>, GrammarError> {
        let Some(list) = list.filter(|list| !list.is_empty()) else {
            return self.refuse("it must be a list of schemas");
        };
        list.iter().enumerate().map(|(index, schema)| self.read_at(&index.to_string(), schema)).collect()
    }

    fn read_at(&mut self, name: &str, schema: &'a Value) -> Result<Shape, GrammarError> {
        self.place.push(name.to_owned());
        let shape = self.read(schema);
        self.place.pop();
        shape
    }

    fn node_at(&mut self, name: &str, schema: &'a Value) -> Result<Rc<Node>, GrammarError> {
        let shape = self.read_at(name, schema)?;
        self.node(shape)
    }

    /// The place that is read.
    fn here(&mut self) -> Result<Rc<str>, GrammarError> {
        self.spend(self.place.iter().map(String::len).sum::<usize>() / BYTES)?;
        Ok(pointer(&self.place).into())
    }

    fn numbers(&mut self, keywords: &Map<String, Value>, is_integer: bool) -> Result<Numbers, GrammarError> {
        let mut numbers = Numbers::any(is_integer);
        let is_true = |keyword: &str| keywords.get(keyword) == Some(&Value::Bool(true));
        for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"] {
            let text = match keywords.get(keyword) {
                None => continue,
                Some(Value::Number(number)) => number.to_string(),
                // In draft 4, it says of the other keyword that the bound is excluded.
                Some(Value::Bool(_)) if keyword.starts_with("exclusive") => continue,
                Some(_) => return self.refuse_at(keyword, "it must be a number"),
            };
            let bound = match keyword {
                "minimum" => numbers.at_least(&text, is_true("exclusiveMinimum")),
                "exclusiveMinimum" => numbers.at_least(&text, true),
                "maximum" => numbers.at_most(&text, is_true("exclusiveMaximum")),
                "exclusiveMaximum" => numbers.at_most(&text, true),
                _ => numbers.multiple_of(&text),
            };
            let Some(bound) = bound else { return self.refuse_at(keyword, "it must be a number above zero") };
            numbers = bound;
        }
        // What cannot be told apart is refused at the keyword that asks for it.
        if let Err(problem) = numbers.texts() {
            let asked = ["multipleOf", "minimum", "exclusiveMinimum", "maximum"];
            let place = asked.into_iter().find(|keyword| keywords.contains_key(*keyword));
            return self.refuse_at(place.unwrap_or("exclusiveMaximum"), &problem);
        }
        Ok(numbers)
    }

    fn strings(&mut self, keywords: &Map<String, Value>) -> Result<Strings, GrammarError> {
        let mut strings = Strings {
            least: self.count(keywords, "minLength")?.unwrap_or(0),
            most: self.count(keywords, "maxLength")?,
            ..Strings::default()
        };
        for (keyword, list) in [("pattern", &mut strings.patterns), ("format", &mut strings.formats)] {
            match keywords.get(keyword) {
                None => {}
                Some(Value::String(text)) => list.push(text.clone()),
                Some(_) => return self.refuse_at(keyword, "it must be a text"),
            }
        }
        Ok(strings)
    }

    fn lists(&mut self, keywords: &'a Map<String, Value>) -> Result<Lists, GrammarError> {
        let mut lists = Lists::any();
        lists.least = self.count(keywords, "minItems")?.unwrap_or(0);
        lists.most = self.count(keywords, "maxItems")?;
        // A list of schemas is the older form.
        let is_listed = keywords.get("items").is_some_and(Value::is_array);
        let (first, rest) = match (is_listed, self.is_old) {
            (true, _) => ("items", "additionalItems"),
            (false, true) => ("", "items"),
            (false, false) => ("prefixItems", "items"),
        };
        match keywords.get(first) {
            None => {}
            Some(Value::Array(schemas)) => {
                self.place.push(first.to_owned());
                let shapes = schemas.iter().enumerate().map(|(index, one)| self.node_at(&index.to_string(), one));
                lists.first = shapes.collect::<Result<_, _>>()?;
                self.place.pop();
            }
            Some(_) => return self.refuse_at(first, "it must be a list of schemas"),
        }
        if let Some(schema) = keywords.get(rest) {
            lists.rest = self.node_at(rest, schema)?;
        }
        Ok(lists)
    }

    fn objects(&mut self, keywords: &'a Map<String, Value>) -> Result<Objects, GrammarError> {
        let mut objects = Objects::any(self.here()?);
        objects.least = self.count(keywords, "minProperties")?.unwrap_or(0);
        objects.most = self.count(keywords, "maxProperties")?;
        objects.patterns = self.schemas(keywords, "patternProperties")?;
        for (name, mut shape) in self.schemas(keywords, "properties")? {
            for (pattern, other) in &objects.patterns {
                if is_match(pattern, &name, &objects.place, self)? {
                    let both = meet(&shape, other, self)?;
                    shape = self.node(both)?;
                }
            }
            objects.properties.push((name, shape));
        }
        if let Some(schema) = keywords.get("additionalProperties") {
            objects.others = self.node_at("additionalProperties", schema)?;
        }
        match keywords.get("required") {
            None => {}
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                let mut known = HashSet::new();
                let each_once = names.iter().filter_map(Value::as_str).filter(|&name| known.insert(name));
                objects.required = each_once.map(str::to_owned).collect();
            }
            Some(_) => return self.refuse_at("required", "it must be a list of names"),
        }
        Ok(objects)
    }

    fn schemas(
        &mut self,
        keywords: &'a Map<String, Value>,
        keyword: &str,
    ) -> Result<Vec<(String, Rc<Node>)>, GrammarError> {
        let schemas = match keywords.get(keyword) {
            None => return Ok(Vec::new()),
            Some(Value::Object(schemas)) => schemas,
            Some(_) => return self.refuse_at(keyword, "it must be an object of schemas"),
        };
        self.place.push(keyword.to_owned());
        let shapes = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.node_at(name, schema)?)));
        let shapes = shapes.collect();
        self.place.pop();
        shapes
    }

    fn count(&self, keywords: &Map<String, Value>, keyword: &str) -> Result<Option<u64>, GrammarError> {
        let number = match keywords.get(keyword) {
            None => return Ok(None),
            Some(Value::Number(number)) => Decimal::of(&number.to_string()),
            Some(_) => None,
        };
        match number.filter(|number| number.is_whole() && !number.is_negative()) {
            // What has more than that is never reached.
            Some(number) => Ok(Some(number.units(0).and_then(|count| u64::try_from(count).ok()).unwrap_or(u64::MAX))),
            None => self.refuse_at(keyword, "it must be a whole number, and not below zero"),
        }
    }

    fn refuse_depth<T>(&self) -> Result<T, GrammarError> {
        self.refuse(&format!(
            "schemas that refer to each other can be put together up to {DEPTH_MAX} levels deep; write them as one, \
             with fewer levels"
        ))
    }

    fn refuse<T>(&self, problem: &str) -> Result<T, GrammarError> {
        Err(GrammarError::Schema { place: pointer(&self.place), problem: problem.to_owned() })
    }

    fn refuse_at<T>(&self, keyword: &str, problem: &str) -> Result<T, GrammarError> {
        let place = format!("{}/{keyword}", pointer(&self.place));
        Err(GrammarError::Schema { place, problem: problem.to_owned() })
    }
}

impl Definitions for Reader<'_> {
    fn definition(&mut self, to: &str) -> Result<Rc<Node>, GrammarError> {
        match self.definitions.get(to) {
            Some(Some(shape)) => return Ok(shape.clone()),
            Some(None) => {
                let problem = "a schema that refers to itself cannot have keywords beside that which say more of it";
                return self.refuse(problem);
            }
            None => {}
        }
        let Some(schema) = find(self.root, to) else { return self.refuse("a reference leads nowhere") };
        self.definitions.insert(to.to_owned(), None);
        let names = to.trim_start_matches('#').split('/').filter(|name| !name.is_empty()).map(str::to_owned);
        let from = std::mem::replace(&mut self.place, names.collect());
        let shape = self.read(schema)?;
        let shape = self.node(shape)?;
        self.place = from;
        self.definitions.insert(to.to_owned(), Some(shape.clone()));
        Ok(shape)
    }

    fn spend(&mut self, steps: usize) -> Result<(), GrammarError> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS_MAX {
            let (unit, got, limit) = ("combinations of its parts", self.steps, STEPS_MAX);
            return Err(GrammarError::TooLarge { what: "JSON schema", unit, got, limit });
        }
        Ok(())
    }

    fn node(&mut self, shape: Shape) -> Result<Rc<Node>, GrammarError> {
        let node = Node::new(shape);
        if node.levels() > DEPTH_MAX { self.refuse_depth() } else { Ok(node) }
    }

    fn is_match(&mut self, pattern: &str, text: &str) -> Result<Result<bool, String>, GrammarError> {
        self.spend(1 + text.len() / BYTES)?;
        if !self.patterns.contains_key(pattern) {
            self.spend(Matching::steps_to_read(pattern))?;
            self.patterns.insert(pattern.to_owned(), Matching::new(pattern));
        }
        let Some(Ok(matching)) = self.patterns.get_mut(pattern) else {
            let problem = self.patterns.get(pattern).and_then(|one| one.as_ref().err().cloned());
            return Ok(Err(problem.unwrap_or_default()));
        };
        let (is_match, steps) = matching.is_match(text, STEPS_MAX.saturating_sub(self.steps));
        self.spend(steps)?;
        Ok(Ok(is_match))
    }

    fn descend(&mut self) -> Result<(), GrammarError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX { self.refuse_depth() } else { Ok(()) }
    }

    fn ascend(&mut self) {
        self.depth -= 1;
    }
}

/// One value.
fn literal(value: &Value, place: &Rc<str>) -> Part {
    match value {
        Value::Null => Part::Null,
        Value::Bool(value) => Part::Bool(Some(*value)),
        Value::Number(number) => Part::Number(Numbers::listed(vec![number.to_string()])),
        Value::String(text) => {
            Part::Text(Strings { literals: Some(Rc::new(vec![text.clone()])), ..Strings::default() })
        }
        Value::Array(values) => Part::List(Lists {
            first: values.iter().map(|value| Node::new(Shape::one(literal(value, place)))).collect(),
            rest: Node::new(Shape::nothing()),
            least: values.len() as u64,
            most: Some(values.len() as u64),
        }),
        Value::Object(values) => {
            let one = |(name, value): (&String, &Value)| (name.clone(), Node::new(Shape::one(literal(value, place))));
            Part::Object(Objects {
                properties: values.iter().map(one).collect(),
                others: Node::new(Shape::nothing()),
                required: values.keys().cloned().collect(),
                ..Objects::any(place.clone())
            })
        }
    }
}

/// One of these values: its texts and numbers are a part each.
fn listed(values: &[Value], place: &Rc<str>) -> Shape {
    let (mut parts, mut texts): (Vec<Part>, Vec<String>) = (Vec::new(), Vec::new());
    let mut numbers: Vec<String> = Vec::new();
    for value in values {
        match value {
            Value::String(text) => texts.push(text.clone()),
            Value::Number(number) => numbers.push(number.to_string()),
            other => parts.push(literal(other, place)),
        }
    }
    if !numbers.is_empty() {
        parts.push(Part::Number(Numbers::listed(numbers)));
    }
    if !texts.is_empty() {
        parts.push(Part::Text(Strings { literals: Some(Rc::new(texts)), ..Strings::default() }));
    }
    Shape::OneOf(parts)
}
