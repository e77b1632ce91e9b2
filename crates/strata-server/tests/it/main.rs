//! The server over a real loopback socket, in front of a scripted engine.

mod api;
mod choices;
mod fixture;
mod fuzz;
mod hostile;
mod lifecycle;
mod messages;
mod origins;
mod responses;
mod streaming;
mod vllm_fields;
