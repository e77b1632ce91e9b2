//! Running the binary, and a small model to run it on.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A command line of ours, with nothing of this shell's settings.
pub fn interbed(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_interbed"));
    command.args(args).stdin(Stdio::null());
    // Without a home nothing is kept from one run to the next.
    for variable in ["RUST_LOG", "INTERBED_MODEL", "INTERBED_API_KEY", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env_remove(variable);
    }
    for variable in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE", "http_proxy", "HTTP_PROXY"]
    {
        command.env_remove(variable);
    }
    // Names of models lead nowhere: nothing listens there, and no home has a token.
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HOME", "/nonexistent");
    command.env("HF_HUB_CACHE", "/nonexistent/hub");
    command
}

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

/// Runs to the end.
pub fn ended(args: &[&str]) -> Ended {
    interbed(args).output().expect("the binary starts").into()
}

/// Runs to the end with `input` on stdin.
pub fn ended_with_input(args: &[&str], input: &[u8]) -> Ended {
    let mut child = interbed(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that refuses its arguments may be gone before it reads.
    let _ = child.stdin.take().expect("stdin is a pipe").write_all(input);
    child.wait_with_output().expect("the binary ends").into()
}

/// Runs to the end, which must be a good one, and returns stdout.
pub fn succeeded(args: &[&str]) -> String {
    let ended = ended(args);
    assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
    ended.stdout
}

/// Expects bad input to be refused with each of `parts` in the message, and nothing on stdout.
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

/// A model of random weights, made once. It babbles, but always the same.
pub fn tiny() -> &'static str {
    static TINY: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, path) = TINY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = text(&folder.path().join("tiny"));
        let printed = succeeded(&["synth", "--like", "tiny", &path]);
        assert_eq!(printed.trim_end(), path, "synth prints the directory");
        (folder, path)
    });
    path
}

/// A copy of [`tiny`] to be changed, without some of its files.
pub fn copy_of_tiny(without: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(tiny()).expect("the model is there") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().expect("a file has a name");
        if !without.iter().any(|left_out| name == *left_out) {
            fs::copy(&path, folder.path().join(name)).expect("the file can be copied");
        }
    }
    folder
}

/// A model that `transformers` made, with weights but no tokenizer.
pub fn fixture(name: &str) -> String {
    text(&repository().join("crates/interbed-model/tests/fixtures").join(name))
}

/// The root of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/").to_owned()
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("the path is UTF-8").to_owned()
}
