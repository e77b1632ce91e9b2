//! `keep_alive`: how long a model stays in memory after a request.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::FromJson;

/// How long a model is to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    For(Duration),
    /// As long as the server runs.
    Always,
}

/// Units of durations, as Go writes them, in seconds; a name stands before the shorter one that it begins with.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl FromJson<'_> for KeepAlive {
    const EXPECTED: &'static str = "a number of seconds, or a duration such as \"5m\"; less than 0 is for ever";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let seconds = match raw.get().starts_with('"') {
            true => String::from_json(raw).ok().and_then(|text| seconds_of(&text)),
            false => serde_json::from_str::<f64>(raw.get()).ok(),
        };
        match seconds {
            None => Err(Self::other(raw)),
            Some(seconds) if seconds < 0.0 => Ok(Self::Always),
            // Longer than a duration can be.
            Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).map_or(Self::Always, Self::For)),
        }
    }
}

/// What the field says, if it was sent.
///
/// # Errors
/// It says no duration.
pub(super) fn keep_alive(field: Option<&RawValue>) -> Result<Option<KeepAlive>, ApiError> {
    let read = field.map(KeepAlive::from_json).transpose();
    read.map_err(|told| ApiError::invalid("keep_alive", format!("keep_alive {told}")))
}

impl KeepAlive {
    /// Whether the model is to go at once.
    pub(super) fn is_none(self) -> bool {
        self == Self::For(Duration::ZERO)
    }
}

/// The seconds of a text such as `1h30m`, `-1s` or `90`.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_number = |byte: char| byte.is_ascii_digit() || byte == '.';
    if !rest.is_empty() && rest.chars().all(is_number) {
        // A number alone is one of seconds.
        return rest.parse::<f64>().ok().map(|seconds| sign * seconds);
    }
    let mut seconds = 0.0;
    loop {
        let end = rest.find(|sign| !is_number(sign))?;
        let (number, behind) = rest.split_at(end);
        // The longest name that fits: a minute is none of the milliseconds.
        let (unit, factor) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        seconds += number.parse::<f64>().ok()? * factor;
        rest = &behind[unit.len()..];
        if rest.is_empty() {
            return Some(sign * seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KeepAlive, String> {
        KeepAlive::from_json(serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn durations_come_as_numbers_and_as_texts() {
        for (text, seconds) in [
            ("300", 300.0),
            ("0", 0.0),
            ("0.5", 0.5),
            (r#""5m""#, 300.0),
            (r#""1h30m""#, 5400.0),
            (r#""1.5h""#, 5400.0),
            (r#""250ms""#, 0.25),
            (r#""2m3s4ms""#, 123.004),
            (r#""0""#, 0.0),
            (r#""10""#, 10.0),
            (r#""7µs""#, 7e-6),
        ] {
            assert_eq!(read(text), Ok(KeepAlive::For(Duration::from_secs_f64(seconds))), "{text}");
        }
        for text in ["-1", "-0.1", r#""-1""#, r#""-1m""#, "1e300"] {
            assert_eq!(read(text), Ok(KeepAlive::Always), "{text}");
        }
        for text in [r#""""#, r#""m""#, r#""5x""#, r#""5m3""#, "true", "[]", r#""1.2.3""#, r#""--1s""#] {
            assert!(read(text).is_err_and(|told| told.contains("must be a number of seconds")), "{text}");
        }
        assert!(read("0").is_ok_and(KeepAlive::is_none) && !read("1").is_ok_and(KeepAlive::is_none));
    }
}
