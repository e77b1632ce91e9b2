//! Random schemas for tests, and a simple validator of their keywords. This module requires the feature `testing`.

use serde_json::{Map, Value, json};

use crate::json_value;

/// A random number generator whose numbers depend only on its seed.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a random number below `bound`, which has to be positive.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Returns a random element of a slice, which must not be empty.
    pub fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Returns a random JSON schema that is nested at most `depth` levels deep. The strings and arrays that it allows are
/// short.
pub fn random_schema(dice: &mut Dice, depth: usize) -> Value {
    match dice.below(if depth == 0 { 6 } else { 10 }) {
        0 => json!({"type": "boolean"}),
        1 => json!({"enum": ["red", "gr\u{fc}n", 7, null, "a\"b\\"]}),
        2 => {
            let low = dice.below(200) as i64 - 100;
            json!({"type": "integer", "minimum": low, "maximum": low + dice.below(120) as i64})
        }
        3 => json!({"type": "string", "minLength": dice.below(3), "maxLength": 3 + dice.below(6)}),
        4 => json!({"type": "string", "pattern": "^[a-c]{2,4}(-[0-9]+)?$", "maxLength": 9}),
        5 => json!({"const": {"k": [1, "x"]}}),
        6 => {
            let (items, low) = (random_schema(dice, depth - 1), dice.below(2));
            json!({"type": "array", "items": items, "minItems": low, "maxItems": low + dice.below(3)})
        }
        7 => {
            let (one, other) = (random_schema(dice, depth - 1), random_schema(dice, depth - 1));
            json!({"anyOf": [one, other]})
        }
        _ => {
            let names = ["name", "age", "tags", "is ok"];
            let count = 1 + dice.below(names.len());
            let mut properties = Map::new();
            for name in &names[..count] {
                properties.insert((*name).into(), random_schema(dice, depth - 1));
            }
            let required: Vec<_> = names[..count].iter().filter(|_| dice.below(3) > 0).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// Returns a random JSON number, which may be negative. The number is written as an integer, as a decimal fraction, or
/// with an exponent.
pub fn random_number(dice: &mut Dice) -> Value {
    let sign = *dice.one(&["", "-"]);
    let text = match dice.below(6) {
        0 => format!("{sign}{}", dice.below(10)),
        1 => format!("{sign}{}", dice.below(100_000)),
        2 => format!("{sign}{}.{}", dice.below(20), dice.below(1000)),
        3 => format!("{sign}{}.{:02}", dice.below(3), dice.below(100)),
        4 => format!("{sign}{}e{}", dice.below(10), dice.below(8) as i64 - 4),
        _ => format!("{sign}{}.{}0{}", dice.below(4), dice.below(1 << 30), dice.below(1 << 30)),
    };
    json_value(&text).unwrap_or_default()
}

/// Returns a JSON schema of randomly combined keywords that is nested at most `depth` levels deep. The schema may be
/// impossible to satisfy, or may require something that a grammar cannot enforce.
pub fn random_combination(dice: &mut Dice, depth: usize) -> Value {
    match dice.below(if depth == 0 { 5 } else { 10 }) {
        0 | 1 => random_numbers(dice),
        2 => json!({"type": "string", "minLength": dice.below(3), "maxLength": dice.below(6)}),
        3 => json!({"enum": [random_number(dice), "red", random_number(dice), null, {"k": [random_number(dice)]}]}),
        4 => json!({"const": random_number(dice), "type": dice.one(&["number", "integer"])}),
        5 => json!({"allOf": [random_numbers(dice), random_numbers(dice)]}),
        6 => {
            let first: Vec<_> = (0..dice.below(3)).map(|_| random_combination(dice, depth - 1)).collect();
            let low = dice.below(3);
            let items = if dice.below(3) == 0 { json!(false) } else { random_combination(dice, depth - 1) };
            json!({"type": "array", "prefixItems": first, "items": items, "minItems": low,
                "maxItems": low + dice.below(3)})
        }
        7 => json!({"anyOf": [random_combination(dice, depth - 1), random_combination(dice, depth - 1)]}),
        _ => {
            let all = ["name", "x-1", "is \"ok\"", "kind"];
            let names: Vec<&str> = all.into_iter().filter(|_| dice.below(2) == 0).collect();
            let mut properties = Map::new();
            for name in &names {
                properties.insert((*name).into(), random_combination(dice, depth - 1));
            }
            let required: Vec<_> = names.iter().filter(|_| dice.below(3) == 0).collect();
            let mut schema = json!({"type": "object", "properties": properties, "required": required});
            match dice.below(4) {
                0 => schema["additionalProperties"] = random_combination(dice, depth - 1),
                1 => {}
                _ => schema["additionalProperties"] = json!(false),
            }
            if dice.below(4) == 0 {
                schema["patternProperties"] = json!({"^x": random_combination(dice, depth - 1)});
            }
            if dice.below(3) == 0 {
                schema["minProperties"] = dice.below(4).into();
            }
            if dice.below(3) == 0 {
                schema["maxProperties"] = dice.below(4).into();
            }
            schema
        }
    }
}

/// Returns a number schema with random bounds, included or excluded, and perhaps `multipleOf`.
fn random_numbers(dice: &mut Dice) -> Value {
    let mut schema = json!({"type": dice.one(&["number", "integer"])});
    for keywords in [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]] {
        if dice.below(4) > 0 {
            schema[*dice.one(&keywords)] = random_number(dice);
        }
    }
    if let (Some(low), 0) = (schema.get("exclusiveMinimum").and_then(Value::as_f64), dice.below(2)) {
        schema["maximum"] = serde_json::from_str(&format!("{:.3}", low + 0.5)).unwrap_or_default();
    }
    if dice.below(4) == 0 {
        let step = dice.one(&["1", "3", "7", "0.5", "0.25", "2.5", "0.1", "2.0", "100"]);
        schema["multipleOf"] = serde_json::from_str(step).unwrap_or_default();
    }
    schema
}

/// Returns whether `value` satisfies `schema`. Supports only schemas that [`random_schema`] or [`random_combination`]
/// can generate. Bounds are compared in floating point. Numbers in `const` and `enum` are compared as text, so `1.0`
/// differs from `1`.
pub fn is_valid(schema: &Value, value: &Value) -> bool {
    if let Value::Bool(allows) = schema {
        return *allows;
    }
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let size_fits = |low: &str, high: &str, size: usize| {
        let size = size as f64;
        number(low).is_none_or(|low| size >= low) && number(high).is_none_or(|high| size <= high)
    };
    let type_fits = match schema.get("type").and_then(Value::as_str) {
        None => true,
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(_) => false,
    };
    let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
    type_fits
        && schema.get("const").is_none_or(|only| only == value)
        && list("enum").is_none_or(|list| list.contains(value))
        && list("allOf").is_none_or(|list| list.iter().all(|one| is_valid(one, value)))
        && list("anyOf").is_none_or(|list| list.iter().any(|one| is_valid(one, value)))
        && match value {
            Value::Number(value) => {
                let value = value.as_f64().unwrap_or(f64::NAN);
                number("minimum").is_none_or(|low| value >= low)
                    && number("exclusiveMinimum").is_none_or(|low| value > low)
                    && number("maximum").is_none_or(|high| value <= high)
                    && number("exclusiveMaximum").is_none_or(|high| value < high)
                    && number("multipleOf").is_none_or(|step| (value / step).fract() == 0.0)
            }
            Value::String(text) => {
                size_fits("minLength", "maxLength", text.chars().count())
                    && (schema.get("pattern").is_none() || is_coded(text))
            }
            Value::Array(values) => {
                let first = list("prefixItems").map_or(0, Vec::len);
                size_fits("minItems", "maxItems", values.len())
                    && list("prefixItems").into_iter().flatten().zip(values).all(|(one, value)| is_valid(one, value))
                    && schema.get("items").is_none_or(|items| values.iter().skip(first).all(|one| is_valid(items, one)))
            }
            Value::Object(map) => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let is_known = |name: &String| properties.is_some_and(|known| known.contains_key(name));
                let matching =
                    |name: &str| schema.get("patternProperties")?.get("^x").filter(|_| name.starts_with('x'));
                size_fits("minProperties", "maxProperties", map.len())
                    && list("required").is_none_or(|required| {
                        required.iter().filter_map(Value::as_str).all(|name| map.contains_key(name))
                    })
                    && map.iter().all(|(name, value)| {
                        let listed = properties.and_then(|known| known.get(name));
                        let others =
                            schema.get("additionalProperties").filter(|_| !is_known(name) && matching(name).is_none());
                        [listed, matching(name), others].into_iter().flatten().all(|one| is_valid(one, value))
                    })
            }
            _ => true,
        }
}

/// Returns whether a text matches the one pattern of [`random_schema`]: two to four letters from a to c, then perhaps a
/// dash and a number.
fn is_coded(text: &str) -> bool {
    let (letters, digits) = text.split_once('-').map_or((text, None), |(letters, digits)| (letters, Some(digits)));
    (2..=4).contains(&letters.len())
        && letters.bytes().all(|letter| (b'a'..=b'c').contains(&letter))
        && digits.is_none_or(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
}
