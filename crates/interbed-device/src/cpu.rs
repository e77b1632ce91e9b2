//! The processor as a device, with its threads, instructions and memory. Every command is executed before
//! [`submit`](Device::submit) returns.

use std::num::NonZeroUsize;
use std::ops::Range;

use arrayvec::ArrayVec;
use interbed_kernels::{
    Activation, Activations, AttentionLayer, BlockGroups, Columns, DeltaOperands, Level, Matrix, Pool, PreparedForm,
    Product, Rotation, ShortConvolutionOperands, StateSpaceOperands, activate, add_and_norm, add_scaled, attention,
    cap, combine_rows, convolve, delta_rule, gated_activation, gather_rows, matmul, matmul_gated, rms_norm,
    rms_norm_groups, rms_norm_heads, rotate, rotate_and_store, scale, short_convolution, state_space,
};

use crate::command::best_of_row;
use crate::{
    AllocError, BandProduct, Command, Cpu, Device, DeviceError, HostBuffer, KvPool, KvSequences, KvStrips, OUTS_MAX,
    Operand, PRODUCTS_MAX, Queue, Tensor, TensorArea, Token, Weights,
};

/// What a device must reserve for the largest pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassNeeds {
    /// All tensors.
    pub tensors: TensorArea,
    /// Rows of activations.
    pub tokens: usize,
    /// The most numbers in a row of activations that is multiplied.
    pub product_cols: usize,
    /// The most numbers in the weights of a norm.
    pub norm_cols: usize,
    /// Numbers of scratch memory that attention takes: see [`interbed_kernels::attention_scratch`].
    pub attention_scratch: usize,
    /// The most numbers in a row of which the [greatest](Command::Best) are taken.
    pub best_width: usize,
}

/// The processor, with tensors and KV blocks in host memory.
pub struct CpuDevice {
    cpu: Cpu,
    kv: KvPool,
    /// All working memory of passes in one allocation, so that the small parts are in huge pages too, if there are any.
    memory: HostBuffer,
    areas: Areas,
    /// Activations that the products' area holds prepared for kernels, for further commands that multiply the same
    /// ones.
    prepared: Option<(Tensor, PreparedForm)>,
    submitted: u64,
}

/// The sizes of the parts of a device's memory, as numbers in whole cache lines. The parts lie in this order.
#[derive(Debug, Clone, Copy)]
struct Areas {
    tensors: usize,
    /// A norm's weights, widened.
    norm: usize,
    /// Scratch memory of attention: see [`interbed_kernels::attention_scratch`].
    parts: usize,
    /// Scratch memory of products: see [`Activations::scratch_len`].
    product: usize,
}

/// The parts of a device's memory, see [`Areas`].
struct Parts<'a> {
    tensors: &'a mut [f32],
    norm: &'a mut [f32],
    parts: &'a mut [f32],
    product: &'a mut [f32],
}

impl CpuDevice {
    /// Creates a device with memory for passes of these `needs`, and with the KV blocks of `kv`.
    ///
    /// # Errors
    /// Fails if the system does not have that much memory.
    pub fn new(cpu: Cpu, needs: &PassNeeds, kv: KvPool) -> Result<Self, AllocError> {
        let areas = Areas::of(needs, cpu.pool.threads());
        let memory = HostBuffer::new_zeroed(areas.bytes())?;
        Ok(Self { cpu, kv, memory, areas, prepared: None, submitted: 0 })
    }

    /// Returns the number of bytes of memory that passes of these `needs` take on `threads` threads, without KV.
    pub fn pass_bytes(needs: &PassNeeds, threads: NonZeroUsize) -> usize {
        Areas::of(needs, threads.get()).bytes()
    }

    /// Returns the threads and instructions of the device.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Computes with the instructions of `level` from now on.
    pub fn set_level(&mut self, level: Level) {
        self.cpu.level = level;
        // Kernels of another level may need another form.
        self.prepared = None;
    }

    /// Returns the KV blocks.
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// Returns the KV blocks, for copying blocks and giving memory back.
    pub fn kv_mut(&mut self) -> &mut KvPool {
        &mut self.kv
    }

    fn execute(&mut self, command: &Command<'_>) {
        let Self { cpu: Cpu { pool, level }, kv, memory, areas, prepared, .. } = self;
        let (pool, level) = (&*pool, *level);
        let Parts { tensors: numbers, norm, parts, product } = areas.cut(memory);
        match *command {
            Command::Fill { out, values } => values(&mut numbers[out.range()]),
            Command::Gather { table, rows, multiplier, out } => {
                let out = &mut numbers[out.range()];
                assert_eq!(out.len(), rows.len() * table.cols());
                gather_rows(pool, table.matrix(), |row| rows[row] as usize, multiplier, out);
            }
            Command::KeepRows { tensor, width, rows } => {
                let tensor = &mut numbers[tensor.range()];
                for (to, &from) in rows.iter().enumerate() {
                    tensor.copy_within(from as usize * width..(from as usize + 1) * width, to * width);
                }
            }
            Command::Combine { from, width, places, factors, out } => {
                let [from, out] = apart(numbers, [from, out]);
                combine_rows(pool, level, from, width, places, factors, out);
            }
            Command::Norm { .. } | Command::Normalise { .. } | Command::AddAndNorm { .. } => {
                norm_rows(pool, level, numbers, norm, command);
            }
            Command::Add { .. }
            | Command::Scale { .. }
            | Command::ScaleBy { .. }
            | Command::Gate { .. }
            | Command::Activate { .. }
            | Command::Cap { .. } => change_each(pool, level, numbers, command),
            Command::Products { x, cols, products, gate } => {
                let form = prepared.take().filter(|(of, _)| *of == x).map(|(_, form)| form);
                let [values, outs @ ..] = apart(numbers, with_outs(x, products));
                let mut activations = Activations::resume(values, cols, product, form);
                multiply(pool, level, &mut activations, bands(products, outs, x.len() / cols), gate);
                *prepared = activations.prepared().map(|form| (x, form));
            }
            Command::Rotate { q, shape, style, cos, sin } => {
                let [cos, sin, q] = apart(numbers, [cos, sin, q]);
                rotate(pool, level, Rotation { style, cos, sin }, shape, q);
            }
            Command::StoreKv { layer, sequences, style, cos, sin, q, k, v } => {
                let [cos, sin, q, k, v] = apart(numbers, [cos, sin, q, k, v]);
                let rotation = Rotation { style, cos, sin };
                let blocks = kv.writable(&layer, sequences);
                rotate_and_store(pool, level, &layer, blocks, sequences.spans, sequences.tables, rotation, q, k, v);
            }
            Command::Attend { layer, frame, sequences, sinks, q, state, out } => {
                let [q, state, out] = apart(numbers, [q, state, out]);
                let KvSequences { spans, tables } = sequences;
                let (kv, blocks) = match frame {
                    Some(frame) => (layer.kv.alone(), frame.bytes().into()),
                    None => (layer.kv, kv.readable(&layer.kv, sequences)),
                };
                let (layer, sinks) = (AttentionLayer { kv, ..layer }, sinks.map(|sinks| sinks.matrix()));
                attention(pool, level, &layer, blocks, spans, tables, sinks, q, parts, state, out);
            }
            Command::Convolve { .. }
            | Command::ShortConvolution { .. }
            | Command::DeltaRule { .. }
            | Command::StateSpace { .. } => {
                advance_states(pool, level, kv, numbers, command);
            }
            Command::Best { x, width, count, out } => {
                let [x, out] = apart(numbers, [x, out]);
                x.chunks_exact(width).zip(out.chunks_exact_mut(2 * count)).for_each(|(row, out)| best_of_row(row, out));
            }
            Command::CopyWeights { .. } => unreachable!("the processor has no memory of its own"),
            Command::CopyBlocks { copies } => kv.copy_blocks(copies.iter().copied()),
            // The host reads a download in place, and keeping discarded numbers costs nothing.
            Command::Download { .. } | Command::Discard { .. } => {}
        }
        self.forget_prepared(command);
    }

    /// Forgets prepared activations that a command has changed.
    fn forget_prepared(&mut self, command: &Command<'_>) {
        let Some((of, _)) = self.prepared else { return };
        let of = Operand::Tensor(of);
        if command.uses().iter().any(|used| used.writes && used.place.overlaps(&of)) {
            self.prepared = None;
        }
    }
}

impl Device for CpuDevice {
    fn tensor_capacity(&self) -> usize {
        self.areas.tensors
    }

    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], _waits: &[Token]) -> Result<Token, DeviceError> {
        commands.iter().for_each(|command| self.execute(command));
        self.submitted += 1;
        Ok(Token { queue, number: self.submitted })
    }

    fn complete(&mut self, _token: Token) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_complete(&mut self, _token: Token) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn block_groups(&self) -> &BlockGroups {
        self.kv.groups()
    }

    fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(&self.kv.block(block)[begin..begin + into.len()]);
        Ok(())
    }

    fn fill_block(
        &mut self,
        block: u32,
        bytes: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        fill(&mut self.kv.block_mut(block)[bytes]);
        Ok(())
    }

    fn prepare_blocks(&mut self, group: usize, count: usize) {
        self.kv.touch(group, count, self.cpu.pool.threads());
    }

    fn processor(&self) -> Option<&Cpu> {
        Some(&self.cpu)
    }

    fn resize_blocks(&mut self, _came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
        self.kv.give_back(left).map_err(DeviceError::GiveBack)
    }

    fn strips(&mut self) -> Option<&mut KvStrips> {
        self.kv.strips()
    }

    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError> {
        // The host may change the numbers that it reads.
        self.prepared = None;
        Ok(&mut self.areas.cut(&mut self.memory).tensors[tensor.range()])
    }
}

impl Areas {
    fn of(needs: &PassNeeds, threads: usize) -> Self {
        // Parts begin on cache lines, so that no two threads write to the same line, and vector loads are aligned.
        let lines = |len: usize| len.checked_next_multiple_of(64 / size_of::<f32>()).unwrap_or(usize::MAX);
        Self {
            tensors: lines(needs.tensors.bytes() / size_of::<f32>()),
            norm: lines(needs.norm_cols),
            parts: lines(needs.attention_scratch),
            product: lines(Activations::scratch_len(needs.tokens, needs.product_cols, threads)),
        }
    }

    /// Returns the number of bytes of all parts; the largest number if they overflow.
    fn bytes(&self) -> usize {
        let all = [self.tensors, self.norm, self.parts, self.product];
        all.into_iter().fold(0, usize::saturating_add).saturating_mul(size_of::<f32>())
    }

    fn cut<'a>(&self, memory: &'a mut HostBuffer) -> Parts<'a> {
        // An empty buffer has a dangling pointer without alignment.
        let numbers =
            if memory.is_empty() { &mut [] } else { bytemuck::cast_slice_mut::<_, f32>(memory.as_mut_slice()) };
        let (tensors, rest) = numbers.split_at_mut(self.tensors);
        let (norm, rest) = rest.split_at_mut(self.norm);
        let (parts, product) = rest.split_at_mut(self.parts);
        Parts { tensors, norm, parts, product }
    }
}

/// Executes a command that norms rows; `norm` is room for weights.
fn norm_rows(pool: &Pool, level: Level, numbers: &mut [f32], norm: &mut [f32], command: &Command<'_>) {
    match *command {
        Command::Norm { x, weight, offset, epsilon, out } if x == out => {
            let (cols, weight) = (weight.cols(), widen(weight.matrix(), offset, norm));
            rms_norm_groups(pool, level, &mut numbers[x.range()], cols, weight, epsilon);
        }
        Command::Norm { x, weight, offset, epsilon, out } => {
            let [x, out] = apart(numbers, [x, out]);
            rms_norm(pool, level, x, widen(weight.matrix(), offset, norm), epsilon, out);
        }
        Command::Normalise { x, width, epsilon, out } => {
            let ones = &mut norm[..width];
            ones.fill(1.0);
            if x == out {
                rms_norm_heads(pool, level, &mut numbers[x.range()], ones, epsilon);
            } else {
                let [x, out] = apart(numbers, [x, out]);
                rms_norm(pool, level, x, ones, epsilon, out);
            }
        }
        Command::AddAndNorm { sum, branch, scale, weight, offset, epsilon, out } => {
            let [sum, branch, out] = apart(numbers, [sum, branch, out]);
            add_and_norm(pool, level, sum, branch, scale, widen(weight.matrix(), offset, norm), epsilon, out);
        }
        _ => unreachable!("no other command norms rows"),
    }
}

/// Executes a command that changes each number by itself.
fn change_each(pool: &Pool, level: Level, numbers: &mut [f32], command: &Command<'_>) {
    match *command {
        Command::Add { sum, branch, scale } => {
            let [sum, branch] = apart(numbers, [sum, branch]);
            add_scaled(pool, level, sum, branch, scale);
        }
        Command::Scale { x, by } => scale(&mut numbers[x.range()], by),
        Command::ScaleBy { x, by } => {
            let mut factor = [0.0];
            by.matrix().widen_row(0, &mut factor);
            scale(&mut numbers[x.range()], factor[0]);
        }
        Command::Gate { gate, up, width, ref columns, activation } => {
            let [gate, up] = apart(numbers, [gate, up]);
            for (gate, up) in gate.chunks_exact_mut(width).zip(up.chunks_exact(width)) {
                gated_activation(pool, level, activation, &mut gate[columns.clone()], &up[columns.clone()]);
            }
        }
        Command::Activate { x, activation } => activate(pool, level, activation, &mut numbers[x.range()]),
        Command::Cap { x, bound } => cap(pool, level, &mut numbers[x.range()], bound),
        _ => unreachable!("no other command changes each number by itself"),
    }
}

/// Executes a command that goes on from states.
fn advance_states(pool: &Pool, level: Level, kv: &mut KvPool, numbers: &mut [f32], command: &Command<'_>) {
    match *command {
        Command::Convolve { ref layer, sequences, weights, bias, x } => {
            let (weights, bias) = (weights.matrix(), bias.map(|bias| bias.matrix()));
            convolve(pool, level, layer, kv.states(), sequences, weights, bias, &mut numbers[x.range()]);
        }
        Command::ShortConvolution { ref layer, sequences, weights, bias, projections, out } => {
            let [projections, out] = apart(numbers, [projections, out]);
            let (weights, bias) = (weights.matrix(), bias.map(Weights::matrix));
            let operands = ShortConvolutionOperands { weights, bias, projections, out };
            short_convolution(pool, level, layer, kv.states(), sequences, operands);
        }
        Command::DeltaRule { ref layer, sequences, ref rule, rates, bias, qkv, a, b, out } => {
            let [qkv, a, b, out] = apart(numbers, [qkv, a, b, out]);
            let operands = DeltaOperands { qkv, a, b, rates: rates.matrix(), bias: bias.matrix(), out };
            delta_rule(pool, level, layer, kv.states(), sequences, rule, operands);
        }
        Command::StateSpace { ref layer, sequences, ref space, rates, bias, skip, xbc, steps, decays, out } => {
            let [xbc, steps, decays, out] = apart(numbers, [xbc, steps, decays, out]);
            let [rates, bias, skip] = [rates, bias, skip].map(|weights| weights.matrix());
            let operands = StateSpaceOperands { xbc, steps, decays, rates, bias, skip, out };
            state_space(pool, level, layer, kv.states(), sequences, space, operands);
        }
        _ => unreachable!("no other command knows states"),
    }
}

/// Writes the rows of a norm's weight as f32 to `area`, with `offset` added to each element, and returns that part of
/// `area`.
fn widen<'a>(weight: Matrix<'_>, offset: f32, area: &'a mut [f32]) -> &'a [f32] {
    let widened = &mut area[..weight.rows() * weight.cols()];
    for (row, widened) in widened.chunks_exact_mut(weight.cols()).enumerate() {
        weight.widen_row(row, widened);
    }
    if offset != 0.0 {
        widened.iter_mut().for_each(|weight| *weight += offset);
    }
    widened
}

/// Returns the numbers of several tensors, which must not overlap.
///
/// # Panics
/// Panics if they overlap.
fn apart<const N: usize>(numbers: &mut [f32], tensors: [Tensor; N]) -> [&mut [f32]; N] {
    let ranges = tensors.map(|tensor| tensor.range());
    numbers.get_disjoint_mut(ranges).expect("the tensors of a command lie apart, and in the memory of tensors")
}

/// Multiplies the activations with all bands. With `gate`, the bands come in pairs: see [`Command::Products`].
fn multiply(
    pool: &Pool,
    level: Level,
    activations: &mut Activations<'_>,
    products: ArrayVec<Product<'_>, PRODUCTS_MAX>,
    gate: Option<Activation>,
) {
    match gate {
        None => matmul(pool, level, activations, products),
        Some(activation) => {
            let mut products = products.into_iter();
            let pairs = std::iter::from_fn(|| Some([products.next()?, products.next()?]));
            matmul_gated(pool, level, activation, activations, pairs);
        }
    }
}

/// Returns the activations, then each distinct result of `products`, then empty tensors.
fn with_outs(x: Tensor, products: &[BandProduct<'_>]) -> [Tensor; 1 + OUTS_MAX] {
    let mut tensors = [Tensor::default(); 1 + OUTS_MAX];
    tensors[0] = x;
    let mut count = 1;
    for product in products {
        if !tensors[1..count].contains(&product.out) {
            tensors[count] = product.out;
            count += 1;
        }
    }
    tensors
}

/// Returns each product with the columns of its result; `outs` are the results in the order of their first product.
fn bands<'a>(
    products: &'a [BandProduct<'_>],
    outs: [&'a mut [f32]; OUTS_MAX],
    tokens: usize,
) -> ArrayVec<Product<'a>, PRODUCTS_MAX> {
    let mut seen = ArrayVec::<Tensor, OUTS_MAX>::new();
    // For each result, the columns that are left, and the number of the first of them.
    let mut rest = outs.map(|out| {
        let columns = out.len() / tokens;
        (columns > 0).then(|| (Columns::new(out, columns), 0))
    });
    let product = |product: &'a BandProduct<'_>| {
        let index = seen.iter().position(|out| *out == product.out).unwrap_or_else(|| {
            seen.push(product.out);
            seen.len() - 1
        });
        let (columns, first) = rest[index].take().expect("each product has rows, and puts back what is left");
        let (_, columns) = columns.split_at(product.rows.start - first);
        let (out, behind) = columns.split_at(product.rows.len());
        rest[index] = Some((behind, product.rows.end));
        let bias = product.bias.map(|bias| bias.matrix().columns(product.rows.clone()));
        Product { weights: product.weights.matrix(), bias, out }
    };
    products.iter().map(product).collect()
}
