//! The error for a MODEL that is neither a path nor a name: mistyped names, and prompts in the place of MODEL.

use std::path::Path;

use interbed_hub::HubCache;

use crate::failure::Advised;
use crate::short_names;

/// Extensions of model files. A text with one of them is the path of a missing file, not a mistyped name.
const FILE_ENDINGS: [&str; 5] = [".gguf", ".safetensors", ".interbed", ".json", ".bin"];

/// Returns the error for a model argument `text` that is neither a short name nor an existing path. Returns `None` if
/// `text` looks like a path or a name on the Hub.
pub fn refusal(text: &str, cache: &HubCache) -> Option<anyhow::Error> {
    if text.contains(char::is_whitespace) && !text.contains('/') {
        return Some(Advised::input(
            format!("{text:?} is no model, but reads like a prompt"),
            format!("a prompt goes behind the model, or behind --prompt: interbed run MODEL {text:?}"),
        ));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        let next = match scheme {
            "http" | "https" | "hf" => {
                "of addresses, those of models and GGUF files on huggingface.co are read; fetch other files, such as \
                 by `curl -LO`, and give their path"
            }
            _ => "copy the model to a disk here, such as by `aws s3 cp` or `gcloud storage cp`, and give its path",
        };
        return Some(Advised::input(format!("{text} is no model, and no address that is read"), next));
    }
    if !is_plain(text) {
        return None;
    }
    let message = format!("{text} is no short name of a model, and no path");
    let whole = in_cache(text, cache);
    if !whole.is_empty() {
        return Some(Advised::input(message, format!("give its whole name: the cache has {}", whole.join(" and "))));
    }
    let meant = match short_names::near(text).as_slice() {
        [] => String::new(),
        [names @ .., last] if !names.is_empty() => format!("did you mean {} or {last}? ", names.join(", ")),
        [name, ..] => format!("did you mean {name}? "),
    };
    Some(Advised::input(
        message,
        format!(
            "{meant}any model on huggingface.co is ORG/NAME, or ORG/NAME:QUANT for one of several GGUF files; a prompt \
             goes behind MODEL"
        ),
    ))
}

/// Returns the models in the cache whose names without their owners equal `text`.
fn in_cache(text: &str, cache: &HubCache) -> Vec<String> {
    let mut names: Vec<String> = cache.list().unwrap_or_default().into_iter().map(|model| model.name).collect();
    names.retain(|name| name.rsplit('/').next().is_some_and(|last| last.eq_ignore_ascii_case(text)));
    names.dedup();
    names
}

/// Returns whether `text` looks like a word, or a word with a tag, and not like a path.
fn is_plain(text: &str) -> bool {
    let is_word = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-'))
    };
    let (name, tag) = text.split_once(':').unwrap_or((text, "latest"));
    let is_file =
        FILE_ENDINGS.iter().any(|ending| text.to_ascii_lowercase().ends_with(ending)) || Path::new(text).exists();
    is_word(name) && is_word(tag) && !is_file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_no_paths_and_prompts_are_told_from_both() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = HubCache::new(folder.path().to_owned());
        let told = |text: &str| refusal(text, &cache).map(|error| crate::failure::message(&error).expect("it is said"));
        for text in ["nosuchmodel", "qwen3-30b-a3b", "somebody:135m"] {
            let told = told(text).expect(text);
            assert!(told.contains("no short name") && told.contains("ORG/NAME") && !told.contains("file or"), "{told}");
        }
        assert!(
            told("What is a vaccine?").expect("it is refused").contains("interbed run MODEL \"What is a vaccine?\"")
        );
        for address in ["s3://bucket/model", "gs://bucket/model.gguf"] {
            assert!(told(address).expect(address).contains("give its path"), "{address}");
        }
        let other = "https://example.org/model.gguf";
        assert!(told(other).expect(other).contains("huggingface.co"), "{other}");
        for path in ["./name", "../name", "/a/b", "org/name", "model.gguf", "C:/model", "a b/c", ".", ""] {
            assert_eq!(told(path), None, "{path}");
        }
    }
}
