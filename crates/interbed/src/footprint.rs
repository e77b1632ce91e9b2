//! The memory of the process apart from weights, KV and passes: its code, its tokenizer, its threads.
//!
//! It is computed from what the tokenizer holds, not measured, so that every command on every run tells the same figure
//! of the same model. What is measured is taken only where it is more, which no tokenizer has been seen to reach.

use interbed_device::{Bytes, HostMemory, give_back_freed, huge_pages_unasked, peak_resident};
use interbed_model::tokenizer::Tokenizer;

/// The program: pages of its file, and what it holds before it opens a model. Without optimisation its file is larger.
const PROGRAM: u64 = if cfg!(debug_assertions) { 40 << 20 } else { 18 << 20 };

/// A token of the vocabulary with its merge, in the tables of the tokenizer; measured: 213 to 283 bytes.
const TOKEN: u64 = 320;
/// The same while the tables are built from the file's text; measured: 1,090 to 1,160 bytes.
const TOKEN_OPENING: u64 = 1250;
/// The tokenizer's memory of words that it has met.
const WORDS: u64 = 4 << 20;

/// Runtime, sampler and what the allocator keeps, where one answer is made at a time.
const ONE: u64 = 10 << 20;
/// The same where many requests are served, whose texts are tokenized by several threads.
const MANY: u64 = 48 << 20;
/// A thread's stack and its part of the allocator's memory.
const THREAD: u64 = 256 << 10;
/// The same where the system takes huge pages for any memory.
const THREAD_HUGE: u64 = 2 << 20;
/// An entry of the vocabulary while a token is drawn.
const DRAWN: u64 = 64;

/// Entries of a vocabulary that are looked at; more has none.
const ENTRIES_MAX: usize = 1 << 22;

/// The memory that the process takes once the model is open.
#[derive(Debug, Clone, Copy, Default)]
pub struct Footprint {
    /// Program and tokenizer.
    kept: Bytes,
    /// The most that they took on the way.
    pub opening: Bytes,
    /// Whether the system backs any memory with huge pages, so that memory that was given back may become resident
    /// again.
    huge_pages: bool,
}

impl Footprint {
    /// To be asked when the model is open and nothing large has been loaded: what opening it took goes back to the
    /// system first.
    pub fn of(tokenizer: Option<&Tokenizer>) -> Self {
        tokenizer.map_or(Self::of_vocabulary(0, 0), Self::counted).at_least_measured(0)
    }

    /// The footprint in a process that serves already, to be asked for likewise. What serving has left in memory is no
    /// part of it: memory for that is set aside by itself.
    pub fn in_server(tokenizer: &Tokenizer) -> Self {
        Self::counted(tokenizer).at_least_measured(MANY)
    }

    fn counted(tokenizer: &Tokenizer) -> Self {
        let ids = 0..tokenizer.vocab_size().min(ENTRIES_MAX) as u32;
        let lengths = ids.filter_map(|id| tokenizer.vocabulary_entry(id)).map(|entry| entry.len() as u64);
        let (count, bytes) = lengths.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        Self::of_vocabulary(count, bytes)
    }

    /// What it will be with a vocabulary of so many entries of usual lengths, which takes long to open where it is
    /// large.
    pub fn ahead(entries: usize) -> Self {
        Self::of_vocabulary(entries.min(ENTRIES_MAX) as u64, 0).at_least_measured(0)
    }

    /// What is measured counts where it is more, but for so many bytes `beside` it.
    fn at_least_measured(self, beside: u64) -> Self {
        give_back_freed();
        let (resident, peak) = (HostMemory::read().resident.saturating_sub(beside), peak_resident());
        let (kept, opening) = (self.kept.max(Bytes(resident)), self.opening.max(Bytes(peak)));
        Self { kept, opening, huge_pages: false }.among_huge_pages(huge_pages_unasked())
    }

    /// Where the system may join pages, memory that opening took and gave back is counted as if it were still there.
    fn among_huge_pages(self, huge_pages: bool) -> Self {
        let kept = if huge_pages { self.kept.max(self.opening) } else { self.kept };
        Self { kept, huge_pages, ..self }
    }

    /// The footprint with a vocabulary of `entries` entries, which have `bytes` bytes together.
    fn of_vocabulary(entries: u64, bytes: u64) -> Self {
        // Both tables, from texts to numbers and back, have each text; beyond some bytes it takes what it is long.
        let long = bytes.saturating_sub(entries.saturating_mul(16)).saturating_mul(2);
        let words = if entries == 0 { 0 } else { WORDS };
        Self {
            kept: Bytes(PROGRAM + words + entries.saturating_mul(TOKEN).saturating_add(long)),
            opening: Bytes(PROGRAM + entries.saturating_mul(TOKEN_OPENING).saturating_add(long.saturating_mul(4))),
            huge_pages: false,
        }
    }

    /// Adds what computing takes: `threads` threads, and logits of `vocab_size` tokens, for many requests or one at a
    /// time.
    pub fn computing(&self, threads: usize, vocab_size: usize, serves_many: bool) -> Bytes {
        let runtime = if serves_many { MANY } else { ONE };
        let thread = if self.huge_pages { THREAD_HUGE } else { THREAD };
        let parts = [runtime, (threads as u64).saturating_mul(thread), (vocab_size as u64).saturating_mul(DRAWN)];
        Bytes(parts.iter().fold(self.kept.0, |sum, &part| sum.saturating_add(part)))
    }

    /// Program and tokenizer.
    pub fn kept(&self) -> Bytes {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_vocabularies_take_more() {
        let of = |entries| Footprint::of_vocabulary(entries, entries * 8);
        let (small, large) = (of(2_000), of(150_000));
        assert_eq!(large.kept.0 - small.kept.0, 148_000 * TOKEN);
        assert!(large.opening > large.kept && of(0).kept == Bytes(PROGRAM));
        // Long entries count by their length.
        assert!(Footprint::of_vocabulary(1000, 1 << 20).kept.0 > of(1000).kept.0 + (1 << 20));
        let one = small.computing(2, 2_000, false);
        assert_eq!(small.computing(2, 2_000, true).0 - one.0, MANY - ONE);
        assert_eq!(small.computing(3, 2_001, false).0 - one.0, THREAD + DRAWN);
        // Memory that was given back may come back in huge pages.
        let huge = large.among_huge_pages(true);
        assert_eq!((huge.kept, large.among_huge_pages(false).kept), (large.opening, large.kept));
        assert_eq!(huge.computing(2, 0, false).0 - huge.computing(1, 0, false).0, THREAD_HUGE);
    }
}
