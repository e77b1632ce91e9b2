//! The models of a server that was started without a MODEL: all models in the Hub cache, and the bundled one.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use interbed_server::{
    Library, LibraryError, LibraryModel, LoadProgress, ModelDescription, ModelFacts, PullStep, ServedModel,
    ServerConfig,
};

use tokio::sync::{Semaphore, mpsc};

use super::configure::config;
use super::fetching;
use crate::audience::Audience;
use crate::bundled::bundled_model;
use crate::failure;
use crate::footprint::Footprint;
use crate::hub::{self, Fetched};
use crate::load;
use crate::model_dir::ModelDir;
use crate::model_facts::model_facts;
use crate::opened::Opened;
use crate::options::LimitOptions;
use crate::report::report;
use crate::sampling::{self, model_defaults};
use crate::small_files;

/// The time for which a list of the models is used before it is read again.
const LISTED_FOR: Duration = Duration::from_secs(2);

/// The maximum number of models that are fetched at a time.
const FETCHED_AT_A_TIME: usize = 2;

/// The models in the cache and the model that ships with Interbed. The server loads them on request.
pub struct CacheLibrary {
    base: ServerConfig,
    limits: LimitOptions,
    max_waiting: usize,
    /// The model that ships with Interbed.
    bundled: Option<PathBuf>,
    shelf: Arc<Mutex<Shelf>>,
    /// Limits how many models are fetched at a time.
    fetching: Arc<Semaphore>,
}

/// A cache of what was read from the disk.
#[derive(Default)]
struct Shelf {
    listed: Option<(Instant, Arc<[Fetched]>)>,
    /// The facts about the model at each path, with the state of the model's files when they were read.
    facts: HashMap<PathBuf, (FileState, Option<ModelFacts>)>,
}

/// The time of modification and the length of a file, or `None` if the file cannot be read.
type FileState = Option<(SystemTime, u64)>;

impl CacheLibrary {
    /// Opens the library. Models are loaded within `limits`, and `base` is the part of their configuration that they
    /// share. If more than `max_waiting` requests wait, further requests are refused.
    ///
    /// # Errors
    /// Fails if the cache cannot be read.
    pub fn open(base: ServerConfig, limits: LimitOptions, max_waiting: usize) -> Result<Self> {
        let bundled = bundled_model().inspect_err(|error| report!("note: {error:#}")).ok();
        let library = Self {
            base,
            limits,
            max_waiting,
            bundled,
            shelf: Arc::default(),
            fetching: Arc::new(Semaphore::new(FETCHED_AT_A_TIME)),
        };
        library.look()?;
        Ok(library)
    }

    /// Returns the first name of each model.
    pub fn names(&self) -> Vec<String> {
        self.models().into_iter().filter_map(|model| model.names.into_iter().next()).collect()
    }

    /// Returns the models that are on this machine now, whether they can be used or not.
    fn look(&self) -> Result<Arc<[Fetched]>> {
        if let Some((at, listed)) = &self.shelf().listed
            && at.elapsed() < LISTED_FOR
        {
            return Ok(listed.clone());
        }
        let bundled = self.bundled.iter().map(|path| {
            let name =
                path.file_name().map_or_else(|| "storyteller".into(), |name| name.to_string_lossy().into_owned());
            Fetched { names: vec![name], path: path.clone() }
        });
        let listed: Arc<[Fetched]> = bundled.chain(hub::all_fetched(&self.limits.hub)?).collect();
        self.shelf().listed = Some((Instant::now(), listed.clone()));
        Ok(listed)
    }

    fn found(&self, name: &str) -> Result<Fetched> {
        let found = self.look()?.iter().find(|model| model.names.iter().any(|known| known == name)).cloned();
        found.with_context(|| format!("{name} is not on this machine any more"))
    }

    /// Returns the facts about a model from its files, or `None` if the files cannot be used, which is logged once.
    fn facts(&self, model: &Fetched) -> Option<ModelFacts> {
        let state = state_of(&model.path);
        if let Some((known, facts)) = self.shelf().facts.get(&model.path)
            && *known == state
        {
            return facts.clone();
        }
        let read = ModelDir::open(Some(&model.path)).map(|dir| model_facts(&dir, false));
        let facts = read.inspect_err(|error| tracing::warn!("{} is not listed: {error:#}", model.names[0])).ok();
        self.shelf().facts.insert(model.path.clone(), (state, facts.clone()));
        facts
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_now(&self, name: &str, progress: Arc<LoadProgress>) -> Result<ServedModel> {
        let Fetched { names, path } = self.found(name)?;
        // The peak of memory that the last model used is forgotten, so that this model's plan does not depend on it.
        hub::forget_peak();
        let mut limits = self.limits.clone();
        limits.watch = Some(progress);
        let mut opened = Opened::open(Some(&path))?;
        opened.footprint = Footprint::in_server(&opened.tokenizer);
        let loaded = load::load(opened, &limits, Audience::Clients, self.max_waiting)?;
        sampling::tell(&loaded.generation, &model_defaults(&loaded.generation));
        let config = config(ServerConfig { model_names: names, ..self.base.clone() }, &loaded);
        let (engine, tokenizer, template) = (loaded.engine.handle(), loaded.tokenizer.clone(), loaded.template.clone());
        Ok(ServedModel { config, engine, tokenizer, template, keeper: Box::new(loaded) })
    }

    fn description(&self, name: &str) -> Result<ModelDescription> {
        let dir = ModelDir::open(Some(&self.found(name)?.path))?;
        Ok(ModelDescription {
            facts: model_facts(&dir, false),
            context: dir.config.blueprint.context,
            vocabulary: dir.config.blueprint.vocab_size,
            sampling: model_defaults(&dir.generation),
            template: dir.template()?.map(Arc::new),
            embeds: small_files::pooling(&dir.catalog, &dir.path).is_ok(),
        })
    }
}

impl Library for CacheLibrary {
    fn models(&self) -> Vec<LibraryModel> {
        let listed = self.look().inspect_err(|error| tracing::error!("the models cannot be listed: {error:#}"));
        let listed = listed.unwrap_or_default();
        self.shelf().facts.retain(|path, _| listed.iter().any(|model| model.path == *path));
        let usable = listed.iter().filter_map(|model| {
            let facts = self.facts(model)?;
            Some(LibraryModel { names: model.names.clone(), facts })
        });
        usable.collect()
    }

    fn find(&self, name: &str) -> Option<String> {
        let listed = self.look().ok()?;
        let name = name.strip_suffix(":latest").unwrap_or(name);
        let by_name = || listed.iter().find(|model| model.names.iter().any(|known| known == name));
        // A name may be written in several ways that lead to the same files.
        let by_path = || {
            let path = hub::path_of(name, &self.limits.hub)?;
            listed.iter().find(|model| model.path == path)
        };
        by_name().or_else(by_path).and_then(|model| model.names.first().cloned())
    }

    fn describe(&self, name: &str) -> Result<ModelDescription, LibraryError> {
        self.description(name).map_err(|error| refused(&error))
    }

    fn pull(&self, name: &str) -> mpsc::Receiver<Result<PullStep, LibraryError>> {
        let (told, steps) = mpsc::channel(4);
        let begin = || {
            let name = name.strip_suffix(":latest").unwrap_or(name);
            let full = hub::full_name(name).map_err(|error| refused(&error))?;
            let Some(full) = full else {
                let hint = "a model on the Hub is named ORG/NAME, or ORG/NAME:QUANT for one of several GGUF files";
                return Err(LibraryError::Unfit(format!("this is no name of a model; {hint}")));
            };
            let Ok(place) = self.fetching.clone().try_acquire_owned() else {
                let message = format!("{FETCHED_AT_A_TIME} models are being fetched; try again later");
                return Err(LibraryError::Busy(message));
            };
            let shelf = self.shelf.clone();
            let (offline, told) = (self.limits.hub.offline, told.clone());
            fetching::begin(&full, offline, told, place, move || {
                // The next look at the list must find the new model.
                shelf.lock().unwrap_or_else(PoisonError::into_inner).listed = None;
            })
        };
        if let Err(error) = begin() {
            // The channel is empty, and its receiver exists, so sending cannot fail.
            let _ = told.try_send(Err(error));
        }
        steps
    }

    fn load(&self, name: &str, progress: Arc<LoadProgress>) -> Result<ServedModel, LibraryError> {
        self.load_now(name, progress).map_err(|error| refused(&error))
    }
}

/// Returns the error that a client gets for a failure, with the message of the command line.
fn refused(error: &anyhow::Error) -> LibraryError {
    let told = failure::message(error).unwrap_or_default();
    let told = told.strip_prefix("error: ").unwrap_or(&told).lines().map(str::trim).collect::<Vec<_>>().join("; ");
    match failure::exit_code(error) {
        failure::BAD_INPUT => LibraryError::Unfit(told),
        _ => LibraryError::Failed(told),
    }
}

fn state_of(path: &Path) -> FileState {
    let found = fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}
