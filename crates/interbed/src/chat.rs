//! Runs `interbed chat`, a conversation with a model.

mod conversation;
mod habits;
mod lines;
mod screen;

use std::io::{IsTerminal, Write, stdout};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use interbed_engine::SamplingParams;
use interbed_model::chat_template::ChatTemplate;
use serde_json::{Map, Value};

use crate::answer::{Question, Stats, answer};
use crate::audience::Audience;
use crate::colours;
use crate::failure::{self, Interrupted};
use crate::hub;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{ComputeOptions, ExpertCountsOption, ModelOptions};
use crate::prompt::{PromptLimits, encode};
use crate::report::report;
use crate::sampling::{self, SamplingOptions, model_defaults};
use conversation::{ChatTurn, Conversation};
use habits::ForeignCommand;
use lines::{Input, Lines};
use screen::Screen;

/// The number of tokens that are kept free for an answer, or a quarter of the context if that is less.
const ANSWER_ROOM: usize = 256;

/// The variable of chat templates that says whether the model thinks.
const THINKING: &str = "enable_thinking";

const HELP: &str = "\
/?             this list, as /help
/system TEXT   instructions that go before the conversation; without TEXT: none
/clear         begin anew, keeping the instructions
/stats         how fast the last answer was
/bye           leave, as Ctrl-D does
\"\"\"            begins a message of several lines, and ends it
Ctrl-C stops an answer that is being written.";

/// Talk to a model that has a chat template
///
/// The KV cache keeps the conversation, so that each turn computes only what is new. The sampling defaults are those
/// that the model's authors recommend in generation_config.json or in the GGUF file. If a GGUF file recommends nothing,
/// the defaults are those of llama.cpp: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05. If stdin is not a terminal,
/// each line is a message; lines between two lines of """ are one message. `interbed run MODEL` on a terminal does the
/// same.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed chat models/1b-instruct\n  \
    interbed chat models/1b-instruct --system \"You are terse.\" --temperature 0\n  \
    printf 'Hello!\\nAnd in French?\\n' | interbed chat models/1b-instruct\n\n\
    In the conversation, /? lists the commands. A model without a chat template is for `interbed run`.")]
pub struct ChatArgs {
    /// Instructions that precede the conversation (the system message)
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

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

/// Runs `interbed chat`.
///
/// # Errors
/// Fails if the model cannot be loaded or has no chat template, or if stdin is not a terminal and a message fails.
pub fn run(args: ChatArgs) -> Result<()> {
    args.sampling.over(SamplingParams::default())?;
    let mut limits = args.model.limits.clone();
    limits.compute = args.compute.clone();
    limits.stream.keep_expert_counts = !args.counts.no_expert_counts;
    limits.make_for_one(None);
    let path = hub::local(args.model.model.as_deref(), &limits, Audience::Nobody)?;
    let opened = Opened::open(path.as_deref())?;
    let template = opened.chat_template()?;
    let tokenizer = opened.tokenizer.clone();
    let loaded = load::load(opened, &limits, Audience::Person(&tokenizer), MAX_WAITING)?;
    let params = args.sampling.over(model_defaults(&loaded.generation))?;
    sampling::tell(&loaded.generation, &params);
    let mut lines = Lines::open()?;
    let interactive = lines.are_typed();
    let mut chat = Chat {
        interrupts: Interrupts::listen()?,
        conversation: Conversation { system: args.system, turns: Vec::new() },
        template,
        loaded,
        params,
        sampling: args.sampling,
        last: None,
        variables: Map::new(),
        interactive,
        width: None,
    };
    if interactive {
        report!("Talk to {}. /? lists the commands, Ctrl-D leaves.", chat.loaded.name);
    }
    while let Some(input) = lines.next()? {
        chat.width = lines.width();
        match chat.take(&input) {
            Ok(Next::Go) => {}
            Ok(Next::Leave) => break,
            // A script stops at an error; a person can try something else.
            Err(error) if interactive => eprintln!("{}", failure::message(&error).unwrap_or_default()),
            Err(error) => return Err(error),
        }
    }
    lines.save_history();
    Ok(())
}

/// Whether the conversation goes on after a line.
enum Next {
    Go,
    Leave,
}

struct Chat {
    interrupts: Interrupts,
    conversation: Conversation,
    template: Arc<ChatTemplate>,
    loaded: Loaded,
    params: SamplingParams,
    sampling: SamplingOptions,
    last: Option<Stats>,
    /// The further variables of the template, such as one that turns thinking off.
    variables: Map<String, Value>,
    interactive: bool,
    /// The width, in columns, of the terminal to which answers are written.
    width: Option<usize>,
}

impl Chat {
    /// Handles a line: a command or a message.
    fn take(&mut self, input: &Input) -> Result<Next> {
        let (Input::Line(text) | Input::Quoted(text)) = input;
        if text.is_empty() {
            return Ok(Next::Go);
        }
        let Some(command) = text.strip_prefix('/').filter(|_| matches!(input, Input::Line(_))) else {
            return self.say(text).map(|()| Next::Go);
        };
        let (name, text) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "?" | "help" => eprintln!("{HELP}"),
            "bye" | "exit" | "quit" => return Ok(Next::Leave),
            "clear" | "reset" => {
                self.conversation.turns.clear();
                eprintln!("The conversation begins anew.");
            }
            "system" => self.instruct(text.trim()),
            "stats" => match &self.last {
                Some(stats) => eprintln!("{stats}"),
                None => eprintln!("There has been no answer yet."),
            },
            _ => match habits::meaning(name, text) {
                Some(ForeignCommand::System(text)) => self.instruct(&text),
                Some(ForeignCommand::Thinking(thinks)) => self.think(thinks),
                Some(ForeignCommand::Told(text)) => eprintln!("{text}"),
                None => eprintln!("There is no /{name}; /? lists the commands."),
            },
        }
        Ok(Next::Go)
    }

    /// Replaces the instructions.
    fn instruct(&mut self, text: &str) {
        self.conversation.system = (!text.is_empty()).then(|| text.to_owned());
        eprintln!("{}", if text.is_empty() { "No instructions now." } else { "Instructions taken." });
    }

    /// Turns thinking on or off, if the template knows how.
    fn think(&mut self, thinks: bool) {
        if !self.template.source().contains(THINKING) {
            eprintln!("The model's template has no switch for thinking.");
            return;
        }
        self.variables.insert(THINKING.to_owned(), thinks.into());
        eprintln!("{}", if thinks { "The model may think." } else { "The model does not think." });
    }

    fn say(&mut self, message: &str) -> Result<()> {
        let before = self.conversation.turns.len();
        self.conversation.turns.push(ChatTurn { role: "user", content: message.to_owned() });
        let said = self.reply();
        if said.is_err() {
            // The template may refuse the message, or the message may be too long; without the message, the
            // conversation can go on.
            self.conversation.turns.truncate(before.min(self.conversation.turns.len().saturating_sub(1)));
        }
        let content = said?;
        self.conversation.turns.push(ChatTurn { role: "assistant", content });
        Ok(())
    }

    fn reply(&mut self) -> Result<String> {
        let limit = self.loaded.engine.handle().limits().max_model_len;
        let asked = self.sampling.max_tokens.map_or(ANSWER_ROOM, usize::from);
        let prompt = self.prompt(limit.saturating_sub(asked.min(limit / 4)))?;
        let room = limit.saturating_sub(prompt.len()).max(1);
        let params = SamplingParams {
            max_tokens: self.sampling.max_tokens.map_or(room, |asked| room.min(asked.get())),
            ..self.params.clone()
        };
        let question = Question { prompt, params, text: self.sampling.text_options(&self.loaded), echo: None };
        let mut out = stdout().lock();
        let is_terminal = out.is_terminal();
        let mut screen = Screen::new(self.width, colours::are_wanted(is_terminal));
        let mut has_begun = false;
        let answer = answer(&self.loaded, question, &self.interrupts, &mut |text| {
            has_begun = true;
            // Files and pipes get exactly the text that the model generated.
            let text = if is_terminal { screen.show(text) } else { text.to_owned() };
            out.write_all(text.as_bytes())?;
            out.flush()
        });
        // An error message starts on a line of its own, without the answer's colours.
        if answer.is_ok() || has_begun {
            out.write_all(screen.end().as_bytes())?;
        }
        let answer = answer?;
        out.flush()?;
        if answer.cause.is_none() {
            if !self.interactive {
                // Ctrl-C stops a script as a whole.
                return Err(Interrupted.into());
            }
            eprintln!("(stopped)");
        }
        self.last = Some(answer.stats);
        Ok(answer.text)
    }

    /// Returns the tokens of the conversation. A conversation with more than `limit` tokens loses its oldest turns.
    fn prompt(&mut self, limit: usize) -> Result<Vec<u32>> {
        let mut dropped = 0;
        let context = self.loaded.engine.handle().limits().max_model_len;
        let room = PromptLimits { context, memory: usize::try_from(self.loaded.plan.requests.0)? };
        let prompt = loop {
            let text = self.template.render(&self.conversation.messages(), None, true, &self.variables)?;
            // The template writes the special tokens itself.
            let prompt = encode(&self.loaded.tokenizer, &text, false, room);
            let fits = prompt.as_ref().is_ok_and(|prompt| prompt.len() <= limit);
            if fits || !self.conversation.drop_oldest() {
                // If the last message alone is too long, the engine refuses it and names the limit.
                break prompt?;
            }
            dropped += 1;
        };
        if dropped > 0 {
            report!(
                "note: the conversation has outgrown the context; the model no longer sees the oldest {}. /clear \
                 begins anew",
                if dropped == 1 { "exchange".to_owned() } else { format!("{dropped} exchanges") }
            );
        }
        Ok(prompt)
    }
}
