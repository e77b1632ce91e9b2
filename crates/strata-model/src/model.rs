//! The forward pass: one for all architectures, which differ in configuration only.

use arrayvec::{ArrayVec, IntoIter as ArrayVecIntoIter};
use strata_device::{Arena, ArenaFull, CpuDevice, Frame, KvPool};
use strata_kernels::{
    Activations, AttentionLayer, AttentionSpan, Columns, KvDType, KvLayout, KvShape, Level, Matrix, Pool, Product,
    Rotation, add_and_norm, add_scaled, attention, attention_scratch, gather_rows, matmul, matmul_gated, rms_norm,
    rms_norm_heads, rotate_and_store, scale,
};
use strata_weights::{BANDS_MAX, GroupGuard, WeightError, WeightSource};
use thiserror::Error;

use crate::batch::{BatchSequence, LogitRow, LogitRows};
use crate::config::ModelConfig;
use crate::groups;
use crate::rope::RopeTable;

/// Rows of logits that are computed at a time. Scratch is bounded by it however many rows a batch wants; the head's
/// weights are walked, and where they are streamed, read, once for each so many.
const LOGIT_ROWS: usize = 64;

/// A pass that could not be computed. What the batch's sequences had before it is unchanged.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// A group's weights could not be had.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The batch is larger than what scratch was reserved for.
    #[error(transparent)]
    Scratch(#[from] ArenaFull),
}

/// A model that computes. It borrows device and KV memory for the length of a pass, and owns neither.
pub struct Model {
    config: ModelConfig,
    rope: RopeTable,
    weights: Box<dyn WeightSource>,
    /// Sequence and position of each token of the batch; kept, so that a pass allocates nothing.
    rows: Vec<(u32, u32)>,
    spans: Vec<AttentionSpan>,
    tables: Vec<u32>,
    tokens: Vec<u32>,
    logit_rows: Vec<(LogitRow, u32)>,
}

impl Model {
    /// A model over `weights`, whose groups are those of [`groups::group_specs`].
    pub fn new(config: ModelConfig, weights: Box<dyn WeightSource>) -> Self {
        let rope = RopeTable::new(&config.rope, config.head_dim);
        Self {
            config,
            rope,
            weights,
            rows: Vec::new(),
            spans: Vec::new(),
            tables: Vec::new(),
            tokens: Vec::new(),
            logit_rows: Vec::new(),
        }
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// See [`RopeTable::cache_namespace`].
    pub fn cache_namespace(&self, prompt_len: usize) -> u64 {
        self.rope.cache_namespace(prompt_len)
    }

    /// How a KV block of this model lies in memory.
    pub fn kv_layout(config: &ModelConfig, block_size: usize, dtype: KvDType) -> KvLayout {
        let shape = KvShape { num_kv_heads: config.num_kv_heads, head_dim: config.head_dim };
        KvLayout::new(block_size, dtype, (0..config.num_layers).map(|_| shape))
    }

    /// Scratch bytes of a pass of up to `max_tokens` tokens on `threads` threads that wants up to `max_logit_rows` rows
    /// of logits.
    pub fn scratch_bytes(config: &ModelConfig, max_tokens: usize, max_logit_rows: usize, threads: usize) -> usize {
        let rows = LOGIT_ROWS.min(max_logit_rows);
        let per_pass = Widths::new(config).per_token().into_iter().map(|width| Arena::bytes_of_f32(width * max_tokens));
        let others = [
            config.hidden_size * rows,
            config.vocab_size * rows,
            norm_scratch(config),
            parts_scratch(config),
            product_scratch(config, max_tokens, threads),
        ];
        per_pass.sum::<usize>() + others.iter().map(|&len| Arena::bytes_of_f32(len)).sum::<usize>()
    }

    /// Computes one pass over all groups, writes the KV of every token of the batch into its blocks, and hands each
    /// wanted row of logits, `[vocab_size]`, to `sink`, in the order of the batch. The sink may change the row.
    ///
    /// Nothing is allocated once the largest batch has been seen.
    ///
    /// # Errors
    /// Weights could not be had, or the batch needs more scratch than [`Model::scratch_bytes`] reserved. KV of the
    /// batch's own tokens is then unspecified, all other KV untouched.
    ///
    /// # Panics
    /// If a block table is too short or names a block outside the pool: the block manager's promise.
    pub fn forward(
        &mut self,
        device: &mut CpuDevice,
        kv: &mut KvPool,
        batch: &[BatchSequence<'_>],
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), ForwardError> {
        self.list_rows(batch);
        let tokens = self.rows.len();
        if tokens == 0 {
            return Ok(());
        }
        let CpuDevice { pool, level, arena } = device;
        let mut frame = arena.frame();
        let mut pass = Pass {
            config: &self.config,
            pool,
            level: *level,
            batch,
            rows: &self.rows,
            spans: &self.spans,
            tables: &self.tables,
            tokens: &self.tokens,
            scratch: Scratch::take(&mut frame, &self.config, tokens, pool.threads())?,
            pending: false,
        };
        pass.embed(&self.weights.acquire(groups::EMBEDDING)?)?;
        pass.turn(&self.rope);
        for layer in 0..self.config.num_layers {
            let read = (layer + 1 == self.config.num_layers).then_some(self.logit_rows.as_slice());
            pass.attend(&self.weights.acquire(groups::attention(layer))?, kv, layer, read)?;
            pass.feed_forward(&self.weights.acquire(groups::ffn(layer))?)?;
        }
        if !self.logit_rows.is_empty() {
            let guard = self.weights.acquire(groups::head(self.config.num_layers))?;
            pass.head(&guard, &mut frame, &self.logit_rows, sink)?;
        }
        Ok(self.weights.end_pass()?)
    }

    fn list_rows(&mut self, batch: &[BatchSequence<'_>]) {
        self.rows.clear();
        self.spans.clear();
        self.tables.clear();
        self.tokens.clear();
        self.logit_rows.clear();
        for (index, sequence) in batch.iter().enumerate() {
            let first_row = self.rows.len();
            let count = sequence.tokens.len();
            self.tokens.extend_from_slice(sequence.tokens);
            let first_block = self.tables.len() as u32;
            self.tables.extend_from_slice(sequence.block_table);
            let table = first_block..self.tables.len() as u32;
            self.spans.push(AttentionSpan { first_position: sequence.first_position, tokens: count, table });
            self.rows.extend((0..count).map(|i| (index as u32, (sequence.first_position + i) as u32)));
            let wanted = match sequence.logits {
                LogitRows::None => count..count,
                LogitRows::Last => count.saturating_sub(1)..count,
                LogitRows::All => 0..count,
            };
            let row = |token| (LogitRow { sequence: index, token }, (first_row + token) as u32);
            self.logit_rows.extend(wanted.map(row));
        }
    }
}

/// Elements per token of each scratch tensor.
struct Widths {
    hidden: usize,
    q: usize,
    kv: usize,
    inner: usize,
    half_head: usize,
}

impl Widths {
    fn new(config: &ModelConfig) -> Self {
        Self {
            hidden: config.hidden_size,
            q: config.num_heads * config.head_dim,
            kv: config.num_kv_heads * config.head_dim,
            inner: config.intermediate_size,
            half_head: config.head_dim / 2,
        }
    }

    /// In the order in which [`Scratch::take`] takes them.
    fn per_token(&self) -> [usize; 11] {
        let Self { hidden, q, kv, inner, half_head } = *self;
        [hidden, hidden, hidden, q, kv, kv, q, inner, inner, half_head, half_head]
    }
}

fn norm_scratch(config: &ModelConfig) -> usize {
    config.hidden_size.max(config.head_dim)
}

/// For the parts of long contexts that threads attend to at a time.
fn parts_scratch(config: &ModelConfig) -> usize {
    attention_scratch(config.num_heads, config.head_dim, config.context())
}

/// What the widest product of a pass needs.
fn product_scratch(config: &ModelConfig, tokens: usize, threads: usize) -> usize {
    let widths = Widths::new(config);
    Activations::scratch_len(tokens, widths.hidden.max(widths.q).max(widths.inner), threads)
}

/// The tensors of a pass, `[tokens, width]` each.
struct Scratch<'a> {
    hidden: &'a mut [f32],
    normed: &'a mut [f32],
    branch: &'a mut [f32],
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    attended: &'a mut [f32],
    gate: &'a mut [f32],
    up: &'a mut [f32],
    cos: &'a mut [f32],
    sin: &'a mut [f32],
    /// A norm's weights, widened.
    norm: &'a mut [f32],
    /// See [`attention_scratch`].
    parts: &'a mut [f32],
    /// What a product needs beside its operands.
    product: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn take(frame: &mut Frame<'a>, config: &ModelConfig, tokens: usize, threads: usize) -> Result<Self, ArenaFull> {
        let mut widths = Widths::new(config).per_token().into_iter();
        let mut next = || frame.take_f32(widths.next().expect("as many widths as tensors") * tokens);
        Ok(Self {
            hidden: next()?,
            normed: next()?,
            branch: next()?,
            q: next()?,
            k: next()?,
            v: next()?,
            attended: next()?,
            gate: next()?,
            up: next()?,
            cos: next()?,
            sin: next()?,
            norm: frame.take_f32(norm_scratch(config))?,
            parts: frame.take_f32(parts_scratch(config))?,
            product: frame.take_f32(product_scratch(config, tokens, threads))?,
        })
    }
}

impl Scratch<'_> {
    /// Goes on with the rows that are `read`, in ascending order, out of `tokens`; with one, if there are none.
    fn keep_rows(&mut self, config: &ModelConfig, tokens: usize, read: &[(LogitRow, u32)]) {
        let Widths { hidden, q, inner, .. } = Widths::new(config);
        let count = read.len().max(1);
        for (tensor, width) in [(&mut self.hidden, hidden), (&mut self.attended, q)] {
            for (to, &(_, from)) in read.iter().enumerate().filter(|_| count < tokens) {
                tensor.copy_within(from as usize * width..(from as usize + 1) * width, to * width);
            }
        }
        for (tensor, width) in [
            (&mut self.hidden, hidden),
            (&mut self.normed, hidden),
            (&mut self.branch, hidden),
            (&mut self.attended, q),
            (&mut self.gate, inner),
            (&mut self.up, inner),
        ] {
            let whole = std::mem::take(tensor);
            *tensor = &mut whole[..count * width];
        }
    }
}

/// One pass under way.
struct Pass<'a> {
    config: &'a ModelConfig,
    pool: &'a Pool,
    level: Level,
    batch: &'a [BatchSequence<'a>],
    rows: &'a [(u32, u32)],
    spans: &'a [AttentionSpan],
    tables: &'a [u32],
    tokens: &'a [u32],
    scratch: Scratch<'a>,
    /// Whether `branch` has yet to be added to `hidden`; the next norm does so on its way.
    pending: bool,
}

impl Pass<'_> {
    fn embed(&mut self, guard: &GroupGuard<'_>) -> Result<(), WeightError> {
        let (pool, width, multiplier) = (self.pool, self.config.hidden_size, self.config.embedding_multiplier);
        let hidden = &mut *self.scratch.hidden;
        guard.with_rows(0, self.tokens, &mut |range, embedding, row_at| {
            let out = &mut hidden[range.start * width..range.end * width];
            gather_rows(pool, embedding, row_at, multiplier, out);
        })
    }

    fn turn(&mut self, table: &RopeTable) {
        let half = self.config.head_dim / 2;
        for (row, &(sequence, position)) in self.rows.iter().enumerate() {
            let range = row * half..(row + 1) * half;
            let prompt_len = self.batch[sequence as usize].prompt_len;
            table.fill(
                position as usize,
                prompt_len,
                &mut self.scratch.cos[range.clone()],
                &mut self.scratch.sin[range],
            );
        }
    }

    /// Attention, and what is added to each token's hidden state for it. Behind the last attention only the rows are
    /// `read` whose logits are wanted; the others end there.
    fn attend(
        &mut self,
        guard: &GroupGuard<'_>,
        kv: &mut KvPool,
        layer: usize,
        read: Option<&[(LogitRow, u32)]>,
    ) -> Result<(), WeightError> {
        let (config, pool, level) = (self.config, self.pool, self.level);
        let mut tensors = Tensors::new(guard);
        self.norm_hidden(tensors.vector());
        let s = &mut self.scratch;
        let mut x = Activations::new(s.normed, config.hidden_size, s.product);
        tensors.products([&mut *s.q, &mut *s.k, &mut *s.v], config.qkv_bias, |products| {
            matmul(pool, level, &mut x, products);
        })?;
        if config.qk_norm {
            for heads in [&mut *s.q, &mut *s.k] {
                let weight = &mut s.norm[..config.head_dim];
                tensors.vector().widen_row(0, weight);
                rms_norm_heads(pool, level, heads, weight, config.rms_norm_eps);
            }
        }
        let (kv_layer, spans, tables) = (kv.layout().layer(layer), self.spans, self.tables);
        let rotation = Rotation { style: config.rope.style, cos: s.cos, sin: s.sin };
        rotate_and_store(pool, level, &kv_layer, kv.blocks_mut(), spans, tables, rotation, s.q, s.k, s.v);
        let operands = AttentionLayer {
            kv: kv_layer,
            heads: config.num_heads,
            scale: config.attention_scale,
            window: config.sliding_windows[layer],
        };
        attention(pool, level, &operands, kv.blocks(), spans, tables, s.q, s.parts, s.attended);
        if let Some(read) = read {
            s.keep_rows(config, self.rows.len(), read);
        }
        let mut x = Activations::new(s.attended, config.num_heads * config.head_dim, s.product);
        tensors.products([&mut *s.branch], config.output_bias, |products| matmul(pool, level, &mut x, products))?;
        self.pending = true;
        Ok(())
    }

    /// The norm of `hidden`, to `normed`, with what the last branch adds.
    fn norm_hidden(&mut self, weight: Matrix<'_>) {
        let (config, pool, level, s) = (self.config, self.pool, self.level, &mut self.scratch);
        if !std::mem::take(&mut self.pending) {
            return norm(pool, level, config, s.hidden, weight, s.norm, s.normed);
        }
        let widened = &mut s.norm[..config.hidden_size];
        weight.widen_row(0, widened);
        let (scale, epsilon) = (config.residual_multiplier, config.rms_norm_eps);
        add_and_norm(pool, level, s.hidden, s.branch, scale, widened, epsilon, s.normed);
    }

    fn feed_forward(&mut self, guard: &GroupGuard<'_>) -> Result<(), WeightError> {
        let (config, pool, level) = (self.config, self.pool, self.level);
        let mut tensors = Tensors::new(guard);
        self.norm_hidden(tensors.vector());
        let s = &mut self.scratch;
        let mut x = Activations::new(s.normed, config.hidden_size, s.product);
        tensors.products([&mut *s.gate, &mut *s.up], config.mlp_bias, |mut products| {
            // Swept side by side, so that they come in pairs of the same rows.
            debug_assert!(products.len().is_multiple_of(2));
            let pairs = std::iter::from_fn(|| Some([products.next()?, products.next()?]));
            matmul_gated(pool, level, config.activation, &mut x, pairs);
        })?;
        let mut x = Activations::new(s.gate, config.intermediate_size, s.product);
        tensors.products([&mut *s.branch], config.mlp_bias, |products| matmul(pool, level, &mut x, products))?;
        self.pending = true;
        Ok(())
    }

    /// The logits of the rows that are left, which are those `wanted`.
    fn head(
        &mut self,
        guard: &GroupGuard<'_>,
        frame: &mut Frame<'_>,
        wanted: &[(LogitRow, u32)],
        sink: &mut dyn FnMut(LogitRow, &mut [f32]),
    ) -> Result<(), ForwardError> {
        let (config, s) = (self.config, &mut self.scratch);
        if std::mem::take(&mut self.pending) {
            add_scaled(self.pool, self.level, s.hidden, s.branch, config.residual_multiplier);
        }
        let mut tensors = Tensors::new(guard);
        let norm_weight = tensors.vector();
        let rows = LOGIT_ROWS.min(wanted.len());
        let last_hidden = frame.take_f32(rows * config.hidden_size)?;
        let logits = frame.take_f32(rows * config.vocab_size)?;
        for (wanted, hidden) in wanted.chunks(rows).zip(s.hidden.chunks(rows * config.hidden_size)) {
            let last_hidden = &mut last_hidden[..hidden.len()];
            norm(self.pool, self.level, config, hidden, norm_weight, s.norm, last_hidden);
            // MiniCPM divides before the head, Granite after it; dividing before is cheaper and as exact.
            scale(last_hidden, 1.0 / config.logits_divisor);
            let logits = &mut logits[..wanted.len() * config.vocab_size];
            let mut x = Activations::new(last_hidden, config.hidden_size, s.product);
            let (pool, level) = (self.pool, self.level);
            tensors.products([&mut *logits], false, |products| matmul(pool, level, &mut x, products))?;
            tensors.go_back(1);
            for (&(row, _), logits) in wanted.iter().zip(logits.chunks_exact_mut(config.vocab_size)) {
                sink(row, logits);
            }
        }
        Ok(())
    }
}

fn norm(
    pool: &Pool,
    level: Level,
    config: &ModelConfig,
    x: &[f32],
    weight: Matrix<'_>,
    widened: &mut [f32],
    out: &mut [f32],
) {
    let widened = &mut widened[..config.hidden_size];
    weight.widen_row(0, widened);
    rms_norm(pool, level, x, widened, config.rms_norm_eps, out);
}

/// The tensors of a group, taken one after the other in the order of [`groups::group_specs`].
struct Tensors<'a> {
    guard: &'a GroupGuard<'a>,
    next: usize,
}

impl<'a> Tensors<'a> {
    fn new(guard: &'a GroupGuard<'a>) -> Self {
        Self { guard, next: 0 }
    }

    /// Products with the next matrices, one for each of `outs`, each with the bias after it if there is one. `compute` is
    /// called with those whose weights are at hand, until all rows have been: with resident weights once.
    fn products<const N: usize>(
        &mut self,
        outs: [&mut [f32]; N],
        has_bias: bool,
        mut compute: impl FnMut(ArrayVecIntoIter<Product<'_>, BANDS_MAX>),
    ) -> Result<(), WeightError> {
        let indices: [usize; N] = std::array::from_fn(|_| self.skip(1 + usize::from(has_bias)));
        let biases = indices.map(|index| has_bias.then(|| self.vector_at(index + 1)));
        let mut index = indices.into_iter();
        let mut rest = outs.map(|out| {
            let (rows, _) = self.guard.shape(index.next().expect("as many matrices as results"));
            Some(Columns::new(out, rows))
        });
        let mut sweep = self.guard.sweep(&indices);
        loop {
            let bands = sweep.advance()?;
            if bands.is_empty() {
                return Ok(());
            }
            let mut products = ArrayVec::<_, BANDS_MAX>::new();
            for band in bands {
                let (out, behind) = rest[band.matrix].take().expect("put back below").split_at(band.rows.len());
                rest[band.matrix] = Some(behind);
                let bias = biases[band.matrix].map(|bias| bias.columns(band.rows.clone()));
                products.push(Product { weights: band.weights(), bias, out });
            }
            compute(products.into_iter());
        }
    }

    /// The next tensor, a vector, as a matrix of one row.
    fn vector(&mut self) -> Matrix<'a> {
        let index = self.skip(1);
        self.vector_at(index)
    }

    fn vector_at(&self, index: usize) -> Matrix<'a> {
        let tensor = self.guard.tensor(index);
        Matrix::new(tensor.dtype, 1, tensor.shape.iter().product(), tensor.bytes)
    }

    /// The number of the next tensor, and on to the one `count` behind it.
    fn skip(&mut self, count: usize) -> usize {
        let index = self.next;
        self.next += count;
        index
    }

    /// Takes the last `count` tensors once more.
    fn go_back(&mut self, count: usize) {
        self.next -= count;
    }
}
