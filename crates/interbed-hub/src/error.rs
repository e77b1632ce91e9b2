//! Errors on the way from a model's name to its files.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::choice::ChoiceProblem;

/// The verb in errors of locks.
pub(crate) const LOCK: &str = "lock";

/// A [`HubProblem`] with the model that it concerns.
#[derive(Debug, Error)]
#[error("{model}: {problem}")]
pub struct HubError {
    /// Name of the model as `org/name`.
    pub model: String,
    /// The problem that occurred.
    #[source]
    pub problem: HubProblem,
}

/// The reason why a model cannot be provided.
#[derive(Debug, Error)]
pub enum HubProblem {
    /// The server does not respond, or the connection fails repeatedly.
    #[error("{address} cannot be reached: {message}")]
    Unreachable {
        /// Address of the server, without secrets.
        address: String,
        /// Description of the failure.
        message: String,
    },
    /// The system has no root certificates, so no TLS server can be verified.
    #[error("https cannot be used here: {message}")]
    NoTls {
        /// Description of what the system lacks.
        message: String,
    },
    /// A server responded with an unexpected status.
    #[error("{address} answered {status}{}", note(.code))]
    Status {
        /// Address that was requested, without secrets.
        address: String,
        /// HTTP status.
        status: u16,
        /// The Hub's error code, or else the beginning of the response's text.
        code: String,
    },
    /// The Hub denies access to the model.
    #[error("the Hub refused it ({status}{}): {}", note(.code), if *.has_token {
        "this token may not read it" } else { "no token was sent" })]
    Denied {
        /// HTTP status, 401 or 403.
        status: u16,
        /// The Hub's error code.
        code: String,
        /// Whether a token was sent.
        has_token: bool,
        /// Address of the model's page, where its licence can be accepted.
        page: String,
    },
    /// The Hub does not have the model, revision or file.
    #[error("{endpoint} has no {what}")]
    NotFound {
        /// Address of the Hub.
        endpoint: String,
        /// What was requested, in words.
        what: String,
        /// Names that exist instead, if known.
        available: Vec<String>,
    },
    /// A server's response is malformed, contradicts itself, or is too long.
    #[error("the answer of {address} cannot be used: {message}")]
    BadAnswer {
        /// Address that was requested, without secrets.
        address: String,
        /// Description of what is wrong with it.
        message: String,
    },
    /// The repository lacks files that a model needs.
    #[error(transparent)]
    Choice(#[from] ChoiceProblem),
    /// The cache lacks the model or some of its files, and nothing may be downloaded.
    #[error("{missing} not in the cache ({})", cache.display())]
    NotCached {
        /// What is missing, with its verb.
        missing: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// A server requests a longer wait (`Retry-After`) than a download accepts.
    #[error("{address} answered {status} and asks to come again in {seconds} s")]
    Later {
        /// Address of the server.
        address: String,
        /// HTTP status.
        status: u16,
        /// Seconds that the server asks to wait.
        seconds: u64,
    },
    /// A cached file is damaged.
    #[error("{} is damaged: {message}", path.display())]
    DamagedInCache {
        /// Path of the file.
        path: PathBuf,
        /// Description of what is wrong with it.
        message: String,
    },
    /// The disk has too little free space.
    #[error("{needed} bytes are still to be fetched, but the disk of {} has {free} free", folder.display())]
    NoRoom {
        /// Bytes that are to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The folder of the cache.
        folder: PathBuf,
    },
    /// The downloaded bytes do not have the expected digest.
    #[error("{file} came damaged: its digest is {found}, expected {expected}. What came was removed")]
    Damaged {
        /// Path of the file in the repository.
        file: String,
        /// Digest in the listing.
        expected: String,
        /// Digest of the downloaded bytes.
        found: String,
    },
    /// A file or folder of the cache cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The failed operation, as a verb.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns whether a server with this status may succeed if the request is repeated later.
pub(crate) fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502..=504 | 520..=529)
}

fn note(code: &str) -> String {
    if code.is_empty() { String::new() } else { format!(" {code}") }
}

impl HubProblem {
    /// Converts a system error of the operation `action` on `path`.
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// Returns whether the network, TLS or the server caused the problem. If so, the same request may succeed later.
    pub fn is_of_the_network(&self) -> bool {
        use HubProblem::{BadAnswer, Damaged, Later, NoTls, Status, Unreachable};
        matches!(
            self,
            Unreachable { .. } | NoTls { .. } | Status { .. } | Later { .. } | BadAnswer { .. } | Damaged { .. }
        )
    }

    /// Returns whether the address that a redirect led to may have expired. In that case, the Hub has to be asked for a
    /// new one.
    pub(crate) fn may_have_moved(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => (400..500).contains(status) && !is_busy(*status),
            _ => false,
        }
    }

    /// Returns whether the Hub cannot be used at the moment, whatever is requested. In that case, the cache may be used
    /// instead.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.is_transient() || matches!(self, Self::NoTls { .. } | Self::Later { .. })
    }

    /// Returns whether the same request may succeed after a short wait.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => is_busy(*status),
            _ => false,
        }
    }

    /// Returns advice for the user on how to solve the problem.
    pub fn hint(&self) -> String {
        match self {
            Self::Unreachable { .. } => {
                "look at the network and at HF_ENDPOINT, then run it again: what came is kept. --offline uses what the \
                 cache has. If a file or folder here is meant, its path is wrong"
                    .into()
            }
            Self::NoTls { .. } => {
                "install ca-certificates or set SSL_CERT_FILE; --offline takes what the cache has".into()
            }
            Self::Status { status: 429, .. } | Self::Later { .. } => {
                "wait a while, then run it again: what came is kept. With HF_TOKEN the Hub allows more".into()
            }
            Self::Status { .. } | Self::BadAnswer { .. } => {
                "run it again: what came is kept. If it happens again, the server (HF_ENDPOINT) is at fault".into()
            }
            Self::Denied { has_token: false, page, .. } => {
                format!("accept its licence at {page}, then set HF_TOKEN to a token of yours that may read it")
            }
            Self::Denied { page, .. } => {
                format!(
                    "accept its licence at {page} as the owner of the token, or set HF_TOKEN to one that may read it"
                )
            }
            Self::NotFound { available, .. } if !available.is_empty() => format!("there are {}", available.join(", ")),
            Self::NotFound { endpoint, .. } => format!(
                "look for the name at {endpoint}; if it is private, set HF_TOKEN; if a folder here is meant, its path \
                 is wrong"
            ),
            Self::Choice(ChoiceProblem::NoSuchTag { available, .. }) if available.is_empty() => {
                "leave the tag out: it chooses among GGUF files".into()
            }
            Self::Choice(ChoiceProblem::NoSuchTag { .. }) => "take one of those, or leave the tag out".into(),
            Self::Choice(ChoiceProblem::NoWeights { .. }) => {
                "choose a model that has *.safetensors or *.gguf; many are there in both forms under other names".into()
            }
            Self::Choice(ChoiceProblem::Missing { .. }) => {
                "choose another revision or model; this one is not whole".into()
            }
            Self::Choice(ChoiceProblem::NoConfig) => {
                "if it is an adapter (LoRA), name the model that it was made for; else one that has its config.json"
                    .into()
            }
            Self::NotCached { .. } => {
                "fetch it once with network, without --offline and HF_HUB_OFFLINE; `interbed models` lists what is here"
                    .into()
            }
            Self::DamagedInCache { .. } => {
                "remove that file, then name the model again with network: it is fetched anew".into()
            }
            Self::NoRoom { .. } => {
                "free some room (`interbed models` says what models take), or set HF_HOME to a folder on a larger disk"
                    .into()
            }
            Self::Damaged { .. } => {
                "run it again: it is fetched anew. If it happens again, look at the network, the disk and HF_ENDPOINT"
                    .into()
            }
            Self::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some room, then run it again: what came is kept".into()
            }
            Self::File { action: LOCK, .. } => {
                "if its file system has no locks, as some network file systems, set HF_HOME to a folder on another one"
                    .into()
            }
            Self::File { .. } => "make the cache's folder writable, or set HF_HOME to one that is".into(),
        }
    }
}
