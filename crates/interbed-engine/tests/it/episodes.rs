//! Random episodes over tiny models that have the layers of real ones. Whatever memory is short, wherever a prefix
//! comes back from, and whatever fails, requests get the tokens and log-probabilities that they get alone and cold.
//!
//! `INTERBED_EPISODES` says how many episodes each model plays. A failure prints the number of its episode, and
//! `INTERBED_TEST_SEED=<number>` plays that one alone, though threads may take turns in another way. With
//! `INTERBED_EPISODES_MODEL=<path>`, a model from elsewhere plays a few as well.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use interbed_device::{Bytes, Cpu, CpuDevice, KvPool};
use interbed_engine::{
    Attachments, Engine, EngineConfig, EngineStatus, Event, EventStream, ModelRunner, PositionLogprobs, PreemptionMode,
    Recompute, Request, SchedulerConfig, StoreMode, TierBelow, TierPolicy, WeightMemory,
};
use interbed_kernels::{GroupLayout, KvDType, KvLayout};
use interbed_kv::{Gate, Keeps, KvConfig, SwapTrial, TailConfig, TailParts};
use interbed_kv_disk::testing::{FaultRates, FaultySegments};
use interbed_kv_disk::{DiskOptions, DiskTier, RecordShape, SlotRoom};
use interbed_kv_remote::testing::{FaultyStore, StoreFaults};
use interbed_kv_remote::{Patience, RemoteOptions, RemoteTier};
use interbed_model::{KeptGroup, Model, config::ModelConfig, gguf::GgufModel, layers};
use interbed_weights::{Catalog, ResidentWeights};

use crate::disk::dice;
use crate::drafting::{Drafting, Known};
use crate::model::engine_config;
use crate::sim::{assert_idle_and_whole, collect, eventually, greedy};

/// Episodes of each model, unless `INTERBED_EPISODES` says how many.
const EPISODES: u32 = 25;
/// Tokens of the longest prompt, for windows of up to 8 tokens. A model with longer windows gets longer prompts.
const PROMPT: usize = 60;
/// Tokens of the longest answer.
const ANSWER: usize = 16;
/// Prompts are longer by this share of the longest window.
const OF_WINDOW: usize = 32;
/// A disk that is faster than any computation, so that sequences are swapped out.
const QUICK: SwapTrial = SwapTrial { bytes: 1 << 20, write_seconds: 1e-9, read_seconds: 1e-9 };

/// The tokens of an answer, each with its log-probability and the most likely ones.
type Answer = Vec<(u32, PositionLogprobs)>;

/// A model, and what it answers to prompts that it is asked alone, without anything that is kept from before.
struct Subject {
    name: String,
    catalog: Catalog,
    config: ModelConfig,
    /// Prompts are so many times as long as those of a model with short windows.
    stretch: usize,
    alone: Option<Engine>,
    answers: HashMap<Vec<u32>, Answer>,
    known: Arc<Known>,
}

/// The memory and the passes of an engine.
#[derive(Debug, Clone, Copy)]
struct Shape {
    blocks: usize,
    block_size: usize,
    sequences: usize,
    batched_tokens: usize,
    preemption: PreemptionMode,
    swap_blocks: usize,
    prefix_caching: bool,
    threads: usize,
    /// The most tokens that are guessed ahead at a time.
    drafts: usize,
}

/// How often what an episode is about has happened.
#[derive(Debug, Default)]
struct Counts {
    tokens: u64,
    hit_tokens: u64,
    forks: u64,
    preemptions: u64,
    swaps: u64,
    swapped_in_blocks: u64,
    from_disk: u64,
    from_disk_after_kill: u64,
    from_store: u64,
    fetches_cut: u64,
    faults_of_disk: u64,
    faults_of_store: u64,
    kills: u64,
    drafts_right: u64,
    drafts_wrong: u64,
}

impl Counts {
    fn add(&mut self, status: &EngineStatus, is_after_kill: bool) {
        let fetched = |name: &str| status.tier(name).map_or(0, |tier| tier.fetched_tokens);
        self.tokens += status.generation_tokens;
        self.hit_tokens += status.kv.prefix_hit_tokens;
        self.forks += status.kv.forks;
        self.preemptions += status.preemptions;
        self.swaps += status.preemptions_swap;
        self.swapped_in_blocks += status.kv.swapped_in_blocks;
        self.from_disk += fetched("disk");
        self.from_disk_after_kill += if is_after_kill { fetched("disk") } else { 0 };
        self.from_store += fetched("remote");
        self.fetches_cut += status.tiers.iter().map(|tier| tier.fetches_cut).sum::<u64>();
        self.faults_of_store += status.tier("remote").map_or(0, |tier| {
            let store = &tier.store;
            store.wrong_objects + store.read_errors + store.write_errors + store.slow_fetches
        });
    }
}

impl Subject {
    fn fixture(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures").join(name);
        Self::open(name, &dir)
    }

    fn open(name: &str, path: &Path) -> Self {
        let catalog = Catalog::open(path).unwrap();
        let config = match GgufModel::of(&catalog) {
            Some(gguf) => gguf.config().unwrap(),
            None => ModelConfig::from_dir(path).unwrap(),
        };
        let kept = Model::groups_of(&config.blueprint);
        let windows = kept.groups().iter().filter_map(|group| match group {
            KeptGroup::Kv { window, .. } => *window,
            KeptGroup::States(_) => None,
        });
        let stretch = (windows.max().unwrap_or(0) / OF_WINDOW).max(1);
        let (name, answers) = (name.to_owned(), HashMap::new());
        let mut subject = Self { name, catalog, config, stretch, alone: None, answers, known: Arc::default() };
        let ample = Shape {
            blocks: 0,
            block_size: 4,
            sequences: 1,
            batched_tokens: subject.longest_prompt(),
            preemption: PreemptionMode::Recompute,
            swap_blocks: 0,
            prefix_caching: false,
            threads: 1,
            drafts: 0,
        };
        let ample = Shape { blocks: 2 * subject.blocks_of_longest(ample), ..ample };
        subject.alone = Some(subject.start(ample, Vec::new()));
        subject
    }

    fn longest_prompt(&self) -> usize {
        self.stretch * PROMPT
    }

    fn longest(&self) -> usize {
        self.longest_prompt() + ANSWER
    }

    fn trunk(&self, block_size: usize) -> KvLayout {
        match Model::groups_of(&self.config.blueprint).groups()[0].layout(block_size, KvDType::F32) {
            GroupLayout::Kv(layout) => layout,
            GroupLayout::States(_) => unreachable!("the trunk is first"),
        }
    }

    /// What layers keep beside the KV of all tokens.
    fn tails(&self, block_size: usize) -> Vec<TailConfig> {
        let (kept, trunk) = (Model::groups_of(&self.config.blueprint), self.trunk(block_size));
        let tail = |group: &KeptGroup| {
            let keeps = match group {
                KeptGroup::Kv { window, .. } => Keeps::Window { tokens: window.unwrap() },
                KeptGroup::States(_) => Keeps::State,
            };
            let layout = group.layout(block_size, KvDType::F32);
            let parts = layout.content_bytes().div_ceil(trunk.content_bytes()) as u32;
            TailConfig { keeps, block_bytes: layout.block_bytes(), parts }
        };
        let tails: Vec<_> = kept.groups().iter().skip(1).map(tail).collect();
        assert!(!tails.is_empty(), "{} keeps something beside the KV of all tokens", self.name);
        tails
    }

    /// Blocks that take the memory of what a sequence keeps beside the KV of all its tokens.
    fn blocks_beside(&self, shape: Shape) -> usize {
        let bytes = |tail: &TailConfig| match tail.keeps {
            Keeps::Window { tokens } => {
                let most =
                    (tokens - 1).div_ceil(shape.block_size) + shape.batched_tokens.div_ceil(shape.block_size) + 1;
                most.min(self.longest().div_ceil(shape.block_size)) * tail.block_bytes
            }
            Keeps::State => 2 * tail.block_bytes,
        };
        let bytes: usize = self.tails(shape.block_size).iter().map(bytes).sum();
        bytes.div_ceil(self.trunk(shape.block_size).block_bytes())
    }

    /// Blocks that take all the memory that the longest sequence needs.
    fn blocks_of_longest(&self, shape: Shape) -> usize {
        self.longest().div_ceil(shape.block_size) + 2 + self.blocks_beside(shape)
    }

    fn engine_config(&self, shape: Shape) -> EngineConfig {
        let scheduler = SchedulerConfig {
            max_num_seqs: shape.sequences,
            max_num_batched_tokens: shape.batched_tokens,
            preemption: shape.preemption,
            max_token_gap: None,
        };
        let kv = KvConfig {
            num_blocks: shape.blocks,
            block_size: shape.block_size,
            prefix_caching: shape.prefix_caching,
            num_swap_blocks: shape.swap_blocks,
            seed: 5,
            tails: self.tails(shape.block_size),
            block_bytes: self.trunk(shape.block_size).block_bytes(),
            pass_tokens: shape.batched_tokens,
            ..KvConfig::default()
        };
        let mut config = engine_config(&self.config, scheduler, kv);
        (config.limits.max_model_len, config.limits.kv_blocks_beside) = (self.longest(), self.blocks_beside(shape));
        config.check_invariants = true;
        config
    }

    fn start(&self, shape: Shape, below: Vec<TierBelow>) -> Engine {
        let (blueprint, trunk) = (&self.config.blueprint, self.trunk(shape.block_size));
        let (kept, bytes) = (Model::groups_of(blueprint), shape.blocks * trunk.block_bytes());
        let layouts = kept.groups().iter().map(|group| group.layout(shape.block_size, KvDType::F32));
        let counts: Vec<_> = layouts.map(|layout| bytes / layout.block_bytes()).collect();
        let pool = KvPool::new_sparse(kept.blocks(shape.block_size, KvDType::F32, &counts)).unwrap();
        let needs = Model::pass_needs(blueprint, shape.batched_tokens, shape.batched_tokens);
        let device = CpuDevice::new(Cpu::new(NonZeroUsize::new(shape.threads).unwrap()), &needs, pool).unwrap();
        let weights = ResidentWeights::load(&self.catalog, &layers::group_specs(blueprint), &mut |_, _| ()).unwrap();
        let memory = WeightMemory::resident(Bytes(weights.bytes()));
        let runner = ModelRunner::new(device, blueprint.clone(), Box::new(weights), memory);
        let runner = Drafting::new(runner, &self.known, shape.drafts);
        let attachments = Attachments { below, ..Attachments::default() };
        Engine::start_with(self.engine_config(shape), Box::new(runner), attachments).unwrap()
    }

    /// A few prompts, all of which begin alike. Some are the beginning of others.
    fn prompt(&self, seed: u32, length: usize) -> Vec<u32> {
        let (apart, alike) = (self.config.blueprint.vocab_size as u32 / 64, 11 * self.stretch as u32);
        let token = |i: u32| (if i < alike { i * 5 } else { seed * 31 + i * i * 7 + i }) % 60 + 2;
        (0..(length * self.stretch) as u32).map(|i| token(i) * apart).collect()
    }

    /// What the model answers to a prompt that it is asked alone and cold.
    fn answer(&mut self, prompt: &[u32]) -> &Answer {
        if !self.answers.contains_key(prompt) {
            let mut request = greedy(prompt.to_vec(), ANSWER);
            request.params.logprobs = Some(2);
            let mut stream = self.alone.as_ref().expect("it has started").handle().submit(request).unwrap();
            let mut answer = Vec::new();
            while let Some(event) = stream.blocking_next() {
                match event {
                    Event::Token { id, logprobs } => answer.push((id, logprobs.unwrap())),
                    Event::PromptDone(done) => assert_eq!(done.cached_tokens, 0),
                    Event::Preempted { .. } | Event::Embedding(_) => panic!("it is alone"),
                    Event::Failed(error) => panic!("{error}"),
                    Event::Finished { .. } => {}
                }
            }
            assert_eq!(answer.len(), ANSWER);
            let tokens: Vec<_> = answer.iter().map(|(token, _)| *token).collect();
            self.known.sequences.lock().unwrap().push([prompt, &tokens].concat());
            self.answers.insert(prompt.to_vec(), answer);
        }
        &self.answers[prompt]
    }
}

/// The number of an episode, which is printed if the episode fails.
struct Seed(u32);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was INTERBED_TEST_SEED={}", self.0);
        }
    }
}

/// One model's engines, one after another, over what is left of the tiers of those before.
struct Episode<'a, R> {
    subject: &'a mut Subject,
    random: R,
    counts: &'a mut Counts,
    block_size: usize,
    /// What was asked for in this episode.
    asked: Vec<Vec<u32>>,
    space: Option<Arc<FaultySegments>>,
    store: Option<FaultyStore>,
    mode: StoreMode,
    has_faults: bool,
}

/// A stream, and the answer to its prompt.
struct Expected {
    stream: EventStream,
    prompt: Vec<u32>,
    answer: Answer,
}

impl<R: FnMut(u32) -> u32> Episode<'_, R> {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.random)(all.len() as u32) as usize]
    }

    fn play(&mut self) {
        let lives = 2 + (self.random)(2);
        let mut was_killed = false;
        for _ in 0..lives {
            let shape = self.shape();
            let below = self.tiers(shape);
            let engine = self.subject.start(shape, below);
            if (self.random)(4) > 0 {
                // Answers are expected to be short, so that more is admitted than can grow.
                let streams: Vec<_> = (0..30).map(|_| engine.handle().submit(greedy(vec![1], 1)).unwrap()).collect();
                streams.into_iter().for_each(|stream| drop(collect(stream)));
            }
            for _ in 0..2 {
                self.set_faults();
                let streams = self.ask(&engine, shape);
                streams.into_iter().for_each(|expected| self.check(expected));
            }
            was_killed = self.end(engine, shape, was_killed);
        }
    }

    /// Little memory, of which the longest sequence needs much or all, and small passes.
    fn shape(&mut self) -> Shape {
        let sequences = 2 + (self.random)(7) as usize;
        let batched_tokens = sequences + self.subject.stretch * self.one_of(&[0, 1, 5, 13, 29, 60]);
        let swaps = self.space.is_some() && (self.random)(3) > 0;
        let shape = Shape {
            blocks: 0,
            block_size: self.block_size,
            sequences,
            batched_tokens,
            preemption: match swaps {
                true => self.one_of(&[PreemptionMode::Swap, PreemptionMode::Swap, PreemptionMode::Auto]),
                false => PreemptionMode::Recompute,
            },
            swap_blocks: 0,
            prefix_caching: true,
            threads: self.one_of(&[1, 1, 2]),
            drafts: self.one_of(&[0, 0, 2, 5]),
        };
        let least = self.subject.blocks_of_longest(shape);
        let most = self.one_of(&[1, 5, (least as u32 * 2 / 3).max(1)]);
        let blocks = least + (self.random)(most) as usize;
        Shape { blocks, swap_blocks: if swaps { 2 * blocks } else { 0 }, ..shape }
    }

    fn tiers(&mut self, shape: Shape) -> Vec<TierBelow> {
        let trunk = self.subject.trunk(shape.block_size);
        let shared = self.store.clone().map(|store| {
            let options = RemoteOptions {
                buffer_bytes: 512 * trunk.content_bytes(),
                writes_per_day: None,
                ttl: None,
                patience: Patience::Fixed(Duration::from_millis(20)),
                gate: Gate::new(0.0),
            };
            let of_block = (shape.block_size, trunk.content_bytes());
            let tier = RemoteTier::open(Arc::new(store), [1; 32], [2; 32], of_block, options).unwrap();
            TierBelow { tier: Box::new(tier), policy: TierPolicy::SHARED }
        });
        let disk = self.space.clone().map(|space| {
            let bytes = 1024 * trunk.content_bytes() as u64 + (32 << 20);
            let options = DiskOptions {
                bytes,
                buffer_bytes: 0,
                writes_per_day: None,
                ttl: None,
                gate: Gate::new(0.0),
                frames: (0, 0),
                names: shared.as_ref().map(|shared| shared.tier.key_chain().clone()),
                turns: Arc::default(),
                slots: SlotRoom { num_slots: shape.swap_blocks, bytes: Some(bytes / 2), trial: QUICK },
            };
            let tails = self.subject.tails(shape.block_size);
            let layers = (0..trunk.num_layers()).map(|index| trunk.layer(index).part_bytes()).collect();
            let records = RecordShape::new(shape.block_size, layers)
                .with_stored_together(TailParts::most(&tails, shape.block_size));
            let tier = DiskTier::open(space, [8; 32], [9; 32], records, options).unwrap();
            let recompute = Recompute::Share([0.0, 0.0, 0.0, 0.4][(self.random)(4) as usize]);
            let idle_after = Some(Duration::from_millis(5));
            let policy = TierPolicy { mode: self.mode, recompute, idle_after, drops_fresh: false };
            TierBelow { tier: Box::new(tier), policy }
        });
        disk.into_iter().chain(shared).collect()
    }

    fn set_faults(&mut self) {
        let has_faults = self.has_faults;
        let mut rate = |most: u32| if !has_faults || (self.random)(2) == 0 { 0 } else { (self.random)(most) };
        if let Some(space) = &self.space {
            space.set_rates(FaultRates {
                read_error: rate(500),
                read_flip: rate(500),
                write_error: rate(100),
                write_torn: rate(500),
                write_flip: rate(500),
                create_error: rate(500),
                sync_error: rate(100),
            });
        }
        if let Some(store) = &self.store {
            store.set_faults(StoreFaults {
                // After an error the store is left alone, and nothing is tried.
                read_error: rate(20),
                read_flip: rate(200),
                read_other: rate(200),
                read_silent: rate(4),
                reads_answered: None,
                write_silent: 0,
                write_error: rate(20),
                write_panic: 0,
                write_torn: rate(200),
                forgotten: rate(200),
                delay: Duration::from_micros(rate(300).into()),
            });
        }
    }

    /// Asks for several things at once.
    fn ask(&mut self, engine: &Engine, shape: Shape) -> Vec<Expected> {
        let mut streams = Vec::new();
        for _ in 0..4 + (self.random)(5) {
            let prompt = self.next_prompt();
            let mut request = greedy(prompt.clone(), self.one_of(&[1, 5, 9, ANSWER]));
            let has_logprobs = (self.random)(4) > 0;
            request.params.logprobs = has_logprobs.then_some(2);
            let answer = self.subject.answer(&prompt)[..request.params.max_tokens].to_vec();
            let count = self.one_of(&[1, 1, 1, 2, 3]).min(shape.sequences);
            let several = self.submit(engine, request, count);
            streams.extend(several.into_iter().map(|stream| Expected {
                stream,
                prompt: prompt.clone(),
                answer: answer.clone(),
            }));
        }
        streams
    }

    fn submit(&mut self, engine: &Engine, request: Request, count: usize) -> Vec<EventStream> {
        let mut streams = engine.handle().submit_many(request, count).unwrap();
        // Some clients go away at once.
        if (self.random)(7) == 0 {
            streams.pop();
        }
        streams
    }

    /// A prompt that was asked for before, one that goes on behind its answer, or another.
    fn next_prompt(&mut self) -> Vec<u32> {
        let known = match self.asked.len() {
            0 => None,
            count => Some(self.asked[(self.random)(count as u32) as usize].clone()),
        };
        let prompt = match ((self.random)(3), known) {
            (0, Some(known)) => known,
            (1, Some(known)) => {
                let count = self.one_of(&[5, 9]);
                let answer: Vec<_> = self.subject.answer(&known)[..count].iter().map(|(token, _)| *token).collect();
                let mut next = [known, answer].concat();
                next.extend(self.subject.prompt(7, 4));
                next
            }
            _ => {
                let (seed, length) = ((self.random)(4), self.one_of(&[9, 16, 23, 37]));
                self.subject.prompt(seed, length)
            }
        };
        if prompt.len() > self.subject.longest_prompt() {
            return self.next_prompt();
        }
        self.asked.push(prompt.clone());
        prompt
    }

    /// Reads a stream, whose tokens must be those of the answer. Some clients go away before the end.
    fn check(&mut self, Expected { mut stream, prompt, answer }: Expected) {
        let last = if (self.random)(8) == 0 { (self.random)(ANSWER as u32) as usize } else { ANSWER };
        let mut count = 0;
        while let Some(event) = stream.blocking_next() {
            match event {
                Event::Token { id, logprobs } => {
                    let (token, expected) = &answer[count];
                    let got = (id, logprobs.as_ref().unwrap_or(expected));
                    assert_eq!(got, (*token, expected), "{}, token {count} after {prompt:?}", self.subject.name);
                    count += 1;
                }
                Event::Failed(error) => panic!("{}: {error}", self.subject.name),
                Event::PromptDone(_) | Event::Preempted { .. } => {}
                Event::Embedding(_) => panic!("nobody asked for it"),
                Event::Finished { .. } => assert_eq!(count, answer.len()),
            }
            if count > last {
                return;
            }
        }
    }

    /// Stops the engine, or kills it in the middle of its work, and leaves what is left of its disk. Returns whether it
    /// was killed.
    fn end(&mut self, engine: Engine, shape: Shape, was_killed: bool) -> bool {
        let is_killed = (self.random)(2) == 0;
        let streams = if is_killed { self.ask(&engine, shape) } else { Vec::new() };
        if is_killed && (self.random)(3) == 0 {
            eventually(&engine, "all that waits is stored", |status| {
                status.tiers.iter().all(|tier| tier.store.queued_blocks == 0)
            });
        }
        if !is_killed {
            self.space.iter().for_each(|space| space.set_rates(FaultRates::default()));
            assert_idle_and_whole(&engine);
        }
        self.counts.add(&engine.handle().status(), was_killed);
        self.counts.kills += u64::from(is_killed);
        self.counts.faults_of_disk += self.space.as_ref().map_or(0, |space| space.injected());
        let killed = self.space.as_ref().filter(|_| is_killed).map(|space| space.after_power_failure());
        drop(streams);
        drop(engine);
        let stopped = || self.space.as_ref().map(|space| space.after_power_failure());
        self.space = killed.or_else(stopped).map(Arc::new);
        is_killed
    }
}

fn play(subject: &mut Subject, seed: u32, counts: &mut Counts) {
    let _seed = Seed(seed);
    let mut random = dice(seed);
    let block_size = [1, 2, 4, 8, 16][random(5) as usize] * subject.stretch.min(4);
    let (has_disk, has_store) = [(true, false), (true, false), (false, true), (true, true)][random(4) as usize];
    let mode = [StoreMode::Evict, StoreMode::Eager, StoreMode::Mirror][random(3) as usize];
    let has_faults = random(3) > 0;
    let mut episode = Episode {
        subject,
        random,
        counts,
        block_size,
        asked: Vec::new(),
        space: has_disk.then(|| Arc::new(FaultySegments::new(seed.into()))),
        store: has_store.then(|| FaultyStore::new(seed.into())),
        mode,
        has_faults,
    };
    episode.play();
}

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok().map(|number| number.parse().expect("a number"))
}

/// Plays episodes, in all of which something of everything must have happened.
fn play_all(mut subject: Subject, episodes: u32) {
    let mut counts = Counts::default();
    if let Some(seed) = number("INTERBED_TEST_SEED") {
        return play(&mut subject, seed, &mut counts);
    }
    let began = std::time::Instant::now();
    (0..episodes).for_each(|seed| play(&mut subject, seed, &mut counts));
    let Known { right, wrong, .. } = &*subject.known;
    (counts.drafts_right, counts.drafts_wrong) = (right.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed));
    println!("{}, {episodes} episodes in {:.1?}: {counts:?}", subject.name, began.elapsed());
    let Counts { hit_tokens, forks, preemptions, swaps, swapped_in_blocks, from_disk, from_store, .. } = counts;
    let all = [hit_tokens, forks, preemptions, swaps, swapped_in_blocks, from_disk, from_store, counts.fetches_cut];
    let of_tiers = [counts.from_disk_after_kill, counts.faults_of_disk, counts.faults_of_store, counts.kills];
    let drafts = [counts.drafts_right, counts.drafts_wrong];
    assert!(all.iter().chain(&of_tiers).chain(&drafts).all(|&count| count > 0), "{}: {counts:?}", subject.name);
}

fn play_fixture(name: &str) {
    play_all(Subject::fixture(name), number("INTERBED_EPISODES").unwrap_or(EPISODES));
}

#[test]
fn windows_beside_sinks() {
    play_fixture("gpt_oss");
}

#[test]
fn windows_in_two_layers_of_three() {
    play_fixture("olmo3");
}

#[test]
fn windows_in_five_layers_of_six() {
    play_fixture("gemma3");
}

#[test]
fn states_in_three_layers_of_four() {
    play_fixture("qwen3_5");
}

#[test]
fn states_beside_experts() {
    play_fixture("qwen3_5_moe");
}

#[test]
fn states_whose_inputs_are_grouped() {
    play_fixture("qwen3_next");
}

#[test]
fn states_of_a_few_rows() {
    play_fixture("lfm2");
}

#[test]
fn states_of_a_few_rows_beside_experts() {
    play_fixture("lfm2_moe");
}

#[test]
fn keys_and_values_of_earlier_layers() {
    play_fixture("gemma4");
}

#[test]
fn state_spaces_in_four_layers_of_five() {
    play_fixture("granite_4_h");
}

#[test]
fn state_spaces_and_experts_in_layers_of_their_own() {
    play_fixture("nemotron_h_moe");
}

#[test]
fn a_model_from_elsewhere() {
    let Some(path) = std::env::var_os("INTERBED_EPISODES_MODEL") else {
        return eprintln!("left out: INTERBED_EPISODES_MODEL names no model");
    };
    let subject = Subject::open(&path.to_string_lossy(), Path::new(&path));
    play_all(subject, number("INTERBED_EPISODES").unwrap_or(EPISODES));
}
