//! The tiers of KV below memory: a disk, and a store that servers share.

use anyhow::Result;
use interbed_device::Bytes;
use interbed_engine::KvDisk;
use interbed_kernels::KvLayout;
use interbed_kv_remote::RemoteTier;
use interbed_model::config::ModelConfig;
use interbed_weights::Catalog;

use crate::options::LimitOptions;
use crate::{kv_disk, kv_remote};

/// What was asked for.
pub struct LowerTiers {
    pub disk: Option<KvDisk>,
    pub remote: Option<RemoteTier>,
}

impl LowerTiers {
    /// Opens what was asked for, for the KV of this model; `computes` says what computes it: a processor's level, or a
    /// GPU. KV that another one computed is not this one's to the bit.
    ///
    /// # Errors
    /// A directory, an address or a key that cannot be used.
    pub fn open(
        (config, weights): (&ModelConfig, &Catalog),
        limits: &LimitOptions,
        total: Bytes,
        layout: &KvLayout,
        computes: &str,
    ) -> Result<Self> {
        let remote = kv_remote::open(limits, total, (config, weights), layout, computes)?;
        // A block has one name, wherever it is.
        let names = remote.as_ref().map(|remote| remote.key_chain().clone());
        let disk = kv_disk::open(limits, total, (config, weights), layout, computes, names)?;
        Ok(Self { disk, remote })
    }

    /// Memory that they take of a budget of `total`.
    pub fn memory(limits: &LimitOptions, total: Bytes, layout: &KvLayout) -> Bytes {
        let (disk, remote) = (kv_disk::memory(limits, total, layout), kv_remote::memory(limits, total, layout));
        Bytes(disk.0.saturating_add(remote.0))
    }
}
