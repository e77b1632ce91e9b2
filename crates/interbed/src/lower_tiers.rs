//! The tiers of KV below memory, such as a disk and a store that servers share. They outlive the process, so they are
//! used only once the identity of the model is known.

use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{LaterTiers, TierBelow};
use interbed_io::DiskTurns;
use interbed_model::config::ModelConfig;
use interbed_model::{ARITHMETIC_REVISION, RECORDED_LEVELS};
use interbed_weights::Catalog;

use crate::fingerprint::Fingerprint;
use crate::identity::WeightsIdentity;
use crate::kv_disk::KV_DISK;
use crate::kv_remote::KV_REMOTE;
use crate::options::LimitOptions;
use crate::report::report;
use crate::tier_kind::{OpenTier, PreparedTier, StoredKv, TierKind};

/// The kinds of tiers, nearest first. A further tier is a file that says what a [`TierKind`] has to say, and a line
/// here.
const KINDS: &[TierKind] = &[KV_DISK, KV_REMOTE];

/// The tiers that the options ask for, checked but not in use yet.
pub struct LowerTiers {
    /// The tiers, farthest first, because the names of blocks come from there.
    places: Vec<Box<dyn PreparedTier>>,
    /// Identifies the KV that this model computes, except for its weights.
    fingerprint: Fingerprint,
    /// The identity of the weights, or `None` if the options ask for no tiers.
    weights: Option<WeightsIdentity>,
}

/// The tiers of a model whose identity is known, nearest first, in use from now on.
#[derive(Default)]
pub struct OpenTiers {
    tiers: Vec<OpenTier>,
    long_tokens: usize,
}

/// Tiers of a model whose identity is known now, or will be known later.
pub enum Below {
    Now(OpenTiers),
    Later(Box<LowerTiers>),
}

impl LowerTiers {
    /// Checks the tiers that the options ask for. The text `computes` names what computes KV, which is the processor's
    /// instruction level or a GPU. KV that is computed differently differs in some bits, so it is not shared.
    ///
    /// # Errors
    /// Fails if a directory, an address or a key cannot be used.
    pub fn prepare(
        (config, weights): (&ModelConfig, Option<&WeightsIdentity>),
        limits: &LimitOptions,
        total: Bytes,
        stored: &StoredKv<'_>,
        computes: &str,
    ) -> Result<Self> {
        let mut fingerprint = Fingerprint::default();
        fingerprint.field("arithmetic", &ARITHMETIC_REVISION.to_le_bytes());
        fingerprint.field("computes", computes.as_bytes());
        if !RECORDED_LEVELS.contains(&computes) {
            fingerprint.field("version", env!("CARGO_PKG_VERSION").as_bytes());
        }
        // KV does not depend on the texts of tokens, so the tokenizer is not part of the fingerprint.
        fingerprint.field("configuration", format!("{:?}", config.blueprint).as_bytes());
        fingerprint.field("layout", format!("{:?}", stored.layout).as_bytes());
        let wanted = KINDS.iter().rev().filter(|_| weights.is_some());
        let places = wanted.map(|kind| (kind.prepare)(limits, total, stored)).filter_map(Result::transpose);
        let places = places.collect::<Result<_>>()?;
        Ok(Self { places, fingerprint, weights: weights.cloned() })
    }

    /// Returns whether `limits` ask for any tier.
    pub fn are_wanted(limits: &LimitOptions) -> bool {
        KINDS.iter().any(|kind| (kind.is_wanted)(limits))
    }

    /// Returns the number of slots for swapped KV of the nearest tier that takes such KV, or `None` if there is no such
    /// tier.
    pub fn num_slots(&self) -> Option<usize> {
        self.places.iter().rev().find_map(|place| place.num_slots())
    }

    /// Returns the turns by which KV and weights share a disk, or `None` if they are on different disks.
    pub fn turns(&self, weights: &Catalog) -> Option<Arc<DiskTurns>> {
        self.places.iter().find_map(|place| place.turns(weights))
    }

    /// Opens the tiers of a model whose weights are all in memory.
    ///
    /// # Errors
    /// Fails if a tier cannot be opened, or the model's files have changed while they were read.
    pub fn open_loaded(self) -> Result<OpenTiers> {
        let identity = self.weights.as_ref().map(WeightsIdentity::complete_now).transpose()?;
        identity.map_or(Ok(OpenTiers::default()), |identity| self.open(identity))
    }

    /// Opens the tiers of a model whose weights are streamed, if the model's identity is known by now.
    ///
    /// # Errors
    /// Fails like [`open_loaded`](Self::open_loaded).
    pub fn open_known(self) -> Result<Below> {
        let Some(weights) = &self.weights else { return Ok(Below::Now(OpenTiers::default())) };
        match weights.known()? {
            Some(identity) => self.open(identity).map(Below::Now),
            // If no tier could be prepared, for instance because another server uses the directory, nothing waits for
            // the identity.
            None if self.places.is_empty() => Ok(Below::Now(OpenTiers::default())),
            None => {
                report!("KV below           waits until the model was read wholly once, which tells what it is");
                Ok(Below::Later(Box::new(self)))
            }
        }
    }

    fn open(mut self, weights: [u8; 32]) -> Result<OpenTiers> {
        self.fingerprint.field("weights", &weights);
        let fingerprint = self.fingerprint.digest();
        let long_tokens = self.long_tokens()?;
        let mut names = None;
        let tiers = self.places.into_iter().map(|place| place.open(fingerprint, &mut names));
        let mut tiers = tiers.collect::<Result<Vec<_>>>()?;
        tiers.reverse();
        Ok(OpenTiers { tiers, long_tokens })
    }

    /// Returns the number of tokens that a sequence may have in a tier if it is longer than memory.
    fn long_tokens(&self) -> Result<usize> {
        let tokens = self.places.iter().map(|place| place.long_tokens()).collect::<Result<Vec<_>>>()?;
        Ok(tokens.into_iter().max().unwrap_or(0))
    }

    /// Returns the memory that the tiers take of a budget of `total` bytes.
    pub fn memory(limits: &LimitOptions, total: Bytes, stored: &StoredKv<'_>) -> Bytes {
        KINDS.iter().fold(Bytes(0), |sum, kind| Bytes(sum.0.saturating_add((kind.memory)(limits, total, stored).0)))
    }
}

impl OpenTiers {
    /// Returns the number of blocks that were found in the tiers, and that may soon be read.
    pub fn found(&self) -> usize {
        self.tiers.iter().map(|tier| tier.found).sum()
    }
}

impl Below {
    /// Returns the number of tokens that a sequence may have on disk.
    pub fn long_tokens(&self) -> Result<usize> {
        match self {
            Self::Now(tiers) => Ok(tiers.long_tokens),
            Self::Later(tiers) => tiers.long_tokens(),
        }
    }

    /// Returns the tiers in the form that the engine takes. If the model's identity is not known, a thread finds it
    /// out.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn attachments(self) -> Result<(Vec<TierBelow>, Option<LaterTiers>)> {
        let long_tokens = self.long_tokens()?;
        let tiers = match self {
            Self::Now(OpenTiers { tiers, .. }) => {
                return Ok((tiers.into_iter().map(|tier| tier.below).collect(), None));
            }
            Self::Later(tiers) => tiers,
        };
        let (sender, receiver) = channel();
        let find_out = move || {
            let found = tiers.weights.as_ref().map(WeightsIdentity::complete).transpose();
            match found.and_then(|found| tiers.open(found.context("there are weights")?)) {
                // If the engine has ended, it needs no tiers.
                Ok(OpenTiers { tiers, .. }) => {
                    drop(sender.send(tiers.into_iter().map(|tier| tier.below).collect()));
                }
                Err(error) => tracing::warn!("KV is kept in memory alone: {error:#}"),
            }
        };
        std::thread::Builder::new().name("identity".into()).spawn(find_out).context("cannot start a thread")?;
        Ok((Vec::new(), Some(LaterTiers { tiers: receiver, long_tokens })))
    }
}
