//! Formats times in UTC.

use std::time::{Duration, SystemTime};

const DAY_S: u64 = 24 * 60 * 60;

/// Formats a time as in RFC 3339, to the microsecond: `2026-11-27T17:05:23.000001Z`. A time before 1970 becomes 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / DAY_S, since.as_secs() % DAY_S);
    let (year, month, day) = date(days);
    let (hour, minute, second, micros) = (second / 3600, second / 60 % 60, second % 60, since.subsec_micros());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Returns the date that is `days` days after 1 January 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Every 400 years have the same number of days.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_the_calendar_has_them() {
        for (seconds, micros, told) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (68_169_599, 1, "1972-02-28T23:59:59.000001Z"),
            (68_169_600, 0, "1972-02-29T00:00:00.000000Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000000Z"),
            (1_735_689_599, 999_999, "2024-12-31T23:59:59.999999Z"),
            (1_795_799_123, 0, "2026-11-27T17:05:23.000000Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
            (13_574_563_200, 0, "2400-02-29T00:00:00.000000Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, micros * 1000);
            assert_eq!(rfc3339(time), told);
        }
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00.000000Z");
    }
}
