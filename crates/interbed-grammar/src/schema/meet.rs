//! Computes the intersection of two shapes, which has the values that two schemas both describe.

use std::collections::HashSet;
use std::rc::Rc;

use crate::GrammarError;

use super::shape::{Contained, Lists, Node, Objects, Part, Shape, Strings, smaller};

/// The weight of shapes, given by [`Shape::weight`], whose copying counts as one step of work.
const WEIGHT: usize = 4;
/// The number of comparisons that are made in one step of work.
const COMPARED: usize = 512;

/// Access to definitions and patterns of a schema, with a limit on the work of combining shapes.
pub(super) trait Definitions {
    /// Returns the shape of the schema at the place `to`.
    fn definition(&mut self, to: &str) -> Result<Rc<Node>, GrammarError>;
    /// Returns the shape of the schema at the place `to`. While that schema is still being read, this is a superset of
    /// its shape.
    fn bounds(&mut self, to: &str) -> Result<Rc<Node>, GrammarError>;
    /// Counts `steps` of work. Fails once there were too many.
    fn spend(&mut self, steps: usize) -> Result<(), GrammarError>;
    /// Wraps a shape to be part of others. Fails if the shape is nested too deeply.
    fn node(&mut self, shape: Shape) -> Result<Rc<Node>, GrammarError>;
    /// Returns whether a text matches a client's pattern somewhere. The inner error says what is wrong with the
    /// pattern, and the outer one that the limit of work is exceeded.
    fn is_match(&mut self, pattern: &str, text: &str) -> Result<Result<bool, String>, GrammarError>;
    /// Enters one level of recursion. Fails if there are too many levels, for instance because intersected definitions
    /// refer to each other.
    fn descend(&mut self) -> Result<(), GrammarError>;
    /// Leaves one level of recursion.
    fn ascend(&mut self);
    /// Notes that values were left out because they cannot be told from excluded ones.
    fn leave_out(&mut self);
    /// Returns the current level of recursion.
    fn level(&self) -> usize;
    /// Returns to an outer level of recursion after an attempt failed.
    fn back_to(&mut self, level: usize);
    /// Makes the error for a keyword at the current place that cannot be enforced. `problem` says why.
    fn cannot(&self, problem: &str) -> GrammarError;
    /// Returns the current place in the schema.
    fn here(&mut self) -> Result<Rc<str>, GrammarError>;
}

/// Returns the shape of values that match both shapes.
pub(super) fn meet(one: &Shape, other: &Shape, of: &mut impl Definitions) -> Result<Shape, GrammarError> {
    let (ones, others) = match (one, other) {
        (Shape::Any, shape) | (shape, Shape::Any) => {
            of.spend(1 + shape.weight() / WEIGHT)?;
            return Ok(shape.clone());
        }
        (Shape::OneOf(ones), Shape::OneOf(others)) => (ones, others),
    };
    of.descend()?;
    let (mut parts, mut is_any) = (Vec::new(), false);
    for one in ones {
        for other in others {
            of.spend(1 + (one.weight() + other.weight()) / WEIGHT)?;
            match meet_parts(one, other, of)? {
                Shape::OneOf(both) => parts.extend(both),
                Shape::Any => is_any = true,
            }
        }
    }
    of.ascend();
    Ok(if is_any { Shape::Any } else { Shape::OneOf(parts) })
}

fn meet_parts(one: &Part, other: &Part, of: &mut impl Definitions) -> Result<Shape, GrammarError> {
    Ok(Shape::one(match (one, other) {
        (Part::Definition(to), Part::Definition(other)) if to == other => Part::Definition(to.clone()),
        (Part::Definition(to), part) => {
            let shape = of.definition(to)?;
            return meet(&shape, &Shape::one(part.clone()), of);
        }
        (part, Part::Definition(to)) => {
            let shape = of.definition(to)?;
            return meet(&Shape::one(part.clone()), &shape, of);
        }
        (Part::Null, Part::Null) => Part::Null,
        (Part::Bool(one), Part::Bool(other)) => match (one, other) {
            (Some(one), Some(other)) if one != other => return Ok(Shape::nothing()),
            _ => Part::Bool(one.or(*other)),
        },
        (Part::Number(one), Part::Number(other)) => {
            of.spend(one.listed_in_both(other) / WEIGHT)?;
            Part::Number(one.meet(other))
        }
        (Part::Text(one), Part::Text(other)) => {
            let both = strings(one, other, of)?;
            if both.literals.as_ref().is_some_and(|texts| texts.is_empty()) {
                return Ok(Shape::nothing());
            }
            Part::Text(both)
        }
        (Part::List(one), Part::List(other)) => Part::List(lists(one, other, of)?),
        (Part::Object(one), Part::Object(other)) => {
            let both = objects(one, other, of)?;
            if lacks_a_value(&both, of)? {
                return Ok(Shape::nothing());
            }
            Part::Object(both)
        }
        _ => return Ok(Shape::nothing()),
    }))
}

/// Returns whether an object requires a property for which no value is possible.
pub(super) fn lacks_a_value(objects: &Objects, of: &mut impl Definitions) -> Result<bool, GrammarError> {
    let mut empty = objects.properties.iter().filter(|(_, shape)| shape.is_nothing()).map(|(name, _)| name).peekable();
    if empty.peek().is_none() {
        return Ok(false);
    }
    of.spend((objects.properties.len() + objects.required.len()) / COMPARED)?;
    let required: HashSet<&String> = objects.required.iter().collect();
    Ok(empty.any(|name| required.contains(name)))
}

fn strings(one: &Strings, other: &Strings, of: &mut impl Definitions) -> Result<Strings, GrammarError> {
    let literals = match (&one.literals, &other.literals) {
        (Some(one), Some(other)) => {
            let weight = |texts: &[String]| texts.iter().map(|text| 1 + text.len() / 64).sum::<usize>();
            of.spend((weight(one) + weight(other)) / WEIGHT)?;
            let known: HashSet<&String> = other.iter().collect();
            Some(Rc::new(one.iter().filter(|text| known.contains(text)).cloned().collect()))
        }
        (one, other) => one.as_ref().or(other.as_ref()).cloned(),
    };
    of.spend(one.patterns.len() * other.patterns.len() / COMPARED)?;
    of.spend(one.formats.len() * other.formats.len() / COMPARED)?;
    of.spend(one.unlike.len() * other.unlike.len() / COMPARED)?;
    let excluded = match (&one.excluded, &other.excluded) {
        (Some(one), Some(other)) if !Rc::ptr_eq(one, other) => {
            of.spend((one.len() + other.len()) / WEIGHT)?;
            let known: HashSet<&String> = one.iter().collect();
            Some(Rc::new(one.iter().chain(other.iter().filter(|text| !known.contains(text))).cloned().collect()))
        }
        (one, other) => one.as_ref().or(other.as_ref()).cloned(),
    };
    let literals = match (literals, &excluded) {
        (Some(texts), Some(excluded)) => {
            of.spend((texts.len() + excluded.len()) / WEIGHT)?;
            let excluded: HashSet<&String> = excluded.iter().collect();
            Some(Rc::new(texts.iter().filter(|text| !excluded.contains(text)).cloned().collect()))
        }
        (literals, _) => literals,
    };
    Ok(Strings {
        literals,
        excluded,
        unlike: both(&one.unlike, &other.unlike),
        least: one.least.max(other.least),
        most: smaller(one.most, other.most),
        patterns: both(&one.patterns, &other.patterns),
        formats: both(&one.formats, &other.formats),
    })
}

/// Returns the texts of both lists without duplicates.
fn both(one: &[String], other: &[String]) -> Vec<String> {
    one.iter().chain(other.iter().filter(|text| !one.contains(text))).cloned().collect()
}

/// Calls [`meet`] and wraps the result to be part of other shapes.
pub(super) fn meet_nodes(one: &Shape, other: &Shape, of: &mut impl Definitions) -> Result<Rc<Node>, GrammarError> {
    let shape = meet(one, other, of)?;
    of.node(shape)
}

fn lists(one: &Lists, other: &Lists, of: &mut impl Definitions) -> Result<Lists, GrammarError> {
    let some = match (&one.some, &other.some) {
        (Some(one), Some(other)) if Rc::ptr_eq(&one.shape, &other.shape) => {
            Some(Contained { least: one.least.max(other.least), most: smaller(one.most, other.most), ..one.clone() })
        }
        (Some(_), Some(other)) => {
            let problem = "\"contains\" cannot be enforced beside another one; leave one out".to_owned();
            return Err(GrammarError::Schema { place: other.place.to_string(), problem });
        }
        (one, other) => one.as_ref().or(other.as_ref()).cloned(),
    };
    let count = one.first.len().max(other.first.len());
    let first = (0..count).map(|index| meet_nodes(one.entry(index), other.entry(index), of));
    Ok(Lists {
        first: first.collect::<Result<_, GrammarError>>()?,
        rest: meet_nodes(&one.rest, &other.rest, of)?,
        least: one.least.max(other.least),
        most: smaller(one.most, other.most),
        unique: one.unique.as_ref().or(other.unique.as_ref()).cloned(),
        some,
        is_part: one.is_part || other.is_part,
    })
}

fn objects(one: &Objects, other: &Objects, of: &mut impl Definitions) -> Result<Objects, GrammarError> {
    let mut properties = Vec::new();
    for (name, shape) in &one.properties {
        let others = named(other, name, of)?;
        properties.push((name.clone(), meet_nodes(shape, &others, of)?));
    }
    let known: HashSet<&String> = one.properties.iter().map(|(name, _)| name).collect();
    for (name, shape) in other.properties.iter().filter(|(name, _)| !known.contains(name)) {
        let others = named(one, name, of)?;
        properties.push((name.clone(), meet_nodes(&others, shape, of)?));
    }
    // Names that match patterns of both objects cannot be told apart, so they are left out.
    of.spend(2 * one.patterns.len() * other.patterns.len() / COMPARED)?;
    let mut patterns = Vec::new();
    for (pattern, shape) in &one.patterns {
        let same = other.patterns.iter().find(|(known, _)| known == pattern).map(|(_, shape)| shape);
        patterns.push((pattern.clone(), meet_nodes(shape, same.unwrap_or(&other.others), of)?));
    }
    for (pattern, shape) in &other.patterns {
        if one.patterns.iter().all(|(known, _)| known != pattern) {
            patterns.push((pattern.clone(), meet_nodes(&one.others, shape, of)?));
        }
    }
    of.spend(one.names.len() * other.names.len() / COMPARED)?;
    let mut required = one.required.clone();
    let known: HashSet<&String> = one.required.iter().collect();
    required.extend(other.required.iter().filter(|name| !known.contains(name)).cloned());
    let says_more = |objects: &Objects| objects.least > 0 || objects.most.is_some();
    Ok(Objects {
        properties,
        patterns,
        others: meet_nodes(&one.others, &other.others, of)?,
        names: both(&one.names, &other.names),
        is_narrowed: one.is_narrowed || other.is_narrowed || (!one.patterns.is_empty() && !other.patterns.is_empty()),
        is_part: one.is_part || other.is_part,
        required,
        least: one.least.max(other.least),
        most: smaller(one.most, other.most),
        place: if says_more(other) && !says_more(one) { &other.place } else { &one.place }.clone(),
    })
}

/// Returns the shape of an object's property with this name.
pub(super) fn named(objects: &Objects, name: &str, of: &mut impl Definitions) -> Result<Rc<Node>, GrammarError> {
    of.spend(objects.properties.len() / COMPARED)?;
    if let Some(shape) = objects.property(name) {
        return Ok(shape.clone());
    }
    for pattern in &objects.names {
        let refused = |problem| GrammarError::Schema { place: format!("{}/propertyNames", objects.place), problem };
        if !of.is_match(pattern, name)?.map_err(refused)? {
            return Ok(Node::new(Shape::nothing()));
        }
    }
    let mut found: Option<Rc<Node>> = None;
    for (pattern, shape) in &objects.patterns {
        if is_match(pattern, name, &objects.place, of)? {
            found = Some(match found {
                None => shape.clone(),
                Some(before) => meet_nodes(&before, shape, of)?,
            });
        }
    }
    Ok(found.unwrap_or_else(|| objects.others.clone()))
}

/// Returns whether a property name matches a pattern of `patternProperties`.
pub(super) fn is_match(
    pattern: &str,
    name: &str,
    place: &str,
    of: &mut impl Definitions,
) -> Result<bool, GrammarError> {
    let refused = |problem| GrammarError::Schema { place: format!("{place}/patternProperties"), problem };
    of.is_match(pattern, name)?.map_err(refused)
}

/// Returns whether it is certain that no value matches both shapes.
pub(super) fn are_apart(one: &Shape, other: &Shape, of: &mut impl Definitions) -> Result<bool, GrammarError> {
    let (ones, others) = match (one, other) {
        (Shape::OneOf(parts), _) | (_, Shape::OneOf(parts)) if parts.is_empty() => return Ok(true),
        (Shape::OneOf(ones), Shape::OneOf(others)) => (ones, others),
        _ => return Ok(false),
    };
    of.descend()?;
    let mut are_apart = true;
    for one in ones {
        for other in others {
            of.spend(1 + (one.weight() + other.weight()) / WEIGHT)?;
            are_apart = are_apart && are_parts_apart(one, other, of)?;
        }
    }
    of.ascend();
    Ok(are_apart)
}

fn are_parts_apart(one: &Part, other: &Part, of: &mut impl Definitions) -> Result<bool, GrammarError> {
    Ok(match (one, other) {
        (Part::Definition(to), part) | (part, Part::Definition(to)) => {
            let shape = of.bounds(to)?;
            are_apart(&shape, &Shape::one(part.clone()), of)?
        }
        (Part::Bool(Some(one)), Part::Bool(Some(other))) => one != other,
        (Part::Number(one), Part::Number(other)) => {
            of.spend(one.listed_in_both(other) / WEIGHT)?;
            !one.overlaps(other)
        }
        (Part::Text(one), Part::Text(other)) => {
            let both = strings(one, other, of)?;
            if both.most.is_some_and(|most| most < both.least) {
                return Ok(true);
            }
            let Some(texts) = &both.literals else { return Ok(false) };
            for text in texts.iter() {
                // Readers disagree about how patterns match characters beyond ASCII.
                let mut is_apart = false;
                for pattern in both.patterns.iter().filter(|_| text.bytes().all(|byte| (b' '..=b'~').contains(&byte))) {
                    is_apart |= of.is_match(pattern, text)? == Ok(false);
                }
                if !is_apart {
                    return Ok(false);
                }
            }
            true
        }
        // A partial shape stands for more arrays, which may match both.
        (Part::List(one), Part::List(other)) if one.is_part || other.is_part => false,
        (Part::List(one), Part::List(other)) => {
            let most = smaller(one.most, other.most);
            most.is_some_and(|most| most < one.least.max(other.least))
        }
        (Part::Object(one), Part::Object(other)) if one.is_part || other.is_part => false,
        (Part::Object(one), Part::Object(other)) => {
            for name in one.required.iter().chain(&other.required) {
                let (one, other) = (named(one, name, of)?, named(other, name, of)?);
                if are_apart(&one, &other, of)? {
                    return Ok(true);
                }
            }
            false
        }
        (one, other) => std::mem::discriminant(one) != std::mem::discriminant(other),
    })
}
