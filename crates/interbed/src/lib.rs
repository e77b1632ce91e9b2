//! The command line program: reads options and connects the crates. Data goes to stdout, everything else to stderr.
//!
//! [`main`] is the whole program. The other public items are for `interbed-lab`, the laboratory.

mod answer;
pub mod audience;
mod bench;
mod budget;
mod bundled;
mod chat;
mod colours;
mod completions;
mod config_file;
mod device_option;
mod devices;
pub mod division;
mod erase;
mod expert_counts;
pub mod failure;
mod fingerprint;
pub mod footprint;
mod gpu;
mod habits;
mod hub;
mod identity;
mod info;
mod interrupt;
mod kv_disk;
mod kv_events;
mod kv_remote;
pub mod load;
mod logits;
mod lower_tiers;
pub mod model_dir;
mod model_facts;
mod models;
pub mod needs;
pub mod opened;
pub mod options;
mod pack;
pub mod place;
mod plan;
mod printable;
pub mod progress;
mod prompt;
mod pull;
mod quiet_panics;
mod remove;
pub mod report;
mod routing;
mod run;
mod running;
mod sampling;
mod secret_files;
mod seed;
mod serve;
mod short_names;
mod small_files;
mod spelling;
mod streaming;
mod swap;
mod synth;
mod tails;
mod tier_kind;
mod timeline;
mod unknown_name;
mod usage;
mod user_folders;
mod verify;

pub use bench::{median, server};

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use interbed_server::{SCHEMA_WORKER, run_schema_worker};
use tracing_subscriber::EnvFilter;

/// Run and serve large language models from memory that is too small for them
#[derive(Debug, Parser)]
#[command(
    name = "interbed",
    version,
    after_help = "Examples:\n  \
        interbed run                                 # chat with the small storyteller that ships with Interbed\n  \
        interbed serve                               # OpenAI-compatible, on http://127.0.0.1:8000/v1\n  \
        interbed serve path/to/hf-model --memory 6G  # any supported Hugging Face directory\n  \
        interbed run path/to/model.gguf --prompt Hi  # or GGUF file; one question, one answer\n  \
        interbed serve ORG/NAME                      # a model on the Hub, fetched; ORG/NAME:Q4_K_M for a GGUF file\n  \
        interbed info path/to/hf-model               # what it is and what it needs\n\n\
        `interbed COMMAND --help` tells more of each. Data goes to stdout, reports and logs to stderr. Exit codes: 2 \
        for bad input, 130 after Ctrl-C, 1 for any other failure."
)]
struct Cli {
    /// Log more to stderr; twice for still more. RUST_LOG, where set, wins
    #[arg(short, long, global = true, display_order = 1000, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print only data and errors: no reports, no notes, no warnings, no progress
    #[arg(short, long, global = true, display_order = 1001, conflicts_with = "verbose")]
    quiet: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    Serve(Box<serve::ServeArgs>),
    #[command(visible_alias = "show")]
    Info(info::InfoArgs),
    #[command(visible_aliases = ["list", "ls"])]
    Models(models::ModelsArgs),
    Pull(pull::PullArgs),
    #[command(name = "rm", visible_alias = "remove")]
    Remove(remove::RemoveArgs),
    #[command(name = "ps")]
    Running(running::RunningArgs),
    Devices(devices::DevicesArgs),
    Plan(plan::PlanArgs),
    Synth(synth::SynthArgs),
    Pack(pack::PackArgs),
    Verify(verify::VerifyArgs),
    Erase(erase::EraseArgs),
    Bench(bench::BenchArgs),
    Logits(logits::LogitsArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Runs `interbed` with the arguments of this process.
pub fn main() -> ExitCode {
    if std::env::args_os().skip(1).eq([SCHEMA_WORKER]) {
        return run_schema_worker();
    }
    set_panic_hook();
    if logs_json() {
        report::be_json();
    }
    ended(parse().and_then(|(cli, notes)| dispatch(cli, &notes)))
}

/// Returns the exit code of a command that has ended, and prints why it failed to stderr.
pub fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(message) = failure::message(&error) {
                report::fail(&message);
            }
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

/// Parses the command line. Also returns notes for the user about how the arguments and the environment were
/// understood. Ends the program if help is asked for, or if the arguments cannot be parsed.
fn parse() -> anyhow::Result<(Cli, Vec<String>)> {
    let command = command_line();
    let habits::Translated { args, notes } = habits::translate(std::env::args_os().collect(), &command)?;
    let lines = notes.into_iter().map(|note| format!("note: {note}")).chain(habits::of_environment(&args, &command));
    let lines = lines.collect();
    let mut command = config_file::apply(command, &args)?;
    let matches = command.try_get_matches_from_mut(args);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command)));
    Ok((cli.unwrap_or_else(|error| usage::exit(usage::mended(error, &command))), lines))
}

/// Returns clap's description of all commands and their options.
fn command_line() -> clap::Command {
    config_file::offer(Cli::command()).mut_subcommand("serve", serve::arrange_help)
}

/// Returns whether logs should be JSON. The arguments are searched before they are parsed, so that parse errors are
/// JSON too.
fn logs_json() -> bool {
    let mut words = std::env::args_os().skip(1).map_while(|word| (word != "--").then_some(word));
    while let Some(word) = words.next() {
        if word == "--log-format=json" || (word == "--log-format" && words.next().is_some_and(|next| next == "json")) {
            return true;
        }
    }
    false
}

fn dispatch(cli: Cli, notes: &[String]) -> anyhow::Result<()> {
    let usual = match cli.command {
        _ if cli.quiet => 0,
        Command::Serve(_) => 2,
        _ => 1,
    };
    if cli.quiet {
        report::be_quiet();
    }
    let as_json = matches!(&cli.command, Command::Serve(args) if args.log_format == serve::LogFormat::Json);
    if as_json {
        report::be_json();
    }
    start_logging(cli.verbose.saturating_add(usual), as_json)?;
    notes.iter().for_each(|note| report::report!("{note}"));
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Serve(args) => serve::run(*args),
        Command::Info(args) => info::run(args),
        Command::Models(args) => models::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Remove(args) => remove::run(args),
        Command::Running(args) => running::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Erase(args) => erase::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Completions(args) => completions::complete(&args, command_line()),
        Command::Man(args) => completions::man(&args, command_line()),
    }
}

/// Sends logs to stderr. If `RUST_LOG` is set, it filters the logs. Otherwise `verbosity` filters them, from errors
/// only at 0 to everything at 4.
///
/// # Errors
/// Fails if `RUST_LOG` is not a valid filter.
pub fn start_logging(verbosity: u8, as_json: bool) -> anyhow::Result<()> {
    let levels = ["error", "warn", "info", "info,interbed=debug", "debug,interbed=trace"];
    let usual = levels[usize::from(verbosity).min(levels.len() - 1)];
    let filter = match std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty()) {
        Some(filter) => EnvFilter::builder().parse(&filter).with_context(|| {
            format!("RUST_LOG is {filter:?}, which is no filter; write for instance interbed=debug")
        })?,
        None => EnvFilter::new(usual),
    };
    let colours = colours::are_wanted(std::io::stderr().is_terminal());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    match as_json {
        // Log collectors expect one flat JSON object per line.
        true => logs.with_ansi(false).json().flatten_event(true).with_span_list(false).init(),
        false => logs.init(),
    }
    Ok(())
}

/// Installs a panic hook that hides some panics from users. `println!` panics when the reader of a pipe has ended, as
/// in `interbed bench | head -1`. This is not a failure, so the hook ends the program with exit code 0. The
/// `tokenizers` crate panics on some invalid input. Such a panic is caught elsewhere and becomes an error, so the hook
/// only logs it.
pub fn set_panic_hook() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if message.starts_with("failed printing to stdout") && message.contains("Broken pipe") {
            std::process::exit(0);
        }
        if quiet_panics::hold_back(panic) {
            return;
        }
        match panic.location().filter(|location| location.file().contains("/tokenizers-")) {
            Some(location) => tracing::warn!("the tokenizer library gave up at {location}"),
            None if report::is_json() => report::fail(&panic.to_string()),
            None => usual(panic),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }
}
