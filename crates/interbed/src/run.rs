//! `interbed run`: answers one prompt, or starts a chat on a terminal.

use std::io::{IsTerminal, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use interbed_device::{Bytes, give_back_freed};
use interbed_engine::{SamplingParams, TokenId};
use interbed_model::chat_template::ChatTemplate;
use serde_json::{Map, json};

use crate::answer::{Question, answer};
use crate::audience::{Audience, Surroundings};
use crate::budget::budget;
use crate::chat::{self, ChatArgs};
use crate::division::Division;
use crate::failure::{Advised, Interrupted};
use crate::hub;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{ComputeOptions, ExpertCountsOption, LimitOptions, ModelOptions, TimelineOption};
use crate::printable::without_controls;
use crate::prompt::{self, PromptLimits, PromptOptions, encode};
use crate::report::report;
use crate::sampling::{SamplingOptions, model_defaults};
use crate::timeline;

/// The default of the maximum number of tokens that continue a text. The limit does not apply to answers to a message,
/// which end by themselves.
const MAX_TOKENS: usize = 256;

/// The estimated number of bytes of text per token, rather too low than too high for most texts.
const BYTES_PER_TOKEN: usize = 4;

/// The number of bytes that a prompt token takes, in the prompt's list and in lists of the engine.
const BYTES_PER_ID: usize = 32;

/// Ask a model, or continue a text; without a prompt, on a terminal, start a chat
///
/// The prompt goes through the model's chat template, and the answer is printed while it is generated. With --raw, or
/// without a chat template, the model continues the prompt as it stands. The prompt is then printed before the new
/// text, and at most 256 tokens are generated unless --max-tokens is given.
///
/// Without --temperature, decoding is greedy (temperature 0), so the same prompt always gives the same text. With a
/// temperature, the other settings default to those of the model's generation_config.json, and --seed to 0. A chat
/// samples as `interbed chat` does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed run models/1b-instruct                                       # a chat\n  \
    interbed run models/1b-instruct \"What is rust?\"\n  \
    interbed run models/1b-instruct --prompt \"What is rust?\" --system \"Answer in French.\"\n  \
    interbed run --raw --prompt \"Once upon a time\"                       # the bundled model goes on\n  \
    interbed run models/1b --raw --prompt \"The sea is\" --temperature 0.8 --seed 7 --max-tokens 64\n  \
    interbed run models/1b-instruct --memory 4G --prompt-file notes.txt --stats > summary.txt\n  \
    git log -1 | interbed run models/1b --raw --prompt - --stop $'\\n\\n'\n  \
    interbed run models/70b --memory 20G --prompt Hi --stats       # larger than memory: weights are streamed\n  \
    interbed run models/70b --memory 20G --prompt Hi --timeline t.json    # every read and wait, for ui.perfetto.dev")]
pub struct RunArgs {
    #[command(flatten)]
    pub prompt: PromptOptions,

    /// Continue the prompt as it stands, without the model's chat template
    #[arg(long)]
    pub raw: bool,

    /// Refuse a model that has no chat template
    #[arg(long, hide = true, conflicts_with = "raw")]
    pub chat: bool,

    /// Instructions that go before the message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,

    /// If a text is continued, print only the new part
    #[arg(long)]
    pub no_echo: bool,

    /// At the end, print to stderr the speed, the memory used and, if weights are streamed, the amount of data read
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub timeline: TimelineOption,

    /// Record in this file which experts each token uses, for `interbed-lab replay` and `interbed plan --routing`. The
    /// model must be a mixture of experts
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub record_routing: Option<PathBuf>,

    #[command(flatten)]
    pub model: ModelOptions,

    /// The prompt, in place of --prompt; text that is piped in is appended to it
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "prompt_file"])]
    pub words: Vec<String>,

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
/// Fails if the model, the prompt or a parameter cannot be used, if a forward pass fails, or if the user presses
/// Ctrl-C.
pub fn run(args: RunArgs) -> Result<()> {
    if args.is_chat() {
        let RunArgs { system, model, counts, compute, sampling, .. } = args;
        return chat::run(ChatArgs { system, model, counts, compute, sampling });
    }
    // A prompt in the place of MODEL is reported before a prompt is read from stdin.
    hub::check(args.model.model.as_deref())?;
    let text = if args.words.is_empty() { args.prompt.read()? } else { prompt::of_words(&args.words)? };
    let options = SamplingOptions { seed: args.sampling.seed.or(Some(0)), ..args.sampling.clone() };
    // Parameters are checked before anything large is loaded.
    options.over(SamplingParams::default())?;

    let mut model = args.model.clone();
    model.limits.compute = args.compute;
    model.limits.stream.timeline = args.timeline.timeline.is_some();
    model.limits.stream.record_routing = args.record_routing;
    model.limits.stream.keep_expert_counts = !args.counts.no_expert_counts;
    let mut for_one = model.limits.clone();
    // The tokenizer is not open yet, so the number of the prompt's tokens is estimated.
    for_one.make_for_one(Some((text.len() / BYTES_PER_TOKEN).max(1)));
    let path = hub::local(model.model.as_deref(), &for_one, Audience::Prompt(Bytes(0)))?;
    let opened = Opened::open(path.as_deref())?;
    let template = template(&opened, args.raw, args.chat, args.system.is_some())?;
    let is_raw = template.is_none();
    let prompt_text = match template {
        Some(template) => message(&template, args.system.as_deref(), &text)?,
        None => text.clone(),
    };
    // The template writes the special tokens itself, so they are added only to a raw prompt.
    let prompt = tokenize(&opened, &model.limits, &prompt_text, is_raw)?;
    model.limits.make_for_one(Some(prompt.len()));
    let texts = Bytes((text.len() + prompt_text.len() + prompt.len() * BYTES_PER_ID) as u64);
    let loaded = load::load(opened, &model.limits, Audience::Prompt(texts), MAX_WAITING)?;
    let defaults = SamplingParams { temperature: 0.0, ..model_defaults(&loaded.generation) };
    let mut params = options.over(defaults)?;
    args.sampling.unused_note(params.temperature).into_iter().for_each(|note| report!("{note}"));
    let most = if is_raw { MAX_TOKENS } else { usize::MAX };
    params.max_tokens = options.max_tokens.map_or_else(|| room(&loaded, prompt.len()).min(most), usize::from);

    let echo = (is_raw && !args.no_echo).then_some(text);
    let interrupts = Interrupts::listen()?;
    let mut out = stdout().lock();
    let on_terminal = out.is_terminal();
    let mut show = |text: &str| {
        // Files and pipes get exactly the text that the model generated.
        let text = if on_terminal { without_controls(text) } else { text.into() };
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    let question = Question { prompt, params, text: options.text_options(&loaded), echo };
    let answer = answer(&loaded, question, &interrupts, &mut show)?;
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

impl RunArgs {
    /// Returns whether the command starts a chat: on a terminal, without a prompt and without options that need one.
    fn is_chat(&self) -> bool {
        let needs_prompt =
            self.raw || self.no_echo || self.stats || self.timeline.timeline.is_some() || self.record_routing.is_some();
        !self.prompt.is_given()
            && self.words.is_empty()
            && !needs_prompt
            && stdin().is_terminal()
            && stdout().is_terminal()
    }
}

/// Returns the chat template that is applied to the prompt, or `None` if the prompt is continued as it is.
fn template(opened: &Opened, raw: bool, needed: bool, has_system: bool) -> Result<Option<Arc<ChatTemplate>>> {
    if needed {
        return opened.chat_template().map(Some);
    }
    let template = opened.template.clone().filter(|_| !raw);
    if template.is_none() && has_system {
        let message = format!("{} has no chat template, so it takes no --system", opened.dir.name());
        return Err(Advised::input(message, "leave --system out, and write what it says into the prompt"));
    }
    if template.is_none() && !raw {
        report!("note: {} has no chat template, so it continues the prompt", opened.dir.name());
    }
    Ok(template)
}

/// Returns the number of tokens that the context leaves for the answer, at least 1. If nothing is left, the engine
/// refuses the request and says why.
fn room(loaded: &Loaded, prompt_tokens: usize) -> usize {
    loaded.engine.handle().limits().max_model_len.saturating_sub(prompt_tokens).max(1)
}

/// Tokenizes the prompt before weights and KV are allocated, so that tokenizing may use the whole budget.
fn tokenize(opened: &Opened, limits: &LimitOptions, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
    let budget = budget(limits)?;
    // A budget that is too small is refused first, with the minimum.
    let surroundings = Surroundings { footprint: opened.footprint, audience: Audience::Prompt(Bytes(0)) };
    let needs = opened.dir.needs(limits, &surroundings)?;
    let context = Division::of(&needs, budget, None)?.plan.max_model_len;
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
