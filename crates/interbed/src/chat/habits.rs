//! Commands of other programs' chats, such as Ollama's `/set system TEXT`, and what does the same here.

/// The effect of a chat command of another program.
#[derive(Debug, PartialEq, Eq)]
pub enum ForeignCommand {
    /// The text becomes the system message of the conversation.
    System(String),
    /// The command turns thinking on or off.
    Thinking(bool),
    /// The command does nothing. The text tells the user what to do instead.
    Told(String),
}

/// Parameters of Ollama with another name here, and the options for them.
const PARAMETERS: [(&str, &str); 4] = [
    ("num_ctx", "--max-model-len"),
    ("num_predict", "--max-tokens"),
    ("num_thread", "--threads"),
    ("repeat_penalty", "--repetition-penalty"),
];

/// Parameters of Ollama with the same name here.
const SAME: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "seed", "stop"];

/// Returns the effect of the command `name` followed by `text`, or `None` if no other program has that command.
pub fn meaning(name: &str, text: &str) -> Option<ForeignCommand> {
    let (what, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let told = |text: &str| Some(ForeignCommand::Told(text.to_owned()));
    match (name, what) {
        ("set", "system") => Some(ForeignCommand::System(rest.trim().trim_matches('"').to_owned())),
        ("set", "think") => Some(ForeignCommand::Thinking(true)),
        ("set", "nothink") => Some(ForeignCommand::Thinking(false)),
        ("set", "parameter") => Some(ForeignCommand::Told(parameter(rest.trim()))),
        ("set", "verbose" | "quiet") => told("/stats tells how fast the last answer was, whenever it is asked."),
        ("set", "format" | "noformat") => {
            told("Answers keep to JSON and schemas in `interbed serve`: requests say response_format.")
        }
        ("set", "history" | "nohistory") => told("Lines are kept in memory while you type; ↑ brings them back."),
        ("set", "wordwrap" | "nowordwrap") => told("A pipe gets answers without new line ends."),
        ("set", _) => {
            told("/system TEXT sets instructions; other settings are options, which `interbed chat --help` lists.")
        }
        ("show", _) => {
            told("`interbed info MODEL` tells what the model is; /stats tells how fast the last answer was.")
        }
        ("save", _) => told("A conversation is not kept; `interbed chat MODEL | tee FILE` keeps the answers."),
        ("load", _) => told("/bye leaves, and `interbed chat MODEL` talks to another model."),
        ("read", _) => told("`interbed run MODEL --prompt-file FILE` answers what a file asks."),
        ("regen", _) => told("/clear begins anew; asking again gets another answer, unless --temperature is 0."),
        _ => None,
    }
}

/// Returns which option sets a parameter at the start of a chat.
fn parameter(text: &str) -> String {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, "VALUE"));
    let known = PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, option)| (*option).to_owned());
    let option = known.or_else(|| SAME.contains(&name).then(|| format!("--{}", name.replace('_', "-"))));
    match option {
        Some(option) => format!("That is set at the start: interbed chat MODEL {option} {}", value.trim()),
        None => "Parameters are set at the start, by options that `interbed chat --help` lists.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_ollama_are_done_or_answered() {
        let told = |name: &str, text: &str| match meaning(name, text) {
            Some(ForeignCommand::Told(text)) => text,
            other => panic!("/{name} {text}: {other:?}"),
        };
        assert_eq!(meaning("set", "system Be brief."), Some(ForeignCommand::System("Be brief.".to_owned())));
        assert_eq!(meaning("set", " system \"Be brief.\" "), Some(ForeignCommand::System("Be brief.".to_owned())));
        assert_eq!(meaning("set", "nothink"), Some(ForeignCommand::Thinking(false)));
        assert!(told("set", "parameter num_ctx 4096").ends_with("interbed chat MODEL --max-model-len 4096"));
        assert!(told("set", "parameter top_k 40").ends_with("--top-k 40"));
        assert!(told("set", "parameter mirostat 2").contains("--help"));
        assert!(told("set", "").contains("/system"));
        assert!(told("set", "verbose").contains("/stats"));
        assert!(told("show", "info").contains("interbed info MODEL"));
        for (name, text) in [("nothing", ""), ("system", "x"), ("sets", "")] {
            assert_eq!(meaning(name, text), None, "{name}");
        }
    }
}
