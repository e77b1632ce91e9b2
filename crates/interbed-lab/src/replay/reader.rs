//! Reads traces line by line. The reader detects the format, and checks limits on all values.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::azure::Columns;
use super::entry::{LINE_BYTES_MAX, LineProblem, REFERENCES_MAX, REQUESTS_MAX};
use super::mooncake;
use super::trace::Trace;

/// A reason why a trace cannot be used.
#[derive(Debug, Error)]
pub(super) enum TraceError {
    /// The system refused to read the file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the trace.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No line of the file has a request.
    #[error("{} holds no request", path.display())]
    Empty {
        /// The path of the trace.
        path: PathBuf,
    },
    /// A line is invalid.
    #[error("line {line} of {}: {problem}", path.display())]
    Line {
        /// The path of the trace.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong with the line.
        problem: LineProblem,
    },
}

impl TraceError {
    /// Returns what the user can do about the error.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "name a readable file",
            Self::Line { problem: LineProblem::TooMany, .. } => "cut the trace, for instance with `head -n`",
            Self::Empty { .. } | Self::Line { .. } => {
                "give a trace as Mooncake (JSON lines) or Azure (CSV) publish theirs, or one of `interbed run \
                 --record-routing`, or correct the line"
            }
        }
    }
}

/// Reads the trace at `path` in either format.
///
/// # Errors
/// Fails if there is no such file, if it has no request, or if a line is invalid; the error then names the line's
/// number.
pub(super) fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Trace, TraceError> {
    let refused = |source| TraceError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(refused)?;
    read_lines(BufReader::new(file), path, progress)
}

/// Reads a trace from `input` as [`read`] does. `path` is for messages, and `progress` is called with the number of
/// bytes read.
pub(super) fn read_lines(
    mut input: impl BufRead,
    path: &Path,
    mut progress: impl FnMut(u64),
) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut format = None;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let bytes = read.map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        if bytes == 0 {
            break;
        }
        progress(bytes as u64);
        take_line(&line, &mut format, &mut trace).map_err(|problem| TraceError::Line {
            path: path.to_owned(),
            line: number,
            problem,
        })?;
    }
    if trace.requests().is_empty() {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    trace.finish();
    Ok(trace)
}

enum Format {
    Mooncake,
    Azure(Columns),
}

fn take_line(line: &[u8], format: &mut Option<Format>, trace: &mut Trace) -> Result<(), LineProblem> {
    if line.len() as u64 > LINE_BYTES_MAX {
        return Err(LineProblem::TooLong);
    }
    let line = std::str::from_utf8(line).map_err(|_| LineProblem::NotText)?;
    // Some files begin with a byte order mark.
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() {
        return Ok(());
    }
    let entry = match format {
        Some(Format::Mooncake) => mooncake::parse(line)?,
        Some(Format::Azure(columns)) => columns.parse(line)?,
        None if line.starts_with('{') => {
            *format = Some(Format::Mooncake);
            mooncake::parse(line)?
        }
        None => {
            let got = || LineProblem::Format { got: line.chars().take(80).collect() };
            *format = Some(Format::Azure(Columns::of_header(line).ok_or_else(got)?));
            return Ok(());
        }
    };
    let full = trace.requests().len() == REQUESTS_MAX
        || trace.references().len().saturating_add(entry.hash_ids.len()) > REFERENCES_MAX;
    if full {
        return Err(LineProblem::TooMany);
    }
    trace.push(entry.arrival, entry.input_tokens, entry.output_tokens, &entry.hash_ids);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Result<Trace, String> {
        read_lines(text.as_bytes(), Path::new("t"), |_| ()).map_err(|error| error.to_string())
    }

    fn check_refusal(text: &str, parts: &[&str]) {
        let message = trace(text).expect_err("the trace is refused");
        for part in parts {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
    }

    #[test]
    fn both_formats_are_told_apart() {
        let mooncake =
            trace("\n{\"timestamp\": 500, \"input_length\": 600, \"output_length\": 2, \"hash_ids\": [9, 8]}\n");
        let mooncake = mooncake.unwrap();
        assert_eq!((mooncake.requests().len(), mooncake.distinct(), mooncake.input_tokens()), (1, 2, 600));
        let azure = trace(
            "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.5,374,44\r\n2023-11-16 \
             18:15:47,3,1",
        );
        let azure = azure.unwrap();
        assert_eq!((azure.requests().len(), azure.has_hashes(), azure.seconds()), (2, false, 0.5));
        assert_eq!((azure.input_tokens(), azure.output_tokens()), (377, 45));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_line() {
        check_refusal("", &["t holds no request"]);
        check_refusal("\n \n", &["no request"]);
        check_refusal("TIMESTAMP,ContextTokens,GeneratedTokens\n", &["no request"]);
        check_refusal("\n# a comment", &["line 2 of t", "JSON object", "TIMESTAMP", "# a comment"]);
        let good = r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}"#;
        check_refusal(&format!("{good}\n{good}\n{{"), &["line 3 of t", "expected {\"timestamp\""]);
        check_refusal(&format!("{good}\nTIMESTAMP,ContextTokens"), &["line 2 of t"]);
    }

    #[test]
    fn endless_lines_and_bytes_that_are_no_text_are_refused() {
        let long = " ".repeat(LINE_BYTES_MAX as usize + 1);
        check_refusal(&long, &["line 1 of t", "16777216 bytes"]);
        let message = read_lines(&b"{\xff}"[..], Path::new("t"), |_| ()).expect_err("no text").to_string();
        assert!(message.contains("UTF-8"), "{message}");
    }
}
