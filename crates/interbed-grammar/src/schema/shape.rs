//! What a value has to be: one of some parts, each of one type.

use std::rc::Rc;

use super::numbers::Numbers;

/// What a value has to be.
#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// Any value.
    Any,
    /// What one of these describes; nothing if there are none.
    OneOf(Vec<Part>),
}

/// Values of one type.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Null,
    /// One of the two, or both.
    Bool(Option<bool>),
    Number(Numbers),
    Text(Strings),
    List(Lists),
    Object(Objects),
    /// What the schema at this place, `#/…`, describes.
    Definition(String),
}

/// What a string has to be.
#[derive(Debug, Clone, Default)]
pub(super) struct Strings {
    /// If it is one of these.
    pub(super) literals: Option<Vec<String>>,
    /// Characters.
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    pub(super) patterns: Vec<String>,
    pub(super) formats: Vec<String>,
}

/// What a list has to be.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    /// The first entries.
    pub(super) first: Vec<Rc<Shape>>,
    /// Those behind them.
    pub(super) rest: Rc<Shape>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
}

/// What an object has to be.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) properties: Vec<(String, Rc<Shape>)>,
    /// Of names that match these expressions, and are none of those.
    pub(super) patterns: Vec<(String, Rc<Shape>)>,
    /// Of all other names.
    pub(super) others: Rc<Shape>,
    pub(super) required: Vec<String>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// Where the schema says it.
    pub(super) place: String,
}

impl Shape {
    pub(super) fn nothing() -> Self {
        Self::OneOf(Vec::new())
    }

    pub(super) fn one(part: Part) -> Self {
        Self::OneOf(vec![part])
    }
}

impl Lists {
    pub(super) fn any() -> Self {
        Self { first: Vec::new(), rest: Rc::new(Shape::Any), least: 0, most: None }
    }

    /// What the entry at `index` has to be.
    pub(super) fn entry(&self, index: usize) -> &Rc<Shape> {
        self.first.get(index).unwrap_or(&self.rest)
    }
}

impl Objects {
    pub(super) fn any(place: String) -> Self {
        let (properties, patterns, required) = (Vec::new(), Vec::new(), Vec::new());
        Self { properties, patterns, others: Rc::new(Shape::Any), required, least: 0, most: None, place }
    }

    /// What `properties` says of a name.
    pub(super) fn property(&self, name: &str) -> Option<&Rc<Shape>> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, shape)| shape)
    }
}

/// The smaller of two limits, of which each may be missing.
pub(super) fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
