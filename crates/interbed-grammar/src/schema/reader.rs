//! Reads a schema into the shape of its values.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::GrammarError;

use super::decimal::Decimal;
use super::dialect::Dialect;
use super::differ::differ;
use super::meet::{Definitions, are_apart, is_match, meet, named};
use super::numbers::{Numbers, WholeFormat};
use super::pattern::{Matching, checked, whole};
use super::pointer::{find, fragment, names, pointer};
use super::shape::{Contained, Lists, Node, Objects, Part, Shape, Strings};

/// Maximum number of steps of work for combining the parts of a schema.
const STEPS_MAX: usize = 100_000;
/// The deepest recursion of the work for combining parts, and the deepest nesting of a shape.
const DEPTH_MAX: usize = 128;
/// The number of levels of a schema that [`Reader::outline`] looks at.
const OUTLINE_LEVELS: usize = 5;
/// The number of bytes of a place, or of a text that is matched, that count as one step of work.
const BYTES: usize = 64;
/// The types of JSON Schema.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that constrain values of one type.
const TYPED: [&str; 25] = [
    "additionalItems",
    "additionalProperties",
    "contains",
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
    "propertyNames",
    "required",
    "type",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Keywords that apply subschemas or list values.
const APPLIED: [&str; 11] = [
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "if",
    "not",
    "oneOf",
    "then",
];
/// The keyword that constrains the properties which the keywords beside it do not evaluate.
const UNEVALUATED: &str = "unevaluatedProperties";
/// Keywords whose subschemas constrain the same value.
const BESIDE: [&str; 8] = ["$ref", "allOf", "anyOf", "dependencies", "dependentSchemas", "if", "not", "oneOf"];

/// Reads a schema whose keywords have been checked.
pub(super) struct Reader<'a> {
    root: &'a Value,
    dialect: Dialect,
    /// Whether the reader enforced a keyword that the schema's edition ignores, and thus left out values that other
    /// readers allow.
    pub(super) is_narrowed: bool,
    /// Whether values were left out because they cannot be told from excluded ones.
    pub(super) leaves_out: bool,
    /// Whether the reader ignores keywords that the schema's edition ignores.
    is_exact: bool,
    /// The shapes of the targets of references; `None` while a shape is being read.
    definitions: HashMap<String, Option<Rc<Node>>>,
    /// The compiled patterns, or what is wrong with them.
    patterns: HashMap<String, Result<Matching, String>>,
    /// The checked patterns in the form that the library accepts.
    checked: HashMap<String, String>,
    place: Vec<String>,
    steps: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let (dialect, definitions, patterns) = (Dialect::of(root), HashMap::new(), HashMap::new());
        let (is_narrowed, leaves_out, is_exact, place, checked) = (false, false, false, Vec::new(), HashMap::new());
        Self {
            root,
            dialect,
            is_narrowed,
            leaves_out,
            is_exact,
            definitions,
            patterns,
            checked,
            place,
            steps: 0,
            depth: 0,
        }
    }

    /// Creates a reader that ignores the keywords which the schema's edition of JSON Schema ignores.
    pub(super) fn exact(root: &'a Value) -> Self {
        Self { is_exact: true, ..Self::new(root) }
    }

    /// Returns whether the reader ignores a keyword, given the schema's edition.
    fn ignores(&mut self, keyword: &str) -> bool {
        let is_foreign = self.dialect.ignores(keyword);
        self.is_narrowed |= is_foreign && !self.is_exact;
        is_foreign && self.is_exact
    }

    /// Returns the shape of the values of the whole schema.
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
        let mut is_alone = false;
        if self.dialect.refers_alone() && keywords.contains_key("$ref") {
            let says_more = |keyword: &String| TYPED.contains(&keyword.as_str()) || APPLIED.contains(&keyword.as_str());
            let has_more = keywords.keys().any(|keyword| keyword != "$ref" && says_more(keyword));
            self.is_narrowed |= has_more && !self.is_exact;
            is_alone = has_more && self.is_exact;
        }
        let mut shape = if is_alone { Shape::Any } else { self.typed(keywords)? };
        for (keyword, value) in keywords {
            if (is_alone && keyword != "$ref") || self.ignores(keyword) {
                continue;
            }
            self.place.push(keyword.clone());
            shape = match keyword.as_str() {
                "if" => self.conditional(shape, keywords, value)?,
                _ => self.applied(shape, keyword, value)?,
            };
            self.place.pop();
        }
        self.ascend();
        Ok(shape)
    }

    /// Returns the shape that the keywords for single types describe together.
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

    /// Restricts `shape` by a keyword that applies subschemas or lists values.
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
                self.one_of(&options)
            }
            "not" => {
                let other = self.read(value)?;
                self.without(&shape, &other)
            }
            "dependencies" | "dependentRequired" | "dependentSchemas" => match value {
                Value::Object(dependencies) => {
                    dependencies.iter().try_fold(shape, |shape, (name, value)| self.depending(shape, name, value))
                }
                _ => self.refuse("it must be an object"),
            },
            _ => Ok(shape),
        }
    }

    /// Returns the shape of values that match exactly one of several shapes.
    fn one_of(&mut self, options: &[Shape]) -> Result<Shape, GrammarError> {
        let mut all = Shape::nothing();
        let mut overlapping = vec![Vec::new(); options.len()];
        for (index, one) in options.iter().enumerate() {
            for (at, other) in options.iter().enumerate().skip(index + 1) {
                if !are_apart(one, other, self)? {
                    overlapping[index].push(at);
                    overlapping[at].push(index);
                }
            }
        }
        for (index, overlapping) in overlapping.iter().enumerate() {
            let mut left = options[index].clone();
            for &at in overlapping {
                left = match self.without(&left, &options[at]) {
                    Ok(left) => left,
                    Err(GrammarError::Schema { .. }) => {
                        let (one, other) = (index.min(at), index.max(at));
                        return self.refuse(&format!(
                            "values may be both {one} and {other} of the \"oneOf\", so it cannot be enforced; send \
                             \"anyOf\", or a property that tells them apart"
                        ));
                    }
                    error => return error,
                };
            }
            all = all.or(left);
        }
        Ok(all)
    }

    /// Returns the shape of values that match `shape` and do not match `other`.
    fn without(&mut self, shape: &Shape, other: &Shape) -> Result<Shape, GrammarError> {
        let left = differ(shape, other, self)?;
        if self.is_narrowed && !other.is_nothing() {
            return self.refuse(
                "it cannot be enforced beside keywords that say nothing in this edition of JSON Schema (\"$schema\"); \
                 leave it out, or those",
            );
        }
        Ok(left)
    }

    /// Restricts `shape` by `if`, at the current place, with the `then` and `else` beside it.
    fn conditional(
        &mut self,
        shape: Shape,
        keywords: &'a Map<String, Value>,
        value: &'a Value,
    ) -> Result<Shape, GrammarError> {
        if !keywords.contains_key("then") && !keywords.contains_key("else") {
            return Ok(shape);
        }
        let condition = self.read(value)?;
        let mut whole = Shape::nothing();
        for (keyword, holds) in [("then", true), ("else", false)] {
            let left = if holds { meet(&shape, &condition, self)? } else { self.without(&shape, &condition)? };
            let left = match keywords.get(keyword) {
                None => left,
                Some(schema) => {
                    let own = self.place.pop();
                    let more = self.read_at(keyword, schema)?;
                    self.place.extend(own);
                    meet(&left, &more, self)?
                }
            };
            whole = whole.or(left);
        }
        Ok(whole)
    }

    /// Restricts `shape` by a dependency. Objects that have the property `name` also have to have other properties, or
    /// to match a subschema.
    fn depending(&mut self, shape: Shape, name: &str, value: &'a Value) -> Result<Shape, GrammarError> {
        let place = self.here()?;
        let having = Objects::any(place.clone()).requiring(name);
        let more = match value {
            Value::Array(names) if names.iter().all(Value::is_string) => {
                let names = names.iter().filter_map(Value::as_str);
                Shape::one(Part::Object(names.fold(having, Objects::requiring)))
            }
            Value::String(other) => Shape::one(Part::Object(having.requiring(other))),
            Value::Array(_) => return self.refuse("it must be a list of names"),
            schema => {
                let schema = self.read_at(name, schema)?;
                meet(&Shape::one(Part::Object(having)), &schema, self)?
            }
        };
        let lacking = Objects::any(place).with(name, Node::new(Shape::nothing()));
        let mut parts = Part::all_but_objects();
        parts.push(Part::Object(lacking));
        meet(&shape, &Shape::OneOf(parts).or(more), self)
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

    fn numbers(&mut self, keywords: &Map<String, Value>, is_integer: bool) -> Result<Numbers, GrammarError> {
        let mut numbers = Numbers::any(is_integer);
        let is_true = |keyword: &str| keywords.get(keyword) == Some(&Value::Bool(true));
        for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"] {
            let text = match keywords.get(keyword) {
                None => continue,
                Some(Value::Number(number)) => number.to_string(),
                // In draft 4, the value of this keyword is a boolean that excludes the bound of `minimum` or `maximum`.
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
        if let Some(format) = keywords.get("format").and_then(Value::as_str).and_then(WholeFormat::of) {
            numbers = numbers.in_format(format);
        }
        // Numbers that cannot be told apart are refused at the keyword that asks for it.
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
                // This `format` constrains numbers, not strings.
                Some(Value::String(text)) if keyword == "format" && WholeFormat::of(text).is_some() => {}
                Some(Value::String(text)) => list.push(text.clone()),
                Some(_) => return self.refuse_at(keyword, "it must be a text"),
            }
        }
        for pattern in &strings.patterns {
            self.place.push("pattern".into());
            self.checked(pattern)?;
            self.place.pop();
        }
        Ok(strings)
    }

    fn lists(&mut self, keywords: &'a Map<String, Value>) -> Result<Lists, GrammarError> {
        let mut lists = Lists::any();
        lists.least = self.count(keywords, "minItems")?.unwrap_or(0);
        lists.most = self.count(keywords, "maxItems")?;
        // An array of schemas is the older form of `prefixItems`.
        let is_listed = keywords.get("items").is_some_and(Value::is_array);
        match keywords.get("uniqueItems") {
            Some(Value::Bool(true)) => {
                let here = self.here()?;
                lists.unique = Some(format!("{here}/uniqueItems").into());
            }
            None | Some(Value::Bool(false)) => {}
            Some(_) => return self.refuse_at("uniqueItems", "it must be true or false"),
        }
        if let Some(schema) = keywords.get("contains").filter(|_| !self.ignores("contains")) {
            let mut least = self.count(keywords, "minContains")?.filter(|_| !self.ignores("minContains")).unwrap_or(1);
            if self.dialect.ignores("minContains") {
                // These editions require one matching item, whatever `minContains` says.
                least = least.max(1);
            }
            let most = self.count(keywords, "maxContains")?.filter(|_| !self.ignores("maxContains"));
            let (shape, here) = (self.node_at("contains", schema)?, self.here()?);
            if least > 0 || most.is_some() {
                lists.some = Some(Contained { shape, least, most, place: format!("{here}/contains").into() });
            }
        }
        let (first, rest) = match (is_listed, self.dialect < Dialect::Draft2020) {
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
        if let Some(schema) = keywords.get(UNEVALUATED).filter(|_| !keywords.contains_key("additionalProperties")) {
            if let Some(beside) = BESIDE.iter().find(|keyword| keywords.contains_key(**keyword)) {
                return self.refuse_at(UNEVALUATED, &format!(
                    "\"{UNEVALUATED}\" cannot be enforced beside \"{beside}\"; send \"additionalProperties\", and list \
                     all properties"
                ));
            }
            objects.others = self.node_at(UNEVALUATED, schema)?;
        }
        if let Some(schema) = keywords.get("propertyNames").filter(|_| !self.ignores("propertyNames")) {
            objects = self.named_so(objects, schema)?;
        }
        Ok(objects)
    }

    /// Restricts objects to property names that match `schema`.
    fn named_so(&mut self, mut objects: Objects, schema: &'a Value) -> Result<Objects, GrammarError> {
        let mut shape = self.read_at("propertyNames", schema)?;
        while let Shape::OneOf(parts) = &shape
            && let [Part::Definition(to)] = &parts[..]
        {
            self.descend()?;
            let definition = self.definition(&to.clone())?;
            shape = (**definition).clone();
        }
        let Shape::OneOf(parts) = &shape else { return Ok(objects) };
        let mut texts = Vec::new();
        for part in parts {
            match part {
                Part::Text(strings) => texts.push(strings),
                Part::Definition(_) => return self.refuse_names(),
                _ => {}
            }
        }
        let listed: Option<Vec<&Rc<Vec<String>>>> = texts.iter().map(|strings| strings.literals.as_ref()).collect();
        let says_more = |strings: &&Strings| {
            !strings.formats.is_empty() || !strings.unlike.is_empty() || strings.excluded.is_some()
        };
        let nothing = Node::new(Shape::nothing());
        let mut names: Vec<String> = objects.properties.iter().map(|(name, _)| name.clone()).collect();
        names.extend(objects.required.iter().cloned());
        if let Some(listed) = listed {
            if texts.iter().any(|strings| says_more(strings) || !strings.patterns.is_empty()) {
                return self.refuse_names();
            }
            let is_kept = |strings: &Strings, name: &str| {
                let length = name.chars().count() as u64;
                strings.least <= length && strings.most.is_none_or(|most| length <= most)
            };
            let mut allowed: Vec<&String> = Vec::new();
            for (strings, listed) in texts.iter().zip(listed) {
                allowed.extend(listed.iter().filter(|name| is_kept(strings, name)));
            }
            let known: HashSet<&String> = allowed.iter().copied().collect();
            self.spend(allowed.len() + names.len())?;
            let mut properties: Vec<(String, Rc<Node>)> = Vec::new();
            for (name, shape) in &objects.properties {
                properties.push((name.clone(), if known.contains(name) { shape.clone() } else { nothing.clone() }));
            }
            let mut own: HashSet<&String> = objects.properties.iter().map(|(name, _)| name).collect();
            for name in allowed {
                if own.insert(name) {
                    properties.push((name.clone(), named(&objects, name, self)?));
                }
            }
            objects.properties = properties;
            objects.patterns = Vec::new();
            objects.others = nothing;
            return Ok(objects);
        }
        let [strings] = texts[..] else { return self.refuse_names() };
        if says_more(&strings) || strings.literals.is_some() {
            return self.refuse_names();
        }
        let mut patterns = strings.patterns.clone();
        if strings.least > 0 || strings.most.is_some() {
            let most = strings.most.map(|most| most.to_string()).unwrap_or_default();
            patterns.push(format!("^(?s:.){{{},{most}}}$", strings.least));
        }
        for pattern in &patterns {
            self.spend(Matching::steps_to_read(pattern))?;
            if let Err(problem) = whole(pattern).and_then(|_| checked(pattern)) {
                return self.refuse_at("propertyNames", &problem);
            }
            for name in &names {
                if !self.is_match(pattern, name)?.unwrap_or(false) {
                    objects = objects.with(name, nothing.clone());
                }
            }
        }
        objects.names = patterns;
        Ok(objects)
    }

    /// Checks a pattern and returns it in the form that the library accepts.
    pub(super) fn checked(&mut self, pattern: &str) -> Result<String, GrammarError> {
        self.spend(1 + pattern.len() / BYTES)?;
        if let Some(known) = self.checked.get(pattern) {
            return Ok(known.clone());
        }
        self.spend(Matching::steps_to_read(pattern))?;
        let checked = checked(pattern).map_err(|problem| self.cannot(&problem))?;
        self.checked.insert(pattern.to_owned(), checked.clone());
        Ok(checked)
    }

    fn refuse_names<T>(&self) -> Result<T, GrammarError> {
        self.refuse_at(
            "propertyNames",
            "\"propertyNames\" can be enforced where it is \"enum\" or \"const\", or lengths and patterns of \
             all names; \
             leave it out, or send it so",
        )
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
            // No larger count is ever reached.
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

impl<'a> Reader<'a> {
    /// Returns a superset of the values of a schema that is being read, from a look at its keywords down to `levels`.
    fn outline(&mut self, schema: &'a Value, levels: usize) -> Result<Shape, GrammarError> {
        self.spend(1)?;
        let keywords = match schema {
            Value::Bool(false) => return Ok(Shape::nothing()),
            Value::Object(keywords) if levels > 0 => keywords,
            _ => return Ok(Shape::Any),
        };
        let place = self.here()?;
        let mut shape = Shape::Any;
        if let Some(to) = keywords.get("$ref").and_then(Value::as_str)
            && let Some(schema) = find(self.root, to)
        {
            shape = self.outline(schema, levels - 1)?;
            if self.dialect.refers_alone() {
                return Ok(shape);
            }
        }
        let named: Vec<&str> = match keywords.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => TYPES.to_vec(),
        };
        let mut objects = Objects::any(place.clone());
        for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            objects = objects.requiring(name);
            if let Some(schema) = keywords.get("properties").and_then(|properties| properties.get(name)) {
                let value = self.outline(schema, levels - 1)?;
                objects = objects.with(name, Node::new(value));
            }
        }
        let is_named = |part: &Part| match part {
            Part::Null => named.contains(&"null"),
            Part::Bool(_) => named.contains(&"boolean"),
            Part::Number(_) => named.contains(&"number") || named.contains(&"integer"),
            Part::Text(_) => named.contains(&"string"),
            Part::List(_) => named.contains(&"array"),
            Part::Object(_) | Part::Definition(_) => named.contains(&"object"),
        };
        let all = Part::all_but_objects().into_iter().chain([Part::Object(objects)]).filter(is_named);
        shape = meet(&shape, &Shape::OneOf(all.collect()), self)?;
        if let Some(Value::Array(values)) = keywords.get("enum") {
            shape = meet(&shape, &listed(values, &place), self)?;
        }
        if let Some(value) = keywords.get("const").filter(|_| !self.dialect.ignores("const")) {
            shape = meet(&shape, &Shape::one(literal(value, &place)), self)?;
        }
        for schema in keywords.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let other = self.outline(schema, levels - 1)?;
            shape = meet(&shape, &other, self)?;
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = keywords.get(keyword) {
                let mut any = Shape::nothing();
                for schema in schemas {
                    let one = self.outline(schema, levels - 1)?;
                    any = any.or(one);
                }
                shape = meet(&shape, &any, self)?;
            }
        }
        Ok(shape)
    }
}

impl Definitions for Reader<'_> {
    fn bounds(&mut self, to: &str) -> Result<Rc<Node>, GrammarError> {
        if let Some(None) = self.definitions.get(to)
            && let Some(schema) = find(self.root, to)
        {
            let shape = self.outline(schema, OUTLINE_LEVELS)?;
            return self.node(shape);
        }
        self.definition(to)
    }

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
        let names = fragment(self.root, to).and_then(names).unwrap_or_default();
        let from = std::mem::replace(&mut self.place, names);
        let shape = self.read(schema).and_then(|shape| self.node(shape));
        self.place = from;
        if shape.is_err() {
            self.definitions.remove(to);
        }
        let shape = shape?;
        self.definitions.insert(to.to_owned(), Some(shape.clone()));
        Ok(shape)
    }

    fn spend(&mut self, steps: usize) -> Result<(), GrammarError> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS_MAX {
            let problem = format!("it has more than {STEPS_MAX} combinations of its parts; simplify it");
            return self.refuse(&problem);
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

    fn leave_out(&mut self) {
        self.leaves_out = true;
    }

    fn level(&self) -> usize {
        self.depth
    }

    fn back_to(&mut self, level: usize) {
        self.depth = level;
    }

    fn cannot(&self, problem: &str) -> GrammarError {
        GrammarError::Schema { place: pointer(&self.place), problem: problem.to_owned() }
    }

    fn here(&mut self) -> Result<Rc<str>, GrammarError> {
        self.spend(self.place.iter().map(String::len).sum::<usize>() / BYTES)?;
        Ok(pointer(&self.place).into())
    }
}

/// Returns the shape of a single value.
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
            unique: None,
            some: None,
            is_part: false,
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

/// Returns the shape of the listed values. All strings become one part, and so do all numbers.
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
