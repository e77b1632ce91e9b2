//! Adds up why prompts were not found, as the block manager reports it.

use std::collections::BTreeMap;

use interbed_kv::{EvictionKind, Miss, MissReason, SequenceId};

use super::trace::{Request, Trace};
use interbed_plan::Refusal;

/// The number of cases that are reported individually.
const WORST: usize = 5;

/// A function that is called for each request, with the policy, the number of blocks of the cache, and the outcome of
/// the request.
pub(super) type Listener<'l> = dyn FnMut(EvictionKind, usize, &Case) -> Result<(), Refusal> + 'l;

/// All misses of a run.
#[derive(Debug, Clone)]
pub(super) struct Misses {
    seen: Vec<bool>, // [block of the trace]
    tallies: BTreeMap<Cause, Tally>,
    worst: Vec<Case>,
}

/// What ended the part of a prompt that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// All of the prompt was found.
    Found,
    /// The next block was in no prompt before, except in prompts that were too long.
    NeverSeen,
    /// The next block was cached and was evicted.
    Evicted,
    /// The next block was cached and was evicted so long ago that the manager no longer knows of it.
    Forgotten,
    /// The prompt needs more blocks than the cache has.
    TooLong,
    /// The manager gave a reason that does not occur in a replay: other salts, resets, or prompts that share nothing.
    Other,
}

impl Cause {
    /// Returns the cause in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Found => "found wholly",
            Self::NeverSeen => "never seen",
            Self::Evicted => "evicted",
            Self::Forgotten => "evicted long ago",
            Self::TooLong => "too long",
            Self::Other => "other",
        }
    }
}

/// The sum of all misses of one cause.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub requests: u64,
    /// The number of blocks that were not found.
    pub blocks: u64,
    /// The number of blocks that were not found although an earlier prompt had them; a larger cache would have found
    /// them.
    pub lost_blocks: u64,
    /// How many look-ups before the miss the block was evicted. [request]
    ages: Vec<u32>,
}

impl Tally {
    /// Returns the median of how many look-ups before the miss the block was evicted, or `None` if no block was.
    pub fn median_age(&self) -> Option<u32> {
        let mut ages = self.ages.clone();
        let middle = ages.len() / 2;
        (!ages.is_empty()).then(|| *ages.select_nth_unstable(middle).1)
    }
}

/// The outcome of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// The request's number in the trace, from 0, which is also the id of its sequence.
    pub request: usize,
    pub found_blocks: usize,
    /// The number of blocks in the request's prompt.
    pub blocks: usize,
    /// The number of blocks that were not found although an earlier prompt had them.
    pub lost_blocks: usize,
    /// Why no more blocks were found.
    pub cause: Cause,
    /// The sequence for which the first missing block was evicted.
    pub by: Option<SequenceId>,
    /// How many look-ups ago the first missing block was evicted.
    pub lookups_ago: Option<u32>,
}

impl Case {
    /// Returns in words why no more blocks were found.
    pub fn why(&self) -> String {
        let age = self.lookups_ago.map_or_else(String::new, |age| format!(" {age} look-ups ago"));
        let by = self.by.map_or_else(String::new, |by| format!(" for {by}"));
        format!("{}{age}{by}", self.cause.name())
    }
}

impl Misses {
    /// Creates an empty sum for a run through `trace`.
    pub fn new(trace: &Trace) -> Self {
        Self { seen: vec![false; trace.distinct()], tallies: BTreeMap::new(), worst: Vec::new() }
    }

    /// Takes note of the next request, which has `number`, and of what the manager said of its prompt in blocks of one
    /// token. `miss` is `None` if the prompt is too long for the cache.
    pub fn add(&mut self, trace: &Trace, number: usize, request: &Request, miss: Option<Miss>) -> Case {
        let blocks = trace.blocks(request);
        let found_blocks = miss.map_or(0, |miss| miss.matched_tokens);
        let missed = blocks.get(found_blocks..).unwrap_or_default();
        let lost_blocks = missed.iter().filter(|&&block| self.seen[block as usize]).count();
        let seen = missed.first().is_some_and(|&first| self.seen[first as usize]);
        let (cause, by, lookups_ago) = match miss.map(|miss| miss.reason) {
            None => (Cause::TooLong, None, None),
            Some(_) if missed.is_empty() => (Cause::Found, None, None),
            Some(MissReason::Evicted { by, lookups_ago }) => (Cause::Evicted, by, Some(lookups_ago)),
            Some(MissReason::NeverSeen) if seen => (Cause::Forgotten, None, None),
            Some(MissReason::NeverSeen) => (Cause::NeverSeen, None, None),
            Some(_) => (Cause::Other, None, None),
        };
        let tally = self.tallies.entry(cause).or_default();
        tally.requests += 1;
        tally.blocks += missed.len() as u64;
        tally.lost_blocks += lost_blocks as u64;
        tally.ages.extend(lookups_ago);
        let case = Case { request: number, found_blocks, blocks: blocks.len(), lost_blocks, cause, by, lookups_ago };
        if lost_blocks > 0 {
            let place = self.worst.partition_point(|other| other.lost_blocks >= lost_blocks);
            self.worst.insert(place, case);
            self.worst.truncate(WORST);
        }
        if cause != Cause::TooLong {
            blocks.iter().for_each(|&block| self.seen[block as usize] = true);
        }
        case
    }

    /// Returns the sums by cause, in a fixed order.
    pub fn tallies(&self) -> impl Iterator<Item = (Cause, &Tally)> {
        self.tallies.iter().map(|(cause, tally)| (*cause, tally))
    }

    /// Returns the requests that lost the most blocks, the worst first.
    pub fn worst(&self) -> &[Case] {
        &self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cases and the sum of a run over `prompts`, each with its blocks and what the manager said of it.
    fn cases(prompts: &[(&[u64], Option<Miss>)]) -> (Vec<Case>, Misses) {
        let mut trace = Trace::default();
        prompts.iter().for_each(|(ids, _)| trace.push(0.0, ids.len(), 0, ids));
        trace.finish();
        let mut misses = Misses::new(&trace);
        let requests = trace.requests().iter().zip(prompts).enumerate();
        let cases = requests.map(|(number, (request, (_, miss)))| misses.add(&trace, number, request, *miss)).collect();
        (cases, misses)
    }

    fn miss(matched_tokens: usize, reason: MissReason) -> Option<Miss> {
        Some(Miss { matched_tokens, reason })
    }

    #[test]
    fn what_the_manager_no_longer_knows_had_been_there_all_the_same() {
        let never = miss(0, MissReason::NeverSeen);
        let (cases, misses) = cases(&[(&[1, 2], never), (&[1, 3], never)]);
        let of = |case: &Case| (case.cause, case.lost_blocks, case.why());
        assert_eq!(of(&cases[0]), (Cause::NeverSeen, 0, "never seen".into()));
        assert_eq!(of(&cases[1]), (Cause::Forgotten, 1, "evicted long ago".into()));
        assert_eq!(misses.worst().iter().map(|case| case.request).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_was_refused_has_not_been_there() {
        let never = miss(0, MissReason::NeverSeen);
        let (cases, misses) = cases(&[(&[1, 2, 3], None), (&[1, 2], never), (&[1, 2, 3], None)]);
        let of = |case: &Case| (case.cause, case.found_blocks, case.lost_blocks);
        assert_eq!(of(&cases[0]), (Cause::TooLong, 0, 0));
        assert_eq!(of(&cases[1]), (Cause::NeverSeen, 0, 0));
        assert_eq!(of(&cases[2]), (Cause::TooLong, 0, 2));
        let tallies: Vec<_> = misses.tallies().map(|(cause, tally)| (cause, tally.requests, tally.blocks)).collect();
        assert_eq!(tallies, [(Cause::NeverSeen, 1, 2), (Cause::TooLong, 2, 6)]);
    }

    #[test]
    fn other_reasons_are_not_taken_for_evictions() {
        let reset = miss(1, MissReason::CacheReset { lookups_ago: 3 });
        let (cases, misses) = cases(&[(&[1, 2], reset), (&[1, 2], miss(2, MissReason::PartialBlock))]);
        assert_eq!((cases[0].cause, cases[0].lookups_ago, cases[0].why()), (Cause::Other, None, "other".into()));
        assert_eq!(cases[1].cause, Cause::Found);
        assert!(misses.tallies().all(|(_, tally)| tally.median_age().is_none()));
    }

    #[test]
    fn the_worst_are_told_in_turn_and_the_median_is_that_of_all_ages() {
        let ids = [1, 2, 3, 4, 5, 6, 7];
        let mut prompts = vec![(&ids[..], miss(0, MissReason::NeverSeen))];
        prompts.extend([4, 1, 7, 3, 6, 2, 5].map(|length: u32| {
            let evicted = MissReason::Evicted { by: None, lookups_ago: 10 * length };
            (&ids[..length as usize], miss(0, evicted))
        }));
        let (_, misses) = cases(&prompts);
        let worst: Vec<_> = misses.worst().iter().map(|case| case.lost_blocks).collect();
        assert_eq!(worst, [7, 6, 5, 4, 3]);
        let medians: Vec<_> = misses.tallies().map(|(cause, tally)| (cause, tally.median_age())).collect();
        assert_eq!(medians, [(Cause::NeverSeen, None), (Cause::Evicted, Some(40))]);
    }
}
