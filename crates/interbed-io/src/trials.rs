//! Decides which read settings to try, and which to choose by the results, without I/O.

use std::collections::VecDeque;

use crate::bandwidth::Sample;
use crate::{DIRECT_ALIGN, EngineKind};

const DEPTHS: [usize; 4] = [1, 2, 4, 8];
const CHUNKS: [usize; 4] = [1 << 20, 2 << 20, 4 << 20, 8 << 20];
/// The chunk size in bytes at which depths are compared, and which is preferred among equally good ones. It is small
/// compared with the memory of streamed weights, and large enough for any disk.
const CHUNK_USUAL: usize = 4 << 20;
/// The number of reads in flight that is preferred among equally good ones. With this number, the disk stays busy when
/// one read ends, and waiting threads cost nothing.
const DEPTH_USUAL: usize = 4;
/// The share of the best rate from which a rate counts as equally good. Disks vary by more than the rest between
/// trials. Besides, while all cores compute, the disk idles if few reads are in flight, or if a computing thread has to
/// notice completions.
const AS_GOOD: f64 = 0.75;
/// The number of candidates that are measured a second time.
const FINALISTS: usize = 3;

/// A combination of read settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) engine: EngineKind,
    pub(crate) depth: usize,
    pub(crate) chunk_bytes: usize,
}

/// The order of trials. Not every combination is tried. Depths come first, then chunk sizes at the best depth, then
/// io_uring with the best of these. The best few candidates are then tried again.
pub(crate) struct Trials {
    memory_bytes: usize,
    uring: bool,
    stage: Stage,
    queue: VecDeque<Candidate>,
    results: Vec<(Candidate, Sample)>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Depths,
    Chunks,
    Engines,
    Finals,
    Over,
}

impl Trials {
    /// The maximum number of trials that can be made.
    pub(crate) const COUNT_MAX: u32 = 12;

    /// Starts the trials. The buffers of all reads in flight together use at most `memory_bytes`, or one block if that
    /// is more.
    pub(crate) fn new(memory_bytes: usize, uring: bool) -> Self {
        Self { memory_bytes, uring, stage: Stage::Depths, queue: VecDeque::new(), results: Vec::new() }
    }

    /// Returns the next candidate to try; `None` once all trials have been made.
    pub(crate) fn next(&mut self) -> Option<Candidate> {
        loop {
            if let Some(candidate) = self.queue.pop_front() {
                return Some(candidate);
            }
            let (candidates, stage) = match self.stage {
                Stage::Depths => (self.depths(), Stage::Chunks),
                Stage::Chunks => (self.chunks(), Stage::Engines),
                Stage::Engines => (self.engines(), Stage::Finals),
                Stage::Finals => (self.finalists(), Stage::Over),
                Stage::Over => return None,
            };
            self.stage = stage;
            self.queue.extend(candidates);
        }
    }

    /// Records the result of a trial. Results of the same candidate are added up.
    pub(crate) fn record(&mut self, candidate: Candidate, sample: Sample) {
        match self.results.iter_mut().find(|(known, _)| *known == candidate) {
            Some((_, total)) => total.add(sample),
            None => self.results.push((candidate, sample)),
        }
    }

    /// Returns the shortest time of a trial in seconds, at the best rate so far.
    pub(crate) fn seconds_at_least(&self, candidate: Candidate) -> f64 {
        let best = self.results.iter().map(|(_, sample)| sample.bytes_per_s()).fold(0.0, f64::max);
        if best > 0.0 { (candidate.depth * candidate.chunk_bytes) as f64 / best } else { 0.0 }
    }

    /// Returns the best candidate and its bytes per second. Among equally good candidates, the most usual one wins:
    /// first threads rather than io_uring, which not every machine has; then the usual number of reads in flight; then
    /// the usual chunk size.
    pub(crate) fn choose(&self) -> (Candidate, f64) {
        if let [(only, sample)] = self.results[..] {
            // The disk was so slow, if only once, that time ran out after one candidate, so there is nothing to
            // compare.
            let usual = Candidate { depth: DEPTH_USUAL, ..only };
            let chosen = if self.fits(&usual) { usual } else { only };
            return (chosen, sample.bytes_per_s());
        }
        let best = self.results.iter().map(|(_, sample)| sample.bytes_per_s()).fold(0.0, f64::max);
        let as_good = self.results.iter().filter(|(_, sample)| sample.bytes_per_s() >= AS_GOOD * best);
        let oddity = |candidate: &Candidate| {
            let uring = candidate.engine == EngineKind::Uring;
            (uring, candidate.depth.abs_diff(DEPTH_USUAL), candidate.chunk_bytes.abs_diff(CHUNK_USUAL))
        };
        let chosen = as_good.min_by_key(|(candidate, _)| oddity(candidate));
        chosen
            .map_or((self.pread(1, self.usual_chunk()), 0.0), |(candidate, sample)| (*candidate, sample.bytes_per_s()))
    }

    fn depths(&self) -> Vec<Candidate> {
        self.fitting(DEPTHS.map(|depth| self.pread(depth, self.usual_chunk())))
    }

    fn chunks(&self) -> Vec<Candidate> {
        let (best, _) = self.choose();
        self.fitting(CHUNKS.map(|chunk_bytes| Candidate { chunk_bytes, ..best }))
    }

    fn engines(&self) -> Vec<Candidate> {
        if !self.uring {
            return Vec::new();
        }
        let (best, _) = self.choose();
        let uring = Candidate { engine: EngineKind::Uring, ..best };
        self.fitting([uring, Candidate { depth: best.depth * 2, ..uring }])
    }

    fn finalists(&self) -> Vec<Candidate> {
        let mut ranking: Vec<_> = self.results.iter().collect();
        ranking.sort_by(|(_, a), (_, b)| b.bytes_per_s().total_cmp(&a.bytes_per_s()));
        // Equal sizes come together, so that buffers can be reused.
        let mut finalists: Vec<_> = ranking.iter().take(FINALISTS).map(|(candidate, _)| *candidate).collect();
        finalists.sort_by_key(|candidate| candidate.chunk_bytes);
        if ranking.len() > 1 { finalists } else { Vec::new() }
    }

    /// Returns the candidates that fit into memory and have not been tried.
    fn fitting<const N: usize>(&self, candidates: [Candidate; N]) -> Vec<Candidate> {
        let tried = |candidate: &Candidate| self.results.iter().any(|(known, _)| known == candidate);
        candidates.into_iter().filter(|candidate| self.fits(candidate) && !tried(candidate)).collect()
    }

    /// Returns whether the candidate's buffers fit into memory. A single block always fits.
    fn fits(&self, candidate: &Candidate) -> bool {
        let least = candidate.depth == 1 && candidate.chunk_bytes == DIRECT_ALIGN;
        least || candidate.depth * candidate.chunk_bytes <= self.memory_bytes
    }

    /// Returns the usual chunk size, or a smaller one if memory cannot hold four usual chunks.
    fn usual_chunk(&self) -> usize {
        let quarter = (self.memory_bytes / 4).checked_ilog2().map_or(0, |log| 1 << log);
        quarter.clamp(DIRECT_ALIGN, CHUNK_USUAL)
    }

    fn pread(&self, depth: usize, chunk_bytes: usize) -> Candidate {
        Candidate { engine: EngineKind::Pread, depth, chunk_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs all trials on a disk whose rate (GB/s) is a function of the candidate.
    fn choice(memory_bytes: usize, uring: bool, rate: impl Fn(Candidate) -> f64) -> (Candidate, f64) {
        let mut trials = Trials::new(memory_bytes, uring);
        let mut count = 0;
        while let Some(candidate) = trials.next() {
            let held = candidate.depth * candidate.chunk_bytes;
            assert!(held <= memory_bytes.max(DIRECT_ALIGN), "{candidate:?} exceeds {memory_bytes}");
            assert!(uring || candidate.engine == EngineKind::Pread);
            trials.record(candidate, Sample { bytes: 1 << 20, seconds: (1 << 20) as f64 / 1e9 / rate(candidate) });
            count += 1;
        }
        assert!((1..=Trials::COUNT_MAX).contains(&count), "{count} trials");
        trials.choose()
    }

    fn pread(depth: usize, mebibytes: usize) -> Candidate {
        Candidate { engine: EngineKind::Pread, depth, chunk_bytes: mebibytes << 20 }
    }

    const PLENTY: usize = 64 << 20;

    #[test]
    fn the_fastest_is_chosen_and_among_equals_the_most_usual() {
        assert_eq!(choice(PLENTY, true, |_| 2.0).0, pread(4, 4), "all alike");
        let suffers_from_many = |c: Candidate| if c.depth > 1 { 1.0 } else { 1.5 };
        assert_eq!(choice(PLENTY, true, suffers_from_many).0, pread(1, 4));
        let saturates_at_four = |c: Candidate| c.depth.min(4) as f64;
        assert_eq!(choice(PLENTY, true, saturates_at_four).0, pread(4, 4));
        let wants_large_chunks = |c: Candidate| c.depth.min(2) as f64 * if c.chunk_bytes > 4 << 20 { 2.0 } else { 1.0 };
        assert_eq!(choice(PLENTY, false, wants_large_chunks).0, pread(4, 8));
        let faster_by_the_ring = |c: Candidate| if c.engine == EngineKind::Uring { 1.5 } else { 1.0 };
        let uring = Candidate { engine: EngineKind::Uring, ..pread(4, 4) };
        assert_eq!(choice(PLENTY, true, faster_by_the_ring).0, uring);
        assert_eq!(choice(PLENTY, false, faster_by_the_ring).0, pread(4, 4));
        let hardly_faster_by_the_ring = |c: Candidate| if c.engine == EngineKind::Uring { 1.2 } else { 1.0 };
        assert_eq!(choice(PLENTY, true, hardly_faster_by_the_ring).0, pread(4, 4));
    }

    #[test]
    fn trials_keep_to_the_memory_they_are_given() {
        let deeper_is_better = |c: Candidate| c.depth as f64;
        assert_eq!(choice(8 << 20, false, deeper_is_better).0, pread(4, 2), "smaller chunks rather than few");
        let small = Candidate { chunk_bytes: 256 << 10, ..pread(4, 1) };
        assert_eq!(choice(1 << 20, false, |_| 1.0).0, small);
        assert_eq!(choice(0, false, |_| 1.0).0.chunk_bytes, DIRECT_ALIGN);
        assert_eq!(choice(10_000, true, |c| c.depth as f64).0.depth, 2);
    }

    #[test]
    fn a_single_trial_decides_nothing() {
        for (memory_bytes, depth) in [(PLENTY, DEPTH_USUAL), (4 << 20, 1)] {
            let mut trials = Trials::new(memory_bytes, true);
            trials.record(pread(1, 4), Sample { bytes: 4 << 20, seconds: 0.4 });
            assert_eq!(trials.choose().0, pread(depth, 4));
        }
    }

    #[test]
    fn a_second_trial_counts_with_the_first() {
        let mut trials = Trials::new(PLENTY, false);
        trials.record(pread(1, 4), Sample { bytes: 100, seconds: 1.0 });
        trials.record(pread(2, 4), Sample { bytes: 150, seconds: 1.0 });
        assert_eq!(trials.choose(), (pread(2, 4), 150.0));
        trials.record(pread(2, 4), Sample { bytes: 30, seconds: 2.0 });
        assert_eq!(trials.choose(), (pread(1, 4), 100.0), "180 bytes in 3 seconds are far fewer than 100 in one");
        assert!((trials.seconds_at_least(pread(1, 4)) - (4 << 20) as f64 / 100.0).abs() < 1.0);
    }
}
