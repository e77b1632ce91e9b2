//! Why prompts were not found, as the block manager tells it, added up.

use std::collections::BTreeMap;

use strata_kv::{Miss, MissReason};

use super::trace::{Request, Trace};

/// Cases that are told one by one.
const WORST: usize = 5;

/// All misses of a run.
#[derive(Debug, Clone)]
pub struct Misses {
    seen: Vec<bool>, // [block of the trace]
    tallies: BTreeMap<Cause, Tally>,
    worst: Vec<Case>,
}

/// What ended the part of a prompt that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Nothing: all of it was found.
    Found,
    /// A block that no prompt had before.
    NeverSeen,
    /// A block that was there and gave way.
    Evicted,
    /// The same, so long ago that the manager no longer knows.
    Forgotten,
    /// What a replay does not do: other salts, resets, prompts that share nothing.
    Other,
}

impl Cause {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Found => "found wholly",
            Self::NeverSeen => "never seen",
            Self::Evicted => "evicted",
            Self::Forgotten => "evicted long ago",
            Self::Other => "other",
        }
    }
}

/// The misses of one cause.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub requests: u64,
    /// Blocks that were not found.
    pub blocks: u64,
    /// Those of them that had been there: what a larger cache would have found.
    pub lost_blocks: u64,
    /// How many look-ups before the miss the block was evicted. [request]
    ages: Vec<u32>,
}

impl Tally {
    /// The median of how many look-ups before the miss the block was evicted.
    pub fn median_age(&self) -> Option<u32> {
        let mut ages = self.ages.clone();
        let middle = ages.len() / 2;
        (!ages.is_empty()).then(|| *ages.select_nth_unstable(middle).1)
    }
}

/// One request that missed much.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its number in the trace, from 0, which is its sequence's too.
    pub request: usize,
    pub found_blocks: usize,
    pub blocks: usize,
    pub lost_blocks: usize,
    pub cause: Cause,
    /// What the manager said.
    pub reason: MissReason,
}

impl Misses {
    /// For a run through `trace`.
    pub fn new(trace: &Trace) -> Self {
        Self { seen: vec![false; trace.distinct()], tallies: BTreeMap::new(), worst: Vec::new() }
    }

    /// Takes note of what the manager said of the prompt of `request`, the next one; blocks have one token there.
    pub fn add(&mut self, trace: &Trace, number: usize, request: &Request, miss: Miss) {
        let blocks = trace.blocks(request);
        let missed = blocks.get(miss.matched_tokens..).unwrap_or_default();
        let lost_blocks = missed.iter().filter(|&&block| self.seen[block as usize]).count();
        let seen = missed.first().is_some_and(|&first| self.seen[first as usize]);
        let (cause, age) = match miss.reason {
            _ if missed.is_empty() => (Cause::Found, None),
            MissReason::Evicted { lookups_ago, .. } => (Cause::Evicted, Some(lookups_ago)),
            MissReason::NeverSeen if seen => (Cause::Forgotten, None),
            MissReason::NeverSeen => (Cause::NeverSeen, None),
            _ => (Cause::Other, None),
        };
        let tally = self.tallies.entry(cause).or_default();
        tally.requests += 1;
        tally.blocks += missed.len() as u64;
        tally.lost_blocks += lost_blocks as u64;
        tally.ages.extend(age);
        if lost_blocks > 0 {
            let case = Case {
                request: number,
                found_blocks: miss.matched_tokens,
                blocks: blocks.len(),
                lost_blocks,
                cause,
                reason: miss.reason,
            };
            let place = self.worst.partition_point(|other| other.lost_blocks >= lost_blocks);
            self.worst.insert(place, case);
            self.worst.truncate(WORST);
        }
        blocks.iter().for_each(|&block| self.seen[block as usize] = true);
    }

    /// By cause, in a fixed order.
    pub fn tallies(&self) -> impl Iterator<Item = (Cause, &Tally)> {
        self.tallies.iter().map(|(cause, tally)| (*cause, tally))
    }

    /// The requests that lost most, the worst first.
    pub fn worst(&self) -> &[Case] {
        &self.worst
    }
}
