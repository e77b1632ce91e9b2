//! Evaluates Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;

use super::allowance::{self, NODE_BYTES};
use super::fault::{Fault, Result};
use super::format;
use super::iteration::{items, length};
use super::printing;
use super::syntax::{Binary, Comparison};
use super::value::{Dict, Key, Number, Object, Value, View, whole};

pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Undefined(_) | Value::None => false,
        Value::Text(text) | Value::Markup(text) => !text.is_empty(),
        Value::List(items) | Value::Tuple(items) => !items.items.is_empty(),
        Value::Dict(dict) | Value::View(_, dict) => !dict.entries.is_empty(),
        Value::Range(start, stop, step) => {
            if *step > 0 {
                start < stop
            } else {
                start > stop
            }
        }
        other => match other.number() {
            Some(Number::Integer(value)) => value != 0,
            Some(Number::Float(value)) => value != 0.0,
            None => true,
        },
    }
}

pub(super) fn binary(operator: Binary, left: &Value, right: &Value) -> Result<Value> {
    // A text formats anything.
    if operator == Binary::Remainder
        && let Some(text) = left.as_text()
    {
        return Value::text(format::percent(text, right)?);
    }
    left.defined()?;
    right.defined()?;
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return arithmetic(operator, left, right);
    }
    match (operator, left, right) {
        (Binary::Add, Value::Text(a), Value::Text(b)) => {
            allowance::make(a.len() + b.len())?;
            Value::text([&**a, &**b].concat())
        }
        (Binary::Add, Value::Markup(_), Value::Text(_) | Value::Markup(_))
        | (Binary::Add, Value::Text(_), Value::Markup(_)) => escaped_sum(&[left, right]),
        (Binary::Add, Value::List(a), Value::List(b)) => {
            allowance::make((a.items.len() + b.items.len()) * NODE_BYTES)?;
            Value::list([&a.items[..], &b.items[..]].concat())
        }
        (Binary::Add, Value::Tuple(a), Value::Tuple(b)) => {
            allowance::make((a.items.len() + b.items.len()) * NODE_BYTES)?;
            Value::tuple([&a.items[..], &b.items[..]].concat())
        }
        (Binary::Multiply, value, count) if count.as_integer().is_some() && repeats(value) => repeated(value, count),
        (Binary::Multiply, count, value) if count.as_integer().is_some() && repeats(value) => repeated(value, count),
        (_, Value::Markup(_), _) | (_, _, Value::Markup(_)) => {
            Err(Fault::unsupported("arithmetic with an escaped text"))
        }
        _ => Err(Fault::new(format!(
            "unsupported operand types for {}: '{}' and '{}'",
            symbol(operator),
            left.type_name(),
            right.type_name()
        ))),
    }
}

fn symbol(operator: Binary) -> &'static str {
    match operator {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Remainder => "%",
        Binary::Power => "**",
    }
}

fn repeats(value: &Value) -> bool {
    matches!(value, Value::Text(_) | Value::List(_) | Value::Tuple(_))
}

fn repeated(value: &Value, count: &Value) -> Result<Value> {
    let times = count.as_integer().unwrap_or(0);
    if i64::try_from(times).is_err() {
        return Err(Fault::new("cannot fit 'int' into an index-sized integer"));
    }
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Text(text) => {
            let times = if text.is_empty() { 0 } else { times };
            allowance::make(text.len().saturating_mul(times))?;
            Value::text(text.repeat(times))
        }
        Value::List(items) | Value::Tuple(items) => {
            let times = if items.items.is_empty() { 0 } else { times };
            allowance::make(items.items.len().saturating_mul(times).saturating_mul(NODE_BYTES))?;
            let all = std::iter::repeat_n(&items.items, times).flatten().cloned().collect();
            if matches!(value, Value::List(_)) { Value::list(all) } else { Value::tuple(all) }
        }
        _ => Err(Fault::new("only texts, lists and tuples can be repeated")),
    }
}

fn arithmetic(operator: Binary, left: Number, right: Number) -> Result<Value> {
    match (left, right) {
        (Number::Integer(a), Number::Integer(b)) => integers(operator, a, b),
        (a, b) => floats(operator, a.as_float(), b.as_float()),
    }
}

fn too_large() -> Fault {
    Fault::unsupported("an integer of more than 127 bits")
}

fn integers(operator: Binary, a: i128, b: i128) -> Result<Value> {
    let result = match operator {
        Binary::Add => a.checked_add(b),
        Binary::Subtract => a.checked_sub(b),
        Binary::Multiply => a.checked_mul(b),
        Binary::Divide | Binary::FloorDivide | Binary::Remainder if b == 0 => {
            return Err(Fault::new("division by zero"));
        }
        Binary::Divide => {
            let (float_a, float_b) = (a as f64, b as f64);
            if whole(float_a) != Some(a) || whole(float_b) != Some(b) {
                return Err(Fault::unsupported("division of integers that are no exact floats"));
            }
            return Ok(Value::Float(float_a / float_b));
        }
        Binary::FloorDivide => {
            a.checked_div(b).map(|quotient| if a % b != 0 && (a % b < 0) != (b < 0) { quotient - 1 } else { quotient })
        }
        Binary::Remainder => {
            a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Binary::Power if b < 0 => return floats(operator, a as f64, b as f64),
        Binary::Power => match u32::try_from(b) {
            Ok(exponent) => a.checked_pow(exponent),
            Err(_) if matches!(a, -1..=1) => Some(if a == -1 && b % 2 == 0 { 1 } else { a }),
            Err(_) => None,
        },
    };
    result.map(Value::Integer).ok_or_else(too_large)
}

fn floats(operator: Binary, a: f64, b: f64) -> Result<Value> {
    let value = match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide | Binary::FloorDivide | Binary::Remainder if b == 0.0 => {
            return Err(Fault::new("division by zero"));
        }
        Binary::Divide => a / b,
        Binary::FloorDivide => floor_division(a, b).0,
        Binary::Remainder => floor_division(a, b).1,
        Binary::Power => power(a, b)?,
    };
    Ok(Value::Float(value))
}

fn power(a: f64, b: f64) -> Result<f64> {
    if a == 0.0 && b < 0.0 {
        return Err(Fault::new("0.0 cannot be raised to a negative power"));
    }
    if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 {
        return Err(Fault::unsupported("a complex number"));
    }
    let value = a.powf(b);
    if value.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(Fault::new("the result of a power is too large"));
    }
    Ok(value)
}

/// Returns the quotient and the remainder of a floor division of floats, as Python computes them.
fn floor_division(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0f64.copysign(a / b), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

pub(super) fn negated(value: &Value) -> Result<Value> {
    value.defined()?;
    match value.number() {
        Some(Number::Integer(value)) => value.checked_neg().map(Value::Integer).ok_or_else(too_large),
        Some(Number::Float(value)) => Ok(Value::Float(-value)),
        None => Err(Fault::new(format!("bad operand type for unary -: '{}'", value.type_name()))),
    }
}

pub(super) fn plus(value: &Value) -> Result<Value> {
    value.defined()?;
    match value.number() {
        Some(Number::Integer(value)) => Ok(Value::Integer(value)),
        Some(Number::Float(value)) => Ok(Value::Float(value)),
        None => Err(Fault::new(format!("bad operand type for unary +: '{}'", value.type_name()))),
    }
}

/// Evaluates the operator `~`, which joins its operands to a text. The result is an ordinary text even if an operand is
/// escaped.
pub(super) fn joined(parts: &[Value]) -> Result<Value> {
    let mut text = String::new();
    for part in parts {
        printing::print(part, &mut text)?;
        allowance::make(text.len())?;
    }
    Value::text(text)
}

/// Joins texts of which at least one is escaped. The other texts are escaped, and so is the result.
fn escaped_sum(parts: &[&Value]) -> Result<Value> {
    let mut text = String::new();
    for part in parts {
        match part {
            Value::Markup(part) => text.push_str(part),
            part => text.push_str(&escaped(&printing::text(part)?)),
        }
        allowance::make(text.len())?;
    }
    Ok(Value::Markup(text.into()))
}

/// Replaces the characters that have a meaning in HTML by entities.
pub(super) fn escaped(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => output.push_str("&amp;"),
            '<' => output.push_str("&lt;"),
            '>' => output.push_str("&gt;"),
            '\'' => output.push_str("&#39;"),
            '"' => output.push_str("&#34;"),
            other => output.push(other),
        }
    }
    output
}

pub(super) fn compare(operator: Comparison, left: &Value, right: &Value) -> Result<bool> {
    Ok(match operator {
        Comparison::Equal => equal(left, right)?,
        Comparison::NotEqual => !equal(left, right)?,
        Comparison::In => contains(right, left)?,
        Comparison::NotIn => !contains(right, left)?,
        Comparison::Less => order(left, right, "<")? == Some(Ordering::Less),
        Comparison::LessEqual => matches!(order(left, right, "<=")?, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order(left, right, ">")? == Some(Ordering::Greater),
        Comparison::GreaterEqual => matches!(order(left, right, ">=")?, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// Evaluates `left == right`.
pub(super) fn equal(left: &Value, right: &Value) -> Result<bool> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(number_order(left, right) == Some(Ordering::Equal));
    }
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(a) | Value::Markup(a), Value::Text(b) | Value::Markup(b)) => a == b,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            Rc::ptr_eq(a, b) || all_equal(&a.items, &b.items)?
        }
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b) || dicts_equal(a, b)?,
        (Value::Range(..), Value::Range(..)) => all_equal(&items(left)?, &items(right)?)?,
        (Value::View(..), Value::View(..)) => return Err(Fault::unsupported("comparing views of dicts")),
        (Value::Iterator(a), Value::Iterator(b)) => Rc::ptr_eq(a, b),
        (Value::Object(a), Value::Object(b)) => match (&**a, &**b) {
            (Object::Method(..) | Object::Function(_), Object::Method(..) | Object::Function(_)) => {
                return Err(Fault::unsupported("comparing functions"));
            }
            _ => Rc::ptr_eq(a, b),
        },
        _ => false,
    })
}

fn all_equal(a: &[Value], b: &[Value]) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (left, right) in a.iter().zip(b) {
        if !equal(left, right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn dicts_equal(a: &Dict, b: &Dict) -> Result<bool> {
    if a.entries.len() != b.entries.len() {
        return Ok(false);
    }
    for (key, value) in &a.entries {
        match b.get(&Key::of(key)?) {
            Some(other) if equal(value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn number_order(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Integer(a), Number::Integer(b)) => Some(a.cmp(&b)),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
        (Number::Integer(a), Number::Float(b)) => integer_and_float(a, b),
        (Number::Float(a), Number::Integer(b)) => integer_and_float(b, a).map(Ordering::reverse),
    }
}

fn integer_and_float(integer: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    match whole(float.floor()) {
        // Between two integers: less than the upper one.
        Some(floor) => {
            Some(integer.cmp(&floor).then(if float.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }))
        }
        None => Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater }),
    }
}

/// Returns the order of two values, or `None` if one of them is NaN.
///
/// # Errors
/// Fails if Python does not order values of these types.
pub(super) fn order(left: &Value, right: &Value, operator: &str) -> Result<Option<Ordering>> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(number_order(left, right));
    }
    match (left, right) {
        (Value::Text(a) | Value::Markup(a), Value::Text(b) | Value::Markup(b)) => Ok(Some(a.cmp(b))),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (left, right) in a.items.iter().zip(&b.items) {
                if !equal(left, right)? {
                    return order(left, right, operator);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            left.defined()?;
            right.defined()?;
            Err(Fault::new(format!(
                "'{operator}' not supported between instances of '{}' and '{}'",
                left.type_name(),
                right.type_name()
            )))
        }
    }
}

/// Evaluates `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Text(text) | Value::Markup(text) => match item {
            Value::Text(part) | Value::Markup(part) => Ok(text.contains(&**part)),
            other => {
                Err(Fault::new(format!("'in <string>' requires string as left operand, not {}", other.type_name())))
            }
        },
        Value::Dict(dict) | Value::View(View::Keys, dict) => Ok(dict.get(&Key::of(item)?).is_some()),
        // Searching takes items up to the one that is found.
        Value::Iterator(left) => loop {
            let next = left.left.borrow_mut().next();
            match next {
                Some(value) if equal(&value, item)? => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        },
        Value::Range(..) if length(container).is_ok_and(|length| length > 1000) => {
            Err(Fault::unsupported("`in` with a long range"))
        }
        other => {
            let listed;
            let all = match other {
                Value::List(items) | Value::Tuple(items) => &items.items,
                _ => {
                    listed = items(other)?;
                    &listed
                }
            };
            for (index, value) in all.iter().enumerate() {
                if index % 1000 == 999 {
                    allowance::in_time()?;
                }
                if equal(value, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
