//! Reads Azure's traces: tables of arrival time, length of the prompt and length of the answer.

use super::entry::{LineProblem, TraceEntry, tokens};

const TIMESTAMP: &str = "TIMESTAMP";
const CONTEXT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";

/// The positions of the columns that are read; other columns between them are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    timestamp: usize,
    context: usize,
    generated: usize,
}

impl Columns {
    /// Returns the positions of the columns if the header names all three.
    pub fn of_header(line: &str) -> Option<Self> {
        let place = |name: &str| line.split(',').position(|column| column.trim().eq_ignore_ascii_case(name));
        Some(Self { timestamp: place(TIMESTAMP)?, context: place(CONTEXT)?, generated: place(GENERATED)? })
    }

    /// Reads a line under the header, such as `2023-11-16 18:15:46.6805900,374,44`.
    ///
    /// # Errors
    /// Fails if the line has another form, or lengths that no model has.
    pub fn parse(self, line: &str) -> Result<TraceEntry, LineProblem> {
        let at = |place: usize| line.split(',').nth(place).unwrap_or("").trim();
        let count = |place: usize, column: &'static str| {
            let problem = || LineProblem::Column { column, expected: "a number of tokens", got: at(place).to_owned() };
            tokens(column, at(place).parse().map_err(|_| problem())?)
        };
        let arrival = seconds(at(self.timestamp)).ok_or_else(|| LineProblem::Column {
            column: TIMESTAMP,
            expected: "a time such as 2023-11-16 18:15:46.68",
            got: at(self.timestamp).to_owned(),
        })?;
        Ok(TraceEntry {
            arrival,
            input_tokens: count(self.context, CONTEXT)?,
            output_tokens: count(self.generated, GENERATED)?,
            hash_ids: Vec::new(),
        })
    }
}

/// Returns the seconds from a fixed time before all years that can be named until `text`, such as `2023-11-16
/// 18:15:46.6805900`. A zone, if `text` names one, must be UTC.
fn seconds(text: &str) -> Option<f64> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    // The fraction must consist of digits only: parsing it as a float would accept much else.
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let fraction: f64 = format!("0.{fraction}").parse().ok().filter(|_| is_fraction)?;
    let leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap_year),
        1..=12 => 31,
        _ => return None,
    };
    // A leap second has the number 60.
    if !(1..=days_of_month).contains(&day) || hour > 23 || minute > 59 || second > 60 || year > 9999 {
        return None;
    }
    // Years begin in March here, so that the end of February is the end of a year. They are counted from 400 years
    // before the year 0, so that none is negative.
    let (years, months) = if month < 3 { ((year + 400) - 1, month + 9) } else { (year + 400, month - 3) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day;
    Some(f64::from(days) * 86400.0 + f64::from(hour * 3600 + minute * 60 + second) + fraction)
}

fn numbers(text: &str, separator: char) -> Option<[u32; 3]> {
    let mut parts = text.split(separator).map(|part| {
        let is_number = !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_number)
    });
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<TraceEntry, String> {
        let columns = Columns::of_header("TIMESTAMP,ContextTokens,GeneratedTokens").unwrap();
        columns.parse(line).map_err(|problem| problem.to_string())
    }

    #[test]
    fn columns_are_found_by_name() {
        let columns = Columns::of_header("id, generatedtokens,timestamp ,ContextTokens").unwrap();
        let entry = columns.parse("7,44, 2023-11-16 18:15:46.25,374").unwrap();
        assert_eq!((entry.input_tokens, entry.output_tokens, entry.hash_ids.len()), (374, 44, 0));
        assert_eq!(Columns::of_header("TIMESTAMP,ContextTokens"), None);
    }

    #[test]
    fn times_count_over_midnights_and_months() {
        let between = |from: &str, to: &str| seconds(to).unwrap() - seconds(from).unwrap();
        assert_eq!(between("2023-11-16 18:15:46.5", "2023-11-16 18:15:47"), 0.5);
        assert_eq!(between("2023-12-31 23:59:59", "2024-01-01 00:00:00"), 1.0);
        assert_eq!(between("2024-02-28 00:00:00", "2024-03-01 00:00:00+00:00"), 2.0 * 86400.0);
        assert_eq!(between("2023-02-28T00:00:00Z", "2023-03-01T00:00:00Z"), 86400.0);
        assert_eq!(between("1999-07-01 00:00:00", "2000-07-01 00:00:00"), 366.0 * 86400.0);
        for wrong in ["", "2023-11-16", "2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-11-16 24:00:00"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
        for wrong in ["2023-11-16 18:15:46.", "2023-11-16 18:15:46.5e9", "2023-11-16 18:15:46:10", "-1-1-1 1:1:1"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn values_that_are_none_are_refused() {
        let check = |line: &str, part: &str| {
            let message = parse(line).expect_err(part);
            assert!(message.contains(part), "{part:?} in {message:?}");
        };
        check("now,374,44", "expected a time such as 2023-11-16 18:15:46.68 as TIMESTAMP, got \"now\"");
        check("2023-11-16 18:15:46,many,44", "expected a number of tokens as ContextTokens, got \"many\"");
        check("2023-11-16 18:15:46,374", "GeneratedTokens, got \"\"");
        check("2023-11-16 18:15:46,-1,44", "ContextTokens, got \"-1\"");
        check("2023-11-16 18:15:46,374,99999999999", "GeneratedTokens is 99999999999 tokens");
    }
}
