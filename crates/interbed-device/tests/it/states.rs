//! Layers that go on from states, on every device: alike within rounding, and on each device the same to the bit
//! however a sequence is cut into passes, whoever computes beside it, and wherever its state has been meanwhile.

use std::sync::Arc;

use interbed_device::{Command, Device, HostBuffer, PassNeeds, Queue, Tensor, TensorArea, Weights};
use interbed_kernels::{
    BlockGroups, DType, DecayForm, DeltaRule, KeySharing, KvDType, KvLayout, KvShape, StateLayer, StateLayout,
    StateShape, StateSpace, StateSpan,
};

use crate::devices::devices;

/// Numbers that all tensors of a test have together.
const CAPACITY: usize = 1 << 19;

const STATES: usize = 6;

/// Numbers in -1 .. 1 from a linear congruential generator.
pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

pub fn weights(dtype: DType, rows: usize, cols: usize, numbers: &[f32]) -> Weights {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|&number| half::bf16::from_f32(number).to_le_bytes()).collect(),
    };
    let mut buffer = HostBuffer::new_zeroed(bytes.len()).unwrap();
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
    Weights::new(dtype, rows, cols, Arc::new(buffer), 0..bytes.len())
}

/// What a layer computes behind its convolution.
enum Rule {
    Delta(DeltaRule),
    Space(StateSpace),
}

/// A model's two layers with states, and a sequence.
struct Case {
    rule: Rule,
    groups: BlockGroups,
    layer: StateLayer,
    taps: Weights,
    /// Of the convolution, if there is one.
    shift: Option<Weights>,
    rates: Weights,
    bias: Weights,
    skip: Weights,
    /// `[tokens, channels]`
    x: Vec<f32>,
    /// `[tokens, heads]`
    gates: [Vec<f32>; 2],
}

impl Case {
    fn new(key_heads: usize, each: usize, [key_width, value_width]: [usize; 2], taps: usize, tokens: usize) -> Self {
        let heads = key_heads * each;
        let (sharing, decay) = match each {
            2 => (KeySharing::Strided, DecayForm::NegativeRate),
            _ => (KeySharing::Neighbours, DecayForm::Logarithm),
        };
        let rule = DeltaRule { key_heads, sharing, decay, epsilon: 1e-6 };
        let mut shape = StateShape { rows: taps - 1, channels: 0, heads, key_width, value_width };
        shape.channels = rule.width(&shape);
        Self::of(Rule::Delta(rule), shape, tokens)
    }

    /// A state space; its convolution has a bias.
    fn space(
        groups: usize,
        each: usize,
        [state_width, head_width]: [usize; 2],
        limits: [f32; 2],
        tokens: usize,
    ) -> Self {
        let decay = if each == 2 { DecayForm::NegativeRate } else { DecayForm::Logarithm };
        let space = StateSpace { groups, decay, limits };
        let (key_width, value_width) = (state_width, head_width);
        let mut shape = StateShape { rows: 3, channels: 0, heads: groups * each, key_width, value_width };
        shape.channels = space.width(&shape);
        let case = Self::of(Rule::Space(space), shape, tokens);
        Self { shift: Some(weights(DType::BF16, 1, shape.channels, &numbers(7, shape.channels))), ..case }
    }

    fn of(rule: Rule, shape: StateShape, tokens: usize) -> Self {
        let (heads, taps) = (shape.heads, shape.rows + 1);
        let kv = |layers: usize| KvLayout::new(4, KvDType::F32, vec![KvShape { num_kv_heads: 1, head_dim: 8 }; layers]);
        let groups = BlockGroups::new(kv(1), 3).with(kv(2), 2).with(StateLayout::new([shape; 2]), STATES);
        let rates: Vec<f32> = numbers(2, heads).iter().map(|rate| rate.abs() * -2.0).collect();
        Self {
            rule,
            layer: groups.states(2).layer(1),
            groups,
            shift: None,
            skip: weights(DType::F32, 1, heads, &numbers(8, heads)),
            taps: weights(DType::BF16, shape.channels, taps, &numbers(1, shape.channels * taps)),
            rates: weights(DType::F32, 1, heads, &rates),
            bias: weights(DType::BF16, 1, heads, &numbers(3, heads)),
            x: numbers(4, tokens * shape.channels).iter().map(|x| 3.0 * x).collect(),
            gates: [5, 6].map(|seed| numbers(seed, tokens * heads).iter().map(|x| 4.0 * x).collect()),
        }
    }

    fn first(&self) -> u32 {
        self.groups.groups()[2].numbers().start as u32
    }

    fn devices(&self) -> Vec<(String, Box<dyn Device>)> {
        let mut tensors = TensorArea::default();
        tensors.take(CAPACITY);
        devices(&PassNeeds { tensors, ..PassNeeds::default() }, &self.groups)
    }

    /// Computes these rows as one pass.
    fn pass(&self, device: &mut dyn Device, sequences: &[StateSpan], rows: &[usize]) -> Vec<f32> {
        let (layer, heads) = (self.layer, self.layer.shape().heads);
        let of = |numbers: &[f32], width: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| &numbers[row * width..(row + 1) * width]).copied().collect()
        };
        let mut area = TensorArea::default();
        let mut put = |device: &mut dyn Device, numbers: Vec<f32>| -> Tensor {
            let out = area.take(numbers.len());
            let values = |to: &mut [f32]| to.copy_from_slice(&numbers);
            device.submit(Queue::Compute, &[Command::Fill { out, values: &values }], &[]).unwrap();
            out
        };
        let qkv = put(device, of(&self.x, layer.shape().channels));
        let [a, b] = self.gates.each_ref().map(|gate| put(device, of(gate, heads)));
        let out = area.take(rows.len() * heads * layer.shape().value_width);
        let (rates, bias, skip) = (&self.rates, &self.bias, &self.skip);
        let commands = [
            Command::Convolve { layer, sequences, weights: &self.taps, bias: self.shift.as_ref(), x: qkv },
            match self.rule {
                Rule::Delta(rule) => Command::DeltaRule { layer, sequences, rule, rates, bias, qkv, a, b, out },
                Rule::Space(space) => {
                    let (xbc, steps, decays) = (qkv, a, b);
                    Command::StateSpace { layer, sequences, space, rates, bias, skip, xbc, steps, decays, out }
                }
            },
        ];
        let computed = device.submit(Queue::Compute, &commands, &[]).unwrap();
        let token = device.submit(Queue::Download, &[Command::Download { from: out }], &[computed]).unwrap();
        device.complete(token).unwrap();
        device.downloaded(out).unwrap().to_vec()
    }

    /// The state of the layer in a block.
    fn state(&self, device: &mut dyn Device, block: u32) -> Vec<f32> {
        let mut bytes = vec![0; self.groups.layout_of(block).block_bytes()];
        device.read_block(block, 0, &mut bytes).unwrap();
        let own = &bytes[self.layer.rows_offset()..][..self.layer.shape().bytes()];
        own.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)).collect()
    }

    /// Asserts that all devices agree, and that each agrees with itself to the bit in whatever passes.
    fn check(&self) {
        let (tokens, first) = (self.gates[0].len() / self.layer.shape().heads, self.first());
        let span = |tokens: usize, from: Option<u32>, to: u32| StateSpan { tokens, from, to, stored_after: tokens };
        let width = self.layer.shape().heads * self.layer.shape().value_width;
        let mut want: Option<[Vec<f32>; 2]> = None;
        for (name, mut device) in self.devices() {
            let device = &mut *device;
            let all: Vec<_> = (0..tokens).collect();
            let whole = self.pass(device, &[span(tokens, None, first)], &all);
            let state = self.state(device, first);
            let [out, last] = want.get_or_insert_with(|| [whole.clone(), state.clone()]);
            assert_close(&whole, out, &name);
            assert_close(&state, last, &name);

            // The first three tokens, once more beside the first eight of another sequence.
            let rows: Vec<_> = (0..3).chain(0..8).collect();
            let both = self.pass(device, &[span(3, None, first + 1), span(8, None, first + 2)], &rows);
            assert_eq!(bits(&both), [bits(&whole[..3 * width]), bits(&whole[..8 * width])].concat(), "{name}");
            // The one goes on in place; a copy of the other elsewhere.
            let copies = [(first + 2, first + 3)];
            device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &copies }], &[]).unwrap();
            let rows: Vec<_> = (3..4).chain(8..tokens).collect();
            let spans = [span(1, Some(first + 1), first + 1), span(tokens - 8, Some(first + 3), first + 4)];
            let both = self.pass(device, &spans, &rows);
            let expected = [bits(&whole[3 * width..4 * width]), bits(&whole[8 * width..])].concat();
            assert_eq!(bits(&both), expected, "{name}");
            assert_eq!(bits(&self.state(device, first + 4)), bits(&state), "{name}");
            // The state after four tokens was on the host meanwhile, and two sequences go on from it.
            let mut bytes = vec![0; self.groups.layout_of(first).block_bytes()];
            device.read_block(first + 1, 0, &mut bytes).unwrap();
            device.resize_blocks(&[], &[first + 1]).unwrap();
            device.fill_block(first + 5, 0..bytes.len(), &mut |to| to.copy_from_slice(&bytes)).unwrap();
            let rows: Vec<_> = (4..6).chain(4..tokens).collect();
            let spans = [span(2, Some(first + 5), first), span(tokens - 4, Some(first + 5), first + 3)];
            let both = self.pass(device, &spans, &rows);
            let expected = [bits(&whole[4 * width..6 * width]), bits(&whole[4 * width..])].concat();
            assert_eq!(bits(&both), expected, "{name}");
            assert_eq!(bits(&self.state(device, first + 3)), bits(&state), "{name}");
            // Drafts follow: some of this sequence, and any others. What goes on from the states knows nothing of them.
            let with_drafts = |span: StateSpan, drafts: usize| StateSpan { tokens: span.tokens + drafts, ..span };
            let rows: Vec<_> = (0..6).chain(0..1).chain([7, 2, 3]).collect();
            let spans = [with_drafts(span(4, None, first + 1), 2), with_drafts(span(1, None, first + 2), 3)];
            let both = self.pass(device, &spans, &rows);
            let sure = [bits(&both[..6 * width]), bits(&both[6 * width..7 * width])].concat();
            assert_eq!(sure, [bits(&whole[..6 * width]), bits(&whole[..width])].concat(), "{name}");
            let rows: Vec<_> = (4..tokens).chain([1, 5]).collect();
            let in_place = with_drafts(span(1, Some(first + 2), first + 2), 1);
            let both = self.pass(device, &[span(tokens - 4, Some(first + 1), first + 1), in_place], &rows);
            let sure = bits(&both[..(tokens - 3) * width]);
            assert_eq!(sure, [bits(&whole[4 * width..]), bits(&whole[width..2 * width])].concat(), "{name}");
            assert_eq!(bits(&self.state(device, first + 1)), bits(&state), "{name}");
            self.pass(device, &[span(tokens - 2, Some(first + 2), first + 3)], &(2..tokens).collect::<Vec<_>>());
            assert_eq!(bits(&self.state(device, first + 3)), bits(&state), "{name}");
        }
    }
}

pub fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-6f32, |largest, value| largest.max(value.abs()));
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 2e-5 * largest, "{what}: [{at}] is {got}, not {want}");
    }
}

#[test]
fn small_heads_of_odd_sizes() {
    Case::new(1, 3, [5, 7], 3, 11).check();
    Case::new(3, 1, [12, 33], 4, 9).check();
    Case::new(2, 2, [20, 16], 1, 10).check();
}

#[test]
fn heads_of_usual_sizes() {
    Case::new(2, 2, [128, 128], 4, 17).check();
    Case::new(1, 3, [64, 128], 4, 12).check();
}

#[test]
fn state_spaces_of_odd_and_usual_sizes() {
    Case::space(1, 3, [5, 7], [0.0, f32::INFINITY], 11).check();
    Case::space(3, 1, [20, 33], [0.2, 1.0], 9).check();
    Case::space(2, 2, [128, 64], [0.0, f32::INFINITY], 17).check();
}
