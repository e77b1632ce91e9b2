//! `strata bench experts`: a mixture whose experts are streamed, beside what its own routing would have cost.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use strata_device::{Bytes, peak_resident};
use strata_engine::ModelRunner;
use strata_io::{AlignedBuffer, DIRECT_ALIGN, DirectRead, ReadSettings, sequential_bandwidth};
use strata_model::{BatchSequence, LogitRows, RouteSink, RoutedRow, SequenceBlocks};
use strata_sim::routing::{LayerVisit, Routing, RoutingPass, least_bytes_per_token, read_bytes_per_token};
use strata_weights::{ElasticWeights, StreamStats};

use super::experts_report::{ExpertsLine, ExpertsReport, PassCost, VisitCost};
use super::{median, timed};
use crate::audience::{Audience, Surroundings};
use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::load::{Runnable, load_weights};
use crate::model_dir::ModelDir;
use crate::options::LimitOptions;
use crate::streaming::Streaming;
use crate::{hub, progress};

/// Tokens of each sequence's prompt.
const CONTEXT: usize = 16;

/// Bytes that are read for one measurement of the disk, before each pass.
const DISK_SAMPLE: u64 = 128 << 20;

/// Small reads for one measurement of the disk's latency.
const SMALL_READS: usize = 8;

/// How often a pass is repeated to measure what it computes.
const REPEATS: usize = 5;

/// Measure a mixture whose experts are streamed: bytes and seconds a token, beside what its own routing allows
///
/// Random tokens are decoded. Their routing is written down and then given to the simulator of `strata replay`, with
/// the same memory, which tells what the same decisions read, and what no decisions read less than (PFOO-L). Plain
/// direct reads, before each pass at another place of the files, tell what the disk gives. The bound of a pass is that
/// of one that knows a layer's experts only once its router has spoken: layer by layer, experts that are there are
/// computed while others come, one after the other at the disk's rate, each of which is computed once it has come. What
/// computing takes is measured on a pass that is repeated, and so reads nothing if memory holds its experts. Run
/// nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata bench experts models/30b-a3b --memory 4G\n  \
    strata bench experts models/30b-a3b --memory 4G --batch 8 --tokens 128\n  \
    strata bench experts models/30b-a3b --memory 4G --json      # one JSON object a line")]
pub struct ExpertsArgs {
    /// A mixture of experts that does not fit into --memory: a directory, a GGUF file or a packed store
    #[arg(value_name = "MODEL", env = "STRATA_MODEL")]
    pub model: Option<PathBuf>,

    /// Sequences that decode together, several to compare
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<NonZeroUsize>,

    /// Passes that are measured; the median counts
    #[arg(long, value_name = "N", default_value = "64")]
    pub tokens: NonZeroUsize,

    /// Passes before them, which fill the memory
    #[arg(long, value_name = "N", default_value = "32")]
    pub warm_up: usize,

    /// One JSON object a line on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Runs `strata bench experts`.
pub fn run(args: ExpertsArgs) -> Result<()> {
    let path = hub::local(args.model.as_deref(), &args.limits, Audience::Nobody)?;
    let dir = ModelDir::open(path.as_deref())?;
    let Some(mixture) = &dir.config.mixture else {
        return Err(Advised::input(format!("{} has no experts", dir.name()), "measure it with `strata bench stream`"));
    };
    let largest = args.batch.iter().map(|batch| batch.get()).max().unwrap_or(0);
    if largest > args.limits.max_num_seqs.get() {
        bail!("--batch {largest} needs --max-num-seqs {largest} or more");
    }
    let surroundings = Surroundings { footprint: Footprint::of(None), audience: Audience::Nobody };
    let Runnable { mut runner, plan, streamed, batched_tokens, .. } = load_weights(&dir, &args.limits, &surroundings)?;
    let Some(streaming) = streamed.filter(|streaming| streaming.experts.is_some()) else {
        let problem = format!("{} fits into {}, so that no experts are streamed", dir.name(), plan.budget.total());
        return Err(Advised::input(problem, "give a smaller --memory, or measure it with `strata bench`"));
    };
    let block_size = runner.device.kv().layout().block_size();
    let each = CONTEXT.saturating_add(args.warm_up).saturating_add(args.tokens.get()).div_ceil(block_size);
    if each.saturating_mul(largest) > plan.num_blocks || each.saturating_mul(block_size) > plan.max_model_len {
        bail!(
            "KV memory holds {} tokens, which is too little for this measurement; give more --memory, or measure a \
             smaller --batch, --tokens or --warm-up",
            plan.num_blocks * block_size
        );
    }
    if largest.saturating_mul(CONTEXT) > batched_tokens {
        bail!("--batch {largest} needs --max-num-batched-tokens {}", largest * CONTEXT);
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    runner.model.tell_routes(Box::new(Watcher { layers: mixture.layers.clone(), seen: Arc::clone(&seen) }));
    let settings = streaming.settings.clone();
    let (vocab, tables, passes) = (dir.config.vocab_size, Vec::new(), Vec::new());
    let mut bench = ExpertsBench { runner, streaming, seen, tables, vocab, passes, disk_at: 0 };
    let mut lines = Vec::new();
    for batch in args.batch.iter().map(|batch| batch.get()) {
        bench.tables = (0..batch).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect();
        lines.push(bench.measure(&args)?);
    }
    let report = ExpertsReport { model: dir.name(), settings, peak_memory: Bytes(peak_resident()), lines };
    print!("{}", if args.json { report.json_lines() } else { report.table() });
    Ok(())
}

/// What a pass wanted: by mixture layer and expert the tokens that use it, and whether it was in memory.
#[derive(Default)]
struct Seen(BTreeMap<usize, BTreeMap<u32, (u32, bool)>>);

/// Sees what passes want.
struct Watcher {
    /// By decoder layer, whether it is a mixture.
    layers: Vec<bool>,
    seen: Arc<Mutex<Seen>>,
}

impl RouteSink for Watcher {
    fn routed(&mut self, row: &RoutedRow<'_>) {
        let layer = self.layers[..row.layer].iter().filter(|&&mixture| mixture).count();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for &expert in row.experts {
            let (tokens, _) = seen.0.entry(layer).or_default().entry(expert).or_insert_with(|| (0, (row.held)(expert)));
            *tokens += 1;
        }
    }
}

struct ExpertsBench {
    runner: ModelRunner,
    streaming: Streaming,
    seen: Arc<Mutex<Seen>>,
    /// The KV blocks of each sequence.
    tables: Vec<Vec<u32>>,
    vocab: usize,
    /// All passes so far, as the simulator takes them.
    passes: Vec<RoutingPass>,
    /// Where the disk is measured next.
    disk_at: u64,
}

/// A pass that was measured.
struct Pass {
    seconds: f64,
    stats: StreamStats,
    visits: Vec<VisitCost>,
}

impl ExpertsBench {
    fn measure(&mut self, args: &ExpertsArgs) -> Result<ExpertsLine> {
        let (batch, tokens) = (self.tables.len(), args.tokens.get());
        let (shape, budget) = self.streaming.experts.clone().context("experts are not streamed")?;
        let bar = progress::steps("measuring", (args.warm_up + tokens) as u64);
        self.pass(0, CONTEXT)?;
        for i in 0..args.warm_up {
            self.pass(CONTEXT + i, 1)?;
            bar.inc(1);
        }
        let first = CONTEXT + args.warm_up;
        let generated = self.passes.iter().filter(|pass| !pass.prompt);
        let from = generated.map(|pass| u64::from(pass.tokens)).sum();
        let mut measured = Vec::new();
        for i in 0..tokens {
            let (disk, latency) = (self.disk_bandwidth()?, self.disk_latency()?);
            measured.push((disk, latency, self.pass(first + i, 1)?));
            bar.inc(1);
        }
        let routing = Routing::new(shape.clone(), self.passes.clone());
        let again: Vec<Pass> = (0..REPEATS).map(|_| self.pass(first + tokens - 1, 1)).collect::<Result<_>>()?;
        bar.finish_and_clear();

        let costs: Vec<(f64, f64)> = again.iter().map(compute_costs).collect();
        let dense = median(costs.iter().map(|&(dense, _)| dense).collect());
        let expert = median(costs.iter().map(|&(_, expert)| expert).collect());
        let bounds: Vec<f64> = measured
            .iter()
            .map(|(disk, latency, pass)| {
                let others = pass.stats.bytes_read.saturating_sub(pass.stats.expert_bytes_read) as f64;
                let cost = PassCost { disk: *disk, latency: *latency, dense: dense.max(others / disk), expert };
                cost.bound_seconds(&pass.visits)
            })
            .collect();
        let sum = |of: &dyn Fn(&StreamStats) -> u64| measured.iter().map(|(.., pass)| of(&pass.stats)).sum::<u64>();
        let missed: u64 = measured.iter().flat_map(|(.., pass)| &pass.visits).map(|visit| visit.misses as u64).sum();
        let each = (batch * tokens) as f64;
        let seconds: Vec<f64> = measured.iter().map(|(.., pass)| pass.seconds).collect();
        let ratios = seconds.iter().zip(&bounds).map(|(seconds, bound)| seconds / bound).collect();
        let stall: Duration = measured.iter().map(|(.., pass)| pass.stats.stall).sum();
        Ok(ExpertsLine {
            batch,
            room: budget,
            bank: shape.bank_bytes(),
            stall_share: stall.as_secs_f64() / seconds.iter().sum::<f64>(),
            seconds: median(seconds),
            bound: median(bounds),
            over_bound: median(ratios),
            dense_seconds: dense,
            expert_seconds: expert,
            disk: median(measured.iter().map(|&(disk, ..)| disk).collect()),
            latency: median(measured.iter().map(|&(_, latency, _)| latency).collect()),
            bytes: sum(&|stats| stats.expert_bytes_read) as f64 / each,
            simulated: read_bytes_per_token(&routing, budget, from)?,
            least: least_bytes_per_token(&routing, budget, from),
            experts: sum(&|stats| stats.experts_wanted) as f64 / each,
            hits: 1.0 - missed as f64 / sum(&|stats| stats.experts_wanted) as f64,
            read_again: sum(&|stats| stats.experts_read) as i64 - missed as i64,
        })
    }

    /// A pass over `count` tokens of each sequence, from position `start` on.
    fn pass(&mut self, start: usize, count: usize) -> Result<Pass> {
        let vocab = self.vocab as u64;
        let token = |sequence: usize, position: usize| {
            let mixed = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (sequence as u64 + 1) << 40;
            ((mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 20) % vocab) as u32
        };
        let tokens: Vec<Vec<u32>> = (0..self.tables.len())
            .map(|sequence| (start..start + count).map(|position| token(sequence, position)).collect())
            .collect();
        let batch: Vec<BatchSequence<'_>> = self
            .tables
            .iter()
            .zip(&tokens)
            .map(|(table, tokens)| BatchSequence {
                tokens,
                first_position: start,
                prompt_len: CONTEXT,
                below: 0,
                blocks: SequenceBlocks::Listed(table),
                logits: LogitRows::Last,
            })
            .collect();
        let before = self.streaming.monitor.stats();
        let seconds = timed(&mut self.runner, &batch)?.as_secs_f64();
        self.weights().settle();
        let stats = self.streaming.monitor.stats().since(&before);
        let Seen(seen) = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let slab =
            |layer: usize| self.streaming.experts.as_ref().map_or(0, |(shape, _)| shape.slab_bytes(layer as u32));
        let visit = |(&layer, wanted): (&usize, &BTreeMap<u32, (u32, bool)>)| {
            let hits = wanted.values().filter(|(_, held)| *held).count();
            VisitCost { hits, misses: wanted.len() - hits, slab_bytes: slab(layer) as f64 }
        };
        let visits = seen.iter().map(visit).collect();
        let of_layer = |(layer, wanted): (usize, BTreeMap<u32, (u32, bool)>)| LayerVisit {
            layer: layer as u32,
            wanted: wanted.into_iter().map(|(expert, (tokens, _))| (expert, tokens)).collect(),
        };
        self.passes.push(RoutingPass {
            prompt: start < CONTEXT,
            tokens: (self.tables.len() * count) as u32,
            visits: seen.into_iter().map(of_layer).collect(),
        });
        Ok(Pass { seconds, stats, visits })
    }

    /// Plain direct reads of a part of the largest file, each time of another one.
    fn disk_bandwidth(&mut self) -> Result<f64> {
        let file = self.largest_file()?;
        let places = (file.len() / DISK_SAMPLE).max(1);
        // Far from the one before, which a cache below the disk may still hold.
        self.disk_at = (self.disk_at + places * 5 / 8 + 1) % places;
        let start = self.disk_at * DISK_SAMPLE;
        let ReadSettings { engine, depth, chunk_bytes, .. } = self.streaming.settings;
        Ok(sequential_bandwidth(&file, start..(start + DISK_SAMPLE).min(file.len()), engine, depth, chunk_bytes)?)
    }

    /// Seconds that one block takes that is read alone: the median of several, at places of their own.
    fn disk_latency(&mut self) -> Result<f64> {
        let file = self.largest_file()?;
        let mut buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN).context("no memory for a block")?;
        let blocks = (file.len() / DIRECT_ALIGN as u64).max(1);
        let mut seconds = Vec::new();
        for i in 0..SMALL_READS as u64 {
            let block = (self.disk_at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i << 32) % blocks;
            let begin = Instant::now();
            file.read_aligned_at(buffer.as_mut(), block * DIRECT_ALIGN as u64, 1)?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
        Ok(median(seconds))
    }

    fn largest_file(&self) -> Result<Arc<dyn DirectRead>> {
        let files = self.streaming.files.iter();
        Ok(Arc::clone(files.max_by_key(|file| file.len()).context("the model has no files")?))
    }

    fn weights(&mut self) -> &mut dyn ElasticWeights {
        self.runner.model.weights().elastic().expect("only models that are streamed are measured here")
    }
}

/// Seconds that a pass computed without experts, and with each of them.
fn compute_costs(pass: &Pass) -> (f64, f64) {
    let experts = pass.stats.expert_compute.as_secs_f64();
    let dense = pass.seconds - pass.stats.stall.as_secs_f64() - experts;
    (dense.max(0.0), experts / pass.stats.experts_wanted.max(1) as f64)
}
