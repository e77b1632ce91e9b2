//! Gated convolutions, which keep a state without matrices, on every device: alike within rounding, and on each device
//! the same to the bit however a sequence is cut into passes, and wherever its state has been meanwhile.

use interbed_device::{Command, Device, PassNeeds, Queue, TensorArea, Weights};
use interbed_kernels::{
    BlockGroups, DType, KvDType, KvLayout, KvShape, StateLayer, StateLayout, StateShape, StateSpan,
};

use crate::devices::devices;
use crate::states::{assert_close, bits, numbers, weights};

/// The number of the first block of states.
const FIRST: u32 = 3;

/// Two layers that keep states, of which the first is tested, and a sequence.
struct Case {
    groups: BlockGroups,
    layer: StateLayer,
    taps: Weights,
    bias: Option<Weights>,
    /// `[tokens, b | c | x]`
    projections: Vec<f32>,
    channels: usize,
}

impl Case {
    fn new(channels: usize, taps: usize, tokens: usize, dtype: DType, has_bias: bool) -> Self {
        let shape = StateShape { rows: taps - 1, channels, ..StateShape::default() };
        let kv = KvLayout::new(4, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 8 }]);
        let groups = BlockGroups::new(kv, FIRST as usize).with(StateLayout::new([shape; 2]), 4);
        Self {
            layer: groups.states(1).layer(0),
            groups,
            taps: weights(dtype, channels, taps, &numbers(1, channels * taps)),
            bias: has_bias.then(|| weights(dtype, 1, channels, &numbers(2, channels))),
            projections: numbers(3, 3 * tokens * channels).iter().map(|x| 3.0 * x).collect(),
            channels,
        }
    }

    fn tokens(&self) -> usize {
        self.projections.len() / self.channels / 3
    }

    fn devices(&self) -> Vec<(String, Box<dyn Device>)> {
        let mut tensors = TensorArea::default();
        tensors.take(8 * self.projections.len());
        devices(&PassNeeds { tensors, ..PassNeeds::default() }, &self.groups)
    }

    /// Computes these rows as one pass.
    fn pass(&self, device: &mut dyn Device, sequences: &[StateSpan], rows: &[usize]) -> Vec<f32> {
        let width = 3 * self.channels;
        let own: Vec<f32> = rows.iter().flat_map(|row| &self.projections[row * width..][..width]).copied().collect();
        let mut area = TensorArea::default();
        let [projections, out] = [own.len(), own.len() / 3].map(|len| area.take(len));
        let values = |to: &mut [f32]| to.copy_from_slice(&own);
        let (layer, weights, bias) = (self.layer, &self.taps, self.bias.as_ref());
        let commands = [
            Command::Fill { out: projections, values: &values },
            Command::ShortConvolution { layer, sequences, weights, bias, projections, out },
        ];
        let computed = device.submit(Queue::Compute, &commands, &[]).unwrap();
        let token = device.submit(Queue::Download, &[Command::Download { from: out }], &[computed]).unwrap();
        device.complete(token).unwrap();
        device.downloaded(out).unwrap().to_vec()
    }

    /// A block with the states of both layers.
    fn block(&self, device: &mut dyn Device, block: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.groups.layout_of(block).block_bytes()];
        device.read_block(block, 0, &mut bytes).unwrap();
        bytes
    }

    /// The state of the tested layer in a block.
    fn state(&self, device: &mut dyn Device, block: u32) -> Vec<f32> {
        let own = self.block(device, block);
        let own = &own[self.layer.rows_offset()..][..self.layer.shape().bytes()];
        own.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)).collect()
    }

    /// What the formula gives: the results, and the state after all tokens.
    fn expected(&self) -> [Vec<f32>; 2] {
        let (channels, taps) = (self.channels, self.layer.shape().rows + 1);
        let at = |token: usize, part: usize, channel: usize| {
            f64::from(self.projections[(3 * token + part) * channels + channel])
        };
        let gated = |token: usize, channel: usize| at(token, 0, channel) * at(token, 2, channel);
        let [weights, bias] = [Some(&self.taps), self.bias.as_ref()].map(|weights| {
            let mut widened = vec![0.0; weights.map_or(channels, |weights| weights.rows() * weights.cols())];
            weights.inspect(|weights| weights.matrix().flat().widen_row(0, &mut widened));
            widened
        });
        let (mut results, mut state) = (Vec::new(), Vec::new());
        for token in 0..self.tokens() {
            for channel in 0..channels {
                let terms = (0..taps).filter(|tap| token + tap + 1 >= taps);
                let terms =
                    terms.map(|tap| f64::from(weights[channel * taps + tap]) * gated(token + tap + 1 - taps, channel));
                let sum = f64::from(bias[channel]) + terms.sum::<f64>();
                results.push((at(token, 1, channel) * sum) as f32);
                if token + taps > self.tokens() {
                    state.push(gated(token, channel) as f32);
                }
            }
        }
        [results, state]
    }

    fn check(&self) {
        let (tokens, width) = (self.tokens(), self.channels);
        let span = |tokens: usize, from: Option<u32>, to: u32| StateSpan { tokens, from, to, stored_after: tokens };
        let [results, last] = self.expected();
        for (name, mut device) in self.devices() {
            let device = &mut *device;
            let all: Vec<_> = (0..tokens).collect();
            let whole = self.pass(device, &[span(tokens, None, FIRST)], &all);
            assert_close(&whole, &results, &name);
            let state = self.state(device, FIRST);
            assert_close(&state, &last, &name);

            // Two sequences that begin alike; one of them has drafts, of which its state knows nothing.
            let rows: Vec<_> = (0..3).chain(0..7).collect();
            let with_drafts = StateSpan { tokens: 7, ..span(4, None, FIRST + 2) };
            let both = self.pass(device, &[span(3, None, FIRST + 1), with_drafts], &rows);
            assert_eq!(bits(&both), [bits(&whole[..3 * width]), bits(&whole[..7 * width])].concat(), "{name}");
            // One goes on in place; a copy of the other elsewhere, after a visit to the host.
            let bytes = self.block(device, FIRST + 2);
            device.resize_blocks(&[], &[FIRST + 2]).unwrap();
            device.fill_block(FIRST + 3, 0..bytes.len(), &mut |to| to.copy_from_slice(&bytes)).unwrap();
            let rows: Vec<_> = (3..4).chain(4..tokens).collect();
            let spans = [span(1, Some(FIRST + 1), FIRST + 1), span(tokens - 4, Some(FIRST + 3), FIRST)];
            let both = self.pass(device, &spans, &rows);
            let expected = [bits(&whole[3 * width..4 * width]), bits(&whole[4 * width..])].concat();
            assert_eq!(bits(&both), expected, "{name}");
            assert_eq!(bits(&self.state(device, FIRST)), bits(&state), "{name}");
            assert_eq!(bits(&self.state(device, FIRST + 1)), bits(&self.state(device, FIRST + 3)), "{name}");
        }
    }
}

#[test]
fn three_taps_without_a_bias() {
    Case::new(70, 3, 11, DType::BF16, false).check();
    Case::new(2048, 3, 9, DType::F32, false).check();
}

#[test]
fn other_taps_with_a_bias() {
    Case::new(33, 5, 12, DType::F32, true).check();
    Case::new(7, 2, 8, DType::BF16, true).check();
}
