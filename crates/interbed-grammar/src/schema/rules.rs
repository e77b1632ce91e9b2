//! Writes shapes of values as rules of a grammar in Lark's syntax.
//!
//! White space belongs to the brackets, commas and colons. Each side has at most one space, or one line end with the
//! indentation of the next line. Property names that a schema does not list are written with the fewest escapes, so
//! that no name has two forms.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::GrammarError;

use super::meet::{Definitions, is_match, named};
use super::numbers::{Numbers, Texts};
use super::pattern;
use super::places::Places;
use super::reader::Reader;
use super::shape::{Lists, Node, Objects, Part, Shape, Strings};

/// Maximum number of rules of a grammar, because the library follows them by recursion.
const RULES_MAX: usize = 8192;
/// Maximum number of states for counting properties.
const COUNTED_MAX: usize = 20_000;
/// The largest `minItems`.
const LEAST_MAX: u64 = 1 << 20;
/// Maximum number of patterns and formats that may apply to one string.
const PATTERNS_MAX: usize = 6;
const TOO_MANY_PATTERNS: &str =
    "more than 6 patterns and formats have to match one text, or not; put them into one pattern, or leave some out";
/// The number of strings or numbers that are compared in one step of work.
pub(super) const LISTED: usize = 16;
/// An expression for the white space after an opening bracket or a comma, and before a closing bracket. JSON allows
/// white space of any length, but then a model could write it without end.
const SPACE: &str = r"( |\n[ \t]{0,40})?";
/// An expression for one character of a JSON string.
const CHARACTER: &str = r#"([^"\\\x00-\x1f\x7f]|\\(["\\bfnrt]|u00([01][0-9a-fA-F]|7[fF])))"#;
/// An expression for property names that has one form for each name.
const NAME: &str = r#""([^"\\\x00-\x1f\x7f]|\\["\\])*""#;
/// An expression for property names without escapes.
const PLAIN_NAME: &str = r#""[^"\\\x00-\x1f\x7f]*""#;

/// The rules of several schemas.
#[derive(Default)]
pub(super) struct Rules {
    lines: Vec<String>,
    /// The names of terminals and of `%json` parts, by their definition.
    known: HashMap<String, String>,
    /// The names of rules, by their definition.
    ruled: HashMap<String, String>,
    /// Whether a schema was added, so that the rules that all schemas share are needed.
    is_used: bool,
    /// Whether a rule for a `uniqueItems` array was written.
    pub(super) is_watched: bool,
    /// The places of `uniqueItems` arrays in the values of the schemas.
    places: Places,
}

impl Rules {
    /// Adds the rules of a schema whose keywords have been checked. Returns the name of its first rule.
    ///
    /// # Errors
    /// Fails if a keyword cannot be enforced, and names it. Also fails if no value satisfies the schema.
    pub(super) fn add(&mut self, schema: &Value) -> Result<String, GrammarError> {
        self.is_used = true;
        let (mut writer, root) = Writer::of(self, schema)?;
        if !writer.has_values(&root)? {
            if writer.reader.leaves_out {
                let problem = "no value is left that can be told from those that \"not\", \"if\" or \"oneOf\" \
                               exclude; simplify it";
                return Err(GrammarError::Schema { place: "#".into(), problem: problem.into() });
            }
            let problem = "Unsatisfiable schema: no value keeps to it".to_owned();
            return Err(GrammarError::Invalid { what: "JSON schema", problem });
        }
        let value = writer.value(&root)?;
        let name = writer.rules.rule(&value)?;
        while let Some((to, rule)) = writer.pending.pop() {
            let shape = writer.reader.definition(&to)?;
            let value = writer.value(&shape)?;
            writer.rules.push(format!("{rule}: {value}"))?;
        }
        if writer.rules.is_watched {
            writer.rules.places.add(&root, &mut writer.reader)?;
        }
        Ok(name)
    }

    /// Returns the places of the `uniqueItems` arrays of all schemas.
    pub(super) fn into_places(self) -> Places {
        self.places
    }

    /// Returns whether any value satisfies a schema whose keywords have been checked.
    ///
    /// # Errors
    /// Fails if a keyword cannot be enforced, and names it.
    pub(super) fn has_values(schema: &Value) -> Result<bool, GrammarError> {
        let mut rules = Self::default();
        let (mut writer, root) = Writer::of(&mut rules, schema)?;
        writer.has_values(&root)
    }

    /// Returns the text of all rules, to be appended to the grammar that uses them.
    pub(super) fn text(&self) -> String {
        if !self.is_used {
            return String::new();
        }
        let lines = self.lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let any = expression(&format!("{CHARACTER}*"));
        lines
            + "json__any: JSON__WORD | JSON__NUMBER | JSON__TEXT | json__list | json__object\n"
            + "json__list: JSON__NO_LIST | JSON__LIST json__any (JSON__COMMA json__any)* JSON__LIST_END\n"
            + "json__object: JSON__NO_OBJECT | JSON__OBJECT json__pair (JSON__COMMA json__pair)* JSON__OBJECT_END\n"
            + "json__pair: JSON__NAME JSON__COLON json__any\n"
            + "JSON__WORD: \"true\" | \"false\" | \"null\"\n"
            + &format!("JSON__NUMBER: /{}/\n", number_of_any_kind())
            + &format!("JSON__TEXT: /\"{any}\"/\nJSON__NAME: /{}/\n", expression(NAME))
            + &format!("JSON__PLAIN_NAME: /{}/\n", expression(PLAIN_NAME))
            + &format!("JSON__COMMA: / ?,{SPACE}/\nJSON__COLON: / ?: ?/\n")
            + &format!(
                "JSON__OBJECT: /\\{{{SPACE}/\nJSON__OBJECT_END: /{SPACE}\\}}/\nJSON__NO_OBJECT: /\\{{{SPACE}\\}}/\n"
            )
            + &format!("JSON__LIST: /\\[{SPACE}/\nJSON__LIST_END: /{SPACE}\\]/\nJSON__NO_LIST: /\\[{SPACE}\\]/\n")
    }

    /// Returns the number of rules, which the next rule's name contains.
    pub(super) fn count(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn push(&mut self, line: String) -> Result<(), GrammarError> {
        self.lines.push(line);
        let (got, limit) = (self.lines.len(), RULES_MAX);
        if got > limit {
            return Err(GrammarError::TooLarge { what: "JSON schema", unit: "parts", got, limit });
        }
        Ok(())
    }

    /// Adds a rule for `value` and returns its name. An existing rule with the same value is used again.
    pub(super) fn rule(&mut self, value: &str) -> Result<String, GrammarError> {
        if value.starts_with("json__") && !value.contains([' ', '(']) {
            return Ok(value.to_owned());
        }
        if let Some(name) = self.ruled.get(value) {
            return Ok(name.clone());
        }
        let name = format!("json__{}", self.lines.len());
        self.push(format!("{name}: {value}"))?;
        self.ruled.insert(value.to_owned(), name.clone());
        Ok(name)
    }

    /// Adds a terminal for `value` and returns its name. An existing terminal with the same value is used again.
    pub(super) fn terminal(&mut self, value: String) -> Result<String, GrammarError> {
        if let Some(name) = self.known.get(&value) {
            return Ok(name.clone());
        }
        let name = format!("JSON__{}", self.lines.len());
        self.push(format!("{name}: {value}"))?;
        self.known.insert(value, name.clone());
        Ok(name)
    }

    /// Lets the library translate a schema, without white space. Returns the name of the part.
    fn library(&mut self, mut schema: Value) -> Result<String, GrammarError> {
        schema["x-guidance"] = json!({"whitespace_flexible": false});
        let value = format!("%json {schema}");
        if let Some(name) = self.known.get(&value) {
            return Ok(name.clone());
        }
        let name = self.rule(&value)?;
        self.known.insert(value, name.clone());
        Ok(name)
    }
}

/// Writes the rules of one schema.
pub(super) struct Writer<'r, 'a> {
    pub(super) rules: &'r mut Rules,
    pub(super) reader: Reader<'a>,
    /// The definitions whose rules have names but are not written yet.
    pending: Vec<(String, String)>,
    /// The names of the rules of definitions.
    names: HashMap<String, String>,
    /// The definitions that have a finite value.
    ending: HashSet<String>,
    /// The known facts about shapes that were visited, by their address. One shape is part of many others.
    known: HashMap<*const Node, Known>,
}

/// The known facts about a shape.
struct Known {
    /// The shape, which is kept so that its address stays valid.
    _node: Rc<Node>,
    has_values: bool,
    /// The expression in Lark's syntax that stands for the shape.
    value: Option<String>,
}

impl<'r, 'a> Writer<'r, 'a> {
    /// Creates a writer for a schema. Returns it with the shape of the schema's values.
    fn of(rules: &'r mut Rules, schema: &'a Value) -> Result<(Self, Rc<Node>), GrammarError> {
        let (pending, names, ending, known) = (Vec::new(), HashMap::new(), HashSet::new(), HashMap::new());
        let mut writer = Self { rules, reader: Reader::new(schema), pending, names, ending, known };
        let root = match writer.root() {
            Err(_) if writer.reader.is_narrowed => {
                writer.reader = Reader::exact(schema);
                (writer.ending, writer.known) = (HashSet::new(), HashMap::new());
                writer.root()?
            }
            root => root?,
        };
        Ok((writer, root))
    }

    /// Returns the shape of the schema's values, after finding out which definitions have values.
    fn root(&mut self) -> Result<Rc<Node>, GrammarError> {
        let root = self.reader.whole()?;
        self.find_endings(&root)?;
        Ok(root)
    }

    /// Finds the definitions that have a finite value. A definition whose every value contains itself has none.
    fn find_endings(&mut self, root: &Rc<Node>) -> Result<(), GrammarError> {
        let (mut named, mut seen): (Vec<(String, Rc<Node>)>, HashSet<String>) = (Vec::new(), HashSet::new());
        let (mut shapes, mut looked_at) = (vec![root.clone()], HashSet::from([Rc::as_ptr(root)]));
        while let Some(shape) = shapes.pop() {
            let Shape::OneOf(parts) = &**shape else { continue };
            for part in parts {
                self.reader.spend(1)?;
                let mut inner: Vec<Rc<Node>> = part.inner().cloned().collect();
                if let Part::Definition(to) = part
                    && seen.insert(to.clone())
                {
                    let shape = self.reader.definition(to)?;
                    named.push((to.clone(), shape.clone()));
                    inner.push(shape);
                }
                shapes.extend(inner.into_iter().filter(|shape| looked_at.insert(Rc::as_ptr(shape))));
            }
        }
        // Definitions that are found last are usually those that others depend on.
        named.reverse();
        loop {
            let before = named.len();
            let mut open = Vec::new();
            for (to, shape) in named {
                if self.has_values(&shape)? {
                    self.ending.insert(to);
                } else {
                    open.push((to, shape));
                }
            }
            named = open;
            if named.len() == before {
                return Ok(());
            }
            // A definition without values so far may have one now that others are known to.
            self.known.retain(|_, known| known.has_values);
        }
    }

    pub(super) fn has_values(&mut self, shape: &Rc<Node>) -> Result<bool, GrammarError> {
        let Shape::OneOf(parts) = &***shape else { return Ok(true) };
        if let Some(known) = self.known.get(&Rc::as_ptr(shape)) {
            return Ok(known.has_values);
        }
        let mut has_values = false;
        for part in parts {
            self.reader.spend(1)?;
            if self.part_has_values(part)? {
                has_values = true;
                break;
            }
        }
        self.known.insert(Rc::as_ptr(shape), Known { _node: shape.clone(), has_values, value: None });
        Ok(has_values)
    }

    fn part_has_values(&mut self, part: &Part) -> Result<bool, GrammarError> {
        Ok(match part {
            Part::Null | Part::Bool(_) => true,
            // Numbers that cannot be told apart are refused when their rule is written.
            Part::Number(numbers) => {
                self.reader.spend(numbers.listed_in_both(numbers) / LISTED)?;
                !matches!(numbers.texts(), Ok(None))
            }
            Part::Text(strings) => match self.kept(strings)? {
                Some(texts) => !texts.is_empty(),
                None => strings.most.is_none_or(|most| strings.least <= most) && self.has_other_texts(strings)?,
            },
            Part::List(lists) => {
                let mut is_possible = lists.most.is_none_or(|most| lists.least <= most);
                if is_possible && lists.unique.is_some() {
                    is_possible = self.count_of_values(lists)?.is_none_or(|count| count >= lists.least);
                }
                if let Some(some) = lists.some.as_ref().filter(|_| is_possible) {
                    is_possible = self.has_counted(lists, some)?;
                }
                let least = usize::try_from(lists.least).unwrap_or(usize::MAX);
                for index in 0..least.min(lists.first.len() + 1) {
                    is_possible = is_possible && self.has_values(lists.entry(index))?;
                }
                is_possible
            }
            Part::Object(objects) => self.object_has_values(objects)?,
            Part::Definition(to) => self.ending.contains(to),
        })
    }

    fn object_has_values(&mut self, objects: &Objects) -> Result<bool, GrammarError> {
        for name in &objects.required {
            let shape = named(objects, name, &mut self.reader)?;
            if !self.has_values(&shape)? {
                return Ok(false);
            }
        }
        let needed = objects.least.max(objects.required.len() as u64);
        if objects.most.is_some_and(|most| most < needed) {
            return Ok(false);
        }
        let required: HashSet<&String> = objects.required.iter().collect();
        let mut possible = required.len() as u64;
        for (name, shape) in &objects.properties {
            if objects.least <= possible {
                return Ok(true);
            }
            let is_optional = !required.contains(name);
            possible += u64::from(is_optional && self.has_values(shape)?);
        }
        Ok(objects.least <= possible || !self.others(objects)?.is_empty())
    }

    /// Returns the constraints on unlisted properties that can be satisfied. A constraint is an index into the
    /// patterns, or `None` for names that match no pattern.
    fn others(&mut self, objects: &Objects) -> Result<Vec<Option<usize>>, GrammarError> {
        let mut found = Vec::new();
        for (index, (_, shape)) in objects.patterns.iter().enumerate() {
            if self.has_values(shape)? {
                found.push(Some(index));
            }
        }
        if self.has_values(&objects.others)? {
            found.push(None);
        }
        if found.is_empty() || (objects.patterns.is_empty() && objects.names.is_empty()) {
            return Ok(found);
        }
        let keyword = if objects.patterns.is_empty() { "propertyNames" } else { "patternProperties" };
        let refused = |problem| GrammarError::Schema { place: format!("{}/{keyword}", objects.place), problem };
        let whole: Result<Vec<String>, String> =
            objects.patterns.iter().map(|(text, _)| pattern::whole(text)).collect();
        let all: Result<Vec<String>, String> = objects.names.iter().map(|text| pattern::whole(text)).collect();
        let all = all.map_err(refused)?;
        let listed: Vec<String> = listed_names(objects).iter().map(|name| json_text(name)).collect();
        let mut names =
            pattern::Names::new(&[PLAIN_NAME.to_owned()], &whole.map_err(refused)?, &all, &listed).map_err(refused)?;
        let mut named = Vec::new();
        for other in found {
            // If this takes too long to decide, the names are left out.
            if names.has_other(other).unwrap_or(false) {
                named.push(other);
            }
        }
        Ok(named)
    }

    /// Returns an expression in Lark's syntax for a shape that has values.
    pub(super) fn value(&mut self, shape: &Rc<Node>) -> Result<String, GrammarError> {
        let Shape::OneOf(parts) = &***shape else { return Ok("json__any".into()) };
        if let Some(value) = self.known.get(&Rc::as_ptr(shape)).and_then(|known| known.value.clone()) {
            return Ok(value);
        }
        let mut values: Vec<String> = Vec::new();
        for part in parts {
            self.reader.spend(1)?;
            if self.part_has_values(part)? {
                let value = self.part(part)?;
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        let value = match values.len() {
            1 => values.remove(0),
            _ => self.rules.rule(&values.join(" | "))?,
        };
        let known = Known { _node: shape.clone(), has_values: true, value: Some(value.clone()) };
        self.known.insert(Rc::as_ptr(shape), known);
        Ok(value)
    }

    fn part(&mut self, part: &Part) -> Result<String, GrammarError> {
        match part {
            Part::Null => Ok("\"null\"".into()),
            Part::Bool(None) => self.rules.terminal("\"true\" | \"false\"".into()),
            Part::Bool(Some(value)) => Ok(format!("\"{value}\"")),
            Part::Number(numbers) => self.number(numbers),
            Part::Text(strings) => self.text(strings),
            Part::List(lists) => self.list(lists),
            Part::Object(objects) => self.object(objects),
            Part::Definition(to) => {
                if let Some(name) = self.names.get(to) {
                    return Ok(name.clone());
                }
                // The name is reserved now, and the line is filled in later.
                let name = format!("json__d{}", self.rules.lines.len());
                self.rules.push(String::new())?;
                self.names.insert(to.clone(), name.clone());
                self.pending.push((to.clone(), name.clone()));
                Ok(name)
            }
        }
    }

    /// Returns the listed strings that have an allowed length and match the patterns; `None` if the schema lists none.
    pub(super) fn kept(&mut self, strings: &Strings) -> Result<Option<Vec<String>>, GrammarError> {
        let Some(texts) = &strings.literals else { return Ok(None) };
        let excluded: HashSet<&String> = strings.excluded.iter().flat_map(|texts| texts.iter()).collect();
        self.reader.spend(excluded.len() / LISTED)?;
        let mut kept = Vec::new();
        for text in &**texts {
            let length = text.chars().count() as u64;
            let mut is_kept = strings.least <= length && strings.most.is_none_or(|most| length <= most);
            for pattern in &strings.patterns {
                is_kept = is_kept && self.reader.is_match(pattern, text)?.unwrap_or(true);
            }
            // Only for ASCII texts do all readers agree that a text does not match an expression.
            let is_plain = strings.unlike.is_empty() || text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            is_kept = is_kept && is_plain && !excluded.contains(text);
            for pattern in &strings.unlike {
                is_kept = is_kept && !self.reader.is_match(pattern, text)?.unwrap_or(true);
            }
            if is_kept {
                kept.push(text.clone());
            }
        }
        self.reader.spend(texts.len() / LISTED)?;
        Ok(Some(kept))
    }

    fn number(&mut self, numbers: &Numbers) -> Result<String, GrammarError> {
        match numbers.texts() {
            Ok(Some(Texts::Expression(text))) => self.rules.terminal(format!("/{text}/")),
            Ok(Some(Texts::Both(one, other))) => self.rules.terminal(format!("/{one}/ & /{other}/")),
            Ok(Some(Texts::Schema(schema))) => self.rules.library(schema),
            Ok(None) => Err(GrammarError::Invalid { what: "JSON schema", problem: "no number keeps to it".into() }),
            Err(problem) => Err(GrammarError::Schema { place: "#".into(), problem }),
        }
    }

    fn text(&mut self, strings: &Strings) -> Result<String, GrammarError> {
        let texts = self.kept(strings)?;
        let is_other = strings.excluded.is_some() || !strings.unlike.is_empty();
        if texts.is_none() && is_other {
            return self.other_text(strings);
        }
        if strings.patterns.len() + strings.formats.len() > PATTERNS_MAX {
            return Err(self.reader.cannot(TOO_MANY_PATTERNS));
        }
        let is_matched = texts.is_some() && strings.patterns.iter().all(|text| pattern::whole(text).is_ok());
        if (is_matched || strings.patterns.is_empty()) && strings.formats.is_empty() {
            return match texts {
                Some(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                    self.rules.terminal(texts.join(" | "))
                }
                None if strings.least == 0 && strings.most.is_none() => Ok("JSON__TEXT".into()),
                None => {
                    let most = strings.most.map(|most| most.to_string()).unwrap_or_default();
                    let count = format!("{{{},{most}}}", strings.least);
                    self.rules.terminal(format!("/\"{}\"/", expression(&format!("{CHARACTER}{count}"))))
                }
            };
        }
        let mut schema = json!({"type": "string"});
        match texts {
            Some(texts) => schema["enum"] = texts.into(),
            None => {
                schema["minLength"] = strings.least.into();
                if let Some(most) = strings.most {
                    schema["maxLength"] = most.into();
                }
            }
        }
        let mut patterns = Vec::new();
        for text in &strings.patterns {
            let text = self.reader.checked(text)?;
            patterns.push(json!({"pattern": text}));
        }
        let formats = strings.formats.iter().map(|format| match (format_pattern(format), format.as_str()) {
            (Some(pattern), _) => json!({"pattern": pattern}),
            (None, "idn-email") => json!({"format": "email"}),
            (None, "idn-hostname") => json!({"format": "hostname"}),
            (None, format) => json!({"format": format}),
        });
        schema["allOf"] = patterns.into_iter().chain(formats).collect();
        self.rules.library(schema)
    }

    /// Returns whether some string differs from those that are excluded.
    fn has_other_texts(&mut self, strings: &Strings) -> Result<bool, GrammarError> {
        let is_listed = |text: &String| text.is_empty();
        if strings.most == Some(0) && strings.excluded.as_ref().is_some_and(|texts| texts.iter().any(is_listed)) {
            return Ok(false);
        }
        let is_open = strings.unlike.is_empty() && (strings.excluded.is_none() || strings.patterns.is_empty());
        if is_open {
            return Ok(true);
        }
        let other = OtherTexts::of(strings).map_err(|problem| self.reader.cannot(&problem))?;
        let listed: Vec<String> =
            strings.excluded.iter().flat_map(|texts| texts.iter()).map(|text| json_text(text)).collect();
        let any = vec![format!("\"{}\"", other.any)];
        let names = pattern::Names::new(&any, &other.unlike, &other.like, &listed);
        let has_other = names.map_err(|problem| self.reader.cannot(&problem))?.has_other(None);
        has_other.ok_or_else(|| {
            self.reader.cannot("it takes too long to tell which texts its patterns leave; send fewer or simpler ones")
        })
    }

    /// Returns an expression for strings that are not among the excluded texts, or that do not match the excluded
    /// patterns.
    fn other_text(&mut self, strings: &Strings) -> Result<String, GrammarError> {
        let excluded: Vec<&String> = strings.excluded.iter().flat_map(|texts| texts.iter()).collect();
        let bytes = excluded.iter().map(|text| text.len()).sum::<usize>();
        self.reader.spend((excluded.len() + bytes) / LISTED)?;
        if strings.patterns.is_empty() && strings.unlike.is_empty() && strings.formats.is_empty() {
            let most = strings.most.map(|most| most.to_string()).unwrap_or_default();
            let count = format!("{{{},{most}}}", strings.least);
            let any = expression(&format!("{CHARACTER}{count}"));
            let mut all = vec![format!("/\"{any}\"/")];
            if !excluded.is_empty() {
                let forms: Vec<String> = excluded.iter().map(|text| forms(text)).collect();
                all.push(format!("~(/{}/)", forms.join("|")));
            }
            return self.rules.terminal(all.join(" & "));
        }
        let other = OtherTexts::of(strings).map_err(|problem| self.reader.cannot(&problem))?;
        if other.like.len() + other.unlike.len() > PATTERNS_MAX {
            return Err(self.reader.cannot(TOO_MANY_PATTERNS));
        }
        let quoted = |text: &str| format!("\"\\\"\" /{text}/ \"\\\"\"");
        let mut all = vec![self.rules.terminal(quoted(&expression(&other.any)))?];
        for text in &other.like {
            all.push(self.rules.terminal(quoted(text))?);
        }
        let mut without: Vec<String> = excluded.iter().map(|text| literal(text)).collect();
        for text in &other.unlike {
            without.push(self.rules.terminal(quoted(text))?);
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        self.name(&all, &without)
    }

    pub(super) fn list(&mut self, lists: &Lists) -> Result<String, GrammarError> {
        if lists.unique.is_some() && lists.most.is_none_or(|most| most > 1) {
            let lists = self.watched(lists)?;
            return self.list(&lists);
        }
        if let Some(some) = &lists.some {
            return self.counted_list(lists, some);
        }
        let mut most = lists.most;
        let mut first = Vec::new();
        for (index, shape) in lists.first.iter().enumerate() {
            if most.is_some_and(|most| most <= index as u64) {
                break;
            }
            if !self.has_values(shape)? {
                // Required items always have values here.
                most = Some(index as u64);
                break;
            }
            first.push(self.value(shape)?);
        }
        let room = most.map(|most| most - first.len() as u64);
        let rest = if room != Some(0) && self.has_values(&lists.rest)? { Some(self.value(&lists.rest)?) } else { None };
        let needed = lists.least.saturating_sub(first.len() as u64);
        if needed > LEAST_MAX {
            return Err(GrammarError::TooLarge {
                what: "JSON schema",
                unit: "entries that a list must have",
                got: usize::try_from(needed).unwrap_or(usize::MAX),
                limit: LEAST_MAX as usize,
            });
        }
        // This builds what may follow an item, from the last item to the first.
        let mut behind = match &rest {
            Some(rest) if !first.is_empty() => repeated(&format!("(JSON__COMMA {rest})"), needed, room),
            _ => String::new(),
        };
        for (index, value) in first.iter().enumerate().skip(1).rev() {
            let is_optional = index as u64 >= lists.least;
            let one = format!("JSON__COMMA {value} {behind}");
            behind = self.rules.rule(one.trim_end())? + if is_optional { "?" } else { "" };
        }
        let entries = match (first.first(), &rest) {
            (Some(value), _) => Some(format!("{value} {behind}")),
            (None, Some(rest)) => {
                let (needed, room) = (needed.saturating_sub(1), room.map(|room| room - 1));
                Some(format!("{rest} {}", repeated(&format!("(JSON__COMMA {rest})"), needed, room)))
            }
            (None, None) => None,
        };
        let mut ways = Vec::new();
        if lists.least == 0 {
            ways.push("JSON__NO_LIST".to_owned());
        }
        ways.extend(entries.map(|entries| format!("JSON__LIST {} JSON__LIST_END", entries.trim_end())));
        self.rules.rule(&ways.join(" | "))
    }

    fn object(&mut self, objects: &Objects) -> Result<String, GrammarError> {
        let is_open =
            matches!(&**objects.others, Shape::Any) && objects.patterns.is_empty() && objects.names.is_empty();
        let says_nothing = objects.properties.is_empty() && objects.required.is_empty();
        if is_open && says_nothing && objects.least == 0 && objects.most.is_none() {
            return Ok("json__object".into());
        }
        let names = listed_names(objects);
        let required: HashSet<&String> = objects.required.iter().collect();
        let mut pairs: Vec<(String, bool)> = Vec::new();
        for &name in &names {
            let shape = named(objects, name, &mut self.reader)?;
            let is_required = required.contains(name);
            if is_required || self.has_values(&shape)? {
                let value = self.value(&shape)?;
                pairs.push((format!("{} JSON__COLON {value}", literal(name)), is_required));
            }
        }
        let other = self.other_pair(objects, &names)?;
        let counts = Counts::of(objects);
        let ways = self.pairs(&pairs, other.as_deref(), counts)?;
        let mut all = Vec::new();
        if objects.required.is_empty() && counts.needed == 0 {
            // An object that is always empty is compared with this text elsewhere.
            all.push(if ways.is_none() { "\"{}\"" } else { "JSON__NO_OBJECT" }.to_owned());
        }
        all.extend(ways.map(|ways| format!("JSON__OBJECT {ways} JSON__OBJECT_END")));
        if all.is_empty() {
            let problem = "\"minProperties\" cannot be enforced where more than one name would have to be one that \
                           \"properties\" does not list; leave it out, or list names";
            let place = format!("{}/minProperties", objects.place);
            return Err(GrammarError::Schema { place, problem: problem.into() });
        }
        self.rules.rule(&all.join(" | "))
    }

    /// Returns an expression for a property whose name is not listed in `properties`; `None` if there is none.
    fn other_pair(&mut self, objects: &Objects, listed: &[&String]) -> Result<Option<String>, GrammarError> {
        let others = self.others(objects)?;
        let mut expressions = Vec::new();
        for (text, _) in objects.patterns.iter().filter(|_| !others.is_empty()) {
            let place = format!("{}/patternProperties", objects.place);
            let whole = pattern::whole(text).map_err(|problem| GrammarError::Schema { place, problem })?;
            expressions.push(self.rules.terminal(format!("\"\\\"\" /{whole}/ \"\\\"\""))?);
        }
        let mut all = Vec::new();
        for text in objects.names.iter().filter(|_| !others.is_empty()) {
            let place = format!("{}/propertyNames", objects.place);
            let whole = pattern::whole(text).map_err(|problem| GrammarError::Schema { place, problem })?;
            all.push(self.rules.terminal(format!("\"\\\"\" /{whole}/ \"\\\"\""))?);
        }
        let is_plain = !expressions.is_empty() || !all.is_empty();
        let mut pairs = Vec::new();
        for other in others {
            // A name that matches several patterns would have to satisfy all of them, so such names are left out.
            let unmatched = expressions.iter().enumerate().filter(|(at, _)| Some(*at) != other);
            let mut without: Vec<String> = unmatched.map(|(_, one)| one.clone()).collect();
            let (mut these, shape) = match other {
                Some(index) => {
                    let (text, shape) = &objects.patterns[index];
                    for name in listed {
                        if is_match(text, name, &objects.place, &mut self.reader)? {
                            without.push(literal(name));
                        }
                    }
                    (vec!["JSON__PLAIN_NAME", &expressions[index]], shape)
                }
                None => {
                    without.extend(listed.iter().map(|name| literal(name)));
                    (vec![if is_plain { "JSON__PLAIN_NAME" } else { "JSON__NAME" }], &objects.others)
                }
            };
            these.extend(all.iter().map(String::as_str));
            let name = self.name(&these, &without)?;
            pairs.push(format!("{name} JSON__COLON {}", self.value(shape)?));
        }
        if pairs.is_empty() { Ok(None) } else { self.rules.rule(&pairs.join(" | ")).map(Some) }
    }

    /// Returns an expression for names that match all of `these` and none of `without`.
    fn name(&mut self, these: &[&str], without: &[String]) -> Result<String, GrammarError> {
        let mut all = these.join(" & ");
        if !without.is_empty() {
            all += &format!(" & ~({})", without.join(" | "));
        }
        if these.len() == 1 && without.is_empty() { Ok(all) } else { self.rules.terminal(all) }
    }

    /// Returns an expression for one or more of `pairs` in order, some of which are required, followed by unlisted
    /// properties. Returns `None` if the counts cannot be met. Unlisted properties may repeat a name, so at most one of
    /// them counts.
    fn pairs(
        &mut self,
        pairs: &[(String, bool)],
        other: Option<&str>,
        counts: Counts,
    ) -> Result<Option<String>, GrammarError> {
        let optional = pairs.iter().filter(|(_, is_required)| !is_required).count();
        let tracked = counts.tracked(optional);
        if tracked.saturating_mul(pairs.len()) > COUNTED_MAX {
            let (unit, got, limit) = ("properties to count", tracked.saturating_mul(pairs.len()), COUNTED_MAX);
            return Err(GrammarError::TooLarge { what: "JSON schema", unit, got, limit });
        }
        // These expressions say what may follow after each number of optional properties, if none has come before and
        // if some have.
        let ends = |count: usize, is_first: bool| counts.end(other, count, is_first);
        let mut behind: Vec<[Option<String>; 2]> =
            (0..=tracked).map(|count| [ends(count, true), ends(count, false)]).collect();
        for (pair, is_required) in pairs.iter().rev() {
            let mut next = Vec::with_capacity(tracked + 1);
            for count in 0..=tracked {
                let mut both = [None, None];
                for (is_later, way) in both.iter_mut().enumerate() {
                    let comma = if is_later == 1 { "JSON__COMMA " } else { "" };
                    let counted = if *is_required { Some(count) } else { counts.after(count, tracked) };
                    let rest = counted.and_then(|count| behind[count][1].as_ref());
                    let taken = rest.map(|rest| format!("{comma}{pair} {rest}").trim_end().to_owned());
                    let left = behind[count][is_later].as_ref().filter(|_| !is_required);
                    *way = match (taken, left) {
                        (None, left) => left.cloned(),
                        (Some(taken), None) => Some(self.rules.rule(&taken)?),
                        (Some(_), Some(left)) if is_later == 1 && counted == Some(count) => {
                            Some(self.rules.rule(format!("(JSON__COMMA {pair})? {left}").trim_end())?)
                        }
                        (Some(taken), Some(left)) if left.is_empty() => Some(self.rules.rule(&format!("({taken})?"))?),
                        (Some(taken), Some(left)) => Some(self.rules.rule(&format!("{taken} | {left}"))?),
                    };
                }
                next.push(both);
            }
            behind = next;
        }
        Ok(behind.swap_remove(0)[0].take())
    }
}

/// Strings that differ from some texts, or do not match some patterns. They are given as expressions of the text
/// between the quotes. The strings have no escapes, so each string has one form.
struct OtherTexts {
    any: String,
    like: Vec<String>,
    unlike: Vec<String>,
}

impl OtherTexts {
    /// Translates strings with exclusions.
    ///
    /// # Errors
    /// Fails if the strings cannot be told from others; the error says why.
    fn of(strings: &Strings) -> Result<Self, String> {
        let mut like = Vec::new();
        for format in &strings.formats {
            let problem = || format!("texts of \"format\" {format:?} cannot be told from others; leave it out");
            like.push(pattern::whole(&format_pattern(format).ok_or_else(problem)?)?);
        }
        for text in &strings.patterns {
            like.push(pattern::whole(text)?);
        }
        let unlike = strings.unlike.iter().map(|text| pattern::whole(text)).collect::<Result<Vec<String>, _>>()?;
        let most = strings.most.map(|most| most.to_string()).unwrap_or_default();
        // Readers disagree about how expressions match other characters, so texts that must not match are limited to
        // these characters.
        let one = if unlike.is_empty() { r#"[^"\\\x00-\x1f\x7f]"# } else { r"[ !#-\[\]-~]" };
        Ok(Self { any: format!("{one}{{{},{most}}}", strings.least), like, unlike })
    }
}

/// The number of properties that are needed and allowed besides the required ones.
#[derive(Debug, Clone, Copy)]
struct Counts {
    needed: u64,
    room: Option<u64>,
}

impl Counts {
    fn of(objects: &Objects) -> Self {
        let required = objects.required.len() as u64;
        Self {
            needed: objects.least.saturating_sub(required),
            room: objects.most.map(|most| most.saturating_sub(required)),
        }
    }

    /// Returns the largest count that has to be told apart, if there are `optional` properties.
    fn tracked(self, optional: usize) -> usize {
        let most = self.room.unwrap_or(self.needed);
        usize::try_from(most).unwrap_or(usize::MAX).min(optional)
    }

    /// Returns the count after one more property; `None` if that is too many.
    fn after(self, count: usize, tracked: usize) -> Option<usize> {
        let next = count + 1;
        if self.room.is_some_and(|room| next as u64 > room) { None } else { Some(next.min(tracked)) }
    }

    /// Returns an expression for the unlisted properties that may follow `count` optional properties. An empty text
    /// means that the object may end, and `None` means that it cannot.
    fn end(self, other: Option<&str>, count: usize, is_first: bool) -> Option<String> {
        let needed = self.needed.saturating_sub(count as u64);
        let room = self.room.map(|room| room.saturating_sub(count as u64));
        let other = other.filter(|_| room != Some(0));
        match (other, needed, is_first) {
            (None, 0, false) => Some(String::new()),
            (Some(other), 0 | 1, false) => Some(repeated(&format!("(JSON__COMMA {other})"), needed, room)),
            (Some(other), 0 | 1, true) => {
                let more = repeated(&format!("(JSON__COMMA {other})"), 0, room.map(|room| room - 1));
                Some(format!("{other} {more}").trim_end().to_owned())
            }
            _ => None,
        }
    }
}

/// Repeats an expression at least `least` and at most `most` times.
fn repeated(group: &str, least: u64, most: Option<u64>) -> String {
    // No answer is long enough for a larger limit to matter.
    let most = most.filter(|&most| most < 1 << 30);
    match (least, most) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("{group}*"),
        (1, None) => format!("{group}+"),
        (0, Some(1)) => format!("{group}?"),
        (least, None) => format!("{group}{{{least},}}"),
        (least, Some(most)) => format!("{group}{{{least},{most}}}"),
    }
}

/// Returns the names in an object's `properties` in order, then names that are only in `required`.
fn listed_names(objects: &Objects) -> Vec<&String> {
    let mut names: Vec<&String> = objects.properties.iter().map(|(name, _)| name).collect();
    let known: HashSet<&String> = names.iter().copied().collect();
    names.extend(objects.required.iter().filter(|name| !known.contains(name)));
    names
}

/// Encodes a text as a JSON string.
fn json_text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Returns an expression for all encodings of a text as a JSON string.
fn forms(text: &str) -> String {
    let mut forms = String::from("\"");
    for one in text.chars() {
        let short = match one {
            '"' | '\\' => {
                forms += r"\\";
                forms += if one == '"' { "\"" } else { r"\\" };
                continue;
            }
            '\u{8}' => "b",
            '\u{c}' => "f",
            '\n' => "n",
            '\r' => "r",
            '\t' => "t",
            _ => "",
        };
        if one.is_control() && one.is_ascii() {
            let digits: String = format!("{:02x}", one as u32).chars().map(either_case).collect();
            let short = if short.is_empty() { String::new() } else { format!("|{short}") };
            forms += &format!(r"\\(u00{digits}{short})");
        } else {
            if one.is_ascii_punctuation() {
                forms.push('\\');
            }
            forms.push(one);
        }
    }
    forms + "\""
}

/// Returns an expression for a hexadecimal digit in either case.
fn either_case(digit: char) -> String {
    if digit.is_ascii_digit() { digit.to_string() } else { format!("[{digit}{}]", digit.to_ascii_uppercase()) }
}

/// Returns a terminal for a text as a JSON string, quoted for Lark.
pub(super) fn literal(text: &str) -> String {
    Value::from(json_text(text)).to_string()
}

/// Returns the pattern of a `format` that the library does not know, or defines differently. Dates have to exist in the
/// calendar. Times have no leap seconds, which few readers accept. Addresses are limited to those that all readers
/// accept.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    let part = "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-F]{2})";
    let (scheme, host) = ("[A-Za-z][A-Za-z0-9+.-]*:", "//[A-Za-z0-9._~-]+(:[0-9]{1,4})?");
    let step = "/([^~/]|~[01])*";
    let behind =
        |part: &str| format!("({host}(/{part}*)*|/?({part}+(/{part}*)*)?)(\\?({part}|[/?])*)?(#({part}|[/?])*)?");
    match format {
        "iri" => return Some(format!("^{scheme}{}$", behind(part))),
        "uri-reference" | "iri-reference" => return Some(format!("^({scheme})?{}$", behind(part))),
        "uri-template" => {
            let part = format!("({part}|\\{{[A-Za-z0-9_]+\\}})");
            return Some(format!("^({scheme})?{}$", behind(&part)));
        }
        "json-pointer" => return Some(format!("^({step})*$")),
        "relative-json-pointer" => return Some(format!("^(0|[1-9][0-9]{{0,8}})(#|({step})*)$")),
        _ => {}
    }
    let year = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
    let fourth = "(0[48]|[2468][048]|[13579][26])";
    let days = format!(
        "({year}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
         |02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{{2}}{fourth}|{fourth}00)-02-29)"
    );
    let times = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    match format {
        "date" => Some(format!("^{days}$")),
        "time" => Some(format!("^{times}$")),
        "date-time" => Some(format!("^{days}T{times}$")),
        _ => None,
    }
}

/// Escapes an expression for use between slashes.
fn expression(text: &str) -> String {
    text.replace('/', "\\/")
}

fn number_of_any_kind() -> String {
    match Numbers::any(false).texts() {
        Ok(Some(Texts::Expression(text))) => text,
        _ => "0".into(),
    }
}
