//! Finds the slab that is evicted next.

/// Score of a slot whose content cannot be evicted.
const STAYS: f64 = f64::INFINITY;

/// Scores of the slabs in all slots of one class. Scores change only when their layer is visited. They lie side by
/// side, so that finding the lowest of thousands takes microseconds.
#[derive(Debug, Default)]
pub(super) struct Victims {
    scores: Vec<f64>, // [slot]
}

impl Victims {
    /// Records that the slab in `slot` can be evicted, and that its score is `score`.
    pub fn may_go(&mut self, slot: u32, score: f64) {
        debug_assert!(score.is_finite());
        self.set(slot, score);
    }

    /// Records that the slab in `slot`, if there is one, cannot be evicted.
    pub fn stays(&mut self, slot: u32) {
        self.set(slot, STAYS);
    }

    /// Returns the lowest score among the slabs that can be evicted, and the slot of the slab that has this score. If
    /// several slabs have it, chooses the slot for which `rank` returns the lowest number.
    pub fn lowest(&self, rank: impl Fn(u32) -> usize) -> Option<(f64, u32)> {
        let mut lowest = STAYS;
        let mut at = None;
        for (slot, &score) in (0..).zip(&self.scores) {
            let is_lower = score < lowest || (score == lowest && at.is_some_and(|at| rank(slot) < rank(at)));
            if is_lower {
                (lowest, at) = (score, Some(slot));
            }
        }
        at.map(|at| (lowest, at))
    }

    /// Returns the score of the slab in the slot; `None` if the slab cannot be evicted.
    pub fn score(&self, slot: u32) -> Option<f64> {
        self.scores.get(slot as usize).copied().filter(|&score| score < STAYS)
    }

    fn set(&mut self, slot: u32, score: f64) {
        let slot = slot as usize;
        if slot >= self.scores.len() {
            self.scores.resize(slot + 1, STAYS);
        }
        self.scores[slot] = score;
    }
}
