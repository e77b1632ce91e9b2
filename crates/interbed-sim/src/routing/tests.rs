//! Policies and bounds by hand, against each other, and the arena against its own rule written down once more.

mod files;

use interbed_weights::experts::ArenaShape;

use super::bounds::{belady, compulsory, lower_bound};
use super::player::Player;
use super::policy::{SlabPolicy, demand, read_bytes};
use super::random::Random;
use super::read_bytes_per_token;
use super::textbook::{Rule, Scope, Textbook};
use super::trace::{LayerVisit, Routing, RoutingPass};

/// A routing of one layer in which each token uses one of `experts` slabs of 10 bytes.
fn one_layer(experts: usize, used: &[u32]) -> Routing {
    let shape = ArenaShape::new(vec![10], experts, 1).unwrap();
    let pass = |&expert: &u32| RoutingPass {
        prompt: false,
        tokens: 1,
        visits: vec![LayerVisit { layer: 0, wanted: vec![(expert, 1)] }],
    };
    Routing { shape, passes: used.iter().map(pass).collect() }
}

fn textbook(routing: &Routing, rule: Rule, scope: Scope, budget: u64) -> u64 {
    read_bytes(routing, 0, &mut Textbook::new(routing.shape(), rule, scope, budget))
}

fn arena(routing: &Routing, budget: u64) -> u64 {
    read_bytes(routing, 0, &mut Player::new(routing.shape(), budget).unwrap())
}

#[test]
fn by_hand() {
    let routing = one_layer(4, &[0, 1, 0, 2, 0, 1]);
    for rule in [Rule::Lru, Rule::Lfu, Rule::Aged] {
        // 2 takes the place of 1, which is used again.
        assert_eq!(textbook(&routing, rule, Scope::Model, 20), 40, "{rule:?}");
        assert_eq!(textbook(&routing, rule, Scope::Layer, 20), 40, "{rule:?}");
    }
    assert_eq!(arena(&routing, 20), 40);
    assert_eq!((belady(&routing, 0, 20), lower_bound(&routing, 0, 20)), (30, 30), "2 goes past");
    // One slab: 0 is kept from its first use to its last, 20 bytes x 2 visits of 60. The rest keeps half of 1.
    assert_eq!((belady(&routing, 0, 10), lower_bound(&routing, 0, 10)), (40, 35));
    assert_eq!(compulsory(&routing, 0), 30);
    assert_eq!(compulsory(&routing, 2), 10, "of the window only 2 is new");
}

#[test]
fn recency_frequency_and_age_differ() {
    let often = one_layer(4, &[0, 0, 1, 2, 0]);
    let all = |routing: &Routing, budget| {
        [Rule::Lru, Rule::Lfu, Rule::Aged].map(|rule| textbook(routing, rule, Scope::Model, budget) / 10)
    };
    assert_eq!(all(&often, 20), [4, 3, 3], "0 was used more often than 1");
    let long_ago = [vec![0; 3], vec![2; 20], vec![1, 1, 3, 1]].concat();
    assert_eq!(all(&one_layer(4, &long_ago), 30), [4, 5, 4], "0 was used more often than 1, but long ago");
}

#[test]
fn what_does_not_fit_beside_what_is_wanted_goes_past() {
    let shape = ArenaShape::new(vec![10], 8, 4).unwrap();
    let wanted: Vec<(u32, u32)> = (0..4).map(|expert| (expert, 1)).collect();
    let pass = RoutingPass { prompt: false, tokens: 1, visits: vec![LayerVisit { layer: 0, wanted }] };
    let routing = Routing { shape, passes: vec![pass; 3] };
    assert_eq!(textbook(&routing, Rule::Lru, Scope::Model, 20), 40 + 20 + 20);
    assert_eq!(belady(&routing, 0, 20), 80);
}

/// A routing by chance: layers of one or two sizes, tokens alone or several, with prompts or without.
fn by_chance(random: &mut Random, sizes: &[u64]) -> Routing {
    let layers = 1 + random.below(4);
    let slab_bytes: Vec<u64> = (0..layers).map(|layer| sizes[layer % sizes.len()]).collect();
    let (experts, top_k) = (4 + random.below(8), 1 + random.below(3));
    let shape = ArenaShape::new(slab_bytes, experts, top_k).unwrap();
    let skew = random.unit() * 2.0;
    let routing = Routing::zipf(random.next(), shape, 10 + random.below(40), skew, 0.3);
    if random.below(3) == 0 { routing.side_by_side(1 + random.below(4)) } else { routing }
}

#[test]
fn the_bound_is_below_belady_and_that_below_every_policy() {
    let mut random = Random::new(11);
    for case in 0..300 {
        let sizes: &[u64] = if case % 2 == 0 { &[10] } else { &[10, 13] };
        let mut routing = by_chance(&mut random, sizes);
        if case % 5 == 0 {
            routing.passes[0].prompt = true;
        }
        let shape = routing.shape().clone();
        let budget = shape.least_bytes() + random.next() % (shape.bank_bytes() - shape.least_bytes() + 1);
        let before = if case % 3 == 0 { random.below(routing.passes().len()) } else { 0 };
        let mut found = vec![("belady", belady(&routing, before, budget))];
        let mut player = Player::new(&shape, budget).unwrap();
        found.push(("arena", read_bytes(&routing, before, &mut player)));
        for (rule, scope) in [Rule::Lru, Rule::Lfu, Rule::Aged]
            .into_iter()
            .flat_map(|rule| [Scope::Layer, Scope::Model].map(|scope| (rule, scope)))
        {
            let mut policy = Textbook::new(&shape, rule, scope, budget);
            found.push(("textbook", read_bytes(&routing, before, &mut policy)));
        }
        let bound = lower_bound(&routing, before, budget);
        let (_, asked) = demand(&routing, before);
        for &(name, read) in &found {
            assert!(bound <= read && read <= asked, "case {case}, {name}: {bound} <= {read} <= {asked}");
            // The farthest use is the best to drop where all slabs have one size and all reads count.
            let is_best = sizes.len() == 1 && before == 0 && case % 5 != 0;
            assert!(!is_best || found[0].1 <= read, "case {case}, {name}: {found:?}");
        }
        assert!(compulsory(&routing, before) <= bound);
    }
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
