//! Decides how a preempted sequence gets its KV back: by computing it again, or by reading it from swap space. This is
//! a planner, which takes measurements and returns a choice.

use interbed_kv::SwapDirection;

/// Rule for the KV of a preempted sequence. A running sequence is preempted when KV blocks run short: it gives up its
/// blocks and resumes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreemptionMode {
    /// The KV is dropped and computed again, or swapped, whichever is expected to take less time.
    #[default]
    Auto,
    /// The KV is dropped, and computed again when the sequence resumes.
    Recompute,
    /// The KV is moved to swap space on disk if possible, and read back when the sequence resumes. Otherwise, for
    /// example if swap space is full, the KV is dropped and computed again.
    Swap,
}

/// A way by which a preempted sequence gets its KV back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Recompute,
    Swap,
}

/// The work that each way takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effort {
    /// The bytes to be written now, and to be read when the sequence comes back.
    pub(crate) swap_bytes: u64,
    /// The bytes of other swaps that are in flight and come first.
    pub(crate) bytes_ahead: u64,
    /// The tokens to be computed again, without those that the prefix cache will still hold.
    pub(crate) recompute_tokens: usize,
}

/// The number of swaps in one direction that fail in a row until no more swaps are begun for a while, because the disk
/// is then taken to be broken.
const FAILURES_MAX: u32 = 3;

/// The least and the most steps for which no swap is begun after that. The number doubles with each failure until a
/// swap succeeds.
const PAUSES: (u64, u64) = (1000, 1 << 20);

/// Chooses a way by the time that swaps and prefills have taken lately.
#[derive(Debug)]
pub(crate) struct PreemptionPlanner {
    mode: PreemptionMode,
    write: Rate,
    /// The share of the bytes of swapped blocks that had to be written lately. The tier had the others already.
    written: f64,
    read: Rate,
    prefill: Rate,
    /// The prefill rate of passes that compute at least half as many prompt tokens as the largest pass.
    bulk: Rate,
    /// The most prompt tokens of a pass so far.
    largest: usize,
    /// The number of failures in a row, for swaps out and for swaps in.
    failures: [u32; 2],
    /// The number of the step from which on swaps are begun again.
    paused_until: u64,
    /// The number of steps of the next pause.
    pause: u64,
    /// Whether there is no tier to swap to yet.
    awaits_tier: bool,
}

impl PreemptionPlanner {
    pub(crate) fn new(mode: PreemptionMode) -> Self {
        let [write, read, prefill, bulk] = [Rate::default(); 4];
        Self {
            mode,
            write,
            written: 1.0,
            read,
            prefill,
            bulk,
            largest: 0,
            failures: [0; 2],
            paused_until: 0,
            pause: PAUSES.0,
            awaits_tier: false,
        }
    }

    /// Returns the faster way at step number `step`. In mode [`Auto`](PreemptionMode::Auto), swapping is chosen only
    /// once both directions have been measured.
    pub(crate) fn choose(&self, effort: Effort, step: u64) -> Way {
        if step < self.paused_until || self.awaits_tier {
            return Way::Recompute;
        }
        match self.mode {
            PreemptionMode::Recompute => Way::Recompute,
            PreemptionMode::Swap => Way::Swap,
            PreemptionMode::Auto => match (self.swap_seconds(effort), self.recompute_seconds(effort)) {
                (Some(swap), Some(recompute)) if swap < recompute => Way::Swap,
                _ => Way::Recompute,
            },
        }
    }

    /// Notes whether there is no tier to swap to yet.
    pub(crate) fn await_tier(&mut self, awaits: bool) {
        self.awaits_tier = awaits;
    }

    /// Records that `bytes` of blocks were written to swap space in `seconds`.
    pub(crate) fn swapped_out(&mut self, bytes: u64, seconds: f64) {
        self.write.observe(bytes as f64, seconds);
        self.succeeded(SwapDirection::Out, bytes);
    }

    /// Records that blocks of `bytes` bytes were swapped out, of which `written` bytes were written.
    pub(crate) fn left(&mut self, bytes: u64, written: u64) {
        if bytes > 0 {
            let share = (written as f64 / bytes as f64).min(1.0);
            self.written = self.written * FADING + share * (1.0 - FADING);
        }
    }

    /// Records that `bytes` of blocks were read back from swap space in `seconds`.
    pub(crate) fn swapped_in(&mut self, bytes: u64, seconds: f64) {
        self.read.observe(bytes as f64, seconds);
        self.succeeded(SwapDirection::In, bytes);
    }

    /// Records that a swap has failed at step number `step`. Returns true if that was one failure too many, for the
    /// first time since a swap has succeeded. No swap is begun then for a number of steps, even if others that are in
    /// flight succeed. After that, one more failure is enough.
    pub(crate) fn swap_failed(&mut self, direction: SwapDirection, step: u64) -> bool {
        let failures = &mut self.failures[direction as usize];
        *failures = failures.saturating_add(1);
        if *failures < FAILURES_MAX || step < self.paused_until {
            return false;
        }
        let is_first = self.pause == PAUSES.0;
        self.paused_until = step + self.pause;
        self.pause = (2 * self.pause).min(PAUSES.1);
        is_first
    }

    /// Records that `tokens` of prompts were computed in `seconds`.
    pub(crate) fn prefilled(&mut self, tokens: usize, seconds: f64) {
        self.prefill.observe(tokens as f64, seconds);
        self.largest = self.largest.max(tokens);
        if 2 * tokens >= self.largest {
            self.bulk.observe(tokens as f64, seconds);
        }
    }

    /// Returns the seconds that `tokens` tokens of a long prompt take, whose passes are large; `None` before any were
    /// measured. If weights are streamed, a pass takes about as long for few tokens as for many.
    pub(crate) fn bulk_seconds(&self, tokens: usize) -> Option<f64> {
        self.bulk.seconds(tokens as f64)
    }

    /// Returns the seconds that `tokens` prompt tokens take; `None` before any were measured.
    pub(crate) fn prefill_seconds(&self, tokens: usize) -> Option<f64> {
        self.prefill.seconds(tokens as f64)
    }

    /// Resets the count of failures, unless the swap moved nothing: such a swap says nothing of the disk.
    fn succeeded(&mut self, direction: SwapDirection, bytes: u64) {
        if bytes > 0 {
            self.failures[direction as usize] = 0;
        }
        if self.failures == [0; 2] {
            self.pause = PAUSES.0;
        }
    }

    fn swap_seconds(&self, effort: Effort) -> Option<f64> {
        let out = effort.swap_bytes.saturating_add(effort.bytes_ahead) as f64 * self.written;
        Some(self.write.seconds(out)? + self.read.seconds(effort.swap_bytes as f64)?)
    }

    fn recompute_seconds(&self, effort: Effort) -> Option<f64> {
        self.prefill_seconds(effort.recompute_tokens)
    }
}

/// A running estimate of amount by time. Each observation has a weight in proportion to its amount, and older ones
/// fade.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    amount: f64,
    seconds: f64,
}

/// The factor by which the weight of all earlier observations shrinks with each new one.
const FADING: f64 = 0.8;

impl Rate {
    fn observe(&mut self, amount: f64, seconds: f64) {
        // If the clock stood still or nothing was moved, the observation says nothing.
        if amount > 0.0 && seconds > 0.0 && seconds.is_finite() {
            self.amount = self.amount * FADING + amount;
            self.seconds = self.seconds * FADING + seconds;
        }
    }

    /// Returns the seconds for `amount`; `None` before the first observation.
    fn seconds(&self, amount: f64) -> Option<f64> {
        (self.amount > 0.0).then(|| amount * self.seconds / self.amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn planner(mode: PreemptionMode) -> PreemptionPlanner {
        let mut planner = PreemptionPlanner::new(mode);
        planner.swapped_out(100 * MIB, 1.0);
        planner.swapped_in(200 * MIB, 1.0);
        planner.prefilled(1000, 1.0);
        planner
    }

    fn choose(planner: &PreemptionPlanner, swap_mib: u64, mib_ahead: u64, recompute_tokens: usize) -> Way {
        let (swap_bytes, bytes_ahead) = (swap_mib * MIB, mib_ahead * MIB);
        planner.choose(Effort { swap_bytes, bytes_ahead, recompute_tokens }, 0)
    }

    #[test]
    fn the_cheaper_way_is_taken() {
        let planner = planner(PreemptionMode::Auto);
        // 100 MiB take 1 s out and half a second back; 1,500 tokens take as long.
        assert_eq!(choose(&planner, 100, 0, 1501), Way::Swap);
        assert_eq!(choose(&planner, 100, 0, 1499), Way::Recompute);
        // Another swap has to be waited for.
        assert_eq!(choose(&planner, 100, 10, 1501), Way::Recompute);
        // What the prefix cache still holds costs nothing.
        assert_eq!(choose(&planner, 1, 0, 0), Way::Recompute);
    }

    #[test]
    fn what_the_tier_has_already_need_not_be_written() {
        let mut planner = planner(PreemptionMode::Auto);
        assert_eq!(choose(&planner, 100, 0, 600), Way::Recompute);
        planner.left(0, 0);
        (0..20).for_each(|_| planner.left(100 * MIB, 2 * MIB));
        // Reading it back takes half a second.
        assert_eq!((choose(&planner, 100, 0, 600), choose(&planner, 100, 0, 500)), (Way::Swap, Way::Recompute));
        (0..20).for_each(|_| planner.left(100 * MIB, 100 * MIB));
        assert_eq!(choose(&planner, 100, 0, 600), Way::Recompute);
    }

    #[test]
    fn estimates_follow_what_is_measured() {
        let mut planner = planner(PreemptionMode::Auto);
        assert_eq!(choose(&planner, 100, 0, 1600), Way::Swap);
        for _ in 0..20 {
            planner.swapped_out(100 * MIB, 10.0);
        }
        assert_eq!(choose(&planner, 100, 0, 1600), Way::Recompute);
        for _ in 0..20 {
            planner.prefilled(10, 1.0);
        }
        assert_eq!(choose(&planner, 100, 0, 1600), Way::Swap);
    }

    #[test]
    fn nothing_measured_means_nothing_swapped_unless_somebody_says_so() {
        let mut planner = PreemptionPlanner::new(PreemptionMode::Auto);
        planner.prefilled(1, 1000.0);
        planner.swapped_out(0, 1.0);
        planner.swapped_in(1, 0.0);
        assert_eq!(choose(&planner, 1, 0, 1 << 30), Way::Recompute);
        assert_eq!(choose(&PreemptionPlanner::new(PreemptionMode::Swap), 1 << 30, 0, 1), Way::Swap);
        assert_eq!(choose(&self::planner(PreemptionMode::Recompute), 1, 0, 1 << 30), Way::Recompute);
    }

    #[test]
    fn a_disk_that_fails_and_fails_is_left_alone_for_longer_and_longer() {
        let mut planner = planner(PreemptionMode::Swap);
        let way = |planner: &PreemptionPlanner, step| {
            planner.choose(Effort { swap_bytes: MIB, bytes_ahead: 0, recompute_tokens: 1 }, step)
        };
        let fails = |planner: &mut PreemptionPlanner, step| planner.swap_failed(SwapDirection::In, step);
        assert!(!fails(&mut planner, 1) && !fails(&mut planner, 1));
        planner.swapped_in(1, 1.0);
        assert!(!fails(&mut planner, 2) && !fails(&mut planner, 2));
        // What can be written may still not be read.
        planner.swapped_out(1, 1.0);
        assert!(!planner.swap_failed(SwapDirection::Out, 2));
        // Nor was anything read of one whose blocks were all still cached.
        planner.swapped_in(0, 1.0);
        assert_eq!(way(&planner, 2), Way::Swap);
        assert!(fails(&mut planner, 3) && !fails(&mut planner, 3));
        assert_eq!([3, 1002, 1003].map(|step| way(&planner, step)), [Way::Recompute, Way::Recompute, Way::Swap]);
        // One more failure is enough, and nothing new.
        assert!(!fails(&mut planner, 1003));
        assert_eq!([1003, 3002, 3003].map(|step| way(&planner, step)), [Way::Recompute, Way::Recompute, Way::Swap]);
        // It was in flight, and ends no pause.
        assert!(!fails(&mut planner, 3003));
        planner.swapped_in(1, 1.0);
        planner.swapped_out(1, 1.0);
        assert_eq!([4000, 7003].map(|step| way(&planner, step)), [Way::Recompute, Way::Swap]);
        // A disk that works again is trusted as before.
        assert!(!fails(&mut planner, 7003) && !fails(&mut planner, 7003) && fails(&mut planner, 7003));
        assert_eq!([8002, 8003].map(|step| way(&planner, step)), [Way::Recompute, Way::Swap]);
        let mut step = 8003;
        for _ in 0..30 {
            fails(&mut planner, step);
            step = planner.paused_until;
        }
        assert_eq!(planner.pause, PAUSES.1);
    }

    #[test]
    fn small_passes_do_not_tell_how_long_a_long_prompt_takes() {
        let mut planner = PreemptionPlanner::new(PreemptionMode::Auto);
        assert_eq!(planner.bulk_seconds(100), None);
        planner.prefilled(50, 2.0);
        assert_eq!(planner.bulk_seconds(100), Some(4.0), "the best that is known");
        // Passes of two seconds, however much they compute.
        (0..20).for_each(|_| planner.prefilled(2000, 2.0));
        (0..20).for_each(|_| planner.prefilled(20, 2.0));
        let (bulk, all) = (planner.bulk_seconds(1000).unwrap(), planner.prefill_seconds(1000).unwrap());
        assert!((1.0..1.1).contains(&bulk) && all > 20.0, "{bulk} s, {all} s");
    }
}
