//! Settings from environment variables: the Hub's address, the token, and the folder of the cache.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::web::shown;

/// The Hub's address, unless HF_ENDPOINT names another.
const ENDPOINT: &str = "https://huggingface.co";
/// Longest token that is read from a file, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Settings of a [`Hub`](crate::Hub): its address, the access token and the cache.
#[derive(Clone)]
pub struct HubSettings {
    /// The Hub's address, without a trailing slash.
    pub endpoint: String,
    /// Access token. It is sent only to the host of `endpoint`.
    pub token: Option<String>,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Whether to use only the cache and send no requests.
    pub offline: bool,
}

/// The reason why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingsProblem {
    /// No environment variable determines the folder of the cache.
    #[error("there is no folder for models: set HF_HOME, or HOME")]
    NoCache,
    /// HF_ENDPOINT is not an HTTP or HTTPS address.
    #[error("HF_ENDPOINT is {endpoint:?}, which is no address; expected one such as {ENDPOINT}")]
    Endpoint {
        /// The value of HF_ENDPOINT.
        endpoint: String,
    },
    /// The token contains spaces, control characters or non-ASCII characters.
    #[error("the token from {from} has characters that no token has")]
    Token {
        /// The variable or file that the token is from.
        from: String,
    },
}

impl std::fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { endpoint, token, cache, offline } = self;
        let token = token.as_ref().map(|_| "secret");
        let endpoint = reqwest::Url::parse(endpoint).map_or_else(|_| endpoint.clone(), |url| shown(&url));
        f.debug_struct("HubSettings")
            .field("endpoint", &endpoint)
            .field("token", &token)
            .field("cache", cache)
            .field("offline", offline)
            .finish()
    }
}

impl HubSettings {
    /// Reads the settings from this process's environment. The variables are those of Python's `huggingface_hub`.
    ///
    /// # Errors
    /// Fails if the address or the token is invalid, or if no variable determines the folder of the cache.
    pub fn from_env() -> Result<Self, SettingsProblem> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads the settings from environment variables. `get` returns the value of the variable with the given name.
    /// Blank values count as unset.
    ///
    /// # Errors
    /// Fails for the reasons for which [`from_env`](Self::from_env) fails.
    pub fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsProblem> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        let is_address = reqwest::Url::parse(&endpoint)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none());
        if !is_address {
            return Err(SettingsProblem::Endpoint { endpoint });
        }
        let path = |name: &str| get(name).map(|value| under_home(&value, get("HOME")));
        let home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(path("HOME")?.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or(SettingsProblem::NoCache)?;
        let is_set = |value: String| matches!(value.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true");
        let token_file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let token = match (get("HF_TOKEN"), token_file) {
            (Some(token), _) => Some((token, "HF_TOKEN".to_owned())),
            (None, Some(file)) => read_token(&file).map(|token| (token, file.display().to_string())),
            (None, None) => None,
        };
        let token = match token.map(|(token, from)| (token.trim().to_owned(), from)) {
            Some((token, from)) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(SettingsProblem::Token { from });
            }
            token => token.map(|(token, _)| token).filter(|token| !token.is_empty()),
        };
        let offline = get("HF_HUB_OFFLINE").is_some_and(is_set);
        Ok(Self { endpoint, token, cache, offline })
    }
}

/// Replaces a leading `~/` by the folder `home`, because shells do not expand it in quoted values of variables.
fn under_home(path: &str, home: Option<String>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// Returns the token in a file, if there is one.
fn read_token(path: &Path) -> Option<String> {
    // Opening a pipe to which no process writes would block.
    let is_file = std::fs::metadata(path).map(|found| found.is_file());
    let read = is_file.and_then(|is_file| match is_file {
        true => File::open(path),
        false => Err(std::io::Error::other("it is no file")),
    });
    let mut text = String::new();
    match read.and_then(|file| file.take(TOKEN_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => Some(text),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => {
            tracing::warn!("the token in {} cannot be read, and none is sent: {error}", path.display());
            None
        }
    }
}
