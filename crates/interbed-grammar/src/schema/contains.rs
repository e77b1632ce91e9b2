//! Handles arrays with `contains`: counts the items that match, between `minContains` and `maxContains`.
//!
//! There is a rule for each case. A case is the number of items that have come, and the number of them that match.
//! Counts that need not be told apart any more share one case.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::GrammarError;

use super::differ::differ;
use super::meet::{Definitions, meet_nodes};
use super::rules::Writer;
use super::shape::{Contained, Lists, Node};

/// Maximum number of cases of one array.
const CASES_MAX: u64 = 2_000;

/// The shapes of an item at some index: one if it counts as a match of `contains`, and one if it does not.
struct Entry {
    counted: Rc<Node>,
    other: Rc<Node>,
}

/// The cases of an array.
struct Cases {
    entries: Vec<Entry>,
    /// The largest counts that are told apart, of all items and of matching items.
    counts: [u64; 2],
    /// For each case, whether the array can be completed from there.
    ends: Vec<bool>,
}

impl Cases {
    fn index(&self, count: u64, found: u64) -> usize {
        (count * (self.counts[1] + 1) + found) as usize
    }

    fn after(&self, [count, found]: [u64; 2], is_counted: bool) -> [u64; 2] {
        [(count + 1).min(self.counts[0]), (found + u64::from(is_counted)).min(self.counts[1])]
    }

    fn entry(&self, count: u64) -> &Entry {
        &self.entries[(count as usize).min(self.entries.len() - 1)]
    }
}

impl Writer<'_, '_> {
    /// Returns whether any array satisfies the schema.
    pub(super) fn has_counted(&mut self, lists: &Lists, some: &Contained) -> Result<bool, GrammarError> {
        let cases = self.cases(lists, some)?;
        Ok(cases.ends[0])
    }

    /// Writes the rule of an array with counted items, and returns its name.
    pub(super) fn counted_list(&mut self, lists: &Lists, some: &Contained) -> Result<String, GrammarError> {
        let cases = self.cases(lists, some)?;
        let name = format!("json__c{}", self.rules.count());
        self.rules.push(String::new())?;
        let (mut waiting, mut known) = (VecDeque::from([[0, 0]]), vec![false; cases.ends.len()]);
        known[0] = true;
        while let Some([count, found]) = waiting.pop_front() {
            let mut ways = Vec::new();
            if may_end(lists, some, count, found) {
                ways.push(if count == 0 { "JSON__NO_LIST" } else { "JSON__LIST_END" }.to_owned());
            }
            for (is_counted, [next, such]) in self.steps(&cases, lists, some, [count, found])? {
                let entry = cases.entry(count);
                let value = self.value(if is_counted { &entry.counted } else { &entry.other })?;
                let before = if count == 0 { "JSON__LIST" } else { "JSON__COMMA" };
                ways.push(format!("{before} {value} {name}x{next}x{such}"));
                if !std::mem::replace(&mut known[cases.index(next, such)], true) {
                    waiting.push_back([next, such]);
                }
            }
            let rule = if count == 0 { name.clone() } else { format!("{name}x{count}x{found}") };
            self.rules.push(format!("{rule}: {}", ways.join(" | ")))?;
        }
        Ok(name)
    }

    /// Returns the cases that may follow a case, each with whether a matching item leads to it.
    fn steps(
        &mut self,
        cases: &Cases,
        lists: &Lists,
        some: &Contained,
        [count, found]: [u64; 2],
    ) -> Result<Vec<(bool, [u64; 2])>, GrammarError> {
        let mut steps = Vec::new();
        if lists.most.is_some_and(|most| count >= most) {
            return Ok(steps);
        }
        // Once enough items match and there is no upper limit, any item is allowed.
        let is_enough = some.most.is_none() && found >= some.least;
        for is_counted in [true, false] {
            let next = cases.after([count, found], is_counted);
            let is_full = is_counted && some.most.is_some_and(|most| found >= most);
            if (is_counted && is_enough) || is_full || !cases.ends[cases.index(next[0], next[1])] {
                continue;
            }
            let entry = cases.entry(count);
            let shape = if is_counted { entry.counted.clone() } else { entry.other.clone() };
            if self.has_values(&shape)? {
                steps.push((is_counted, next));
            }
        }
        Ok(steps)
    }

    fn cases(&mut self, lists: &Lists, some: &Contained) -> Result<Cases, GrammarError> {
        let first = lists.first.len() as u64;
        // The first item is always told apart from later ones, because no comma precedes it.
        let entries_max = lists.most.unwrap_or(lists.least.max(first).max(1));
        let such_max = some.most.unwrap_or(some.least);
        let count = entries_max.saturating_add(1).saturating_mul(such_max.saturating_add(1));
        if count > CASES_MAX {
            return Err(
                self.uncounted(some, "the numbers of entries are too large; leave it out, or make them smaller")
            );
        }
        let mut entries = Vec::new();
        for index in 0..=lists.first.len().min(entries_max as usize) {
            let all = lists.entry(index).clone();
            let counted = meet_nodes(&all, &some.shape, &mut self.reader)?;
            let other = if some.most.is_some() {
                match differ(&all, &some.shape, &mut self.reader) {
                    Ok(other) => self.reader.node(other)?,
                    Err(GrammarError::Schema { .. }) => {
                        return Err(self.uncounted(some, "entries cannot be told from others; leave its counts out"));
                    }
                    Err(error) => return Err(error),
                }
            } else {
                all
            };
            entries.push(Entry { counted, other });
        }
        let mut cases = Cases { entries, counts: [entries_max, such_max], ends: vec![false; count as usize] };
        // This propagates backwards from the cases that can end, until nothing changes.
        let mut is_changed = true;
        while is_changed {
            is_changed = false;
            for count in (0..=entries_max).rev() {
                for found in (0..=such_max).rev() {
                    let index = cases.index(count, found);
                    if cases.ends[index] {
                        continue;
                    }
                    self.reader.spend(1)?;
                    let can = may_end(lists, some, count, found)
                        || !self.steps(&cases, lists, some, [count, found])?.is_empty();
                    cases.ends[index] = can;
                    is_changed |= can;
                }
            }
        }
        Ok(cases)
    }

    fn uncounted(&self, some: &Contained, problem: &str) -> GrammarError {
        GrammarError::Schema {
            place: some.place.to_string(),
            problem: format!("\"contains\" cannot be enforced: {problem}"),
        }
    }
}

fn may_end(lists: &Lists, some: &Contained, count: u64, found: u64) -> bool {
    count >= lists.least && found >= some.least
}
