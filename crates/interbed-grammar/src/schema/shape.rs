//! Represents shapes of JSON values. A shape is a union of parts, each of one type.

use std::ops::Deref;
use std::rc::Rc;

use super::numbers::Numbers;

/// The set of values that a schema describes.
#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// Any value.
    Any,
    /// The union of these parts. An empty list allows no value.
    OneOf(Vec<Part>),
}

/// A shape that is part of others, with its nesting depth.
#[derive(Debug)]
pub(super) struct Node {
    shape: Shape,
    levels: usize,
}

/// The values of one type.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Null,
    /// The given Boolean value, or both Boolean values if the field is `None`.
    Bool(Option<bool>),
    Number(Numbers),
    Text(Strings),
    List(Lists),
    Object(Objects),
    /// The values that satisfy the schema at this JSON pointer, such as `#/$defs/name`.
    Definition(String),
}

/// Constraints on a string.
#[derive(Debug, Clone, Default)]
pub(super) struct Strings {
    /// The listed strings, if the schema lists them.
    pub(super) literals: Option<Rc<Vec<String>>>,
    /// The shortest length in characters.
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    pub(super) patterns: Vec<String>,
    pub(super) formats: Vec<String>,
    /// Strings that are excluded.
    pub(super) excluded: Option<Rc<Vec<String>>>,
    /// Patterns that the string must not match.
    pub(super) unlike: Vec<String>,
}

/// Constraints on an array.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    /// The shapes of the first items.
    pub(super) first: Vec<Rc<Node>>,
    /// The shape of all later items.
    pub(super) rest: Rc<Node>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// The place of `uniqueItems` in the schema, if it has that keyword.
    pub(super) unique: Option<Rc<str>>,
    /// The `contains` constraint.
    pub(super) some: Option<Contained>,
    /// Whether the shape leaves out arrays that cannot be told from excluded ones.
    pub(super) is_part: bool,
}

/// A `contains` constraint, which says which items count, and how many are allowed.
#[derive(Debug, Clone)]
pub(super) struct Contained {
    pub(super) shape: Rc<Node>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// The place of the keyword in the schema.
    pub(super) place: Rc<str>,
}

/// Constraints on an object.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) properties: Vec<(String, Rc<Node>)>,
    /// The shapes of unlisted properties whose names match a pattern.
    pub(super) patterns: Vec<(String, Rc<Node>)>,
    /// The shape of all other properties.
    pub(super) others: Rc<Node>,
    /// The patterns that all names outside of `properties` have to match.
    pub(super) names: Vec<String>,
    pub(super) required: Vec<String>,
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    /// Whether the shape leaves out some objects that the schema allows.
    pub(super) is_narrowed: bool,
    /// Whether the shape leaves out objects that cannot be told from excluded ones.
    pub(super) is_part: bool,
    /// The place of the constraints in the schema.
    pub(super) place: Rc<str>,
}

impl Shape {
    pub(super) fn nothing() -> Self {
        Self::OneOf(Vec::new())
    }

    pub(super) fn one(part: Part) -> Self {
        Self::OneOf(vec![part])
    }

    /// Returns whether the shape has no parts, and thus certainly no values.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::OneOf(parts) if parts.is_empty())
    }

    /// Returns the union of two shapes.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::OneOf(mut parts), Self::OneOf(more)) => {
                parts.extend(more);
                Self::OneOf(parts)
            }
            _ => Self::Any,
        }
    }

    /// Returns the weight of a copy, in units of about 100 bytes.
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

    /// Returns the depth of the shape, which counts the shape itself.
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
    /// Returns one part for each type. Together they have all values.
    pub(super) fn all(place: &Rc<str>) -> Vec<Self> {
        let mut parts = Self::all_but_objects();
        parts.push(Self::Object(Objects::any(place.clone())));
        parts
    }

    /// Returns one part for each type but objects.
    pub(super) fn all_but_objects() -> Vec<Self> {
        let (number, text) = (Numbers::any(false), Strings::default());
        vec![Self::Null, Self::Bool(None), Self::Number(number), Self::Text(text), Self::List(Lists::any())]
    }

    /// Returns the shapes of an array's items, or of an object's properties.
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

    /// Returns the weight of a copy, in units of about 100 bytes. Listed strings and numbers are shared and weigh
    /// nothing.
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

    /// Returns the shape of the item at `index`.
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

    /// Sets the shape of the property `name`.
    pub(super) fn with(mut self, name: &str, shape: Rc<Node>) -> Self {
        match self.properties.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = shape,
            None => self.properties.push((name.to_owned(), shape)),
        }
        self
    }

    /// Makes the property `name` required.
    pub(super) fn requiring(mut self, name: &str) -> Self {
        if !self.required.iter().any(|known| known == name) {
            self.required.push(name.to_owned());
        }
        self
    }

    /// Returns the shape that `properties` has for a name; `None` if the name is not listed.
    pub(super) fn property(&self, name: &str) -> Option<&Rc<Node>> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, shape)| shape)
    }
}

/// Returns the smaller of two limits, where `None` is no limit.
pub(super) fn smaller(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
