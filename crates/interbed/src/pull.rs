//! `interbed pull`: a model by name is fetched, and not loaded.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::failure::Advised;
use crate::hub;
use crate::model_dir::ModelDir;
use crate::options::HubOptions;

/// Fetch a model by name, to be used later, also without a network
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed pull HuggingFaceTB/SmolLM2-135M-Instruct\n  \
    interbed pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
    interbed pull llama3.2:1b                               # the same, by ollama's name\n\n\
    What cannot be computed is refused before its weights are fetched. `interbed list` tells what there is, `interbed \
    rm` removes it. Every command that takes a MODEL fetches it, too.")]
pub struct PullArgs {
    /// The model's name: ORG/NAME, ORG/NAME@REVISION, ORG/NAME:QUANT for one of several GGUF files, or a short name
    pub model: PathBuf,

    #[command(flatten)]
    pub hub: HubOptions,
}

/// Runs `interbed pull`: the model's path goes to stdout.
///
/// # Errors
/// No such model, no permission, no network, no room; a model that cannot be computed.
pub fn run(args: PullArgs) -> Result<()> {
    if args.model.exists() {
        let model = args.model.display();
        return Err(Advised::input(
            format!("{model} is a path that is here, and nothing is fetched for it"),
            format!("use it: `interbed run {model}`; a model on the Hub is named ORG/NAME"),
        ));
    }
    if hub::repository(&args.model)?.is_none() {
        // It is told what names look like.
        ModelDir::open(Some(&args.model))?;
    }
    println!("{}", hub::whole(&args.model, &args.hub)?.display());
    Ok(())
}
