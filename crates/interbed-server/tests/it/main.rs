//! The server over a real loopback socket, in front of a scripted engine.

mod agents;
mod api;
mod choices;
mod context;
mod embeddings;
mod fixture;
mod fuzz;
mod history;
mod hostile;
mod lifecycle;
mod live;
mod loading;
mod messages;
mod model_names;
mod openapi;
mod origins;
mod prefill;
mod reasoning;
mod responses;
mod streaming;
mod structured;
mod tls;
mod tools;
mod traces;
mod vllm_fields;
