//! KV blocks in a store that servers share: Redis, Valkey or S3. A prefix that one server has computed, another finds.
//!
//! [`RemoteTier`] is the driver, which the engine's thread calls between passes; threads of its own speak with a
//! [`BlobStore`]. One block is one object, and its name is the block's [`BlockKey`](interbed_kv::BlockKey), which
//! covers model, tenant and everything before it. What is read counts only if it is signed with the servers' common
//! secret and names the wanted tokens and what they continue; anything else is a miss.
//!
//! A store may be slow or gone: a sequence never waits longer than what it has got so far would have taken to compute,
//! and a short [`Patience`] beyond that.

mod address;
mod blob_store;
mod health;
mod object;
mod patience;
mod redis_store;
mod remote_tier;
mod s3_store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod workers;

pub use address::{AddressError, StoreAddress};
pub use blob_store::{BlobStore, StoreFuture};
pub use patience::Patience;
pub use remote_tier::{RemoteOptions, RemoteStats, RemoteTier, RemoteTierError};
