//! The keys of one architecture in a GGUF file's metadata, and what the file's tensors tell beside them.

use std::ops::RangeInclusive;

use interbed_weights::{Catalog, Metadata, MetadataValue, Number};
use serde_json::Value;

use crate::config_error::ConfigProblem;
use crate::keys::json::shorten;
use crate::layers::{EMBEDDING_TENSOR, HEAD_TENSOR};

/// The keys of one architecture, by their names without the architecture's. Every accessor tells an absent key from one
/// of the wrong kind.
#[derive(Clone, Copy)]
pub(crate) struct GgufKeys<'a> {
    catalog: &'a Catalog,
    metadata: &'a Metadata,
    architecture: &'a str,
    tokens: &'a TokenFacts,
}

/// What the file's tokenizer tells of a model.
pub(crate) struct TokenFacts {
    /// The key of the tokens.
    pub key: &'static str,
    /// How many tokens there are.
    pub count: u64,
    /// The token that begins a text.
    pub bos: Option<u64>,
    /// The tokens that end a text.
    pub ends: Vec<u64>,
}

impl<'a> GgufKeys<'a> {
    /// The keys of `architecture`, which is the file's `general.architecture`.
    pub(crate) fn new(
        catalog: &'a Catalog,
        metadata: &'a Metadata,
        architecture: &'a str,
        tokens: &'a TokenFacts,
    ) -> Self {
        Self { catalog, metadata, architecture, tokens }
    }

    /// The full name of a key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A whole number from 0 up.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        Ok(self.metadata.count(&self.name(key))?)
    }

    /// A whole number within `limits`.
    pub(crate) fn count_within(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigProblem> {
        self.count(key)?.map(|count| self.within(key, count, limits)).transpose()
    }

    /// A number, which may be absent only where the model's shape does not depend on it.
    pub(crate) fn required(&self, key: &str) -> Result<u64, ConfigProblem> {
        self.count(key)?.ok_or_else(|| self.missing(key, "it shapes the model"))
    }

    /// Checks that a number that `key` gives is within limits.
    pub(crate) fn within(&self, key: &str, count: u64, limits: RangeInclusive<usize>) -> Result<usize, ConfigProblem> {
        usize::try_from(count).ok().filter(|count| limits.contains(count)).ok_or_else(|| {
            let limit = format!("a whole number from {} to {}", limits.start(), limits.end());
            ConfigProblem::OutOfRange { key: self.name(key), found: count.to_string(), limit }
        })
    }

    /// A number that is finite.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ConfigProblem> {
        Ok(self.metadata.number(&self.name(key))?)
    }

    /// A flag.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigProblem> {
        Ok(self.metadata.flag(&self.name(key))?)
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        Ok(self.metadata.text(&self.name(key))?)
    }

    /// A flag for each layer, if the key is there.
    pub(crate) fn flags_of_layers(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ConfigProblem> {
        match self.metadata.get(&self.name(key)) {
            None => Ok(None),
            Some(MetadataValue::Bools(flags)) if flags.len() == layers => Ok(Some(flags.clone())),
            Some(other) => {
                Err(self.unsupported(key, &Value::from(other.to_string()), "expected a flag for each layer"))
            }
        }
    }

    /// A number that may be written once, or for each layer; layers that differ are refused.
    pub(crate) fn same_in_layers(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        let Some(MetadataValue::Numbers(numbers)) = self.metadata.get(&self.name(key)) else {
            return self.count(key);
        };
        let mut counts = numbers.iter().map(Number::as_integer);
        // A list has one number for each layer, or the file is not what it seems.
        let complete = self.count("block_count")?.is_none_or(|layers| layers == numbers.len() as u64);
        let first = counts.next().flatten().and_then(|count| u64::try_from(count).ok()).filter(|_| complete);
        match first.filter(|&first| counts.all(|count| count == Some(first.into()))) {
            Some(count) => Ok(Some(count)),
            None => {
                let hint = "one number for each layer is expected, and layers that differ in shape are not supported";
                Err(self.unsupported(key, &Value::from(format!("a list of {}", numbers.len())), hint))
            }
        }
    }

    /// A number that may be written once, or for each layer, with zeros for layers without experts.
    pub(crate) fn of_experts(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        if let Some(MetadataValue::Numbers(numbers)) = self.metadata.get(&self.name(key)) {
            let integers = || numbers.iter().filter_map(Number::as_integer);
            let most = integers().filter_map(|number| u64::try_from(number).ok()).max();
            if integers().all(|count| count == 0 || Some(count) == most.map(Into::into)) {
                return Ok(most);
            }
        }
        self.count(key)
    }

    /// Whether the file has a tensor of this name in its first layer, by Interbed's names within layers.
    pub(crate) fn has_in_first_layer(&self, tensor: &str) -> bool {
        self.has_in_layer(0, tensor)
    }

    /// Whether the file has a tensor of this name in layer `layer`.
    pub(crate) fn has_in_layer(&self, layer: usize, tensor: &str) -> bool {
        self.catalog.get(&format!("model.layers.{layer}.{tensor}")).is_some()
    }

    /// Rows of the embedding if the file has it; otherwise the value of a key, and loading will name what is missing.
    pub(crate) fn vocab_size(&self) -> Result<u64, ConfigProblem> {
        let stored = |name| Some((name, self.catalog.get(name)?));
        let Some((name, embedding)) = [EMBEDDING_TENSOR, HEAD_TENSOR].into_iter().find_map(stored) else {
            return self.required("vocab_size");
        };
        let rows = embedding.shape.first().map_or(0, |&rows| rows as u64);
        // A token without a row would be read from beyond the end. Rows without a token are padding.
        let tokens = self.tokens.count;
        if tokens > rows {
            return Err(ConfigProblem::OutOfRange {
                key: self.tokens.key.to_owned(),
                found: format!("a list of {tokens} tokens"),
                limit: format!("at most {rows}, as many as {} has rows", self.catalog.name_in_file(name)),
            });
        }
        Ok(rows)
    }

    /// Whether the head is the embedding. Files have no key for it: a head is stored unless it is the embedding, or
    /// stands for that too.
    pub(crate) fn is_tied(&self) -> bool {
        [EMBEDDING_TENSOR, HEAD_TENSOR].iter().any(|name| self.catalog.get(name).is_none())
    }

    /// The token that begins a text, and those that end one, without those that no vocabulary can hold.
    pub(crate) fn ends(&self) -> (Option<u32>, Vec<u32>) {
        let id = |id: u64| u32::try_from(id).ok();
        (self.tokens.bos.and_then(id), self.tokens.ends.iter().filter_map(|&end| id(end)).collect())
    }

    /// The factors of `pairs` pairs of elements in the tensor `name`, each above zero, if there is such a tensor.
    pub(crate) fn factors(&self, name: &str, pairs: usize) -> Result<Option<Vec<f32>>, ConfigProblem> {
        let Some(entry) = self.catalog.get(name) else { return Ok(None) };
        let wrong = |found: String| ConfigProblem::OutOfRange {
            key: name.to_owned(),
            found,
            limit: format!("{pairs} numbers above 0, one for each pair of a head's elements"),
        };
        if entry.shape != [pairs] {
            return Err(wrong(format!("of shape {:?}", entry.shape)));
        }
        let read = self.catalog.read_f32(name, pairs);
        let factors = read.map_err(|error| wrong(format!("not to be read ({error})")))?.unwrap_or_default();
        match factors.iter().find(|factor| !(1e-6..1e6).contains(*factor)) {
            None => Ok(Some(factors)),
            Some(factor) => Err(wrong(format!("partly {factor}"))),
        }
    }

    /// The shape of a tensor, if there is one of this name.
    pub(crate) fn shape_of(&self, name: &str) -> Option<&'a [usize]> {
        Some(self.catalog.get(name)?.shape.as_slice())
    }

    /// The problem of an absent key.
    pub(crate) fn missing(&self, key: &str, why: &'static str) -> ConfigProblem {
        ConfigProblem::Missing { key: self.name(key), why }
    }

    /// The problem of a value that is not supported.
    pub(crate) fn unsupported(&self, key: &str, value: &Value, hint: &'static str) -> ConfigProblem {
        ConfigProblem::Unsupported { key: self.name(key), found: shorten(value), hint }
    }
}
