//! Runs the passes that are measured: prompts in chunks, and decodes of several sequences together.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use interbed_device::Device;
use interbed_engine::{MemoryPlan, ModelRunner, Runner};
use interbed_model::{BatchSequence, LogitRows, NothingBelow, SequenceBlocks};

use crate::load::Runnable;

/// A model runner whose forward passes are measured.
pub struct MeasuredPasses<D> {
    pub runner: ModelRunner<D>,
    /// The maximum number of tokens of a prompt that one pass computes.
    chunk: usize,
    block_size: usize,
    vocab: usize,
}

/// The sizes of the work that is measured.
pub struct Sizes {
    /// The numbers of sequences that decode together.
    pub batch: Vec<usize>,
    /// The number of tokens of each sequence before decode is measured.
    pub context: usize,
    /// The lengths, in tokens, of the prompts whose prefill is measured.
    pub prompt_tokens: Vec<usize>,
    /// The number of passes in each measurement.
    pub repeat: usize,
}

impl Sizes {
    /// Returns the number of positions that a decoding sequence reaches: its context, a warm-up pass and the measured
    /// passes.
    fn decode_len(&self) -> usize {
        self.context.saturating_add(self.repeat).saturating_add(1)
    }

    /// Checks that KV memory has room for the work. `more` is the command-line option for more memory, which the error
    /// message names.
    ///
    /// # Errors
    /// Fails if KV memory is too small.
    pub fn check(&self, plan: &MemoryPlan, block_size: usize, more: &str) -> Result<()> {
        let largest = self.batch.iter().copied().max().unwrap_or(0);
        let longest = self.prompt_tokens.iter().copied().max().unwrap_or(0);
        let decoding = largest.saturating_mul(self.decode_len().div_ceil(block_size));
        let is_short = longest.max(self.decode_len()) <= plan.max_model_len;
        if is_short && decoding.max(longest.div_ceil(block_size)) <= plan.num_blocks {
            return Ok(());
        }
        bail!(
            "KV memory holds {} tokens, {} a sequence, which is too little for this measurement; give more {more}, or \
             measure a smaller --batch, --context, --repeat or --prompt-tokens",
            plan.num_blocks * block_size,
            plan.max_model_len
        )
    }
}

impl<D: Device> MeasuredPasses<D> {
    /// Takes the runner from `runnable`, whose model has a vocabulary of `vocab` tokens.
    pub fn new(runnable: Runnable<ModelRunner<D>>, vocab: usize) -> Self {
        let Runnable { runner, batched_tokens, block_size, .. } = runnable;
        Self { runner, chunk: batched_tokens, block_size, vocab }
    }

    /// Returns the maximum number of tokens of a prompt that one pass computes.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Computes `sizes.context` tokens of each of `batch` sequences, and then decodes one token of each as a warm-up.
    /// Returns the sequences' block tables.
    pub fn begin_decode(&mut self, batch: usize, sizes: &Sizes) -> Result<Vec<Vec<u32>>> {
        let each = sizes.decode_len().div_ceil(self.block_size);
        let tables: Vec<Vec<u32>> =
            (0..batch).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect();
        // As many sequences together as a pass has room for, because streamed weights are read in each pass.
        for tables in tables.chunks((self.chunk / sizes.context.max(1)).max(1)) {
            for start in (0..sizes.context).step_by(self.chunk) {
                let count = self.chunk.min(sizes.context - start);
                self.pass(tables, start, count, LogitRows::None)?;
            }
        }
        self.decode(&tables, sizes.context)?;
        Ok(tables)
    }

    /// Computes one token, at `position`, of each sequence. `tables` holds the sequences' block tables. Returns the
    /// time until the device has finished and all weights that are read ahead have arrived.
    pub fn decode(&mut self, tables: &[Vec<u32>], position: usize) -> Result<Duration> {
        let begin = Instant::now();
        self.pass(tables, position, 1, self.wanted_rows())?;
        self.runner.settle()?;
        Ok(begin.elapsed())
    }

    /// Computes a prompt of `tokens` tokens in chunks, with the logits of its last token. Returns the time until the
    /// device has finished and all weights that are read ahead have arrived.
    pub fn prefill(&mut self, tokens: usize) -> Result<Duration> {
        let tables = [(0..tokens.div_ceil(self.block_size)).map(|block| block as u32).collect()];
        let begin = Instant::now();
        for start in (0..tokens).step_by(self.chunk) {
            let count = self.chunk.min(tokens - start);
            let logits = if start + count == tokens { self.wanted_rows() } else { LogitRows::None };
            self.pass(&tables, start, count, logits)?;
        }
        self.runner.settle()?;
        Ok(begin.elapsed())
    }

    /// Returns what is wanted of the logits: the greatest, if whole rows would have to be copied to the host.
    fn wanted_rows(&self) -> LogitRows {
        if self.runner.device.copies_downloads() { LogitRows::Best(1) } else { LogitRows::Last }
    }

    fn pass(&mut self, tables: &[Vec<u32>], start: usize, count: usize, logits: LogitRows) -> Result<()> {
        let tokens: Vec<u32> = (0..count).map(|i| ((start + i) * 7919 % self.vocab) as u32).collect();
        let batch: Vec<_> = tables
            .iter()
            .map(|table| BatchSequence {
                tokens: &tokens,
                first_position: start,
                prompt_len: start + count,
                below: 0,
                blocks: SequenceBlocks::Listed(table),
                logits,
            })
            .collect();
        timed(&mut self.runner, &batch).map(|_| ())
    }
}

/// Runs one forward pass over `batch`, and returns the time that the pass took.
pub fn timed(runner: &mut dyn Runner, batch: &[BatchSequence<'_>]) -> Result<Duration> {
    let begin = Instant::now();
    runner
        .forward(batch, &mut NothingBelow, &mut |_, logits| {
            std::hint::black_box(&logits);
        })
        .map_err(anyhow::Error::msg)?;
    Ok(begin.elapsed())
}
