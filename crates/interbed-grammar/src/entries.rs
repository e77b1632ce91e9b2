//! Follows JSON text and notes the items of its `uniqueItems` arrays. This is needed because no grammar of finite size
//! can forbid repeated items.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::likeness::{canonical_number, is_of_word, may_become};
use crate::schema::{Place, Places};

/// The `uniqueItems` arrays that contain the end of a JSON text, with their items so far.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    places: Arc<Places>,
    /// Open arrays and objects, from the outside in.
    open: Vec<Open>,
    begun: Begun,
}

/// An array or an object that is not closed yet.
#[derive(Debug, Clone)]
struct Open {
    places: Vec<Place>,
    within: Within,
}

#[derive(Debug, Clone)]
enum Within {
    Object {
        /// The last property name, with its quotes.
        name: Vec<u8>,
        is_name_next: bool,
    },
    List {
        /// Number of complete items.
        count: usize,
        unique: Option<Unique>,
    },
}

/// An array with `uniqueItems`.
#[derive(Debug, Clone)]
struct Unique {
    /// Whether the schema may allow no further distinct item.
    may_run_out: bool,
    entries: Arc<Vec<Arc<Entry>>>,
    /// Whether the text of an earlier item has a backslash.
    has_escapes: bool,
    /// The text of the current item so far, without white space around its parts.
    begun: Vec<u8>,
    /// Whether an item is complete and no comma has followed yet.
    is_between: bool,
}

#[derive(Debug)]
struct Entry {
    /// The item's text, without white space around its parts.
    text: Vec<u8>,
    /// The item's value; `None` if the text cannot be parsed.
    value: Option<Value>,
    /// The value in canonical form, which is equal for all texts of the value.
    form: Vec<u8>,
}

impl Entry {
    fn new(text: Vec<u8>) -> Self {
        let value = serde_json::from_slice(&text).ok();
        let form = value.as_ref().map_or_else(|| text.clone(), one_form);
        Self { text, value, form }
    }

    /// Returns whether the item `begun` may become equal to this one.
    fn may_be(&self, begun: &[u8]) -> bool {
        let is_like = |value: &Value| may_become(begun, value);
        self.text.starts_with(begun) || self.value.as_ref().is_some_and(is_like)
    }
}

/// The string, number or word in which the text ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Begun {
    Nothing,
    /// A string or a property name.
    Text {
        is_name: bool,
        is_escaped: bool,
    },
    /// A number, `true`, `false` or `null`. `length` is the number of its bytes so far.
    Word {
        length: usize,
    },
}

/// The effects of the text that was appended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pushed {
    /// Whether the text completed an item that its array already has.
    pub(crate) repeats: bool,
}

impl Entries {
    /// Returns the state before any text, for values whose `uniqueItems` arrays are at `places`.
    pub(crate) fn new(places: Arc<Places>) -> Self {
        Self { places, open: Vec::new(), begun: Begun::Nothing }
    }

    /// Appends text, and reports whether it completed a repeated item.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Pushed {
        let mut pushed = Pushed::default();
        for &byte in bytes {
            match &mut self.begun {
                Begun::Text { is_name, is_escaped } => {
                    let (is_name, is_end) = (*is_name, byte == b'"' && !*is_escaped);
                    *is_escaped = byte == b'\\' && !*is_escaped;
                    self.write(byte);
                    if is_name && let Some(Open { within: Within::Object { name, .. }, .. }) = self.open.last_mut() {
                        name.push(byte);
                    }
                    if is_end {
                        self.begun = Begun::Nothing;
                        if !is_name {
                            self.end(&mut pushed);
                        }
                    }
                }
                Begun::Word { length } if is_of_word(byte) => {
                    *length += 1;
                    self.write(byte);
                }
                Begun::Word { .. } => {
                    self.begun = Begun::Nothing;
                    self.end(&mut pushed);
                    self.begin(byte, &mut pushed);
                }
                Begun::Nothing => self.begin(byte, &mut pushed),
            }
        }
        pushed
    }

    /// Processes a byte that is outside of strings, numbers and words.
    fn begin(&mut self, byte: u8, pushed: &mut Pushed) {
        match byte {
            b'{' | b'[' => {
                let places = self.next_places();
                let within = if byte == b'{' {
                    Within::Object { name: Vec::new(), is_name_next: true }
                } else {
                    let unique = || Unique {
                        may_run_out: self.places.may_run_out(&places),
                        entries: Arc::default(),
                        has_escapes: false,
                        begun: Vec::new(),
                        is_between: false,
                    };
                    Within::List { count: 0, unique: self.places.are_unique(&places).then(unique) }
                };
                self.write(byte);
                self.open.push(Open { places, within });
            }
            b'}' | b']' => {
                self.open.pop();
                self.write(byte);
                self.end(pushed);
            }
            b',' => {
                self.write(byte);
                match self.open.last_mut().map(|open| &mut open.within) {
                    Some(Within::Object { is_name_next, .. }) => *is_name_next = true,
                    Some(Within::List { unique: Some(unique), .. }) => unique.is_between = false,
                    _ => {}
                }
            }
            b'"' => {
                let mut is_name = false;
                if let Some(Open { within: Within::Object { name, is_name_next }, .. }) = self.open.last_mut() {
                    is_name = std::mem::take(is_name_next);
                    if is_name {
                        name.clear();
                        name.push(byte);
                    }
                }
                self.write(byte);
                self.begun = Begun::Text { is_name, is_escaped: false };
            }
            _ if is_of_word(byte) => {
                self.write(byte);
                self.begun = Begun::Word { length: 1 };
            }
            b':' => self.write(byte),
            _ => {}
        }
    }

    /// Returns the schema places of the value that begins next.
    fn next_places(&self) -> Vec<Place> {
        match self.open.last() {
            None => self.places.roots(),
            Some(Open { places, within: Within::List { count, .. } }) => self.places.entry(places, *count),
            Some(Open { places, within: Within::Object { name, .. } }) => {
                let name = serde_json::from_slice::<String>(name).unwrap_or_default();
                self.places.property(places, &name)
            }
        }
    }

    /// Appends a byte to all items that contain it.
    fn write(&mut self, byte: u8) {
        for open in &mut self.open {
            if let Within::List { unique: Some(unique), .. } = &mut open.within
                && !unique.is_between
            {
                unique.begun.push(byte);
            }
        }
    }

    /// Notes that a value is complete, and checks whether it repeats an item.
    fn end(&mut self, pushed: &mut Pushed) {
        let Some(Open { within: Within::List { count, unique }, .. }) = self.open.last_mut() else { return };
        *count += 1;
        let Some(unique) = unique else { return };
        let entry = Entry::new(std::mem::take(&mut unique.begun));
        unique.has_escapes |= entry.text.contains(&b'\\');
        pushed.repeats |= unique.entries.iter().any(|earlier| earlier.form == entry.form);
        Arc::make_mut(&mut unique.entries).push(Arc::new(entry));
        unique.is_between = true;
    }

    /// Returns whether the text is inside a `uniqueItems` array.
    pub(crate) fn is_within(&self) -> bool {
        self.uniques().next().is_some()
    }

    /// Returns whether the text is inside a string or a property name.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self.begun, Begun::Text { .. })
    }

    /// Returns whether one of the open `uniqueItems` arrays may have no further distinct item.
    pub(crate) fn may_run_out(&self) -> bool {
        self.uniques().any(|unique| unique.may_run_out)
    }

    /// Returns the outermost array whose current item may still become equal to an earlier one, with the beginning of
    /// that item.
    pub(crate) fn begun_alike(&self) -> Option<(usize, &[u8])> {
        let mut alike = self.uniques().enumerate().filter(|(_, unique)| unique.is_undecided());
        alike.next().map(|(index, unique)| (index, &unique.begun[..]))
    }

    /// Returns the length in bytes of the number or word in which the text ends; 0 if it ends in none.
    pub(crate) fn word_length(&self) -> usize {
        match self.begun {
            Begun::Word { length } => length,
            Begun::Nothing | Begun::Text { .. } => 0,
        }
    }

    /// Returns the texts that would complete the current items of the open arrays to items that the arrays already
    /// have.
    pub(crate) fn repeating(&self) -> impl Iterator<Item = &[u8]> {
        self.uniques().flat_map(Unique::alike)
    }

    /// Returns whether the items use backslash escapes, so that one value may have several texts.
    pub(crate) fn has_escapes(&self) -> bool {
        self.uniques().any(|unique| unique.has_escapes || unique.begun.contains(&b'\\'))
    }

    /// Returns the number of arrays and objects that are open inside the innermost `uniqueItems` array.
    pub(crate) fn depth(&self) -> usize {
        let is_unique = |open: &&Open| matches!(open.within, Within::List { unique: Some(_), .. });
        self.open.iter().rev().take_while(|open| !is_unique(open)).count()
    }

    fn uniques(&self) -> impl Iterator<Item = &Unique> {
        self.open.iter().filter_map(|open| match &open.within {
            Within::List { unique, .. } => unique.as_ref(),
            Within::Object { .. } => None,
        })
    }
}

impl Unique {
    /// Returns whether the current item may still become equal to an earlier one of this array.
    fn is_undecided(&self) -> bool {
        !self.is_between && self.entries.iter().any(|entry| entry.may_be(&self.begun))
    }

    /// Returns the texts that would complete the current item to an earlier one of this array.
    fn alike(&self) -> impl Iterator<Item = &[u8]> {
        let entries = self.entries.iter().filter(|_| !self.is_between);
        entries.filter_map(|entry| entry.text.strip_prefix(&self.begun[..]))
    }
}

/// Returns the canonical text of a JSON value, which is equal for all texts of the value.
fn one_form(value: &Value) -> Vec<u8> {
    fn write(value: &Value, into: &mut Vec<u8>) {
        match value {
            Value::Number(number) => into.extend(canonical_number(number).bytes()),
            Value::Array(entries) => {
                into.push(b'[');
                for entry in entries {
                    write(entry, into);
                    into.push(b',');
                }
                into.push(b']');
            }
            Value::Object(properties) => {
                into.push(b'{');
                for (name, value) in properties.iter().collect::<BTreeMap<_, _>>() {
                    into.extend(Value::from(name.as_str()).to_string().bytes());
                    into.push(b':');
                    write(value, into);
                    into.push(b',');
                }
                into.push(b'}');
            }
            Value::Null | Value::Bool(_) | Value::String(_) => into.extend(value.to_string().bytes()),
        }
    }
    let mut form = Vec::new();
    write(value, &mut form);
    form
}
