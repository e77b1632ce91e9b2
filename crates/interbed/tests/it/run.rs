//! `interbed run`.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::support::{copy_of_tiny, ended, ended_with_input, interbed, refused, succeeded, text, tiny};

#[test]
fn the_same_prompt_gives_the_same_text_however_it_is_computed() {
    let run = |more: &[&str]| {
        let mut args = vec!["run", tiny(), "--raw", "--prompt", "Once upon a time", "-n", "8", "--ignore-eos"];
        args.extend(more);
        succeeded(&args)
    };
    let text = run(&[]);
    assert!(text.starts_with("Once upon a time") && text.len() > "Once upon a time\n".len(), "{text:?}");
    assert!(text.ends_with('\n'));
    assert_eq!(run(&[]), text);
    assert_eq!(run(&["--max-num-seqs", "1", "--max-num-batched-tokens", "1", "--threads", "1"]), text);
    assert_eq!(run(&["--block-size", "1", "--no-prefix-caching", "--threads", "3"]), text);
    assert_eq!(run(&["--no-echo"]), text["Once upon a time".len()..]);
}

#[test]
fn a_seed_chooses_the_text() {
    let run = |seed: &str| {
        let args = ["run", tiny(), "-p", "x", "-n", "16", "--temperature", "1", "--ignore-eos", "--seed", seed];
        succeeded(&args)
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn prompts_come_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, "hello there").unwrap();
    let told = succeeded(&["run", tiny(), "--prompt", "hello there", "-n", "4"]);
    assert_eq!(succeeded(&["run", tiny(), "--prompt-file", file.to_str().unwrap(), "-n", "4"]), told);
    assert_eq!(succeeded(&["run", tiny(), "hello", "there", "-n", "4"]), told);
    let asked = ended_with_input(&["run", tiny(), "--raw", "-n", "4", "tell", "it:"], b"hello there");
    assert!(asked.stdout.starts_with("tell it:\n\nhello there"), "{asked:?}");
    refused(&["run", tiny(), "hello", "--prompt", "there"], &["cannot be used with"]);
    for args in [&["run", tiny(), "--prompt", "-", "-n", "4"][..], &["run", tiny(), "-n", "4"]] {
        let piped = ended_with_input(args, b"hello there");
        assert_eq!((piped.code, &piped.stdout), (Some(0), &told), "{}", piped.stderr);
    }
}

#[test]
fn a_prompt_is_a_message_where_the_model_has_a_template() {
    let asked = |more: &[&str]| {
        let args = ["run", tiny(), "--prompt", "hello there", "-n", "8", "--ignore-eos"];
        ended(&[&args[..], more].concat())
    };
    let answer = asked(&[]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    assert!(!answer.stdout.contains("hello there"), "the prompt is not part of an answer: {}", answer.stdout);
    assert_eq!(asked(&["--no-echo"]).stdout, answer.stdout);
    assert_eq!(asked(&["--chat"]).stdout, answer.stdout);
    assert_ne!(asked(&["--system", "Be terse."]).stdout, answer.stdout);
    // A conversation's first message has the very answer.
    let talk = ["chat", tiny(), "-n", "8", "--ignore-eos", "--temperature", "0"];
    assert_eq!(
        ended_with_input(
            &talk,
            b"hello there
"
        )
        .stdout,
        answer.stdout
    );
    let raw = asked(&["--raw"]).stdout;
    assert!(raw.starts_with("hello there") && !raw.contains(answer.stdout.trim_end()), "{raw}");
    refused(&["run", tiny(), "--raw", "--system", "x", "--prompt", "y"], &["--raw", "--system"]);

    // Without a template it is continued, and that is said.
    let base = copy_of_tiny(&["tokenizer_config.json", "chat_template.jinja"]);
    let base = text(base.path());
    let args = ["run", &base, "--prompt", "hello there", "-n", "8", "--ignore-eos"];
    let continued = ended(&args);
    assert!(continued.stdout.starts_with("hello there"), "{continued:?}");
    assert!(continued.stderr.contains("no chat template, so it continues"), "{}", continued.stderr);
    let raw = ended(&[&args[..], &["--raw"]].concat());
    assert!(raw.stdout == continued.stdout && !raw.stderr.contains("chat template"), "{raw:?}");
    refused(&["run", &base, "--system", "x", "--prompt", "y"], &["no chat template", "--system"]);
    refused(&["run", &base, "--chat", "--prompt", "y"], &["no chat template"]);
}

#[test]
fn reports_go_to_stderr() {
    let ended = ended(&["run", tiny(), "--prompt", "x", "-n", "4", "--ignore-eos", "--stats", "--memory", "256M"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for part in ["KV blocks", "output  4 tokens", "tokens/s", "of a budget of 256.0 MiB"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        assert!(!ended.stdout.contains(part));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let args = ["run", tiny(), "--prompt", "x", "-n", "400", "--ignore-eos"];
    let mut child = interbed(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("error:"), "{stderr}");
}

#[test]
fn ctrl_c_ends_with_130() {
    // More text than a pipe holds, so that it cannot be over before the signal comes.
    let folder = copy_of_tiny(&[]);
    let config = folder.path().join("config.json");
    let long = fs::read_to_string(&config)
        .unwrap()
        .replace(r#""max_position_embeddings": 512"#, r#""max_position_embeddings": 400000"#);
    assert!(long.contains("400000"), "{long}");
    fs::write(&config, long).unwrap();
    let path = text(folder.path());
    let args =
        ["run", &path, "--prompt", "x", "-n", "300000", "--temperature", "1", "--ignore-eos", "--max-num-seqs", "1"];
    let mut child = interbed(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(rest.last(), Some(&b'\n'));
}
