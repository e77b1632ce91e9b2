//! Compares fleets with a simulation that is as simple as can be: it uses lists for caches, and searches everything
//! that was sent instead of keeping accounts, events and heaps. Other tests check what must hold for every router.

use interbed_kv::EvictionKind;
use interbed_kv::testing::Rng;

use super::chains::Chains;
use super::outcome::{Outcome, skew};
use super::random::RandomRouter;
use super::route::Route;
use super::router::{Prompt, Router};
use super::simulation::{Fleet, Setting, send};
use crate::eviction::{POLICIES, policy};
use crate::replay::hits::{self, share};
use crate::replay::load::Pace;
use crate::replay::offline::{self, Order};
use crate::replay::trace::Trace;

const BLOCK: usize = 512;

const PACE: Pace = Pace { prefill_rate: 1000.0, decode_rate: 20.0 };

/// Returns a trace of conversations that grow and branch. Each belongs to one of `tenants` tenants, whose conversations
/// begin alike; requests are about `gap` seconds apart.
fn conversations(seed: u64, requests: usize, tenants: usize, gap: f64) -> Trace {
    let mut random = Rng(seed);
    let (mut chains, mut trace, mut next): (Vec<Vec<u64>>, _, _) = (Vec::new(), Trace::default(), 1000);
    let mut now = 0.0;
    for _ in 0..requests {
        let mut chain = match chains.len() {
            0 => vec![random.below(tenants) as u64],
            _ if random.once_in(4) => vec![random.below(tenants) as u64],
            count => {
                let chain = &chains[random.below(count)];
                chain[..=random.below(chain.len())].to_vec()
            }
        };
        for _ in 0..=random.below(4) {
            chain.push(next);
            next += 1;
        }
        now += gap * 2.0 * random.below(1000) as f64 / 1000.0;
        trace.push(now, chain.len() * BLOCK - random.below(BLOCK), random.below(200), &chain);
        chains.push(chain);
    }
    trace.finish();
    trace
}

fn run(trace: &Trace, blocks: usize, eviction: EvictionKind, event_lag: u64, fleet: Fleet) -> Outcome {
    let chains = Chains::of(trace);
    let setting = Setting { trace, chains: &chains, blocks, eviction, pace: PACE, event_lag };
    send(&setting, fleet, || ()).expect("good managers")
}

fn fleet(servers: usize, route: Route, remote_blocks: Option<usize>) -> Fleet {
    Fleet { servers, route, remote_blocks }
}

fn lru() -> EvictionKind {
    policy("lru").expect("a policy")
}

/// A list of contents, of which the longest unused comes first.
#[derive(Default)]
struct List(Vec<u32>);

impl List {
    fn found(&self, contents: &[u32]) -> usize {
        contents.iter().take_while(|content| self.0.contains(content)).count()
    }

    /// Uses `contents`, the last of them first, and returns what had to go.
    fn take(&mut self, contents: &[u32], capacity: usize) -> Vec<u32> {
        self.0.retain(|content| !contents.contains(content));
        self.0.extend(contents.iter().rev());
        self.0.drain(..self.0.len().saturating_sub(capacity)).collect()
    }
}

/// A request that was sent.
struct Sent {
    server: usize,
    /// The number of tokens to compute, as the router saw it.
    tokens: u64,
    began: u64,
    ended: u64,
}

/// Returns the outcome of the simple simulation. Memory is LRU, and the router sees it without delay.
fn naive(trace: &Trace, blocks: usize, fleet: Fleet) -> Outcome {
    let Fleet { servers, route, remote_blocks } = fleet;
    let chains = Chains::of(trace);
    let micros = |seconds: f64| (seconds * 1e6).round() as u64;
    let mut memories: Vec<List> = (0..servers).map(|_| List::default()).collect();
    let mut remote = List::default();
    let mut sent: Vec<Sent> = Vec::new();
    let (mut computed_by, mut flight, mut first_tokens) = (vec![0; servers], vec![0; servers], Vec::new());
    let [mut memory_blocks, mut fetched_blocks, mut written_blocks, mut evictions] = [0u64; 4];
    let [mut memory_tokens, mut fetched_tokens] = [0u64; 2];
    let mut refused = 0;
    let mut dice = RandomRouter::new(servers);
    for (number, request) in trace.requests().iter().enumerate() {
        let (now, contents) = (micros(request.arrival), chains.of_prompt(request));
        let tokens = |blocks: usize| (blocks * trace.block_tokens()).min(request.input_tokens) as u64;
        let all = request.input_tokens as u64;
        let open = |server: usize| sent.iter().filter(move |sent| sent.server == server && sent.ended > now).count();
        let had = |server: usize| sent.iter().filter(|sent| sent.server == server).count();
        let queued = |server: usize| -> u64 {
            sent.iter().filter(|sent| sent.server == server && sent.began > now).map(|sent| sent.tokens).sum()
        };
        let lacks = |server: usize| all - tokens(memories[server].found(contents));
        let cost = |server: usize| match 4 * memories[server].found(contents) >= contents.len() {
            true => queued(server) + lacks(server),
            false => queued(server) + all,
        };
        let server = match route {
            Route::Random => dice.route(&Prompt { request: number, now, tokens: request.input_tokens, contents }),
            Route::Load => (0..servers).min_by_key(|&server| (open(server), had(server))).unwrap_or(0),
            Route::Prefix => (0..servers).min_by_key(|&server| (cost(server), open(server), had(server))).unwrap_or(0),
        };
        let seen = lacks(server);
        let memory = &mut memories[server];
        let (mut found, mut fetched) = (0, 0);
        if contents.len() > blocks {
            refused += 1;
        } else {
            found = memory.found(contents);
            evictions += memory.take(contents, blocks).len() as u64;
            if let Some(capacity) = remote_blocks {
                fetched = remote.found(&contents[found..]);
                remote.take(&contents[found..found + fetched], capacity);
                for content in contents[found + fetched..].iter().rev() {
                    written_blocks += u64::from(!remote.0.contains(content));
                    remote.take(&[*content], capacity);
                }
            }
        }
        memory_blocks += found as u64;
        fetched_blocks += fetched as u64;
        memory_tokens += tokens(found);
        fetched_tokens += tokens(found + fetched) - tokens(found);
        let computed = all - tokens(found + fetched);
        let before = sent.iter().filter(|sent| sent.server == server).map(|sent| sent.began).max().unwrap_or(0);
        let began = before.max(now) + micros(computed as f64 / PACE.prefill_rate);
        let ended = began + micros(request.output_tokens as f64 / PACE.decode_rate);
        computed_by[server] += computed;
        flight[server] += ended - now;
        first_tokens.push((began - now) as f64 / 1e6);
        sent.push(Sent { server, tokens: seen, began, ended });
    }
    first_tokens.sort_by(f64::total_cmp);
    Outcome {
        servers,
        route,
        remote_blocks,
        memory_blocks,
        fetched_blocks,
        written_blocks,
        memory_tokens,
        fetched_tokens,
        computed_tokens: computed_by.iter().sum(),
        evictions,
        refused,
        skew_computed: skew(computed_by.iter().copied()),
        skew_in_flight: skew(flight.iter().copied()),
        first_tokens,
    }
}

#[test]
fn fleets_do_what_the_plain_simulation_does() {
    let (mut fetched, mut refused, mut evicted) = (0, 0, 0);
    for seed in 0..12 {
        let trace = conversations(seed, 250, 1 + seed as usize % 4, [0.3, 2.0, 20.0][seed as usize % 3]);
        for route in Route::ALL {
            for servers in [1, 2, 3, 7] {
                for remote_blocks in [None, Some(20), Some(100_000)] {
                    let (blocks, fleet) = ([7, 40][seed as usize % 2], fleet(servers, route, remote_blocks));
                    let outcome = run(&trace, blocks, lru(), 0, fleet);
                    assert_eq!(outcome, naive(&trace, blocks, fleet), "seed {seed}, {fleet:?}");
                    fetched += outcome.fetched_blocks;
                    refused += outcome.refused;
                    evicted += outcome.evictions;
                }
            }
        }
    }
    assert!(fetched > 1000 && refused > 100 && evicted > 1000, "{fetched} {refused} {evicted}");
}

#[test]
fn one_server_finds_what_a_replay_of_one_server_finds_whoever_routes() {
    let trace = conversations(3, 400, 2, 1.0);
    for kind in POLICIES {
        for blocks in [10, 50, 5000] {
            let alone = hits::replay(&trace, kind, blocks, None).expect("a good manager");
            for route in Route::ALL {
                let outcome = run(&trace, blocks, kind, 0, fleet(1, route, None));
                let found = (outcome.memory_blocks, outcome.memory_tokens, outcome.evictions, outcome.refused);
                let expected = (alone.hit_blocks, alone.hit_tokens, alone.evictions, alone.refused);
                assert_eq!(found, expected, "{kind}, {blocks} blocks, {route}");
                assert_eq!((outcome.skew_computed, outcome.skew_in_flight), (1.0, 1.0));
            }
        }
    }
}

#[test]
fn an_endless_remote_tier_finds_what_endless_memory_finds_whoever_routes() {
    for seed in 0..4 {
        let trace = conversations(seed, 300, 3, 1.0);
        let endless = offline::hits(&trace, usize::MAX, Order::HeadFirst);
        for kind in POLICIES {
            for (servers, route) in [1, 5, 40].into_iter().flat_map(|servers| Route::ALL.map(|route| (servers, route)))
            {
                // Memory is at least as large as the longest prompt, because a server keeps nothing of what it refuses.
                let outcome = run(&trace, 60, kind, 0, fleet(servers, route, Some(usize::MAX)));
                assert_eq!(outcome.refused, 0);
                let found = outcome.memory_blocks + outcome.fetched_blocks;
                assert_eq!(
                    (found, outcome.memory_tokens + outcome.fetched_tokens),
                    endless,
                    "{kind} {servers} {route}"
                );
                assert_eq!(outcome.written_blocks, trace.distinct() as u64, "each content once");
            }
        }
    }
}

#[test]
fn every_token_is_found_or_computed() {
    for seed in 0..6 {
        let trace = conversations(seed, 200, 2, 0.5);
        for route in Route::ALL {
            for remote_blocks in [None, Some(1), Some(30)] {
                for event_lag in [0, 3_000_000] {
                    let outcome = run(&trace, 14, EvictionKind::ADAPTIVE, event_lag, fleet(4, route, remote_blocks));
                    let found = outcome.memory_tokens + outcome.fetched_tokens;
                    assert_eq!(found + outcome.computed_tokens, trace.input_tokens());
                    assert_eq!(outcome.first_tokens.len(), trace.requests().len());
                    assert!(outcome.skew_computed >= 1.0 && outcome.skew_computed <= 4.0);
                    assert!(outcome.skew_in_flight >= 1.0 && outcome.skew_in_flight <= 4.0);
                    assert!((outcome.fetched_blocks == 0) == remote_blocks.is_none() || remote_blocks == Some(1));
                }
            }
        }
    }
}

#[test]
fn following_prefixes_finds_more_than_chance_where_prompts_share_them() {
    for seed in 0..8 {
        let trace = conversations(seed, 600, 4, 2.0);
        for servers in [2, 4, 16] {
            let rate = |route, lag| {
                let outcome = run(&trace, 60, EvictionKind::ADAPTIVE, lag, fleet(servers, route, None));
                share(outcome.memory_blocks, trace.references().len() as u64)
            };
            let (random, load, prefix) = (rate(Route::Random, 0), rate(Route::Load, 0), rate(Route::Prefix, 0));
            assert!(prefix > random.max(load), "seed {seed}, {servers} servers: {random} {load} {prefix}");
            // The more servers there are, the less a random choice finds.
            assert!(servers < 16 || prefix > 1.5 * random.max(load), "seed {seed}: {random} {load} {prefix}");
            // A router that hears of no event in time chooses by load.
            let late = rate(Route::Prefix, u64::MAX);
            assert!(late < prefix, "seed {seed}, {servers} servers: {late} {prefix}");
        }
    }
}

#[test]
fn a_remote_tier_never_finds_less_than_none() {
    for seed in 0..6 {
        let trace = conversations(seed, 300, 2, 1.0);
        for route in [Route::Random, Route::Load, Route::Prefix] {
            for servers in [1, 4] {
                // With random routing memory is the same with and without a store, so what is found without one is
                // found with it too.
                let without = run(&trace, 20, lru(), 0, fleet(servers, route, None));
                let with = run(&trace, 20, lru(), 0, fleet(servers, route, Some(200)));
                assert!(with.computed_tokens <= without.computed_tokens, "seed {seed}, {route}, {servers}");
            }
        }
    }
}

#[test]
fn a_trace_without_hashes_is_routed_by_load() {
    let mut trace = Trace::default();
    (0..100).for_each(|number| trace.push(f64::from(number), 700 + number as usize, 50, &[]));
    trace.finish();
    for route in Route::ALL {
        let outcome = run(&trace, 10, EvictionKind::ADAPTIVE, 0, fleet(3, route, None));
        assert_eq!((outcome.computed_tokens, outcome.memory_blocks), (trace.input_tokens(), 0));
        assert_eq!(outcome, naive(&trace, 10, fleet(3, route, None)));
    }
}
