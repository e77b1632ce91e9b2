//! The server over a real loopback socket, in front of a scripted engine.

mod api;
mod choices;
mod fixture;
mod fuzz;
mod hostile;
mod lifecycle;
mod streaming;
mod structured;
mod tools;
