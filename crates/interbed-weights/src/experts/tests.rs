//! Tests the arena with random calls, beside a reference that looks at everything each time.

mod reference;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use reference::Reference;

const EXPERTS: u32 = 12;

fn shape() -> ArenaShape {
    ArenaShape::new(vec![100, 100, 80, 100, 80], EXPERTS as usize, 3).unwrap()
}

/// Calls that a driver, a prefetcher and an operator may make next.
#[derive(Debug, Clone)]
enum Call {
    Visit(u32, Vec<(u32, u32)>),
    Place,
    Answer(usize, bool),
    Stale(usize),
    Release,
    EndVisit,
    Prefetch(u32, u32, u8),
    Budget(u64),
    Restart,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let wanted = proptest::collection::btree_map(0..EXPERTS, 0..9u32, 0..12);
    let call = prop_oneof![
        3 => (0..5u32, wanted).prop_map(|(layer, wanted)| Call::Visit(layer, wanted.into_iter().rev().collect())),
        8 => Just(Call::Place),
        8 => (0..64usize, proptest::bool::weighted(0.85)).prop_map(|(which, well)| Call::Answer(which, well)),
        1 => (0..64usize).prop_map(Call::Stale),
        5 => Just(Call::Release),
        2 => Just(Call::EndVisit),
        2 => (0..5u32, 0..EXPERTS, 0..5u8).prop_map(|(layer, expert, fourths)| Call::Prefetch(layer, expert, fourths)),
        1 => (300..6000u64).prop_map(Call::Budget),
        1 => Just(Call::Restart),
    ];
    proptest::collection::vec(call, 1..300)
}

/// The arena, its reference, and what the driver knows.
struct Bench {
    arena: Arena,
    reference: Reference,
    in_flight: Vec<Placement>,
    ended: Vec<Placement>,
    visit: Option<(u32, Vec<u32>)>,
    /// Slabs that the visit has read.
    read: Vec<SlabId>,
    token_uses: u64,
}

impl Bench {
    fn new(budget: u64) -> Self {
        let (arena, reference) = (Arena::new(shape(), budget).unwrap(), Reference::new(shape()));
        Self { arena, reference, in_flight: vec![], ended: vec![], visit: None, read: vec![], token_uses: 0 }
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::Visit(layer, wanted) => self.begin(*layer, wanted),
            Call::Place => self.place(),
            Call::Answer(which, well) => {
                if self.in_flight.is_empty() {
                    return;
                }
                let placement = self.in_flight.swap_remove(which % self.in_flight.len());
                let Placement { slab, ticket, .. } = placement;
                assert!(if *well { self.arena.loaded(slab, ticket) } else { self.arena.failed(slab, ticket) });
                match well {
                    true => self.reference.loaded(slab, placement.slot),
                    false => self.reference.failed(slab),
                }
                self.ended.push(placement);
            }
            Call::Stale(which) => {
                if self.ended.is_empty() {
                    return;
                }
                let Placement { slab, ticket, .. } = self.ended[which % self.ended.len()];
                assert!(!self.arena.loaded(slab, ticket) && !self.arena.failed(slab, ticket), "both change nothing");
            }
            Call::Release => {
                let Some((layer, pending)) = &mut self.visit else { return };
                let layer = *layer;
                let ready = |&expert: &u32| self.arena.slot_of(SlabId { layer, expert }).is_some();
                let Some(at) = pending.iter().position(ready) else { return };
                let expert = pending.remove(at);
                self.arena.release(expert);
                self.reference.released(SlabId { layer, expert });
            }
            Call::EndVisit => self.end(),
            Call::Prefetch(layer, expert, fourths) => {
                let (slab, likelihood) = (SlabId { layer: *layer, expert: *expert }, f32::from(*fourths) / 4.0);
                let expected = self.reference.prefetch_victim(&self.arena, slab, likelihood);
                let placement = self.arena.may_prefetch(slab, likelihood);
                assert_eq!(placement.map(|placement| placement.evicted), expected);
                if let Some(placement) = placement {
                    self.reference.placed(&placement, likelihood);
                    self.in_flight.push(placement);
                }
            }
            Call::Budget(bytes) => self.budget(*bytes),
            Call::Restart => {
                let text = serde_json::to_string(&self.arena.counts()).unwrap();
                let counts = serde_json::from_str(&text).unwrap();
                self.arena.warm(&counts).unwrap();
                self.reference.warmed();
            }
        }
    }

    fn begin(&mut self, layer: u32, wanted: &[(u32, u32)]) {
        self.end();
        self.token_uses += wanted.iter().map(|&(_, tokens)| u64::from(tokens)).sum::<u64>();
        self.arena.begin_visit(layer, wanted);
        self.reference.visited(layer, wanted);
        let mut experts: Vec<u32> =
            wanted.iter().filter(|(_, tokens)| *tokens > 0).map(|&(expert, _)| expert).collect();
        experts.sort_unstable();
        let lists = [self.arena.hits(), self.arena.misses(), self.arena.arriving()];
        assert!(lists.iter().all(|list| list.is_sorted()), "file order: {lists:?}");
        let mut all = lists.concat();
        all.sort_unstable();
        assert_eq!(all, experts);
        let hit = |expert: u32| self.arena.slot_of(SlabId { layer, expert }).is_some();
        assert!(self.arena.hits().iter().all(|&expert| hit(expert)));
        self.visit = Some((layer, experts));
        self.read.clear();
    }

    fn place(&mut self) {
        let Some((layer, pending)) = self.visit.clone() else { return };
        let reading = |slab| self.in_flight.iter().any(|placement| placement.slab == slab);
        let absent = |&&expert: &&u32| {
            let slab = SlabId { layer, expert };
            self.arena.slot_of(slab).is_none() && !reading(slab)
        };
        let Some(&expert) = pending.iter().find(absent) else { return };
        let slab = SlabId { layer, expert };
        let expected = self.reference.victim(&self.arena, slab);
        let placement = self.arena.place(expert);
        assert_eq!(placement.map(|placement| placement.evicted), expected, "the reference's victim");
        let Some(placement) = placement else { return };
        let failed_before = self.ended.iter().any(|ended| ended.slab == slab);
        assert!(!self.read.contains(&slab) || failed_before, "{slab:?} is read twice in a visit");
        self.read.push(slab);
        self.reference.placed(&placement, 0.0);
        self.in_flight.push(placement);
    }

    fn end(&mut self) {
        if self.visit.take().is_some() {
            self.arena.end_visit();
            self.reference.ended();
        }
    }

    fn budget(&mut self, bytes: u64) {
        let before = self.arena.bytes();
        let Ok(changes) = self.arena.set_budget(bytes) else {
            assert!(bytes < self.arena.shape().least_bytes());
            return;
        };
        let size = |slot: &SlabSlot| self.arena.shape().class_bytes()[slot.class as usize];
        let added: u64 = changes.added.iter().map(size).sum();
        let withdrawn: u64 = changes.withdrawn.iter().map(|(slot, _)| size(slot)).sum();
        assert_eq!(self.arena.bytes(), before + added - withdrawn);
        assert!(self.arena.budget() >= bytes);
        if self.visit.is_none() && self.in_flight.is_empty() {
            assert_eq!(self.arena.budget(), bytes, "nothing holds a slot");
        }
        for (_, slab) in &changes.withdrawn {
            slab.iter().for_each(|slab| self.reference.evicted(*slab));
        }
    }

    fn check(&self) {
        self.arena.check_invariants().unwrap();
        self.reference.check(&self.arena);
        let figures = self.arena.figures();
        assert_eq!(figures.decode.token_uses + figures.chunks.token_uses, self.token_uses);
        for placement in &self.in_flight {
            assert!(self.arena.slot_of(placement.slab).is_none(), "it is being read");
        }
    }
}

#[test]
fn random_calls_keep_all_invariants_and_evict_what_the_reference_does() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() });
    let found = runner.run(&(calls(), 360..6000u64), |(calls, budget)| {
        let mut bench = Bench::new(budget);
        for call in &calls {
            bench.call(call);
            bench.check();
        }
        Ok(())
    });
    found.unwrap();
}

/// Runs a visit as a driver without overlap does, and returns the experts that were read.
fn visit(arena: &mut Arena, layer: u32, wanted: &[(u32, u32)]) -> Vec<u32> {
    arena.begin_visit(layer, wanted);
    for expert in arena.hits().to_vec() {
        arena.release(expert);
    }
    let misses = arena.misses().to_vec();
    for &expert in &misses {
        let Placement { slab, ticket, .. } = arena.place(expert).expect("nothing is pinned");
        assert!(arena.loaded(slab, ticket));
        arena.release(expert);
    }
    arena.end_visit();
    misses
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_the_least() {
    let error = Arena::new(shape(), 359).unwrap_err();
    assert_eq!(error, ArenaError::TooSmall { budget: 359, least: 360 });
    assert_eq!(Arena::new(shape(), 360).unwrap().bytes(), 360);
}

#[test]
fn classes_share_a_budget_by_their_part_of_the_bank() {
    let arena = Arena::new(shape(), 1800).unwrap();
    // 36 slabs of 100 bytes and 24 of 80: a third of each would be 12 and 8, which is 40 bytes too much.
    assert_eq!((arena.slot_count(1), arena.slot_count(0), arena.bytes()), (11, 8, 1740));
}

#[test]
fn the_whole_bank_is_enough() {
    let arena = Arena::new(shape(), u64::MAX).unwrap();
    assert_eq!(arena.bytes(), arena.shape().bank_bytes());
}

#[test]
fn impossible_shapes_are_refused() {
    for (bytes, experts, top_k) in [(vec![], 4, 2), (vec![1], 0, 1), (vec![1], 4, 5), (vec![1], 4, 0), (vec![0], 4, 1)]
    {
        assert!(ArenaShape::new(bytes, experts, top_k).is_err());
    }
    assert!(ArenaShape::new((1..10).collect(), 4, 2).is_err(), "nine sizes");
    assert!(ArenaShape::new(vec![u64::MAX / 8; 2], 4, 2).is_err(), "more bytes than can be counted");
}

#[test]
fn what_a_chunk_only_streams_through_displaces_nothing_that_is_used_more() {
    let mut arena = Arena::new(ArenaShape::new(vec![10; 2], 32, 2).unwrap(), 80).unwrap();
    for _ in 0..20 {
        visit(&mut arena, 0, &[(0, 1), (1, 1)]);
        visit(&mut arena, 1, &[(0, 1), (1, 1), (2, 1)]);
    }
    // 30 experts once, and those of before more often than the rest: one slot is enough to stream through.
    let chunk: Vec<(u32, u32)> = (0..32).map(|expert| (expert, if expert < 2 { 8 } else { 1 })).collect();
    visit(&mut arena, 0, &chunk);
    assert!(visit(&mut arena, 0, &[(0, 1), (1, 1)]).is_empty());
    assert!(visit(&mut arena, 1, &[(0, 1), (1, 1), (2, 1)]).is_empty());
}

#[test]
fn a_pinned_arena_has_no_place_until_something_is_released() {
    let mut arena = Arena::new(ArenaShape::new(vec![10], 8, 3).unwrap(), 20).unwrap();
    arena.begin_visit(0, &[(0, 1), (1, 1), (2, 1)]);
    let first = arena.place(0).unwrap();
    let second = arena.place(1).unwrap();
    assert_eq!(arena.place(2), None, "both slots are being read into");
    assert!(arena.loaded(first.slab, first.ticket));
    assert_eq!(arena.place(2), None, "one is pinned, one being read into");
    arena.release(0);
    let third = arena.place(2).unwrap();
    assert_eq!((third.slot, third.evicted), (first.slot, Some(first.slab)));
    assert!(arena.failed(second.slab, second.ticket) && arena.loaded(third.slab, third.ticket));
    arena.end_visit();
    arena.check_invariants().unwrap();
}

#[test]
fn warm_counts_are_checked_and_bounded() {
    let mut arena = Arena::new(shape(), 2000).unwrap();
    let mut counts = arena.counts();
    counts.uses[1][4] = 1e9;
    counts.uses[1][7] = 5e8;
    arena.warm(&counts).unwrap();
    let uses = &arena.counts().uses[1];
    assert!(uses[4] > uses[7] && uses[7] > uses[0]);
    assert!(arena.counts().uses[1].iter().sum::<f32>() < 200.0, "what was before does not outweigh what comes");
    for (layer, uses) in [(1, vec![0.0; 3]), (0, vec![f32::NAN; 12]), (2, vec![-1.0; 12])] {
        let mut wrong = counts.clone();
        wrong.uses[layer] = uses;
        assert!(arena.warm(&wrong).is_err());
    }
    counts.uses.pop();
    assert!(arena.warm(&counts).is_err());
}

#[test]
fn the_shadow_arena_tells_what_more_memory_would_save() {
    let shape = ArenaShape::new(vec![10], 32, 1).unwrap();
    let mut arena = Arena::new(shape, 100).unwrap();
    // Twelve experts in turn through ten slots; with twelve there would be no misses.
    for round in 0..120 {
        visit(&mut arena, 0, &[(round % 12, 1)]);
    }
    let figures = arena.figures().decode;
    assert!(figures.shadow_bytes > 0);
    assert_eq!(figures.miss_bytes - 12 * 10, figures.shadow_bytes, "but for the first of each");
    assert_eq!(arena.shadow_hits(), ShadowHits { bytes: figures.shadow_bytes, more: 20 });
}

#[test]
fn prefetching_takes_free_slots_and_evicts_nothing_better() {
    let mut arena = Arena::new(ArenaShape::new(vec![10; 2], 8, 1).unwrap(), 30).unwrap();
    visit(&mut arena, 0, &[(0, 1)]);
    visit(&mut arena, 0, &[(0, 1)]);
    let ahead = SlabId { layer: 1, expert: 5 };
    let placement = arena.may_prefetch(ahead, 0.5).unwrap();
    assert_eq!(placement.evicted, None);
    assert_eq!(arena.may_prefetch(ahead, 0.5), None, "it is being read");
    arena.begin_visit(1, &[(5, 1)]);
    assert_eq!((arena.arriving(), arena.misses()), (&[5][..], &[][..]));
    assert!(arena.loaded(ahead, placement.ticket));
    arena.release(5);
    arena.end_visit();
    visit(&mut arena, 0, &[(1, 1)]);
    assert_eq!(arena.may_prefetch(SlabId { layer: 0, expert: 7 }, 0.0), None, "worth nothing");
    assert_eq!(arena.figures().prefetch.used, 1);
}
