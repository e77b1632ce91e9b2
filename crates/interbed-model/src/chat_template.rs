//! Turns chat messages into a prompt with the model's Jinja template, as `transformers` renders it.
//!
//! A template is a program that comes from outside. Its source, its steps, its recursion, its output, its time and the
//! size of its values are therefore limited. A template runs on a thread of its own, whose stack is large enough for
//! what these limits allow. The file `jinja.rs` and its modules run templates.

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
mod results;
mod strftime;
mod systems;

pub use arguments::ArgumentsForm;
use contents::CallContents;
pub use contents::NoContent;
pub use results::ResultsForm;
pub use systems::SystemPlaces;

/// Maximum length of a template's source, in bytes. Templates in use are up to about 20 KiB long.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Maximum length of a rendered prompt, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// The number of steps that a rendering may take, in addition to [`FUEL_PER_MESSAGE`] for each message.
const FUEL_BASE: u64 = 4_000_000;
const FUEL_PER_MESSAGE: u64 = 40_000;
/// The most bytes of an error message by a template that are passed on.
const MESSAGE_BYTES_MAX: usize = 2000;
/// The size of the thread's stack, in bytes of address space. An ordinary template uses a few kilobytes of it.
const STACK_BYTES: usize = 256 << 20;

/// The reasons why a chat template could not be loaded or produced no prompt.
#[derive(Debug, ThisError)]
pub enum TemplateError {
    /// The model has no chat template. A template may be in `chat_template.jinja`, under the key `chat_template` in
    /// `tokenizer_config.json` or `chat_template.json`, or under the key `tokenizer.chat_template` in a GGUF file.
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
    /// The source of the template is longer than [`MAX_SOURCE_BYTES`].
    #[error("the chat template has {bytes} bytes, but at most {MAX_SOURCE_BYTES} are accepted")]
    SourceTooLarge {
        /// The length of the source, in bytes.
        bytes: usize,
    },
    /// The source is not a valid Jinja template, or the file that holds it is not valid UTF-8 or JSON.
    #[error("the chat template is not valid: {problem}")]
    Syntax {
        /// A description of what is wrong, and in which line.
        problem: String,
    },
    /// The template called `raise_exception` to refuse the messages.
    #[error("the chat template refuses these messages: {message}")]
    Raised {
        /// The template's own message.
        message: String,
    },
    /// The template failed while it rendered the messages.
    #[error("the chat template failed: {problem}")]
    Render {
        /// A description of what went wrong, and in which line.
        problem: String,
    },
    /// The template took more than `fuel` steps.
    #[error("the chat template did not end within {fuel} instructions")]
    OutOfFuel {
        /// The maximum number of steps.
        fuel: u64,
    },
    /// The template wrote more than `limit` bytes.
    #[error("the chat template wrote more than {limit} bytes, which is the limit for these messages")]
    OutputTooLarge {
        /// The maximum length of the prompt, in bytes.
        limit: usize,
    },
    /// The template exceeded a limit on memory or time.
    #[error("the chat template was stopped: {excess}")]
    Excessive {
        /// Describes the exceeded limit.
        excess: String,
    },
    /// The thread that runs the template could not be started, or it panicked.
    #[error("the chat template could not be run: {problem}")]
    Thread {
        /// The reason.
        problem: String,
    },
}

impl TemplateError {
    /// Returns whether the error depends on the messages. If so, a client may succeed with other messages.
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

/// The special tokens that a template can read as variables, such as `bos_token`, `eos_token`, `unk_token` and
/// `pad_token`.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// The name of each token, such as `bos_token`, and its text, such as `<s>`. Both come from the tokenizer's
    /// configuration.
    pub tokens: Vec<(String, String)>,
}

impl SpecialTokens {
    /// Returns the special tokens that `config` names.
    pub fn of(config: &TokenizerConfig) -> Self {
        Self { tokens: config.named().into_iter().map(|(name, token)| (name, token.content)).collect() }
    }
}

/// A model's compiled chat template. It does not change and can be shared in an `Arc`.
pub struct ChatTemplate {
    special_tokens: SpecialTokens,
    source: String,
    default: Template,
    tool_use: Option<Template>,
    /// The form in which the template expects the arguments of calls, once this has been tried.
    arguments: OnceLock<ArgumentsForm>,
    /// The content that the template expects in messages with calls, once this has been tried.
    contents: OnceLock<CallContents>,
    /// Where the template expects the results of calls, once this has been tried.
    results: OnceLock<ResultsForm>,
    /// The places in which the template accepts system messages, once this has been tried.
    systems: OnceLock<SystemPlaces>,
    /// Whether the template accepts a text that is not JSON as the arguments of a call, once this has been tried.
    text_arguments: OnceLock<bool>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

const JINJA_FILE: &str = "chat_template.jinja";
const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
const JSON_FILE: &str = "chat_template.json";
/// The files, besides `tokenizer_config.json`, that may hold a template. The paths are relative to the model's
/// directory.
pub const FILES: [&str; 3] = [JINJA_FILE, TOOL_USE_FILE, JSON_FILE];

impl ChatTemplate {
    /// Loads the template from a model's directory.
    ///
    /// The template is `chat_template.jinja`, together with `additional_chat_templates/tool_use.jinja` for
    /// conversations with tools. If `chat_template.jinja` does not exist, the template is the value of `chat_template`
    /// in `tokenizer_config.json` or else in `chat_template.json`.
    ///
    /// # Errors
    /// Fails if the directory has no template, if a file cannot be read, or if the template is too large or not valid.
    pub fn from_dir(dir: &Path) -> Result<Self, TemplateError> {
        let config = TokenizerConfig::from_dir(dir)?;
        Self::from_files(&config, dir, |name| Ok(read_limited(&dir.join(name), MAX_SOURCE_BYTES as u64)?))
    }

    /// Loads a model's template like [`ChatTemplate::from_dir`], but uses the tokenizer's configuration `config` and
    /// gets the [`FILES`] from `content`. The function `content` takes the name of a file and returns its content, or
    /// `None` if the file does not exist. The path `dir` is that of the model's directory or file; it is used only in
    /// error messages.
    ///
    /// # Errors
    /// Fails if there is no template, if the template is too large or not valid, or if `content` fails.
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

    /// Compiles a template from its source.
    ///
    /// # Errors
    /// Fails if the source is too large or not valid.
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
            results: OnceLock::new(),
            systems: OnceLock::new(),
            text_arguments: OnceLock::new(),
        })
    }

    /// Returns the form in which the template expects the arguments of tool calls. On the first call, this function
    /// renders test conversations to find out. Rendering keeps a CPU busy, so the function must not run on an async
    /// thread.
    pub fn arguments_form(&self) -> ArgumentsForm {
        *self.arguments.get_or_init(|| {
            arguments::probe(|messages, tools| self.render(messages, Some(tools), false, &Map::new()).ok())
        })
    }

    /// Returns the content that the template expects in a message that has tool calls but no text. On the first call,
    /// this function renders test conversations to find out. Rendering keeps a CPU busy, so the function must not run
    /// on an async thread.
    pub fn no_content(&self) -> NoContent {
        self.call_contents().without_text
    }

    /// Returns whether the template shows the tool calls of a message that also has text. On the first call, this
    /// function renders test conversations to find out. Rendering keeps a CPU busy, so the function must not run on an
    /// async thread.
    pub fn shows_calls_beside_text(&self) -> bool {
        self.call_contents().beside_text
    }

    /// Returns where the template expects the results of tool calls. On the first call, this function renders test
    /// conversations to find out. Rendering keeps a CPU busy, so the function must not run on an async thread.
    pub fn results_form(&self) -> ResultsForm {
        let (arguments, content) = (self.arguments_form(), self.no_content());
        *self.results.get_or_init(|| {
            results::probe(arguments, content, |messages, tools| {
                self.render(messages, Some(tools), false, &Map::new()).ok()
            })
        })
    }

    /// Returns where in a conversation the template accepts system messages. On the first call, this function renders
    /// test conversations to find out. Rendering keeps a CPU busy, so the function must not run on an async thread.
    pub fn system_places(&self) -> SystemPlaces {
        *self.systems.get_or_init(|| systems::probe(|messages| self.render(messages, None, true, &Map::new()).ok()))
    }

    /// Returns whether the template accepts text that is not JSON as the arguments of a tool call. On the first call,
    /// this function renders test conversations to find out. Rendering keeps a CPU busy, so the function must not run
    /// on an async thread.
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

    /// Returns the template's source, with every line end converted to `\n`. If there is a separate template for
    /// conversations with tools, its source is not included.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the template shows tools to the model. It does if there is a separate template for conversations
    /// with tools, or if the source contains the name `tools`.
    pub fn reads_tools(&self) -> bool {
        let is_part = |character: char| character == '_' || character.is_alphanumeric();
        self.tool_use.is_some() || self.source.split(|character| !is_part(character)).any(|word| word == "tools")
    }

    /// Renders the prompt for `messages`. `tools` holds the definitions of tools. `kwargs` holds further template
    /// variables, which override special tokens of the same name. Rendering keeps a CPU busy, so the function must not
    /// run on an async thread.
    ///
    /// # Errors
    /// Fails if the template refuses the messages, fails on them, or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        kwargs: &Map<String, Json>,
    ) -> Result<String, TemplateError> {
        self.render_within(messages, tools, add_generation_prompt, kwargs, MAX_OUTPUT_BYTES)
    }

    /// Renders the prompt for `messages` like [`ChatTemplate::render`], but limits the prompt to `bytes_max` bytes. If
    /// `bytes_max` is above [`MAX_OUTPUT_BYTES`], the limit is [`MAX_OUTPUT_BYTES`].
    ///
    /// # Errors
    /// Fails if the template refuses the messages, fails on them, or exceeds a limit.
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

/// Returns the default template and, if there is one, the template for tools. In a file, `chat_template` is either a
/// text or a list of templates with names.
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

/// Ends each line of a source with `\n`. Jinja treats `\r\n` and `\r` as ends of lines too.
fn with_line_feeds(source: &str) -> Cow<'_, str> {
    match source.contains('\r') {
        true => source.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => source.into(),
    }
}

/// Converts the variables of a rendering from JSON.
fn variables(context: &Map<String, Json>) -> Result<HashMap<Arc<str>, Value>, Fault> {
    context.iter().map(|(name, json)| Ok((name.as_str().into(), sent_value(json)?))).collect()
}

/// Returns the number of bytes of all texts in a value.
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

/// Formats the present date for a template, in UTC, because a prompt must not depend on a server's time zone.
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

/// Describes a fault for a message, with the template's name.
fn described(name: &str, fault: &Fault) -> String {
    format!("{} in the {name} template", shortened(&fault.to_string()))
}

fn shortened(message: &str) -> String {
    match message.len() {
        ..=MESSAGE_BYTES_MAX => message.to_owned(),
        _ => format!("{}…", &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]),
    }
}

/// Runs `work` on a thread with a stack of [`STACK_BYTES`], and turns a panic into an error.
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
