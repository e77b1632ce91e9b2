//! Calls the methods of Python's strings.

use std::collections::HashSet;

use super::allowance::{self, NODE_BYTES};
use super::arguments::{self, Given, integer, optional_integer};
use super::characters::{ends_line, is_alphabetic, is_alphanumeric, is_decimal, is_printable, is_space, is_title_case};
use super::fault::{Fault, Result};
use super::format;
use super::iteration::items;
use super::value::Value;

/// The most characters to which a text may be padded.
const WIDTH_MAX: usize = 1 << 16;

/// Calls the method `name` of a text.
pub(super) fn call(text: &str, name: &str, given: Given) -> Result<Value> {
    let plain = |given: Given| given.unnamed::<0>(name, 0).map(drop);
    match name {
        "upper" => plain(given).and_then(|()| Value::text(text.to_uppercase())),
        "lower" => plain(given).and_then(|()| Value::text(text.to_lowercase())),
        "title" => plain(given).and_then(|()| Value::text(title(text)?)),
        "capitalize" => plain(given).and_then(|()| Value::text(capitalized(text)?)),
        "swapcase" => plain(given).and_then(|()| Value::text(swapped(text)?)),
        "casefold" => plain(given).and_then(|()| match text.is_ascii() {
            true => Value::text(text.to_ascii_lowercase()),
            false => Err(Fault::unsupported("casefold of a text that is not ASCII")),
        }),
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = given.unnamed(name, 0)?;
            let characters = characters.unwrap_or(Value::None);
            Value::text(stripped(text, &characters, name)?)
        }
        "split" | "rsplit" => {
            let [separator, times] = given.fill(name, ["sep", "maxsplit"], 0)?;
            split(text, name, separator, times)
        }
        "splitlines" => {
            let [keep] = given.fill(name, ["keepends"], 0)?;
            let keep = keep.is_some_and(|keep| super::operators::is_true(&keep));
            let lines = lines(text, keep);
            allowance::make(text.len() + lines.len() * NODE_BYTES)?;
            list(lines.into_iter())
        }
        "partition" | "rpartition" => {
            let [separator] = given.unnamed(name, 1)?;
            partition(text, name, &needed(name, separator)?)
        }
        "join" => {
            let [values] = given.unnamed(name, 1)?;
            join(text, &values.unwrap_or(Value::None))
        }
        "replace" => replace(text, given),
        "removeprefix" => {
            let [prefix] = given.unnamed(name, 1)?;
            let prefix = needed(name, prefix)?;
            Value::text(text.strip_prefix(&*prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let [suffix] = given.unnamed(name, 1)?;
            let suffix = needed(name, suffix)?;
            Value::text(text.strip_suffix(&*suffix).unwrap_or(text))
        }
        "startswith" | "endswith" => ends(text, name, given),
        "find" | "rfind" | "index" | "rindex" => find(text, name, given),
        "count" => {
            let [part, start, stop] = given.unnamed(name, 1)?;
            let part = needed(name, part)?;
            let characters = text.chars().count();
            if start.is_none() && stop.is_none() && part.is_empty() {
                return Ok(number(characters + 1));
            }
            let (start, stop) = bounds(name, start, stop, characters)?;
            if part.is_empty() {
                return Ok(number(if start <= stop { stop - start + 1 } else { 0 }));
            }
            Ok(number(within(text, start, stop).matches(&*part).count()))
        }
        "center" | "ljust" | "rjust" | "zfill" => pad(text, name, given),
        "expandtabs" => {
            let [size] = given.fill(name, ["tabsize"], 0)?;
            let size = size.map_or(Ok(8), |size| integer(name, &size))?;
            expanded(text, usize::try_from(size.clamp(0, 4096)).unwrap_or(0))
        }
        "format" => Value::text(format::braces(text, &given)?),
        "isalnum" | "isalpha" | "isascii" | "isdecimal" | "isdigit" | "isidentifier" | "islower" | "isnumeric"
        | "isprintable" | "isspace" | "istitle" | "isupper" => {
            plain(given)?;
            Ok(Value::Bool(is(text, name)?))
        }
        other => Err(Fault::unsupported(format!("the method '{other}' of a text"))),
    }
}

fn number(value: usize) -> Value {
    Value::Integer(i128::try_from(value).unwrap_or(i128::MAX))
}

fn needed(function: &str, value: Option<Value>) -> Result<std::sync::Arc<str>> {
    arguments::text(function, &value.unwrap_or(Value::None))
}

fn list<'t>(parts: impl Iterator<Item = &'t str>) -> Result<Value> {
    Value::list(parts.map(|part| Value::Text(part.into())).collect())
}

/// Returns whether a letter may have a form of its own at the beginning of a title.
fn has_title_form(character: char) -> bool {
    let upper = character.to_uppercase();
    (upper.len() > 1 && character != 'ß')
        || matches!(character, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{10d0}'..='\u{10ff}')
}

/// Appends the form that a character has at the beginning of a word.
fn title_form(character: char, output: &mut String) -> Result<()> {
    if character == 'ß' {
        output.push_str("Ss");
    } else if has_title_form(character) {
        return Err(Fault::unsupported(format!("the letter {character:?} at the beginning of a title")));
    } else {
        output.extend(character.to_uppercase());
    }
    Ok(())
}

/// Evaluates Python's `str.title`.
pub(super) fn title(text: &str) -> Result<String> {
    let mut output = String::with_capacity(text.len());
    let mut in_word = false;
    for character in text.chars() {
        let cased = character.is_lowercase() || character.is_uppercase();
        if is_title_case(character) {
            return Err(Fault::unsupported("the title form of a letter in a title"));
        }
        if !cased {
            output.push(character);
        } else if in_word {
            lower(character, &mut output)?;
        } else {
            title_form(character, &mut output)?;
        }
        in_word = cased;
    }
    Ok(output)
}

fn lower(character: char, output: &mut String) -> Result<()> {
    // What becomes of a sigma depends on its neighbours.
    if character == 'Σ' {
        return Err(Fault::unsupported("a capital sigma in a title"));
    }
    output.extend(character.to_lowercase());
    Ok(())
}

/// Evaluates Python's `str.capitalize`.
pub(super) fn capitalized(text: &str) -> Result<String> {
    let mut output = String::with_capacity(text.len());
    for (index, character) in text.chars().enumerate() {
        if index == 0 { title_form(character, &mut output)? } else { lower(character, &mut output)? }
    }
    Ok(output)
}

fn swapped(text: &str) -> Result<String> {
    let mut output = String::with_capacity(text.len());
    for character in text.chars() {
        if is_title_case(character) {
            return Err(Fault::unsupported("swapcase of the title form of a letter"));
        }
        if character.is_uppercase() {
            lower(character, &mut output)?;
        } else if character.is_lowercase() {
            output.extend(character.to_uppercase());
        } else {
            output.push(character);
        }
    }
    Ok(output)
}

/// Evaluates Python's `strip`, `lstrip` or `rstrip`. Removes the characters of a text, or white space if none is given.
pub(super) fn stripped<'t>(text: &'t str, characters: &Value, name: &str) -> Result<&'t str> {
    let set = match characters {
        Value::None => None,
        other => Some(arguments::text(name, other)?),
    };
    // Looking a character up takes one step, however many there are.
    let set: Option<HashSet<char>> = set.map(|set| set.chars().collect());
    let is_stripped = |character: char| match &set {
        Some(set) => set.contains(&character),
        None => is_space(character),
    };
    let text = if name == "rstrip" { text } else { text.trim_start_matches(is_stripped) };
    Ok(if name == "lstrip" { text } else { text.trim_end_matches(is_stripped) })
}

fn split(text: &str, name: &str, separator: Option<Value>, times: Option<Value>) -> Result<Value> {
    let times = times.map_or(Ok(-1), |times| integer(name, &times))?;
    let times = usize::try_from(times).unwrap_or(usize::MAX);
    let separator = match separator {
        None | Some(Value::None) => None,
        Some(separator) => Some(arguments::text(name, &separator)?),
    };
    let parts = match &separator {
        Some(separator) if separator.is_empty() => return Err(Fault::new("empty separator")),
        Some(separator) => text.matches(&**separator).count() + 1,
        None => text.split(is_space).count(),
    };
    allowance::make(text.len().saturating_add(parts.saturating_mul(NODE_BYTES)))?;
    match (&separator, name) {
        (Some(separator), "split") => list(text.splitn(times.saturating_add(1), &**separator)),
        (Some(separator), _) => {
            let mut parts: Vec<&str> = text.rsplitn(times.saturating_add(1), &**separator).collect();
            parts.reverse();
            list(parts.into_iter())
        }
        (None, "split") => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() == times { None } else { rest.find(is_space) };
                let Some(end) = end else {
                    // What is left keeps its white space where the times are over.
                    parts.push(rest);
                    break;
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            list(parts.into_iter())
        }
        (None, _) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let begin = if parts.len() == times { None } else { rest.rfind(is_space) };
                let Some(begin) = begin else {
                    parts.push(rest);
                    break;
                };
                let after = begin + rest[begin..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[after..]);
                rest = rest[..begin].trim_end_matches(is_space);
            }
            parts.reverse();
            list(parts.into_iter())
        }
    }
}

/// Evaluates Python's `str.splitlines`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(ends_line) else {
            lines.push(rest);
            break;
        };
        let length = match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep { end + length } else { end }]);
        rest = &rest[end + length..];
    }
    lines
}

fn partition(text: &str, name: &str, separator: &str) -> Result<Value> {
    if separator.is_empty() {
        return Err(Fault::new("empty separator"));
    }
    let found = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
    let parts = match (found, name) {
        (Some((before, after)), _) => [before, separator, after],
        (None, "partition") => [text, "", ""],
        (None, _) => ["", "", text],
    };
    Value::tuple(parts.map(|part| Value::Text(part.into())).to_vec())
}

fn join(joiner: &str, values: &Value) -> Result<Value> {
    let values = items(values)?;
    let mut output = String::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            output.push_str(joiner);
        }
        match value {
            Value::Text(text) => output.push_str(text),
            Value::Markup(_) => return Err(Fault::unsupported("join of escaped texts")),
            other => {
                let problem = format!("sequence item {index}: expected str instance, {} found", other.type_name());
                return Err(Fault::new(problem));
            }
        }
        allowance::make(0)?;
        if output.len() > allowance::VALUE_BYTES_MAX {
            return Err(allowance::Excess::Value.into());
        }
    }
    Value::text(output)
}

fn replace(text: &str, given: Given) -> Result<Value> {
    let [old, new, count] = given.fill("replace", ["old", "new", "count"], 2)?;
    let count = count.map_or(Ok(-1), |count| integer("replace", &count))?;
    Value::text(replaced(text, &needed("replace", old)?, &needed("replace", new)?, count)?)
}

/// Replaces `old` by `new` at most `count` times. The result's size is counted before the result is made.
pub(super) fn replaced(text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    allowance::make(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

/// Returns the start and the stop of a part of a text of `length` characters, by the rules of slices.
pub(super) fn bounds(
    function: &str,
    start: Option<Value>,
    stop: Option<Value>,
    length: usize,
) -> Result<(usize, usize)> {
    let length = i128::try_from(length).unwrap_or(i128::MAX);
    let bound = |value: i128| if value < 0 { (value + length).max(0) } else { value };
    let start = optional_integer(function, start)?.map_or(0, bound);
    let stop = optional_integer(function, stop)?.map_or(length, bound).min(length);
    Ok((usize::try_from(start).unwrap_or(usize::MAX), usize::try_from(stop).unwrap_or(usize::MAX)))
}

fn within(text: &str, start: usize, stop: usize) -> &str {
    if start >= stop {
        return "";
    }
    let offset = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(offset, _)| offset);
    &text[offset(start)..offset(stop)]
}

fn ends(text: &str, name: &str, given: Given) -> Result<Value> {
    let [wanted, start, stop] = given.unnamed(name, 1)?;
    let characters = text.chars().count();
    let (start, stop) = bounds(name, start, stop, characters)?;
    let (part, beyond) = (within(text, start, stop), start > characters || start > stop);
    let matches = |wanted: &Value| -> Result<bool> {
        let wanted = arguments::text(name, wanted)?;
        Ok(!beyond && if name == "startswith" { part.starts_with(&*wanted) } else { part.ends_with(&*wanted) })
    };
    let found = match wanted.unwrap_or(Value::None) {
        Value::Tuple(all) => {
            let mut found = false;
            for wanted in &all.items {
                found |= !found && matches(wanted)?;
            }
            found
        }
        wanted => matches(&wanted)?,
    };
    Ok(Value::Bool(found))
}

fn find(text: &str, name: &str, given: Given) -> Result<Value> {
    let [part, start, stop] = given.unnamed(name, 1)?;
    let part = needed(name, part)?;
    let characters = text.chars().count();
    let (start, stop) = bounds(name, start, stop, characters)?;
    let searched = within(text, start, stop);
    let offset = if start > stop || start > characters {
        None
    } else if name.starts_with('r') {
        searched.rfind(&*part)
    } else {
        searched.find(&*part)
    };
    match offset {
        Some(offset) => Ok(number(start + searched[..offset].chars().count())),
        None if name.ends_with("find") => Ok(Value::Integer(-1)),
        None => Err(Fault::new("substring not found")),
    }
}

fn pad(text: &str, name: &str, given: Given) -> Result<Value> {
    let [width, fill] = if name == "zfill" {
        let [width] = given.unnamed(name, 1)?;
        [width, None]
    } else {
        given.unnamed(name, 1)?
    };
    let width = usize::try_from(integer(name, &width.unwrap_or(Value::None))?.max(0)).unwrap_or(usize::MAX);
    let length = text.chars().count();
    if width > WIDTH_MAX && width > length {
        return Err(Fault::new(format!("{name} pads to {width} characters, but at most {WIDTH_MAX} are allowed")));
    }
    let missing = width.saturating_sub(length);
    if name == "zfill" {
        let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
        return Value::text(format!("{sign}{}{digits}", "0".repeat(missing)));
    }
    let fill = fill.map_or_else(|| Ok(" ".into()), |fill| arguments::text(name, &fill))?;
    if fill.chars().count() != 1 {
        return Err(Fault::new("the fill character must be exactly one character long"));
    }
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        // The extra one goes to the left where both the missing and the width are odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Value::text(format!("{}{text}{}", fill.repeat(before), fill.repeat(missing - before)))
}

fn expanded(text: &str, size: usize) -> Result<Value> {
    let mut output = String::new();
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                allowance::make(spaces)?;
                output.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                output.push(character);
                column = 0;
            }
            other => {
                output.push(other);
                column += 1;
            }
        }
    }
    Value::text(output)
}

fn is(text: &str, name: &str) -> Result<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = |character: char| character.is_lowercase() || character.is_uppercase();
    Ok(match name {
        "isalnum" => all(is_alphanumeric),
        "isalpha" => all(is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(is_decimal),
        "isdigit" | "isnumeric" => {
            if text.chars().any(|character| character.is_numeric() && !is_decimal(character)) {
                return Err(Fault::unsupported(format!("{name} of a number that is no decimal digit")));
            }
            // Some of them are numbers.
            let ideographs = ['\u{3400}'..='\u{9fff}', '\u{f900}'..='\u{faff}', '\u{20000}'..='\u{3ffff}'];
            let is_ideograph = |character: char| ideographs.iter().any(|range| range.contains(&character));
            if name == "isnumeric" && text.chars().any(is_ideograph) {
                return Err(Fault::unsupported("isnumeric of ideographs"));
            }
            all(is_decimal)
        }
        "isidentifier" => {
            if !text.is_ascii() {
                return Err(Fault::unsupported("isidentifier of a text that is not ASCII"));
            }
            let first = text.starts_with(|character: char| character == '_' || character.is_ascii_alphabetic());
            first && text.chars().all(|character| character == '_' || character.is_ascii_alphanumeric())
        }
        "islower" => text.chars().any(cased) && !text.chars().any(|other| other.is_uppercase() || is_title_case(other)),
        "isupper" => text.chars().any(cased) && !text.chars().any(|other| other.is_lowercase() || is_title_case(other)),
        "isprintable" => text.chars().all(is_printable),
        "isspace" => all(is_space),
        _ => {
            let (mut in_word, mut found) = (false, false);
            for character in text.chars() {
                if character.is_uppercase() || is_title_case(character) {
                    if in_word {
                        return Ok(false);
                    }
                    (in_word, found) = (true, true);
                } else if character.is_lowercase() {
                    if !in_word {
                        return Ok(false);
                    }
                    (in_word, found) = (true, true);
                } else {
                    in_word = false;
                }
            }
            found
        }
    })
}
