//! The model that ships with the repository.

use crate::support::{interbed, repository, succeeded};

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
