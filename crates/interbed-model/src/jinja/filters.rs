//! Applies Jinja's filters. The filters that turn a text into a text are in `text_filters.rs`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::allowance::{self, NODE_BYTES};
use super::arguments::{Given, integer};
use super::attributes::{item_of, own_attribute};
use super::fault::{Fault, Result};
use super::iteration::{items, length};
use super::operators::{binary, is_true, order};
use super::predicates;
use super::printing;
use super::syntax::Binary;
use super::text_filters;
use super::value::{Key, Number, Value, View};

/// The most lists into which a filter divides one list.
const LISTS_MAX: i128 = 100_000;

/// Evaluates `value | name(…)`.
pub(super) fn apply(name: &str, value: Value, given: Given) -> Result<Value> {
    let plain = |given: Given| given.unnamed::<0>(name, 0).map(drop);
    match name {
        "length" | "count" => {
            plain(given)?;
            Ok(Value::Integer(i128::try_from(length(&value)?).unwrap_or(i128::MAX)))
        }
        "first" => plain(given).and_then(|()| first(&value)),
        "last" => plain(given).and_then(|()| last(&value)),
        "list" => plain(given).and_then(|()| Value::list(items(&value)?)),
        "items" => {
            plain(given)?;
            match &value {
                Value::Undefined(_) => Value::iterator(Vec::new()),
                Value::Dict(dict) => Value::iterator(items(&Value::View(View::Items, dict.clone()))?),
                _ => Err(Fault::new("can only get item pairs from a mapping")),
            }
        }
        "reverse" => plain(given).and_then(|()| reverse(value)),
        "default" | "d" => {
            let [default, boolean] = given.fill("default", ["default_value", "boolean"], 0)?;
            let missing =
                value.is_undefined() || (boolean.is_some_and(|boolean| is_true(&boolean)) && !is_true(&value));
            if missing { default.map_or_else(|| Value::text(""), Ok) } else { Ok(value) }
        }
        "abs" => {
            plain(given)?;
            value.defined()?;
            match value.number() {
                Some(Number::Integer(number)) => Ok(Value::Integer(number.saturating_abs())),
                Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
                None => Err(Fault::new(format!("bad operand type for abs(): '{}'", value.type_name()))),
            }
        }
        "attr" => {
            let [attribute] = given.fill(name, ["name"], 1)?;
            let attribute: Arc<str> = super::printing::text(&attribute.unwrap_or(Value::None))?.into();
            Ok(own_attribute(&value, &attribute)?.unwrap_or(Value::Undefined(attribute)))
        }
        "map" => map(&value, given),
        "select" => select(&value, given, false, true),
        "reject" => select(&value, given, false, false),
        "selectattr" => select(&value, given, true, true),
        "rejectattr" => select(&value, given, true, false),
        "sort" => sort(&value, given),
        "dictsort" => dictsort(&value, given),
        "unique" => unique(&value, given),
        "groupby" => groupby(&value, given),
        "min" | "max" => extreme(name, &value, given),
        "sum" => sum(&value, given),
        "batch" => batch(&value, given),
        "slice" => slices(&value, given),
        "join" => {
            let [joiner, attribute] = given.fill(name, ["d", "attribute"], 0)?;
            join(&value, joiner, attribute)
        }
        "int" => text_filters::int(&value, given),
        "float" => text_filters::float(&value, given),
        "round" => text_filters::round(&value, given),
        _ => text_filters::apply(name, value, given),
    }
}

fn first(value: &Value) -> Result<Value> {
    let none = || Value::undefined("the first item of an empty sequence");
    Ok(match value {
        Value::Iterator(left) => left.left.borrow_mut().next().unwrap_or_else(none),
        Value::List(all) | Value::Tuple(all) => all.items.first().cloned().unwrap_or_else(none),
        other => items(other)?.into_iter().next().unwrap_or_else(none),
    })
}

fn last(value: &Value) -> Result<Value> {
    let none = || Value::undefined("the last item of an empty sequence");
    Ok(match value {
        Value::Iterator(_) => return Err(Fault::new("a generator is not reversible")),
        Value::List(all) | Value::Tuple(all) => all.items.last().cloned().unwrap_or_else(none),
        other => items(other)?.pop().unwrap_or_else(none),
    })
}

fn reverse(value: Value) -> Result<Value> {
    match &value {
        Value::Text(text) => Value::text(text.chars().rev().collect::<String>()),
        Value::Markup(_) => Err(Fault::unsupported("reverse of an escaped text")),
        other => {
            let mut all = items(other)?;
            all.reverse();
            // Jinja returns a list if the value is one that Python's `reversed` does not take.
            if matches!(other, Value::Iterator(_)) { Value::list(all) } else { Value::iterator(all) }
        }
    }
}

/// Divides the name of an attribute, such as `a.b.0`, into its parts.
fn path(attribute: &Value) -> Result<Vec<Value>> {
    match attribute {
        Value::Text(text) => text
            .split('.')
            .map(|part| match part.parse::<i128>() {
                Ok(index) if part.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Value::Integer(index)),
                _ => Value::text(part),
            })
            .collect(),
        Value::Integer(_) => Ok(vec![attribute.clone()]),
        other => Err(Fault::unsupported(format!("a {} as the name of an attribute", other.type_name()))),
    }
}

fn at_path(value: &Value, path: &[Value], default: Option<&Value>) -> Result<Value> {
    let mut value = value.clone();
    for part in path {
        value = item_of(&value, part)?;
        if let Some(default) = default.filter(|default| value.is_undefined() && !matches!(default, Value::None)) {
            value = default.clone();
        }
    }
    Ok(value)
}

/// Divides the name of an attribute into its parts. If the name is left out, the list of parts is empty.
fn optional_path(attribute: Option<Value>) -> Result<Vec<Value>> {
    match attribute {
        None | Some(Value::None) => Ok(Vec::new()),
        Some(attribute) => path(&attribute),
    }
}

/// Returns a text in lower case unless case counts, and any other value unchanged.
fn folded(value: Value, case_sensitive: bool) -> Result<Value> {
    match &value {
        Value::Text(text) if !case_sensitive => Value::text(text.to_lowercase()),
        _ => Ok(value),
    }
}

fn truth(value: Option<Value>) -> bool {
    value.is_some_and(|value| is_true(&value))
}

fn map(value: &Value, mut given: Given) -> Result<Value> {
    if !is_true(value) {
        return Value::iterator(Vec::new());
    }
    let all = items(value)?;
    let mut made = Vec::with_capacity(all.len());
    if given.positional.is_empty() {
        let [attribute, default] = given.fill("map", ["attribute", "default"], 1)?;
        let path = path(&attribute.unwrap_or(Value::None))?;
        for item in &all {
            made.push(at_path(item, &path, default.as_ref())?);
        }
    } else {
        let name = given.positional.remove(0);
        let Value::Text(name) = name else { return Err(Fault::new("map needs the name of a filter")) };
        for item in all {
            allowance::in_time()?;
            made.push(apply(&name, item, Given { positional: given.positional.clone(), named: given.named.clone() })?);
        }
    }
    Value::iterator(made)
}

fn select(value: &Value, mut given: Given, by_attribute: bool, wanted: bool) -> Result<Value> {
    if !is_true(value) {
        return Value::iterator(Vec::new());
    }
    let path = match by_attribute {
        true if given.positional.is_empty() => return Err(Fault::new("the name of an attribute is missing")),
        true => path(&given.positional.remove(0))?,
        false => Vec::new(),
    };
    let test = match given.positional.is_empty() {
        true => None,
        false => match given.positional.remove(0) {
            Value::Text(name) => Some(name),
            _ => return Err(Fault::new("the name of a test must be a text")),
        },
    };
    let mut kept = Vec::new();
    for item in items(value)? {
        allowance::in_time()?;
        let looked_at = at_path(&item, &path, None)?;
        let holds = match &test {
            Some(name) => {
                let given = Given { positional: given.positional.clone(), named: given.named.clone() };
                predicates::check(name, &looked_at, given)?
            }
            None => is_true(&looked_at),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Value::iterator(kept)
}

/// Sorts items by their keys. Items with equal keys keep their order.
fn sorted(mut keyed: Vec<(Vec<Value>, Value)>, reverse: bool) -> Result<Vec<Value>> {
    allowance::make(keyed.len() * NODE_BYTES)?;
    let mut failed = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let compared = || -> Result<Ordering> {
            if failed.is_some() {
                return Ok(Ordering::Equal);
            }
            for (left, right) in a.iter().zip(b) {
                match order(left, right, "<")? {
                    Some(Ordering::Equal) => {}
                    Some(other) => return Ok(other),
                    None => return Err(Fault::unsupported("sorting NaN")),
                }
            }
            Ok(Ordering::Equal)
        };
        let compared = compared();
        match compared {
            Ok(order) if reverse => order.reverse(),
            Ok(order) => order,
            Err(fault) => {
                failed.get_or_insert(fault);
                Ordering::Equal
            }
        }
    });
    match failed {
        Some(fault) => Err(fault),
        None => Ok(keyed.into_iter().map(|(_, value)| value).collect()),
    }
}

fn sort(value: &Value, given: Given) -> Result<Value> {
    let [reverse, case_sensitive, attribute] = given.fill("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let (reverse, case_sensitive) = (direction("sort", reverse)?, truth(case_sensitive));
    let paths = match attribute {
        Some(Value::Text(names)) => {
            names.split(',').map(|name| path(&Value::text(name)?)).collect::<Result<Vec<_>>>()?
        }
        other => vec![optional_path(other)?],
    };
    let mut keyed = Vec::new();
    for item in items(value)? {
        let key = |path: &Vec<Value>| folded(at_path(&item, path, None)?, case_sensitive);
        keyed.push((paths.iter().map(key).collect::<Result<Vec<_>>>()?, item));
    }
    Value::list(sorted(keyed, reverse)?)
}

/// Returns whether the argument `reverse` asks for the reverse order.
fn direction(name: &str, reverse: Option<Value>) -> Result<bool> {
    reverse.map_or(Ok(false), |reverse| integer(name, &reverse).map(|reverse| reverse != 0))
}

fn dictsort(value: &Value, given: Given) -> Result<Value> {
    let [case_sensitive, by, reverse] = given.fill("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let case_sensitive = truth(case_sensitive);
    let place = match &by {
        None => 0,
        Some(Value::Text(by)) if &**by == "key" => 0,
        Some(Value::Text(by)) if &**by == "value" => 1,
        Some(_) => return Err(Fault::new("you can only sort by either \"key\" or \"value\"")),
    };
    let Value::Dict(dict) = value else {
        return Err(Fault::new(format!("dictsort needs a dict, not {}", value.type_name())));
    };
    let mut keyed = Vec::new();
    for (key, value) in &dict.entries {
        let by = if place == 0 { key } else { value };
        keyed.push((vec![folded(by.clone(), case_sensitive)?], Value::tuple(vec![key.clone(), value.clone()])?));
    }
    Value::list(sorted(keyed, direction("dictsort", reverse)?)?)
}

fn unique(value: &Value, given: Given) -> Result<Value> {
    let [case_sensitive, attribute] = given.fill("unique", ["case_sensitive", "attribute"], 0)?;
    let (case_sensitive, path) = (truth(case_sensitive), optional_path(attribute)?);
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for item in items(value)? {
        if seen.insert(Key::of(&folded(at_path(&item, &path, None)?, case_sensitive)?)?) {
            kept.push(item);
        }
    }
    Value::iterator(kept)
}

fn groupby(value: &Value, given: Given) -> Result<Value> {
    let [attribute, default, case_sensitive] = given.fill("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let case_sensitive = truth(case_sensitive);
    let path = path(&attribute.unwrap_or(Value::None))?;
    let key = |item: &Value| folded(at_path(item, &path, default.as_ref())?, case_sensitive);
    let mut keyed = Vec::new();
    for item in items(value)? {
        keyed.push((vec![key(&item)?], item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(keyed, false)? {
        let key = key(&item)?;
        match groups.last_mut() {
            Some((last, group)) if super::operators::equal(last, &key)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut made = Vec::new();
    for (key, group) in groups {
        // The name of a group is the attribute of its first item.
        let shown = if case_sensitive { key } else { at_path(&group[0], &path, default.as_ref())? };
        made.push(Value::group(shown, group)?);
    }
    Value::list(made)
}

fn extreme(name: &str, value: &Value, given: Given) -> Result<Value> {
    let [case_sensitive, attribute] = given.fill(name, ["case_sensitive", "attribute"], 0)?;
    let (case_sensitive, path) = (truth(case_sensitive), optional_path(attribute)?);
    let mut best: Option<(Value, Value)> = None;
    for item in items(value)? {
        let key = folded(at_path(&item, &path, None)?, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((known, _)) if name == "min" => order(&key, known, "<")? == Some(Ordering::Less),
            Some((known, _)) => order(&key, known, ">")? == Some(Ordering::Greater),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("the extreme of an empty sequence"), |(_, item)| item))
}

fn sum(value: &Value, given: Given) -> Result<Value> {
    let [attribute, start] = given.fill("sum", ["attribute", "start"], 0)?;
    let path = optional_path(attribute)?;
    let mut total = start.unwrap_or(Value::Integer(0));
    if matches!(total, Value::Text(_) | Value::Markup(_)) {
        return Err(Fault::new("sum() can't sum strings"));
    }
    for item in items(value)? {
        allowance::in_time()?;
        total = binary(Binary::Add, &total, &at_path(&item, &path, None)?)?;
    }
    Ok(total)
}

fn batch(value: &Value, given: Given) -> Result<Value> {
    let [count, fill] = given.fill("batch", ["linecount", "fill_with"], 1)?;
    let count = divisor("batch", count)?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let all = items(value)?;
    if count < 1 && !all.is_empty() {
        return Err(Fault::unsupported("a batch of less than one item"));
    }
    let mut made = Vec::new();
    for part in all.chunks(usize::try_from(count.max(1)).unwrap_or(usize::MAX)) {
        let mut part = part.to_vec();
        if let Some(fill) = &fill {
            part.resize(usize::try_from(count).unwrap_or(0), fill.clone());
        }
        made.push(Value::list(part)?);
    }
    Value::iterator(made)
}

fn slices(value: &Value, given: Given) -> Result<Value> {
    let [count, fill] = given.fill("slice", ["slices", "fill_with"], 1)?;
    let count = divisor("slice", count)?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0);
    let Some(count) = count else { return Err(Fault::new("a list cannot be divided into no slices")) };
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let all = items(value)?;
    let (each, longer) = (all.len() / count, all.len() % count);
    let mut rest = &all[..];
    let mut made = Vec::new();
    for index in 0..count {
        let (part, after) = rest.split_at(each + usize::from(index < longer));
        rest = after;
        let mut part = part.to_vec();
        if let Some(fill) = fill.as_ref().filter(|_| index >= longer) {
            part.push(fill.clone());
        }
        made.push(Value::list(part)?);
    }
    Value::iterator(made)
}

fn divisor(name: &str, count: Option<Value>) -> Result<i128> {
    let count = integer(name, &count.unwrap_or(Value::None))?;
    if count > LISTS_MAX {
        return Err(Fault::new(format!("a list is divided by {count}, but at most {LISTS_MAX} are allowed")));
    }
    Ok(count)
}

fn join(value: &Value, joiner: Option<Value>, attribute: Option<Value>) -> Result<Value> {
    let joiner = joiner.map_or_else(|| Ok(String::new()), |joiner| printing::text(&joiner))?;
    let path = optional_path(attribute)?;
    let mut output = String::new();
    for (index, item) in items(value)?.iter().enumerate() {
        if index > 0 {
            output.push_str(&joiner);
        }
        printing::print(&at_path(item, &path, None)?, &mut output)?;
        if output.len() > allowance::VALUE_BYTES_MAX {
            return Err(allowance::Excess::Value.into());
        }
    }
    Value::text(output)
}
