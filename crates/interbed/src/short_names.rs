//! Finds the models on the Hub for which short names stand. Users of Ollama type such short names.

mod sizes;

use crate::failure::Advised;
use crate::spelling::distance;

/// The table of short names. A row has a name, its tags, a model on the Hub, and the repository of its quantised files
/// if that is another one. If the model cannot be computed, the row has `-` in place of the model. The rest of such a
/// row says what to use instead, or has the size of the tag `latest` and a reason, to which the error adds models of
/// about the asked size.
const TABLE: &str = include_str!("short_names.txt");

/// The tag that a name without a tag means.
const LATEST: &str = "latest";

/// The prefixes that may precede names of Ollama's library.
const LIBRARIES: [&str; 3] = ["registry.ollama.ai/library/", "ollama.com/library/", "library/"];

/// The maximum number of similar names that an error message lists.
const NEAR_MAX: usize = 3;

/// The maximum number of letters in which a mistyped name may differ.
const LETTERS_MAX: usize = 2;

/// The minimum number of letters of a name for which similar names are looked up.
const LETTERS_LEAST: usize = 5;

/// The parts of tags that say what a model was trained for. Such a part is ignored if the name on the Hub says the
/// same: `qwen3:8b-instruct` is not the model of `qwen3:8b`, which thinks.
const TRAINED_FOR: [&str; 3] = ["instruct", "it", "chat"];

struct Row {
    name: &'static str,
    tags: &'static str,
    model: &'static str,
    /// The repository of the model's quantised files. For a model that cannot be computed, the text says what to use
    /// instead.
    rest: &'static str,
}

impl Row {
    fn is_computed(&self) -> bool {
        self.model != "-"
    }

    /// Returns the rest of `tag` after the longest of the row's tags that it begins with, or `None` if it begins with
    /// none.
    fn behind<'t>(&self, tag: &'t str) -> Option<&'t str> {
        let behind = |known| match tag.strip_prefix(known)? {
            "" => Some(""),
            rest => rest.strip_prefix('-'),
        };
        self.tags.split(',').filter_map(behind).min_by_key(|rest| rest.len())
    }

    /// Returns whether the model's name on the Hub says that it was trained for this.
    fn is_trained_for(&self, what: &str) -> bool {
        let repository = self.model.split(':').next().unwrap_or_default().to_ascii_lowercase();
        repository.split(['/', '-']).any(|part| part == what)
    }

    /// Returns what to use instead of a model that cannot be computed, for the size that `tag` begins with.
    fn instead(&self, tag: &str) -> String {
        let (size, why) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        let Some(usual) = sizes::millions(size) else { return self.rest.to_owned() };
        let why = if why.is_empty() { String::new() } else { format!("{why}; ") };
        match sizes::of_about(names(), sizes::millions(tag).unwrap_or(usual)).as_slice() {
            [one, other] => format!("{why}models of about its size are {one} and {other}"),
            others => format!("{why}a model of about its size is {}", others.join(", ")),
        }
    }

    /// Returns the names of the row's model, one for each tag.
    fn names(&self) -> impl Iterator<Item = String> {
        let name = self.name;
        self.tags.split(',').map(move |tag| if tag == LATEST { name.to_owned() } else { format!("{name}:{tag}") })
    }
}

/// Returns the model on the Hub for a short name such as `llama3.2:1b` or `llama3.2:1b-instruct-q8_0`. Returns `None`
/// if `text` is not a short name.
///
/// # Errors
/// Fails if the name is known but its tag is not, or if Interbed does not support the model's architecture.
pub fn find(text: &str) -> anyhow::Result<Option<String>> {
    let bare = without_library(text);
    let (name, tag) = bare.split_once(':').unwrap_or((bare, LATEST));
    let (name, tag) = (name.to_ascii_lowercase(), tag.to_ascii_lowercase());
    let rows: Vec<Row> = rows().filter(|row| row.name == name).collect();
    let Some(first) = rows.first() else { return Ok(None) };
    if !first.is_computed() {
        let message = format!("{text} is of an architecture that Interbed does not compute");
        return Err(Advised::input(message, first.instead(&tag)));
    }
    // A tag may be a size, a quantisation, or both.
    let by_size = rows.iter().filter_map(|row| Some((row, row.behind(&tag)?))).min_by_key(|(_, rest)| rest.len());
    let (row, rest) = match by_size {
        Some((row, rest)) => (Some(row), rest),
        None => (rows.iter().find(|row| row.behind(LATEST).is_some()), tag.as_str()),
    };
    let is_said = |part: &str| TRAINED_FOR.contains(&part) && row.is_some_and(|row| row.is_trained_for(part));
    let parts: Vec<&str> = rest.split('-').filter(|part| !part.is_empty() && !is_said(part)).collect();
    let model = match (row, parts.as_slice()) {
        (Some(row), []) => Some(row.model.to_owned()),
        (Some(row), [quantisation]) => with_quantisation(row, quantisation),
        _ => None,
    };
    let Some(model) = model else {
        let known: Vec<String> = rows.iter().flat_map(Row::names).filter(|known| *known != name).collect();
        return Err(Advised::input(
            format!("{text} is no short name"),
            format!(
                "there are {}, each with a quantisation behind it, such as {}-q8_0, if its files have one; any model \
                 of the Hub is ORG/NAME or ORG/NAME:QUANT",
                known.join(", "),
                known[0]
            ),
        ));
    };
    Ok(Some(model))
}

/// Returns the short name of a model on the Hub, with a tag, such as `llama3.2:1b`. Returns `None` if the model has no
/// short name.
pub fn of(model: &str) -> Option<String> {
    let row = rows().find(|row| row.model == model)?;
    let tag = row.tags.split(',').find(|tag| *tag != LATEST)?;
    Some(format!("{}:{tag}", row.name))
}

/// Returns the short names that a mistyped `text` may mean. If `text` differs from a name only in its separators, as
/// `qwen3-30b-a3b` differs from `qwen3:30b-a3b`, only that name is returned. Otherwise, the most similar names are
/// returned.
pub fn near(text: &str) -> Vec<String> {
    if let Some(name) = spelled_otherwise(text) {
        return vec![name];
    }
    let typed = letters(text);
    if typed.len() < LETTERS_LEAST {
        return Vec::new();
    }
    let mut found: Vec<(usize, String)> = names()
        .filter(|name| digits(name) == digits(text))
        .map(|name| (distance(&typed, &letters(&name)), name))
        .filter(|(differing, _)| *differing <= LETTERS_MAX)
        .collect();
    found.sort_by_key(|(differing, _)| *differing);
    let least = found.first().map_or(0, |(differing, _)| *differing);
    found.into_iter().take_while(|(differing, _)| *differing == least).take(NEAR_MAX).map(|(_, name)| name).collect()
}

/// Returns the short name that equals `text` except for separators and for parts such as `instruct` and `chat`, which
/// say what the model was trained for.
pub fn spelled_otherwise(text: &str) -> Option<String> {
    let (typed, all_typed) = (letters(text), all_letters(text));
    let mut names = names().filter(|name| letters(name) == typed).collect::<Vec<_>>().into_iter();
    // What a model was trained for tells some names apart.
    names.clone().find(|name| all_letters(name) == all_typed).or_else(|| names.next())
}

/// Returns all short names of models that can be computed.
fn names() -> impl Iterator<Item = String> {
    rows().filter(Row::is_computed).flat_map(|row| row.names().collect::<Vec<_>>())
}

/// Returns a name without separators between its parts, and without the parts that say what the model was trained for.
fn letters(name: &str) -> String {
    let lower = without_library(name).to_ascii_lowercase();
    lower.split(['-', '_', ':']).filter(|part| !TRAINED_FOR.contains(part)).collect()
}

/// Returns a name without separators between its parts.
fn all_letters(name: &str) -> String {
    without_library(name).to_ascii_lowercase().split(['-', '_', ':']).collect()
}

/// Returns the digits of a name: versions and sizes are not treated as typing errors.
fn digits(name: &str) -> String {
    name.chars().filter(char::is_ascii_digit).collect()
}

fn without_library(text: &str) -> &str {
    LIBRARIES.iter().find_map(|library| text.strip_prefix(library)).unwrap_or(text)
}

/// Returns the model with another quantisation, or `None` if `quantisation` is not the name of one.
fn with_quantisation(row: &Row, quantisation: &str) -> Option<String> {
    let repository = if row.rest.is_empty() { row.model.split_once(':')?.0 } else { row.rest };
    let has_number = quantisation.contains(|letter: char| letter.is_ascii_digit());
    let is_one = has_number && quantisation.starts_with(['q', 'i', 'f', 'b', 'm']);
    let named = if quantisation == "fp16" { "F16".to_owned() } else { quantisation.to_ascii_uppercase() };
    is_one.then(|| format!("{repository}:{named}"))
}

fn rows() -> impl Iterator<Item = Row> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| {
        let mut words = line.splitn(4, char::is_whitespace).map(str::trim);
        let mut next = || words.next().unwrap_or_default();
        Row { name: next(), tags: next(), model: next(), rest: next() }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use interbed_hub::HubName;

    use super::*;

    #[test]
    fn every_row_names_one_model_and_no_tag_twice() {
        let mut seen = HashSet::new();
        for row in rows() {
            let names_one = HubName::read(row.model).is_some_and(|name| name.revision.is_none());
            assert!(names_one != (!row.is_computed() && !row.rest.is_empty()), "{} {}", row.name, row.model);
            let is_quantised = row.model.contains(':') || HubName::read(row.rest).is_some();
            assert!(is_quantised || !row.is_computed(), "{} {}", row.name, row.model);
            assert!(row.tags.split(',').all(|tag| seen.insert((row.name, tag))), "{} {}", row.name, row.tags);
        }
        let names: HashSet<_> = seen.iter().map(|(name, _)| *name).collect();
        assert!(seen.len() > 50 && names.iter().all(|name| seen.contains(&(*name, LATEST))), "{names:?}");
    }

    #[test]
    fn names_are_found_with_and_without_size_and_quantisation() {
        let found = |text: &str| find(text).expect("no error");
        let one = "bartowski/Llama-3.2-1B-Instruct-GGUF";
        assert_eq!(found("llama3.2:1b"), Some(format!("{one}:Q4_K_M")));
        assert_eq!(found("Llama3.2:1B-Instruct-Q8_0"), Some(format!("{one}:Q8_0")));
        assert_eq!(found("llama3.2:1b-instruct-fp16"), Some(format!("{one}:F16")));
        assert_eq!(found("llama3.2"), found("llama3.2:3b"));
        assert_eq!(found("llama3.2:q6_k"), Some("bartowski/Llama-3.2-3B-Instruct-GGUF:Q6_K".into()));
        assert_eq!(found("qwen2.5-coder:1.5b"), Some("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M".into()));
        for none in ["llama-3-8b", "org/name", "models", "tiny", "library:tag", ""] {
            assert_eq!(found(none), None, "{none}");
        }
        assert_eq!(of("bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M").as_deref(), Some("llama3.2:3b"));
        assert_eq!(of("bartowski/Llama-3.2-3B-Instruct-GGUF:Q8_0"), None);
        let refused = |text: &str| crate::failure::message(&find(text).expect_err(text)).expect("it is said");
        assert!(refused("llama3.2:11b").contains("llama3.2:1b, llama3.2:3b"), "{}", refused("llama3.2:11b"));
        assert!(refused("llama3.2:1b-text-q8_0-x").contains("is no short name"));
        assert_eq!(found("gemma3"), Some("unsloth/gemma-3-4b-it-GGUF:Q4_K_M".into()));
        assert_eq!(found("gemma3:1b-it-q8_0"), Some("unsloth/gemma-3-1b-it-GGUF:Q8_0".into()));
        assert_eq!(found("qwen3:30b-a3b"), found("qwen3:30b"));
        assert_eq!(found("qwen3:30b-a3b-q8_0"), Some("unsloth/Qwen3-30B-A3B-GGUF:Q8_0".into()));
        assert_eq!(found("smollm2:135m"), Some("HuggingFaceTB/SmolLM2-135M-Instruct".into()));
        assert_eq!(found("smollm2:135m-instruct-q8_0"), Some("bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0".into()));
        assert_eq!(found("registry.ollama.ai/library/smollm2:135m"), found("smollm2:135m"));
        for (name, instead) in [
            ("gemma2:2b", "models of about its size are "),
            ("gemma3n", "models of about its size are "),
            ("gemma3n:e4b", "models of about its size are "),
            ("gemma2:27b-instruct-q8_0", "models of about its size are "),
            ("qwen2.5vl:72b", "models are computed for text alone; models of about its size are llama3."),
            ("nomic-embed-text", "Qwen/Qwen3-Embedding-0.6B"),
        ] {
            assert!(refused(name).contains(instead), "{}", refused(name));
        }
    }

    #[test]
    fn a_model_that_thinks_is_none_that_only_instructs() {
        let found = |text: &str| find(text).expect("no error").expect("a model");
        let instruct = "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF";
        assert_eq!(found("qwen3:30b-instruct"), format!("{instruct}:Q4_K_M"));
        assert_eq!(found("qwen3:30b-a3b-instruct-2507-q8_0"), format!("{instruct}:Q8_0"));
        assert_eq!(found("qwen3:4b-thinking"), "unsloth/Qwen3-4B-Thinking-2507-GGUF:Q4_K_M");
        assert_eq!(found("qwen3:4b"), "unsloth/Qwen3-4B-GGUF:Q4_K_M");
        for none in ["qwen3:8b-instruct", "qwen3:14b-chat", "qwen3:instruct", "smollm3:3b-instruct"] {
            assert!(find(none).is_err(), "{none}");
        }
        for instructed in ["llama3.2:1b-instruct", "llama2:7b-chat", "mistral:instruct", "phi4-mini:3.8b-instruct"] {
            assert!(find(instructed).is_ok_and(|found| found.is_some()), "{instructed}");
        }
    }

    #[test]
    fn every_name_with_a_quantisation_is_one_and_none_is_proposed_when_refused() {
        for name in names() {
            let sized = if name.contains(':') { name.clone() } else { format!("{name}:{LATEST}") };
            let quantised = format!("{sized}-q8_0");
            assert!(find(&quantised).is_ok_and(|found| found.is_some_and(|model| model.ends_with(":Q8_0"))), "{name}");
            let refused = format!("{sized}-text");
            let told = crate::failure::message(&find(&refused).expect_err(&refused)).expect("it is said");
            assert_eq!(told.matches(&refused).count(), 1, "{told}");
        }
    }

    #[test]
    fn names_that_are_spelled_otherwise_are_near_and_others_are_not() {
        for (typed, expect) in [
            ("qwen3-30b-a3b", &["qwen3:30b-a3b"][..]),
            ("qwen3-30b-instruct", &["qwen3:30b-instruct"]),
            ("llama3-8b", &["llama3:8b"]),
            ("llama-3-8b", &["llama3:8b"]),
            ("SmolLM2-135M-Instruct", &["smollm2:135m"]),
            ("gpt-oss-20b", &["gpt-oss:20b"]),
            ("mixtral-8x7b", &["mixtral:8x7b"]),
            ("olmoe-1b-7b", &["olmoe:1b-7b"]),
            ("glm4.5-air", &["glm-4.5-air"]),
            ("lama3.2", &["llama3.2"]),
            ("mixtrall", &["mixtral"]),
            ("nosuchmodel", &[]),
            ("tiny", &[]),
            ("gemma5", &[]),
            ("qwen3.9", &[]),
        ] {
            assert_eq!(near(typed), expect, "{typed}");
        }
    }
}
