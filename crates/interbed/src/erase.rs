//! `interbed erase`: erases the KV of one client from a directory of `--kv-disk`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use interbed_kv_disk::{Directory, DirectoryError, erase};

use crate::failure::Advised;
use crate::progress;

/// Erase the data of all clients with one API key from a directory of --kv-disk
///
/// The KV and the prompts of these clients are overwritten, for all models. If a record also holds blocks of other
/// clients, these blocks are lost, too, and are computed again when they are needed. No server may use the directory
/// meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed erase /var/cache/interbed --api-key sk-…   # what clients with this key have there\n  \
    interbed erase /var/cache/interbed                  # what clients have that sent no key\n\n\
    To erase all, remove the directory. Neither removes what a file system or a drive keeps of earlier versions.")]
pub struct EraseArgs {
    /// The directory that was given to `interbed serve --kv-disk`
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// The API key of the clients. Without this option, erases the data that was stored while the server required no
    /// key.
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
}

/// Runs `interbed erase`.
///
/// # Errors
/// Fails if the directory is not a KV store, or a server uses it, or the disk fails.
pub fn run(args: EraseArgs) -> Result<()> {
    // Opening a directory that does not exist would create it.
    if !Directory::is_one(&args.directory) {
        let message = format!("{} is no directory of --kv-disk", args.directory.display());
        return Err(Advised::input(message, "name the one that `interbed serve --kv-disk` was given"));
    }
    let directory = Directory::open(&args.directory).map_err(|error| match error {
        DirectoryError::Busy { .. } => Advised::input(error.to_string(), "stop the server that uses it first"),
        error => error.into(),
    })?;
    let tenant = args.api_key.as_deref().map(interbed_server::tenant_of_key);
    let bar = progress::steps("erasing", 0);
    let erased = erase(&directory, tenant, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    println!(
        "erased {} blocks in {} records; {} blocks of others in them are forgotten",
        erased.blocks, erased.records, erased.others
    );
    Ok(())
}
