//! Models by name: what is asked for is found on the Hub, refused if it cannot run here, and only then fetched.

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
use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::model_dir::ModelDir;
use crate::options::{HubOptions, LimitOptions};
use crate::progress;
use crate::report::{is_quiet, report};
use crate::{short_names, unknown_name};

/// Pace of the lines that tell how far a download is where no bar can be drawn, as in logs.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// The branch that a name means which says none.
const MAIN: &str = "main";

/// Digits of a commit that are shown.
const COMMIT_SHOWN: usize = 8;

/// Who is told of a commit, of how many bytes of it are there, and of how many will be.
pub type Tell<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Where the model lies, to be loaded for this audience: a path is taken as it is, a name is fetched if the cache lacks
/// it. What cannot be computed, or has too little memory even if it is streamed, is refused after its headers were
/// read.
///
/// # Errors
/// No such model, no permission, no network, no room; a model that cannot run here.
pub fn local(model: Option<&Path>, limits: &LimitOptions, audience: Audience<'_>) -> Result<Option<PathBuf>> {
    fetched(model, &limits.hub, &|dir| divide(dir, limits, audience), &|_, _, _| ())
}

/// Where the model lies, to be read and not to be loaded.
///
/// # Errors
/// As [`local`], but for memory.
pub fn whole(model: &Path, options: &HubOptions) -> Result<PathBuf> {
    whole_telling(model, options, &|_, _, _| ())
}

/// Where the model lies, to be read and not to be loaded. While bytes come, `tell` is told of which commit they are,
/// how many are there, and how many will be.
///
/// # Errors
/// No such model, no permission, no network, no room; a model that cannot run here.
pub fn whole_telling(model: &Path, options: &HubOptions, tell: Tell<'_>) -> Result<PathBuf> {
    let path = fetched(Some(model), options, &|_| Ok(None), tell)?;
    Ok(path.unwrap_or_else(|| model.to_owned()))
}

/// Where the model lies; a name is looked for in the cache alone.
///
/// # Errors
/// It is not in the cache.
pub fn cached(model: &Path, options: &HubOptions) -> Result<PathBuf> {
    let Some(name) = named(Some(model), options)? else { return Ok(model.to_owned()) };
    let hub = open(&HubOptions { offline: true, ..options.clone() })?;
    Ok(hub.find_here(&name)?.path())
}

/// A model in the cache, all of it.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The short name if it has one, and its name on the Hub.
    pub names: Vec<String>,
    /// Where it lies.
    pub path: PathBuf,
}

/// The full name of a model on the Hub that a text means, with its host, so that no path is meant; `None` if it is no
/// name.
///
/// # Errors
/// A short name that stands for nothing.
pub fn full_name(text: &str) -> Result<Option<String>> {
    let long = short_names::find(text)?;
    let text = long.as_deref().unwrap_or(text);
    let Some(HubName { owner, model, revision, tag }) = HubName::read(text) else { return Ok(None) };
    let revision = revision.map_or_else(String::new, |revision| format!("@{revision}"));
    let tag = tag.map_or_else(String::new, |tag| format!(":{tag}"));
    Ok(Some(format!("hf.co/{owner}/{model}{tag}{revision}")))
}

/// All models that the cache has wholly, by name. Of several GGUF files, each is a model.
///
/// # Errors
/// The cache cannot be read.
pub fn all_fetched(options: &HubOptions) -> Result<Vec<Fetched>> {
    let hub = open(&HubOptions { offline: true, ..options.clone() })?;
    let mut all = Vec::new();
    for model in hub.cache().list()? {
        // Only what a branch or a tag leads to: older ones were replaced.
        let Some(revision) = model.revisions.iter().find(|known| *known == MAIN).or(model.revisions.first()) else {
            continue;
        };
        let at = if revision == MAIN { String::new() } else { format!("@{revision}") };
        let mut names = gguf_names(&hub, &format!("{}{at}", model.name));
        names.insert(0, format!("{}{at}", model.name));
        for name in names {
            let Some(path) = HubName::read(&name).and_then(|name| Some(hub.find_here(&name).ok()?.path())) else {
                continue;
            };
            // The name alone means one of the GGUF files, whose own name says which.
            let has_own = !name[model.name.len()..].contains(':') && path.is_file();
            if !has_own && !all.iter().any(|known: &Fetched| known.path == path) {
                all.push(Fetched { names: short_names::of(&name).into_iter().chain([name]).collect(), path });
            }
        }
    }
    Ok(all)
}

/// The names of the GGUF files that the cache has of a model.
fn gguf_names(hub: &Hub, name: &str) -> Vec<String> {
    let Some(read) = HubName::read(name) else { return Vec::new() };
    let Some(commit) = hub.cache().commit(&read, read.revision()) else { return Vec::new() };
    let (files, _) = hub.cache().files(&read, &commit);
    let paths: Vec<&str> = files.keys().map(String::as_str).collect();
    // What no file has is refused with what they have.
    match choose(&paths, FileWish { tag: Some("?"), shards: None }) {
        Err(ChoiceProblem::NoSuchTag { available, .. }) => {
            available.iter().map(|tag| format!("{name}:{tag}")).collect()
        }
        _ => Vec::new(),
    }
}

/// Where a model lies that the cache has, by a name on the Hub or a short one. Paths are none.
pub fn path_of(name: &str, options: &HubOptions) -> Option<PathBuf> {
    let long = short_names::find(name).ok()?;
    let name = HubName::read(long.as_deref().unwrap_or(name))?;
    let hub = open(&HubOptions { offline: true, ..options.clone() }).ok()?;
    Some(hub.find_here(&name).ok()?.path())
}

/// Opens a model to look at it. Of a name that the cache lacks, headers and small files are fetched, but no weights.
///
/// # Errors
/// No such model, no permission, no network; a model that cannot be computed.
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

/// The names that clients may use for `model`, which is one on the Hub: `org/name`, and the short one if it was asked
/// for by that.
pub fn names_of(model: Option<&Path>) -> Vec<String> {
    let Some(text) = model.filter(|model| !model.exists()).and_then(Path::to_str) else { return Vec::new() };
    let long = |text: &str| HubName::read(text).map(|name| name.repository());
    match short_names::find(text) {
        Ok(Some(model)) => long(&model).into_iter().chain([text.to_owned()]).collect(),
        _ => long(text).into_iter().collect(),
    }
}

/// The repository that `model` names, and whether it is meant as a whole and not one revision or file of it. `None` if
/// it is no name.
///
/// # Errors
/// A short name that stands for nothing, or a word that is no name.
pub fn repository(model: &Path) -> Result<Option<(HubName, bool)>> {
    let Some(text) = model.to_str() else { return Ok(None) };
    if let Some(model) = short_names::find(text)? {
        return Ok(HubName::read(&model).map(|name| (name, true)));
    }
    check(Some(model))?;
    Ok(HubName::read(text).map(|name| {
        let is_whole = name.revision.is_none() && name.tag.is_none();
        (name, is_whole)
    }))
}

/// Refuses what is neither a path nor a name, and looks like neither, such as a prompt in the place of MODEL.
///
/// # Errors
/// It is such a word or text: the message says what may have been meant.
pub fn check(model: Option<&Path>) -> Result<()> {
    let Some(text) = model.filter(|model| !model.exists()).and_then(Path::to_str) else { return Ok(()) };
    if short_names::find(text)?.is_some() || HubName::read(text).is_some() {
        return Ok(());
    }
    let cache = HubCache::new(settings(&HubOptions::default())?.cache);
    unknown_name::refusal(text, &cache).map_or(Ok(()), Err)
}

/// The settings of the environment, and what options say beside them.
///
/// # Errors
/// An address or token that cannot be used, or no folder for the cache.
pub fn settings(options: &HubOptions) -> Result<HubSettings> {
    let settings = HubSettings::from_env().map_err(|problem| {
        Advised::input(problem.to_string(), "correct the variable, or give the path of a model that is here")
    })?;
    Ok(HubSettings { offline: settings.offline || options.offline, ..settings })
}

fn open(options: &HubOptions) -> Result<Hub> {
    Ok(Hub::open(&settings(options)?)?)
}

/// The name that `model` is; `None` if it is a path. What lies in the file system wins.
fn named(model: Option<&Path>, options: &HubOptions) -> Result<Option<HubName>> {
    check(model)?;
    let text = model.filter(|model| !model.exists()).and_then(Path::to_str);
    let long = text.map(short_names::find).transpose()?.flatten();
    if let (Some(short), Some(long)) = (text, &long) {
        report!("{short} is {long}");
    }
    let name = long.as_deref().or(text).and_then(HubName::read);
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

/// The model as its headers and small files say, checked like one that is here. Small files are fetched.
fn from_headers(found: &HubModel<'_>) -> Result<ModelDir> {
    // What cannot be computed needs no tokenizer and no headers.
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

/// Divides memory as loading will, but for a tokenizer that is not opened yet: a refusal should come at once.
fn divide(dir: &ModelDir, limits: &LimitOptions, audience: Audience<'_>) -> Result<Option<MemoryPlan>> {
    if limits.compute.device != DeviceOption::Cpu {
        // A GPU's memory is known once it is asked.
        return Ok(None);
    }
    let surroundings = Surroundings { footprint: Footprint::ahead(dir.config.vocab_size), audience };
    Ok(Some(dir.divide(budget(limits)?, limits, &surroundings)?.plan))
}

/// What fetching took is over, and none of the memory that loading counts on: how much it was at most is forgotten,
/// so that a model needs the same memory whether it was fetched just now or not.
pub fn forget_peak() {
    give_back_freed();
    // The kernel's word for the peak alone. Where it refuses, a budget near the least may be refused this once.
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

/// `1.2 GiB of 4.5 GiB (110 MB/s, 32 s left)`, of which `came` bytes came within `elapsed`.
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
