//! Holds the bytes of a model's tokens, and compiles grammars over them.

use std::fmt::{self, Debug, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind as caught;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use thiserror::Error;

use crate::matching::Matching;
use crate::memory::GrammarMemory;
use crate::overlaps::{self, TooMany};
use crate::tokens::{SPECIAL, Tokens};
use crate::{Binding, Constraint, GrammarError, GrammarSource, Trigger};

/// The longest token that can be part of a text, in bytes, which is a limit of the trie. Longer tokens are never
/// allowed.
const TOKEN_BYTES_MAX: usize = 1000;
/// Maximum number of tokens, which is another limit of the trie, because it counts its nodes in 22 bits.
const TOKENS_MAX: usize = 1 << 20;
/// Maximum number of states of the lexer for one grammar. A state takes one or two kilobytes, and schemas have
/// hundreds.
const LEXER_STATES_MAX: usize = 16 << 10;
/// Default memory budget of all grammars of a vocabulary.
const MEMORY_BYTES: usize = 256 << 20;
/// The memory that is charged for each grammar besides the tables of its lexer, in bytes. With the charges of
/// `GRAMMAR_FACTOR` and `SYMBOL_BYTES`, the sum is what was measured for schemas whose rules have many alternatives,
/// and up to twice the size of others.
const GRAMMAR_BYTES: usize = 32 << 10;
/// Memory that is charged for each byte of a grammar's text, in bytes.
const GRAMMAR_FACTOR: usize = 8;
/// Memory that is charged for each rule and each terminal, in bytes.
const SYMBOL_BYTES: usize = 1 << 10;

/// How a grammar can match a token: by bytes, by name, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenText {
    /// The token stands for these bytes of text, which need not be whole characters.
    Text(Vec<u8>),
    /// The token is a special token with this name. A grammar allows the token only where the grammar refers to
    /// it by this name.
    Special(String),
    /// No grammar allows the token.
    Unknown,
}

/// The reason why a tokenizer cannot be used with grammars.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this model's tokenizer cannot be used with schemas and grammars: {0}")]
pub struct VocabularyError(pub String);

/// The bytes of a model's tokens, in a trie. The trie uses about 20 bytes per token. Building the trie of a large
/// vocabulary takes about a second, so it should be built only once.
pub struct Vocabulary {
    tokens: Arc<Tokens>,
    factory: ParserFactory,
    memory: Arc<GrammarMemory>,
}

impl Vocabulary {
    /// The stack size, in bytes, that is enough for a thread to compile any grammar and to advance any [`Constraint`].
    /// Deeply nested patterns need the most stack.
    pub const STACK_BYTES: usize = 64 << 20;

    /// Builds the trie of `tokens`, which lists all tokens in the order of their ids. `eos` lists the ids of the
    /// end-of-sequence tokens.
    ///
    /// # Errors
    /// Fails if there are too many tokens, if no token is text, or if the trie cannot be built.
    pub fn new(tokens: &[TokenText], eos: &[u32]) -> Result<Self, VocabularyError> {
        if tokens.len() > TOKENS_MAX {
            let problem = format!("it has {} tokens, but at most {TOKENS_MAX} are supported", tokens.len());
            return Err(VocabularyError(problem));
        }
        if !tokens.iter().any(|token| matches!(token, TokenText::Text(bytes) if !bytes.is_empty())) {
            return Err(VocabularyError("none of its tokens is text".into()));
        }
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| (id as usize) < tokens.len()).collect();
        let words: Vec<Vec<u8>> = tokens.iter().zip(0..).map(|(token, id)| word(token, eos.contains(&id))).collect();
        Self::of_words(&words, eos)
    }

    /// Builds the trie of tokens in the trie's own form, in the order of their ids. `eos` are the ids that end a
    /// sequence.
    pub(crate) fn of_words(words: &[Vec<u8>], eos: Vec<u32>) -> Result<Self, VocabularyError> {
        let info = TokRxInfo::new(words.len() as u32, eos.first().copied().unwrap_or(INVALID_TOKEN));
        let built = catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&info, words);
            let trie = if eos.is_empty() { trie } else { trie.with_eos_tokens(&eos) };
            let tokens = Arc::new(Tokens::new(trie, eos));
            let env: TokEnv = tokens.clone();
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map(|factory| (tokens, factory))
        }));
        let (tokens, mut factory) = match built {
            Ok(built) => built.map_err(|error| VocabularyError(GrammarError::told(&error)))?,
            Err(_) => return Err(VocabularyError("its tokens cannot be put into a trie".into())),
        };
        factory.quiet();
        let limits =
            ParserLimits { max_lexer_states: LEXER_STATES_MAX, verbose_errors: false, ..ParserLimits::default() };
        *factory.limits_mut() = limits;
        Ok(Self { tokens, factory, memory: GrammarMemory::new(MEMORY_BYTES) })
    }

    /// Sets the memory budget, in bytes, that all grammars compiled with this vocabulary share while they are in use.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { memory: GrammarMemory::new(bytes), ..self }
    }

    /// Returns the number of tokens.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Compiles the grammar of a binding. Calls [`compile`](Self::compile) if the grammar constrains the whole answer,
    /// and [`compile_after`](Self::compile_after) otherwise. Returns the state of an answer before its first token.
    ///
    /// # Errors
    /// Fails if [`compile`](Self::compile) or [`compile_after`](Self::compile_after) fails.
    pub fn bind(&self, binding: &Binding) -> Result<Constraint, GrammarError> {
        match &binding.after {
            None => self.compile(&binding.source),
            Some((trigger, repeats)) => self.compile_after(trigger.clone(), &binding.source, *repeats),
        }
    }

    /// Compiles a grammar that constrains the whole answer. Returns the state of an answer before its first token.
    ///
    /// The memory and the time that compiling takes are proportional to the size of the grammar. This size is limited.
    /// Compiling needs up to [`STACK_BYTES`](Self::STACK_BYTES) bytes of stack.
    ///
    /// # Errors
    /// Fails if the grammar is invalid, asks for something that cannot be enforced, or exceeds a limit.
    pub fn compile(&self, source: &GrammarSource) -> Result<Constraint, GrammarError> {
        let matching = self.matching(source).map_err(|error| match source {
            GrammarSource::JsonSchema(schema) => crate::schema::blamed(error, schema, |schema| {
                self.matching(&GrammarSource::JsonSchema(schema.clone())).is_ok()
            }),
            _ => error,
        })?;
        Ok(Constraint::new(self.tokens.clone(), matching))
    }

    /// Compiles a grammar that constrains parts of an answer. Returns the state of an answer before its first token.
    ///
    /// The answer is unconstrained until it contains a marker of `trigger`. The text after the marker must then match
    /// `source`. If the marker has [`included`](crate::Marker::included) set, the text that must match begins with the
    /// marker itself. After a match, the answer is unconstrained until the next marker if `repeats` is set. Otherwise,
    /// the answer must end.
    ///
    /// # Errors
    /// Fails for the reasons for which [`Vocabulary::compile`] fails.
    pub fn compile_after(
        &self,
        trigger: Trigger,
        source: &GrammarSource,
        repeats: bool,
    ) -> Result<Constraint, GrammarError> {
        Ok(Constraint::after(self.tokens.clone(), trigger, self.matching(source)?, repeats))
    }

    /// Returns the bytes of each token as the trie has them, and the tokens that end a sequence, for
    /// [`of_words`](Self::of_words).
    pub(crate) fn words(&self) -> (impl ExactSizeIterator<Item = &[u8]>, &[u32]) {
        self.tokens.words()
    }

    /// Returns the bytes that a token adds to a text, or the name of a special token. Returns an empty slice for an
    /// end-of-sequence token, for a token that no grammar allows, and for an id that is not in the vocabulary.
    pub fn text(&self, token: u32) -> &[u8] {
        self.tokens.text(token)
    }

    fn matching(&self, source: &GrammarSource) -> Result<Matching, GrammarError> {
        let (grammar, places) = source.grammar()?;
        let invalid = |problem: &dyn Display| {
            let problem = GrammarError::told(&problem);
            GrammarError::Invalid { what: source.what(), problem }
        };
        let (env, limits) = (self.factory.tok_env().clone(), self.factory.limits().clone());
        let read = || GrammarInit::Serialized(grammar).to_internal(Some(env), limits);
        let (grammar, terminals) = caught(AssertUnwindSafe(read)).map_err(|error| invalid(&error))?;
        overlaps::check(&terminals).map_err(|TooMany { unit, got, limit }| {
            let what = source.what();
            GrammarError::TooLarge { what, unit, got, limit }
        })?;
        let expressions = terminals.regex_builder.exprset().num_bytes();
        let bytes = GRAMMAR_BYTES
            .saturating_add(source.bytes().saturating_mul(GRAMMAR_FACTOR))
            .saturating_add(grammar.num_symbols().saturating_mul(SYMBOL_BYTES))
            .saturating_add(expressions);
        let holding = self.memory.hold();
        if !holding.grow_to(bytes) {
            return Err(GrammarError::NoMemory);
        }
        let parser = self.factory.create_parser_from_init_default(GrammarInit::Internal(grammar, terminals));
        let parser = parser.map_err(|error| invalid(&error))?;
        let (tokens, is_json) = (self.tokens.clone(), source.is_json());
        let mut matching = Matching::new(parser, tokens, is_json, places, bytes, holding)?;
        // A grammar that no token can begin allows no answer.
        match matching.mask() {
            Err(GrammarError::TooComplex(problem)) => return Err(invalid(&problem)),
            mask => mask?,
        };
        Ok(matching)
    }
}

impl Debug for Vocabulary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("num_tokens", &self.num_tokens()).finish_non_exhaustive()
    }
}

fn word(token: &TokenText, is_eos: bool) -> Vec<u8> {
    match token {
        _ if is_eos => Vec::new(),
        TokenText::Text(bytes) if bytes.len() <= TOKEN_BYTES_MAX && bytes.first() != Some(&SPECIAL) => bytes.clone(),
        TokenText::Special(name) if name.len() < TOKEN_BYTES_MAX => [&[SPECIAL], name.as_bytes()].concat(),
        _ => Vec::new(),
    }
}
