//! What each command does, in plain arithmetic.

use std::collections::HashMap;
use std::sync::Arc;

use interbed_kernels::{Activation, KvDType, KvLayer, KvPlace, Matrix, RopeStyle, rope};

use crate::command::best_of_row;
use crate::{BandProduct, Command, KvFrame, KvSequences, PlacedBytes, Tensor, Weights};

/// A command to be executed later. It owns, or keeps alive, everything that the command borrowed.
pub type Operation = Box<dyn FnOnce(&mut DeviceMemory) + Send>;

/// All memory of a device.
pub struct DeviceMemory {
    numbers: Vec<f32>,
    /// A copy of equal size, where the host reads.
    host: Vec<f32>,
    kv: HashMap<Slot, Vec<f32>>,
    block_size: usize,
}

/// One head of one token in the KV: block, slot, where the layer begins in a block, head, and whether it is a value.
type Slot = (u32, usize, usize, usize, bool);

impl DeviceMemory {
    /// Memory in which nothing has been written.
    pub fn poisoned(capacity: usize, block_size: usize) -> Self {
        Self { numbers: vec![f32::NAN; capacity], host: vec![f32::NAN; capacity], kv: HashMap::new(), block_size }
    }

    /// Poisons what the host could read of this tensor, so that old numbers are not mistaken for new ones.
    pub fn poison_host(&mut self, tensor: Tensor) {
        self.host[tensor.range()].fill(f32::NAN);
    }

    /// The numbers that the host reads.
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

/// The operation of a command. If the device `shares` host memory, copies read it when they are executed.
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
        Command::Combine { from, width, places, factors, out } => {
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
        Command::Norm { x, weight, epsilon, out } => {
            let weight = weight.clone();
            Box::new(move |memory| {
                let normed = norm(&memory.get(x), &widened(&weight, 0), epsilon);
                memory.set(out, &normed);
            })
        }
        Command::AddAndNorm { sum, branch, scale, weight, epsilon, out } => {
            let weight = weight.clone();
            Box::new(move |memory| {
                add(memory, sum, branch, scale);
                let normed = norm(&memory.get(sum), &widened(&weight, 0), epsilon);
                memory.set(out, &normed);
            })
        }
        Command::Add { sum, branch, scale } => Box::new(move |memory| add(memory, sum, branch, scale)),
        Command::Scale { x, by } => Box::new(move |memory| {
            let scaled: Vec<_> = memory.get(x).iter().map(|value| value * by).collect();
            memory.set(x, &scaled);
        }),
        Command::Products { x, cols, products, gate } => {
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
        Command::Gate { gate, up, width, ref columns, activation } => {
            let columns = columns.clone();
            Box::new(move |memory| gate_columns(memory, [gate, up], width, &columns, activation))
        }
        Command::StoreKv { layer, sequences, style, cos, sin, q, k, v } => {
            let (tokens, heads, head_dim, at) =
                (tokens_of(sequences), layer.num_kv_heads(), layer.head_dim(), layer.key_offset(0));
            Box::new(move |memory| {
                let (cos, sin) = (memory.get(cos), memory.get(sin));
                for tensor in [q, k] {
                    let mut values = memory.get(tensor);
                    let width = values.len() / tokens.len().max(1);
                    for (token, row) in values.chunks_exact_mut(width.max(1)).enumerate() {
                        turn(row, head_dim, style, &cos, &sin, [token, tokens.len()]);
                    }
                    memory.set(tensor, &values);
                }
                for (is_value, tensor) in [(false, k), (true, v)] {
                    let values = memory.get(tensor);
                    for (row, token) in values.chunks_exact(heads * head_dim).zip(&tokens) {
                        let (block, slot) = token.place(token.position, memory.block_size);
                        for (head, values) in row.chunks_exact(head_dim).enumerate() {
                            memory.kv.insert((block, slot, at, head, is_value), values.to_vec());
                        }
                    }
                }
            })
        }
        Command::Attend { layer, frame, sequences, sinks, q, state, out } => {
            let (tokens, kv, frame, sinks) = (tokens_of(sequences), layer.kv, frame.cloned(), sinks.cloned());
            Box::new(move |memory| {
                let sinks = sinks.map(|sinks| widened(&sinks, 0));
                let (queries, mut states, mut attended) = (memory.get(q), memory.get(state), memory.get(out));
                for (index, query) in queries.chunks_exact(kv.head_dim()).enumerate() {
                    let (token, head) = (&tokens[index / layer.heads], index % layer.heads);
                    let first = layer.window.map_or(0, |window| (token.position + 1).saturating_sub(window));
                    let seen = first.max(token.held.start)..(token.position + 1).min(token.held.end);
                    let kv_head = head / (layer.heads / kv.num_kv_heads());
                    let at = |position, is_value| {
                        let (block, slot) = token.place(position, memory.block_size);
                        match &frame {
                            Some(frame) => in_frame(frame, &kv, (block, slot, kv_head, is_value)),
                            None => {
                                let slot: Slot = (block, slot, kv.key_offset(0), kv_head, is_value);
                                memory.kv.get(&slot).cloned().unwrap_or_else(|| vec![f32::NAN; kv.head_dim()])
                            }
                        }
                    };
                    let score = |position| dot(query, &at(position, false)) * layer.scale;
                    let scores: Vec<_> = seen.clone().map(score).collect();
                    let values: Vec<_> = seen.map(|position| at(position, true)).collect();
                    let sums = &mut attended[index * kv.head_dim()..][..kv.head_dim()];
                    let before = (first < token.held.start).then(|| (states[2 * index], states[2 * index + 1]));
                    let (greatest, total) = weigh(before, &scores, &values, sums);
                    match token.held.end > token.position {
                        true => {
                            let sink = sinks.as_ref().map_or(0.0, |sinks| (sinks[head] - greatest).exp());
                            sums.iter_mut().for_each(|sum| *sum /= total + sink);
                        }
                        false => states[2 * index..2 * index + 2].copy_from_slice(&[greatest, total]),
                    }
                }
                memory.set(state, &states);
                memory.set(out, &attended);
            })
        }
        Command::CopyWeights { from, ref range, to, at } => {
            let PlacedBytes::Reference(to) = to else { panic!("copies go to memory that this device gave") };
            let to = Arc::clone(to);
            if shares {
                let (from, range) = (Arc::clone(from), range.clone());
                let copied = at..at + range.len();
                Box::new(move |_| to.with(|bytes| bytes[copied].copy_from_slice(&from.as_slice()[range])))
            } else {
                let from = from.as_slice()[range.clone()].to_vec();
                Box::new(move |_| to.with(|bytes| bytes[at..at + from.len()].copy_from_slice(&from)))
            }
        }
        Command::CopyBlocks { copies } => {
            let copies = copies.to_vec();
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
                }
            })
        }
        Command::Discard { tensor } => Box::new(move |memory| memory.numbers[tensor.range()].fill(f32::NAN)),
        Command::Download { from } => Box::new(move |memory| {
            let values = memory.get(from);
            memory.host(from).copy_from_slice(&values);
        }),
    }
}

/// A token of the batch, and the block table of its sequence.
struct BatchToken {
    position: usize,
    /// Positions of the sequence whose KV is at hand.
    held: std::ops::Range<usize>,
    blocks: TokenBlocks,
}

/// The blocks of a [`BatchToken`]'s sequence.
#[derive(Clone)]
enum TokenBlocks {
    Listed(Vec<u32>),
    From(u32),
}

impl BatchToken {
    /// Block and slot of a position in the token's sequence.
    fn place(&self, position: usize, block_size: usize) -> (u32, usize) {
        let logical = (position - self.held.start) / block_size;
        let block = match &self.blocks {
            TokenBlocks::Listed(table) => table[logical],
            TokenBlocks::From(first) => first + logical as u32,
        };
        (block, position % block_size)
    }
}

fn tokens_of(sequences: KvSequences<'_>) -> Vec<BatchToken> {
    let of_span = |span: &interbed_kernels::AttentionSpan| {
        let (first, held) = (span.first_position, span.held.clone());
        let blocks = match &span.place {
            KvPlace::Listed(table) => {
                TokenBlocks::Listed(sequences.tables[table.start as usize..table.end as usize].to_vec())
            }
            &KvPlace::From(first) => TokenBlocks::From(first),
        };
        (first..first + span.tokens).map(move |position| BatchToken {
            position,
            held: held.clone(),
            blocks: blocks.clone(),
        })
    };
    sequences.spans.iter().flat_map(of_span).collect()
}

/// A [`BandProduct`] that owns what it needs.
struct OwnProduct {
    weights: Weights,
    rows: std::ops::Range<usize>,
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
    columns: &std::ops::Range<usize>,
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
        Activation::Gelu => 0.5 * x * (1.0 + error_function(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// By its Taylor series where that converges fast; beyond that, 1 to within rounding.
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

fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let of_row = |row: &[f32]| {
        let factor = 1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt();
        row.iter().zip(weight).map(|(x, weight)| x * factor * weight).collect::<Vec<_>>()
    };
    x.chunks_exact(weight.len()).flat_map(of_row).collect()
}

fn turn(row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32], [token, tokens]: [usize; 2]) {
    let half = cos.len() / tokens;
    let own = token * half..(token + 1) * half;
    rope(row, head_dim, style, &cos[own.clone()], &sin[own]);
}

/// The greatest score and the sum of the weights relative to it, of `scores` and of what was seen `before`; `sums`
/// become those of the values.
fn weigh(before: Option<(f32, f32)>, scores: &[f32], values: &[Vec<f32>], sums: &mut [f32]) -> (f32, f32) {
    let (greatest_before, total_before) = before.unwrap_or((f32::NEG_INFINITY, 0.0));
    let greatest = scores.iter().copied().fold(greatest_before, f32::max);
    let weights: Vec<_> = scores.iter().map(|score| (score - greatest).exp()).collect();
    let shrinking = (greatest_before - greatest).exp();
    for (d, sum) in sums.iter_mut().enumerate() {
        let old = before.map_or(0.0, |_| *sum * shrinking);
        *sum = old + weights.iter().zip(values).map(|(weight, value)| weight * value[d]).sum::<f32>();
    }
    let old = before.map_or(0.0, |_| total_before * shrinking);
    (greatest, old + weights.iter().sum::<f32>())
}

/// What one head of one token has in a frame; this device knows only [`KvDType::F32`].
fn in_frame(frame: &KvFrame, kv: &KvLayer, (block, slot, head, is_value): (u32, usize, usize, bool)) -> Vec<f32> {
    assert_eq!(kv.dtype(), KvDType::F32, "the reference device keeps KV as f32");
    let kv = kv.alone();
    let at = block as usize * kv.block_bytes() + kv.key_offset(head) + slot * kv.slot_bytes();
    let at = if is_value { at + kv.value_offset() } else { at };
    let (numbers, _) = frame.bytes()[at..at + kv.slot_bytes()].as_chunks::<4>();
    numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
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
