//! Measures how fast attention is over mapped KV, and how much of the KV is empty, for each arrangement and page size.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use interbed::median;
use interbed_device::{
    Command, Cpu, CpuDevice, Device, KvPool, KvSequences, PageAccess, PassNeeds, Queue, StripChange, StripContent,
    StripShape, TensorArea,
};
use interbed_kernels::{AttentionLayer, AttentionSpan, BlockGroups, KvLayout, KvPlace, KvShape, attention_scratch};
use interbed_model::blueprint::Blueprint;
use serde_json::{Value, json};

use super::shuffle;

/// The page sizes in bytes. A block is as large as a page where all layers share it; elsewhere a layer's part of a
/// block is.
const PAGES: [usize; 6] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20];

/// The greatest length in tokens of the sequences over which the empty share is averaged.
const LENGTHS: usize = 2048;

/// A byte pattern: numbers of any type that consist of this byte are small, and none is zero.
const SMALL_NUMBERS: u8 = 0x3c;

/// How the layers of a token lie in pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrangement {
    /// One page holds all layers of some tokens.
    Together,
    /// Each layer has its own pages and its own range of addresses.
    ByLayer,
}

/// Measures the attention of one token over `context` positions in all layers, for each arrangement and page size.
pub fn measure(
    blueprint: &Blueprint,
    layout: &KvLayout,
    threads: NonZeroUsize,
    context: usize,
    repeat: usize,
) -> Result<Vec<Value>> {
    let mut lines = Vec::new();
    for arrangement in [Arrangement::Together, Arrangement::ByLayer] {
        for page in PAGES {
            if let Some(case) = Case::new(blueprint, layout, arrangement, page, context) {
                lines.push(case.measure(threads, repeat)?);
            }
        }
    }
    Ok(lines)
}

struct Case {
    arrangement: Arrangement,
    page: usize,
    /// The layout of all layers, or of one layer if each has its own pages.
    layout: KvLayout,
    layers: usize,
    heads: usize,
    context: usize,
    token_bytes: usize,
}

impl Case {
    /// Returns the case, or `None` if no number of tokens fills a page of this size.
    fn new(
        blueprint: &Blueprint,
        layout: &KvLayout,
        arrangement: Arrangement,
        page: usize,
        context: usize,
    ) -> Option<Self> {
        let layers = layout.num_layers();
        let shape = |index: usize| {
            let layer = layout.layer(index);
            KvShape { num_kv_heads: layer.num_kv_heads(), head_dim: layer.head_dim() }
        };
        let alike = (1..layers).all(|index| shape(index) == shape(0));
        let of = |tokens: usize| match arrangement {
            Arrangement::Together => KvLayout::new(tokens, layout.dtype(), (0..layers).map(shape)),
            Arrangement::ByLayer => KvLayout::new(tokens, layout.dtype(), [shape(0)]),
        };
        let one = of(1).block_bytes();
        let tokens = page / one.max(1);
        let is_whole = alike && layers > 0 && tokens > 0 && tokens * one == page && tokens.is_power_of_two();
        let heads = blueprint.attentions().next()?.heads;
        is_whole.then(|| Self {
            arrangement,
            page,
            layout: of(tokens),
            layers,
            heads,
            context: context.next_multiple_of(tokens),
            token_bytes: layout.token_bytes(),
        })
    }

    fn measure(&self, threads: NonZeroUsize, repeat: usize) -> Result<Value> {
        let (layer, block_size) = (self.layout.layer(0), self.layout.block_size());
        let blocks = self.context / block_size;
        let strips = if self.arrangement == Arrangement::Together { 1 } else { self.layers };
        let shape = StripShape { count: strips, blocks };
        let groups = BlockGroups::new(self.layout.clone(), strips * blocks);
        let mut kv = KvPool::new_in_strips(groups, shape).context("KV to measure")?;
        kv.blocks_mut().fill(SMALL_NUMBERS);
        let mut order: Vec<u32> = (0..(strips * blocks) as u32).collect();
        shuffle(&mut order);
        let mapped = kv.strips().context("a pool in strips has strips")?;
        for strip in 0..strips {
            for (index, &block) in order[strip * blocks..][..blocks].iter().enumerate() {
                let to = StripContent::Blocks(block, PageAccess::Write);
                let change = StripChange { strip: strip as u32, first: index as u32, count: 1, to };
                if mapped.change(&change).is_err() {
                    bail!("the system maps no more than {} blocks", strip * blocks + index);
                }
            }
            mapped.pin(strip as u32, 0..blocks, blocks);
        }
        let mappings = strips * blocks;
        let (heads, head_dim) = (self.heads, layer.head_dim());
        let mut tensors = TensorArea::default();
        let [q, out] = [tensors.take(heads * head_dim), tensors.take(heads * head_dim)];
        let needs = PassNeeds {
            tensors,
            attention_scratch: attention_scratch(heads, head_dim, self.context),
            ..PassNeeds::default()
        };
        let firsts: Vec<u32> = (0..strips as u32).map(|strip| kv.first_of_strip(strip)).collect();
        let mut device = CpuDevice::new(Cpu::new(threads), &needs, kv)?;
        let mut times = Vec::new();
        // The first turn only warms up.
        for turn in 0..=repeat {
            let began = Instant::now();
            for index in 0..self.layers {
                let (own, strip) = match self.arrangement {
                    Arrangement::Together => (index, 0),
                    Arrangement::ByLayer => (0, index),
                };
                let spans = [AttentionSpan::new(self.context - 1, 1, KvPlace::From(firsts[strip]))];
                let layer = AttentionLayer { kv: self.layout.layer(own), heads, scale: 1.0, window: None };
                let sequences = KvSequences { spans: &spans, tables: &[] };
                let state = TensorArea::default().take(0);
                let attend = Command::Attend { layer, frame: None, sequences, sinks: None, q, state, out };
                let done = device.submit(Queue::Compute, &[attend], &[])?;
                device.complete(done)?;
            }
            if turn > 0 {
                times.push(began.elapsed());
            }
        }
        let seconds = median(times.iter().map(Duration::as_secs_f64).collect());
        let bytes = (self.context * self.token_bytes) as f64;
        Ok(json!({
            "name": "kv_layout.pages",
            "params": {
                "arrangement": if strips == 1 { "together" } else { "by_layer" },
                "page": self.page, "context": self.context, "block_size": block_size,
            },
            "attention_bytes_per_s": bytes / seconds,
            "mappings": mappings,
            "empty_share": self.empty_share(),
        }))
    }

    /// Returns the share of held slots that are empty, averaged over sequences of all lengths up to [`LENGTHS`] tokens.
    fn empty_share(&self) -> f64 {
        let block_size = self.layout.block_size();
        let held: usize = (1..=LENGTHS).map(|tokens| tokens.next_multiple_of(block_size)).sum();
        let used: usize = (1..=LENGTHS).sum();
        1.0 - used as f64 / held as f64
    }
}
