//! Computes the memory of the process apart from weights, KV and passes: the program, its tokenizer and its threads.
//!
//! The footprint is computed from the sizes of the tokenizer's tables rather than measured, so that every command
//! reports the same number for the same model. A measured value is used only if it is larger than the computed one, and
//! no tokenizer is known for which this happens.

use interbed_device::{Bytes, HostMemory, give_back_freed, huge_pages_unasked, peak_resident};
use interbed_model::tokenizer::Tokenizer;

/// The number of bytes of the program: pages of its file, and its memory before a model is open. The file is larger in
/// debug builds.
const PROGRAM: u64 = if cfg!(debug_assertions) { 40 << 20 } else { RELEASED };
/// The number of bytes of the program as users have it.
const RELEASED: u64 = 18 << 20;

/// Bytes per token of the vocabulary, with its merge, in the tokenizer's tables. Measured: 213 to 283 bytes.
const TOKEN: u64 = 320;
/// Bytes per token of the vocabulary while the tables are built from the tokenizer's file. Measured: 1,090 to 1,160
/// bytes.
const TOKEN_OPENING: u64 = 1250;
/// The number of bytes of the tokenizer's cache of words.
const WORDS: u64 = 4 << 20;

/// The number of bytes for the runtime, the sampler and the allocator's reserves, if one answer is computed at a time.
const ONE: u64 = 10 << 20;
/// The number of bytes for the runtime, the sampler and the allocator's reserves, if several threads tokenize the texts
/// of many requests.
const MANY: u64 = 48 << 20;
/// The number of bytes of a thread's stack and its part of the allocator's memory.
const THREAD: u64 = 256 << 10;
/// The number of bytes of a thread's stack and its part of the allocator's memory if the system uses huge pages for any
/// memory.
const THREAD_HUGE: u64 = 2 << 20;
/// Bytes per vocabulary entry while a token is sampled.
const DRAWN: u64 = 64;

/// The maximum number of vocabulary entries that are counted. No known vocabulary has more.
const ENTRIES_MAX: usize = 1 << 22;

/// The memory of the process itself, apart from weights, KV and forward passes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Footprint {
    /// The number of bytes of the program and the tokenizer.
    kept: Bytes,
    /// The peak memory of the process while the model was opened.
    pub opening: Bytes,
    /// Whether the system backs any memory with huge pages, so that memory that was given back may become resident
    /// again.
    huge_pages: bool,
}

impl Footprint {
    /// Returns freed memory to the operating system, and then computes the footprint. Call this after the model has
    /// been opened and before anything large is loaded.
    pub fn of(tokenizer: Option<&Tokenizer>) -> Self {
        tokenizer.map_or(Self::of_vocabulary(PROGRAM, 0, 0), Self::counted).at_least_measured(0)
    }

    /// Computes the footprint of a newly opened model in a process that has served models before. Memory that the
    /// process holds for serving requests is not included, because it is reserved separately.
    pub fn in_server(tokenizer: &Tokenizer) -> Self {
        Self::counted(tokenizer).at_least_measured(MANY)
    }

    fn counted(tokenizer: &Tokenizer) -> Self {
        let ids = 0..tokenizer.vocab_size().min(ENTRIES_MAX) as u32;
        let lengths = ids.filter_map(|id| tokenizer.vocabulary_entry(id)).map(|entry| entry.len() as u64);
        let (count, bytes) = lengths.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        Self::of_vocabulary(PROGRAM, count, bytes)
    }

    /// Estimates the footprint for a vocabulary of `entries` entries of usual length, before the tokenizer is opened.
    pub fn ahead(entries: usize) -> Self {
        Self::of_vocabulary(PROGRAM, entries.min(ENTRIES_MAX) as u64, 0).at_least_measured(0)
    }

    /// Estimates the footprint for a vocabulary of `entries` entries of usual length, on any machine: nothing of this
    /// process or machine is part of it.
    pub fn estimated(entries: usize) -> Self {
        Self::of_vocabulary(RELEASED, entries.min(ENTRIES_MAX) as u64, 0)
    }

    /// Replaces computed values by measured ones if the measured ones are larger. `beside` bytes of the measured memory
    /// do not count.
    fn at_least_measured(self, beside: u64) -> Self {
        give_back_freed();
        let (resident, peak) = (HostMemory::read().resident.saturating_sub(beside), peak_resident());
        let (kept, opening) = (self.kept.max(Bytes(resident)), self.opening.max(Bytes(peak)));
        Self { kept, opening, huge_pages: false }.among_huge_pages(huge_pages_unasked())
    }

    /// Counts memory that opening has used and freed as if it were still in use, if the system uses huge pages unasked.
    fn among_huge_pages(self, huge_pages: bool) -> Self {
        let kept = if huge_pages { self.kept.max(self.opening) } else { self.kept };
        Self { kept, huge_pages, ..self }
    }

    /// Returns the footprint of a program of `program` bytes with a vocabulary of `entries` entries that have `bytes`
    /// bytes in total.
    fn of_vocabulary(program: u64, entries: u64, bytes: u64) -> Self {
        // Two tables, from texts to ids and back, hold each text; long texts take additional memory by their length.
        let long = bytes.saturating_sub(entries.saturating_mul(16)).saturating_mul(2);
        let words = if entries == 0 { 0 } else { WORDS };
        Self {
            kept: Bytes(program + words + entries.saturating_mul(TOKEN).saturating_add(long)),
            opening: Bytes(program + entries.saturating_mul(TOKEN_OPENING).saturating_add(long.saturating_mul(4))),
            huge_pages: false,
        }
    }

    /// Returns the bytes of the footprint plus the memory for computing with `threads` threads and sampling from
    /// `vocab_size` logits. `serves_many` says whether many requests are served, rather than one at a time.
    pub fn computing(&self, threads: usize, vocab_size: usize, serves_many: bool) -> Bytes {
        let runtime = if serves_many { MANY } else { ONE };
        let thread = if self.huge_pages { THREAD_HUGE } else { THREAD };
        let parts = [runtime, (threads as u64).saturating_mul(thread), (vocab_size as u64).saturating_mul(DRAWN)];
        Bytes(parts.iter().fold(self.kept.0, |sum, &part| sum.saturating_add(part)))
    }

    /// Returns the bytes of the program and the tokenizer.
    pub fn kept(&self) -> Bytes {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_vocabularies_take_more() {
        let of = |entries| Footprint::of_vocabulary(PROGRAM, entries, entries * 8);
        let (small, large) = (of(2_000), of(150_000));
        assert_eq!(large.kept.0 - small.kept.0, 148_000 * TOKEN);
        assert!(large.opening > large.kept && of(0).kept == Bytes(PROGRAM));
        // Long entries take memory according to their length.
        assert!(Footprint::of_vocabulary(PROGRAM, 1000, 1 << 20).kept.0 > of(1000).kept.0 + (1 << 20));
        let one = small.computing(2, 2_000, false);
        assert_eq!(small.computing(2, 2_000, true).0 - one.0, MANY - ONE);
        assert_eq!(small.computing(3, 2_001, false).0 - one.0, THREAD + DRAWN);
        // Freed memory may become resident again in huge pages.
        let huge = large.among_huge_pages(true);
        assert_eq!((huge.kept, large.among_huge_pages(false).kept), (large.opening, large.kept));
        assert_eq!(huge.computing(2, 0, false).0 - huge.computing(1, 0, false).0, THREAD_HUGE);
    }
}
