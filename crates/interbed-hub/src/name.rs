//! Names of models, as people write them.

use thiserror::Error;

/// Longest name of an owner or a model, in bytes; the Hub's own limit.
const PART_MAX: usize = 96;
/// Longest revision or tag, in bytes.
const REVISION_MAX: usize = 255;

/// What may stand before a name.
const HOSTS: [&str; 6] =
    ["https://huggingface.co/", "https://hf.co/", "https://www.huggingface.co/", "huggingface.co/", "hf.co/", "hf:"];

/// Endings of paths: whoever writes one means a file.
const FILE_ENDINGS: [&str; 5] = [".gguf", ".safetensors", ".interbed", ".json", ".bin"];

/// A model on the Hub: `org/name`, with a revision and the tag of a quantisation, or a file, where they are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// The owner.
    pub owner: String,
    /// The model.
    pub model: String,
    /// A branch, a tag or a commit; `None` is `main`.
    pub revision: Option<String>,
    /// Which of several quantisations: a tag such as `Q4_K_M`, or a file's name.
    pub tag: Option<String>,
}

/// Why a text that looks like a name is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameProblem {
    /// A revision that no server has.
    #[error("{revision:?} is no revision: give a branch, a tag or a commit")]
    Revision {
        /// What was given.
        revision: String,
    },
    /// Two revisions.
    #[error("the name says @{named}, but --revision {given} was given: leave out one of them")]
    TwoRevisions {
        /// The one in the name.
        named: String,
        /// The one beside it.
        given: String,
    },
}

impl HubName {
    /// Reads `org/name`, `org/name:TAG`, `org/name@REV` and these behind `hf.co/` or `huggingface.co/`; `None` if the
    /// text has no such form. Whether something of that name lies in the file system is for the caller to see, first.
    pub fn read(text: &str) -> Option<Self> {
        let host = HOSTS.iter().find_map(|host| text.strip_prefix(host));
        let is_on_host = host.is_some();
        let (owner, rest) = host.unwrap_or(text).split_once('/')?;
        let end = rest.find([':', '@']).unwrap_or(rest.len());
        let (model, mut more) = rest.split_at(end);
        // What is copied from a browser may end with a slash.
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

    /// The same name at `revision`, if one is given beside it.
    ///
    /// # Errors
    /// No revision, or two.
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

    /// `org/name`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.model)
    }

    /// The revision, which is `main` if none was given.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

/// Whether a text names a commit.
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

/// A tag is searched for in names of files; a file's own name may have folders.
fn is_tag(tag: &str) -> bool {
    tag.len() <= REVISION_MAX
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
        && tag.split('/').all(|part| !part.is_empty() && !part.chars().all(|c| c == '.'))
}

/// It becomes the name of a file in the cache, in folders if it has slashes.
pub(crate) fn is_revision(revision: &str) -> bool {
    revision.len() <= REVISION_MAX
        && revision.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+'))
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
        && !revision.contains("..")
}
