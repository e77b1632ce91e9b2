//! The keys of a model's configuration behind one interface, whichever format the model has: `config.json`, or the
//! metadata of a GGUF file.

pub(crate) mod gguf;
pub(crate) mod json;

use std::ops::RangeInclusive;

use crate::config_error::ConfigProblem;
use gguf::GgufKeys;
use json::{Fields, beyond};

/// The names of one key in both formats; an empty name means that the format has no such key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// The key's name in `config.json`.
    pub json: &'static str,
    /// The key's name in GGUF metadata, without the architecture's name and the dot that come before it.
    pub gguf: &'static str,
}

/// Makes a key from its names in both formats.
pub(crate) const fn key(json: &'static str, gguf: &'static str) -> Key {
    Key { json, gguf }
}

/// The configuration of one model, in either format.
#[derive(Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// The keys of a `config.json`.
    Json(Fields<'a>),
    /// The keys of a GGUF file.
    Gguf(GgufKeys<'a>),
}

impl<'a> Keys<'a> {
    /// Returns the keys of `config.json`, if the model has that format.
    pub(crate) fn json(&self) -> Option<&Fields<'a>> {
        match self {
            Self::Json(fields) => Some(fields),
            Self::Gguf(_) => None,
        }
    }

    /// Returns the keys of the GGUF file, if the model has that format.
    pub(crate) fn gguf(&self) -> Option<&GgufKeys<'a>> {
        match self {
            Self::Json(_) => None,
            Self::Gguf(keys) => Some(keys),
        }
    }

    /// Returns the name of a key in the model's format, for messages.
    pub(crate) fn name(&self, key: Key) -> String {
        match self {
            Self::Json(fields) => fields.name(key.json),
            Self::Gguf(keys) => keys.name(key.gguf),
        }
    }

    /// Reads a whole number within `limits`; `None` if the key is absent.
    pub(crate) fn count(&self, key: Key, limits: RangeInclusive<usize>) -> Result<Option<usize>, ConfigProblem> {
        match self {
            Self::Json(fields) if !key.json.is_empty() => fields.count(key.json, limits),
            Self::Gguf(keys) if !key.gguf.is_empty() => keys.count_within(key.gguf, limits),
            _ => Ok(None),
        }
    }

    /// Reads a size of the model from 1 to `max`. If `config.json` leaves it out, it is `default`; a GGUF file must
    /// state it.
    pub(crate) fn size(&self, key: Key, default: usize, max: usize) -> Result<usize, ConfigProblem> {
        match self {
            Self::Json(fields) => Ok(fields.count(key.json, 1..=max)?.unwrap_or(default)),
            Self::Gguf(keys) => keys.within(key.gguf, keys.required(key.gguf)?, 1..=max),
        }
    }

    /// Reads a number that passes `check`; `None` if the key is absent. Messages use `limit` as the description of the
    /// check.
    pub(crate) fn number(
        &self,
        key: Key,
        check: impl Fn(f64) -> bool,
        limit: &str,
    ) -> Result<Option<f64>, ConfigProblem> {
        match self {
            Self::Json(fields) if !key.json.is_empty() => fields.number(key.json, check, limit),
            Self::Gguf(keys) if !key.gguf.is_empty() => {
                let number = keys.number(key.gguf)?;
                number.map(|number| self.checked(key, number, check, limit)).transpose()
            }
            _ => Ok(None),
        }
    }

    /// Checks a number that was read from `key` or calculated from it.
    pub(crate) fn checked(
        &self,
        key: Key,
        number: f64,
        check: impl Fn(f64) -> bool,
        limit: &str,
    ) -> Result<f64, ConfigProblem> {
        match beyond(number, check, limit) {
            Some(limit) => Err(self.out_of_range(key, number, limit)),
            None => Ok(number),
        }
    }

    /// Reads a flag; `None` if the key is absent.
    pub(crate) fn flag(&self, key: Key) -> Result<Option<bool>, ConfigProblem> {
        match self {
            Self::Json(fields) if !key.json.is_empty() => fields.flag(key.json),
            Self::Gguf(keys) if !key.gguf.is_empty() => keys.flag(key.gguf),
            _ => Ok(None),
        }
    }

    /// Makes the error of a value that is out of range.
    pub(crate) fn out_of_range(&self, key: Key, found: impl ToString, limit: String) -> ConfigProblem {
        ConfigProblem::OutOfRange { key: self.name(key), found: found.to_string(), limit }
    }
}
