//! Reports on stderr, which `--quiet` turns off, and errors; both as text, or as one JSON object a line.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::printable::printable;

static QUIET: AtomicBool = AtomicBool::new(false);

static AS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on only data and errors are printed.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether reports are turned off.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// From now on every line on stderr is a JSON object, as those of the log are.
pub fn be_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Whether every line on stderr is a JSON object.
pub fn is_json() -> bool {
    AS_JSON.load(Ordering::Relaxed)
}

/// Writes what is no error and was not asked for.
pub fn tell(text: &str) {
    if !is_quiet() {
        write(&printable(text), "INFO");
    }
}

/// Writes an error; names from files command no terminal.
pub fn fail(message: &str) {
    write(&printable(message), "ERROR");
}

/// Writes lines to stderr. Where nobody reads them any more, the program goes on.
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

/// The time as the lines of the log have it.
fn now() -> String {
    let mut text = String::new();
    let written = SystemTime.format_time(&mut Writer::new(&mut text));
    if written.is_ok() { text } else { String::new() }
}

/// Like `eprintln!`, for what is no error and was not asked for; names from files command no terminal.
macro_rules! report {
    ($($part:tt)*) => {
        $crate::report::tell(&format!($($part)*))
    };
}

pub(crate) use report;
