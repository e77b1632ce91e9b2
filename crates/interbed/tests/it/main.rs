//! The built binary, used as a person or a script would use it.

mod agent;
mod bench;
mod bundled;
mod chat;
mod gguf;
mod gpu;
mod help;
mod house;
mod hub;
mod info;
mod kv_disk;
mod kv_layout;
mod kv_load;
mod memory;
mod mixtures;
mod model_files;
mod operations;
mod pack;
mod plan;
mod refusals;
mod replay;
mod run;
mod schemas;
mod serve;
mod stream;
mod support;
