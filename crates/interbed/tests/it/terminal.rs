//! What a person sees who sits at a terminal. `script`, which Debian's `bsdutils` brings, is the terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::support::{copy_of_tiny, interbed, text, tiny};

/// A command on a terminal of 40 columns.
struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    screen: ChildStdout,
    seen: String,
    home: TempDir,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let ours = interbed(args);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().expect("text").replace('\'', "'\\''"));
        let words: Vec<String> = std::iter::once(ours.get_program()).chain(ours.get_args()).map(quoted).collect();
        let mut command = Command::new("script");
        command.args(["-qefc", &format!("stty cols 40 rows 24; exec {}", words.join(" ")), "/dev/null"]);
        for (variable, value) in ours.get_envs() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        command.env("HOME", home.path()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = piped.expect("`script` is installed");
        let (keys, screen) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, keys, screen, seen: String::new(), home }
    }

    fn press(&mut self, keys: &str) {
        self.keys.as_mut().expect("it is open").write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until `part` is shown, and returns what came before it since the last time.
    fn until(&mut self, part: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            if let Some((before, after)) = self.seen.split_once(part) {
                let (before, after) = (before.to_owned(), after.to_owned());
                self.seen = after;
                return before;
            }
            let bytes = self.screen.read(&mut buffer).expect("the terminal can be read");
            assert!(bytes > 0, "it ended before {part:?} in {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        }
    }

    /// Waits for the prompt, and types a line.
    fn say(&mut self, line: &str) -> String {
        // Colours, and where the cursor goes after it.
        let before = self.until("\x1b[1;32m> \x1b[0m");
        self.until("\x1b[2C");
        self.press(&format!("{line}\r"));
        // The line editor is done with it.
        self.until("\x1b[?2004l");
        before
    }

    /// The exit code, once it has ended.
    fn ends(&mut self) -> Option<i32> {
        drop(self.keys.take());
        let _ = self.screen.read_to_string(&mut String::new());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Where a test has failed, nobody ends the command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn run_without_a_prompt_is_a_chat() {
    let args = ["run", tiny(), "--system", "Be kind.", "--temperature", "0", "-n", "64", "--ignore-eos"];
    let mut terminal = Terminal::start(&args);
    terminal.say("hello");
    let answer = terminal.say("\"\"\"\rtwo\r/bye\r\"\"\"");
    let lines: Vec<&str> = answer.split("\x1b[?2004h").next().expect("the answer").trim().split("\r\n").collect();
    assert!(lines.len() > 1, "{answer:?}");
    // The quoted message was answered too, though it has a command in it.
    let quoted = terminal.say("/?");
    assert!(quoted.split("\x1b[?2004h").next().expect("the answer").trim().len() > 24, "{quoted:?}");
    let help = terminal.say("/stats");
    assert!(help.contains("/system TEXT") && help.contains("/bye"), "{help:?}");
    assert!(terminal.say("/clear").contains("output  64 tokens"));
    assert!(terminal.say("/bye").contains("begins anew"));
    assert_eq!(terminal.ends(), Some(0));
    let history = terminal.home.path().join(".local/state/interbed/chat_history");
    let history = std::fs::read_to_string(history).expect("what was said is kept");
    assert!(history.contains("hello") && history.contains("/stats"), "{history}");
}

#[test]
fn ctrl_c_stops_an_answer_and_ctrl_d_ends_the_chat() {
    // An answer that takes a while.
    let folder = copy_of_tiny(&[]);
    let config = folder.path().join("config.json");
    let long = std::fs::read_to_string(&config)
        .unwrap()
        .replace(r#""max_position_embeddings": 512"#, r#""max_position_embeddings": 400000"#);
    std::fs::write(&config, long).unwrap();
    let path = text(folder.path());
    let mut terminal = Terminal::start(&["run", &path, "--memory", "1G", "--temperature", "1", "--ignore-eos"]);
    terminal.say("hello");
    // Some of the answer, in lines that end before the last column.
    for _ in 0..3 {
        terminal.until("\n");
    }
    terminal.press("\x03");
    terminal.until("(stopped)");
    terminal.until("\x1b[2C");
    terminal.press("\x03");
    terminal.until("Ctrl-D or /bye leaves.");
    terminal.until("\x1b[2C");
    terminal.press("\x04");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn a_model_without_template_needs_a_prompt() {
    let folder = copy_of_tiny(&["tokenizer_config.json", "chat_template.jinja"]);
    let mut terminal = Terminal::start(&["run", &text(folder.path())]);
    terminal.until("no chat template");
    terminal.until("--prompt TEXT");
    assert_eq!(terminal.ends(), Some(2));
    for args in [&["run", tiny(), "--raw"][..], &["run", tiny(), "--stats"]] {
        let mut terminal = Terminal::start(args);
        terminal.until("there is no prompt");
        terminal.until("--prompt TEXT");
        assert_eq!(terminal.ends(), Some(2));
    }
}
