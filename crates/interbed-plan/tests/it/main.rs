//! Integration tests of simulated hardware, in one binary.

mod simulation;
