//! `interbed completions` and `interbed man`: write completions for shells, and manual pages.

use std::io::{Write, stdout};

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Advised;

/// Print a script with which a shell completes the command line when Tab is pressed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed completions bash > ~/.local/share/bash-completion/completions/interbed\n  \
    interbed completions zsh > ~/.zfunc/_interbed              # with fpath+=~/.zfunc before compinit in ~/.zshrc\n  \
    interbed completions fish > ~/.config/fish/completions/interbed.fish")]
pub struct CompletionsArgs {
    /// The shell that will use the script
    pub shell: Shell,
}

/// Print a manual page
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed man | man -l -\n  \
    interbed man serve > ~/.local/share/man/man1/interbed-serve.1")]
pub struct ManArgs {
    /// The command whose manual page is printed. By default, the page is about `interbed` as a whole.
    pub command: Option<String>,
}

/// Runs `interbed completions` for the command line `root`.
///
/// # Errors
/// Fails if stdout cannot be written.
pub fn complete(args: &CompletionsArgs, mut root: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut root, "interbed", &mut script);
    write_out(&script)
}

/// Runs `interbed man` for the command line `root`.
///
/// # Errors
/// Fails if the command does not exist, or stdout cannot be written.
pub fn man(args: &ManArgs, mut root: Command) -> Result<()> {
    root.build();
    let page = match &args.command {
        None => root,
        Some(name) => root
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| Advised::input(format!("there is no command {name}"), "`interbed --help` lists them"))?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    write_out(&text)
}

fn write_out(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}
