//! The interface of a store of objects.

use std::pin::Pin;
use std::time::Duration;

/// The longest time that a connection to a store may take.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// The longest time that one answer of a store may take, however long others would wait for it.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// The name of an object that is asked for to find out whether a store answers.
pub(crate) const CHECKED: &str = "check";

/// A future that resolves to a store's answer. If the future is dropped before the answer comes, the store may or may
/// not have carried out the request.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A store of objects. An object is a byte string with a name. Other processes may write to the store as well.
pub trait BlobStore: Send + Sync {
    /// Returns the object of this name, if there is one. Returns at most its last `most` bytes, however long others
    /// have made it.
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Stores `object` under this name, and replaces what was there.
    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()>;

    /// Asks the store for an object that need not exist, to find out whether the store can be used. The error says why
    /// it cannot, and what to do next.
    fn check(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.get(CHECKED, 1).await.map(drop) })
    }
}

/// Describes an error in one line: what was tried, then the innermost cause. If the error may hold credentials, the
/// caller must remove them.
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
