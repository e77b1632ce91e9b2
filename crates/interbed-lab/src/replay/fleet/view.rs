//! What a router knows of its servers' memory from the KV events that they publish.

use std::collections::{HashMap, VecDeque};

use super::chains::ContentNumber;
use super::router::KvChanges;

/// The contents that each server has cached, as far as its events tell. The view is as old as the events are late; with
/// a lag of 0 it is exact.
#[derive(Debug)]
pub(super) struct View {
    num_servers: usize,
    lag: u64,
    holders: HashMap<ContentNumber, Vec<u32>>, // servers, in no order; none is empty
    coming: VecDeque<(u64, u32, KvChanges)>,   // when and where it happened
}

impl View {
    /// Creates a view that learns of each change `lag` microseconds after it happened.
    pub fn new(num_servers: usize, lag: u64) -> Self {
        Self { num_servers, lag, holders: HashMap::new(), coming: VecDeque::new() }
    }

    /// Notes that a server's memory has changed at the time `now`. The calls must come in the order of time.
    pub fn changed(&mut self, server: usize, now: u64, changes: KvChanges) {
        self.coming.push_back((now, server as u32, changes));
    }

    /// Returns how many of `contents`, from the first on, each server has, as far as the view knows by the time `now`.
    /// [server]
    pub fn matched(&mut self, contents: &[ContentNumber], now: u64) -> Vec<usize> {
        while let Some((_, server, changes)) = self.coming.pop_front_if(|(at, ..)| at.saturating_add(self.lag) <= now) {
            self.apply(server, &changes);
        }
        let mut matched = vec![0; self.num_servers];
        for (depth, content) in contents.iter().enumerate() {
            let mut any = false;
            for &server in self.holders.get(content).into_iter().flatten() {
                let server = &mut matched[server as usize];
                if *server == depth {
                    *server += 1;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        matched
    }

    fn apply(&mut self, server: u32, changes: &KvChanges) {
        for content in &changes.removed {
            let Some(holders) = self.holders.get_mut(content) else { continue };
            if let Some(place) = holders.iter().position(|&holder| holder == server) {
                holders.swap_remove(place);
            }
            if holders.is_empty() {
                self.holders.remove(content);
            }
        }
        for &content in &changes.stored {
            self.holders.entry(content).or_default().push(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use interbed_kv::testing::Rng;

    use super::*;

    #[test]
    fn it_knows_what_sets_kept_by_hand_have() {
        for (seed, lag) in [(1, 0), (2, 0), (3, 5), (4, 40)] {
            let mut random = Rng(seed);
            let mut view = View::new(4, lag);
            let mut sets: Vec<HashSet<u32>> = vec![HashSet::new(); 4];
            let mut coming: Vec<(u64, usize, KvChanges)> = Vec::new();
            let mut real = sets.clone();
            for now in 0..2000 {
                let server = random.below(4);
                let some = |random: &mut Rng, from: &dyn Fn(&u32) -> bool| -> Vec<u32> {
                    let count = random.below(4);
                    let mut some: Vec<u32> = (0..count).map(|_| random.below(20) as u32).filter(from).collect();
                    some.sort_unstable();
                    some.dedup();
                    some
                };
                let removed = some(&mut random, &|content| real[server].contains(content));
                removed.iter().for_each(|content| assert!(real[server].remove(content)));
                let stored = some(&mut random, &|content| !real[server].contains(content));
                real[server].extend(&stored);
                let changes = KvChanges { removed, stored };
                coming.push((now, server, changes.clone()));
                view.changed(server, now, changes);
                coming.retain(|(at, server, changes)| {
                    let due = at + lag <= now;
                    if due {
                        changes.removed.iter().for_each(|content| assert!(sets[*server].remove(content)));
                        sets[*server].extend(&changes.stored);
                    }
                    !due
                });
                let prompt: Vec<u32> = (0..random.below(8)).map(|_| random.below(20) as u32).collect();
                let known = |set: &HashSet<u32>| prompt.iter().take_while(|content| set.contains(content)).count();
                assert_eq!(view.matched(&prompt, now), sets.iter().map(known).collect::<Vec<_>>());
            }
            assert_eq!(lag == 0, sets == real);
            assert!(view.holders.values().all(|holders| !holders.is_empty()));
        }
    }
}
