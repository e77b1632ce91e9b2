//! `strata bench`: how fast this model runs here, beside what the machine allows (`bounds.md`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use strata_device::{Bytes, HostBuffer, HostMemory};
use strata_engine::{ModelRunner, Runner};
use strata_kernels::{peak_flops, read_bandwidth};
use strata_model::{BatchSequence, LogitRows, groups};

use crate::load::{ModelDir, Runnable, load_weights};
use crate::options::LimitOptions;
use crate::progress;

/// Measure prefill and decode, beside the bound that memory and arithmetic set on this machine
///
/// The bound is measured in the same run: a read sweep over memory much larger than the caches, and a register-only loop
/// of multiply-adds. Run nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata bench                                        # the bundled model\n  \
    strata bench models/1b --batch 1,8,32               # decode at several batch sizes\n  \
    strata bench models/1b --prompt-tokens 512 --json   # one JSON object a line, for scripts")]
pub struct BenchArgs {
    /// A Hugging Face directory or a GGUF file; without it the model that ships with Strata
    #[arg(value_name = "MODEL", env = "STRATA_MODEL")]
    pub model: Option<PathBuf>,

    /// Sequences that decode together, several to compare
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<usize>,

    /// Tokens of the prompt whose prefill is measured
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub prompt_tokens: usize,

    /// Passes of each measurement; the median counts
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub repeat: usize,

    /// One JSON object a line on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Context that every sequence has before decode is measured.
const DECODE_CONTEXT: usize = 32;

/// Memory that the read sweep walks through: much more than any cache.
const SWEEP: Bytes = Bytes(2 << 30);

/// What one line reports.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
    share_of_bound: Option<f64>,
    params: Value,
}

impl Figure {
    fn bound(&self) -> Option<f64> {
        self.share_of_bound.map(|share| self.value / share)
    }
}

/// What a pass has to move and compute at least.
#[derive(Clone, Copy)]
struct Work {
    bytes: f64,
    flops: f64,
}

/// Runs `strata bench`.
pub fn run(args: BenchArgs) -> Result<()> {
    let dir = ModelDir::open(args.model.as_deref())?;
    let largest = args.batch.iter().copied().max().unwrap_or(0);
    if args.batch.contains(&0) || args.prompt_tokens == 0 || args.repeat == 0 {
        bail!("--batch, --prompt-tokens and --repeat count from 1");
    }
    if largest > args.limits.max_num_seqs.get() {
        bail!("--batch {largest} needs --max-num-seqs {largest} or more");
    }
    let Runnable { runner, plan } = load_weights(&dir, &args.limits)?;
    let mut bench = Bench::new(runner, &args, &dir, plan.num_blocks)?;
    let longest = args.prompt_tokens.max(DECODE_CONTEXT + args.repeat + 1);
    if longest > plan.max_model_len
        || largest.saturating_mul(bench.blocks_of(DECODE_CONTEXT + args.repeat + 1)) > plan.num_blocks
    {
        bail!(
            "KV memory holds {} tokens, {} a sequence, which is too little for this measurement; give more --memory, or \
             measure a smaller --batch or --prompt-tokens",
            plan.num_blocks * args.limits.block_size,
            plan.max_model_len
        );
    }
    // A pass reads every weight but the embedding, of which it reads a row a token.
    let embedding = if dir.config.tied_embeddings { 0 } else { embedding_bytes(&dir) };
    let pass_bytes = dir.weight_bytes.0.saturating_sub(embedding) as f64;
    let dtype = dir.weight_dtype();
    let flops_per_token = 2.0 * pass_bytes / dtype.block_bytes() as f64 * dtype.block_len() as f64;
    let kv_bytes = ((DECODE_CONTEXT + args.repeat / 2) * dir.kv_layout(&args.limits).token_bytes()) as f64;

    let bar = progress::steps("measuring", (1 + args.batch.len()) as u64);
    let mut measured = Vec::new();
    for &batch in &args.batch {
        let work = Work { bytes: pass_bytes + batch as f64 * kv_bytes, flops: flops_per_token * batch as f64 };
        let (seconds, share) = bench.decode(batch, args.repeat, work)?;
        measured.push((
            "decode.tokens_per_s",
            batch as f64 / seconds,
            share,
            json!({"batch": batch, "context": DECODE_CONTEXT}),
        ));
        bar.inc(1);
    }
    let tokens = args.prompt_tokens;
    let work = Work { bytes: pass_bytes, flops: flops_per_token * tokens as f64 };
    let (seconds, share) = bench.prefill(tokens, args.limits.max_num_batched_tokens.get(), args.repeat.min(5), work)?;
    measured.push(("prefill.tokens_per_s", tokens as f64 / seconds, share, json!({"prompt_tokens": tokens})));
    bar.finish_and_clear();

    let (level, threads) = (bench.runner.device.level.name(), bench.runner.device.pool.threads());
    let machine = |name, value, unit| Figure { name, value, unit, share_of_bound: None, params: json!({}) };
    let mut figures = vec![
        machine("machine.read_bytes_per_s", median(bench.bandwidths), "B/s"),
        machine("machine.flops", median(bench.peaks), "FLOP/s"),
    ];
    figures.extend(measured.into_iter().map(|(name, value, share, params)| Figure {
        name,
        value,
        unit: "tok/s",
        share_of_bound: Some(share),
        params,
    }));
    for figure in &mut figures {
        figure.params["threads"] = json!(threads);
        figure.params["level"] = json!(level);
    }
    print(&figures, args.json);
    Ok(())
}

fn embedding_bytes(dir: &ModelDir) -> u64 {
    let tensors = &dir.specs[groups::EMBEDDING].tensors;
    tensors.iter().filter_map(|tensor| dir.catalog.get(&tensor.name)).map(|entry| entry.bytes).sum()
}

struct Bench {
    runner: ModelRunner,
    block_size: usize,
    vocab: usize,
    blocks: usize,
    /// What the read sweeps walk through.
    sweep: HostBuffer,
    bandwidths: Vec<f64>,
    peaks: Vec<f64>,
}

impl Bench {
    fn new(runner: ModelRunner, args: &BenchArgs, dir: &ModelDir, blocks: usize) -> Result<Self> {
        // Beside the weights there may be room for less.
        let memory = HostMemory::read();
        let bytes = SWEEP.0.min(memory.usable().saturating_sub(memory.resident) / 2);
        let mut sweep = HostBuffer::new_zeroed(usize::try_from(bytes)?)?;
        // Untouched pages are all one page of zeroes, which the cache holds.
        sweep.as_mut_slice().fill(1);
        Ok(Self {
            runner,
            block_size: args.limits.block_size,
            vocab: dir.config.vocab_size,
            blocks,
            sweep,
            bandwidths: Vec::new(),
            peaks: Vec::new(),
        })
    }

    fn blocks_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// The least seconds that `work` takes on this machine at this moment. The machine is shared and wanders, so its
    /// limits are measured anew beside every pass, and what counts is the median of the ratios.
    fn bound(&mut self, work: Work) -> f64 {
        let device = &self.runner.device;
        let bandwidth = read_bandwidth(&device.pool, device.level, self.sweep.as_slice(), 1);
        let peak = peak_flops(&device.pool, device.level, 1);
        self.bandwidths.push(bandwidth);
        self.peaks.push(peak);
        (work.bytes / bandwidth).max(work.flops / peak)
    }

    /// Median seconds of a pass that decodes one token of each of `batch` sequences, and its median share of the bound.
    fn decode(&mut self, batch: usize, repeat: usize, work: Work) -> Result<(f64, f64)> {
        let each = self.blocks_of(DECODE_CONTEXT + repeat + 1);
        let tables: Vec<Vec<u32>> =
            (0..batch).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect();
        for table in &tables {
            self.pass(std::slice::from_ref(table), 0, DECODE_CONTEXT)?;
        }
        // One pass to warm up.
        self.pass(&tables, DECODE_CONTEXT, 1)?;
        let (mut times, mut shares) = (Vec::new(), Vec::new());
        for i in 1..=repeat {
            let bound = self.bound(work);
            let seconds = self.pass(&tables, DECODE_CONTEXT + i, 1)?.as_secs_f64();
            times.push(seconds);
            shares.push(bound / seconds);
        }
        Ok((median(times), median(shares)))
    }

    /// Median seconds to compute a prompt in chunks, and their median share of the bound.
    fn prefill(&mut self, tokens: usize, chunk: usize, repeat: usize, work: Work) -> Result<(f64, f64)> {
        let table: Vec<u32> = (0..self.blocks_of(tokens).min(self.blocks) as u32).collect();
        let (mut times, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            let bound = self.bound(work);
            let mut seconds = 0.0;
            for start in (0..tokens).step_by(chunk) {
                seconds += self.pass(std::slice::from_ref(&table), start, chunk.min(tokens - start))?.as_secs_f64();
            }
            times.push(seconds);
            shares.push(bound / seconds);
        }
        Ok((median(times), median(shares)))
    }

    /// Computes `count` tokens of each sequence from position `start` on, with the last one's logits.
    fn pass(&mut self, tables: &[Vec<u32>], start: usize, count: usize) -> Result<Duration> {
        let tokens: Vec<u32> = (0..count).map(|i| ((start + i) * 7919 % self.vocab) as u32).collect();
        let batch: Vec<_> = tables
            .iter()
            .map(|table| BatchSequence {
                tokens: &tokens,
                first_position: start,
                prompt_len: start + count,
                block_table: table,
                logits: LogitRows::Last,
            })
            .collect();
        let begin = Instant::now();
        self.runner
            .forward(&batch, &mut |_, logits| {
                std::hint::black_box(&logits);
            })
            .map_err(anyhow::Error::msg)?;
        Ok(begin.elapsed())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(figures: &[Figure], as_json: bool) {
    for figure in figures {
        if as_json {
            let mut line =
                json!({"name": figure.name, "value": figure.value, "unit": figure.unit, "params": figure.params});
            if let (Some(bound), Some(share)) = (figure.bound(), figure.share_of_bound) {
                line["bound"] = json!(bound);
                line["share_of_bound"] = json!(share);
            }
            println!("{line}");
            continue;
        }
        let label = match figure.params.get("batch").or(figure.params.get("prompt_tokens")) {
            Some(n) if figure.name.starts_with("decode") => format!("decode, {n} at a time"),
            Some(n) => format!("prefill, {n} tokens"),
            None if figure.unit == "B/s" => "memory reads".to_owned(),
            None => "multiply-adds".to_owned(),
        };
        match (figure.bound(), figure.share_of_bound) {
            (Some(bound), Some(share)) => {
                println!("{label:<24}{:>10.1} {}   {:>5.1} % of {bound:.1}", figure.value, figure.unit, share * 100.0);
            }
            _ => println!("{label:<24}{:>10.1} G{}", figure.value / 1e9, figure.unit),
        }
    }
}
