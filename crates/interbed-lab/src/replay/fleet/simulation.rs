//! Sends a trace through a router and the servers behind it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use interbed_kv::EvictionKind;

use super::chains::Chains;
use super::outcome::{Outcome, skew};
use super::route::Route;
use super::router::{Prompt, Router};
use super::server::{Served, Server};
use super::store::Store;
use crate::replay::load::Pace;
use crate::replay::trace::{Request, Trace};
use interbed_plan::Refusal;

/// What all fleets of a replay have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'t> {
    pub trace: &'t Trace,
    pub chains: &'t Chains,
    /// The number of blocks of each server, in blocks of the trace.
    pub blocks: usize,
    pub eviction: EvictionKind,
    /// How fast a server computes prompts, one after the other, and how fast sequences get their answers.
    pub pace: Pace,
    /// The number of microseconds by which a router's KV events are late.
    pub event_lag: u64,
}

/// A fleet of servers behind a router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fleet {
    pub servers: usize,
    pub route: Route,
    /// The number of blocks of the remote tier, if there is one.
    pub remote_blocks: Option<usize>,
}

/// Sends the trace's requests through `fleet`, in the order of the file. `progress` is called once for each request.
///
/// # Errors
/// Fails if a manager refuses what it should not, or breaks its invariants.
pub(super) fn send(setting: &Setting<'_>, fleet: Fleet, mut progress: impl FnMut()) -> Result<Outcome, Refusal> {
    let mut simulation = Simulation::new(setting, fleet)?;
    for (number, request) in setting.trace.requests().iter().enumerate() {
        simulation.take(number, request)?;
        progress();
    }
    simulation.finish()
}

/// What happens to a request after it was sent. The router is told of these happenings in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Began,
    Ended,
}

struct Simulation<'t> {
    setting: Setting<'t>,
    router: Box<dyn Router>,
    servers: Vec<Server>,
    store: Option<Store>,
    coming: BinaryHeap<Reverse<(u64, usize, Happening)>>, // time, request
    now: u64,
    outcome: Outcome,
}

impl<'t> Simulation<'t> {
    fn new(setting: &Setting<'t>, fleet: Fleet) -> Result<Self, Refusal> {
        let Fleet { servers, route, remote_blocks } = fleet;
        let router = route.router(servers, setting.trace.block_tokens(), setting.event_lag);
        let store = remote_blocks.map(|blocks| Store::new(blocks, setting.chains.distinct()));
        // Blocks beyond the trace's references could neither be used nor evicted; one more block is for the answer. A
        // replay of one server limits its blocks in the same way.
        let num_blocks = setting.blocks.min(setting.trace.references().len()) + 1;
        let server = |_| Server::new(num_blocks, setting.eviction, router.follows_changes());
        let idle: Result<Vec<_>, _> = (0..servers).map(server).collect();
        let outcome = Outcome {
            servers,
            route,
            remote_blocks,
            memory_blocks: 0,
            fetched_blocks: 0,
            written_blocks: 0,
            memory_tokens: 0,
            fetched_tokens: 0,
            computed_tokens: 0,
            evictions: 0,
            refused: 0,
            skew_computed: 1.0,
            skew_in_flight: 1.0,
            first_tokens: Vec::with_capacity(setting.trace.requests().len()),
        };
        Ok(Self { setting: *setting, router, servers: idle?, store, coming: BinaryHeap::new(), now: 0, outcome })
    }

    fn take(&mut self, number: usize, request: &Request) -> Result<(), Refusal> {
        // A request whose arrival is earlier than that of the request above it in the file comes together with that
        // request.
        self.now = self.now.max(micros(request.arrival));
        self.tell_router();
        let (trace, now) = (self.setting.trace, self.now);
        let contents = self.setting.chains.of_prompt(request);
        let server = self.router.route(&Prompt { request: number, now, tokens: request.input_tokens, contents });
        let store = &mut self.store;
        let fetch = |wanted: &[u32]| store.as_mut().map_or(0, |store| store.fetch(wanted));
        let served = self.servers[server].serve(number, trace.blocks(request), contents, fetch)?;
        self.count(server, number, request, &served);
        if let Some(store) = self.store.as_mut().filter(|_| !served.refused) {
            store.take(&contents[served.found + served.fetched..]);
        }
        self.router.changed(server, now, served.changes);
        Ok(())
    }

    /// Tells the router what has happened until now.
    fn tell_router(&mut self) {
        while let Some(&Reverse((time, request, happening))) = self.coming.peek()
            && time <= self.now
        {
            self.coming.pop();
            match happening {
                Happening::Began => self.router.began(request),
                Happening::Ended => self.router.ended(request),
            }
        }
    }

    fn count(&mut self, server: usize, number: usize, request: &Request, served: &Served) {
        let (trace, pace, outcome) = (self.setting.trace, self.setting.pace, &mut self.outcome);
        let tokens = |blocks: usize| trace.tokens_of(blocks).min(request.input_tokens) as u64;
        let (in_memory, found) = (tokens(served.found), tokens(served.found + served.fetched));
        let computed = request.input_tokens as u64 - found;
        outcome.memory_blocks += served.found as u64;
        outcome.fetched_blocks += served.fetched as u64;
        outcome.memory_tokens += in_memory;
        outcome.fetched_tokens += found - in_memory;
        outcome.computed_tokens += computed;
        outcome.refused += usize::from(served.refused);
        let server = &mut self.servers[server];
        let began = server.compute(self.now, micros(computed as f64 / pace.prefill_rate));
        let ended = began.saturating_add(micros(request.output_tokens as f64 / pace.decode_rate));
        server.computed_tokens += computed;
        server.flight = server.flight.saturating_add(ended - self.now);
        outcome.first_tokens.push((began - self.now) as f64 / 1e6);
        self.coming.push(Reverse((began, number, Happening::Began)));
        self.coming.push(Reverse((ended, number, Happening::Ended)));
    }

    fn finish(mut self) -> Result<Outcome, Refusal> {
        self.servers.iter().try_for_each(Server::check)?;
        self.outcome.evictions = self.servers.iter().map(Server::evictions).sum();
        self.outcome.written_blocks = self.store.map_or(0, |store| store.written());
        self.outcome.skew_computed = skew(self.servers.iter().map(|server| server.computed_tokens));
        self.outcome.skew_in_flight = skew(self.servers.iter().map(|server| server.flight));
        self.outcome.first_tokens.sort_by(f64::total_cmp);
        Ok(self.outcome)
    }
}

/// Converts seconds to whole microseconds, in which a simulation counts its time.
pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}
