//! Integration tests of the laboratory, in one binary.

mod designs;
mod eviction;
mod replay;
mod support;
