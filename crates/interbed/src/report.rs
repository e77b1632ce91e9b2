//! Reports on stderr, which `--quiet` turns off.

use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on only data and errors are printed.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether reports are turned off.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Like `eprintln!`, for what is no error and was not asked for; names from files command no terminal.
macro_rules! report {
    ($($part:tt)*) => {
        if !$crate::report::is_quiet() {
            eprintln!("{}", $crate::printable::printable(&format!($($part)*)));
        }
    };
}

pub(crate) use report;
