//! `interbed logits`: prints the model's raw logits, to compare them with those of another implementation.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use interbed_engine::Runner;
use interbed_model::{BatchSequence, LogitRows, NothingBelow, SequenceBlocks};

use crate::audience::{Audience, Surroundings};
use crate::division::Division;
use crate::hub;
use crate::load::Runnable;
use crate::model_dir::ModelDir;
use crate::options::{ComputeOptions, LimitOptions};
use crate::tails::{self, PassBlocks, PassSizes};

/// Print the logits of every position of a sequence of tokens, as JSON
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed logits path/to/model --tokens 1,15043,3186 > logits.json\n  \
    python tools/reference/compare_logits.py path/to/model --tokens 1,15043,3186 --json logits.json\n\n\
    Prints {\"logits\": [[one row of vocab_size numbers], ...]}, one row a token. With --kv-dtype f32 nothing but the \
    weights themselves is rounded below f32.")]
pub struct LogitsArgs {
    /// A Hugging Face directory or a GGUF file. The default is the model that ships with Interbed.
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// The token ids of the sequence, separated by commas
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,

    #[command(flatten)]
    pub limits: LimitOptions,

    #[command(flatten)]
    pub compute: ComputeOptions,
}

/// Runs `interbed logits`.
pub fn run(args: LogitsArgs) -> Result<()> {
    let path = hub::local(args.model.as_deref(), &args.limits, Audience::Nobody)?;
    let dir = ModelDir::open(path.as_deref())?;
    if let Some(token) = args.tokens.iter().find(|&&token| token as usize >= dir.config.blueprint.vocab_size) {
        bail!("token id {token} is not in the vocabulary, whose ids end at {}", dir.config.blueprint.vocab_size - 1);
    }
    let limits = LimitOptions { compute: args.compute, ..args.limits };
    let runnable = Runnable::new(&dir, &limits, &Surroundings::of_passes())?;
    let Runnable { mut runner, division, streamed: _streamed, .. } = runnable;
    let Division { plan, batched_tokens: chunk, .. } = division;
    let sizes = PassSizes { pass_tokens: chunk, context: plan.max_model_len };
    runner.take_blocks(plan.num_blocks, &tails::counts_of_passes(&runner.model, 1, sizes))?;
    if args.tokens.len() > plan.max_model_len {
        bail!("{} tokens were given, but the context is {} tokens", args.tokens.len(), plan.max_model_len);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    write!(out, "{{\"logits\": [")?;
    let mut written = Ok(());
    for (index, tokens) in args.tokens.chunks(chunk).enumerate() {
        let start = index * chunk;
        let blocks = PassBlocks::of(&runner.model, 0, start..start + tokens.len(), sizes);
        let groups = blocks.groups();
        let batch = [BatchSequence {
            tokens,
            first_position: start,
            prompt_len: args.tokens.len(),
            below: 0,
            blocks: SequenceBlocks::From(0),
            groups: &groups,
            logits: LogitRows::All,
        }];
        runner
            .forward(&batch, &mut NothingBelow, &mut |row, logits| {
                let separator = if index + row.token == 0 { "" } else { ",\n" };
                let json = serde_json::to_string(&*logits.all()).map_err(std::io::Error::from);
                let line = json.and_then(|row| write!(out, "{separator}{row}"));
                if written.is_ok() {
                    written = line;
                }
            })
            .map_err(anyhow::Error::msg)?;
    }
    written.context("writing logits to stdout")?;
    writeln!(out, "]}}")?;
    Ok(())
}
