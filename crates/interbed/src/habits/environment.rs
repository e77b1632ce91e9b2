//! Reports environment variables of other programs, which Interbed does not read. A user who has set one gets a note
//! about what to use instead.

use std::ffi::{OsStr, OsString};

use clap::Command;

use super::has_option;

/// The prefix of the environment variables by which llama.cpp sets options.
const OF_LLAMA_CPP: &str = "LLAMA_ARG_";

/// Pairs of an option or a command's name, and a hint. The hint of the first pair that fits the current command is
/// used.
type Hints = &'static [(&'static str, &'static str)];

/// The environment variables of other programs.
const VARIABLES: &[(&str, Hints)] = &[
    (
        "OLLAMA_HOST",
        &[("--host", "--host and --port say where the server listens"), ("--url", "--url says which server is asked")],
    ),
    ("OLLAMA_CONTEXT_LENGTH", &[("--max-model-len", "--max-model-len says how many tokens a context has")]),
    ("OLLAMA_NUM_PARALLEL", &[("--host", "--max-num-seqs says how many requests are computed together")]),
    ("OLLAMA_MAX_QUEUE", &[("--host", "--max-waiting says how many requests may wait")]),
    (
        "OLLAMA_KEEP_ALIVE",
        &[("--keep-alive", "--keep-alive says how long a model stays in memory after its last request")],
    ),
    ("OLLAMA_MODELS", &[("--offline", MODELS), ("models", MODELS), ("rm", MODELS)]),
    ("OLLAMA_ORIGINS", &[("--allow-origin", "--allow-origin says whose web pages may call the server")]),
    ("OLLAMA_KV_CACHE_TYPE", &[("--kv-dtype", "--kv-dtype says how keys and values are kept")]),
    ("LLAMA_ARG_CTX_SIZE", &[("--max-model-len", "--max-model-len is the option for it")]),
    ("LLAMA_ARG_N_PARALLEL", &[("--max-num-seqs", "--max-num-seqs is the option for it")]),
    ("LLAMA_ARG_THREADS", &[("--threads", "--threads is the option for it")]),
    ("LLAMA_ARG_HOST", &[("--host", "--host is the option for it")]),
    ("LLAMA_ARG_PORT", &[("--port", "--port is the option for it")]),
    ("LLAMA_ARG_N_GPU_LAYERS", &[("--device", "--device auto uses a GPU")]),
    ("LLAMA_ARG_CACHE_TYPE_K", &[("--kv-dtype", "--kv-dtype is the option for it")]),
    ("LLAMA_ARG_CACHE_TYPE_V", &[("--kv-dtype", "--kv-dtype is the option for it")]),
    ("LLAMA_ARG_MODEL", &[("--memory", MODEL)]),
    ("LLAMA_ARG_HF_REPO", &[("--memory", MODEL)]),
];

const MODELS: &str = "HF_HUB_CACHE says in which folder fetched models are kept, in huggingface_hub's layout; Ollama's \
                      own files are not listed there, and a GGUF file is given by its path: interbed serve \
                      DIR/FILE.gguf";

const MODEL: &str = "MODEL on the command line, or INTERBED_MODEL, is the model";

/// The environment variables of other servers that hold an API key.
const KEYS: [&str; 3] = ["LLAMA_API_KEY", "VLLM_API_KEY", "OLLAMA_API_KEY"];

/// The environment variable for an API key that Interbed reads.
const OUR_KEY: &str = "INTERBED_API_KEY";
const KEY_OPTIONS: [&str; 2] = ["--api-key", "--api-key-file"];

/// Returns a note for each environment variable of another program that is set and for which `command` has an
/// equivalent. `set` holds the names of the environment variables that have a value. `args` holds the words of the
/// command line.
pub fn lines(command: &Command, args: &[OsString], set: &[String]) -> Vec<String> {
    let holds = |name: &str| set.iter().any(|one| one == name);
    let instead = |known: &[(&'static str, &'static str)]| {
        let (_, instead) = known.iter().find(|(of, _)| command.get_name() == *of || has_option(command, of))?;
        Some(*instead)
    };
    let mut lines = Vec::new();
    for name in set {
        let told = match VARIABLES.iter().find(|(known, _)| *known == name.as_str()) {
            Some((_, hints)) => instead(hints),
            None if name.starts_with(OF_LLAMA_CPP) => instead(&[("--memory", "options on the command line say it")]),
            None => None,
        };
        lines.extend(told.map(|told| format!("note: {name} is not read: {told}")));
    }
    let is_key = |arg: &OsStr| {
        let text = arg.to_string_lossy();
        KEY_OPTIONS
            .iter()
            .any(|option| text.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    };
    let has_key = holds(OUR_KEY) || args.iter().any(|arg| is_key(arg));
    for name in KEYS.iter().filter(|name| holds(name) && has_option(command, KEY_OPTIONS[0]) && !has_key) {
        lines.push(match has_option(command, "--host") {
            true => format!(
                "warning: {name} is not read, and without --api-key-file, --api-key or {OUR_KEY} the server is open to \
                 everybody who reaches it"
            ),
            false => format!("note: {name} is not read: {OUR_KEY} or --api-key gives the key"),
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_variable_is_told_where_the_command_has_something_like_it() {
        let with = |options: &[&'static str]| {
            options.iter().fold(Command::new("some"), |command, option| command.arg(Arg::new(*option).long(*option)))
        };
        let server = with(&["host", "memory", "max-model-len", "api-key"]);
        let told = |command: &Command, set: &[&str], args: &[&str]| {
            let set: Vec<String> = set.iter().map(|name| (*name).to_owned()).collect();
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            lines(command, &args, &set).join("\n")
        };
        let all = ["LLAMA_ARG_MLOCK", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_HOST", "PATH", "VLLM_API_KEY"];
        let text = told(&server, &all, &[]);
        for part in ["LLAMA_ARG_MLOCK is not read", "--max-model-len", "--host and --port", "warning: VLLM_API_KEY"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.lines().count(), 4, "{text}");
        for args in [&["--api-key=x"][..], &["--api-key-file", "keys"]] {
            assert_eq!(told(&server, &["VLLM_API_KEY"], args), "");
        }
        assert_eq!(told(&server, &["VLLM_API_KEY", "INTERBED_API_KEY"], &[]), "");
        assert!(told(&with(&["url"]), &["OLLAMA_HOST"], &[]).contains("--url"));
        assert_eq!(told(&with(&["json"]), &all, &[]), "");
    }
}
