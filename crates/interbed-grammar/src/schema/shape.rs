//! What a value has to be: one of some parts, each of one type.

use std::ops::Deref;
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

/// A shape within others, which knows how many levels of shapes are in it.
#[derive(Debug)]
pub(super) struct Node {
    shape: Shape,
    levels: usize,
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
    pub(super) literals: Option<Rc<Vec<String>>>,
    /// Characters.
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    pub(super) patterns: Vec<String>,
    pub(super) formats: Vec<String>,
    /// If it is none of these.
    pub(super) excluded: Option<Rc<Vec<String>>>,
    /// Patterns that it does not match.
    pub(super) unlike: Vec<String>,
}

/// What a list has to be.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    /// The first entries.
    pub(super) first: Vec<Rc<Node>>,
    /// Those behind them.
    pub(super) rest: Rc<Node>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// Where the schema says that no entry comes twice, if it does.
    pub(super) unique: Option<Rc<str>>,
    /// What some entries have to be.
    pub(super) some: Option<Contained>,
    /// Whether there are other lists that are not told from those which are excluded: these are only some.
    pub(super) is_part: bool,
}

/// What some entries of a list have to be, and how many.
#[derive(Debug, Clone)]
pub(super) struct Contained {
    pub(super) shape: Rc<Node>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// Where the schema says it.
    pub(super) place: Rc<str>,
}

/// What an object has to be.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) properties: Vec<(String, Rc<Node>)>,
    /// Of names that match these expressions, and are none of those.
    pub(super) patterns: Vec<(String, Rc<Node>)>,
    /// Of all other names.
    pub(super) others: Rc<Node>,
    /// Patterns that all names match which `properties` does not list.
    pub(super) names: Vec<String>,
    pub(super) required: Vec<String>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// Whether there may be other objects that keep to what the schema says.
    pub(super) is_narrowed: bool,
    /// Whether there are other objects that are not told from those which are excluded: these are only some.
    pub(super) is_part: bool,
    /// Where the schema says it.
    pub(super) place: Rc<str>,
}

impl Shape {
    pub(super) fn nothing() -> Self {
        Self::OneOf(Vec::new())
    }

    pub(super) fn one(part: Part) -> Self {
        Self::OneOf(vec![part])
    }

    /// Whether it is certain that there are no values, without a look at parts.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::OneOf(parts) if parts.is_empty())
    }

    /// Values of either.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::OneOf(mut parts), Self::OneOf(more)) => {
                parts.extend(more);
                Self::OneOf(parts)
            }
            _ => Self::Any,
        }
    }

    /// How much a copy takes, in units of some 100 bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::OneOf(parts) => parts.iter().map(Part::weight).sum(),
        }
    }
}

impl Node {
    pub(super) fn new(shape: Shape) -> Rc<Self> {
        let mut levels = 0;
        if let Shape::OneOf(parts) = &shape {
            for inner in parts.iter().flat_map(Part::inner) {
                levels = levels.max(inner.levels);
            }
        }
        Rc::new(Self { shape, levels: levels + 1 })
    }

    /// Levels of shapes, this one among them.
    pub(super) fn levels(&self) -> usize {
        self.levels
    }
}

impl Deref for Node {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.shape
    }
}

impl Part {
    /// All values, by type.
    pub(super) fn all(place: &Rc<str>) -> Vec<Self> {
        let mut parts = Self::all_but_objects();
        parts.push(Self::Object(Objects::any(place.clone())));
        parts
    }

    /// All values that are no objects.
    pub(super) fn all_but_objects() -> Vec<Self> {
        let (number, text) = (Numbers::any(false), Strings::default());
        vec![Self::Null, Self::Bool(None), Self::Number(number), Self::Text(text), Self::List(Lists::any())]
    }

    /// The shapes of a list's entries, or of an object's values.
    pub(super) fn inner(&self) -> impl Iterator<Item = &Rc<Node>> {
        let (lists, objects) = match self {
            Self::List(lists) => (Some(lists), None),
            Self::Object(objects) => (None, Some(objects)),
            _ => (None, None),
        };
        let entries = lists.into_iter().flat_map(|lists| {
            let some = lists.some.iter().map(|some| &some.shape);
            lists.first.iter().chain([&lists.rest]).chain(some)
        });
        let values = objects.into_iter().flat_map(|objects| {
            let named = objects.properties.iter().chain(&objects.patterns);
            named.map(|(_, shape)| shape).chain([&objects.others])
        });
        entries.chain(values)
    }

    /// How much a copy takes, in units of some 100 bytes: texts and numbers that are listed are shared.
    pub(super) fn weight(&self) -> usize {
        let of = |text: &String| 1 + text.len() / 64;
        match self {
            Self::Null | Self::Bool(_) => 1,
            Self::Number(numbers) => numbers.weight(),
            Self::Text(strings) => {
                let texts = strings.patterns.iter().chain(&strings.formats).chain(&strings.unlike);
                1 + texts.map(of).sum::<usize>()
            }
            Self::List(lists) => 1 + lists.first.len(),
            Self::Object(objects) => {
                let names = objects.properties.iter().chain(&objects.patterns).map(|(name, _)| name);
                1 + names.chain(&objects.required).chain(&objects.names).map(of).sum::<usize>()
            }
            Self::Definition(to) => of(to),
        }
    }
}

impl Lists {
    pub(super) fn any() -> Self {
        Self {
            first: Vec::new(),
            rest: Node::new(Shape::Any),
            least: 0,
            most: None,
            unique: None,
            some: None,
            is_part: false,
        }
    }

    /// What the entry at `index` has to be.
    pub(super) fn entry(&self, index: usize) -> &Rc<Node> {
        self.first.get(index).unwrap_or(&self.rest)
    }
}

impl Objects {
    pub(super) fn any(place: Rc<str>) -> Self {
        let (properties, patterns, names, required) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (others, least, most, is_narrowed) = (Node::new(Shape::Any), 0, None, false);
        let is_part = false;
        Self { properties, patterns, others, names, required, least, most, is_narrowed, is_part, place }
    }

    /// These objects, where the property `name` has this shape.
    pub(super) fn with(mut self, name: &str, shape: Rc<Node>) -> Self {
        match self.properties.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = shape,
            None => self.properties.push((name.to_owned(), shape)),
        }
        self
    }

    /// These objects, where the property `name` is required.
    pub(super) fn requiring(mut self, name: &str) -> Self {
        if !self.required.iter().any(|known| known == name) {
            self.required.push(name.to_owned());
        }
        self
    }

    /// What `properties` says of a name.
    pub(super) fn property(&self, name: &str) -> Option<&Rc<Node>> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, shape)| shape)
    }
}

/// The smaller of two limits, of which each may be missing.
pub(super) fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
