//! A simulated model. Its "KV" of a token is a fingerprint of all tokens up to it, computed from the fingerprint that
//! it finds in the block table's slot before. A wrong block anywhere therefore changes every token that follows.

#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/strips.rs"]
mod strips;
#[path = "sim/swap.rs"]
mod swap;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use interbed_engine::{
    Attachments, Drafter, Engine, EngineConfig, EngineStatus, Event, EventStream, FinishReason, KvStats, Limits, Miss,
    PassError, PreemptionMode, PromptDone, Request, Runner, SamplingParams, SchedulerConfig, ShownWeights, StripMemory,
    TierBelow,
};
use interbed_kernels::STRETCH;
use interbed_kv::{BlockBytes, BlockCopy, BlockPart, Keeps, KvConfig, TailConfig};
use interbed_model::{BatchSequence, FrameId, GroupBlocks, KvBelow, KvLost, LogitRow, LogitRows, Logits};
use interbed_weights::StreamMonitor;
use memory::{BLOCK_BYTES, SimMemory};
use strips::SimStrips;
use swap::SimSwap;

pub const VOCAB: usize = 50;
/// Ends a sequence, unless `ignore_eos`.
pub const EOS: u32 = 0;

/// Controls and counters of a [`SimRunner`], shared with the test.
#[derive(Default)]
pub struct Controls {
    /// The next pass fails.
    pub fail_next: AtomicBool,
    /// The next pass gives logits that are no numbers.
    pub nan_next: AtomicBool,
    /// The next pass panics.
    pub panic_next: AtomicBool,
    pub passes: AtomicU64,
    pub tokens_computed: AtomicU64,
    pub largest_batch: AtomicUsize,
    pub blocks_copied: AtomicUsize,
    /// Times that an idle engine has shown its state: it shows its weights too then.
    pub shown: AtomicU64,
    /// Frames of KV below memory.
    pub frames_read: AtomicUsize,
    /// One in this many swaps fails; 0 for none.
    pub fail_every_swap: AtomicU64,
    /// Slots fewer than any number that swap space has.
    pub swap_slots_missing: AtomicUsize,
    /// Swaps end only when this is false.
    pub hold_swaps: AtomicBool,
    /// Tokens that are guessed ahead at a time, some of them wrongly; 0 for none.
    pub drafts: AtomicUsize,
    /// All of them are right for a greedy sequence.
    pub drafts_well: AtomicBool,
    /// Passes that may still run; `None` is any number. A pass that has none left waits.
    gate: Mutex<Option<u64>>,
    opened: Condvar,
}

impl Controls {
    pub fn close_gate(&self) {
        *self.gate.lock().unwrap() = Some(0);
    }

    pub fn allow(&self, passes: u64) {
        *self.gate.lock().unwrap() = Some(passes);
        self.opened.notify_all();
    }

    pub fn open_gate(&self) {
        *self.gate.lock().unwrap() = None;
        self.opened.notify_all();
    }
}

/// Longest wait at a closed gate: a test that fails while it is closed drops its engine, which waits for the pass.
const GATE_WAIT: Duration = Duration::from_secs(120);

/// What lies in each slot of each block.
type Slots = HashMap<(u32, usize), u64>;

pub struct SimRunner {
    block_size: usize,
    slots: Slots,
    /// What further layers keep, which add nothing to what the first ones compute unless they read something wrong.
    tails: &'static [TailConfig],
    /// The memory that all blocks share, if layers keep tails.
    memory: Option<SimMemory>,
    strips: Option<SimStrips>,
    controls: Arc<Controls>,
}

impl SimRunner {
    pub fn new(block_size: usize) -> (Self, Arc<Controls>) {
        let controls = Arc::new(Controls::default());
        let strips = crate::IN_STRIPS.then(SimStrips::default);
        let (slots, memory) = (HashMap::new(), None);
        (Self { block_size, slots, tails: &[], memory, strips, controls: controls.clone() }, controls)
    }

    /// Lets further layers keep the tails of `shape`, in the memory of its blocks. They are in no strips.
    pub fn with_tails(self, Shape { tails, blocks, .. }: Shape) -> Self {
        match tails.is_empty() {
            true => self,
            false => Self { tails, memory: Some(SimMemory::new(blocks, tails)), ..self },
        }
    }

    /// Asserts that a block, which is to be used, has memory.
    fn check(&self, block: u32) {
        self.memory.iter().for_each(|memory| memory.check(block));
    }

    /// Returns in how many parts tiers keep a block.
    fn parts_of(&self, block: u32) -> usize {
        let group = self.memory.as_ref().and_then(|memory| memory.group(block).checked_sub(1));
        group.map_or(1, |group| self.tails[group].parts as usize)
    }

    /// Drops what these blocks hold: reading it is a panic from then on.
    pub fn forget(&mut self, blocks: &[u32]) {
        self.slots.retain(|(block, _), _| !blocks.contains(block));
    }

    /// Blocks below which lies all that was written and not forgotten.
    pub fn blocks_reached(&self) -> usize {
        self.slots.keys().map(|(block, _)| *block as usize + 1).max().unwrap_or(0)
    }

    /// Blocks that were written to and not forgotten.
    pub fn blocks_written(&self) -> usize {
        self.slots.keys().map(|(block, _)| block).collect::<HashSet<_>>().len()
    }
}

/// The fingerprint of a sequence that ends in `token`.
fn extend(before: u64, token: u32) -> u64 {
    let mixed = (before ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// The logits after a sequence with this fingerprint.
pub fn logits_of(fingerprint: u64) -> Vec<f32> {
    (0..VOCAB as u32).map(|token| (extend(fingerprint, token) >> 40) as f32 / 1e6).collect()
}

/// The fingerprint of a whole sequence.
pub fn fingerprint(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0, |before, &token| extend(before, token))
}

/// The most likely token, and among equals the lowest.
fn most_likely(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// What greedy generation must give, computed without any engine.
pub fn expected_greedy(prompt: &[u32], params: &SamplingParams) -> Vec<u32> {
    let mut fingerprint = fingerprint(prompt);
    let mut output = Vec::new();
    while output.len() < params.max_tokens {
        let mut logits = logits_of(fingerprint);
        if output.len() < params.min_tokens {
            logits[EOS as usize] = f32::NEG_INFINITY;
        }
        let best = most_likely(&logits);
        output.push(best);
        if best == EOS && !params.ignore_eos {
            break;
        }
        fingerprint = extend(fingerprint, best);
    }
    output
}

/// What the layers that keep `tails` find in `slots` for the token at `position`: 0 unless anything is wrong. `before`
/// is the fingerprint of the tokens before the token, and `in_trunk` says what the first layers have at a position.
fn errors(
    (slots, block_size): (&Slots, usize),
    tails: &[TailConfig],
    sequence: &BatchSequence<'_>,
    (position, before): (usize, u64),
    in_trunk: impl Fn(usize) -> Option<u64>,
) -> u64 {
    assert_eq!(sequence.groups.len(), tails.len());
    let find = |block: u32, slot: usize| slots.get(&(block, slot)).copied();
    let of_group = |(group, tail): &(&GroupBlocks<'_>, &TailConfig)| match (group, tail.keeps) {
        (GroupBlocks::Window { first, blocks }, Keeps::Window { tokens }) => {
            let mut seen = (position + 1).saturating_sub(tokens)..position;
            let in_window = |at: usize| find(blocks.number((at - first) / block_size), at % block_size);
            seen.any(|at| in_window(at) != in_trunk(at))
        }
        (GroupBlocks::State { from, .. }, Keeps::State) if position == sequence.first_position => {
            from.map_or(0, |from| find(from, 0).unwrap_or(u64::MAX)) != before
        }
        (GroupBlocks::State { .. }, Keeps::State) => false,
        _ => panic!("a group is given what another keeps"),
    };
    sequence.groups.iter().zip(tails).filter(of_group).count() as u64
}

/// Where the layers with tails keep what they need of the token at `position`: blocks, with their slots.
fn kept<'a>(
    sequence: &'a BatchSequence<'_>,
    position: usize,
    block_size: usize,
) -> impl Iterator<Item = (u32, usize)> + use<'a> {
    let end = sequence.first_position + sequence.tokens.len();
    sequence.groups.iter().filter_map(move |group| match group {
        GroupBlocks::Window { first, blocks } => {
            Some((blocks.number((position - first) / block_size), position % block_size))
        }
        GroupBlocks::State { to, tokens_behind, .. } => (position < end - tokens_behind).then_some((*to, 0)),
    })
}

/// Of each fingerprint that was ever computed, by any runner: the one before it.
static BEFORE: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

impl SimRunner {
    /// The fingerprints below memory of each sequence. All that is below is read, and must be one chain.
    fn read_below(&self, batch: &[BatchSequence<'_>], below: &mut dyn KvBelow) -> Result<Vec<Vec<u64>>, KvLost> {
        let stretches = |sequence: usize| 0..batch[sequence].below / STRETCH;
        // The first half of each block is one layer, the second the other.
        let mut frames = Vec::new();
        for layer in 0..2 {
            for sequence in 0..batch.len() {
                frames.extend(stretches(sequence).map(|stretch| FrameId { sequence, layer, stretch }));
            }
        }
        below.begin(&frames);
        let mut chains: Vec<Vec<u64>> = batch.iter().map(|sequence| vec![0; sequence.below]).collect();
        let half = self.block_size / 2;
        for FrameId { sequence, layer, stretch } in frames {
            let frame = below.next()?;
            assert_eq!(frame.bytes().len(), STRETCH / 2 * SLOT_BYTES);
            for (slot, bytes) in frame.bytes().chunks_exact(SLOT_BYTES).enumerate() {
                let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                assert_eq!(number(0), 1, "nothing was ever written there");
                let position = stretch * STRETCH + slot / half * self.block_size + layer * half + slot % half;
                chains[sequence][position] = number(8);
            }
        }
        let known = BEFORE.lock().unwrap();
        for chain in &chains {
            let links = std::iter::once(&0).chain(chain).zip(chain);
            links.for_each(|(before, at)| assert_eq!(known.get(at), Some(before), "what is below is no sequence"));
        }
        self.controls
            .frames_read
            .fetch_add(chains.iter().map(|chain| 2 * chain.len() / STRETCH).sum(), Ordering::Relaxed);
        Ok(chains)
    }

    /// Leaves states as a pass does that is given up: those that it writes are of no use.
    fn give_up(&mut self, batch: &[BatchSequence<'_>]) {
        for group in batch.iter().flat_map(|sequence| sequence.groups) {
            if let GroupBlocks::State { to, .. } = group {
                self.slots.insert((*to, 0), u64::MAX);
            }
        }
    }
}

impl Runner for SimRunner {
    fn forward(
        &mut self,
        batch: &[BatchSequence<'_>],
        below: &mut dyn KvBelow,
        sink: &mut dyn FnMut(LogitRow, Logits<'_>),
    ) -> Result<(), PassError> {
        let permits = self.controls.gate.lock().unwrap();
        let (mut permits, waited) =
            self.controls.opened.wait_timeout_while(permits, GATE_WAIT, |permits| *permits == Some(0)).unwrap();
        assert!(!waited.timed_out(), "nobody opened the gate: the test has failed");
        *permits = permits.map(|left| left - 1);
        drop(permits);
        self.controls.passes.fetch_add(1, Ordering::Relaxed);
        self.controls.largest_batch.fetch_max(batch.len(), Ordering::Relaxed);
        let below = self.read_below(batch, below).inspect_err(|_| self.give_up(batch))?;
        let (block_size, strips) = (self.block_size, self.strips.as_ref());
        let place = |sequence: &BatchSequence<'_>, position: usize, to_write: bool| {
            let position = position - sequence.below;
            let number = sequence.blocks.number(position / block_size);
            (strips.map_or(number, |strips| strips.block(number, to_write)), position % block_size)
        };
        let at = |sequence: &BatchSequence<'_>, position: usize| place(sequence, position, false);
        // As a real pass does, write all KV first: a failed pass leaves it half done.
        for (sequence, below) in batch.iter().zip(&below) {
            let mut known = BEFORE.lock().unwrap();
            for (i, &token) in sequence.tokens.iter().enumerate() {
                let position = sequence.first_position + i;
                let before = match position {
                    0 => 0,
                    position if position == sequence.below => below[position - 1],
                    position => self.slots[&at(sequence, position - 1)],
                };
                let in_trunk = |position| match below.get(position) {
                    Some(&below) => Some(below),
                    None => self.slots.get(&at(sequence, position)).copied(),
                };
                let of_tails = (&self.slots, block_size);
                let wrong = errors(of_tails, self.tails, sequence, (position, before), in_trunk);
                let fingerprint = extend(before, token) ^ wrong;
                known.insert(fingerprint, before);
                for to in kept(sequence, position, block_size).chain([place(sequence, position, true)]) {
                    self.check(to.0);
                    self.slots.insert(to, fingerprint);
                }
                self.controls.tokens_computed.fetch_add(1, Ordering::Relaxed);
            }
            drop(known);
            if self.controls.fail_next.swap(false, Ordering::Relaxed) {
                return Err(PassError::Failed("the disk is on fire".into()));
            }
            assert!(!self.controls.panic_next.swap(false, Ordering::Relaxed), "a bug, on purpose");
        }
        let is_nan = self.controls.nan_next.swap(false, Ordering::Relaxed);
        for (index, sequence) in batch.iter().enumerate() {
            let count = sequence.tokens.len();
            for token in sequence.logits.of(count) {
                let position = sequence.first_position + token;
                let mut logits = logits_of(self.slots[&at(sequence, position)]);
                if is_nan {
                    logits[VOCAB / 2] = f32::NAN;
                }
                // The best of a row where these suffice, in every second position: tokens are those of whole rows.
                match sequence.logits {
                    LogitRows::Best(best) if position.is_multiple_of(2) => {
                        sink(LogitRow { sequence: index, token }, Logits::Best(&best_of(&logits, best)));
                    }
                    _ => sink(LogitRow { sequence: index, token }, Logits::All(&mut logits)),
                }
            }
        }
        Ok(())
    }

    fn streams_kv(&self) -> bool {
        true
    }

    fn shown_weights(&mut self) -> Option<&mut dyn ShownWeights> {
        Some(self)
    }

    fn resize_blocks(&mut self, came: &[u32], left: &[u32]) {
        self.memory.iter_mut().for_each(|memory| memory.resize(came, left));
        self.forget(left);
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        self.controls.blocks_copied.fetch_add(copies.len(), Ordering::Relaxed);
        for &BlockCopy { source, destination } in copies {
            [source, destination].iter().for_each(|block| self.check(block.0));
            for slot in 0..self.block_size {
                let fingerprint = self.slots.get(&(source.0, slot)).copied();
                // What had nothing to copy leaves nothing: reading it is a panic.
                self.slots.remove(&(destination.0, slot));
                self.slots.extend(fingerprint.map(|fingerprint| ((destination.0, slot), fingerprint)));
            }
        }
    }

    fn block_bytes(&mut self) -> Option<&mut dyn BlockBytes> {
        Some(self)
    }

    fn cache_namespace(&self, _prompt_len: usize) -> u64 {
        0
    }

    fn strips(&mut self) -> Option<&mut dyn StripMemory> {
        self.strips.as_mut().map(|strips| strips as _)
    }

    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        (self.controls.drafts.load(Ordering::Relaxed) > 0).then_some(self)
    }
}

impl ShownWeights for SimRunner {
    fn monitor(&self) -> Arc<StreamMonitor> {
        Arc::new(StreamMonitor::new(Vec::new(), 0))
    }

    fn show(&mut self) {
        self.controls.shown.fetch_add(1, Ordering::SeqCst);
    }
}

const WINDOW: TailConfig = TailConfig { keeps: Keeps::Window { tokens: 8 }, block_bytes: 50, parts: 1 };
const LONG_WINDOW: TailConfig = TailConfig { keeps: Keeps::Window { tokens: 23 }, block_bytes: 120, parts: 1 };
const STATE: TailConfig = TailConfig { keeps: Keeps::State, block_bytes: 250, parts: 3 };
/// What layers keep in models of several kinds.
pub const KINDS: [&[TailConfig]; 4] = [&[WINDOW], &[STATE], &[WINDOW, LONG_WINDOW], &[WINDOW, STATE, STATE]];

/// Bytes of one position in [`BlockBytes`]: whether anything is there, and its fingerprint.
pub const SLOT_BYTES: usize = 16;

impl BlockBytes for SimRunner {
    fn read(&mut self, BlockPart { block, part }: BlockPart, into: &mut [u8]) -> Result<(), String> {
        // A part of a block is the positions of which it is the turn.
        let parts = self.parts_of(block.0);
        for (slot, bytes) in into.chunks_exact_mut(SLOT_BYTES).enumerate() {
            if slot % parts != part as usize {
                bytes.fill(0);
                continue;
            }
            let fingerprint = self.slots.get(&(block.0, slot));
            bytes[..8].copy_from_slice(&u64::from(fingerprint.is_some()).to_le_bytes());
            bytes[8..].copy_from_slice(&fingerprint.copied().unwrap_or(0).to_le_bytes());
        }
        Ok(())
    }

    fn fill(&mut self, BlockPart { block, part }: BlockPart, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        self.check(block.0);
        assert_eq!(len, self.block_size * SLOT_BYTES);
        let (mut all, parts) = (vec![0; len], self.parts_of(block.0));
        fill(&mut all);
        for (slot, bytes) in all.chunks_exact(SLOT_BYTES).enumerate().filter(|(slot, _)| slot % parts == part as usize)
        {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
            match number(0) {
                0 => self.slots.remove(&(block.0, slot)),
                _ => self.slots.insert((block.0, slot), number(8)),
            };
        }
    }
}

impl Drafter for SimRunner {
    fn draft(&mut self, tokens: &[u32], most: usize, drafts: &mut Vec<u32>) {
        let errs = !self.controls.drafts_well.load(Ordering::Relaxed);
        let mut fingerprint = fingerprint(tokens);
        // More than are asked for do no harm.
        for _ in 0..(most + 1).min(self.controls.drafts.load(Ordering::Relaxed)) {
            let best = most_likely(&logits_of(fingerprint));
            let draft = if errs && fingerprint.is_multiple_of(5) { (best + 1) % VOCAB as u32 } else { best };
            drafts.push(draft);
            fingerprint = extend(fingerprint, draft);
        }
    }
}

/// Shape of an engine under test.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub blocks: usize,
    pub block_size: usize,
    pub prefix_caching: bool,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub max_model_len: usize,
    /// Whether a sequence may have more tokens than there are in all blocks.
    pub longer_than_memory: bool,
    pub swap_blocks: usize,
    pub preemption: PreemptionMode,
    pub max_token_gap: Option<Duration>,
    /// What further layers keep, beside blocks of 100 bytes.
    pub tails: &'static [TailConfig],
}

impl Shape {
    /// Little memory for a random load: in half of the cases with swap space, and in half of them with layers that keep
    /// tails besides.
    pub fn of_load(seed: u32) -> Self {
        let tails = [&[], KINDS[seed as usize % KINDS.len()]][seed as usize / 4 % 2];
        let (blocks, swap_blocks) =
            (if tails.is_empty() { 60 } else { 110 }, if seed.is_multiple_of(2) { 0 } else { 60 });
        Self { blocks, swap_blocks, max_num_seqs: 6, tails, ..Self::default() }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            blocks: 256,
            block_size: 4,
            prefix_caching: true,
            max_num_seqs: 32,
            max_num_batched_tokens: 64,
            max_model_len: 128,
            longer_than_memory: false,
            swap_blocks: 0,
            preemption: PreemptionMode::Auto,
            max_token_gap: None,
            tails: &[],
        }
    }
}

pub fn start(shape: Shape) -> (Engine, Arc<Controls>) {
    let (runner, controls) = SimRunner::new(shape.block_size);
    (start_over(shape, Box::new(runner.with_tails(shape)), &controls), controls)
}

pub fn start_over(shape: Shape, runner: Box<dyn Runner>, controls: &Arc<Controls>) -> Engine {
    Engine::start_with(engine_config(shape), runner, with_swap(shape, controls, Vec::new())).unwrap()
}

/// What an engine over a [`SimRunner`] is given: the tiers `below`, and swap space that `controls` control.
pub fn with_swap(shape: Shape, controls: &Arc<Controls>, below: Vec<TierBelow>) -> Attachments {
    let swap = SimSwap::new(shape.block_size, Arc::clone(controls));
    Attachments { below, swap: Some(Box::new(swap)), ..Attachments::default() }
}

/// Blocks that take as much memory as what the tails of a sequence take.
pub fn blocks_beside(shape: Shape) -> usize {
    let bytes = shape.tails.iter().map(|tail| match tail.keeps {
        Keeps::Window { tokens } => {
            ((tokens + shape.max_num_batched_tokens).div_ceil(shape.block_size) + 1) * tail.block_bytes
        }
        Keeps::State => 2 * tail.block_bytes,
    });
    bytes.sum::<usize>().div_ceil(BLOCK_BYTES)
}

pub fn engine_config(shape: Shape) -> EngineConfig {
    EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: shape.max_num_seqs,
            max_num_batched_tokens: shape.max_num_batched_tokens,
            preemption: shape.preemption,
            max_token_gap: shape.max_token_gap,
        },
        kv: KvConfig {
            num_blocks: shape.blocks,
            block_size: shape.block_size,
            prefix_caching: shape.prefix_caching,
            num_swap_blocks: shape.swap_blocks,
            watermark: 0.01,
            seed: 7,
            tails: shape.tails.to_vec(),
            block_bytes: BLOCK_BYTES,
            pass_tokens: shape.max_num_batched_tokens,
            ..KvConfig::default()
        },
        limits: Limits {
            vocab_size: VOCAB,
            max_model_len: if shape.longer_than_memory {
                shape.max_model_len
            } else {
                shape.max_model_len.min(shape.blocks * shape.block_size)
            },
            model_context: shape.max_model_len,
            kv_capacity_tokens: shape.blocks * shape.block_size,
            kv_block_tokens: shape.block_size,
            kv_blocks_beside: blocks_beside(shape),
            max_logprobs: 20,
            max_beam_width: shape.max_num_seqs,
            max_waiting: 1000,
        },
        eos_token_ids: vec![EOS],
        stall: std::time::Duration::ZERO,
        idle_turn: std::time::Duration::from_millis(2),
        check_invariants: true,
    }
}

/// Some tokens, others for each seed.
pub fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (seed.wrapping_mul(31) + i * i * 7 + i * seed) % 49 + 1).collect()
}

pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        params: SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// Teaches the engine that answers have one token, so that it admits more than can grow, and has to preempt.
pub fn teach_short_answers(engine: &Engine) {
    let streams: Vec<_> = (0..80).map(|_| engine.handle().submit(greedy(vec![1], 1)).unwrap()).collect();
    streams.into_iter().for_each(|stream| drop(collect(stream)));
}

/// How a request ended.
#[derive(Debug, PartialEq)]
pub struct Ended {
    pub tokens: Vec<u32>,
    pub cached_tokens: usize,
    pub miss: Option<Miss>,
    pub reason: FinishReason,
    pub preemptions: u64,
    pub swaps: u64,
}

/// Reads a stream to its end, which must be a good one.
pub fn collect(mut stream: EventStream) -> Ended {
    let mut ended = Ended {
        tokens: Vec::new(),
        cached_tokens: 0,
        miss: None,
        reason: FinishReason::Length,
        preemptions: 0,
        swaps: 0,
    };
    let mut prompt_done = false;
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::PromptDone(PromptDone { cached_tokens, miss, .. }) => {
                assert!(!prompt_done, "the prompt is reported once");
                prompt_done = true;
                (ended.cached_tokens, ended.miss) = (cached_tokens, miss);
                // Wherever they were found.
                assert!(miss.is_none_or(|miss| miss.matched_tokens == cached_tokens), "{miss:?}, {cached_tokens}");
            }
            Event::Token { id, .. } => {
                ended.tokens.push(id);
            }
            Event::Preempted { swapped } => {
                ended.preemptions += 1;
                ended.swaps += u64::from(swapped);
            }
            Event::Finished { reason } => ended.reason = reason,
            Event::Embedding(_) => panic!("nobody asked for it"),
            Event::Failed(error) => panic!("failed: {error}"),
        }
    }
    ended
}

/// Waits for what comes soon.
pub fn eventually(engine: &Engine, what: &str, holds: impl FnMut(&EngineStatus) -> bool) -> EngineStatus {
    let waited = engine.handle().wait_until(Duration::from_secs(60), holds);
    waited.unwrap_or_else(|| panic!("never: {what}; at last {:?}", engine.handle().status()))
}

/// Waits until the engine has nothing to do, and checks conservation.
pub fn assert_idle_and_whole(engine: &Engine) {
    let status = eventually(engine, "at rest", |status| {
        status.waiting == 0 && status.running == 0 && status.swapped == 0 && status.kv.blocks_used == 0
    });
    let KvStats { blocks_free, blocks_cached, blocks_withdrawn, blocks_total, .. } = status.kv;
    assert_eq!(blocks_free + blocks_cached + blocks_withdrawn, blocks_total);
    assert_eq!((status.leaks_found, status.swapped, status.kv.swap_slots_used), (0, 0, 0));
}

/// The greatest of a row as a runner gives them: NaN first, and among equals the first.
fn best_of(logits: &[f32], count: usize) -> Vec<[f32; 2]> {
    let mut all: Vec<[f32; 2]> =
        (0..).zip(logits).map(|(token, &logit): (u16, &f32)| [f32::from(token), logit]).collect();
    all.sort_by(|a, b| b[1].is_nan().cmp(&a[1].is_nan()).then(b[1].total_cmp(&a[1])));
    all.truncate(count);
    all
}
