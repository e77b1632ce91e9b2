//! Integration tests of the laboratory, in one binary.

mod eviction;
mod simulation;
