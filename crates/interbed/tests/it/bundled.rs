//! The model that ships with the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{interbed, repository, succeeded, text};

#[test]
fn it_tells_a_story() {
    // Found from the binary's place, whatever the working directory is.
    let args = ["run", "--raw", "--prompt", "Once upon a time", "--max-tokens", "128"];
    let text = succeeded(&args);
    assert!(text.starts_with("Once upon a time"), "{text}");
    assert!(text.matches('.').count() >= 2, "{text}");
    assert_eq!(succeeded(&args), text);
    // Asked, it answers.
    let answer = succeeded(&["run", "--prompt", "Tell me a story about a fox named Pip.", "-n", "64"]);
    assert!(answer.contains("Pip") && !answer.contains("Tell me"), "{answer}");
}

#[test]
fn it_is_found_from_a_folder_of_the_checkout() {
    let output = interbed(&["info"]).current_dir(repository().join("crates")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("storyteller"));
}

#[test]
fn the_program_alone_brings_it_along() {
    let folder = tempfile::tempdir().unwrap();
    let (program, home) = (folder.path().join("interbed"), folder.path().join("home"));
    let built = Path::new(env!("CARGO_BIN_EXE_interbed"));
    if fs::hard_link(built, &program).is_err() {
        fs::copy(built, &program).unwrap();
    }
    let info = |home: &Path, temporary: &Path| {
        let mut command = Command::new(&program);
        command.args(["info", "--json"]).current_dir(folder.path());
        command.env_clear().env("TMPDIR", temporary);
        if home.is_absolute() {
            command.env("HOME", home);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&info["name"], &info["chat_template"]), (&"storyteller".into(), &true.into()));
        info["path"].as_str().unwrap().to_owned()
    };
    let path = info(&home, folder.path());
    assert!(path.starts_with(&text(&home.join(".cache/interbed/models"))), "{path}");
    assert_eq!(info(&home, folder.path()), path);
    // Without a home, in the folder for temporary files.
    let path = info(Path::new(""), folder.path());
    assert!(path.starts_with(&text(folder.path())) && path.contains("/interbed-"), "{path}");
}
