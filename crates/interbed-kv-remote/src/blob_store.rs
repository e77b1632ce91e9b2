//! The seam to a store.

use std::pin::Pin;
use std::time::Duration;

/// How long a connection to a store may take.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer of a store may take by itself, whoever waits for it.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// What a store will answer. It may be dropped before it has; the store then has done it, or not.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A store of objects by name, which others write to as well.
pub trait BlobStore: Send + Sync {
    /// Returns the object of this name, if there is one: no more than its last `most` bytes, however long others have
    /// made it.
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Keeps `object` under this name, in place of what was there.
    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()>;
}

/// What went wrong, in one line: the innermost cause, after what was tried. An error that may hold credentials is
/// freed of them by the caller.
pub(crate) fn reason(error: &dyn std::error::Error) -> String {
    let outer = error.to_string();
    let mut inner = None;
    let mut source = error.source();
    while let Some(cause) = source {
        inner = Some(cause.to_string());
        source = cause.source();
    }
    let line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    match inner.map(|inner| line(&inner)) {
        Some(inner) if !outer.contains(&inner) => format!("{}: {inner}", line(&outer)),
        _ => line(&outer),
    }
}
