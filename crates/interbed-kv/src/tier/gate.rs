//! Decides whether a content is worth a write, by how many contents of its class have returned. A content *returns*
//! when it is looked up again after it was offered.

use std::collections::{HashMap, VecDeque};

use crate::key::BlockKey;

/// The number of classes into which contents are divided.
const CLASSES: usize = 256;

/// The number of offers after which older offers and returns count half. An offer is a content that a tier could write.
const HALF_LIFE: f32 = 65_536.0;

/// The number of offers that every class is assumed to have had before counting. The share of them that is assumed to
/// have returned is that of all classes together.
const BELIEVED: f32 = 64.0;

/// One in this many skipped contents is remembered, so that a class whose habits change is noticed.
const SAMPLED: u8 = 8;

/// Counts how many contents of each class are looked up again, and decides which classes are written.
///
/// Classes are compared with each other, not with a fixed chance. Most contents that will return have not yet done so
/// when others are offered, but this delays all classes alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    least: f32,
    offered: Vec<f32>,  // [class]
    returned: Vec<f32>, // [class]
    offers: u32,
}

impl Gate {
    /// The threshold for [`Gate::new`] that saves writes at little loss. On traces of conversations, a tier with it
    /// writes about a tenth fewer bytes for each block that is found again.
    pub const LEAST_WORTH: f32 = 0.75;

    /// Makes a gate that lets classes pass whose contents return at least `least` times as often as all contents do.
    /// With 0, every class passes.
    pub fn new(least: f32) -> Self {
        Self { least, offered: vec![0.0; CLASSES], returned: vec![0.0; CLASSES], offers: 0 }
    }

    /// Returns how often contents of `class` return, as a multiple of how often all contents do. Returns about 1 for a
    /// class of which little is known.
    pub fn worth(&self, class: u8) -> f32 {
        let (offered, returned): (f32, f32) = (self.offered.iter().sum(), self.returned.iter().sum());
        let all = (returned + 1.0) / (offered + 1.0);
        let class = usize::from(class);
        (self.returned[class] + BELIEVED * all) / (self.offered[class] + BELIEVED) / all
    }

    /// Returns whether contents of `class` return often enough to be written.
    pub fn is_worth(&self, class: u8) -> bool {
        self.least <= 0.0 || self.worth(class) >= self.least
    }

    /// Counts a content of `class` that could be written.
    pub fn offered(&mut self, class: u8) {
        self.offered[usize::from(class)] += 1.0;
        self.offers += 1;
        // The counts fade all at once and rarely, which works as well as fading each time.
        if self.offers.is_multiple_of(1024) {
            let fade = (-1024.0 / HALF_LIFE).exp2();
            self.offered.iter_mut().chain(&mut self.returned).for_each(|count| *count *= fade);
        }
    }

    /// Counts a content of `class` that was looked up again.
    pub fn returned(&mut self, class: u8) {
        self.returned[usize::from(class)] += 1.0;
    }

    fn returned_of_sample(&mut self, class: u8) {
        self.returned[usize::from(class)] += f32::from(SAMPLED);
    }
}

/// Remembers a sample of the contents that were not written, to learn whether they are looked up again.
#[derive(Debug)]
pub(super) struct Ghosts {
    classes: HashMap<BlockKey, u8>,
    /// The keys in the sample, the oldest first.
    order: VecDeque<BlockKey>,
    capacity: usize,
}

impl Ghosts {
    /// Makes a sample for a tier of `capacity` blocks, with one entry for every `SAMPLED` blocks, and at least 64.
    pub(super) fn new(capacity: usize) -> Self {
        Self { classes: HashMap::new(), order: VecDeque::new(), capacity: (capacity / usize::from(SAMPLED)).max(64) }
    }

    /// Notes that a content of `class` was not written. One in `SAMPLED` of them enters the sample; the oldest leaves
    /// it if it is full.
    pub(super) fn skipped(&mut self, key: BlockKey, class: u8) {
        // The bytes of a key are as good as random, so any of them can choose the sample.
        if !key.0[0].is_multiple_of(SAMPLED) || self.classes.insert(key, class).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.capacity {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.classes.remove(&oldest));
        }
    }

    /// Notes that a look-up has missed `key`. If `key` is in the sample, `gate` counts `SAMPLED` returns of its class,
    /// and `key` leaves the sample.
    pub(super) fn returned(&mut self, key: BlockKey, gate: &mut Gate) {
        if let Some(class) = self.classes.remove(&key) {
            self.order.retain(|other| *other != key);
            gate.returned_of_sample(class);
        }
    }
}
