//! `interbed chat`: a conversation.

use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use interbed_engine::SamplingParams;
use interbed_model::chat_template::ChatTemplate;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value, json};

use crate::answer::{Question, Stats, answer};
use crate::audience::Audience;
use crate::failure::{self, Interrupted};
use crate::hub;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, MAX_WAITING};
use crate::opened::Opened;
use crate::options::{ComputeOptions, ExpertCountsOption, ModelOptions};
use crate::prompt::{PromptLimits, encode};
use crate::report::report;
use crate::sampling::{SamplingOptions, model_defaults};
use crate::user_folders;

/// Tokens that are kept free for an answer; in a small context, a quarter of it.
const ANSWER_ROOM: usize = 256;

/// Lines of history that are kept.
const HISTORY_LINES: usize = 1000;

const HELP: &str = "\
/help          this list
/system TEXT   instructions that go before the conversation; without TEXT: none
/reset         begin anew, keeping the instructions
/stats         how fast the last answer was
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer that is being written.";

/// Talk to a model that has a chat template
///
/// The conversation is kept, and what of it was computed once stays in the KV cache. Sampling defaults to what the
/// model's authors recommend (generation_config.json, or the GGUF file; one that says nothing is sampled as llama.cpp
/// does by default: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05). If stdin is no terminal, each line of it is a
/// message.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed chat models/1b-instruct\n  \
    interbed chat models/1b-instruct --system \"You are terse.\" --temperature 0\n  \
    printf 'Hello!\\nAnd in French?\\n' | interbed chat models/1b-instruct\n\n\
    In the conversation, /help lists the commands. A model without a chat template is for `interbed run`.")]
pub struct ChatArgs {
    /// Instructions that go before the conversation
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
/// A model that cannot be served or has no template; when stdin is no terminal, also the first message that fails.
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
    load::report::sampling(&loaded.generation);
    let params = args.sampling.over(model_defaults(&loaded.generation))?;
    let interactive = stdin().is_terminal();
    let mut lines = if interactive { Lines::from_terminal()? } else { Lines::Pipe { read: 0 } };
    let mut chat = Chat {
        interrupts: Interrupts::listen()?,
        conversation: Conversation { system: args.system, turns: Vec::new() },
        template,
        loaded,
        params,
        sampling: args.sampling,
        last: None,
        interactive,
    };
    if interactive {
        report!("Talk to {}. /help lists the commands, Ctrl-D leaves.", chat.loaded.name);
    }
    while let Some(line) = lines.next()? {
        match chat.take(line.trim()) {
            Ok(Next::Go) => {}
            Ok(Next::Leave) => break,
            // A script should not go on as if nothing had happened; a person can try something else.
            Err(error) if interactive => eprintln!("{}", failure::message(&error).unwrap_or_default()),
            Err(error) => return Err(error),
        }
    }
    lines.save_history();
    Ok(())
}

/// What to do after a line.
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
    interactive: bool,
}

impl Chat {
    /// Takes a line: a command or a message.
    fn take(&mut self, line: &str) -> Result<Next> {
        if line.is_empty() {
            return Ok(Next::Go);
        }
        let Some(command) = line.strip_prefix('/') else {
            return self.say(line).map(|()| Next::Go);
        };
        let (name, text) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "help" => eprintln!("{HELP}"),
            "exit" | "quit" => return Ok(Next::Leave),
            "reset" => {
                self.conversation.turns.clear();
                eprintln!("The conversation begins anew.");
            }
            "system" => {
                let text = text.trim();
                self.conversation.system = (!text.is_empty()).then(|| text.to_owned());
                eprintln!("{}", if text.is_empty() { "No instructions now." } else { "Instructions taken." });
            }
            "stats" => match &self.last {
                Some(stats) => eprintln!("{stats}"),
                None => eprintln!("There has been no answer yet."),
            },
            _ => eprintln!("There is no /{name}; /help lists the commands."),
        }
        Ok(Next::Go)
    }

    fn say(&mut self, message: &str) -> Result<()> {
        let before = self.conversation.turns.len();
        self.conversation.turns.push(Turn { role: "user", content: message.to_owned() });
        let said = self.reply();
        if said.is_err() {
            // The template may have refused the message, or it is too long: without it the conversation can go on.
            self.conversation.turns.truncate(before.min(self.conversation.turns.len().saturating_sub(1)));
        }
        let content = said?;
        self.conversation.turns.push(Turn { role: "assistant", content });
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
        let answer = answer(&self.loaded, question, &self.interrupts, &mut out)?;
        out.write_all(b"\n")?;
        out.flush()?;
        if answer.cause.is_none() {
            if !self.interactive {
                // A script is stopped as a whole.
                return Err(Interrupted.into());
            }
            eprintln!("(stopped)");
        }
        self.last = Some(answer.stats);
        Ok(answer.text)
    }

    /// Tokens of the conversation. What is too long for `limit` loses its oldest turns.
    fn prompt(&mut self, limit: usize) -> Result<Vec<u32>> {
        let mut dropped = 0;
        let context = self.loaded.engine.handle().limits().max_model_len;
        let room = PromptLimits { context, memory: self.loaded.request_bytes };
        let prompt = loop {
            let text = self.template.render(&self.conversation.messages(), None, true, &Map::new())?;
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
                "note: the conversation has outgrown the context; the model no longer sees the oldest {}. /reset \
                 begins anew",
                if dropped == 1 { "exchange".to_owned() } else { format!("{dropped} exchanges") }
            );
        }
        Ok(prompt)
    }
}

/// One message of the conversation.
struct Turn {
    role: &'static str,
    content: String,
}

struct Conversation {
    system: Option<String>,
    turns: Vec<Turn>,
}

impl Conversation {
    /// As templates want it.
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let turns = self.turns.iter().map(|turn| json!({"role": turn.role, "content": turn.content}));
        system.chain(turns).collect()
    }

    /// Drops the first message and its answer: templates want the roles to alternate, starting with the user. `false`
    /// if only the last message is left.
    fn drop_oldest(&mut self) -> bool {
        let next_user = self.turns.iter().skip(1).position(|turn| turn.role == "user");
        match next_user {
            Some(index) => {
                self.turns.drain(..=index);
                true
            }
            None => false,
        }
    }
}

/// The source of messages.
enum Lines {
    /// A person, with editing and history.
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    /// A pipe or a file, of which `read` lines have been read.
    Pipe { read: usize },
}

impl Lines {
    fn from_terminal() -> Result<Self> {
        let config = rustyline::Config::builder()
            .max_history_size(HISTORY_LINES)
            .context("cannot keep a history")?
            .auto_add_history(true)
            .build();
        let mut editor = Box::new(DefaultEditor::with_config(config).context("cannot read from the terminal")?);
        let history = history_file();
        if let Some(path) = &history
            && let Err(error) = editor.load_history(path)
        {
            tracing::debug!("no history in {}: {error}", path.display());
        }
        Ok(Self::Terminal { editor, history })
    }

    /// The next line; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal { editor, .. } => loop {
                match editor.readline("> ") {
                    Ok(line) => return Ok(Some(line)),
                    Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D or /exit leaves."),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(error).context("cannot read from the terminal"),
                }
            },
            Self::Pipe { read } => {
                let mut line = String::new();
                *read += 1;
                let bytes = stdin()
                    .lock()
                    .read_line(&mut line)
                    .with_context(|| format!("cannot read line {read} of stdin; it must be UTF-8"))?;
                Ok((bytes > 0).then_some(line))
            }
        }
    }

    fn save_history(&mut self) {
        if let Self::Terminal { editor, history: Some(path) } = self {
            // A history that cannot be written is not worth an error.
            let saved = user_folders::create_private(path)
                .map_err(ReadlineError::from)
                .and_then(|()| editor.save_history(path));
            if let Err(error) = saved {
                tracing::debug!("the history was not saved to {}: {error}", path.display());
            }
        }
    }
}

/// The editor writes it for its owner only.
fn history_file() -> Option<PathBuf> {
    Some(user_folders::state()?.join("chat_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_exchange_is_dropped_and_the_last_message_stays() {
        let turn = |role, content: &str| Turn { role, content: content.into() };
        let mut conversation = Conversation {
            system: Some("be kind".into()),
            turns: vec![turn("user", "one"), turn("assistant", "1"), turn("user", "two")],
        };
        assert!(conversation.drop_oldest());
        let expect = json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "two"}]);
        assert_eq!(Value::from(conversation.messages()), expect);
        assert!(!conversation.drop_oldest());
    }
}
