//! A limited number of places, with a count of the places that each owner has.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Gives out places, for example the places in a queue, to several owners. An owner may take free places while fewer
/// than the limit are taken. If too few places are free, an owner may still take places until it holds its equal share.
/// The share is the limit divided by the number of owners that hold places, including this owner, but at least 1 unless
/// the limit is 0. The number of taken places can therefore exceed the limit.
#[derive(Debug)]
pub struct Places<T> {
    limit: usize,
    taken: Mutex<Taken<T>>,
}

#[derive(Debug)]
struct Taken<T> {
    all: usize,
    /// The number of places that each owner holds. An owner without places is not listed.
    by: HashMap<T, usize>,
}

/// A place that one owner holds. Dropping this value frees the place.
#[derive(Debug)]
pub struct Place<T: Eq + Hash> {
    places: Arc<Places<T>>,
    owner: T,
}

impl<T: Eq + Hash + Copy> Places<T> {
    /// Creates places with the limit `limit`. No place is taken yet.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::new(Taken { all: 0, by: HashMap::new() }) })
    }

    /// Takes `count` places for `owner`. If `owner` may not take that many, takes none.
    ///
    /// # Errors
    /// Fails if `owner` may not take `count` more places. The error is the number of places that all owners together
    /// hold.
    pub fn take(self: &Arc<Self>, owner: T, count: usize) -> Result<Vec<Place<T>>, usize> {
        let mut taken = self.taken();
        let own = taken.by.get(&owner).copied().unwrap_or(0);
        let owners = taken.by.len() + usize::from(own == 0);
        // If there are fewer places than owners, each owner still gets one, unless there are no places at all.
        let share = (self.limit / owners).max(self.limit.min(1));
        let is_room = taken.all.checked_add(count).is_some_and(|all| all <= self.limit);
        if !is_room && own.checked_add(count).is_none_or(|own| own > share) {
            return Err(taken.all);
        }
        if count > 0 {
            taken.all += count;
            taken.by.insert(owner, own + count);
        }
        drop(taken);
        Ok((0..count).map(|_| Place { places: Arc::clone(self), owner }).collect())
    }

    /// Returns the number of places that all owners together hold.
    pub fn taken_in_all(&self) -> usize {
        self.taken().all
    }
}

impl<T> Places<T> {
    /// Locks the counts, even if a thread panicked while it held the lock: nothing under this lock can panic half-way.
    fn taken(&self) -> MutexGuard<'_, Taken<T>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Eq + Hash> Drop for Place<T> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(own) = taken.by.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_leaves_others_may_have_and_their_shares_too() {
        let places = Places::new(12);
        let take = |owner, count| places.take(owner, count);
        let mut of_b = take('b', 12).expect("nobody else wants any");
        assert_eq!(take('b', 1).expect_err("all are taken"), 12);
        let of_a = take('a', 6).expect("half of them");
        assert_eq!(take('a', 1).expect_err("more than half"), 18);
        let of_c = take('c', 3).expect("a third has room for that");
        assert!(take('c', 2).is_err() && take('a', 1).is_err() && take('b', 1).is_err());
        let more_of_c = take('c', 1).expect("the rest of a third");
        // Whoever has most gets no more before there is room again.
        of_b.truncate(2);
        assert_eq!(places.taken_in_all(), 12);
        assert_eq!(take('b', 3).expect_err("more than a third"), 12);
        assert_eq!(take('b', 2).expect("a third").len(), 2);
        drop((of_a, of_b, of_c, more_of_c));
        assert_eq!(places.taken_in_all(), 0);
        assert_eq!(take('a', 12).expect("all of them").len(), 12);
    }

    #[test]
    fn few_places_have_one_for_each_and_none_for_nobody() {
        let places = Places::new(2);
        let all: Vec<_> = (0..5).map(|owner| places.take(owner, if owner == 0 { 2 } else { 1 })).collect();
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        assert!(places.take(1, 1).is_err());
        assert!(Places::new(0).take('a', 1).is_err());
        assert!(places.take(7, usize::MAX).is_err());
        assert!(places.take(7, 0).is_ok_and(|none| none.is_empty()));
    }

    /// Checks random takes and returns of places: nobody within an equal share is refused, nobody beyond it is served
    /// when no place is free, and all places are counted.
    #[test]
    fn nobody_within_a_share_is_refused() {
        let mut state = 11_u64;
        let mut random = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % end
        };
        for limit in [1, 3, 16] {
            let places = Places::new(limit);
            let mut held: Vec<Vec<Place<usize>>> = (0..5).map(|_| Vec::new()).collect();
            for _ in 0..20_000 {
                let owner = random(5);
                if random(2) == 0 {
                    held[owner].pop();
                    continue;
                }
                let (all, own) = (held.iter().map(Vec::len).sum::<usize>(), held[owner].len());
                let owners = held.iter().enumerate().filter(|&(at, of)| at == owner || !of.is_empty()).count();
                let (count, share) = (1 + random(3), (limit / owners).max(1));
                match places.take(owner, count) {
                    Ok(more) => {
                        assert!(all + count <= limit || own + count <= share);
                        held[owner].extend(more);
                    }
                    Err(taken) => assert!(taken == all && all + count > limit && own + count > share),
                }
            }
            held.clear();
            assert_eq!(places.taken_in_all(), 0);
        }
    }

    #[test]
    fn one_that_is_too_many_refuses_nobody_else() {
        let places = Places::new(1);
        std::thread::scope(|scope| {
            let too_many = scope.spawn(|| (0..500_000).all(|_| places.take((), 2).is_err()));
            while !too_many.is_finished() {
                assert!(places.take((), 1).is_ok(), "there was room for one at any time");
            }
            assert!(too_many.join().expect("no panic"));
        });
    }
}
