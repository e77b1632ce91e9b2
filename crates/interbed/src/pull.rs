//! `interbed pull`: fetches a model by name, without loading it.

use std::io::{self, Write, stdout};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Advised;
use crate::hub;
use crate::model_dir::ModelDir;
use crate::options::HubOptions;

/// Download a model by name, so that it can be used later, even without a network
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

    /// Print one JSON object per line to stdout: first the progress, and at the end the path
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub hub: HubOptions,
}

/// The minimum time between two progress lines of `--json`.
const TOLD_EVERY: Duration = Duration::from_millis(250);

/// Runs `interbed pull`, which prints the model's path to stdout.
///
/// # Errors
/// Fails if the model does not exist, if access is denied, if the network cannot be reached, if there is too little
/// disk space, or if Interbed cannot run the model.
pub fn run(args: PullArgs) -> Result<()> {
    if args.model.exists() {
        let model = args.model.display();
        return Err(Advised::input(
            format!("{model} is a path that is here, and nothing is fetched for it"),
            format!("use it: `interbed run {model}`; a model on the Hub is named ORG/NAME"),
        ));
    }
    if hub::repository(&args.model)?.is_none() {
        // The error says what names of models look like.
        ModelDir::open(Some(&args.model))?;
    }
    if args.json {
        return run_telling(&args);
    }
    println!("{}", hub::whole(&args.model, &args.hub)?.display());
    Ok(())
}

/// Fetches the model, and prints progress and at last the path to stdout, as JSON lines.
fn run_telling(args: &PullArgs) -> Result<()> {
    let told_at = Mutex::new(None::<Instant>);
    let path = hub::whole_telling(&args.model, &args.hub, &|commit, done, all| {
        let mut told_at = told_at.lock().unwrap_or_else(PoisonError::into_inner);
        if done == all || told_at.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
            *told_at = Some(Instant::now());
            if tell(&json!({"commit": commit, "completed": done, "total": all})).is_err() {
                // The reader of stdout has ended, so the download stops. Bytes that were fetched are kept.
                std::process::exit(0);
            }
        }
    })?;
    Ok(tell(&json!({"path": path.display().to_string()}))?)
}

fn tell(value: &Value) -> io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}
