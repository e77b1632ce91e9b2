//! Names of models, as users write them.

use thiserror::Error;

/// The longest name of an owner or a model in bytes, which is the Hub's own limit.
const PART_MAX: usize = 96;
/// The longest revision or tag, in bytes.
const REVISION_MAX: usize = 255;

/// Prefixes of names that are ignored.
const HOSTS: [&str; 8] = [
    "https://huggingface.co/",
    "https://hf.co/",
    "https://www.huggingface.co/",
    "http://huggingface.co/",
    "huggingface.co/",
    "hf.co/",
    "hf://",
    "hf:",
];

/// The words between a model's name and a revision in addresses of the Hub's pages and files.
const PAGES: [&str; 4] = ["resolve", "blob", "raw", "tree"];

/// File extensions. A text with one of them names a file, not a model.
const FILE_ENDINGS: [&str; 5] = [".gguf", ".safetensors", ".interbed", ".json", ".bin"];

/// The name of a model on the Hub: `org/name` with an optional revision and an optional tag, as in `org/name@REV:TAG`.
/// The tag selects a quantization or a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// The owner, which is a user or an organization.
    pub owner: String,
    /// The model's name without its owner.
    pub model: String,
    /// A branch, a tag or a commit; `None` means `main`.
    pub revision: Option<String>,
    /// Quantization tag such as `Q4_K_M`, or the name of a GGUF file.
    pub tag: Option<String>,
}

/// The reason why a revision cannot be added to a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameProblem {
    /// The revision is not a valid name of a branch, tag or commit.
    #[error("{revision:?} is no revision: give a branch, a tag or a commit")]
    Revision {
        /// The given revision.
        revision: String,
    },
    /// The name contains one revision, and a different one was given separately.
    #[error("the name says @{named}, but --revision {given} was given: leave out one of them")]
    TwoRevisions {
        /// The revision that is part of the name.
        named: String,
        /// The revision that was given separately.
        given: String,
    },
}

impl HubName {
    /// Parses `org/name`, optionally followed by `:TAG`, `@REV` or both. Ignores a prefix such as `hf.co/` or
    /// `https://huggingface.co/`. Also parses addresses of GGUF files, such as `org/name/FILE.gguf` or
    /// `https://huggingface.co/org/name/resolve/REV/FILE.gguf`. Returns `None` for any other text. Does not check
    /// whether a local file has this name.
    pub fn read(text: &str) -> Option<Self> {
        let host = HOSTS.iter().find_map(|host| text.strip_prefix(host));
        let is_on_host = host.is_some();
        let (owner, rest) = host.unwrap_or(text).split_once('/')?;
        // Revisions and tags may have slashes, too.
        let has_address = |(model, address): &(&str, &str)| !address.is_empty() && !model.contains([':', '@']);
        match rest.split_once('/').filter(has_address) {
            Some((model, address)) => Self::of_address(owner, model, address, is_on_host),
            None => Self::of_name(owner, rest, is_on_host),
        }
    }

    /// Parses the text that follows a model's name in the address of a file or a page of the model.
    fn of_address(owner: &str, model: &str, address: &str, is_on_host: bool) -> Option<Self> {
        let address = address.split(['?', '#']).next()?.trim_end_matches('/');
        let (page, rest) = address.split_once('/').unwrap_or((address, ""));
        let (revision, file) = match PAGES.contains(&page) && is_on_host {
            true => rest.split_once('/').map_or((Some(rest), None), |(revision, file)| (Some(revision), Some(file))),
            false => (None, Some(address)),
        };
        // A name without a revision means `main`, so `main` need not be kept.
        let revision = revision.filter(|revision| *revision != "main").map(str::to_owned);
        let is_gguf = file.is_none_or(|file| file.to_ascii_lowercase().ends_with(".gguf") && is_tag(file));
        let is_name = is_part(owner) && is_part(model) && revision.as_deref().is_none_or(is_revision);
        let tag = file.map(str::to_owned);
        (is_gguf && is_name).then(|| Self { owner: owner.to_owned(), model: model.to_owned(), revision, tag })
    }

    /// Parses a model's name without its owner, with an optional revision and tag behind it.
    fn of_name(owner: &str, rest: &str, is_on_host: bool) -> Option<Self> {
        let end = rest.find([':', '@']).unwrap_or(rest.len());
        let (model, mut more) = rest.split_at(end);
        // A name copied from a browser may end with a slash.
        let model = if is_on_host { model.trim_end_matches('/') } else { model };
        let (mut revision, mut tag) = (None, None);
        while let Some(sign) = more.chars().next() {
            let part = &more[1..];
            let end = part.find([':', '@']).unwrap_or(part.len());
            let place = if sign == '@' { &mut revision } else { &mut tag };
            if end == 0 || place.replace(part[..end].to_owned()).is_some() {
                return None;
            }
            more = &part[end..];
        }
        let is_path = !is_on_host && tag.is_none() && FILE_ENDINGS.iter().any(|ending| model.ends_with(ending));
        let is_name = is_part(owner) && is_part(model) && !is_path;
        let is_fine = tag.as_deref().is_none_or(is_tag) && revision.as_deref().is_none_or(is_revision);
        (is_name && is_fine).then(|| Self { owner: owner.to_owned(), model: model.to_owned(), revision, tag })
    }

    /// Sets the revision to `revision`, which was given separately from the name. If `revision` is `None`, the name
    /// stays unchanged.
    ///
    /// # Errors
    /// Fails if the revision is invalid, or if the name contains a different one.
    pub fn at(self, revision: Option<&str>) -> Result<Self, NameProblem> {
        let Some(given) = revision else { return Ok(self) };
        if !is_revision(given) {
            return Err(NameProblem::Revision { revision: given.to_owned() });
        }
        match self.revision {
            Some(named) if named != given => Err(NameProblem::TwoRevisions { named, given: given.to_owned() }),
            _ => Ok(Self { revision: Some(given.to_owned()), ..self }),
        }
    }

    /// Returns the name as `org/name`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.model)
    }

    /// Returns the revision; `main` if none was given.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

/// Returns whether a text is a commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_part(part: &str) -> bool {
    let is_in = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let ends_well = |c: Option<char>| c.is_some_and(|c| !matches!(c, '.' | '-'));
    // Two hyphens separate owner and model in the cache.
    part.len() <= PART_MAX
        && part.chars().all(is_in)
        && ends_well(part.chars().next())
        && ends_well(part.chars().last())
        && !part.contains("--")
        && !part.contains("..")
}

/// Returns whether a text can be a tag. A tag is searched for in file names. If the tag is a file name, it may include
/// folders.
fn is_tag(tag: &str) -> bool {
    tag.len() <= REVISION_MAX
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
        && tag.split('/').all(|part| !part.is_empty() && !part.chars().all(|c| c == '.'))
}

/// Returns whether a text can be a revision. A revision becomes a file name in the cache, in folders if it has slashes.
pub(crate) fn is_revision(revision: &str) -> bool {
    revision.len() <= REVISION_MAX
        && revision.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+'))
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
        && !revision.contains("..")
}
