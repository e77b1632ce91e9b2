//! Reads how long a model stays in memory after a request.

use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::FromJson;

/// The time for which a model stays in memory after the last request for it. A request for another model ends this
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// The model stays in memory for this time.
    For(Duration),
    /// The model stays in memory without a time limit.
    Always,
}

/// The units of durations, in seconds, as the language Go writes them. A name comes before any shorter name with which
/// it begins.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl FromJson<'_> for KeepAlive {
    const EXPECTED: &'static str = "a number of seconds, or a duration such as \"5m\"; less than 0 is for ever";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let seconds = match raw.get().starts_with('"') {
            true => String::from_json(raw).ok().and_then(|text| seconds_of(&text)),
            false => serde_json::from_str::<f64>(raw.get()).ok(),
        };
        seconds.map(Self::of_seconds).ok_or_else(|| Self::other(raw))
    }
}

/// Reads the field `keep_alive`, if it was sent.
///
/// # Errors
/// Fails if the field is not a duration.
pub(crate) fn keep_alive(field: Option<&RawValue>) -> Result<Option<KeepAlive>, ApiError> {
    let read = field.map(KeepAlive::from_json).transpose();
    read.map_err(|told| ApiError::invalid("keep_alive", format!("keep_alive {told}")))
}

impl KeepAlive {
    /// The model leaves memory as soon as its last request has ended.
    pub(crate) const NONE: Self = Self::For(Duration::ZERO);

    /// Reads a duration such as `5m`, `1h30m` or `90`. A number without a unit is a number of seconds, and a negative
    /// duration stands for [`KeepAlive::Always`].
    ///
    /// # Errors
    /// Returns a description of what was expected if the text is not a duration.
    pub fn read(text: &str) -> Result<Self, String> {
        let seconds = seconds_of(text.trim());
        seconds.map(Self::of_seconds).ok_or_else(|| format!("expected {}", <Self as FromJson<'_>>::EXPECTED))
    }

    fn of_seconds(seconds: f64) -> Self {
        match seconds {
            _ if seconds < 0.0 => Self::Always,
            // What is longer than a duration can be is for ever, too.
            _ => Duration::try_from_secs_f64(seconds).map_or(Self::Always, Self::For),
        }
    }

    /// Returns when a model leaves memory that was last used at `used`, or `None` if it never leaves.
    pub(crate) fn ends_at(self, used: Instant) -> Option<Instant> {
        match self {
            Self::For(duration) => used.checked_add(duration),
            Self::Always => None,
        }
    }
}

/// Returns the number of seconds of a text such as `1h30m`, `-1s` or `90`.
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
        assert_eq!(read("0"), Ok(KeepAlive::NONE));
        // The command line has no quotes.
        assert_eq!(KeepAlive::read(" 1m30s"), Ok(KeepAlive::For(Duration::from_secs(90))));
        assert_eq!(KeepAlive::read("-1"), Ok(KeepAlive::Always));
        assert!(KeepAlive::read("soon").is_err_and(|told| told.contains("5m")));
    }

    #[test]
    fn times_beyond_the_clock_never_come() {
        let now = Instant::now();
        assert_eq!(KeepAlive::NONE.ends_at(now), Some(now));
        assert_eq!(KeepAlive::For(Duration::MAX).ends_at(now), None);
        assert_eq!(KeepAlive::Always.ends_at(now), None);
    }
}
