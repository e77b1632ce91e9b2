//! A model from a fixture directory, and sequences that run on it with hand-made block tables.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use interbed_device::{Cpu, CpuDevice, KvPool, PageAccess, StripChange, StripContent, StripShape, page_size};
use interbed_kernels::{BlockGroups, KvDType, Level};
use interbed_model::config::ModelConfig;
use interbed_model::{BatchSequence, LogitRows, Model, SequenceBlocks, layers};
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
        let weights = ResidentWeights::load(catalog, &layers::group_specs(&config.blueprint), &mut |_, _| ()).unwrap();
        Self::over(config, Box::new(weights), kv_dtype, threads, blocks)
    }

    /// A model over any source of weights, with a KV cache of `blocks` blocks.
    pub fn over(
        config: ModelConfig,
        weights: Box<dyn WeightSource>,
        kv_dtype: KvDType,
        threads: usize,
        blocks: usize,
    ) -> Self {
        let mut config = config;
        config.blueprint.settle_length(BLOCKS_PER_SEQUENCE * BLOCK_SIZE);
        let needs = Model::pass_needs(&config.blueprint, MAX_TOKENS, MAX_TOKENS);
        let layout = Model::kv_layout(&config.blueprint, BLOCK_SIZE, kv_dtype);
        let layout = if crate::IN_STRIPS { layout.in_pages(page_size()) } else { layout };
        let groups = BlockGroups::new(layout.clone(), blocks);
        let kv = match crate::IN_STRIPS {
            true => KvPool::new_in_strips(groups, STRIPS).unwrap(),
            false => KvPool::new(groups).unwrap(),
        };
        let cpu = Cpu::new(NonZeroUsize::new(threads).unwrap());
        Self { model: Model::new(config.blueprint, weights, layout), device: CpuDevice::new(cpu, &needs, kv).unwrap() }
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
        Sequence { tokens: prompt.to_vec(), computed: 0, prompt_len: prompt.len(), block_table }
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
        let batch: Vec<_> = sequences
            .iter()
            .zip(counts)
            .zip(places)
            .filter(|&((_, &count), _)| count > 0)
            .map(|((sequence, &count), place)| BatchSequence {
                tokens: &sequence.tokens[sequence.computed..sequence.computed + count],
                first_position: sequence.computed,
                prompt_len: sequence.prompt_len,
                below: 0,
                blocks: place.unwrap_or(SequenceBlocks::Listed(&sequence.block_table)),
                logits: LogitRows::All,
            })
            .collect();
        let mut rows = Vec::new();
        self.model.forward(&mut self.device, &batch, &mut |_, logits| rows.push(logits.all().to_vec())).unwrap();
        drop(batch);
        for (sequence, count) in sequences.iter_mut().zip(counts) {
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
