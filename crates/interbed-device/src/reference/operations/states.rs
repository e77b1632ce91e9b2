//! Operations that continue from the states of sequences.

use std::ops::Range;

use interbed_kernels::{DecayForm, DeltaRule, StateLayer, StateSpace, StateSpan};

use super::{DeviceMemory, Operation, dot, widened};
use crate::{Command, Tensor, Weights};

/// Prepares a command that goes on from states.
pub fn of(command: &Command<'_>) -> Operation {
    match *command {
        Command::Convolve { layer, sequences, weights, bias, x } => convolve(layer, sequences, weights, bias, x),
        Command::ShortConvolution { layer, sequences, weights, bias, projections, out } => {
            short_convolution(layer, sequences, weights, bias, projections, out)
        }
        Command::DeltaRule { layer, sequences, rule, rates, bias, qkv, a, b, out } => {
            delta_rule(layer, sequences, rule, [rates, bias], [qkv, a, b], out)
        }
        Command::StateSpace { layer, sequences, space, rates, bias, skip, xbc, steps, decays, out } => {
            state_space(layer, sequences, space, [rates, bias, skip], xbc, [steps, decays], out)
        }
        _ => unreachable!("no other command knows states"),
    }
}

/// Convolves the rows of each sequence.
fn convolve(
    layer: StateLayer,
    sequences: &[StateSpan],
    weights: &Weights,
    bias: Option<&Weights>,
    x: Tensor,
) -> Operation {
    let (sequences, channels) = (sequences.to_vec(), layer.shape().channels);
    let (weights, bias) = (weights.clone(), bias.cloned());
    Box::new(move |memory| {
        let bias = bias.map_or_else(|| vec![0.0; channels], |bias| widened(&bias, 0));
        let (rows, at) = (layer.shape().rows, layer.rows_offset());
        let taps: Vec<_> = (0..weights.rows()).flat_map(|row| widened(&weights, row)).collect();
        let mut values = memory.get(x);
        for (span, own) in with_rows(&sequences) {
            let own = &mut values[own.start * channels..own.end * channels];
            let mut inputs = memory.state(span.from, at, rows * channels);
            inputs.extend_from_slice(own);
            for (index, value) in own.iter_mut().enumerate() {
                let (token, channel) = (index / channels, index % channels);
                let taps = &taps[channel * (rows + 1)..][..=rows];
                let terms = taps.iter().enumerate();
                let terms = terms.map(|(tap, weight)| weight * inputs[(token + tap) * channels + channel]);
                let sum = terms.sum::<f32>() + bias[channel];
                *value = sum / (1.0 + (-sum).exp());
            }
            if rows > 0 {
                let last = inputs[span.stored_after * channels..][..rows * channels].to_vec();
                memory.states.insert((span.to, at), last);
            }
        }
        memory.set(x, &values);
    })
}

/// Convolves the gated rows of each sequence, and gates the result.
fn short_convolution(
    layer: StateLayer,
    sequences: &[StateSpan],
    weights: &Weights,
    bias: Option<&Weights>,
    projections: Tensor,
    out: Tensor,
) -> Operation {
    let (sequences, channels) = (sequences.to_vec(), layer.shape().channels);
    let (weights, bias) = (weights.clone(), bias.cloned());
    Box::new(move |memory| {
        let (rows, at) = (layer.shape().rows, layer.rows_offset());
        let taps: Vec<_> = (0..weights.rows()).flat_map(|row| widened(&weights, row)).collect();
        let bias = bias.map_or_else(|| vec![0.0; channels], |bias| widened(&bias, 0));
        let all = memory.get(projections);
        let mut results = Vec::new();
        for (span, own) in with_rows(&sequences) {
            let own = &all[own.start * 3 * channels..own.end * 3 * channels];
            let mut inputs = memory.state(span.from, at, rows * channels);
            inputs.extend(own.chunks(3 * channels).flat_map(|row| {
                let [b, x] = [0, 2].map(|part| &row[part * channels..][..channels]);
                b.iter().zip(x).map(|(b, x)| b * x).collect::<Vec<_>>()
            }));
            for (token, row) in own.chunks(3 * channels).enumerate() {
                for channel in 0..channels {
                    let taps = taps[channel * (rows + 1)..][..=rows].iter().enumerate();
                    let terms = taps.map(|(tap, weight)| weight * inputs[(token + tap) * channels + channel]);
                    results.push(row[channels + channel] * (bias[channel] + terms.sum::<f32>()));
                }
            }
            if rows > 0 {
                let last = inputs[span.stored_after * channels..][..rows * channels].to_vec();
                memory.states.insert((span.to, at), last);
            }
        }
        memory.set(out, &results);
    })
}

/// Computes the gated delta rule; `constants` are the heads' rates and biases.
fn delta_rule(
    layer: StateLayer,
    sequences: &[StateSpan],
    rule: DeltaRule,
    constants: [&Weights; 2],
    [qkv, a, b]: [Tensor; 3],
    out: Tensor,
) -> Operation {
    let (sequences, constants, shape) = (sequences.to_vec(), constants.map(Weights::clone), layer.shape());
    Box::new(move |memory| {
        let (heads, at) = (shape.heads, layer.matrices_offset());
        let [rates, bias] = constants.map(|constant| widened(&constant, 0));
        let [rows, forgets, learns] = [qkv, a, b].map(|tensor| memory.get(tensor));
        let mut results = Vec::new();
        for (span, own) in with_rows(&sequences) {
            let mut matrices = memory.state(span.from, at, shape.matrix_bytes() / size_of::<f32>());
            let last = own.start + span.stored_after - 1;
            for token in own {
                let row = &rows[token * rule.width(&shape)..][..rule.width(&shape)];
                for head in 0..heads {
                    let rate = match rule.decay {
                        DecayForm::Logarithm => -rates[head].exp(),
                        DecayForm::NegativeRate => rates[head],
                    };
                    let forget = forgets[token * heads + head] + bias[head];
                    let decay = (rate * forget.exp().ln_1p()).exp();
                    let beta = 1.0 / (1.0 + (-learns[token * heads + head]).exp());
                    let size = shape.key_width * shape.value_width;
                    let matrix = &mut matrices[head * size..][..size];
                    let [q, k, v] = of_head(&layer, rule, row, head);
                    results.extend(advance(matrix, [&q, &k, &v], [decay, beta]));
                }
                if token == last {
                    memory.states.insert((span.to, at), matrices.clone());
                }
            }
        }
        // Others may use these otherwise.
        [qkv, a, b].into_iter().for_each(|tensor| memory.numbers[tensor.range()].fill(f32::NAN));
        memory.set(out, &results);
    })
}

/// Computes the state space; `constants` are the heads' rates, biases and skips.
fn state_space(
    layer: StateLayer,
    sequences: &[StateSpan],
    space: StateSpace,
    constants: [&Weights; 3],
    xbc: Tensor,
    [steps, decays]: [Tensor; 2],
    out: Tensor,
) -> Operation {
    let (sequences, constants, shape) = (sequences.to_vec(), constants.map(Weights::clone), layer.shape());
    Box::new(move |memory| {
        let (heads, at, size) = (shape.heads, layer.matrices_offset(), shape.key_width * shape.value_width);
        let [rates, bias, skip] = constants.map(|constant| widened(&constant, 0));
        let [rows, far] = [xbc, steps].map(|tensor| memory.get(tensor));
        let mut results = Vec::new();
        for (span, own) in with_rows(&sequences) {
            let mut matrices = memory.state(span.from, at, shape.matrix_bytes() / size_of::<f32>());
            let last = own.start + span.stored_after - 1;
            for token in own {
                let row = &rows[token * space.width(&shape)..][..space.width(&shape)];
                let (x, groups) = row.split_at(heads * shape.value_width);
                for head in 0..heads {
                    let rate = match space.decay {
                        DecayForm::Logarithm => -rates[head].exp(),
                        DecayForm::NegativeRate => rates[head],
                    };
                    let step = (far[token * heads + head] + bias[head]).exp().ln_1p();
                    let step = step.clamp(space.limits[0], space.limits[1]);
                    let group = head / (heads / space.groups);
                    let [enters, leaves] =
                        [group, space.groups + group].map(|at| &groups[at * shape.key_width..][..shape.key_width]);
                    let matrix = &mut matrices[head * size..][..size];
                    for (column, x) in x[head * shape.value_width..][..shape.value_width].iter().enumerate() {
                        let mut sum = skip[head] * x;
                        for (index, (enter, leave)) in enters.iter().zip(leaves).enumerate() {
                            let number = &mut matrix[index * shape.value_width + column];
                            *number = (rate * step).exp() * *number + enter * step * x;
                            sum += leave * *number;
                        }
                        results.push(sum);
                    }
                }
                if token == last {
                    memory.states.insert((span.to, at), matrices.clone());
                }
            }
        }
        // Others may use these otherwise.
        [steps, decays].into_iter().for_each(|tensor| memory.numbers[tensor.range()].fill(f32::NAN));
        memory.set(out, &results);
    })
}

/// Returns the query, the key and the value of a value head; query and key have been normalized.
fn of_head(layer: &StateLayer, rule: DeltaRule, row: &[f32], head: usize) -> [Vec<f32>; 3] {
    let (shape, width) = (layer.shape(), layer.shape().key_width);
    let normed = |index: usize| {
        let head = &row[index * width..][..width];
        let factor = 1.0 / (dot(head, head) + rule.epsilon).sqrt();
        head.iter().map(|x| x * factor).collect::<Vec<_>>()
    };
    let key_head = rule.sharing.key_head(head, shape.heads, rule.key_heads);
    let scale = 1.0 / (width as f32).sqrt();
    let query = normed(key_head).iter().map(|q| q * scale).collect();
    let values = &row[2 * rule.key_heads * width + head * shape.value_width..][..shape.value_width];
    [query, normed(rule.key_heads + key_head), values.to_vec()]
}

/// Changes a head's matrix by one token, and returns the token's result.
fn advance(matrix: &mut [f32], [q, k, v]: [&[f32]; 3], [decay, beta]: [f32; 2]) -> Vec<f32> {
    let width = v.len();
    matrix.iter_mut().for_each(|number| *number *= decay);
    let column = |column: usize| {
        let found: f32 = k.iter().enumerate().map(|(row, k)| k * matrix[row * width + column]).sum();
        let change = beta * (v[column] - found);
        k.iter().enumerate().for_each(|(row, k)| matrix[row * width + column] += k * change);
        q.iter().enumerate().map(|(row, q)| q * matrix[row * width + column]).sum()
    };
    (0..width).map(column).collect()
}

impl DeviceMemory {
    /// Returns `count` numbers of a state, which begin at byte `at` of a block. A state that was never written is NaN.
    fn state(&self, block: Option<u32>, at: usize, count: usize) -> Vec<f32> {
        match block {
            None => vec![0.0; count],
            // Parts without numbers begin where the next part begins.
            Some(_) if count == 0 => Vec::new(),
            Some(block) => self.states.get(&(block, at)).cloned().unwrap_or_else(|| vec![f32::NAN; count]),
        }
    }
}

/// Returns each sequence with the rows of its tokens in tensors of the batch.
fn with_rows(sequences: &[StateSpan]) -> impl Iterator<Item = (&StateSpan, Range<usize>)> {
    let mut first = 0;
    sequences.iter().map(move |span| {
        first += span.tokens;
        (span, first - span.tokens..first)
    })
}
