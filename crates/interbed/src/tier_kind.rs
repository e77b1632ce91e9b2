//! What a tier of KV below memory has to say for itself before and when it is opened.

use std::sync::Arc;

use anyhow::Result;
use interbed_device::Bytes;
use interbed_engine::TierBelow;
use interbed_io::DiskTurns;
use interbed_kernels::KvLayout;
use interbed_kv::KeyChain;
use interbed_weights::Catalog;

use crate::options::LimitOptions;

/// A kind of tier below memory.
pub struct TierKind {
    /// Returns whether the options ask for the tier.
    pub is_wanted: fn(&LimitOptions) -> bool,
    /// Returns the memory that the tier takes of a budget of this size.
    pub memory: fn(&LimitOptions, Bytes, &StoredKv<'_>) -> Bytes,
    /// Checks what the options say of the tier, within a budget of this size.
    pub prepare: fn(&LimitOptions, Bytes, &StoredKv<'_>) -> Result<TierFound>,
}

/// The KV of a model, in the parts of equal size that tiers store.
pub struct StoredKv<'a> {
    /// The layout of blocks with the KV of all tokens, each of which is one part.
    pub layout: &'a KvLayout,
    /// The most parts that are of use only together: what layers keep besides of one sequence at one place.
    pub together: usize,
}

/// A tier, or `None` if the options ask for no such tier, or if it cannot be used although nothing is wrong with the
/// options.
pub type TierFound = Option<Box<dyn PreparedTier>>;

/// A tier that the options ask for, checked but not in use yet.
pub trait PreparedTier: Send {
    /// Returns the turns by which KV and weights share a disk, or `None` if they do not.
    fn turns(&self, _weights: &Catalog) -> Option<Arc<DiskTurns>> {
        None
    }

    /// Returns the number of slots that the tier has for swapped KV, or `None` if it takes no such KV.
    fn num_slots(&self) -> Option<usize> {
        None
    }

    /// Returns the number of tokens that a sequence may have in the tier if it is longer than memory; 0 if the tier
    /// keeps no such sequences.
    ///
    /// # Errors
    /// Fails if the tier would be too small.
    fn long_tokens(&self) -> Result<usize> {
        Ok(0)
    }

    /// Opens the tier for the KV that `fingerprint` identifies. A block has one name in all tiers: `names` are those of
    /// the tiers farther away, if there are any. The tier leaves the names that it uses there, for the tiers that are
    /// nearer; they carry the marks by which a store on disk finds the blocks of a tenant. Names that do not outlive
    /// the process make all nearer tiers forget their blocks at each start.
    ///
    /// # Errors
    /// Fails if the tier cannot be opened.
    fn open(self: Box<Self>, fingerprint: [u8; 32], names: &mut Option<KeyChain>) -> Result<OpenTier>;
}

/// A tier in use.
pub struct OpenTier {
    /// The tier in the form that the engine takes.
    pub below: TierBelow,
    /// The number of blocks that were found in the tier, and that may soon be read.
    pub found: usize,
}
