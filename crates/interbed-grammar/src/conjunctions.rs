//! Counts how many patterns of a schema apply to one string. The library multiplies them out while it reads a schema,
//! so there is a limit.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{GrammarError, schema};

/// Maximum number of patterns and formats that may apply to one string. Published schemas have up to two.
const PATTERNS_MAX: usize = 6;
/// Maximum number of subschemas that are visited. A subschema counts again for each reference that leads to it.
const PLACES_MAX: usize = 50_000;
/// The deepest nesting that is followed, also through references.
const DEPTH_MAX: usize = 100;

/// Checks that `schema` can be enforced in a Lark grammar that embeds it with `%json`. Returns the schema without
/// keywords that are ignored, such as an unknown `format`.
///
/// # Errors
/// Fails if a keyword cannot be enforced, or if more than 6 patterns and formats apply to one string. The error
/// contains a JSON pointer to the first such place.
pub fn checked_schema(schema: &Value) -> Result<Value, GrammarError> {
    let checked = schema::checked(schema)?;
    check(schema)?;
    Ok(checked)
}

/// Checks the schemas after each `%json` of a grammar in Lark's syntax.
///
/// # Errors
/// Fails if too many patterns apply to one string of a schema.
pub(crate) fn check_within(lark: &str) -> Result<(), GrammarError> {
    lark.split("%json").skip(1).try_for_each(|behind| {
        // Text that does not parse is not a schema. The library reports what is wrong with it.
        match serde_json::Deserializer::from_str(behind).into_iter().next() {
            Some(Ok(schema)) => check(&schema),
            _ => Ok(()),
        }
    })
}

/// Checks that few enough patterns apply to each string in `schema`. A schema too large or too deep to walk passes.
pub(crate) fn check(schema: &Value) -> Result<(), GrammarError> {
    let mut walk = Walk { root: schema, place: Vec::new(), references: Vec::new(), depth: 0, left: PLACES_MAX };
    match walk.texts(schema) {
        Err(Stop::TooMany(place, patterns)) => Err(GrammarError::Schema {
            place,
            problem: format!(
                "{patterns} patterns and formats have to match one text, but at most {PATTERNS_MAX} can be enforced \
                 together; put them into one pattern, or leave some out"
            ),
        }),
        Err(Stop::Entangled) | Ok(_) => Ok(()),
    }
}

/// The number of patterns that apply to a value if it is a string, and the counts for the values inside it.
#[derive(Debug, Clone, Default)]
struct Texts {
    patterns: usize,
    /// The counts for named members of an object.
    members: BTreeMap<String, Texts>,
    /// The counts for all other members of an object, and for the items of an array.
    others: Option<Box<Texts>>,
}

enum Stop {
    TooMany(String, usize),
    Entangled,
}

impl Texts {
    /// Combines two counts. Returns their sum if `both` schemas apply to the value, and otherwise the larger of the
    /// two.
    fn joined(self, other: Self, both: bool) -> Self {
        let patterns = if both { self.patterns + other.patterns } else { self.patterns.max(other.patterns) };
        let (mut members, mut theirs) = (BTreeMap::new(), other.members);
        let other_member = |others: &Option<Box<Self>>| others.as_deref().filter(|_| both).cloned().unwrap_or_default();
        for (name, texts) in self.members {
            let other = theirs.remove(&name).unwrap_or_else(|| other_member(&other.others));
            members.insert(name, texts.joined(other, both));
        }
        for (name, texts) in theirs {
            members.insert(name, texts.joined(other_member(&self.others), both));
        }
        let others = match (self.others, other.others) {
            (Some(one), Some(other)) => Some(Box::new(one.joined(*other, both))),
            (one, other) => one.or(other),
        };
        Self { patterns, members, others }
    }

    /// Returns the largest count of patterns for one string anywhere in the value.
    fn most(&self) -> usize {
        let within = self.members.values().chain(self.others.as_deref()).map(Self::most);
        within.max().unwrap_or(0).max(self.patterns)
    }

    fn size(&self) -> usize {
        1 + self.members.values().chain(self.others.as_deref()).map(Self::size).sum::<usize>()
    }
}

struct Walk<'a> {
    root: &'a Value,
    place: Vec<String>,
    /// The references that are being followed, outermost first.
    references: Vec<&'a str>,
    depth: usize,
    left: usize,
}

impl<'a> Walk<'a> {
    fn texts(&mut self, schema: &'a Value) -> Result<Texts, Stop> {
        self.left = self.left.checked_sub(1).ok_or(Stop::Entangled)?;
        if self.depth == DEPTH_MAX {
            return Err(Stop::Entangled);
        }
        let Value::Object(keywords) = schema else { return Ok(Texts::default()) };
        self.depth += 1;
        let mut texts = Texts {
            patterns: ["pattern", "format"].iter().filter(|&&keyword| keywords.contains_key(keyword)).count(),
            members: self.members(keywords, "properties")?,
            others: None,
        };
        for keyword in ["additionalProperties", "items", "additionalItems"] {
            if let Some(schema @ Value::Object(_)) = keywords.get(keyword) {
                let others = self.at(keyword, schema)?;
                texts = texts.joined(Texts { others: Some(Box::new(others)), ..Texts::default() }, false);
            }
        }
        for (_, others) in self.members(keywords, "patternProperties")? {
            texts = texts.joined(Texts { others: Some(Box::new(others)), ..Texts::default() }, false);
        }
        for keyword in ["prefixItems", "items"] {
            for (_, others) in self.list(keywords, keyword)? {
                texts = texts.joined(Texts { others: Some(Box::new(others)), ..Texts::default() }, false);
            }
        }
        for (_, all) in self.list(keywords, "allOf")? {
            texts = self.both(texts, all)?;
        }
        for keyword in ["anyOf", "oneOf"] {
            let any = self.list(keywords, keyword)?.into_iter().map(|(_, texts)| texts);
            if let Some(any) = any.reduce(|one, other| one.joined(other, false)) {
                texts = self.both(texts, any)?;
            }
        }
        if let Some(Value::String(to)) = keywords.get("$ref") {
            let there = self.behind(to)?;
            texts = self.both(texts, there)?;
        }
        let most = texts.most();
        if most > PATTERNS_MAX {
            let place: String =
                self.place.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
            return Err(Stop::TooMany(format!("#{place}"), most));
        }
        for keyword in ["$defs", "definitions"] {
            self.members(keywords, keyword)?;
        }
        self.depth -= 1;
        Ok(texts)
    }

    fn both(&mut self, one: Texts, other: Texts) -> Result<Texts, Stop> {
        let joined = one.joined(other, true);
        self.left = self.left.checked_sub(joined.size()).ok_or(Stop::Entangled)?;
        Ok(joined)
    }

    fn at(&mut self, name: &str, schema: &'a Value) -> Result<Texts, Stop> {
        self.place.push(name.to_owned());
        let texts = self.texts(schema)?;
        self.place.pop();
        Ok(texts)
    }

    fn members(&mut self, keywords: &'a Map<String, Value>, keyword: &str) -> Result<BTreeMap<String, Texts>, Stop> {
        let Some(Value::Object(schemas)) = keywords.get(keyword) else { return Ok(BTreeMap::new()) };
        self.place.push(keyword.to_owned());
        let members = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.at(name, schema)?)));
        let members = members.collect::<Result<_, _>>()?;
        self.place.pop();
        Ok(members)
    }

    fn list(&mut self, keywords: &'a Map<String, Value>, keyword: &str) -> Result<Vec<(usize, Texts)>, Stop> {
        let Some(Value::Array(schemas)) = keywords.get(keyword) else { return Ok(Vec::new()) };
        self.place.push(keyword.to_owned());
        let list = schemas.iter().enumerate();
        let list = list.map(|(index, schema)| Ok((index, self.at(&index.to_string(), schema)?)));
        let list = list.collect::<Result<_, _>>()?;
        self.place.pop();
        Ok(list)
    }

    /// Returns the counts for the target of a reference. They are zero if the reference is already being followed or
    /// leads nowhere.
    fn behind(&mut self, to: &'a str) -> Result<Texts, Stop> {
        if self.references.contains(&to) {
            return Ok(Texts::default());
        }
        let Some(schema) = schema::find(self.root, to) else { return Ok(Texts::default()) };
        self.references.push(to);
        let texts = self.texts(schema)?;
        self.references.pop();
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn many(count: usize) -> Vec<Value> {
        (0..count).map(|least| json!({"type": "string", "pattern": format!("a{{{least},}}")})).collect()
    }

    #[test]
    fn patterns_that_meet_are_counted_where_they_meet() {
        let place = |schema: Value| check(&schema).err().map(|error| error.to_string());
        let refused = |schema: Value, place: &str| {
            let text = check(&schema).expect_err("too many").to_string();
            assert!(text.starts_with(place) && text.contains("patterns and formats have to match one text"), "{text}");
        };
        refused(json!({"allOf": many(26)}), "# of the schema: 26 patterns");
        let name = |schema: &Value| json!({"properties": {"name": schema}});
        let of_names: Vec<_> = many(9).iter().map(name).collect();
        refused(json!({"properties": {"x": {"allOf": of_names}}}), "#/properties/x of the schema: 9 patterns");
        // Here each reference leads to a definition with one more pattern.
        let mut defs = Map::new();
        for (index, mut schema) in many(9).into_iter().enumerate() {
            schema["$ref"] = format!("#/$defs/{}", index + 1).into();
            defs.insert(index.to_string(), schema);
        }
        defs.insert("9".into(), json!({"type": "string"}));
        refused(json!({"$ref": "#/$defs/0", "$defs": defs}), "# of the schema: 7 patterns");
        // Schemas of `additionalProperties` apply beside that of a named property.
        let others: Vec<_> = many(9).iter().map(|schema| json!({"additionalProperties": schema})).collect();
        refused(json!({"allOf": others, "properties": {"x": {"format": "date"}}}), "# of the schema: 10 patterns");

        // Patterns of different strings do not add up, nor do those of alternatives.
        let properties: Map<String, Value> =
            many(40).into_iter().enumerate().map(|(index, schema)| (index.to_string(), schema)).collect();
        assert_eq!(place(json!({"properties": properties, "allOf": [{"required": ["1"]}]})), None);
        assert_eq!(place(json!({"anyOf": many(40)})), None);
        assert_eq!(place(json!({"allOf": many(3), "minLength": 3, "format": "date"})), None);
        let within = |schema: &Value| check_within(&format!("start: \"a\" x\nx: %json {schema}\n"));
        assert!(within(&json!({"allOf": many(26)})).is_err() && within(&json!({"allOf": many(3)})).is_ok());
        assert_eq!(check_within("start: /%json/ \"%json {\""), Ok(()));
        let list = json!({"$ref": "#", "items": {"$ref": "#"}, "pattern": "a"});
        assert_eq!(place(list), None, "a reference to where it stands ends");
    }
}
