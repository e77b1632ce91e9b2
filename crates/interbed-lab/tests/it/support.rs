//! Runs the laboratory's program.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The result of a finished command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs the program to its end, with none of this shell's settings.
pub fn ended(args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_interbed-lab"));
    for variable in ["RUST_LOG", "INTERBED_MODEL", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env_remove(variable);
    }
    command.args(args).stdin(Stdio::null()).output().expect("the binary starts").into()
}

/// Runs the program to its end, which must be a success, and returns stdout.
pub fn succeeded(args: &[&str]) -> String {
    let ended = ended(args);
    assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
    ended.stdout
}

/// Checks that bad input is refused with each of `parts` in the message and nothing on stdout, and returns stderr.
pub fn refused(args: &[&str], parts: &[&str]) -> String {
    let Ended { code, stdout, stderr } = ended(args);
    assert_eq!(code, Some(2), "{args:?}: {stderr}");
    assert_eq!(stdout, "", "{args:?}");
    assert!(stderr.contains("error: "), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?} should name {part:?}:\n{stderr}");
    }
    stderr
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("the path is UTF-8").to_owned()
}
