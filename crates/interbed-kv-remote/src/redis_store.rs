//! Uses Redis or Valkey as a store.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo};
use redis::{RedisConnectionInfo, RedisError};
use tokio::sync::Semaphore;

use crate::blob_store::{ANSWER, BlobStore, CHECKED, CONNECT, StoreFuture, reason};

/// The most connections at a time.
const CONNECTIONS: usize = 8;

/// The address of a server, and the user as whom it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_secure: bool,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) database: i64,
    /// The beginning of the keys of all objects.
    pub(crate) root: String,
}

/// A server of Redis or Valkey. A connection is used for one command at a time, and is used again only if that command
/// was answered.
pub(crate) struct RedisStore {
    client: Client,
    config: AsyncConnectionConfig,
    root: String,
    /// The seconds after which the server forgets an object.
    ttl: Option<u64>,
    idle: Mutex<Vec<MultiplexedConnection>>,
    turns: Semaphore,
}

impl RedisStore {
    /// Creates the store. Nothing is sent yet.
    pub(crate) fn open(address: &RedisAddress, ttl: Option<Duration>) -> Result<Self, String> {
        let RedisAddress { host, port, is_secure, user, password, database, root } = address.clone();
        let place = match is_secure {
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host, port),
        };
        let mut asker = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if !user.is_empty() {
            asker = asker.set_username(user);
        }
        if !password.is_empty() {
            asker = asker.set_password(password);
        }
        let info = place.into_connection_info().map(|info| info.set_redis_settings(asker));
        let client = info.and_then(Client::open).map_err(|error| reason(&error))?;
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(Some(CONNECT)).set_response_timeout(Some(ANSWER));
        let (idle, turns) = (Mutex::default(), Semaphore::new(CONNECTIONS));
        Ok(Self { client, config, root, ttl: ttl.map(|ttl| ttl.as_secs().max(1)), idle, turns })
    }

    /// Returns the server's answer to one command. Dropping the future closes the connection.
    async fn ask<T: FromRedisValue>(&self, command: Cmd) -> Result<T, String> {
        let _turn = self.turns.acquire().await.map_err(|closed| closed.to_string())?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let is_used = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut answer = command.query_async(&mut connection).await;
        // The server may have closed the connection since it was last used, or may have been restarted.
        if is_used && answer.as_ref().is_err_and(RedisError::is_connection_dropped) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            connection = self.connect().await?;
            answer = command.query_async(&mut connection).await;
        }
        // A command that is refused leaves the connection in order. If a command was not answered, its answer may still
        // come, so the connection is not used again.
        if answer.as_ref().err().is_none_or(|error| error.code().is_some()) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        answer.map_err(|error| reason(&error))
    }

    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let connection = self.client.get_multiplexed_async_connection_with_config(&self.config).await;
        connection.map_err(|error| reason(&error))
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }
}

impl BlobStore for RedisStore {
    fn get<'a>(&'a self, name: &'a str, most: usize) -> StoreFuture<'a, Option<Vec<u8>>> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut command = redis::cmd("GETRANGE");
        command.arg(self.key(name)).arg(-most).arg(-1);
        Box::pin(async move {
            // The server returns an empty text for a missing key. Objects are never empty.
            let object: Vec<u8> = self.ask(command).await?;
            Ok(Some(object).filter(|object| !object.is_empty()))
        })
    }

    fn put<'a>(&'a self, name: &'a str, object: Vec<u8>) -> StoreFuture<'a, ()> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(name)).arg(object);
        self.ttl.into_iter().for_each(|ttl| {
            command.arg("EX").arg(ttl);
        });
        Box::pin(self.ask(command))
    }

    fn check(&self) -> StoreFuture<'_, ()> {
        let mut command = redis::cmd("GETRANGE");
        command.arg(self.key(CHECKED)).arg(-1).arg(-1);
        Box::pin(async move {
            let connection = self.client.get_multiplexed_async_connection_with_config(&self.config).await;
            let answer = match connection {
                Ok(mut connection) => command.query_async::<Vec<u8>>(&mut connection).await,
                Err(error) => Err(error),
            };
            answer.map(drop).map_err(|error| format!("{}; {}", reason(&error), advice(&error)))
        })
    }
}

/// Returns what to do about an error.
fn advice(error: &RedisError) -> &'static str {
    let is_about_the_user = matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    if is_about_the_user || error.kind() == ErrorKind::AuthenticationFailed {
        "give the user and the password in the address, as in redis://USER:PASSWORD@HOST:PORT"
    } else if error.is_connection_refusal() {
        "start the store, or correct its host and port"
    } else {
        "see that Redis or Valkey listens at that host and port, and whether it expects TLS (rediss://)"
    }
}
