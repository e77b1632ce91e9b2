//! What the prefix cache holds, told to routers as vLLM tells it, so that they send a prompt to the server that has
//! computed its beginning.
//!
//! [`EventPublisher`] turns the changes of a cache into numbered batches ([`encode`]), keeps the last of them in a
//! journal, and serves two sockets that speak ZeroMQ: one that publishes each batch, and one that repeats those which
//! a subscriber has missed.
//!
//! The protocol is written out here (`wire.rs`), since the library for it believes the length that a peer names before
//! it has sent a byte; whoever reached the port could end the server.

mod batch;
mod endpoint;
mod journal;
mod peer;
mod publisher;
mod wire;

pub use batch::encode;
pub use endpoint::{Endpoint, EndpointError};
pub use publisher::{EventPublisher, PublishError, PublisherConfig};
