//! Reports on stderr, which `--quiet` turns off, and errors. Reports and errors are printed as text, or as one JSON
//! object per line.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::printable::printable;

static QUIET: AtomicBool = AtomicBool::new(false);

static AS_JSON: AtomicBool = AtomicBool::new(false);

/// Turns reports off: from now on only data and errors are printed.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether reports are turned off.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Makes every line on stderr a JSON object, like the lines of the log.
pub fn be_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Returns whether every line on stderr is a JSON object.
pub fn is_json() -> bool {
    AS_JSON.load(Ordering::Relaxed)
}

/// Prints a report, unless reports are turned off.
pub fn tell(text: &str) {
    if !is_quiet() {
        write(&printable(text), "INFO");
    }
}

/// Prints an error. Characters in it that control a terminal are escaped.
pub fn fail(message: &str) {
    write(&printable(message), "ERROR");
}

/// Writes lines to stderr. Failures are ignored, so that the program goes on if nobody reads stderr any more.
fn write(text: &str, level: &str) {
    let mut out = stderr().lock();
    if !is_json() {
        let _ = writeln!(out, "{text}");
        return;
    }
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let _ = writeln!(
            out,
            "{}",
            json!({ "timestamp": now(), "level": level, "message": line.trim(), "target": "interbed" })
        );
    }
}

/// Returns the time in the format of the log's lines.
fn now() -> String {
    let mut text = String::new();
    let written = SystemTime.format_time(&mut Writer::new(&mut text));
    if written.is_ok() { text } else { String::new() }
}

/// Prints a report, like `eprintln!`. Characters in it that control a terminal are escaped.
macro_rules! report {
    ($($part:tt)*) => {
        $crate::report::tell(&format!($($part)*))
    };
}

pub(crate) use report;
