//! Fleets send a trace's requests through the block managers of several servers behind a router, with or without a
//! remote tier that all of the servers share.
//!
//! [`simulation`] sends the requests; a [`route`] makes the [`router`] that chooses a [`server`] for each; [`store`] is
//! the remote tier. Memory is used as in a replay of one server: request after request, each with all of its blocks at
//! once. A virtual clock says which requests are in flight when a router chooses, and how long first tokens take.

mod books;
mod chains;
mod json;
mod least_loaded;
mod outcome;
mod picture;
mod prefix;
mod random;
mod report;
mod route;
mod router;
mod server;
mod simulation;
mod store;
#[cfg(test)]
mod tests;
mod view;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use interbed_device::Bytes;
use interbed_kv::{EvictionKind, KvConfig};

use super::hits::share;
use super::load::Pace;
use super::offline::{self, Order};
use super::trace::Trace;
use super::{Picture, SIZES_MAX, name_of, read};
use chains::Chains;
use interbed_plan::Progress;
use interbed_plan::Refusal;
use interbed_plan::words::grouped;
use outcome::Outcome;
use simulation::{Fleet, Setting};

pub use route::{Route, UnknownRoute};

/// The most servers of a fleet.
pub const SERVERS_MAX: usize = 4096;

/// The most blocks of all servers of a fleet together, because the records of the blocks must fit into memory.
const FLEET_BLOCKS_MAX: usize = 1 << 23;

/// The fleets that a trace is sent through, and what is reported of them.
#[derive(Debug)]
pub struct FleetRequest {
    /// The trace, as Mooncake's JSON lines or Azure's CSV.
    pub trace: PathBuf,
    /// The number of servers of each fleet, at most [`SERVERS_MAX`].
    pub servers: Vec<NonZeroUsize>,
    /// The ways to choose a server; an empty list stands for all of them.
    pub routes: Vec<Route>,
    /// The number of blocks of each server, in blocks of the trace.
    pub blocks: NonZeroUsize,
    /// The servers' eviction policy.
    pub policy: EvictionKind,
    /// The size of a remote tier. If there is one, each fleet is simulated both without it and with it.
    pub remote_tier: Option<Bytes>,
    /// The number of tokens in a block of `block_bytes` bytes.
    pub block_size: usize,
    /// The number of bytes in a block of `block_size` tokens.
    pub block_bytes: Option<Bytes>,
    /// How fast each server is assumed to compute.
    pub pace: Pace,
    /// The number of seconds by which a router's KV events are late.
    pub event_lag: f64,
    /// Where a plot over the number of servers is written.
    pub picture: Option<PathBuf>,
    /// Whether to write one JSON object a line instead of the table.
    pub json: bool,
}

/// The results of all fleets.
struct FleetFound {
    /// The trace's file name.
    name: String,
    trace: Trace,
    /// The number of blocks of each server.
    blocks: usize,
    policy: EvictionKind,
    pace: Pace,
    event_lag: f64,
    /// The size of the remote tier, and the number of its blocks.
    remote: Option<(Bytes, usize)>,
    /// The number of bytes of a token's KV.
    token_bytes: Option<f64>,
    /// The outcomes, ordered by number of servers, then route, then without and with the remote tier.
    outcomes: Vec<Outcome>,
    /// The outcome of one server with the memory of all servers of a fleet. [number of servers]
    pooled: Vec<(usize, Outcome)>,
    /// The hit rate of a cache that keeps everything, by block and by token.
    infinite: (f64, f64),
}

/// Sends a trace through fleets, and writes what was found to `out`.
///
/// # Errors
/// Fails if the trace cannot be read or is implausible, the trace contradicts the request, or a picture or `out` cannot
/// be written.
pub fn run_fleets(request: FleetRequest, out: &mut dyn Write, progress: &mut dyn Progress) -> Result<(), Refusal> {
    KvConfig { block_size: request.block_size, ..KvConfig::default() }.check()?;
    let servers = servers(&request)?;
    if request.remote_tier.is_some() && request.block_bytes.is_none() {
        let problem = "--remote-tier is a size in bytes, and how many a block takes is not known";
        let hint =
            "add what --block-size tokens take, for instance --block-bytes 2M for 16 tokens of an 8B Llama in bf16";
        return Err(Refusal::advised(problem, hint));
    }
    let trace = read(&request.trace, progress)?;
    let found = FleetFound::prepare(&request, trace)?;
    found.check_blocks(&servers)?;
    // The picture is opened before anything is computed, so that a failure loses no result.
    let picture = request.picture.as_deref().map(Picture::open).transpose()?;
    let found = found.find(&servers, &request.routes, progress)?;
    out.write_all(if request.json { found.json_lines() } else { found.report() }.as_bytes())?;
    out.flush()?;
    picture.map_or(Ok(()), |picture| picture.write(&found.picture()))
}

impl FleetFound {
    /// Checks the request against the trace, and returns results that have no outcomes yet.
    fn prepare(request: &FleetRequest, trace: Trace) -> Result<Self, Refusal> {
        let token_bytes = request.block_bytes.map(|bytes| bytes.0 as f64 / request.block_size as f64);
        let remote = match (request.remote_tier, token_bytes) {
            (Some(_), _) if !trace.has_hashes() => {
                let problem = "--remote-tier keeps what prompts have in common, and the trace has no hash_ids";
                return Err(Refusal::advised(problem, "give a trace with hash_ids"));
            }
            (Some(size), Some(token_bytes)) => {
                let block = token_bytes * trace.block_tokens() as f64;
                let blocks = (size.0 as f64 / block) as usize;
                if blocks == 0 {
                    let problem = format!(
                        "--remote-tier is {size}, but a block of the trace takes {}: {} tokens at {} each",
                        Bytes(block as u64),
                        trace.block_tokens(),
                        Bytes(token_bytes as u64)
                    );
                    return Err(Refusal::advised(problem, "give a larger --remote-tier, or correct --block-bytes"));
                }
                Some((size, blocks))
            }
            _ => None,
        };
        let (by_block, by_token) = offline::hits(&trace, usize::MAX, Order::HeadFirst);
        let infinite = (share(by_block, trace.references().len() as u64), share(by_token, trace.input_tokens()));
        Ok(Self {
            name: name_of(&request.trace),
            trace,
            blocks: request.blocks.get(),
            policy: request.policy,
            pace: request.pace,
            event_lag: request.event_lag,
            remote,
            token_bytes,
            outcomes: Vec::new(),
            pooled: Vec::new(),
            infinite,
        })
    }

    /// Refuses fleets whose records would not fit into memory.
    fn check_blocks(&self, servers: &[usize]) -> Result<(), Refusal> {
        let of_server = self.blocks.min(self.trace.references().len());
        let most = servers.iter().max().map_or(0, |&servers| servers * of_server);
        if most > FLEET_BLOCKS_MAX {
            return Err(Refusal::advised(
                format!(
                    "the largest fleet has {} blocks in all; expected at most {}",
                    grouped(most as u64),
                    grouped(FLEET_BLOCKS_MAX as u64)
                ),
                "give fewer --servers or --blocks",
            ));
        }
        Ok(())
    }

    fn find(mut self, servers: &[usize], routes: &[Route], progress: &mut dyn Progress) -> Result<Self, Refusal> {
        let routes: Vec<Route> =
            Route::ALL.into_iter().filter(|route| routes.is_empty() || routes.contains(route)).collect();
        let remotes: Vec<Option<usize>> =
            [None].into_iter().chain(self.remote.map(|(_, blocks)| Some(blocks))).collect();
        let runs = servers.len() * (1 + routes.len() * remotes.len());
        progress.begin_steps("routing", (runs * self.trace.requests().len()) as u64);
        let chains = Chains::of(&self.trace);
        let setting = Setting {
            trace: &self.trace,
            chains: &chains,
            blocks: self.blocks,
            eviction: self.policy,
            pace: self.pace,
            event_lag: simulation::micros(self.event_lag),
        };
        for &servers in servers {
            for &route in &routes {
                for &remote_blocks in &remotes {
                    let fleet = Fleet { servers, route, remote_blocks };
                    self.outcomes.push(simulation::send(&setting, fleet, || progress.advance(1))?);
                }
            }
            let all = Setting { blocks: self.blocks.saturating_mul(servers), ..setting };
            let one = Fleet { servers: 1, route: Route::Load, remote_blocks: None };
            self.pooled.push((servers, simulation::send(&all, one, || progress.advance(1))?));
        }
        progress.end();
        Ok(self)
    }

    /// Returns the number of bytes of `blocks` blocks, if the bytes of a token are known.
    fn bytes(&self, blocks: u64) -> Option<f64> {
        self.token_bytes.map(|bytes| bytes * self.trace.block_tokens() as f64 * blocks as f64)
    }

    /// Returns the outcome of the same fleet without its remote tier.
    fn without_remote(&self, outcome: &Outcome) -> Option<&Outcome> {
        let same = |other: &&Outcome| (other.servers, other.route) == (outcome.servers, outcome.route);
        outcome.remote_blocks?;
        self.outcomes.iter().filter(same).find(|other| other.remote_blocks.is_none())
    }
}

/// Returns the numbers of servers in ascending order, each once.
fn servers(request: &FleetRequest) -> Result<Vec<usize>, Refusal> {
    let mut servers: Vec<usize> = request.servers.iter().map(|servers| servers.get()).collect();
    if servers.len() > SIZES_MAX {
        return Err(Refusal::advised(
            format!("--servers names {} fleets", servers.len()),
            format!("name at most {SIZES_MAX} in one run"),
        ));
    }
    if let Some(servers) = servers.iter().find(|servers| **servers > SERVERS_MAX) {
        return Err(Refusal::advised(
            format!("a fleet of {} servers is too large", grouped(*servers as u64)),
            format!("give at most {SERVERS_MAX}"),
        ));
    }
    servers.sort_unstable();
    servers.dedup();
    Ok(servers)
}
