//! Layers with a sliding window, whose blocks behind the window are gone, on every device: the same to the bit as with
//! all blocks.

use std::ops::Range;

use interbed_device::{Command, Device, KvSequences, PassNeeds, Queue, Tensor, TensorArea};
use interbed_kernels::{
    AttentionLayer, AttentionSpan, BlockGroups, KvDType, KvLayout, KvShape, RopeStyle, STRETCH, attention_scratch,
};

use crate::devices::devices;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const BLOCK_SIZE: usize = 16;
const WINDOW: usize = 150;

/// Tokens that are computed last, and look at what the others have left.
const ASKED: Range<usize> = 2 * STRETCH + 60..2 * STRETCH + 73;

/// Blocks of the trunk, which come before those of the window.
const TRUNK: usize = 3;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A device, with the tensors of a pass.
struct Bench<'a> {
    device: &'a mut dyn Device,
    layer: AttentionLayer,
    area: TensorArea,
}

impl Bench<'_> {
    fn put(&mut self, numbers: &[f32]) -> Tensor {
        let out = self.area.take(numbers.len());
        let values = |to: &mut [f32]| to.copy_from_slice(numbers);
        self.device.submit(Queue::Compute, &[Command::Fill { out, values: &values }], &[]).unwrap();
        out
    }

    fn store(&mut self, positions: Range<usize>, held: usize, tables: &[u32]) {
        let count = positions.len();
        let row = KV_HEADS * HEAD_DIM;
        let of = |seed: u64| numbers(seed, ASKED.end * row)[positions.start * row..positions.end * row].to_vec();
        let [k, v] = [1, 2].map(|seed| self.put(&of(seed)));
        let [cos, sin] = [1.0, 0.0].map(|number| self.put(&vec![number; count * HEAD_DIM / 2]));
        let q = self.put(&vec![0.0; count * HEADS * HEAD_DIM]);
        let spans = [span(&positions, held, tables.len())];
        let sequences = KvSequences { spans: &spans, tables };
        let (layer, style) = (self.layer.kv, RopeStyle::Halves);
        let store = Command::StoreKv { layer, sequences, style, cos, sin, q, k, v };
        let token = self.device.submit(Queue::Compute, &[store], &[]).unwrap();
        self.device.complete(token).unwrap();
        self.area = TensorArea::default();
    }

    /// The attention of the asked tokens, over a table that begins at position `held`.
    fn attend(&mut self, held: usize, tables: &[u32]) -> Vec<u32> {
        let q = self.put(&numbers(3, ASKED.len() * HEADS * HEAD_DIM));
        let out = self.area.take(q.len());
        let spans = [span(&ASKED, held, tables.len())];
        let (sequences, layer) = (KvSequences { spans: &spans, tables }, self.layer);
        let attend = Command::Attend { layer, frame: None, sequences, sinks: None, q, state: Tensor::default(), out };
        let token = self.device.submit(Queue::Compute, &[attend, Command::Download { from: out }], &[]).unwrap();
        self.device.complete(token).unwrap();
        self.area = TensorArea::default();
        self.device.downloaded(out).unwrap().iter().map(|number| number.to_bits()).collect()
    }
}

fn span(positions: &Range<usize>, held: usize, blocks: usize) -> AttentionSpan {
    AttentionSpan {
        held: held..positions.end,
        ..AttentionSpan::new(positions.start, positions.len(), 0..blocks as u32)
    }
}

fn check(dtype: KvDType, scratch: bool) {
    let kv = |layers: usize| {
        KvLayout::new(BLOCK_SIZE, dtype, vec![KvShape { num_kv_heads: KV_HEADS, head_dim: HEAD_DIM }; layers])
    };
    let blocks = ASKED.end.div_ceil(BLOCK_SIZE);
    let groups = BlockGroups::new(kv(0), TRUNK).with(kv(2), blocks + 2);
    let layer = AttentionLayer { kv: groups.kv(1).layer(1), heads: HEADS, scale: 0.25, window: Some(WINDOW) };
    let mut tensors = TensorArea::default();
    tensors.take(1 << 20);
    let attention_scratch = if scratch { attention_scratch(HEADS, HEAD_DIM, ASKED.end) } else { 0 };
    let needs = PassNeeds { tensors, attention_scratch, ..PassNeeds::default() };
    // Neighbours in the sequence are no neighbours in memory.
    let tables: Vec<u32> =
        (0..blocks as u32).map(|block| TRUNK as u32 + (block + 1) * 7 % (blocks as u32 + 2)).collect();
    for (name, mut device) in devices(&needs, &groups) {
        let mut bench = Bench { device: &mut *device, layer, area: TensorArea::default() };
        bench.store(0..ASKED.end, 0, &tables);
        let whole = bench.attend(0, &tables);
        let unseen = (ASKED.start + 1 - WINDOW) / BLOCK_SIZE;
        assert!(!(unseen * BLOCK_SIZE).is_multiple_of(64));
        let is_slow = name.starts_with("reference");
        let cuts = (0..=unseen).filter(|cut| !is_slow || cut % 29 == 0 || *cut == unseen);
        for cut in cuts {
            let cut = bench.attend(cut * BLOCK_SIZE, &tables[cut..]);
            assert!(cut == whole, "{name}, {dtype}");
        }
        // What is stored through a cut table lies at the same places.
        bench.store(ASKED, unseen * BLOCK_SIZE, &tables[unseen..]);
        assert!(bench.attend(0, &tables) == whole, "{name}, {dtype}");
        // Blocks that are gone are not looked at.
        bench.device.resize_blocks(&[], &tables[..unseen]).unwrap();
        assert!(bench.attend(unseen * BLOCK_SIZE, &tables[unseen..]) == whole, "{name}, {dtype}");
    }
}

#[test]
fn plain_types() {
    check(KvDType::F32, false);
    check(KvDType::F32, true);
    check(KvDType::BF16, true);
}

#[test]
fn small_types() {
    check(KvDType::F16, false);
    check(KvDType::Q8, false);
}
