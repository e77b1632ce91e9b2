//! JSON in which no entry comes twice in the lists whose schema says so: no grammar of finite size says that.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::schema::{Place, Places};

/// The lists without repeated entries that a text is in so far, with their entries.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    places: Arc<Places>,
    /// What is open, from the outside on.
    open: Vec<Open>,
    begun: Begun,
}

/// A list or an object that is not closed.
#[derive(Debug, Clone)]
struct Open {
    places: Vec<Place>,
    within: Within,
}

#[derive(Debug, Clone)]
enum Within {
    Object {
        /// The last name, in quotes.
        name: Vec<u8>,
        is_name_next: bool,
    },
    List {
        /// Entries that are complete.
        count: usize,
        unique: Option<Unique>,
    },
}

/// A list without repeated entries.
#[derive(Debug, Clone)]
struct Unique {
    /// Whether there may be no other entry.
    may_run_out: bool,
    entries: Arc<Vec<Arc<Entry>>>,
    /// What came of the next entry, without white space around its parts.
    begun: Vec<u8>,
    /// Whether an entry has come, and no comma behind it.
    is_between: bool,
}

#[derive(Debug)]
struct Entry {
    /// Without white space around its parts.
    text: Vec<u8>,
    /// In one form for all texts of the value.
    value: Vec<u8>,
}

/// What is not complete at the end of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Begun {
    Nothing,
    /// A string, or a name.
    Text {
        is_name: bool,
        is_escaped: bool,
    },
    /// A number, or a word.
    Word,
}

/// What more text did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pushed {
    /// It completed an entry that its list has already.
    pub(crate) repeats: bool,
    /// It completed an entry of a list without repeated ones.
    pub(crate) completes: bool,
}

impl Entries {
    /// None so far, of values that have such lists at `places`.
    pub(crate) fn new(places: Arc<Places>) -> Self {
        Self { places, open: Vec::new(), begun: Begun::Nothing }
    }

    /// Takes more of the text.
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
                Begun::Word if is_of_word(byte) => self.write(byte),
                Begun::Word => {
                    self.begun = Begun::Nothing;
                    self.end(&mut pushed);
                    self.begin(byte, &mut pushed);
                }
                Begun::Nothing => self.begin(byte, &mut pushed),
            }
        }
        pushed
    }

    /// Takes a byte that is in no text and no word.
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
                self.begun = Begun::Word;
            }
            b':' => self.write(byte),
            _ => {}
        }
    }

    /// Where the value is that begins now.
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

    /// Adds a byte to the entries that it is in.
    fn write(&mut self, byte: u8) {
        for open in &mut self.open {
            if let Within::List { unique: Some(unique), .. } = &mut open.within
                && !unique.is_between
            {
                unique.begun.push(byte);
            }
        }
    }

    /// A value is complete.
    fn end(&mut self, pushed: &mut Pushed) {
        let Some(Open { within: Within::List { count, unique }, .. }) = self.open.last_mut() else { return };
        *count += 1;
        let Some(unique) = unique else { return };
        let text = std::mem::take(&mut unique.begun);
        let value = one_form(&text);
        pushed.completes = true;
        pushed.repeats |= unique.entries.iter().any(|entry| entry.text == text || entry.value == value);
        Arc::make_mut(&mut unique.entries).push(Arc::new(Entry { text, value }));
        unique.is_between = true;
    }

    /// Whether the text is in a list without repeated entries.
    pub(crate) fn is_within(&self) -> bool {
        self.uniques().next().is_some()
    }

    /// Whether the text is in a string or a name.
    pub(crate) fn is_in_text(&self) -> bool {
        matches!(self.begun, Begun::Text { .. })
    }

    /// Whether there may be no other entry than those that have come.
    pub(crate) fn may_run_out(&self) -> bool {
        self.uniques().any(|unique| unique.may_run_out)
    }

    /// What has begun like an entry that its list has already: the outermost such list, and its entry so far.
    pub(crate) fn begun_alike(&self) -> Option<(usize, &[u8])> {
        let begun = self.uniques().enumerate().map(|(index, unique)| (index, unique, &unique.begun[..]));
        let mut alike = begun.filter(|(_, unique, _)| unique.alike().next().is_some());
        alike.next().map(|(index, _, begun)| (index, begun))
    }

    /// What would complete entries that have begun to those that their lists have already.
    pub(crate) fn repeating(&self) -> impl Iterator<Item = &[u8]> {
        self.uniques().flat_map(Unique::alike)
    }

    /// Whether the same entry may have other forms, beside white space, whose texts are within the open one.
    pub(crate) fn has_escapes(&self) -> bool {
        self.uniques().any(|unique| {
            let texts = unique.entries.iter().map(|entry| &entry.text);
            texts.chain([&unique.begun]).any(|text| text.contains(&b'\\'))
        })
    }

    /// How many lists and objects are open within the innermost list without repeated entries.
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
    /// What would complete the entry that has begun to those that are there.
    fn alike(&self) -> impl Iterator<Item = &[u8]> {
        let entries = self.entries.iter().filter(|_| !self.is_between);
        entries.filter_map(|entry| entry.text.strip_prefix(&self.begun[..]))
    }
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// One text for all texts of a JSON value: numbers that are one in floating point are one value to most readers.
fn one_form(text: &[u8]) -> Vec<u8> {
    fn write(value: &Value, into: &mut Vec<u8>) {
        match value {
            Value::Number(number) => {
                let float = number.as_f64().filter(|float| float.is_finite()).map(|float| (float + 0.0).to_string());
                into.extend(float.unwrap_or_else(|| number.to_string()).bytes());
            }
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
    let Ok(value) = serde_json::from_slice(text) else { return text.to_vec() };
    let mut form = Vec::new();
    write(&value, &mut form);
    form
}
