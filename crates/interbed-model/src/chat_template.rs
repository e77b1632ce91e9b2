//! Chat messages to a prompt, by the Jinja template that the model ships, as `transformers` renders it.
//!
//! A template is a program from outside: its source, its steps, its recursion, its output, its time and the values that
//! it makes are limited, and it runs on a thread of its own whose stack is large enough for what these limits allow.
//! What runs it is in `jinja.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde_json::{Map, Value as Json};
use thiserror::Error as ThisError;

use crate::jinja::allowance::{self, Excess};
use crate::jinja::fault::{Cause, Fault};
use crate::jinja::{Template, Value, sent_value};
use crate::tokenizer::{TokenizerConfig, TokenizerError, read_limited};

mod arguments;
mod contents;
mod strftime;
mod systems;

pub use arguments::ArgumentsForm;
use contents::CallContents;
pub use contents::NoContent;
pub use systems::SystemPlaces;

/// Longest template source, in bytes. The longest in use have some 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Longest prompt that a template may write, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Steps per rendering, in addition to [`FUEL_PER_MESSAGE`] for each message.
const FUEL_BASE: u64 = 4_000_000;
const FUEL_PER_MESSAGE: u64 = 40_000;
/// Longest message of a template that is passed on, in bytes.
const MESSAGE_BYTES_MAX: usize = 2000;
/// Address space, of which a well-behaved template touches some kilobytes.
const STACK_BYTES: usize = 256 << 20;

/// Why a chat template produced no prompt.
#[derive(Debug, ThisError)]
pub enum TemplateError {
    /// The model has no template: neither `chat_template.jinja` nor `chat_template` in `tokenizer_config.json` or
    /// `chat_template.json`, nor `tokenizer.chat_template` in a GGUF file.
    #[error(
        "the model in {} has no chat template (chat_template.jinja, chat_template in tokenizer_config.json or in \
         chat_template.json, or tokenizer.chat_template in a GGUF file); send a plain prompt to /v1/completions \
         instead",
        dir.display()
    )]
    Missing {
        /// The directory or file that was searched.
        dir: PathBuf,
    },
    /// A file that may hold the template could not be read.
    #[error(transparent)]
    File(#[from] TokenizerError),
    /// The source is longer than any honest template.
    #[error("the chat template has {bytes} bytes, but at most {MAX_SOURCE_BYTES} are accepted")]
    SourceTooLarge {
        /// Length of the source.
        bytes: usize,
    },
    /// The source is no Jinja template.
    #[error("the chat template is not valid: {problem}")]
    Syntax {
        /// What is wrong, and in which line.
        problem: String,
    },
    /// The template refused the messages by `raise_exception`.
    #[error("the chat template refuses these messages: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template failed on these messages.
    #[error("the chat template failed: {problem}")]
    Render {
        /// What is wrong, and in which line.
        problem: String,
    },
    /// The template did not end within its allowance of instructions.
    #[error("the chat template did not end within {fuel} instructions")]
    OutOfFuel {
        /// The allowance.
        fuel: u64,
    },
    /// The template wrote more than is accepted.
    #[error("the chat template wrote more than {limit} bytes, which is the limit for these messages")]
    OutputTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The template exceeded its memory or its time.
    #[error("the chat template was stopped: {excess}")]
    Excessive {
        /// The limit that it exceeded.
        excess: String,
    },
    /// No thread could be started, or the template library gave up.
    #[error("the chat template could not be run: {problem}")]
    Thread {
        /// The reason.
        problem: String,
    },
}

impl TemplateError {
    /// Returns whether other messages could be rendered, so that the client can mend the request.
    pub fn is_about_messages(&self) -> bool {
        matches!(
            self,
            Self::Raised { .. }
                | Self::Render { .. }
                | Self::OutOfFuel { .. }
                | Self::OutputTooLarge { .. }
                | Self::Excessive { .. }
        )
    }
}

/// Variables of a template, apart from the messages: `bos_token`, `eos_token`, `unk_token` and `pad_token`.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Name and text, as `tokenizer_config.json` has them.
    pub tokens: Vec<(String, String)>,
}

impl SpecialTokens {
    /// Returns the special tokens that `config` names.
    pub fn of(config: &TokenizerConfig) -> Self {
        Self { tokens: config.named().into_iter().map(|(name, token)| (name, token.content)).collect() }
    }
}

/// A model's chat template, compiled. Immutable; share it in an `Arc`.
pub struct ChatTemplate {
    special_tokens: SpecialTokens,
    source: String,
    default: Template,
    tool_use: Option<Template>,
    /// Form in which the template wants the arguments of calls, once it has been tried.
    arguments: OnceLock<ArgumentsForm>,
    /// Content that the template wants in messages with calls, once it has been tried.
    contents: OnceLock<CallContents>,
    /// Places where the template takes messages of the system, once they have been tried.
    systems: OnceLock<SystemPlaces>,
    /// Whether the template takes a text that is no JSON as the arguments of a call, once it has been tried.
    text_arguments: OnceLock<bool>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

const JINJA_FILE: &str = "chat_template.jinja";
const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
const JSON_FILE: &str = "chat_template.json";
/// The files that may hold a template, beside those of the tokenizer.
pub const FILES: [&str; 3] = [JINJA_FILE, TOOL_USE_FILE, JSON_FILE];

impl ChatTemplate {
    /// Loads the template of a directory: `chat_template.jinja`, with `additional_chat_templates/tool_use.jinja` for
    /// tools; else `chat_template` of `tokenizer_config.json`, or of `chat_template.json`.
    ///
    /// # Errors
    /// There is none, or it is too large or not valid.
    pub fn from_dir(dir: &Path) -> Result<Self, TemplateError> {
        let config = TokenizerConfig::from_dir(dir)?;
        Self::from_files(&config, dir, |name| Ok(read_limited(&dir.join(name), MAX_SOURCE_BYTES as u64)?))
    }

    /// As [`ChatTemplate::from_dir`], from what `config` says and the contents of the [`FILES`] of `dir`, a directory
    /// or a file, by their names.
    ///
    /// # Errors
    /// There is none, or it is too large or not valid; and what reading a file comes to.
    pub fn from_files<E: From<TemplateError>>(
        config: &TokenizerConfig,
        dir: &Path,
        mut content: impl FnMut(&'static str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        let special_tokens = SpecialTokens::of(config);
        let mut text = |name: &'static str| {
            let Some(bytes) = content(name)? else { return Ok::<_, E>(None) };
            let no_text = |error| TemplateError::Syntax {
                problem: format!("{} is not UTF-8: {error}", dir.join(name).display()),
            };
            Ok(Some(String::from_utf8(bytes).map_err(no_text)?))
        };
        if let Some(source) = text(JINJA_FILE)? {
            let tool_use = text(TOOL_USE_FILE)?;
            return Ok(Self::with_tool_template(&source, tool_use.as_deref(), special_tokens)?);
        }
        if let Some((default, tool_use)) = config.get("chat_template").and_then(sources) {
            return Ok(Self::with_tool_template(default, tool_use, special_tokens)?);
        }
        let malformed = |error| TemplateError::Syntax {
            problem: format!("{} is not valid: {error}", dir.join(JSON_FILE).display()),
        };
        let json = text(JSON_FILE)?.map(|text| serde_json::from_str::<Json>(&text)).transpose().map_err(malformed)?;
        match json.as_ref().and_then(|json| sources(json.get("chat_template")?)) {
            Some((default, tool_use)) => Ok(Self::with_tool_template(default, tool_use, special_tokens)?),
            None => Err(TemplateError::Missing { dir: dir.to_owned() }.into()),
        }
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// The source is too large or not valid.
    pub fn new(source: &str, special_tokens: SpecialTokens) -> Result<Self, TemplateError> {
        Self::with_tool_template(source, None, special_tokens)
    }

    pub(crate) fn with_tool_template(
        source: &str,
        tool_source: Option<&str>,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        for bytes in [Some(source), tool_source].into_iter().flatten().map(str::len) {
            if bytes > MAX_SOURCE_BYTES {
                return Err(TemplateError::SourceTooLarge { bytes });
            }
        }
        let source = with_line_feeds(source);
        let tool_source = tool_source.map(with_line_feeds);
        // The parser recurses on what it parses.
        let (default, tool_use) = on_large_stack(|| {
            let parsed = |name: &str, source: &str| {
                Template::parse(source).map_err(|fault| TemplateError::Syntax { problem: described(name, &fault) })
            };
            let tool_use = tool_source.as_deref().map(|source| parsed(TOOL_USE, source)).transpose()?;
            Ok((parsed(DEFAULT, &source)?, tool_use))
        })?;
        Ok(Self {
            special_tokens,
            source: source.into_owned(),
            default,
            tool_use,
            arguments: OnceLock::new(),
            contents: OnceLock::new(),
            systems: OnceLock::new(),
            text_arguments: OnceLock::new(),
        })
    }

    /// Returns the form in which the template wants the arguments of calls. The first call tries it; blocking, and
    /// CPU-bound.
    pub fn arguments_form(&self) -> ArgumentsForm {
        *self.arguments.get_or_init(|| {
            arguments::probe(|messages, tools| self.render(messages, Some(tools), false, &Map::new()).ok())
        })
    }

    /// Returns the content that the template wants in a message that calls tools and says nothing. The first call tries
    /// it; blocking, and CPU-bound.
    pub fn no_content(&self) -> NoContent {
        self.call_contents().without_text
    }

    /// Returns whether the template shows the calls of a message that also has text. The first call tries it; blocking,
    /// and CPU-bound.
    pub fn shows_calls_beside_text(&self) -> bool {
        self.call_contents().beside_text
    }

    /// Returns where the template takes messages of the system. The first call tries it; blocking, and CPU-bound.
    pub fn system_places(&self) -> SystemPlaces {
        *self.systems.get_or_init(|| systems::probe(|messages| self.render(messages, None, true, &Map::new()).ok()))
    }

    /// Returns whether the template takes a text that is no JSON as the arguments of a call. The first call tries it;
    /// blocking, and CPU-bound.
    pub fn takes_text_arguments(&self) -> bool {
        let no_content = self.no_content();
        *self.text_arguments.get_or_init(|| {
            contents::takes_text_arguments(no_content, |messages, tools| {
                self.render(messages, Some(tools), false, &Map::new()).ok()
            })
        })
    }

    fn call_contents(&self) -> CallContents {
        let arguments = self.arguments_form();
        *self.contents.get_or_init(|| {
            contents::probe(arguments, |messages, tools| self.render(messages, Some(tools), false, &Map::new()).ok())
        })
    }

    /// Returns the source of the default template, for `interbed info`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template names `tools`, and so shows them to the model.
    pub fn reads_tools(&self) -> bool {
        let is_part = |character: char| character == '_' || character.is_alphanumeric();
        self.tool_use.is_some() || self.source.split(|character| !is_part(character)).any(|word| word == "tools")
    }

    /// Renders the prompt for `messages`. `tools` is a list of tool definitions; `kwargs` are further variables, which
    /// win over the special tokens. Blocking, and CPU-bound: not for an async thread.
    ///
    /// # Errors
    /// The template refuses the messages, fails on them, or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        kwargs: &Map<String, Json>,
    ) -> Result<String, TemplateError> {
        self.render_within(messages, tools, add_generation_prompt, kwargs, MAX_OUTPUT_BYTES)
    }

    /// As [`ChatTemplate::render`], with a prompt of at most `bytes_max` bytes, or [`MAX_OUTPUT_BYTES`] if that is
    /// less.
    ///
    /// # Errors
    /// As there.
    pub fn render_within(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        kwargs: &Map<String, Json>,
        bytes_max: usize,
    ) -> Result<String, TemplateError> {
        let limit = bytes_max.min(MAX_OUTPUT_BYTES);
        let mut context = Map::new();
        for (name, token) in &self.special_tokens.tokens {
            context.insert(name.clone(), Json::String(token.clone()));
        }
        context.extend(kwargs.iter().map(|(name, value)| (name.clone(), value.clone())));
        context.insert("messages".into(), Json::Array(messages.to_vec()));
        context.insert("tools".into(), tools.map_or(Json::Null, |tools| Json::Array(tools.to_vec())));
        context.entry("documents").or_insert(Json::Null);
        context.insert("add_generation_prompt".into(), Json::Bool(add_generation_prompt));
        let (name, template) = match &self.tool_use {
            Some(template) if tools.is_some() => (TOOL_USE, template),
            _ => (DEFAULT, &self.default),
        };
        let fuel = FUEL_PER_MESSAGE.saturating_mul(messages.len() as u64).saturating_add(FUEL_BASE);
        let given = context
            .iter()
            .map(|(name, json)| name.len() + text_bytes(json))
            .sum::<usize>()
            .saturating_add(self.source.len());
        on_large_stack(|| {
            allowance::begin(given, limit);
            let rendered = variables(&context).and_then(|variables| template.render(variables, fuel, &date_of_now));
            match rendered {
                Ok(text) if text.len() > limit => Err(TemplateError::OutputTooLarge { limit }),
                Ok(text) => Ok(text),
                Err(fault) => Err(render_error(name, &fault, fuel, limit)),
            }
        })
    }
}

/// The template, and the one for tools, of `chat_template` in a file: a text, or a list of templates by name.
fn sources(template: &Json) -> Option<(&str, Option<&str>)> {
    if let Json::String(source) = template {
        return Some((source, None));
    }
    let named = |wanted: &str| match template {
        Json::Array(list) => list.iter().find(|entry| entry["name"] == wanted)?["template"].as_str(),
        _ => template.get(wanted)?.as_str(),
    };
    Some((named(DEFAULT)?, named(TOOL_USE)))
}

/// A source with `\n` at each line's end: Jinja takes `\r\n` and `\r` for it.
fn with_line_feeds(source: &str) -> Cow<'_, str> {
    match source.contains('\r') {
        true => source.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => source.into(),
    }
}

/// The variables of a rendering.
fn variables(context: &Map<String, Json>) -> Result<HashMap<Arc<str>, Value>, Fault> {
    context.iter().map(|(name, json)| Ok((name.as_str().into(), sent_value(json)?))).collect()
}

/// Bytes of the texts in a value.
fn text_bytes(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(list) => list.iter().map(text_bytes).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() + text_bytes(value)).sum(),
        _ => 0,
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The date that a template puts in the system prompt, in UTC: a server's time zone is no part of a prompt.
fn date_of_now(format: &str) -> Result<String, Fault> {
    strftime::format(format, Timestamp::now()).map_err(Fault::new)
}

fn render_error(name: &str, fault: &Fault, fuel: u64, limit: usize) -> TemplateError {
    match &fault.cause {
        Cause::Raised(message) => TemplateError::Raised { message: shortened(message) },
        Cause::Excess(Excess::Written) => TemplateError::OutputTooLarge { limit },
        Cause::Excess(excess) => TemplateError::Excessive { excess: excess.to_string() },
        Cause::OutOfFuel => TemplateError::OutOfFuel { fuel },
        Cause::Problem(_) => TemplateError::Render { problem: described(name, fault) },
    }
}

/// Describes a fault, with the template's name.
fn described(name: &str, fault: &Fault) -> String {
    format!("{} in the {name} template", shortened(&fault.to_string()))
}

fn shortened(message: &str) -> String {
    match message.len() {
        ..=MESSAGE_BYTES_MAX => message.to_owned(),
        _ => format!("{}…", &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]),
    }
}

/// Runs `work` on a thread whose stack holds what the limits allow, and turns a panic into an error.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| TemplateError::Thread { problem: error.to_string() })?;
        let panicked = TemplateError::Thread { problem: "the template library gave up on it".into() };
        thread.join().unwrap_or(Err(panicked))
    })
}

#[cfg(test)]
mod tests;
