//! The tiers of KV below memory: a disk, and a store that servers share. Both outlive the process, so they are used
//! only once the identity of the model is known.

use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{LaterTiers, TierBelow, TierPolicy};
use interbed_io::DiskTurns;
use interbed_kernels::KvLayout;
use interbed_kv::{FrameTier, LowerTier};
use interbed_kv_remote::RemoteTier;
use interbed_model::config::ModelConfig;
use interbed_model::{ARITHMETIC_REVISION, RECORDED_LEVELS};
use interbed_weights::Catalog;

use crate::fingerprint::Fingerprint;
use crate::identity::WeightsIdentity;
use crate::kv_disk::{DiskPlace, OpenDisk};
use crate::kv_remote::RemotePlace;
use crate::options::LimitOptions;
use crate::report::report;
use crate::{kv_disk, kv_remote};

/// The tiers that the options ask for, checked but not in use yet.
pub struct LowerTiers {
    places: Places,
    /// Identifies the KV that this model computes, except for its weights.
    fingerprint: Fingerprint,
    /// The identity of the weights, or `None` if the options ask for no tiers.
    weights: Option<WeightsIdentity>,
}

struct Places {
    disk: Option<DiskPlace>,
    remote: Option<RemotePlace>,
}

/// The tiers of a model whose identity is known, in use from now on.
#[derive(Default)]
pub struct OpenTiers {
    pub kv_disk: Option<OpenDisk>,
    pub kv_remote: Option<RemoteTier>,
}

/// Tiers of a model whose identity is known now, or will be known later.
pub enum Below {
    Now(Box<OpenTiers>),
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
        layout: &KvLayout,
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
        fingerprint.field("layout", format!("{layout:?}").as_bytes());
        let places = match weights {
            Some(_) => Places {
                remote: kv_remote::prepare(limits, total, layout)?,
                disk: kv_disk::prepare(limits, total, layout)?,
            },
            None => Places { remote: None, disk: None },
        };
        Ok(Self { places, fingerprint, weights: weights.cloned() })
    }

    /// Returns whether `limits` ask for any tier.
    pub fn are_wanted(limits: &LimitOptions) -> bool {
        let disk = limits.kv_disk.as_ref().is_some_and(|options| options.kv_disk.is_some());
        disk || limits.kv_remote.as_ref().is_some_and(|options| options.kv_remote.is_some())
    }

    /// Returns the number of slots that the store of KV on disk has for swapped KV, or `None` if there is no such
    /// store.
    pub fn num_slots(&self) -> Option<usize> {
        self.places.disk.as_ref().map(DiskPlace::num_slots)
    }

    /// Returns the turns by which KV and weights share a disk, or `None` if they are on different disks.
    pub fn turns(&self, weights: &Catalog) -> Option<Arc<DiskTurns>> {
        self.places.disk.as_ref()?.turns(weights)
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
        let Some(weights) = &self.weights else { return Ok(Below::Now(Box::default())) };
        match weights.known()? {
            Some(identity) => self.open(identity).map(|tiers| Below::Now(Box::new(tiers))),
            // If no tier could be prepared, for instance because another server uses the directory, nothing waits for
            // the identity.
            None if self.places.disk.is_none() && self.places.remote.is_none() => Ok(Below::Now(Box::default())),
            None => {
                report!("KV below           waits until the model was read wholly once, which tells what it is");
                Ok(Below::Later(Box::new(self)))
            }
        }
    }

    fn open(mut self, weights: [u8; 32]) -> Result<OpenTiers> {
        self.fingerprint.field("weights", &weights);
        let fingerprint = self.fingerprint.digest();
        let Places { disk, remote } = self.places;
        let kv_remote = remote.map(|remote| remote.open(fingerprint)).transpose()?;
        // A block has the same name in both tiers.
        let names = kv_remote.as_ref().map(|remote| remote.key_chain().clone());
        let kv_disk = disk.map(|disk| disk.open(fingerprint, names)).transpose()?;
        Ok(OpenTiers { kv_disk, kv_remote })
    }

    /// Returns the memory that the tiers take of a budget of `total` bytes.
    pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
        let (disk, remote) = (kv_disk::memory(limits, total, layout), kv_remote::memory(limits, total, layout));
        Bytes(disk.0.saturating_add(remote.0))
    }
}

impl OpenTiers {
    /// Returns the tiers in the form that the engine takes, nearest first. A further tier is one more line here.
    fn nearest_first(self) -> Vec<TierBelow> {
        let disk = self.kv_disk.map(|disk| TierBelow { tier: Box::new(disk.tier), policy: disk.policy });
        let remote = self.kv_remote.map(|tier| TierBelow { tier: Box::new(tier), policy: TierPolicy::SHARED });
        disk.into_iter().chain(remote).collect()
    }
}

impl Below {
    /// Returns the number of tokens that a sequence may have on disk.
    pub fn long_tokens(&self) -> Result<usize> {
        Ok(match self {
            Self::Now(tiers) => tiers.kv_disk.as_ref().map_or(0, |disk| disk.tier.capacity_tokens()),
            Self::Later(tiers) => tiers.places.disk.as_ref().map(DiskPlace::capacity_tokens).transpose()?.unwrap_or(0),
        })
    }

    /// Returns the tiers in the form that the engine takes. If the model's identity is not known, a thread finds it
    /// out.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn attachments(self) -> Result<(Vec<TierBelow>, Option<LaterTiers>)> {
        let long_tokens = self.long_tokens()?;
        let tiers = match self {
            Self::Now(tiers) => return Ok((tiers.nearest_first(), None)),
            Self::Later(tiers) => tiers,
        };
        let (sender, receiver) = channel();
        let find_out = move || {
            let found = tiers.weights.as_ref().map(WeightsIdentity::complete).transpose();
            match found.and_then(|found| tiers.open(found.context("there are weights")?)) {
                // If the engine has ended, it needs no tiers.
                Ok(tiers) => drop(sender.send(tiers.nearest_first())),
                Err(error) => tracing::warn!("KV is kept in memory alone: {error:#}"),
            }
        };
        std::thread::Builder::new().name("identity".into()).spawn(find_out).context("cannot start a thread")?;
        Ok((Vec::new(), Some(LaterTiers { tiers: receiver, long_tokens })))
    }
}
