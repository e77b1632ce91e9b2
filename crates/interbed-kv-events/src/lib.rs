//! Tells routers what the prefix cache holds, in the format in which vLLM does, so that they send a prompt to the
//! server that has computed its beginning.
//!
//! [`EventPublisher`] turns the changes of a cache into numbered batches ([`encode`]) and keeps the last of them in a
//! journal. It serves two sockets that speak ZeroMQ: one publishes each batch, and the other repeats batches that a
//! subscriber has missed.
//!
//! The protocol is implemented here (`wire.rs`), because the usual library allocates the length that a peer names
//! before the peer has sent a byte. Anyone who can reach the port could thereby end the server.

mod batch;
mod endpoint;
mod journal;
mod peer;
mod publisher;
mod wire;

pub use batch::encode;
pub use endpoint::{Endpoint, EndpointError};
pub use publisher::{EventPublisher, PublishError, PublisherConfig};
