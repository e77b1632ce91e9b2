//! Computes what a budget allows for streamed weights, before any weights are read.

use std::sync::Arc;

use interbed_io::{DiskTurns, EngineKind};

use crate::catalog::Catalog;
use crate::error::WeightError;
use crate::group::GroupSpec;
use crate::partition::Partition;
use crate::window::{
    Credits, Policy, ResidentConfig, RingConfig, TierConfig, Tiers, TiersConfig, UnitId, Window, WindowConfig,
};

/// Maximum number of streamed bands that one call of [`WeightSource::bands`](crate::WeightSource::bands) hands out.
pub const BANDS_STREAMED: usize = 8;

/// Maximum number of slots on a device that bands pass through: some are computed with while others are copied to.
const DEVICE_SLOTS: usize = 2 * BANDS_STREAMED;

/// Maximum number of times that a band's read is tried before the pass fails.
const LOAD_ATTEMPTS: u32 = 3;

/// Rule for which bands stay in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPolicy {
    /// A fixed subset of the bands stays in memory. All other bands are read again in each pass.
    Resident,
    /// All bands are streamed through a sliding window.
    Ring,
}

/// Settings for the streaming of weights.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// Maximum number of bytes of host memory that the weights may take.
    pub budget: u64,
    /// Kind of engine that reads from disk.
    pub engine: EngineKind,
    /// Maximum number of reads in flight at the same time.
    pub depth: usize,
    /// Measured read rate of the disk in bytes per second, for the statistics; 0 if it was not measured.
    pub disk_bytes_per_s: f64,
    /// Measured rate of copies to the device in bytes per second, for [`ElasticWeights::worth`]; 0 if it was not
    /// measured, or if the device computes in host memory.
    ///
    /// [`ElasticWeights::worth`]: crate::ElasticWeights::worth
    pub link_bytes_per_s: f64,
    /// Rule for which bands stay in memory.
    pub policy: StreamPolicy,
    /// Whether each read, wait and computation is recorded as an event.
    pub timeline: bool,
    /// Maximum number of tokens of a pass in which the host computes with the bands that stay in host memory. A pass
    /// with more tokens copies these bands to the device. If the setting is 0, every pass copies them. The setting has
    /// an effect only for a device that has its own memory.
    pub host_tokens_max: usize,
    /// Priorities of disk accesses. If set, other reads and writes on the same disk give way to the reads of weights.
    pub turns: Option<Arc<DiskTurns>>,
}

/// Division of a model's weights into bands for streaming. It is made before any weights are read.
#[derive(Debug)]
pub struct StreamPlan {
    pub(super) partition: Partition,
}

impl StreamPlan {
    /// Checks every tensor against its spec, and cuts matrices into bands of about `band_bytes` bytes. A band is read
    /// in a single request.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has the wrong shape, or has an unsupported type.
    pub fn new(catalog: &Catalog, specs: &[GroupSpec], band_bytes: usize) -> Result<Self, WeightError> {
        Partition::of_catalog(catalog, specs, band_bytes).map(|partition| Self { partition })
    }

    /// Returns the division of the model into bands.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the number of bytes of weights that stay in memory under [`StreamPolicy::Resident`] with the budget of
    /// `config`.
    ///
    /// # Errors
    /// Fails if `config`'s budget is below [`Partition::least_budget`].
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

    /// Divides the memory of two tiers into bytes for bands and bytes for experts: first the host's, under `config`'s
    /// budget, and then the device's, `device_budget` bytes. Bands come first, as [`Partition::divide`] says. In host
    /// memory, this goes for bands that do not stay on the device, and for the slots through which the others pass.
    pub(super) fn divide(&self, config: &StreamConfig, device_budget: u64) -> [(u64, u64); 2] {
        let partition = &self.partition;
        let on_device = partition.divide(device_budget);
        let (all, largest) = (partition.band_memory(), partition.largest_band() as u64);
        let stays = match config.policy {
            StreamPolicy::Resident if on_device.0 >= all => all,
            StreamPolicy::Resident => on_device.0.saturating_sub(self.device_slots(on_device.0) as u64 * largest),
            // Both windows slide over all bands.
            StreamPolicy::Ring => 0,
        };
        let slots = (self.slots_wished(config) as u64).saturating_mul(largest);
        let of_host = (all - stays.min(all)).saturating_add(slots).min(all);
        [partition.divide_with(config.budget, of_host), on_device]
    }

    /// Returns the windows of two tiers: [`window`](Self::window) describes the host's, and each has one of `of_bands`
    /// bytes for its bands, first the host and then the device.
    pub(super) fn tiers(&self, config: &StreamConfig, of_bands: [u64; 2]) -> Result<Tiers, WeightError> {
        let partition = &self.partition;
        let [of_host, of_device] = of_bands;
        let layers = partition.layers_of_bands();
        let policies = match config.policy {
            StreamPolicy::Resident => {
                let policy = |stream_slots| Policy::Resident(ResidentConfig { stream_slots });
                [policy(self.host_slots(config, of_host)), policy(self.device_slots(of_device))]
            }
            StreamPolicy::Ring => {
                let host = RingConfig { slots: true, ..RingConfig::host(layers.clone()) };
                let device = RingConfig { slots: true, ..RingConfig::device(layers) };
                [Policy::Ring(host), Policy::Ring(device)]
            }
        };
        let [host, device] = policies;
        Ok(Tiers::new(TiersConfig {
            unit_bytes: partition.bands().iter().map(|band| band.memory() as u64).collect(),
            order: (0..partition.bands().len() as u32).map(UnitId).collect(),
            host: TierConfig { budget: of_host, policy: host },
            device: TierConfig { budget: of_device, policy: device },
            load_attempts: LOAD_ATTEMPTS,
            credits: Credits::default(),
        })?)
    }

    /// Returns the number of slots that bands pass through.
    pub(super) fn slots(&self, config: &StreamConfig) -> usize {
        self.host_slots(config, self.partition.divide(config.budget).0)
    }

    /// Returns the number of slots that bands pass through in host memory with `of_bands` bytes for bands.
    fn host_slots(&self, config: &StreamConfig, of_bands: u64) -> usize {
        self.slots_within(of_bands, self.slots_wished(config))
    }

    /// Returns the number of slots that bands pass through on a device with `of_bands` bytes for bands.
    pub(super) fn device_slots(&self, of_bands: u64) -> usize {
        self.slots_within(of_bands, DEVICE_SLOTS)
    }

    /// Returns the number of slots that keep the disk busy while a few bands are computed with.
    fn slots_wished(&self, config: &StreamConfig) -> usize {
        2 * config.depth + 2 * BANDS_STREAMED
    }

    /// Returns `wished`, or the number of slots that a sixteenth of the memory for bands and vectors pays for if that
    /// is fewer, but no fewer than the number of bands that are swept side by side.
    fn slots_within(&self, of_bands: u64, wished: usize) -> usize {
        let least = self.partition.slots_least();
        let part = self.partition.fixed_bytes().saturating_add(of_bands) / 16;
        let affordable = part.checked_div(self.partition.largest_band() as u64).unwrap_or(0);
        wished.min(usize::try_from(affordable).unwrap_or(usize::MAX)).max(least)
    }
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::*;
    use crate::group::{Access, Role, TensorSpec};
    use crate::partition::StoredAt;

    /// Returns a plan of 100 bands of 64 KiB, and of 32 experts of three pages each.
    fn mixture() -> StreamPlan {
        let swept = TensorSpec::new("swept", [6400, 256]);
        let expert = |number| {
            ["gate", "up", "down"]
                .map(|matrix| TensorSpec::new(format!("{number}.{matrix}"), [4, 256]))
                .map(|spec| spec.by(Access::Expert { number, chosen: 2 }))
        };
        let tensors = std::iter::once(swept).chain((0..32).flat_map(expert)).collect();
        let spec = GroupSpec { name: "layer 0".into(), role: Role::FeedForward, layer: 0, tensors };
        let stored = |_: &GroupSpec, _: &TensorSpec| Ok(StoredAt { dtype: DType::F32, file: 0, offset: 0 });
        StreamPlan { partition: Partition::new(&[spec], 64 << 10, stored).unwrap() }
    }

    #[test]
    fn host_memory_holds_experts_where_the_device_holds_bands() {
        let plan = mixture();
        let (band, bands, bank) = (64 << 10, plan.partition.band_memory(), 32 * 3 * 4096);
        assert_eq!((bands, plan.partition.experts().unwrap().1.bank_bytes()), (100 * band, bank));
        let config = |policy| StreamConfig {
            budget: 40 * band,
            engine: EngineKind::Pread,
            depth: 1,
            disk_bytes_per_s: 0.0,
            link_bytes_per_s: 0.0,
            policy,
            timeline: false,
            host_tokens_max: 0,
            turns: None,
        };
        let divide = |policy, device| plan.divide(&config(policy), device);
        // All bands and half of the experts stay on the device. In host memory, bands have slots at most.
        let [on_host, on_device] = divide(StreamPolicy::Resident, bands + bank / 2);
        assert_eq!((on_host, on_device), ((40 * band - bank, bank), (bands, bank / 2)));
        // Two thirds of the bands stay there: the others come first in host memory.
        let least = plan.partition.experts().unwrap().1.least_bytes();
        let [on_host, on_device] = divide(StreamPolicy::Resident, 66 * band + least);
        assert_eq!((on_host, on_device), ((40 * band - least, least), (66 * band, least)));
        // All bands slide through both.
        let [on_host, _] = divide(StreamPolicy::Ring, bands + bank / 2);
        assert_eq!(on_host, (40 * band - least, least));
    }
}
