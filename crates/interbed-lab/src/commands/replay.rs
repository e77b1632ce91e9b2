//! The command `interbed-lab replay` runs the block manager over a trace of requests, or the arena of experts over a
//! trace of routings, without a model.

use std::io::{BufWriter, Write, stdout};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgGroup, Args};
use interbed::failure::Advised;
use interbed::options::count;
use interbed::progress::Bars;
use interbed_device::Bytes;
use interbed_kv::{BLOCKS_MAX, EvictionKind};
use interbed_plan::routing::is_routing;

use crate::eviction;
use crate::replay::{self, FleetRequest, LOAD_BLOCKS_MAX, Pace, ReplayRequest, Route, SERVERS_MAX, TOKENS_MAX};
use crate::routing::{self, RoutingRequest};

/// The greatest `--repeat`.
const REPEAT_MAX: usize = 1000;

/// The number of times that everything is measured, unless the command line gives one.
const REPEAT: NonZeroUsize = NonZeroUsize::new(5).unwrap();

/// The number of tokens of a block in the load, unless the command line gives one.
const BLOCK_SIZE: usize = 16;
const PREFILL_RATE: f64 = 10_000.0;
const DECODE_RATE: f64 = 30.0;

/// The cache sizes of one server in blocks, unless the command line gives any.
const SIZES: [usize; 4] = [1000, 3000, 10_000, 30_000];

/// The memory of each server of a fleet in blocks, unless the command line gives one.
const FLEET_SIZE: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// The memory for experts in % of all experts, unless the command line gives any.
const PERCENTS: [usize; 5] = [2, 5, 10, 20, 30];

/// The first generated token that counts, unless the command line gives one. What the tokens before it read depends on
/// what memory held at the start.
const FROM: u64 = 16;

/// The greatest number of streams that `--batch` accepts.
const BATCH_MAX: usize = 1024;

/// The greatest `--event-lag` in seconds.
const LAG_MAX: f64 = 86_400.0;

/// Replay a trace of requests through the block manager, without a model
///
/// Shows how much of the prompts each eviction policy finds in caches of several sizes, what the load takes in blocks
/// and in pre-allocated memory, and how long the manager's operations take. With --servers it sends the trace through
/// fleets of servers instead: what each way of choosing a server finds in their caches, how evenly it loads them, and
/// what a store is worth that all of them share. Of a trace of a mixture's routings it shows what a memory for experts
/// has to read for a token, by policy and size, beside what nothing can read less than.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("fleet").multiple(true).args(["servers", "remote_tier"])
    .conflicts_with_all(["tiers", "explain", "load_blocks", "max_model_len", "repeat"]))]
#[command(after_help = "Examples:\n  \
    interbed-lab replay conversation_trace.jsonl            # Mooncake's format: hit rates and load\n  \
    interbed-lab replay conversation_trace.jsonl --blocks 500,2000,8000 --svg hits.svg\n  \
    interbed-lab replay conversation_trace.jsonl --policy lru --json            # one figure a line\n  \
    interbed-lab replay AzureLLMInferenceTrace_conv.csv --block-bytes 2M        # Azure's format: the load\n  \
    interbed-lab replay conversation_trace.jsonl --servers 1,8,64               # fleets behind routers\n  \
    interbed-lab replay conversation_trace.jsonl --servers 8 --blocks 2000 --block-bytes 2M --remote-tier 1T\n  \
    interbed-lab replay qwen.route.csv --memory 5,10,20 --svg experts.svg    # routings: bytes a token reads\n\n\
    The first trace lies in FAST25-release/traces of github.com/kvcache-ai/Mooncake, the other in\n\
    data of github.com/Azure/AzurePublicDataset. docs/replay.md says what is counted how,\n\
    docs/fleet.md what follows for a fleet. Routings lie in docs/bench-data of github.com/Helldez/BigMoeOnEdge;\n\
    docs/internals/experts.md says what follows from them.")]
pub struct ReplayArgs {
    /// Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids), or Azure's CSV (TIMESTAMP,
    /// ContextTokens, GeneratedTokens), which has no hashes and so gives no hit rates; or a CSV of routings (turn,
    /// phase, step, layer, slot, expert, ...), to which only the options for routings, --svg and --json apply
    pub trace: PathBuf,

    /// Cache sizes, in blocks of the trace. With --servers one size, the memory of each server, however many there are
    /// [default: 1000,3000,10000,30000; with --servers 1000]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = count::<{ u32::MAX as usize }>)]
    pub blocks: Vec<NonZeroUsize>,

    /// Tiers of KV, the topmost first, in blocks of the trace: what each would have found, and what would have been
    /// written to it, with and without a gate before the last, which is a disk. Nothing else is replayed then
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = count::<{ BLOCKS_MAX }>,
          num_args = 1..=8)]
    pub tiers: Vec<NonZeroUsize>,

    /// Eviction policies; without it all of them, with --servers one: adaptive, which `interbed serve` uses
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = eviction::policy)]
    pub policy: Vec<EvictionKind>,

    /// Say why requests missed: all together for each policy and size, and the worst of them; with --json, each request
    #[arg(long)]
    pub explain: bool,

    /// Tokens of a block in the load: a power of two from 1 to 256
    /// [default: 16]
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<usize>,

    /// Bytes of such a block, to tell the load in bytes and to know what --remote-tier holds: as `interbed info` says
    /// those of a token, that times --block-size
    #[arg(long, value_name = "SIZE")]
    pub block_bytes: Option<Bytes>,

    /// Tokens of a prompt that are computed in a second, each prompt for itself; by a server of a fleet, one prompt
    /// after the other [default: 10000]
    #[arg(long, value_name = "TOKENS/S", value_parser = rate)]
    pub prefill_rate: Option<f64>,

    /// Tokens of an answer that a sequence is given in a second [default: 30]
    #[arg(long, value_name = "TOKENS/S", value_parser = rate)]
    pub decode_rate: Option<f64>,

    /// Blocks that the load is to live in; without it, as many as it takes at its peak
    #[arg(long, value_name = "N", value_parser = count::<LOAD_BLOCKS_MAX>)]
    pub load_blocks: Option<NonZeroUsize>,

    /// Tokens of a sequence that pre-allocation has to be ready for; without it, those of the longest request
    #[arg(long, value_name = "TOKENS", value_parser = count::<TOKENS_MAX>)]
    pub max_model_len: Option<NonZeroUsize>,

    /// Times that everything is measured; the quickest is told, as others may use the machine meanwhile
    /// [default: 5]
    #[arg(long, value_name = "N", value_parser = count::<REPEAT_MAX>)]
    pub repeat: Option<NonZeroUsize>,

    /// Write a plot of hit rate over cache size; with --servers plots of hit rate and skew over the number of servers;
    /// of routings, of the bytes that a token reads over memory
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// One JSON object a line instead of the tables
    #[arg(long)]
    pub json: bool,

    /// Servers behind a router, each with a memory of --blocks: several numbers for several fleets. The trace stays as
    /// it is, so larger fleets are less loaded
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = count::<SERVERS_MAX>,
          help_heading = "Several servers")]
    pub servers: Vec<NonZeroUsize>,

    /// How the router chooses a server: random; load, the fewest requests in flight; prefix, where the first token
    /// comes soonest by what each server has cached and has yet to compute. Without it all three
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = Route::of_name, requires = "fleet",
          help_heading = "Several servers")]
    pub route: Vec<Route>,

    /// Compare with a store of this size that all servers share: what they compute is written to it, and what one lacks
    /// comes from it. Needs --block-bytes; without --servers there is one server
    #[arg(long, value_name = "SIZE", help_heading = "Several servers")]
    pub remote_tier: Option<Bytes>,

    /// By how much the KV events are late from which the router of prefix learns what is cached
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = lag, requires = "fleet",
          help_heading = "Several servers")]
    pub event_lag: f64,

    /// Memory for experts, in % of all of them, from 1 to 100 [default: 2,5,10,20,30]
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = count::<100>,
          help_heading = "Routings of experts")]
    pub memory: Vec<NonZeroUsize>,

    /// The first generated token that counts, from 0 on [default: 16]
    #[arg(long, value_name = "TOKEN", help_heading = "Routings of experts")]
    pub from: Option<u64>,

    /// Streams side by side, into which the trace's one is cut: each expert is read once for all of them
    #[arg(long, value_name = "N", value_parser = count::<BATCH_MAX>, help_heading = "Routings of experts")]
    pub batch: Option<NonZeroUsize>,
}

/// Runs `interbed-lab replay`.
///
/// # Errors
/// Fails if the trace cannot be read or is implausible, an option contradicts it, or a picture cannot be written.
pub fn run(args: ReplayArgs) -> Result<()> {
    let mut out = BufWriter::new(stdout().lock());
    let fleets = !args.servers.is_empty() || args.remote_tier.is_some();
    // A trace that cannot be read is refused later by the reader, which gives the reason.
    let routings = is_routing(&args.trace).unwrap_or(false);
    args.check(routings)?;
    match fleets {
        _ if routings => routing::run(routing_request(args), &mut out, &mut Bars::default())?,
        true => replay::run_fleets(fleet_request(args)?, &mut out, &mut Bars::default())?,
        false => replay::run(request(args), &mut out, &mut Bars::default())?,
    }
    out.flush()?;
    Ok(())
}

impl ReplayArgs {
    /// Checks that every given option belongs to the kind of the trace.
    ///
    /// # Errors
    /// Fails if an option for one kind of trace is given with a trace of the other kind.
    fn check(&self, routings: bool) -> Result<()> {
        let of_requests = [
            ("--blocks", !self.blocks.is_empty()),
            ("--tiers", !self.tiers.is_empty()),
            ("--policy", !self.policy.is_empty()),
            ("--explain", self.explain),
            ("--block-size", self.block_size.is_some()),
            ("--prefill-rate", self.prefill_rate.is_some()),
            ("--decode-rate", self.decode_rate.is_some()),
            ("--repeat", self.repeat.is_some()),
            ("--block-bytes", self.block_bytes.is_some()),
            ("--load-blocks", self.load_blocks.is_some()),
            ("--max-model-len", self.max_model_len.is_some()),
            ("--servers", !self.servers.is_empty()),
            ("--remote-tier", self.remote_tier.is_some()),
        ];
        let of_routings =
            [("--memory", !self.memory.is_empty()), ("--from", self.from.is_some()), ("--batch", self.batch.is_some())];
        let (others, kind) = if routings { (&of_requests[..], "routings") } else { (&of_routings[..], "requests") };
        match others.iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                let problem = format!("{option} means nothing for {}, a trace of {kind}", self.trace.display());
                Err(Advised::input(problem, "leave it out"))
            }
            None => Ok(()),
        }
    }
}

fn routing_request(args: ReplayArgs) -> RoutingRequest {
    let percents = args.memory.iter().map(|percent| percent.get()).collect();
    RoutingRequest {
        trace: args.trace,
        percents: if args.memory.is_empty() { PERCENTS.to_vec() } else { percents },
        from: args.from.unwrap_or(FROM),
        batch: args.batch.map_or(1, NonZeroUsize::get),
        picture: args.svg,
        json: args.json,
    }
}

fn pace(prefill_rate: Option<f64>, decode_rate: Option<f64>) -> Pace {
    Pace { prefill_rate: prefill_rate.unwrap_or(PREFILL_RATE), decode_rate: decode_rate.unwrap_or(DECODE_RATE) }
}

fn request(args: ReplayArgs) -> ReplayRequest {
    let blocks =
        if args.blocks.is_empty() { SIZES.into_iter().filter_map(NonZeroUsize::new).collect() } else { args.blocks };
    ReplayRequest {
        trace: args.trace,
        blocks,
        tiers: args.tiers,
        policies: args.policy,
        explain: args.explain,
        block_size: args.block_size.unwrap_or(BLOCK_SIZE),
        block_bytes: args.block_bytes,
        pace: pace(args.prefill_rate, args.decode_rate),
        load_blocks: args.load_blocks,
        longest: args.max_model_len,
        repeat: args.repeat.unwrap_or(REPEAT),
        picture: args.svg,
        json: args.json,
    }
}

fn fleet_request(args: ReplayArgs) -> Result<FleetRequest> {
    Ok(FleetRequest {
        trace: args.trace,
        servers: if args.servers.is_empty() { vec![NonZeroUsize::MIN] } else { args.servers },
        routes: args.route,
        blocks: match args.blocks[..] {
            [] => FLEET_SIZE,
            [blocks] => blocks,
            _ => {
                let problem =
                    format!("--blocks names {} sizes, but all servers of a fleet have one", args.blocks.len());
                return Err(Advised::input(problem, "name one, and run again for another"));
            }
        },
        policy: match args.policy[..] {
            [] => EvictionKind::default(),
            [policy] => policy,
            _ => {
                let count = args.policy.len();
                let problem = format!("--policy names {count} policies, but all servers of a fleet have one");
                return Err(Advised::input(problem, "name one, and run again for another"));
            }
        },
        remote_tier: args.remote_tier,
        block_size: args.block_size.unwrap_or(BLOCK_SIZE),
        block_bytes: args.block_bytes,
        pace: pace(args.prefill_rate, args.decode_rate),
        event_lag: args.event_lag,
        picture: args.svg,
        json: args.json,
    })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok().filter(|rate| (0.1..=1e6).contains(rate));
    rate.ok_or_else(|| "expected a number of tokens a second, from 0.1 to 1e6".to_owned())
}

fn lag(text: &str) -> Result<f64, String> {
    let lag = text.trim().parse::<f64>().ok().filter(|lag| (0.0..=LAG_MAX).contains(lag));
    lag.ok_or_else(|| format!("expected a number of seconds, from 0 to {LAG_MAX}"))
}
