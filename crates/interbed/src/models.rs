//! `interbed models`: lists the models in the Hub cache.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use interbed_device::Bytes;
use interbed_hub::{CachedModel, HubCache};
use serde_json::{Value, json};

use crate::hub;
use crate::options::HubOptions;
use crate::printable::print_answer;

/// List the models that were fetched by name, with their sizes and paths
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed models\n  \
    interbed models --json | jq -r '.models[].path'\n\n\
    The cache is that of Python's huggingface_hub too, in HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub. \
    `interbed pull NAME` fetches a model, `interbed rm NAME` removes one.")]
pub struct ModelsArgs {
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `interbed models`.
///
/// # Errors
/// Fails if the cache cannot be read.
pub fn run(args: ModelsArgs) -> Result<()> {
    let cache = HubCache::new(hub::settings(&HubOptions::default())?.cache);
    let models = cache.list()?;
    let list = || models.iter().map(to_json).collect::<Vec<_>>();
    let json = || json!({ "cache": cache.root().display().to_string(), "models": list() });
    Ok(print_answer(args.json, json, || table(&cache, &models))?)
}

fn table(cache: &HubCache, models: &[CachedModel]) -> String {
    let root = cache.root().display();
    if models.is_empty() {
        return format!("{root} has no models; `interbed pull ORG/NAME` fetches one\n");
    }
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for model in models {
        let revisions = if model.revisions.is_empty() { "-".to_owned() } else { model.revisions.join(", ") };
        let commit = model.commit.get(..8).unwrap_or("-");
        let size = Bytes(model.bytes).to_string();
        text.push_str(&format!("{:width$}  {size:>10}  {commit:8}  {revisions}\n", model.name));
        text.push_str(&format!("  {}\n", model.path.display()));
        if !model.broken.is_empty() {
            text.push_str(&format!("  the contents of {} are gone\n", model.broken.join(", ")));
        }
    }
    let folders: BTreeSet<_> = models.iter().map(|model| (&model.folder, model.unfinished)).collect();
    for (folder, unfinished) in folders.iter().filter(|(_, unfinished)| *unfinished > 0) {
        let (folder, unfinished) = (folder.display(), Bytes(*unfinished));
        text.push_str(&format!(
            "{unfinished} in {folder} were not fetched to the end; they are taken up when named again\n"
        ));
    }
    text.push_str(&format!("\nTo remove one: interbed rm ORG/NAME, or rm -r {root}/models--ORG--NAME\n"));
    text
}

fn to_json(model: &CachedModel) -> Value {
    json!({
        "name": model.name,
        "commit": model.commit,
        "revisions": model.revisions,
        "path": model.path.display().to_string(),
        "folder": model.folder.display().to_string(),
        "files": model.files,
        "bytes": model.bytes,
        "unfinished_bytes": model.unfinished,
        "broken": model.broken,
    })
}
