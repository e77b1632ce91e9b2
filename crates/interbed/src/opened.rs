//! A model that is open and checked, with its tokenizer, before memory is divided and weights are read.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use interbed_model::chat_template::ChatTemplate;
use interbed_model::tokenizer::Tokenizer;
use interbed_model::{HeadSource, end_tokens};

use crate::failure::Advised;
use crate::footprint::Footprint;
use crate::model_dir::ModelDir;

/// An open model with its tokenizer and chat template. The weights are not loaded yet.
pub struct Opened {
    /// The model's files.
    pub dir: ModelDir,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// The memory of the process after opening the model.
    pub footprint: Footprint,
}

impl Opened {
    /// Opens the model at the path `model`, or the bundled model if `model` is `None`.
    ///
    /// # Errors
    /// Fails if the model cannot be opened, is not supported, or has no tokenizer.
    pub fn open(model: Option<&Path>) -> Result<Self> {
        let mut dir = ModelDir::open(model)?;
        let tokenizer = dir.tokenizer()?;
        if tokenizer.vocab_size() > dir.config.blueprint.vocab_size {
            // Requests with ids beyond the end of the embedding are refused, because these would be read from other
            // memory.
            tracing::warn!(
                "the tokenizer has {} tokens, the model {}; prompts with the tokens beyond are refused",
                tokenizer.vocab_size(),
                dir.config.blueprint.vocab_size
            );
        }
        let template = dir.template()?.map(Arc::new);
        dir.end_tokens = end_tokens(&dir.generation, &dir.config, Some(&tokenizer), template.as_deref());
        match dir.head {
            HeadSource::Own | HeadSource::Embedding => {}
            HeadSource::OwnDespiteTie => tracing::warn!(
                "config.json ties the head to the embedding (tie_word_embeddings), but the weights have a head that \
                 differs; the head is used"
            ),
            HeadSource::ForEmbedding => {
                tracing::warn!("the weights have a head and no embedding; the head is used for both");
            }
        }
        for file in dir.catalog.left_alone() {
            tracing::info!("{file} is left alone: it is no language model, and models are computed for text alone");
        }
        let footprint = Footprint::of(Some(&tokenizer));
        Ok(Self { dir, tokenizer: Arc::new(tokenizer), template, footprint })
    }

    /// Returns the model's chat template.
    ///
    /// # Errors
    /// Fails if the model has no chat template.
    pub fn chat_template(&self) -> Result<Arc<ChatTemplate>> {
        self.template.clone().ok_or_else(|| {
            Advised::input(
                format!(
                    "{} has no chat template (chat_template.jinja, chat_template in tokenizer_config.json or in \
                     chat_template.json, or tokenizer.chat_template in a GGUF file)",
                    self.dir.name()
                ),
                "let it continue plain text instead: interbed run MODEL --prompt TEXT",
            )
        })
    }
}
