//! The command `interbed-lab kv-layout` compares KV that lies side by side in addresses to which blocks are mapped with
//! KV in blocks that may lie anywhere.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use interbed::audience::{Audience, Surroundings};
use interbed::division::Division;
use interbed::footprint::Footprint;
use interbed::load::{Runnable, load, load_onto};
use interbed::median;
use interbed::model_dir::ModelDir;
use interbed::needs::threads;
use interbed::opened::Opened;
use interbed::options::{KvLayoutOption, LimitOptions};
use interbed::place::Processor;
use interbed::progress;
use interbed_device::{Cpu, CpuDevice, Device, KvPool};
use interbed_engine::{
    EngineStatus, Event, EventStream, ModelRunner, Request, Runner, SamplingParams, StripMemory, StripsStatus,
};
use interbed_kernels::BlockGroups;
use interbed_kv::{BlockId, Hiding, Mapped, Mapping};
use interbed_model::{BatchSequence, LogitRows, Model, NothingBelow, SequenceBlocks};
use serde_json::{Value, json};

use super::{kv_pages, shuffle};
use crate::mapping::{self, MappedLoad};

/// The most measurements of a prefill, which takes long over a long context.
const PREFILLS_MOST: usize = 5;

/// The number of tokens of the prefill that is measured.
const CHUNK: usize = 512;

/// Measure KV that lies side by side in virtual memory, beside KV in blocks that a table lists
///
/// Decode and prefill are measured in turns over the same blocks, in an order at random, as they are after hours of
/// service: once through the table, once mapped; the medians of the ratios count. Attention alone is measured over
/// pages of several sizes, with all layers of a token in one, or each in its own. Then an engine decodes with all
/// sequences at once, and counts what its passes wait for; and serves requests that come and go, with each way of
/// hiding the time of mapping left out in turn. Takes the memory of KV twice. Run nothing else meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed-lab kv-layout models/1b --context 1024,8192,32768 --memory 8G\n  \
    interbed-lab kv-layout models/1b --steps 200 --json")]
pub struct KvLayoutArgs {
    /// A Hugging Face directory, a GGUF file or a packed store; without it the model that ships with Interbed
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// Positions before the tokens that are measured, several to compare; without it 1024, 8192 and 32768, as far as
    /// the model and memory go
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',')]
    pub context: Vec<NonZeroUsize>,

    /// Measurements of each kind; the median counts
    #[arg(long, value_name = "N", default_value = "9")]
    pub repeat: NonZeroUsize,

    /// Sequences that the engine runs together
    #[arg(long, value_name = "N", default_value = "32")]
    pub sequences: NonZeroUsize,

    /// Steps of the engine in which nothing comes or goes, without it 1000 or as many as the model's context has room
    /// for; a quarter as many of each kind where requests do
    #[arg(long, value_name = "N")]
    pub steps: Option<NonZeroUsize>,

    /// One JSON object a line on stdout instead of the table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Runs `interbed-lab kv-layout`.
pub fn run(args: KvLayoutArgs) -> Result<()> {
    let mut limits = args.limits.clone();
    limits.kv_layout = KvLayoutOption::Virtual;
    // This comes before anything large is loaded, because the memory that the process takes is measured.
    let Opened { dir, footprint, .. } = Opened::open(args.model.as_deref())?;
    let steps = steps(args.steps, &dir)?;
    let (speeds, block) = speeds(&args, &limits)?;
    speeds.iter().for_each(|line| args.print(line));
    let layout = dir.kv_layout(&limits);
    let context = speeds.iter().filter_map(|line| line["params"]["context"].as_u64()).max().unwrap_or(0) as usize;
    let pages = kv_pages::measure(&dir.config.blueprint, &layout, threads(&limits), context, args.repeat.get())?;
    pages.iter().for_each(|line| args.print(line));
    let bar = progress::steps("serving", 6);
    let hidings = [
        ("all", Hiding::ALL),
        ("without_ahead", Hiding { ahead: false, ..Hiding::ALL }),
        ("without_deferred", Hiding { deferred: false, ..Hiding::ALL }),
        ("without_eager", Hiding { eager: false, ..Hiding::ALL }),
        ("none", Hiding::NONE),
    ];
    let mut lines = vec![serve(&args, &limits, footprint, "steady", &hidings[0], steps)?];
    bar.inc(1);
    lines.push(simulate(&args, &lines[0], block)?);
    for hiding in &hidings {
        lines.push(serve(&args, &limits, footprint, "coming_and_going", hiding, steps.div_ceil(4))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    lines.iter().for_each(|line| args.print(line));
    Ok(())
}

/// Returns the number of steps in which no sequence ends.
fn steps(asked: Option<NonZeroUsize>, dir: &ModelDir) -> Result<u64> {
    let context = dir.config.blueprint.context;
    let most = context.saturating_sub(AROUND_STEPS);
    match asked.map_or(STEPS.min(most), NonZeroUsize::get) {
        0 => bail!(
            "{} has a context of {context} tokens, but sequences that do not end need more than {AROUND_STEPS}",
            dir.name()
        ),
        steps if steps > most => {
            bail!("--steps {steps} is more than the context of {} has room for; give at most {most}", dir.name())
        }
        steps => Ok(steps as u64),
    }
}

/// Returns the speed of both layouts at each context.
fn speeds(args: &KvLayoutArgs, limits: &LimitOptions) -> Result<(Vec<Value>, Block)> {
    let dir = ModelDir::open(args.model.as_deref())?;
    let Runnable { runner, division, streamed, .. } = load_onto(&Processor, &dir, limits, &Surroundings::of_passes())?;
    let Division { needs, plan, batched_tokens, .. } = division;
    let block_size = needs.block_size;
    if streamed.is_some() {
        bail!("{} does not fit into {}; give more --memory", dir.name(), plan.budget.total());
    }
    let room = plan.max_model_len.min(plan.num_blocks * block_size);
    let (chunk, behind) = (CHUNK.min(batched_tokens), args.repeat.get() + 1);
    let fits = |context: &usize| context.saturating_add(behind) <= room;
    if !fits(&chunk) {
        bail!("memory holds {room} tokens, which is too little to measure anything; give more --memory");
    }
    let contexts: BTreeSet<usize> = match &args.context[..] {
        [] => [1024, 8192, 32768].into_iter().map(|context| context.min(room - behind)).collect(),
        asked => asked.iter().map(|context| context.get()).collect(),
    };
    if let Some(context) = contexts.iter().find(|context| !fits(context)) {
        bail!("--context {context} is beyond the {room} tokens that memory holds; give more --memory");
    }
    let longest = contexts.iter().max().map_or(0, |context| (context + args.repeat.get() + 1).div_ceil(block_size));
    let (layout, cpu) = (runner.device.block_groups().trunk().clone(), Cpu::new(threads(limits)));
    let block_bytes = layout.block_bytes();
    let mut paged = KvPool::new(BlockGroups::new(layout, longest)).context("the blocks that are compared with")?;
    paged.blocks_mut().fill(SMALL_NUMBERS);
    let needs = Model::pass_needs(&dir.config.blueprint, batched_tokens, batched_tokens);
    let mut table: Vec<u32> = (0..longest as u32).collect();
    shuffle(&mut table);
    let mut compared = Compared {
        runner,
        other: Box::new(CpuDevice::new(cpu, &needs, paged)?),
        is_mapped: true,
        table,
        vocab: dir.config.blueprint.vocab_size,
    };
    compared.map()?;
    let mut lines = Vec::new();
    let bar = progress::steps("measuring", contexts.len() as u64 * 2);
    for mut context in contexts {
        context = context.max(chunk);
        for (kind, first, tokens, each) in [("decode", context, 1, 1), ("prefill", context - chunk, chunk, 0)] {
            let ([mut paged, mut mapped], mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
            // The first pair only warms up.
            let repeat = if kind == "prefill" { args.repeat.get().min(PREFILLS_MOST) } else { args.repeat.get() };
            for turn in 0..=repeat {
                let position = first + each * turn;
                let [one, other] = compared.in_turns(position, tokens, turn % 2 == 0)?;
                if turn > 0 {
                    paged.push(tokens as f64 / one.as_secs_f64());
                    mapped.push(tokens as f64 / other.as_secs_f64());
                    ratios.push(one.as_secs_f64() / other.as_secs_f64());
                }
            }
            for (layout, rates) in [("paged", &paged), ("virtual", &mapped)] {
                lines.push(json!({
                    "name": format!("kv_layout.{kind}.tokens_per_s"), "value": median(rates.clone()),
                    "params": {"layout": layout, "context": context, "block_size": block_size, "tokens": tokens},
                }));
            }
            lines.push(json!({
                "name": format!("kv_layout.{kind}.virtual_over_paged"), "value": median(ratios),
                "params": {"context": context, "block_size": block_size},
            }));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((lines, Block { tokens: block_size, bytes: block_bytes }))
}

/// The size of a KV block.
struct Block {
    tokens: usize,
    bytes: usize,
}

/// A byte pattern: numbers of any type that consist of this byte are small normal numbers, and none is zero.
const SMALL_NUMBERS: u8 = 0x3c;

/// Two devices with the same blocks: one has them mapped side by side, the other reads them through a table.
struct Compared {
    runner: ModelRunner<Box<dyn Device>>,
    other: Box<dyn Device>,
    /// Whether the runner has the device with mapped blocks now.
    is_mapped: bool,
    table: Vec<u32>,
    vocab: usize,
}

impl Compared {
    /// Maps the blocks of the table side by side in strip 0.
    fn map(&mut self) -> Result<()> {
        for block in 0..self.runner.device.block_groups().num_blocks() as u32 {
            let len = self.runner.device.block_groups().layout_of(block).content_bytes();
            self.runner.device.fill_block(block, 0..len, &mut |bytes| bytes.fill(SMALL_NUMBERS))?;
        }
        for (index, &block) in self.table.iter().enumerate() {
            let to = Mapped::Write(BlockId(block));
            if !StripMemory::change(&mut self.runner, &Mapping { strip: 0, first: index as u32, count: 1, to }) {
                bail!("the system maps no more than {index} blocks; sysctl vm.max_map_count allows more");
            }
        }
        self.runner.pin(0, 0..self.table.len() as u32, 0);
        Ok(())
    }

    /// Returns the times of `tokens` tokens from `position` on, with listed blocks and with mapped ones.
    fn in_turns(&mut self, position: usize, tokens: usize, mapped_first: bool) -> Result<[Duration; 2]> {
        let mut times = [Duration::ZERO; 2];
        for mapped in [mapped_first, !mapped_first] {
            if self.is_mapped != mapped {
                std::mem::swap(&mut self.runner.device, &mut self.other);
                self.is_mapped = mapped;
            }
            times[usize::from(mapped)] = self.pass(position, tokens)?;
        }
        Ok(times)
    }

    fn pass(&mut self, position: usize, tokens: usize) -> Result<Duration> {
        let ids: Vec<u32> = (0..tokens).map(|i| ((position + i) * 7919 % self.vocab) as u32).collect();
        let blocks = match self.is_mapped {
            true => SequenceBlocks::From(self.runner.first_block(0)),
            false => SequenceBlocks::Listed(&self.table),
        };
        let (tokens, logits) = (&ids[..], LogitRows::Last);
        let (first_position, prompt_len, below, groups) = (position, position, 0, &[][..]);
        let batch = BatchSequence { tokens, first_position, prompt_len, below, blocks, groups, logits };
        let began = Instant::now();
        let done = self.runner.forward(&[batch], &mut NothingBelow, &mut |_, logits| {
            std::hint::black_box(&logits);
        });
        done.map_err(anyhow::Error::msg)?;
        Ok(began.elapsed())
    }
}

/// Returns what an engine's passes wait for over `steps` steps.
fn serve(
    args: &KvLayoutArgs,
    limits: &LimitOptions,
    footprint: Footprint,
    load_of: &str,
    (name, hiding): &(&str, Hiding),
    steps: u64,
) -> Result<Value> {
    let sequences = args.sequences.get();
    let mut limits = LimitOptions { hiding: *hiding, max_num_seqs: args.sequences, ..limits.clone() };
    let is_steady = load_of == "steady";
    // Where no sequence may end, a sequence needs room for the tokens of all steps.
    let most = if is_steady { AROUND_STEPS + steps as usize } else { PROMPT_MOST + ANSWER_MOST };
    limits.max_model_len = NonZeroUsize::new(most);
    let waiting = if is_steady { 0 } else { WAITING };
    let opened = Opened { footprint, ..Opened::open(args.model.as_deref())? };
    let loaded = load(opened, &limits, Audience::Nobody, sequences + WAITING)?;
    let handle = loaded.engine.handle();
    let mut random = 1u64;
    let mut request = || {
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let prompt = (0..PROMPT_LEAST + below(PROMPT_MOST - PROMPT_LEAST)).map(|_| below(256) as u32).collect();
        let answer = if is_steady { most - PROMPT_MOST } else { ANSWER_MOST / 4 + below(ANSWER_MOST * 3 / 4) };
        let params = SamplingParams { max_tokens: answer, ignore_eos: true, ..SamplingParams::default() };
        Request { prompt, params, ..Request::default() }
    };
    let mut streams: Vec<EventStream> =
        (0..sequences + waiting).map(|_| handle.submit(request())).collect::<Result<_, _>>()?;
    let mut before: Option<EngineStatus> = None;
    let mut ran = Instant::now();
    loop {
        let status = handle.status();
        match &before {
            None if status.running == sequences && status.steps >= WARM_UP => {
                (before, ran) = (Some(status), Instant::now());
            }
            Some(before) if status.steps >= before.steps + steps => {
                return Ok(summary(load_of, name, before, &status, ran.elapsed()));
            }
            _ => {}
        }
        for stream in &mut streams {
            while let Some(event) = stream.try_next() {
                if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
                    *stream = handle.submit(request())?;
                    break;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns what passes wait for in many steps of the measured load on a virtual clock. The simulated passes take as
/// long as the measured ones.
fn simulate(args: &KvLayoutArgs, steady: &Value, block: Block) -> Result<Value> {
    let pass = Duration::from_secs_f64(steady["step_ms"].as_f64().context("the time of a step")? / 1e3);
    let load = MappedLoad {
        sequences: args.sequences.get(),
        waiting: 0,
        steps: SIMULATED_STEPS,
        block_size: block.tokens,
        block_bytes: block.bytes,
        pass,
        hiding: Hiding::ALL,
    };
    let figures = mapping::serve(&load);
    let each = |count: f64| count / figures.steps as f64;
    let critical = figures.critical.as_secs_f64();
    Ok(json!({
        "name": "kv_layout.service",
        "params": {"load": "simulated", "hiding": "all", "steps": figures.steps},
        "synchronous_maps_per_1000_steps": each(figures.changes_before as f64) * 1e3,
        "maps_beside_per_1000_steps": each(figures.changes_beside as f64) * 1e3,
        "critical_path_us_per_step": each(critical) * 1e6,
        "critical_path_share": critical / figures.time.as_secs_f64(),
        "step_ms": each(figures.time.as_secs_f64()) * 1e3,
    }))
}

/// The number of steps on the virtual clock.
const SIMULATED_STEPS: usize = 10_000;

/// The number of steps, unless the command line gives one.
const STEPS: usize = 1000;

/// The number of steps that run before the figures count.
const WARM_UP: u64 = 60;

/// The number of tokens that a sequence has before and after the steps that count.
const AROUND_STEPS: usize = PROMPT_MOST + WARM_UP as usize + 16;

/// The number of requests that wait in a load in which requests come and go.
const WAITING: usize = 4;

const PROMPT_LEAST: usize = 16;
const PROMPT_MOST: usize = 256;
const ANSWER_MOST: usize = 128;

fn summary(load: &str, hiding: &str, before: &EngineStatus, after: &EngineStatus, took: Duration) -> Value {
    let (old, new) = (before.strips.unwrap_or_default(), after.strips.unwrap_or_default());
    let steps = (after.steps - before.steps) as f64;
    let StripsStatus { mappings, mapped_blocks, listed, .. } = new;
    let spent = (new.time - old.time).as_secs_f64();
    json!({
        "name": "kv_layout.service",
        "params": {"load": load, "hiding": hiding, "steps": steps},
        "synchronous_maps_per_1000_steps": (new.work.changes - old.work.changes) as f64 * 1000.0 / steps,
        "maps_beside_per_1000_steps": (new.work.changes_beside - old.work.changes_beside) as f64 * 1000.0 / steps,
        "critical_path_us_per_step": spent * 1e6 / steps,
        "waited_us_per_step": (new.work.waited - old.work.waited).as_secs_f64() * 1e6 / steps,
        "critical_path_share": spent / took.as_secs_f64(),
        "step_ms": took.as_secs_f64() * 1e3 / steps,
        "mappings": mappings, "mapped_blocks": mapped_blocks, "not_mapped": listed,
        "generated_tokens_per_s": (after.generation_tokens - before.generation_tokens) as f64 / took.as_secs_f64(),
    })
}

impl KvLayoutArgs {
    fn print(&self, line: &Value) {
        if self.json { println!("{line}") } else { print(line) }
    }
}

fn print(line: &Value) {
    let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    let (params, name) = (&line["params"], line["name"].as_str().unwrap_or_default());
    if name == "kv_layout.service" {
        println!(
            "{:<17} {:<17} {:>8.1} maps before, {:>8.1} beside 1000 passes; {:>7.1} us a step, {:>5.2} % of {:.1} ms",
            params["load"].as_str().unwrap_or_default(),
            params["hiding"].as_str().unwrap_or_default(),
            number("synchronous_maps_per_1000_steps"),
            number("maps_beside_per_1000_steps"),
            number("critical_path_us_per_step"),
            100.0 * number("critical_path_share"),
            number("step_ms"),
        );
        return;
    }
    if name == "kv_layout.pages" {
        println!(
            "attention over {:<9} pages of {:>5} KiB ({:>5} tokens): {:>6.2} GB/s, {:>4.1} % empty, {:>6} mappings",
            params["arrangement"].as_str().unwrap_or_default(),
            params["page"].as_u64().unwrap_or(0) >> 10,
            params["block_size"],
            number("attention_bytes_per_s") / 1e9,
            100.0 * number("empty_share"),
            number("mappings"),
        );
        return;
    }
    println!(
        "{name:<38} {:<8} at {:>6} {:>10.3}",
        params["layout"].as_str().unwrap_or_default(),
        params["context"],
        number("value")
    );
}
