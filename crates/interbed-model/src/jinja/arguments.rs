//! Assigns the arguments of a call to the parameters of a built-in function, method or filter.

use super::allowance::{self, NODE_BYTES};
use super::fault::{Fault, Result};
use super::syntax::Name;
use super::value::{Number, Value};

/// The evaluated arguments of a call.
#[derive(Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Name, Value)>,
}

impl Given {
    /// Returns the values of `parameters`, of which the first `required` must be given. Messages of errors name
    /// `function`.
    pub(super) fn fill<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        allowance::make(NODE_BYTES)?;
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(Fault::new(format!("{function} takes at most {N} arguments, but {given} are given")));
        }
        let mut values: [Option<Value>; N] = std::array::from_fn(|_| None);
        for (place, value) in values.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let Some(index) = parameters.iter().position(|parameter| **parameter == *name) else {
                return Err(Fault::new(format!("{function} takes no argument named '{name}'")));
            };
            if values[index].is_some() {
                return Err(Fault::new(format!("{function} is given its argument '{name}' twice")));
            }
            values[index] = Some(value);
        }
        match values.iter().zip(parameters).take(required).find(|(value, _)| value.is_none()) {
            Some((_, name)) => Err(Fault::new(format!("{function} lacks its argument '{name}'"))),
            None => Ok(values),
        }
    }

    /// Returns the values of `N` parameters that have no names, of which the first `required` must be given.
    pub(super) fn unnamed<const N: usize>(self, function: &str, required: usize) -> Result<[Option<Value>; N]> {
        if let Some((name, _)) = self.named.first() {
            return Err(Fault::new(format!("{function} takes no argument named '{name}'")));
        }
        self.fill(function, [""; N], required)
    }
}

/// Returns the text of an argument, and fails if the argument is not a text.
pub(super) fn text(function: &str, value: &Value) -> Result<std::sync::Arc<str>> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Markup(_) => Err(Fault::unsupported(format!("an escaped text as an argument of {function}"))),
        other => Err(Fault::new(format!("{function} needs a text, not {}", other.type_name()))),
    }
}

/// Returns the integer of an argument, and fails if the argument is not an integer.
pub(super) fn integer(function: &str, value: &Value) -> Result<i128> {
    match value.number() {
        Some(Number::Integer(value)) => Ok(value),
        _ => Err(Fault::new(format!("{function} needs an integer, not {}", value.type_name()))),
    }
}

/// Returns the integer of an argument that may be left out or `none`.
pub(super) fn optional_integer(function: &str, value: Option<Value>) -> Result<Option<i128>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => integer(function, &value).map(Some),
    }
}

/// Returns the integer argument of the filter `name`, or `default` if it is left out.
pub(super) fn optional(name: &str, value: Option<Value>, default: i128) -> Result<i128> {
    Ok(optional_integer(name, value)?.unwrap_or(default))
}
