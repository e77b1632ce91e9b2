//! Sizes of a model's slabs, and how a budget is divided among them.

use super::error::ArenaError;
use super::slab::SlabId;

/// Maximum number of different sizes of slabs. Models have one or two sizes; each size takes at least two slots, so
/// there must not be many.
const CLASSES_MAX: usize = 8;
const LAYERS_MAX: usize = 4096;
const EXPERTS_MAX: usize = 65_536;
const SLABS_MAX: usize = 1 << 20;

/// Visits of at most this many tokens count as decoding.
const DECODE_TOKENS_MAX: u64 = 16;

/// Mixture layers of a model: how many experts each layer has, and how much memory an expert takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaShape {
    slab_bytes: Vec<u64>,  // [layer]
    class_of: Vec<u32>,    // [layer]
    class_bytes: Vec<u64>, // [class], ascending
    experts: usize,
    top_k: usize,
}

impl ArenaShape {
    /// Creates the shape of a model. `slab_bytes` lists, for each mixture layer, the size of its slabs in bytes. Each
    /// layer has `experts` experts, of which a token uses `top_k`.
    ///
    /// # Errors
    /// Fails with [`ArenaError::Shape`] if a number is zero or implausibly large, if `top_k` exceeds `experts`, or if
    /// slabs have too many different sizes.
    pub fn new(slab_bytes: Vec<u64>, experts: usize, top_k: usize) -> Result<Self, ArenaError> {
        let wrong = |what, got: usize, expected| ArenaError::Shape { what, got: got as u64, expected };
        if !(1..=LAYERS_MAX).contains(&slab_bytes.len()) {
            return Err(wrong("the number of mixture layers", slab_bytes.len(), "1 to 4096"));
        }
        if !(1..=EXPERTS_MAX).contains(&experts) {
            return Err(wrong("the number of experts", experts, "1 to 65536"));
        }
        let slabs = slab_bytes.len() * experts;
        if slabs > SLABS_MAX {
            return Err(wrong("the number of experts of all layers", slabs, "at most 1048576"));
        }
        if !(1..=experts).contains(&top_k) {
            return Err(wrong("the number of experts of a token", top_k, "1 to the number of experts"));
        }
        let mut class_bytes = slab_bytes.clone();
        class_bytes.sort_unstable();
        class_bytes.dedup();
        if class_bytes.len() > CLASSES_MAX {
            return Err(wrong("the number of different slab sizes", class_bytes.len(), "1 to 8"));
        }
        let layer_bytes_max = u64::MAX / 4 / (slab_bytes.len() * experts) as u64;
        if let Some(&bytes) = slab_bytes.iter().find(|&&bytes| bytes == 0 || bytes > layer_bytes_max) {
            return Err(ArenaError::Shape { what: "the bytes of a slab", got: bytes, expected: "a plausible size" });
        }
        let class = |bytes: &u64| class_bytes.partition_point(|class| class < bytes) as u32;
        let class_of = slab_bytes.iter().map(class).collect();
        Ok(Self { slab_bytes, class_of, class_bytes, experts, top_k })
    }

    /// Returns the number of mixture layers.
    pub fn layers(&self) -> usize {
        self.slab_bytes.len()
    }

    /// Returns the number of experts of each layer.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Returns the number of experts that one token uses in each layer.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Returns the number of bytes that a slab of `layer` takes in memory.
    pub fn slab_bytes(&self, layer: u32) -> u64 {
        self.slab_bytes[layer as usize]
    }

    /// Returns the different slot sizes (classes) in bytes, in ascending order.
    pub fn class_bytes(&self) -> &[u64] {
        &self.class_bytes
    }

    /// Returns the class of `layer`'s slabs, an index into [`class_bytes`](Self::class_bytes).
    pub fn class_of(&self, layer: u32) -> u32 {
        self.class_of[layer as usize]
    }

    /// Returns the total size in bytes of the slabs of all layers.
    pub fn bank_bytes(&self) -> u64 {
        self.slab_bytes.iter().sum::<u64>() * self.experts as u64
    }

    /// Returns the total size in bytes of the slabs that one token uses in all layers.
    pub fn token_bytes(&self) -> u64 {
        self.slab_bytes.iter().sum::<u64>() * self.top_k as u64
    }

    /// Returns the smallest budget that an arena accepts, in bytes. This budget has room for two slots of each class,
    /// so that one slab can be read while another is used. A class with a single slab needs only one slot.
    pub fn least_bytes(&self) -> u64 {
        (0..self.class_bytes.len()).map(|class| self.class_bytes[class] * self.least_slots(class)).sum()
    }

    /// Returns the number of slabs of a class.
    pub(super) fn class_slabs(&self, class: usize) -> u64 {
        let layers = self.class_of.iter().filter(|&&of| of as usize == class).count();
        (layers * self.experts) as u64
    }

    /// Returns the number of slots of each class under `budget`. Each class gets the same share of its slabs, as nearly
    /// as whole slots allow, since layers are used equally whatever the sizes of their slabs.
    pub(super) fn divide(&self, budget: u64) -> Result<Vec<u64>, ArenaError> {
        let least = self.least_bytes();
        let mut rest = budget.checked_sub(least).ok_or(ArenaError::TooSmall { budget, least })?;
        let classes = self.class_bytes.len();
        let slabs: Vec<u64> = (0..classes).map(|class| self.class_slabs(class)).collect();
        let mut slots: Vec<u64> = (0..classes).map(|class| self.least_slots(class)).collect();
        loop {
            let fits = |&class: &usize| slots[class] < slabs[class] && self.class_bytes[class] <= rest;
            let share = |class: usize| slots[class] as f64 / slabs[class] as f64;
            let next = (0..classes).filter(fits).min_by(|&a, &b| share(a).total_cmp(&share(b)));
            let Some(class) = next else { return Ok(slots) };
            slots[class] += 1;
            rest -= self.class_bytes[class];
        }
    }

    /// Returns whether a visit with this many uses by single tokens counts as decoding.
    pub(super) fn is_decode(&self, token_uses: u64) -> bool {
        token_uses <= DECODE_TOKENS_MAX * self.top_k as u64
    }

    pub(super) fn slabs(&self) -> usize {
        self.layers() * self.experts
    }

    /// Returns a slab's number among all slabs of the model.
    ///
    /// # Panics
    /// Panics if the model has no such slab.
    pub(super) fn index(&self, slab: SlabId) -> usize {
        let (layer, expert) = (slab.layer as usize, slab.expert as usize);
        assert!(layer < self.layers() && expert < self.experts, "{slab:?} is not in a model of {self:?}");
        layer * self.experts + expert
    }

    pub(super) fn id(&self, index: usize) -> SlabId {
        SlabId { layer: (index / self.experts) as u32, expert: (index % self.experts) as u32 }
    }

    /// Returns the least number of slots that a class needs.
    pub(super) fn least_slots(&self, class: usize) -> u64 {
        self.class_slabs(class).min(2)
    }
}
