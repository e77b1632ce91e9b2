//! What a budget allows for streamed weights, computed before any is read.

use std::sync::Arc;

use interbed_io::{DiskTurns, EngineKind};

use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::group::GroupSpec;
use crate::partition::Partition;
use crate::window::{
    Credits, Policy, ResidentConfig, RingConfig, TierConfig, Tiers, TiersConfig, UnitId, Window, WindowConfig,
};

/// The most streamed bands that one call of `bands` takes.
pub const BANDS_STREAMED: usize = 8;

/// Slots on a device that bands pass through, if there may be so many: some are computed with, others copied to.
const DEVICE_SLOTS: usize = 2 * BANDS_STREAMED;

/// How often a band's read is tried before the pass fails.
const LOAD_ATTEMPTS: u32 = 3;

/// Which bands stay in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPolicy {
    /// A fixed subset stays, the rest passes through.
    Resident,
    /// Everything passes through a sliding window.
    Ring,
}

/// How weights are streamed.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// The most bytes of memory that all of it may take.
    pub budget: u64,
    /// Which engine reads.
    pub engine: EngineKind,
    /// The most reads at a time.
    pub depth: usize,
    /// The disk's measured rate in bytes per second, for the statistics; 0 if it was not measured.
    pub disk_bytes_per_s: f64,
    /// Which bands stay.
    pub policy: StreamPolicy,
    /// Whether every read, wait and computation is recorded.
    pub timeline: bool,
    /// The most tokens of a pass for which the host computes with what stays in its memory beside a device of its own,
    /// instead of having it copied there; 0 for none.
    pub host_tokens_max: usize,
    /// Turns at the disk, if others use it whose reads and writes should give way.
    pub turns: Option<Arc<DiskTurns>>,
}

/// Weights to be streamed, before any is read, and what a budget allows for them.
#[derive(Debug)]
pub struct StreamPlan {
    pub(super) partition: Partition,
}

impl StreamPlan {
    /// Checks every tensor against its spec, and cuts matrices into bands of about `band_bytes`: one read each.
    ///
    /// # Errors
    /// If a tensor is missing, or has another shape or a type that is not supported.
    pub fn new(catalog: &Catalog, specs: &[GroupSpec], band_bytes: usize) -> Result<Self, WeightError> {
        Partition::of_catalog(catalog, specs, band_bytes).map(|partition| Self { partition })
    }

    /// How the model is cut.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Bytes of weights that would stay in memory under [`StreamPolicy::Resident`]: the most that `config`'s budget can
    /// hold.
    ///
    /// # Errors
    /// A budget below [`Partition::least_budget`].
    pub fn resident_bytes(&self, config: &StreamConfig) -> Result<u64, WeightError> {
        let window = self.window(&StreamConfig { policy: StreamPolicy::Resident, ..config.clone() })?;
        Ok(self.partition.bytes_where(|band| window.is_resident(UnitId(band))))
    }

    pub(super) fn window(&self, config: &StreamConfig) -> Result<Window, WeightError> {
        let partition = &self.partition;
        let policy = match config.policy {
            StreamPolicy::Resident => Policy::Resident(ResidentConfig { stream_slots: self.slots(config) }),
            StreamPolicy::Ring => {
                Policy::Ring(RingConfig { slots: true, ..RingConfig::host(partition.layers_of_bands()) })
            }
        };
        Ok(Window::new(WindowConfig {
            unit_bytes: partition.bands().iter().map(|band| band.memory() as u64).collect(),
            order: (0..partition.bands().len() as u32).map(UnitId).collect(),
            budget: partition.divide(config.budget).0,
            policy,
            load_attempts: LOAD_ATTEMPTS,
        })?)
    }

    /// Windows of two tiers: the host's as [`window`](Self::window), the device's within `device_budget`.
    pub(super) fn tiers(&self, config: &StreamConfig, device_budget: u64) -> Result<Tiers, WeightError> {
        let partition = &self.partition;
        let (slots, layers) = (self.device_slots(device_budget), partition.layers_of_bands());
        let policies = match config.policy {
            StreamPolicy::Resident => {
                let policy = |stream_slots| Policy::Resident(ResidentConfig { stream_slots });
                [policy(self.slots(config)), policy(slots)]
            }
            StreamPolicy::Ring => {
                let host = RingConfig { slots: true, ..RingConfig::host(layers.clone()) };
                let device = RingConfig { slots: true, ..RingConfig::device(layers) };
                [Policy::Ring(host), Policy::Ring(device)]
            }
        };
        let [host, device] = policies;
        // The embedding's rows and all vectors have memory of their own.
        let [of_host, of_device] =
            [config.budget, device_budget].map(|all| all.saturating_sub(partition.fixed_bytes()));
        Ok(Tiers::new(TiersConfig {
            unit_bytes: partition.bands().iter().map(|band| band.memory() as u64).collect(),
            order: (0..partition.bands().len() as u32).map(UnitId).collect(),
            host: TierConfig { budget: of_host, policy: host },
            device: TierConfig { budget: of_device, policy: device },
            load_attempts: LOAD_ATTEMPTS,
            credits: Credits::default(),
        })?)
    }

    /// The number of slots that bands pass through: enough to keep the disk busy while a few bands are computed with,
    /// but only a small part of the budget.
    pub(super) fn slots(&self, config: &StreamConfig) -> usize {
        let of_bands = self.partition.fixed_bytes().saturating_add(self.partition.divide(config.budget).0);
        self.slots_within(of_bands, 2 * config.depth + 2 * BANDS_STREAMED)
    }

    /// The number of slots that bands pass through on a device.
    pub(super) fn device_slots(&self, budget: u64) -> usize {
        self.slots_within(budget, DEVICE_SLOTS)
    }

    /// `wished` slots, or as many as a small part of a budget pays for, but no fewer than bands are swept side by side.
    fn slots_within(&self, budget: u64, wished: usize) -> usize {
        let least = self.partition.slots_least();
        let affordable = (budget / 16).checked_div(self.partition.largest_band() as u64).unwrap_or(0);
        wished.min(usize::try_from(affordable).unwrap_or(usize::MAX)).max(least)
    }
}
