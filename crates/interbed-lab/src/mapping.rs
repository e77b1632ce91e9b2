//! Simulates KV that is mapped side by side on a virtual clock: what passes would wait for on a machine whose system
//! takes a given time for each change of a mapping.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use interbed_device::{PageAccess, VirtualMemory};
use interbed_kv::{
    BlockManager, ChainRoot, Hiding, KvConfig, Mapped, Mapping, PrefixHashes, SequenceId, StripConfig, StripMapper,
    StripPlan, StripUse, TokenId,
};

/// The time that the system takes for one change of a mapping, and for each page in the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingCosts {
    /// The time of each change, whatever its size.
    pub change: Duration,
    /// The time of each page that is mapped.
    pub page: Duration,
}

impl MappingCosts {
    /// The costs that were measured with the memory of a file on a cloud machine in 2026: 5.8 µs for 4 pages, 144 µs
    /// for 512 pages.
    pub const MEASURED: Self = Self { change: Duration::from_nanos(4_600), page: Duration::from_nanos(270) };
}

/// Virtual memory that holds no bytes, and adds up the time that its changes would take.
#[derive(Debug)]
pub struct SimulatedMemory {
    page_size: usize,
    costs: MappingCosts,
    spent_ns: AtomicU64,
    changes: AtomicU64,
}

impl SimulatedMemory {
    /// Creates a memory with pages of `page_size` bytes.
    pub fn new(page_size: usize, costs: MappingCosts) -> Self {
        Self { page_size, costs, spent_ns: AtomicU64::new(0), changes: AtomicU64::new(0) }
    }

    /// Returns the time that all changes took.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Ordering::Relaxed))
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn spend(&self, pages: usize) {
        let time = self.costs.change.as_nanos() as u64 + self.costs.page.as_nanos() as u64 * pages as u64;
        self.spent_ns.fetch_add(time, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

impl VirtualMemory for SimulatedMemory {
    fn page_size(&self) -> usize {
        self.page_size
    }

    fn map(&self, at: Range<usize>, _from: usize, _access: PageAccess) -> io::Result<()> {
        self.spend(at.len() / self.page_size);
        Ok(())
    }

    fn protect(&self, _at: Range<usize>, _access: PageAccess) -> io::Result<()> {
        self.spend(0);
        Ok(())
    }

    fn unmap(&self, _at: Range<usize>) -> io::Result<()> {
        self.spend(0);
        Ok(())
    }
}

/// A load of sequences, and how their KV is mapped.
#[derive(Debug, Clone, Copy)]
pub struct MappedLoad {
    /// The number of sequences that run together.
    pub sequences: usize,
    /// The number of sequences that wait; if it is 0, no sequence ends.
    pub waiting: usize,
    /// The number of steps that are counted; they come after `PROMPT_MOST` steps that are not.
    pub steps: usize,
    /// The number of tokens in a block.
    pub block_size: usize,
    /// The number of bytes in a block.
    pub block_bytes: usize,
    /// The time of a pass.
    pub pass: Duration,
    /// How the time of mapping is hidden.
    pub hiding: Hiding,
}

/// The figures that say what passes waited for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MappedFigures {
    /// The number of steps that were counted.
    pub steps: usize,
    /// The number of changes that were made before passes.
    pub changes_before: u64,
    /// The number of changes that were made beside passes.
    pub changes_beside: u64,
    /// The time that passes waited: for changes before them, and for the end of changes that were made beside other
    /// passes.
    pub critical: Duration,
    /// The time of all steps.
    pub time: Duration,
}

/// The greatest length of a prompt in tokens.
const PROMPT_MOST: usize = 256;

/// The greatest length of an answer in tokens, where sequences end.
const ANSWER_MOST: usize = 128;

struct Running {
    id: SequenceId,
    tokens: Vec<TokenId>,
    computed: usize,
    ends_at: usize,
}

/// Runs a load on the virtual clock.
pub fn serve(load: &MappedLoad) -> MappedFigures {
    let mut world = World::new(load);
    for _ in 0..PROMPT_MOST {
        world.step();
    }
    world.figures = MappedFigures::default();
    for _ in 0..load.steps {
        world.step();
    }
    world.figures
}

struct World<'a> {
    load: &'a MappedLoad,
    manager: BlockManager,
    mapper: StripMapper,
    plan: StripPlan,
    memory: SimulatedMemory,
    strip_blocks: usize,
    pool_blocks: usize,
    running: Vec<Running>,
    waiting: VecDeque<(Vec<TokenId>, usize, PrefixHashes)>,
    now: Duration,
    /// When the thread that makes changes beside passes has nothing left to do.
    beside_until: Duration,
    /// When each of that thread's last changes was done; the first entry belongs to the change with the number
    /// `first_beside`.
    done_at: VecDeque<Duration>,
    first_beside: u64,
    ids: u64,
    random: u64,
    figures: MappedFigures,
}

impl<'a> World<'a> {
    fn new(load: &'a MappedLoad) -> Self {
        let most = PROMPT_MOST + if load.waiting == 0 { PROMPT_MOST + load.steps + 1 } else { ANSWER_MOST };
        let strip_blocks = most.div_ceil(load.block_size) + 1;
        let pool_blocks = strip_blocks * load.sequences;
        let config = KvConfig { num_blocks: pool_blocks, block_size: load.block_size, ..KvConfig::default() };
        let strips = StripConfig {
            strips: 2 * load.sequences + 1,
            blocks: strip_blocks,
            mappings_max: 48_000,
            mapped_max: 4 * pool_blocks,
            hiding: load.hiding,
        };
        Self {
            load,
            manager: BlockManager::new(config).expect("a block size that is a power of two"),
            mapper: StripMapper::new(strips),
            plan: StripPlan::default(),
            memory: SimulatedMemory::new(PAGE, MappingCosts::MEASURED),
            strip_blocks,
            pool_blocks,
            running: Vec::new(),
            waiting: VecDeque::new(),
            now: Duration::ZERO,
            beside_until: Duration::ZERO,
            done_at: VecDeque::new(),
            first_beside: 1,
            ids: 0,
            random: 1,
            figures: MappedFigures::default(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    /// Fills the queue, and admits as many sequences as may run.
    fn admit(&mut self) {
        while self.running.len() + self.waiting.len() < self.load.sequences + self.load.waiting {
            let length = 16 + self.below(PROMPT_MOST - 16);
            let prompt: Vec<_> = (0..length).map(|_| self.below(1_000) as TokenId).collect();
            let answer = match self.load.waiting {
                0 => usize::MAX / 2,
                _ => ANSWER_MOST / 4 + self.below(ANSWER_MOST * 3 / 4),
            };
            let hashes = self.manager.hash_prefix(&ChainRoot::default(), &prompt);
            self.waiting.push_back((prompt, answer, hashes));
        }
        while self.running.len() < self.load.sequences
            && let Some((prompt, answer, hashes)) = self.waiting.pop_front()
        {
            let id = SequenceId(self.ids);
            self.ids += 1;
            let Ok(given) = self.manager.allocate(id, &prompt, &hashes) else {
                self.waiting.push_front((prompt, answer, hashes));
                return;
            };
            let ends_at = prompt.len() + answer;
            self.running.push(Running { id, tokens: prompt, computed: given.num_cached_tokens, ends_at });
        }
    }

    fn step(&mut self) {
        self.admit();
        let mut spans = Vec::new();
        for one in &mut self.running {
            if one.computed == one.tokens.len() {
                let token = (one.tokens.len() % 997) as TokenId;
                if self.manager.append(one.id, &[token]).is_err() {
                    continue;
                }
                one.tokens.push(token);
            }
            let end = one.tokens.len();
            if self.load.hiding.ahead && end.is_multiple_of(self.load.block_size) {
                let _ = self.manager.ensure_num_empty_slots(one.id, 1);
            }
            spans.push((one.id, one.computed, end));
            one.computed = end;
        }
        let block_size = self.load.block_size;
        let first = self.waiting.front().filter(|_| self.load.hiding.eager);
        let foreseen = first.map(|(prompt, _, hashes)| self.manager.foresee(prompt, hashes));
        let manager = &self.manager;
        let uses: Vec<_> = spans
            .iter()
            .map(|&(id, start, end)| StripUse {
                id,
                below: 0,
                table: manager.block_table(id).expect("it holds blocks"),
                written: start / block_size..end.div_ceil(block_size),
            })
            .collect();
        self.mapper.step(&uses, |id| manager.block_table(id).is_some(), &mut self.plan);
        if let Some(foreseen) = foreseen {
            self.mapper.foresee(&foreseen.blocks, foreseen.found, &mut self.plan);
        }
        drop(uses);
        self.carry_out();
        for (id, _, end) in spans {
            self.manager.commit(id, end);
        }
        let ended: Vec<_> =
            self.running.iter().filter(|one| one.tokens.len() >= one.ends_at).map(|one| one.id).collect();
        for id in ended {
            self.manager.free(id);
            self.running.retain(|one| one.id != id);
        }
    }

    /// Makes the planned changes on the virtual clock, and then the pass.
    fn carry_out(&mut self) {
        let began = self.now;
        let plan = std::mem::take(&mut self.plan);
        for mapping in &plan.beside {
            let took = self.make(mapping);
            self.beside_until = self.beside_until.max(self.now) + took;
            self.done_at.push_back(self.beside_until);
        }
        if let Some(&done) = plan.after.checked_sub(self.first_beside).and_then(|at| self.done_at.get(at as usize)) {
            self.now = self.now.max(done);
        }
        for mapping in &plan.now {
            let took = self.make(mapping);
            self.now += took;
        }
        while self.done_at.front().is_some_and(|&done| done <= self.now) {
            self.done_at.pop_front();
            self.first_beside += 1;
        }
        self.figures.changes_before += plan.now.len() as u64;
        self.figures.changes_beside += plan.beside.len() as u64;
        self.figures.critical += self.now - began;
        self.now += self.load.pass;
        self.figures.time += self.now - began;
        self.figures.steps += 1;
        self.plan = plan;
    }

    /// Makes a change in the simulated memory, and returns the time that it takes.
    fn make(&self, mapping: &Mapping) -> Duration {
        let before = self.memory.spent();
        let bytes = self.load.block_bytes;
        let base = self.pool_blocks + mapping.strip as usize * self.strip_blocks + mapping.first as usize;
        let at = base * bytes..(base + mapping.count as usize) * bytes;
        let made = match mapping.to {
            Mapped::Read(block) => self.memory.map(at, block.0 as usize * bytes, PageAccess::Read),
            Mapped::Write(block) => self.memory.map(at, block.0 as usize * bytes, PageAccess::Write),
            Mapped::ReadOnly => self.memory.protect(at, PageAccess::Read),
            Mapped::Nothing => self.memory.unmap(at),
        };
        made.expect("simulated memory refuses nothing");
        self.memory.spent() - before
    }
}

/// The number of bytes in a page.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn load(waiting: usize, steps: usize, hiding: Hiding) -> MappedFigures {
        let pass = Duration::from_millis(100);
        serve(&MappedLoad { sequences: 32, waiting, steps, block_size: 16, block_bytes: 512 << 10, pass, hiding })
    }

    #[test]
    fn ten_thousand_steps_of_steady_decode_wait_for_nothing() {
        let figures = load(0, 10_000, Hiding::ALL);
        assert_eq!((figures.steps, figures.changes_before, figures.critical), (10_000, 0, Duration::ZERO));
        // A block for each 16 tokens of 32 sequences; neighbours may come in one change.
        assert!((10_000..=20_000).contains(&figures.changes_beside), "{figures:?}");
    }

    #[test]
    fn each_way_of_hiding_gains() {
        let all = load(4, 400, Hiding::ALL);
        assert!(all.critical.as_secs_f64() < 0.01 * all.time.as_secs_f64(), "{all:?}");
        for without in [
            Hiding { ahead: false, ..Hiding::ALL },
            Hiding { deferred: false, ..Hiding::ALL },
            Hiding { eager: false, ..Hiding::ALL },
            Hiding::NONE,
        ] {
            let figures = load(4, 400, without);
            assert!(figures.critical > all.critical, "{without:?}: {figures:?}, {all:?} with all");
        }
    }

    #[test]
    fn changes_take_their_time() {
        let costs = MappingCosts { change: Duration::from_micros(5), page: Duration::from_micros(1) };
        let memory = SimulatedMemory::new(PAGE, costs);
        memory.map(0..8 * PAGE, 0, PageAccess::Write).unwrap();
        memory.unmap(0..8 * PAGE).unwrap();
        assert_eq!((memory.spent(), memory.changes()), (Duration::from_micros(18), 2));
    }
}
