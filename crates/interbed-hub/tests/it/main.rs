//! Tests names, choices and responses by themselves, and downloads over real sockets from a Hub that misbehaves.

mod cache;
mod choices;
mod damage;
mod downloads;
mod listings;
mod names;
mod offline;
mod patience;
mod place;
mod settings;
mod tls;
