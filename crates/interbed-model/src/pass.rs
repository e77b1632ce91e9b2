//! Holds the state that the layers of a forward pass share while they compute.

mod batch_rows;
mod experts;
mod shared_tensors;

use arrayvec::ArrayVec;
use interbed_device::{
    BandProduct, Command, Device, DeviceError, KvSequences, Queue, Tensor, TensorArea, Token, Weights,
};
use interbed_kernels::{ATTENTION_STATE, Activation, AttentionLayer, AttentionSpan, BlockGroups, KvPlace, STRETCH};
use interbed_weights::{BANDS_MAX, Bands, Sweep, TensorId, WeightError, WeightSource};
use thiserror::Error;

use crate::batch::{LogitRow, Logits};
use crate::below::{KvBelow, KvLost, stretches_below};
use crate::kept::{KeptGroups, KeptPlace};
use crate::rope::RopeTable;
use crate::route_sink::RouteSink;
use crate::routes::Routes;
use batch_rows::{Below, KeptRows};

/// The reasons why a forward pass fails. After a failure, the KV of earlier passes is unchanged.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// Weights could not be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The device failed, or the batch needs more memory than the device reserved.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// KV on disk or in a shared store could not be read.
    #[error(transparent)]
    Kv(#[from] KvLost),
}

pub use batch_rows::BatchRows;
pub use experts::Choice;
pub use shared_tensors::{SharedTensors, SharedWidths};

/// The size of a forward pass, or the largest size that a forward pass may have.
#[derive(Debug, Clone, Copy)]
pub struct PassSize {
    /// The number of rows of activations, one for each token.
    pub tokens: usize,
    /// The number of rows of logits or hidden states that are wanted.
    pub logit_rows: usize,
}

/// A linear layer: a matrix, and the bias that is added to the products with this matrix.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// The matrix, `[rows, cols]`.
    pub weight: TensorId,
    /// The bias, `[rows]`, if there is one.
    pub bias: Option<TensorId>,
    /// The number of output elements for each token.
    pub rows: usize,
    /// The number of input elements for each token.
    pub cols: usize,
}

/// The parameters of a root-mean-square norm.
#[derive(Debug, Clone, Copy)]
pub struct NormWeight {
    /// The norm's weight vector.
    pub weight: TensorId,
    /// Number that is added to each element of the weight.
    pub offset: f32,
    /// Number that is added to the mean square.
    pub epsilon: f32,
}

/// Function that receives finished rows of logits or hidden states.
pub type LogitSink<'a> = dyn FnMut(LogitRow, Logits<'_>) + 'a;

/// How far a sum of two branches has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// The current branch is no term of a sum.
    None,
    /// The current branch is the first term.
    First,
    /// The first term has been computed, and the current branch is the last.
    Last,
}

/// The state of a forward pass while its layers compute, one after the other. Each layer reads its input from
/// [`hidden`](Self::hidden), and takes the memory for its own tensors from [`area`](Self::area).
pub struct Pass<'a> {
    /// The source of the weights.
    pub weights: &'a mut dyn WeightSource,
    /// The rows that the pass computes.
    pub batch: &'a BatchRows,
    /// The blocks of the device, in the groups of the model's layers.
    pub blocks: &'a BlockGroups,
    groups: &'a KeptGroups,
    /// The index of the current layer among the model's layers.
    layer: usize,
    below: &'a mut dyn KvBelow,
    /// The experts that the rows of the current layer go through.
    routes: &'a mut Routes,
    /// A guess of the experts that the rows will go through in a later layer.
    guessed: &'a mut Routes,
    /// Receives the routes of each mixture, if somebody records them.
    route_sink: Option<&'a mut dyn RouteSink>,
    device: &'a mut dyn Device,
    sink: &'a mut LogitSink<'a>,
    shared: SharedTensors,
    area: TensorArea,
    /// The number of elements of a hidden state.
    width: usize,
    /// The number of rows that are left to compute.
    rows: usize,
    /// Whether only the wanted rows of the batch are left.
    has_kept: bool,
    /// Whether no row is wanted, so that layers after the last one that keeps anything have nothing to compute.
    is_over: bool,
    /// The state of the sum that the current branch is a term of.
    sum: Sum,
    /// The factor with which `branch` is yet to be added to `hidden`. The next norm adds it.
    pending: Option<f32>,
    /// The upload that the next submission has to wait for.
    upload: Option<Token>,
    /// The number of the last upload for which a submission waited.
    uploaded: u64,
    last: Option<Token>,
}

impl<'a> Pass<'a> {
    /// Begins a forward pass of at least one row. `last` is the last submission of the previous pass, or `None` if that
    /// submission is complete. The device must have room for the tensors of this pass.
    ///
    /// # Errors
    /// Fails if the device failed.
    #[expect(clippy::too_many_arguments, reason = "everything that a pass brings together")]
    pub fn begin(
        device: &'a mut dyn Device,
        weights: &'a mut dyn WeightSource,
        batch: &'a BatchRows,
        (blocks, groups): (&'a BlockGroups, &'a KeptGroups),
        below: &'a mut dyn KvBelow,
        ropes: &[RopeTable],
        (shared, area): (SharedTensors, TensorArea),
        ([routes, guessed], route_sink): ([&'a mut Routes; 2], Option<&'a mut dyn RouteSink>),
        last: Option<Token>,
        sink: &'a mut LogitSink<'a>,
    ) -> Result<Self, ForwardError> {
        let rows = batch.tokens.len();
        let width = shared.hidden.len() / rows;
        let mut pass = Self {
            weights,
            batch,
            blocks,
            groups,
            layer: 0,
            below,
            routes,
            guessed,
            route_sink,
            device,
            sink,
            shared,
            area,
            width,
            rows,
            has_kept: false,
            is_over: false,
            sum: Sum::None,
            pending: None,
            upload: None,
            uploaded: 0,
            last,
        };
        // The previous pass may still read its own cosines and sines.
        let waits: ArrayVec<Token, 1> = last.into_iter().collect();
        for (rope, &out) in ropes.iter().zip(&pass.shared.rotations) {
            let values = |out: &mut [f32]| batch.fill_rotation(rope, out);
            let fill = Command::Fill { out, values: &values };
            // Uploads are done in order: the last is waited for with all before it.
            pass.upload = Some(pass.device.submit(Queue::Upload, &[fill], &waits)?);
        }
        Ok(pass)
    }

    /// Returns the last submission, or `None` if the host knows that all submissions are complete.
    pub fn last(&self) -> Option<Token> {
        self.last
    }

    /// Returns how many rows the next layers compute.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the hidden states, `[rows, hidden]`. The result of the last branch may not have been added to them yet.
    pub fn hidden(&self) -> Tensor {
        self.of_rows(self.shared.hidden)
    }

    /// Returns the tensor `[rows, hidden]` in which a layer leaves the values that are to be added to the hidden
    /// states, or to the values of the next layer if the layer's branch is the first term of a sum.
    pub fn branch(&self) -> Tensor {
        self.of_rows(if self.sum == Sum::First { self.shared.first_term } else { self.shared.branch })
    }

    /// Begins a branch. `is_first_term` says whether it is the first term of a sum.
    pub fn begin_branch(&mut self, is_first_term: bool) {
        self.sum = match (is_first_term, self.sum) {
            (true, _) => Sum::First,
            (false, Sum::First) => Sum::Last,
            (false, _) => Sum::None,
        };
    }

    /// Adds the first term of a sum to [`branch`](Self::branch), which holds the last term.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn add_first_term(&mut self) -> Result<(), ForwardError> {
        let (sum, branch) = (self.branch(), self.of_rows(self.shared.first_term));
        self.submit(&[Command::Add { sum, branch, scale: 1.0 }])?;
        Ok(())
    }

    /// Looks up the rows of all tokens in `table`, multiplies them by `multiplier`, and writes them to `out`,
    /// `[tokens, width]`.
    ///
    /// # Errors
    /// Fails if the rows cannot be read, or if the device failed.
    pub fn look_up(&mut self, table: TensorId, multiplier: f32, out: Tensor, width: usize) -> Result<(), ForwardError> {
        let tokens = self.batch.tokens();
        let mut done = 0;
        while done < tokens.len() {
            let found = self.weights.rows(table, &tokens[done..])?;
            let count = found.numbers.len();
            let out = out.part(done * width..(done + count) * width);
            let (table, rows) = (&found.table, found.numbers);
            self.submit(&[Command::Gather { table, rows, multiplier, out }])?;
            done += count;
        }
        Ok(())
    }

    /// Returns the rows that all tokens of the batch have in a table beside the embedding, `[tokens, rows, width]`.
    pub fn table_rows(&self) -> Tensor {
        self.shared.table_rows
    }

    /// Copies the row with index `row` of each token that is left from the rows of the table, `[tokens, rows, width]`,
    /// to `out`, `[tokens, width]`.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn take_table_row(&mut self, row: usize, width: usize, out: Tensor) -> Result<(), ForwardError> {
        let batch = self.batch;
        let (from, rows) = (self.table_rows(), batch.table_rows(self.has_kept));
        let places = &rows[row * self.rows..(row + 1) * self.rows];
        self.submit(&[Command::Combine { from, width, places, factors: &batch.ones[..places.len()], out }])?;
        Ok(())
    }

    /// Returns the places of the KV of one group, for the rows that are left.
    pub fn sequences(&self, group: usize) -> KvSequences<'a> {
        let batch = self.batch;
        if !self.has_kept {
            return batch.sequences(group);
        }
        let KeptRows { spans, runs, .. } = &batch.kept;
        KvSequences { spans: &spans[group * runs..(group + 1) * runs], tables: &batch.tables }
    }

    /// Returns the cosines and the sines of the rotary embedding that has index `rope` in the model. Each of the two
    /// tensors is `[rows, rotated / 2]`. If `rope` is `None`, both tensors are empty.
    pub fn rotation(&self, rope: Option<usize>) -> [Tensor; 2] {
        let rotation = match rope {
            Some(rope) => self.shared.rotations[rope],
            None => self.shared.rotations[0].first(0),
        };
        let half = rotation.len() / 2;
        let len = half / self.batch.tokens.len() * self.rows;
        [rotation.part(0..len), rotation.part(half..half + len)]
    }

    /// Multiplies each query in `q` by the factor for its position, and writes the result to `out`. A row of `q` has
    /// `width` elements. Returns `out`.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn grow_queries(&mut self, q: Tensor, out: Tensor, width: usize) -> Result<Tensor, ForwardError> {
        let BatchRows { row_numbers: places, growth: factors, .. } = self.batch;
        self.submit(&[Command::Combine { from: q, width, places, factors, out }])?;
        Ok(out)
    }

    /// Takes a tensor apart whose pieces of `width` elements belong to two tensors in turns. Writes the first piece,
    /// the third and so on to `outs[0]`, and the others to `outs[1]`.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn part_alternating(&mut self, from: Tensor, width: usize, outs: [Tensor; 2]) -> Result<(), ForwardError> {
        let batch = self.batch;
        for (out, places) in outs.into_iter().zip(&batch.alternating) {
            let count = out.len() / width;
            let (places, factors) = (&places[..count], &batch.ones[..count]);
            self.submit(&[Command::Combine { from, width, places, factors, out }])?;
        }
        Ok(())
    }

    /// Begins the layer of this index. The new layer must not read the tensors that the previous layer took from
    /// [`area`](Self::area). A device that checks for such reads overwrites these tensors.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn begin_layer(&mut self, layer: usize) -> Result<(), DeviceError> {
        self.layer = layer;
        let tensor = self.area.rest(self.device.tensor_capacity());
        self.submit(&[Command::Discard { tensor }])?;
        Ok(())
    }

    /// Returns where the current layer finds what it keeps. `number` is the index in the layer's own list.
    ///
    /// # Panics
    /// Panics if the layer keeps no such thing.
    pub fn kept(&self, number: usize) -> KeptPlace {
        self.groups.place(self.layer, number)
    }

    /// Returns the memory from which the layer takes its own tensors. The next layer reuses this memory.
    pub fn area(&self) -> TensorArea {
        self.area
    }

    /// Has the device execute `commands` after everything that was submitted before.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn submit(&mut self, commands: &[Command<'_>]) -> Result<Token, DeviceError> {
        self.submit_after(None, commands)
    }

    /// Has the device execute `commands` after everything that was submitted before and after the host's computation
    /// `of_host`.
    fn submit_after(&mut self, of_host: Option<Token>, commands: &[Command<'_>]) -> Result<Token, DeviceError> {
        let upload = self.upload.take();
        self.uploaded = upload.map_or(self.uploaded, |token| token.number);
        let waits: ArrayVec<Token, 2> = upload.into_iter().chain(of_host).collect();
        let token = self.device.submit(Queue::Compute, commands, &waits)?;
        self.last = Some(token);
        Ok(token)
    }

    /// Has the device execute later commands after a copy, if there is one. Uploads are done in order: one is waited
    /// for with all before it.
    fn wait_for_copy(&mut self, copied: Option<Token>) {
        let known = self.upload.map_or(self.uploaded, |token| token.number);
        self.upload = copied.filter(|token| token.number > known).or(self.upload);
    }

    /// Computes the norm of the hidden states, to which it first adds the last branch.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn norm(&mut self, NormWeight { weight, offset, epsilon }: NormWeight) -> Result<Tensor, ForwardError> {
        // What is pending is never the first term of a sum.
        let (hidden, branch) = (self.hidden(), self.of_rows(self.shared.branch));
        let out = self.of_rows(self.shared.normed);
        let weight = &self.weights.vector(weight);
        let command = match self.pending.take() {
            Some(scale) => Command::AddAndNorm { sum: hidden, branch, scale, weight, offset, epsilon, out },
            None => Command::Norm { x: hidden, weight, offset, epsilon, out },
        };
        self.submit(&[command])?;
        Ok(out)
    }

    /// Schedules the addition of [`branch`](Self::branch), multiplied by `scale`, to the hidden states. The next call
    /// of [`norm`](Self::norm) or [`settle_branch`](Self::settle_branch) performs the addition.
    pub fn add_branch(&mut self, scale: f32) {
        assert!(self.pending.is_none(), "a layer reads the hidden states before it writes its branch");
        self.pending = Some(scale);
    }

    /// Adds the result of the last branch to the hidden states, if it has not been added yet.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn settle_branch(&mut self) -> Result<(), ForwardError> {
        if let Some(scale) = self.pending.take() {
            let (sum, branch) = (self.hidden(), self.of_rows(self.shared.branch));
            self.submit(&[Command::Add { sum, branch, scale }])?;
        }
        Ok(())
    }

    /// Multiplies `x` by each of `matrices`, and writes the products to the tensors in `outs`, in the same order. Reads
    /// each matrix once. With `gate`, there must be two matrices, and the same rows of both are read together.
    /// [`Command::Products`] describes how their products are combined.
    ///
    /// # Errors
    /// Fails if weights cannot be read, or if the device failed.
    pub fn products<const N: usize>(
        &mut self,
        x: Tensor,
        matrices: [&Linear; N],
        outs: [Tensor; N],
        gate: Option<Activation>,
    ) -> Result<(), ForwardError> {
        let mut sweep = Sweep::new(matrices.iter().map(|matrix| matrix.weight));
        let mut bands = Bands::new();
        if self.is_over {
            return self.pass_over(&mut sweep, &mut bands);
        }
        // Where one of a pair may be computed by the host, the gate comes when all are there.
        let apart = self.weights.computes_on_host();
        let gate_of_pairs = if apart { None } else { gate };
        let mut of_host = None;
        loop {
            self.weights.bands(self.device, &mut sweep, &mut bands)?;
            if bands.is_empty() {
                break;
            }
            self.wait_for_copy(bands.iter().filter_map(|band| band.copied).max_by_key(|token| token.number));
            // The host first, so that it computes beside the device.
            let submitted = match self.multiply(Queue::Host, x, (matrices, outs), &bands, None) {
                Ok(token) => {
                    of_host = token.or(of_host);
                    self.multiply(Queue::Compute, x, (matrices, outs), &bands, gate_of_pairs)
                }
                refused => refused,
            };
            let used = submitted.as_ref().ok().copied().flatten();
            let released = self.weights.release(&mut bands, self.device, used);
            submitted?;
            released?;
        }
        match (apart, gate, &outs[..]) {
            (true, Some(activation), &[gate, up]) => {
                let (width, columns) = (matrices[0].rows, 0..matrices[0].rows);
                self.submit_after(of_host, &[Command::Gate { gate, up, width, columns, activation }])?;
            }
            _ if of_host.is_some() => {
                self.submit_after(of_host, &[])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Goes through a sweep without computing: nobody asks for the products, but weights are swept in order.
    fn pass_over(&mut self, sweep: &mut Sweep, bands: &mut Bands) -> Result<(), ForwardError> {
        loop {
            self.weights.bands(self.device, sweep, bands)?;
            if bands.is_empty() {
                return Ok(());
            }
            self.weights.release(bands, self.device, None)?;
        }
    }

    /// Multiplies a tensor by a matrix of another layer, but only if this matrix stays in memory. Calls `x` to compute
    /// the tensor, and writes the product to `out`. Returns whether the product was computed.
    ///
    /// # Errors
    /// Fails if `x` fails, or if the device failed.
    pub fn products_out_of_turn(
        &mut self,
        x: impl FnOnce(&mut Self) -> Result<Tensor, ForwardError>,
        matrix: &Linear,
        out: Tensor,
    ) -> Result<bool, ForwardError> {
        let mut bands = Bands::new();
        self.weights.out_of_turn(matrix.weight, &mut bands);
        if bands.is_empty() {
            return Ok(false);
        }
        let x = x(self)?;
        self.multiply(Queue::Compute, x, ([matrix], [out]), &bands, None)?;
        Ok(true)
    }

    /// Submits the products with those bands that belong to `queue`, if there are any.
    fn multiply<const N: usize>(
        &mut self,
        queue: Queue,
        x: Tensor,
        (matrices, outs): ([&Linear; N], [Tensor; N]),
        bands: &Bands,
        gate: Option<Activation>,
    ) -> Result<Option<Token>, DeviceError> {
        let bands = || bands.iter().filter(|band| band.queue == queue);
        if bands().next().is_none() {
            return Ok(None);
        }
        let (cols, is_of_host) = (matrices[0].cols, queue == Queue::Host);
        let bias = |bias| if is_of_host { self.weights.vector_on_host(bias) } else { self.weights.vector(bias) };
        let biases = matrices.map(|matrix| matrix.bias.map(bias));
        let of_band = bands().map(|band| BandProduct {
            weights: &band.weights,
            rows: band.rows.clone(),
            bias: biases[band.matrix].as_ref(),
            out: outs[band.matrix],
        });
        let products: ArrayVec<_, BANDS_MAX> = of_band.collect();
        let command = Command::Products { x, cols, products: &products, gate };
        if is_of_host {
            let waits: ArrayVec<Token, 1> = self.last.into_iter().collect();
            self.device.submit(queue, &[command], &waits).map(Some)
        } else {
            self.submit(&[command]).map(Some)
        }
    }

    /// Computes attention over KV on disk or in a shared store, which arrives frame by frame. Leaves the intermediate
    /// results in `state` and `out`, which have a row for each row of `q`. Attention over KV in memory continues from
    /// these results.
    ///
    /// # Errors
    /// Fails if a frame could not be read, or if the device failed.
    pub fn attend_below(
        &mut self,
        layer: AttentionLayer,
        sinks: Option<&Weights>,
        q: Tensor,
        state: Tensor,
        out: Tensor,
    ) -> Result<(), ForwardError> {
        let batch = self.batch;
        let (spans, below) = match self.has_kept {
            true => (&batch.kept.spans, &batch.kept.below),
            false => (&batch.spans, &batch.below),
        };
        for &Below { span, first_row, positions, .. } in below {
            let span = &spans[span];
            let rows = |tensor: Tensor, width: usize| tensor.part(first_row * width..(first_row + span.tokens) * width);
            let width = layer.heads * layer.kv.head_dim();
            let (q, out) = (rows(q, width), rows(out, width));
            let state = rows(state, layer.heads * ATTENTION_STATE);
            for stretch in stretches_below(span.first_position, positions, layer.window) {
                let frame = &self.below.next()?;
                let held = stretch * STRETCH..(stretch + 1) * STRETCH;
                let spans = [AttentionSpan { held, place: KvPlace::From(0), ..*span }];
                let sequences = KvSequences { spans: &spans, tables: &[] };
                self.submit(&[Command::Attend { layer, frame: Some(frame), sequences, sinks, q, state, out }])?;
            }
        }
        Ok(())
    }

    /// Keeps only the wanted rows of the hidden states, or one row if none is wanted. Keeps the same rows of all that
    /// later layers read of these rows, and of `other`, which has `width` elements per row. Returns this shorter
    /// tensor.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn keep_wanted_rows(&mut self, other: Tensor, width: usize) -> Result<Tensor, ForwardError> {
        let rows = &self.batch.wanted_rows;
        let count = rows.len().max(1);
        if count < self.rows && !rows.is_empty() {
            self.settle_branch()?;
            let hidden = Command::KeepRows { tensor: self.hidden(), width: self.width, rows };
            self.submit(&[hidden, Command::KeepRows { tensor: other, width, rows }])?;
            if self.sum == Sum::Last {
                let (tensor, width) = (self.of_rows(self.shared.first_term), self.width);
                self.submit(&[Command::KeepRows { tensor, width, rows }])?;
            }
            if self.groups.shares() {
                for rope in 0..self.shared.rotations.len() {
                    for tensor in self.rotation(Some(rope)) {
                        let width = tensor.len() / self.rows;
                        self.submit(&[Command::KeepRows { tensor, width, rows }])?;
                    }
                }
            }
            self.has_kept = true;
        }
        self.is_over = rows.is_empty();
        self.rows = count;
        Ok(other.first(count * width))
    }

    /// Returns whether the remaining layers have nothing to compute, because none of them keeps anything for a sequence
    /// and no row of the pass is wanted.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Hands finished rows of logits or hidden states to the sink. `values` holds `width` numbers for each entry of
    /// `rows`.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn deliver(&mut self, rows: &[LogitRow], values: Tensor, width: usize) -> Result<(), ForwardError> {
        self.download(values)?;
        let values = self.device.downloaded(values)?;
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(width)) {
            (self.sink)(row, Logits::All(values));
        }
        Ok(())
    }

    /// Returns whether copying a few logits of a row to the host costs less than copying all of them.
    pub fn prefers_best(&self) -> bool {
        self.device.copies_downloads()
    }

    /// Hands the `count` greatest logits of each finished row to the sink. `best` holds them as [`Command::Best`]
    /// leaves them.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn deliver_best(&mut self, rows: &[LogitRow], best: Tensor, count: usize) -> Result<(), ForwardError> {
        self.download(best)?;
        let (pairs, _) = self.device.downloaded(best)?.as_chunks::<2>();
        for (&row, best) in rows.iter().zip(pairs.chunks_exact(count)) {
            (self.sink)(row, Logits::Best(best));
        }
        Ok(())
    }

    /// Waits until a tensor has come to the host, and everything that was submitted before is complete.
    ///
    /// # Errors
    /// Fails if the device failed.
    fn download(&mut self, from: Tensor) -> Result<(), DeviceError> {
        let computed: ArrayVec<Token, 1> = self.last.into_iter().collect();
        let token = self.device.submit(Queue::Download, &[Command::Download { from }], &computed)?;
        self.last = Some(token);
        self.device.complete(token)?;
        // Now that the host has it, it knows that everything submitted before is complete.
        self.last = None;
        Ok(())
    }

    fn of_rows(&self, tensor: Tensor) -> Tensor {
        tensor.first(self.rows * self.width)
    }
}
