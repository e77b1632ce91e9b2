//! Parses the address of a store, as users write it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::Url;
use thiserror::Error;
use tokio::runtime::Builder;

use crate::blob_store::BlobStore;
use crate::redis_store::{RedisAddress, RedisStore};
use crate::s3_store::S3Store;

/// The beginning of the names of all objects, unless the address gives another.
const ROOT: &str = "interbed/";

/// The longest time for which [`StoreAddress::check`] waits for an answer.
const CHECK: Duration = Duration::from_secs(3);

/// The address of a store that servers share. The `Display` and `Debug` output of an address omits any user name and
/// password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreAddress {
    kind: Kind,
    shown: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Redis(RedisAddress),
    S3 { bucket: String, root: String },
}

/// The reason why an address cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The text cannot be parsed as the address of a store.
    #[error("{reason}; write it as redis://HOST:6379, rediss://USER:PASSWORD@HOST:6380/1 or s3://BUCKET/PREFIX")]
    Malformed {
        /// A description of what is wrong.
        reason: String,
    },
    /// The store cannot be opened, for example because an environment variable with its credentials is not set. The
    /// string says what is wrong.
    #[error("{0}")]
    Refused(String),
}

fn malformed(reason: impl Into<String>) -> AddressError {
    AddressError::Malformed { reason: reason.into() }
}

impl FromStr for StoreAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // The text is not repeated: it may hold a password.
        let url = Url::parse(text).map_err(|error| malformed(format!("this is no address of a store: {error}")))?;
        if !["redis", "rediss", "valkey", "valkeys", "s3"].contains(&url.scheme()) {
            return Err(malformed(
                "the address of a store begins with redis://, rediss://, valkey://, valkeys:// or s3://",
            ));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| malformed("the address names no host or bucket"))?;
        if url.fragment().is_some() {
            return Err(malformed("nothing may follow a # in the address of a store"));
        }
        let plain = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(String::from).map_err(|_| malformed("what its % stand for is no UTF-8"))
        };
        let path = plain(url.path().trim_matches('/'))?;
        match url.scheme() {
            scheme @ ("redis" | "rediss" | "valkey" | "valkeys") => {
                let is_secure = scheme.ends_with('s') && scheme != "redis";
                let (scheme, port) = (if is_secure { "rediss" } else { "redis" }, url.port().unwrap_or(6379));
                let (user, password) = (plain(url.username())?, plain(url.password().unwrap_or_default())?);
                let mut root = ROOT.to_owned();
                for (name, value) in url.query_pairs() {
                    match &*name {
                        "prefix" => root = format!("{}/", value.trim_matches('/')),
                        name => return Err(malformed(format!("{name:?} is no setting of a Redis store (prefix is)"))),
                    }
                }
                let database = match path.as_str() {
                    "" => 0,
                    path => path.parse().ok().filter(|&number: &i64| number >= 0).ok_or_else(|| {
                        malformed("what follows the host of a Redis server is the number of its database")
                    })?,
                };
                let shown = format!("{scheme}://{host}:{port}/{database}");
                let host = host.trim_matches(['[', ']']).to_owned();
                let address = RedisAddress { host, port, is_secure, user, password, database, root };
                Ok(Self { kind: Kind::Redis(address), shown })
            }
            _ => {
                if !url.username().is_empty() || url.password().is_some() || url.port().is_some() {
                    let hint = "give credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and another server \
                                than Amazon's in AWS_ENDPOINT_URL";
                    return Err(malformed(format!("the address of a bucket is its name alone: {hint}")));
                }
                if url.query().is_some() {
                    return Err(malformed("a bucket has no settings in its address"));
                }
                let root = if path.is_empty() { ROOT.to_owned() } else { format!("{path}/") };
                Ok(Self { kind: Kind::S3 { bucket: host.to_owned(), root }, shown: format!("s3://{host}/{path}") })
            }
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreAddress({})", self.shown)
    }
}

impl StoreAddress {
    /// Opens the store at this address, without contacting it yet. If `ttl` is given, a Redis or Valkey server deletes
    /// each object when this time has passed since the object was written. An S3 store ignores `ttl`.
    ///
    /// # Errors
    /// Fails with [`AddressError::Refused`] if the store cannot be opened, for example because an environment variable
    /// with its credentials is not set.
    pub fn open(&self, ttl: Option<Duration>) -> Result<Arc<dyn BlobStore>, AddressError> {
        // Both client libraries use the process's TLS provider, which another part of the process may have installed
        // already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(match &self.kind {
            Kind::Redis(address) => Arc::new(RedisStore::open(address, ttl).map_err(AddressError::Refused)?),
            Kind::S3 { bucket, root } => Arc::new(S3Store::open(bucket, root).map_err(AddressError::Refused)?),
        })
    }

    /// Checks whether the store at this address can be used. The call asks the store for an object, which need not
    /// exist, and blocks until the answer comes, for at most a few seconds.
    ///
    /// # Errors
    /// Fails if the store cannot be used. The string says why, and what to do next.
    pub fn check(&self) -> Result<(), String> {
        let store = self.open(None).map_err(|error| error.to_string())?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let answer = runtime.block_on(async { tokio::time::timeout(CHECK, store.check()).await });
        answer
            .unwrap_or_else(|_| Err(format!("it has not answered within {} s; see that it is there", CHECK.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_passwords() {
        let redis = |text: &str| match text.parse::<StoreAddress>() {
            Ok(StoreAddress { kind: Kind::Redis(address), .. }) => address,
            other => panic!("{text}: {other:?}"),
        };
        let read =
            |(host, port, is_secure): (&str, u16, bool), (user, password): (&str, &str), database, root: &str| {
                let [host, user, password, root] = [host, user, password, root].map(str::to_owned);
                RedisAddress { host, port, is_secure, user, password, database, root }
            };
        assert_eq!(redis("redis://cache"), read(("cache", 6379, false), ("", ""), 0, "interbed/"));
        assert_eq!(redis("valkey://[::1]:7000/3"), read(("::1", 7000, false), ("", ""), 3, "interbed/"));
        let full = "rediss://me:p%40ss@cache:6380/2?prefix=a/b";
        assert_eq!(redis(full), read(("cache", 6380, true), ("me", "p@ss"), 2, "a/b/"));
        let address: StoreAddress = full.parse().expect("it was read before");
        assert_eq!(address.to_string(), "rediss://cache:6380/2");
        assert!(!format!("{address:?}").contains("ss@"));
        let bucket: StoreAddress = "s3://kv/some/where".parse().expect("a bucket");
        assert!(bucket.kind == Kind::S3 { bucket: "kv".into(), root: "some/where/".into() });
        assert_eq!(bucket.to_string(), "s3://kv/some/where");
    }

    /// Returns why a store cannot be used whose server sends `answer` to everyone, and how long it took to find out.
    fn checked(answer: &'static str) -> (String, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut asked = [0; 512];
                while stream.read(&mut asked).is_ok_and(|read| read > 0) && stream.write_all(answer.as_bytes()).is_ok()
                {
                }
            }
        });
        let address: StoreAddress = format!("redis://me:hush@127.0.0.1:{port}").parse().expect("an address");
        let began = Instant::now();
        (address.check().expect_err("no store"), began.elapsed())
    }

    #[test]
    fn a_store_that_refuses_is_told_at_once_and_what_to_do() {
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let address: StoreAddress = format!("redis://{closed}").parse().expect("an address");
        let began = Instant::now();
        let refused = (address.check().expect_err("nobody listens"), began.elapsed());
        for ((said, took), advice) in [
            (refused, "start the store"),
            (checked("-WRONGPASS invalid username-password pair or user is disabled.\r\n"), "USER:PASSWORD@"),
            (checked("HTTP/1.1 400 Bad Request\r\n\r\n"), "Redis or Valkey listens"),
        ] {
            assert!(said.contains(advice) && !said.contains("hush"), "{said}");
            assert!(took < Duration::from_secs(2), "{said} after {took:?}");
        }
        // A server that is silent is told after some seconds.
        let (said, took) = checked("");
        assert!(said.contains("has not answered") && took < 2 * CHECK, "{said} after {took:?}");
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for bad in [
            "",
            "cache:6379",
            "redis://",
            "redis:///1",
            "redis://:secret@cache/x",
            "redis://:secret@cache/-1",
            "redis://:secret@cache?ttl=1",
            "http://:secret@cache",
            "s3://",
            "s3://key:secret@bucket",
            "s3://bucket:9000",
            "s3://bucket?endpoint=secret",
            "redis://cache#secret",
        ] {
            let error = bad.parse::<StoreAddress>().expect_err(bad).to_string();
            assert!(!error.contains("secret") && error.contains("redis://HOST:6379"), "{bad}: {error}");
        }
    }
}
