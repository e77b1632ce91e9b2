//! Short names of models, as ollama's users type them, and the models on the Hub that they stand for.

use crate::failure::Advised;

/// A row is a name, its tags, and a model on the Hub; or `-` for what cannot be computed, with what to take instead.
const TABLE: &str = include_str!("short_names.txt");

/// The tag of a name without one.
const LATEST: &str = "latest";

/// Parts of tags that say what a model was trained for, as all models here were.
const TRAINED_FOR: [&str; 3] = ["instruct", "it", "chat"];

struct Row {
    name: &'static str,
    tags: &'static str,
    model: &'static str,
    /// What to take instead.
    instead: &'static str,
}

impl Row {
    fn has(&self, tag: &str) -> bool {
        self.tags.split(',').any(|known| known == tag)
    }
}

/// The model on the Hub that a short name stands for, such as `llama3.2:1b` or `llama3.2:1b-instruct-q8_0`; `None` if
/// the text is no short name.
///
/// # Errors
/// A name that is known without this tag, or a model that cannot be computed.
pub fn find(text: &str) -> anyhow::Result<Option<String>> {
    let (name, tag) = text.split_once(':').unwrap_or((text, LATEST));
    let (name, tag) = (name.to_ascii_lowercase(), tag.to_ascii_lowercase());
    let rows: Vec<Row> = rows().filter(|row| row.name == name).collect();
    let Some(first) = rows.first() else { return Ok(None) };
    if first.model == "-" {
        let instead = first.instead;
        return Err(Advised::input(format!("{text} is of an architecture that Interbed does not compute"), instead));
    }
    let mut parts = tag.split('-').filter(|part| !TRAINED_FOR.contains(part));
    // A tag may be a size, a quantisation, or both.
    let size = parts.next().unwrap_or(LATEST);
    let (row, quantisation) = match rows.iter().find(|row| row.has(size)) {
        Some(row) => (Some(row), parts.next()),
        None => (rows.iter().find(|row| row.has(LATEST)), Some(size)),
    };
    let has_rest = parts.next().is_some();
    let model = row.filter(|_| !has_rest).and_then(|row| with_quantisation(row.model, quantisation));
    let Some(model) = model else {
        let known: Vec<&str> = rows.iter().flat_map(|row| row.tags.split(',')).filter(|tag| *tag != LATEST).collect();
        let known: Vec<String> = known.iter().map(|tag| format!("{name}:{tag}")).collect();
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

/// The short name, with its size, that stands for a model on the Hub, if one does.
pub fn of(model: &str) -> Option<String> {
    let row = rows().find(|row| row.model == model)?;
    let tag = row.tags.split(',').find(|tag| *tag != LATEST)?;
    Some(format!("{}:{tag}", row.name))
}

/// The model, with another quantisation where one is named; `None` if it has none, or this is none.
fn with_quantisation(model: &str, quantisation: Option<&str>) -> Option<String> {
    let Some(quantisation) = quantisation else { return Some(model.to_owned()) };
    let (repository, _) = model.split_once(':')?;
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
        Row { name: next(), tags: next(), model: next(), instead: next() }
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
            assert!(names_one != (row.model == "-" && !row.instead.is_empty()), "{} {}", row.name, row.model);
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
        assert!(refused("smollm2:135m-q8_0").contains("ORG/NAME:QUANT"));
        assert!(refused("gemma3:4b").contains("qwen3:4b"), "{}", refused("gemma3:4b"));
    }
}
