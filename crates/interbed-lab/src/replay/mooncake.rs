//! Reads Mooncake's traces, which have one JSON object a line.

use serde::Deserialize;

use super::entry::{LineProblem, TIMESTAMP_MAX, TraceEntry, tokens};

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Reads `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids]}`. Other fields are
/// skipped. Without `hash_ids`, only the load of the request is known.
///
/// # Errors
/// Fails if the line has another form, or lengths that no model has.
pub(super) fn parse(line: &str) -> Result<TraceEntry, LineProblem> {
    let Line { timestamp, input_length, output_length, hash_ids } =
        serde_json::from_str(line).map_err(LineProblem::Json)?;
    if !(0.0..=TIMESTAMP_MAX).contains(&timestamp) {
        return Err(LineProblem::Timestamp { got: timestamp });
    }
    Ok(TraceEntry {
        arrival: timestamp / 1e3,
        input_tokens: tokens("input_length", input_length)?,
        output_tokens: tokens("output_length", output_length)?,
        hash_ids,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_with_four_fields() {
        let line = r#"{"type": "text", "timestamp": 1500.5, "input_length": 7, "output_length": 0, "hash_ids": [3, 18446744073709551615]}"#;
        let entry = TraceEntry { arrival: 1.5005, input_tokens: 7, output_tokens: 0, hash_ids: vec![3, u64::MAX] };
        assert_eq!(parse(line).unwrap(), entry);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let check = |timestamp: &str, input: &str, output: &str, ids: &str, part: &str| {
            let line = format!(
                r#"{{"timestamp": {timestamp}, "input_length": {input}, "output_length": {output}, "hash_ids": {ids}}}"#
            );
            let message = parse(&line).expect_err(part).to_string();
            assert!(message.contains(part), "{part:?} in {message:?}");
        };
        check("-1", "1", "1", "[1]", "timestamp from 0 to 1000000000000000 ms, got -1");
        check("1e16", "1", "1", "[1]", "got 10000000000000000");
        check("1e999", "1", "1", "[1]", "out of range");
        check("0", "16777217", "1", "[1]", "input_length is 16777217 tokens; expected at most 16777216");
        check("0", "1", "18446744073709551615", "[1]", "output_length is 18446744073709551615");
        check("0", "-1", "1", "[1]", "-1");
        check("0", "1", "1", "[18446744073709551616]", "expected u64");
        check("0", "1", "1", "[-2]", "-2");
        check("0", "1", "1", "7", "expected a sequence");
        assert!(parse(r#"{"timestamp": 0, "input_length": 1}"#).unwrap_err().to_string().contains("output_length"));
    }
}
