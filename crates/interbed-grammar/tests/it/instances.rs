//! Tests published schemas with values that are marked as valid or invalid, from `instances.jsonl` in the folder that
//! `INTERBED_SCHEMAS` names. No invalid value may be an answer. Without the file, the test says so and passes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use interbed_grammar::{Constraint, GrammarSource, Vocabulary, json_value};
use serde_json::{Value, json};

use crate::bytes_and;

/// The greatest number of names and values that are tried for one value.
const TRIES_MAX: usize = 300;

#[test]
fn published_values_are_answers_only_if_they_are_valid() {
    let Some(folder) = std::env::var_os("INTERBED_SCHEMAS").map(PathBuf::from) else {
        eprintln!("skipped: INTERBED_SCHEMAS names no folder; tools/schemas/README.md says how to fill one");
        return;
    };
    let Ok(text) = fs::read_to_string(folder.join("instances.jsonl")) else {
        eprintln!("skipped: no instances.jsonl in the folder");
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    let file = |name: &str| Mutex::new(File::create(folder.join(name)).expect("a file"));
    let (wrong, refused) = (file("instances_wrong.jsonl"), file("instances_refused.jsonl"));
    let next = AtomicUsize::new(0);
    // The counts are: schemas; valid and invalid values; valid and invalid values that are answers; and valid and
    // invalid values that were given up.
    let counts: [AtomicUsize; 7] = std::array::from_fn(|_| AtomicUsize::new(0));
    let remarks = AtomicUsize::new(0);
    let count = |index: usize| counts[index].fetch_add(1, Ordering::Relaxed);
    let work = || {
        let vocabulary = bytes_and(&[]);
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            let described = json_value(line).expect("a line of JSON");
            let (place, bench) = (&described["place"], &described["bench"]);
            let Ok(fresh) = vocabulary.compile(&GrammarSource::JsonSchema(bench["schema"].clone())) else { continue };
            count(0);
            let mut order = HashMap::new();
            names_of(&bench["schema"], &mut order);
            for test in bench["tests"].as_array().expect("values") {
                let is_valid = test["valid"] == true;
                count(1 + usize::from(!is_valid));
                let mut tries = Tries { order: &order, left: TRIES_MAX };
                // Usually the schema's own order of names is right.
                let mut state = fresh.clone();
                let is_right = push(&mut state, &tries.ordered(&test["data"]).to_string()).is_some() && state.may_end();
                let is_answer = is_right || tries.value(&fresh, &test["data"]).is_some_and(|mut state| state.may_end());
                if tries.left == 0 {
                    count(5 + usize::from(!is_valid));
                }
                if is_answer {
                    count(3 + usize::from(!is_valid));
                }
                let line = json!({"place": place, "schema": bench["schema"], "data": test["data"]});
                match (is_answer, is_valid) {
                    // Validators that check `format` reject some values that are valid by the standard.
                    (true, false) if schema_has_remark(&bench["schema"]) => {
                        remarks.fetch_add(1, Ordering::Relaxed);
                    }
                    (true, false) => writeln!(wrong.lock().unwrap(), "{line}").expect("a line"),
                    (false, true) => writeln!(refused.lock().unwrap(), "{line}").expect("a line"),
                    _ => {}
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let thread = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
    let [schemas, valid, invalid, right, wrong_count, given_up, unknown] = counts.map(AtomicUsize::into_inner);
    eprintln!(
        "{schemas} schemas: {right} of {valid} valid values are answers, and {wrong_count} of {invalid} invalid ones; \
         {given_up} and {unknown} were given up"
    );
    let remarks = remarks.into_inner();
    assert_eq!(wrong_count, remarks, "invalid values are answers: instances_wrong.jsonl");
}

/// Returns whether a schema has a `format` that is only an annotation.
fn schema_has_remark(schema: &Value) -> bool {
    interbed_grammar::check_formats(schema).is_err()
}

/// Collects the order of the property names in the schema.
fn names_of<'a>(schema: &'a Value, order: &mut HashMap<&'a str, usize>) {
    match schema {
        Value::Array(values) => values.iter().for_each(|value| names_of(value, order)),
        Value::Object(map) => {
            for name in map.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name) {
                let next = order.len();
                order.entry(name).or_insert(next);
            }
            map.values().for_each(|value| names_of(value, order));
        }
        _ => {}
    }
}

struct Tries<'a> {
    order: &'a HashMap<&'a str, usize>,
    left: usize,
}

impl Tries<'_> {
    /// Returns the value with its names in the order of the schema.
    fn ordered(&self, value: &Value) -> Value {
        match value {
            Value::Array(values) => values.iter().map(|value| self.ordered(value)).collect(),
            Value::Object(map) => {
                self.sorted(map).into_iter().map(|(name, value)| (name.clone(), self.ordered(value))).collect()
            }
            other => other.clone(),
        }
    }

    fn sorted<'v>(&self, map: &'v serde_json::Map<String, Value>) -> Vec<(&'v String, &'v Value)> {
        let mut pairs: Vec<_> = map.iter().collect();
        pairs.sort_by_key(|(name, _)| self.order.get(name.as_str()).copied().unwrap_or(usize::MAX));
        pairs
    }

    /// Returns the state after a value whose names come in an order that is allowed, if there is such an order.
    fn value(&mut self, state: &Constraint, value: &Value) -> Option<Constraint> {
        match value {
            Value::Array(values) => {
                let mut state = pushed(state, "[")?;
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        push(&mut state, ",")?;
                    }
                    state = self.value(&state, value)?;
                }
                push(&mut state, "]")?;
                Some(state)
            }
            Value::Object(map) => self.pairs(&pushed(state, "{")?, &self.sorted(map), true),
            other => pushed(state, &other.to_string()),
        }
    }

    fn pairs(&mut self, state: &Constraint, pairs: &[(&String, &Value)], is_first: bool) -> Option<Constraint> {
        if pairs.is_empty() {
            return pushed(state, "}");
        }
        for index in 0..pairs.len() {
            self.left = self.left.checked_sub(1)?;
            let (name, value) = pairs[index];
            let comma = if is_first { "" } else { "," };
            let Some(named) = pushed(state, &format!("{comma}{}:", Value::from(name.as_str()))) else { continue };
            let Some(behind) = self.value(&named, value) else { continue };
            let mut rest = pairs.to_vec();
            rest.remove(index);
            if let Some(end) = self.pairs(&behind, &rest, false) {
                return Some(end);
            }
        }
        None
    }
}

/// Returns the state after a text, if all of the text is allowed.
fn pushed(state: &Constraint, text: &str) -> Option<Constraint> {
    let mut state = state.clone();
    push(&mut state, text)?;
    Some(state)
}

/// Advances by a text; returns `None` if some of it is not allowed.
fn push(state: &mut Constraint, text: &str) -> Option<()> {
    text.bytes().try_for_each(|byte| state.advance(u32::from(byte)).map(drop)).ok()
}
