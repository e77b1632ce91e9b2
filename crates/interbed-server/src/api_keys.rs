//! Holds the API keys that a server accepts. The keys may be replaced while the server runs.

use std::collections::HashMap;
use std::sync::Arc;

use blake3::Hash;
use thiserror::Error;
use tokio::sync::watch;

use crate::tenant::{Tenant, digest};

/// The longest key in bytes, as the size of request headers is limited.
const KEY_BYTES_MAX: usize = 512;
/// The longest name of a key in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The maximum number of keys, because each request is compared with all of them.
const KEYS_MAX: usize = 10_000;

/// An API key, with the name of its owner for logs.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    key: String,
    name: Option<String>,
}

/// The reasons why a list of keys cannot be used. The message never contains a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadKeys {
    /// The list has no key. Without keys, the server would serve everybody.
    #[error("it has no key, and without keys everybody would be served")]
    Empty,
    /// The list has more keys than can be compared in reasonable time.
    #[error("it has {count} keys, but at most {KEYS_MAX} are allowed")]
    TooMany {
        /// The number of keys.
        count: usize,
    },
    /// A line is not a valid key.
    #[error("line {line} {problem}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// A description of what is wrong with the line.
        problem: String,
    },
}

impl ApiKey {
    /// Returns a key without a name.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), name: None }
    }

    /// Parses a file with one key per line. A name may follow the key. Empty lines are ignored, and so is text after
    /// `#` at the beginning of a line or after a space.
    ///
    /// # Errors
    /// Fails if a line is not a valid key, if a key occurs twice or is also in `given`, or if there are no keys or too
    /// many.
    pub fn from_file(text: &str, given: &[Self]) -> Result<Vec<Self>, BadKeys> {
        let mut lines: HashMap<&str, usize> = given.iter().map(|given| (given.key.as_str(), 0)).collect();
        let mut keys = Vec::new();
        for (line, content) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let wrong = |problem: String| Err(BadKeys::Line { line, problem });
            let mut words = content.split_whitespace().take_while(|word| !word.starts_with('#'));
            let Some(key) = words.next() else { continue };
            let name = words.next();
            if words.next().is_some() {
                return wrong("has more than a key and a name; a key has no spaces".into());
            }
            if let Err(problem) = check(key) {
                return wrong(problem);
            }
            if name.is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
                return wrong(format!("has a name of more than {NAME_BYTES_MAX} bytes, or with control characters"));
            }
            match lines.insert(key, line) {
                None => keys.push(Self { key: key.to_owned(), name: name.map(str::to_owned) }),
                Some(0) => return wrong("repeats a key that was given otherwise; leave it out of one place".into()),
                Some(before) => return wrong(format!("repeats the key of line {before}; leave one of them out")),
            }
        }
        match keys.len() {
            0 => Err(BadKeys::Empty),
            count if count > KEYS_MAX => Err(BadKeys::TooMany { count }),
            _ => Ok(keys),
        }
    }
}

fn check(key: &str) -> Result<(), String> {
    if key.len() > KEY_BYTES_MAX {
        return Err(format!("has a key of {} bytes, but at most {KEY_BYTES_MAX} are allowed", key.len()));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has a key with characters that a header cannot carry; use letters, digits and signs".into());
    }
    Ok(())
}

/// The API keys that the server accepts. A client must send one of them. If there are no keys, the server accepts all
/// clients. Clones share the keys.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<watch::Sender<Arc<[Known]>>>);

struct Known {
    tenant: Tenant,
    /// The digest with which sent keys are compared. The key itself is not kept.
    digest: Hash,
    name: Option<Arc<str>>,
}

/// The owner of a request's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tenant: Tenant,
    pub(crate) name: Option<Arc<str>>,
}

impl ApiKeys {
    /// Creates a set of API keys.
    pub fn new(keys: &[ApiKey]) -> Self {
        let new = Self::default();
        new.replace(keys);
        new
    }

    /// Replaces all keys. The server ends the streams of clients whose keys were removed. Other requests in flight are
    /// not affected.
    pub fn replace(&self, keys: &[ApiKey]) {
        let known = |ApiKey { key, name }: &ApiKey| {
            let digest = digest(key);
            Known { tenant: Tenant::of_digest(&digest), digest, name: name.as_deref().map(Arc::from) }
        };
        let mut known: Vec<_> = keys.iter().map(known).collect();
        // Sorted for `name_of`, which searches by tenant.
        known.sort_by_key(|known| known.tenant);
        self.0.send_replace(known.into());
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.known().len()
    }

    /// Returns whether there are no keys, so that everybody is served.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the owner of a key that a client has sent, or `None` for an unknown key.
    pub(crate) fn owner(&self, sent: &str) -> Option<Owner> {
        let sent = digest(sent.trim());
        // All keys are compared, and digests in constant time, so that the time reveals nothing about how close a key
        // was.
        let mut found = None;
        for known in self.known().iter() {
            if known.digest == sent {
                found = Some(known.name.clone());
            }
        }
        found.map(|name| Owner { tenant: Tenant::of_digest(&sent), name })
    }

    /// Returns the name of this tenant's key, if it has one.
    pub(crate) fn name_of(&self, tenant: Tenant) -> Option<Arc<str>> {
        let known = self.known();
        let at = known.binary_search_by_key(&tenant, |known| known.tenant).ok()?;
        known[at].name.clone()
    }

    /// Completes when the key of `tenant` has been removed.
    pub(crate) async fn revoked(&self, tenant: Tenant) {
        let is_gone =
            |known: &Arc<[Known]>| tenant != Tenant::ANYBODY && known.iter().all(|known| known.tenant != tenant);
        // An error would mean that the sender is gone, but `self` holds it.
        let _ = self.0.subscribe().wait_for(is_gone).await;
    }

    fn known(&self) -> Arc<[Known]> {
        self.0.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
        let keys = ApiKey::from_file(text, &[ApiKey::new("given")]).map_err(|bad| bad.to_string())?;
        Ok(keys.into_iter().map(|ApiKey { key, name }| (key, name)).collect())
    }

    #[test]
    fn a_file_has_keys_names_and_comments() {
        let text = "\u{feff}# ours\n\nsk-one\n  sk-two  alice # until May\r\n#sk-three\nsk#four bob\n";
        let named = |name: &str| Some(name.to_owned());
        let expect = [("sk-one", None), ("sk-two", named("alice")), ("sk#four", named("bob"))];
        assert_eq!(read(text), Ok(expect.map(|(key, name)| (key.to_owned(), name)).to_vec()));
    }

    #[test]
    fn what_cannot_be_used_is_told_with_its_line_and_without_the_key() {
        let long = "secret".repeat(100);
        for (text, parts) in [
            ("", &["no key"][..]),
            ("# only this\n\n", &["no key"]),
            ("secret\nother\nsecret x", &["line 3", "line 1"]),
            ("\ngiven", &["line 2", "otherwise"]),
            ("secret a b", &["line 1", "a key and a name"]),
            (&long, &["line 1", "600 bytes", "512"]),
            ("secr\u{e9}t", &["line 1", "header"]),
            (&format!("secret {}", "n".repeat(65)), &["line 1", "64"]),
            (&(0..10_001).map(|n| format!("secret{n}\n")).collect::<String>(), &["10001", "10000"]),
        ] {
            let told = read(text).expect_err(text);
            assert!(parts.iter().all(|part| told.contains(part)) && !told.contains("secr"), "{told}");
        }
    }

    #[test]
    fn clones_learn_of_new_keys() {
        let keys = ApiKeys::new(&ApiKey::from_file("a alice\nb", &[]).unwrap());
        let clone = keys.clone();
        let owner = |key| clone.owner(key);
        let alice = owner(" a ").expect("it is known");
        assert_eq!(alice.name.as_deref(), Some("alice"));
        assert!(owner("b").is_some_and(|b| b.name.is_none() && b.tenant != alice.tenant));
        assert_eq!(clone.name_of(alice.tenant).as_deref(), Some("alice"));
        assert_eq!(
            [owner("b").expect("it is known").tenant, Tenant::ANYBODY].map(|tenant| clone.name_of(tenant)),
            [None, None]
        );
        for wrong in ["", "A", "aa", "c"] {
            assert_eq!(owner(wrong), None, "{wrong}");
        }
        keys.replace(&[ApiKey::new("c")]);
        assert_eq!((owner("a"), owner("c").is_some(), clone.len()), (None, true, 1));
    }
}
