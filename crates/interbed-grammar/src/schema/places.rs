//! Where the values of a schema have lists in which no entry may come twice.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::GrammarError;

use super::meet::Definitions;
use super::reader::Reader;
use super::shape::{Node, Part, Shape};

/// Most places of all schemas of a grammar.
const PLACES_MAX: usize = 1 << 16;

/// A place within a value: what stands there, by its index.
pub(crate) type Place = u32;

/// Places of the values that some schemas describe, from which one gets to lists without repeated entries. A value may
/// be at several places, as where a schema has alternatives: its list keeps to what one of them says.
#[derive(Debug, Default)]
pub(crate) struct Places {
    all: Vec<Within>,
    roots: Vec<Place>,
    /// Whether other JSON may be around the values of the schemas: then any value may be such a value.
    are_embedded: bool,
}

/// What is within a place, each by its own places.
#[derive(Debug, Default)]
struct Within {
    /// Whether no entry of its list may come twice.
    is_unique: bool,
    /// Whether it has a list with entries that are not all texts of any length: these may run out.
    may_run_out: bool,
    /// Whether it has such a list, or leads to one.
    leads: bool,
    /// Alternatives to it.
    same: Vec<Place>,
    /// First entries of a list, and those behind them.
    lists: Vec<(Vec<Place>, Place)>,
    /// Properties of an object by their names, and those of other names.
    objects: Vec<(HashMap<String, Place>, Vec<Place>)>,
}

impl Places {
    /// Adds the places of values that are like `root`.
    ///
    /// # Errors
    /// There are too many, or the reader's own.
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

    /// Notes that other JSON may be around the values of the schemas.
    pub(super) fn embedded(self) -> Self {
        Self { are_embedded: true, ..self }
    }

    /// Notes which places lead to a list without repeated entries.
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

    /// Whether there is no list without repeated entries.
    pub(crate) fn is_empty(&self) -> bool {
        !self.all.iter().any(|within| within.is_unique)
    }

    /// Where a value is that belongs to nothing else.
    pub(crate) fn roots(&self) -> Vec<Place> {
        self.all_of(self.roots.iter().copied())
    }

    /// Whether a list at these places has no repeated entries.
    pub(crate) fn are_unique(&self, places: &[Place]) -> bool {
        places.iter().any(|&place| self.all[place as usize].is_unique)
    }

    /// Whether the entries of a list at these places may run out: not where each may become longer.
    pub(crate) fn may_run_out(&self, places: &[Place]) -> bool {
        places.iter().any(|&place| self.all[place as usize].may_run_out)
    }

    /// Where the entry at `index` of a list at these places is.
    pub(crate) fn entry(&self, places: &[Place], index: usize) -> Vec<Place> {
        let lists = places.iter().flat_map(|&place| &self.all[place as usize].lists);
        self.all_of(lists.map(|(first, rest)| *first.get(index).unwrap_or(rest)).chain(self.anywhere()))
    }

    /// Where the property of this name of an object at these places is.
    pub(crate) fn property(&self, places: &[Place], name: &str) -> Vec<Place> {
        let objects = places.iter().flat_map(|&place| &self.all[place as usize].objects);
        let of = |(named, others): &'_ (HashMap<String, Place>, Vec<Place>)| match named.get(name) {
            Some(&place) => vec![place],
            None => others.clone(),
        };
        self.all_of(objects.flat_map(of).chain(self.anywhere()))
    }

    /// Where any value may be.
    fn anywhere(&self) -> impl Iterator<Item = Place> {
        self.roots.iter().copied().filter(|_| self.are_embedded)
    }

    /// These places and alternatives to them, without those that lead nowhere.
    fn all_of(&self, places: impl Iterator<Item = Place>) -> Vec<Place> {
        let (mut all, mut open): (Vec<Place>, Vec<Place>) = (Vec::new(), places.collect());
        while let Some(place) = open.pop() {
            let within = &self.all[place as usize];
            if within.leads && !all.contains(&place) {
                all.push(place);
                open.extend(&within.same);
            }
        }
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
    /// By where shapes are in memory, which are kept there.
    known: HashMap<*const Node, (Place, Rc<Node>)>,
    /// Of definitions.
    defined: HashMap<String, Place>,
    /// Those that are to be filled.
    open: Vec<(Place, Rc<Node>)>,
}

impl Building<'_> {
    /// The place of values like `shape`.
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

/// Whether all values are texts, each of which may become longer.
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
