//! Decides which tensor is the head. The configuration says whether it is the embedding, and the files may say
//! otherwise.

use interbed_weights::{Catalog, WeightError};

use crate::config::ModelConfig;
use crate::layers::{EMBEDDING_TENSOR, HEAD_TENSOR};

/// The tensor that serves as the output head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSource {
    /// The head has its own tensor.
    Own,
    /// The head has its own tensor. The configuration ties the head to the embedding, but the two stored tensors
    /// differ.
    OwnDespiteTie,
    /// The embedding's tensor also serves as the head.
    Embedding,
    /// The head's tensor also serves as the embedding, because no embedding is stored.
    ForEmbedding,
}

impl HeadSource {
    /// Decides whether the output head uses its own tensor or the embedding's tensor, and updates `config` and
    /// `catalog` accordingly.
    ///
    /// If both tensors are stored, the head usually uses its own tensor. The embedding's tensor serves as both only if
    /// the configuration ties the head to the embedding and the two tensors have the same content. To compare them, the
    /// function reads at most the first `compared` bytes of each. Tensors that agree in these bytes count as the same.
    ///
    /// If only one of the two tensors is stored, it serves as both, unless the configuration says that head and
    /// embedding are not tied.
    ///
    /// # Errors
    /// Fails if one of the two tensors cannot be read.
    pub fn settle(config: &mut ModelConfig, catalog: &mut Catalog, compared: u64) -> Result<Self, WeightError> {
        let [has_embedding, has_head] = [EMBEDDING_TENSOR, HEAD_TENSOR].map(|name| catalog.get(name).is_some());
        // Copies of one configuration class disagree on the default, so that only a stated tie counts.
        let is_tied = config.blueprint.head.is_tied && config.tie_is_stated;
        let source = match (has_embedding, has_head) {
            // Something is missing; loading says what.
            (false, false) if config.blueprint.head.is_tied => Self::Embedding,
            (true, false) if is_tied || !config.tie_is_stated => Self::Embedding,
            (true, true) if is_tied => match catalog.is_same(EMBEDDING_TENSOR, HEAD_TENSOR, compared)? {
                true => Self::Embedding,
                false => Self::OwnDespiteTie,
            },
            (false, true) if is_tied || !config.tie_is_stated => {
                catalog.rename(HEAD_TENSOR, EMBEDDING_TENSOR);
                Self::ForEmbedding
            }
            _ => Self::Own,
        };
        config.blueprint.head.is_tied = matches!(source, Self::Embedding | Self::ForEmbedding);
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Writes a model's directory with these tensors, each of which has eight rows of eight numbers.
    fn write(dir: &Path, tensors: &[(&str, [u8; 256])]) -> Catalog {
        let entries = tensors.iter().enumerate().map(|(index, (name, bytes))| {
            let offset = index * bytes.len();
            let entry = serde_json::json!({"dtype": "F32", "shape": [8, 8], "data_offsets": [offset, offset + 256]});
            ((*name).to_owned(), entry)
        });
        let header = serde_json::Value::Object(entries.collect()).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        tensors.iter().for_each(|(_, bytes)| file.extend(bytes));
        std::fs::write(dir.join("model.safetensors"), file).unwrap();
        Catalog::open(dir).unwrap()
    }

    fn config(stated: Option<bool>) -> ModelConfig {
        let mut text = serde_json::json!({
            "model_type": "minicpm", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2
        });
        if let Some(stated) = stated {
            text["tie_word_embeddings"] = stated.into();
        }
        ModelConfig::from_json(&text.to_string()).unwrap()
    }

    #[test]
    fn files_decide_what_the_head_is() {
        let dir = tempfile::tempdir().unwrap();
        let embedding = (EMBEDDING_TENSOR, [7; 256]);
        let same = (HEAD_TENSOR, [7; 256]);
        let mut last = same;
        last.1[255] = 8;
        let cases: [(&[_], [HeadSource; 3]); 4] = [
            (&[embedding], [HeadSource::Embedding, HeadSource::Embedding, HeadSource::Own]),
            (&[embedding, same], [HeadSource::Own, HeadSource::Embedding, HeadSource::Own]),
            (&[embedding, last], [HeadSource::Own, HeadSource::OwnDespiteTie, HeadSource::Own]),
            (&[same], [HeadSource::ForEmbedding, HeadSource::ForEmbedding, HeadSource::Own]),
        ];
        for (tensors, expected) in cases {
            for (stated, expected) in [None, Some(true), Some(false)].into_iter().zip(expected) {
                let (mut config, mut catalog) = (config(stated), write(dir.path(), tensors));
                let source = HeadSource::settle(&mut config, &mut catalog, u64::MAX).unwrap();
                assert_eq!(source, expected, "{} tensors, {stated:?}", tensors.len());
                let is_tied = matches!(source, HeadSource::Embedding | HeadSource::ForEmbedding);
                assert_eq!(config.blueprint.head.is_tied, is_tied);
                if source == HeadSource::ForEmbedding {
                    assert!(catalog.get(HEAD_TENSOR).is_none() && catalog.get(EMBEDDING_TENSOR).is_some());
                    assert_eq!(catalog.name_in_file(EMBEDDING_TENSOR), HEAD_TENSOR);
                }
            }
        }
        // Of files elsewhere, only the beginnings are compared.
        let (mut config, mut catalog) = (config(Some(true)), write(dir.path(), &[embedding, last]));
        assert_eq!(HeadSource::settle(&mut config, &mut catalog, 200).unwrap(), HeadSource::Embedding);
    }
}
