//! Random schemas, and a plain validator of the keywords that they have. Behind the feature `testing`.

use serde_json::{Map, Value, json};

/// Random numbers that depend on a seed alone.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Seeded.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `bound`, which is above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A schema, nested at most `depth` times, whose values end: no text or list in it may be long.
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

/// Whether `value` is what `schema` describes, of which the keywords of [`random_schema`] are looked at.
pub fn is_valid(schema: &Value, value: &Value) -> bool {
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_i64);
    let size_fits = |low: &str, high: &str, size: usize| {
        let size = size as i64;
        number(low).is_none_or(|low| size >= low) && number(high).is_none_or(|high| size <= high)
    };
    let type_fits = match schema.get("type").and_then(Value::as_str) {
        None => true,
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(_) => false,
    };
    let options = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
    type_fits
        && schema.get("const").is_none_or(|only| only == value)
        && options("enum").is_none_or(|list| list.contains(value))
        && options("anyOf").is_none_or(|list| list.iter().any(|one| is_valid(one, value)))
        && match value {
            Value::Number(value) => {
                let value = value.as_f64().unwrap_or(f64::NAN);
                number("minimum").is_none_or(|low| value >= low as f64)
                    && number("maximum").is_none_or(|high| value <= high as f64)
            }
            Value::String(text) => {
                size_fits("minLength", "maxLength", text.chars().count())
                    && (schema.get("pattern").is_none() || is_coded(text))
            }
            Value::Array(list) => {
                size_fits("minItems", "maxItems", list.len())
                    && schema.get("items").is_none_or(|items| list.iter().all(|value| is_valid(items, value)))
            }
            Value::Object(map) => {
                let properties = schema.get("properties").and_then(Value::as_object);
                options("required")
                    .is_none_or(|required| required.iter().filter_map(Value::as_str).all(|name| map.contains_key(name)))
                    && map.iter().all(|(name, value)| match properties.and_then(|known| known.get(name)) {
                        Some(schema) => is_valid(schema, value),
                        None => schema.get("additionalProperties") != Some(&Value::Bool(false)),
                    })
            }
            _ => true,
        }
}

/// The one pattern of [`random_schema`]: two to four letters from a to c, and perhaps a number behind a dash.
fn is_coded(text: &str) -> bool {
    let (letters, digits) = text.split_once('-').map_or((text, None), |(letters, digits)| (letters, Some(digits)));
    (2..=4).contains(&letters.len())
        && letters.bytes().all(|letter| (b'a'..=b'c').contains(&letter))
        && digits.is_none_or(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
}
