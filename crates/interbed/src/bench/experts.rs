//! `interbed bench experts`: measures a mixture with streamed experts, compared with a simulation of its own routing.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use interbed_device::Device;
use interbed_engine::ModelRunner;
use interbed_io::{AlignedBuffer, DIRECT_ALIGN, IoError, ReadSettings, sequential_bandwidth};
use interbed_model::{LogitRows, RouteSink, RoutedRow};
use interbed_plan::routing::{LayerVisit, Routing, RoutingPass, least_bytes_per_token, read_bytes_per_token};
use interbed_weights::ElasticWeights;

use super::experts_report::{Beside, ComputeCost, ExpertsLine, MeasuredPass, VisitCost, report};
use super::passes::{block_tables, timed};
use super::{median, open};
use crate::audience::Surroundings;
use crate::division::Division;
use crate::failure::Advised;
use crate::load::{Runnable, load_onto};
use crate::options::{ComputeOptions, LimitOptions};
use crate::place::Processor;
use crate::progress;
use crate::streaming::Streaming;

/// The number of tokens in the prompt of each sequence.
const CONTEXT: usize = 16;

/// The number of bytes that are read to measure the disk before each pass.
const DISK_SAMPLE: u64 = 128 << 20;

/// The number of bytes that are read in one call while passes run.
const BESIDE_BYTES: u64 = 64 << 20;

/// The number of small reads in one measurement of the disk's latency.
const SMALL_READS: usize = 8;

/// The number of passes that measure the time of computing.
const REPEATS: usize = 7;

/// The maximum number of repetitions of a pass until [`REPEATS`] of them have read nothing.
const REPEATS_MAX: usize = 40;

/// Measure the bytes and seconds per token of a model with streamed experts, compared with a bound
///
/// Random tokens are decoded, and the experts that they use are recorded. The simulator of `interbed-lab replay` then
/// gets this record, and the same memory. It computes how many bytes are read if experts are kept in memory by the same
/// rules, and a number of bytes (PFOO-L) that must be read whichever experts are kept.
///
/// The benchmark also computes the minimum time of each pass, which assumes that the experts of a layer are known only
/// when the layer's router has run. Experts in memory are then computed while missing experts are read one after the
/// other, and each missing expert is computed once it has been read. The speed of the disk is measured before each
/// pass, by plain direct reads, each time at another place of the files. The computing times are measured with one
/// token and with copies of it, in a pass that is repeated until it reads nothing.
///
/// All passes are measured twice: without reading experts ahead, as in the simulation, and with reading ahead, which
/// may take less than the minimum time. Run nothing else on the machine meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed bench experts models/30b-a3b --memory 4G\n  \
    interbed bench experts models/30b-a3b --memory 4G --batch 8 --tokens 128\n  \
    interbed bench experts models/30b-a3b --memory 4G --json      # one JSON object a line")]
pub struct ExpertsArgs {
    /// A mixture of experts that does not fit into --memory: a directory, a GGUF file or a packed store
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// The numbers of sequences that decode together, separated by commas; each number is measured
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<NonZeroUsize>,

    /// The number of measured passes, whose median is reported
    #[arg(long, value_name = "N", default_value = "64")]
    pub tokens: NonZeroUsize,

    /// The number of passes before the measured ones, which fill the memory with experts
    #[arg(long, value_name = "N", default_value = "32")]
    pub warm_up: usize,

    /// Print one JSON object per line instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Runs `interbed bench experts`.
pub fn run(args: ExpertsArgs) -> Result<()> {
    let (dir, limits) = open(args.model.as_deref(), args.limits.clone(), ComputeOptions::default(), &args.batch)?;
    if dir.config.blueprint.mixture().is_none() {
        return Err(Advised::input(
            format!("{} has no experts", dir.name()),
            "measure it with `interbed bench stream`",
        ));
    }
    let largest = args.batch.iter().max().map_or(0, |batch| batch.get());
    let runnable = load_onto(&Processor, &dir, &limits, &Surroundings::of_passes())?;
    let Runnable { mut runner, division, streamed, .. } = runnable;
    let Division { needs, plan, batched_tokens, .. } = division;
    let block_size = needs.block_size;
    let Some(streaming) = streamed.filter(|streaming| streaming.experts.is_some()) else {
        let problem = format!("{} fits into {}, so that no experts are streamed", dir.name(), plan.budget.total());
        return Err(Advised::input(problem, "give a smaller --memory, or measure it with `interbed bench`"));
    };
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
    let mut layers = vec![false; dir.config.blueprint.layers.len()];
    dir.config.blueprint.mixtures().for_each(|(layer, _)| layers[layer] = true);
    runner.model.tell_routes(Box::new(Watcher { layers, seen: Arc::clone(&seen) }));
    let (vocab, tables, passes) = (dir.config.blueprint.vocab_size, Vec::new(), Vec::new());
    let mut bench = ExpertsBench { runner, streaming, seen, tables, first_sequence: 0, vocab, passes, disk_at: 0 };
    let mut lines = Vec::new();
    // The lines with reading ahead come last, because the simulator does not know what was read ahead.
    for ahead in [false, true] {
        bench.first_sequence = if ahead { largest } else { 0 };
        for batch in args.batch.iter().map(|batch| batch.get()) {
            bench.tables = block_tables(batch, each);
            lines.push(bench.measure(&args, ahead)?);
        }
    }
    report(&dir.name(), &bench.streaming.settings, &lines).print(args.json);
    Ok(())
}

/// The experts that a pass needed: for each mixture layer and expert, the number of tokens that use the expert, and
/// whether it was in memory.
#[derive(Default)]
struct Seen(BTreeMap<usize, BTreeMap<u32, (u32, bool)>>);

/// Records which experts passes need.
struct Watcher {
    /// Says for each decoder layer whether it is a mixture layer.
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
    runner: ModelRunner<Box<dyn Device>>,
    streaming: Streaming,
    seen: Arc<Mutex<Seen>>,
    /// The numbers of the KV blocks of each sequence.
    tables: Vec<Vec<u32>>,
    /// The number of the first sequence, which determines its tokens. Lines that are compared decode different
    /// sequences, because memory still holds the experts of sequences that were decoded before.
    first_sequence: usize,
    vocab: usize,
    /// All passes so far, in the form that the simulator takes.
    passes: Vec<RoutingPass>,
    /// The number of the sample of the file that is read by the next measurement of the disk.
    disk_at: u64,
}

/// The sequences of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sequences {
    Different,
    /// All sequences have the same tokens as the first sequence.
    Copies,
}

/// Tells a thread to stop reading when the value is dropped.
struct EndOfReads<'a>(&'a AtomicBool);

impl Drop for EndOfReads<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The median times of a pass that was repeated, in seconds.
struct Repeated {
    /// The time of the pass, in seconds, without waiting for weights.
    seconds: f64,
    /// The time of everything except experts, in seconds.
    dense: f64,
    /// The time of one expert, in seconds.
    expert: f64,
    /// Whether the medians come from passes that read nothing.
    read_nothing: bool,
}

impl ExpertsBench {
    fn measure(&mut self, args: &ExpertsArgs, ahead: bool) -> Result<ExpertsLine> {
        let (batch, tokens) = (self.tables.len(), args.tokens.get());
        let (shape, budget) = self.streaming.experts.clone().context("experts are not streamed")?;
        let bar = progress::steps("measuring", (args.warm_up + tokens) as u64);
        self.weights().set_reads_ahead(ahead);
        self.pass(0, CONTEXT, Sequences::Different)?;
        for i in 0..args.warm_up {
            self.pass(CONTEXT + i, 1, Sequences::Different)?;
            bar.inc(1);
        }
        let first = CONTEXT + args.warm_up;
        let generated = self.passes.iter().filter(|pass| !pass.prompt);
        let from = generated.map(|pass| u64::from(pass.tokens)).sum();
        let mut passes = Vec::new();
        for i in 0..tokens {
            let (disk, latency) = (self.disk_bandwidth()?, self.disk_latency()?);
            passes.push(([disk, latency], self.pass(first + i, 1, Sequences::Different)?));
            bar.inc(1);
        }
        bar.finish_and_clear();
        let routing = Routing::new(shape.clone(), self.passes.clone());
        self.weights().set_reads_ahead(false);
        let computing = self.compute_costs()?;
        let (simulated, least) =
            (read_bytes_per_token(&routing, budget, from)?, least_bytes_per_token(&routing, budget, from));
        let (bank, room) = (shape.bank_bytes(), budget);
        Ok(ExpertsLine { batch, ahead, room, bank, passes, computing, simulated, least })
    }

    /// Measures the times of computing in passes with one token of each sequence. Two passes are repeated: with a
    /// single token, and with as many copies of it as there are sequences. The two passes need the same experts.
    fn compute_costs(&mut self) -> Result<ComputeCost> {
        let tables = std::mem::take(&mut self.tables);
        let (mut repeated, mut beside) = (Vec::new(), None);
        for count in if tables.len() > 1 { vec![1, tables.len()] } else { vec![1] } {
            self.tables = tables[..count].to_vec();
            self.pass(0, CONTEXT, Sequences::Copies)?;
            repeated.push(self.repeat()?);
        }
        let beside_reads = !repeated.iter().all(|passes| passes.read_nothing);
        if !beside_reads {
            let (alone, disk) = (repeated[repeated.len() - 1].seconds, self.disk_bandwidth()?);
            let (passes, rate) = self.beside_plain_reads(Self::repeat)?;
            let [computing, reading] = [alone / passes?.seconds, rate / disk].map(|part| part.clamp(0.01, 1.0));
            beside = Some(Beside { computing, reading });
        }
        self.tables = tables;
        let (one, all) = (&repeated[0], &repeated[repeated.len() - 1]);
        let more = (all.expert - one.expert).max(0.0) / (self.tables.len() - 1).max(1) as f64;
        Ok(ComputeCost { dense: all.dense, expert: one.expert, more, beside, beside_reads })
    }

    /// Repeats a pass until it has read nothing [`REPEATS`] times, at most [`REPEATS_MAX`] times.
    fn repeat(&mut self) -> Result<Repeated> {
        let (mut quiet, mut all) = (Vec::new(), Vec::new());
        while quiet.len() < REPEATS && all.len() < REPEATS_MAX {
            let pass = self.pass(CONTEXT, 1, Sequences::Copies)?;
            let experts = pass.stats.expert_compute.as_secs_f64();
            let computed = pass.seconds - pass.stats.stall.as_secs_f64();
            let cost = [computed, (computed - experts).max(0.0), experts / pass.stats.experts_wanted.max(1) as f64];
            if pass.stats.expert_bytes_read == 0 {
                quiet.push(cost);
            }
            all.push(cost);
        }
        let read_nothing = quiet.len() == REPEATS;
        let passes = if read_nothing { quiet } else { all };
        let [seconds, dense, expert] = [0, 1, 2].map(|of| median(passes.iter().map(|cost| cost[of]).collect()));
        Ok(Repeated { seconds, dense, expert, read_nothing })
    }

    /// Runs `act` while another thread reads the largest file from start to end. Also returns the bytes per second
    /// that this thread has read.
    fn beside_plain_reads<T>(&mut self, mut act: impl FnMut(&mut Self) -> T) -> Result<(T, f64)> {
        let file = self.streaming.largest_file()?;
        let ReadSettings { engine, depth, chunk_bytes, .. } = self.streaming.settings.clone();
        let (is_over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<(), IoError> {
                let mut at = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let start = at % file.len();
                    let end = (start + BESIDE_BYTES).min(file.len());
                    sequential_bandwidth(&file, start..end, engine, depth, chunk_bytes)?;
                    at += end - start;
                    bytes.store(at, Ordering::Relaxed);
                }
                Ok(())
            });
            // The reader stops even if `act` panics.
            let ends = EndOfReads(&is_over);
            let begin = Instant::now();
            let done = act(self);
            let rate = bytes.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
            drop(ends);
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((done, rate))
        })
    }

    /// Runs a pass over `count` tokens of each sequence, from position `start` on.
    fn pass(&mut self, start: usize, count: usize, sequences: Sequences) -> Result<MeasuredPass> {
        let vocab = self.vocab as u64;
        let token = |sequence: usize, position: usize| {
            let sequence = self.first_sequence + if sequences == Sequences::Copies { 0 } else { sequence };
            let mixed = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (sequence as u64 + 1) << 40;
            ((mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 20) % vocab) as u32
        };
        let tokens: Vec<Vec<u32>> = (0..self.tables.len())
            .map(|sequence| (start..start + count).map(|position| token(sequence, position)).collect())
            .collect();
        let before = self.streaming.monitor.stats();
        // No mixture keeps states yet.
        let groups = vec![Vec::new(); self.tables.len()];
        let passed = timed(&mut self.runner, (&self.tables, &groups), &tokens, [start, CONTEXT], LogitRows::Last)?;
        let seconds = passed.as_secs_f64();
        self.weights().settle();
        let stats = self.streaming.monitor.stats().since(&before);
        let Seen(seen) = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let slab =
            |layer: usize| self.streaming.experts.as_ref().map_or(0, |(shape, _)| shape.slab_bytes(layer as u32));
        let visit = |(&layer, wanted): (&usize, &BTreeMap<u32, (u32, bool)>)| {
            let hits = wanted.values().filter(|(_, held)| *held).count();
            let rows = wanted.values().map(|&(tokens, _)| tokens as usize).sum();
            VisitCost { hits, misses: wanted.len() - hits, rows, slab_bytes: slab(layer) as f64 }
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
        Ok(MeasuredPass { seconds, stats, visits })
    }

    /// Returns the bytes per second of plain direct reads. Each call reads another part of the largest file.
    fn disk_bandwidth(&mut self) -> Result<f64> {
        let file = self.streaming.largest_file()?;
        let places = (file.len() / DISK_SAMPLE).max(1);
        // Each part is far from the one before, which a cache below the disk may still hold.
        self.disk_at = (self.disk_at + places * 5 / 8 + 1) % places;
        let start = self.disk_at * DISK_SAMPLE;
        self.streaming.read_rate(&file, start..start + DISK_SAMPLE)
    }

    /// Returns the seconds of reading one block by itself: the median of several blocks at different places.
    fn disk_latency(&mut self) -> Result<f64> {
        let file = self.streaming.largest_file()?;
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

    fn weights(&mut self) -> &mut dyn ElasticWeights {
        self.runner.model.weights().elastic().expect("only models that are streamed are measured here")
    }
}
