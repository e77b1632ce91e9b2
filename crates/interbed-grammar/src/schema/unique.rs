//! Lists in which no entry comes twice.
//!
//! A grammar does not remember entries, but which of up to 63 listed values came. Of open values it could remember
//! groups, of which each would be taken once; but then lists could not have two entries that are alike, such as two
//! paths of one folder.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::Value;

use crate::GrammarError;

use super::meet::{Definitions, are_apart};
use super::rules::{Counts, LISTED, Writer, literal};
use super::shape::{Lists, Node, Part, Shape};

/// Most values that come in any order; of more, values have the order of the schema.
const ARRANGED_MAX: usize = 63;
impl Writer<'_, '_> {
    /// A list in which no entry comes twice.
    pub(super) fn unique_list(&mut self, lists: &Lists, place: &str) -> Result<String, GrammarError> {
        let refused = || GrammarError::Schema {
            place: place.to_owned(),
            problem: "\"uniqueItems\" can be enforced where the values of entries are listed, or \"maxItems\" is 1; \
                      leave it out, or list their values"
                .into(),
        };
        if lists.some.is_some() {
            return Err(refused());
        }
        let few = lists.first.is_empty().then(|| self.values(&lists.rest)).transpose()?.flatten();
        let Some(values) = few else {
            return match self.are_all_apart(lists)? {
                true => self.list(&Lists { unique: None, ..lists.clone() }),
                false => Err(refused()),
            };
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
