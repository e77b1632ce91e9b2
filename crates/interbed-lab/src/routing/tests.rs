//! Checks policies of textbooks and bounds against results by hand, and against each other.

use interbed_plan::routing::{LayerVisit, Player, Random, Routing, RoutingPass, demand, lower_bound, read_bytes};
use interbed_weights::experts::ArenaShape;

use super::foresight::{belady, compulsory};
use super::textbook::{Rule, Scope, Textbook};

/// Returns a routing of one layer in which each token uses one of `experts` slabs of 10 bytes.
fn one_layer(experts: usize, used: &[u32]) -> Routing {
    let shape = ArenaShape::new(vec![10], experts, 1).unwrap();
    let pass = |&expert: &u32| RoutingPass {
        prompt: false,
        tokens: 1,
        visits: vec![LayerVisit { layer: 0, wanted: vec![(expert, 1)] }],
    };
    Routing::new(shape, used.iter().map(pass).collect())
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
        // Expert 2 takes the place of 1, which is used again.
        assert_eq!(textbook(&routing, rule, Scope::Model, 20), 40, "{rule:?}");
        assert_eq!(textbook(&routing, rule, Scope::Layer, 20), 40, "{rule:?}");
    }
    assert_eq!(arena(&routing, 20), 40);
    assert_eq!((belady(&routing, 0, 20), lower_bound(&routing, 0, 20)), (30, 30), "2 goes past");
    // With one slab, 0 is kept from its first use to its last, 20 bytes x 2 visits of 60. The rest keeps half of 1.
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
    let routing = Routing::new(shape, vec![pass; 3]);
    assert_eq!(textbook(&routing, Rule::Lru, Scope::Model, 20), 40 + 20 + 20);
    assert_eq!(belady(&routing, 0, 20), 80);
}

/// Returns a random routing with layers of one or two sizes, tokens alone or several together, and with prompts or
/// without.
fn by_chance(random: &mut Random, sizes: &[u64]) -> Routing {
    let layers = 1 + random.below(4);
    let slab_bytes: Vec<u64> = (0..layers).map(|layer| sizes[layer % sizes.len()]).collect();
    let (experts, top_k) = (4 + random.below(8), 1 + random.below(3));
    let shape = ArenaShape::new(slab_bytes, experts, top_k).unwrap();
    let skew = random.unit() * 2.0;
    let routing = Routing::zipf(random.bits(), shape, 10 + random.below(40), skew, 0.3);
    if random.below(3) == 0 { routing.side_by_side(1 + random.below(4)) } else { routing }
}

#[test]
fn the_bound_is_below_belady_and_that_below_every_policy() {
    let mut random = Random::new(11);
    for case in 0..300 {
        let sizes: &[u64] = if case % 2 == 0 { &[10] } else { &[10, 13] };
        let mut routing = by_chance(&mut random, sizes);
        if case % 5 == 0 {
            let mut passes = routing.passes().to_vec();
            passes[0].prompt = true;
            routing = Routing::new(routing.shape().clone(), passes);
        }
        let shape = routing.shape().clone();
        let budget = shape.least_bytes() + random.bits() % (shape.bank_bytes() - shape.least_bytes() + 1);
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
            // Dropping the farthest use is best where all slabs have one size and all reads count.
            let is_best = sizes.len() == 1 && before == 0 && case % 5 != 0;
            assert!(!is_best || found[0].1 <= read, "case {case}, {name}: {found:?}");
        }
        assert!(compulsory(&routing, before) <= bound);
    }
}
