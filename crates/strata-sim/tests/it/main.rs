//! Integration tests of the laboratory, in one binary.

mod eviction;
mod rng;
mod simulation;
