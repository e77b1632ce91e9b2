//! Records the places of `uniqueItems` arrays within the values of a schema.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::GrammarError;

use super::meet::Definitions;
use super::reader::Reader;
use super::shape::{Node, Part, Shape};

/// Maximum number of places of all schemas of a grammar.
const PLACES_MAX: usize = 1 << 16;

/// The index of a place. A place is a position within a value at which the schema describes a value.
pub(crate) type Place = u32;

/// The places within the values of some schemas from which a `uniqueItems` array can be reached. A value may be at
/// several places, for instance if a schema has alternatives. An array is unique if one of its places says so.
#[derive(Debug, Default)]
pub(crate) struct Places {
    all: Vec<Within>,
    roots: Vec<Place>,
    /// Whether other JSON may surround the values of the schemas. In that case, any value may be one of theirs.
    are_embedded: bool,
}

/// The values inside a value at some place, each with its own places.
#[derive(Debug, Default)]
struct Within {
    /// Whether an array at this place has `uniqueItems`.
    is_unique: bool,
    /// Whether an array at this place may run out of distinct items. Arrays of strings of any length cannot.
    may_run_out: bool,
    /// Whether this place has a `uniqueItems` array, or leads to one.
    leads: bool,
    /// The alternative places of the same value.
    same: Vec<Place>,
    /// The places of the first items and of all later ones, for each array shape.
    lists: Vec<(Vec<Place>, Place)>,
    /// The places of the named properties and of all others, for each object shape.
    objects: Vec<(HashMap<String, Place>, Vec<Place>)>,
}

impl Places {
    /// Adds the places of values of the shape `root`.
    ///
    /// # Errors
    /// Fails if there are too many places, or if the reader exceeds one of its limits.
    pub(super) fn add(&mut self, root: &Rc<Node>, reader: &mut Reader<'_>) -> Result<(), GrammarError> {
        let mut building = Building { places: self, known: HashMap::new(), defined: HashMap::new(), open: Vec::new() };
        let place = building.place(root)?;
        while let Some((place, shape)) = building.open.pop() {
            building.fill(place, &shape, reader)?;
        }
        self.roots.push(place);
        self.find_leading();
        Ok(())
    }

    /// Notes that other JSON may surround the values of the schemas.
    pub(super) fn embedded(self) -> Self {
        Self { are_embedded: true, ..self }
    }

    /// Notes from which places a `uniqueItems` array can be reached.
    fn find_leading(&mut self) {
        let mut from: HashMap<Place, Vec<usize>> = HashMap::new();
        for (index, within) in self.all.iter().enumerate() {
            within.next().for_each(|place| from.entry(place).or_default().push(index));
        }
        let mut open: Vec<usize> = (0..self.all.len()).filter(|&index| self.all[index].is_unique).collect();
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut self.all[index].leads, true) {
                open.extend(from.get(&(index as Place)).into_iter().flatten());
            }
        }
    }

    /// Returns whether the schemas have no `uniqueItems` array.
    pub(crate) fn is_empty(&self) -> bool {
        !self.all.iter().any(|within| within.is_unique)
    }

    /// Returns the places of a value that is not inside another one.
    pub(crate) fn roots(&self) -> Vec<Place> {
        self.all_of(self.roots.iter().copied())
    }

    /// Returns whether an array at these places has `uniqueItems`.
    pub(crate) fn are_unique(&self, places: &[Place]) -> bool {
        places.iter().any(|&place| self.all[place as usize].is_unique)
    }

    /// Returns whether an array at these places may run out of distinct items.
    pub(crate) fn may_run_out(&self, places: &[Place]) -> bool {
        places.iter().any(|&place| self.all[place as usize].may_run_out)
    }

    /// Returns the places of the item at `index` of an array at these places.
    pub(crate) fn entry(&self, places: &[Place], index: usize) -> Vec<Place> {
        let lists = places.iter().flat_map(|&place| &self.all[place as usize].lists);
        self.all_of(lists.map(|(first, rest)| *first.get(index).unwrap_or(rest)).chain(self.anywhere()))
    }

    /// Returns the places of the property `name` of an object at these places.
    pub(crate) fn property(&self, places: &[Place], name: &str) -> Vec<Place> {
        let objects = places.iter().flat_map(|&place| &self.all[place as usize].objects);
        let of = |(named, others): &'_ (HashMap<String, Place>, Vec<Place>)| match named.get(name) {
            Some(&place) => vec![place],
            None => others.clone(),
        };
        self.all_of(objects.flat_map(of).chain(self.anywhere()))
    }

    /// Returns the places that any value may be at, if other JSON surrounds the values of the schemas.
    fn anywhere(&self) -> impl Iterator<Item = Place> {
        self.roots.iter().copied().filter(|_| self.are_embedded)
    }

    /// Returns these places and their alternatives, without those from which no `uniqueItems` array can be reached.
    /// Arrays remain, because they may be alternatives to such an array.
    fn all_of(&self, places: impl Iterator<Item = Place>) -> Vec<Place> {
        let (mut all, mut open): (Vec<Place>, Vec<Place>) = (Vec::new(), places.collect());
        while let Some(place) = open.pop() {
            if !all.contains(&place) {
                all.push(place);
                open.extend(&self.all[place as usize].same);
            }
        }
        all.retain(|&place| {
            let within = &self.all[place as usize];
            within.leads || !within.lists.is_empty()
        });
        all
    }
}

impl Within {
    fn next(&self) -> impl Iterator<Item = Place> {
        let lists = self.lists.iter().flat_map(|(first, rest)| first.iter().chain([rest]));
        let objects = self.objects.iter().flat_map(|(named, others)| named.values().chain(others));
        self.same.iter().chain(lists).chain(objects).copied()
    }
}

/// Places that are being added.
struct Building<'p> {
    places: &'p mut Places,
    /// The place of each shape, by the shape's address. The `Rc` keeps the address valid.
    known: HashMap<*const Node, (Place, Rc<Node>)>,
    /// The place of each definition, by its reference.
    defined: HashMap<String, Place>,
    /// Places whose content is yet to be added.
    open: Vec<(Place, Rc<Node>)>,
}

impl Building<'_> {
    /// Returns the place of values of this shape, which is added if it is new.
    fn place(&mut self, shape: &Rc<Node>) -> Result<Place, GrammarError> {
        if let Some((place, _)) = self.known.get(&Rc::as_ptr(shape)) {
            return Ok(*place);
        }
        let place = self.places.all.len();
        if place == PLACES_MAX {
            let (unit, got, limit) = ("places that lead to \"uniqueItems\"", place + 1, PLACES_MAX);
            return Err(GrammarError::TooLarge { what: "JSON schema", unit, got, limit });
        }
        self.places.all.push(Within::default());
        self.known.insert(Rc::as_ptr(shape), (place as Place, shape.clone()));
        self.open.push((place as Place, shape.clone()));
        Ok(place as Place)
    }

    fn fill(&mut self, place: Place, shape: &Rc<Node>, reader: &mut Reader<'_>) -> Result<(), GrammarError> {
        let Shape::OneOf(parts) = &***shape else { return Ok(()) };
        let mut within = Within::default();
        for part in parts {
            reader.spend(1)?;
            match part {
                Part::List(lists) => {
                    let first = lists.first.iter().map(|shape| self.place(shape)).collect::<Result<_, _>>()?;
                    within.lists.push((first, self.place(&lists.rest)?));
                    within.may_run_out |= !lists.first.iter().chain([&lists.rest]).all(|shape| are_endless(shape));
                    within.is_unique |= lists.unique.is_some() && lists.most.is_none_or(|most| most > 1);
                }
                Part::Object(objects) => {
                    let mut named = HashMap::new();
                    for (name, shape) in &objects.properties {
                        named.insert(name.clone(), self.place(shape)?);
                    }
                    let others = objects.patterns.iter().map(|(_, shape)| shape).chain([&objects.others]);
                    let others: HashSet<Place> = others.map(|shape| self.place(shape)).collect::<Result<_, _>>()?;
                    within.objects.push((named, others.into_iter().collect()));
                }
                Part::Definition(to) => {
                    let at = match self.defined.get(to) {
                        Some(&at) => at,
                        None => {
                            let shape = reader.definition(to)?;
                            self.place(&shape)?
                        }
                    };
                    self.defined.insert(to.clone(), at);
                    within.same.push(at);
                }
                Part::Null | Part::Bool(_) | Part::Number(_) | Part::Text(_) => {}
            }
        }
        self.places.all[place as usize] = within;
        Ok(())
    }
}

/// Returns whether all values are strings of unlimited length.
fn are_endless(shape: &Shape) -> bool {
    let is_endless = |part: &Part| match part {
        Part::Text(strings) => {
            let is_any = strings.literals.is_none() && strings.most.is_none();
            is_any && strings.patterns.is_empty() && strings.formats.is_empty() && strings.unlike.is_empty()
        }
        _ => false,
    };
    matches!(shape, Shape::OneOf(parts) if parts.iter().all(is_endless))
}
