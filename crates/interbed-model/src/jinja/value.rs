//! Defines the values of a template: those of Python's types that templates use. Only namespaces, iterators and the
//! state of loops, cyclers and joiners can change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::allowance::{self, DEPTH_MAX, Excess, NODE_BYTES, VALUE_BYTES_MAX};
use super::fault::{Fault, Result};

mod running;

pub(super) use running::{Loop, MacroValue, Scope, loop_attribute, printed_loop};

/// A value of a template. Cloning a value is cheap.
#[derive(Clone)]
pub(crate) enum Value {
    /// A variable or an attribute that does not exist, with its name.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    /// A number that a client sent, with the text that the client wrote for it. This text differs from the text that
    /// Python would print for the number.
    Sent(Rc<SentNumber>),
    Text(Arc<str>),
    /// Text that is marked as safe for HTML.
    Markup(Arc<str>),
    List(Rc<Sequence>),
    Tuple(Rc<Sequence>),
    Dict(Rc<Dict>),
    /// A range, with its start, stop and step.
    Range(i128, i128, i128),
    /// The keys, values or items of a dict, as its methods `keys`, `values` and `items` return them.
    View(View, Rc<Dict>),
    /// Items that can be iterated over only once, like those of a Python generator.
    Iterator(Rc<Items>),
    Object(Rc<Object>),
}

/// A number with the text that the client sent for it.
pub(crate) struct SentNumber {
    pub(super) text: String,
    pub(super) number: Value,
}

/// The items of a list or a tuple.
pub(crate) struct Sequence {
    pub(super) items: Vec<Value>,
    /// Whether this is a pair made by `groupby`, whose second item is the group.
    pub(super) is_group: bool,
    size: Size,
}

/// The size of the text that printing a value writes, and the depth of its nesting.
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

/// The items that an iterator has left.
pub(crate) struct Items {
    pub(super) left: RefCell<std::vec::IntoIter<Value>>,
    size: Size,
}

/// A dict, whose entries are in the order of insertion.
pub(crate) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    size: Size,
}

/// The key of a dict's entry. Equal Python values have equal keys.
#[derive(PartialEq, Eq, Hash, Clone)]
pub(super) enum Key {
    None,
    Integer(i128),
    Float(u64),
    Text(Arc<str>),
    Tuple(Vec<Key>),
}

/// An object that has an identity or can be called.
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
    /// A method of a value: the value, and the name of the method.
    Method(Value, Arc<str>),
    /// A global function, by its name.
    Function(&'static str),
}

impl Value {
    /// Makes a text, whose bytes count against the allowance.
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

    /// Returns nothing if the value is defined.
    ///
    /// # Errors
    /// Fails if the value is undefined.
    pub(super) fn defined(&self) -> Result<()> {
        match self {
            Self::Undefined(name) => Err(Fault::new(format!("'{name}' is undefined"))),
            _ => Ok(()),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// Returns the value as a number if it is one. Booleans count as integers.
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

    /// Returns Python's name of the value's type.
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

    /// Returns nothing if another value may hold this value.
    ///
    /// # Errors
    /// Fails if the value is a namespace or a loop, or holds one of them.
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
    /// Makes the key of a value.
    ///
    /// # Errors
    /// Fails if the value cannot be a key of a dict.
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

/// A Python number.
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

/// Returns the integer that equals a float, or `None` if there is none.
pub(super) fn whole(value: f64) -> Option<i128> {
    let fits = value.fract() == 0.0 && value.abs() < 1e38;
    fits.then_some(value as i128)
}
