//! The tiers of KV below memory: a disk, and a store that servers share. They outlive the process, so nothing goes
//! there, and nothing comes, before it is known what the model is.

use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use interbed_device::Bytes;
use interbed_engine::{LaterTiers, TiersBelow};
use interbed_io::DiskTurns;
use interbed_kernels::KvLayout;
use interbed_model::config::ModelConfig;
use interbed_model::{ARITHMETIC_REVISION, RECORDED_LEVELS};
use interbed_weights::Catalog;

use crate::fingerprint::Fingerprint;
use crate::identity::WeightsIdentity;
use crate::kv_disk::DiskPlace;
use crate::kv_remote::RemotePlace;
use crate::options::LimitOptions;
use crate::report::report;
use crate::{kv_disk, kv_remote};

/// What was asked for: nothing has come from there or gone there yet.
pub struct LowerTiers {
    places: Places,
    /// What tells this model's KV from any other's, but for its weights.
    fingerprint: Fingerprint,
    /// `None` where nothing was asked for.
    weights: Option<WeightsIdentity>,
}

struct Places {
    disk: Option<DiskPlace>,
    remote: Option<RemotePlace>,
}

/// Tiers whose model is known, or will be.
pub enum Below {
    Now(TiersBelow),
    Later(LowerTiers),
}

impl LowerTiers {
    /// Checks what was asked for, for the KV of this model; `computes` says what computes it: a processor's level, or a
    /// GPU. KV that another one computed is not this one's to the bit.
    ///
    /// # Errors
    /// A directory, an address or a key that cannot be used.
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
        // Of tokens and their texts, KV depends on the tokens alone, by which it is named.
        fingerprint.field("configuration", format!("{config:?}").as_bytes());
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

    /// Whether `limits` ask for any.
    pub fn are_wanted(limits: &LimitOptions) -> bool {
        let disk = limits.kv_disk.as_ref().is_some_and(|options| options.kv_disk.is_some());
        disk || limits.kv_remote.as_ref().is_some_and(|options| options.kv_remote.is_some())
    }

    /// Turns at the disk that KV and weights share, if they do.
    pub fn turns(&self, weights: &Catalog) -> Option<Arc<DiskTurns>> {
        self.places.disk.as_ref()?.turns(weights)
    }

    /// Opens the tiers of a model whose weights are all in memory.
    ///
    /// # Errors
    /// A tier that cannot be opened; files that were changed while they were read.
    pub fn open_loaded(self) -> Result<TiersBelow> {
        let identity = self.weights.as_ref().map(WeightsIdentity::complete_now).transpose()?;
        identity.map_or(Ok(TiersBelow::default()), |identity| self.open(identity))
    }

    /// Opens the tiers of a model whose weights are streamed, if it is known by now.
    ///
    /// # Errors
    /// As [`open_loaded`](Self::open_loaded).
    pub fn open_known(self) -> Result<Below> {
        let Some(weights) = &self.weights else { return Ok(Below::Now(TiersBelow::default())) };
        match weights.known()? {
            Some(identity) => self.open(identity).map(Below::Now),
            // Another server has the directory: nothing waits for what the model is.
            None if self.places.disk.is_none() && self.places.remote.is_none() => Ok(Below::Now(TiersBelow::default())),
            None => {
                report!("KV below           waits until the model was read wholly once, which tells what it is");
                Ok(Below::Later(self))
            }
        }
    }

    fn open(mut self, weights: [u8; 32]) -> Result<TiersBelow> {
        self.fingerprint.field("weights", &weights);
        let fingerprint = self.fingerprint.digest();
        let Places { disk, remote } = self.places;
        let kv_remote = remote.map(|remote| remote.open(fingerprint)).transpose()?;
        // A block has one name, wherever it is.
        let names = kv_remote.as_ref().map(|remote| remote.key_chain().clone());
        let kv_disk = disk.map(|disk| disk.open(fingerprint, names)).transpose()?;
        Ok(TiersBelow { kv_disk, kv_remote })
    }

    /// Memory that they take of a budget of `total`.
    pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
        let (disk, remote) = (kv_disk::memory(limits, total, layout), kv_remote::memory(limits, total, layout));
        Bytes(disk.0.saturating_add(remote.0))
    }
}

impl Below {
    /// Tokens that a sequence may have on disk.
    pub fn long_tokens(&self) -> Result<usize> {
        Ok(match self {
            Self::Now(tiers) => tiers.kv_disk.as_ref().map_or(0, |disk| disk.tier.capacity_tokens()),
            Self::Later(tiers) => tiers.places.disk.as_ref().map(DiskPlace::capacity_tokens).transpose()?.unwrap_or(0),
        })
    }

    /// As an engine is given them: what is not known yet is found out by a thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn attachments(self) -> Result<(TiersBelow, Option<LaterTiers>)> {
        let long_tokens = self.long_tokens()?;
        let tiers = match self {
            Self::Now(tiers) => return Ok((tiers, None)),
            Self::Later(tiers) => tiers,
        };
        let (sender, receiver) = channel();
        let find_out = move || {
            let found = tiers.weights.as_ref().map(WeightsIdentity::complete).transpose();
            match found.and_then(|found| tiers.open(found.context("there are weights")?)) {
                // An engine that has ended needs none.
                Ok(tiers) => drop(sender.send(tiers)),
                Err(error) => tracing::warn!("KV is kept in memory alone: {error:#}"),
            }
        };
        std::thread::Builder::new().name("identity".into()).spawn(find_out).context("cannot start a thread")?;
        Ok((TiersBelow::default(), Some(LaterTiers { tiers: receiver, long_tokens })))
    }
}
