//! Lists in which no entry comes twice.
//!
//! A grammar does not remember entries, but which of up to 63 values, or groups of values, came. Of open values, each
//! group is taken once, so that two entries of one list are never of one group.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::Value;

use crate::GrammarError;

use super::groups::Group;
use super::meet::{Definitions, are_apart, named};
use super::pattern;
use super::rules::{Counts, LISTED, Writer, format_pattern, literal};
use super::shape::{Lists, Node, Objects, Part, Shape, Strings};

/// Most values, or groups, that come in any order; of more, values have the order of the schema.
const ARRANGED_MAX: usize = 63;
/// Most properties that are tried to tell objects apart.
const TRIED_MAX: usize = 6;
/// Most names, one within the other, that lead to what tells objects apart.
const PATH_MAX: usize = 3;

impl Writer<'_, '_> {
    /// A list in which no entry comes twice.
    pub(super) fn unique_list(&mut self, lists: &Lists, place: &str) -> Result<String, GrammarError> {
        let refused = || GrammarError::Schema {
            place: place.to_owned(),
            problem: "\"uniqueItems\" can be enforced where entries are texts or numbers, or objects that such \
                      a property tells apart, and at most 63 are needed, or \"maxItems\" is 1; leave it out, or \
                      list their values"
                .into(),
        };
        if lists.some.is_some() {
            return Err(refused());
        }
        let few = lists.first.is_empty().then(|| self.values(&lists.rest)).transpose()?.flatten();
        let Some(values) = few else {
            if self.are_all_apart(lists)? {
                return self.list(&Lists { unique: None, ..lists.clone() });
            }
            // Entries may have the same list in them.
            let key = (Rc::as_ptr(&lists.rest), lists.least, lists.most);
            if let Some((name, _)) = self.unique.get(&key).filter(|_| lists.first.is_empty()) {
                return Ok(name.clone());
            }
            let name = self.unique_name()?;
            self.unique.insert(key, (name.clone(), lists.rest.clone()));
            let values = self.groups(lists)?.ok_or_else(refused)?;
            return self.arranged(name, &values, lists.least, lists.most);
        };
        if values.len() <= ARRANGED_MAX {
            let name = self.unique_name()?;
            return self.arranged(name, &values, lists.least, lists.most);
        }
        let most = lists.most.unwrap_or(u64::MAX).min(values.len() as u64);
        let mut ways = Vec::new();
        if lists.least == 0 {
            ways.push("JSON__NO_LIST".to_owned());
        }
        let pairs: Vec<(String, bool)> = values.into_iter().map(|value| (value, false)).collect();
        let entries = self.pairs(&pairs, None, Counts { needed: lists.least, room: Some(most) })?;
        ways.extend(entries.filter(|_| most > 0).map(|entries| format!("JSON__LIST {entries} JSON__LIST_END")));
        self.rules.rule(&ways.join(" | "))
    }

    /// The name of a rule that is written later.
    fn unique_name(&mut self) -> Result<String, GrammarError> {
        let name = format!("json__u{}", self.rules.count());
        self.rules.push(String::new())?;
        Ok(name)
    }

    /// The rule of this name, of lists of these values, each once, in any order.
    fn arranged(
        &mut self,
        name: String,
        values: &[String],
        least: u64,
        most: Option<u64>,
    ) -> Result<String, GrammarError> {
        let most = most.unwrap_or(u64::MAX).min(values.len() as u64);
        if most == 0 || least > most {
            self.rules.push(format!("{name}: JSON__NO_LIST"))?;
            return Ok(name);
        }
        let one =
            |(index, value): (usize, &String)| format!("{value} {name}n::set_bit({index}) %if bit_clear({index})");
        let ways: Vec<String> = values.iter().enumerate().map(one).collect();
        self.rules.push(format!("{name}e::_: {}", ways.join(" | ")))?;
        let next = format!("JSON__COMMA {name}e::_ %if bit_count_lt(_, {most})");
        self.rules.push(format!("{name}n::_: JSON__LIST_END %if bit_count_ge(_, {least}) | {next}"))?;
        let empty = if least == 0 { "JSON__NO_LIST | " } else { "" };
        self.rules.push(format!("{name}: {empty}JSON__LIST {name}e::0"))?;
        Ok(name)
    }

    /// The entries of a list by groups, of which each is one atom; none where that leaves fewer than two, or than
    /// the list needs.
    fn groups(&mut self, lists: &Lists) -> Result<Option<Vec<String>>, GrammarError> {
        if !lists.first.is_empty() {
            return Ok(None);
        }
        let needed = usize::try_from(lists.least).unwrap_or(usize::MAX).max(2);
        let parts = self.parts_of(&lists.rest)?;
        let mut tried = self.telling(&parts)?;
        let is_fine = tried.is_empty();
        if is_fine {
            tried.push(Vec::new());
        }
        let mut best: Vec<Rc<Node>> = Vec::new();
        for path in tried {
            let mut found = Vec::new();
            for group in Group::all(is_fine) {
                let Some(parts) = self.in_group(&parts, group, &path)? else { break };
                let node = self.reader.node(Shape::OneOf(parts))?;
                if self.has_values(&node)? {
                    found.push(node);
                }
            }
            if found.len() > best.len() {
                best = found;
            }
            // Nothing has more groups than texts and numbers have.
            if best.len() >= 10 {
                break;
            }
        }
        best.truncate(ARRANGED_MAX);
        if best.len() < needed {
            return Ok(None);
        }
        best.iter().map(|node| self.value(node)).collect::<Result<_, _>>().map(Some)
    }

    /// The parts of a shape, with those of definitions in their place.
    fn parts_of(&mut self, shape: &Shape) -> Result<Vec<Part>, GrammarError> {
        self.reader.spend(1 + shape.weight())?;
        let parts = match shape {
            Shape::Any => Part::all(&self.reader.here()?),
            Shape::OneOf(parts) => parts.clone(),
        };
        let mut all = Vec::new();
        self.reader.descend()?;
        for part in parts {
            match part {
                Part::Definition(to) => {
                    let shape = self.reader.definition(&to)?;
                    all.extend(self.parts_of(&shape)?);
                }
                part => all.push(part),
            }
        }
        self.reader.ascend();
        Ok(all)
    }

    /// Names that lead, one within the other, to values by which all objects among these may be told apart, the best
    /// first; none if there are no objects.
    fn telling(&mut self, parts: &[Part]) -> Result<Vec<Vec<String>>, GrammarError> {
        let mut paths = self.paths(parts, PATH_MAX)?;
        paths.sort_by_key(|(rank, _)| *rank);
        Ok(paths.into_iter().take(TRIED_MAX).map(|(_, path)| path).collect())
    }

    /// Such names, up to so many one within the other, with a rank: required and open values have the lowest.
    fn paths(&mut self, parts: &[Part], levels: usize) -> Result<Vec<(usize, Vec<String>)>, GrammarError> {
        let of = |part: &Part| if let Part::Object(objects) = part { Some(objects.clone()) } else { None };
        let objects: Vec<Objects> = parts.iter().filter_map(of).collect();
        let Some(first) = objects.first().filter(|_| levels > 0) else { return Ok(Vec::new()) };
        let mut paths: Vec<(usize, Vec<String>)> = Vec::new();
        let mut inner: Vec<Vec<Part>> = Vec::new();
        let mut known = HashSet::new();
        let all = first.required.iter().chain(first.properties.iter().map(|(name, _)| name));
        for name in all.filter(|name| known.insert(*name)) {
            let mut rank = usize::from(!first.required.contains(name));
            let mut values = Vec::new();
            for objects in &objects {
                let shape = named(objects, name, &mut self.reader)?;
                let own = self.parts_of(&shape)?;
                let is_open = |part: &Part| match part {
                    Part::Text(strings) => strings.literals.is_none(),
                    Part::Number(numbers) => numbers.kept().is_none(),
                    _ => false,
                };
                rank += if own.iter().any(is_open) { 0 } else { 2 };
                values.extend(own);
            }
            paths.push((rank, vec![name.clone()]));
            inner.push(values);
        }
        // What is further within is looked at where it is needed.
        if paths.iter().all(|(rank, _)| *rank > 1) {
            for (index, values) in inner.iter().enumerate() {
                let (rank, name) = (paths[index].0, paths[index].1.clone());
                for (below, path) in self.paths(values, levels - 1)? {
                    paths.push((rank + below - 1, [name.clone(), path].concat()));
                }
            }
        }
        Ok(paths)
    }

    /// What of these parts is in a group, where the value that these names lead to tells objects apart; `None` where
    /// that is not known. The group of a value depends on it alone, whichever part has it.
    fn in_group(&mut self, parts: &[Part], group: Group, path: &[String]) -> Result<Option<Vec<Part>>, GrammarError> {
        let mut found = Vec::new();
        for part in parts {
            self.reader.spend(1 + part.weight() / LISTED)?;
            match part {
                Part::Null | Part::List(_) if group.has_others() => found.push(part.clone()),
                Part::Null | Part::List(_) => {}
                Part::Bool(known) => {
                    let values = [false, true].into_iter().filter(|&value| known.is_none_or(|known| known == value));
                    found.extend(values.filter(|&value| group.has_bool(value)).map(|value| Part::Bool(Some(value))));
                }
                Part::Number(numbers) => match numbers.grouped(group) {
                    Some(numbers) => found.push(Part::Number(numbers)),
                    None => return Ok(None),
                },
                Part::Text(strings) => {
                    if strings.literals.is_none() && !is_readable(strings) {
                        return Ok(None);
                    }
                    found.push(Part::Text(Strings { group: Some(group), ..strings.clone() }));
                }
                Part::Object(objects) => {
                    let Some((name, path)) = path.split_first() else {
                        found.extend(group.has_others().then(|| part.clone()));
                        continue;
                    };
                    let shape = named(objects, name, &mut self.reader)?;
                    let values = self.parts_of(&shape)?;
                    let Some(values) = self.in_group(&values, group, path)? else { return Ok(None) };
                    let node = self.reader.node(Shape::OneOf(values))?;
                    if self.has_values(&node)? {
                        found.push(Part::Object(objects.clone().with(name, node).requiring(name)));
                    }
                }
                Part::Definition(_) => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// The values of a shape, if they are few: each once, as texts in Lark's quotes.
    pub(super) fn values(&mut self, shape: &Rc<Node>) -> Result<Option<Vec<String>>, GrammarError> {
        let Shape::OneOf(parts) = &***shape else { return Ok(None) };
        self.reader.descend()?;
        let (mut values, mut numbers) = (Vec::new(), Vec::new());
        for part in parts {
            self.reader.spend(1)?;
            match part {
                Part::Null => values.push("\"null\"".to_owned()),
                Part::Bool(Some(value)) => values.push(format!("\"{value}\"")),
                Part::Bool(None) => values.extend(["\"true\"".to_owned(), "\"false\"".to_owned()]),
                Part::Text(strings) => match self.kept(strings)? {
                    Some(texts) if strings.formats.is_empty() => values.extend(texts.iter().map(|text| literal(text))),
                    _ => return Ok(None),
                },
                Part::Number(listed) => match listed.kept() {
                    Some(texts) => numbers.extend(texts.into_iter().map(str::to_owned)),
                    None => return Ok(None),
                },
                Part::Definition(to) => {
                    let shape = self.reader.definition(to)?;
                    match self.values(&shape)? {
                        Some(more) => values.extend(more),
                        None => return Ok(None),
                    }
                }
                Part::List(_) | Part::Object(_) => return Ok(None),
            }
        }
        self.reader.ascend();
        self.reader.spend((values.len() + numbers.len()) / LISTED)?;
        // Numbers that are one in floating point are the same to some readers.
        let mut known = HashSet::new();
        let value_of = |text: &String| text.parse::<f64>().map_or(0, |value| (value + 0.0).to_bits());
        numbers.retain(|text| known.insert(value_of(text)));
        values.extend(numbers.iter().map(|text| Value::from(text.as_str()).to_string()));
        let mut known = HashSet::new();
        values.retain(|value| known.insert(value.clone()));
        Ok(Some(values))
    }

    /// Whether no two entries of a list can be the same.
    fn are_all_apart(&mut self, lists: &Lists) -> Result<bool, GrammarError> {
        let count = lists.first.len();
        let has_more = lists.most.is_none_or(|most| most > count as u64) && self.has_values(&lists.rest)?;
        if has_more {
            return Ok(false);
        }
        for (index, one) in lists.first.iter().enumerate() {
            for other in &lists.first[index + 1..] {
                if !are_apart(one, other, &mut self.reader)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Whether the expressions of texts are such that it is known which texts match all.
fn is_readable(strings: &Strings) -> bool {
    let formats = strings.formats.iter().map(|format| format_pattern(format));
    let patterns = strings.patterns.iter().chain(&strings.unlike).map(|text| Some(text.clone()));
    formats.chain(patterns).all(|text| text.is_some_and(|text| pattern::whole(&text).is_ok()))
}
