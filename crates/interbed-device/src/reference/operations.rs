//! The effects of each command, in plain arithmetic.

mod attention;
mod states;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::{Activation, Matrix};

use crate::command::best_of_row;
use crate::{BandProduct, Command, HostBuffer, PlacedBytes, Tensor, Weights};
use attention::{attend, rotate, store_kv};

/// A command to be executed later. It owns, or keeps alive, everything that the command borrowed.
pub type Operation = Box<dyn FnOnce(&mut DeviceMemory) + Send>;

/// All memory of a device.
pub struct DeviceMemory {
    numbers: Vec<f32>,
    /// A copy of equal size, where the host reads.
    host: Vec<f32>,
    pub(super) kv: HashMap<Slot, Vec<f32>>,
    /// Parts of states, by their block and the place in it where they begin, in bytes.
    pub(super) states: HashMap<(u32, usize), Vec<f32>>,
    block_size: usize,
}

/// One head of one token in the KV: block, slot, where the layer begins in a block, head, and whether it is a value.
pub type Slot = (u32, usize, usize, usize, bool);

impl DeviceMemory {
    /// Creates memory in which nothing has been written.
    pub fn poisoned(capacity: usize, block_size: usize) -> Self {
        let numbers = vec![f32::NAN; capacity];
        Self { host: numbers.clone(), numbers, kv: HashMap::new(), states: HashMap::new(), block_size }
    }

    /// Poisons what the host could read of this tensor, so that old numbers are not mistaken for new ones.
    pub fn poison_host(&mut self, tensor: Tensor) {
        self.host[tensor.range()].fill(f32::NAN);
    }

    /// Returns the numbers that the host reads.
    pub fn host(&mut self, tensor: Tensor) -> &mut [f32] {
        &mut self.host[tensor.range()]
    }

    fn get(&self, tensor: Tensor) -> Vec<f32> {
        self.numbers[tensor.range()].to_vec()
    }

    fn set(&mut self, tensor: Tensor, values: &[f32]) {
        self.numbers[tensor.range()].copy_from_slice(values);
    }
}

/// Returns the operation of a command. If the device `shares` host memory, copies read it when they are executed.
pub fn of(command: &Command<'_>, shares: bool) -> Operation {
    match *command {
        Command::Fill { out, values } => {
            let mut written = vec![f32::NAN; out.len()];
            values(&mut written);
            Box::new(move |memory| memory.set(out, &written))
        }
        Command::Gather { table, rows, multiplier, out } => {
            let (table, rows) = (table.clone(), rows.to_vec());
            Box::new(move |memory| {
                let values: Vec<_> = rows.iter().flat_map(|&row| widened(&table, row as usize)).collect();
                memory.set(out, &values.iter().map(|value| value * multiplier).collect::<Vec<_>>());
            })
        }
        Command::Best { x, width, count, out } => Box::new(move |memory| {
            let mut best = vec![f32::NAN; out.len()];
            for (row, best) in memory.get(x).chunks_exact(width).zip(best.chunks_exact_mut(2 * count)) {
                best_of_row(row, best);
            }
            memory.set(out, &best);
        }),
        Command::KeepRows { tensor, width, rows } => {
            let rows = rows.to_vec();
            Box::new(move |memory| {
                let values = memory.get(tensor);
                let kept: Vec<_> =
                    rows.iter().flat_map(|&row| &values[row as usize * width..][..width]).copied().collect();
                memory.set(tensor.first(kept.len()), &kept);
            })
        }
        Command::Combine { from, width, places, factors, out } => combine(from, width, places, factors, out),
        Command::Norm { .. }
        | Command::Normalise { .. }
        | Command::AddAndNorm { .. }
        | Command::Add { .. }
        | Command::Scale { .. }
        | Command::ScaleBy { .. }
        | Command::Activate { .. }
        | Command::Cap { .. } => of_rows(command),
        Command::Products { x, cols, products, gate } => multiply(x, cols, products, gate),
        Command::Gate { gate, up, width, ref columns, activation } => {
            let columns = columns.clone();
            Box::new(move |memory| gate_columns(memory, [gate, up], width, &columns, activation))
        }
        Command::Rotate { q, shape, style, cos, sin } => rotate(q, shape, style, [cos, sin]),
        Command::StoreKv { layer, sequences, style, cos, sin, q, k, v } => {
            store_kv(layer, sequences, style, [cos, sin], [q, k, v])
        }
        Command::Attend { layer, frame, sequences, sinks, q, state, out } => {
            attend(layer, frame, sequences, sinks, [q, state, out])
        }
        Command::Convolve { .. }
        | Command::ShortConvolution { .. }
        | Command::DeltaRule { .. }
        | Command::StateSpace { .. } => states::of(command),
        Command::CopyWeights { from, ref range, to, at } => copy_weights(from, range.clone(), to, at, shares),
        Command::CopyBlocks { copies } => copy_blocks(copies.to_vec()),
        Command::Discard { tensor } => Box::new(move |memory| memory.numbers[tensor.range()].fill(f32::NAN)),
        Command::Download { from } => Box::new(move |memory| {
            let values = memory.get(from);
            memory.host(from).copy_from_slice(&values);
        }),
    }
}

/// Returns the operation of a command that changes rows by themselves.
fn of_rows(command: &Command<'_>) -> Operation {
    match *command {
        Command::Norm { x, weight, offset, epsilon, out } => {
            let weight = weight.clone();
            Box::new(move |memory| {
                let all: Vec<_> = (0..weight.rows()).map(|row| widened(&weight, row)).collect();
                let normed = norm(&memory.get(x), &all, offset, epsilon);
                memory.set(out, &normed);
            })
        }
        Command::Normalise { x, width, epsilon, out } => Box::new(move |memory| {
            let normed = norm(&memory.get(x), &[vec![1.0; width]], 0.0, epsilon);
            memory.set(out, &normed);
        }),
        Command::AddAndNorm { sum, branch, scale, weight, offset, epsilon, out } => {
            let weight = weight.clone();
            Box::new(move |memory| {
                add(memory, sum, branch, scale);
                let normed = norm(&memory.get(sum), &[widened(&weight, 0)], offset, epsilon);
                memory.set(out, &normed);
            })
        }
        Command::Add { sum, branch, scale } => Box::new(move |memory| add(memory, sum, branch, scale)),
        Command::Scale { x, by } => Box::new(move |memory| {
            let scaled: Vec<_> = memory.get(x).iter().map(|value| value * by).collect();
            memory.set(x, &scaled);
        }),
        Command::ScaleBy { x, by } => {
            let by = by.clone();
            Box::new(move |memory| {
                let factor = widened(&by, 0)[0];
                let scaled: Vec<_> = memory.get(x).iter().map(|value| value * factor).collect();
                memory.set(x, &scaled);
            })
        }
        Command::Activate { x, activation } => Box::new(move |memory| {
            let values: Vec<_> = memory.get(x).iter().map(|&x| activated(activation, x)).collect();
            memory.set(x, &values);
        }),
        Command::Cap { x, bound } => Box::new(move |memory| {
            let bounded: Vec<_> = memory.get(x).iter().map(|x| bound * (x / bound).tanh()).collect();
            memory.set(x, &bounded);
        }),
        _ => unreachable!("no other command changes rows by themselves"),
    }
}

fn combine(from: Tensor, width: usize, places: &[u32], factors: &[f32], out: Tensor) -> Operation {
    let (places, factors) = (places.to_vec(), factors.to_vec());
    Box::new(move |memory| {
        let (from, rows) = (memory.get(from), out.len() / width);
        let each = places.len() / rows.max(1);
        let row = |places: &[u32], factors: &[f32]| {
            let column = |column: usize| {
                let terms = places.iter().zip(factors);
                terms.map(|(&place, factor)| from[place as usize * width + column] * factor).sum::<f32>()
            };
            (0..width).map(column).collect::<Vec<f32>>()
        };
        let rows = places.chunks_exact(each).zip(factors.chunks_exact(each));
        memory.set(out, &rows.flat_map(|(places, factors)| row(places, factors)).collect::<Vec<_>>());
    })
}

fn multiply(x: Tensor, cols: usize, products: &[BandProduct<'_>], gate: Option<Activation>) -> Operation {
    let products: Vec<_> = products.iter().map(OwnProduct::of).collect();
    Box::new(move |memory| {
        let x = memory.get(x);
        products.iter().for_each(|product| product.compute(memory, &x, cols));
        if let Some(activation) = gate {
            for pair in products.chunks_exact(2) {
                let width = pair[0].out.len() / (x.len() / cols);
                gate_columns(memory, [pair[0].out, pair[1].out], width, &pair[0].rows, activation);
            }
        }
    })
}

/// Copies weights to `at` in the device's memory. If the device `shares` host memory, they are read later.
fn copy_weights(from: &Arc<HostBuffer>, range: Range<usize>, to: &PlacedBytes, at: usize, shares: bool) -> Operation {
    let PlacedBytes::Reference(to) = to else { panic!("copies go to memory that this device gave") };
    let to = Arc::clone(to);
    if shares {
        let from = Arc::clone(from);
        let copied = at..at + range.len();
        Box::new(move |_| to.with(|bytes| bytes[copied].copy_from_slice(&from.as_slice()[range])))
    } else {
        let from = from.as_slice()[range].to_vec();
        Box::new(move |_| to.with(|bytes| bytes[at..at + from.len()].copy_from_slice(&from)))
    }
}

fn copy_blocks(copies: Vec<(u32, u32)>) -> Operation {
    Box::new(move |memory| {
        for (source, destination) in copies {
            memory.kv.retain(|slot, _| slot.0 != destination || source == destination);
            let of_source = memory.kv.iter().filter(|(slot, _)| slot.0 == source);
            let copied: Vec<_> = of_source
                .map(|(&(_, slot, at, head, is_value), values)| {
                    ((destination, slot, at, head, is_value), values.clone())
                })
                .collect();
            memory.kv.extend(copied);
            memory.states.retain(|&(block, _), _| block != destination || source == destination);
            let of_source = memory.states.iter().filter(|((block, _), _)| *block == source);
            let copied: Vec<_> = of_source.map(|(&(_, at), numbers)| ((destination, at), numbers.clone())).collect();
            memory.states.extend(copied);
        }
    })
}

/// A [`BandProduct`] that owns what it needs.
struct OwnProduct {
    weights: Weights,
    rows: Range<usize>,
    bias: Option<Weights>,
    out: Tensor,
}

impl OwnProduct {
    fn of(product: &BandProduct<'_>) -> Self {
        let BandProduct { weights, rows, bias, out } = product;
        let bias = bias.cloned();
        Self { weights: (*weights).clone(), rows: rows.clone(), bias, out: *out }
    }

    fn compute(&self, memory: &mut DeviceMemory, x: &[f32], cols: usize) {
        let (start, width) = (self.out.range().start, self.out.len() / (x.len() / cols));
        let bias = self.bias.as_ref().map(|bias| widened(bias, 0));
        for (band_row, row) in self.rows.clone().enumerate() {
            let weights = widened(&self.weights, band_row);
            let bias = bias.as_ref().map_or(0.0, |bias| bias[row]);
            for (token, x) in x.chunks_exact(cols).enumerate() {
                memory.numbers[start + token * width + row] = dot(x, &weights) + bias;
            }
        }
    }
}

fn gate_columns(
    memory: &mut DeviceMemory,
    [gate, up]: [Tensor; 2],
    width: usize,
    columns: &Range<usize>,
    activation: Activation,
) {
    for row in (0..gate.len()).step_by(width) {
        for column in columns.clone() {
            let [gate, up] = [gate, up].map(|tensor| tensor.range().start + row + column);
            let (x, up) = (memory.numbers[gate], memory.numbers[up]);
            let up = match activation {
                Activation::ClampedSwish => up.clamp(-Activation::CLAMPED_LIMIT, Activation::CLAMPED_LIMIT) + 1.0,
                _ => up,
            };
            memory.numbers[gate] = activated(activation, x) * up;
        }
    }
}

fn activated(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::ClampedSwish => {
            let x = x.min(Activation::CLAMPED_LIMIT);
            x / (1.0 + (-Activation::CLAMPED_SLOPE * x).exp())
        }
        Activation::SquaredRelu if x < 0.0 => 0.0,
        Activation::SquaredRelu => x * x,
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + error_function(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// Computes the error function of `x`: by its Taylor series where that converges fast, and as 1 to within rounding
/// beyond that.
fn error_function(x: f32) -> f32 {
    let x = f64::from(x);
    if x.abs() > 4.0 {
        return x.signum() as f32;
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    (sum * 2.0 / std::f64::consts::PI.sqrt()) as f32
}

fn add(memory: &mut DeviceMemory, sum: Tensor, branch: Tensor, scale: f32) {
    let branch = memory.get(branch);
    memory.numbers[sum.range()].iter_mut().zip(branch).for_each(|(sum, branch)| *sum += branch * scale);
}

/// Norms rows, which take the rows of `weights` in turns.
fn norm(x: &[f32], weights: &[Vec<f32>], offset: f32, epsilon: f32) -> Vec<f32> {
    let of_row = |(row, weight): (&[f32], &Vec<f32>)| {
        let factor = 1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt();
        row.iter().zip(weight).map(|(x, weight)| x * factor * (weight + offset)).collect::<Vec<_>>()
    };
    x.chunks_exact(weights[0].len()).zip(weights.iter().cycle()).flat_map(of_row).collect()
}

fn widened(weights: &Weights, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; weights.cols()];
    match weights.place() {
        (PlacedBytes::Reference(bytes), range) => bytes.with(|bytes| {
            Matrix::new(weights.dtype(), weights.rows(), weights.cols(), &bytes[range]).widen_row(row, &mut out);
        }),
        _ => weights.matrix().widen_row(row, &mut out),
    }
    out
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
