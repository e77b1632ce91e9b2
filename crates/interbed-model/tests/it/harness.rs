//! A model from a fixture directory, and sequences that run on it with hand-made block tables.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use interbed_device::{Cpu, CpuDevice, KvPool, PageAccess, StripChange, StripContent, StripShape, page_size};
use interbed_kernels::{BlockGroups, KvDType, Level};
use interbed_model::blueprint::Blueprint;
use interbed_model::config::ModelConfig;
use interbed_model::{BatchSequence, GroupBlocks, KeptGroup, LogitRows, Model, SequenceBlocks, layers};
use interbed_weights::{Catalog, ResidentWeights, WeightSource};

pub const BLOCK_SIZE: usize = 4;
/// Blocks in the table of each sequence: room for 128 tokens.
pub const BLOCKS_PER_SEQUENCE: usize = 32;
const MAX_TOKENS: usize = 1400;

pub fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub struct Harness {
    pub model: Model,
    pub device: CpuDevice,
}

/// Strips in which sequences are mapped. Longer sequences go on in blocks that are listed.
const STRIPS: StripShape = StripShape { count: 8, blocks: 16 };

/// A sequence that is being computed.
#[derive(Clone)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub computed: usize,
    pub prompt_len: usize,
    pub block_table: Vec<u32>,
    pub beside: Beside,
}

/// The blocks of a sequence in the groups beside the trunk.
#[derive(Clone, Default)]
pub struct Beside {
    /// The window of each group of keys and values, and the blocks of all positions.
    pub windows: Vec<(usize, Vec<u32>)>,
    slots: Option<Slots>,
}

/// Two blocks for the states of a sequence.
#[derive(Clone, Copy)]
struct Slots {
    own: [u32; 2],
    /// The block with the states of the tokens that were computed.
    current: Option<u32>,
}

impl Beside {
    /// The blocks of sequence number `index`.
    pub fn of(model: &Model, index: usize) -> Self {
        let mut beside = Self::default();
        for (group, blocks) in model.groups().groups().iter().zip(model.blocks().groups()).skip(1) {
            let first = blocks.numbers().start as u32;
            match group {
                KeptGroup::Kv { window, .. } => {
                    let first = first + (index * BLOCKS_PER_SEQUENCE) as u32;
                    let table = (first..first + BLOCKS_PER_SEQUENCE as u32).rev().collect();
                    beside.windows.push((window.expect("beside the trunk are windows"), table));
                }
                KeptGroup::States(_) => {
                    let first = first + 2 * index as u32;
                    beside.slots = Some(Slots { own: [first, first + 1], current: None });
                }
            }
        }
        beside
    }

    /// The blocks for a pass whose first token has position `computed`. Blocks behind a window are left out.
    pub fn groups(&self, computed: usize) -> Vec<GroupBlocks<'_>> {
        let windows = self.windows.iter().map(|(window, table)| {
            let behind = (computed + 1).saturating_sub(*window) / BLOCK_SIZE;
            GroupBlocks::Window { first: behind * BLOCK_SIZE, blocks: SequenceBlocks::Listed(&table[behind..]) }
        });
        let states = self.slots.map(|slots| GroupBlocks::State {
            from: slots.current,
            to: slots.next(computed),
            tokens_behind: 0,
        });
        windows.chain(states).collect()
    }

    /// Notes that the pass at position `computed` was made.
    pub fn advance(&mut self, computed: usize) {
        if let Some(slots) = &mut self.slots {
            slots.current = Some(slots.next(computed));
        }
    }

    /// Goes on from where another sequence is, which keeps its states.
    pub fn go_on_from(&mut self, other: &Self) {
        if let (Some(slots), Some(of)) = (&mut self.slots, &other.slots) {
            slots.current = of.current;
        }
    }
}

impl Slots {
    /// The block for the states after the next pass: now and then the same.
    fn next(&self, computed: usize) -> u32 {
        match self.current {
            Some(current) if computed % 4 == 3 && self.own.contains(&current) => current,
            Some(current) if current == self.own[0] => self.own[1],
            _ => self.own[0],
        }
    }
}

/// The weights of a model, in memory.
pub fn weights_of(config: &ModelConfig, catalog: &Catalog) -> Box<dyn WeightSource> {
    let specs = layers::group_specs(&config.blueprint);
    Box::new(ResidentWeights::load(catalog, &specs, &mut |_, _| ()).unwrap())
}

/// The blocks of a device: `count` of each group of keys and values, and states for as many sequences as fit.
pub fn blocks_of(blueprint: &Blueprint, dtype: KvDType, count: usize) -> BlockGroups {
    let groups = Model::groups_of(blueprint);
    let counts = groups.groups().iter().map(|group| match group {
        KeptGroup::Kv { .. } => count,
        KeptGroup::States(_) => 2 * count.div_ceil(BLOCKS_PER_SEQUENCE),
    });
    groups.blocks(BLOCK_SIZE, dtype, &counts.collect::<Vec<_>>())
}

/// The same blocks, with those of the trunk padded to whole pages.
fn in_pages(blocks: &BlockGroups) -> BlockGroups {
    let trunk = blocks.trunk().clone().in_pages(page_size());
    let others = blocks.groups().iter().skip(1);
    let trunk = BlockGroups::new(trunk, blocks.groups()[0].num_blocks());
    others.fold(trunk, |blocks, group| blocks.with(group.layout().clone(), group.num_blocks()))
}

impl Harness {
    pub fn load(name: &str, kv_dtype: KvDType, threads: usize, sequences: usize) -> Self {
        Self::open(&fixtures().join(name), kv_dtype, threads, sequences * BLOCKS_PER_SEQUENCE)
    }

    /// A model whose tensors are in `catalog`.
    pub fn of(config: ModelConfig, catalog: &Catalog, kv_dtype: KvDType, threads: usize, sequences: usize) -> Self {
        Self::with_blocks(config, catalog, kv_dtype, threads, sequences * BLOCKS_PER_SEQUENCE)
    }

    /// The model in `dir`, with a KV cache of `blocks` blocks.
    pub fn open(dir: &Path, kv_dtype: KvDType, threads: usize, blocks: usize) -> Self {
        let config = ModelConfig::from_dir(dir).unwrap();
        Self::with_blocks(config, &Catalog::open(dir).unwrap(), kv_dtype, threads, blocks)
    }

    fn with_blocks(config: ModelConfig, catalog: &Catalog, kv_dtype: KvDType, threads: usize, blocks: usize) -> Self {
        let weights = weights_of(&config, catalog);
        Self::over(config, weights, kv_dtype, threads, blocks)
    }

    /// A model over any source of weights, with a KV cache of `blocks` blocks.
    pub fn over(
        config: ModelConfig,
        weights: Box<dyn WeightSource>,
        kv_dtype: KvDType,
        threads: usize,
        blocks: usize,
    ) -> Self {
        let blocks = blocks_of(&config.blueprint, kv_dtype, blocks);
        Self::on(config, weights, threads, blocks)
    }

    /// A model over any source of weights, with these blocks.
    pub fn on(mut config: ModelConfig, weights: Box<dyn WeightSource>, threads: usize, blocks: BlockGroups) -> Self {
        config.blueprint.settle_length(BLOCKS_PER_SEQUENCE * BLOCK_SIZE);
        let needs = Model::pass_needs(&config.blueprint, MAX_TOKENS, MAX_TOKENS);
        let kv = match crate::IN_STRIPS {
            true => KvPool::new_in_strips(in_pages(&blocks), STRIPS).unwrap(),
            false => KvPool::new(blocks).unwrap(),
        };
        let cpu = Cpu::new(NonZeroUsize::new(threads).unwrap());
        let model = Model::new(config.blueprint, weights, kv.groups().clone());
        Self { model, device: CpuDevice::new(cpu, &needs, kv).unwrap() }
    }

    /// The same model, computing with the instructions of `level`.
    pub fn at(mut self, level: Level) -> Self {
        self.device.set_level(level);
        self
    }

    /// A sequence with the blocks of sequence number `index`, in reverse order.
    pub fn sequence(&self, index: usize, prompt: &[u32]) -> Sequence {
        let mut block_table: Vec<u32> =
            (0..BLOCKS_PER_SEQUENCE).map(|i| (index * BLOCKS_PER_SEQUENCE + i) as u32).collect();
        block_table.reverse();
        block_table.rotate_left(index % BLOCKS_PER_SEQUENCE);
        let beside = Beside::of(&self.model, index);
        Sequence { tokens: prompt.to_vec(), computed: 0, prompt_len: prompt.len(), block_table, beside }
    }

    /// Maps what a pass uses, each sequence in a strip of its own, and returns where; `None` where blocks are listed.
    fn map(&mut self, sequences: &[Sequence], counts: &[usize]) -> Vec<Option<SequenceBlocks<'static>>> {
        let Some(strips) = self.device.kv_mut().strips() else { return vec![None; sequences.len()] };
        strips.unpin();
        let mut places = Vec::new();
        for (strip, (sequence, count)) in (0..).zip(sequences.iter().zip(counts)) {
            let end = (sequence.computed + count).div_ceil(BLOCK_SIZE);
            if strip as usize >= STRIPS.count || end > STRIPS.blocks {
                places.push(None);
                continue;
            }
            let written = sequence.computed / BLOCK_SIZE;
            for (index, &block) in sequence.block_table[..end].iter().enumerate() {
                let access = if index < written { PageAccess::Read } else { PageAccess::Write };
                let to = StripContent::Blocks(block, access);
                strips.change(&StripChange { strip, first: index as u32, count: 1, to }).unwrap();
            }
            strips.pin(strip, 0..end, written);
            places.push(Some(SequenceBlocks::From(strips.first_block(strip))));
        }
        places
    }

    /// Computes the next `counts[i]` tokens of each sequence in one pass, and returns all their logits.
    pub fn pass(&mut self, sequences: &mut [Sequence], counts: &[usize]) -> Vec<Vec<f32>> {
        let places = self.map(sequences, counts);
        let groups: Vec<_> = sequences.iter().map(|sequence| sequence.beside.groups(sequence.computed)).collect();
        let batch: Vec<_> = sequences
            .iter()
            .zip(counts)
            .zip(places.into_iter().zip(&groups))
            .filter(|&((_, &count), _)| count > 0)
            .map(|((sequence, &count), (place, groups))| BatchSequence {
                tokens: &sequence.tokens[sequence.computed..sequence.computed + count],
                first_position: sequence.computed,
                prompt_len: sequence.prompt_len,
                below: 0,
                blocks: place.unwrap_or(SequenceBlocks::Listed(&sequence.block_table)),
                groups,
                logits: LogitRows::All,
            })
            .collect();
        let mut rows = Vec::new();
        self.model.forward(&mut self.device, &batch, &mut |_, logits| rows.push(logits.all().to_vec())).unwrap();
        drop(batch);
        drop(groups);
        for (sequence, &count) in sequences.iter_mut().zip(counts).filter(|&(_, &count)| count > 0) {
            sequence.beside.advance(sequence.computed);
            sequence.computed += count;
        }
        rows
    }

    /// The logits of every prompt token, computed in chunks.
    pub fn prompt_logits(&mut self, sequence: &mut Sequence, chunk: usize) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        while sequence.computed < sequence.tokens.len() {
            let count = chunk.min(sequence.tokens.len() - sequence.computed);
            rows.extend(self.pass(std::slice::from_mut(sequence), &[count]));
        }
        rows
    }

    /// Continues `sequence` greedily by `count` tokens.
    pub fn greedy(&mut self, sequence: &mut Sequence, count: usize) -> Vec<u32> {
        let mut last = self.prompt_logits(sequence, usize::MAX).pop().unwrap();
        for _ in 1..count {
            sequence.tokens.push(argmax(&last));
            last = self.pass(std::slice::from_mut(sequence), &[1]).pop().unwrap();
        }
        sequence.tokens.push(argmax(&last));
        sequence.tokens[sequence.prompt_len..].to_vec()
    }
}

pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}
