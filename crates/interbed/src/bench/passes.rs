//! Runs the passes that are measured: prompts in chunks, and decodes of several sequences together.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use interbed_device::{Cpu, Device};
use interbed_engine::{ModelRunner, Runner};
use interbed_model::{BatchSequence, GroupBlocks, LogitRows, NothingBelow, SequenceBlocks};
use serde_json::{Value, json};

use super::work::{ModelWork, Work};
use crate::division::Division;
use crate::load::Runnable;
use crate::tails::{self, PassBlocks, PassSizes};

/// A model runner whose forward passes are measured.
pub struct MeasuredPasses {
    pub runner: ModelRunner<Box<dyn Device>>,
    /// The maximum number of tokens of a prompt that one pass computes.
    chunk: usize,
    pass_sizes: PassSizes,
    block_size: usize,
    vocab: usize,
}

/// The sizes of the work that is measured.
pub struct Sizes {
    /// The numbers of sequences that decode together.
    pub batch: Vec<NonZeroUsize>,
    /// The number of tokens of each sequence before decode is measured.
    pub context: usize,
    /// The lengths, in tokens, of the prompts whose prefill is measured.
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// The number of passes in each measurement of decode.
    pub repeat: usize,
    /// The number of times that the prefill of a prompt is measured.
    pub prefills: usize,
    /// Whether an unmeasured prefill goes before those that are measured.
    pub warms_up: bool,
}

/// The kind of work that is measured, and its size.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    Decode { batch: usize },
    Prefill { tokens: usize },
}

impl Shape {
    /// Returns the number of tokens that one measurement computes.
    pub fn tokens(self) -> usize {
        match self {
            Self::Decode { batch } => batch,
            Self::Prefill { tokens } => tokens,
        }
    }

    /// Returns the name that figures of this work have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode { .. } => "decode",
            Self::Prefill { .. } => "prefill",
        }
    }

    /// Returns the words that tables have for this work.
    pub fn label(self) -> String {
        match self {
            Self::Decode { batch: 1 } => "decode, 1 sequence".into(),
            Self::Decode { batch } => format!("decode, {batch} sequences"),
            Self::Prefill { tokens } => format!("prefill, {tokens} tokens"),
        }
    }
}

/// What is measured, ready to run.
pub struct Measurement {
    pub shape: Shape,
    /// The number of passes in which the tokens are computed.
    pub passes: usize,
    pub work: Work,
    /// The number of times that the work is measured.
    pub repeat: usize,
    /// The number of tokens of each sequence before decode is measured.
    context: usize,
    /// The block tables of the sequences that decode.
    tables: Vec<Vec<u32>>,
}

impl Measurement {
    /// Returns the sizes of the work, for scripts.
    pub fn params(&self) -> Value {
        match self.shape {
            Shape::Decode { batch } => json!({"batch": batch, "context": self.context}),
            Shape::Prefill { tokens } => json!({"prompt_tokens": tokens}),
        }
    }
}

impl Sizes {
    /// Returns the shapes that are measured, in this order.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> {
        let decodes = self.batch.iter().map(|batch| Shape::Decode { batch: batch.get() });
        decodes.chain(self.prompt_tokens.iter().map(|tokens| Shape::Prefill { tokens: tokens.get() }))
    }

    /// Returns the number of measurements of all shapes.
    pub fn rounds(&self) -> usize {
        self.batch.len() * self.repeat + self.prompt_tokens.len() * self.prefills
    }

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
    pub fn check(&self, Division { plan, needs, .. }: &Division, more: &str) -> Result<()> {
        let block_size = needs.block_size;
        let most = |counts: &[NonZeroUsize]| counts.iter().max().map_or(0, |count| count.get());
        let (largest, longest) = (most(&self.batch), most(&self.prompt_tokens));
        let decoding = largest.saturating_mul(self.decode_len().div_ceil(block_size) + needs.blocks_beside);
        // What all sequences keep stays where it is while a prompt is computed.
        let computing = longest.div_ceil(block_size) + largest.max(1).saturating_mul(needs.blocks_beside);
        let is_short = longest.max(self.decode_len()) <= plan.max_model_len;
        if is_short && decoding.max(computing) <= plan.num_blocks {
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

impl MeasuredPasses {
    /// Takes the runner from `runnable`, whose model has a vocabulary of `vocab` tokens, to measure work of `sizes`.
    pub fn new(runnable: Runnable, vocab: usize, sizes: &Sizes) -> Result<Self> {
        let Runnable { mut runner, division, .. } = runnable;
        let sequences = sizes.batch.iter().max().map_or(1, |largest| largest.get());
        let Division { needs, plan, batched_tokens: chunk, .. } = division;
        let pass_sizes = PassSizes { pass_tokens: chunk, context: plan.max_model_len };
        runner.take_blocks(plan.num_blocks, &tails::counts_of_passes(&runner.model, sequences, pass_sizes))?;
        Ok(Self { runner, chunk, pass_sizes, block_size: needs.block_size, vocab })
    }

    /// Returns the processor, which computes the passes.
    ///
    /// # Panics
    /// Panics if a GPU computes them.
    pub fn processor(&self) -> &Cpu {
        self.runner.device.processor().expect("the processor computes the passes")
    }

    /// Prepares the measurement of a shape: sequences that decode get their context, and prefills warm up.
    pub fn prepare(&mut self, shape: Shape, sizes: &Sizes, work: &ModelWork) -> Result<Measurement> {
        let context = sizes.context;
        Ok(match shape {
            Shape::Decode { batch } => {
                let tables = self.begin_decode(batch, sizes)?;
                let work = work.decode(batch, context + 1 + sizes.repeat / 2);
                Measurement { shape, passes: 1, work, repeat: sizes.repeat, context, tables }
            }
            Shape::Prefill { tokens } => {
                if sizes.warms_up {
                    self.prefill(tokens)?;
                }
                let (passes, work) = (tokens.div_ceil(self.chunk), work.prefill(tokens, self.chunk));
                Measurement { shape, passes, work, repeat: sizes.prefills, context, tables: Vec::new() }
            }
        })
    }

    /// Does the work once more, for the time with this number, and returns how long it takes.
    pub fn run(&mut self, measured: &Measurement, number: usize) -> Result<Duration> {
        match measured.shape {
            Shape::Decode { .. } => self.decode(&measured.tables, measured.context + 1 + number),
            Shape::Prefill { tokens } => self.prefill(tokens),
        }
    }

    /// Computes `sizes.context` tokens of each of `batch` sequences, and then decodes one token of each as a warm-up.
    /// Returns the sequences' block tables.
    fn begin_decode(&mut self, batch: usize, sizes: &Sizes) -> Result<Vec<Vec<u32>>> {
        let each = sizes.decode_len().div_ceil(self.block_size);
        let tables = block_tables(batch, each);
        // As many sequences together as a pass has room for, because streamed weights are read in each pass.
        let mut first = 0;
        for tables in tables.chunks((self.chunk / sizes.context.max(1)).max(1)) {
            for start in (0..sizes.context).step_by(self.chunk) {
                let count = self.chunk.min(sizes.context - start);
                self.pass(first, tables, start, count, LogitRows::None)?;
            }
            first += tables.len();
        }
        self.decode(&tables, sizes.context)?;
        Ok(tables)
    }

    /// Computes one token, at `position`, of each sequence. `tables` holds the sequences' block tables. Returns the
    /// time until the device has finished and all weights that are read ahead have arrived.
    fn decode(&mut self, tables: &[Vec<u32>], position: usize) -> Result<Duration> {
        let begin = Instant::now();
        self.pass(0, tables, position, 1, self.wanted_rows())?;
        self.runner.settle()?;
        Ok(begin.elapsed())
    }

    /// Computes a prompt of `tokens` tokens in chunks, with the logits of its last token. Returns the time until the
    /// device has finished and all weights that are read ahead have arrived.
    fn prefill(&mut self, tokens: usize) -> Result<Duration> {
        let tables = block_tables(1, tokens.div_ceil(self.block_size));
        let begin = Instant::now();
        for start in (0..tokens).step_by(self.chunk) {
            let count = self.chunk.min(tokens - start);
            let logits = if start + count == tokens { self.wanted_rows() } else { LogitRows::None };
            self.pass(0, &tables, start, count, logits)?;
        }
        self.runner.settle()?;
        Ok(begin.elapsed())
    }

    /// Returns what is wanted of the logits: the greatest, if whole rows would have to be copied to the host.
    fn wanted_rows(&self) -> LogitRows {
        if self.runner.device.copies_downloads() { LogitRows::Best(1) } else { LogitRows::Last }
    }

    /// Computes `count` tokens from position `start` on of the sequences with these block tables, of which the first
    /// has number `first`.
    fn pass(&mut self, first: usize, tables: &[Vec<u32>], start: usize, count: usize, logits: LogitRows) -> Result<()> {
        let tokens: Vec<u32> = (0..count).map(|i| ((start + i) * 7919 % self.vocab) as u32).collect();
        let tokens = vec![tokens; tables.len()];
        let of = |index| PassBlocks::of(&self.runner.model, first + index, start..start + count, self.pass_sizes);
        let blocks: Vec<_> = (0..tables.len()).map(of).collect();
        let groups: Vec<_> = blocks.iter().map(PassBlocks::groups).collect();
        timed(&mut self.runner, (tables, &groups), &tokens, [start, start + count], logits).map(|_| ())
    }
}

/// Returns the block tables of `count` sequences that have `each` blocks.
pub fn block_tables(count: usize, each: usize) -> Vec<Vec<u32>> {
    (0..count).map(|i| (i * each..(i + 1) * each).map(|block| block as u32).collect()).collect()
}

/// Runs one forward pass over sequences with these block tables, these blocks of further groups and these tokens, and
/// returns the time that the pass took. The first token of each has the position `first_position`.
pub fn timed(
    runner: &mut dyn Runner,
    (tables, groups): (&[Vec<u32>], &[Vec<GroupBlocks<'_>>]),
    tokens: &[Vec<u32>],
    [first_position, prompt_len]: [usize; 2],
    logits: LogitRows,
) -> Result<Duration> {
    let sequences = tables.iter().zip(groups).zip(tokens).map(|((table, groups), tokens)| {
        let blocks = SequenceBlocks::Listed(table);
        BatchSequence { tokens, first_position, prompt_len, below: 0, blocks, groups, logits }
    });
    let batch: Vec<_> = sequences.collect();
    let begin = Instant::now();
    runner
        .forward(&batch, &mut NothingBelow, &mut |_, logits| {
            std::hint::black_box(&logits);
        })
        .map_err(anyhow::Error::msg)?;
    Ok(begin.elapsed())
}
