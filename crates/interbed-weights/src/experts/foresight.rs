//! Keeps guesses of what a layer's next visit will want, and how far such guesses may be trusted.

use super::shape::ArenaShape;
use super::slab::SlabId;

/// Minimum likelihood at which a guess is read. A read that turns out wrong delays the reads behind it. While a pass
/// computes, even a read that turns out right takes memory bandwidth and some processor time.
const LIKELY: f32 = 0.85;

/// Likelihood that is assumed for guesses before any was checked; it is high enough to try them.
const BEGINNING: f32 = 0.9;

/// Weight of one visit in the running averages.
const STEP: f32 = 1.0 / 32.0;

/// Minimum number of a visit's experts that must be missing on average before it is worth guessing which. A guess costs
/// as much as the layer's router, which is about a quarter of a read, and reading beside computing slows both
/// (docs/internals/experts.md tells what was measured).
const MISSING_MIN: f32 = 4.0;

/// Number of visits after which a layer is guessed again if its guesses were not likely enough.
const PAUSE: u32 = 16;

/// Holds guesses of which experts the next visit of a mixture layer will need. Records how often such guesses came
/// true, for each layer and rank. The rank of a guess is the expert's position among the experts chosen for a token,
/// counted from 0 for the best. If several tokens choose the expert, the best position counts.
#[derive(Debug)]
pub struct Foresight {
    ranks: usize,
    rates: Vec<f32>,          // [layer, rank]
    missing: Vec<f32>,        // [layer]: how many of a visit's experts were not in memory
    pauses: Vec<u32>,         // [layer]: visits before it is guessed again
    guessed: Option<u32>,     // the layer that is guessed
    guesses: Vec<(u32, u32)>, // the layer's experts, each with its rank
    /// Number of guesses that were handed out.
    taken: usize,
    came_true: Vec<(u32, u32)>, // [rank]: how many guesses came true, of how many
}

impl Foresight {
    /// Creates a `Foresight` without guesses. The first guesses of a layer count as likely enough to be worth a read;
    /// later, the share that came true decides.
    pub fn new(shape: &ArenaShape) -> Self {
        let (layers, ranks) = (shape.layers(), shape.top_k());
        Self {
            ranks,
            rates: vec![BEGINNING; layers * ranks],
            missing: vec![MISSING_MIN; layers],
            pauses: vec![0; layers],
            guessed: None,
            guesses: Vec::with_capacity(shape.experts()),
            taken: 0,
            came_true: vec![(0, 0); ranks],
        }
    }

    /// Returns whether it is worth guessing which experts `layer` will need. Returns `false` if, on average, recent
    /// visits of the layer found fewer than four of their experts missing from memory. If guesses of the layer were
    /// wrong too often, returns `true` only once every 16 visits, to find out whether guesses have become better. Call
    /// this at most once before each visit of the layer.
    pub fn should_guess(&mut self, layer: u32) -> bool {
        let index = layer as usize;
        if self.missing[index] < MISSING_MIN {
            return false;
        }
        let is_likely = self.rates_of(layer).iter().any(|&rate| rate >= LIKELY);
        if !is_likely && self.pauses[index] == 0 {
            self.pauses[index] = PAUSE;
            return true;
        }
        is_likely
    }

    /// Replaces all earlier guesses with `guesses`, which are for the next visit of `layer`. Each entry is the index of
    /// an expert that the visit is likely to need and the rank of this guess; the best guess comes first.
    pub fn guess(&mut self, layer: u32, guesses: &[(u32, u32)]) {
        self.forget();
        self.guesses.extend(guesses.iter().filter(|&&(_, rank)| (rank as usize) < self.ranks));
        self.guessed = Some(layer);
    }

    /// Drops all guesses without counting them as right or wrong.
    pub fn forget(&mut self) {
        self.guessed = None;
        self.guesses.clear();
        self.taken = 0;
    }

    /// Returns the next guess that is likely enough to be worth a read, and its likelihood. Guesses come in the order
    /// in which [`guess`](Self::guess) received them, each only once. Returns `None` if there are no more.
    pub fn take(&mut self) -> Option<(SlabId, f32)> {
        let layer = self.guessed?;
        while let Some(&(expert, rank)) = self.guesses.get(self.taken) {
            self.taken += 1;
            let rate = self.rates_of(layer)[rank as usize];
            if rate >= LIKELY {
                return Some((SlabId { layer, expert }, rate));
            }
        }
        None
    }

    /// Records that the visit of `layer` has begun. Each entry of `wanted` is the index of an expert that the visit
    /// needs and the number of tokens that use it, in ascending order of indices. `missing` is the number of these
    /// experts that are not in memory, or are there only because they were prefetched. Guesses for this visit are
    /// counted as right or wrong, then all guesses are dropped.
    pub fn came(&mut self, layer: u32, wanted: &[(u32, u32)], missing: usize) {
        let index = layer as usize;
        self.missing[index] += (missing as f32 - self.missing[index]) * STEP;
        self.pauses[index] = self.pauses[index].saturating_sub(1);
        if self.guessed == Some(layer) {
            self.came_true.fill((0, 0));
            for &(expert, rank) in &self.guesses {
                let (true_ones, all) = &mut self.came_true[rank as usize];
                *true_ones += u32::from(wanted.binary_search_by_key(&expert, |&(wanted, _)| wanted).is_ok());
                *all += 1;
            }
            let rates = &mut self.rates[index * self.ranks..][..self.ranks];
            for (rate, &(true_ones, all)) in rates.iter_mut().zip(&self.came_true).filter(|(_, (_, all))| *all > 0) {
                *rate += (true_ones as f32 / all as f32 - *rate) * STEP;
            }
        }
        self.forget();
    }

    fn rates_of(&self, layer: u32) -> &[f32] {
        &self.rates[layer as usize * self.ranks..][..self.ranks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUESSES: [(u32, u32); 3] = [(4, 0), (1, 0), (6, 1)];

    fn foresight() -> Foresight {
        Foresight::new(&ArenaShape::new(vec![100, 100], 8, 2).unwrap())
    }

    fn all(foresight: &mut Foresight) -> Vec<u32> {
        std::iter::from_fn(|| foresight.take()).map(|(slab, _)| slab.expert).collect()
    }

    #[test]
    fn guesses_come_in_their_order_until_their_visit() {
        let mut foresight = foresight();
        assert_eq!(foresight.take(), None);
        foresight.guess(1, &GUESSES);
        assert_eq!(foresight.take(), Some((SlabId { layer: 1, expert: 4 }, BEGINNING)));
        assert_eq!(all(&mut foresight), [1, 6]);
        foresight.guess(1, &GUESSES);
        foresight.came(0, &[(3, 1)], 1);
        assert_eq!(all(&mut foresight), [0; 0], "a layer has come that nothing was guessed for");
        foresight.guess(1, &[(2, 7)]);
        assert_eq!(all(&mut foresight), [0; 0], "no token has so many experts");
    }

    #[test]
    fn ranks_that_are_wrong_are_not_read_and_tried_again_after_a_while() {
        let mut foresight = foresight();
        for _ in 0..40 {
            foresight.guess(1, &GUESSES);
            foresight.came(1, &[(1, 2), (4, 1), (5, 1)], 5);
        }
        foresight.guess(1, &GUESSES);
        assert_eq!(all(&mut foresight), [4, 1], "the second choice was never right");
        assert!(foresight.should_guess(1));
        for _ in 0..80 {
            foresight.guess(1, &GUESSES);
            foresight.came(1, &[(0, 1), (2, 1)], 5);
        }
        foresight.guess(1, &GUESSES);
        assert_eq!(all(&mut foresight), [0; 0]);
        foresight.guess(0, &GUESSES);
        assert_eq!(all(&mut foresight), [4, 1, 6], "each layer has its own rates");
        let tried = (0..2 * PAUSE).filter(|_| {
            let tries = foresight.should_guess(1);
            foresight.came(1, &[(0, 1), (2, 1)], 5);
            tries
        });
        assert_eq!(tried.count(), 2);
    }

    #[test]
    fn nothing_is_guessed_where_little_is_missing() {
        let mut foresight = foresight();
        assert!(foresight.should_guess(0));
        (0..20).for_each(|_| foresight.came(0, &[(0, 1), (1, 1)], 1));
        assert!(!foresight.should_guess(0) && foresight.should_guess(1));
        (0..40).for_each(|_| foresight.came(0, &[(0, 1), (1, 1), (2, 1)], 5));
        assert!(foresight.should_guess(0));
    }
}
