//! Command lines in the style of llama.cpp, Ollama or vLLM: such options are translated, ignored with a note, or
//! refused with a hint at what to use instead.
//!
//! The arguments are inspected before they are parsed. Options that the command itself has stay as they are, except
//! for single values with a special meaning in other programs, such as `-n -1`.

mod commands;
mod environment;
mod hints;
mod memory;
mod models;
mod refusals;
mod sampling;
mod server;

use std::ffi::{OsStr, OsString};
use std::iter::Peekable;
use std::path::Path;

use clap::{Arg, Command};

use crate::failure::Advised;
use refusals::Refusals;

/// Options of other programs, by whether a value follows them.
pub struct Habits {
    valued: &'static [Habit],
    bare: &'static [Habit],
    perhaps: &'static [PerhapsValued],
}

/// The spellings of an option, and its translation.
type Habit = (&'static [&'static str], Meaning);

/// The spellings of an option, the words that are its value if they follow it, and its translation.
type PerhapsValued = (&'static [&'static str], &'static [&'static str], Meaning);

/// Whether a value follows an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// No value follows the option.
    Nothing,
    /// A value follows the option.
    Value,
    /// A value follows the option if the next word is one of these.
    Perhaps(&'static [&'static str]),
}

/// The translation of an option of another program.
#[derive(Debug, Clone, Copy)]
pub enum Meaning {
    /// The option becomes this option of Interbed, with the same value.
    Ours(&'static str),
    /// The option becomes the Interbed option in the first field, if the command has that option. Otherwise, the option
    /// is refused with a hint. For a server, the hint is the second field. For other commands, the hint lists the
    /// commands that have the Interbed option.
    OursOr(&'static str, &'static str),
    /// The option's value becomes the MODEL argument.
    Model,
    /// The option is replaced by these words.
    Words(&'static [&'static str]),
    /// The option asks for something that Interbed always does, so it is left out. The text says why.
    Already(&'static str),
    /// The option is refused. The text says what to use instead.
    Instead(&'static str),
    /// The option is also an option of Interbed and stays, but does less than in the other program. The text says how
    /// to get the rest.
    Besides(&'static str),
    /// The meaning depends on the command. Each entry names an option of Interbed. The first entry that names an option
    /// of the command applies. The entry `*` applies to every command.
    ByOption(&'static [(&'static str, Meaning)]),
    /// The meaning depends on the option's value. An entry may name several values, with `|` between them. The entry
    /// `*` applies to all values without an entry of their own. If
    /// Interbed's command also has an option of this name, the entry `*` does not apply, and the option stays
    /// unchanged.
    ByValue(&'static [(&'static str, Meaning)]),
}

/// A command line that was translated into Interbed's options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    pub args: Vec<OsString>,
    /// Notes for the user about options that were translated or left out.
    pub notes: Vec<String>,
}

/// Translates `args` for the command line that `root` describes. The first of `args` is the program.
///
/// # Errors
/// Fails if a command or an option of another program has no equivalent in Interbed. The message says what to use
/// instead.
pub fn translate(args: Vec<OsString>, root: &Command) -> anyhow::Result<Translated> {
    let mut words = args.into_iter().peekable();
    let mut done = Translated { args: words.next().into_iter().collect(), notes: Vec::new() };
    let mut place = Place {
        root,
        command: root,
        name: "interbed".into(),
        model_at: 1,
        has_model: false,
        refused: Refusals::default(),
    };
    // The first words are the command, and for some commands a subcommand.
    while let Some(word) = words.peek().and_then(|word| word.to_str()) {
        if let Some(found) = place.command.find_subcommand(word) {
            place.name = format!("{} {}", place.name, found.get_name());
            place.command = found;
            place.model_at = done.args.len() + 1;
        } else if !has_option(root, word) {
            if !word.starts_with('-') {
                elsewhere(&place, word)?;
                if !place.has_command() {
                    // clap reports the unknown word.
                    done.args.extend(words);
                    return Ok(done);
                }
            }
            break;
        }
        done.args.extend(words.next());
    }
    place.has_model = words.peek().is_some_and(|word| !word.to_string_lossy().starts_with('-'));
    while let Some(word) = words.next() {
        if word == "--" {
            done.args.push(word);
            done.args.extend(words);
            break;
        }
        let word = with_hyphens(word, place.command);
        if place.is_of_several(&word) {
            done.args.push(word);
            place.take_several(&mut done, &mut words);
            continue;
        }
        if let Some(address) = place.address(&word, words.peek()) {
            if word == "--host" {
                words.next();
            }
            done.notes.push(format!("--host {} is {} here", address.0, address.1.join(" ")));
            done.args.extend(address.1.into_iter().map(OsString::from));
            continue;
        }
        let Some((takes, meaning, typed, attached)) = habit_of(&word) else {
            place.note_unknown(&word);
            done.args.push(word);
            continue;
        };
        let following = words.peek().filter(|_| attached.is_none()).map(|next| next.to_string_lossy().into_owned());
        let following = following.filter(|next| takes.may_be(next));
        let takes_next = following.is_some();
        let value = attached.or(following);
        let own = place.has(&typed);
        match meaning.for_value(value.as_deref(), own).and_then(|meaning| place.for_options(meaning)) {
            None => done.args.push(word),
            Some(meaning) => {
                if let Err(error) = place.take(&mut done, &typed, value, takes, meaning) {
                    // What was refused before is told, too.
                    return Err(place.refused.told(&place.name).unwrap_or(error));
                }
                if takes_next {
                    words.next();
                }
            }
        }
    }
    place.refused.told(&place.name).map_or(Ok(done), Err)
}

/// Returns notes for the user about environment variables that other programs read and Interbed does not.
pub fn of_environment(args: &[OsString], root: &Command) -> Vec<String> {
    let words = args.iter().skip(1).take_while(|word| *word != "--");
    let Some(command) = words.filter_map(|word| root.find_subcommand(word)).next() else { return Vec::new() };
    let has_value = |(name, value): (OsString, OsString)| name.into_string().ok().filter(|_| !value.is_empty());
    let mut set: Vec<String> = std::env::vars_os().filter_map(has_value).collect();
    set.sort();
    environment::lines(command, args, &set)
}

impl Takes {
    /// Returns whether the next word is the option's value.
    fn may_be(self, next: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Value => !next.starts_with('-') || next.parse::<f64>().is_ok(),
            Self::Perhaps(values) => values.contains(&next),
        }
    }
}

/// The state of a translation.
struct Place<'r> {
    root: &'r Command,
    /// The current command, or `root` before there is one.
    command: &'r Command,
    /// The words that the user typed up to the command.
    name: String,
    /// The index at which MODEL is inserted, which is after the command.
    model_at: usize,
    /// Whether MODEL has been given already.
    has_model: bool,
    /// The options that the command does not have.
    refused: Refusals,
}

/// An option that takes several values in vLLM.
const OF_SEVERAL: &str = "--served-model-name";

impl Place<'_> {
    fn has_command(&self) -> bool {
        !std::ptr::eq(self.command, self.root)
    }

    /// Returns whether the command has the option `typed`, or all commands have it.
    fn has(&self, typed: &str) -> bool {
        has_option(self.command, typed) || has_option(self.root, typed)
    }

    /// Notes an option that neither the command nor any of the tables has. If other options are refused, this option is
    /// told with them. Otherwise the parser refuses it, and may suggest a similar option.
    fn note_unknown(&mut self, word: &OsStr) {
        let Some(text) = word.to_str().filter(|text| text.starts_with("--")) else { return };
        let name = text.split('=').next().unwrap_or(text);
        if self.has_command() && !self.has(name) && !matches!(name, "--" | "--help" | "--version") {
            self.refused.add_unknown(name.to_owned());
        }
    }

    /// Returns the meaning for the current command, or `None` if no entry applies to it.
    fn for_options(&self, meaning: Meaning) -> Option<Meaning> {
        let Meaning::ByOption(cases) = meaning else { return Some(meaning) };
        cases.iter().find(|(option, _)| *option == "*" || self.has(option)).map(|(_, meaning)| *meaning)
    }

    /// Returns whether more words after this option's value are values too, because MODEL has been given already.
    fn is_of_several(&self, word: &OsStr) -> bool {
        self.has_model && word == OF_SEVERAL && has_option(self.command, OF_SEVERAL)
    }

    /// Takes the values of an option with several values. Each value gets the option before it.
    fn take_several(&self, done: &mut Translated, words: &mut Peekable<impl Iterator<Item = OsString>>) {
        done.args.extend(words.next());
        while let Some(name) = words.next_if(|word| !word.to_string_lossy().starts_with('-')) {
            done.notes.push(format!("{0} is a further name, {OF_SEVERAL} {0} here", name.display()));
            done.args.extend([OF_SEVERAL.into(), name]);
        }
    }

    /// Returns the value of `--host HOST:PORT`, and the words that replace it, or `None` for other words.
    fn address(&self, word: &OsStr, next: Option<&OsString>) -> Option<(String, [String; 4])> {
        let value = match word.to_str()? {
            "--host" => next?.to_str()?,
            attached => attached.strip_prefix("--host=")?,
        };
        let (host, port) = value.rsplit_once(':')?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        // An IPv6 address has colons of its own, so it must be in brackets.
        let is_whole = !host.is_empty() && (bare != host || !host.contains(':')) && port.parse::<u16>().is_ok();
        let words = ["--host", bare, "--port", port].map(str::to_owned);
        (is_whole && has_option(self.command, "--port")).then(|| (value.to_owned(), words))
    }

    /// Applies the meaning of an option with this value, or notes that it is refused.
    ///
    /// # Errors
    /// Fails if the option has no command before it or no value behind it, or contradicts another one.
    fn take(
        &mut self,
        done: &mut Translated,
        typed: &str,
        value: Option<String>,
        takes: Takes,
        meaning: Meaning,
    ) -> anyhow::Result<()> {
        let shown = value.as_ref().map_or_else(|| typed.to_owned(), |value| format!("{typed} {value}"));
        if let Meaning::Instead(hint) = meaning {
            self.refused.add(shown, hint);
            return Ok(());
        }
        if !self.has_command() {
            return Err(Advised::input(
                format!("{typed} goes behind a command, and there is none"),
                "`interbed run MODEL` chats or answers a --prompt, `interbed serve MODEL` is the server; `interbed \
                 --help` lists the others",
            ));
        }
        if takes == Takes::Value && value.is_none() {
            let hint = format!("write {typed} VALUE; `{} --help` lists the options", self.name);
            return Err(Advised::input(format!("{typed} needs a value"), hint));
        }
        match meaning {
            Meaning::Ours(ours) | Meaning::OursOr(ours, _) if self.has(ours) => {
                done.args.push(ours.into());
                let valued = value.as_ref().map_or_else(String::new, |value| format!(" {value}"));
                done.notes.push(format!("{shown} is {ours}{valued} here"));
                done.args.extend(value.map(OsString::from));
            }
            Meaning::OursOr(_, hint) if has_option(self.command, "--host") => self.refused.add(shown, hint),
            Meaning::Ours(ours) | Meaning::OursOr(ours, _) => self.refused.add(shown, &self.where_it_is(ours)),
            Meaning::Model => {
                let value = value.unwrap_or_default();
                done.notes.push(format!("{shown} is the argument {value} here"));
                done.args.insert(self.model_at, value.into());
                self.model_at += 1;
                self.has_model = true;
            }
            Meaning::Words(words) if !words.iter().take(1).all(|first| self.has(first)) => {
                self.refused.add(shown, &self.where_it_is(words[0]));
            }
            Meaning::Words(words) => {
                say(&mut done.args, words, &shown)?;
                done.notes.push(format!("{shown} is {} here", words.join(" ")));
            }
            Meaning::Already(why) => done.notes.push(format!("{shown} is left out: {why}")),
            Meaning::Besides(more) => {
                done.notes.push(more.to_owned());
                done.args.push(typed.into());
                done.args.extend(value.map(OsString::from));
            }
            // `for_value` and `for_options` have resolved these meanings before.
            Meaning::Instead(_) | Meaning::ByValue(_) | Meaning::ByOption(_) => {}
        }
        Ok(())
    }

    /// Returns a hint that lists the commands which have the option `ours`.
    fn where_it_is(&self, ours: &str) -> String {
        let having: Vec<String> = commands_with(self.root, ours).map(|name| format!("`interbed {name}`")).collect();
        format!("it is {ours} here, an option of {}", having.join(", "))
    }
}

impl Meaning {
    /// Returns the meaning for a value, or `None` if the command's `own` option is meant, or no entry applies to this
    /// value.
    fn for_value(self, value: Option<&str>, own: bool) -> Option<Self> {
        if let Self::ByOption(cases) = self {
            let stays = cases.iter().any(|(_, meaning)| matches!(meaning, Self::Besides(_)));
            return (stays || !own).then_some(self);
        }
        let Self::ByValue(cases) = self else { return (!own).then_some(self) };
        let exact = cases.iter().find(|(case, _)| case.split('|').any(|case| value == Some(case)));
        let any = || cases.iter().find(|(case, _)| *case == "*").filter(|_| !own);
        exact.or_else(any).map(|(_, meaning)| *meaning)
    }
}

/// Replaces `_` by `-` in the name of a long option, if the command has an option of that name.
fn with_hyphens(word: OsString, command: &Command) -> OsString {
    let Some(text) = word.to_str().filter(|text| text.starts_with("--")) else { return word };
    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    let name = name.replace('_', "-");
    if has_option(command, &name) { format!("{name}{value}").into() } else { word }
}

/// Returns whether a value follows an option of another program, the option's meaning and spelling, and the value after
/// `=`. In long options, `_` counts as `-`.
fn habit_of(word: &OsStr) -> Option<(Takes, Meaning, String, Option<String>)> {
    let text = word.to_str().filter(|text| text.starts_with('-') && text.len() > 1)?;
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    let (_, takes, meaning) = tables().find(|(typed, ..)| typed.contains(&name.as_str()))?;
    Some((takes, meaning, name, value))
}

/// Returns the spellings of all options of other programs, whether a value follows them, and their meanings.
fn tables() -> impl Iterator<Item = (&'static [&'static str], Takes, Meaning)> {
    [&models::HABITS, &memory::HABITS, &sampling::HABITS, &server::HABITS].into_iter().flat_map(|habits| {
        let valued = habits.valued.iter().map(|&(typed, meaning)| (typed, Takes::Value, meaning));
        let bare = habits.bare.iter().map(|&(typed, meaning)| (typed, Takes::Nothing, meaning));
        let perhaps = habits.perhaps.iter().map(|&(typed, words, meaning)| (typed, Takes::Perhaps(words), meaning));
        valued.chain(bare).chain(perhaps)
    })
}

/// Returns whether a command has the option `typed`, such as `-n` or `--memory`.
pub fn has_option(command: &Command, typed: &str) -> bool {
    let mut letters = typed.chars().skip(1);
    let letter = letters.next().filter(|_| letters.next().is_none());
    let is_it = |arg: &Arg| match typed.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long)),
        None => letter.is_some() && arg.get_short() == letter,
    };
    typed.starts_with('-') && command.get_arguments().any(is_it)
}

/// Returns the names of the commands that have the option `typed`.
pub fn commands_with<'c>(root: &'c Command, typed: &str) -> impl Iterator<Item = &'c str> {
    root.get_subcommands().filter(move |command| has_option(command, typed)).map(Command::get_name)
}

/// Adds `words`, unless they are there already. Two options may mean the same, such as the option for the type of keys
/// and the one for the type of values.
fn say(args: &mut Vec<OsString>, words: &[&str], shown: &str) -> anyhow::Result<()> {
    if args.windows(words.len()).any(|window| window == words) {
        return Ok(());
    }
    let Some(at) = args.iter().position(|arg| words.len() > 1 && arg == words[0]) else {
        args.extend(words.iter().map(OsString::from));
        return Ok(());
    };
    let said: Vec<_> = args[at..].iter().take(2).map(|arg| arg.to_string_lossy()).collect();
    let why = if words[0] == "--kv-dtype" { "keys and values are kept alike: " } else { "" };
    Err(Advised::input(
        format!("{shown} is {} here, where {} is said already", words.join(" "), said.join(" ")),
        format!("{why}leave one of the two out"),
    ))
}

/// Refuses commands of other programs that have no equivalent in Interbed, and says what to use instead.
fn elsewhere(place: &Place<'_>, word: &str) -> anyhow::Result<()> {
    let table = match place.name.as_str() {
        "interbed" => commands::COMMANDS,
        "interbed bench" if !Path::new(word).exists() => commands::OF_BENCH,
        _ => return Ok(()),
    };
    let known = table.iter().find(|(command, _)| word == *command);
    let of = &place.name;
    known.map_or(Ok(()), |(command, hint)| Err(Advised::input(format!("`{of}` has no command {command}"), *hint)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_spelling_is_listed_twice() {
        let mut seen = HashSet::new();
        for typed in tables().flat_map(|(typed, ..)| typed) {
            assert!(seen.insert(*typed), "{typed}");
            assert!(typed.starts_with('-') && !typed.contains(['_', '=']), "{typed}");
        }
        assert!(seen.len() > 250, "{}", seen.len());
    }
}
