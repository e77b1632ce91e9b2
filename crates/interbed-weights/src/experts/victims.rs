//! The slab that goes next.

/// Of what cannot be evicted.
const STAYS: f64 = f64::INFINITY;

/// Scores by slot, for one class. They change only when their layer is visited, so they lie side by side, and finding
/// the lowest of thousands takes microseconds.
#[derive(Debug, Default)]
pub(super) struct Victims {
    scores: Vec<f64>, // [slot]
}

impl Victims {
    /// What is in the slot can be evicted, and has this score.
    pub fn may_go(&mut self, slot: u32, score: f64) {
        debug_assert!(score.is_finite());
        self.set(slot, score);
    }

    /// What is in the slot, if anything is, cannot be evicted.
    pub fn stays(&mut self, slot: u32) {
        self.set(slot, STAYS);
    }

    /// The lowest score of what can be evicted, and its slot. Of slabs with equal scores, the one for which `rank` is
    /// lowest.
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

    /// Whether what is in the slot can be evicted, and with which score.
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
