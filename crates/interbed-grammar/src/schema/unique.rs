//! Handles arrays with `uniqueItems`.
//!
//! A grammar cannot remember items, so [`Entries`](crate::entries::Entries) notes them while an answer is generated,
//! with the help of the [`Places`](super::places::Places) of such arrays.

use std::collections::HashSet;
use std::rc::Rc;

use crate::GrammarError;

use super::meet::Definitions;
use super::rules::{LISTED, Writer, literal};
use super::shape::{Lists, Node, Part, Shape, smaller};

/// Maximum number of arrays and objects of a shape that are counted.
const COMBINED_MAX: usize = 1024;

impl Writer<'_, '_> {
    /// Limits a `uniqueItems` array to as many items as there are distinct values. Repetitions are detected only while
    /// an answer is generated.
    pub(super) fn watched(&mut self, lists: &Lists) -> Result<Lists, GrammarError> {
        if let Some(some) = lists.some.as_ref().filter(|some| some.least > 1) {
            return Err(GrammarError::Schema {
                place: some.place.to_string(),
                problem: "\"minContains\" above 1 cannot be enforced beside \"uniqueItems\"; leave one of them out"
                    .into(),
            });
        }
        self.rules.is_watched = true;
        let most = smaller(lists.most, self.count_of_values(lists)?);
        Ok(Lists { unique: None, most, ..lists.clone() })
    }

    /// Returns the number of values that the items of an array can have, if the schema lists them all.
    pub(super) fn count_of_values(&mut self, lists: &Lists) -> Result<Option<u64>, GrammarError> {
        let mut values = HashSet::new();
        let are_listed = lists.first.is_empty() && self.add_values(&lists.rest, &mut values)?;
        Ok(are_listed.then_some(values.len() as u64))
    }

    /// Adds the values of a shape, as JSON, to `values`. Returns false if the schema does not list them all.
    fn add_values(&mut self, shape: &Rc<Node>, values: &mut HashSet<String>) -> Result<bool, GrammarError> {
        let Shape::OneOf(parts) = &***shape else { return Ok(false) };
        let mut are_listed = true;
        for part in parts {
            self.reader.spend(1)?;
            let before = values.len();
            match part {
                Part::Null => values.extend(["null".to_owned()]),
                Part::Bool(Some(value)) => values.extend([value.to_string()]),
                Part::Bool(None) => values.extend(["true".to_owned(), "false".to_owned()]),
                Part::Text(strings) => match self.kept(strings)? {
                    Some(texts) if strings.formats.is_empty() => {
                        values.extend(texts.into_iter().map(|text| literal(&text)))
                    }
                    _ => are_listed = false,
                },
                Part::Number(listed) => match listed.kept() {
                    // Some readers treat numbers with the same floating-point value as equal.
                    Some(texts) => values.extend(texts.into_iter().map(|text| match text.parse::<f64>() {
                        Ok(number) => (number + 0.0).to_string(),
                        Err(_) => text.to_owned(),
                    })),
                    None => are_listed = false,
                },
                Part::Definition(to) => {
                    let shape = self.reader.definition(to)?;
                    self.reader.descend()?;
                    are_listed = self.add_values(&shape, values)?;
                    self.reader.ascend();
                }
                Part::List(lists) => {
                    let count = Some(lists.first.len() as u64);
                    let is_fixed = lists.most == count && lists.least == lists.first.len() as u64;
                    are_listed = is_fixed && lists.some.is_none() && self.add_combined(&lists.first, "[", values)?;
                }
                Part::Object(objects) => {
                    let is_fixed = objects.required.len() == objects.properties.len()
                        && objects.properties.iter().all(|(name, _)| objects.required.contains(name))
                        && objects.patterns.is_empty()
                        && objects.others.is_nothing();
                    let names: Vec<&str> = objects.properties.iter().map(|(name, _)| name.as_str()).collect();
                    let shapes: Vec<Rc<Node>> = objects.properties.iter().map(|(_, shape)| shape.clone()).collect();
                    are_listed = is_fixed && self.add_combined(&shapes, &format!("{{{names:?}"), values)?;
                }
            }
            self.reader.spend((values.len() - before) / LISTED)?;
            if !are_listed {
                break;
            }
        }
        Ok(are_listed)
    }

    /// Adds the arrays or objects (`kind`) that combine one value of each of `shapes`. Returns false if the schema does
    /// not list these values, or if there are too many.
    fn add_combined(
        &mut self,
        shapes: &[Rc<Node>],
        kind: &str,
        values: &mut HashSet<String>,
    ) -> Result<bool, GrammarError> {
        let mut all = vec![kind.to_owned()];
        for shape in shapes {
            let mut one = HashSet::new();
            self.reader.descend()?;
            let are_listed = self.add_values(shape, &mut one)?;
            self.reader.ascend();
            if !are_listed || one.len() * all.len() > COMBINED_MAX {
                return Ok(false);
            }
            self.reader.spend(one.len() * all.len() / LISTED)?;
            all = all.iter().flat_map(|begun| one.iter().map(move |value| format!("{begun}\n{value}"))).collect();
        }
        values.extend(all);
        Ok(true)
    }
}
