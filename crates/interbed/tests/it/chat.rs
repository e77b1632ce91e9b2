//! `interbed chat` with a pipe as its stdin.

use crate::support::{copy_of_tiny, ended_with_input, text, tiny};

#[test]
fn each_line_is_a_message() {
    let args = ["chat", tiny(), "--temperature", "0", "--max-tokens", "6", "--ignore-eos"];
    let one = ended_with_input(&args, b"hello\n");
    assert_eq!(one.code, Some(0), "{}", one.stderr);
    assert!(one.stdout.ends_with('\n') && one.stdout.len() > 1, "{:?}", one.stdout);
    // The first answer is the same with another message after it, and again after a reset.
    let more = ended_with_input(&args, b"hello\n\n/stats\n/clear\nhello\n/bye\nnever asked\n");
    assert_eq!(more.code, Some(0), "{}", more.stderr);
    assert_eq!(more.stdout, one.stdout.repeat(2));
    assert!(more.stderr.contains("output  6 tokens"), "{}", more.stderr);
}

#[test]
fn lines_between_quotes_are_one_message() {
    let args = ["chat", tiny(), "--temperature", "0", "--max-tokens", "6", "--ignore-eos"];
    let one = ended_with_input(&args, b"\"\"\"\nhello\n/bye\n\"\"\"\n/?\n/nothing\n");
    assert_eq!((one.code, one.stdout.lines().count()), (Some(0), 1), "{one:?}");
    let others =
        ended_with_input(&args, b"/set system Be terse.\n/set nothink\n/set parameter num_ctx 9\n/show info\n");
    for part in ["Instructions taken.", "no switch for thinking", "--max-model-len 9", "interbed info MODEL"] {
        assert!(others.code == Some(0) && others.stderr.contains(part), "{part}: {}", others.stderr);
    }
    for part in ["/system TEXT", "/clear", "/bye", "There is no /nothing"] {
        assert!(one.stderr.contains(part), "{part}: {}", one.stderr);
    }
    assert_ne!(ended_with_input(&args, b"hello\n").stdout, one.stdout, "its second line counts");
    let open = ended_with_input(&args, b"\"\"\"\nhello\n");
    assert_eq!((open.code, open.stdout.as_str()), (Some(2), ""), "{}", open.stderr);
    assert!(open.stderr.contains("in its line 1") && open.stderr.contains("hint: end"), "{}", open.stderr);
}

#[test]
fn thinking_is_turned_off_where_the_template_knows_how() {
    let folder = copy_of_tiny(&["chat_template.jinja"]);
    let template = "{% if enable_thinking is defined and not enable_thinking %}no {% endif %}{{ messages[0].content }}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).expect("a template");
    let model = text(folder.path());
    let args = ["chat", &model, "--temperature", "0", "--max-tokens", "6", "--ignore-eos"];
    let off = ended_with_input(&args, b"/set nothink\nhello\n");
    assert!(off.code == Some(0) && off.stderr.contains("does not think"), "{}", off.stderr);
    assert_eq!(off.stdout, ended_with_input(&args, b"no hello\n").stdout);
    let on = ended_with_input(&args, b"/set nothink\n/set think\nhello\n");
    assert_eq!(on.stdout, ended_with_input(&args, b"hello\n").stdout);
    assert_ne!(on.stdout, off.stdout);
}

#[test]
fn the_conversation_is_kept_and_its_oldest_part_dropped() {
    let args = ["chat", tiny(), "--temperature", "0", "--max-tokens", "4", "--ignore-eos"];
    let line = format!("{}\n", "many words ".repeat(14));
    let ended = ended_with_input(&args, line.repeat(6).as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("outgrown the context"), "{}", ended.stderr);
}

#[test]
fn a_message_that_is_too_long_is_refused_with_the_limit() {
    let ended = ended_with_input(&["chat", tiny()], format!("{}\n", "word ".repeat(3000)).as_bytes());
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("512"), "{}", ended.stderr);
}

#[test]
fn a_model_without_template_is_for_run() {
    let folder = copy_of_tiny(&["tokenizer_config.json", "chat_template.jinja"]);
    let ended = ended_with_input(&["chat", &text(folder.path())], b"hello\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("no chat template") && ended.stderr.contains("interbed run"), "{}", ended.stderr);
}
