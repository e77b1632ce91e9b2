//! Formats dates as `strftime` does in the C locale and in UTC.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;

/// The longest accepted format, in bytes. A directive of five bytes may write 255 bytes.
const FORMAT_BYTES_MAX: usize = 1024;

/// Formats a time like Python's `datetime.strftime(format)`. Unknown directives stay unchanged.
///
/// # Errors
/// Fails if the format is too long.
pub(super) fn format(format: &str, time: Timestamp) -> Result<String, String> {
    if format.len() > FORMAT_BYTES_MAX {
        let bytes = format.len();
        return Err(format!("strftime_now has a format of {bytes} bytes, but at most {FORMAT_BYTES_MAX} are taken"));
    }
    let time = BrokenDownTime::from(&time.to_zoned(TimeZone::UTC));
    let mut text = String::new();
    let written = time.format_with_config(&Config::new().lenient(true), format, &mut text);
    written.map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |directives: &str, seconds: i64| {
            format(directives, Timestamp::from_second(seconds).expect("a time")).expect("a date")
        };
        let leap_day = 1_709_210_096; // 2024-02-29 12:34:56 UTC, a Thursday
        for (directives, expected) in [
            ("%d %b %Y", "29 Feb 2024"),
            ("%A, %B %-d, %Y", "Thursday, February 29, 2024"),
            ("%Y-%m-%dT%H:%M:%S", "2024-02-29T12:34:56"),
            ("%I %p %j %a %y %%", "12 PM 060 Thu 24 %"),
            ("%! %", "%! %"),
            ("%e %h %Z", "29 Feb UTC"),
        ] {
            assert_eq!(at(directives, leap_day), expected);
        }
        assert_eq!(at("%F %T %j", 0), "1970-01-01 00:00:00 001");
        assert_eq!(at("%F", 4_107_542_400), "2100-03-01");
        assert!(format(&"%Y".repeat(1000), Timestamp::UNIX_EPOCH).is_err());
    }
}
