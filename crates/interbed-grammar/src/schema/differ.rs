//! Computes the difference of two shapes, which has the values that one schema describes and another does not.
//!
//! The result may lack values of the true difference, but never contains a value that the other schema describes. The
//! other shape therefore has to be complete: if only some of its values are known, the schema is refused. Arrays and
//! objects that cannot be told from excluded ones are left out, if others remain.

use std::collections::HashSet;
use std::rc::Rc;

use crate::GrammarError;

use super::meet::{Definitions, are_apart, lacks_a_value, named};
use super::shape::{Contained, Lists, Node, Objects, Part, Shape, Strings, smaller};

/// Maximum number of parts of a difference.
const PARTS_MAX: usize = 256;
/// The weight of shapes, given by [`Shape::weight`], whose copying counts as one step of work.
const WEIGHT: usize = 4;

/// Returns the values that match `one` and do not match `other`.
pub(super) fn differ(one: &Shape, other: &Shape, of: &mut impl Definitions) -> Result<Shape, GrammarError> {
    let others = match other {
        Shape::Any => return Ok(Shape::nothing()),
        Shape::OneOf(others) => others,
    };
    if others.is_empty() {
        of.spend(1 + one.weight() / WEIGHT)?;
        return Ok(one.clone());
    }
    let mut left = match one {
        Shape::Any => Part::all(&of.here()?),
        Shape::OneOf(parts) => {
            of.spend(1 + one.weight() / WEIGHT)?;
            parts.clone()
        }
    };
    of.descend()?;
    for other in others {
        let mut next = Vec::new();
        for part in left {
            of.spend(1 + (part.weight() + other.weight()) / WEIGHT)?;
            next.extend(differ_parts(part, other, of)?);
        }
        if next.len() > PARTS_MAX {
            return Err(of.cannot("too many alternatives are left of what it excludes; simplify it"));
        }
        left = next;
    }
    of.ascend();
    Ok(Shape::OneOf(left))
}

fn differ_parts(one: Part, other: &Part, of: &mut impl Definitions) -> Result<Vec<Part>, GrammarError> {
    match (&one, other) {
        (Part::Definition(to), Part::Definition(other)) if to == other => Ok(Vec::new()),
        (_, Part::Definition(to)) => {
            let shape = of.definition(to)?;
            parts_of(differ(&Shape::one(one), &shape, of)?, of)
        }
        (Part::Definition(to), _) => {
            let shape = of.definition(to)?;
            let other = Shape::one(other.clone());
            if are_apart(&shape, &other, of)? {
                return Ok(vec![one]);
            }
            parts_of(differ(&shape, &other, of)?, of)
        }
        (Part::Null, Part::Null) | (Part::Bool(_), Part::Bool(None)) => Ok(Vec::new()),
        (Part::Bool(None), Part::Bool(Some(value))) => Ok(vec![Part::Bool(Some(!value))]),
        (Part::Bool(Some(one)), Part::Bool(Some(other))) if one == other => Ok(Vec::new()),
        (Part::Number(one), Part::Number(other)) => {
            of.spend(one.listed_in_both(other) / WEIGHT)?;
            let left = one.without(other).map_err(|problem| of.cannot(&problem))?;
            Ok(left.into_iter().map(Part::Number).collect())
        }
        (Part::Text(one), Part::Text(other)) => texts(one, other, of),
        (Part::List(one), Part::List(other)) => lists(one, other, of),
        (Part::Object(one), Part::Object(other)) => objects(one, other, of),
        _ => Ok(vec![one]),
    }
}

fn parts_of(shape: Shape, of: &mut impl Definitions) -> Result<Vec<Part>, GrammarError> {
    match shape {
        Shape::Any => Ok(Part::all(&of.here()?)),
        Shape::OneOf(parts) => Ok(parts),
    }
}

fn texts(one: &Strings, other: &Strings, of: &mut impl Definitions) -> Result<Vec<Part>, GrammarError> {
    let mut left = Vec::new();
    if let Some(listed) = &other.literals {
        let mut excluded: Vec<String> = one.excluded.as_deref().cloned().unwrap_or_default();
        of.spend((excluded.len() + listed.len()) / WEIGHT)?;
        if !other.formats.is_empty() {
            return Err(of.cannot("texts that are not of a \"format\" cannot be told from others; leave it out"));
        }
        for text in listed.iter() {
            if is_kept(text, other, of)? {
                excluded.push(text.clone());
            }
        }
        let excluded = (!excluded.is_empty()).then(|| Rc::new(excluded));
        left.push(Strings { excluded, ..one.clone() });
    } else {
        if other.formats.iter().any(|format| !one.formats.contains(format)) {
            return Err(of.cannot("texts that are not of a \"format\" cannot be told from others; leave it out"));
        }
        if other.least > 0 {
            left.push(Strings { most: smaller(one.most, Some(other.least - 1)), ..one.clone() });
        }
        if let Some(most) = other.most {
            left.push(Strings { least: one.least.max(most.saturating_add(1)), ..one.clone() });
        }
        for pattern in other.patterns.iter().filter(|pattern| !one.patterns.contains(pattern)) {
            let mut unlike = one.unlike.clone();
            unlike.push(pattern.clone());
            left.push(Strings { unlike, ..one.clone() });
        }
        for pattern in other.unlike.iter().filter(|pattern| !one.unlike.contains(pattern)) {
            let mut patterns = one.patterns.clone();
            patterns.push(pattern.clone());
            left.push(Strings { patterns, ..one.clone() });
        }
        if let Some(excluded) = &other.excluded {
            let known: Option<HashSet<&String>> = one.literals.as_ref().map(|texts| texts.iter().collect());
            let kept = excluded.iter().filter(|text| known.as_ref().is_none_or(|known| known.contains(text)));
            left.push(Strings { literals: Some(Rc::new(kept.cloned().collect())), ..one.clone() });
        }
    }
    let mut parts = Vec::new();
    for mut strings in left {
        if let Some(texts) = strings.literals.take() {
            let excluded: HashSet<&String> = strings.excluded.iter().flat_map(|texts| texts.iter()).collect();
            of.spend((texts.len() + excluded.len()) / WEIGHT)?;
            let kept: Vec<String> = texts.iter().filter(|text| !excluded.contains(text)).cloned().collect();
            if kept.is_empty() {
                continue;
            }
            strings.literals = Some(Rc::new(kept));
        }
        if strings.most.is_none_or(|most| strings.least <= most) {
            parts.push(Part::Text(strings));
        }
    }
    Ok(parts)
}

/// Returns whether a string has the required length and matches the required patterns.
fn is_kept(text: &str, strings: &Strings, of: &mut impl Definitions) -> Result<bool, GrammarError> {
    let length = text.chars().count() as u64;
    let mut is_kept = strings.least <= length && strings.most.is_none_or(|most| length <= most);
    let patterns = strings.patterns.iter().map(|pattern| (pattern, true));
    for (pattern, matches) in patterns.chain(strings.unlike.iter().map(|pattern| (pattern, false))) {
        // Readers disagree about classes of letters and digits beyond ASCII.
        if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(of.cannot("it lists texts that patterns match or not, as they are read; leave these out"));
        }
        let found = of.is_match(pattern, text)?.map_err(|problem| of.cannot(&problem))?;
        is_kept = is_kept && found == matches;
    }
    Ok(is_kept)
}

/// Calls `find`. If its result cannot be told from excluded values, adds the error to `problems` and returns `None`.
fn tried<T, D: Definitions>(
    problems: &mut Vec<GrammarError>,
    of: &mut D,
    find: impl FnOnce(&mut D) -> Result<T, GrammarError>,
) -> Result<Option<T>, GrammarError> {
    let level = of.level();
    match find(of) {
        Ok(found) => Ok(Some(found)),
        Err(error @ GrammarError::Schema { .. }) => {
            of.leave_out();
            of.back_to(level);
            problems.push(error);
            // An error that the limit of work is exceeded stays an error.
            of.spend(1)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn lists(one: &Lists, other: &Lists, of: &mut impl Definitions) -> Result<Vec<Part>, GrammarError> {
    if other.is_part {
        return Err(of.cannot("lists of which only some are known cannot be told from others; simplify it"));
    }
    let mut problems = Vec::new();
    if other.unique.is_some() && one.unique.is_none() {
        problems.push(of.cannot("lists in which an entry comes twice cannot be told from others; leave it out"));
    }
    let mut left = Vec::new();
    if let Some(some) = &other.some {
        let is_alone = one.some.is_none();
        if !is_alone {
            problems.push(of.cannot("\"contains\" cannot be enforced beside another one; leave one out"));
        }
        if let Some(fewer) = some.least.checked_sub(1).filter(|_| is_alone) {
            let some = Contained { least: 0, most: Some(fewer), ..some.clone() };
            left.push(Lists { some: Some(some), ..one.clone() });
        }
        if let Some(most) = some.most.filter(|_| is_alone) {
            let some = Contained { least: most.saturating_add(1), most: None, ..some.clone() };
            left.push(Lists { some: Some(some), ..one.clone() });
        }
    }
    if other.least > one.least {
        left.push(Lists { most: smaller(one.most, Some(other.least - 1)), ..one.clone() });
    }
    if let Some(most) = other.most {
        left.push(Lists { least: one.least.max(most.saturating_add(1)), ..one.clone() });
    }
    let count = one.first.len().max(other.first.len());
    for index in 0..count {
        if one.most.is_some_and(|most| most <= index as u64) {
            break;
        }
        let entry = tried(&mut problems, of, |of| differ(one.entry(index), other.entry(index), of))?;
        if let Some(entry) = entry.filter(|entry| !entry.is_nothing()) {
            of.spend(1 + count / WEIGHT)?;
            let mut first: Vec<Rc<Node>> = (0..count).map(|index| one.entry(index).clone()).collect();
            first[index] = of.node(entry)?;
            left.push(Lists { first, least: one.least.max(index as u64 + 1), ..one.clone() });
        }
    }
    let has_more = one.most.is_none_or(|most| most > count as u64) && !one.rest.is_nothing();
    if has_more {
        let more = tried(&mut problems, of, |of| differ(&one.rest, &other.rest, of))?;
        if more.is_some_and(|more| !more.is_nothing()) {
            problems.push(of.cannot("lists of which some entry is another cannot be told from others; leave it out"));
        }
    }
    left.retain(|lists| lists.most.is_none_or(|most| lists.least <= most));
    if let Some(problem) = problems.pop() {
        if left.is_empty() {
            return Err(problem);
        }
        of.leave_out();
        left.iter_mut().for_each(|lists| lists.is_part = true);
    }
    Ok(left.into_iter().map(Part::List).collect())
}

fn objects(one: &Objects, other: &Objects, of: &mut impl Definitions) -> Result<Vec<Part>, GrammarError> {
    if other.is_narrowed || other.is_part {
        return Err(of.cannot("objects with other \"patternProperties\" cannot be told from these; leave them out"));
    }
    let mut problems = Vec::new();
    if other.names.iter().any(|name| !one.names.contains(name)) {
        problems.push(of.cannot("objects with other names cannot be told from others; leave it out"));
    }
    let mut left: Vec<Objects> = Vec::new();
    for name in other.required.iter().filter(|name| !one.required.contains(name)) {
        of.spend(1 + one.properties.len() / WEIGHT)?;
        left.push(one.clone().with(name, Node::new(Shape::nothing())));
    }
    if other.least > one.least.max(one.required.len() as u64) {
        left.push(Objects { most: smaller(one.most, Some(other.least - 1)), ..one.clone() });
    }
    if let Some(most) = other.most.filter(|&most| one.most.is_none_or(|own| own > most)) {
        left.push(Objects { least: one.least.max(most.saturating_add(1)), ..one.clone() });
    }
    let mut known = HashSet::new();
    let all = [one, other]
        .into_iter()
        .flat_map(|objects| objects.properties.iter().map(|(name, _)| name).chain(&objects.required));
    for name in all.filter(|name| known.insert(*name)) {
        of.spend(1)?;
        let (own, others) = (named(one, name, of)?, named(other, name, of)?);
        let value = tried(&mut problems, of, |of| differ(&own, &others, of))?;
        if let Some(value) = value.filter(|value| !value.is_nothing()) {
            of.spend(1 + (one.properties.len() + one.required.len()) / WEIGHT)?;
            let value = of.node(value)?;
            left.push(one.clone().with(name, value).requiring(name));
        }
    }
    // Names that match a pattern of only one of the two are told from names that match none.
    let own = one.patterns.iter().map(|(_, shape)| shape).chain([&one.others]);
    let own: Vec<Rc<Node>> = own.filter(|shape| !shape.is_nothing()).cloned().collect();
    let others: Vec<Rc<Node>> = other.patterns.iter().map(|(_, shape)| shape).chain([&other.others]).cloned().collect();
    let is_same = one.patterns.len() == other.patterns.len()
        && one.patterns.iter().zip(&other.patterns).all(|((one, _), (other, _))| one == other);
    for (index, shape) in own.iter().enumerate() {
        for (at, other) in others.iter().enumerate() {
            if is_same && own.len() == others.len() && index != at {
                continue;
            }
            let value = tried(&mut problems, of, |of| differ(shape, other, of))?;
            if value.is_some_and(|value| !value.is_nothing()) {
                problems.push(of.cannot(
                    "objects with a value of another name cannot be told from others; list its name, or leave it out",
                ));
            }
        }
    }
    let mut parts = Vec::new();
    for mut objects in left {
        objects.is_part |= !problems.is_empty();
        let is_possible = objects.most.is_none_or(|most| objects.least.max(objects.required.len() as u64) <= most);
        if is_possible && !lacks_a_value(&objects, of)? {
            parts.push(Part::Object(objects));
        }
    }
    match problems.pop() {
        Some(problem) if parts.is_empty() => return Err(problem),
        Some(_) => of.leave_out(),
        None => {}
    }
    Ok(parts)
}
