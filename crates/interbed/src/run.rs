//! `interbed run`: one prompt, one text.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use interbed_device::{Bytes, give_back_freed};
use interbed_engine::{SamplingParams, TokenId};
use interbed_model::chat_template::ChatTemplate;
use serde_json::{Map, json};

use crate::answer::{Question, answer};
use crate::audience::{Audience, Surroundings};
use crate::budget::budget;
use crate::failure::Interrupted;
use crate::hub;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{ComputeOptions, ExpertCountsOption, LimitOptions, ModelOptions, TimelineOption};
use crate::prompt::{PromptLimits, PromptOptions, encode};
use crate::sampling::{SamplingOptions, model_defaults};
use crate::timeline;

/// Tokens to generate by default, if the context leaves room.
const MAX_TOKENS: usize = 256;

/// Bytes of text that most tokens stand for, or fewer.
const BYTES_PER_TOKEN: usize = 4;

/// Bytes that a token of the prompt takes, in this list and in the engine's own lists.
const BYTES_PER_ID: usize = 32;

/// Continue a prompt, and print the text as it is made
///
/// The prompt is printed too, so that the whole reads as one text. Greedy (temperature 0) unless --temperature is
/// given, so that the same prompt always gives the same text; with a temperature, the other settings default to those
/// of the model's generation_config.json, and --seed to 0. Without --max-tokens, at most 256 tokens are made.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed run --prompt \"Once upon a time\"\n  \
    interbed run models/1b --prompt \"The sea is\" --temperature 0.8 --seed 7 --max-tokens 64\n  \
    interbed run models/1b-instruct --chat --system \"Answer in French.\" --prompt \"What is rust?\"\n  \
    interbed run models/1b --memory 4G --prompt-file notes.txt --no-echo --stats > summary.txt\n  \
    git log -1 | interbed run models/1b --prompt - --stop $'\\n\\n'\n  \
    interbed run models/70b --memory 20G --prompt Hi --stats       # larger than memory: weights are streamed\n  \
    interbed run models/70b --memory 20G --prompt Hi --timeline t.json    # every read and wait, for ui.perfetto.dev")]
pub struct RunArgs {
    #[command(flatten)]
    pub prompt: PromptOptions,

    /// Take the prompt as a message, and wrap it in the model's chat template; it is not printed then
    #[arg(long)]
    pub chat: bool,

    /// Instructions that go before the message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,

    /// Print the new text only
    #[arg(long)]
    pub no_echo: bool,

    /// Afterwards, tell on stderr how fast it was, what memory it took and, where weights are streamed, what was read
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub timeline: TimelineOption,

    /// Of a mixture of experts, write down which experts each token goes through, for `interbed replay` and
    /// `interbed plan
    /// --routing`
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub record_routing: Option<PathBuf>,

    #[command(flatten)]
    pub model: ModelOptions,

    #[command(flatten)]
    pub counts: ExpertCountsOption,

    #[command(flatten)]
    pub compute: ComputeOptions,

    // Last: its heading would hold for what follows.
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// Runs `interbed run`.
///
/// # Errors
/// A model, a prompt or a parameter that cannot be served; a failed pass; Ctrl-C.
pub fn run(args: RunArgs) -> Result<()> {
    let text = args.prompt.read()?;
    let options = SamplingOptions { seed: args.sampling.seed.or(Some(0)), ..args.sampling.clone() };
    // Checked before anything large is loaded.
    options.over(SamplingParams::default())?;

    let mut model = args.model.clone();
    model.limits.compute = args.compute;
    model.limits.stream.timeline = args.timeline.timeline.is_some();
    model.limits.stream.record_routing = args.record_routing;
    model.limits.stream.keep_expert_counts = !args.counts.no_expert_counts;
    let mut for_one = model.limits.clone();
    // Before there is a tokenizer, a guess at the tokens of the prompt.
    for_one.make_for_one(Some((text.len() / BYTES_PER_TOKEN).max(1)));
    let path = hub::local(model.model.as_deref(), &for_one, Audience::Prompt(Bytes(0)))?;
    let opened = Opened::open(path.as_deref())?;
    let (prompt_text, add_special) = match args.chat {
        true => (message(&*opened.chat_template()?, args.system.as_deref(), &text)?, false),
        false => (text.clone(), true),
    };
    let prompt = tokenize(&opened, &model.limits, &prompt_text, add_special)?;
    model.limits.make_for_one(Some(prompt.len()));
    let texts = Bytes((text.len() + prompt_text.len() + prompt.len() * BYTES_PER_ID) as u64);
    let loaded = load::load(opened, &model.limits, Audience::Prompt(texts), MAX_WAITING)?;
    let defaults = SamplingParams { temperature: 0.0, ..model_defaults(&loaded.generation) };
    let mut params = options.over(defaults)?;
    params.max_tokens = options.max_tokens.map_or_else(|| room(&loaded, prompt.len()), usize::from);

    let echo = (!args.no_echo && !args.chat).then_some(text);
    let interrupts = Interrupts::listen()?;
    let mut out = stdout().lock();
    let question = Question { prompt, params, text: options.text_options(&loaded), echo };
    let answer = answer(&loaded, question, &interrupts, &mut out)?;
    if !answer.text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    if args.stats {
        eprintln!("{}", answer.stats);
    }
    match (&args.timeline.timeline, &loaded.streamed) {
        (Some(path), Some(streaming)) => timeline::write(streaming, path)?,
        (Some(_), None) => tracing::warn!("all weights are in memory, so that there is no timeline to write"),
        (None, _) => {}
    }
    if answer.cause.is_none() { Err(Interrupted.into()) } else { Ok(()) }
}

/// The default of `--max-tokens`. Where there is no room at all, the engine says why.
fn room(loaded: &Loaded, prompt_tokens: usize) -> usize {
    let left = loaded.engine.handle().limits().max_model_len.saturating_sub(prompt_tokens);
    left.clamp(1, MAX_TOKENS)
}

/// The prompt's tokens, before weights and KV are there: until then tokenizing has the whole budget.
fn tokenize(opened: &Opened, limits: &LimitOptions, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
    let budget = budget(limits)?;
    // A budget that cannot work is refused first, with what would.
    let surroundings = Surroundings { footprint: opened.footprint, audience: Audience::Prompt(Bytes(0)) };
    let context = opened.dir.divide(budget, limits, &surroundings)?.plan.max_model_len;
    let memory = usize::try_from(budget.0.saturating_sub(opened.footprint.kept().0)).unwrap_or(usize::MAX);
    let prompt = encode(&opened.tokenizer, text, add_special, PromptLimits { context, memory })?;
    give_back_freed();
    Ok(prompt)
}

fn message(template: &ChatTemplate, system: Option<&str>, text: &str) -> Result<String> {
    let mut messages = Vec::new();
    messages.extend(system.map(|system| json!({"role": "system", "content": system})));
    messages.push(json!({"role": "user", "content": text}));
    Ok(template.render(&messages, None, true, &Map::new())?)
}
