//! Figures of a machine, each with where it comes from.

/// Where a figure comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Origin {
    /// A flag.
    Given(&'static str),
    /// A measurement of now and here, with its circumstances.
    Measured(String),
    /// The figure was neither given nor measured; why this value.
    Assumed(String),
}

/// A figure and its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// In bytes, or bytes or operations a second.
    pub value: f64,
    pub source: Origin,
}

/// How the disk is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Bytes of a read.
    pub chunk_bytes: usize,
    /// Reads in flight at a time.
    pub depth: usize,
    /// Whether the disk was tried for it.
    pub tried: bool,
}
