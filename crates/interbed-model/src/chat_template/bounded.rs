//! The engine's filters, operators and methods that make much of little, with a look at how much before they do.

use std::borrow::Cow;
use std::sync::Arc;

use minijinja::formatting::{FormatStyle, format as formatted};
use minijinja::value::{Kwargs, Rest, StringInput, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, context, filters};

use super::allowance::{self, Excess, NODE_BYTES, VALUE_BYTES_MAX, bytes_of, make, text_bytes};
use super::metered::{MADE, OPERAND, RAW, STORED, TIMES};

/// Widest field of a format, in characters.
const WIDTH_MAX: usize = 4096;
/// Most lists that one list is divided into.
const LISTS_MAX: usize = 100_000;
/// Most steps of a filter that looks at all of one value for each part of another.
const STEPS_MAX: usize = 1 << 30;

/// Puts the bounded ones in the place of the engine's own, and leaves out what neither Jinja has nor a bound fits.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(OPERAND, allowance::operand);
    environment.add_filter(MADE, allowance::made);
    environment.add_filter(STORED, allowance::stored);
    environment.add_filter(RAW, |text: Value| text);
    environment.add_filter(TIMES, times);
    environment.add_filter("batch", batch);
    environment.add_filter("format", format);
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("lines", lines);
    environment.add_filter("list", list);
    environment.add_filter("map", map);
    environment.add_filter("reject", reject);
    environment.add_filter("rejectattr", rejectattr);
    environment.add_filter("replace", replace);
    environment.add_filter("select", select);
    environment.add_filter("selectattr", selectattr);
    environment.add_filter("slice", slice);
    environment.add_filter("sort", sort);
    environment.add_filter("split", split);
    environment.add_filter("sum", sum);
    environment.add_filter("unique", unique);
    for name in ["chain", "zip", "pprint"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.set_formatter(|out, state, value| {
        let bytes = if value.as_object().is_some() { bytes_of(value)? } else { text_bytes(value) };
        allowance::write(bytes)?;
        minijinja::escape_formatter(out, state, value)
    });
}

fn refused(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// `left * right`.
fn times(left: Value, right: Value) -> Result<Value, Error> {
    for (value, count) in [(&left, &right), (&right, &left)] {
        let is_text = value.kind() == ValueKind::String;
        if !is_text && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            continue;
        }
        let Some(times) = count.as_i64() else {
            return Err(refused(format!("a {} can only be multiplied with an integer", value.kind())));
        };
        // As in Python, less than none is none.
        let times = usize::try_from(times).unwrap_or(0);
        // A trillion times nothing takes nothing but time.
        let times = if is_text || value.len() != Some(0) { times } else { 0 };
        if is_text {
            let text = value.as_str().unwrap_or_default();
            make(text.len().saturating_mul(times))?;
            return Ok(text.repeat(times).into());
        }
        let items: Vec<Value> = value.try_iter()?.collect();
        make(items.len().saturating_mul(times).saturating_mul(NODE_BYTES))?;
        let repeated: Vec<Value> = std::iter::repeat_n(items, times).flatten().collect();
        return Ok(if value.is_tuple() { Tuple::from(repeated).into() } else { repeated.into() });
    }
    // Numbers, or what the engine refuses.
    let environment = Environment::empty();
    environment.compile_expression("left * right")?.eval(context! { left, right })
}

/// The result of replacing, whose size is known before it is made.
pub(super) fn replaced(text: &str, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    let found = text.matches(old).take(count.unwrap_or(usize::MAX)).count();
    make(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(match count {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

fn replace(
    state: &mut State,
    value: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    let found = value.as_str().matches(from.as_str()).count();
    make(value.as_str().len().saturating_add(found.saturating_mul(to.as_str().len())))?;
    filters::replace(state, value, from, to)
}

/// Takes note of a text that joins the items of `value`.
pub(super) fn joins(value: &Value, joiner: usize) -> Result<(), Error> {
    let items = if value.kind() == ValueKind::String { text_bytes(value) } else { value.len().unwrap_or(0) };
    Ok(make(bytes_of(value)?.saturating_add(items.saturating_mul(joiner)))?)
}

fn join(
    state: &mut State,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let named: Option<&str> = kwargs.get("d").unwrap_or_default();
    joins(value, joiner.as_ref().map_or(named.map_or(0, str::len), |joiner| joiner.as_str().len()))?;
    filters::join(state, value, joiner, attribute, kwargs)
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let spaces = width.or(kwargs.get::<Option<usize>>("width").unwrap_or_default()).unwrap_or(4);
    let lines = value.as_str().matches('\n').count() + 1;
    make(value.as_str().len().saturating_add(lines.saturating_mul(spaces)))?;
    filters::indent(value, width, first, blank, kwargs)
}

fn batch(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    divides(&value, count)?;
    filters::batch(state, value, count, fill)
}

fn slice(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    divides(&value, count)?;
    filters::slice(state, value, count, fill)
}

fn divides(value: &Value, count: usize) -> Result<(), Error> {
    if count > LISTS_MAX {
        return Err(refused(format!("a list is divided by {count}, but at most {LISTS_MAX} are allowed")));
    }
    itemizes(value)
}

/// Takes note of a list of all items of a value, which may be the characters of a text.
fn itemizes(value: &Value) -> Result<(), Error> {
    let items = if value.kind() == ValueKind::String { text_bytes(value) } else { value.len().unwrap_or(0) };
    Ok(make(items.saturating_mul(NODE_BYTES))?)
}

fn list(state: &State, value: Value) -> Result<Value, Error> {
    itemizes(&value)?;
    filters::list(state, value)
}

fn sort(state: &State, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    itemizes(&value)?;
    filters::sort(state, value, kwargs)
}

fn unique(state: &State, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    itemizes(&value)?;
    filters::unique(state, value, kwargs)
}

fn lines(value: &Value) -> Result<Value, Error> {
    splits(value.as_str().unwrap_or_default(), Some("\n"))?;
    filters::lines(value)
}

fn split(value: &Value, separator: Option<Arc<str>>, times: Option<i64>) -> Result<Value, Error> {
    splits(value.as_str().unwrap_or_default(), separator.as_deref())?;
    filters::split(value, separator, times)
}

/// Takes note of a list of a text's parts.
pub(super) fn splits(text: &str, separator: Option<&str>) -> Result<(), Error> {
    let parts = match separator {
        Some(separator) => text.matches(separator).count() + 1,
        None => text.split_whitespace().count(),
    };
    Ok(make(text.len().saturating_add(parts.saturating_mul(NODE_BYTES)))?)
}

fn sum(
    state: &State,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    // Texts and lists are added one to the other, anew each time.
    let all = bytes_of(&values)?.saturating_add(start.as_ref().map_or(0, text_bytes));
    if all.saturating_mul(values.len().unwrap_or(0)) > STEPS_MAX {
        return Err(refused("the values to sum are too many".into()));
    }
    filters::sum(state, values, attribute, start, kwargs)
}

/// Refuses to look through large arguments for each of many items.
fn looks_through(values: &Value, args: &[ValueOrKwargs]) -> Result<(), Error> {
    let items = if values.kind() == ValueKind::String { text_bytes(values) } else { values.len().unwrap_or(0) };
    let each = args
        .iter()
        .map(|arg| bytes_of(arg))
        .try_fold(0usize, |sum, bytes| bytes.map(|bytes| sum.saturating_add(bytes)))?;
    if items.saturating_mul(each) > STEPS_MAX {
        return Err(refused("there are too many values for arguments as long as these".into()));
    }
    itemizes(values)
}

fn map(state: &mut State, values: Value, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    looks_through(&values, &args)?;
    filters::map(state, values, args)
}

type Name<'a> = Option<Cow<'a, str>>;

fn select(state: &mut State, values: Value, test: Name<'_>, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    looks_through(&values, &args)?;
    filters::select(state, values, test, args)
}

fn reject(state: &mut State, values: Value, test: Name<'_>, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    looks_through(&values, &args)?;
    filters::reject(state, values, test, args)
}

fn selectattr(
    state: &mut State,
    values: Value,
    attribute: Cow<'_, str>,
    test: Name<'_>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    looks_through(&values, &args)?;
    filters::selectattr(state, values, attribute, test, args)
}

fn rejectattr(
    state: &mut State,
    values: Value,
    attribute: Cow<'_, str>,
    test: Name<'_>,
    args: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    looks_through(&values, &args)?;
    filters::rejectattr(state, values, attribute, test, args)
}

fn format(text: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let text = text.as_str().ok_or_else(|| refused("value is not a string".into()))?;
    formats(text, '%', &args)?;
    formatted(FormatStyle::Printf, text, &args).map(Value::from)
}

/// Counts the result of a format, whose fields may be wide and may name the same argument many times.
pub(super) fn formats(text: &str, field: char, args: &[Value]) -> Result<(), Error> {
    let widths = text.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let stands = |digits: &str| digits.parse::<usize>().is_ok_and(|width| width <= WIDTH_MAX);
    let widest = args.iter().filter_map(Value::as_i64).map(i64::unsigned_abs).max().unwrap_or(0);
    // A width may be an argument too: `%*d`, `{:{}}`.
    let by_argument = (text.contains('*') || text.contains(":{") || text.contains(".{")) && widest > WIDTH_MAX as u64;
    if by_argument || !widths.into_iter().all(stands) {
        return Err(refused(format!("a format has fields of more than {WIDTH_MAX} characters")));
    }
    let each = args.iter().map(bytes_of).try_fold(WIDTH_MAX.min(256), |sum, bytes| bytes.map(|bytes| sum + bytes))?;
    let fields = text.matches(field).count();
    let bytes = fields.saturating_mul(each).saturating_add(text.len());
    if bytes > VALUE_BYTES_MAX { Err(Excess::Value.into()) } else { Ok(make(bytes)?) }
}
