//! `--config FILE.toml`: a file with defaults for options that the command line does not give.
//!
//! ```toml
//! memory = "6G"                 # for every command that has the option
//! offline = true
//!
//! [serve]                       # for this command alone
//! port = 9000
//! allow-origin = ["https://example.org"]
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Arg, ArgAction, Command, value_parser};
use toml_edit::{DocumentMut, Item, Table, Value};

use crate::failure::Advised;
use crate::spelling::{distance, is_near};

/// The maximum size of the file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The option's name, without hyphens.
const OPTION: &str = "config";

/// The name of the MODEL argument in a file.
const MODEL: &str = "model";

/// Adds `--config` to the commands that load a model.
pub fn offer(root: Command) -> Command {
    let names: Vec<String> = root.get_subcommands().filter(|one| takes(one)).map(|one| one.get_name().into()).collect();
    names.iter().fold(root, |root, name| root.mut_subcommand(name, |one| one.arg(option())))
}

fn takes(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some("memory"))
}

fn option() -> Arg {
    Arg::new("config_file")
        .long(OPTION)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .hide_short_help(true)
        .display_order(1002)
        .help("Read options from this TOML file, by their own names, such as memory = \"6G\"; MODEL is model")
        .long_help(
            "Read options from this TOML file, by their own names, such as memory = \"6G\"; MODEL is model. What \
             stands under [serve] or another command is for that command alone. The command line wins over the file, \
             and so do environment variables",
        )
}

/// Returns `root` with the options of a TOML file as defaults. `--config` in `args` names the file. Without `--config`,
/// returns `root` unchanged.
///
/// # Errors
/// Fails if the file cannot be read, is not TOML, or contains an unknown option or a value of the wrong kind.
pub fn apply(root: Command, args: &[OsString]) -> Result<Command> {
    let Some((name, path)) = find(&root, args) else { return Ok(root) };
    let text = read(&path)?;
    let refused = |message: String, hint: String| Advised::input(format!("{}: {message}", path.display()), hint);
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        refused(error.to_string().trim_end().to_owned(), "options are written as in memory = \"6G\", one a line".into())
    })?;
    let mut settings = Vec::new();
    for (key, item) in document.iter() {
        match item {
            Item::Table(table) if key == name => settings.extend(of_table(table)),
            Item::Table(_) if root.find_subcommand(key).is_some() => {}
            Item::Table(_) => {
                let hint = nearest(key, root.get_subcommands().map(Command::get_name));
                return Err(refused(format!("[{key}] is no command"), hint));
            }
            item => settings.push((key.to_owned(), item.clone())),
        }
    }
    let mut command = root.find_subcommand(&name).cloned().unwrap_or_default();
    for (key, item) in settings {
        let id = id_of(&command, &key).ok_or_else(|| {
            let names = command.get_arguments().filter_map(Arg::get_long).chain([MODEL]);
            let hint = nearest(&key, names.filter(|known| *known != OPTION && *known != "help"));
            refused(format!("{key} is no option of `interbed {name}`"), hint)
        })?;
        command = with_default(command, &id, &item).map_err(|expected| {
            refused(format!("{key} should be {expected}"), format!("`interbed {name} --help` tells more"))
        })?;
    }
    Ok(root.mut_subcommand(&name, |_| command))
}

/// Returns the command's name and the file that `--config` names, or `None` if the arguments have no such command or no
/// `--config`.
fn find(root: &Command, args: &[OsString]) -> Option<(String, PathBuf)> {
    let mut words = args.iter().skip(1).map_while(|word| (word != "--").then_some(word));
    let command = words.find_map(|word| root.find_subcommand(word)).filter(|one| takes(one))?;
    let mut path = None;
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        if text == "--config" {
            path = words.next().map(PathBuf::from);
        } else if let Some(attached) = text.strip_prefix("--config=") {
            path = Some(attached.into());
        }
    }
    Some((command.get_name().to_owned(), path?))
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    let shown = path.display();
    read.map_err(|error| {
        Advised::input(format!("cannot read --config {shown}: {error}"), "give a readable file with UTF-8 text")
    })?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Advised::input(format!("--config {shown} has more than {BYTES_MAX} bytes"), "shorten it"));
    }
    Ok(text)
}

fn of_table(table: &Table) -> impl Iterator<Item = (String, Item)> {
    table.iter().map(|(key, item)| (key.to_owned(), item.clone()))
}

fn id_of(command: &Command, key: &str) -> Option<String> {
    let is_it = |arg: &&Arg| match key {
        MODEL => arg.is_positional() && arg.get_id() == MODEL,
        OPTION => false,
        _ => arg.get_long() == Some(key),
    };
    command.get_arguments().find(is_it).map(|arg| arg.get_id().to_string())
}

/// Returns the command with `item` as the default of an option. The error says what kind of value the option takes.
fn with_default(command: Command, id: &str, item: &Item) -> Result<Command, &'static str> {
    let action = command.get_arguments().find(|arg| arg.get_id() == id).map(|arg| arg.get_action().clone());
    let single = |value: &Value| -> Option<String> {
        match value {
            Value::String(text) => Some(text.value().clone()),
            Value::Integer(number) => Some(number.value().to_string()),
            Value::Float(number) => Some(number.value().to_string()),
            _ => None,
        }
    };
    let value = item.as_value().ok_or("a value, such as \"6G\", 8 or true")?;
    let defaults: Vec<String> = match (action, value) {
        (Some(ArgAction::SetTrue), Value::Boolean(flag)) => vec![flag.value().to_string()],
        (Some(ArgAction::SetTrue), _) => return Err("true or false"),
        (Some(ArgAction::Append), Value::Array(list)) => {
            list.iter().map(single).collect::<Option<_>>().ok_or("a list of texts or numbers")?
        }
        (_, value) => vec![single(value).ok_or("a text or a number")?],
    };
    // clap keeps references to defaults as long as the program runs.
    let defaults: Vec<&'static str> = defaults.into_iter().map(|text| &*text.leak()).collect();
    Ok(command.mut_arg(id, |arg| arg.default_values(defaults)))
}

/// Returns a hint that names the known name which is spelled most like `key`, if one is close enough.
fn nearest<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> String {
    let nearest = names.min_by_key(|name| distance(key, name)).filter(|name| is_near(key, name));
    nearest.map_or_else(
        || "names are those of `interbed --help` and `interbed COMMAND --help`".into(),
        |name| format!("the nearest name is {name}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_differs_in_the_fewest_letters() {
        let names = ["memory", "max-model-len", "threads"];
        assert_eq!(nearest("memry", names.into_iter()), "the nearest name is memory");
        assert_eq!(nearest("max_model_len", names.into_iter()), "the nearest name is max-model-len");
        assert!(nearest("kv", names.into_iter()).contains("--help"));
    }
}
