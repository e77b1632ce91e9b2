//! Tests the arena against its own rule written down once more, and tests made-up routings.

mod files;

use interbed_weights::experts::ArenaShape;

use super::player::Player;
use super::policy::{SlabPolicy, demand, read_bytes};
use super::read_bytes_per_token;
use super::trace::{LayerVisit, Routing};

fn arena(routing: &Routing, budget: u64) -> u64 {
    read_bytes(routing, 0, &mut Player::new(routing.shape(), budget).unwrap())
}

/// The arena's rule for single tokens and slabs of one size, in as few words as possible.
struct ArenaRule<'s> {
    shape: &'s ArenaShape,
    slots: usize,
    held: Vec<(u32, u32)>,
    uses: Vec<Vec<f64>>,
    last: Vec<Vec<u64>>,
    clocks: Vec<u64>,
}

impl SlabPolicy for ArenaRule<'_> {
    fn visit(&mut self, visit: &LayerVisit) -> u64 {
        let layer = visit.layer as usize;
        self.clocks[layer] += visit.wanted.len() as u64;
        for &(expert, tokens) in &visit.wanted {
            self.uses[layer][expert as usize] += f64::from(tokens);
            self.last[layer][expert as usize] = self.clocks[layer];
        }
        let mut read = 0;
        for &(expert, _) in &visit.wanted {
            if self.held.contains(&(visit.layer, expert)) {
                continue;
            }
            read += self.shape.slab_bytes(visit.layer);
            if self.held.len() == self.slots {
                let score = |&(layer, expert): &(u32, u32)| {
                    let (layer, expert) = (layer as usize, expert as usize);
                    let age = (self.clocks[layer] - self.last[layer][expert]) as f64;
                    let total: f64 = self.uses[layer].iter().sum();
                    self.uses[layer][expert] / (total * (1.0 + age / 8.0))
                };
                let wanted = |slab: &(u32, u32)| slab.0 == visit.layer && visit.wanted.contains(&(slab.1, 1));
                let free = self.held.iter().filter(|slab| !wanted(slab));
                let lowest = free.min_by(|a, b| score(a).total_cmp(&score(b)).then(a.cmp(b))).copied();
                self.held.retain(|slab| Some(*slab) != lowest);
            }
            self.held.push((visit.layer, expert));
        }
        read
    }
}

#[test]
fn the_arena_does_what_its_rule_says() {
    for seed in 0..20 {
        let shape = ArenaShape::new(vec![10; 3], 16, 3).unwrap();
        let routing = Routing::zipf(seed, shape, 150, 1.0, 0.1);
        let shape = routing.shape();
        let slots = 6 + seed as usize;
        let mut rule = ArenaRule {
            shape,
            slots,
            held: Vec::new(),
            uses: vec![vec![0.0; 16]; 3],
            last: vec![vec![0; 16]; 3],
            clocks: vec![0; 3],
        };
        assert_eq!(arena(&routing, slots as u64 * 10), read_bytes(&routing, 0, &mut rule), "seed {seed}");
    }
}

#[test]
fn made_routings_are_repeatable_and_as_skewed_as_asked() {
    let shape = ArenaShape::new(vec![10; 2], 32, 4).unwrap();
    let made = |skew| Routing::zipf(5, shape.clone(), 400, skew, 0.0);
    assert_eq!(made(1.0), made(1.0));
    assert_eq!(Routing::uniform(5, shape.clone(), 400), made(0.0));
    for visit in made(1.0).passes().iter().flat_map(|pass| &pass.visits) {
        assert!(visit.wanted.len() == 4 && visit.wanted.is_sorted());
        assert!(visit.wanted.windows(2).all(|pair| pair[0].0 != pair[1].0), "each expert once");
    }
    // Eight of 32 experts' slabs fit. An even router hits a quarter of the time; a skewed one more often.
    let share = |skew| read_bytes_per_token(&made(skew), 160, 16).unwrap() / shape.token_bytes() as f64;
    let [even, some, much] = [0.0, 1.0, 2.0].map(share);
    assert!((0.70..0.80).contains(&even), "{even}");
    assert!(much < some && some < even, "{even}, {some}, {much}");
}

#[test]
fn more_memory_reads_less_down_to_nothing() {
    let routing = Routing::zipf(3, ArenaShape::new(vec![10; 2], 32, 4).unwrap(), 600, 1.0, 0.0);
    let read = [5, 20, 40, 60, 100].map(|percent| read_bytes_per_token(&routing, 640 * percent / 100, 500).unwrap());
    assert!(read.windows(2).all(|pair| pair[0] > pair[1]), "{read:?}");
    assert_eq!(read_bytes_per_token(&routing, 640, 600).unwrap(), 0.0, "no token is left");
    assert!(read_bytes_per_token(&routing, 10, 0).is_err(), "less than two slabs");
}

#[test]
fn streams_side_by_side_share_what_they_read() {
    let shape = ArenaShape::new(vec![10; 2], 32, 4).unwrap();
    let alone = Routing::zipf(9, shape, 64, 1.5, 0.0);
    let together = alone.side_by_side(8);
    assert_eq!((together.passes().len(), together.generated_tokens()), (8, 64));
    let uses = |visit: &LayerVisit| visit.wanted.iter().map(|&(_, tokens)| tokens).sum::<u32>();
    assert!(together.passes().iter().flat_map(|pass| &pass.visits).all(|visit| uses(visit) == 32));
    assert_eq!(demand(&together, 0), demand(&alone, 0));
    assert!(arena(&together, 200) < arena(&alone, 200));
    assert_eq!((alone.passes_before(16), together.passes_before(16)), (16, 2));
}
