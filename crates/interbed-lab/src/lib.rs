//! The laboratory answers questions about designs, and serves no requests.
//!
//! [`replay`] runs the block manager over a trace of requests with any policy of [`eviction`], or sends the trace
//! through fleets of servers. [`routing`] runs the arena of experts over what routers chose, and compares it with
//! policies of textbooks and a lower bound. [`mapping`] simulates what passes would wait for where KV is mapped side by
//! side. [`commands`] has the commands of `interbed-lab`.

pub mod commands;
pub mod eviction;
pub mod mapping;
pub mod replay;
pub mod routing;
