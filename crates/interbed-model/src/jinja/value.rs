//! Values of a template: those of Python that templates meet. None of them changes, but namespaces and iterators.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::allowance::{self, DEPTH_MAX, Excess, NODE_BYTES, VALUE_BYTES_MAX};
use super::fault::{Fault, Result};

mod running;

pub(super) use running::{Loop, MacroValue, Scope, loop_attribute, printed_loop};

/// A value. Cloning it is cheap.
#[derive(Clone)]
pub(crate) enum Value {
    /// A name or an attribute that is not there, with its name.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    /// A number that Python would write in another way than the client did.
    Sent(Rc<SentNumber>),
    Text(Arc<str>),
    /// A text that is marked as safe for HTML.
    Markup(Arc<str>),
    List(Rc<Sequence>),
    Tuple(Rc<Sequence>),
    Dict(Rc<Dict>),
    /// Start, stop and step.
    Range(i128, i128, i128),
    /// What `keys`, `values` and `items` of a dict give.
    View(View, Rc<Dict>),
    /// Items that can be had once, as of a generator.
    Iterator(Rc<Items>),
    Object(Rc<Object>),
}

/// A number, with its text.
pub(crate) struct SentNumber {
    pub(super) text: String,
    pub(super) number: Value,
}

/// The items of a list or a tuple.
pub(crate) struct Sequence {
    pub(super) items: Vec<Value>,
    /// The second item of a pair that `groupby` made is the group.
    pub(super) is_group: bool,
    size: Size,
}

/// What printing a value takes.
#[derive(Clone, Copy, Default)]
struct Size {
    bytes: usize,
    depth: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// Items that are left, and what made them.
pub(crate) struct Items {
    pub(super) left: RefCell<std::vec::IntoIter<Value>>,
    size: Size,
}

/// A dict, in the order of insertion.
pub(crate) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    size: Size,
}

/// A key by which equal values are found.
#[derive(PartialEq, Eq, Hash, Clone)]
pub(super) enum Key {
    None,
    Integer(i128),
    Float(u64),
    Text(Arc<str>),
    Tuple(Vec<Key>),
}

/// What has an identity or can be called.
pub(crate) enum Object {
    Namespace(RefCell<Vec<(Arc<str>, Value)>>),
    Cycler {
        items: Vec<Value>,
        position: RefCell<usize>,
    },
    Joiner {
        separator: Value,
        used: RefCell<bool>,
    },
    Macro(MacroValue),
    Loop(Box<Loop>),
    /// A method of a value.
    Method(Value, Arc<str>),
    /// A global function.
    Function(&'static str),
}

impl Value {
    /// A text that a template makes.
    pub(super) fn text(text: impl Into<Arc<str>>) -> Result<Self> {
        let text = text.into();
        allowance::make(text.len() + NODE_BYTES)?;
        Ok(Self::Text(text))
    }

    pub(super) fn list(items: Vec<Self>) -> Result<Self> {
        Ok(Self::List(Rc::new(Sequence::new(items)?)))
    }

    pub(super) fn tuple(items: Vec<Self>) -> Result<Self> {
        Ok(Self::Tuple(Rc::new(Sequence::new(items)?)))
    }

    pub(super) fn group(key: Self, items: Vec<Self>) -> Result<Self> {
        let mut pair = Sequence::new(vec![key, Self::list(items)?])?;
        pair.is_group = true;
        Ok(Self::Tuple(Rc::new(pair)))
    }

    pub(super) fn iterator(items: Vec<Self>) -> Result<Self> {
        let size = Size::of(items.iter())?;
        Ok(Self::Iterator(Rc::new(Items { left: RefCell::new(items.into_iter()), size })))
    }

    pub(super) fn dict(pairs: impl IntoIterator<Item = (Self, Self)>) -> Result<Self> {
        Ok(Self::Dict(Rc::new(Dict::new(pairs)?)))
    }

    pub(super) fn undefined(name: impl Into<Arc<str>>) -> Self {
        Self::Undefined(name.into())
    }

    pub(super) fn object(object: Object) -> Self {
        Self::Object(Rc::new(object))
    }

    /// Whether a value may be worked on.
    ///
    /// # Errors
    /// It is undefined.
    pub(super) fn defined(&self) -> Result<()> {
        match self {
            Self::Undefined(name) => Err(Fault::new(format!("'{name}' is undefined"))),
            _ => Ok(()),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// The number of a value that is one, with booleans as integers.
    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Self::Bool(value) => Some(Number::Integer(i128::from(*value))),
            Self::Integer(value) => Some(Number::Integer(*value)),
            Self::Float(value) => Some(Number::Float(*value)),
            Self::Sent(sent) => sent.number.number(),
            _ => None,
        }
    }

    pub(super) fn as_integer(&self) -> Option<i128> {
        match self.number()? {
            Number::Integer(value) => Some(value),
            Number::Float(_) => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Integer(_) => "int",
            Self::Float(_) => "float",
            Self::Sent(sent) => sent.number.type_name(),
            Self::Text(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(..) => "range",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Iterator(_) => "generator",
            Self::Object(object) => match &**object {
                Object::Namespace(_) => "Namespace",
                Object::Cycler { .. } => "Cycler",
                Object::Joiner { .. } => "Joiner",
                Object::Macro(_) => "Macro",
                Object::Loop(_) => "LoopContext",
                Object::Method(..) | Object::Function(_) => "function",
            },
        }
    }

    /// Whether a namespace or another value may hold this one.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn storable(&self) -> Result<()> {
        self.size().map(drop)
    }

    fn size(&self) -> Result<Size> {
        let bytes = match self {
            Self::Text(text) | Self::Markup(text) => text.len() + NODE_BYTES,
            Self::List(items) | Self::Tuple(items) => return Ok(items.size),
            Self::Dict(dict) | Self::View(_, dict) => return Ok(dict.size),
            Self::Iterator(items) => return Ok(items.size),
            Self::Object(object) => match &**object {
                // It could grow after it was measured.
                Object::Namespace(_) => return Err(Excess::Namespace.into()),
                Object::Cycler { items, .. } => return Size::of(items.iter()),
                Object::Joiner { separator: inner, .. } | Object::Method(inner, _) => return inner.size(),
                Object::Loop(_) => return Err(Fault::unsupported("a loop within another value")),
                _ => NODE_BYTES,
            },
            _ => NODE_BYTES,
        };
        Ok(Size { bytes, depth: 0 })
    }
}

impl Size {
    fn of<'v>(values: impl Iterator<Item = &'v Value>) -> Result<Self> {
        let mut total = Self { bytes: NODE_BYTES, depth: 0 };
        let mut count = 0usize;
        for value in values {
            let size = value.size()?;
            total.bytes = total.bytes.saturating_add(size.bytes);
            total.depth = total.depth.max(size.depth + 1);
            count += 1;
        }
        if total.bytes > VALUE_BYTES_MAX {
            return Err(Excess::Value.into());
        }
        if total.depth > DEPTH_MAX {
            return Err(Excess::Depth.into());
        }
        allowance::make(NODE_BYTES.saturating_mul(count + 1))?;
        Ok(total)
    }
}

impl Sequence {
    fn new(items: Vec<Value>) -> Result<Self> {
        let size = Size::of(items.iter())?;
        Ok(Self { items, is_group: false, size })
    }
}

impl Dict {
    pub(super) fn new(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Self> {
        let mut entries: Vec<(Value, Value)> = Vec::new();
        let mut index: HashMap<Key, usize> = HashMap::new();
        for (key, value) in pairs {
            match index.entry(Key::of(&key)?) {
                // The first key stays, with the last value.
                std::collections::hash_map::Entry::Occupied(place) => entries[*place.get()].1 = value,
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(entries.len());
                    entries.push((key, value));
                }
            }
        }
        let size = Size::of(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Self { entries, index, size })
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.index.get(key).map(|&place| &self.entries[place].1)
    }

    pub(super) fn get_text(&self, key: &Arc<str>) -> Option<&Value> {
        self.get(&Key::Text(key.clone()))
    }
}

impl Key {
    /// The key of a value.
    ///
    /// # Errors
    /// It cannot be a key.
    pub(super) fn of(value: &Value) -> Result<Self> {
        Ok(match value {
            Value::None => Self::None,
            Value::Text(text) | Value::Markup(text) => Self::Text(text.clone()),
            Value::Tuple(items) => Self::Tuple(items.items.iter().map(Self::of).collect::<Result<_>>()?),
            Value::List(_) | Value::Dict(_) => {
                return Err(Fault::new(format!("unhashable type: '{}'", value.type_name())));
            }
            other => match other.number() {
                Some(Number::Integer(value)) => Self::Integer(value),
                Some(Number::Float(value)) => match whole(value) {
                    Some(value) => Self::Integer(value),
                    None if value.is_nan() => return Err(Fault::unsupported("NaN as a key")),
                    None => Self::Float(value.to_bits()),
                },
                None => return Err(Fault::unsupported(format!("a {} as a key", other.type_name()))),
            },
        })
    }
}

/// A number of Python's.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    pub(super) fn as_float(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// The integer that a float is.
pub(super) fn whole(value: f64) -> Option<i128> {
    let fits = value.fract() == 0.0 && value.abs() < 1e38;
    fits.then_some(value as i128)
}
