//! Keeps KV blocks in a store that servers share: Redis, Valkey or S3. One server can thus find a prefix that another
//! has computed.
//!
//! [`RemoteTier`] is the driver, which the engine's thread calls between passes. Its own threads communicate with a
//! [`BlobStore`]. One block is one object, whose name is the block's [`BlockKey`](interbed_kv::BlockKey), which covers
//! the model, the tenant and everything before the block. An object that is read counts only if it is signed with the
//! servers' common secret and names the wanted tokens and the block before them; anything else is a miss.
//!
//! A store may be slow or gone. A sequence never waits longer than the time in which the blocks that have come would
//! have been computed, plus a short time given by [`Patience`].

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
pub use remote_tier::{RemoteOptions, RemoteTier, RemoteTierError};
