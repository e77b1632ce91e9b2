//! Weights as files really hold them, whole and damaged.

mod catalog;
mod content;
mod experts;
mod files;
mod fp8;
mod fuzz;
mod gguf;
mod header;
mod resident;
mod store;
mod store_disks;
mod streamed;
mod verify;
mod window;
mod writer;
