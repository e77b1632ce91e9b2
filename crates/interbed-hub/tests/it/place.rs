//! A Hub and a cache for tests.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use interbed_hub::testing::{FileContent, LocalHub};
use interbed_hub::{Hub, HubError, HubName, HubPatience, HubProblem, HubSettings, RANGE_BYTES};
use tempfile::TempDir;

/// The number of bytes of the weights, which fill several ranges and end within one.
pub const WEIGHTS: u64 = 3 * RANGE_BYTES + 12_345;

/// A Hub with the model `org/name`, and an empty cache.
pub struct Place {
    pub hub: LocalHub,
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self::empty();
        place.add("config.json", "{}");
        place.add_weights("model.safetensors", WEIGHTS);
        place
    }

    /// Creates a Hub with a model that has no files yet.
    pub fn empty() -> Self {
        Self { hub: LocalHub::start(), folder: tempfile::tempdir().unwrap() }
    }

    pub fn settings(&self) -> HubSettings {
        let cache = self.folder.path().to_owned();
        HubSettings { endpoint: self.hub.endpoint(), token: Some("hf_secret".into()), cache, offline: false }
    }

    pub fn offline(&self) -> HubSettings {
        HubSettings { offline: true, ..self.settings() }
    }

    /// Returns the model's folder in the cache.
    pub fn model(&self) -> PathBuf {
        self.folder.path().join("models--org--name")
    }

    /// Returns the path of a file's content in the cache.
    pub fn blob_of(&self, path: &str) -> PathBuf {
        self.model().join("blobs").join(self.hub.digest("org/name", path))
    }

    /// Adds a small file.
    pub fn add(&self, path: &str, text: &str) {
        self.hub.add("org/name", path, FileContent::Bytes(text.into()), false);
    }

    /// Adds a large file.
    pub fn add_weights(&self, path: &str, bytes: u64) {
        self.hub.add("org/name", path, FileContent::Made(bytes), true);
    }

    /// Returns the number of requests for a file.
    pub fn asked_for(&self, path: &str) -> usize {
        let end = format!("/{path}");
        self.hub.seen().iter().filter(|seen| seen.target.ends_with(&end)).count()
    }

    /// Returns the path of the weights' content in the cache.
    pub fn blob(&self) -> PathBuf {
        self.blob_of("model.safetensors")
    }

    pub fn fetch(&self) -> Result<(), HubError> {
        fetch(&self.settings(), "org/name")
    }

    /// Downloads the model, and checks that the weights are complete.
    pub fn fetches(&self) {
        self.fetch().unwrap();
        assert_eq!(fs::metadata(self.blob()).unwrap().len(), WEIGHTS);
        assert!(!self.blob().with_extension("incomplete").exists());
    }
}

/// Waiting times that are short enough for tests.
pub const SHORT: HubPatience = HubPatience {
    wait: Duration::from_millis(1),
    wait_max: Duration::from_millis(5),
    answer: Duration::from_secs(30),
    standstill: Duration::from_secs(2),
};

pub fn open(settings: &HubSettings) -> Hub {
    Hub::open_with(settings, SHORT).unwrap()
}

pub fn named(name: &str) -> HubName {
    HubName::read(name).unwrap()
}

pub fn fetch(settings: &HubSettings, name: &str) -> Result<(), HubError> {
    open(settings).find(&named(name))?.fetch(&|_| ())
}

pub fn problem(outcome: Result<(), HubError>) -> HubProblem {
    outcome.expect_err("it should fail").problem
}
