//! Methods of Python's strings that templates call and `minijinja-contrib` lacks.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::bounded;

/// Widest text that `zfill` makes: padding must not be a way to fill memory.
const MAX_WIDTH: usize = 1 << 16;

/// Called for methods that the engine itself does not know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let text = value.as_str().filter(|_| value.kind() == ValueKind::String);
    match (text, method) {
        (Some(text), "removeprefix") => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        (Some(text), "removesuffix") => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        (Some(text), "partition") => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = nonempty(separator).map(|separator| text.split_once(separator))?.unzip();
            Ok(parts([before.unwrap_or(text), before.map_or("", |_| separator), after.unwrap_or("")]))
        }
        (Some(text), "rpartition") => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = nonempty(separator).map(|separator| text.rsplit_once(separator))?.unzip();
            Ok(parts([before.unwrap_or(""), before.map_or("", |_| separator), after.unwrap_or(text)]))
        }
        (Some(text), "rsplit") => {
            let (separator, times): (&str, Option<i64>) = from_args(args)?;
            let separator = nonempty(separator)?;
            bounded::splits(text, Some(separator))?;
            let times = times.and_then(|times| usize::try_from(times).ok());
            let mut parts: Vec<&str> = match times {
                Some(times) => text.rsplitn(times.saturating_add(1), separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(parts.into_iter().collect())
        }
        (Some(text), "zfill") => {
            let (width,): (usize,) = from_args(args)?;
            let zeros = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(format!("{sign}{}{digits}", "0".repeat(zeros)).into())
        }
        (Some(text), "replace") => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            Ok(bounded::replaced(text, old, new, count)?.into())
        }
        (Some(text), "join") => {
            let (values,): (&Value,) = from_args(args)?;
            bounded::joins(values, text.len())?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        (Some(text), "format") => {
            bounded::formats(text, '{', args)?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        (Some(text), "split") => {
            bounded::splits(text, args.first().and_then(Value::as_str))?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        (Some(text), "splitlines") => {
            bounded::splits(text, Some("\n"))?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn nonempty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "the separator is empty"));
    }
    Ok(separator)
}

fn parts(parts: [&str; 3]) -> Value {
    Tuple::from(parts.map(Value::from)).into()
}
