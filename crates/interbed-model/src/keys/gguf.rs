//! The keys that one architecture has in a GGUF file's metadata, and facts that only the file's tensors show.

use std::ops::RangeInclusive;

use interbed_weights::{Catalog, Metadata, MetadataValue, Number};
use serde_json::Value;

use crate::config_error::ConfigProblem;
use crate::keys::json::shorten;
use crate::layers::{EMBEDDING_TENSOR, HEAD_TENSOR};

/// The keys of one architecture. Methods take a key's name without the architecture's prefix, return `None` for an
/// absent key, and fail if the value has the wrong type.
#[derive(Clone, Copy)]
pub(crate) struct GgufKeys<'a> {
    catalog: &'a Catalog,
    metadata: &'a Metadata,
    architecture: &'a str,
    tokens: &'a TokenFacts,
}

/// Facts about a model that its GGUF file keeps among the keys of the tokenizer.
pub(crate) struct TokenFacts {
    /// Name of the metadata key that holds the list of tokens, for error messages.
    pub key: &'static str,
    /// Number of tokens in the list.
    pub count: u64,
    /// Id of the token that begins a text, if there is one.
    pub bos: Option<u64>,
    /// Ids of the tokens that end a text.
    pub ends: Vec<u64>,
}

/// Which layers have a feature, as a GGUF file states it.
pub(crate) enum Pattern {
    /// A flag for each layer, which says whether the layer has the feature.
    Flags(Vec<bool>),
    /// A layer lacks the feature if its number, counted from 1, is a multiple of this period. All other layers have it.
    Every(u64),
}

impl<'a> GgufKeys<'a> {
    /// Gives access to the keys of `architecture`, which is the file's `general.architecture`.
    pub(crate) fn new(
        catalog: &'a Catalog,
        metadata: &'a Metadata,
        architecture: &'a str,
        tokens: &'a TokenFacts,
    ) -> Self {
        Self { catalog, metadata, architecture, tokens }
    }

    /// Returns the full name of a key, with the architecture's prefix.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Reads a whole number from 0 up.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        Ok(self.metadata.count(&self.name(key))?)
    }

    /// Reads a whole number within `limits`.
    pub(crate) fn count_within(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigProblem> {
        self.count(key)?.map(|count| self.within(key, count, limits)).transpose()
    }

    /// Reads a whole number that the file must have, since it shapes the model.
    pub(crate) fn required(&self, key: &str) -> Result<u64, ConfigProblem> {
        self.count(key)?.ok_or_else(|| self.missing(key, "it shapes the model"))
    }

    /// Checks that a number that was read from `key` is within `limits`.
    pub(crate) fn within(&self, key: &str, count: u64, limits: RangeInclusive<usize>) -> Result<usize, ConfigProblem> {
        usize::try_from(count).ok().filter(|count| limits.contains(count)).ok_or_else(|| {
            let limit = format!("a whole number from {} to {}", limits.start(), limits.end());
            ConfigProblem::OutOfRange { key: self.name(key), found: count.to_string(), limit }
        })
    }

    /// Reads a finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ConfigProblem> {
        Ok(self.metadata.number(&self.name(key))?)
    }

    /// Reads a flag.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigProblem> {
        Ok(self.metadata.flag(&self.name(key))?)
    }

    /// Reads a text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigProblem> {
        Ok(self.metadata.text(&self.name(key))?)
    }

    /// Reads a list with a flag for each layer, or the number that stands for such a list, if the key is there.
    pub(crate) fn pattern_of_layers(&self, key: &str, layers: usize) -> Result<Option<Pattern>, ConfigProblem> {
        match self.metadata.get(&self.name(key)) {
            None => Ok(None),
            Some(MetadataValue::Bools(flags)) if flags.len() == layers => Ok(Some(Pattern::Flags(flags.clone()))),
            Some(MetadataValue::Number(_)) => Ok(self.count(key)?.map(Pattern::Every)),
            Some(other) => {
                let hint = "expected a flag for each layer, or a number";
                Err(self.unsupported(key, &Value::from(other.to_string()), hint))
            }
        }
    }

    /// Reads in which layers a number is zero, if the number is written for each layer. There may be more numbers than
    /// `layers`, since layers that guess at further tokens have numbers too.
    pub(crate) fn zeros_in_layers(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ConfigProblem> {
        match self.metadata.get(&self.name(key)) {
            Some(MetadataValue::Numbers(numbers)) if numbers.iter().count() >= layers => {
                Ok(Some(numbers.iter().take(layers).map(|number| number.as_integer() == Some(0)).collect()))
            }
            Some(MetadataValue::Numbers(numbers)) => {
                let found = Value::from(format!("a list of {}", numbers.iter().count()));
                Err(self.unsupported(key, &found, "one number for each layer is expected"))
            }
            _ => Ok(None),
        }
    }

    /// Reads a number that is written once or for each layer; numbers that differ between layers are refused.
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

    /// Reads a number for each of `layers` layers, which is written once or for each. The file must have it.
    pub(crate) fn in_layers(&self, key: &str, layers: usize) -> Result<Vec<u64>, ConfigProblem> {
        let Some(MetadataValue::Numbers(numbers)) = self.metadata.get(&self.name(key)) else {
            return Ok(vec![self.required(key)?; layers]);
        };
        let counts = numbers.iter().map(|number| u64::try_from(number.as_integer()?).ok());
        match counts.collect::<Option<Vec<u64>>>().filter(|counts| counts.len() >= layers) {
            Some(mut counts) => {
                counts.truncate(layers);
                Ok(counts)
            }
            None => {
                let found = Value::from(format!("a list of {}", numbers.len()));
                Err(self.unsupported(key, &found, "a whole number from 0 up is expected, or one for each layer"))
            }
        }
    }

    /// Reads a number that is written once or for each layer: that of the first layer.
    pub(crate) fn in_first_layer(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        match self.metadata.get(&self.name(key)) {
            None => Ok(None),
            Some(_) => Ok(self.in_layers(key, 1)?.first().copied()),
        }
    }

    /// Reads a number that is written once or for each layer; layers that lack what is counted have zeros, and all
    /// others must agree.
    pub(crate) fn of_some_layers(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        if let Some(MetadataValue::Numbers(numbers)) = self.metadata.get(&self.name(key)) {
            let counts = self.in_layers(key, numbers.len())?;
            let most = counts.iter().max().copied();
            if counts.iter().all(|&count| count == 0 || Some(count) == most) {
                return Ok(most);
            }
        }
        self.same_in_layers(key)
    }

    /// Reads a number of experts or of their size that is written once or for each layer; layers without experts have
    /// zeros, and all others must agree.
    pub(crate) fn of_experts(&self, key: &str) -> Result<Option<u64>, ConfigProblem> {
        if let Some(MetadataValue::Numbers(numbers)) = self.metadata.get(&self.name(key)) {
            let counts = || numbers.iter().map(|number| u64::try_from(number.as_integer()?).ok());
            let most = counts().max().flatten();
            if most.is_some() && counts().all(|count| count == Some(0) || count == most) {
                return Ok(most);
            }
        }
        self.count(key)
    }

    /// Returns whether the first layer has a tensor of this name. The name is Interbed's, without the layer's prefix.
    pub(crate) fn has_in_first_layer(&self, tensor: &str) -> bool {
        self.has_in_layer(0, tensor)
    }

    /// Returns whether layer `layer` has a tensor of this name, without the layer's prefix.
    pub(crate) fn has_in_layer(&self, layer: usize, tensor: &str) -> bool {
        self.catalog.get(&format!("model.layers.{layer}.{tensor}")).is_some()
    }

    /// Returns the number of the embedding's rows. If the file lacks the embedding, reads `vocab_size` instead; loading
    /// will then report the missing tensor.
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

    /// Returns whether head and embedding share a matrix. Files have no key for it: they share if only one of both is
    /// stored.
    pub(crate) fn is_tied(&self) -> bool {
        [EMBEDDING_TENSOR, HEAD_TENSOR].iter().any(|name| self.catalog.get(name).is_none())
    }

    /// Returns the token that begins a text and those that end one, without ids too large for any vocabulary.
    pub(crate) fn ends(&self) -> (Option<u32>, Vec<u32>) {
        let id = |id: u64| u32::try_from(id).ok();
        (self.tokens.bos.and_then(id), self.tokens.ends.iter().filter_map(|&end| id(end)).collect())
    }

    /// Reads the tensor `name` if it exists: one factor above zero for each of `pairs` pairs of elements.
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
        // Converters write 1e30 for pairs that do not rotate.
        match factors.iter().find(|factor| !(1e-6..=1e30).contains(*factor)) {
            None => Ok(Some(factors)),
            Some(factor) => Err(wrong(format!("partly {factor}"))),
        }
    }

    /// Returns the shape of a tensor, if there is one of this name.
    pub(crate) fn shape_of(&self, name: &str) -> Option<&'a [usize]> {
        Some(self.catalog.get(name)?.shape.as_slice())
    }

    /// Makes the error of an absent key.
    pub(crate) fn missing(&self, key: &str, why: &'static str) -> ConfigProblem {
        ConfigProblem::Missing { key: self.name(key), why }
    }

    /// Makes the error of a value that is not supported.
    pub(crate) fn unsupported(&self, key: &str, value: &Value, hint: &'static str) -> ConfigProblem {
        ConfigProblem::Unsupported { key: self.name(key), found: shorten(value), hint }
    }
}
