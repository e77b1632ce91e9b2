//! Whether a content is worth a write, by how many of its class have returned.

use std::collections::{HashMap, VecDeque};

use crate::key::BlockKey;

/// Classes of contents.
const CLASSES: usize = 256;

/// Offers after which older ones count half.
const HALF_LIFE: f32 = 65_536.0;

/// Offers of a class before its chance is taken from it alone.
const SURE_AFTER: f32 = 64.0;

/// One in so many skipped contents is remembered, so that a class whose habits change is noticed.
const SAMPLED: u8 = 8;

/// Chances of contents to return, by class, and the chance that makes a write worth its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    least: f32,
    offered: Vec<f32>,  // [class]
    returned: Vec<f32>, // [class]
    offers: u32,
}

impl Gate {
    /// Writes are worth it for contents that return with a chance of `least` or more: the cost of a write, divided by
    /// what is saved if the content returns. 0 stores everything.
    pub fn new(least: f32) -> Self {
        Self { least, offered: vec![0.0; CLASSES], returned: vec![0.0; CLASSES], offers: 0 }
    }

    /// Changes the chance from which on a write is worth it.
    pub fn set_least(&mut self, least: f32) {
        self.least = least;
    }

    /// How many of a class return, between 0 and 1. As long as few of them were seen, they count as if all returned.
    pub fn chance(&self, class: u8) -> f32 {
        let class = usize::from(class);
        (self.returned[class] + SURE_AFTER * 0.5) / (self.offered[class] + SURE_AFTER * 0.5)
    }

    pub(super) fn is_worth(&self, class: u8) -> bool {
        self.least <= 0.0 || self.chance(class) >= self.least
    }

    pub(super) fn offered(&mut self, class: u8) {
        self.offered[usize::from(class)] += 1.0;
        self.offers += 1;
        // All at once and rarely, which fades as well as each time.
        if self.offers.is_multiple_of(1024) {
            let fade = (-1024.0 / HALF_LIFE).exp2();
            self.offered.iter_mut().chain(&mut self.returned).for_each(|count| *count *= fade);
        }
    }

    pub(super) fn returned(&mut self, class: u8) {
        self.returned[usize::from(class)] += 1.0;
    }

    fn returned_of_sample(&mut self, class: u8) {
        self.returned[usize::from(class)] += f32::from(SAMPLED);
    }
}

/// A sample of the contents that were skipped.
#[derive(Debug)]
pub(super) struct Ghosts {
    classes: HashMap<BlockKey, u8>,
    /// The oldest first.
    order: VecDeque<BlockKey>,
    capacity: usize,
}

impl Ghosts {
    /// A sample of as many contents as a tier for `capacity` blocks would hold.
    pub(super) fn new(capacity: usize) -> Self {
        Self { classes: HashMap::new(), order: VecDeque::new(), capacity: (capacity / usize::from(SAMPLED)).max(64) }
    }

    pub(super) fn skipped(&mut self, key: BlockKey, class: u8) {
        // Any byte of a key is as good as random.
        if !key.0[0].is_multiple_of(SAMPLED) || self.classes.insert(key, class).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.capacity {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.classes.remove(&oldest));
        }
    }

    /// Somebody has looked for `key`, which the tier does not hold.
    pub(super) fn returned(&mut self, key: BlockKey, gate: &mut Gate) {
        if let Some(class) = self.classes.remove(&key) {
            self.order.retain(|other| *other != key);
            gate.returned_of_sample(class);
        }
    }
}
