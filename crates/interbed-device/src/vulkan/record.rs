//! Commands as kernels and copies.

mod attention;
mod best;
mod quantise;
mod states;

use std::ops::Range;
use std::sync::Arc;

use ash::vk;
use interbed_kernels::{Activation, DType, KvDType, KvLayer, RopeStyle};

use super::arguments::{Arguments, Put};
use super::block_tables::BlockTables;
use super::downloads::Downloads;
use super::error::GpuError;
use super::gpu::Gpu;
use super::gpu_queue::GpuQueue;
use super::host_queue::{HostResult, HostResults};
use super::integers::Integers;
use super::kernels::{
    CombinePush, Elementwise, ElementwisePush, GatherPush, KeepRowsPush, Kernel, Kernels, NormPush, Number,
    ProductPush, ProductShape, StoreKvPush, are_neighbours,
};
use super::kv::GpuKv;
use super::memory::GpuBuffer;
use crate::{BandProduct, Command, HostBuffer, KvSequences, PlacedBytes, Tensor, Use, Weights};

pub(super) use best::room_bytes;

/// The most workgroups in a row, which every driver supports. Kernels with more workgroups have several rows of them.
const GROUPS_MAX: usize = 32_768;

/// Bytes of a number in tensors.
const NUMBER: usize = size_of::<f32>();

/// Records the commands of one submission.
pub(super) struct Recorder<'a> {
    pub gpu: &'a Arc<Gpu>,
    pub gpu_queue: &'a mut GpuQueue,
    /// The queue's number, and the submission's number.
    pub submission: (usize, u64),
    pub kernels: &'a mut Kernels,
    pub arguments: &'a mut Arguments,
    pub block_tables: &'a mut BlockTables,
    pub downloads: &'a mut Downloads,
    pub tensors: &'a Arc<GpuBuffer>,
    /// Room for parts of attention.
    pub scratch: &'a Arc<GpuBuffer>,
    pub kv: &'a GpuKv,
    pub integers: &'a mut Integers,
    /// Room for the greatest numbers of parts of rows.
    pub best_room: &'a Arc<GpuBuffer>,
    /// The last submission of each queue that the host has waited for.
    pub known: [u64; 3],
    /// The number of bytes that are copied from host memory in place, so far.
    pub in_place: &'a mut u64,
}

impl Recorder<'_> {
    /// Records one command.
    ///
    /// # Errors
    /// Fails if there is no memory for what the command needs, or a kernel cannot be made.
    pub fn record(&mut self, command: &Command<'_>) -> Result<(), GpuError> {
        let uses = &command.uses()[..];
        self.integers.note(uses);
        match *command {
            Command::Fill { out, values } => {
                let put = self.put_numbers(out.len(), values)?;
                self.copy_to_tensor(uses, &put, out);
            }
            Command::Gather { table, rows, multiplier, out } => self.gather(uses, table, rows, multiplier, out)?,
            Command::KeepRows { tensor, width, rows } => self.keep_rows(uses, tensor, width, rows)?,
            Command::Combine { from, width, places, factors, out } => {
                self.combine(uses, from, width, (places, factors), out)?;
            }
            Command::Norm { x, weight, offset, epsilon, out } => {
                self.norm(uses, x, None, weight, [offset, epsilon], out)?;
            }
            Command::Normalise { x, width, epsilon, out } => self.normalise(uses, x, width, epsilon, out)?,
            Command::AddAndNorm { sum, branch, scale, weight, offset, epsilon, out } => {
                self.norm(uses, sum, Some((branch, scale)), weight, [offset, epsilon], out)?;
            }
            Command::Add { sum, branch, scale } => {
                self.elementwise(uses, Elementwise::Add, sum, Some(branch), scale)?;
            }
            Command::Scale { x, by } => self.elementwise(uses, Elementwise::Scale, x, None, by)?,
            Command::ScaleBy { x, by } => self.scale_by(uses, x, by)?,
            Command::Products { x, cols, products, gate } => self.products(uses, x, cols, products, gate)?,
            Command::Gate { gate, up, width, ref columns, activation } => {
                let commands = self.gpu_queue.operation(uses);
                let operation = Elementwise::of(activation);
                self.gate(commands, operation, gate.len() / width, [gate, up], width, columns)?;
            }
            Command::Activate { x, activation } => {
                self.elementwise(uses, Elementwise::of(activation), x, None, 1.0)?;
            }
            Command::Cap { x, bound } => self.elementwise(uses, Elementwise::Cap, x, None, bound)?,
            Command::Rotate { q, shape, style, cos, sin } => self.rotate(uses, q, shape, style, [cos, sin])?,
            Command::StoreKv { layer, sequences, style, cos, sin, q, k, v } => {
                self.store_kv(uses, layer, sequences, style, [cos, sin], [q, k, v])?;
            }
            Command::Attend { layer, frame, sequences, sinks, q, state, out } => {
                self.attend(uses, layer, frame, sequences, sinks, [q, state, out])?;
            }
            Command::Convolve { ref layer, sequences, weights, bias, x } => {
                self.convolve(uses, layer, sequences, weights, bias, x)?;
            }
            Command::ShortConvolution { ref layer, sequences, weights, bias, projections, out } => {
                self.short_convolution(uses, layer, sequences, (weights, bias), [projections, out])?;
            }
            Command::DeltaRule { ref layer, sequences, rule, rates, bias, qkv, a, b, out } => {
                self.delta_rule(uses, layer, sequences, rule, [rates, bias], [qkv, a, b, out])?;
            }
            Command::StateSpace { ref layer, sequences, space, rates, bias, skip, xbc, steps, out, .. } => {
                self.state_space(uses, layer, sequences, space, [rates, bias, skip], [xbc, steps, out])?;
            }
            Command::Best { x, width, count, out } => self.best(uses, x, width, count, out)?,
            Command::CopyWeights { from, ref range, to, at } => self.copy_weights(uses, from, range.clone(), to, at)?,
            Command::CopyBlocks { copies } => {
                for &(source, destination) in copies {
                    // One after the other: each uses all KV.
                    let commands = self.gpu_queue.operation(uses);
                    let (from, to) = (self.kv.place(source), self.kv.place(destination));
                    let groups = self.kv.groups();
                    let len = groups.groups()[groups.group_of_copy((source, destination))].block_bytes();
                    copy(self.gpu, commands, (from.0, from.1), (to.0, to.1), len);
                }
            }
            Command::Discard { .. } => {}
            Command::Download { from } => self.download(uses, from)?,
        }
        Ok(())
    }

    fn gather(
        &mut self,
        uses: &[Use],
        table: &Weights,
        rows: &[u32],
        multiplier: f32,
        out: Tensor,
    ) -> Result<(), GpuError> {
        let cols = table.cols();
        assert_eq!(out.len(), rows.len() * cols);
        let Some((buffer, offset)) = on_gpu(table) else {
            // A few rows of a table that stays on the host.
            let matrix = table.matrix();
            let put = self.put_numbers(out.len(), |numbers| {
                for (&row, numbers) in rows.iter().zip(numbers.chunks_exact_mut(cols)) {
                    matrix.widen_row(row as usize, numbers);
                    numbers.iter_mut().for_each(|number| *number *= multiplier);
                }
            })?;
            self.copy_to_tensor(uses, &put, out);
            return Ok(());
        };
        let (table_at, buffer) = (buffer.address() + offset as u64, Arc::clone(buffer));
        self.gpu_queue.keep(buffer);
        assert!(rows.iter().all(|&row| (row as usize) < table.rows()), "a row beyond the table");
        let push = GatherPush {
            table: table_at,
            numbers: self.put(bytemuck::cast_slice(rows))?,
            result: self.address(out),
            row_bytes: row_bytes(table),
            cols: cols as u32,
            patches: patches(table),
            multiplier,
            rows: rows.len() as u32,
            unused: 0,
        };
        self.run(uses, Kernel::Gather(Number::of(table.dtype())?), &push, in_rows(rows.len()))
    }

    fn keep_rows(&mut self, uses: &[Use], tensor: Tensor, width: usize, rows: &[u32]) -> Result<(), GpuError> {
        let numbers = self.put(bytemuck::cast_slice(rows))?;
        let push = KeepRowsPush { x: self.address(tensor), numbers, width: width as u32, rows: rows.len() as u32 };
        let groups = width.div_ceil(self.kernels.threads());
        self.run(uses, Kernel::KeepRows, &push, [groups, 1])
    }

    fn combine(
        &mut self,
        uses: &[Use],
        from: Tensor,
        width: usize,
        (places, factors): (&[u32], &[f32]),
        out: Tensor,
    ) -> Result<(), GpuError> {
        let rows = out.len() / width;
        let push = CombinePush {
            from: self.address(from),
            result: self.address(out),
            places: self.put(bytemuck::cast_slice(places))?,
            factors: self.put(bytemuck::cast_slice(factors))?,
            width: width as u32,
            rows: rows as u32,
            each: (places.len() / rows) as u32,
            unused: 0,
        };
        let groups = width.div_ceil(self.kernels.threads());
        self.run(uses, Kernel::Combine, &push, [groups, rows.min(GROUPS_MAX)])
    }

    fn norm(
        &mut self,
        uses: &[Use],
        x: Tensor,
        branch: Option<(Tensor, f32)>,
        weight: &Weights,
        [offset, epsilon]: [f32; 2],
        out: Tensor,
    ) -> Result<(), GpuError> {
        let cols = weight.cols();
        let rows = x.len() / cols;
        let push = NormPush {
            x: self.address(x),
            branch: branch.map_or(0, |(branch, _)| self.address(branch)),
            weight: self.weights(weight)?,
            result: self.address(out),
            cols: cols as u32,
            weight_type: Number::of(weight.dtype())?.get(),
            epsilon,
            scale: branch.map_or(0.0, |(_, scale)| scale),
            rows: rows as u32,
            offset,
            weights: weight.rows() as u32,
            unused: 0,
        };
        self.run(uses, Kernel::Norm, &push, in_rows(rows))
    }

    /// Records a norm without weights.
    fn normalise(&mut self, uses: &[Use], x: Tensor, cols: usize, epsilon: f32, out: Tensor) -> Result<(), GpuError> {
        let rows = x.len() / cols;
        let push = NormPush {
            x: self.address(x),
            branch: 0,
            weight: 0,
            result: self.address(out),
            cols: cols as u32,
            weight_type: 0,
            epsilon,
            scale: 0.0,
            rows: rows as u32,
            offset: 1.0,
            weights: 1,
            unused: 0,
        };
        self.run(uses, Kernel::Norm, &push, in_rows(rows))
    }

    fn elementwise(
        &mut self,
        uses: &[Use],
        operation: Elementwise,
        a: Tensor,
        b: Option<Tensor>,
        factor: f32,
    ) -> Result<(), GpuError> {
        assert!(b.is_none_or(|b| b.len() == a.len()));
        let (columns, stride) = (a.len() as u32, 0);
        let b = b.map_or(0, |b| self.address(b));
        let push = ElementwisePush { a: self.address(a), b, columns, stride, factor, rows: 1 };
        let groups = a.len().div_ceil(self.kernels.threads()).min(GROUPS_MAX);
        self.run(uses, Kernel::Elementwise(operation), &push, [groups, 1])
    }

    /// Records `x *= by`, with a factor that is a weight.
    fn scale_by(&mut self, uses: &[Use], x: Tensor, by: &Weights) -> Result<(), GpuError> {
        let push = ElementwisePush {
            a: self.address(x),
            b: self.weights(by)?,
            columns: x.len() as u32,
            stride: Number::of(by.dtype())?.get(),
            factor: 0.0,
            rows: 1,
        };
        let groups = x.len().div_ceil(self.kernels.threads()).min(GROUPS_MAX);
        self.run(uses, Kernel::Elementwise(Elementwise::ScaleBy), &push, [groups, 1])
    }

    fn products(
        &mut self,
        uses: &[Use],
        x: Tensor,
        cols: usize,
        products: &[BandProduct<'_>],
        gate: Option<Activation>,
    ) -> Result<(), GpuError> {
        let tokens = x.len() / cols;
        let bytes = self.quantise(x, cols, products)?;
        let uses: Vec<Use> = uses.iter().copied().chain(bytes).collect();
        let commands = self.gpu_queue.operation(&uses);
        for product in products {
            self.product(commands, x, cols, tokens, product)?;
        }
        if let Some(activation) = gate {
            self.gpu_queue.barrier();
            for pair in products.chunks_exact(2) {
                let (outs, width) = ([pair[0].out, pair[1].out], pair[0].out.len() / tokens);
                self.gate(commands, Elementwise::of(activation), tokens, outs, width, &pair[0].rows)?;
            }
        }
        Ok(())
    }

    /// Records one product, into `commands` that come after everything that the product depends on.
    fn product(
        &mut self,
        commands: vk::CommandBuffer,
        x: Tensor,
        cols: usize,
        tokens: usize,
        product: &BandProduct<'_>,
    ) -> Result<(), GpuError> {
        let (weights, rows) = (product.weights, product.rows.len());
        let number = Number::of(weights.dtype())?;
        let stride = product.out.len() / tokens;
        let (bias, bias_type) = match product.bias {
            None => (0, 0),
            Some(bias) => {
                let first = product.rows.start * bias.dtype().block_bytes();
                (self.weights(bias)? + first as u64, Number::of(bias.dtype())?.get())
            }
        };
        let bytes = self.integers.address(weights.dtype());
        let push = ProductPush {
            weights: self.weights(weights)?,
            x: bytes.unwrap_or(self.address(x)),
            bias,
            result: self.address(product.out) + (product.rows.start * NUMBER) as u64,
            row_bytes: row_bytes(weights),
            rows: rows as u32,
            cols: cols as u32,
            stride: stride as u32,
            tokens: tokens as u32,
            patches: patches(weights),
            bias_type,
            unused: 0,
        };
        let shape = ProductShape::of(tokens);
        let groups = tokens.div_ceil(shape.tokens) * rows.div_ceil(shape.rows * self.kernels.subgroups());
        let kernel = match bytes {
            Some(_) => Kernel::IntegerProduct(number, shape),
            None => Kernel::Product(number, shape),
        };
        self.gpu_queue.count_multiply_adds(tokens as u64 * rows as u64 * cols as u64);
        self.kernels.run(commands, kernel, &push, in_rows(groups))
    }

    /// Records `gate = activation(gate) * up` for some columns.
    fn gate(
        &mut self,
        commands: vk::CommandBuffer,
        operation: Elementwise,
        tokens: usize,
        [gate, up]: [Tensor; 2],
        width: usize,
        columns: &Range<usize>,
    ) -> Result<(), GpuError> {
        let start = (columns.start * NUMBER) as u64;
        let push = ElementwisePush {
            a: self.address(gate) + start,
            b: self.address(up) + start,
            columns: columns.len() as u32,
            stride: width as u32,
            factor: 0.0,
            rows: tokens as u32,
        };
        let groups = [columns.len().div_ceil(self.kernels.threads()), tokens].map(|groups| groups.min(GROUPS_MAX));
        self.kernels.run(commands, Kernel::Elementwise(operation), &push, groups)
    }

    /// Copies the results of the host's products to their tensors.
    pub fn take_in(&mut self, results: &HostResults) -> u64 {
        let mut bytes = 0;
        for result in &results.products {
            let HostResult { start, tokens, ref rows, out } = *result;
            let place = result.place();
            let uses = [Use { place, writes: true }];
            self.integers.note(&uses);
            let commands = self.gpu_queue.operation(&uses);
            let (width, first) = (out.len() / tokens, out.range().start + rows.start);
            let pieces = (0..tokens).map(|token| Piece {
                from: (start + token * rows.len()) * NUMBER,
                to: (first + token * width) * NUMBER,
                len: rows.len() * NUMBER,
            });
            bytes += (tokens * rows.len() * NUMBER) as u64;
            copy_pieces(self.gpu, commands, &results.buffer, self.tensors, pieces);
        }
        self.gpu_queue.keep(Arc::clone(&results.buffer));
        bytes
    }

    /// Records a rotation of queries: the kernel that stores keys and values too, of which there are none.
    fn rotate(
        &mut self,
        uses: &[Use],
        q: Tensor,
        [heads, head_dim]: [usize; 2],
        style: RopeStyle,
        [cos, sin]: [Tensor; 2],
    ) -> Result<(), GpuError> {
        let tokens = q.len() / (heads * head_dim);
        let push = StoreKvPush {
            q: self.address(q),
            k: 0,
            v: 0,
            cos: self.address(cos),
            sin: self.address(sin),
            slots: 0,
            heads: heads as u32,
            kv_heads: 0,
            first_key: 0,
            head_bytes: 0,
            to_values: 0,
            tokens: tokens as u32,
        };
        let (neighbours, rotated) = (are_neighbours(style), 2 * (cos.len() / tokens) as u32);
        let kernel = Kernel::StoreKv { dtype: KvDType::F32, head_dim: head_dim as u32, neighbours, rotated };
        self.run(uses, kernel, &push, in_rows(tokens * heads))
    }

    fn store_kv(
        &mut self,
        uses: &[Use],
        layer: KvLayer,
        sequences: KvSequences<'_>,
        style: RopeStyle,
        [cos, sin]: [Tensor; 2],
        [q, k, v]: [Tensor; 3],
    ) -> Result<(), GpuError> {
        let (head_dim, block_size) = (layer.head_dim(), layer.block_size());
        let table = self.block_tables.of(self.gpu, self.kv, sequences)?;
        let mut slots = Vec::new();
        for (span, &start) in sequences.spans.iter().zip(&table.starts) {
            for position in span.first_position..span.first_position + span.tokens {
                let (block, slot) = ((position - span.held.start) / block_size, position % block_size);
                slots.push(table.addresses[start as usize + block] + (slot * layer.slot_bytes()) as u64);
            }
        }
        let tokens = slots.len();
        let push = StoreKvPush {
            q: self.address(q),
            k: self.address(k),
            v: self.address(v),
            cos: self.address(cos),
            sin: self.address(sin),
            slots: self.put(bytemuck::cast_slice(&slots))?,
            heads: (q.len() / tokens / head_dim) as u32,
            kv_heads: layer.num_kv_heads() as u32,
            first_key: layer.key_offset(0) as u32,
            head_bytes: (block_size * layer.slot_bytes()) as u32,
            to_values: layer.value_offset() as u32,
            tokens: tokens as u32,
        };
        let neighbours = are_neighbours(style);
        let rotated = 2 * (cos.len() / tokens) as u32;
        let kernel = Kernel::StoreKv { dtype: layer.dtype(), head_dim: head_dim as u32, neighbours, rotated };
        let heads = (push.heads + 2 * push.kv_heads) as usize;
        self.run(uses, kernel, &push, in_rows(tokens * heads))
    }

    fn copy_weights(
        &mut self,
        uses: &[Use],
        from: &Arc<HostBuffer>,
        range: Range<usize>,
        to: &PlacedBytes,
        at: usize,
    ) -> Result<(), GpuError> {
        let PlacedBytes::Gpu(to) = to else { panic!("copies go to memory that this GPU gave") };
        if let Some(shared) = GpuBuffer::shared(self.gpu, from) {
            let commands = self.gpu_queue.operation(uses);
            copy(self.gpu, commands, (shared, range.start), (to, at), range.len());
            self.gpu_queue.keep_on_host(Arc::clone(from));
            *self.in_place += range.len() as u64;
        } else {
            let from = &from.as_slice()[range];
            let put = self.arguments.put(self.submission, from.len(), |bytes| bytes.copy_from_slice(from))?;
            let commands = self.gpu_queue.operation(uses);
            copy(self.gpu, commands, (&put.buffer, put.offset), (to, at), from.len());
            self.gpu_queue.keep(put.buffer);
        }
        self.gpu_queue.keep(Arc::clone(to));
        Ok(())
    }

    fn download(&mut self, uses: &[Use], from: Tensor) -> Result<(), GpuError> {
        let known = self.known;
        let is_read = |(gpu_queue, number): (usize, u64)| number <= known[gpu_queue];
        let room = self.downloads.room(self.gpu, from, self.submission, is_read)?;
        let commands = self.gpu_queue.operation(uses);
        copy(self.gpu, commands, (self.tensors, from.range().start * NUMBER), (&room, 0), from.len() * NUMBER);
        // The host reads it once it knows that this is done.
        self.gpu_queue.barrier();
        self.gpu_queue.keep(room);
        Ok(())
    }

    fn run<P: bytemuck::Pod>(
        &mut self,
        uses: &[Use],
        kernel: Kernel,
        push: &P,
        groups: [usize; 2],
    ) -> Result<(), GpuError> {
        let commands = self.gpu_queue.operation(uses);
        self.kernels.run(commands, kernel, push, groups)
    }

    fn address(&self, tensor: Tensor) -> u64 {
        self.tensors.address() + (tensor.range().start * NUMBER) as u64
    }

    /// Returns the address at which kernels find weights: on the GPU, or in a copy of the weights in host memory.
    fn weights(&mut self, weights: &Weights) -> Result<u64, GpuError> {
        match on_gpu(weights) {
            Some((buffer, offset)) => {
                self.gpu_queue.keep(Arc::clone(buffer));
                Ok(buffer.address() + offset as u64)
            }
            None => self.put(weights.matrix().bytes()),
        }
    }

    /// Returns a copy of `bytes` for kernels.
    fn put(&mut self, bytes: &[u8]) -> Result<u64, GpuError> {
        let put = self.arguments.put(self.submission, bytes.len(), |to| to.copy_from_slice(bytes))?;
        let address = put.address();
        self.gpu_queue.keep(put.buffer);
        Ok(address)
    }

    /// Puts `len` numbers that the host writes where kernels can read them.
    fn put_numbers(&mut self, len: usize, values: impl FnOnce(&mut [f32])) -> Result<Put, GpuError> {
        self.arguments.put(self.submission, len * NUMBER, |bytes| values(bytemuck::cast_slice_mut(bytes)))
    }

    fn copy_to_tensor(&mut self, uses: &[Use], from: &Put, to: Tensor) {
        let commands = self.gpu_queue.operation(uses);
        let at = to.range().start * NUMBER;
        copy(self.gpu, commands, (&from.buffer, from.offset), (self.tensors, at), to.len() * NUMBER);
        self.gpu_queue.keep(Arc::clone(&from.buffer));
    }
}

/// Returns the size of a grid of at least `groups` workgroups, in rows.
fn in_rows(groups: usize) -> [usize; 2] {
    [groups.min(GROUPS_MAX), groups.div_ceil(GROUPS_MAX)]
}

/// Records a copy. Whoever calls this keeps both buffers until the submission is done.
pub(super) fn copy(
    gpu: &Gpu,
    commands: vk::CommandBuffer,
    (from, source): (&GpuBuffer, usize),
    (to, destination): (&GpuBuffer, usize),
    len: usize,
) {
    copy_pieces(gpu, commands, from, to, [Piece { from: source, to: destination, len }]);
}

/// Some bytes to be copied: their places in the two buffers, and their number.
struct Piece {
    from: usize,
    to: usize,
    len: usize,
}

/// Records copies of several pieces. Whoever calls this keeps both buffers until the submission is done.
fn copy_pieces(
    gpu: &Gpu,
    commands: vk::CommandBuffer,
    from: &GpuBuffer,
    to: &GpuBuffer,
    pieces: impl IntoIterator<Item = Piece>,
) {
    let ((source, first), (destination, behind)) = (from.handle(), to.handle());
    let region = |piece: Piece| {
        assert!(piece.from + piece.len <= from.len() && piece.to + piece.len <= to.len());
        let (src_offset, dst_offset) = ((first + piece.from) as u64, (behind + piece.to) as u64);
        vk::BufferCopy { src_offset, dst_offset, size: piece.len as u64 }
    };
    let regions: Vec<_> = pieces.into_iter().filter(|piece| piece.len > 0).map(region).collect();
    if !regions.is_empty() {
        // SAFETY: the commands are being recorded, and all ranges lie within their buffers, which outlive the
        // submission.
        unsafe { gpu.device().cmd_copy_buffer(commands, source, destination, &regions) };
    }
}

/// Returns the GPU's memory in which weights lie, and the byte in it at which they begin, if they are on the GPU.
fn on_gpu(weights: &Weights) -> Option<(&Arc<GpuBuffer>, usize)> {
    match weights.place() {
        (PlacedBytes::Gpu(buffer), range) => Some((buffer, range.start)),
        _ => None,
    }
}

fn row_bytes(weights: &Weights) -> u32 {
    let bytes = weights.dtype().row_bytes(weights.cols());
    bytes.expect("weights have whole rows") as u32
}

/// Returns the number of patches or of scales of a row, which decides where the row's numbers begin.
fn patches(weights: &Weights) -> u32 {
    match weights.dtype() {
        DType::CodedBf16 { patches } => patches.into(),
        dtype @ DType::Fp8 => weights.cols().div_ceil(dtype.block_len()) as u32,
        _ => 0,
    }
}
