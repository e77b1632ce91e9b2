//! The seam to a store.

use std::pin::Pin;

use opendal_core::options::ReadOptions;
use opendal_core::{Buffer, BytesRange, ErrorKind, Operator};

/// What a store will answer. It may be dropped before it has; the store then has done it, or not.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A store of objects by name, which others write to as well.
pub trait BlobStore: Send + Sync {
    /// The object of this name, if there is one: no more than its last `most` bytes, however long others have made it.
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Buffer>>;

    /// Keeps `object` under this name, in place of what was there.
    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()>;
}

impl BlobStore for Operator {
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Buffer>> {
        Box::pin(async move {
            // One that begins at the front would have to be as long as it says.
            let range = BytesRange::suffix(most as u64);
            match self.read_options(name, ReadOptions { range, ..ReadOptions::default() }).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(reason(&error)),
            }
        })
    }

    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.write(name, object).await.map(|_| ()).map_err(|error| reason(&error)) })
    }
}

/// What went wrong, in one line and without what the library knows of the request: that may hold credentials.
fn reason(error: &opendal_core::Error) -> String {
    let mut reason = error.message().to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        reason = cause.to_string();
        source = cause.source();
    }
    let line = reason.lines().next().unwrap_or_default();
    format!("{}: {line}", error.kind())
}
