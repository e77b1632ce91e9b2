//! `interbed rm`: removes models that were fetched by name.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use interbed_device::Bytes;
use interbed_hub::HubCache;

use crate::failure::Advised;
use crate::hub;
use crate::options::HubOptions;
use crate::report::report;

/// Remove from the cache models that were fetched by name
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed rm HuggingFaceTB/SmolLM2-135M-Instruct\n  \
    interbed rm llama3.2:1b\n\n\
    All that the cache has of a model goes, whichever revision or file it is; Python's huggingface_hub uses the same \
    cache. `interbed list` tells what there is.")]
pub struct RemoveArgs {
    /// The models' names, as `interbed list` shows them
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,
}

/// Runs `interbed rm`.
///
/// # Errors
/// Fails if a model is not in the cache; in this case, no model is removed. Also fails if a folder cannot be removed.
pub fn run(args: RemoveArgs) -> Result<()> {
    let cache = HubCache::new(hub::settings(&HubOptions::default())?.cache);
    let here = cache.list()?;
    let mut found = Vec::new();
    for model in &args.models {
        let shown = model.display();
        let (name, is_whole) = match hub::repository(model) {
            Ok(Some(found)) => found,
            other => {
                let problem =
                    other.err().map_or_else(|| format!("{shown} is no model's name"), |error| error.to_string());
                let hint =
                    "`interbed list` tells the names; what is no part of the cache is removed by you: rm -r PATH";
                return Err(Advised::input(problem, hint));
            }
        };
        if !is_whole {
            return Err(Advised::input(
                format!("{shown} names one revision or file, but a model is removed as a whole"),
                format!("interbed rm {}", name.repository()),
            ));
        }
        let folder = cache.folder(&name);
        if !folder.is_dir() {
            return Err(Advised::input(
                format!("the cache has nothing of {}", name.repository()),
                "`interbed list` tells what it has",
            ));
        }
        let bytes = here.iter().filter(|model| model.folder == folder).map(|model| model.bytes).sum();
        found.push((name.repository(), folder, Bytes(bytes)));
    }
    for (name, folder, bytes) in found {
        fs::remove_dir_all(&folder).map_err(|error| {
            Advised::system(format!("cannot remove {}", folder.display()), "make it writable for this user", error)
        })?;
        report!("removed {name}, {bytes}");
    }
    Ok(())
}
