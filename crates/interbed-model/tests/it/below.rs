//! KV that comes up from below memory gives the logits of KV in blocks, to the bit.

use std::sync::Arc;

use interbed_device::{Device, KvFrame};
use interbed_kernels::{KvDType, STRETCH};
use interbed_model::blueprint::Part;
use interbed_model::config::ModelConfig;
use interbed_model::{
    BatchSequence, ForwardError, FrameId, GroupBlocks, KeptGroup, KvBelow, KvLost, LogitRows, Model, SequenceBlocks,
};
use interbed_weights::Catalog;

use crate::harness::{BLOCK_SIZE, BLOCKS_PER_SEQUENCE, Harness, blocks_of, weights_of};

/// Frames cut out of blocks before the pass, as a disk would have them.
struct Copied {
    /// Of each sequence of the batch: every block, whole.
    blocks: Vec<Vec<Vec<u8>>>,
    /// Where each layer begins in a block, and how long it is.
    layers: Vec<(usize, usize)>,
    asked: Vec<FrameId>,
    given: usize,
    /// The frame that cannot be read.
    lost: Option<usize>,
}

impl KvBelow for Copied {
    fn begin(&mut self, frames: &[FrameId]) {
        (self.asked, self.given) = (frames.to_vec(), 0);
    }

    fn next(&mut self) -> Result<KvFrame, KvLost> {
        let FrameId { sequence, layer, stretch } = self.asked[self.given];
        if self.lost == Some(self.given) {
            return Err(KvLost { sequence, reason: "it is gone".to_owned() });
        }
        self.given += 1;
        let blocks = STRETCH / BLOCK_SIZE;
        let (at, len) = self.layers[layer];
        let parts = self.blocks[sequence][stretch * blocks..(stretch + 1) * blocks].iter();
        let bytes: Vec<u8> = parts.flat_map(|block| &block[at..at + len]).copied().collect();
        let len = bytes.len();
        Ok(KvFrame::new(Arc::new(bytes), len))
    }
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|at| (at * 7 + at / 5 * seed) % 48 + 1).collect()
}

/// Tokens of a sequence that are computed in one pass, before the last.
const CHUNK: usize = 700;

/// What a sequence keeps beside the trunk: a list of blocks for each group.
struct Beside(Vec<Kept>);

/// The blocks of a window of this length, or three blocks for states.
type Kept = (Option<usize>, Vec<u32>);

impl Beside {
    /// The blocks of sequence number `index`, whose blocks of the trunk are in `table`.
    fn of(model: &Model, index: usize, table: &[u32]) -> Self {
        let groups = model.groups().groups().iter().zip(model.blocks().groups()).skip(1);
        let blocks = |(group, blocks): (&KeptGroup, &interbed_kernels::BlockGroup)| {
            let first = blocks.numbers().start as u32;
            match group {
                KeptGroup::Kv { window, .. } => (*window, table.iter().map(|block| first + block).collect()),
                KeptGroup::States(_) => (None, (0..3).map(|state| first + 3 * index as u32 + state).collect()),
            }
        };
        Self(groups.map(blocks).collect())
    }

    /// The blocks for a pass from position `start` on. The last pass leaves the state that it begins with.
    fn groups(&self, start: usize, is_last: bool) -> Vec<GroupBlocks<'_>> {
        let pass = start.div_ceil(CHUNK);
        let state = |blocks: &[u32]| GroupBlocks::State {
            from: (pass > 0).then(|| blocks[(pass + 1) % 2]),
            to: blocks[if is_last { 2 } else { pass % 2 }],
            tokens_behind: 0,
        };
        fn of_window(blocks: &[u32], behind: usize) -> GroupBlocks<'_> {
            let blocks = SequenceBlocks::Listed(&blocks[behind..]);
            GroupBlocks::Window { first: behind * BLOCK_SIZE, blocks }
        }
        let groups = self.0.iter().map(|(window, blocks)| match *window {
            Some(window) => of_window(blocks, (start + 1).saturating_sub(window) / BLOCK_SIZE),
            None => state(blocks),
        });
        groups.collect()
    }
}

/// Two sequences with tables of their own, computed up to `computed` tokens each, in chunks.
fn computed(
    harness: &mut Harness,
    tokens: &[Vec<u32>; 2],
    tables: &[Vec<u32>; 2],
    beside: &[Beside; 2],
    computed: [usize; 2],
) {
    for index in 0..2 {
        for start in (0..computed[index]).step_by(CHUNK) {
            let end = (start + CHUNK).min(computed[index]);
            let batch = BatchSequence {
                tokens: &tokens[index][start..end],
                first_position: start,
                prompt_len: 9,
                below: 0,
                blocks: SequenceBlocks::Listed(&tables[index]),
                groups: &beside[index].groups(start, false),
                logits: LogitRows::None,
            };
            harness.model.forward(&mut harness.device, &[batch], &mut |_, _| {}).unwrap();
        }
    }
}

/// The model `name`, with memory for `blocks` blocks of the trunk. With `apart`, layers with windows keep no more.
fn harness(name: &str, dtype: KvDType, blocks: usize, apart: bool) -> Harness {
    let dir = crate::harness::fixtures().join(name);
    let mut config = ModelConfig::from_dir(&dir).unwrap();
    for branch in config.blueprint.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
        if let Part::Attention(attention) = &mut branch.part
            && !apart
        {
            // Longer than a stretch, so that some of what is below is seen. Where all layers have windows, they keep
            // the KV of all tokens.
            attention.window = Some(STRETCH + 500);
        }
    }
    let sequences = blocks / BLOCKS_PER_SEQUENCE + 1;
    let blocks = blocks_of(&config.blueprint, dtype, sequences * BLOCKS_PER_SEQUENCE);
    let weights = weights_of(&config, &Catalog::open(&dir).unwrap());
    Harness::on(config, weights, 2, blocks)
}

#[test]
fn logits_are_the_same_to_the_bit_wherever_kv_lies() {
    for (name, dtype, apart) in [
        ("llama3_gqa_tied", KvDType::F32, false),
        ("mistral_sliding", KvDType::BF16, false),
        ("qwen3", KvDType::Q8, false),
        // Only the trunk is below memory.
        ("gpt_oss", KvDType::BF16, true),
        ("qwen3_5", KvDType::F32, true),
        // Some layers read keys and values that others keep below memory.
        ("gemma4", KvDType::F16, true),
        ("lfm2", KvDType::F32, true),
        ("granite_4_h", KvDType::F16, true),
    ] {
        let tokens = [tokens(2 * STRETCH + 90, 3), tokens(3 * STRETCH + 20, 5)];
        let done = [2 * STRETCH + 60, 3 * STRETCH + 19];
        let blocks = tokens.each_ref().map(|tokens| tokens.len().div_ceil(BLOCK_SIZE) as u32);
        let tables = [(0..blocks[0]).rev().collect::<Vec<_>>(), (blocks[0]..blocks[0] + blocks[1]).collect()];
        let mut harness = harness(name, dtype, (blocks[0] + blocks[1]) as usize, apart);
        let beside = [0, 1].map(|index| Beside::of(&harness.model, index, &tables[index]));
        computed(&mut harness, &tokens, &tables, &beside, done);
        let groups = [0, 1].map(|index| beside[index].groups(done[index], true));
        assert_eq!(apart, !groups[0].is_empty(), "{name}");
        let layout = harness.model.blocks().trunk().clone();
        let kv = harness.device.kv();
        let mut below = Copied {
            blocks: tables.iter().map(|table| table.iter().map(|&block| kv.block(block).to_vec()).collect()).collect(),
            layers: (0..layout.num_layers())
                .map(|layer| (layout.layer(layer).key_offset(0), layout.layer(layer).part_bytes()))
                .collect(),
            asked: Vec::new(),
            given: 0,
            lost: None,
        };
        let pass = |harness: &mut Harness, stretches: [usize; 2], below: &mut Copied, logits: LogitRows| {
            let of = |index: usize| {
                let positions = stretches[index] * STRETCH;
                BatchSequence {
                    tokens: &tokens[index][done[index]..],
                    first_position: done[index],
                    prompt_len: 9,
                    below: positions,
                    blocks: SequenceBlocks::Listed(&tables[index][positions / BLOCK_SIZE..]),
                    groups: &groups[index],
                    logits,
                }
            };
            let mut rows = Vec::new();
            let device: &mut dyn Device = &mut harness.device;
            let outcome = harness.model.forward_from(device, &[of(0), of(1)], below, &mut |_, row| {
                rows.push(row.all().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
            });
            outcome.map(|()| rows)
        };
        let whole = pass(&mut harness, [0, 0], &mut below, LogitRows::All).unwrap();
        assert!(below.asked.is_empty());
        let last = [tokens[0].len() - done[0] - 1, whole.len() - 1].map(|row| whole[row].clone());
        assert!(pass(&mut harness, [0, 0], &mut below, LogitRows::Last).unwrap() == last, "{name}");
        for stretches in [[1, 0], [2, 3], [0, 2], [2, 1]] {
            // What is below is no longer in memory.
            let gone = |index: usize| &tables[index][..stretches[index] * STRETCH / BLOCK_SIZE];
            let gone: Vec<u32> = gone(0).iter().chain(gone(1)).copied().collect();
            for &block in &gone {
                harness.device.kv_mut().block_mut(block).fill(0xff);
            }
            // Where only the last rows are wanted, some layers compute these rows alone.
            let few = &whole[whole.len() - 6..];
            for (logits, want) in
                [(LogitRows::All, &whole[..]), (LogitRows::Last, &last[..]), (LogitRows::LastFew(5), few)]
            {
                let got = pass(&mut harness, stretches, &mut below, logits).unwrap();
                assert!(got == want, "{name}, {stretches:?} stretches below, {logits:?}");
                assert!(below.given == below.asked.len() && !below.asked.is_empty());
            }
            for (index, table) in tables.iter().enumerate() {
                for (&block, bytes) in table.iter().zip(&below.blocks[index]).filter(|(block, _)| gone.contains(block))
                {
                    harness.device.kv_mut().block_mut(block).copy_from_slice(bytes);
                }
            }
        }
        // A pass that loses a frame says whose, and the next one is as if it had never been.
        let last = *below.asked.last().unwrap();
        below.lost = Some(below.asked.len() - 1);
        let error = pass(&mut harness, [2, 1], &mut below, LogitRows::All).unwrap_err();
        assert!(matches!(error, ForwardError::Kv(KvLost { sequence, .. }) if sequence == last.sequence), "{error}");
        below.lost = None;
        assert!(pass(&mut harness, [2, 1], &mut below, LogitRows::All).unwrap() == whole);
    }
}
