//! Models by name: finds a model on the Hub, refuses it if it cannot run here, and only then fetches it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use interbed_device::{Bytes, give_back_freed};
use interbed_engine::MemoryPlan;
use interbed_hub::{ChoiceProblem, FileWish, Hub, HubCache, HubModel, HubName, HubSettings, choose};
use interbed_weights::Catalog;

use crate::audience::{Audience, Surroundings};
use crate::budget::budget;
use crate::device_option::DeviceOption;
use crate::division::Division;
use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::model_dir::ModelDir;
use crate::options::{HubOptions, LimitOptions};
use crate::progress;
use crate::report::{is_quiet, report};
use crate::{short_names, unknown_name};

/// The interval between progress lines of a download if no progress bar can be drawn, as in logs.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// The branch that a name without a revision means.
const MAIN: &str = "main";

/// The number of digits of a commit that are shown.
const COMMIT_SHOWN: usize = 8;

/// A callback for the progress of a download: the commit, the bytes that are present, and the total bytes.
pub type Tell<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Returns the local path of a model that will be loaded. A path is returned unchanged. A model on the Hub is fetched
/// if it is not in the cache. Before its weights are fetched, the model is refused if its headers show that it is not
/// supported or cannot run in the available memory.
///
/// # Errors
/// Fails if the model does not exist, access is denied, there is no network or no disk space, or the model cannot run
/// here.
pub fn local(model: Option<&Path>, limits: &LimitOptions, audience: Audience<'_>) -> Result<Option<PathBuf>> {
    fetched(model, &limits.hub, &|dir| divide(dir, limits, audience), &|_, _, _| ())
}

/// Returns the path of a model whose files will be read but not loaded.
///
/// # Errors
/// Fails like [`local`], but not because of too little memory.
pub fn whole(model: &Path, options: &HubOptions) -> Result<PathBuf> {
    whole_telling(model, options, &|_, _, _| ())
}

/// Returns the path of a model whose files will be read but not loaded. If the model must be downloaded, `tell` is
/// called with the progress.
///
/// # Errors
/// Fails if the model does not exist, access is denied, there is no network or no disk space, or Interbed does not
/// support the model.
pub fn whole_telling(model: &Path, options: &HubOptions, tell: Tell<'_>) -> Result<PathBuf> {
    let path = fetched(Some(model), options, &|_| Ok(None), tell)?;
    Ok(path.unwrap_or_else(|| model.to_owned()))
}

/// Returns the local path of a model. Looks up a name in the cache only, without network access.
///
/// # Errors
/// Fails if the cache does not have the model.
pub fn cached(model: &Path, options: &HubOptions) -> Result<PathBuf> {
    let Some(name) = named(Some(model), options)? else { return Ok(model.to_owned()) };
    let hub = open(&HubOptions { offline: true, ..options.clone() })?;
    Ok(hub.find_here(&name)?.path())
}

/// A model that is complete in the cache.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The model's short name, if it has one, and its name on the Hub.
    pub names: Vec<String>,
    /// The path of the model.
    pub path: PathBuf,
}

/// Returns the full name of a model on the Hub, such as `hf.co/org/name`. `text` is the model's name on the Hub or its
/// short name. The full name begins with the host, so it cannot be mistaken for a path. Returns `None` if `text` is not
/// a name.
///
/// # Errors
/// Fails if the text is a short name that stands for no model.
pub fn full_name(text: &str) -> Result<Option<String>> {
    let long = short_names::find(text)?;
    let text = long.as_deref().unwrap_or(text);
    let Some(HubName { owner, model, revision, tag }) = name_in(text) else { return Ok(None) };
    let revision = revision.map_or_else(String::new, |revision| format!("@{revision}"));
    let tag = tag.map_or_else(String::new, |tag| format!(":{tag}"));
    Ok(Some(format!("hf.co/{owner}/{model}{tag}{revision}")))
}

/// Returns all models that are complete in the cache, with their names. If a repository has several GGUF models, each
/// of them is listed.
///
/// # Errors
/// Fails if the cache cannot be read.
pub fn all_fetched(options: &HubOptions) -> Result<Vec<Fetched>> {
    let hub = open(&HubOptions { offline: true, ..options.clone() })?;
    let mut all = Vec::new();
    for model in hub.cache().list()? {
        // Only revisions that a branch or tag names are listed; others were replaced by them.
        let Some(revision) = model.revisions.iter().find(|known| *known == MAIN).or(model.revisions.first()) else {
            continue;
        };
        let at = if revision == MAIN { String::new() } else { format!("@{revision}") };
        let mut names = gguf_names(&hub, &format!("{}{at}", model.name));
        names.insert(0, format!("{}{at}", model.name));
        for name in names {
            let Some(path) = name_in(&name).and_then(|name| Some(hub.find_here(&name).ok()?.path())) else {
                continue;
            };
            // A name without a tag is left out if it stands for a single GGUF file, because that file is listed under
            // its own name.
            let has_own = !name[model.name.len()..].contains(':') && path.is_file();
            if !has_own && !all.iter().any(|known: &Fetched| known.path == path) {
                all.push(Fetched { names: short_names::of(&name).into_iter().chain([name]).collect(), path });
            }
        }
    }
    Ok(all)
}

/// Returns the names of a model's GGUF files that are in the cache.
fn gguf_names(hub: &Hub, name: &str) -> Vec<String> {
    let Some(read) = name_in(name) else { return Vec::new() };
    let Some(commit) = hub.cache().commit(&read, read.revision()) else { return Vec::new() };
    let (files, _) = hub.cache().files(&read, &commit);
    let paths: Vec<&str> = files.keys().map(String::as_str).collect();
    // Asking for a tag that no file has returns an error with the tags that exist.
    match choose(&paths, FileWish { tag: Some("?"), shards: None }) {
        Err(ChoiceProblem::NoSuchTag { available, .. }) => {
            available.iter().map(|tag| format!("{name}:{tag}")).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the path of the model `name` in the cache. `name` is the model's name on the Hub or its short name. Returns
/// `None` if `name` is neither, or if the cache does not have the model.
pub fn path_of(name: &str, options: &HubOptions) -> Option<PathBuf> {
    let long = short_names::find(name).ok()?;
    let name = name_in(long.as_deref().unwrap_or(name))?;
    let hub = open(&HubOptions { offline: true, ..options.clone() }).ok()?;
    Some(hub.find_here(&name).ok()?.path())
}

/// Opens a model that will be described but not loaded. If the cache lacks the model, only its headers and small files
/// are downloaded, but no weights.
///
/// # Errors
/// Fails if the model does not exist or is not supported, access is denied, or there is no network.
pub fn glance(model: Option<&Path>, options: &HubOptions) -> Result<ModelDir> {
    let Some(name) = named(model, options)? else { return ModelDir::open(model) };
    let hub = open(options)?;
    let found = hub.find(&name)?;
    if found.is_complete() {
        found.settle();
        return ModelDir::open(Some(&found.path()));
    }
    let dir = from_headers(&found)?;
    report!("{}", announcement(&found, "would be", None));
    Ok(dir)
}

/// Returns the names that clients may use for `model`: `org/name`, and also `model` itself if it is a short name.
/// Returns no names if `model` is a path.
pub fn names_of(model: Option<&Path>) -> Vec<String> {
    let Some(text) = model.filter(|model| !model.exists()).and_then(Path::to_str) else { return Vec::new() };
    let long = |text: &str| name_in(text).map(|name| name.repository());
    match short_names::find(text) {
        Ok(Some(model)) => long(&model).into_iter().chain([text.to_owned()]).collect(),
        _ => long(text).into_iter().collect(),
    }
}

/// Returns the Hub name that `model` stands for, and whether it stands for the whole repository rather than one
/// revision or file. Short names count as the whole repository. Returns `None` if `model` has the form of a path.
///
/// # Errors
/// Fails if `model` is a short name that stands for no model, or is neither a path nor a model's name.
pub fn repository(model: &Path) -> Result<Option<(HubName, bool)>> {
    let Some(text) = model.to_str() else { return Ok(None) };
    if let Some(model) = short_names::find(text)? {
        return Ok(name_in(&model).map(|name| (name, true)));
    }
    check(Some(model))?;
    Ok(name_in(text).map(|name| {
        let is_whole = name.revision.is_none() && name.tag.is_none();
        (name, is_whole)
    }))
}

/// Checks that the MODEL argument `model` is a path or a model's name, and not, for example, a prompt.
///
/// # Errors
/// Fails if `model` is neither a path nor a model's name. The message says what the user may have meant.
pub fn check(model: Option<&Path>) -> Result<()> {
    let Some(text) = model.filter(|model| !model.exists()).and_then(Path::to_str) else { return Ok(()) };
    if short_names::find(text)?.is_some() || name_in(text).is_some() {
        return Ok(());
    }
    let cache = HubCache::new(settings(&HubOptions::default())?.cache);
    unknown_name::refusal(text, &cache).map_or(Ok(()), Err)
}

/// Returns the Hub settings from the environment, combined with `options`.
///
/// # Errors
/// Fails if an address or a token is invalid, or there is no folder for the cache.
pub fn settings(options: &HubOptions) -> Result<HubSettings> {
    let settings = HubSettings::from_env().map_err(|problem| {
        Advised::input(problem.to_string(), "correct the variable, or give the path of a model that is here")
    })?;
    Ok(HubSettings { offline: settings.offline || options.offline, ..settings })
}

fn open(options: &HubOptions) -> Result<Hub> {
    Ok(Hub::open(&settings(options)?)?)
}

/// Returns the Hub name that a text means, or `None` if the text is not a Hub name. The address of a file whose first
/// part is a folder here is not a Hub name, but the path of a missing file.
fn name_in(text: &str) -> Option<HubName> {
    let is_file = text.ends_with(".gguf") && !text.contains([':', '@']);
    let is_path = is_file && Path::new(text).components().next().is_some_and(|first| Path::new(&first).is_dir());
    HubName::read(text).filter(|_| !is_path)
}

/// Returns the Hub name that `model` means, or `None` if `model` is a path. An existing file or folder takes
/// precedence.
fn named(model: Option<&Path>, options: &HubOptions) -> Result<Option<HubName>> {
    check(model)?;
    let text = model.filter(|model| !model.exists()).and_then(Path::to_str);
    let long = text.map(short_names::find).transpose()?.flatten();
    if let (Some(short), Some(long)) = (text, &long) {
        report!("{short} is {long}");
    }
    let name = long.as_deref().or(text).and_then(name_in);
    match (name, &options.revision) {
        (Some(name), revision) => Ok(Some(name.at(revision.as_deref())?)),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Advised::input(
            "--revision is for models by name, but MODEL is none",
            "give ORG/NAME as MODEL, or leave --revision out",
        )),
    }
}

fn fetched(
    model: Option<&Path>,
    options: &HubOptions,
    check: &dyn Fn(&ModelDir) -> Result<Option<MemoryPlan>>,
    tell: Tell<'_>,
) -> Result<Option<PathBuf>> {
    let Some(name) = named(model, options)? else { return Ok(model.map(Path::to_owned)) };
    let hub = open(options)?;
    let found = hub.find(&name)?;
    if found.is_complete() {
        found.settle();
        return Ok(Some(found.path()));
    }
    found.check_room()?;
    let plan = check(&from_headers(&found)?)?;
    report!("{}", announcement(&found, "to be", plan.as_ref()));
    fetch(&found, tell)?;
    let path = found.path();
    drop(found);
    drop(hub);
    forget_peak();
    Ok(Some(path))
}

/// Returns the model as its headers and small files describe it, checked like a local one. The small files are
/// fetched.
fn from_headers(found: &HubModel<'_>) -> Result<ModelDir> {
    // A model that cannot be computed is refused before its tokenizer and headers are fetched.
    if !found.is_gguf() {
        found.fetch_config()?;
        interbed_model::config::ModelConfig::from_dir(found.folder())?;
    }
    found.fetch_small()?;
    let files = found.headers()?;
    let catalog = match found.index() {
        _ if found.is_gguf() => Catalog::from_gguf_files(files)?,
        Some(index) => Catalog::from_shards(&index, files)?,
        None => Catalog::from_files(files)?,
    };
    ModelDir::of(found.path(), catalog)
}

/// Divides memory like loading will, with an estimate for the tokenizer, so that a refusal comes before the download.
fn divide(dir: &ModelDir, limits: &LimitOptions, audience: Audience<'_>) -> Result<Option<MemoryPlan>> {
    if limits.compute.device != DeviceOption::Cpu {
        // A GPU's memory is known only once the GPU is opened.
        return Ok(None);
    }
    let surroundings = Surroundings { footprint: Footprint::ahead(dir.config.blueprint.vocab_size), audience };
    Ok(Some(Division::of(&dir.needs(limits, &surroundings)?, budget(limits)?, None)?.plan))
}

/// Resets the peak memory of the process, from which the footprint is computed when a model is loaded. A download must
/// have freed its memory before this call. Without the reset, a model would seem to need more memory if it was just
/// downloaded.
pub fn forget_peak() {
    give_back_freed();
    // The write asks the kernel to reset the peak of memory. If the kernel refuses, a budget near the minimum may be
    // refused this once.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn announcement(found: &HubModel<'_>, is: &str, plan: Option<&MemoryPlan>) -> String {
    let (all, missing) = (Bytes(found.bytes()).to_string(), Bytes(found.bytes_missing()).to_string());
    let of = if all == missing { String::new() } else { format!(" of {all}") };
    let free = found.bytes_free().map_or_else(String::new, |free| format!("; the disk has {} free", Bytes(free)));
    let fits = match plan {
        None => String::new(),
        Some(plan) if plan.streamed => format!(
            "\n{} of {} will hold about {} of its weights; the rest is streamed from the disk in each pass",
            "--memory",
            plan.budget.total(),
            plan.weights
        ),
        Some(plan) => format!("\nits weights fit into --memory {}", plan.budget.total()),
    };
    let commit = &found.commit[..COMMIT_SHOWN.min(found.commit.len())];
    let (name, files) = (found.name.repository(), found.num_files());
    format!("{name} at {commit}: {missing}{of} {is} fetched, {files} files{free}{fits}")
}

fn fetch(found: &HubModel<'_>, tell: Tell<'_>) -> Result<()> {
    let (all, missing) = (found.bytes(), found.bytes_missing());
    let bar = progress::bytes("fetching", all);
    let (begun, told) = (Instant::now(), Mutex::new(Instant::now()));
    let outcome = found.fetch(&|bytes| {
        match u64::try_from(bytes) {
            Ok(more) => bar.inc(more),
            Err(_) => bar.dec(bytes.unsigned_abs()),
        }
        tell(&found.commit, bar.position(), all);
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if bar.is_hidden() && !is_quiet() && told.elapsed() > TOLD_EVERY {
            *told = Instant::now();
            let have = bar.position();
            let came = have.saturating_sub(all - missing);
            report!("fetching: {}", told_progress(have, all, came, begun.elapsed()));
        }
    });
    bar.finish_and_clear();
    outcome?;
    let seconds = begun.elapsed().as_secs_f64().max(1e-3);
    let rate = missing as f64 / 1e6 / seconds;
    report!("fetched {} in {seconds:.1} s ({rate:.0} MB/s), every file as its digest says", Bytes(missing));
    Ok(())
}

/// Returns a text such as `1.2 GiB of 4.5 GiB (110 MB/s, 32 s left)`, if `came` bytes were fetched within `elapsed`.
fn told_progress(have: u64, all: u64, came: u64, elapsed: Duration) -> String {
    let rate = came as f64 / elapsed.as_secs_f64().max(1e-3);
    let pace = match rate > 0.0 {
        true => format!(" ({:.0} MB/s, {:.0} s left)", rate / 1e6, all.saturating_sub(have) as f64 / rate),
        false => String::new(),
    };
    format!("{} of {}{pace}", Bytes(have), Bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_what_came_since_it_began() {
        let told = |have, came| told_progress(have, 10 << 30, came, Duration::from_secs(10));
        assert_eq!(told(6 << 30, 1 << 30), "6.00 GiB of 10.0 GiB (107 MB/s, 40 s left)");
        assert_eq!(told(5 << 30, 0), "5.00 GiB of 10.0 GiB");
    }
}
